"""Points seen from one centre, where a Bregman divergence is affine: shared by seeding, assignment and updates.

The nearest of k centroids needs one matrix product of dim + 1 columns and k evaluations of phi, whatever phi is
(:class:`askew.divergences.AffineForm`). With ``dual`` the centroid comes first, D(centroid, point), and the roles of
points and gradients change.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks
from askew._parallel import over_blocks, slices
from askew.divergences import Bregman
from askew.divergences.affine import BLOCK_ROWS
from askew.divergences.numerics import recompute_small

Result = TypeVar("Result")
Weights = NDArray[np.float64]

# Points of a cluster from which on it pays to gather them.
ROWS_TO_GROUP = 64
# Entries of a block of divergences from points to candidates.
BLOCK_ENTRIES = 1 << 19
# Relative error of divergences to sample by.
SAMPLING_RTOL = 0.1
# How far a first centroid on the boundary moves towards the centre: from the boundary most points are infinitely far.
INWARDS = 0.1


def check_inside(points: Tensor, divergence: Bregman, dual: bool, name: str, owner: str) -> None:
    """Raise unless points are finite and inside the domain; its boundary is allowed where they are first in D."""
    potential = divergence.potential
    boundary = potential.boundary and not dual
    low, high = (float(bound) for bound in torch.aminmax(points))  # unlike comparisons, makes no copies
    if not (math.isfinite(low) and math.isfinite(high)):
        checks.check_finite(points, name, owner)
    domain = potential.domain
    if domain.sums_to_one or not (domain.lower < low and high < domain.upper):
        domain.check(points, name, owner, boundary=boundary)
    for block in points.split(BLOCK_ROWS):  # a potential of a linear map has further bounds
        potential.checked(block, boundary=boundary)


def mean_row(rows: NDArray[Any], weights: Weights | None = None) -> NDArray[np.float64]:
    """Return the weighted mean of rows, ``(n, dim) -> (dim,)``, in float64 and in little memory."""
    if weights is None:
        return np.asarray(rows.mean(0, dtype=np.float64))
    total = sum(weights[part] @ rows[part].astype(np.float64) for part in slices(rows.shape[0], BLOCK_ROWS))
    return np.asarray(total / weights.sum())


class AffineCentroids(NamedTuple):
    """Centroids as affine functions ``offsets - slopes @ features``; the smallest belongs to the nearest centroid."""

    slopes: Tensor  # (k, dim), float64
    offsets: Tensor  # (k,), float64

    def matrix(self, dtype: torch.dtype) -> NDArray[Any]:
        """Return the factor ``(dim + 1, k)`` of features with a column of ones."""
        return torch.cat([-self.slopes.T, self.offsets[None]]).to(dtype).numpy()

    def at(self, features: Tensor) -> Tensor:
        """Return the value of each function at one row each, ``(k, dim) -> (k,)``."""
        return self.offsets - (self.slopes * features).sum(1)

    def check_finite(self, dtype: torch.dtype) -> AffineCentroids:
        """Return these functions; raise if the dtype of the points cannot hold them."""
        if not all(torch.isfinite(part.to(dtype)).all() for part in self):
            what = "the divergence between the centres of clusters and their mean"
            hint = "Bring the features to a smaller scale first, or start at other centres."
            raise ValueError(checks.message(what, "finite", "inf or nan", hint))
        return self


class AffineView:
    """Points and the centre from which the divergence between them and centroids is affine.

    ``rows``, ``(n, dim)``, are what is averaged: the points or, with ``dual``, their gradients minus that of the
    centre, which take as much memory as the points. Rows minus the ``shift`` are the features of the affine functions.
    The centre, ``(1, dim)``, is the weighted mean of the points by default.
    """

    def __init__(
        self,
        points: Tensor,
        divergence: Bregman,
        weights: Weights | None = None,
        dual: bool = False,
        centre: Tensor | None = None,
    ) -> None:
        self.divergence, self.dual, self.dtype = divergence, dual, points.dtype
        if centre is None:
            centre = self.inside(torch.from_numpy(mean_row(points.numpy(), weights))[None].to(self.dtype))
        form = divergence.affine(centre.to(self.dtype))
        self.form, self.wide = form.to(self.dtype), form.to(torch.float64)
        self.centre, self.potential = self.form.centre, self.form.potential
        self.shift: NDArray[Any] = self.centre[0].numpy() if not dual else np.zeros_like(self.centre[0].numpy())
        self.points, self.rows = points, self._rows(points)

    def subset(self, indices: NDArray[np.intp]) -> AffineView:
        """Return some of the points seen from the same centre."""
        part = copy.copy(self)
        part.points, part.rows = self.points[torch.from_numpy(indices)], self.rows[indices]
        part.__dict__.pop("base", None)
        return part

    def _rows(self, points: Tensor) -> NDArray[Any]:
        if not self.dual:
            return points.numpy()
        form = self.wide if points.dtype == torch.float64 else self.form
        return _in_blocks(torch.empty_like(points), lambda part: form.slopes(points[part])).numpy()

    def inside(self, centroids: Tensor) -> Tensor:
        """Return centroids moved off the boundary, where a mean of points on the boundary can lie."""
        potential = self.divergence.potential
        return potential.domain.inside(centroids) if potential.boundary else centroids

    def initial_centroids(self, indices: NDArray[np.intp]) -> Tensor:
        """Return points as first centroids, ``(k, dim)``."""
        chosen = self.points[torch.from_numpy(indices)]
        if not self.potential.boundary:
            return chosen
        return self.inside(self.potential.domain.inside(chosen, towards=self.centre, margin=INWARDS))

    def affine(self, centroids: Tensor) -> AffineCentroids:
        """Return centroids ``(k, dim)`` as affine functions of the features."""

        def evaluate(part: slice) -> AffineCentroids:
            block = centroids[part].double()
            if self.dual:
                return AffineCentroids(block - self.wide.centre, self.wide.exact(block, self.wide.centre))
            return AffineCentroids(self.wide.slopes(block), self.wide.offsets(block))

        slopes, offsets = zip(*over_blocks(centroids.shape[0], BLOCK_ROWS, evaluate), strict=True)
        return AffineCentroids(torch.cat(slopes), torch.cat(offsets))

    def to_mean_coordinates(self, centroids: Tensor) -> Tensor:
        """Return the rows of which centroids are the best ones, ``(k, dim)``, float64."""
        return torch.from_numpy(self._rows(centroids.double()))

    def update_centroids(self, means: Tensor, last: Tensor) -> tuple[Tensor, AffineCentroids]:
        """Return the best centroids of clusters with these mean rows (float64), as points and as affine functions.

        The search for left centroids begins at the last ones.
        """
        if not self.dual:
            centroids = self.inside(means.to(last.dtype))
            return centroids, self.affine(centroids)
        wide, centre = self.wide.potential, self.wide.centre

        def invert(part: slice) -> Tensor:
            before = last[part].double()
            candidates = wide.compute_inverse_gradient(wide.compute_gradient(centre) + means[part], before).point
            # Rounding, or a flat potential, can leave a gradient without a point: its centroid stays.
            solved = torch.isfinite(candidates).all(1) & wide.contains(candidates)
            return torch.where(solved[:, None], candidates, before).to(last.dtype)

        centroids = torch.cat(over_blocks(last.shape[0], BLOCK_ROWS, invert))
        new, old = self.affine(centroids), self.affine(last)
        values, values_before = new.at(means), old.at(means)
        better = values <= values_before + 1e-12 * values_before.abs()
        slopes = torch.where(better[:, None], new.slopes, old.slopes)
        offsets = torch.where(better, new.offsets, old.offsets)
        return torch.where(better[:, None], centroids, last), AffineCentroids(slopes, offsets)

    def _divergences(self, points: Tensor, centroids: Tensor) -> Tensor:
        """Return exact divergences row by row; :meth:`_without_nan` repairs what overflows, outside of threads."""
        x, y = (centroids, points) if self.dual else (points, centroids)
        return self.potential.compute_divergence(x, y, x - y)

    @cached_property
    def base(self) -> Tensor:
        """The constant of each point: its divergence to the centre, or from it, ``(n,)``."""
        to_centre = (lambda block: self._divergences(block, self.centre)) if self.dual else self.form.base
        return _in_blocks(self.points.new_empty(len(self.points)), lambda part: to_centre(self.points[part]))

    def divergences_to(self, centroids: Tensor, labels: NDArray[np.int32]) -> Tensor:
        """Return the exact divergence between each point and the centroid of its label, ``(n,)``."""
        points, k = self.points, len(centroids)
        result = points.new_empty(len(points))
        numbers = torch.from_numpy(labels).long()
        if self.dual or len(points) < ROWS_TO_GROUP * k or not any(True for _ in self.potential.parameters()):
            _in_blocks(result, lambda part: self._divergences(points[part], centroids[numbers[part]]))
            return self._without_nan(result, centroids, numbers)
        # Cluster by cluster, a network is evaluated at each centroid only once.
        groups = numbers.argsort().split(numbers.bincount(minlength=k).tolist())

        def evaluate(part: slice) -> None:
            seen = self.potential.seen_from(centroids[part])
            for rows in groups[part.start].split(BLOCK_ROWS):
                result[rows] = seen.value(points[rows])

        over_blocks(k, 1, evaluate)
        return self._without_nan(result, centroids, numbers)

    def _without_nan(self, values: Tensor, centroids: Tensor, numbers: Tensor) -> Tensor:
        """Return values with those that overflow in float32 on the way recomputed in float64."""
        bad = values.isnan()
        if values.dtype == torch.float32 and bool(bad.any()):
            points, chosen = self.points[bad].double(), centroids[numbers[bad]].double()
            values[bad] = self.wide.exact(*((chosen, points) if self.dual else (points, chosen))).to(values.dtype)
        return values

    def over_divergences(self, centroids: Tensor, work: Callable[[slice, NDArray[Any]], Result]) -> list[Result]:
        """Return ``work(rows, divergences)`` of blocks of points, with their divergences to all centroids.

        The divergences, ``(rows, k)``, are accurate enough to sample by: those of near pairs are exact.
        """
        slopes, offsets = (part.to(self.dtype) for part in self.affine(centroids))
        steepest = slopes.norm(dim=1).amax()
        shift, constants = torch.from_numpy(self.shift), self.base

        def evaluate(part: slice) -> Result:
            features = torch.from_numpy(self.rows[part]) - shift
            points, base = self.points[part], constants[part]
            matrix = torch.addmm(base[:, None] + offsets, features, slopes.T, alpha=-1)

            def exact(i: Tensor, j: Tensor) -> Tensor:
                return self._divergences(points[i], centroids[j])

            scale = base + features.norm(dim=1) * steepest
            return work(part, recompute_small(matrix, scale, offsets.abs(), exact, SAMPLING_RTOL).numpy())

        rows = max(1, BLOCK_ENTRIES // max(centroids.shape[0], self.points.shape[1]))
        return over_blocks(self.points.shape[0], rows, evaluate)


def _in_blocks(result: Tensor, values: Callable[[slice], Tensor]) -> Tensor:
    def fill(part: slice) -> None:
        result[part] = values(part)

    over_blocks(result.shape[0], BLOCK_ROWS, fill)
    return result
