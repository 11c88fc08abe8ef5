r"""Groups of ties in a ranking, and the mean of each score over all orders of the items within them.

Take a group of t tied items, r of them relevant, that s items precede, q of them relevant. In a random order
its i-th place holds a relevant item with probability r / t, and given that, (i - 1) (r - 1) / (t - 1) of the places
before it in the group do so on average. With alpha = (r - 1) / (t - 1), or 0 for t = 1, its first m places add

.. math:: \frac rt \sum_{i=1}^m \frac{q + 1 + (i - 1) \alpha}{s + i}
          = \frac rt \Bigl[ (q + 1 - \alpha (s + 1)) \sum_{j=s+1}^{s+m} \frac1j + \alpha m \Bigr]

to the sum of precisions at relevant places, which average precision is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from askew import checks
from askew.metrics.arrays import Array

__all__ = ["Scores", "TieGroups", "tie_groups"]

# Entries of the matrix that are sorted at a time; temporaries take some 60 bytes for each.
BLOCK_ELEMENTS = 1 << 19

Integers = NDArray[np.intp]


@dataclass(frozen=True)
class TieGroups:
    """The groups of equal values of some queries that hold a relevant item, in order of query and value."""

    queries: int
    query: Integers  # which query a group is of
    before: Integers  # s, items before it
    relevant_before: Integers  # q
    size: Integers  # t
    relevant: Integers  # r

    def total(self, of_groups: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum over the groups of each query."""
        return np.bincount(self.query, of_groups, self.queries).astype(np.float64, copy=False)

    def precisions(self, places: int) -> NDArray[np.float64]:
        """Return the expected sum of precisions at relevant places, up to a place, for each query."""
        seen = np.clip(places - self.before, 0, self.size)
        some = seen > 0
        s, q, t, r, m = (a[some] for a in (self.before, self.relevant_before, self.size, self.relevant, seen))
        alpha = (r - 1) / np.maximum(t - 1, 1)
        # Sums of 1 / j over the places of each group, not differences of harmonic numbers, which cancel.
        ends = np.cumsum(m)
        places_of_groups = np.arange(m.sum()) - np.repeat(ends - m - s, m) + 1
        inverse = np.add.reduceat(1 / places_of_groups, ends - m) if m.size else np.zeros(0)
        result = np.zeros(self.query.size)
        result[some] = r / t * ((q + 1 - alpha * (s + 1)) * inverse + alpha * m)
        return self.total(result)


@dataclass(frozen=True)
class Scores:
    """Unscaled scores of some queries, one entry for each."""

    precisions: NDArray[np.float64]
    precisions_at_k: NDArray[np.float64]
    misordered: NDArray[np.float64]
    hit: NDArray[np.float64]
    first: NDArray[np.float64]

    @classmethod
    def of(cls, groups: TieGroups, k: int) -> Scores:
        """Return the scores of a block of queries."""
        s, t, r = groups.before, groups.size, groups.relevant
        # An irrelevant item is in the wrong order if it is before a relevant one, and half of it if beside.
        misordered = r * ((s - groups.relevant_before) + (t - r) / 2)
        last = int((s + t).max()) if t.size else 1
        # What happens in the first group that has a relevant item decides whether one is in the first k.
        leading = np.flatnonzero(groups.relevant_before == 0)
        hit, first = np.zeros(groups.queries), np.zeros(groups.queries)
        hit[groups.query[leading]] = 1 - _none_drawn(t[leading], r[leading], np.clip(k - s[leading], 0, t[leading]))
        first[groups.query[leading]] = np.where(s[leading] == 0, r[leading] / t[leading], 0)
        return cls(groups.precisions(last), groups.precisions(k), groups.total(misordered), hit, first)


def _none_drawn(t: Integers, r: Integers, m: Integers) -> NDArray[np.float64]:
    """Return C(t - r, m) / C(t, m), the probability that m of t items have none of the r relevant ones."""
    possible = t - r >= m
    left = np.where(possible, t - r - m, 0)
    log = gammaln(t - r + 1) - gammaln(left + 1) - gammaln(t + 1) + gammaln(t - m + 1)
    return np.where(possible, np.where(m == 0, 1.0, np.exp(log)), 0.0)


def tie_groups(
    values: Array, queries: Integers, items: Integers, exclude_self: bool, owner: str
) -> Iterator[TieGroups]:
    """Sort the rows of the matrix in blocks, and yield the groups of ties of each block."""
    step = max(1, BLOCK_ELEMENTS // values.shape[1])
    for start in range(0, values.shape[0], step):
        block = values[start : start + step]
        own = np.arange(start, start + block.shape[0])[:, None]
        if exclude_self:
            others = np.arange(values.shape[1]) != own
            block = block[others].reshape(block.shape[0], -1)
        if block.dtype.kind == "f":
            _check_no_nan(block, own, exclude_self, owner)
        order = np.argsort(block, axis=1)
        block = np.take_along_axis(block, order, axis=1)
        if exclude_self:
            order += order >= own  # columns from the own one on moved up
        yield _groups_of(block, items[order] == queries[own])


def _groups_of(ordered: Array, relevant: NDArray[np.bool_]) -> TieGroups:
    """Return the groups of ties in sorted rows, ``(queries, items)`` both."""
    starts_here = np.ones(ordered.shape, dtype=bool)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=starts_here[:, 1:])
    starts = np.flatnonzero(starts_here)
    # Relevant items before each place of the flattened block; groups do not reach over the end of a row.
    running = np.zeros(ordered.size + 1, dtype=np.intp)
    np.cumsum(relevant, out=running[1:])
    ends = np.append(starts[1:], ordered.size)
    counts = running[ends] - running[starts]
    kept = counts > 0
    starts, size, counts = starts[kept], (ends - starts)[kept], counts[kept]
    query, before = np.divmod(starts, ordered.shape[1])
    return TieGroups(
        queries=ordered.shape[0],
        query=query,
        before=before,
        relevant_before=running[starts] - running[starts - before],
        size=size,
        relevant=counts,
    )


def _check_no_nan(block: Array, own: Integers, exclude_self: bool, owner: str) -> None:
    missing = np.isnan(block)
    if missing.any():
        row, column = (int(i) for i in np.argwhere(missing)[0])
        query = int(own[row, 0])
        place = column + int(exclude_self and column >= query)
        hint = "NaN cannot be ranked: look for NaN in the points or an overflow in the divergence."
        raise ValueError(checks.message(f"matrix of {owner}", "without NaN", f"matrix[{query}, {place}] = nan", hint))
