"""Judgements of relevance: which items each query was found to want, and the batches that are made of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from askew import checks
from askew.encoders import for_numpy

Rows = NDArray[np.int64]


def grades_of(judgements: Any, n_queries: int, n_items: int, owner: str) -> sparse.csr_array:
    """Return judgements as a sparse matrix of grades, ``(queries, items)``; items judged to be irrelevant have a 0.

    Parameters
    ----------
    judgements
        Rows of queries, rows of items and, optionally, grades: an array ``(n, 2)`` or ``(n, 3)``, a tuple of two or
        three arrays ``(n,)``, or a data frame with the columns ``query``, ``item`` and ``grade``, or two or three
        columns in this order. Without grades all are 1. If a pair comes more than once, its grades are added up.
    n_queries, n_items
        How many there are.
    owner
        The caller's name, for errors.
    """
    what = f"judgements of {owner}"
    parts = _columns(judgements, what)
    if len({len(part) for part in parts}) > 1:
        raise ValueError(checks.message(what, "columns of one length", [len(part) for part in parts]))
    if not len(parts[0]):
        hint = "Give at least one (query row, item row)."
        raise ValueError(checks.message(what, "at least one judgement", "none", hint))
    rows = [
        _rows(part, n, f"{name} rows in {what}")
        for part, n, name in zip(parts, (n_queries, n_items), ("query", "item"), strict=False)
    ]
    grades = np.ones(len(rows[0])) if len(parts) == 2 else _numbers(parts[2], f"grades in {what}")
    bad = ~((grades >= 0) & (grades < np.inf))
    if bad.any():
        place = int(bad.argmax())
        hint = "0 means judged and not relevant; more is better."
        raise ValueError(
            checks.message(f"grades in {what}", "finite, zero or above", f"{grades[place]:g} at {place}", hint)
        )
    if not grades.any():
        hint = "Without a relevant item there is nothing to learn; judgements without grades count as 1."
        raise ValueError(checks.message(f"grades in {what}", "above 0 for some of them", "0 for all", hint))
    matrix = sparse.csr_array((grades, (rows[0], rows[1])), shape=(n_queries, n_items))
    matrix.sum_duplicates()
    return matrix


def judgement_columns(names: list[str], what: str) -> list[int]:
    """Return where a table has queries, items and, if it has them, grades: by name, else two or three in this order."""
    named = [names.index(name) for name in ("query", "item", "grade") if name in names]
    if {"query", "item"} <= set(names):
        return named
    if len(names) not in (2, 3):
        must = "a table with the columns query, item and, optionally, grade"
        raise ValueError(checks.message(what, must, ", ".join(names)))
    return list(range(len(names)))


def _columns(judgements: Any, what: str) -> list[NDArray[Any]]:
    must = "(query row, item row[, grade]): an array (n, 2) or (n, 3), a tuple of arrays (n,), or a data frame"
    if hasattr(judgements, "columns") and hasattr(judgements, "to_numpy"):
        names = [str(name) for name in judgements.columns]
        return [judgements.iloc[:, place].to_numpy() for place in judgement_columns(names, what)]
    if isinstance(judgements, tuple) and len(judgements) in (2, 3):
        parts = [np.asarray(for_numpy(part, what)) for part in judgements]
        if all(part.ndim == 1 for part in parts):
            return parts
    array = np.asarray(for_numpy(judgements, what))
    if array.ndim != 2 or array.shape[1] not in (2, 3):
        raise ValueError(checks.message(what, must, f"shape {array.shape}"))
    return list(array.T)


def _numbers(values: NDArray[Any], what: str, hint: str = "") -> NDArray[np.float64]:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        raise TypeError(checks.message(what, "numbers", f"dtype {values.dtype}", hint)) from None


def _rows(values: NDArray[Any], n: int, what: str) -> Rows:
    hint = "Rows are counted from 0. Names of rows become numbers by pandas.Index(names).get_indexer(values)."
    numbers = _numbers(values, what, hint)
    bad = ~((numbers >= 0) & (numbers < n) & (numbers % 1 == 0))
    if bad.any():
        place = int(bad.argmax())
        got = f"{numbers[place]:g} at {place}"
        raise ValueError(checks.message(what, f"whole numbers from 0 to {n - 1}", got, hint))
    return numbers.astype(np.int64)


@dataclass(eq=False)
class RelevanceBatches:
    """Batches of queries, items and the grades of all their pairs, for :class:`askew.losses.GradedSoftmax`.

    An epoch has each query with a relevant item once. A batch has ``listed`` judged items of each of its queries, the
    more relevant ones with a higher probability, and ``sampled`` random items. All are negatives of the other queries,
    unless these are known to want them. The order depends on the seed and the number of the epoch only.

    Attributes
    ----------
    queries, items : Tensor
        All points, ``(n, ...)`` and ``(m, ...)``.
    grades : sparse matrix
        What :func:`grades_of` returns.
    mined : Tensor or None
        Rows of items that are near to each query and were not judged, ``(n, count)``.
    hard : int
        How many of these each query of a batch brings.
    """

    queries: Tensor
    items: Tensor
    grades: sparse.csr_array
    batch_size: int
    listed: int
    sampled: int
    seed: int
    mined: Rows | None = None
    hard: int = 0
    _epoch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._active = np.flatnonzero(self.grades.max(axis=1).toarray() > 0)
        self._place = np.full(len(self.items), -1)  # of items in the batch

    def __len__(self) -> int:
        return math.ceil(len(self._active) / self.batch_size)

    def set_epoch(self, number: int) -> None:
        """Draw the next epoch by its number."""
        self._epoch = number

    def fingerprint(self) -> str:
        """Return a short text that differs for other data."""
        digest = hashlib.sha256()
        grades = self.grades.data, self.grades.indices, self.grades.indptr
        for array in (self.queries.numpy(), self.items.numpy(), *grades):
            digest.update(f"{array.shape}".encode())
            digest.update(np.ascontiguousarray(array[:: max(1, array.size // 1_000_000)]).tobytes())
        digest.update(f"{self.listed} {self.sampled} {self.hard}".encode())
        return digest.hexdigest()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        random = np.random.default_rng([self.seed, self._epoch])
        for queries in np.array_split(random.permutation(self._active), len(self)):
            yield self._batch(queries, random)

    def _batch(self, queries: Rows, random: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        judged, wanted = self._judged(queries)
        items = [judged.indices[self._drawn(judged, random)], random.integers(len(self.items), size=self.sampled)]
        if self.mined is not None:
            picks = random.integers(self.mined.shape[1], size=(len(queries), self.hard))
            items.append(np.take_along_axis(self.mined[queries], picks, 1).ravel())
        rows = np.unique(np.concatenate(items))
        self._place[rows] = np.arange(len(rows))
        places = self._place[judged.indices]
        self._place[rows] = -1
        there = places >= 0
        grades = np.zeros((len(queries), len(rows)), np.float32)
        grades[wanted[there], places[there]] = judged.data[there]
        return self.queries[queries], self.items[rows], torch.from_numpy(grades)

    def _judged(self, queries: Rows) -> tuple[sparse.csr_array, Rows]:
        """Return the grades of queries, and the row of each of them."""
        judged = self.grades[queries]
        return judged, np.repeat(np.arange(len(queries)), np.diff(judged.indptr))

    def _drawn(self, judged: sparse.csr_array, random: np.random.Generator) -> Rows:
        """Return the places of at most ``listed`` judgements of each query, drawn without replacement by grade."""
        # The largest of log(u) / weight are a weighted sample. A small weight gives irrelevant ones a chance as well.
        rows = np.repeat(np.arange(judged.shape[0]), np.diff(judged.indptr))
        floor = 0.25 * judged.data.mean()
        order = np.lexsort((-np.log(random.random(len(rows))) / (judged.data + floor), rows))
        number = np.arange(len(rows)) - judged.indptr[rows]  # lexsort keeps the queries together
        drawn: Rows = order[number < self.listed]
        return drawn
