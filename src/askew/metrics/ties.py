r"""Groups of tied items in a ranking, and the mean of each score over all orders of the items within them.

Take a group of t tied items, r of them relevant, preceded by s items, q of them relevant. In a random order its i-th
place holds a relevant item with probability r / t; given that, (i - 1) (r - 1) / (t - 1) of the places before it in the
group hold one on average. With alpha = (r - 1) / (t - 1), or 0 for t = 1, its first m places add

.. math:: \frac rt \sum_{i=1}^m \frac{q + 1 + (i - 1) \alpha}{s + i}
          = \frac rt \Bigl[ (q + 1 - \alpha (s + 1)) \sum_{j=s+1}^{s+m} \frac1j + \alpha m \Bigr]

to the sum of precisions at relevant places, of which average precision is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from askew import checks
from askew.metrics.inputs import Array

# Entries of the matrix to sort at a time; temporaries take about 60 bytes for each.
BLOCK_ELEMENTS = 1 << 19

Integers = NDArray[np.intp]


@dataclass(frozen=True)
class TieGroups:
    """Groups of equal values that hold a relevant item, in order of query and value."""

    queries: int
    query: Integers  # the query of each group
    before: Integers  # s
    relevant_before: Integers  # q
    size: Integers  # t
    relevant: Integers  # r

    def total(self, of_groups: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum over the groups of each query, ``(groups,) -> (queries,)``."""
        return np.bincount(self.query, of_groups, self.queries).astype(np.float64, copy=False)

    def precisions(self, places: int) -> NDArray[np.float64]:
        """Return the expected sum of precisions at the relevant ones of the first places, for each query."""
        counted = np.clip(places - self.before, 0, self.size)
        reached = counted > 0
        s, q, t, r, m = (a[reached] for a in (self.before, self.relevant_before, self.size, self.relevant, counted))
        alpha = (r - 1) / np.maximum(t - 1, 1)
        # Sums of 1 / j over the places of each group, not differences of harmonic numbers, which cancel.
        ends = np.cumsum(m)
        places_of_groups = np.arange(m.sum()) - np.repeat(ends - m - s, m) + 1
        inverse = np.add.reduceat(1 / places_of_groups, ends - m) if m.size else np.zeros(0)
        result = np.zeros(self.query.size)
        result[reached] = r / t * ((q + 1 - alpha * (s + 1)) * inverse + alpha * m)
        return self.total(result)


def unscaled_scores(groups: TieGroups, k: int) -> dict[str, NDArray[np.float64]]:
    """Return sums and probabilities that the scores of a block of queries are made of, one entry for each query."""
    s, t, r = groups.before, groups.size, groups.relevant
    # An irrelevant item is in the wrong order if it precedes a relevant one, and half of it if they are tied.
    misordered = r * ((s - groups.relevant_before) + (t - r) / 2)
    last = int((s + t).max()) if t.size else 1
    # The first group that has a relevant item decides whether one is in the first k places.
    leading = np.flatnonzero(groups.relevant_before == 0)
    hit, first = np.zeros(groups.queries), np.zeros(groups.queries)
    hit[groups.query[leading]] = 1 - _none_drawn(t[leading], r[leading], np.clip(k - s[leading], 0, t[leading]))
    first[groups.query[leading]] = np.where(s[leading] == 0, r[leading] / t[leading], 0)
    return {
        "precisions": groups.precisions(last),
        "precisions at k": groups.precisions(k),
        "misordered": groups.total(misordered),
        "hit": hit,
        "first": first,
    }


def _none_drawn(t: Integers, r: Integers, m: Integers) -> NDArray[np.float64]:
    """Return C(t - r, m) / C(t, m), the probability that m of t items have none of the r relevant ones."""
    possible = t - r >= m
    left = np.where(possible, t - r - m, 0)
    log = gammaln(t - r + 1) - gammaln(left + 1) - gammaln(t + 1) + gammaln(t - m + 1)
    return np.where(possible, np.where(m == 0, 1.0, np.exp(log)), 0.0)


def tie_groups(
    values: Array, queries: Integers, items: Integers, exclude_self: bool, owner: str
) -> Iterator[TieGroups]:
    """Sort the rows of the matrix in blocks and yield the tie groups of each block."""
    step = max(1, BLOCK_ELEMENTS // values.shape[1])
    for start in range(0, values.shape[0], step):
        block = values[start : start + step]
        own = np.arange(start, start + block.shape[0])[:, None]
        if exclude_self:
            others = np.arange(values.shape[1]) != own
            block = block[others].reshape(block.shape[0], -1)
        if block.dtype.kind == "f" and np.isnan(block).any():
            row, column = (int(i) for i in np.argwhere(np.isnan(block))[0])
            place = f"matrix[{start + row}, {column + int(exclude_self and column >= start + row)}] = nan"
            hint = "NaN cannot be ranked: look for NaN in the points or an overflow in the divergence."
            raise ValueError(checks.message(f"matrix of {owner}", "without NaN", place, hint))
        order = np.argsort(block, axis=1)
        block = np.take_along_axis(block, order, axis=1)
        if exclude_self:
            order += order >= own  # columns after the diagonal have moved up by one
        yield _groups_of(block, items[order] == queries[own])


def _groups_of(ordered: Array, relevant: NDArray[np.bool_]) -> TieGroups:
    """Return the tie groups of sorted rows; values and relevance are ``(queries, items)``."""
    starts_here = np.ones(ordered.shape, dtype=bool)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=starts_here[:, 1:])
    starts = np.flatnonzero(starts_here)
    # Relevant items before each place of the flattened block; no group crosses the end of a row.
    running = np.zeros(ordered.size + 1, dtype=np.intp)
    np.cumsum(relevant, out=running[1:])
    ends = np.append(starts[1:], ordered.size)
    counts = running[ends] - running[starts]
    kept = counts > 0
    starts, size, counts = starts[kept], (ends - starts)[kept], counts[kept]
    query, before = np.divmod(starts, ordered.shape[1])
    return TieGroups(ordered.shape[0], query, before, running[starts] - running[starts - before], size, counts)
