"""Clustering of a few points at a time: mini-batches of a large table, and tables that come piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.clustering.frame import Frame
from askew.clustering.lloyd import Clustering, finite_planes, nearest, total
from askew.clustering.scanning import Scan
from askew.clustering.starts import draw, order_of

__all__ = ["Absorbed", "absorb", "minibatch", "reseed"]

# A centre with less than this share of the largest count is put elsewhere, and so is one that was the nearest of none
# of this many points for each centre.
SMALL_SHARE = 0.01
WINDOW = 50
# Batches without a better mean objective after which it stops.
PATIENCE = 10


class Absorbed(NamedTuple):
    """Centres after a batch.

    Attributes
    ----------
    centres : Tensor
        ``(k, dim)``.
    counts : array of shape (k,)
        Weight of all points that each centre is the mean of.
    values : array of shape (n,)
        The weighted divergences between the points of the batch and the centres before.
    """

    centres: Tensor
    counts: NDArray[np.float64]
    values: NDArray[np.float64]


def absorb(frame: Frame, centres: Tensor, counts: NDArray[np.float64], weights: NDArray[np.float64] | None) -> Absorbed:
    """Move centres by the points of one batch.

    A centre is the mean (or, dual, the point of the mean gradient) of all points that it was ever the nearest of, which
    is the gradient step whose rate is one over their number.

    Parameters
    ----------
    frame
        The points of the batch.
    centres, counts
        Centres so far, and the weights that they have seen.
    weights
        Weights of the points of the batch.

    References
    ----------
    Sculley: Web-scale k-means clustering. WWW 2010.
    """
    labels = np.full(len(frame.points), -1, np.int32)
    with Scan(frame, len(centres), weights) as scan:
        sums = scan.assign_and_sum(finite_planes(frame, centres), labels)
    values = frame.to_centres(centres, labels).numpy().astype(np.float64)
    if weights is not None:
        values *= weights
    seen = counts + sums.weights
    rows = frame.as_rows(centres)
    hit = sums.weights > 0
    means = rows.numpy().copy()
    means[hit] = (counts[hit, None] * means[hit] + sums.rows[hit]) / seen[hit, None]
    moved, planes = frame.best(torch.from_numpy(means), centres)
    finite_planes(frame, moved, planes)
    return Absorbed(moved, seen, values)


def reseed(
    frame: Frame, absorbed: Absorbed, random: np.random.RandomState, idle: NDArray[np.bool_] | None = None
) -> Absorbed:
    """Put centres that have hardly any points, or are idle, at points of the batch, drawn by their divergence."""
    centres, counts, values = absorbed
    small = counts < SMALL_SHARE * counts.max()
    if idle is not None:
        small |= idle
    # Half a batch at most: the centres of the rest have to come from somewhere.
    chosen = np.flatnonzero(small)
    chosen = chosen[np.argsort(counts[chosen], kind="stable")][: len(values) // 2]
    if chosen.size == 0 or small.all() or not values.any():
        return absorbed
    centres, counts = centres.clone(), counts.copy()
    points = draw(values, np.arange(len(values)), random, chosen.size)
    centres[torch.from_numpy(chosen)] = frame.starts(points)
    counts[chosen] = counts[~small].min()  # as much as others, or the next batch would do the same again
    return Absorbed(centres, counts, values)


def minibatch(
    frame: Frame,
    centres: Tensor,
    weights: NDArray[np.float64] | None,
    batch_size: int,
    random: np.random.RandomState,
    max_iter: int,
    tol: float,
    moved: Callable[[int], object] = lambda iteration: None,
) -> tuple[Clustering, NDArray[np.float64]]:
    """Cluster points by random batches, and return the clustering of all points and the counts of the centres.

    Points are drawn in proportion to their weights. It stops after ``max_iter`` times the number of points, when a
    running mean of the squared distance that centres move by is at most ``tol``, or when a running mean of the
    objective has not become better for ten batches.
    """
    n = len(frame.points)
    size = min(batch_size, n)
    shares = np.ones(n) if weights is None else weights
    unit = shares.sum() / n
    order = order_of(frame)
    counts = np.zeros(len(centres))
    memory = min(1.0, 2 * size / (n + 1))
    mean = shift = best = np.inf
    patience = points = 0
    recent = np.zeros(len(centres))
    converged = False
    steps = max(1, max_iter * n // size)
    for step in range(1, steps + 1):
        batch = frame.part(draw(shares, order, random, size))
        last = centres
        absorbed = absorb(batch, centres, counts, None)
        recent += absorbed.counts - counts
        points += size
        if points >= WINDOW * len(centres):
            absorbed = reseed(batch, absorbed, random, recent == 0)
            points = 0
            recent[:] = 0
        centres, counts, values = absorbed
        distance = float((centres.double() - last.double()).square().sum())
        value = values.mean()
        if step > 1:  # the first batch tells of the start, not of the clustering
            mean = value if not np.isfinite(mean) else mean + memory * (value - mean)
            shift = distance if not np.isfinite(shift) else shift + memory * (distance - shift)
            patience = 0 if mean < best else patience + 1
            best = min(best, mean)
            converged = shift <= tol or patience >= PATIENCE
        moved(-(-step * size // n))
        if converged:
            break
    labels = nearest(frame, centres)
    inertia = total(frame.to_centres(centres, labels), weights)
    found = Clustering(torch.from_numpy(labels), centres, inertia, -(-step * size // n), converged)
    return found, unit * counts
