"""First centroids of a clustering: k-means++, k-means||, random points and random partitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks
from askew.clustering.lloyd import check_points_and_weights, nearest
from askew.clustering.scan import Scan
from askew.clustering.view import AffineView, Weights
from askew.divergences import Bregman

# k-means||: rounds, and candidates per centroid in each round.
ROUNDS = 5
OVERSAMPLING = 2


def start_centres(
    points: Tensor,
    k: int,
    divergence: Bregman,
    method: str,
    random: np.random.RandomState,
    weights: Tensor | None = None,
    dual: bool = False,
) -> Tensor:
    """Return ``k`` first centres for a clustering of points, ``(k, dim)``.

    ``"k-means++"`` samples one point after another with a probability proportional to its divergence to the nearest
    centre so far, each time the best of 2 + log k candidates. It is the best in general, and depends neither on the
    order of the points nor on whether a point of weight 2 is one row or two. ``"k-means||"`` samples many at a time in
    five rounds and chooses among those by ``"k-means++"``: fewer passes over the points, for a large k.
    ``"random-points"`` and ``"random-partition"`` (the means of random clusters) are cheaper and worse.

    Points, their weights and ``dual`` are as in :func:`askew.clustering.kmeans`.

    References
    ----------
    Arthur, Vassilvitskii: k-means++, the advantages of careful seeding. SODA 2007. Bahmani et al.: Scalable k-means++.
    VLDB 2012. Nock, Luosto, Kivinen: Mixed Bregman clustering with approximation guarantees. ECML 2008.

    Examples
    --------
    >>> from askew.potentials import Burg
    >>> points = torch.tensor([[1.0], [1.1], [100.0], [101.0]])
    >>> start = start_centres(points, 2, Bregman(Burg(1)), "k-means++", np.random.RandomState(0))
    >>> sorted(start.flatten().round().tolist())
    [1.0, 101.0]
    """
    array = check_points_and_weights(points, divergence, weights, dual, "start_centres")
    checks.check_size(k, "k of start_centres")
    if k > len(points):
        raise ValueError(checks.message("k of start_centres", f"at most the number of points, {len(points)}", k))
    checks.check_name(method, SEEDINGS, "method of start_centres")
    return init_centroids(AffineView(points.detach(), divergence, array, dual), k, method, random, array)


def init_centroids(
    view: AffineView, k: int, method: str, random: np.random.RandomState, weights: Weights | None
) -> Tensor:
    """Return ``k`` first centroids for checked points."""
    return SEEDINGS[method](view, k, random, np.ones(len(view.points)) if weights is None else weights)


def _plus_plus(view: AffineView, k: int, random: np.random.RandomState, weights: Weights) -> Tensor:
    order = canonical_order(view)
    chosen = np.empty(k, np.intp)
    chosen[0] = weighted_sample(weights, order, random, 1)[0]
    closest = np.full(len(weights), np.inf, view.rows.dtype)
    _approach(view, chosen[:1], closest)
    count = 2 + int(math.log(k))
    for i in range(1, k):
        probabilities = weights * closest
        if not probabilities.any():  # fewer distinct points than centroids
            chosen[i:] = weighted_sample(weights, order, random, k - i)
            break
        candidates = weighted_sample(probabilities, order, random, count)

        def total(part: slice, values: NDArray[np.floating]) -> Weights:
            return np.asarray(weights[part] @ np.minimum(values, closest[part, None]))

        totals = view.over_divergences(view.initial_centroids(candidates), total)
        chosen[i] = candidates[np.sum(totals, axis=0).argmin()]
        _approach(view, chosen[i : i + 1], closest)
    return view.initial_centroids(chosen)


def _parallel(view: AffineView, k: int, random: np.random.RandomState, weights: Weights) -> Tensor:
    chosen = weighted_sample(weights, canonical_order(view), random, 1)
    closest = np.full(len(weights), np.inf, view.rows.dtype)
    _approach(view, chosen, closest)
    for _ in range(ROUNDS):
        probabilities = weights * closest
        total = probabilities.sum()
        if total == 0:
            break
        sampled = np.flatnonzero(random.uniform(size=len(weights)) * total < OVERSAMPLING * k * probabilities)
        if sampled.size:
            _approach(view, sampled, closest)
            chosen = np.concatenate([chosen, sampled])
    chosen = np.unique(chosen)
    if chosen.size < k:  # small or degenerate data
        rest = np.setdiff1d(np.arange(len(weights)), chosen)
        chosen = np.concatenate([chosen, random.permutation(rest)[: k - chosen.size]])
    candidates = view.initial_centroids(chosen)
    # A candidate has the weight of all points that are nearest to it.
    votes = np.bincount(nearest(view, candidates), weights, chosen.size).astype(np.float64)
    return _plus_plus(view.with_points(candidates), k, random, votes)


def _random_points(view: AffineView, k: int, random: np.random.RandomState, weights: Weights) -> Tensor:
    heavy = np.count_nonzero(weights)
    if heavy >= k:
        return view.initial_centroids(random.choice(len(weights), k, replace=False, p=weights / weights.sum()))
    light = random.permutation(np.flatnonzero(weights == 0))[: k - heavy]
    return view.initial_centroids(np.concatenate([np.flatnonzero(weights), light]))


def _random_partition(view: AffineView, k: int, random: np.random.RandomState, weights: Weights) -> Tensor:
    labels = random.randint(k, size=len(weights)).astype(np.int32)
    fallback = _random_points(view, k, random, weights)
    with Scan(view, k, weights) as scan:
        sums = scan.sum(labels)
    means, empty = torch.from_numpy(sums.means()), torch.from_numpy(sums.weights == 0)
    # A cluster without points starts at a random one.
    means[empty] = view.to_mean_coordinates(fallback)[empty]
    return view.update_centroids(means, fallback)[0]


SEEDINGS: dict[str, Callable[[AffineView, int, np.random.RandomState, Weights], Tensor]] = {
    "k-means++": _plus_plus,
    "k-means||": _parallel,
    "random-points": _random_points,
    "random-partition": _random_partition,
}


def canonical_order(view: AffineView) -> NDArray[np.intp]:
    """Return an order of the points that does not depend on the one they came in."""
    return np.argsort(view.base.numpy(), kind="stable")


def weighted_sample(
    probabilities: NDArray[np.floating], order: NDArray[np.intp], random: np.random.RandomState, count: int
) -> NDArray[np.intp]:
    """Return points sampled in proportion to their probabilities; which ones depends on the given order."""
    cumulative = np.cumsum(probabilities[order], dtype=np.float64)
    places = np.searchsorted(cumulative, random.uniform(size=count) * cumulative[-1], side="right")
    # Rounding must not give the last points, which may have no weight.
    last = np.searchsorted(cumulative, cumulative[-1], side="left")
    return np.asarray(order[np.minimum(places, last)])


def _approach(view: AffineView, chosen: NDArray[np.intp], closest: NDArray[np.floating]) -> None:
    """Lower the divergence to the nearest centroid by those to new centroids."""

    def lower(part: slice, values: NDArray[np.floating]) -> None:
        np.minimum(closest[part], values.min(1), out=closest[part])

    view.over_divergences(view.initial_centroids(chosen), lower)
