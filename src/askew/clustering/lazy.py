"""K-means of data that dask holds in blocks, on one machine or on many: only sums of clusters travel.

Each pass hands the centres to the blocks and gets sums back, which are added in a tree. A block that is lost with its
worker is made again by dask from where it came from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askew import checks
from askew.clustering.blocks import Blocks
from askew.clustering.frame import Frame
from askew.clustering.inputs import as_images, as_table
from askew.clustering.lloyd import finite_planes, nearest, total
from askew.clustering.scanning import Scan
from askew.clustering.starts import OVERSAMPLING, ROUNDS, choose_start
from askew.divergences import Bregman

__all__ = ["Lens", "best_of_runs", "centred", "encoded", "lazy_objective", "lazy_start"]

# What points must be.
SOME_WEIGHT = "with at least one point that has weight"
# Iterations without progress after which it is rounding alone that moves centres.
STRIKES = 2

Floats = NDArray[np.float64]


class Sums(NamedTuple):
    """What a pass over some points brings back."""

    rows: Floats
    weights: Floats
    value: float


class Moments(NamedTuple):
    """The sum of rows, their weight, their number and their dtype."""

    rows: Floats
    weight: float
    number: int
    dtype: torch.dtype


class Far(NamedTuple):
    """The points that are farthest from their centres: how far, their rows, their clusters and their weights."""

    values: Floats
    rows: Floats
    clusters: NDArray[np.int64]
    weights: Floats


@dataclass(frozen=True)
class Lens:
    """How a block is seen: what a pass over it needs, beside the centres."""

    encoder: nn.Module | None
    divergence: Bregman
    dual: bool
    owner: str
    middle: Tensor | None = None

    @torch.no_grad()
    def frame(self, block: Any) -> Frame:
        """Return the points of a block, checked, as the clustering sees them."""
        # Whether all are finite is seen where images are.
        array = as_table(block, self.encoder is not None, self.owner, finite=False)
        images = as_images(array, self.encoder, self.divergence, self.owner, dual=self.dual, progress=False)
        return Frame(images, self.divergence, None, self.dual, self.middle)


def encoded(blocks: Blocks, lens: Lens) -> tuple[Blocks, Lens]:
    """Return the images of all blocks, and how these are seen: as they are."""
    if lens.encoder is None:
        return blocks, lens
    return blocks.mapped(_images, lens), replace(lens, encoder=None)


def _images(lens: Lens, block: Any) -> NDArray[Any]:
    return lens.frame(block).points.numpy() if len(block) else np.zeros((0, 1))


# ---------------------------------------------------------------------- k-means


class Found(NamedTuple):
    """What a run came to: its centres, the sums of their clusters, and its iterations."""

    centres: Tensor
    sums: Sums
    n_iter: int


def best_of_runs(
    blocks: Blocks,
    lens: Lens,
    start: Callable[[], Tensor],
    runs: int,
    max_iter: int,
    tol: float,
    moved: Callable[[int], object],
) -> Found:
    """Run k-means some times, each from its own start, and return what has the lowest objective."""
    return min(
        (
            _lloyd(blocks, lens, start(), max_iter, tol, lambda iteration, run=run: moved(run * max_iter + iteration))  # type: ignore[misc]
            for run in range(runs)
        ),
        key=lambda found: found.sums.value,
    )


def _lloyd(
    blocks: Blocks, lens: Lens, centres: Tensor, max_iter: int, tol: float, moved: Callable[[int], object]
) -> Found:
    """Run Lloyd's algorithm from centres."""
    seen = blocks.sent(lens)
    view = Frame(centres.clone(), lens.divergence, None, lens.dual, lens.middle)  # for what needs no points
    least, strikes, iteration = np.inf, 0, 0
    for iteration in range(1, max_iter + 1):
        sums: Sums = blocks.reduced(blocks.each(_assigned, seen, centres), _added)
        sums = _filled(blocks, seen, centres, sums)
        weights = np.where(sums.weights > 0, sums.weights, 1)
        means = sums.rows / weights[:, None]
        means[sums.weights == 0] = means[sums.weights.argmax()]
        last = centres
        centres, planes = view.best(torch.from_numpy(means), last)
        finite_planes(view, centres, planes)
        moved(iteration)
        shift = float((centres.double() - last.double()).square().sum())
        # The objective, up to what does not depend on centres: no point has to be evaluated for it.
        features = torch.from_numpy(means - view.shift)
        value = float((planes.at(features) * torch.from_numpy(sums.weights)).sum())
        strikes = 0 if value < least else strikes + 1
        least = min(least, value)
        if shift <= tol or strikes == STRIKES:
            break
    final: Sums = blocks.reduced(blocks.each(_assigned, seen, centres, True), _added)
    return Found(centres, final, iteration)


def lazy_objective(blocks: Blocks, lens: Lens, centres: Tensor) -> float:
    """Return the sum of the divergences between points and their nearest centres."""
    found: Sums | None = blocks.reduced(blocks.each(_assigned, blocks.sent(lens), centres, True), _added)
    if found is None or not found.weights.any():
        raise ValueError(checks.message(f"X of {lens.owner}", SOME_WEIGHT, "none"))
    return found.value


@torch.no_grad()
def _assigned(lens: Lens, block: Any, weights: Floats | None, centres: Tensor, evaluated: bool = False) -> Sums:
    """Return the sums of the clusters of a block and, where asked for, its part of the objective."""
    frame = lens.frame(block)
    centres = centres.to(frame.dtype)
    labels = np.full(len(frame.points), -1, np.int32)
    with Scan(frame, len(centres), weights) as scan:
        sums = scan.assign_and_sum(finite_planes(frame, centres), labels)
    value = total(frame.to_centres(centres, labels), weights) if evaluated else 0.0
    return Sums(sums.rows, sums.weights, value)


def _added(parts: list[Sums]) -> Sums:
    rows = functools.reduce(np.add, (part.rows for part in parts))
    weights = functools.reduce(np.add, (part.weights for part in parts))
    return Sums(rows, weights, sum(part.value for part in parts))


def _filled(blocks: Blocks, seen: Any, centres: Tensor, sums: Sums) -> Sums:
    """Give each cluster without points one of those that are farthest from their centres."""
    empty = np.flatnonzero(sums.weights == 0)
    if empty.size == 0:
        return sums
    far: Far = blocks.reduced(blocks.each(_farthest, seen, centres, int(empty.size)), _farther)
    rows, weights = sums.rows.copy(), sums.weights.copy()
    for number, cluster in enumerate(empty[: len(far.values)]):
        if far.values[number] <= 0:
            break
        row, weight = far.weights[number] * far.rows[number], far.weights[number]
        rows[far.clusters[number]] -= row
        weights[far.clusters[number]] -= weight
        rows[cluster], weights[cluster] = row, weight
    return Sums(rows, weights, sums.value)


@torch.no_grad()
def _farthest(lens: Lens, block: Any, weights: Floats | None, centres: Tensor, count: int) -> Far:
    frame = lens.frame(block)
    labels = nearest(frame, centres.to(frame.dtype))
    values = frame.to_centres(centres.to(frame.dtype), labels).double().numpy()
    own = np.ones(len(values)) if weights is None else weights
    values = np.where(own > 0, values, 0)
    order = np.argsort(-values, kind="stable")[:count]
    return Far(values[order], frame.rows[order].astype(np.float64), labels[order].astype(np.int64), own[order])


def _farther(parts: list[Far]) -> Far:
    columns: list[NDArray[Any]] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(-columns[0], kind="stable")[: max(len(part.values) for part in parts)]
    return Far(*(column[order] for column in columns))


# ---------------------------------------------------------------------- the middle, and starts


@torch.no_grad()
def _moments(lens: Lens, block: Any, weights: Floats | None, mean: Floats | None) -> Moments:
    """Return the sum of the images of a block, or that of their squared distances to the mean."""
    points = lens.frame(block).points
    images = points.numpy().astype(np.float64)
    own = np.ones(len(images)) if weights is None else weights
    rows = own @ (images if mean is None else np.square(images - mean))
    return Moments(rows, float(own.sum()), len(images), points.dtype)


def _added_moments(parts: list[Moments]) -> Moments:
    rows = functools.reduce(np.add, (part.rows for part in parts))
    return Moments(rows, sum(part.weight for part in parts), sum(part.number for part in parts), parts[0].dtype)


def centred(blocks: Blocks, lens: Lens) -> tuple[Lens, Tensor, float, int]:
    """Return how points are seen from their middle; the middle, the mean variance of features, the number of points."""
    seen = blocks.sent(lens)
    first: Moments | None = blocks.reduced(blocks.each(_moments, seen, None), _added_moments)
    if first is None or first.weight == 0:
        raise ValueError(checks.message(f"X of {lens.owner}", SOME_WEIGHT, "none"))
    mean = first.rows / first.weight
    second: Moments = blocks.reduced(blocks.each(_moments, seen, mean), _added_moments)
    # The frame moves the mean off the boundary.
    frame = Frame(torch.from_numpy(mean)[None].to(first.dtype), lens.divergence, None, lens.dual)
    middle = frame.middle
    return replace(lens, middle=middle), middle, float((second.rows / first.weight).mean()), first.number


def lazy_start(blocks: Blocks, lens: Lens, k: int, random: np.random.RandomState) -> Tensor:
    """Return first centres by k-means||: five rounds that draw far points, and k-means++ among those."""
    seen = blocks.sent(lens)
    seed = int(random.randint(2**31 - 1))
    chosen: Tensor = blocks.reduced(blocks.each_at_random(_some, seen, seed, 1), _one_of)[1]
    for number in range(1, ROUNDS + 1):
        sums: Sums = blocks.reduced(blocks.each(_remaining, seen, chosen), _added)
        if sums.value == 0:
            break
        share = OVERSAMPLING * k / sums.value
        drawn: Tensor = blocks.reduced(blocks.each_at_random(_drawn, seen, seed + number, chosen, share), _stacked)
        chosen = torch.cat([chosen, drawn])
    if len(chosen) < k:  # small or degenerate data: points at random for the rest
        more = blocks.reduced(blocks.each_at_random(_some, seen, seed, k), _stacked_some)
        chosen = torch.cat([chosen, (more if isinstance(more, Tensor) else more[1])[: k - len(chosen)]])
    votes: Sums = blocks.reduced(blocks.each(_assigned, seen, chosen), _added)
    frame = Frame(chosen, lens.divergence, None, lens.dual, lens.middle)
    return choose_start(frame, k, "k-means++", random, votes.weights)


@torch.no_grad()
def _some(lens: Lens, block: Any, weights: Floats | None, seed: tuple[int, int], count: int) -> tuple[float, Tensor]:
    """Return random points of a block, and a random number to choose among blocks by."""
    frame = lens.frame(block)
    random = np.random.RandomState(seed)
    heavy = np.arange(len(block)) if weights is None else np.flatnonzero(weights)
    rows = random.permutation(heavy)[:count]
    # The largest of n uniform numbers, so that each point of all blocks is as likely to be the one.
    key = float(random.uniform() ** (1 / max(1, heavy.size))) if rows.size else -1.0
    return key, frame.starts(rows)


def _one_of(parts: list[tuple[float, Tensor]]) -> tuple[float, Tensor]:
    return max(parts, key=lambda part: part[0])


def _stacked_some(parts: list[Any]) -> Tensor:
    return torch.cat([part if isinstance(part, Tensor) else part[1] for part in parts])


def _stacked(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts)


@torch.no_grad()
def _remaining(lens: Lens, block: Any, weights: Floats | None, chosen: Tensor) -> Sums:
    """Return the sum of the divergences of a block to the nearest candidates."""
    return Sums(np.zeros(1), np.zeros(1), float(_probabilities(lens.frame(block), weights, chosen).sum()))


@torch.no_grad()
def _drawn(
    lens: Lens, block: Any, weights: Floats | None, seed: tuple[int, int], chosen: Tensor, share: float
) -> Tensor:
    """Return points of a block, drawn in proportion to their divergence to the nearest candidate."""
    frame = lens.frame(block)
    probabilities = _probabilities(frame, weights, chosen)
    random = np.random.RandomState(seed)
    return frame.starts(np.flatnonzero(random.uniform(size=len(probabilities)) < share * probabilities))


def _probabilities(frame: Frame, weights: Floats | None, chosen: Tensor) -> Floats:
    centres = chosen.to(frame.dtype)
    values = frame.to_centres(centres, nearest(frame, centres)).double().numpy()
    return values if weights is None else values * weights
