"""Search in FAISS: high recall, exact values, and ids that stay what they were."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from askew.divergences import Divergence, Embedded, NeuralBregman, Reversed, Scaled, make
from askew.search import ExactIndex, FaissIndex, engines
from askew.search import faiss as module
from askew.search.certified import VALUE_UNITS
from askew.search.inner_product import DIRECTIONS
from askew.search.store import Store

pytest.importorskip("faiss")

DIM = 8
KINDS = ["flat", "ivf", "hnsw", "ivf-pq"]
APPROXIMATE = KINDS[1:]
Floats = NDArray[np.float32]
AnyIndex = ExactIndex | FaissIndex


@functools.cache
def made(name: str) -> Divergence:
    """Return a divergence after some training steps; tests must not change it."""
    torch.manual_seed(0)
    divergence = make(name, DIM)
    if any(True for _ in divergence.parameters()):
        x, y = torch.from_numpy(data(500, 7)).split(250)
        target = (x - y).relu().sum(-1)
        divergence.calibrate(x, y, target)
        optimizer = torch.optim.Adam(divergence.parameters(), 0.02)
        for _ in range(10):
            optimizer.zero_grad()
            (divergence(x, y) - target).square().mean().backward()
            optimizer.step()
    return divergence.eval().requires_grad_(False)


def data(count: int, seed: int = 0, dim: int = DIM) -> Floats:
    """Return positive points in clusters."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(99).uniform(1, 6, size=(20, dim))
    points = centres[random.integers(20, size=count)] * np.exp(0.2 * random.normal(size=(count, dim)))
    return points.astype(np.float32)


ITEMS, QUERIES = data(3000), data(40, 1)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of items of each state that is built."""
    counts: list[int] = []
    build = FaissIndex._build

    def count(index: FaissIndex, items: torch.Tensor) -> Any:
        counts.append(len(items))
        return build(index, items)

    monkeypatch.setattr(FaissIndex, "_build", count)
    return counts


def filled(
    name: str = "kl", kind: str | None = "ivf", direction: str = "query-first", items: Floats = ITEMS, **settings: Any
) -> FaissIndex:
    index = FaissIndex(made(name), direction, kind, **settings)
    index.add(items)
    return index


def share(found: NDArray[np.int64], wanted: NDArray[np.int64]) -> float:
    """Return the share of wanted ids that were found."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, wanted, strict=True)]))


def assert_good(index: FaissIndex, items: Floats, ids: Any = None, k: int = 10) -> None:
    """Raise unless recall is high among some items, and all values are those of the divergence."""
    ids = np.arange(len(items)) if ids is None else ids
    reference = ExactIndex(index.divergence, index.direction)
    reference.add(items, ids)
    assert len(index) == len(items)
    values, found = index.search(QUERIES, k)
    assert share(found, reference.search(QUERIES, k)[1]) >= 0.95
    assert all(len(set(row)) == k for row in found)
    assert (np.diff(values, axis=1) >= 0).all()
    order = np.argsort(ids)
    nearest = torch.from_numpy(items[order[np.searchsorted(ids, found, sorter=order)]])
    pair = torch.from_numpy(QUERIES)[:, None].expand_as(nearest), nearest
    wanted = index.divergence(*(pair if index.direction == "query-first" else pair[::-1]))
    np.testing.assert_allclose(values, wanted.numpy(), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- every kind


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["nbd", "kl", "mahalanobis", "bregman-gs", "bregman-sqrt"])
def test_every_kind(name: str, kind: str, direction: str) -> None:
    items = ITEMS[:800]
    index = filled(name, kind, direction, items)
    assert index.kind == kind
    assert_good(index, items)
    assert index.recall(QUERIES, 10) >= 0.95
    if kind == "flat":
        reference = ExactIndex(made(name), direction)
        reference.add(items)
        for one, other in zip(index.search(QUERIES, 10), reference.search(QUERIES, 10), strict=True):
            np.testing.assert_array_equal(one, other)
        assert index.recall(QUERIES, 10) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_double_precision(kind: str) -> None:
    divergence = make("nbd", DIM).double()
    index = FaissIndex(divergence, kind=kind)
    index.add(ITEMS[:600].astype(np.float64))
    index.add(data(50, 3).astype(np.float64))
    values, ids = index.search(QUERIES, 5)
    assert values.dtype == np.float64
    reference = ExactIndex(divergence)
    reference.add(np.concatenate([ITEMS[:600], data(50, 3)]))
    truth, wanted = reference.search(QUERIES, 5)
    assert share(ids, wanted) >= 0.95
    same = ids == wanted
    np.testing.assert_allclose(values[same], truth[same], rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 5])
def test_odd_numbers_of_features(kind: str, dim: int) -> None:
    items = data(600, 0, dim)
    index = FaissIndex("euclidean", kind=kind)
    index.add(items[:400])
    index.add(items[400:])
    reference = ExactIndex("euclidean")
    reference.add(items)
    assert share(index.search(items[:50], 5)[1], reference.search(items[:50], 5)[1]) >= 0.95


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 9, 100])
def test_few_items(kind: str, count: int) -> None:
    index = filled("kl", kind, items=ITEMS[:count])
    _, ids = index.search(QUERIES, count)
    np.testing.assert_array_equal(np.sort(ids, 1), np.tile(np.arange(count), (len(QUERIES), 1)))


@pytest.mark.parametrize("kind", KINDS)
def test_all_items_are_the_same(kind: str) -> None:
    index = filled("kl", kind, items=np.ones((300, DIM), np.float32))
    values, ids = index.search(np.ones((2, DIM)), 5)
    assert (values == 0).all()
    assert all(len(set(row)) == 5 for row in ids)


@pytest.mark.parametrize("kind", KINDS)
def test_histograms_with_zeros(kind: str) -> None:
    """KL(item, query) takes items with zeros, though no item can then stand for a query."""
    random = np.random.default_rng(0)
    items = random.dirichlet(np.full(DIM, 0.5), 1000).astype(np.float32)
    items[items < 0.05] = 0
    items[:, 5] = 0
    items /= items.sum(1, keepdims=True)
    assert (items == 0).any(1).all()
    queries = (random.dirichlet(np.full(DIM, 0.5), 60) + 0.01).astype(np.float32)
    queries /= queries.sum(1, keepdims=True)
    index, reference = FaissIndex("kl-simplex", "query-second", kind), ExactIndex("kl-simplex", "query-second")
    for one in (index, reference):
        one.add(items)
    assert share(index.search(queries, 10)[1], reference.search(queries, 10)[1]) >= 0.95
    if kind.startswith("ivf"):
        assert index.effort < engines.lists_for(len(items))


def test_encoder_and_wrappers() -> None:
    torch.manual_seed(0)
    model = Embedded(torch.nn.Linear(DIM, 3), Reversed(Scaled(make("nbd", 3), 2.0))).eval()
    index, reference = FaissIndex(model, "query-second", "hnsw"), ExactIndex(model, "query-second")
    for one in (index, reference):
        one.add(ITEMS)
    assert share(index.search(QUERIES, 10)[1], reference.search(QUERIES, 10)[1]) >= 0.95


# ---------------------------------------------------------------------- items come and go


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_kept(kind: str) -> None:
    ids = np.random.default_rng(0).permutation(10**12 + np.arange(3000))
    index = FaissIndex(made("kl"), kind=kind)
    index.add(ITEMS[:2000], ids[:2000])
    index.add(ITEMS[2000:], ids[2000:])
    assert_good(index, ITEMS, ids)
    values, found = index.search(ITEMS[:20], 1)
    np.testing.assert_array_equal(found[:, 0], ids[:20])
    assert (values == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_remove_and_add(kind: str, built: list[int]) -> None:
    index = filled("kl", kind)
    ids = np.arange(3000)
    built.clear()
    index.remove(ids[:300])  # too few to rebuild
    assert_good(index, ITEMS[300:], ids[300:])
    index.add(ITEMS[:100], ids[:100])
    left = np.r_[300:3000, 0:100]
    assert_good(index, ITEMS[left], ids[left])
    assert built == []
    index.remove(np.arange(1000, 2500))  # more than a quarter
    left = np.r_[300:1000, 2500:3000, 0:100]
    assert set(built) == {len(left)}
    assert_good(index, ITEMS[left], ids[left])
    index.add(data(10, 5))
    assert index.search(data(10, 5), 1)[1][:, 0].tolist() == list(range(3000, 3010))
    index.remove(np.r_[left, 3000:3010])
    assert len(index) == 0
    index.add(ITEMS[:50])
    assert_good(index, ITEMS[:50], 3010 + np.arange(50))


def test_graph_with_most_neighbours_removed(built: list[int]) -> None:
    index = filled("kl", "hnsw")
    near = index.search(QUERIES[:1], 700)[1][0]
    built.clear()
    index.remove(near)
    assert built == []
    left = np.setdiff1d(np.arange(3000), near)
    assert_good(index, ITEMS[left], left)
    values, ids = index.search(QUERIES[:1], len(index))
    np.testing.assert_array_equal(np.sort(ids[0]), left)
    assert np.isfinite(values).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_longer_items_than_there_were(kind: str, direction: str, built: list[int]) -> None:
    index = filled("kl", kind, direction, ITEMS[:600])
    long = 100 * data(60, 3)
    built.clear()
    index.add(long)
    items = np.concatenate([ITEMS[:600], long])
    # Only a Euclidean form has a radius that is too small for them.
    assert set(built) == (set() if kind == "flat" else {660})
    assert_good(index, items)
    found = index.search(long[:50], 1)[1][:, 0]
    assert (found == 600 + np.arange(50)).mean() >= 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_many_times_the_items_it_was_built_for(kind: str, built: list[int]) -> None:
    index = FaissIndex(made("kl"), kind=kind)
    for start in range(0, 3000, 100):
        index.add(ITEMS[start : start + 100])
    # It is also rebuilt for longer keys.
    assert {100, 500} <= set(built)
    assert len(ITEMS) <= 4 * built[-1]
    assert len(set(built)) < 8
    assert_good(index, ITEMS)


def test_kind_changes_with_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "IVF_FROM", 1000)
    monkeypatch.setattr(engines, "PQ_FROM", 2500)
    index = FaissIndex(made("kl"))
    kinds = []
    for start in range(0, 3000, 500):
        index.add(ITEMS[start : start + 500])
        kinds.append(index.kind)
        assert_good(index, ITEMS[: start + 500])
    assert kinds == ["flat", "ivf", "ivf", "ivf", "ivf-pq", "ivf-pq"]
    # Items that come and go near the border do not change it.
    index.remove(np.arange(2400, 3000))
    index.add(ITEMS[2400:2420])
    assert index.kind == "ivf-pq"
    index.remove(np.arange(600, 2400))
    index.add(ITEMS[600:610])
    assert index.kind == "flat"
    left = np.r_[0:600, 2400:2420, 600:610]
    assert_good(index, ITEMS[left], np.r_[0:600, 3000:3020, 3020:3030])


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
@pytest.mark.parametrize("interrupted", ["add", "make"])
def test_an_error_in_the_middle_changes_nothing(kind: str, interrupted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled("kl", kind)
    index.remove(np.arange(200))
    wanted = index.search(QUERIES, 10)

    def fail(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if interrupted == "make":
            patch.setattr(FaissIndex, "_build", fail)
            new = 1000 * ITEMS[:50]
            if kind == "flat":
                new = np.tile(ITEMS, (5, 1))
            with pytest.raises(KeyboardInterrupt):
                index.add(new)
        else:
            patch.setattr(Store, "append", fail)
            with pytest.raises(KeyboardInterrupt):
                index.add(ITEMS[:50])
    assert len(index) == 2800
    if kind == "flat" or interrupted == "make":
        for one, other in zip(index.search(QUERIES, 10), wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    assert_good(index, ITEMS[200:], np.arange(200, 3000))
    index.add(ITEMS[:200], np.arange(200))
    assert_good(index, ITEMS)


def test_closing_gaps_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled("kl", "ivf")

    def fail(*arguments: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(module, "make_engine", fail)
        with pytest.raises(MemoryError):
            index.remove(np.arange(1500))
    assert len(index) == 1500
    assert_good(index, ITEMS[1500:], np.arange(1500, 3000))


# ---------------------------------------------------------------------- effort


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_effort(kind: str) -> None:
    index = filled("kl", kind, recall_target=0.99)
    chosen = index.effort
    assert chosen > 1
    tuned = index.tune(QUERIES, 5, recall=0.5)
    assert tuned == index.effort <= chosen
    low = index.recall(QUERIES, 10)
    assert index.tune(QUERIES, 10, recall=1.0) == index.effort >= tuned
    assert index.recall(QUERIES, 10) >= max(low, 0.99)
    index.effort = 10**6
    assert index.recall(QUERIES, 10) >= 0.99
    if kind.startswith("ivf"):
        index.effort = 1
        assert index.recall(QUERIES, 10) < 1


def test_effort_after_removal() -> None:
    index = filled("kl", "ivf")
    index.remove(np.arange(0, 3000, 5))
    index.effort = 1
    assert index.tune(QUERIES, 10) > 1
    assert index.recall(QUERIES, 10) >= 0.98


def test_flat_needs_no_effort() -> None:
    index = filled("kl", "flat")
    assert index.tune(QUERIES) == index.effort == 1
    assert index.tune(QUERIES[:0]) == 1


def test_fewer_than_k_in_the_lists() -> None:
    index = filled("kl", "ivf")
    index.effort = 1
    values, ids = index.search(QUERIES, 1500)
    reference = ExactIndex(made("kl"))
    reference.add(ITEMS)
    wanted = reference.search(QUERIES, 1500)
    np.testing.assert_allclose(values, wanted[0], rtol=1e-5, atol=1e-6)
    assert share(ids, wanted[1]) > 0.999


@pytest.mark.parametrize("kind", KINDS)
def test_all_items_are_asked_for(kind: str) -> None:
    index = filled("kl", kind)
    index.remove(np.arange(100))
    _, ids = index.search(QUERIES[:3], 2900)
    np.testing.assert_array_equal(np.sort(ids, 1), np.tile(np.arange(100, 3000), (3, 1)))


def test_recall_counts_equals() -> None:
    items = np.repeat(ITEMS[:100], 20, axis=0)
    index = filled("kl", "hnsw", items=items)
    assert index.recall(ITEMS[:50], 10) >= 0.99


def test_codes_cannot_tell_items_apart(monkeypatch: pytest.MonkeyPatch, built: list[int]) -> None:
    """Where some items are ten thousand times as long as others, lists lose neighbours, but all items do not."""
    items = np.concatenate([1e4 * ITEMS[:5], ITEMS])
    monkeypatch.setattr(engines, "IVF_FROM", 1000)
    index = FaissIndex("euclidean")
    index.add(items)
    assert index.kind == "flat"
    built.clear()
    index.add(items[:10])
    assert built == []
    assert index.recall(items[1000:1050], 10) == 1
    with pytest.warns(UserWarning, match=r"FaissIndex of kind 'ivf' finds .*% of the nearest items, below"):
        FaissIndex("euclidean", kind="ivf").add(items)


def test_settings() -> None:
    assert FaissIndex("kl").recall_target == 0.99
    assert FaissIndex("kl", recall_target=1).recall_target == 1.0
    with pytest.raises(ValueError, match=r"recall_target of FaissIndex must be at most 1. Got 1.5"):
        FaissIndex("kl", recall_target=1.5)
    with pytest.raises(ValueError, match="recall_target of FaissIndex must be a finite number above zero"):
        FaissIndex("kl", recall_target=0)
    index = filled("kl", "ivf")
    with pytest.raises(ValueError, match=r"recall of FaissIndex.tune must be at most 1"):
        index.tune(QUERIES, recall=2.0)
    with pytest.raises(ValueError, match=r"k of FaissIndex.tune must be a positive integer"):
        index.tune(QUERIES, k=0)
    with pytest.raises(ValueError, match=r"effort of FaissIndex must be a positive integer. Got 0"):
        index.effort = 0
    with pytest.raises(ValueError, match="FaissIndex must be filled before it is searched"):
        FaissIndex("kl").tune(QUERIES)


def test_flat_and_exact_agree_in_many_features() -> None:
    torch.manual_seed(0)
    divergence = NeuralBregman(100, widths=(8,))
    points = np.random.default_rng(0).normal(size=(700, 100)).astype(np.float32)
    flat, exact = FaissIndex(divergence, kind="flat"), ExactIndex(divergence)
    for index in (flat, exact):
        index.add(points[:600])
        index.remove(np.arange(0, 100))
    for ours, theirs in zip(flat.search(points[600:], 7), exact.search(points[600:], 7), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["euclidean", "kl", "power", "logistic"])
@pytest.mark.parametrize(
    ("kind", "dtype", "dim", "scales"),
    [
        (FaissIndex, np.float64, 4, [1e-20, 1e-22, 1e-25, 1e-30, 1e-38, 1e-42, 1e-44]),
        (FaissIndex, np.float64, 100, [1e-22, 1e-30, 1e-44]),
        (FaissIndex, np.float32, 4, [1e-20, 1e-21, 1e-22, 1e-30, 1e-38]),
        (ExactIndex, np.float32, 4, [1e-20, 1e-21, 1e-22, 1e-30, 1e-38]),
        (ExactIndex, np.float64, 4, [1e-20, 1e-44, 1e-150, 1e-160, 1e-161]),
    ],
)
def test_numbers_whose_products_vanish(
    kind: type[AnyIndex], dtype: Any, dim: int, scales: list[float], name: str
) -> None:
    """No neighbour is missed where keys or products are too small for the dtype they are in."""
    points = np.random.default_rng(0).gamma(2.0, size=(1203, dim))
    for scale in scales:
        queries, items = np.split((scale * points).astype(dtype), [3])
        for direction in DIRECTIONS:
            index = kind(name, direction)
            index.add(items)
            values, ids = index.search(queries, 5)
            pair = torch.from_numpy(queries)[:, None], torch.from_numpy(items)[None]
            matrix = index.divergence(*(pair if direction == "query-first" else pair[::-1])).numpy()
            np.testing.assert_allclose(values, np.sort(matrix, 1)[:, :5], rtol=1e-5, atol=0)
            np.testing.assert_allclose(np.take_along_axis(matrix, ids, 1), values, rtol=1e-5, atol=0)


def test_products_that_are_no_numbers_are_an_error_in_many_features_too() -> None:
    for dim in (4, 100):
        index = FaissIndex("itakura-saito", "query-second")
        index.add(np.random.default_rng(0).gamma(2.0, size=(50, dim)).astype(np.float32))
        with pytest.raises(ValueError, match="queries of FaissIndex must be of a size whose products with the items"):
            index.search(np.full((1, dim), 1e-41, np.float32), 3)


@pytest.mark.parametrize("kind", ["ivf", "ivf-pq"])
def test_lists_that_are_filled_at_known_length_are_those_of_faiss(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    keys = data(3000)
    monkeypatch.setattr(engines, "ADDED_ROWS", 700)
    ours = engines.make_engine(kind, engines.KINDS[kind].codes[0], keys)
    plain = faiss.clone_index(ours)
    plain.reset()
    plain.add(keys)
    assert np.array_equal(faiss.serialize_index(ours), faiss.serialize_index(plain))
    assert ours.ntotal == 3000


@pytest.mark.parametrize("kind", ["ivf", "ivf-pq"])
@pytest.mark.parametrize("filtered", [False, True])
def test_many_queries_visit_the_lists_that_faiss_would(
    kind: str, filtered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, queries = np.split(data(3000), [2900])
    engine = engines.make_engine(kind, engines.KINDS[kind].codes[0], keys)
    live = np.arange(2900) % 3 > 0 if filtered else None
    monkeypatch.setattr(engines, "DISTANCES", 30 * engine.nlist)  # blocks of 30 queries
    together = engines.search_engine(kind, engine, queries, 9, 4, live)
    alone = [engines.search_engine(kind, engine, query[None], 9, 4, live)[0] for query in queries]
    assert np.mean(together == alone) > 0.99  # two lists may be equally near
    assert (together >= 0).all()


def test_lists_without_their_centroids_are_refused(tmp_path: Path) -> None:
    import faiss

    keys = data(400)
    engine = engines.make_engine("ivf", "QT_8bit", keys)
    coarse = faiss.IndexHNSWFlat(keys.shape[1], 4)
    coarse.add(faiss.downcast_index(engine.quantizer).reconstruct_n(0, engine.nlist))
    other = faiss.IndexIVFScalarQuantizer(coarse, keys.shape[1], engine.nlist, faiss.ScalarQuantizer.QT_8bit)
    other.train(keys)
    other.add(keys)
    faiss.write_index(other, str(tmp_path / "file"))
    with pytest.raises(ValueError, match="its lists do not have a centroid each"):
        engines.read_engine(tmp_path / "file", "ivf", keys.shape[1], len(keys))


@pytest.mark.parametrize("change", ["add", "remove"])
def test_searches_go_on_while_an_index_is_rebuilt(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled(items=ITEMS[:400])
    before = index.search(QUERIES, 5)
    begun, go_on = threading.Event(), threading.Event()
    original = module.make_engine

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(300)
        return original(*arguments)

    monkeypatch.setattr(module, "make_engine", slow)
    changes = {"add": lambda: index.add(ITEMS[400:]), "remove": lambda: index.remove(np.arange(200))}
    with ThreadPoolExecutor(2) as pool:
        change_made = pool.submit(changes[change])
        try:
            assert begun.wait(300)
            values, ids = pool.submit(index.search, QUERIES, 5).result(timeout=300)
            if change == "add":
                assert np.array_equal(ids, before[1])
                assert np.array_equal(values, before[0])
            else:  # what is removed is gone at once
                assert ids.min() >= 200
            assert not change_made.done()
        finally:
            go_on.set()
        change_made.result(timeout=300)
    kept = np.arange(3000) if change == "add" else np.arange(200, 400)
    assert_good(index, ITEMS[kept], kept)


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_threads_that_share_the_queries_find_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    import faiss

    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    monkeypatch.setattr(module, "BLOCK_QUERIES", 30)
    index, queries = FaissIndex(made("drift"), kind=kind), data(200, 3)
    index.add(ITEMS)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        before = faiss.omp_get_max_threads()
        found.append((*index.search(queries, 5), *index.search(queries, 5, filter=np.arange(len(ITEMS)) % 2 == 0)))
        assert faiss.omp_get_max_threads() == before  # the caller's own setting
    one, two = found
    for values, ids in ((0, 1), (2, 3)):
        # Products of blocks of another shape are rounded differently.
        np.testing.assert_allclose(one[values], two[values], rtol=2 * VALUE_UNITS * np.finfo(np.float32).eps)
        np.testing.assert_array_equal(one[ids], two[ids])
