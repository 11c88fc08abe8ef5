"""The k largest inner products of queries with a stream of keys."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from askew._parallel import workers

__all__ = ["largest_products"]

# A block of products is looked at once more after it is made, so it must not leave the cache; measured.
QUERY_ROWS = 512
KEY_ROWS = 2048
# Columns whose maximum is looked at before they are looked at one by one.
GROUP = 128


def largest_products(queries: Tensor, keys: Iterable[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest inner products of each query with the keys, and the numbers of these keys.

    Memory is O(k) a query beyond one block: only products above the k-th best so far are kept, and whole groups of
    them are passed over by their maximum.

    Parameters
    ----------
    queries
        ``(n, size)``.
    keys
        Blocks ``(m, size)`` of any lengths, in the order of their numbers; together at least k rows.
    k
        How many.

    Returns
    -------
    tuple of tensors, ``(n, k)`` each
        Products in descending order and the numbers of the keys.

    Examples
    --------
    >>> keys = torch.tensor([[1.0], [3.0], [2.0]])
    >>> largest_products(torch.tensor([[1.0]]), [keys], 2)
    (tensor([[3., 2.]]), tensor([[1, 2]]))
    """
    if len(queries) == 0:
        return queries.new_empty(0, k), torch.empty(0, k, dtype=torch.int64)
    start = 0
    # Each thread has keys of its own and the best of these; what all have found is put together at the end.
    with workers(torch.get_num_threads()) as (count, map_over):
        lanes = [_Lane(queries, k) for _ in range(count)]
        for block in keys:
            run = -(-len(block) // count)
            run = -(-run // GROUP) * GROUP
            work = [(lane, block[i * run : (i + 1) * run], start + i * run) for i, lane in enumerate(lanes)]
            map_over(lambda part: part[0].look_at(part[1], part[2]), work)
            start += len(block)
        found = map_over(lambda lane: lane.best(), lanes)
    if len(found) == 1:
        return found[0]
    return _joined([scores for scores, _ in found], [numbers for _, numbers in found], k)


def _joined(scores: list[Tensor], numbers: list[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Return the best k of each row of what several threads have found; of equals the smaller number comes first."""
    score, number = torch.cat(scores, 1), torch.cat(numbers, 1)
    order = number.argsort(1)
    score, number = score.gather(1, order), number.gather(1, order)
    # A thread with fewer keys than k has places left, which have the number -1.
    order = score.masked_fill(number < 0, -torch.inf).argsort(dim=1, descending=True, stable=True)
    empty = (number < 0).gather(1, order)
    order = order.gather(1, empty.to(torch.int8).argsort(dim=1, stable=True))[:, :k]
    return score.gather(1, order), number.gather(1, order)


class _Lane:
    """What one thread works with: the best of the keys it has seen, for all queries."""

    def __init__(self, queries: Tensor, k: int) -> None:
        # One block of products is there at a time.
        buffer = queries.new_empty(min(len(queries), QUERY_ROWS) * KEY_ROWS)
        self.parts = [_Best(block, k, buffer) for block in queries.split(QUERY_ROWS)]

    def look_at(self, keys: Tensor, start: int) -> None:
        for piece in keys.split(KEY_ROWS):
            for part in self.parts:
                if len(piece):
                    part.look_at(piece, start)
            start += len(piece)

    def best(self) -> tuple[Tensor, Tensor]:
        results = [part.merged() for part in self.parts]
        return torch.cat([scores for scores, _ in results]), torch.cat([numbers for _, numbers in results])


class _Best:
    """The best k of each of some rows, and a pool of products above the k-th best when they were met."""

    def __init__(self, queries: Tensor, k: int, buffer: Tensor) -> None:
        self.queries = queries
        rows = len(queries)
        self.k = k
        self.scores = queries.new_full((rows, k), -torch.inf)
        self.numbers = torch.full((rows, k), -1, dtype=torch.int64)
        self.floor = self.scores[:, -1].clone()
        self.buffer = buffer
        self.maxima = queries.new_empty(rows * (KEY_ROWS // GROUP))
        self.pool: list[tuple[Tensor, Tensor, Tensor]] = []
        self.pooled = 0

    def look_at(self, keys: Tensor, start: int) -> None:
        """Take in a block of keys, of which the first has the number ``start``."""
        rows, columns = len(self.queries), len(keys)
        groups = -(-columns // GROUP)
        matrix = self.buffer[: rows * groups * GROUP].view(rows, groups * GROUP)
        if columns == groups * GROUP:
            torch.mm(self.queries, keys.t(), out=matrix)
        else:
            matrix[:, :columns] = self.queries @ keys.t()
            matrix[:, columns:] = -torch.inf
        maxima = self.maxima[: rows * groups].view(rows, groups)
        grouped = matrix.view(rows, groups, GROUP)
        torch.amax(grouped, -1, out=maxima)
        row, group = (maxima > self.floor[:, None]).nonzero(as_tuple=True)
        if row.numel() == 0:
            return
        if 2 * row.numel() > maxima.numel() and self.k < columns:
            # At the beginning nearly everything is among the best: sort each row instead of looking at groups.
            scores, columns_found = matrix.topk(self.k + 1, 1)
            row = torch.arange(rows)[:, None].expand(rows, self.k)
            if bool((scores[:, -1] == scores[:, -2]).any()):
                # Of equals at the end topk takes any, but those with the smallest numbers are wanted.
                above = (matrix >= scores[:, -2:-1]) & (matrix > self.floor[:, None])
                row, column = above.nonzero(as_tuple=True)
                self._put(row, start + column, matrix[row, column])
                return
            scores, columns_found = scores[:, :-1], columns_found[:, :-1]
            above = scores > self.floor[:, None]
            self._put(row[above], start + columns_found[above], scores[above])
        else:
            values = grouped[row, group]
            hit, column = (values > self.floor[row, None]).nonzero(as_tuple=True)
            self._put(row[hit], start + GROUP * group[hit] + column, values[hit, column])

    def _put(self, row: Tensor, number: Tensor, score: Tensor) -> None:
        self.pool.append((row, number, score))
        self.pooled += len(row)
        if self.pooled > 2 * len(self.queries) * self.k:
            self.merged()

    def merged(self) -> tuple[Tensor, Tensor]:
        """Return the best k of each row, after those of the pool have taken their places."""
        if self.pool:
            rows = len(self.queries)
            own = torch.arange(rows)[:, None].expand_as(self.numbers)
            row = torch.cat([own.reshape(-1), *(r for r, _, _ in self.pool)])
            number = torch.cat([self.numbers.reshape(-1), *(n for _, n, _ in self.pool)])
            score = torch.cat([self.scores.reshape(-1), *(s for _, _, s in self.pool)])
            # Of equal scores the smaller number comes first: sort by number, by score and by row, each stable.
            order = number.argsort()
            order = order[score[order].argsort(descending=True, stable=True)]
            order = order[row[order].argsort(stable=True)]
            counts = row.bincount(minlength=rows)
            first = counts.cumsum(0) - counts
            take = order[first[:, None] + torch.arange(self.k)]
            self.scores, self.numbers = score[take], number[take]
            self.floor = self.scores[:, -1].clone()
            self.pool, self.pooled = [], 0
        return self.scores, self.numbers
