"""Run experiments: cells with a row are skipped, each finished cell is written at once, failures come at the end."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import scipy
import sklearn
import torch
from joblib.externals.loky.process_executor import TerminatedWorkerError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from askew import checks, io
from askew_paper.experiment import Cell, Experiment, Outcome, check_scale
from askew_paper.rows import Row, append_row, read_rows

LOGGER = logging.getLogger(__name__)
# How many failures an error names.
NAMED = 5
BAR = (BarColumn(), MofNCompleteColumn(), TextColumn("minutes left {task.fields[minutes]:.4g}"))


@dataclass(frozen=True)
class Failed:
    """A cell that could not be computed: the error in one line, and its traceback."""

    cell: Cell
    error: str
    details: str = ""


class FailedCellsError(RuntimeError):
    """Raised at the end of a run in which some cells failed; all others have their rows."""

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
    settings: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> list[Row]:
    """Compute all cells of experiments that have no row yet, and return the rows of all of them.

    Each row is appended to ``folder/<experiment>.jsonl`` as soon as it is computed. A run can be stopped or killed at
    any moment, and the same call continues it; several processes may share the folder. The same seed gives the same
    scores. Cells that fail are named in a FailedCellsError at the end.

    Parameters
    ----------
    experiments
        Computed in this order.
    folder
        Of the results; created if needed.
    scale, seeds
        One of :data:`~askew_paper.experiment.SCALES`, and the number of repetitions; None for each one's default.
    jobs
        Number of cells that are computed at the same time, in worker processes that share the cores. Cells that
        measure times are computed one at a time, in this process.
    progress
        Whether to show a bar; None means on a terminal only.
    settings, methods
        Compute only the cells of these; all if none is given.

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
    known = {experiment.name: experiment for experiment in experiments}
    if len(known) < len(experiments):
        names = [experiment.name for experiment in experiments]
        raise ValueError(checks.message("experiments", "of different names", names))
    cells = [cell for experiment in experiments for cell in experiment.checked_cells(scale, seeds)]
    for what, wanted in (("setting", settings), ("method", methods)):
        for name in wanted:
            checks.check_name(name, dict.fromkeys(getattr(cell, what) for cell in cells), f"--{what}")
        cells = [cell for cell in cells if not wanted or getattr(cell, what) in wanted]
    rows = _all_rows(known, place)
    missing = [cell for cell in cells if cell.key not in rows]
    if missing:
        io.writable_folder(folder)  # fail now rather than after the first cell
    failures: dict[str, Failed] = {}
    show = sys.stderr.isatty() if progress is None else progress
    with Progress(*BAR, console=Console(stderr=True), disable=not show) as bar, warnings.catch_warnings():
        # Workers whose memory has grown are replaced by new ones, which is no reason to worry.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
        task = bar.add_task("", total=len(cells), minutes=math.nan)

        def move() -> None:
            left = [cell for cell in missing if cell.key not in rows and cell.key not in failures]
            seconds = 0.0
            for name, group in itertools.groupby(left, key=lambda cell: cell.experiment):
                estimate = cell_seconds(known[name], scale, rows.values())
                seconds += sum(map(estimate, group)) / (1 if known[name].alone else jobs)
            bar.update(task, completed=len(cells) - len(left), minutes=seconds / 60)

        move()
        for alone, group in itertools.groupby(missing, key=lambda cell: known[cell.experiment].alone):
            for result in _computed(list(group), known, place, 1 if alone else jobs):
                if isinstance(result, Failed):
                    failures[result.cell.key] = result
                    LOGGER.warning("%s failed: %s", result.cell, result.error)
                else:
                    rows[result.cell.key] = result
                if show:
                    move()
    if failures:
        raise FailedCellsError(list(failures.values()), place)
    rows = _all_rows(known, place)
    return [rows[cell.key] for cell in cells]


def _all_rows(names: Iterable[str], folder: Path) -> dict[str, Row]:
    return {key: row for name in names for key, row in read_rows(folder / f"{name}.jsonl").items()}


def cell_seconds(experiment: Experiment, scale: str, rows: Iterable[Row]) -> Callable[[Cell], float]:
    """Return a function that estimates how long a cell takes.

    The estimate is the median of the rows of its setting and method; without any, of its method, of the experiment at
    this scale, and in the end what the experiment itself says.
    """

    def levels(cell: Cell) -> tuple[tuple[str, ...], ...]:
        return (cell.setting, cell.method), (cell.method,), ()

    times: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if (row.cell.experiment, row.cell.scale) == (experiment.name, scale):
            for level in levels(row.cell):
                times.setdefault(level, []).append(row.seconds)
    medians = {level: statistics.median(seconds) for level, seconds in times.items()}
    stated = 60 * experiment.minutes[scale] / max(1, len(experiment.checked_cells(scale)))
    return lambda cell: next((medians[level] for level in levels(cell) if level in medians), stated)


# ---------------------------------------------------------------------- one cell


@contextlib.contextmanager
def seeded(cell: Cell) -> Iterator[None]:
    """Seed the random numbers of torch, NumPy and Python by the seed of a cell, and restore them afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(cell.seed)
        np.random.seed(cell.seed % 2**32)  # NumPy takes 32 bits only
        random.seed(cell.seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def compute(run: Callable[[Cell], Outcome], cell: Cell) -> Outcome | Failed:
    """Compute one cell in this process, with plain numbers in its result; an error becomes a result as well."""
    try:
        with seeded(cell):
            outcome = run(cell)
        if not isinstance(outcome, Outcome):
            got = type(outcome).__name__
            raise TypeError(checks.message(f"result of the run of {cell.experiment!r}", "an Outcome", got))
        scores = {name: float(value) for name, value in outcome.scores.items()}
        curves = {name: tuple(map(float, values)) for name, values in outcome.curves.items()}
        return Outcome(scores, curves, outcome.chosen)
    except Exception as error:
        return Failed(cell, _one_line(error), traceback.format_exc())


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _row(experiment: Experiment, cell: Cell, folder: Path) -> Row | Failed:
    """Return the row of a cell after it was written, or the one that another process has written."""
    path = folder / f"{experiment.name}.jsonl"
    if row := read_rows(path).get(cell.key):
        return row
    started, clock = datetime.now(timezone.utc), time.perf_counter()
    outcome = compute(experiment.run, cell)
    seconds = round(time.perf_counter() - clock, 6)
    if isinstance(outcome, Failed):
        return outcome
    around = provenance()
    row = Row(
        cell,
        outcome.scores,
        seconds,
        started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        {name: tuple(values) for name, values in outcome.curves.items()},
        outcome.chosen,
        **around | {"machine": around["machine"] | {"threads": torch.get_num_threads()}},
    )
    try:
        names = [score.name for score in experiment.scores]
        if not row.scores:
            raise ValueError(checks.message(f"scores of the run of {experiment.name!r}", "at least one", "none"))
        for name in row.scores:
            checks.check_name(name, names, f"each score of the run of {experiment.name!r}")
        row.to_line()  # raises if there is a number that is not finite, or something that JSON cannot hold
    except (TypeError, ValueError) as error:
        return Failed(cell, _one_line(error))
    append_row(path, row)
    return row


# ---------------------------------------------------------------------- many cells


def _computed(
    cells: Sequence[Cell], experiments: Mapping[str, Experiment], folder: Path, jobs: int
) -> Iterator[Row | Failed]:
    """Compute cells and yield their results as they come."""
    if jobs == 1:
        for cell in cells:
            yield _row(experiments[cell.experiment], cell, folder)
        return
    waiting = {cell.key: cell for cell in cells}
    while waiting:
        try:
            for result in _in_workers(list(waiting.values()), experiments, folder, jobs):
                del waiting[result.cell.key]
                yield result
        except TerminatedWorkerError:
            # joblib does not say which worker died. Cells are started in order, so the first ones that are left are
            # computed one by one: a cell whose worker dies again is the one to name.
            for cell in list(waiting.values())[:jobs]:
                try:
                    (result,) = _in_workers([cell], experiments, folder, jobs)
                except TerminatedWorkerError as error:
                    code = re.search(r"\((-?\d+)\)", str(error))
                    result = Failed(cell, "its process died" + (f" with exit code {code[1]}" if code else ""))
                del waiting[cell.key]
                yield result


def _in_workers(
    cells: Sequence[Cell], experiments: Mapping[str, Experiment], folder: Path, jobs: int
) -> Iterator[Row | Failed]:
    """Compute cells in processes that share the cores; these write the rows, so none is lost with this process."""
    # No more threads than this process was told to use.
    threads = min(torch.get_num_threads(), max(1, joblib.cpu_count() // jobs))
    with joblib.parallel_config("loky", inner_max_num_threads=threads):
        parallel = joblib.Parallel(jobs, batch_size=1, return_as="generator_unordered")
    work = joblib.delayed(_work)
    with _ignoring_interrupts():
        results = parallel(work(experiments[cell.experiment], cell, folder, os.getpid()) for cell in cells)
    yield from results


def _work(experiment: Experiment, cell: Cell, folder: Path, parent: int) -> Row | Failed:
    _end_with(parent)
    return _row(experiment, cell, folder)


@functools.cache
def _end_with(parent: int) -> None:
    """End this process, even in the middle of a cell, once the one that started it is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C while workers start, which inherit that: a terminal sends it to all processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


# ---------------------------------------------------------------------- where rows come from


@functools.cache
def provenance() -> dict[str, Any]:
    """Return versions, commit and machine, as rows have them; looked up once in a process."""
    versions = {"askew": io.version(), "python": platform.python_version()}
    versions |= {module.__name__: str(module.__version__) for module in (torch, np, scipy, sklearn)}
    machine = {"cores": joblib.cpu_count(), "system": platform.system(), "architecture": platform.machine()}
    machine["processor"] = _processor()
    if torch.cuda.is_available():
        machine["accelerator"] = torch.cuda.get_device_name()
    return {"versions": versions, "commit": _commit(Path(__file__).parent), "machine": machine}


def _processor() -> str:
    """Return the model of the processor: another one may round sums differently, which training amplifies."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _commit(package: Path) -> str | None:
    """Return the commit of a folder of source, with a + if it or askew was changed since; None outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        # Installed into an environment inside another repository, the package is no part of that one.
        git("ls-files", "--error-unmatch", "__init__.py")
        changed = git("status", "--porcelain", "--", ".", ":(top)src/askew")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
