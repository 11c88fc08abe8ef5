"""Six tables of the UCI repository, coded as the ranking experiment of the paper needs them."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew_paper.data.files import Folder, Source, find, register

__all__ = ["Table", "load_table", "table_names"]

Strings = NDArray[np.str_]

# More characters than any cell of these tables has.
LONGEST_CELL = 64

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
class _Known:
    source: Source
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


def _uci(path: str, sha256: str) -> Source:
    url = f"https://archive.ics.uci.edu/ml/machine-learning-databases/{path}"
    return Source(f"uci/{path.split('/')[-1]}", url, sha256=sha256, terms="CC BY 4.0", limit=1 << 20)


SOURCES = {
    "iris": _Known(
        _uci("iris/iris.data", "596ffd580471ca4d4880f8e439c7281f3b50d8249a5960353cb200b1490f63a0"),
        (150, 5),
        _class_last,
    ),
    "wine": _Known(
        _uci("wine/wine.data", "6be6b1203f3d51df0b553a70e57b8a723cd405683958204f96d23d7cd6aea659"),
        (178, 14),
        _class_first,
    ),
    "balance": _Known(
        _uci("balance-scale/balance-scale.data", "5611187ef7345d807aa8ae22615945ade52a190537c0b1434bd44c3e877c5bb4"),
        (625, 5),
        _class_first,
    ),
    "transfusion": _Known(
        _uci("blood-transfusion/transfusion.data", "96c8e1091b9c037bcaf25a19b24b49d07771cd88689ffd273e056e9e8845ffe7"),
        (748, 5),
        _class_last,
    ),
    "car": _Known(
        _uci("car/car.data", "b703a9ac69f11e64ce8c223c0a40de4d2e9d769f7fb20be5f8f2e8a619893d83"), (1728, 7), _car
    ),
    "abalone": _Known(
        _uci("abalone/abalone.data", "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f"),
        (4177, 9),
        _abalone,
    ),
}
for _name, _known in SOURCES.items():
    register(_name, [_known.source])


def table_names() -> list[str]:
    """Return the names of the tables.

    Examples
    --------
    >>> table_names()
    ['iris', 'wine', 'balance', 'transfusion', 'car', 'abalone']
    """
    return list(SOURCES)


def load_table(name: str, folder: Folder = None) -> Table:
    """Return a table by its name.

    Parameters
    ----------
    name
        One of :func:`table_names`.
    folder
        Where the publisher's file is, or a folder ``uci`` with it; by default what the environment variable
        ``ASKEW_DATA`` names, or the cache folder. Nothing is downloaded; :func:`askew_paper.data.download` does that.
        Where there is none, iris and wine are taken from scikit-learn.

    Examples
    --------
    >>> load_table("wine").points.shape
    (178, 13)
    """
    checks.check_name(name, SOURCES, "name of a table")
    known = SOURCES[name]
    try:
        path = find(known.source, folder)
    except FileNotFoundError:
        if folder is None and name in ("iris", "wine"):
            return _from_sklearn(name)
        raise
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(checks.message(f"{str(path)!r}", "the published file", f"other text ({error})")) from error
    if name == "transfusion":
        rows = rows[1:]  # its only header
    shape = (len(rows), len(rows[0]) if rows else 0)
    if shape != known.shape or any(len(row) != known.shape[1] for row in rows):
        must = f"the published file of {known.shape[0]} rows and {known.shape[1]} columns"
        raise ValueError(checks.message(f"{str(path)!r}", must, f"{shape[0]} rows and {shape[1]} columns"))
    # In an array of text one long cell makes all of them long.
    longest = max((cell for row in rows for cell in row), key=len)
    if len(longest) > LONGEST_CELL:
        raise ValueError(checks.message(f"{str(path)!r}", "the published file", f"a cell like {longest[:40]!r}..."))
    try:
        points, labels = known.read(np.array(rows))
        if not np.isfinite(points).all():
            raise ValueError("nan or infinite")
    except ValueError as error:
        raise ValueError(
            checks.message(f"{str(path)!r}", "the published file", f"a cell like this: {error}")
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
