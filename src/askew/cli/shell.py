"""What all commands share: errors in one line, exit codes, and output for people or for programs."""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.table import Table

from askew import storage
from askew.training import TrainingDivergedError

__all__ = ["FAILED", "INTERRUPTED", "MISTAKE", "app", "complain", "main", "print_json", "say", "table"]

# What the shell makes of errors: the caller's (2, like a wrong option), work that failed (1), Ctrl-C (130).
MISTAKE, FAILED, INTERRUPTED = 2, 1, 130
# Errors that say in one line what is wrong and how to mend it.
EXPECTED = (ValueError, OSError, ImportError, TypeError)
# Width of tables where there is no terminal to ask.
WIDTH = 120


class _Commands(typer.core.TyperGroup):
    """The commands; Ctrl-C ends each of them in the same way."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("stopped.")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    help="Distances that need not be symmetric: learn them, and put them to work.",
    epilog="Begin with: askew compare --dataset wine",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; ends with SystemExit, as commands do.

    Parameters
    ----------
    arguments
        The words after ``askew``; None for those of the command line.

    Examples
    --------
    >>> main(["--version"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    # It may stand anywhere; the shell itself knows it in front of the command only.
    words = ["--debug"] * debug + [word for word in words if word != "--debug"]
    shown = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"askew: {message}\n"
    try:
        app(args=words, prog_name="askew")
    except EXPECTED as error:
        _explain(error, debug, MISTAKE)
    except TrainingDivergedError as error:
        _explain(error, debug, FAILED)
    finally:
        warnings.formatwarning = shown


def _explain(error: Exception, debug: bool, code: int) -> None:
    if debug:
        traceback.print_exc()
    else:
        complain(" ".join(str(error).split()) or type(error).__name__)
    sys.exit(code)


def complain(text: str) -> None:
    """Print what is wrong, apart from what the command gives."""
    print(f"askew: {text}", file=sys.stderr)


def say(text: str, quiet: bool = False) -> None:
    """Print something for people; with ``quiet``, where programs read the output, not at all."""
    if not quiet:
        print(text)


def print_json(value: object) -> None:
    """Print a value for programs: one JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None) -> None:
    """Print a table for people, with one row marked as the best."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(header):
        drawn.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    for number, row in enumerate(rows):
        drawn.add_row(*row, style="bold green" if number == best else None)
    terminal = sys.stdout.isatty()
    Console(file=sys.stdout, width=None if terminal else WIDTH, markup=False, highlight=False).print(drawn)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"askew {storage.version()}")
        raise typer.Exit


@app.callback()
def _shared(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    # Typer keeps a command a word of its own only if there is such a function; main() looks for --debug.
    pass
