"""Results of experiments: read back with checks, where they come from, and their means over seeds."""

from __future__ import annotations

import functools
import math
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
import torch
from scipy import stats

from askew import checks, io
from askew_paper.experiment import Cell
from askew_paper.rows import Row, RowFile

__all__ = ["Summary", "cores", "interval", "read", "summary", "surroundings"]

CONFIDENCE = 0.95


def read(folder: str | os.PathLike[str]) -> list[Row]:
    """Return all rows of a folder of results, checked.

    Parameters
    ----------
    folder
        Where :func:`~askew_paper.runner.reproduce` wrote them.

    Raises
    ------
    FileNotFoundError
        If there are no results.
    ValueError
        If a line is damaged; names the file and the line. Half a line at the end of a file, as a killed process
        leaves it, is a warning only.

    Examples
    --------
    >>> read("no/such/folder")
    Traceback (most recent call last):
    FileNotFoundError: folder of results must be a folder with .jsonl files. Got 'no/such/folder' instead. ...
    """
    files = sorted(Path(folder).glob("*.jsonl"))
    if not files:
        must, hint = "a folder with .jsonl files", "Make them with: askew-paper run"
        raise FileNotFoundError(checks.message("folder of results", must, repr(os.fspath(folder)), hint))
    return [row for file in files for row in RowFile(file).rows.values()]


# ---------------------------------------------------------------------- where rows come from


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.lru_cache(maxsize=1)
def surroundings() -> dict[str, Any]:
    """Return versions, commit and machine, as rows have them; looked up once in a process.

    Examples
    --------
    >>> sorted(surroundings())
    ['commit', 'machine', 'versions']
    """
    versions = {"askew": io.version(), "python": platform.python_version()}
    versions |= {module.__name__: str(module.__version__) for module in (torch, np, scipy, sklearn)}
    machine = {"cores": cores(), "system": platform.system(), "architecture": platform.machine()}
    machine["processor"] = _processor()
    if torch.cuda.is_available():
        machine["accelerator"] = torch.cuda.get_device_name()
    return {"versions": versions, "commit": _commit(Path(__file__).parents[1]), "machine": machine}


def _processor() -> str:
    """Return what the processor calls itself: another one may round sums otherwise, which training enlarges."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _commit(package: Path) -> str | None:
    """Return the commit of a folder of source, with a + if it was changed since; None if git does not know it."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(package), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip()

    try:
        # Installed into an environment inside another repository, askew is no part of that.
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


# ---------------------------------------------------------------------- over seeds


@dataclass(frozen=True)
class Summary:
    """A score of a method over its seeds.

    Parameters
    ----------
    cell
        The first of the cells; the others differ in the seed only.
    score
        Its name.
    mean
        Over the seeds.
    half
        Half the width of the 95 % interval of the mean, by Student's t distribution; None for a single seed.
    seeds
        How many there are.
    """

    cell: Cell
    score: str
    mean: float
    half: float | None
    seeds: int


def interval(values: Iterable[float]) -> tuple[float, float | None]:
    """Return the mean of independent values and half the width of its 95 % interval; None for a single value.

    Examples
    --------
    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)
    (2.0, 2.484)
    """
    numbers = np.asarray(list(values), dtype=np.float64)
    n = len(numbers)
    mean = float(numbers.mean())
    if n < 2:
        return mean, None
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)
    return mean, float(quantile * numbers.std(ddof=1) / math.sqrt(n))


def summary(rows: Iterable[Row]) -> list[Summary]:
    """Return mean and 95 % interval of every score over the seeds.

    Rows are taken together only if they differ in nothing but the seed: never across scales or options.

    Parameters
    ----------
    rows
        Each cell once.

    Examples
    --------
    >>> cells = [Cell("sums", "small", "exact", seed, "quick") for seed in range(2)]
    >>> rows = [Row(cell, {"mae": 1.0 + cell.seed}, 1.0, "2023-01-01T00:00:00Z") for cell in cells]
    >>> [(found.score, found.mean, found.seeds) for found in summary(rows)]
    [('mae', 1.5, 2)]
    """
    groups: dict[str, list[Row]] = {}
    keys: set[str] = set()
    for row in rows:
        if row.cell.key in keys:
            raise ValueError(checks.message("each row", "of a cell of its own", f"two of {row.cell}"))
        keys.add(row.cell.key)
        groups.setdefault(row.cell.group, []).append(row)
    found = []
    for group in groups.values():
        for score in dict.fromkeys(name for row in group for name in row.scores):
            values = [row.scores[score] for row in group if score in row.scores]
            found.append(Summary(group[0].cell, score, *interval(values), seeds=len(values)))
    return found
