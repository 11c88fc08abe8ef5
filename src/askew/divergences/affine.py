r"""A Bregman divergence seen from a fixed centre: one inner product, written once.

.. math:: D(x, y) = D(x, c) + D(c, y) - \langle \nabla\phi(y) - \nabla\phi(c),\, x - c \rangle

Seen from c, the divergence is a constant of each point and a product of their features. So all pairs are one matrix
product, the nearest item is the one with the largest inner product, and the nearest of k centroids needs k evaluations
of phi whatever phi is. The numbers are small near the centre, and so are their rounding errors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from askew.divergences.numerics import recompute_small
from askew.divergences.precision import without_nan
from askew.potentials import Potential
from askew.potentials.inverse import widened

# Rows to evaluate a potential at together: a few thousand fill the processor and stay in its cache.
BLOCK_ROWS = 1 << 13


class Planes(NamedTuple):
    """Second points as affine functions of the first one: ``S(x, y) = base(x) + offsets - slopes @ (x - c)``.

    Examples
    --------
    >>> import askew, torch
    >>> form = askew.make("euclidean", 2).affine(torch.zeros(1, 2))
    >>> planes = form.planes(torch.eye(2))
    >>> planes.slopes.tolist(), planes.offsets.tolist()
    ([[2.0, 0.0], [0.0, 2.0]], [1.0, 1.0])
    """

    slopes: Tensor  # (m, dim)
    offsets: Tensor  # S(c, y), (m,)
    base: Tensor  # S(y, c), (m,), from the same pass


class AffineForm:
    r"""S(x, y) as a constant of x, a constant of y and the inner product of their features.

    .. math:: S(x, y) = \text{base}(x) + \text{offset}(y) - \langle x - c,\, \text{slope}(y) \rangle

    For a Bregman divergence S = D, base(x) = D(x, c), offset(y) = D(c, y) and slope(y) = grad phi(y) - grad phi(c).
    A subclass may change the slopes; S(y, y) = 0 then gives the offsets. :meth:`left` and :meth:`right` are what each
    side brings to the product: search stores one and queries with the other, k-means has points on one side and
    centroids on the other.

    Parameters
    ----------
    potential
        phi.
    centre
        c, ``(1, dim)``, inside the domain, in the dtype of the potential.

    Examples
    --------
    >>> from askew.potentials import NegativeEntropy
    >>> form = AffineForm(NegativeEntropy(2), torch.tensor([[1.0, 2.0]]))
    >>> x, y = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 3.0]])
    >>> (features, base), (slopes, offsets) = form.left(x), form.right(y)
    >>> torch.allclose(base[:, None] + offsets - features @ slopes.T, form.exact(x, y))
    True
    """

    # Whether S may be negative.
    signed = False

    def __init__(self, potential: Potential, centre: Tensor) -> None:
        self.potential = potential
        self.centre = centre
        self._seen = potential.seen_from(centre)

    def to(self, dtype: torch.dtype) -> AffineForm:
        """Return this form in another dtype; the potential is copied unless it has this dtype."""
        return type(self)(widened(self.potential, dtype), self.centre.to(dtype))

    def base(self, x: Tensor) -> Tensor:
        """Return S(x, c), the constant of first points: ``(n, dim) -> (n,)``."""
        return self._seen.value(x)

    def slopes(self, y: Tensor) -> Tensor:
        """Return the features of second points: ``(m, dim) -> (m, dim)``."""
        return self.potential.compute_gradient_difference(y, self.centre, y - self.centre)

    def offsets(self, y: Tensor) -> Tensor:
        """Return S(c, y), the constant of second points, without cancellation: ``(m, dim) -> (m,)``."""
        return self.exact(self.centre, y)

    def planes(self, y: Tensor) -> Planes:
        """Return slopes, offsets and base of second points from one pass."""
        base, slopes = self._seen.change(y)
        return Planes(slopes, (slopes * (y - self.centre)).sum(-1) - base, base)

    def left(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and constants of first points: ``(n, dim) -> (n, dim), (n,)``."""
        return x - self.centre, self.base(x)

    def right(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and constants of second points: ``(m, dim) -> (m, dim), (m,)``."""
        return self.planes(y)[:2]

    def exact(self, x: Tensor, y: Tensor) -> Tensor:
        """Return S(x, y) row by row in the form that does not cancel; what overflows on the way is redone in float64.

        Shapes are ``(..., dim), (..., dim) -> (...)``, with broadcasting.
        """
        return without_nan(_divergence(self.potential, x, y), self.potential, _divergence, x, y)

    def pairwise(self, x: Tensor, y: Tensor, rtol: float) -> Tensor:
        """Return S for all pairs, none below 0 unless it is signed: ``(n, dim), (m, dim) -> (n, m)``, neither empty.

        One matrix product; entries whose relative error would be above ``rtol`` are recomputed by :meth:`exact`.
        Gradients come through the product for all pairs.
        """
        slopes, offsets, base_y = self.planes(y)
        base_x = base_y if x is y else self.base(x)
        differences = x - self.centre
        ones_x, ones_y = differences.new_ones(x.shape[0], 1), differences.new_ones(y.shape[0], 1)
        left = torch.cat([differences, base_x[:, None], ones_x], 1)
        right = torch.cat([-slopes, ones_y, offsets[:, None]], 1)

        def exact(i: Tensor, j: Tensor) -> Tensor:
            first, second = x[i], y[j]
            # A point and itself need no evaluation; in the matrix of a training batch these are the near pairs.
            apart = (first - second).any(1).nonzero()[:, 0]
            values = first.new_zeros(len(first))
            if apart.numel():
                values[apart] = self.exact(first[apart], second[apart])
            return values

        with torch.no_grad():
            # Rounding of the product is bounded by the sizes of what is multiplied and added.
            scale_x = base_x + differences.norm(dim=1) * slopes.norm(dim=1).amax()
            scale_y = offsets.abs() + base_y
        return recompute_small(left @ right.t(), scale_x, scale_y, exact, rtol, self.signed)


def _divergence(potential: Potential, x: Tensor, y: Tensor) -> Tensor:
    return potential.compute_divergence(x, y, x - y)
