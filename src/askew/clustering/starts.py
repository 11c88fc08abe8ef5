"""Where a clustering starts: k-means++, k-means||, random points and random partitions, for any Bregman divergence."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks
from askew.clustering.frame import Frame
from askew.clustering.lloyd import check_points_and_weights, nearest
from askew.clustering.scanning import Scan
from askew.divergences import Bregman

__all__ = ["STARTS", "choose_start", "draw", "order_of", "start_centres"]

# k-means||: rounds, and how many candidates each round draws for each centre.
ROUNDS = 5
OVERSAMPLING = 2

Weights = NDArray[np.float64]


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

    ``"k-means++"`` draws one point after another with a probability in proportion to its divergence to the nearest
    centre so far, each time the best of 2 + log k tries. It is the best start in general. ``"k-means||"`` draws many
    at a time in five rounds and chooses among those by ``"k-means++"``: fewer passes over the points, for a large k.
    ``"random-points"`` and ``"random-partition"`` (the means of random clusters) are cheaper and worse.

    ``"k-means++"`` depends neither on the order of the points nor on whether one of weight 2 is one row or two.

    Parameters
    ----------
    points
        ``(n, dim)``, in main memory.
    k
        Number of centres.
    divergence
        A Bregman divergence.
    method
        One of the four.
    random
        Where random numbers come from.
    weights
        Weights of the points, ``(n,)``.
    dual
        Whether centres come first, D(centre, point).

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
    if not isinstance(divergence, Bregman):
        must = "an askew.Bregman divergence"
        raise TypeError(checks.message("divergence of start_centres", must, type(divergence).__name__))
    array = check_points_and_weights(points, divergence, weights, dual, "start_centres")
    checks.check_size(k, "k of start_centres")
    if k > len(points):
        raise ValueError(checks.message("k of start_centres", f"at most the number of points, {len(points)}", k))
    checks.check_name(method, STARTS, "method of start_centres")
    return choose_start(Frame(points.detach(), divergence, array, dual), k, method, random, array)


def choose_start(frame: Frame, k: int, method: str, random: np.random.RandomState, weights: Weights | None) -> Tensor:
    """Return ``k`` first centres for checked points."""
    if weights is None:
        weights = np.ones(len(frame.points))
    return STARTS[method](frame, k, random, weights)


def _plus_plus(frame: Frame, k: int, random: np.random.RandomState, weights: Weights) -> Tensor:
    order = order_of(frame)
    chosen = np.empty(k, np.intp)
    chosen[0] = draw(weights, order, random, 1)[0]
    closest = np.full(len(weights), np.inf, frame.rows.dtype)
    _approach(frame, chosen[:1], closest)
    tries = 2 + int(math.log(k))
    for i in range(1, k):
        probabilities = weights * closest
        if not probabilities.any():  # fewer different points than centres
            chosen[i:] = draw(weights, order, random, k - i)
            break
        candidates = draw(probabilities, order, random, tries)

        def total(part: slice, values: NDArray[np.floating]) -> Weights:
            return np.asarray(weights[part] @ np.minimum(values, closest[part, None]))

        totals = frame.over_blocks(frame.starts(candidates), total)
        chosen[i] = candidates[np.sum(totals, axis=0).argmin()]
        _approach(frame, chosen[i : i + 1], closest)
    return frame.starts(chosen)


def _parallel(frame: Frame, k: int, random: np.random.RandomState, weights: Weights) -> Tensor:
    order = order_of(frame)
    chosen = draw(weights, order, random, 1)
    closest = np.full(len(weights), np.inf, frame.rows.dtype)
    _approach(frame, chosen, closest)
    for _ in range(ROUNDS):
        probabilities = weights * closest
        total = probabilities.sum()
        if total == 0:
            break
        drawn = np.flatnonzero(random.uniform(size=len(weights)) * total < OVERSAMPLING * k * probabilities)
        if drawn.size:
            _approach(frame, drawn, closest)
            chosen = np.concatenate([chosen, drawn])
    chosen = np.unique(chosen)
    if chosen.size < k:  # small or degenerate data
        rest = np.setdiff1d(np.arange(len(weights)), chosen)
        chosen = np.concatenate([chosen, random.permutation(rest)[: k - chosen.size]])
    centres = frame.starts(chosen)
    # A candidate counts for all points that it is the nearest of.
    votes = np.bincount(nearest(frame, centres), weights, chosen.size).astype(np.float64)
    return _plus_plus(frame.other(centres), k, random, votes)


def _random_points(frame: Frame, k: int, random: np.random.RandomState, weights: Weights) -> Tensor:
    heavy = np.count_nonzero(weights)
    if heavy >= k:
        return frame.starts(random.choice(len(weights), k, replace=False, p=weights / weights.sum()))
    light = random.permutation(np.flatnonzero(weights == 0))[: k - heavy]
    return frame.starts(np.concatenate([np.flatnonzero(weights), light]))


def _random_partition(frame: Frame, k: int, random: np.random.RandomState, weights: Weights) -> Tensor:
    labels = random.randint(k, size=len(weights)).astype(np.int32)
    starts = _random_points(frame, k, random, weights)
    with Scan(frame, k, weights) as scan:
        sums = scan.sum(labels)
    filled = torch.from_numpy(sums.weights > 0)
    means = torch.from_numpy(sums.rows / np.where(sums.weights > 0, sums.weights, 1)[:, None])
    # A cluster that got no point starts at a random one.
    means[~filled] = frame.as_rows(starts)[~filled]
    return frame.best(means, starts)[0]


STARTS: dict[str, Callable[[Frame, int, np.random.RandomState, Weights], Tensor]] = {
    "k-means++": _plus_plus,
    "k-means||": _parallel,
    "random-points": _random_points,
    "random-partition": _random_partition,
}


def order_of(frame: Frame) -> NDArray[np.intp]:
    """Return an order of the points that does not depend on the one they came in."""
    return np.argsort(frame.own.numpy(), kind="stable")


def draw(
    probabilities: NDArray[np.floating], order: NDArray[np.intp], random: np.random.RandomState, count: int
) -> NDArray[np.intp]:
    """Draw points in proportion to their probabilities; which ones follows from their order."""
    cumulative = np.cumsum(probabilities[order], dtype=np.float64)
    places = np.searchsorted(cumulative, random.uniform(size=count) * cumulative[-1], side="right")
    # Rounding must not give the last points, which may have no weight.
    last = np.searchsorted(cumulative, cumulative[-1], side="left")
    drawn: NDArray[np.intp] = order[np.minimum(places, last)]
    return drawn


def _approach(frame: Frame, chosen: NDArray[np.intp], closest: NDArray[np.floating]) -> None:
    """Lower the divergence to the nearest centre by that to some new centres."""

    def lower(part: slice, values: NDArray[np.floating]) -> None:
        np.minimum(closest[part], values.min(1), out=closest[part])

    frame.over_blocks(frame.starts(chosen), lower)
