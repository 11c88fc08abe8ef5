"""Exact search among, and scores of, points that Dask holds in blocks; each block is processed where it is."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import checks
from askew._dask import attempt, reduced
from askew._parallel import over_blocks
from askew.divergences import Divergence, split_encoder
from askew.encoders import as_points, encode
from askew.search.base import Found
from askew.search.exact import ExactIndex, merged

# Pairs whose divergence is computed at a time.
SCORED_PAIRS = 1 << 11


class _Answer(NamedTuple):
    """The nearest of some consecutive rows: divergences, row numbers from the first of them on, how many there are."""

    values: NDArray[Any]
    places: NDArray[np.int64]
    rows: int


class _Scorer(NamedTuple):
    encoder: nn.Module | None
    divergence: Divergence
    dtype: torch.dtype  # of the scores


class _Blocks(NamedTuple):
    """A task for each block of rows, their lengths (NaN where not known), the number of features, the dtype."""

    tasks: list[Any]
    sizes: tuple[float, ...]
    columns: int
    dtype: np.dtype[Any]


def search_blocks(
    divergence: object, items: Any, queries: ArrayLike | Tensor, k: int = 10, direction: str = "query-first"
) -> Found:
    """Return the nearest of all items of a Dask collection, exactly, without bringing them together.

    Each block is searched where it is, and only its k best hits travel. For one pass over items that are on disk or on
    several machines; an index answers many searches faster. As in an index, NaN and infinity are an error.

    Parameters
    ----------
    divergence, direction
        As in :class:`ExactIndex`.
    items
        A Dask array, ``(n, dim)``, or data frame of numbers. Lengths of blocks need not be known.
    queries, k
        ``(q, dim)``, in memory, and the number of hits for each.

    Returns
    -------
    tuple of arrays, ``(q, k)`` each
        Divergences in ascending order, and the numbers of the rows.

    Examples
    --------
    >>> import dask.array as da
    >>> items = da.from_array(np.arange(1.0, 101.0)[:, None], chunks=(30, 1))
    >>> search_blocks("itakura-saito", items, [[41.2]], k=2)[1]
    array([[40, 41]])
    """
    dask = checks.optional_import("dask", "dask", "search_blocks")
    blocks = _blocks(items, "items of search_blocks")
    checks.check_size(k, "k of search_blocks")
    _check_hits(k, sum(blocks.sizes))
    task = dask.delayed(attempt, pure=False)
    # Sent once, not with each block.
    sent = dask.delayed((divergence, as_points(queries).cpu()), pure=False, traverse=False)
    parts = [task(_search_block, i, sent, block, k, direction) for i, block in enumerate(blocks.tasks)]
    answer: _Answer = reduced(parts, functools.partial(_merged, k=k), blocks.tasks)
    _check_hits(k, answer.rows)
    return answer.values, answer.places


def _check_hits(k: int, count: float) -> None:
    if k > count:  # False for NaN, a number that is not known yet
        raise ValueError(checks.message("k of search_blocks", f"at most {count:.0f}, the number of items", k))


def _search_block(sent: tuple[object, Tensor], block: Any, k: int, direction: str) -> _Answer:
    divergence, queries = sent
    if len(block) == 0:
        return _Answer(np.zeros((len(queries), 0)), np.zeros((len(queries), 0), np.int64), 0)
    index = ExactIndex(divergence, direction, progress=False)
    index.add(block)
    return _Answer(*index.search(queries, min(k, len(block))), len(block))


def _merged(parts: list[_Answer], k: int) -> _Answer:
    """Return the k nearest of answers about consecutive rows; of equal ones, the first rows."""
    known = [part for part in parts if part.rows] or parts[:1]
    offsets = np.cumsum([0, *(part.rows for part in known)])
    answers = [(part.values, part.places + offset) for part, offset in zip(known, offsets[:-1], strict=True)]
    return _Answer(*merged(answers, k), int(offsets[-1]))


def score_blocks(divergence: object, first: Any, second: Any) -> Any:
    """Return the divergences of pairs in two Dask collections, row by row, as a Dask array that is not computed yet.

    A pair with NaN or infinity gives what a call of the divergence gives: ``"euclidean"`` and ``"mahalanobis"``, which
    do not check values, give NaN or infinity for this pair alone; all others raise a ValueError when its block is
    computed.

    Parameters
    ----------
    divergence
        As in :class:`ExactIndex`.
    first, second
        Dask arrays, ``(n, dim)`` each, or data frames of numbers, of the same length: the first points of the pairs,
        and the second ones. Where lengths of blocks are not known, as in data frames, both need blocks of the same
        lengths.

    Returns
    -------
    dask array, ``(n,)``
        D(first_i, second_i), in the blocks of ``first``.

    Examples
    --------
    >>> import dask.array as da
    >>> first, second = da.full((5, 2), 0.5), da.from_array(np.tile([0.9, 0.1], (5, 1)), chunks=(2, 2))
    >>> score_blocks("kl", first, second).compute().round(3)
    array([0.511, 0.511, 0.511, 0.511, 0.511])
    """
    dask = checks.optional_import("dask", "dask", "score_blocks")
    array = checks.optional_import("dask.array", "dask", "score_blocks")
    x, y = _blocks(first, "first of score_blocks"), _blocks(second, "second of score_blocks")
    rows = sum(x.sizes), sum(y.sizes)
    if rows[0] != rows[1] and not math.isnan(sum(rows)):
        got = f"{rows[0]} and {rows[1]} rows"
        raise ValueError(checks.message("first and second of score_blocks", "of the same length", got))
    if not math.isnan(sum(rows)):
        y = _blocks(second.rechunk({0: x.sizes}), "second of score_blocks")
    elif len(x.tasks) != len(y.tasks):
        got = f"{len(x.tasks)} and {len(y.tasks)} blocks"
        raise _blocks_differ("first and second", "in as many blocks, where their lengths are not known", got)
    scorer = _scorer(divergence, x, y)
    kind = np.float64 if scorer.dtype == torch.float64 else np.float32
    sent = dask.delayed(scorer, pure=False, traverse=False)
    score = dask.delayed(_score_block, pure=False)
    sizes = (b if math.isnan(a) else a for a, b in zip(x.sizes, y.sizes, strict=True))
    triples = zip(sizes, x.tasks, y.tasks, strict=True)
    return array.concatenate([array.from_delayed(score(sent, *pair), (size,), kind) for size, *pair in triples])


def _blocks_differ(what: str, must: str, got: str) -> ValueError:
    hint = "Take data frames as frame.to_dask_array(lengths=True); of arrays call compute_chunk_sizes()."
    return ValueError(checks.message(f"{what} of score_blocks", must, got, hint))


def _scorer(divergence: object, x: _Blocks, y: _Blocks) -> _Scorer:
    # Copied: a model that is trained further must not change what is computed later.
    encoder, inner = copy.deepcopy(split_encoder(divergence, x.columns, "score_blocks"))
    for module in (inner,) if encoder is None else (inner, encoder):
        module.eval().requires_grad_(False)
    if inner.dtype == torch.bfloat16:  # numpy has no such numbers
        inner = inner.float()
    if inner.dtype is not None:
        wide = inner.dtype == torch.float64
    else:
        numbers = () if encoder is None else (*encoder.parameters(), *encoder.buffers())
        kinds = {number.dtype for number in numbers if number.is_floating_point()}
        given = np.result_type(x.dtype, y.dtype)
        wide = torch.float64 in kinds if kinds else given == np.float64 or given.kind in "iu"
    return _Scorer(encoder, inner, torch.float64 if wide else torch.float32)


def _score_block(scorer: _Scorer, first: Any, second: Any) -> NDArray[Any]:
    if len(first) != len(second):
        got = f"a block of {len(first)} and one of {len(second)}"
        raise _blocks_differ("blocks of first and second", "of the same lengths", got)
    result = torch.empty(len(first), dtype=scorer.dtype)
    if len(first) == 0:  # not every encoder takes an empty batch
        return result.numpy()
    x, y = (encode(scorer.encoder, as_points(points)).to(scorer.dtype) for points in (first, second))
    numbers = (*scorer.divergence.parameters(), *scorer.divergence.buffers())
    device = numbers[0].device if numbers else x.device

    def work(part: slice) -> None:
        result[part] = scorer.divergence(x[part].to(device), y[part].to(device)).cpu()

    over_blocks(len(x), SCORED_PAIRS, work)
    return result.numpy()


def _blocks(points: Any, what: str) -> _Blocks:
    """Return a Dask collection as blocks of whole rows."""
    ndim = getattr(points, "ndim", 0)  # any attribute of a Delayed is another Delayed
    lazy = isinstance(ndim, int) and ndim >= 2 and callable(getattr(points, "to_delayed", None))
    if lazy and hasattr(points, "to_dask_array"):  # a data frame
        kinds = checks.check_columns(points, what)
        tasks = list(points.to_delayed())
        return _Blocks(tasks, (math.nan,) * len(tasks), len(kinds), np.result_type(*kinds))
    if not (lazy and callable(getattr(points, "rechunk", None))):
        must = "a dask array of shape (n, dim) or a data frame of dask's"
        hint = "An array in memory becomes one by dask.array.from_array(points)."
        raise TypeError(checks.message(what, must, type(points).__name__, hint))
    if points.dtype.kind not in "biufO":
        raise TypeError(checks.message(what, "real numbers", f"an array of {points.dtype}"))
    whole = points.rechunk(dict.fromkeys(range(1, points.ndim), -1))
    return _Blocks(whole.to_delayed().ravel().tolist(), whole.chunks[0], int(whole.shape[1]), whole.dtype)
