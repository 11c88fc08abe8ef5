r"""Certified exact search: candidates by inner products, which are rounded, and a proof that none is missing.

D(query, item) = base(query) - s, where s is the inner product of the query's vector with the item's key. A product in
floating point is off by at most e (:func:`rounding_error`), so it cannot tell items apart that are nearer to each
other than that. Yet it proves which items do not matter.

**Theorem.** Let C be the items with the largest computed products, t the smallest of these, and w the smallest computed
product among the k items of C with the smallest divergences. If w - t > 2 e, these are the k nearest of all items.

*Proof.* An item j outside of C has a computed product of at most t, so s_j <= t + e < w - e <= s_i for each of the k
items i, and D(query, j) > D(query, i). \square

So a few candidates more than k get their exact divergence, and a query is repeated with more of them until the
condition holds. Where that takes too many, as for clusters that are far apart and narrow, it gets the divergences of
all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks
from askew._parallel import workers
from askew.search.inner_product import InnerProductForm

# Candidates beyond k at first, and at most.
SPARE_CANDIDATES = 8
MOST_CANDIDATES = 1024
# The error of an inner product is taken to be below this many units of eps |query| |key|, above the subnormal range.
ERROR_UNITS = 8.0
# A block of products is read once more after it is written, so it must not leave the cache; measured.
QUERY_ROWS = 512
KEY_ROWS = 2048
# Columns that are skipped together if their maximum is too small.
GROUP = 128

RowNumbers = NDArray[np.int64]


class Sizes(NamedTuple):
    """The largest sizes among keys: of whole keys, of all but their last feature, and of the last one."""

    whole: float
    slopes: float
    last: float

    def joined(self, other: Sizes) -> Sizes:
        """Return the sizes of two sets of keys together."""
        return Sizes(*map(max, self, other))


NO_SIZES = Sizes(0.0, 0.0, 0.0)


def sizes_of(keys: NDArray[Any], owner: str) -> Sizes:
    """Return the sizes of keys, and refuse those that overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", keys[:, :-1], keys[:, :-1])
        last = np.abs(keys[:, -1])
        whole = squares + np.square(last)
        sizes = Sizes(math.sqrt(float(whole.max())), math.sqrt(float(squares.max())), float(last.max()))
    if not math.isfinite(sizes.whole):
        must, hint = f"of a size whose keys fit {keys.dtype}", "Scale the items, or use ExactIndex with float64."
        raise ValueError(checks.message(f"items of {owner}", must, "keys that overflow", hint))
    return sizes


def masked_key(keys: Tensor) -> Tensor:
    """Return the key of a removed item, which is near to no query."""
    key = keys.new_zeros(keys.shape[1])
    key[-1] = -torch.inf
    return key


def rounding_error(vectors: Tensor, sizes: Sizes) -> Tensor:
    """Return, for each query, a bound of the rounding error of its inner products with keys, ``(n,)``.

    In addition to the relative part there is an absolute one for subnormal numbers: they lose digits, and some
    processors and libraries flush them to 0. So each feature of a query or of a key may be off by the smallest normal
    number, times the other factor, and so may each of their products. Lengths are roots of sums of squares, and may be
    too short by the root of it.
    """
    kind, size = torch.finfo(vectors.dtype), vectors.shape[1]
    hidden = math.sqrt(size * kind.tiny)
    lengths: Tensor = vectors[:, :-1].norm(dim=1) + hidden
    slopes = sizes.slopes + hidden
    relative = kind.eps * (lengths * slopes + sizes.last)
    return ERROR_UNITS * (relative + kind.tiny * size * (1 + lengths + slopes))


def nearest_by_keys(
    queries: Tensor,
    k: int,
    form: InnerProductForm,
    keys: Tensor,
    sizes: Sizes,
    count: int,
    rank: Callable[[Tensor, RowNumbers], tuple[Tensor, RowNumbers]],
    by_pairs: Callable[[Tensor, int], RowNumbers],
    owner: str,
    engine: Any = None,
) -> tuple[Tensor, RowNumbers]:
    """Return the divergences and the rows of the k nearest of ``count`` items; see the theorem above.

    ``rank`` gives the k nearest among candidates by their exact divergences, where -1 is no candidate; ``by_pairs``
    gives that many candidates by the divergences of all pairs. A flat FAISS index of the keys may scan them.
    """
    rows = np.empty((len(queries), k), np.int64)
    values = queries.new_empty(len(queries), k)
    waiting = torch.arange(len(queries))
    most = min(count, max(MOST_CANDIDATES, 2 * k))
    width = min(k + SPARE_CANDIDATES, most)
    while len(waiting):
        subset = queries[waiting]
        vectors = form.plain_queries(subset).to(keys.dtype)
        if engine is None:
            scores, numbers = largest_products(vectors, [keys], width)
        else:
            scores, numbers = map(torch.from_numpy, engine.search(vectors.contiguous().numpy(), width))
            scores[numbers < 0] = torch.nan  # FAISS skips products that are NaN
        if not bool(torch.isfinite(scores).all()):
            must = f"of a size whose products with the items fit {keys.dtype}"
            hint = "Scale the points, or use ExactIndex with float64."
            raise ValueError(checks.message(f"queries of {owner}", must, "products that overflow", hint))
        error = rounding_error(vectors, sizes)
        # A candidate that is behind the k-th by more than rounding needs no exact value.
        behind = scores < (scores[:, k - 1] - 2 * error)[:, None]
        found, chosen = rank(subset, numbers.masked_fill(behind, -1).numpy())
        values[waiting], rows[waiting.numpy()] = found, chosen
        apart = (int(numbers.amax()) + 1) * np.arange(len(subset))[:, None]  # one range of numbers for each query
        taken = torch.from_numpy(np.isin(numbers.numpy() + apart, chosen + apart))
        worst = torch.where(taken, scores, torch.inf).amin(1)
        # Nothing is nearer than 0.
        waiting = waiting[(worst - scores[:, -1] <= 2 * error) & (found[:, -1] > 0)]
        if width == most:
            break
        width = min(4 * width, most)
    if len(waiting) and most < count:
        subset = queries[waiting]
        values[waiting], rows[waiting.numpy()] = rank(subset, by_pairs(subset, most))
    return values, rows


# ---------------------------------------------------------------------- the k largest inner products


def largest_products(queries: Tensor, keys: Iterable[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest inner products of each query with the keys, and the numbers of these keys, ``(n, k)`` each.

    Keys come in blocks of any lengths, in the order of their numbers, at least k in all. Memory is O(k) per query in
    addition to one block: only products above the k-th best so far are kept, and whole groups of them are skipped by
    their maximum. Of equal products the smaller number comes first.

    Examples
    --------
    >>> keys = torch.tensor([[1.0], [3.0], [2.0]])
    >>> largest_products(torch.tensor([[1.0]]), [keys], 2)
    (tensor([[3., 2.]]), tensor([[1, 2]]))
    """
    if len(queries) == 0:
        return queries.new_empty(0, k), torch.empty(0, k, dtype=torch.int64)
    start = 0
    # Each thread scans its own part of the keys; the best of all are merged at the end.
    with workers(torch.get_num_threads()) as (count, map_over):
        scans = [_TopK.of(queries, k) for _ in range(count)]
        for block in keys:
            run = -(-len(block) // count)
            run = -(-run // GROUP) * GROUP
            map_over(_scan, [(scan, block[i * run : (i + 1) * run], start + i * run) for i, scan in enumerate(scans)])
            start += len(block)
        best = map_over(_best, scans)
    if len(best) == 1:
        return best[0]
    score, number = (torch.cat(parts, 1) for parts in zip(*best, strict=True))
    order = number.argsort(1)
    score, number = score.gather(1, order), number.gather(1, order)
    # A thread with fewer keys than k has places left, which have the number -1.
    order = score.masked_fill(number < 0, -torch.inf).argsort(dim=1, descending=True, stable=True)
    empty = (number < 0).gather(1, order)
    order = order.gather(1, empty.to(torch.int8).argsort(dim=1, stable=True))[:, :k]
    return score.gather(1, order), number.gather(1, order)


def _scan(work: tuple[list[_TopK], Tensor, int]) -> None:
    """Scan keys, of which the first has a number, for all queries."""
    parts, keys, start = work
    for piece in keys.split(KEY_ROWS) if len(keys) else ():
        for part in parts:
            part.scan(piece, start)
        start += len(piece)


def _best(parts: list[_TopK]) -> tuple[Tensor, Tensor]:
    scores, numbers = zip(*(part.merged() for part in parts), strict=True)
    return torch.cat(scores), torch.cat(numbers)


class _TopK:
    """The k best keys of each of some queries, and a pool of those that were above the k-th best when they came."""

    @classmethod
    def of(cls, queries: Tensor, k: int) -> list[_TopK]:
        """Return one for each block of queries; they share the memory for one block of products."""
        buffer = queries.new_empty(min(len(queries), QUERY_ROWS) * KEY_ROWS)
        return [cls(block, k, buffer) for block in queries.split(QUERY_ROWS)]

    def __init__(self, queries: Tensor, k: int, buffer: Tensor) -> None:
        rows = len(queries)
        self.queries = queries
        self.k = k
        self.scores = queries.new_full((rows, k), -torch.inf)
        self.numbers = torch.full((rows, k), -1, dtype=torch.int64)
        self.floor = self.scores[:, -1].clone()
        self.buffer = buffer
        self.maxima = queries.new_empty(rows * (KEY_ROWS // GROUP))
        self.pool: list[tuple[Tensor, Tensor, Tensor]] = []
        self.pooled = 0

    def scan(self, keys: Tensor, start: int) -> None:
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
            # At the beginning nearly everything is among the best: sort each row instead of going through groups.
            scores, best_columns = matrix.topk(self.k + 1, 1)
            if bool((scores[:, -1] == scores[:, -2]).any()):
                # Of equals at the end topk takes any, but those with the smallest numbers are wanted.
                above = (matrix >= scores[:, -2:-1]) & (matrix > self.floor[:, None])
                row, column = above.nonzero(as_tuple=True)
                self._put(row, start + column, matrix[row, column])
                return
            scores, best_columns = scores[:, :-1], best_columns[:, :-1]
            above = scores > self.floor[:, None]
            self._put(above.nonzero(as_tuple=True)[0], start + best_columns[above], scores[above])
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
        """Return the best k of each row, with the pool merged into them."""
        if self.pool:
            rows = len(self.queries)
            own = torch.arange(rows)[:, None].expand_as(self.numbers)
            self.pool.append((own.reshape(-1), self.numbers.reshape(-1), self.scores.reshape(-1)))
            row, number, score = (torch.cat(parts) for parts in zip(*self.pool, strict=True))
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
