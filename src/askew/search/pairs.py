"""Search by the divergences of all pairs, in blocks: for divergences without inner products, and within a radius."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew._parallel import slices
from askew.divergences import Divergence
from askew.search.certified import Asked, ScannedKeys, rounding_error
from askew.search.store import Store

# Entries of the largest block, and columns of a block.
BLOCK_ENTRIES = 1 << 22
COLUMNS = 4096
# The relative error of ``pairwise`` is far below this, whatever the divergence.
SLACK = 0.01

RowNumbers = NDArray[np.int64]


def _like(divergence: Divergence, points: Tensor) -> Tensor:
    return next((tensor for tensor in (*divergence.parameters(), *divergence.buffers())), points)


def _orders(divergence: Divergence, direction: str, queries: Tensor, items: Tensor) -> Tensor:
    """Return numbers that order all pairs, ``(n, m)``."""
    first, second = (queries, items) if direction == "query-first" else (items, queries)
    # Where S may be negative, D would not tell apart items at 0.
    signed = divergence.signed
    matrix = divergence.order(first[:, None], second[None]) if signed else divergence.pairwise(first, second)
    return matrix if direction == "query-first" else matrix.t()


def nearest_by_pairs(
    divergence: Divergence, direction: str, queries: Tensor, store: Store, rows: RowNumbers, k: int
) -> RowNumbers:
    """Return the k nearest of some rows of a store, ``(n, k)``."""
    columns = max(k, min(COLUMNS, len(rows)))
    like = _like(divergence, queries)
    nearest = [torch.empty(0, k, dtype=torch.int64)]
    with torch.inference_mode():
        for block in queries.to(like.device).split(max(1, BLOCK_ENTRIES // columns)):
            values, numbers = queries.new_empty(len(block), 0), torch.empty(len(block), 0, dtype=torch.int64)
            for part in slices(len(rows), columns):
                items = torch.from_numpy(store.values[rows[part]]).to(like.device)
                matrix = _orders(divergence, direction, block, items)
                values = torch.cat([values, matrix.cpu()], 1)
                numbers = torch.cat([numbers, torch.from_numpy(rows[part]).expand(matrix.shape)], 1)
                values, place = values.topk(min(k, values.shape[1]), 1, largest=False)
                numbers = numbers.gather(1, place)
            nearest.append(numbers)
    return torch.cat(nearest).numpy()


def within(
    divergence: Divergence,
    direction: str,
    queries: Tensor,
    store: Store,
    rows: RowNumbers,
    radius: float,
    keys: ScannedKeys | None,
) -> tuple[RowNumbers, RowNumbers]:
    """Return the pairs of a query and a row with D <= radius, and some more that rounding cannot exclude.

    A product of keys tells where it gives the order of the divergence, and ``pairwise`` for others.
    """
    found = [np.empty((2, 0), np.int64)]
    with torch.inference_mode():
        if keys is not None and divergence.ranks_by_order():
            below = _by_keys(divergence, keys.asked(queries), keys)
        else:
            below = _by_pairs(divergence, direction, queries)
        for part in slices(len(rows), COLUMNS):
            for first, matrix in below(store, rows[part]):
                query, column = (~(matrix > radius)).nonzero(as_tuple=True)
                found.append(np.stack([first + query.numpy(), rows[part][column.numpy()]]))
    numbers, chosen = np.concatenate(found, 1)
    return numbers, chosen


Blocks = Callable[[Store, RowNumbers], Iterator[tuple[int, Tensor]]]


def _by_keys(divergence: Divergence, asked: Asked, keys: ScannedKeys) -> Blocks:
    """Return a function that yields lower bounds of divergences from products, and the number of the first query."""
    all_keys, error = keys.keys, rounding_error(asked.vectors, keys.sizes)
    # The base is rounded as well, and so is the difference.
    base = asked.base.to(error) - 2 * error - 16 * torch.finfo(error.dtype).eps * asked.base.abs().to(error)

    def blocks(store: Store, rows: RowNumbers) -> Iterator[tuple[int, Tensor]]:
        chosen = all_keys[torch.from_numpy(rows)]
        for part in slices(len(asked.points), max(1, BLOCK_ENTRIES // COLUMNS)):
            yield part.start, divergence.from_order(base[part, None] - asked.vectors[part] @ chosen.t())

    return blocks


def _by_pairs(divergence: Divergence, direction: str, queries: Tensor) -> Blocks:
    like, bregman = _like(divergence, queries), divergence.as_bregman()
    slack = 1 - max(SLACK, 10 * bregman.pairwise_rtol if bregman is not None else 0.0)

    def blocks(store: Store, rows: RowNumbers) -> Iterator[tuple[int, Tensor]]:
        items = torch.from_numpy(store.values[rows]).to(like.device)
        for part in slices(len(queries), max(1, BLOCK_ENTRIES // COLUMNS)):
            matrix = _orders(divergence, direction, queries[part].to(like.device), items)
            yield part.start, slack * (divergence.from_order(matrix) if divergence.signed else matrix).cpu()

    return blocks
