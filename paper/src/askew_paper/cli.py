"""The command ``askew-paper``: run the experiments, list them, report them, fetch their data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from askew.cli import shell
from askew.cli.shell import FAILED, INTERRUPTED, Commands, complain, print_json, say, table

# Everything else is imported by the commands that need it: help and mistakes come at once.
if TYPE_CHECKING:
    from askew_paper.experiment import Experiment
    from askew_paper.rows import Row

RESULTS = Path("results")
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Experiments; all if none is given.")]

app = typer.Typer(
    cls=Commands,
    help="The experiments of the paper on neural Bregman divergences, run with askew.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``askew-paper``; ends with SystemExit, as commands do."""
    shell.run(app, "askew-paper", arguments)


@app.callback()
def _shared(debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False) -> None:
    pass


@app.command("run", epilog="Example: askew-paper run clustering --scale quick --jobs 2")
def _run(
    context: typer.Context,
    names: Names = None,
    scale: Annotated[
        str, typer.Option(metavar="quick|medium|paper", help="Minutes, hours, or as in the paper.")
    ] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Repetitions.", show_default="default of each")] = None,
    setting: Annotated[list[str] | None, typer.Option(help="Only this setting; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at the same time, which share the cores.")] = 1,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the results.")] = RESULTS,
) -> None:
    """Run experiments. Stop it at any moment: the same command continues."""
    from askew_paper.catalogue import chosen
    from askew_paper.experiment import check_scale
    from askew_paper.runner import FailedCellsError, reproduce

    experiments = chosen(names or [])
    check_scale(scale)
    able = [experiment for experiment in experiments if names or scale in experiment.seeds]
    try:
        rows = reproduce(able, output, scale, seeds, jobs, settings=setting or (), methods=method or ())
    except KeyboardInterrupt:
        complain(f"stopped. What was finished is in {str(output)!r}; the same command goes on from there.")
        raise typer.Exit(INTERRUPTED) from None
    except FailedCellsError as error:
        complain(str(error), lines=True)
        if context.find_root().params["debug"]:
            complain("\n".join(failure.details for failure in error.failures), lines=True)
        raise typer.Exit(FAILED) from None
    say(f"{len(rows)} rows in {str(output)!r}. Tables of them: askew-paper report {output} -o report")


@app.command("list", epilog="Example: askew-paper list regression")
def _list(
    names: Names = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the results.")] = RESULTS,
) -> None:
    """List experiments. Says what each makes, needs and takes, and how many of its rows are done."""
    from askew_paper.catalogue import chosen
    from askew_paper.rows import read_rows

    for experiment in chosen(names or []):
        rows = read_rows(output / f"{experiment.name}.jsonl")
        say(f"{experiment.name}: {experiment.title}")
        say(f"  makes  {', '.join(experiment.makes)}")
        say(f"  needs  {', '.join(experiment.needs) or 'nothing else'}")
        for scale in experiment.seeds:
            say(f"  {scale:5}  {_progress(experiment, scale, rows)}")


def _progress(experiment: Experiment, scale: str, rows: dict[str, Row]) -> str:
    """Return how long an experiment takes, as measured here or else as it says itself, and what is done."""
    import joblib

    from askew_paper.runner import cell_seconds

    cells, cores = experiment.checked_cells(scale), joblib.cpu_count()
    here = [row for row in rows.values() if row.machine.get("cores") == cores]
    is_measured = any(row.cell.scale == scale for row in here)
    total = sum(map(cell_seconds(experiment, scale, here), cells))
    if is_measured and not experiment.alone:  # as many cells at the same time as there are cores
        total /= cores
    unit, size = next((pair for pair in (("hours", 3600), ("minutes", 60)) if total >= 1.5 * pair[1]), ("seconds", 1))
    # Two digits, and no exponent.
    duration = f"about {float(f'{total / size:.2g}'):g} {unit}" if size > 1 else f"about {max(1, round(total))} seconds"
    where = f"on {cores} cores, by the rows measured here" if is_measured else "on two cores"
    seeds, done = experiment.seeds[scale], sum(cell.key in rows for cell in cells)
    return f"{duration} {where}, {seeds} seed{'s' * (seeds > 1)}; {done} of {len(cells)} rows done"


@app.command("report", epilog="Example: askew-paper report results -o report")
def _report(
    results: Annotated[Path, typer.Argument(help="Folder of results.")] = RESULTS,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder, or one .html file.")] = Path("report"),
    everything: Annotated[bool, typer.Option("--all", help="Also what has no results yet.")] = False,
) -> None:
    """Compare results with the paper. Writes a scorecard, a page for each experiment and one HTML; trains nothing."""
    from askew import checks
    from askew_paper.catalogue import EXPERIMENTS
    from askew_paper.report import write_report
    from askew_paper.rows import read
    from askew_paper.scorecard import scorecard

    if not results.is_dir():
        must, hint = "a folder that exists", "Make it with: askew-paper run"
        raise FileNotFoundError(checks.message("RESULTS", must, repr(str(results)), hint))
    files = write_report(results, output, EXPERIMENTS.values(), everything)
    short, _ = scorecard(read(results), EXPERIMENTS.values())
    for line in short.itertuples(index=False):
        say(f"{line[0]}: {line[3]}")
    say(f"Wrote {files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else ""))


@app.command("data", epilog="Example: askew-paper data --download mnist")
def _data(
    download: Annotated[
        list[str] | None, typer.Option(help="Download the files of this name; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List published data, or download it. Nothing is downloaded unless asked for."""
    from askew import checks
    from askew_paper import data

    for name in download or []:
        checks.check_name(name, data.download_names(), "--download")
    for path in data.download(download) if download else []:
        complain(f"{path} is there.")
    present = {name: data.is_present(name) for name in data.download_names()}
    if json:
        sets = [{"name": name, "there": there} for name, there in present.items()]
        print_json({"folder": str(data.data_folder()), "datasets": sets})
        return
    say(f"Files, in {str(data.data_folder())!r} (set ASKEW_DATA to change it):")
    table(("name", ""), [(name, "there" if there else "missing") for name, there in present.items()])
    say("Download missing ones from their publishers with: askew-paper data --download NAME")
