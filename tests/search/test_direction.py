"""Search by a drift and by models with two encoders, in both directions, against all pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import askew
from askew.divergences import Drift, Embedded, NeuralBregman, Sqrt, make
from askew.search import ExactIndex, FaissIndex, keys_and_queries

DIM = 6
KINDS: dict[str, Any] = {
    "exact": ExactIndex,
    "flat": lambda *arguments: FaissIndex(*arguments, kind="flat"),
    "ivf": lambda *arguments: FaissIndex(*arguments, kind="ivf"),
    "hnsw": lambda *arguments: FaissIndex(*arguments, kind="hnsw"),
}


def windy(root: bool = False) -> Drift:
    """Return a drift under which a query has many items at D = 0."""
    torch.manual_seed(0)
    divergence = Drift(NeuralBregman(DIM), root)
    with torch.no_grad():
        divergence.drift[2].weight.mul_(300)  # type: ignore[index, union-attr]
    return divergence


def points(n: int, seed: int) -> Tensor:
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed))


def orders(divergence: Any, direction: str, queries: Tensor, items: Tensor) -> Tensor:
    with torch.no_grad():
        if direction == "query-first":
            return divergence.order(queries[:, None], items[None])
        return divergence.order(items[None], queries[:, None])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["query-first", "query-second"])
@pytest.mark.parametrize("root", [False, True], ids=["plain", "root"])
def test_a_drift_is_searched_by_the_value_before_relu(root: bool, direction: str, kind: str) -> None:
    divergence, items, queries = windy(root), points(2000, 1), points(20, 2)
    index = KINDS[kind](divergence, direction)
    index.add(items)
    values, ids = index.search(queries, 10)
    signed = orders(divergence, direction, queries, items)
    wanted = signed.topk(10, dim=1, largest=False)[0]
    assert (wanted < 0).any()
    found = signed.gather(1, torch.from_numpy(ids))
    hits = (found <= wanted[:, -1:] + 1e-4).double().mean()
    assert hits == 1 if kind in ("exact", "flat") else hits > 0.95
    torch.testing.assert_close(torch.from_numpy(values), divergence.from_order(found), rtol=1e-3, atol=1e-4)
    assert (values >= 0).all()
    assert (np.diff(found.numpy(), axis=1) >= -1e-4).all()
    assert index.recall(queries, 10) > 0.95
    if kind == "exact":
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("direction", ["query-first", "query-second"])
def test_keys_and_queries_of_a_drift(direction: str) -> None:
    divergence, items, queries = windy().double(), points(300, 1).double(), points(20, 2).double()
    signed = orders(divergence, direction, queries, items)
    for form in ("inner-product", "euclidean"):
        maps = keys_and_queries(Sqrt(divergence), direction, form, items)
        keys, vectors = maps.keys(items), maps.queries(queries)
        nearest = (vectors @ keys.T).argmax(1) if form == "inner-product" else torch.cdist(vectors, keys).argmin(1)
        assert torch.equal(nearest, signed.argmin(1))


@pytest.mark.parametrize("kind", ["exact", "flat"])
@pytest.mark.parametrize("direction", ["query-first", "query-second"])
@pytest.mark.parametrize("name", ["nbd", "drift-root"])
def test_two_encoders(name: str, direction: str, kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make(name, DIM, encoder=nn.Linear(9, DIM), second=nn.Linear(4, DIM))
    first, second = torch.randn(500, 9), torch.randn(500, 4)
    queries, items = (first[:20], second) if direction == "query-first" else (second[:20], first)
    index = KINDS[kind](model, direction)
    index.add(items)
    values, ids = index.search(queries, 5)
    with torch.no_grad():
        matrix = model.pairwise(queries, items) if direction == "query-first" else model.pairwise(items, queries).t()
    wanted = matrix.topk(5, dim=1, largest=False)[0]
    torch.testing.assert_close(torch.from_numpy(values), wanted, rtol=2e-3, atol=1e-4)
    index.save(tmp_path / "index")
    loaded = type(index).load(tmp_path / "index")
    np.testing.assert_array_equal(loaded.search(queries, 5)[1], ids)
    with pytest.raises((ValueError, RuntimeError), match=r"shapes|features|must be"):
        index.search(items[:3], 5)  # queries and items swapped


def test_learners_with_two_encoders_are_searched() -> None:
    pairs = np.random.default_rng(0).normal(size=(300, 2, 4))
    targets = np.maximum(pairs[:, 0] - pairs[:, 1], 0).sum(1)
    learner = askew.PairRegressor("nbd", "two-sided", steps=100, random_state=0).fit(pairs, targets)
    index = ExactIndex(learner)
    index.add(pairs[:, 1])
    wanted = np.sort(learner.pairwise(pairs[:5, 0], pairs[:, 1]))[:, :3]
    np.testing.assert_allclose(index.search(pairs[:5, 0], 3)[0], wanted, rtol=2e-3, atol=1e-4)
    with pytest.raises(ValueError, match=r"kneighbors must be a learner whose two points have one encoder"):
        learner.kneighbors(pairs[:5, 0])
    assert isinstance(learner.model_, Embedded)
    assert learner.transform(pairs[:, 1], side="second").shape == (300, 16)
