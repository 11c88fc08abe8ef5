"""Exact search by any divergence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.search.forms import Reduction, ranking, reduce
from askew.search.local import OUTGROWN, Keys, LocalIndex, Sizes, empty_key, fill_keys, sample_of, sizes_of
from askew.search.store import Store

__all__ = ["ExactIndex"]


class ExactIndex(LocalIndex):
    """Search all items, by any divergence of the catalogue: the reference for all other indexes.

    Where the divergence ranks as an inner product does (see :func:`keys_and_queries`), one matrix product in blocks
    finds a few candidates more than k, and the form of the divergence that does not cancel decides among them and gives
    the values. Others are computed for all pairs in blocks. Memory is O(k) a query beyond one block; the index itself
    holds the items and, for inner products, one vector of dim + 1 features for each.

    Use it up to some 100,000 items, or where every neighbour counts; :class:`FaissIndex` is faster for more.

    Parameters
    ----------
    divergence
        A divergence, also behind an encoder; a fitted learner; or the name of one that needs no learning. It is copied.
    direction
        ``"query-first"`` for the smallest D(query, item), ``"query-second"`` for the smallest D(item, query).
    progress
        Whether to show a progress bar while items are encoded; None means on a terminal.

    Examples
    --------
    >>> index = ExactIndex("kl")
    >>> index.add([[0.5, 0.5], [0.9, 0.1], [0.1, 0.9]], ids=[7, 8, 9])
    >>> values, ids = index.search([[0.8, 0.2]], k=2)
    >>> ids, values.round(3)
    (array([[8, 7]]), array([[0.044, 0.193]]))
    """

    _reduction: Reduction | None = None
    _keys: Store | None = None
    _sizes: Sizes = Sizes()
    _made_for: int = 0

    def _taken_in(self, images: Tensor, store: Store) -> Callable[[], None]:
        outgrown = len(store) + len(images) > OUTGROWN * self._made_for
        if self._reduction is None or self._keys is None or outgrown:
            return self._made(store, images)
        keys, own = self._reduction.keys(images).numpy(), self._keys
        sizes = sizes_of(keys, type(self).__name__)
        own.reserve(len(keys))

        def put() -> None:
            own.append(keys, np.arange(own.rows, own.rows + len(keys)))
            self._sizes = self._sizes.joined(sizes)

        return put

    def _made_anew(self, store: Store) -> Callable[[], None]:
        return self._made(store, torch.from_numpy(store.values[:0]))

    def _made(self, store: Store, images: Tensor) -> Callable[[], None]:
        """Make the keys of the items in the store and of new ones."""
        dense = store.compacted()
        dense.reserve(len(images))
        parts = [torch.from_numpy(dense.values), images]
        count = dense.rows + len(images)
        reduction, keys, sizes = None, None, Sizes()
        if count and ranking(self.divergence) is not None:
            owner = type(self).__name__
            reduction = reduce(self.divergence, self.direction, "inner-product", sample_of(parts), owner)
            rows = np.empty((count, reduction.size), dense.values.dtype)
            fill_keys(rows, reduction, parts)
            keys, sizes = Store(rows, np.arange(count)), sizes_of(rows, owner)
        return self._change(store, dense, _reduction=reduction, _keys=keys, _sizes=sizes, _made_for=count)

    def _take_out(self, rows: NDArray[np.int64]) -> None:
        if self._keys is not None:
            self._keys.values[rows] = empty_key(torch.from_numpy(self._keys.values[:1])).numpy()

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, NDArray[np.int64]]:
        if self._reduction is None or self._keys is None:
            return self._by_pairs(queries, k)
        return self._by_keys(queries, k, self._reduction, Keys(torch.from_numpy(self._keys.values), self._sizes))

    def _exact(self, queries: Tensor, k: int) -> tuple[Tensor, NDArray[np.int64]]:
        return self._search(queries, k)
