"""k-means with any divergence: Lloyd's algorithm for Bregman divergences, means as centroids for all others.

The mean is the best centroid for Bregman divergences only. With any other divergence the objective may rise and labels
may cycle, so the number of iterations is bounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.clustering.lloyd import kmeans
from askew.clustering.seeding import init_centroids
from askew.clustering.view import AffineView
from askew.divergences import Divergence, Euclidean, split_encoder
from askew.encoders import encode

MAX_ITERATIONS = 500
# Candidates of k-means++ per centroid where the divergence is not Bregman. Bregman divergences have 2 + log k, which is
# 3 for 3 to 7 clusters; results that were computed with 3 for other numbers should stay as they are.
CANDIDATES = 3


@torch.no_grad()
def cluster(divergence: Divergence, points: Tensor, k: int, start: str, runs: int, seed: int) -> Tensor:
    """Return the labels of the best of several runs of k-means, by the sum of D(x, centroid), ``(n, dim) -> (n,)``.

    Behind an encoder, centroids are means of embeddings. ``start`` is ``"random-partition"``, which is the same for all
    divergences, or ``"k-means++"``; ``seed`` that of all starts.

    Examples
    --------
    >>> from askew.divergences import make
    >>> points = torch.tensor([[1.0], [2.0], [100.0], [200.0]])
    >>> labels = cluster(make("itakura-saito", 1), points, 2, "k-means++", runs=3, seed=0)
    >>> bool(labels[0] == labels[1]), bool(labels[1] == labels[2]), bool(labels[2] == labels[3])
    (True, False, True)
    """
    encoder, inner = split_encoder(divergence, points.shape[1], "cluster")
    embeddings = encode(encoder, points)
    random = np.random.RandomState(seed)
    starts = (_start(embeddings, k, inner, start, random) for _ in range(runs))
    return min((cluster_from(embeddings, centroids, inner) for centroids in starts), key=lambda run: run[1])[0]


@torch.no_grad()
def cluster_from(points: Tensor, centroids: Tensor, divergence: Divergence) -> tuple[Tensor, float]:
    """Return labels and the sum of D(x, centroid) of k-means from first centroids, ``(n, dim), (k, dim) -> (n,)``.

    Bregman divergences go through :func:`askew.clustering.kmeans`, all others through :func:`cluster_by_means`.
    """
    bregman = divergence.as_bregman()
    if bregman is None:
        return cluster_by_means(points, centroids, divergence)
    clustering = kmeans(points, centroids, bregman, max_iter=MAX_ITERATIONS)
    return clustering.labels.long(), clustering.inertia


@torch.no_grad()
def cluster_by_means(points: Tensor, centroids: Tensor, divergence: Divergence) -> tuple[Tensor, float]:
    """Return labels and the sum of D(x, centroid) of k-means whose centroids are means, for any divergence.

    It stops after 500 iterations at the latest. A cluster without points gets the point that is farthest from all
    centroids.

    Examples
    --------
    >>> from askew.divergences import make
    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> labels, total = cluster_by_means(points, points[:2], make("euclidean", 1))
    >>> labels.tolist(), total
    ([0, 0, 1, 1], 1.0)
    """
    labels = torch.full(points.shape[:1], -1)
    visited: dict[bytes, int] = {}
    iteration = 0
    while iteration < MAX_ITERATIONS:
        iteration += 1
        before = visited.setdefault(centroids.double().cpu().numpy().tobytes(), iteration)
        if before < iteration:  # a cycle: go on where whole rounds of it would end
            iteration += (MAX_ITERATIONS - iteration) // (iteration - before) * (iteration - before)
            visited = {}
        values, nearest = divergence.pairwise(points, centroids).min(1)
        nearest = _fill(points, values, nearest, len(centroids), divergence)
        if torch.equal(nearest, labels):
            break
        labels = nearest
        centroids = cluster_means(points, labels, len(centroids), centroids)
    return labels, float(divergence.pairwise(points, centroids).min(1).values.double().sum())


def cluster_means(points: Tensor, labels: Tensor, k: int, empty: Tensor) -> Tensor:
    """Return the mean of each cluster, ``(k, dim)``; for one without points, that of ``empty``."""
    sums = points.new_zeros(k, points.shape[1]).index_add(0, labels, points)
    counts = torch.bincount(labels, minlength=k).to(points.dtype)[:, None]
    return torch.where(counts > 0, sums / counts.clamp(min=1), empty)


def _fill(points: Tensor, values: Tensor, labels: Tensor, k: int, divergence: Divergence) -> Tensor:
    """Return labels in which clusters without points have got one that is far from all centroids."""
    labels = labels.clone()
    for number in (torch.bincount(labels, minlength=k) == 0).nonzero()[:, 0].tolist():
        far = int(values.argmax())
        if values[far] <= 0:
            break
        labels[far] = number
        values = torch.minimum(values, divergence.pairwise(points, points[far : far + 1])[:, 0])
        values[far] = 0
    return labels


def _start(points: Tensor, k: int, divergence: Divergence, start: str, random: np.random.RandomState) -> Tensor:
    """Return first centroids by :func:`init_centroids`, or its analogue for other divergences."""
    n, bregman = len(points), divergence.as_bregman()
    if bregman is not None:
        return init_centroids(AffineView(points, bregman), k, start, random, None)
    if start == "random-partition":
        labels = torch.from_numpy(random.randint(k, size=n))
        return cluster_means(points, labels, k, points[torch.from_numpy(random.choice(n, k, replace=False))])
    chosen = [int(random.randint(n))]
    closest = divergence.pairwise(points, points[chosen])[:, 0].double()
    while len(chosen) < k:
        total = float(closest.sum())
        weights = (closest / total).numpy() if total > 0 else None  # fewer distinct points than centroids
        candidates = torch.from_numpy(random.choice(n, CANDIDATES, p=weights))
        after = torch.minimum(closest[:, None], divergence.pairwise(points, points[candidates]).double())
        best = int(after.sum(0).argmin())
        chosen.append(int(candidates[best]))
        closest = after[:, best]
    return points[chosen]


@torch.no_grad()
def cluster_from_euclidean(
    points: Tensor, embeddings: Tensor, divergence: Divergence, k: int, seeds: list[int]
) -> list[NDArray[Any]]:
    """Return labels of k clusters under a divergence, found from those of Euclidean k-means, one array for each seed.

    Euclidean k-means (k-means++, one start) clusters the points, the divergence compares their embeddings.

    Examples
    --------
    >>> points = torch.tensor([[1.0], [2.0], [100.0], [101.0]])
    >>> [labels] = cluster_from_euclidean(points, points, Euclidean(1), 2, seeds=[0])
    >>> bool(labels[0] == labels[1]), bool(labels[1] == labels[2])
    (True, False)
    """
    euclidean = Euclidean(points.shape[1])
    known: dict[tuple[int, ...], NDArray[Any]] = {}
    results = []
    for seed in seeds:
        start = cluster(euclidean, points, k, "k-means++", 1, seed)
        key = tuple(start.tolist())
        if key not in known:  # many starts end in the same clusters
            centroids = cluster_means(embeddings, start, k, embeddings[:k])
            known[key] = cluster_from(embeddings, centroids, divergence)[0].numpy()
        results.append(known[key])
    return results
