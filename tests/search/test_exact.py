"""Exact search: the same as looking at every pair, for every divergence."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from members import DIM, into_domain, train
from numpy.typing import NDArray
from sklearn.datasets import load_iris
from torch import Tensor, nn

import askew
from askew.divergences import Bregman, Divergence, Dual, Embedded, Jensen, Reversed, Symmetrized, make
from askew.encoders import SmallCNN
from askew.potentials import NegativeEntropy
from askew.search import ExactIndex, FaissIndex, keys_and_queries, pairs
from askew.search.certified import VALUE_UNITS
from askew.search.inner_product import DIRECTIONS

Floats = NDArray[np.floating[Any]]
LEARNED = ["nbd", "nbd-paper", "mahalanobis", "bregman-gs", "bregman-sqrt"]


@functools.cache
def made(name: str) -> Divergence:
    """Return a divergence after some training steps; tests must not change it."""
    torch.manual_seed(sum(map(ord, name)))
    divergence = make(name, DIM)
    if name in LEARNED:
        train(divergence)
    return divergence.eval().requires_grad_(False)


def points(divergence: Divergence, n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return into_domain(divergence.domain, torch.randn(n, DIM, generator=generator))


def brute_force(divergence: Divergence, queries: Tensor, items: Tensor, direction: str) -> Floats:
    """Return all divergences by the form that does not cancel, ``(queries, items)``."""
    first, second = queries[:, None], items[None]
    with torch.no_grad():
        return (divergence(first, second) if direction == "query-first" else divergence(second, first)).numpy()


def assert_nearest(
    found: tuple[Floats, Any], matrix: Floats, ids: Any, rtol: float = 1e-5, atol: float | None = None
) -> None:
    """Raise unless what was found is the nearest by a matrix whose columns have these ids."""
    values, hits = found
    k = values.shape[1]
    assert hits.dtype == np.int64
    assert (np.diff(values, axis=1) >= 0).all()
    tolerance = {"rtol": rtol, "atol": rtol * 1e-2 * matrix.max() if atol is None else atol}
    np.testing.assert_allclose(values, np.sort(matrix, 1)[:, :k], **tolerance)
    order = np.argsort(ids)
    columns = order[np.searchsorted(ids, hits, sorter=order)]
    np.testing.assert_array_equal(np.asarray(ids)[columns], hits)
    np.testing.assert_allclose(np.take_along_axis(matrix, columns, 1), values, **tolerance)
    assert all(len(set(row)) == k for row in hits)


# ---------------------------------------------------------------------- every divergence


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", askew.names())
def test_every_divergence(name: str, direction: str, dtype: torch.dtype) -> None:
    divergence = copy.deepcopy(made(name)).to(dtype)
    items, queries = (points(divergence, n, n).to(dtype) for n in (80, 17))
    ids = np.random.default_rng(0).permutation(1000)[:80]
    index = ExactIndex(divergence, direction)
    index.add(items[:50], ids[:50])
    index.add(items[50:], ids[50:])
    matrix = brute_force(divergence, queries, items, direction)
    found = index.search(queries, 7)
    assert found[0].dtype == matrix.dtype
    # What the index guarantees: networks have values from products, others their own.
    rtol = VALUE_UNITS * torch.finfo(dtype).eps if divergence.ranks_by_order() else 1e-5
    assert_nearest(found, matrix, ids, rtol)

    index.remove(ids[::3])
    keep = np.arange(80) % 3 > 0
    assert_nearest(index.search(queries, 7), matrix[:, keep], ids[keep], rtol)
    index.remove(ids[1:5:3])  # too few to close the gaps
    keep[1:5:3] = False
    assert_nearest(index.search(queries, 7), matrix[:, keep], ids[keep], rtol)
    index.add(items[~keep], ids[~keep])
    assert_nearest(index.search(queries, 80), matrix, ids, rtol)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "divergence",
    [
        Symmetrized(made("nbd")),
        Reversed(made("kl")),
        Jensen(Bregman(NegativeEntropy(DIM))),
        Dual(Bregman(NegativeEntropy(DIM))),
        Embedded(nn.Identity(), Embedded(nn.Softplus(), made("itakura-saito"))),
    ],
    ids=lambda divergence: type(divergence).__name__,
)
def test_wrappers(divergence: Divergence, direction: str) -> None:
    items, queries = (points(divergence, n, n) for n in (80, 17))
    index = ExactIndex(divergence, direction)
    index.add(items)
    matrix = brute_force(divergence, queries.reshape(-1, DIM), items, direction) if divergence.dim else None
    if matrix is None:
        with torch.no_grad():
            pairs = divergence.pairwise(queries, items), divergence.pairwise(items, queries).t()
        matrix = pairs[DIRECTIONS.index(direction)].numpy()
        assert_nearest(index.search(queries, 5), matrix, np.arange(80), rtol=2e-3)
    else:
        assert_nearest(index.search(queries, 5), matrix, np.arange(80))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_points_on_the_boundary(direction: str) -> None:
    """The first argument of KL may have zeros, also in the same place everywhere."""
    kl = made("kl-simplex")
    first, second = (points(kl, n, n) for n in (40, 41))
    first[::2, 0] = 0
    first[:, 2] = 0
    first /= first.sum(1, keepdim=True)
    queries, items = (first, second) if direction == "query-first" else (second, first)
    index = ExactIndex(kl, direction)
    index.add(items)
    assert_nearest(index.search(queries, 6), brute_force(kl, queries, items, direction), np.arange(len(items)))
    turned = ExactIndex(Reversed(kl), "query-second" if direction == "query-first" else "query-first")
    turned.add(items)
    np.testing.assert_array_equal(turned.search(queries, 6)[1], index.search(queries, 6)[1])


# ---------------------------------------------------------------------- equals and nearly equals


@pytest.mark.parametrize("name", ["nbd", "kl", "iqe"])
def test_duplicates(name: str) -> None:
    divergence = made(name)
    distinct = points(divergence, 5, 1)
    index = ExactIndex(divergence)
    index.add(distinct.repeat(30, 1))
    values, ids = index.search(distinct, 30)
    np.testing.assert_array_equal(ids, np.arange(5)[:, None] + 5 * np.arange(30))
    np.testing.assert_allclose(values, 0, atol=1e-6)


@pytest.mark.parametrize("k", [1, 10])
def test_more_duplicates_than_candidates(k: int) -> None:
    divergence = made("nbd")
    distinct, queries = points(divergence, 2, 1), points(divergence, 6, 2)
    index = ExactIndex(divergence)
    index.add(distinct.repeat(2000, 1))
    matrix = np.tile(brute_force(divergence, queries, distinct, "query-first"), 2000)
    assert_nearest(index.search(queries, k), matrix, np.arange(4000))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["nbd", "nbd-paper", "kl", "mahalanobis", "bregman-gs", "bregman-sqrt", "euclidean"])
def test_near_duplicates(name: str, direction: str) -> None:
    """Items at a distance of a millionth come in the order of float64 wherever that is clear."""
    divergence = made(name)
    centres = points(divergence, 6, 1) + 0.5
    generator = torch.Generator().manual_seed(5)
    items = (centres[:, None] + 1e-6 * torch.randn(6, 60, DIM, generator=generator)).reshape(-1, DIM)
    index = ExactIndex(divergence, direction)
    index.add(items)
    exact = brute_force(copy.deepcopy(divergence).double(), centres.double(), items.double(), direction)
    values, ids = index.search(centres, 20)
    ordered = np.take_along_axis(exact, ids, 1)
    slack = 1 + 1e-5
    assert (ordered[:, :-1] <= slack * ordered[:, 1:]).all()
    assert (ordered[:, -1] <= slack * np.sort(exact, 1)[:, 19]).all()
    np.testing.assert_allclose(values, ordered, rtol=1e-5)
    assert 0 < ordered[:, -1].max() < 1e-3


@pytest.mark.parametrize("far", [100.0, 1e4])
def test_narrow_clusters_far_apart(far: float) -> None:
    """Products in float32 cannot tell these items apart; the search must."""
    random = np.random.default_rng(0)
    items = (random.normal(size=(3000, 8)) + far * random.choice([-1, 1], size=(3000, 1))).astype(np.float32)
    queries = items[:20] + random.normal(size=(20, 8)).astype(np.float32) / 2
    index = ExactIndex("euclidean")
    index.add(items)
    exact = np.square(queries[:, None].astype(float) - items[None]).sum(-1)
    assert_nearest(index.search(queries, 10), exact, np.arange(3000), atol=1e-5)
    later = ExactIndex("euclidean")  # where the first items are, others need not be
    later.add(np.full((1, 8), -30 * far, np.float32), [3000])
    later.add(items, np.arange(3000))
    assert_nearest(later.search(queries, 10), exact, np.arange(3000), atol=1e-5)


def test_order_in_float32_is_that_of_float64() -> None:
    random = np.random.default_rng(0)
    centres, scales = 3 * random.normal(size=(30, DIM)), np.exp(0.5 * random.normal(size=(30, DIM)))
    labels = random.integers(30, size=6000)
    data = torch.from_numpy(centres[labels] + scales[labels] * random.normal(size=(6000, DIM))).float()
    items, queries = data[:5700], data[5700:]
    for direction in DIRECTIONS:
        single, double = ExactIndex(made("nbd"), direction), ExactIndex(copy.deepcopy(made("nbd")).double(), direction)
        single.add(items)
        double.add(items)
        ids, wanted = single.search(queries, 10)[1], double.search(queries, 10)[1]
        assert (ids == wanted).mean() >= 0.999


# ---------------------------------------------------------------------- blocks


@pytest.mark.parametrize("name", ["nbd", "iqe", "kl"])
def test_small_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    divergence = made(name)
    items, queries = (points(divergence, n, n) for n in (500, 23))
    index = ExactIndex(divergence)
    index.add(items)
    index.remove(np.arange(0, 500, 9))
    wanted = index.search(queries, 9)
    monkeypatch.setattr(pairs, "BLOCK_ENTRIES", 600)
    monkeypatch.setattr("askew.search.base.BLOCK_PAIRS", 32)
    values, ids = index.search(queries, 9)
    np.testing.assert_array_equal(ids, wanted[1])
    np.testing.assert_allclose(values, wanted[0], rtol=1e-5)
    values, ids = index.search(queries, len(index))
    np.testing.assert_array_equal(np.sort(ids, 1)[0], np.setdiff1d(np.arange(500), np.arange(0, 500, 9)))


@pytest.mark.parametrize("name", ["nbd", "iqe"])
def test_all_but_few_are_removed(name: str) -> None:
    """Near the share of empty rows at which gaps are closed, on both sides of it."""
    divergence = made(name)
    items, queries = (points(divergence, n, n) for n in (400, 5))
    matrix = brute_force(divergence, queries, items, "query-first")
    index = ExactIndex(divergence)
    index.add(items)
    for start, stop in ((0, 100), (100, 101), (101, 175), (175, 398)):
        index.remove(np.arange(start, stop))
        assert_nearest(index.search(queries, len(index)), matrix[:, stop:], np.arange(stop, 400))
        assert_nearest(index.search(queries, 1), matrix[:, stop:], np.arange(stop, 400))
    index.remove([398, 399])
    assert len(index) == 0
    index.add(items[:3])
    assert_nearest(index.search(queries, 3), matrix[:, :3], np.arange(400, 403))


def test_recall_of_an_exact_search_is_one() -> None:
    divergence = made("nbd")
    index = ExactIndex(divergence)
    index.add(points(divergence, 300, 1))
    assert index.recall(points(divergence, 40, 2), 10) == 1
    assert np.isnan(index.recall(points(divergence, 0, 2), 10))


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize("encoder", [None, "mlp"])
def test_fitted_learner(encoder: str | None) -> None:
    X, labels = load_iris(return_X_y=True)
    learner = askew.DivergenceLearner("nbd", encoder=encoder, steps=30, random_state=0).fit(X[::2], labels[::2])
    index = ExactIndex(learner)
    index.add(X[::2])
    values, rows = learner.kneighbors(X[1::2], 5)
    matrix = learner.pairwise(X[1::2], X[::2])
    assert_nearest(index.search(X[1::2], 5), matrix, np.arange(75), rtol=2e-3)
    found, ids = index.search(X[1::2], 5)
    np.testing.assert_allclose(found, values, rtol=2e-3, atol=1e-5)
    assert (ids == rows).mean() > 0.98
    classifier = askew.DivergenceNeighborsClassifier(
        askew.DivergenceLearner("nbd", encoder=None, steps=10, random_state=0)
    )
    assert ExactIndex(classifier.fit(X, labels)).divergence.dim == 4


@pytest.mark.parametrize("kind", [ExactIndex, FaissIndex])
def test_images(kind: type[ExactIndex] | type[FaissIndex]) -> None:
    torch.manual_seed(0)
    model = Embedded(SmallCNN(1, 8, out=DIM, filters=(4,), hidden=8), make("nbd", DIM)).eval()
    items, queries = torch.rand(60, 1, 8, 8), torch.rand(5, 1, 8, 8)
    index = kind(model)
    index.add(items)
    index.add(items.numpy()[:10], ids=np.arange(100, 110))
    with torch.no_grad():
        matrix = model.pairwise(queries, items).numpy()
    assert_nearest(index.search(queries, 3), np.hstack([matrix, matrix[:, :10]]), [*range(60), *range(100, 110)], 2e-3)


def test_tokens() -> None:
    torch.manual_seed(0)
    model = Embedded(nn.Sequential(nn.Embedding(30, 2), nn.Flatten()), make("nbd", 6)).eval()
    items, queries = torch.randint(30, (50, 3)), torch.randint(30, (5, 3))
    index = ExactIndex(model, "query-second")
    index.add(items)
    with torch.no_grad():
        matrix = model.pairwise(items, queries).t().numpy()
    assert_nearest(index.search(queries, 4), matrix, np.arange(50), rtol=2e-3)


def test_batches_change_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model = Embedded(nn.Sequential(nn.Linear(3, DIM), nn.BatchNorm1d(DIM), nn.Dropout()), made("nbd"))
    items = torch.randn(50, 3)
    wanted = ExactIndex(model)
    wanted.add(items)
    monkeypatch.setattr("askew.encoders.BATCH_ELEMENTS", 21)
    index = ExactIndex(model, progress=True)
    index.add(items)
    assert "encoding" in capsys.readouterr().err
    for one, other in zip(index.search(items, 3), wanted.search(items, 3), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_divergence_is_copied() -> None:
    model = Embedded(nn.Linear(3, DIM), make("nbd", DIM))
    items = torch.randn(30, 3)
    index = ExactIndex(model)
    index.add(items)
    wanted = index.search(items, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(items[:15], items[15:]).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model.encoder.weight.fill_(torch.nan)
    for one, other in zip(index.search(items, 3), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(parameter.requires_grad for parameter in index.divergence.parameters())
    assert isinstance(index.encoder, nn.Linear)


@pytest.mark.parametrize("kind", [ExactIndex, FaissIndex])
@pytest.mark.parametrize("name", ["nbd", "mahalanobis"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_searched_in_float32(
    dtype: torch.dtype, name: str, kind: type[ExactIndex] | type[FaissIndex]
) -> None:
    divergence = make(name, DIM).to(dtype)
    index = kind(divergence)
    items = torch.randn(20, DIM).to(dtype)
    index.add(items)
    values, ids = index.search(items, 2)
    assert values.dtype == np.float32
    assert list(ids[:, 0]) == list(range(20))
    maps = keys_and_queries(divergence, items=items.float())
    products = maps.queries(items.float()) @ maps.keys(items.float()).T
    assert products.argmax(1).tolist() == list(range(20))
    assert divergence.dtype == dtype


# ---------------------------------------------------------------------- a random life


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 6)),
        st.tuples(st.just("ids"), st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True)),
        st.tuples(st.just("search"), st.integers(1, 8)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", ["exact", "pairs", "flat"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(operations=OPERATIONS, seed=st.integers(0, 1000))
def test_a_random_life(kind: str, operations: list[tuple[str, Any]], seed: int) -> None:
    """Add, remove and search in any order, compared with a plain dict."""
    random = np.random.default_rng(seed)
    divergence = made("iqe" if kind == "pairs" else "kl")
    index: ExactIndex | FaissIndex
    index = FaissIndex("kl", kind="flat") if kind == "flat" else ExactIndex(divergence)
    there: dict[int, Floats] = {}
    following = 0
    for what, argument in operations:
        if what in ("add", "ids"):
            ids = list(range(following, following + argument)) if what == "add" else argument
            items = np.exp(random.normal(size=(len(ids), DIM))).astype(np.float32)
            given_ids = None if what == "add" else ids
            if what == "ids" and there.keys() & set(ids):
                with pytest.raises(ValueError, match="in the index already"):
                    index.add(items, given_ids)
                continue
            index.add(items, given_ids)
            there |= dict(zip(ids, items, strict=True))
            following = max([following, *(i + 1 for i in ids)])
        elif what == "remove":
            unknown = set(argument) - there.keys()
            if unknown:
                with pytest.raises(KeyError, match="unknown"):
                    index.remove(argument)
                argument = [i for i in argument if i in there]
            index.remove(argument)
            for i in argument:
                del there[i]
        elif argument <= len(there):
            queries = torch.from_numpy(np.exp(random.normal(size=(4, DIM))).astype(np.float32))
            known = torch.from_numpy(np.stack(list(there.values())))
            matrix = brute_force(divergence, queries, known, "query-first")
            assert_nearest(index.search(queries, argument), matrix, np.array(list(there)))
        else:
            with pytest.raises(ValueError, match=r"filled before|at most"):
                index.search(np.ones((1, DIM)), argument)
        assert len(index) == len(there)


def test_integers_that_float32_does_not_hold_are_told_apart() -> None:
    large = np.array([[1 << 24], [(1 << 24) + 1], [-(1 << 30) - 1]])
    for items in (large, torch.from_numpy(large)):
        index = ExactIndex("euclidean")
        index.add(items)
        np.testing.assert_array_equal(index.search(items, 1)[1][:, 0], [0, 1, 2])
    blocks = ExactIndex("euclidean")
    blocks.add_blocks([large[:0], np.array([[1], [2]]), large])
    np.testing.assert_array_equal(blocks.search(large, 1)[1][:, 0], [2, 3, 4])
