"""The command ``askew``: a thin shell around the library."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from askew import checks, storage
from askew.experiments.description import EXPERIMENTS, Experiment, check_scale, chosen
from askew.experiments.results import cores, read
from askew.experiments.rows import Row
from askew.experiments.running import FailedCellsError, cell_seconds, reproduce
from askew.report import write_report

__all__ = ["app", "main"]

# What the shell makes of errors: the caller's (2, like a wrong option), some cells that failed (1), Ctrl-C (130).
MISTAKE, FAILED, INTERRUPTED = 2, 1, 130
# Errors that say in one line what is wrong and how to mend it.
EXPECTED = (ValueError, OSError, ImportError)

RESULTS = Path("results")

app = typer.Typer(
    help="Distances that need not be symmetric: learn them, and put them to work.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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
        if debug:
            traceback.print_exc()
        else:
            _complain(" ".join(str(error).split()) or type(error).__name__)
        sys.exit(MISTAKE)
    finally:
        warnings.formatwarning = shown


def _complain(text: str) -> None:
    print(f"askew: {text}", file=sys.stderr)


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


# ---------------------------------------------------------------------- experiments


@app.command("reproduce")
def _reproduce(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Experiments; all if none.")] = None,
    scale: Annotated[str, typer.Option(metavar="quick|paper", help="Reduced, or as in the paper.")] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Repetitions.", show_default="as is usual for each")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at the same time, which share the cores.")] = 1,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the results.")] = RESULTS,
    listing: Annotated[bool, typer.Option("--list", help="Say what there is and how long it takes.")] = False,
) -> None:
    """Run experiments; stopped at any moment, the same command goes on where it was."""
    experiments = chosen(names or [])
    check_scale(scale)
    if listing:
        _list(experiments, output)
        return
    if not experiments:
        raise ValueError("There are no experiments to run.")
    able = [experiment for experiment in experiments if names or scale in experiment.seeds]
    try:
        rows = reproduce(able, output, scale, seeds, jobs)
    except KeyboardInterrupt:
        _complain(f"stopped. What was finished is in {str(output)!r}; the same command goes on from there.")
        raise typer.Exit(INTERRUPTED) from None
    except FailedCellsError as error:
        _complain(str(error))
        if context.find_root().params["debug"]:
            _complain("\n".join(failure.details for failure in error.failures))
        raise typer.Exit(FAILED) from None
    print(f"{len(rows)} rows in {str(output)!r}. Tables of them: askew report {output} -o report")


def _list(experiments: Iterable[Experiment], folder: Path) -> None:
    """Print what each experiment makes, needs and takes, and which rows there are already."""
    try:
        rows = read(folder)
    except FileNotFoundError:
        rows = []
    for experiment in experiments:
        print(f"{experiment.name}: {experiment.title}")
        print(f"  makes  {', '.join(experiment.makes)}")
        print(f"  needs  {', '.join(experiment.needs) or 'nothing else'}")
        for scale in experiment.seeds:
            print(f"  {scale:5}  {_times(experiment, scale, rows)}")


def _times(experiment: Experiment, scale: str, rows: Sequence[Row]) -> str:
    """Return how long an experiment takes with the usual seeds: as measured here, or else as it says itself."""
    cells = experiment.checked_cells(scale)
    here = [row for row in rows if row.machine.get("cores") == cores()]
    measured = any((row.cell.experiment, row.cell.scale) == (experiment.name, scale) for row in here)
    total = float(sum(map(cell_seconds(experiment, scale, here), cells)))
    keys = {row.cell.key for row in rows}
    done = sum(cell.key in keys for cell in cells)
    if measured:  # as many cells at the same time as there are cores
        total /= cores()
    where = f"on {cores()} cores, by the rows measured here" if measured else "on two cores"
    seeds = experiment.seeds[scale]
    return f"{_duration(total)} {where}, {seeds} seed{'s' * (seeds > 1)}; {done} of {len(cells)} rows done"


def _duration(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"about {float(f'{seconds / size:.2g}'):g} {unit}"  # two digits, and no exponent
    return f"about {max(1, round(seconds))} seconds"


@app.command("report")
def _report(
    results: Annotated[Path, typer.Argument(help="Folder of results that reproduce wrote.")] = RESULTS,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the report.")] = Path("report"),
) -> None:
    """Print and write tables of results beside the paper's (Markdown and one HTML page), and curves as PNG."""
    if not results.is_dir():
        must, mend = "a folder that exists", "Make it with: askew reproduce"
        raise FileNotFoundError(checks.problem("RESULTS", must, repr(str(results)), mend))
    files = write_report(results, output, EXPERIMENTS.values())
    tables = files[0].read_text("utf-8")
    if sys.stdout.isatty():
        Console().print(Markdown(tables))
    else:
        print(tables)
    print("\n".join(f"Wrote {file}" for file in files), file=sys.stderr)


if __name__ == "__main__":
    main()
