"""Points seen through a divergence: what clustering, seeding and assignment share.

Seen from one point c, the middle of the data, every Bregman divergence is a constant of the point plus a function
that is affine in it, one such function for each centre mu:

    D(x, mu) = D(x, c) + [D(c, mu) - <grad phi(mu) - grad phi(c), x - c>].

So the nearest of k centres needs one matrix product of dim + 1 columns whatever phi is, a learned network as well as
the squared Euclidean distance, and k evaluations of phi. The other side is the same in the gradients,

    D(mu, x) = D(c, x) + [D(mu, c) - <grad phi(x) - grad phi(c), mu - c>].
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks, potentials
from askew._parallel import over_blocks, slices
from askew.divergences import Bregman, Divergence, Euclidean, Mahalanobis, Reversed, Scaled
from askew.divergences.near import refine_near
from askew.potentials.inverse import widened

__all__ = ["Frame", "Planes", "as_bregman", "check_inside", "mean_row"]

Result = TypeVar("Result")

# Rows that a potential is evaluated at together: some thousand fill the processor and stay in its cache.
BLOCK_ROWS = 1 << 13
# Points of a cluster from which on it pays to bring them together.
ROWS_TO_GROUP = 64
# Entries of a block of divergences from points to candidates.
BLOCK_ENTRIES = 1 << 19
# Divergences that are drawn from need no more digits than this.
DRAWING_RTOL = 0.1
# How far a first centre on the boundary is drawn towards the middle: from the boundary most points are infinitely far.
DRAWN_INSIDE = 0.1


def as_bregman(divergence: Divergence, owner: str) -> Bregman:
    """Return a Bregman divergence that equals the given one, if there is one.

    Squared Euclidean and Mahalanobis distances and multiples of Bregman divergences have one.

    Examples
    --------
    >>> as_bregman(Euclidean(2), "clustering").potential
    Quadratic(dim=2, domain=real)
    """
    if isinstance(divergence, Bregman):
        return divergence
    if isinstance(divergence, Euclidean) and divergence.squared:
        return Bregman(potentials.Quadratic(_dim(divergence)))
    if isinstance(divergence, Mahalanobis) and divergence.squared:
        return Bregman(potentials.Quadratic(_dim(divergence), divergence.weight))
    if isinstance(divergence, Scaled):
        inner = as_bregman(divergence.divergence, owner)
        factor = divergence.log_factor.detach().exp()
        scaled = potentials.Scaled(inner.potential, factor.item())
        scaled.factor = factor  # in its own dtype, not rounded
        return Bregman(scaled, inner.pairwise_rtol)
    must = "a Bregman divergence, such as 'euclidean', 'kl' or one that learners make with 'nbd' or 'mahalanobis'"
    hint = "The mean of a cluster is its best centre for these only."
    if isinstance(divergence, Reversed):
        hint = "Give the divergence inside of it with dual=True."
    raise TypeError(checks.message(f"divergence of {owner}", must, type(divergence).__name__, hint))


def check_inside(points: Tensor, divergence: Bregman, dual: bool, name: str, owner: str) -> None:
    """Raise unless points are finite and inside the domain; on its boundary only where they are first in D."""
    potential = divergence.potential
    boundary = potential.boundary and not dual
    low, high = (float(bound) for bound in torch.aminmax(points))  # in contrast to comparisons, makes no copies
    if not (math.isfinite(low) and math.isfinite(high)):
        checks.check_finite(points, name, owner)
    domain = potential.domain
    if domain.sums_to_one or not (domain.lower < low and high < domain.upper):
        domain.check(points, name, owner, boundary=boundary)
    for block in points.split(BLOCK_ROWS):  # a potential of a linear image has bounds of its own
        potential.checked(block, boundary=boundary)


def mean_row(rows: NDArray[Any], weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Return the weighted mean of rows, ``(n, dim) -> (dim,)``, in float64 and in little memory."""
    if weights is None:
        mean: NDArray[np.float64] = rows.mean(0, dtype=np.float64)
        return mean
    total = sum(weights[part] @ rows[part].astype(np.float64) for part in slices(rows.shape[0], BLOCK_ROWS))
    return np.asarray(total / weights.sum())


class Planes(NamedTuple):
    """Centres as affine functions ``offsets - slopes @ features``, whose least one belongs to the nearest centre.

    Attributes
    ----------
    slopes : Tensor
        ``(k, dim)``, float64.
    offsets : Tensor
        ``(k,)``, float64.
    """

    slopes: Tensor
    offsets: Tensor

    def matrix(self, dtype: torch.dtype) -> NDArray[Any]:
        """Return ``(dim + 1, k)``: what features with a column of ones are multiplied by."""
        return torch.cat([-self.slopes.T, self.offsets[None]]).to(dtype).numpy()

    def at(self, features: Tensor) -> Tensor:
        """Return the value of each function at a row of its own, ``(k, dim) -> (k,)``."""
        return self.offsets - (self.slopes * features).sum(1)


class Frame:
    """Points and the middle from which a divergence between them is affine.

    Parameters
    ----------
    points
        ``(n, dim)``, float32 or float64, in main memory.
    divergence
        A Bregman divergence; a copy is taken where its dtype is another one.
    weights
        Weights of the points, ``(n,)``, float64; for the middle.
    dual
        Whether centres come first, D(centre, point). Then the gradients of all points are kept, which takes as much
        memory as the points do; else nothing of that size is kept.
    middle
        The point that everything is seen from, ``(1, dim)``; by default the mean of the points.

    Attributes
    ----------
    rows : array of shape (n, dim)
        What is averaged: the points, or their gradients less that of the middle.
    shift : array of shape (dim,)
        What is taken from the rows to have features: the middle, or zero.
    """

    def __init__(
        self,
        points: Tensor,
        divergence: Bregman,
        weights: NDArray[np.float64] | None = None,
        dual: bool = False,
        middle: Tensor | None = None,
    ) -> None:
        self.divergence = divergence
        self.potential = widened(divergence.potential, points.dtype)
        self.wide = widened(divergence.potential, torch.float64)
        self.dual = dual
        self.dtype = points.dtype
        if middle is None:
            middle = self.inside(torch.from_numpy(mean_row(points.numpy(), weights))[None])
        self.middle = middle.to(points.dtype)

        self.shift: NDArray[Any] = np.zeros_like(self.middle[0].numpy()) if dual else self.middle[0].numpy()
        self._see(points, self._differences(points) if dual else points.numpy())

    def other(self, points: Tensor) -> Frame:
        """Return other points, seen from the same middle through the same divergence."""
        other = copy.copy(self)
        other._see(points, self._differences(points) if self.dual else points.numpy())
        return other

    def part(self, indices: NDArray[np.intp]) -> Frame:
        """Return some of the points, seen from the same middle through the same divergence."""
        part = copy.copy(self)
        part._see(self.points[torch.from_numpy(indices)], self.rows[indices])
        return part

    def _see(self, points: Tensor, rows: NDArray[Any]) -> None:
        self.points = points
        self.rows = rows
        self._own: Tensor | None = None

    # ------------------------------------------------------------------ centres

    def inside(self, centres: Tensor) -> Tensor:
        """Return centres moved off the boundary, where a mean of points on the boundary can lie."""
        domain = self.potential.domain
        if not self.potential.boundary:
            return centres
        eps = torch.finfo(self.dtype).eps
        # Next to zero there are far smaller numbers than next to one.
        gaps = [eps**2 if bound == 0 else eps * abs(bound) for bound in (domain.lower, domain.upper)]
        low = domain.lower + gaps[0] if math.isfinite(domain.lower) else None
        high = domain.upper - gaps[1] if math.isfinite(domain.upper) else None
        return centres if low is None and high is None else centres.clamp(low, high)

    def starts(self, indices: NDArray[np.intp]) -> Tensor:
        """Return points as first centres, ``(k, dim)``."""
        chosen = self.points[torch.from_numpy(indices)]
        if not self.potential.boundary:
            return chosen
        drawn = torch.lerp(chosen, self.middle, DRAWN_INSIDE)
        domain = self.potential.domain
        outside = ((chosen <= domain.lower) | (chosen >= domain.upper)).any(1, keepdim=True)
        return self.inside(torch.where(outside, drawn, chosen))

    def planes(self, centres: Tensor) -> Planes:
        """Return centres ``(k, dim)`` as affine functions of the features."""
        middle = self.middle.double()

        def evaluate(part: slice) -> Planes:
            block = centres[part].double()
            h = block - middle
            if self.dual:
                return Planes(h, self.wide.compute_divergence(block, middle, h))
            slopes = self.wide.compute_gradient_difference(block, middle, h)
            return Planes(slopes, self.wide.compute_divergence(middle, block, -h))

        slopes, offsets = zip(*over_blocks(centres.shape[0], BLOCK_ROWS, evaluate), strict=True)
        return Planes(torch.cat(slopes), torch.cat(offsets))

    def _differences(self, points: Tensor) -> NDArray[Any]:
        """Return the gradients of points less that of the middle, ``(n, dim)``: the features of the dual."""
        potential = self.wide if points.dtype == torch.float64 else self.potential
        middle = self.middle.to(points.dtype)
        gradients = torch.empty_like(points)

        def differentiate(part: slice) -> None:
            block = points[part]
            gradients[part] = potential.compute_gradient_difference(block, middle, block - middle)

        over_blocks(points.shape[0], BLOCK_ROWS, differentiate)
        return gradients.numpy()

    def as_rows(self, centres: Tensor) -> Tensor:
        """Return what centres are the best ones for: the rows whose mean they are, ``(k, dim)``, float64."""
        return torch.from_numpy(self._differences(centres.double())) if self.dual else centres.double()

    def best(self, means: Tensor, last: Tensor) -> tuple[Tensor, Planes]:
        """Return the best centres of clusters, and their planes.

        Parameters
        ----------
        means
            Means of the rows of each cluster, ``(k, dim)``, float64.
        last
            The centres before, ``(k, dim)``: where a search for the next ones begins.
        """
        if not self.dual:
            centres = self.inside(means).to(last.dtype)
            return centres, self.planes(centres)
        middle = self.middle.double()

        def invert(part: slice) -> Tensor:
            before = last[part].double()
            centres = self.wide.compute_inverse_gradient(self.wide.compute_gradient(middle) + means[part], before).point
            # Rounding, or a potential that is flat, can leave a gradient without a point: its centre stays.
            found = torch.isfinite(centres).all(1) & self.wide.contains(centres)
            return torch.where(found[:, None], centres, before).to(last.dtype)

        centres = torch.cat(over_blocks(last.shape[0], BLOCK_ROWS, invert))
        new, old = self.planes(centres), self.planes(last)
        values, values_before = new.at(means), old.at(means)
        better = values <= values_before + 1e-12 * values_before.abs()
        centres = torch.where(better[:, None], centres, last)
        slopes = torch.where(better[:, None], new.slopes, old.slopes)
        return centres, Planes(slopes, torch.where(better, new.offsets, old.offsets))

    # ------------------------------------------------------------------ divergences

    @property
    def own(self) -> Tensor:
        """The constant of each point: its divergence to the middle, or from it, ``(n,)``."""
        if self._own is None:
            own = self.points.new_empty(self.points.shape[0])

            def evaluate(part: slice) -> None:
                block = self.points[part]
                if self.dual:
                    own[part] = self.potential.compute_divergence(self.middle, block, self.middle - block)
                else:
                    own[part] = self.potential.centred_value(block, self.middle)

            over_blocks(len(own), BLOCK_ROWS, evaluate)
            self._own = own
        return self._own

    def to_centres(self, centres: Tensor, labels: NDArray[np.int32]) -> Tensor:
        """Return the exact divergence of each point and the centre of its label, ``(n,)``."""
        n, k = self.points.shape[0], centres.shape[0]
        result = self.points.new_empty(n)
        numbers = torch.from_numpy(labels).long()

        def evaluate(part: slice) -> None:
            block, chosen = self.points[part], centres[numbers[part]]
            x, y = (chosen, block) if self.dual else (block, chosen)
            result[part] = self.potential.compute_divergence(x, y, x - y)

        if self.dual or n < ROWS_TO_GROUP * k or not any(True for _ in self.potential.parameters()):
            over_blocks(n, BLOCK_ROWS, evaluate)
            return self._without_nan(result, centres, numbers)
        # Cluster by cluster, a network is evaluated at its centre but once.
        groups = numbers.argsort().split(numbers.bincount(minlength=k).tolist())

        def evaluate_group(part: slice) -> None:
            for rows in groups[part.start].split(BLOCK_ROWS):
                result[rows] = self.potential.centred_value(self.points[rows], centres[part])

        over_blocks(k, 1, evaluate_group)
        return self._without_nan(result, centres, numbers)

    def _without_nan(self, values: Tensor, centres: Tensor, numbers: Tensor) -> Tensor:
        """Return values in which float64 has done what overflows in float32 on the way."""
        bad = values.isnan()
        if values.dtype == torch.float32 and bool(bad.any()):
            block, chosen = self.points[bad].double(), centres[numbers[bad]].double()
            x, y = (chosen, block) if self.dual else (block, chosen)
            values[bad] = self.wide.compute_divergence(x, y, x - y).to(values.dtype)
        return values

    def over_blocks(self, centres: Tensor, work: Callable[[slice, NDArray[Any]], Result]) -> list[Result]:
        """Return what ``work`` makes of blocks of points and their divergences to all centres, ``(rows, k)``.

        The divergences are good enough to draw points by: those of near pairs are exact, others are not refined.
        """
        slopes, offsets = (part.to(self.dtype) for part in self.planes(centres))
        steepest = slopes.norm(dim=1).amax()
        shift, constants = torch.from_numpy(self.shift), self.own

        def evaluate(part: slice) -> Result:
            features = torch.from_numpy(self.rows[part]) - shift
            points, own = self.points[part], constants[part]
            matrix = torch.addmm(own[:, None] + offsets, features, slopes.T, alpha=-1)

            def exact(i: Tensor, j: Tensor) -> Tensor:
                x, y = (centres[j], points[i]) if self.dual else (points[i], centres[j])
                return self.potential.compute_divergence(x, y, x - y)

            scale = own + features.norm(dim=1) * steepest
            return work(part, refine_near(matrix, scale, offsets.abs(), exact, DRAWING_RTOL).numpy())

        rows = max(1, BLOCK_ENTRIES // max(centres.shape[0], self.points.shape[1]))
        return over_blocks(self.points.shape[0], rows, evaluate)


def _dim(divergence: Divergence) -> int:
    if divergence.dim is None:
        raise TypeError(checks.message(f"dim of {type(divergence).__name__}", "a number", None))
    return divergence.dim
