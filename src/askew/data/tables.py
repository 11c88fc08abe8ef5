"""Six tables of the UCI repository, coded as the ranking experiment of the paper needs them."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew import checks

__all__ = ["Table", "load_table", "table_names"]

Strings = NDArray[np.str_]

# The order of the categories of car.data, from its description.
CAR = (
    ("low", "med", "high", "vhigh"),
    ("low", "med", "high", "vhigh"),
    ("2", "3", "4", "5more"),
    ("2", "4", "more"),
    ("small", "med", "big"),
    ("low", "med", "high"),
)


@dataclass(frozen=True)
class Table:
    """Points with labels.

    Attributes
    ----------
    name : str
        What it is called.
    points : array of shape (n, dim)
        Numbers as published; nothing is scaled.
    labels : array of shape (n,)
        The class of each point.
    """

    name: str
    points: NDArray[np.float64]
    labels: NDArray[Any]


@dataclass(frozen=True)
class _Source:
    file: str
    url: str
    shape: tuple[int, int]
    read: Callable[[Strings], tuple[NDArray[np.float64], NDArray[Any]]]


def _numbers(cells: Strings) -> NDArray[np.float64]:
    return cells.astype(np.float64)


def _abalone(rows: Strings) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Seven measures; six classes, the quantile bins of the number of rings."""
    rings = _numbers(rows[:, 8])
    bounds = np.quantile(rings, np.linspace(0, 1, 7)[1:-1])
    return _numbers(rows[:, 1:8]), np.searchsorted(bounds, rings, side="right")


def _car(rows: Strings) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Categories as their ranks; unacceptable against the rest."""
    codes = [[order.index(cell) for cell in column] for order, column in zip(CAR, rows[:, :6].T.tolist(), strict=True)]
    return np.array(codes, dtype=np.float64).T, np.where(rows[:, 6] == "unacc", "unacc", "acc")


def _class_first(rows: Strings) -> tuple[NDArray[np.float64], NDArray[Any]]:
    return _numbers(rows[:, 1:]), rows[:, 0]


def _class_last(rows: Strings) -> tuple[NDArray[np.float64], NDArray[Any]]:
    return _numbers(rows[:, :-1]), rows[:, -1]


ARCHIVE = "https://archive.ics.uci.edu/ml/machine-learning-databases"
SOURCES = {
    "iris": _Source("iris.data", f"{ARCHIVE}/iris/iris.data", (150, 5), _class_last),
    "wine": _Source("wine.data", f"{ARCHIVE}/wine/wine.data", (178, 14), _class_first),
    "balance": _Source("balance-scale.data", f"{ARCHIVE}/balance-scale/balance-scale.data", (625, 5), _class_first),
    "transfusion": _Source("transfusion.data", f"{ARCHIVE}/blood-transfusion/transfusion.data", (748, 5), _class_last),
    "car": _Source("car.data", f"{ARCHIVE}/car/car.data", (1728, 7), _car),
    "abalone": _Source("abalone.data", f"{ARCHIVE}/abalone/abalone.data", (4177, 9), _abalone),
}


def table_names() -> list[str]:
    """Return the names of the tables.

    Examples
    --------
    >>> table_names()
    ['iris', 'wine', 'balance', 'transfusion', 'car', 'abalone']
    """
    return list(SOURCES)


def load_table(name: str, folder: str | os.PathLike[str] | None = None) -> Table:
    """Return a table by its name.

    Parameters
    ----------
    name
        One of :func:`table_names`.
    folder
        Where the publisher's file is, or a folder ``uci`` with it; the environment variable ``ASKEW_DATA`` by default.
        Nothing is downloaded. Where there is none, iris and wine are taken from scikit-learn.

    Examples
    --------
    >>> load_table("wine").points.shape
    (178, 13)
    """
    checks.check_name(name, SOURCES, "name of a table")
    source = SOURCES[name]
    root = folder if folder is not None else os.environ.get("ASKEW_DATA") or None
    places = [] if root is None else [Path(root) / "uci" / source.file, Path(root) / source.file]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        if folder is None and name in ("iris", "wine"):
            return _from_sklearn(name)
        where = f"{str(root)!r}" if root is not None else "a folder that the environment variable ASKEW_DATA names"
        mend = f"Download it from {source.url} and put it there."
        raise FileNotFoundError(checks.problem(source.file, f"in {where}", "no such file", mend))
    with path.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.reader(lines) if row]
    if name == "transfusion":
        rows = rows[1:]  # its only header
    shape = (len(rows), len(rows[0]) if rows else 0)
    if shape != source.shape or any(len(row) != source.shape[1] for row in rows):
        must = f"the published file of {source.shape[0]} rows and {source.shape[1]} columns"
        raise ValueError(checks.problem(f"{str(path)!r}", must, f"{shape[0]} rows and {shape[1]} columns"))
    try:
        points, labels = source.read(np.array(rows))
    except ValueError as error:
        raise ValueError(
            checks.problem(f"{str(path)!r}", "the published file", f"a cell like this: {error}")
        ) from error
    return Table(name, points, labels)


def _from_sklearn(name: str) -> Table:
    from sklearn import datasets

    if name == "wine":
        bunch = datasets.load_wine()
        return Table(name, bunch.data, (bunch.target + 1).astype(str))
    bunch = datasets.load_iris()
    points = bunch.data.copy()
    # Two rows of the published file differ from Fisher's article, which scikit-learn follows.
    points[34], points[37] = (4.9, 3.1, 1.5, 0.1), (4.9, 3.1, 1.5, 0.1)
    return Table(name, points, np.char.add("Iris-", bunch.target_names[bunch.target]))
