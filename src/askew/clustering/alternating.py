"""k-means with any divergence: Lloyd's iterations for Bregman divergences, centroids as means for the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.clustering.frame import as_bregman
from askew.clustering.lloyd import kmeans
from askew.clustering.starts import start_centres
from askew.divergences import Bregman, Divergence, Euclidean, Mahalanobis, split_encoder
from askew.encoders import encode

__all__ = ["cluster", "cluster_from_euclidean", "cluster_means", "descend", "mean_clusters"]

MAX_ITERATIONS = 500
# Candidates of k-means++ for each centre.
CANDIDATES = 3


@torch.no_grad()
def cluster(divergence: Divergence, points: Tensor, k: int, start: str, runs: int, seed: int) -> Tensor:
    """Return labels of the best of some runs of k-means, by the sum of D(x, centre), ``(n,)``.

    Parameters
    ----------
    divergence
        Between points, also behind an encoder; centres are then means of images.
    points
        ``(n, dim)``.
    k
        Number of clusters.
    start
        ``"random-partition"`` or ``"k-means++"``.
    runs
        Number of starts.
    seed
        Of the starts; a random partition is the same for all divergences.

    Examples
    --------
    >>> from askew.divergences import make
    >>> points = torch.tensor([[1.0], [2.0], [100.0], [200.0]])
    >>> labels = cluster(make("itakura-saito", 1), points, 2, "k-means++", runs=3, seed=0)
    >>> bool(labels[0] == labels[1]), bool(labels[1] == labels[2]), bool(labels[2] == labels[3])
    (True, False, True)
    """
    encoder, inner = split_encoder(divergence, points.shape[1], "cluster")
    images = encode(encoder, points)
    random = np.random.RandomState(seed)
    starts = (_start(images, k, inner, start, random) for _ in range(runs))
    return min((descend(images, centres, inner) for centres in starts), key=lambda found: found[1])[0]


@torch.no_grad()
def descend(points: Tensor, centres: Tensor, divergence: Divergence) -> tuple[Tensor, float]:
    """Return labels and the sum of D(x, centre) of k-means from first centres, until labels stay as they are.

    Bregman divergences go through :func:`askew.clustering.kmeans`, all others through :func:`mean_clusters`.

    Parameters
    ----------
    points
        ``(n, dim)``.
    centres
        First centres, ``(k, dim)``.
    divergence
        Any divergence between points.

    Examples
    --------
    >>> from askew.divergences import make
    >>> points = torch.tensor([[1.0], [2.0], [100.0], [200.0]])
    >>> descend(points, points[:2], make("itakura-saito", 1))[0].tolist()
    [0, 0, 1, 1]
    """
    bregman = _bregman(divergence)
    if bregman is None:
        return mean_clusters(points, centres, divergence)
    found = kmeans(points, centres, bregman, max_iter=MAX_ITERATIONS)
    return found.labels.long(), found.inertia


def _bregman(divergence: Divergence) -> Bregman | None:
    """Return the Bregman divergence that equals the given one, if there is one."""
    squared = isinstance(divergence, (Euclidean, Mahalanobis)) and divergence.squared
    return as_bregman(divergence, "k-means") if squared or isinstance(divergence, Bregman) else None


@torch.no_grad()
def mean_clusters(points: Tensor, centres: Tensor, divergence: Divergence) -> tuple[Tensor, float]:
    """Return labels and the sum of D(x, centre) of k-means with any divergence, centres being means.

    The mean is the best centre for Bregman divergences only, so that for others the sum may rise and labels may go
    round: it stops after 500 iterations at the latest. A cluster that no point is nearest to gets the point that is
    farthest from all centres.

    Parameters
    ----------
    points
        ``(n, dim)``.
    centres
        First centres, ``(k, dim)``.
    divergence
        Any divergence between points.

    Examples
    --------
    >>> from askew.divergences import make
    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> labels, total = mean_clusters(points, points[:2], make("euclidean", 1))
    >>> labels.tolist(), total
    ([0, 0, 1, 1], 1.0)
    """
    labels = torch.full(points.shape[:1], -1)
    for _ in range(MAX_ITERATIONS):
        values, found = divergence.pairwise(points, centres).min(1)
        found = _fill(points, values, found, len(centres), divergence)
        if torch.equal(found, labels):
            break
        labels = found
        centres = cluster_means(points, labels, len(centres), centres)
    return labels, float(divergence.pairwise(points, centres).min(1).values.double().sum())


def cluster_means(points: Tensor, labels: Tensor, k: int, empty: Tensor | None = None) -> Tensor:
    """Return the mean of each cluster, ``(k, dim)``; that of one without points is taken from ``empty``."""
    sums = points.new_zeros(k, points.shape[1]).index_add(0, labels, points)
    counts = torch.bincount(labels, minlength=k).to(points.dtype)[:, None]
    means = sums / counts.clamp(min=1)
    return means if empty is None else torch.where(counts > 0, means, empty)


def _fill(points: Tensor, values: Tensor, labels: Tensor, k: int, divergence: Divergence) -> Tensor:
    """Return labels in which clusters without points have got one that is far from all centres."""
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
    """Return first centres; for other than Bregman divergences what corresponds to those."""
    n, bregman = len(points), _bregman(divergence)
    if bregman is not None:
        return start_centres(points, k, bregman, start, random)
    if start == "random-partition":
        labels = torch.from_numpy(random.randint(k, size=n))
        return cluster_means(points, labels, k, points[torch.from_numpy(random.choice(n, k, replace=False))])
    chosen = [int(random.randint(n))]
    closest = divergence.pairwise(points, points[chosen])[:, 0].double()
    while len(chosen) < k:
        total = float(closest.sum())
        weights = (closest / total).numpy() if total > 0 else None  # fewer different points than centres
        candidates = torch.from_numpy(random.choice(n, CANDIDATES, p=weights))
        after = torch.minimum(closest[:, None], divergence.pairwise(points, points[candidates]).double())
        best = int(after.sum(0).argmin())
        chosen.append(int(candidates[best]))
        closest = after[:, best]
    return points[chosen]


@torch.no_grad()
def cluster_from_euclidean(
    points: Tensor, images: Tensor, divergence: Divergence, k: int, seeds: list[int]
) -> list[NDArray[Any]]:
    """Return clusters of points under a divergence, each found from the clusters of Euclidean k-means.

    Parameters
    ----------
    points
        What Euclidean k-means (k-means++, one start) clusters, ``(n, dim)``.
    images
        The same points as the divergence takes them, ``(n, dim)``.
    divergence
        Bregman or any other; centres are means of images.
    k
        Number of clusters.
    seeds
        One for each repetition.

    Examples
    --------
    >>> points = torch.tensor([[1.0], [2.0], [100.0], [101.0]])
    >>> [labels] = cluster_from_euclidean(points, points, Euclidean(1), 2, seeds=[0])
    >>> bool(labels[0] == labels[1]), bool(labels[1] == labels[2])
    (True, False)
    """
    euclidean = Euclidean(points.shape[1])
    found: dict[tuple[int, ...], NDArray[Any]] = {}
    results = []
    for seed in seeds:
        start = cluster(euclidean, points, k, "k-means++", 1, seed)
        key = tuple(start.tolist())
        if key not in found:  # many starts end in the same clusters
            centres = cluster_means(images, start, k, images[:k])
            found[key] = descend(images, centres, divergence)[0].numpy()
        results.append(found[key])
    return results
