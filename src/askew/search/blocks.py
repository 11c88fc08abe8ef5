"""Search among items that dask holds in blocks: each block finds its nearest, and the nearest of those are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks
from askew.search.exact import ExactIndex

__all__ = ["search_blocks"]

# Answers that are merged by one task.
BRANCHES = 16

Found = tuple[NDArray[Any], NDArray[np.int64]]


def search_blocks(
    divergence: object, items: Any, queries: ArrayLike | Tensor, k: int = 10, direction: str = "query-first"
) -> Found:
    """Return the nearest of all items that dask holds, exactly, without bringing them together.

    Each block is searched where it is, and only its k best hits travel. For one pass over items that are on disk or on
    several machines; an index answers many searches faster.

    Parameters
    ----------
    divergence
        As in :class:`ExactIndex`.
    items
        A dask array, ``(n, dim)``.
    queries
        ``(q, dim)``, in memory.
    k
        Hits for each query.
    direction
        As in :class:`ExactIndex`.

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
    if not (callable(getattr(items, "to_delayed", None)) and getattr(items, "ndim", 0) >= 2):
        raise TypeError(
            checks.problem("items of search_blocks", "a dask array of shape (n, dim)", type(items).__name__)
        )
    whole = items.rechunk(dict.fromkeys(range(1, items.ndim), -1))
    sizes = whole.chunks[0]
    if any(np.isnan(size) for size in sizes):
        mend = "Call items.compute_chunk_sizes() first."
        raise ValueError(checks.problem("items of search_blocks", "blocks of known length", "unknown ones", mend))
    count = int(sum(sizes))
    if not 1 <= checks.check_size(k, "k of search_blocks") <= count:
        raise ValueError(checks.problem("k of search_blocks", f"at most {count}, the number of items", k))
    asked = queries.numpy() if isinstance(queries, Tensor) else np.asarray(queries)
    offsets = np.cumsum([0, *sizes[:-1]])
    task, merge = dask.delayed(_search_block, pure=False), dask.delayed(_merged, pure=False)
    # Sent once, not with each block.
    sent = dask.delayed((divergence, asked), pure=False, traverse=False)
    parts = [
        task(sent, block, int(offset), k, direction)
        for block, offset in zip(whole.to_delayed().ravel(), offsets, strict=True)
    ]
    while len(parts) > 1:
        parts = [merge(parts[i : i + BRANCHES], k) for i in range(0, len(parts), BRANCHES)]
    found: Found = dask.compute(parts[0])[0]
    return found


def _search_block(sent: tuple[object, Any], block: NDArray[Any], offset: int, k: int, direction: str) -> Found:
    divergence, queries = sent
    if len(block) == 0:
        return np.zeros((len(queries), 0)), np.zeros((len(queries), 0), np.int64)
    index = ExactIndex(divergence, direction, progress=False)
    index.add(np.ascontiguousarray(block))
    values, places = index.search(queries, min(k, len(block)))
    return values, places + offset


def _merged(parts: list[Found], k: int) -> Found:
    """Return the k nearest of several answers; of equal ones, the first rows."""
    values, places = (np.concatenate(column, 1) for column in zip(*parts, strict=True))
    order = np.lexsort((places, values), axis=1)[:, :k]
    return np.take_along_axis(values, order, 1), np.take_along_axis(places, order, 1)
