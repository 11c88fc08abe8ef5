"""Running experiments: what is there is skipped, what finishes is kept, what fails is reported at the end."""

from __future__ import annotations

import logging
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from askew import checks, io
from askew._progress import progress_bar
from askew_paper.experiment import Cell, Experiment, Outcome, check_scale
from askew_paper.rows import Row, RowFile
from askew_paper.summary import surroundings
from askew_paper.workers import Done, Failed, Pool, compute

__all__ = ["FailedCellsError", "cell_seconds", "reproduce"]

LOGGER = logging.getLogger(__name__)
# How many failures an error names.
NAMED = 5


class FailedCellsError(RuntimeError):
    """Raised at the end of a run in which some cells failed; all others have their rows.

    Attributes
    ----------
    failures : list of Failed
        The cells, the errors in one line and where they came from.
    """

    def __init__(self, failures: Sequence[Failed], folder: Path) -> None:
        self.failures = list(failures)
        lines = [f"{len(self.failures)} cell(s) failed; all others have their rows in {str(folder)!r}."]
        lines += [f"  {failure.cell}: {failure.error}" for failure in self.failures[:NAMED]]
        if len(self.failures) > NAMED:
            lines.append(f"  and {len(self.failures) - NAMED} more")
        super().__init__("\n".join(lines))


def reproduce(
    experiments: Sequence[Experiment],
    folder: str | os.PathLike[str],
    scale: str = "quick",
    seeds: int | None = None,
    jobs: int = 1,
    progress: bool | None = None,
) -> list[Row]:
    """Compute all cells of experiments that have no row yet, and return the rows of all of them.

    Each row is appended to ``folder/<experiment>.jsonl`` when it is finished. So a run can be stopped or killed
    at any moment, and the same call goes on where it was. The same seed gives the same scores.

    Parameters
    ----------
    experiments
        Run one after the other.
    folder
        Of the results; made if need be. Several processes may write to it.
    scale
        ``"quick"``, ``"paper"`` or ``"toy"``.
    seeds
        Number of repetitions; None takes the usual number of each experiment.
    jobs
        Number of cells computed at the same time. Above 1 in processes of their own, which share the cores. Cells that
        measure times are computed one at a time all the same.
    progress
        Whether to show a bar; None means on a terminal only.

    Raises
    ------
    FailedCellsError
        At the end, if some cells failed.
    KeyboardInterrupt
        After Ctrl-C, once what was finished is written.

    Examples
    --------
    >>> import tempfile
    >>> from askew_paper.experiment import MAE, grid
    >>> def cells(scale, seeds):
    ...     return grid("sums", scale, seeds, settings=["small"], methods=["exact"], options={})
    >>> sums = Experiment("sums", "Sums", ("table 1",), (MAE,), {"quick": 2}, {"quick": 1.0}, cells,
    ...                   run=lambda cell: Outcome({"mae": cell.seed / 2}))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [row.scores["mae"] for row in reproduce([sums], folder)]
    [0.0, 0.5]
    """
    check_scale(scale)
    checks.check_size(jobs, "jobs")
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise NotADirectoryError(checks.message("the folder of results", "a folder", f"the file {str(folder)!r}"))
    run = _Run(experiments, place, scale, seeds)
    done = len(run.rows())
    if done < len(run.cells):  # now, not after the first of them
        io.writable_folder(folder)
    # Cells take very different times, so that the estimate is made of what such cells took.
    with progress_bar(progress, len(run.cells), "reproducing", done, "minutes left", estimate=False) as move:

        def show() -> None:
            move(len(run.rows()) + len(run.failures), run.seconds_left(jobs) / 60)

        def settle(pool: Pool, most: int) -> None:
            """Record what is finished until no more than so many processes are at work."""
            while pool.busy > most:
                for result in pool.finished():
                    run.record(result)
                show()

        show()
        if jobs == 1:
            for cell in run.waiting():
                run.record(compute(run.experiments[cell.experiment].run, cell))
                show()
        else:
            with Pool(jobs) as pool:
                try:
                    for cell in run.waiting():
                        experiment = run.experiments[cell.experiment]
                        if experiment.alone:
                            settle(pool, 0)
                        pool.give(experiment.run, cell)
                        settle(pool, 0 if experiment.alone else jobs - 1)
                    settle(pool, 0)
                except KeyboardInterrupt:
                    for result in pool.finished(patient=False):
                        run.record(result)
                    raise
    if run.failures:
        raise FailedCellsError(list(run.failures.values()), run.folder)
    return run.rows()


class _Run:
    """The cells that are wanted, the rows that there are, and what failed."""

    def __init__(self, experiments: Sequence[Experiment], folder: Path, scale: str, seeds: int | None) -> None:
        self.experiments = {experiment.name: experiment for experiment in experiments}
        if len(self.experiments) < len(experiments):
            names = [experiment.name for experiment in experiments]
            raise ValueError(checks.message("experiments", "of different names", names))
        wanted = [cell for experiment in experiments for cell in experiment.checked_cells(scale, seeds)]
        self.folder, self.scale = folder, scale
        self.cells = {cell.key: cell for cell in wanted}
        self.failures: dict[str, Failed] = {}
        self.files = {name: RowFile(folder / f"{name}.jsonl") for name in self.experiments}

    def rows(self) -> list[Row]:
        """Return the rows that there are of the cells that are wanted."""
        files = self.files
        found = (files[cell.experiment].rows.get(key) for key, cell in self.cells.items())
        return [row for row in found if row is not None]

    def waiting(self) -> Iterable[Cell]:
        """Yield the cells that have no row, not even by another process, at the moment they are asked for."""
        for key, cell in self.cells.items():
            file = self.files[cell.experiment]
            if key not in file.rows:
                file.refresh()
                if key not in file.rows:
                    yield cell

    def record(self, result: Done | Failed) -> None:
        """Write the row of a finished cell, or note that it failed."""
        if isinstance(result, Done):
            try:
                row = _row(self.experiments[result.cell.experiment], result)
            except (TypeError, ValueError) as error:
                result = Failed(result.cell, f"{type(error).__name__}: {error}", "")
            else:
                self.files[result.cell.experiment].append(row)
                return
        self.failures[result.cell.key] = result
        LOGGER.warning("%s failed: %s", result.cell, result.error)

    def seconds_left(self, jobs: int) -> float:
        """Return about how long the cells that are left take, so many at a time where they need not be alone."""
        total = 0.0
        for name, experiment in self.experiments.items():
            rows = self.files[name].rows
            estimate = cell_seconds(experiment, self.scale, rows.values())
            cells = (cell for cell in self.cells.values() if cell.experiment == name)
            left = sum(estimate(cell) for cell in cells if cell.key not in rows and cell.key not in self.failures)
            total += left if experiment.alone else left / jobs
        return total


def _row(experiment: Experiment, done: Done) -> Row:
    """Return the row of a finished cell, if its scores are those of the experiment and finite numbers."""
    outcome, owner = done.outcome, f"run of {experiment.name!r}"
    if not isinstance(outcome, Outcome):
        raise TypeError(checks.message(f"result of the {owner}", "an Outcome", type(outcome).__name__))
    if not outcome.scores:
        raise ValueError(checks.message(f"scores of the {owner}", "at least one", "none"))
    for name in outcome.scores:
        checks.check_name(name, [score.name for score in experiment.scores], f"each score of the {owner}")
    around = surroundings()
    row = Row(
        done.cell,
        scores={name: _number(value) for name, value in outcome.scores.items()},
        curves={name: tuple(map(_number, values)) for name, values in outcome.curves.items()},
        chosen=outcome.chosen,
        seconds=done.seconds,
        started=done.started,
        **around | {"machine": around["machine"] | {"threads": done.threads}},
    )
    # Read back, so that what is kept here is what any reader finds, and nothing is written that none can read.
    return Row.from_line(row.to_line()[:-1])


def _number(value: object) -> float:
    """Return a number of Python; torch and NumPy have their own."""
    return float(value)  # type: ignore[arg-type]


def cell_seconds(experiment: Experiment, scale: str, rows: Iterable[Row]) -> Callable[[Cell], float]:
    """Return a function that says about how long a cell takes.

    That is the median of the rows of its setting and method; failing that, of its method, of the experiment at
    this scale, and in the end what the experiment itself says.

    Parameters
    ----------
    experiment
        Whose cells they are.
    scale
        Of the cells.
    rows
        That there are, of any experiment and scale.

    Examples
    --------
    >>> from askew_paper.experiment import MAE, grid
    >>> def cells(scale, seeds):
    ...     return grid("sums", scale, seeds, settings=["small"], methods=["exact"], options={})
    >>> sums = Experiment("sums", "Sums", ("table 1",), (MAE,), {"quick": 2}, {"quick": 1.0}, cells, run=print)
    >>> cell_seconds(sums, "quick", rows=[])(next(cells("quick", 1)))
    30.0
    """
    times: dict[tuple[str | None, str | None], list[float]] = {}
    for row in rows:
        cell = row.cell
        if (cell.experiment, cell.scale) == (experiment.name, scale):
            for level in ((cell.setting, cell.method), (None, cell.method), (None, None)):
                times.setdefault(level, []).append(row.seconds)
    medians = {level: statistics.median(seconds) for level, seconds in times.items()}
    stated = 60 * experiment.minutes[scale] / max(1, len(experiment.checked_cells(scale)))

    def estimate(cell: Cell) -> float:
        levels = ((cell.setting, cell.method), (None, cell.method), (None, None))
        return next((medians[level] for level in levels if level in medians), stated)

    return estimate
