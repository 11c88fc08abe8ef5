"""K-means of data that dask holds in blocks, on one machine or on many: only sums of clusters travel.

Each pass hands the centres to the blocks and gets sums back, which are added in a tree. A block that is lost with its
worker is made again by dask from where it came from.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askew import checks
from askew.clustering.frame import Frame
from askew.clustering.inputs import as_images
from askew.clustering.lloyd import finite_planes, nearest, total
from askew.clustering.scanning import Scan
from askew.clustering.starts import OVERSAMPLING, ROUNDS, choose_start
from askew.divergences import Bregman

__all__ = [
    "Blocks",
    "Lens",
    "is_lazy",
    "lazy_kmeans",
    "lazy_objective",
    "lazy_rows",
    "lazy_start",
    "middle_and_variance",
]

# Sums that are added by one task.
BRANCHES = 16
# Iterations without progress after which it is rounding alone that moves centres.
STRIKES = 2

Floats = NDArray[np.float64]


def is_lazy(X: object) -> bool:
    """Whether data are a collection of dask's, which is not in memory."""
    return callable(getattr(X, "__dask_graph__", None))


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
    def frame(self, block: NDArray[Any]) -> Frame:
        """Return the points of a block, checked, as the clustering sees them."""
        array = np.ascontiguousarray(block)
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
        images = as_images(array, self.encoder, self.divergence, self.owner, dual=self.dual, progress=False)
        return Frame(images, self.divergence, None, self.dual, self.middle)


# ---------------------------------------------------------------------- blocks


class Blocks:
    """The rows of a dask array or data frame, block by block.

    Parameters
    ----------
    X
        A dask array, ``(n, ...)``, or data frame of numbers.
    weights
        Weights of the rows, a dask array ``(n,)``; None for 1.
    owner
        Who asks, for errors.
    """

    def __init__(self, X: Any, weights: Any, owner: str) -> None:
        dask = checks.optional_import("dask", "dask", f"{owner} of dask's data")
        self.dask = dask
        if hasattr(X, "to_dask_array"):  # a data frame
            self.names: list[str] | None = [str(name) for name in X.columns]
            self.columns = len(self.names)
            self.blocks = [dask.delayed(np.asarray)(part) for part in X.to_delayed()]
            if weights is not None:
                mend = "Take X.to_dask_array(lengths=True)."
                raise ValueError(
                    checks.problem(f"sample_weight of {owner}", "None with a data frame of dask's", "given", mend)
                )
        else:
            self.names, self.columns = None, int(X.shape[1]) if X.ndim > 1 else 0
            if X.ndim < 2 or X.dtype.kind not in "fiub":
                must = "a dask array of numbers of shape (n, dim)"
                raise ValueError(checks.problem(f"X of {owner}", must, f"{X.dtype} of shape {X.shape}"))
            whole = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
            self.blocks = whole.to_delayed().ravel().tolist()
            if weights is not None:
                weights = weights.rechunk({0: whole.chunks[0]})
        self.weights = [None] * len(self.blocks) if weights is None else weights.to_delayed().ravel().tolist()

    def each(self, work: Callable[..., Any], lens: Any, *arguments: object) -> list[Any]:
        """Return one task for each block: ``work(lens, block, weights, ...)``."""
        task = self.dask.delayed(_unless_empty, pure=False)
        return [task(work, lens, block, w, *arguments) for block, w in zip(self.blocks, self.weights, strict=True)]

    def each_at_random(self, work: Callable[..., Any], lens: Any, seed: int, *arguments: object) -> list[Any]:
        """Return one task for each block that draws: it gets a seed of its own, wherever it is computed."""
        task = self.dask.delayed(_unless_empty, pure=False)
        parts = enumerate(zip(self.blocks, self.weights, strict=True))
        return [task(work, lens, block, w, (seed, number), *arguments) for number, (block, w) in parts]

    def encoded(self, lens: Lens) -> Blocks:
        """Return the images of all blocks, made once and kept where they are made."""
        task, seen = self.dask.delayed(_encoded, pure=False), self.sent(lens)
        images = self.dask.persist(*(task(seen, block) for block in self.blocks))
        other = copy.copy(self)
        other.blocks = list(images)
        return other

    def reduced(self, tasks: Sequence[Any], add: Callable[[list[Any]], Any]) -> Any:
        """Return what all tasks give together, added in a tree so that no machine sees all parts; None if nothing."""
        join = self.dask.delayed(_joined, pure=False)
        while len(tasks) > 1:
            tasks = [join(add, list(tasks[i : i + BRANCHES])) for i in range(0, len(tasks), BRANCHES)]
        return self.dask.compute(tasks[0])[0]

    def sent(self, value: object) -> Any:
        """Return a value that is sent once, however many tasks and passes take it.

        It is the result of a task that is kept by the cluster, not scattered: what was scattered is gone with the last
        worker that has it (dask drops further copies after seconds), while a task is done again.
        """
        return self.dask.persist(self.dask.delayed(_itself, pure=False)(value))[0]


def lazy_rows(X: Any, work: Callable[[Any], Any], dtype: Any, columns: int | None = None) -> Any:
    """Return a dask array of what a function makes of each row: ``(n,)``, or ``(n, columns)``.

    Parameters
    ----------
    X
        A dask array ``(n, ...)`` or data frame.
    work
        Takes an array of some rows.
    dtype, columns
        Of what it returns.
    """
    if hasattr(X, "to_dask_array"):  # a data frame, whose parts keep their names
        array, dask = (checks.optional_import(name, "dask", "Work on dask's data") for name in ("dask.array", "dask"))
        work = functools.partial(_rows_of, work, dtype, columns)
        shape = (float("nan"),) if columns is None else (float("nan"), columns)
        parts = (dask.delayed(work, pure=False)(part) for part in X.to_delayed())
        return array.concatenate([array.from_delayed(part, shape, dtype) for part in parts])
    whole = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    work = functools.partial(_rows_of, work, dtype, columns)
    if columns is None:
        meta = np.empty((0,), dtype)
        return whole.map_blocks(work, dtype=dtype, meta=meta, drop_axis=list(range(1, whole.ndim)))
    meta = np.empty((0, columns), dtype)
    return whole.map_blocks(work, dtype=dtype, meta=meta, chunks=(whole.chunks[0], (columns,)))


def _rows_of(work: Callable[[Any], Any], dtype: Any, columns: int | None, block: Any) -> Any:
    return work(block) if len(block) else np.empty((0,) if columns is None else (0, columns), dtype)


def _unless_empty(work: Callable[..., Any], lens: Lens, block: NDArray[Any], *arguments: Any) -> Any:
    """Return what is made of a block; None of one without rows, as data frames have after a filter."""
    return work(lens, block, *arguments) if len(block) else None


def _itself(value: object) -> object:
    return value


def _joined(add: Callable[[list[Any]], Any], parts: list[Any]) -> Any:
    known = [part for part in parts if part is not None]
    return add(known) if len(known) > 1 else next(iter(known), None)


def _encoded(lens: Lens, block: NDArray[Any]) -> NDArray[Any]:
    return lens.frame(block).points.numpy() if len(block) else np.zeros((0, 1))


# ---------------------------------------------------------------------- k-means


def lazy_kmeans(
    blocks: Blocks, lens: Lens, centres: Tensor, max_iter: int, tol: float, moved: Callable[[int], object]
) -> tuple[Tensor, Sums, int]:
    """Run Lloyd's algorithm from centres; return the last ones, the sums of their clusters and the iterations."""
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
    return centres, final, iteration


def lazy_objective(blocks: Blocks, lens: Lens, centres: Tensor) -> float:
    """Return the sum of the divergences between points and their nearest centres."""
    found: Sums | None = blocks.reduced(blocks.each(_assigned, blocks.sent(lens), centres, True), _added)
    return 0.0 if found is None else found.value


@torch.no_grad()
def _assigned(
    lens: Lens, block: NDArray[Any], weights: Floats | None, centres: Tensor, evaluated: bool = False
) -> Sums:
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
def _farthest(lens: Lens, block: NDArray[Any], weights: Floats | None, centres: Tensor, count: int) -> Far:
    frame = lens.frame(block)
    labels = nearest(frame, centres.to(frame.dtype))
    values = frame.to_centres(centres.to(frame.dtype), labels).double().numpy()
    own = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    values = np.where(own > 0, values, 0)
    order = np.argsort(-values, kind="stable")[:count]
    return Far(values[order], frame.rows[order].astype(np.float64), labels[order].astype(np.int64), own[order])


def _farther(parts: list[Far]) -> Far:
    columns: list[NDArray[Any]] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(-columns[0], kind="stable")[: max(len(part.values) for part in parts)]
    return Far(*(column[order] for column in columns))


# ---------------------------------------------------------------------- the middle, and starts


@torch.no_grad()
def _moments(lens: Lens, block: NDArray[Any], weights: Floats | None, mean: Floats | None) -> Moments:
    """Return the sum of the images of a block, or that of their squared distances to the mean."""
    points = lens.frame(block).points
    images = points.numpy().astype(np.float64)
    own = np.ones(len(images)) if weights is None else np.asarray(weights, dtype=np.float64)
    if own.min() < 0:
        raise ValueError(checks.problem(f"sample_weight of {lens.owner}", "numbers of at least zero", own.min()))
    rows = own @ (images if mean is None else np.square(images - mean))
    return Moments(rows, float(own.sum()), len(images), points.dtype)


def _added_moments(parts: list[Moments]) -> Moments:
    rows = functools.reduce(np.add, (part.rows for part in parts))
    return Moments(rows, sum(part.weight for part in parts), sum(part.number for part in parts), parts[0].dtype)


def middle_and_variance(blocks: Blocks, lens: Lens) -> tuple[Tensor, float, int]:
    """Return the mean image, ``(1, dim)``, the mean variance of its features, and the number of points."""
    first: Moments | None = blocks.reduced(blocks.each(_moments, lens, None), _added_moments)
    if first is None or first.weight == 0:
        raise ValueError(checks.problem(f"X of {lens.owner}", "with at least one point that has weight", "none"))
    mean = first.rows / first.weight
    second: Moments = blocks.reduced(blocks.each(_moments, lens, mean), _added_moments)
    return torch.from_numpy(mean)[None].to(first.dtype), float((second.rows / first.weight).mean()), first.number


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
def _some(
    lens: Lens, block: NDArray[Any], weights: Floats | None, seed: tuple[int, int], count: int
) -> tuple[float, Tensor]:
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
def _remaining(lens: Lens, block: NDArray[Any], weights: Floats | None, chosen: Tensor) -> Sums:
    """Return the sum of the divergences of a block to the nearest candidates."""
    return Sums(np.zeros(1), np.zeros(1), float(_probabilities(lens.frame(block), weights, chosen).sum()))


@torch.no_grad()
def _drawn(
    lens: Lens, block: NDArray[Any], weights: Floats | None, seed: tuple[int, int], chosen: Tensor, share: float
) -> Tensor:
    """Return points of a block, drawn in proportion to their divergence to the nearest candidate."""
    frame = lens.frame(block)
    probabilities = _probabilities(frame, weights, chosen)
    random = np.random.RandomState(seed)
    return frame.starts(np.flatnonzero(random.uniform(size=len(probabilities)) < share * probabilities))


def _probabilities(frame: Frame, weights: Floats | None, chosen: Tensor) -> Floats:
    centres = chosen.to(frame.dtype)
    values = frame.to_centres(centres, nearest(frame, centres)).double().numpy()
    return values if weights is None else values * np.asarray(weights, dtype=np.float64)
