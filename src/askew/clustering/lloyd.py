"""Hard clustering with any Bregman divergence: Lloyd's algorithm as a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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
    """A hard clustering: labels ``(n,)`` (int32) and centres ``(k, dim)``, and how it was found."""

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
        Stop after so many iterations, or when the sum of the squared distances that the centres move is at most
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
    array = check_points_and_weights(points, divergence, weights, dual, "kmeans")
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


def check_points_and_weights(
    points: Tensor, divergence: object, weights: Tensor | None, dual: bool, owner: str
) -> Weights | None:
    """Return the weights as float64 if points and weights can be clustered with the divergence."""
    if not isinstance(divergence, Bregman):
        must = "an askew.Bregman divergence"
        raise TypeError(checks.message(f"divergence of {owner}", must, type(divergence).__name__))
    checks.check_points(points, divergence.dim, "points", owner)
    if points.ndim != 2 or not len(points):
        raise ValueError(checks.message(f"points of {owner}", "of shape (n, dim) with n > 0", tuple(points.shape)))
    if points.device.type != "cpu":
        raise ValueError(checks.message(f"points of {owner}", "in main memory", points.device, "Take points.cpu()."))
    if points.dtype == torch.bfloat16:
        hint = "Take points.float()."
        raise TypeError(checks.message(f"points of {owner}", "float32 or float64", points.dtype, hint))
    check_inside(points, divergence, dual, "points", owner)
    if weights is None:
        return None
    if not isinstance(weights, Tensor) or weights.shape != points.shape[:1]:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(checks.message(f"weights of {owner}", f"a tensor of shape ({len(points)},)", got))
    array: Weights = weights.detach().to("cpu", torch.float64).numpy()
    bad = array[~(np.isfinite(array) & (array >= 0))]
    if bad.size or not array.any():
        must = "finite and not negative, and not all 0"
        raise ValueError(checks.message(f"weights of {owner}", must, bad[0] if bad.size else "zeros"))
    return array


class Descent(NamedTuple):
    """Where Lloyd's algorithm has arrived."""

    centroids: Tensor
    affine: AffineCentroids
    sums: Sums  # of the last assignment
    n_iter: int
    settled: bool  # labels have not changed, so neither have centroids
    converged: bool


def descend(
    view: AffineView,
    centroids: Tensor,
    assign: Callable[[Tensor, AffineCentroids], tuple[Sums, bool]],
    max_iter: int,
    tol: float,
    moved: Callable[[int], object],
) -> Descent:
    """Alternate assignment and update, wherever the points are.

    ``assign`` returns the sums of the clusters, and whether no label has changed; ``moved`` is called after each
    iteration.
    """
    affine = view.affine(centroids).check_finite(view.dtype)
    lowest, strikes = np.inf, 0
    for iteration in range(1, max_iter + 1):
        sums, settled = assign(centroids, affine)
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
        converged = settled or shift <= tol or strikes == STRIKES
        if converged:
            break
    return Descent(centroids, affine, sums, iteration, settled, converged)


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

        def assign(centroids: Tensor, affine: AffineCentroids) -> tuple[Sums, bool]:
            sums = scan.assign_and_sum(affine, labels)
            reseeded = _reseed(view, centroids, labels, weights, sums)
            return sums, sums.changed == 0 and not reseeded

        end = descend(view, centroids, assign, max_iter, tol, moved)
        sums = end.sums if end.settled else scan.assign_and_sum(end.affine, labels)
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


def _reseed(
    view: AffineView, centroids: Tensor, labels: NDArray[np.int32], weights: Weights | None, sums: Sums
) -> bool:
    """Give each cluster without points one of the points that are farthest from their centroids; update the sums.

    This lowers the objective: the point becomes a centroid, and the mean of the others is better for them.
    """
    empty = np.flatnonzero(sums.weights == 0)
    if empty.size == 0:
        return False
    far = view.divergences_to(centroids, labels).numpy()
    if weights is not None:
        far[weights == 0] = 0
    farthest = np.argpartition(far, -empty.size)[: -empty.size - 1 : -1]
    reseeded = False
    for cluster, point in zip(empty, farthest, strict=True):
        if far[point] <= 0:  # fewer distinct points than clusters
            continue
        weight = 1.0 if weights is None else weights[point]
        row = weight * view.rows[point].astype(np.float64)
        before = labels[point]
        sums.rows[before] -= row
        sums.weights[before] -= weight
        if sums.weights[before] <= EMPTY_SHARE * weight:
            sums.weights[before] = 0
        sums.rows[cluster], sums.weights[cluster] = row, weight
        reseeded = True
    return reseeded
