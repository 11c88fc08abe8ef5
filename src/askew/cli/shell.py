"""What all commands share: errors in one line, exit codes, and output for people or for programs.

All text goes out through the functions of this module. Names of columns, rows, classes and files come from whoever made
them, and what a terminal would obey in them is shown instead: see :func:`visible`.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from askew import io
from askew.training import TrainingDivergedError

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "MISTAKE",
    "Commands",
    "app",
    "complain",
    "main",
    "markdown",
    "print_json",
    "run",
    "say",
    "table",
    "visible",
]

# What the shell makes of errors: the caller's (2, like a wrong option), work that failed (1), Ctrl-C (130).
MISTAKE, FAILED, INTERRUPTED = 2, 1, 130
# Errors that say in one line what is wrong and how to mend it.
EXPECTED = (ValueError, OSError, ImportError, TypeError)
# Width of tables where there is no terminal to ask.
WIDTH = 120
# What a terminal obeys, or what turns the order of the text around it; halves of characters, as in names of files that
# are no UTF-8, cannot be printed at all. Tabs, joiners and marks that letters of some languages need are none of these.
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Commands(typer.core.TyperGroup):
    """The commands; Ctrl-C ends each of them in the same way."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _visible_mistakes():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            with _visible_mistakes():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("stopped.")
            raise typer.Exit(INTERRUPTED) from None


@contextlib.contextmanager
def _visible_mistakes() -> Iterator[None]:
    """Make the messages about wrong words of the command line, which are not printed here, visible."""
    try:
        yield
    except Exception as error:
        # The class is click's or that of the copy of it in typer, depending on the version.
        if hasattr(error, "format_message") and hasattr(error, "message"):
            error.message = visible(str(error.message))
        raise


app = typer.Typer(
    cls=Commands,
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
    run(app, "askew", arguments)


def run(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> None:
    """Run the commands of an app under the name ``name``; errors become one line and an exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    # It may stand anywhere; the shell itself knows it in front of the command only.
    words = ["--debug"] * debug + [word for word in words if word != "--debug"]
    shown = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"askew: {visible(_one_line(message))}\n"
    try:
        app(args=words, prog_name=name)
    except EXPECTED as error:
        _explain(error, debug, MISTAKE)
    except TrainingDivergedError as error:
        _explain(error, debug, FAILED)
    finally:
        warnings.formatwarning = shown


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


def _explain(error: Exception, debug: bool, code: int) -> None:
    if debug:
        print(visible(traceback.format_exc(), lines=True), end="", file=sys.stderr)
    else:
        complain(_one_line(error) or type(error).__name__)
    sys.exit(code)


# ---------------------------------------------------------------------- what is printed


def visible(text: str, lines: bool = False) -> str:
    r"""Return text in which everything that a terminal would obey is written out, as Python writes it.

    Parameters
    ----------
    text
        With parts that may come from anywhere.
    lines
        Whether line breaks stay, where the text is ours; else they are written out, too, so that no name can look like
        a line of its own.

    Examples
    --------
    >>> print(visible("Zürich\x1b[2J \u202ecba\nall is well"))
    Zürich\x1b[2J \u202ecba\nall is well
    """
    shown = UNSAFE.sub(lambda found: repr(found.group())[1:-1], text)
    return shown if lines else shown.replace("\n", "\\n")


def complain(text: str, lines: bool = False) -> None:
    """Print what is wrong, apart from what the command gives."""
    print(f"askew: {visible(text, lines)}", file=sys.stderr)


def say(text: str = "", quiet: bool = False, lines: bool = False, aside: bool = False) -> None:
    """Print something for people; with ``quiet``, where programs read the output, not at all.

    Parameters
    ----------
    text
        What to print; without, an empty line.
    quiet
        Whether to print nothing.
    lines
        Whether the text has several lines; see :func:`visible`.
    aside
        Whether it goes where errors go, apart from what the command gives.
    """
    if not quiet:
        print(visible(text, lines), file=sys.stderr if aside else sys.stdout)


def markdown(text: str) -> None:
    """Print Markdown: with headings and tables on a terminal, as it is elsewhere."""
    if sys.stdout.isatty():
        Console().print(Markdown(visible(text, lines=True)))
    else:
        say(text, lines=True)


def print_json(value: object) -> None:
    """Print a value for programs: one JSON document, in which unsafe characters are written as JSON writes them."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    print(UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None) -> None:
    """Print a table for people, with one row marked as the best."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(header):
        drawn.add_column(visible(name), justify="left" if number == 0 else "right", overflow="fold")
    for number, row in enumerate(rows):
        drawn.add_row(*map(visible, row), style="bold green" if number == best else None)
    terminal = sys.stdout.isatty()
    Console(file=sys.stdout, width=None if terminal else WIDTH, markup=False, highlight=False).print(drawn)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"askew {io.version()}")
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
