"""Exact search by any divergence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.search.base import Found, Index, RowNumbers
from askew.search.certified import Sizes, masked_key, sizes_of
from askew.search.inner_product import InnerProductForm, fill_keys, form_for, sample_of
from askew.search.local import OUTGROWN, LocalIndex
from askew.search.store import Store


@dataclass
class _State:
    """The keys of all rows, their sizes, and the number of items that the form was made for."""

    form: InnerProductForm
    keys: Store
    sizes: Sizes
    built_for: int


class ExactIndex(LocalIndex):
    """Search all items, by any divergence of the catalogue: the reference for all other indexes.

    Where the divergence ranks as an inner product does (see :func:`keys_and_queries`), one matrix product in blocks
    finds a few candidates more than k, and the form of the divergence that does not cancel decides among them and gives
    the values. Others are computed for all pairs in blocks. Memory is O(k) per query beyond one block; the index itself
    holds the items and, for inner products, one vector of dim + 1 features for each.

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

    _state: _State | None = None  # None without items, and for divergences that do not rank as inner products

    def _build(self, parts: list[Tensor]) -> _State | None:
        count = sum(map(len, parts))
        if count == 0 or self.divergence.ranks_like() is None:
            return None
        owner = type(self).__name__
        form = form_for(self.divergence, self.direction, "inner-product", sample_of(parts), owner)
        keys = np.empty((count, form.size), parts[0].numpy().dtype)
        fill_keys(keys, form, parts)
        return _State(form, Store(keys, np.arange(count)), sizes_of(keys, owner), count)

    def _prepare_add(self, embeddings: Tensor, total: int) -> Callable[[], None] | None:
        state = self._state
        if state is None or total > OUTGROWN * state.built_for:
            return None
        keys = state.form.plain_keys(embeddings).numpy()
        sizes = state.sizes.joined(sizes_of(keys, type(self).__name__))
        state.keys.reserve(len(keys))

        def extend() -> None:
            state.keys.append(keys, np.arange(state.keys.rows, state.keys.rows + len(keys)))
            state.sizes = sizes

        return extend

    def _mask(self, rows: RowNumbers) -> None:
        if self._state is not None:
            keys = self._state.keys.values
            keys[rows] = masked_key(torch.from_numpy(keys[:1])).numpy()

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        state = self._state
        if state is None:
            return self._by_pairs(queries, k)
        return self._by_keys(queries, k, state.form, torch.from_numpy(state.keys.values), state.sizes)

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
        best = merged([best, block.search(queries, min(k, len(ids)))], k)
    return torch.from_numpy(best[0]), best[1]


def merged(answers: Iterable[Found], k: int) -> Found:
    """Return the k nearest of several answers to the same queries; of equal ones, the smaller ids."""
    values, ids = (np.concatenate(parts, 1) for parts in zip(*answers, strict=True))
    order = np.lexsort((ids, values), axis=1)[:, :k]
    return np.take_along_axis(values, order, 1), np.take_along_axis(ids, order, 1)
