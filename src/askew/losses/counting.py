r"""Count the active triplets per matrix entry without enumerating them.

The sum of :math:`\max(0, m + P_{ap} - P_{an})` over all triplets is linear in P as long as no triplet crosses zero. Its
slope is an integer at each entry:

.. math::
    G_{ap} = \#\{n : P_{an} < P_{ap} + m\}, \qquad G_{an} = -\#\{p : P_{an} < P_{ap} + m\}

There are sum |G| / 2 triplets above zero, and their sum is <G, P> + m sum |G| / 2. So the counts are both the value
and the gradient. Rows are independent and are counted in blocks.

A triplet counts if ``(P[a, p] - P[a, n]) + m > 0`` in floating point. For a given positive that is the same as
``P[a, n] < t`` for one number t, its threshold, which is P[a, p] + m but for the last bit.

A matrix may have the rows of the first points only, ``(m, n)``: point a is the anchor of row a.

On a CPU, float32 matrices are counted by one sort of packed integers: 24 ms for 1024 points, about what the matrix of
:class:`~askew.NeuralBregman` costs both ways. Two sorts and two searches by torch serve all else: they work on any
device and in compiled code, but take 140 ms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from askew._torch_compat import constant_when_compiled

Array = npt.NDArray[Any]

# Elements of a block of rows. The temporaries of numpy should stay in the cache.
SORTED_ELEMENTS = 1 << 14
BLOCK_ELEMENTS = 1 << 22
# In a sorted key, the bit that distinguishes thresholds from negatives; below it is the place in the block.
KIND = 1 << 27


def count_by_packed_sort(matrix: npt.NDArray[np.float32], labels: Array, margin: float) -> npt.NDArray[np.float32]:
    """Return G of a float32 matrix by one sort of each row, positives at their thresholds.

    Widened to float64, a float32 number leaves the low 29 bits free. They take the kind and the place of an entry:
    sorting integers is three times faster than an argsort. A threshold lies between numbers of float32 or on one, and
    loses no more than its distance to the last half step; the bit of the kind decides what is equal then.
    """
    anchors, n = matrix.shape
    counts = np.empty_like(matrix)
    shift = _just_below(margin)
    ranks = np.arange(1, n + 1, dtype=np.int32)
    step = max(1, SORTED_ELEMENTS // n)
    for first in range(0, anchors, step):
        block = matrix[first : first + step]
        rows = len(block)
        same = labels[first : first + rows, None] == labels
        value = np.add(block, 0.0, dtype=np.float64)  # no negative zeros
        np.add(value, shift, out=value, where=same)
        key = value.view(np.int64)
        if not value.min() >= 0:  # integers in the order of the numbers they stand for
            np.subtract(np.iinfo(np.int64).min, key, out=key, where=key < 0)
        elif value.max() == math.inf:  # an infinite positive is farther than all negatives but the infinite ones
            np.minimum(value, 1e300, out=value, where=same)
        # The anchor itself becomes the last of the negatives, which no triplet has.
        same.reshape(-1)[first :: n + 1] = False
        key.reshape(-1)[first :: n + 1] = np.iinfo(np.int64).max - 4 * KIND
        if margin <= 0:
            key += 2 * KIND - 1
        key &= -2 * KIND
        key |= np.arange(rows * n).reshape(rows, n)
        # A margin too small to be seen in the sum still counts ties, a margin of zero never does.
        key += (same if margin > 0 else ~same) * np.int64(KIND)
        key.sort(axis=1)
        place = key.astype(np.int32)  # the low half
        kind = place & KIND if margin > 0 else ~place & KIND
        kind >>= KIND.bit_length() - 1
        place &= KIND - 1
        passed = kind.cumsum(1, dtype=np.int32)  # thresholds up to here; the rest are negatives
        below = np.where(kind, ranks - passed, passed - passed[:, -1:])
        counts[first : first + step].reshape(-1)[place.reshape(-1)] = below.reshape(-1)
    return counts


@torch.no_grad()
def count_by_sorting(matrix: Tensor, labels: Tensor, margin: float, whole: bool = False) -> Tensor:
    """Return G by two sorts and two searches, on any device and of fixed shapes; ``whole`` forbids blocks of rows."""
    anchors, n = matrix.shape
    step = n if whole else max(1, BLOCK_ELEMENTS // n)
    ends = [(first, min(first + step, anchors)) for first in range(0, max(1, anchors), step)]
    blocks = [_sorted_rows(matrix, labels, margin, first, last) for first, last in ends]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def _sorted_rows(matrix: Tensor, labels: Tensor, margin: float, first: int, last: int) -> Tensor:
    block = matrix[first:last].contiguous()
    n = block.shape[1]
    same = labels[first:last, None] == labels
    index = torch.arange(n, device=block.device)
    anchor = index[first:last, None] == index
    negatives = block.masked_fill(same | anchor, math.inf)
    thresholds = _thresholds(block, margin).masked_fill(~same | anchor, -math.inf)
    below = torch.searchsorted(negatives.sort(1).values, thresholds)
    above = n - torch.searchsorted(thresholds.sort(1).values, negatives, right=True)
    return (below - above).to(block.dtype)


# ---------------------------------------------------------------------- thresholds


@constant_when_compiled
def _rounding(margin: float, single: bool) -> tuple[float, float, bool]:
    """Return the margin as the dtype has it, half the step below it, and whether its last bit is set.

    Half way between two numbers, rounding goes to the one whose last bit is not set.
    """
    rounded = np.float32(margin) if single else np.float64(margin)
    half = float((rounded - np.nextafter(rounded, -math.inf, dtype=rounded.dtype)) / 2)
    bits = int(rounded.view(np.int32 if single else np.int64))
    return float(rounded), half, bits % 2 == 1


def _just_below(margin: float) -> float:
    """Return the number that n - p must be below to be rounded below the margin in float32.

    If the number itself is on the other side than the sort puts it, one nearby is returned: nearer than float32 can
    be to it, and far enough for float64 to keep it apart when it is added to p.
    """
    rounded, half, odd = _rounding(margin, single=True)
    nudge = half * 2.0**-24
    if margin > 0:
        return rounded - half if odd else rounded - half - nudge
    return rounded - half + nudge if odd else rounded - half


def _thresholds(positives: Tensor, margin: float) -> Tensor:
    """Return the smallest t with (p - t) + margin <= 0 for each p: the sum of p and margin - half, rounded up."""
    margin, half, odd = _rounding(margin, positives.dtype == torch.float32)
    nearest = positives + margin
    # Rounding errors are computed without a wider dtype.
    added = nearest - positives
    rest = (positives - (nearest - added)) + (margin - added) - half
    level = nearest + rest
    rest = rest - (level - nearest)
    upper = torch.nextafter(level, torch.full_like(level, math.inf))
    return torch.where(positives.isinf(), positives, torch.where((rest >= 0) if odd else (rest > 0), upper, level))
