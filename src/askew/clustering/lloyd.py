"""Hard clustering with any Bregman divergence: Lloyd's algorithm as a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks
from askew.clustering.scan import Scan, Sums
from askew.clustering.view import AffineCentroids, AffineView, Weights, check_inside
from askew.divergences import Bregman
from askew.encoders import as_points

# Iterations without progress after which only rounding moves labels.
STRIKES = 2
# A cluster that a re-seeding leaves with less than this share of a weight is empty: the rest is rounding.
EMPTY_SHARE = 1e-9
# Relative error that rounding may leave in the objective as a sum; above it, it is computed point by point.
OBJECTIVE_RTOL = 1e-5


class Clustering(NamedTuple):
    """A hard clustering: labels ``(n,)`` (int32) and centres ``(k, dim)``, and how it was found.

    Examples
    --------
    >>> from askew.potentials import Quadratic
    >>> points = torch.tensor([[0.0], [0.2], [5.0]])
    >>> kmeans(points, points[[0, 2]], Bregman(Quadratic(1))).labels.tolist()
    [0, 0, 1]
    """

    labels: Tensor
    centres: Tensor
    inertia: float  # the objective: the weighted sum of the divergences between points and their centres
    n_iter: int
    converged: bool  # whether it stopped before max_iter


def kmeans(
    points: Tensor,
    centres: Tensor,
    divergence: Bregman,
    weights: Tensor | None = None,
    max_iter: int = 300,
    tol: float = 0.0,
    dual: bool = False,
) -> Clustering:
    r"""Cluster points around centres by Lloyd's algorithm, for any Bregman divergence.

    .. math:: \min_{\mu, l} \sum_i w_i D(x_i, \mu_{l_i}) \qquad (\text{or } D(\mu_{l_i}, x_i) \text{ with } dual)

    Each point goes to its nearest centre, then each centre to where it is best: the mean of its points or, with
    ``dual``, the point whose gradient is the mean gradient. The objective never increases. An iteration is one matrix
    product whatever the potential (:mod:`askew.clustering.view`), so a learned network costs as much as the squared
    Euclidean distance. A cluster without points moves to the point that is farthest from its centre.

    :class:`askew.BregmanKMeans` adds seeding, restarts, encoders and mini-batches.

    Parameters
    ----------
    points, weights
        ``(n, dim)``, float32 or float64, in main memory; their weights, ``(n,)``.
    centres
        First centres, ``(k, dim)``.
    divergence
        A Bregman divergence; copied if it has another dtype than the points.
    max_iter, tol
        Stop after this many iterations, or when the sum of the squared distances that the centres move is at most
        ``tol``. Labels that do not change stop it in any case.
    dual
        Whether centres come first, as left centroids. This keeps the gradients of all points.

    Examples
    --------
    >>> from askew.potentials import Burg
    >>> points = torch.tensor([[1.0], [2.0], [100.0], [200.0]])
    >>> clustering = kmeans(points, points[:2], Bregman(Burg(1)))
    >>> clustering.labels.tolist(), clustering.centres.flatten().tolist()
    ([0, 0, 1, 1], [1.5, 150.0])
    """
    if not isinstance(divergence, Bregman):
        must = "an askew.Bregman divergence"
        raise TypeError(checks.message("divergence of kmeans", must, type(divergence).__name__))
    checks.check_points(points, divergence.dim, "points", "kmeans")
    if points.ndim != 2 or not len(points):
        raise ValueError(checks.message("points of kmeans", "of shape (n, dim) with n > 0", tuple(points.shape)))
    if points.device.type != "cpu" or points.dtype not in (torch.float32, torch.float64):
        must, given = "float32 or float64 in main memory", f"{points.dtype} on {points.device}"
        raise TypeError(checks.message("points of kmeans", must, given, "Take points.float().cpu()."))
    check_inside(points, divergence, dual, "points", "kmeans")
    array = None if weights is None else _checked_weights(weights, len(points))
    dim = points.shape[1]
    if not isinstance(centres, Tensor) or centres.ndim != 2 or centres.shape[1] != dim or not len(centres):
        got = tuple(centres.shape) if isinstance(centres, Tensor) else type(centres).__name__
        raise ValueError(checks.message("centres of kmeans", f"a tensor of shape (k, {dim})", got))
    centres = centres.detach().to(points.dtype)
    if len(centres) > len(points):
        must = f"at most as many as points, {len(points)}"
        raise ValueError(checks.message("centres of kmeans", must, len(centres)))
    check_inside(centres, divergence, False, "centres", "kmeans")
    checks.check_size(max_iter, "max_iter of kmeans")
    if not tol >= 0:
        raise ValueError(checks.message("tol of kmeans", "a number of at least 0", repr(tol)))
    return lloyd(AffineView(points.detach(), divergence, array, dual), centres, array, max_iter, tol)


def _checked_weights(weights: object, n: int) -> Weights:
    if not isinstance(weights, Tensor) or weights.shape != (n,):
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(checks.message("weights of kmeans", f"a tensor of shape ({n},)", got))
    array: Weights = weights.detach().to("cpu", torch.float64).numpy()
    bad = array[~(np.isfinite(array) & (array >= 0))]
    if bad.size or not array.any():
        must = "finite and not negative, and not all 0"
        raise ValueError(checks.message("weights of kmeans", must, bad[0] if bad.size else "zeros"))
    return array


class Descent(NamedTuple):
    """Where Lloyd's algorithm has arrived."""

    centroids: Tensor
    affine: AffineCentroids
    sums: Sums  # of the last assignment
    n_iter: int
    converged: bool


def descend(
    view: AffineView,
    centroids: Tensor,
    assign: Callable[[Tensor, AffineCentroids], Sums],
    max_iter: int,
    tol: float,
    moved: Callable[[int], object],
) -> Descent:
    """Alternate assignment and update, wherever the points are: ``assign`` returns the sums of the clusters.

    ``moved`` is called after each iteration.
    """
    affine = view.affine(centroids).check_finite(view.dtype)
    lowest, strikes = np.inf, 0
    for iteration in range(1, max_iter + 1):
        sums = assign(centroids, affine)
        means = torch.from_numpy(sums.means())
        last = centroids
        centroids, affine = view.update_centroids(means, last)
        affine.check_finite(view.dtype)
        moved(iteration)
        # The objective, up to a constant of the points: no point has to be evaluated.
        features = means - torch.from_numpy(view.shift)
        value = float((affine.at(features) * torch.from_numpy(sums.weights)).sum())
        strikes = 0 if value < lowest else strikes + 1
        lowest = min(lowest, value)
        shift = float((centroids.double() - last.double()).square().sum())
        converged = sums.changed == 0 or shift <= tol or strikes == STRIKES
        if converged:
            break
    return Descent(centroids, affine, sums, iteration, converged)


def lloyd(
    view: AffineView,
    centroids: Tensor,
    weights: Weights | None,
    max_iter: int,
    tol: float,
    moved: Callable[[int], object] = lambda iteration: None,
) -> Clustering:
    """Run Lloyd's algorithm on checked points in memory."""
    labels = np.full(view.rows.shape[0], -1, np.int32)
    with Scan(view, centroids.shape[0], weights) as scan:

        def assign(centroids: Tensor, affine: AffineCentroids) -> Sums:
            sums = scan.assign_and_sum(affine, labels)
            empty = int(np.count_nonzero(sums.weights == 0))
            return reseed(sums, farthest(view, centroids, labels, weights, empty)) if empty else sums

        end = descend(view, centroids, assign, max_iter, tol, moved)
        # Labels that have not changed are those of the last centroids.
        sums = scan.assign_and_sum(end.affine, labels) if end.sums.changed else end.sums
    inertia = _objective(view, end, labels, weights, sums)
    return Clustering(torch.from_numpy(labels), end.centroids, inertia, end.n_iter, end.converged)


def total(values: Tensor, weights: Weights | None) -> float:
    """Return the weighted sum of the divergences of points, in float64."""
    if weights is None:
        return float(values.double().sum())
    weight = as_points(weights)  # which may be read-only
    # A point without weight counts for nothing, even one that is infinitely far.
    return float(torch.where(weight == 0, 0, values.double()) @ weight)


def _objective(view: AffineView, end: Descent, labels: NDArray[np.int32], weights: Weights | None, sums: Sums) -> float:
    """Return the objective as a sum over clusters or, where that would cancel, over points."""
    constant = total(view.base, weights)
    features = torch.from_numpy(sums.rows - sums.weights[:, None] * view.shift.astype(np.float64))
    rest = end.affine.offsets @ torch.from_numpy(sums.weights) - (end.affine.slopes * features).sum()
    value = constant + float(rest)
    if value * OBJECTIVE_RTOL > torch.finfo(view.dtype).eps * constant:
        return value
    return total(view.divergences_to(end.centroids, labels), weights)


def nearest(view: AffineView, centroids: Tensor) -> NDArray[np.int32]:
    """Return the number of the nearest centroid of each point, ``(n,)``."""
    labels = np.full(view.rows.shape[0], -1, np.int32)
    with Scan(view, centroids.shape[0]) as scan:
        scan.assign(view.affine(centroids).check_finite(view.dtype), labels)
    return labels


class FarPoints(NamedTuple):
    """Points that are far from their centroids."""

    values: NDArray[Any]  # divergences, (m,)
    rows: NDArray[np.float64]  # (m, dim)
    clusters: NDArray[np.int32]
    weights: Weights


def farthest(
    view: AffineView, centroids: Tensor, labels: NDArray[np.int32], weights: Weights | None, count: int
) -> FarPoints:
    """Return the points that are farthest from the centroids of their labels."""
    values = view.divergences_to(centroids, labels).numpy()
    weights = np.ones(len(values)) if weights is None else weights
    values = np.where(weights > 0, values, 0)
    count = min(count, len(values))
    chosen = np.argpartition(values, -count)[: -count - 1 : -1]
    return FarPoints(values[chosen], view.rows[chosen].astype(np.float64), labels[chosen], weights[chosen])


def reseed(sums: Sums, far: FarPoints) -> Sums:
    """Return the sums after each cluster without points has got one of the far points.

    This lowers the objective: the point becomes a centroid, and the mean of the others is better for them.
    """
    rows, weights, changed = sums.rows.copy(), sums.weights.copy(), sums.changed
    for cluster, value, row, before, weight in zip(np.flatnonzero(weights == 0), *far, strict=False):
        if value <= 0:  # fewer distinct points than clusters
            continue
        rows[before] -= weight * row
        weights[before] -= weight
        if weights[before] <= EMPTY_SHARE * weight:
            weights[before] = 0
        rows[cluster], weights[cluster] = weight * row, weight
        changed += 1
    return Sums(rows, weights, changed)
