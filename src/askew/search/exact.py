"""Exact search by any divergence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.search.base import Found, Index, RowNumbers
from askew.search.local import LocalIndex


class ExactIndex(LocalIndex):
    """Search all items, by any divergence of the catalogue: the reference for all other indexes.

    Where the divergence ranks as an inner product does (see :func:`keys_and_queries`), one matrix product in blocks
    finds a few candidates more than k, and the divergence is evaluated among them where rounding matters; see
    :meth:`search` for the precision of values. Others are computed for all pairs in blocks. Memory is O(k) per query
    beyond one block; the index itself holds the items and, for inner products, one vector of dim + 1 features for each.

    Use it up to some 100,000 items, or where every neighbour counts; :class:`FaissIndex` is faster for more. Parameters
    are those of :class:`Index`.

    Examples
    --------
    >>> index = ExactIndex("kl")
    >>> index.add([[0.5, 0.5], [0.9, 0.1], [0.1, 0.9]], ids=[7, 8, 9])
    >>> values, ids = index.search([[0.8, 0.2]], k=2)
    >>> ids, values.round(3)
    (array([[8, 7]]), array([[0.044, 0.193]]))
    """

    def _exact(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        return self._search(queries, k)


def nearest_in_blocks(
    index: Index, blocks: Iterable[tuple[NDArray[Any], NDArray[Any]]], queries: Tensor, k: int
) -> tuple[Tensor, RowNumbers]:
    """Return the k nearest of items that come in blocks with their ids, by an exact search of each block."""
    best = queries[:, :0].numpy(), np.empty((len(queries), 0), np.int64)
    for items, ids in blocks:
        block = ExactIndex(index.divergence, index.direction)
        block.add(items, ids)
        best = merged([best, block.search_order(queries, min(k, len(ids)))], k)
    return torch.from_numpy(best[0]), best[1]


def merged(answers: Iterable[Found], k: int) -> Found:
    """Return the k nearest of several answers to the same queries; of equal ones, the smaller ids."""
    values, ids = (np.concatenate(parts, 1) for parts in zip(*answers, strict=True))
    order = np.lexsort((ids, values), axis=1)[:, :k]
    return np.take_along_axis(values, order, 1), np.take_along_axis(ids, order, 1)
