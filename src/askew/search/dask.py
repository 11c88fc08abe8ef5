"""Exact search among points that Dask holds in blocks; each block is searched where it is."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks
from askew._dask import attempt, reduced
from askew.divergences import split_sides
from askew.encoders import as_points
from askew.search.base import Found
from askew.search.exact import ExactIndex, merged


class _Answer(NamedTuple):
    """The nearest of some consecutive rows: divergences, row numbers from the first of them on, how many there are."""

    values: NDArray[Any]
    places: NDArray[np.int64]
    rows: int


def search_blocks(
    divergence: object, items: Any, queries: ArrayLike | Tensor, k: int = 10, direction: str = "query-first"
) -> Found:
    """Return the nearest of all items of a Dask collection, exactly, without bringing them together.

    Each block is searched where it is, and only its k best hits travel. For one pass over items that are on disk or on
    several machines; an index answers many searches faster. As in an index, NaN and infinity are an error.

    Parameters
    ----------
    divergence, direction
        As in :class:`ExactIndex`.
    items
        A Dask array, ``(n, dim)``, or data frame of numbers. Lengths of blocks need not be known.
    queries, k
        ``(q, dim)``, in memory, and the number of hits for each.

    Returns
    -------
    tuple of arrays, ``(q, k)`` each
        Divergences in ascending order, and the numbers of the rows.

    Examples
    --------
    >>> import dask.array as da
    >>> items = da.from_array(np.arange(1.0, 101.0)[:, None], chunks=(30, 1))
    >>> search_blocks("itakura-saito", items, [[41.2]], k=2)[1]
    array([[40, 41]])
    """
    dask = checks.optional_import("dask", "dask", "search_blocks")
    blocks, sizes = _blocks(items, "items of search_blocks")
    checks.check_size(k, "k of search_blocks")
    _check_hits(k, sum(sizes))
    task = dask.delayed(attempt, pure=False)
    # Sent once, not with each block.
    sent = dask.delayed((divergence, as_points(queries).cpu()), pure=False, traverse=False)
    parts = [task(_search_block, i, sent, block, k, direction) for i, block in enumerate(blocks)]
    answer: _Answer = reduced(parts, functools.partial(_merged, k=k), blocks)
    _check_hits(k, answer.rows)
    # Merged by their order, as items of several blocks may have D = 0.
    inner = split_sides(divergence, as_points(queries).shape[-1], "search_blocks").divergence
    return inner.from_order(torch.from_numpy(answer.values)).numpy(), answer.places


def _check_hits(k: int, count: float) -> None:
    if k > count:  # False for NaN, a number that is not known yet
        raise ValueError(checks.message("k of search_blocks", f"at most {count:.0f}, the number of items", k))


def _search_block(sent: tuple[object, Tensor], block: Any, k: int, direction: str) -> _Answer:
    divergence, queries = sent
    if len(block) == 0:
        return _Answer(np.zeros((len(queries), 0)), np.zeros((len(queries), 0), np.int64), 0)
    index = ExactIndex(divergence, direction, progress=False)
    index.add(block)
    return _Answer(*index.search_order(queries, min(k, len(block))), len(block))


def _merged(parts: list[_Answer], k: int) -> _Answer:
    """Return the k nearest of answers about consecutive rows; of equal ones, the first rows."""
    known = [part for part in parts if part.rows] or parts[:1]
    offsets = np.cumsum([0, *(part.rows for part in known)])
    answers = [(part.values, part.places + offset) for part, offset in zip(known, offsets[:-1], strict=True)]
    return _Answer(*merged(answers, k), int(offsets[-1]))


def _blocks(points: Any, what: str) -> tuple[list[Any], tuple[float, ...]]:
    """Return a task for each block of whole rows of a Dask collection, and their lengths, NaN where not known."""
    ndim = getattr(points, "ndim", 0)  # any attribute of a Delayed is another Delayed
    lazy = isinstance(ndim, int) and ndim >= 2 and callable(getattr(points, "to_delayed", None))
    if lazy and hasattr(points, "to_dask_array"):  # a data frame
        checks.check_columns(points, what)
        tasks = list(points.to_delayed())
        return tasks, (math.nan,) * len(tasks)
    if not (lazy and callable(getattr(points, "rechunk", None))):
        must = "a dask array of shape (n, dim) or a data frame of dask's"
        hint = "An array in memory becomes one by dask.array.from_array(points)."
        raise TypeError(checks.message(what, must, type(points).__name__, hint))
    if points.dtype.kind not in "biufO":
        raise TypeError(checks.message(what, "real numbers", f"an array of {points.dtype}"))
    whole = points.rechunk(dict.fromkeys(range(1, points.ndim), -1))
    return whole.to_delayed().ravel().tolist(), whole.chunks[0]
