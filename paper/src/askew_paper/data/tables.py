"""Six tables of the UCI repository, coded as the ranking experiment of the paper needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pooch
from numpy.typing import NDArray

from askew import checks
from askew_paper.data.files import SETS, Folder, find

TABLES = ("iris", "wine", "balance", "transfusion", "car", "abalone")
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
    """Points with labels."""

    name: str
    points: NDArray[np.float64]  # (n, dim), numbers as published
    labels: NDArray[Any]  # (n,), the class of each point


def table_names() -> list[str]:
    """Return the names of the tables.

    Examples
    --------
    >>> table_names()
    ['iris', 'wine', 'balance', 'transfusion', 'car', 'abalone']
    """
    return list(TABLES)


def load_table(name: str, folder: Folder = None) -> Table:
    """Return a table by its name, from the publisher's file.

    Nothing is downloaded; :func:`askew_paper.data.download` does that. Without files, iris and wine come from
    scikit-learn.

    Examples
    --------
    >>> load_table("wine").points.shape
    (178, 13)
    """
    checks.check_name(name, TABLES, "name of a table")
    (source,) = SETS[name]
    try:
        path = find(source, folder)
    except FileNotFoundError:
        if folder is None and name in ("iris", "wine"):
            return _from_sklearn(name)
        raise
    if f"sha256:{pooch.file_hash(str(path))}" != source.checksum:
        must, hint = f"the published file, of {source.checksum}", f"Download it again from {source.url}"
        raise ValueError(checks.message(f"{str(path)!r}", must, "another one", hint))
    # As text, because labels are; only transfusion has a header.
    cells = pd.read_csv(path, header=0 if name == "transfusion" else None, dtype=str).to_numpy(str)
    if name == "abalone":  # seven measures; six classes, the quantile bins of the number of rings
        rings = cells[:, 8].astype(np.float64)
        bounds = np.quantile(rings, np.linspace(0, 1, 7)[1:-1])
        return Table(name, cells[:, 1:8].astype(np.float64), np.searchsorted(bounds, rings, side="right"))
    if name == "car":  # categories as their ranks; unacceptable against the rest
        ranks = [[order.index(cell) for cell in column] for order, column in zip(CAR, cells.T.tolist(), strict=False)]
        return Table(name, np.array(ranks, dtype=np.float64).T, np.where(cells[:, 6] == "unacc", "unacc", "acc"))
    label = 0 if name in ("wine", "balance") else -1
    return Table(name, np.delete(cells, label, axis=1).astype(np.float64), cells[:, label])


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
