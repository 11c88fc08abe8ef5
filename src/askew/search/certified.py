r"""Search by the keys of items: candidates and values from inner products, and a proof that rounding hides none.

S(query, item) = base(query) - s, where s is the inner product of the query's vector with the item's key. S orders items
as the divergence does, and often is its value. Keys are rounded, and so are products, so an S is off by at most some e.

**Which items.** *Theorem.* Let C be the items with the largest computed products, t the smallest of these, and w the
smallest computed product among the k items of C with the smallest divergences. If w - t > 2 e, these are the k nearest
of all items. *Proof.* An item j outside of C has a computed product of at most t, so s_j <= t + e < w - e <= s_i for
each of the k items i, and D(query, j) > D(query, i). \square

So a few candidates more than k are ranked, and a query is repeated with more of them until the condition holds. Where
that takes too many, as for clusters that are far apart and narrow, it gets the divergences of all pairs.

**In which order, and with which values.** Products of candidates are computed once more, in float64. The divergence
itself is evaluated only for candidates whose S is within e of another one that matters, and for those whose S is
smaller than e / rtol: near pairs, where the digits cancel. All others have a relative error below rtol. An item equal
to the query is such a near pair, and its divergence is 0.
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
from askew._parallel import over_blocks, workers
from askew.search.columns import Mask
from askew.search.inner_product import InnerProductForm
from askew.search.store import empty_rows, with_room

# Candidates beyond k at first, and at most.
SPARE_CANDIDATES = 8
MOST_CANDIDATES = 1024
# The error of an inner product is taken to be below this many units of eps |query| |key|, above the subnormal range:
# of one that is summed in the precision of the keys, and of one that is summed in float64.
ERROR_UNITS = 8.0
WIDE_ERROR_UNITS = 4.0
# The relative error of a value, in units of eps: 1.2e-4 in float32. The error of most is a hundredth of it.
VALUE_UNITS = 1000.0
# Numbers in the keys of candidates that a thread multiplies at a time.
BLOCK_NUMBERS = 1 << 18
# A block of products is read once more after it is written, so it must not leave the cache; measured.
QUERY_ROWS = 512
KEY_ROWS = 2048
# Columns that are skipped together if their maximum is too small.
GROUP = 64

RowNumbers = NDArray[np.int64]


class Asked(NamedTuple):
    """Queries and their vectors: S(query, item) = base - <vector, key>."""

    points: Tensor
    vectors: Tensor
    base: Tensor

    def subset(self, rows: Tensor) -> Asked:
        """Return some of the queries."""
        return Asked(*(part[rows] for part in self))


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


@dataclass(kw_only=True)
class ScannedKeys:
    """The keys of all rows of an index, which a search scans."""

    form: InnerProductForm
    array: NDArray[Any]  # with room for more rows; a subclass has further columns behind a key
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
        sizes = sizes_of(array, owner)
        return cls(form=form, array=array, rows=count, sizes=sizes, built_for=count, scratch=scratch)

    @property
    def keys(self) -> Tensor:
        """The keys, ``(rows, dim + 1)``."""
        return torch.from_numpy(self.array[: self.rows, : self.form.centre.shape[1] + 1])

    def asked(self, queries: Tensor) -> Asked:
        """Return queries with their vectors in the precision of the keys."""
        vectors, base = self.form.queries_and_base(queries)
        return Asked(queries, vectors.to(self.keys.dtype), base)

    def extension(self, items: Tensor, owner: str) -> Callable[[], None] | None:
        """Return a function that adds the keys of items and cannot fail; None if a new state is needed."""
        new = self.form.plain_keys(items).to(self.keys.dtype).numpy()
        return self.extended_by(new, sizes_of(new, owner))

    def extended_by(self, new: NDArray[Any], sizes: Sizes) -> Callable[[], None]:
        """Return a function that adds rows to the array."""
        sizes = Sizes(*map(max, self.sizes, sizes))
        rows = self.rows + len(new)
        array = with_room(self.array, self.rows, len(new), self.scratch)
        array[self.rows : rows] = new

        def extend() -> None:
            self.array, self.rows, self.sizes = array, rows, sizes

        return extend

    def rank(
        self, asked: Asked, rows: RowNumbers, k: int, exact: Callable[..., Tensor], by_order: bool
    ) -> tuple[Tensor, RowNumbers]:
        """Return the order values and the rows of the k nearest of candidates, ``(n, candidates)``; see above.

        Parameters
        ----------
        asked, rows, k
            The queries; the rows of their candidates, -1 for none; how many are wanted.
        exact
            Gives order values of pairs, from numbers of queries and rows of items.
        by_order
            Whether S is the order value. If not, ``exact`` gives all values, and S decides which are needed.
        """
        values, error = self._values(asked, rows)
        place = np.arange(len(rows))[:, None], values.argsort(1)
        values, error, rows = values[place], error[place], rows[place]
        present = rows >= 0
        # Comparisons are negated, because those with NaN are False.
        with np.errstate(invalid="ignore"):
            close = ~(np.diff(values) > error[:, 1:] + error[:, :-1]) & present[:, 1:]
            rtol = VALUE_UNITS * torch.finfo(asked.points.dtype).eps
            doubtful = present & ~(rtol * np.abs(values) > error) if by_order else present.copy()
        doubtful[:, :-1] |= close
        doubtful[:, 1:] |= close
        # Behind the k-th only those matter that may change places with it.
        doubtful[:, k:] = np.logical_and.accumulate(close[:, k - 1 :], 1)
        values[:, k:][~doubtful[:, k:]] = np.inf
        query, column = doubtful.nonzero()
        if len(query):
            values[query, column] = exact(query, rows[query, column]).numpy()
            again = np.unique(query)
            order = np.lexsort((rows[again], values[again], ~present[again]), axis=1)
            values[again] = np.take_along_axis(values[again], order, 1)
            rows[again] = np.take_along_axis(rows[again], order, 1)
        return torch.from_numpy(values[:, :k]).to(asked.points.dtype), rows[:, :k]

    def _values(self, asked: Asked, rows: RowNumbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return S of candidates from products in float64, infinite for none, and bounds of its error."""
        values, error = np.empty(rows.shape), np.empty(rows.shape)
        vectors, base = asked.vectors.double().numpy(), asked.base.double().numpy()[:, None]
        lengths = np.linalg.norm(vectors[:, :-1], axis=1)[:, None]
        size, kind = vectors.shape[1], np.finfo(self.array.dtype)

        def work(part: slice) -> None:
            chosen = np.take(self.array, rows[part].reshape(-1), axis=0, mode="clip")[:, :size].astype(np.float64)
            keys = chosen.reshape(*rows[part].shape, size)
            slopes = np.sqrt(np.einsum("nmd,nmd->nm", keys[..., :-1], keys[..., :-1]))
            scale = lengths[part] * slopes + np.abs(vectors[part, -1:] * keys[..., -1]) + np.abs(base[part])
            hidden = kind.tiny * size * (1 + lengths[part] + slopes)  # subnormal features lose digits
            with np.errstate(invalid="ignore"):
                values[part] = base[part] - np.matmul(keys, vectors[part, :, None])[..., 0]
            error[part] = WIDE_ERROR_UNITS * (kind.eps * scale + hidden)

        over_blocks(len(rows), max(1, BLOCK_NUMBERS // (size * max(1, rows.shape[1]))), work)
        unknown = ~np.isfinite(values)  # of a query whose vector overflows: all candidates are evaluated
        values[unknown], error[unknown] = -np.inf, np.inf
        values[rows < 0] = np.inf
        return values, error


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
    relative = kind.eps * (lengths * slopes + vectors[:, -1].abs() * sizes.last)
    return ERROR_UNITS * (relative + kind.tiny * size * (1 + lengths + slopes))


def nearest_by_keys(
    asked: Asked,
    k: int,
    sizes: Sizes,
    count: int,
    scan: Callable[[Tensor, int], tuple[Tensor, Tensor]],
    rank: Callable[[Asked, RowNumbers], tuple[Tensor, RowNumbers]],
    by_pairs: Callable[[Asked, int], tuple[Tensor, RowNumbers]],
    least: float,
    owner: str,
) -> tuple[Tensor, RowNumbers]:
    """Return the order values and the rows of the k nearest of ``count`` items; see the theorem above.

    ``scan`` gives the largest products of vectors, ``rank`` the k nearest among candidates, and ``by_pairs`` the k
    nearest of that many candidates by the divergences of all pairs. Nothing is nearer than ``least``.
    """
    rows = np.empty((len(asked.points), k), np.int64)
    values = asked.points.new_empty(len(asked.points), k)
    waiting = torch.arange(len(asked.points))
    most = min(count, max(MOST_CANDIDATES, 2 * k))
    width = min(k + SPARE_CANDIDATES, most)
    while len(waiting):
        subset = asked.subset(waiting)
        scores, numbers = scan(subset.vectors, width)
        if not bool(torch.isfinite(scores).all()):
            must = f"of a size whose products with the items fit {scores.dtype}"
            hint = "Scale the points, or use ExactIndex with float64."
            raise ValueError(checks.message(f"queries of {owner}", must, "products that overflow", hint))
        found, chosen = rank(subset, numbers.numpy())
        values[waiting], rows[waiting.numpy()] = found, chosen
        apart = (int(numbers.amax()) + 1) * np.arange(len(chosen))[:, None]  # one range of numbers for each query
        taken = torch.from_numpy(np.isin(numbers.numpy() + apart, chosen + apart))
        worst = torch.where(taken, scores, torch.inf).amin(1)
        error = rounding_error(subset.vectors, sizes)
        waiting = waiting[(worst - scores[:, -1] <= 2 * error) & (found[:, -1] > least)]
        if width == most:
            break
        width = min(4 * width, most)
    if len(waiting) and most < count:
        values[waiting], rows[waiting.numpy()] = by_pairs(asked.subset(waiting), most)
    return values, rows


# ---------------------------------------------------------------------- the k largest inner products


def largest_products(queries: Tensor, keys: Tensor, k: int, allowed: Mask | None = None) -> tuple[Tensor, Tensor]:
    """Return the k largest inner products of each query with at least k keys, and the keys' numbers, ``(n, k)`` each.

    Memory is O(k) per query in addition to one block of products for each thread. Of equal products the smaller number
    comes first. Keys that are not ``allowed`` are left out.

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
            scans = [
                _Scan(block, keys[start : start + run], start, k, None if allowed is None else allowed[start:])
                for start in starts
            ]
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

    def __init__(self, queries: Tensor, keys: Tensor, start: int, k: int, allowed: Mask | None) -> None:
        self.queries, self.keys, self.start, self.k, self.allowed = queries, keys, start, k, allowed
        self.scores = queries.new_full((len(queries), k), -torch.inf)
        # An empty place comes after every key.
        self.numbers = torch.full((len(queries), k), torch.iinfo(torch.int64).max)
        self.pool: list[tuple[Tensor, Tensor, Tensor]] = []

    def run(self) -> tuple[Tensor, Tensor]:
        """Return the k largest products and the numbers of their keys."""
        rows, pooled = len(self.queries), 0
        memory = self.queries.new_empty(rows * KEY_ROWS)  # one for all blocks: new memory costs more than the products
        for start in range(0, len(self.keys), KEY_ROWS):
            block, numbers = self._block(start)
            columns = len(block)
            if columns == 0:
                continue
            width = -(-columns // GROUP) * GROUP
            buffer = memory[: rows * width].view(rows, width)
            buffer[:, columns:] = -torch.inf
            torch.mm(self.queries, block.t(), out=buffer[:, :columns])
            row, column, score = self._above(buffer, columns)
            if len(row):
                self.pool.append((row, self.start + start + (column if numbers is None else numbers[column]), score))
                pooled += len(row)
            if pooled > 2 * rows * self.k:
                self._merge()
                pooled = 0
        self._merge()
        return self.scores, self.numbers

    def _block(self, start: int) -> tuple[Tensor, Tensor | None]:
        """Return keys, and their numbers from ``start`` on if some of the block are left out."""
        block = self.keys[start : start + KEY_ROWS]
        if self.allowed is None or bool((part := self.allowed[start : start + len(block)]).all()):
            return block, None
        numbers = torch.from_numpy(np.flatnonzero(part))
        return block[numbers], numbers

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
