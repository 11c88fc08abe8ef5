"""K-means of Dask collections, block by block on one machine or many; imported only when such data come in.

Each pass sends the centroids to the blocks and gets sums back, which are added in a tree. Dask recomputes a block that
is lost with its worker.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from torch import Tensor, nn

from askew import checks
from askew._dask import Failure, attempt, reduced
from askew.clustering.inputs import as_table, check_not_negative, embed
from askew.clustering.lloyd import Descent, descend, nearest, total
from askew.clustering.scan import Scan, Sums
from askew.clustering.seeding import OVERSAMPLING, ROUNDS, init_centroids
from askew.clustering.view import AffineCentroids, AffineView, Weights
from askew.divergences import Bregman
from askew.encoders import for_numpy

Add = Callable[[list[Any]], Any]

# What points must be.
SOME_WEIGHT = "with at least one point that has weight"


# ---------------------------------------------------------------------- blocks


def check_collection(X: Any, what: str) -> None:
    """Raise unless X is a Dask table of numbers; nothing of it is computed."""
    known = isinstance(getattr(X, "ndim", None), int)  # any attribute of a Delayed is a Delayed
    array = known and hasattr(X, "rechunk")
    if known and X.ndim == 2 and hasattr(X, "to_dask_array"):  # a data frame
        checks.check_columns(X, what)
    elif not (array and X.ndim >= 2 and X.dtype.kind in "fiub"):
        must = "a dask array of numbers of shape (n, dim) or a data frame of dask's"
        got = f"{X.dtype} of shape {X.shape}" if array else type(X).__name__
        raise ValueError(checks.message(what, must, got))


def map_rows(X: Any, work: Callable[[Any], Any], dtype: Any, columns: int | None = None) -> Any:
    """Return a Dask array of ``work(block)``, one result for each row: ``(n,)``, or ``(n, columns)``."""
    work = functools.partial(_of_rows, work, dtype, columns)
    if hasattr(X, "to_dask_array"):  # a data frame, whose partitions keep the names of columns
        array, dask = (checks.optional_import(name, "dask", "Work on dask's data") for name in ("dask.array", "dask"))
        shape = (float("nan"),) if columns is None else (float("nan"), columns)
        parts = (dask.delayed(work, pure=False)(part) for part in X.to_delayed())
        return array.concatenate([array.from_delayed(part, shape, dtype) for part in parts])
    whole = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    if columns is None:
        meta = np.empty((0,), dtype)
        return whole.map_blocks(work, dtype=dtype, meta=meta, drop_axis=list(range(1, whole.ndim)))
    meta = np.empty((0, columns), dtype)
    return whole.map_blocks(work, dtype=dtype, meta=meta, chunks=(whole.chunks[0], (columns,)))


def _of_rows(work: Callable[[Any], Any], dtype: Any, columns: int | None, block: Any) -> Any:
    return work(block) if len(block) else np.empty((0,) if columns is None else (0, columns), dtype)


class Blocks:
    """The rows of a Dask array ``(n, ...)`` or data frame, block by block, with weights ``(n,)`` or None."""

    def __init__(self, X: Any, weights: Any, owner: str) -> None:
        self.dask = checks.optional_import("dask", "dask", f"{owner} of dask's data")
        check_collection(X, f"X of {owner}")
        self.owner, self.columns = owner, int(X.shape[1])
        if hasattr(X, "to_dask_array"):  # a data frame
            self.blocks = list(X.to_delayed())
            if weights is not None:
                must, hint = "None with a data frame of dask's", "Take X.to_dask_array(lengths=True)."
                raise ValueError(checks.message(f"sample_weight of {owner}", must, "given", hint))
        else:
            X = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
            self.blocks = X.to_delayed().ravel().tolist()
        self.weights = [None] * len(self.blocks)
        if weights is not None:
            self.weights = _aligned(weights, X.chunks[0], owner).to_delayed().tolist()

    def each(self, work: Callable[..., Any], context: Any, *arguments: object, seed: int | None = None) -> list[Any]:
        """Return one task for each block: ``work(context, block, weights, ...)``, with a seed per block if given."""
        task = self.dask.delayed(attempt, pure=False)
        tasks = []
        for number, (block, weights) in enumerate(zip(self.blocks, self.weights, strict=True)):
            seeds = () if seed is None else ((seed, number),)
            tasks.append(task(_run, number, work, self.owner, context, block, weights, *seeds, *arguments))
        return tasks

    def embedded(self, context: BlockContext) -> tuple[Blocks, BlockContext]:
        """Return the embeddings of all blocks, computed once and kept where they are, and how to view them."""
        if context.encoder is None:
            return self, context
        other = copy.copy(self)
        other.blocks = list(self.dask.persist(*self.each(_embeddings, self.sent(context))))
        return other, replace(context, encoder=None)

    def reduce(
        self, work: Callable[..., Any], add: Add, context: Any, *arguments: object, seed: int | None = None
    ) -> Any:
        """Return the results of :meth:`each` combined by ``add``; None if no block has rows."""
        return reduced(self.each(work, context, *arguments, seed=seed), add, self.blocks)

    def sent(self, value: object) -> Any:
        """Return a value that is sent once, however many tasks and passes take it.

        It is the result of a task that the cluster keeps, not scattered: scattered data are gone with the last worker
        that has them (Dask drops further copies after seconds), while a task is run again.
        """
        return self.dask.persist(self.dask.delayed(_identity, pure=False)(value))[0]


def _run(work: Callable[..., Any], owner: str, context: Any, block: Any, weights: Any, *arguments: Any) -> Any:
    """Return the result for a block; None for one without rows, as data frames have after a filter."""
    if block is None or isinstance(block, Failure):
        return block
    checked = None if weights is None else _checked_weights(weights, len(block), owner)
    return work(context, block, checked, *arguments) if len(block) else None


def _identity(value: object) -> object:
    return value


def _aligned(weights: Any, sizes: tuple[float, ...], owner: str) -> Any:
    """Return weights as a Dask array with the blocks of X; where lengths are unknown, the tasks check them."""
    what = f"sample_weight of {owner}"
    if not (checks.is_lazy(weights) and isinstance(getattr(weights, "ndim", None), int)):  # in memory, or a Delayed
        array = checks.optional_import("dask.array", "dask", f"{owner} of dask's data")
        weights = array.from_array(np.asarray(for_numpy(weights, what)))
    elif hasattr(weights, "to_dask_array"):  # a column of a data frame
        weights = weights.to_dask_array()
    rows = sum(sizes)
    known = weights.ndim == 1 and not math.isnan(weights.shape[0] + rows)
    if weights.ndim != 1 or (known and weights.shape[0] != rows):
        must = f"of shape ({'n' if math.isnan(rows) else rows},), one for each row of X"
        raise ValueError(checks.message(what, must, weights.shape))
    if known:
        return weights.rechunk({0: sizes})
    if len(weights.chunks[0]) != len(sizes):
        must = f"in {len(sizes)} blocks, as X, where lengths of blocks are not known"
        hint = "Call compute_chunk_sizes() of dask arrays first."
        raise ValueError(checks.message(what, must, len(weights.chunks[0]), hint))
    return weights


def _checked_weights(sample_weight: ArrayLike, rows: int, owner: str) -> Weights:
    """Return the weights of one block, ``(rows,)``, not negative; here all may be zero."""
    what = f"sample_weight of {owner}"
    whole = for_numpy(sample_weight, what)
    weights: Weights = check_array(
        whole, dtype=np.float64, order="C", ensure_2d=False, ensure_min_samples=0, input_name="sample_weight"
    )
    if weights.shape != (rows,):
        must = f"in the blocks of X, one of which has {rows} rows"
        hint = "Call compute_chunk_sizes() of dask arrays first."
        raise ValueError(checks.message(what, must, f"a block of shape {weights.shape}", hint))
    check_not_negative(weights, owner)
    return weights


# ---------------------------------------------------------------------- k-means


@dataclass(frozen=True)
class BlockContext:
    """What a task needs to view a block."""

    encoder: nn.Module | None
    divergence: Bregman
    dual: bool
    owner: str
    centre: Tensor | None = None

    @torch.no_grad()
    def view(self, block: Any) -> AffineView:
        """Return the points of a block, checked."""
        # Embeddings are checked for infinities.
        array = as_table(block, self.encoder is not None, self.owner, finite=False)
        points = embed(array, self.encoder, self.divergence, self.owner, dual=self.dual, progress=False)
        return self.view_of(points)

    def view_of(self, points: Tensor) -> AffineView:
        """Return embeddings seen from the centre."""
        return AffineView(points, self.divergence, None, self.dual, self.centre)


def _embeddings(context: BlockContext, block: Any, weights: Weights | None) -> NDArray[Any]:
    return context.view(block).points.numpy()


def lloyd(
    blocks: Blocks, context: BlockContext, centroids: Tensor, max_iter: int, tol: float, moved: Callable[[int], object]
) -> tuple[Descent, Sums]:
    """Run Lloyd's algorithm from centroids; return where it ends, and the sums and the objective there."""
    sent = blocks.sent(context)

    def assign(centroids: Tensor, affine: AffineCentroids) -> tuple[Sums, bool]:
        sums = blocks.reduce(_assign, _add, sent, centroids)
        return _reseeded(blocks, sent, centroids, sums), False

    end = descend(context.view_of(centroids.clone()), centroids, assign, max_iter, tol, moved)
    return end, blocks.reduce(_assign, _add, sent, end.centroids, True)


def objective(blocks: Blocks, context: BlockContext, centroids: Tensor) -> float:
    """Return the sum of the divergences between points and their nearest centroids."""
    sums: Sums | None = blocks.reduce(_assign, _add, blocks.sent(context), centroids, True)
    if sums is None or not sums.weights.any():
        raise ValueError(checks.message(f"X of {context.owner}", SOME_WEIGHT, "none"))
    return sums.value


@torch.no_grad()
def _assign(context: BlockContext, block: Any, weights: Weights | None, centroids: Tensor, value: bool = False) -> Sums:
    """Return the sums of the clusters of a block and, if ``value``, its part of the objective."""
    view = context.view(block)
    centroids = centroids.to(view.dtype)
    labels = np.full(len(view.points), -1, np.int32)
    with Scan(view, len(centroids), weights) as scan:
        sums = scan.assign_and_sum(view.affine(centroids).check_finite(view.dtype), labels)
    return sums._replace(value=total(view.divergences_to(centroids, labels), weights)) if value else sums


def _add(parts: list[Sums]) -> Sums:
    rows = functools.reduce(np.add, (part.rows for part in parts))
    weights = functools.reduce(np.add, (part.weights for part in parts))
    return Sums(rows, weights, value=sum(part.value for part in parts))


class Far(NamedTuple):
    """The points that are farthest from their centroids."""

    values: Weights
    rows: Weights
    clusters: NDArray[np.int64]
    weights: Weights


def _reseeded(blocks: Blocks, sent: Any, centroids: Tensor, sums: Sums) -> Sums:
    """Give each cluster without points one of the points that are farthest from their centroids."""
    empty = np.flatnonzero(sums.weights == 0)
    if empty.size == 0:
        return sums
    far: Far = blocks.reduce(_farthest, _farther, sent, centroids, int(empty.size))
    rows, weights = sums.rows.copy(), sums.weights.copy()
    for cluster, value, row, before, weight in zip(empty, *far, strict=False):
        if value <= 0:
            break
        rows[before] -= weight * row
        weights[before] -= weight
        rows[cluster], weights[cluster] = weight * row, weight
    return Sums(rows, weights)


@torch.no_grad()
def _farthest(context: BlockContext, block: Any, weights: Weights | None, centroids: Tensor, count: int) -> Far:
    view = context.view(block)
    labels = nearest(view, centroids.to(view.dtype))
    values = view.divergences_to(centroids.to(view.dtype), labels).double().numpy()
    weights = np.ones(len(values)) if weights is None else weights
    values = np.where(weights > 0, values, 0)
    order = np.argsort(-values, kind="stable")[:count]
    return Far(values[order], view.rows[order].astype(np.float64), labels[order].astype(np.int64), weights[order])


def _farther(parts: list[Far]) -> Far:
    columns: list[NDArray[Any]] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(-columns[0], kind="stable")[: max(len(part.values) for part in parts)]
    return Far(*(column[order] for column in columns))


# ---------------------------------------------------------------------- centre and seeding


class Moments(NamedTuple):
    """The weighted sum of rows, and their weight, number and dtype."""

    rows: Weights
    weight: float
    number: int
    dtype: torch.dtype


@torch.no_grad()
def _moments(context: BlockContext, block: Any, weights: Weights | None, mean: Weights | None) -> Moments:
    """Return the sum of the embeddings of a block or, given the mean, that of their squared distances to it."""
    points = context.view(block).points
    rows = points.numpy().astype(np.float64)
    weights = np.ones(len(rows)) if weights is None else weights
    return Moments(
        weights @ (rows if mean is None else np.square(rows - mean)), float(weights.sum()), len(rows), points.dtype
    )


def _add_moments(parts: list[Moments]) -> Moments:
    rows = functools.reduce(np.add, (part.rows for part in parts))
    return Moments(rows, sum(part.weight for part in parts), sum(part.number for part in parts), parts[0].dtype)


def centred(blocks: Blocks, context: BlockContext) -> tuple[BlockContext, AffineView, float, int]:
    """Return the context with the mean as centre, a view of it, the mean variance of features, the number of points."""
    sent = blocks.sent(context)
    first: Moments | None = blocks.reduce(_moments, _add_moments, sent, None)
    if first is None or first.weight == 0:
        raise ValueError(checks.message(f"X of {context.owner}", SOME_WEIGHT, "none"))
    mean = first.rows / first.weight
    second: Moments = blocks.reduce(_moments, _add_moments, sent, mean)
    # The view moves the mean off the boundary.
    centre = context.view_of(torch.from_numpy(mean)[None].to(first.dtype)).centre
    context = replace(context, centre=centre)
    return context, context.view_of(centre), float((second.rows / first.weight).mean()), first.number


def init_parallel(blocks: Blocks, context: BlockContext, k: int, random: np.random.RandomState) -> Tensor:
    """Return first centroids by k-means||: five rounds that sample far points, then k-means++ among those."""
    sent = blocks.sent(context)
    seed = int(random.randint(2**31 - 1))
    one_per_block = blocks.reduce(_any_points, _concatenated, sent, 1, seed=seed)
    chosen: Tensor = max(one_per_block, key=lambda keyed: keyed[0])[1]
    for number in range(1, ROUNDS + 1):
        remaining: float = blocks.reduce(_remaining, sum, sent, chosen)
        if remaining == 0:
            break
        share = OVERSAMPLING * k / remaining
        sampled = blocks.reduce(_far_points, _concatenated, sent, chosen, share, seed=seed + number)
        chosen = torch.cat([chosen, *sampled])
    if len(chosen) < k:  # small or degenerate data: random points for the rest
        more = blocks.reduce(_any_points, _concatenated, sent, k, seed=seed)
        chosen = torch.cat([chosen, torch.cat([points for _, points in more])[: k - len(chosen)]])
    votes: Sums = blocks.reduce(_assign, _add, sent, chosen)
    return init_centroids(context.view_of(chosen), k, "k-means++", random, votes.weights)


@torch.no_grad()
def _any_points(
    context: BlockContext, block: Any, weights: Weights | None, seed: tuple[int, int], count: int
) -> list[tuple[float, Tensor]]:
    """Return random points of a block, and a random key to choose among blocks by."""
    view = context.view(block)
    random = np.random.RandomState(seed)
    heavy = np.arange(len(block)) if weights is None else np.flatnonzero(weights)
    rows = random.permutation(heavy)[:count]
    # The largest of n uniform numbers, so that every point of all blocks is equally likely.
    key = float(random.uniform() ** (1 / max(1, heavy.size))) if rows.size else -1.0
    return [(key, view.initial_centroids(rows))]


@torch.no_grad()
def _remaining(context: BlockContext, block: Any, weights: Weights | None, chosen: Tensor) -> float:
    return float(_probabilities(context.view(block), weights, chosen).sum())


@torch.no_grad()
def _far_points(
    context: BlockContext, block: Any, weights: Weights | None, seed: tuple[int, int], chosen: Tensor, share: float
) -> list[Tensor]:
    """Return points of a block, sampled in proportion to their divergence to the nearest candidate."""
    view = context.view(block)
    probabilities = _probabilities(view, weights, chosen)
    random = np.random.RandomState(seed)
    return [view.initial_centroids(np.flatnonzero(random.uniform(size=len(probabilities)) < share * probabilities))]


def _probabilities(view: AffineView, weights: Weights | None, chosen: Tensor) -> Weights:
    centroids = chosen.to(view.dtype)
    values = view.divergences_to(centroids, nearest(view, centroids)).double().numpy()
    return values if weights is None else values * weights


def _concatenated(parts: list[list[Any]]) -> list[Any]:
    return [item for part in parts for item in part]
