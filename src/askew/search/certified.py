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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks
from askew._parallel import workers
from askew.search.inner_product import InnerProductForm
from askew.search.store import empty_rows, with_room

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


@dataclass
class ScannedKeys:
    """The keys of all rows of an index, which a search scans."""

    form: InnerProductForm
    array: NDArray[Any]  # with room for more
    rows: int
    sizes: Sizes
    built_for: int  # the number of items that the form was made for
    scratch: Path | None = None

    @classmethod
    def of(cls, form: InnerProductForm, items: Tensor, dtype: Any, scratch: Path | None, owner: str) -> ScannedKeys:
        """Return the keys of items, in a file in the folder ``scratch`` if there is one."""
        count = len(items)
        array = empty_rows((count, form.size), dtype, scratch)
        form.fill_plain_keys(items, torch.from_numpy(array))
        return cls(form, array, count, sizes_of(array, owner), count, scratch)

    @property
    def keys(self) -> Tensor:
        """The keys, ``(rows, size)``."""
        return torch.from_numpy(self.array[: self.rows])

    def extension(self, items: Tensor, owner: str) -> Callable[[], None]:
        """Return a function that adds the keys of items, and cannot fail."""
        new = self.form.plain_keys(items).to(self.keys.dtype).numpy()
        sizes = Sizes(*map(max, self.sizes, sizes_of(new, owner)))
        rows = self.rows + len(new)
        array = with_room(self.array, self.rows, len(new), self.scratch)
        array[self.rows : rows] = new

        def extend() -> None:
            self.array, self.rows, self.sizes = array, rows, sizes

        return extend

    def mask(self, rows: RowNumbers) -> None:
        """Let no search find these rows: near to no query."""
        self.array[rows] = 0
        self.array[rows, -1] = -np.inf


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
    scanned: ScannedKeys,
    count: int,
    scan: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]],
    rank: Callable[[Tensor, RowNumbers], tuple[Tensor, RowNumbers]],
    by_pairs: Callable[[Tensor, int], RowNumbers],
    least: float,
    owner: str,
) -> tuple[Tensor, RowNumbers]:
    """Return the divergences and the rows of the k nearest of ``count`` items; see the theorem above.

    ``scan`` does what :func:`largest_products` does. ``rank`` gives the k nearest among candidates by their exact
    divergences, where -1 is no candidate; ``by_pairs`` gives that many candidates by the divergences of all pairs.
    Nothing is nearer than ``least``.
    """
    rows = np.empty((len(queries), k), np.int64)
    values = queries.new_empty(len(queries), k)
    waiting = torch.arange(len(queries))
    most = min(count, max(MOST_CANDIDATES, 2 * k))
    width = min(k + SPARE_CANDIDATES, most)
    while len(waiting):
        subset = queries[waiting]
        vectors = scanned.form.plain_queries(subset).to(scanned.keys.dtype)
        scores, numbers = scan(vectors, scanned.keys, width)
        if not bool(torch.isfinite(scores).all()):
            must = f"of a size whose products with the items fit {vectors.dtype}"
            hint = "Scale the points, or use ExactIndex with float64."
            raise ValueError(checks.message(f"queries of {owner}", must, "products that overflow", hint))
        error = rounding_error(vectors, scanned.sizes)
        # A candidate that is behind the k-th by more than rounding needs no exact value.
        behind = scores < (scores[:, k - 1] - 2 * error)[:, None]
        found, chosen = rank(subset, numbers.masked_fill(behind, -1).numpy())
        values[waiting], rows[waiting.numpy()] = found, chosen
        apart = (int(numbers.amax()) + 1) * np.arange(len(subset))[:, None]  # one range of numbers for each query
        taken = torch.from_numpy(np.isin(numbers.numpy() + apart, chosen + apart))
        worst = torch.where(taken, scores, torch.inf).amin(1)
        waiting = waiting[(worst - scores[:, -1] <= 2 * error) & (found[:, -1] > least)]
        if width == most:
            break
        width = min(4 * width, most)
    if len(waiting) and most < count:
        subset = queries[waiting]
        values[waiting], rows[waiting.numpy()] = rank(subset, by_pairs(subset, most))
    return values, rows


# ---------------------------------------------------------------------- the k largest inner products


def largest_products(queries: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest inner products of each query with at least k keys, and the keys' numbers, ``(n, k)`` each.

    Memory is O(k) per query in addition to one block of products for each thread. Of equal products the smaller number
    comes first.

    Examples
    --------
    >>> keys = torch.tensor([[1.0], [3.0], [2.0]])
    >>> largest_products(torch.tensor([[1.0]]), keys, 2)
    (tensor([[3., 2.]]), tensor([[1, 2]]))
    """
    scores, numbers = [queries.new_empty(0, k)], [torch.empty(0, k, dtype=torch.int64)]
    with workers(torch.get_num_threads()) as (count, map_over):
        run = max(1, -(-len(keys) // (count * GROUP))) * GROUP  # keys of one thread
        starts = range(0, len(keys), run)
        for block in queries.split(QUERY_ROWS) if len(queries) else ():
            scans = [_Scan(block, keys[start : start + run], start, k) for start in starts]
            best = map_over(_Scan.run, scans)
            score, number = (torch.cat(parts, 1) for parts in zip(*best, strict=True))
            if len(best) > 1:
                order = number.argsort(1)
                order = order.gather(1, score.gather(1, order).argsort(dim=1, descending=True, stable=True))[:, :k]
                score, number = score.gather(1, order), number.gather(1, order)
            scores.append(score)
            numbers.append(number)
    return torch.cat(scores), torch.cat(numbers)


class _Scan:
    """The k best of some keys for each of some queries, and a pool of those that were above the k-th when they came.

    Whole groups of products are skipped by their maximum. Comparisons are negated, because those with NaN are False:
    a product that is NaN must come out, so that it can be reported.
    """

    def __init__(self, queries: Tensor, keys: Tensor, start: int, k: int) -> None:
        self.queries, self.keys, self.start, self.k = queries, keys, start, k
        self.scores = queries.new_full((len(queries), k), -torch.inf)
        # An empty place comes after every key.
        self.numbers = torch.full((len(queries), k), torch.iinfo(torch.int64).max)
        self.pool: list[tuple[Tensor, Tensor, Tensor]] = []

    def run(self) -> tuple[Tensor, Tensor]:
        """Return the k largest products and the numbers of their keys."""
        rows, pooled = len(self.queries), 0
        buffer = self.queries.new_empty(rows, KEY_ROWS)  # one for all blocks: new memory costs more than the products
        for start in range(0, len(self.keys), KEY_ROWS):
            block = self.keys[start : start + KEY_ROWS].t()
            columns = block.shape[1]
            if columns < KEY_ROWS:  # the last one
                buffer = torch.full((rows, -(-columns // GROUP) * GROUP), -torch.inf, dtype=buffer.dtype)
            torch.mm(self.queries, block, out=buffer[:, :columns])
            row, column, score = self._above(buffer, columns)
            if len(row):
                self.pool.append((row, self.start + start + column, score))
                pooled += len(row)
            if pooled > 2 * rows * self.k:
                self._merge()
                pooled = 0
        self._merge()
        return self.scores, self.numbers

    def _above(self, matrix: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, columns and values of the products that are above the k-th best so far."""
        floor = self.scores[:, -1]
        grouped = matrix.view(len(matrix), -1, GROUP)
        maxima = grouped.amax(-1)
        row, group = (~(maxima <= floor[:, None])).nonzero(as_tuple=True)
        if len(row) == 0:
            return row, group, floor
        if 2 * len(row) > maxima.numel() and self.k < columns:
            # At the beginning nearly everything is above: only the k best of each row matter.
            scores, best = matrix.topk(self.k + 1, 1)
            if not bool((scores[:, -1] == scores[:, -2]).any()):
                scores, best = scores[:, :-1], best[:, :-1]
                above = ~(scores <= floor[:, None])
                return above.nonzero(as_tuple=True)[0], best[above], scores[above]
            # Of equals at the end topk takes any, but those with the smallest numbers are wanted.
            row, column = (~(matrix <= floor[:, None]) & ~(matrix < scores[:, -2:-1])).nonzero(as_tuple=True)
            return row, column, matrix[row, column]
        values = grouped[row, group]
        hit, column = (~(values <= floor[row, None])).nonzero(as_tuple=True)
        return row[hit], GROUP * group[hit] + column, values[hit, column]

    def _merge(self) -> None:
        """Merge the pool into the best k of each row; of equal products the smaller number comes first."""
        rows = len(self.queries)
        own = torch.arange(rows)[:, None].expand_as(self.numbers)
        self.pool.append((own.reshape(-1), self.numbers.reshape(-1), self.scores.reshape(-1)))
        row, number, score = (torch.cat(parts) for parts in zip(*self.pool, strict=True))
        # Sort by number, by score and by row, each stable.
        order = number.argsort()
        order = order[score[order].argsort(descending=True, stable=True)]
        order = order[row[order].argsort(stable=True)]
        counts = row.bincount(minlength=rows)
        first = counts.cumsum(0) - counts
        take = order[first[:, None] + torch.arange(self.k)]
        self.scores, self.numbers, self.pool = score[take], number[take], []
