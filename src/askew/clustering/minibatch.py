"""Clustering by mini-batches: of a large table, or of data that come in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.clustering.lloyd import Clustering, nearest, total
from askew.clustering.scan import Scan
from askew.clustering.seeding import canonical_order, weighted_sample
from askew.clustering.view import AffineView, Weights

# A centroid is moved elsewhere if it has less than this share of the largest count, or was the nearest to none of
# WINDOW points per centroid.
SMALL_SHARE = 0.01
WINDOW = 50
# Batches without a better mean objective after which to stop.
PATIENCE = 10


class BatchStep(NamedTuple):
    """Centroids after a batch."""

    centroids: Tensor  # (k, dim)
    counts: Weights  # weight of all points that each centroid is the mean of, (k,)
    values: Weights  # weighted divergences between the points of the batch and the centroids before it, (n,)


def batch_step(view: AffineView, centroids: Tensor, counts: Weights, weights: Weights | None) -> BatchStep:
    """Move centroids by the points of one batch (Sculley: Web-scale k-means clustering. WWW 2010).

    A centroid is the mean (or, dual, the point of the mean gradient) of all points that it was ever the nearest to: a
    gradient step whose rate is one over their number. ``counts`` are the weights that the centroids have seen so far,
    ``weights`` those of the batch.
    """
    labels = np.full(len(view.points), -1, np.int32)
    with Scan(view, len(centroids), weights) as scan:
        sums = scan.assign_and_sum(view.affine(centroids).check_finite(view.dtype), labels)
    values = view.divergences_to(centroids, labels).numpy().astype(np.float64)
    if weights is not None:
        values *= weights
    seen = counts + sums.weights
    hit = sums.weights > 0
    means = view.to_mean_coordinates(centroids).numpy().copy()
    means[hit] = (counts[hit, None] * means[hit] + sums.rows[hit]) / seen[hit, None]
    moved, affine = view.update_centroids(torch.from_numpy(means), centroids)
    affine.check_finite(view.dtype)
    return BatchStep(moved, seen, values)


def reassign(
    view: AffineView, step: BatchStep, random: np.random.RandomState, idle: NDArray[np.bool_] | bool = False
) -> BatchStep:
    """Move centroids that have hardly any points, or are idle, to points of the batch, sampled by their divergence."""
    centroids, counts, values = step
    small = (counts < SMALL_SHARE * counts.max()) | idle
    # Half a batch at most: the other centroids need points as well.
    chosen = np.flatnonzero(small)
    chosen = chosen[np.argsort(counts[chosen], kind="stable")][: len(values) // 2]
    if chosen.size == 0 or small.all() or not values.any():
        return step
    centroids, counts = centroids.clone(), counts.copy()
    points = weighted_sample(values, np.arange(len(values)), random, chosen.size)
    centroids[torch.from_numpy(chosen)] = view.initial_centroids(points)
    counts[chosen] = counts[~small].min()  # as much as others, or the next batch would move them again
    return BatchStep(centroids, counts, values)


def minibatch(
    view: AffineView,
    centroids: Tensor,
    weights: Weights | None,
    batch_size: int,
    random: np.random.RandomState,
    max_iter: int,
    moved: Callable[[int], object] = lambda iteration: None,
) -> tuple[Clustering, Weights]:
    """Cluster points by random batches; return the clustering of all points and the counts of the centroids.

    Points are sampled in proportion to their weights. It stops after ``max_iter`` times the number of points, or when a
    running mean of the objective has not improved for ten batches.
    """
    n = len(view.points)
    size = min(batch_size, n)
    shares = np.ones(n) if weights is None else weights
    order = canonical_order(view)
    counts = looked_at = np.zeros(len(centroids))
    memory = min(1.0, 2 * size / (n + 1))
    mean = lowest = np.inf
    patience = 0
    window = -(-WINDOW * len(centroids) // size)  # batches
    for step in range(1, max(1, max_iter * n // size) + 1):
        batch = view.subset(weighted_sample(shares, order, random, size))
        result = batch_step(batch, centroids, counts, None)
        if step % window == 0:
            result = reassign(batch, result, random, result.counts == looked_at)
            looked_at = result.counts
        centroids, counts, values = result
        passes = -(-step * size // n)
        moved(passes)
        if step > 1:  # the first batch tells of the seeding, not of the clustering
            mean = values.mean() if step == 2 else mean + memory * (values.mean() - mean)
            patience = 0 if mean < lowest else patience + 1
            lowest = min(lowest, mean)
        if patience == PATIENCE:
            break
    labels = nearest(view, centroids)
    inertia = total(view.divergences_to(centroids, labels), weights)
    clustering = Clustering(torch.from_numpy(labels), centroids, inertia, passes, patience == PATIENCE)
    return clustering, shares.sum() / n * counts
