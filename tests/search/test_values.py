"""The order and the values of hits against float64: what an index guarantees, and where the network is evaluated."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from askew.divergences import Divergence, Reversed, Scaled, Sqrt, make
from askew.search import ExactIndex, FaissIndex, Index
from askew.search.certified import VALUE_UNITS
from askew.search.inner_product import DIRECTIONS

DIM = 8
# Relative, in float32.
RTOL = VALUE_UNITS * torch.finfo(torch.float32).eps
KINDS = ["exact", "flat", "ivf", "hnsw", "ivf-pq"]
both_directions = pytest.mark.parametrize("direction", DIRECTIONS)
every_kind = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def made(name: str) -> Divergence:
    torch.manual_seed(0)
    divergence = make(name, DIM)
    x, y = clusters(400, 5), clusters(400, 6)
    target = (x - y).relu().sum(-1)
    divergence.calibrate(x, y, target)
    optimizer = torch.optim.Adam(divergence.parameters(), 0.02)
    for _ in range(20):
        optimizer.zero_grad()
        (divergence(x, y) - target).square().mean().backward()
        optimizer.step()
    return divergence.eval().requires_grad_(False)


def clusters(count: int, seed: int) -> Tensor:
    centres = 3 * torch.randn(20, DIM, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    return centres[torch.arange(count) % 20] + torch.randn(count, DIM, generator=generator)


def new_index(kind: str, divergence: Divergence, direction: str) -> Index:
    return ExactIndex(divergence, direction) if kind == "exact" else FaissIndex(divergence, direction, kind)


def true_values(divergence: Divergence, queries: Tensor, items: Tensor, direction: str) -> Any:
    """Return all divergences in float64."""
    wide = copy.deepcopy(divergence).double()
    first, second = queries.double()[:, None], items.double()[None]
    return (wide(first, second) if direction == "query-first" else wide(second, first)).numpy()


def check(index: Index, queries: Tensor, items: Tensor, k: int = 10) -> None:
    """Raise unless values are within the guarantee of float64, and ascending."""
    values, ids = index.search(queries, k)
    truth = true_values(index.divergence, queries, items, index.direction)
    assert (np.diff(values, axis=1) >= 0).all()
    # A drift may cancel: S is the difference of two terms, and float32 has no more digits of it.
    slack = 1e-6 * float(np.median(truth)) if index.divergence.signed else 0.0
    np.testing.assert_allclose(values, np.take_along_axis(truth, ids, 1), rtol=RTOL, atol=slack)
    if isinstance(index, ExactIndex) or index.kind == "flat":
        np.testing.assert_allclose(values, np.sort(truth, 1)[:, :k], rtol=RTOL, atol=slack)


@every_kind
@both_directions
@pytest.mark.parametrize("name", ["nbd", "nbd-paper", "drift", "drift-root", "kl"])
def test_values_are_those_of_float64(name: str, direction: str, kind: str) -> None:
    positive = name == "kl"
    items, queries = (points.abs() + 0.1 if positive else points for points in (clusters(600, 0), clusters(40, 1)))
    divergence = make("kl", DIM) if positive else made(name)
    index = new_index(kind, divergence, direction)
    index.add(items)
    check(index, queries, items)


@both_directions
@pytest.mark.parametrize("wrapper", [Sqrt, lambda d: Scaled(d, 3.0), lambda d: Sqrt(Reversed(d))])
def test_wrappers(wrapper: Callable[[Divergence], Divergence], direction: str) -> None:
    items = clusters(600, 0)
    index = FaissIndex(wrapper(made("nbd")), direction, "ivf")
    assert index.divergence.ranks_by_order()
    index.add(items)
    check(index, clusters(40, 1), items)


@every_kind
@both_directions
@pytest.mark.parametrize("name", ["nbd", "drift"])
def test_queries_that_are_items(name: str, direction: str, kind: str) -> None:
    items = clusters(600, 0)
    items[500:520] = items[:20]  # twice
    index = new_index(kind, made(name), direction)
    index.add(items)
    order, ids = index.search_order(items[:20], 10)
    same = (items[torch.from_numpy(ids)] == items[:20, None]).all(-1).numpy()
    assert (order[same] == 0).all()
    if name == "nbd":  # with a drift, others may be nearer than 0
        assert (index.search(items[:20], 2)[0] == 0).all()
        np.testing.assert_array_equal(ids[:, :2], np.stack([np.arange(20), np.arange(500, 520)], 1))


@pytest.mark.filterwarnings("ignore:FaissIndex of kind")  # so near to each other, their codes are equal
@every_kind
@both_directions
@pytest.mark.parametrize("step", [1e-1, 1e-3, 1e-5])
def test_near_duplicates(step: float, direction: str, kind: str) -> None:
    """Their products are equal up to rounding, and their divergences are not."""
    generator = torch.Generator().manual_seed(3)
    queries = clusters(10, 1)
    items = clusters(600, 0)
    items[:500] = queries.repeat(50, 1) + step * torch.randn(500, DIM, generator=generator)
    index = new_index(kind, made("nbd"), direction)
    index.add(items)
    check(index, queries, items)


@both_directions
@pytest.mark.parametrize("offset", [1e2, 1e4])
def test_large_offsets(offset: float, direction: str) -> None:
    items, queries = clusters(600, 0) + offset, clusters(40, 1) + offset
    torch.manual_seed(0)
    divergence = make("nbd", DIM)
    divergence.calibrate(items[:300], items[300:600])
    divergence.eval().requires_grad_(False)
    for kind in ("exact", "ivf"):
        index = new_index(kind, divergence, direction)
        index.add(items)
        check(index, queries, items)


@both_directions
def test_one_item_far_longer_than_all(direction: str) -> None:
    items = clusters(600, 0)
    items[7] *= 1000
    index = ExactIndex(made("nbd"), direction)
    index.add(items)
    check(index, clusters(40, 1), items)


def evaluated(index: Index, queries: Tensor) -> int:
    """Return how many divergences a search evaluates."""
    count, values = 0, index._values

    def counted(queries: Tensor, items: Any, numbers: Any, rows: Any) -> Tensor:
        nonlocal count
        count += len(rows)
        return values(queries, items, numbers, rows)

    index._values = counted  # type: ignore[method-assign]
    index.search(queries, 10)
    del index._values  # type: ignore[method-assign]
    return count


@both_directions
@pytest.mark.parametrize("kind", ["exact", "ivf"])
def test_few_divergences_are_evaluated(kind: str, direction: str) -> None:
    items = clusters(600, 0)
    index = new_index(kind, made("nbd"), direction)
    index.add(items)
    assert evaluated(index, clusters(40, 1)) < 40
    assert evaluated(index, items[:40]) >= 40  # each finds itself
