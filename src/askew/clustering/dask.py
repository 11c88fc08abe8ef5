"""K-means of Dask collections, block by block on one machine or many; imported only when such data come in.

Each pass sends the centroids to the blocks and gets sums back, which are added in a tree. Dask recomputes a block that
is lost with its worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from torch import Tensor, nn

from askew import checks
from askew._dask import Failure, attempt, reduced
from askew.clustering.inputs import as_table, check_not_negative, embed
from askew.clustering.lloyd import Descent, FarPoints, descend, farthest, nearest, reseed, total
from askew.clustering.scan import Scan, Sums
from askew.clustering.seeding import init_centroids
from askew.clustering.view import AffineCentroids, AffineView, Weights
from askew.divergences import Bregman
from askew.encoders import for_numpy

# k-means||: rounds, and candidates per centroid in each round.
ROUNDS = 5
OVERSAMPLING = 2


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


def map_rows(X: Any, work: Callable[[Any], Any], dtype: Any, columns: tuple[int, ...] = ()) -> Any:
    """Return a Dask array of ``work(block)``, one result for each row: ``(n, *columns)``."""
    X = whole_rows(X.to_dask_array() if hasattr(X, "to_dask_array") else X)
    nothing = np.empty((0, *columns), dtype)
    shape = {"chunks": (X.chunks[0], columns)} if columns else {"drop_axis": list(range(1, X.ndim))}
    return X.map_blocks(partial(_of_rows, work, nothing), dtype=dtype, meta=nothing, **shape)


def _of_rows(work: Callable[[Any], Any], nothing: NDArray[Any], block: Any) -> Any:
    return work(block) if len(block) else nothing


def whole_rows(X: Any) -> Any:
    """Return a Dask array whose blocks divide rows only."""
    return X.rechunk(dict.fromkeys(range(1, X.ndim), -1))


@dataclass(frozen=True)
class BlockContext:
    """What a task needs to view a block."""

    encoder: nn.Module | None
    divergence: Bregman
    dual: bool
    owner: str
    centre: Tensor | None = None

    def view(self, block: Any) -> AffineView:
        """Return the points of a block, checked."""
        # Embeddings are checked for infinities.
        array = as_table(block, self.encoder is not None, self.owner, finite=False)
        return self.view_of(embed(array, self.encoder, self.divergence, self.owner, dual=self.dual, progress=False))

    def view_of(self, points: Tensor) -> AffineView:
        """Return embeddings seen from the centre."""
        return AffineView(points, self.divergence, None, self.dual, self.centre)


class Block(NamedTuple):
    """The points of a block, their weights and its number."""

    view: AffineView
    weights: Weights
    number: int


class Blocks:
    """The rows of a Dask array ``(n, ...)`` or data frame, block by block, with weights ``(n,)`` or None."""

    def __init__(self, X: Any, weights: Any, context: BlockContext) -> None:
        self.dask = checks.optional_import("dask", "dask", f"{context.owner} of dask's data")
        if hasattr(X, "to_dask_array"):  # a data frame
            self.blocks = list(X.to_delayed())
            if weights is not None:
                must, hint = "None with a data frame of dask's", "Take X.to_dask_array(lengths=True)."
                raise ValueError(checks.message(f"sample_weight of {context.owner}", must, "given", hint))
        else:
            self.blocks = whole_rows(X).to_delayed().ravel().tolist()
        self.weights = [None] * len(self.blocks)
        if weights is not None:
            self.weights = _aligned(weights, X.chunks[0], context.owner).to_delayed().tolist()
        self.seen_by(context)

    def seen_by(self, context: BlockContext) -> None:
        """Send what tasks need once, however many tasks and passes take it.

        It is the result of a task that the cluster keeps, not scattered: scattered data are gone with the last worker
        that has them (Dask drops further copies after seconds), while a task is run again.
        """
        self.context = context
        self._sent = self.dask.persist(self.dask.delayed(_identity, pure=False)(context))[0]

    def embed(self) -> None:
        """Replace all blocks by their embeddings, computed once and kept where they are."""
        if self.context.encoder is not None:
            self.blocks = list(self.dask.persist(*self._each(_embeddings)))
            self.seen_by(replace(self.context, encoder=None))

    def reduce(self, work: Callable[..., Any], add: Callable[[list[Any]], Any], *arguments: object) -> Any:
        """Return ``work(block, ...)`` of all blocks combined by ``add``; None if no block has rows."""
        return reduced(self._each(work, *arguments), add, self.blocks)

    def _each(self, work: Callable[..., Any], *arguments: object) -> list[Any]:
        task = self.dask.delayed(attempt, pure=False)
        parts = enumerate(zip(self.blocks, self.weights, strict=True))
        return [task(_run, number, number, work, self._sent, *part, *arguments) for number, part in parts]


@torch.no_grad()
def _run(number: int, work: Callable[..., Any], context: BlockContext, rows: Any, weights: Any, *rest: Any) -> Any:
    """Return the result for a block; None for one without rows, as data frames have after a filter."""
    if rows is None or isinstance(rows, Failure):
        return rows
    checked = np.ones(len(rows)) if weights is None else _checked_weights(weights, len(rows), context.owner)
    return work(Block(context.view(rows), checked, number), *rest) if len(rows) else None


def _identity(value: object) -> object:
    return value


def _embeddings(block: Block) -> NDArray[Any]:
    return block.view.points.numpy()


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


def lloyd(
    blocks: Blocks, centroids: Tensor, max_iter: int, tol: float, moved: Callable[[int], object]
) -> tuple[Descent, Sums]:
    """Run Lloyd's algorithm from centroids; return where it ends, and the sums and the objective there."""

    def assign(centroids: Tensor, affine: AffineCentroids) -> Sums:
        sums: Sums = blocks.reduce(_assign, Sums.total, centroids)
        empty = int(np.count_nonzero(sums.weights == 0))
        return reseed(sums, blocks.reduce(_farthest, partial(_top, empty), centroids, empty)) if empty else sums

    end = descend(blocks.context.view_of(centroids.clone()), centroids, assign, max_iter, tol, moved)
    return end, objective(blocks, end.centroids)


def objective(blocks: Blocks, centroids: Tensor) -> Sums:
    """Return the sums of the clusters of all points, with the objective."""
    sums: Sums = _with_weight(blocks.reduce(_assign, Sums.total, centroids, True), blocks.context.owner)
    return sums


def _with_weight(sums: Any, owner: str) -> Any:
    if sums is None or not sums.weights.any():
        raise ValueError(checks.message(f"X of {owner}", "with at least one point that has weight", "none"))
    return sums


def _assign(block: Block, centroids: Tensor, value: bool = False) -> Sums:
    """Return the sums of the clusters of a block and, if ``value``, its part of the objective."""
    view, weights, _ = block
    centroids = centroids.to(view.dtype)
    labels = np.full(len(view.points), -1, np.int32)
    with Scan(view, len(centroids), weights) as scan:
        sums = scan.assign_and_sum(view.affine(centroids).check_finite(view.dtype), labels)
    return sums._replace(value=total(view.divergences_to(centroids, labels), weights)) if value else sums


def _farthest(block: Block, centroids: Tensor, count: int) -> FarPoints:
    view, weights, _ = block
    centroids = centroids.to(view.dtype)
    return farthest(view, centroids, nearest(view, centroids), weights, count)


def _top(count: int, parts: list[Any]) -> Any:
    """Return the entries of all parts where the first column is largest; a part is a tuple of columns."""
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(-columns[0], kind="stable")[:count]
    return tuple(column[order] for column in columns)


# ---------------------------------------------------------------------- centre and seeding


class Moments(NamedTuple):
    """The weighted sum of rows, and their weight, number and dtype."""

    rows: Weights
    weights: Weights
    number: int
    dtype: torch.dtype


def _moments(block: Block, mean: Weights | None) -> Moments:
    """Return the sum of the embeddings of a block or, given the mean, that of their squared distances to it."""
    rows = block.view.points.numpy().astype(np.float64)
    rows = rows if mean is None else np.square(rows - mean)
    return Moments(block.weights @ rows, block.weights.sum(), len(rows), block.view.dtype)


def _add_moments(parts: list[Moments]) -> Moments:
    rows, weights, numbers, dtypes = zip(*parts, strict=True)
    return Moments(sum(rows), sum(weights), sum(numbers), dtypes[0])


def centre(blocks: Blocks) -> tuple[AffineView, float, int]:
    """See all blocks from the mean of all points; return a view of it, the mean variance and the number of points."""
    first: Moments = _with_weight(blocks.reduce(_moments, _add_moments, None), blocks.context.owner)
    mean = first.rows / first.weights
    second: Moments = blocks.reduce(_moments, _add_moments, mean)
    # The view moves the mean off the boundary.
    view = blocks.context.view_of(torch.from_numpy(mean)[None].to(first.dtype))
    blocks.seen_by(replace(blocks.context, centre=view.centre))
    return blocks.context.view_of(view.centre), float((second.rows / first.weights).mean()), first.number


def init_parallel(blocks: Blocks, k: int, random: np.random.RandomState) -> Tensor:
    """Return first centroids by k-means||: five rounds that sample far points, then k-means++ among those.

    Bahmani et al.: Scalable k-means++. VLDB 2012.
    """
    seed = int(random.randint(2**31 - 1))

    def sampled(chosen: Tensor | None, count: int, number: int) -> Tensor:
        _, points = blocks.reduce(_sample, partial(_top, count), chosen, count, seed + number)
        return torch.from_numpy(points)

    chosen = sampled(None, 1, 0)
    for number in range(1, ROUNDS + 1):
        chosen = torch.cat([chosen, sampled(chosen, OVERSAMPLING * k, number)])
    if len(chosen) < k:  # small or degenerate data: random points for the rest
        chosen = torch.cat([chosen, sampled(None, k - len(chosen), ROUNDS + 1)])
    votes: Sums = blocks.reduce(_assign, Sums.total, chosen)
    return init_centroids(blocks.context.view_of(chosen), k, "k-means++", random, votes.weights)


def _sample(block: Block, chosen: Tensor | None, count: int, seed: int) -> tuple[Weights, NDArray[Any]]:
    """Return points sampled in proportion to their weight times their divergence to the nearest of the chosen ones.

    In a race of exponential times with these rates, the first points of all blocks are such a sample: times are
    returned with a minus.
    """
    view, rates, number = block
    if chosen is not None:
        centroids = chosen.to(view.dtype)
        rates = rates * view.divergences_to(centroids, nearest(view, centroids)).double().numpy()
    running = np.flatnonzero(rates)
    times = np.random.RandomState((seed, number)).exponential(size=len(rates))[running] / rates[running]
    first = np.argsort(times)[:count]
    return -times[first], view.initial_centroids(running[first]).numpy()
