"""What all commands share: errors of one line, exit codes, and output for people or for programs.

All text is printed by the functions of this module. Names of columns, rows, classes and files may hold control
characters; these are shown, not obeyed: see :func:`visible`.
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

from askew._version import __version__

# Exit codes: the caller's mistake (like a wrong option), work that failed, Ctrl-C.
MISTAKE, FAILED, INTERRUPTED = 2, 1, 130
# Errors whose message says what is wrong and how to fix it.
EXPECTED = (ValueError, OSError, ImportError, TypeError)
# Width of tables where there is no terminal to ask.
WIDTH = 120
# Control characters, those that change the direction of text, and surrogates (as in file names that are not UTF-8),
# which cannot be printed at all. Not among them: tabs, joiners and marks that letters of some languages need.
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Commands(typer.core.TyperGroup):
    """A group of commands that Ctrl-C ends in the same way, and that prints its help if no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            # Not by no_args_is_help: that help is an error message, whose line breaks are written out below.
            say(ctx.get_help(), lines=True)
            raise typer.Exit(MISTAKE)
        return super().parse_args(ctx, args)

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
    """Write out control characters in usage errors, which typer prints."""
    try:
        yield
    except Exception as error:
        # The class is click's or that of the copy of it in typer, depending on the version.
        if hasattr(error, "format_message") and hasattr(error, "message"):
            error.message = visible(str(error.message))
        raise


app = typer.Typer(
    cls=Commands,
    help="Learn distances that need not be symmetric, and search and cluster with them.",
    epilog="Begin with: askew demo",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command on the words after ``askew``, by default those of the command line; ends with SystemExit.

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
    # It may stand anywhere; typer takes it in front of the command only.
    words = ["--debug"] * debug + [word for word in words if word != "--debug"]
    formatwarning = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"askew: {visible(_one_line(message))}\n"
    try:
        app(args=words, prog_name=name)
    except EXPECTED as error:
        _explain(error, debug, MISTAKE)
    except RuntimeError as error:
        from askew.training import TrainingDivergedError

        if not isinstance(error, TrainingDivergedError):
            raise
        _explain(error, debug, FAILED)
    finally:
        warnings.formatwarning = formatwarning


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


def _explain(error: Exception, debug: bool, code: int) -> None:
    if debug:
        print(visible(traceback.format_exc(), lines=True), end="", file=sys.stderr)
    else:
        text: object = error
        if isinstance(error, OSError) and error.strerror:  # as text it would begin with its number
            text = error.strerror if error.filename is None else f"{str(error.filename)!r}: {error.strerror}"
        complain(_one_line(text) or type(error).__name__)
    sys.exit(code)


def visible(text: str, lines: bool = False) -> str:
    r"""Return text with control characters written out, as Python does.

    So are line breaks, unless ``lines`` says that they are ours: no name can look like a line.

    Examples
    --------
    >>> print(visible("Zürich\x1b[2J \u202ecba\nall is well"))
    Zürich\x1b[2J \u202ecba\nall is well
    """
    text = UNSAFE.sub(lambda match: repr(match.group())[1:-1], text)
    return text if lines else text.replace("\n", "\\n")


def complain(text: str, lines: bool = False) -> None:
    """Print an error, to standard error."""
    print(f"askew: {visible(text, lines)}", file=sys.stderr)


def say(text: str = "", quiet: bool = False, lines: bool = False, aside: bool = False) -> None:
    """Print text for people, ``aside`` to standard error; nothing if ``quiet``, where programs read the output."""
    if not quiet:
        print(visible(text, lines), file=sys.stderr if aside else sys.stdout)


def print_json(value: object) -> None:
    """Print a value for programs: one JSON document, in which unsafe characters are written as JSON writes them."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    print(UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None) -> None:
    """Print a table for people, with one row marked as the best."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(header):
        drawn.add_column(visible(name), justify="left" if number == 0 else "right", overflow="fold")
    for number, row in enumerate(rows):
        drawn.add_row(*map(visible, row), style="bold green" if number == best else None)
    width = None if sys.stdout.isatty() else WIDTH
    Console(file=sys.stdout, width=width, markup=False, highlight=False).print(drawn)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"askew {__version__}")
        raise typer.Exit


@app.callback()
def _shared(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    # Declares the options in front of a command; run() looks for --debug.
    pass
