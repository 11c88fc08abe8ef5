"""Rows that dask holds in blocks, on one machine or on many: tasks for each block, and what they give together."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew import checks

__all__ = ["Blocks", "lazy_rows"]

# Sums that are added by one task.
BRANCHES = 16


class Blocks:
    """The rows of a dask array or data frame, block by block.

    Parameters
    ----------
    X
        A dask array, ``(n, ...)``, or data frame of numbers.
    weights
        Weights of the rows, a dask array ``(n,)``; None for 1.
    owner
        Who asks, for errors.
    """

    def __init__(self, X: Any, weights: Any, owner: str) -> None:
        dask = checks.optional_import("dask", "dask", f"{owner} of dask's data")
        self.dask = dask
        if hasattr(X, "to_dask_array"):  # a data frame
            self.names: list[str] | None = [str(name) for name in X.columns]
            self.columns = len(self.names)
            self.blocks = [dask.delayed(np.asarray)(part) for part in X.to_delayed()]
            if weights is not None:
                mend = "Take X.to_dask_array(lengths=True)."
                raise ValueError(
                    checks.problem(f"sample_weight of {owner}", "None with a data frame of dask's", "given", mend)
                )
        else:
            self.names, self.columns = None, int(X.shape[1]) if X.ndim > 1 else 0
            if X.ndim < 2 or X.dtype.kind not in "fiub":
                must = "a dask array of numbers of shape (n, dim)"
                raise ValueError(checks.problem(f"X of {owner}", must, f"{X.dtype} of shape {X.shape}"))
            whole = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
            self.blocks = whole.to_delayed().ravel().tolist()
            if weights is not None:
                weights = weights.rechunk({0: whole.chunks[0]})
        self.weights = [None] * len(self.blocks) if weights is None else weights.to_delayed().ravel().tolist()

    def each(self, work: Callable[..., Any], lens: Any, *arguments: object) -> list[Any]:
        """Return one task for each block: ``work(lens, block, weights, ...)``."""
        task = self.dask.delayed(_unless_empty, pure=False)
        return [task(work, lens, block, w, *arguments) for block, w in zip(self.blocks, self.weights, strict=True)]

    def each_at_random(self, work: Callable[..., Any], lens: Any, seed: int, *arguments: object) -> list[Any]:
        """Return one task for each block that draws: it gets a seed of its own, wherever it is computed."""
        task = self.dask.delayed(_unless_empty, pure=False)
        parts = enumerate(zip(self.blocks, self.weights, strict=True))
        return [task(work, lens, block, w, (seed, number), *arguments) for number, (block, w) in parts]

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


def _unless_empty(work: Callable[..., Any], lens: Any, block: NDArray[Any], *arguments: Any) -> Any:
    """Return what is made of a block; None of one without rows, as data frames have after a filter."""
    return work(lens, block, *arguments) if len(block) else None


def _itself(value: object) -> object:
    return value


def _joined(add: Callable[[list[Any]], Any], parts: list[Any]) -> Any:
    known = [part for part in parts if part is not None]
    return add(known) if len(known) > 1 else next(iter(known), None)
