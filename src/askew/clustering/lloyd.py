"""Hard clustering with any Bregman divergence: Lloyd's algorithm as a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks
from askew.clustering.frame import Frame, Planes, check_inside
from askew.clustering.scanning import Scan, Sums
from askew.divergences import Bregman
from askew.encoders import as_points

__all__ = ["Clustering", "check_points_and_weights", "finite_planes", "kmeans", "lloyd", "nearest", "total"]

# Iterations without progress after which it is rounding alone that moves labels.
STRIKES = 2
# A cluster that a re-seeding leaves with less than this share of a weight is empty: the rest is rounding.
EMPTY_SHARE = 1e-9
# What rounding may leave of the objective as a sum; below it, it is computed point by point.
OBJECTIVE_RTOL = 1e-5


class Clustering(NamedTuple):
    """A hard clustering.

    Attributes
    ----------
    labels : Tensor
        Number of the cluster of each point, ``(n,)``, int32.
    centres : Tensor
        ``(k, dim)``.
    inertia : float
        The objective: the weighted sum of the divergences between points and their centres.
    n_iter : int
        Number of iterations.
    converged : bool
        Whether it stopped by itself, not at ``max_iter``.
    """

    labels: Tensor
    centres: Tensor
    inertia: float
    n_iter: int
    converged: bool


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

    In turn each point goes to its nearest centre, and each centre to where it is best: the mean of its points or,
    with ``dual``, the point whose gradient is the mean gradient. The objective never increases. An iteration is one
    matrix product, whatever the potential (:mod:`askew.clustering.frame`), so that a learned network costs what the
    squared Euclidean distance costs. A cluster without points moves to the point that is farthest from its centre.

    :class:`askew.BregmanKMeans` adds starts, restarts, encoders and mini-batches.

    Parameters
    ----------
    points
        ``(n, dim)``, float32 or float64, in main memory.
    centres
        First centres, ``(k, dim)``.
    divergence
        A Bregman divergence; in another dtype than the points, a copy of it is used.
    weights
        Weights of the points, ``(n,)``.
    max_iter
        Number of iterations at most.
    tol
        Stop when the squared distance that the centres have moved by is at most this in sum. Labels that do not
        change stop it in any case.
    dual
        Whether centres come first, as left centroids. This keeps the gradients of all points.

    References
    ----------
    Banerjee, Merugu, Dhillon, Ghosh: Clustering with Bregman divergences. JMLR 6, 2005.

    Examples
    --------
    >>> from askew.potentials import Burg
    >>> points = torch.tensor([[1.0], [2.0], [100.0], [200.0]])
    >>> found = kmeans(points, points[:2], Bregman(Burg(1)))
    >>> found.labels.tolist(), found.centres.flatten().tolist()
    ([0, 0, 1, 1], [1.5, 150.0])
    """
    if not isinstance(divergence, Bregman):
        must = "an askew.Bregman divergence"
        raise TypeError(checks.message("divergence of kmeans", must, type(divergence).__name__))
    array = check_points_and_weights(points, divergence, weights, dual, "kmeans")
    if (
        not isinstance(centres, Tensor)
        or centres.ndim != 2
        or centres.shape[1:] != points.shape[1:]
        or not len(centres)
    ):
        got = tuple(centres.shape) if isinstance(centres, Tensor) else type(centres).__name__
        raise ValueError(checks.message("centres of kmeans", f"a tensor of shape (k, {points.shape[1]})", got))
    centres = centres.detach().to(points.dtype)
    if len(centres) > len(points):
        must = f"at most as many as points, {len(points)}"
        raise ValueError(checks.message("centres of kmeans", must, len(centres)))
    check_inside(centres, divergence, False, "centres", "kmeans")
    checks.check_size(max_iter, "max_iter of kmeans")
    if not tol >= 0:
        raise ValueError(checks.message("tol of kmeans", "a number of at least 0", repr(tol)))
    return lloyd(Frame(points.detach(), divergence, array, dual), centres, array, max_iter, tol)


def check_points_and_weights(
    points: Tensor, divergence: Bregman, weights: Tensor | None, dual: bool, owner: str
) -> NDArray[np.float64] | None:
    """Return the weights as float64 if points and weights can be clustered."""
    checks.check_points(points, divergence.dim, "points", owner)
    if points.ndim != 2 or not len(points):
        raise ValueError(checks.message(f"points of {owner}", "of shape (n, dim) with n > 0", tuple(points.shape)))
    if points.device.type != "cpu":
        raise ValueError(checks.message(f"points of {owner}", "in main memory", points.device, "Take points.cpu()."))
    if points.dtype == torch.bfloat16:
        raise TypeError(
            checks.message(f"points of {owner}", "float32 or float64", points.dtype, "Take points.float().")
        )
    check_inside(points, divergence, dual, "points", owner)
    if weights is None:
        return None
    if not isinstance(weights, Tensor) or weights.shape != points.shape[:1]:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(checks.message(f"weights of {owner}", f"a tensor of shape ({len(points)},)", got))
    array: NDArray[np.float64] = weights.detach().to("cpu", torch.float64).numpy()
    if not (np.isfinite(array).all() and (array >= 0).all() and array.any()):
        must = "finite and not negative, and not all 0"
        bad = array[~(np.isfinite(array) & (array >= 0))]
        raise ValueError(checks.message(f"weights of {owner}", must, bad[0] if bad.size else "zeros"))
    return array


def lloyd(
    frame: Frame,
    centres: Tensor,
    weights: NDArray[np.float64] | None,
    max_iter: int,
    tol: float,
    moved: Callable[[int], object] = lambda iteration: None,
) -> Clustering:
    """Run Lloyd's algorithm on checked points; ``moved`` is called after each iteration."""
    n, k = frame.rows.shape[0], centres.shape[0]
    labels = np.full(n, -1, np.int32)
    planes = finite_planes(frame, centres)
    least, strikes = np.inf, 0
    settled = converged = False
    with Scan(frame, k, weights) as scan:
        for iteration in range(1, max_iter + 1):
            sums = scan.assign_and_sum(planes, labels)
            reseeded = _reseed(frame, centres, labels, weights, sums)
            means = torch.from_numpy(_means(sums))
            last = centres
            centres, planes = frame.best(means, last)
            finite_planes(frame, centres, planes)
            moved(iteration)
            # Labels that stay have centres that stay.
            settled = sums.changed == 0 and not reseeded
            # The objective, up to what does not depend on centres.
            features = means - torch.from_numpy(frame.shift)
            value = float((planes.at(features) * torch.from_numpy(sums.weights)).sum())
            strikes = 0 if value < least else strikes + 1
            least = min(least, value)
            shift = float((centres.double() - last.double()).square().sum())
            converged = settled or shift <= tol or strikes == STRIKES
            if converged:
                break
        if not settled:
            sums = scan.assign_and_sum(planes, labels)
    inertia = _objective(frame, centres, planes, labels, weights, sums)
    return Clustering(torch.from_numpy(labels), centres, inertia, iteration, converged)


def total(values: Tensor, weights: NDArray[np.float64] | None) -> float:
    """Return the weighted sum of the divergences of points, in float64."""
    if weights is None:
        return float(values.double().sum())
    own = as_points(weights)  # which may be read-only
    # A point without weight counts for nothing, even one that is infinitely far.
    return float(torch.where(own == 0, 0, values.double()) @ own)


def _objective(
    frame: Frame,
    centres: Tensor,
    planes: Planes,
    labels: NDArray[np.int32],
    weights: NDArray[np.float64] | None,
    sums: Sums,
) -> float:
    """Return the objective: the constants of the points, which all starts share, plus the planes at the sums.

    Where that would cancel, each point is evaluated against its own centre instead.
    """
    constant = total(frame.own, weights)
    features = torch.from_numpy(sums.rows - sums.weights[:, None] * frame.shift.astype(np.float64))
    rest = planes.offsets @ torch.from_numpy(sums.weights) - (planes.slopes * features).sum()
    value = constant + float(rest)
    if value * OBJECTIVE_RTOL > torch.finfo(frame.dtype).eps * constant:
        return value
    return total(frame.to_centres(centres, labels), weights)


def nearest(frame: Frame, centres: Tensor) -> NDArray[np.int32]:
    """Return the number of the nearest centre of each point, ``(n,)``."""
    labels = np.full(frame.rows.shape[0], -1, np.int32)
    with Scan(frame, centres.shape[0]) as scan:
        scan.assign(finite_planes(frame, centres), labels)
    return labels


def _means(sums: Sums) -> NDArray[np.float64]:
    """Return the mean row of each cluster; one that is empty all the same gets that of the largest."""
    weights = np.where(sums.weights > 0, sums.weights, 1)
    means = sums.rows / weights[:, None]
    means[sums.weights == 0] = means[sums.weights.argmax()]
    return np.asarray(means)


def _reseed(
    frame: Frame, centres: Tensor, labels: NDArray[np.int32], weights: NDArray[np.float64] | None, sums: Sums
) -> bool:
    """Give each cluster without points one of those that are farthest from their centres; change the sums to that.

    The objective falls by it: such a point has its own centre, and the mean of the others is better for them.
    """
    empty = np.flatnonzero(sums.weights == 0)
    if empty.size == 0:
        return False
    far = frame.to_centres(centres, labels).numpy()
    if weights is not None:
        far[weights == 0] = 0
    farthest = np.argpartition(far, -empty.size)[: -empty.size - 1 : -1]
    reseeded = False
    for cluster, point in zip(empty, farthest, strict=True):
        if far[point] <= 0:  # fewer different points than clusters
            continue
        weight = 1.0 if weights is None else weights[point]
        row = weight * frame.rows[point].astype(np.float64)
        before = labels[point]
        sums.rows[before] -= row
        sums.weights[before] -= weight
        if sums.weights[before] <= EMPTY_SHARE * weight:
            sums.weights[before] = 0
        sums.rows[cluster], sums.weights[cluster] = row, weight
        reseeded = True
    return reseeded


def finite_planes(frame: Frame, centres: Tensor, planes: Planes | None = None) -> Planes:
    """Return the planes of centres; raise if the dtype of the points cannot hold them."""
    planes = frame.planes(centres) if planes is None else planes
    if not all(torch.isfinite(part.to(frame.dtype)).all() for part in planes):
        hint = "Bring the features to a smaller scale first, or start at other centres."
        raise ValueError(
            checks.message(
                "the divergence between the centres of clusters and their mean", "finite", "inf or nan", hint
            )
        )
    return planes
