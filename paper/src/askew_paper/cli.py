"""The command ``askew-paper``: run experiments, report them, fetch their data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from askew import checks
from askew.cli import shell
from askew.cli.shell import FAILED, INTERRUPTED, Commands, complain, markdown, print_json, say, table
from askew.cli.tables import bundled_names
from askew.divergences import CATALOGUE
from askew_paper import data
from askew_paper.experiment import Experiment, check_scale
from askew_paper.experiments import EXPERIMENTS, chosen
from askew_paper.experiments.timing import SETTINGS, bench
from askew_paper.report import write_report
from askew_paper.rows import Row
from askew_paper.runner import FailedCellsError, cell_seconds, reproduce
from askew_paper.summary import cores, read

__all__ = ["app", "main"]

RESULTS = Path("results")

app = typer.Typer(
    cls=Commands,
    help="The experiments of the paper on neural Bregman divergences, run with askew.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``askew-paper``; ends with SystemExit, as commands do."""
    shell.run(app, "askew-paper", arguments)


@app.callback()
def _shared(debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False) -> None:
    pass


# ---------------------------------------------------------------------- experiments


@app.command("run", epilog="Example: askew-paper run clustering --scale quick --jobs 2")
def _reproduce(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Experiments; all if none.")] = None,
    scale: Annotated[str, typer.Option(metavar="quick|paper", help="Reduced, or as in the paper.")] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Repetitions.", show_default="as is usual for each")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at the same time, which share the cores.")] = 1,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the results.")] = RESULTS,
) -> None:
    """Run experiments; stopped at any moment, the same command goes on where it was."""
    experiments = chosen(names or [])
    check_scale(scale)
    if not experiments:
        raise ValueError("There are no experiments to run.")
    able = [experiment for experiment in experiments if names or scale in experiment.seeds]
    try:
        rows = reproduce(able, output, scale, seeds, jobs)
    except KeyboardInterrupt:
        complain(f"stopped. What was finished is in {str(output)!r}; the same command goes on from there.")
        raise typer.Exit(INTERRUPTED) from None
    except FailedCellsError as error:
        complain(str(error), lines=True)
        if context.find_root().params["debug"]:
            complain("\n".join(failure.details for failure in error.failures), lines=True)
        raise typer.Exit(FAILED) from None
    say(f"{len(rows)} rows in {str(output)!r}. Tables of them: askew-paper report {output} -o report")


@app.command("list", epilog="Example: askew-paper list roads")
def _list(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Experiments; all if none.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the results.")] = RESULTS,
) -> None:
    """Print what each experiment makes, needs and takes, and which rows there are already."""
    folder = output
    try:
        rows = read(folder)
    except FileNotFoundError:
        rows = []
    for experiment in chosen(names or []):
        say(f"{experiment.name}: {experiment.title}")
        say(f"  makes  {', '.join(experiment.makes)}")
        say(f"  needs  {', '.join(experiment.needs) or 'nothing else'}")
        for scale in experiment.seeds:
            say(f"  {scale:5}  {_times(experiment, scale, rows)}")


def _times(experiment: Experiment, scale: str, rows: Sequence[Row]) -> str:
    """Return how long an experiment takes with the usual seeds: as measured here, or else as it says itself."""
    cells = experiment.checked_cells(scale)
    here = [row for row in rows if row.machine.get("cores") == cores()]
    measured = any((row.cell.experiment, row.cell.scale) == (experiment.name, scale) for row in here)
    total = float(sum(map(cell_seconds(experiment, scale, here), cells)))
    keys = {row.cell.key for row in rows}
    done = sum(cell.key in keys for cell in cells)
    if measured and not experiment.alone:  # as many cells at the same time as there are cores
        total /= cores()
    where = f"on {cores()} cores, by the rows measured here" if measured else "on two cores"
    seeds = experiment.seeds[scale]
    return f"{_duration(total)} {where}, {seeds} seed{'s' * (seeds > 1)}; {done} of {len(cells)} rows done"


def _duration(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"about {float(f'{seconds / size:.2g}'):g} {unit}"  # two digits, and no exponent
    return f"about {max(1, round(seconds))} seconds"


@app.command("report", epilog="Example: askew-paper report results -o report")
def _report(
    results: Annotated[Path, typer.Argument(help="Folder of results that reproduce wrote.")] = RESULTS,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the report, or one file .html.")] = Path(
        "report"
    ),
) -> None:
    """Print and write tables of results beside the paper's (Markdown and one HTML page), and curves as PNG."""
    if not results.is_dir():
        must, hint = "a folder that exists", "Make it with: askew-paper run"
        raise FileNotFoundError(checks.message("RESULTS", must, repr(str(results)), hint))
    files = write_report(results, output, EXPERIMENTS.values())
    if output.suffix == ".html":
        say(f"Wrote {output}")
        return
    markdown(files[0].read_text("utf-8"))
    for file in files:
        say(f"Wrote {file}", aside=True)


# ---------------------------------------------------------------------- this machine, these data


@app.command("bench", epilog="Example: askew-paper bench nbd mahalanobis --dim 64")
def _bench(
    methods: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Divergences; the usual if none.")] = None,
    dim: Annotated[int, typer.Option(help="Number of features.")] = 20,
    batch: Annotated[int, typer.Option(help="Points on each side.")] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Time divergences on this machine: a training step, D of pairs, and D of all pairs."""
    checks.check_size(dim, "--dim")
    checks.check_size(batch, "--batch")
    usual = ["euclidean", "mahalanobis", "nbd", "nbd-paper", "deep-div", "deepnorm", "widenorm", "iqe", "mrn"]
    asked = [checks.check_name(name, CATALOGUE, "name of a divergence") for name in methods or usual]
    found = bench(asked, dim, batch)
    if json:
        print_json({"dim": dim, "batch": batch, "milliseconds": found})
        return
    rows = [
        (name, *(f"{found[setting][name]:.3g}" if name in found[setting] else "-" for setting in SETTINGS))
        for name in asked
    ]
    say(f"Median milliseconds, {dim} features: a training step on {batch} pairs, D of {batch} pairs,")
    say(f"and D of all {batch} x {batch} pairs. Only ratios within this table mean something.")
    table(("divergence", *SETTINGS), rows)


@app.command("data", epilog="Example: askew-paper data --download mnist")
def _datasets(
    download: Annotated[list[str] | None, typer.Option(help="Fetch the files of this name; may be repeated.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List the data that askew knows and where they are; nothing is fetched unless asked for."""
    for name in download or []:
        checks.check_name(name, data.download_names(), "--download")
    for path in data.download(download) if download else []:
        complain(f"{path} is there.")  # beside the list
    found = [{"name": name, "kind": "comes with askew", "there": True} for name in bundled_names()]
    found += [{"name": name, "kind": "files", "there": data.is_present(name)} for name in data.download_names()]
    if json:
        print_json({"folder": str(data.data_folder()), "datasets": found})
        return
    say(f"With askew, for --dataset: {', '.join(bundled_names())}")
    say(f"Files, in {str(data.data_folder())!r} (set ASKEW_DATA to change it):")
    rows = [(str(one["name"]), "there" if one["there"] else "missing") for one in found if one["kind"] == "files"]
    table(("name", ""), rows)
    say("Fetch missing ones from their publishers with: askew-paper data --download NAME")
