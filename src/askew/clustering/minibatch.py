"""Clustering of a few points at a time: mini-batches of a large table, and tables that come piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.clustering.frame import Frame
from askew.clustering.lloyd import Clustering, finite_planes, nearest
from askew.clustering.scanning import Scan
from askew.clustering.starts import draw, order_of

__all__ = ["Absorbed", "absorb", "minibatch"]

# A centre with less than this share of the largest count is put elsewhere, after this many points for each centre.
SMALL_SHARE = 0.01
POINTS_BETWEEN_RESEEDS = 10
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
    labels : array of shape (n,)
        The nearest centres of the points of the batch, before it moved them.
    inertia : float
        The objective of the batch with these.
    """

    centres: Tensor
    counts: NDArray[np.float64]
    labels: NDArray[np.int32]
    inertia: float


def absorb(
    frame: Frame,
    centres: Tensor,
    counts: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    random: np.random.RandomState | None = None,
) -> Absorbed:
    """Move centres by the points of one batch.

    A centre is the mean (or, dual, the point of the mean gradient) of all points that it was ever the nearest of, which
    is the gradient step whose rate is one over their number. With ``random``, centres that are the nearest of hardly
    any points are put at points of the batch that are far from theirs.

    Parameters
    ----------
    frame
        The points of the batch.
    centres, counts
        Centres so far, and the weights that they have seen.
    weights
        Weights of the points of the batch.
    random
        Where random numbers come from; None re-seeds nothing.

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
    if random is not None:
        moved, seen = _reseed(frame, moved, seen, values, random)
    return Absorbed(moved, seen, labels, float(values.sum()))


def _reseed(
    frame: Frame,
    centres: Tensor,
    counts: NDArray[np.float64],
    values: NDArray[np.float64],
    random: np.random.RandomState,
) -> tuple[Tensor, NDArray[np.float64]]:
    """Put centres that have hardly any points at points of the batch, drawn by their divergence."""
    small = np.flatnonzero(counts < SMALL_SHARE * counts.max())
    # Half a batch at most: the centres of the rest have to come from somewhere.
    small = small[np.argsort(counts[small], kind="stable")][: len(values) // 2]
    if small.size == 0 or not values.any():
        return centres, counts
    centres, counts = centres.clone(), counts.copy()
    points = draw(values, np.arange(len(values)), random, small.size)
    centres[torch.from_numpy(small)] = frame.starts(points)
    kept = counts >= SMALL_SHARE * counts.max()
    counts[small] = counts[kept].min()  # as much as others, or the next batch would do the same again
    return centres, counts


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
    patience = since_reseed = 0
    converged = False
    steps = max(1, max_iter * n // size)
    for step in range(1, steps + 1):
        batch = frame.part(draw(shares, order, random, size))
        since_reseed += size
        reseeds = since_reseed >= POINTS_BETWEEN_RESEEDS * len(centres) or not counts.all()
        since_reseed = 0 if reseeds else since_reseed
        last = centres
        # The first batch has no counts that could be small.
        absorbed = absorb(batch, centres, counts, None, random if reseeds and step > 1 else None)
        centres, counts = absorbed.centres, absorbed.counts
        distance = float((centres.double() - last.double()).square().sum())
        value = absorbed.inertia / size
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
    values = frame.to_centres(centres, labels).double()
    inertia = float(values.sum() if weights is None else values @ torch.from_numpy(weights))
    found = Clustering(torch.from_numpy(labels), centres, inertia, -(-step * size // n), converged)
    return found, unit * counts
