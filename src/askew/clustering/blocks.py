"""Rows that dask holds in blocks, on one machine or on many: tasks for each block, and what they give together."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew.clustering.inputs import checked_part
from askew.encoders import for_numpy

__all__ = ["Blocks", "check_lazy", "lazy_rows"]

# Sums that are added by one task.
BRANCHES = 16


class Blocks:
    """The rows of a dask array or data frame, block by block.

    Parameters
    ----------
    X
        A dask array, ``(n, ...)``, or data frame of numbers.
    weights
        Weights of the rows, an array of dask's or in memory, ``(n,)``; None for 1.
    owner
        Who asks, for errors.
    """

    def __init__(self, X: Any, weights: Any, owner: str) -> None:
        dask = checks.optional_import("dask", "dask", f"{owner} of dask's data")
        check_lazy(X, f"X of {owner}")
        self.dask, self.owner, self.columns = dask, owner, int(X.shape[1])
        if hasattr(X, "to_dask_array"):  # a data frame
            self.blocks = list(X.to_delayed())
            self.weights = [None] * len(self.blocks)
            if weights is not None:
                hint = "Take X.to_dask_array(lengths=True)."
                raise ValueError(
                    checks.message(f"sample_weight of {owner}", "None with a data frame of dask's", "given", hint)
                )
        else:
            whole = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
            self.blocks = whole.to_delayed().ravel().tolist()
            self.weights = [None] * len(self.blocks)
            if weights is not None:
                self.weights = _weights_of(weights, whole.chunks[0], owner).to_delayed().tolist()

    def each(self, work: Callable[..., Any], lens: Any, *arguments: object) -> list[Any]:
        """Return one task for each block: ``work(lens, block, weights, ...)``."""
        task = self.dask.delayed(_unless_empty, pure=False)
        pairs = zip(self.blocks, self.weights, strict=True)
        return [task(work, self.owner, lens, block, w, *arguments) for block, w in pairs]

    def each_at_random(self, work: Callable[..., Any], lens: Any, seed: int, *arguments: object) -> list[Any]:
        """Return one task for each block that draws: it gets a seed of its own, wherever it is computed."""
        task = self.dask.delayed(_unless_empty, pure=False)
        parts = enumerate(zip(self.blocks, self.weights, strict=True))
        return [task(work, self.owner, lens, block, w, (seed, number), *arguments) for number, (block, w) in parts]

    def mapped(self, work: Callable[[Any, NDArray[Any]], NDArray[Any]], lens: Any) -> Blocks:
        """Return what ``work(lens, block)`` makes of all blocks, made once and kept where it is made."""
        task, seen = self.dask.delayed(work, pure=False), self.sent(lens)
        other = copy.copy(self)
        other.blocks = list(self.dask.persist(*(task(seen, block) for block in self.blocks)))
        return other

    def reduced(self, tasks: Sequence[Any], add: Callable[[list[Any]], Any]) -> Any:
        """Return what all tasks give together, added in a tree so that no machine sees all parts; None if nothing."""
        join = self.dask.delayed(_joined, pure=False)
        while len(tasks) > 1:
            tasks = [join(add, list(tasks[i : i + BRANCHES])) for i in range(0, len(tasks), BRANCHES)]
        return self.dask.compute(tasks[0])[0]

    def sent(self, value: object) -> Any:
        """Return a value that is sent once, however many tasks and passes take it.

        It is the result of a task that is kept by the cluster, not scattered: what was scattered is gone with the last
        worker that has it (dask drops further copies after seconds), while a task is done again.
        """
        return self.dask.persist(self.dask.delayed(_itself, pure=False)(value))[0]


def check_lazy(X: Any, what: str) -> None:
    """Raise unless dask holds a table of numbers; nothing of it is computed."""
    known = isinstance(getattr(X, "ndim", None), int)  # of what is delayed, any attribute is something delayed
    array = known and hasattr(X, "rechunk")
    if known and X.ndim == 2 and hasattr(X, "to_dask_array"):  # a data frame
        checks.check_columns(X, what)
    elif not (array and X.ndim >= 2 and X.dtype.kind in "fiub"):
        must = "a dask array of numbers of shape (n, dim) or a data frame of dask's"
        got = f"{X.dtype} of shape {X.shape}" if array else type(X).__name__
        raise ValueError(checks.message(what, must, got))


def _weights_of(weights: Any, sizes: tuple[float, ...], owner: str) -> Any:
    """Return weights as a dask array whose blocks are those of rows; of lengths not known, the tasks see to it."""
    what = f"sample_weight of {owner}"
    # What is in memory, or delayed: of that, any attribute is something delayed.
    if not (checks.is_lazy(weights) and isinstance(getattr(weights, "ndim", None), int)):
        array = checks.optional_import("dask.array", "dask", f"{owner} of dask's data")
        weights = array.from_array(np.asarray(for_numpy(weights, what)))
    elif hasattr(weights, "to_dask_array"):  # a column of a data frame of dask's
        weights = weights.to_dask_array()
    rows = sum(sizes)
    known = weights.ndim == 1 and not math.isnan(weights.shape[0] + rows)
    if weights.ndim != 1 or (known and weights.shape[0] != rows):
        must = f"of shape ({'n' if math.isnan(rows) else rows},), one for each row of X"
        raise ValueError(checks.message(what, must, weights.shape))
    if known:
        return weights.rechunk({0: sizes})
    if len(weights.chunks[0]) != len(sizes):
        must = f"in {len(sizes)} blocks, as X, where lengths of blocks are not known"
        hint = "Call compute_chunk_sizes() of dask arrays first."
        raise ValueError(checks.message(what, must, len(weights.chunks[0]), hint))
    return weights


def lazy_rows(X: Any, work: Callable[[Any], Any], dtype: Any, columns: int | None = None) -> Any:
    """Return a dask array of what a function makes of each row: ``(n,)``, or ``(n, columns)``.

    Parameters
    ----------
    X
        A dask array ``(n, ...)`` or data frame.
    work
        Takes an array of some rows.
    dtype, columns
        Of what it returns.
    """
    if hasattr(X, "to_dask_array"):  # a data frame, whose parts keep their names
        array, dask = (checks.optional_import(name, "dask", "Work on dask's data") for name in ("dask.array", "dask"))
        work = functools.partial(_rows_of, work, dtype, columns)
        shape = (float("nan"),) if columns is None else (float("nan"), columns)
        parts = (dask.delayed(work, pure=False)(part) for part in X.to_delayed())
        return array.concatenate([array.from_delayed(part, shape, dtype) for part in parts])
    whole = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    work = functools.partial(_rows_of, work, dtype, columns)
    if columns is None:
        meta = np.empty((0,), dtype)
        return whole.map_blocks(work, dtype=dtype, meta=meta, drop_axis=list(range(1, whole.ndim)))
    meta = np.empty((0, columns), dtype)
    return whole.map_blocks(work, dtype=dtype, meta=meta, chunks=(whole.chunks[0], (columns,)))


def _rows_of(work: Callable[[Any], Any], dtype: Any, columns: int | None, block: Any) -> Any:
    return work(block) if len(block) else np.empty((0,) if columns is None else (0, columns), dtype)


def _unless_empty(work: Callable[..., Any], owner: str, lens: Any, block: Any, weights: Any, *arguments: Any) -> Any:
    """Return what is made of a block; None of one without rows, as data frames have after a filter."""
    own = None if weights is None else checked_part(weights, len(block), owner)
    return work(lens, block, own, *arguments) if len(block) else None


def _itself(value: object) -> object:
    return value


def _joined(add: Callable[[list[Any]], Any], parts: list[Any]) -> Any:
    known = [part for part in parts if part is not None]
    return add(known) if len(known) > 1 else next(iter(known), None)
