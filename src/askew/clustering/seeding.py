"""First centroids of a clustering: k-means++, random points and random partitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.clustering.scan import Scan
from askew.clustering.view import AffineView, Weights


def init_centroids(
    view: AffineView, k: int, method: str, random: np.random.RandomState, weights: Weights | None
) -> Tensor:
    """Return ``k`` first centroids of checked points, ``(k, dim)``; there must be as many points.

    ``"k-means++"`` samples one point after another with a probability proportional to its divergence to the nearest
    centroid so far, each time the best of 2 + log k candidates. It is the best in general, and depends neither on the
    order of the points nor on whether a point of weight 2 is one row or two. ``"random-points"`` (or ``"random"``) and
    ``"random-partition"`` (the means of random clusters) are cheaper and worse.

    References
    ----------
    Arthur, Vassilvitskii: k-means++, the advantages of careful seeding. SODA 2007. Nock, Luosto, Kivinen: Mixed Bregman
    clustering with approximation guarantees. ECML 2008.

    Examples
    --------
    >>> from askew.divergences import make
    >>> view = AffineView(torch.tensor([[1.0], [1.1], [100.0], [101.0]]), make("itakura-saito", 1).as_bregman())
    >>> start = init_centroids(view, 2, "k-means++", np.random.RandomState(0), None)
    >>> sorted(start.flatten().round().tolist())
    [1.0, 101.0]
    """
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
    "random": _random_points,
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
