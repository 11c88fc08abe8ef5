"""Search through Milvus, for real, on the embedded engine."""

from __future__ import annotations

import copy
import fcntl
import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import askew
from askew.divergences import Divergence, Embedded, make
from askew.search import milvus_client
from askew.search.milvus import MilvusIndex

pymilvus = pytest.importorskip("pymilvus")

Make = Callable[..., MilvusIndex]
DIRECTIONS = ("query-first", "query-second")


def points(n: int, dim: int = 4, seed: int = 0) -> Tensor:
    """Return positive points in clusters."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.rand(8, dim, generator=torch.Generator().manual_seed(99)) * 4 + 1
    return centres[torch.arange(n) % 8] + 0.5 * torch.rand(n, dim, generator=generator)


def nbd(dim: int = 4, seed: int = 0) -> Divergence:
    torch.manual_seed(seed)
    return make("nbd", dim)


def truth(divergence: Divergence, queries: Tensor, items: Tensor, k: int, direction: str) -> tuple[Any, Any]:
    """Return the k nearest by the divergence of all pairs in double precision."""
    exact = copy.deepcopy(divergence).double()
    first, second = queries.double()[:, None], items.double()[None]
    with torch.no_grad():
        matrix = exact(first, second) if direction == "query-first" else exact(second, first)
    values, rows = matrix.topk(k, 1, largest=False)
    return values.numpy(), rows.numpy()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Make]:
    """Make indexes on one path that are closed at the end."""
    made: list[MilvusIndex] = []

    def index(divergence: object = "kl", collection: str = "askew", **settings: Any) -> MilvusIndex:
        made.append(MilvusIndex(divergence, tmp_path / "items.db", collection, **settings))
        return made[-1]

    yield index
    for one in made:
        one.close()


@pytest.fixture
def client(database: Make, tmp_path: Path) -> Iterator[Any]:
    """Connect to the same engine as another program would."""
    database()
    other = pymilvus.MilvusClient(str(tmp_path / "items.db"))
    yield other
    other.close()


def metadata(client: Any) -> dict[str, Any]:
    """Return what the collection says of itself."""
    found: dict[str, Any] = json.loads(client.describe_collection("askew")["properties"]["askew"])
    return found


# ---------------------------------------------------------------------- what is found


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["nbd", "itakura-saito", "mahalanobis"])
def test_the_nearest_items_are_those_of_brute_force_with_their_values(
    database: Make, name: str, direction: str
) -> None:
    torch.manual_seed(0)
    divergence = make(name, 4)
    items, queries = points(700), points(40, seed=1)
    index = database(divergence, direction=direction)
    index.add(items.numpy())
    values, ids = index.search(queries, k=9)
    expected, rows = truth(divergence, queries, items, 9, direction)
    assert values.dtype == np.float32
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids, rows)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert index.recall(queries, 9) == 1.0
    assert len(index) == 700


def test_values_are_those_of_the_divergence_to_the_last_digit(database: Make) -> None:
    # Items come back bit for bit, also those next to each other.
    divergence, items = nbd(), points(50)
    items[1:] = items[0] * (1 + 1e-6 * torch.arange(1, 50)[:, None])
    index = database(divergence)
    index.add(items)
    values, ids = index.search(items[:1], k=50)
    with torch.no_grad():
        expected = divergence(items[:1].expand(50, -1), items[ids[0]])
    np.testing.assert_array_equal(values[0], expected.numpy())
    assert ids[0, 0] == 0
    assert values[0, 0] == 0


@pytest.mark.parametrize("root", [False, True], ids=["plain", "root"])
@pytest.mark.parametrize("direction", ["query-first", "query-second"])
def test_a_drift_is_ranked_before_and_returned_after_relu(database: Make, direction: str, root: bool) -> None:
    torch.manual_seed(0)
    divergence = askew.divergences.Drift(askew.NeuralBregman(6), root)
    with torch.no_grad():
        divergence.drift[2].weight.mul_(300)  # many items at D = 0
    items, queries = torch.randn(2, 200, 6)
    index = database(divergence, direction=direction)
    index.add(items)
    values, ids = index.search(queries[:10], 5)
    with torch.no_grad():
        pairs = (queries[:10, None], items[None]) if direction == "query-first" else (items[None], queries[:10, None])
        order = divergence.order(*pairs)
        found = order.gather(1, torch.from_numpy(ids))
        torch.testing.assert_close(found, order.topk(5, dim=1, largest=False)[0], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(torch.from_numpy(values), divergence.from_order(found), rtol=1e-3, atol=1e-4)
    assert (values >= 0).all()


def test_double_precision_is_kept(database: Make) -> None:
    divergence, items = nbd().double(), points(60).double()
    index = database(divergence)
    index.add(items)
    values, ids = index.search(items[:5], k=3)
    expected, rows = truth(divergence, items[:5], items, 3, "query-first")
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    np.testing.assert_array_equal(ids, rows)


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "auto"])
def test_other_kinds_find_nearly_all(database: Make, kind: str) -> None:
    divergence, items, queries = nbd(), points(2500), points(30, seed=1)
    # Lists are made by chance: a few more of them than usual are looked at, so that bad ones do not decide.
    index = database(divergence, kind=kind, effort=48 if kind == "ivf" else None)
    index.add(items)
    assert index.recall(queries, 10) >= 0.95
    assert np.isfinite(index.search(queries, 10)[0]).all()
    again = database(divergence)
    assert again.kind == kind
    with pytest.raises(ValueError, match="must be of the kind 'flat'. Got one of '" + kind):
        database(divergence, kind="flat")


def test_more_lists_find_more(database: Make) -> None:
    # The index is used once the rows are in files; the engine builds it in the background, and while it opens.
    items, queries = points(4000, dim=8), points(50, dim=8, seed=1)
    index = database("euclidean", kind="ivf")
    index.add(items)
    index.search(queries[:1], 1)
    index.close()
    few, many = (database("euclidean", effort=effort) for effort in (1, 128))
    assert few.recall(queries, 5) < many.recall(queries, 5) == 1.0
    # One list is not enough for these.
    for got, want in zip(few.search(queries[:5], 500), many.search(queries[:5], 500), strict=True):
        np.testing.assert_array_equal(got, want)


def test_an_encoder_stands_before_items_and_queries(database: Make) -> None:
    torch.manual_seed(0)
    model = Embedded(nn.Linear(6, 4), nbd())
    items, queries = torch.randn(80, 6), torch.randn(5, 6)
    index = database(model)
    index.add(items)
    with torch.no_grad():
        expected = model.pairwise(queries, items).topk(4, 1, largest=False).indices
    np.testing.assert_array_equal(index.search(queries, 4)[1], expected.numpy())


def test_items_beyond_the_first_radius_are_found(database: Make, client: Any) -> None:
    divergence = make("euclidean", 4)
    near, far = points(100), 50 * points(60, seed=2)
    index = database(divergence, kind="hnsw")
    index.add(near, fields={"far": [False] * 100})
    radius = metadata(client)["radius"]
    second = database(divergence)  # knows the old radius
    index.add(far, fields={"far": [True] * 60})
    assert metadata(client)["radius"] > 10 * radius
    items = torch.cat([near, far])
    queries = items[::7]
    _, rows = truth(divergence, queries, items, 5, "query-first")
    np.testing.assert_array_equal(second.search(queries, 5)[1], rows)
    second.add(far[:1] * 1.01)
    items = torch.cat([items, far[:1] * 1.01])
    _, rows = truth(divergence, queries, items, 5, "query-first")
    for each in (index, second, database(divergence)):
        np.testing.assert_array_equal(each.search(queries, 5)[1], rows)
    # Ids and fields are kept when keys are replaced.
    assert (index.search(near[:1], 161, filter="far == false")[1] >= 0).sum() == 100


def test_keys_that_were_half_replaced_are_finished_by_the_next_to_open(
    database: Make, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    divergence = make("euclidean", 4)
    index = database(divergence, kind="hnsw")
    index.add(points(50))
    old = metadata(client)["radius"]

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the lights went out")

    with monkeypatch.context() as patch:
        patch.setattr(pymilvus.MilvusClient, "upsert", fail)
        with pytest.raises(RuntimeError, match="lights"):
            index.add(50 * points(1))
    assert metadata(client)["remaking"] is True
    opened = database(divergence)
    assert metadata(client)["remaking"] is False
    assert metadata(client)["radius"] > 10 * old
    queries = points(5, seed=3)
    _, rows = truth(divergence, queries, points(50), 5, "query-first")
    np.testing.assert_array_equal(opened.search(queries, 5)[1], rows)


def test_keys_that_were_half_replaced_are_finished_by_the_next_search(
    database: Make, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    divergence = make("euclidean", 4)
    index = database(divergence, kind="hnsw")
    index.add(points(50))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pymilvus.MilvusClient, "upsert", interrupt)
        with pytest.raises(KeyboardInterrupt):
            index.add(50 * points(1))
    queries = points(5, seed=3)
    _, rows = truth(divergence, queries, points(50), 5, "query-first")
    np.testing.assert_array_equal(index.search(queries, 5)[1], rows)
    assert metadata(client)["remaking"] is False


def test_several_threads_add_remove_and_search(database: Make) -> None:
    divergence = make("euclidean", 4)
    index = database(divergence, kind="hnsw")  # whose keys are replaced for longer items
    items = points(240) * torch.linspace(1, 40, 240)[:, None]
    index.add(items[:40])
    errors: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for first in range(start, start + 100, 20):
                index.add(items[first : first + 20])
                values, _ = index.search(items[first : first + 20], 1)
                assert (values == 0).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (40, 140)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not errors
    assert len(index) == 240
    values, ids = index.search(items, 1)
    assert (values == 0).all()
    assert sorted(ids[:, 0].tolist()) == list(range(240))
    index.remove(ids[:10, 0])
    assert len(index) == 230


def test_items_that_come_while_another_index_searches_are_kept(database: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine loses rows that come while it writes its log to files, as a search has it do."""
    monkeypatch.setattr(milvus_client, "LOG_ROWS", 1)
    searched, changed = database("euclidean"), database("euclidean")
    searched.add(points(4))
    insert, flush = changed._collection.client.insert, searched._collection.client.flush
    inside, flushed, during = threading.Event(), threading.Event(), []

    def slow_insert(*arguments: Any) -> Any:
        inside.set()
        during.append(flushed.wait(0.5))
        return insert(*arguments)

    monkeypatch.setattr(changed._collection.client, "insert", slow_insert)
    monkeypatch.setattr(searched._collection.client, "flush", lambda *given: (flushed.set(), flush(*given)))
    thread = threading.Thread(target=changed.add, args=(points(6)[4:],))
    thread.start()
    assert inside.wait(60)
    searched.search(points(1), 1)
    thread.join(60)
    assert flushed.is_set()
    assert during == [False]
    assert len(searched) == 6


def test_many_queries_and_batches_are_put_together(database: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    items, queries = points(300), points(30, seed=1)
    index = database("euclidean")
    index.add(items[:100])
    monkeypatch.setattr(milvus_client, "ID_BATCH", 7)
    monkeypatch.setattr(milvus_client, "MESSAGE_BYTES", 16 * 5 * 20)  # 20 rows
    index.add(items[100:])
    expected = index.search(queries, 4)
    monkeypatch.setattr(milvus_client, "QUERIES", 7)
    monkeypatch.setattr(milvus_client, "MESSAGE_BYTES", 4000)
    for got, want in zip(index.search(queries, 4), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert index.recall(queries, 4) == 1.0
    np.testing.assert_array_equal(expected[1], truth(make("euclidean", 4), queries, items, 4, "query-first")[1])
    index.remove(np.arange(0, 300, 2))
    assert len(index) == 150


# ---------------------------------------------------------------------- ids and fields


def test_ids_are_kept_and_the_next_ones_follow_the_largest(database: Make) -> None:
    items = points(10)
    index = database()
    index.add(items[:3], ids=[5, 1_000_003, 0])
    index.add(items[3:5])
    again = database()
    again.add(items[5:6])
    index.add(items[6:7])  # sees what the other has added
    _, ids = index.search(items[:7], k=1)
    assert ids[:, 0].tolist() == [5, 1_000_003, 0, 1_000_004, 1_000_005, 1_000_006, 1_000_007]
    index.add(items[7:8], ids=[2**63 - 1])
    with pytest.raises(ValueError, match="must be given where the next numbers would be above 9223372036854775807"):
        database().add(items[8:9])
    assert len(index) == 8


def test_upsert_replaces_and_keeps_the_fields_that_are_not_given(database: Make) -> None:
    items, others = points(4), 10 * points(4)
    index = database()
    index.upsert(items, ids=[0, 1, 2, 3], fields={"colour": list("rgbr"), "size": np.arange(4)})
    index.upsert(others[:2], ids=[3, 9], fields={"size": [30, 90]})
    assert len(index) == 5
    values, ids = index.search(others[:2], 1)
    assert ids.tolist() == [[3], [9]]
    assert values.tolist() == [[0.0], [0.0]]
    assert index.search(items[:1], 2, filter="colour == 'r'")[1].tolist() == [[0, 3]]
    assert index.search(items[:1], 2, filter="size >= 30")[1].tolist() in ([[3, 9]], [[9, 3]])
    index.add(items[:1])
    assert index.search(items[:1], 1, filter="id > 9")[1].tolist() == [[10]]


def test_filters_are_passed_through_and_missing_hits_are_filled(database: Make) -> None:
    items = points(300)
    index = database()
    index.add(items, fields={"parity": ["even", "odd"] * 150, "tags": [[i % 3] for i in range(300)]})
    index.add(items[:1] + 0.01, ids=[500])
    queries = points(6, seed=1)
    kept = np.flatnonzero((np.arange(300) % 2 == 1) & (np.arange(300) > 100))
    values, ids = index.search(queries, 5, filter="parity == 'odd' and id > 100")
    expected, rows = truth(make("kl", 4), queries, items[kept], 5, "query-first")
    np.testing.assert_array_equal(ids, kept[rows])
    np.testing.assert_allclose(values, expected, rtol=1e-4)
    values, ids = index.search(queries, 5, filter="id in [3, 4, 500] and not (id == 4)")
    assert sorted(ids[0, :2].tolist()) == [3, 500]
    assert (ids[:, 2:] == -1).all()
    assert np.isinf(values[:, 2:]).all()
    assert (np.diff(values[:, :2]) >= 0).all()
    assert (index.search(queries, 3, filter="parity == 'neither'")[1] == -1).all()
    assert (index.search(queries, 1, filter="array_contains(tags, 2)")[1] % 3 == 2).all()


def test_a_misspelt_field_in_a_filter_is_an_error(database: Make) -> None:
    items = points(30)
    index = database()
    index.add(items[:20], fields={"price": list(range(20)), "info": [{"prize": i} for i in range(20)]})
    index.add(items[20:], fields={"late": [True] * 10})  # a field of some items only
    for wrong in ("prize < 3", "id > 2 and prize < 3", "not (prize in [1, 2])", "prize == 'price' or id == 3"):
        with pytest.raises(ValueError, match=r"a field in the filter of MilvusIndex must be .*Did you mean 'price'"):
            index.search(items[:2], 2, filter=wrong)
    for right, count in (
        ("price < 3", 3),
        ("info['prize'] < 3", 3),  # a key of a dict, in a text
        ("late == true", 10),
        ("id == 3 or price == 1e0", 2),
        ("NOT (price >= 2) AND id IN [0, 1, 7]", 2),
        ("exists late && id > 27", 2),
    ):
        found = index.search(items[:1], 12, filter=right)[1]
        assert (found >= 0).sum() == count, right
    assert (database().search(items[:1], 3, filter="price > 99")[1] == -1).all()


def test_removed_items_are_gone_and_unknown_ones_are_named(database: Make) -> None:
    items = points(20)
    index = database()
    index.add(items)
    index.remove([3, 4])
    assert len(index) == 18
    assert 3 not in index.search(items[3:4], 18)[1]
    message = "ids of MilvusIndex.remove must be in the index. Got unknown 3, 77 instead."
    with pytest.raises(KeyError, match=re.escape(message)):
        index.remove([5, 3, 77])
    assert len(index) == 18
    with pytest.raises(ValueError, match=r"must be all different\. Got 5 twice"):
        index.remove([5, 5])
    index.remove([])
    index.add(items[3:4], ids=[3])
    assert index.search(items[3:4], 1)[1].tolist() == [[3]]


# ---------------------------------------------------------------------- bad input


def test_bad_items_leave_the_index_as_it_was(database: Make) -> None:
    index = database()
    with pytest.raises(KeyError, match="unknown 1 instead"):
        index.remove([1])
    items = points(5)
    index.add(items)
    nan, negative = items.clone(), items.clone()
    nan[2, 1], negative[0, 0] = torch.nan, -1
    for bad, message in [
        (nan, r"items of MilvusIndex must be finite. Got items\[2, 1\] = nan"),
        (negative, "items of MilvusIndex must be inside the positive domain"),
        (items[:, :3], r"items of MilvusIndex must be of shape \(..., 4\). Got \(5, 3\)"),
        (items[0], r"must be of shape \(n, dim\)"),
    ]:
        for call in (index.add, lambda x: index.upsert(x, ids=range(5))):
            with pytest.raises(ValueError, match=message):
                call(bad)
    for ids, message in [
        ([7, 8, 8, 9, 10], "ids of MilvusIndex.add must be all different. Got 8 twice"),
        ([7, 8], "must be as many as there are items, 5. Got 2"),
        ([4, 7, 8, 9, 3], "must be new. Got 4, 3, in the index already instead. Replace them with upsert"),
        ([-1, 7, 8, 9, 10], "must be from 0 to"),
        (np.ma.masked_equal([7, 8, 9, 10, 11], 9), "must be without masked entries"),
    ]:
        with pytest.raises(ValueError, match=message):
            index.add(items, ids=ids)
    with pytest.raises(ValueError, match=r"MilvusIndex.upsert must be as many as there are items, 5. Got 1"):
        index.upsert(items, ids=[1])
    with pytest.raises(TypeError, match="must be integers in one dimension"):
        index.add(items, ids=["a"] * 5)
    assert len(index) == 5
    index.add(items[:0])
    index.upsert(items[:0], ids=[])
    assert len(index) == 5


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"a": [1, 2]}, ValueError, "'a' in fields of MilvusIndex.add must be one value for each of 3 items. Got 2"),
        ({"a": "abc"}, ValueError, "Got a string instead"),
        ({"id": [1, 2, 3]}, ValueError, "named like variables, and not 'id', 'key' or 'item'. Got 'id'"),
        ({"a b": [1, 2, 3]}, ValueError, "named like variables"),
        ({"a": [1, 2, float("nan")]}, ValueError, "must be finite numbers, strings"),
        ({"a": [1, 2, object()]}, ValueError, "must be finite numbers, strings"),
        ([1, 2, 3], TypeError, "must be a mapping of names to one value for each item. Got list"),
    ],
)
def test_bad_fields_are_refused(database: Make, fields: Any, error: type[Exception], message: str) -> None:
    index = database()
    with pytest.raises(error, match=re.escape(message)):
        index.add(points(3), fields=fields)
    assert len(index) == 0


def test_bad_searches_are_refused(database: Make, capfd: pytest.CaptureFixture[str]) -> None:
    index = database()
    for filter in ("", "id > 0"):
        with pytest.raises(ValueError, match=r"MilvusIndex must be filled before it is used\. Got no items"):
            index.search(points(1), 1, filter=filter)
    index.add(points(5))
    for queries, k, filter, error, message in [
        (points(1), 6, "", ValueError, "k of MilvusIndex.search must be at most 5, the number of items. Got 6"),
        (points(1), 0, "", ValueError, "must be a positive integer"),
        (points(1), 20000, "", ValueError, "must be at most 16384, the limit of Milvus"),
        (points(1) * torch.nan, 1, "", ValueError, "queries of MilvusIndex must be finite"),
        (-points(1), 1, "", ValueError, "queries of MilvusIndex must be inside the positive domain"),
        (points(1, 3), 1, "", ValueError, "queries of MilvusIndex must be of shape"),
        (points(1), 1, "id ==== 3", ValueError, "filter of MilvusIndex must be an expression that Milvus can evaluate"),
        (points(1), 1, None, TypeError, "filter of MilvusIndex.search must be an expression in a string. Got None"),
    ]:
        with pytest.raises(error, match=message):
            index.search(queries, k, filter)  # type: ignore[arg-type]
    assert index.search(points(1), 6, filter="id >= 0")[1].tolist()[0][-1] == -1
    empty = index.search(points(0), 2)
    assert [part.shape for part in empty] == [(0, 2), (0, 2)]
    index.remove(range(5))
    with pytest.raises(ValueError, match="must be filled before it is used"):
        index.search(points(1), 1)
    # What the engine logs of an error is in the error, and not on the terminal as well.
    assert "Traceback" not in "".join(capfd.readouterr())


def test_divergences_that_are_no_inner_products_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"askew\.search\.ExactIndex searches with any divergence"):
        MilvusIndex(make("iqe", 8), tmp_path / "a.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"divergence": "itakura-saito"}, "must be made for the same divergence and encoder, with the same numbers"),
        ({"divergence": make("kl", 5)}, "must be made for dim 5. Got one for dim 4"),
        ({"direction": "query-second"}, "must be made for the direction 'query-second'. Got one for 'query-first'"),
        ({"divergence": Embedded(nn.Linear(4, 4), make("kl", 4))}, "for the same divergence and encoder"),
    ],
)
def test_a_collection_is_refused_to_another_divergence(database: Make, settings: Any, message: str) -> None:
    database().add(points(3))
    with pytest.raises(ValueError, match=message):
        database(**settings)
    assert len(database()) == 3


def test_a_collection_of_another_program_is_refused(database: Make, client: Any) -> None:
    client.create_collection("other", dimension=3)
    with pytest.raises(ValueError, match="'other' of MilvusIndex must be made by MilvusIndex of this version"):
        database(collection="other")
    database().add(points(2))
    changed = json.dumps(metadata(client) | {"format": 99})
    client.alter_collection_properties("askew", {"askew": changed})
    with pytest.raises(ValueError, match="Got one of format 99"):
        database()


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        ("items", ValueError, "must be a path that ends in .db, or an address"),
        ("nowhere/items.db", FileNotFoundError, "must be in a folder that exists"),
        ("file.db", NotADirectoryError, "must be a new path, or a folder that MilvusIndex has made. Got the file"),
        pytest.param(
            "/proc/items.db",
            OSError,
            "must be a path that can be written to and that no other process has open",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="a folder that root cannot write to, either"),
        ),
        ("http://me:secret@localhost:19530", ValueError, "must be without a password. Got one with an '@'"),
        ("http://127.0.0.1:9", ConnectionError, "must be the address of a Milvus server that answers"),
        (7, TypeError, "must be a path that ends in .db"),
    ],
)
def test_bad_places_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    uri: Any,
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.db").write_text("of somebody else")
    with pytest.raises(error, match=f"uri of MilvusIndex {message}") as raised:
        MilvusIndex("kl", uri)
    assert "secret" not in str(raised.value)
    assert "".join(capfd.readouterr()) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file.db"]


@pytest.mark.parametrize("name", ["", "a b", "1a", "é", None])
def test_bad_names_of_collections_are_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ValueError, match="collection of MilvusIndex must be a name of letters, digits"):
        MilvusIndex("kl", tmp_path / "a.db", name)


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kind of MilvusIndex must be one of 'flat', 'ivf', 'hnsw', 'auto'"):
        MilvusIndex("kl", tmp_path / "a.db", kind="pq")
    with pytest.raises(ValueError, match="effort of MilvusIndex must be a positive integer"):
        MilvusIndex("kl", tmp_path / "a.db", effort=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("module", "what"), [("pymilvus", "MilvusIndex needs"), ("milvus_lite", "on a path needs")])
def test_missing_packages_are_named_with_the_line_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, what: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ImportError, match=rf'{what} the package.*Run in the clone of askew: pip install "\.\[milvus\]"'
    ):
        MilvusIndex("kl", tmp_path / "a.db")


def test_items_too_long_for_milvus_are_refused(database: Make) -> None:
    index = database("euclidean")
    with pytest.raises(ValueError, match=r"must be of at most 49149 bytes, the limit of Milvus\. Got 52000"):
        index.add(torch.zeros(2, 13000))
    assert len(index) == 0


# ---------------------------------------------------------------------- closing and opening


def test_items_are_there_after_closing(tmp_path: Path) -> None:
    before = threading.active_count()
    divergence, items, queries = nbd(), points(2500), points(5, seed=1)
    with MilvusIndex(divergence, tmp_path / "a.db") as index, MilvusIndex(divergence, tmp_path / "a.db") as second:
        index.add(items)
        expected = index.search(queries, 4)
        index.close()
        np.testing.assert_array_equal(second.search(queries, 4)[1], expected[1])  # the engine is still there
        for call in (lambda: index.search(queries, 4), lambda: index.add(items), lambda: len(index)):
            with pytest.raises(ValueError, match=r"MilvusIndex must be open\. Got one that was closed"):
                call()
        index.close()
    for _ in range(600):  # a loaded machine may need some seconds
        if threading.active_count() <= before:
            break
        time.sleep(0.1)
    assert threading.active_count() <= before
    # Others can have it now.
    with open(tmp_path / "a.db" / "LOCK") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with MilvusIndex(divergence, tmp_path / "a.db") as again:
        for got, want in zip(again.search(queries, 4), expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_an_index_that_is_forgotten_is_closed(tmp_path: Path) -> None:
    index = MilvusIndex("kl", tmp_path / "a.db")
    index.add(points(3))
    del index
    gc.collect()
    with open(tmp_path / "a.db" / "LOCK") as lock:  # which the engine held
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with MilvusIndex("kl", tmp_path / "a.db") as again:
        assert len(again) == 3


def test_what_was_added_survives_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import sys; from test_milvus import *\n"
        "index = MilvusIndex('kl', sys.argv[1])\n"
        "for i in range(1000): index.add(points(200, seed=i)); print(200 * (i + 1), flush=True)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a.db")], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    with process.stdout as output:
        seen = [int(output.readline()) for _ in range(5)]
        with pytest.raises(OSError, match=r"no other process has open. Got .*another process holds the lock"):
            MilvusIndex("kl", tmp_path / "a.db")
        process.send_signal(signal.SIGKILL)
        seen += [int(line) for line in output.read().split()]
    process.wait()
    with MilvusIndex("kl", tmp_path / "a.db") as index:
        assert len(index) in (seen[-1], seen[-1] + 200)
        items = points(200, seed=3)
        assert index.search(items, 1)[1][:, 0].tolist() == list(range(600, 800))


def test_save_and_load_connect_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, items = Embedded(nn.Linear(6, 4), nbd()), torch.randn(50, 6)
    folder = tmp_path / "index"
    folder.mkdir()
    with MilvusIndex(model, folder / "a.db", direction="query-second", kind="ivf", effort=128, token="pst") as index:
        with pytest.raises(ValueError, match="must be filled before it is used"):
            index.save(folder)
        index.add(items)
        expected = index.search(items[:3], 4)
        index.save(folder)
        index.save(folder)
    assert "pst" not in (folder / "index.json").read_text()
    moved = folder.rename(tmp_path / "moved")
    with MilvusIndex.load(moved) as again:
        assert (again.direction, again.kind, again.effort, len(again)) == ("query-second", "ivf", 128, 50)
        for got, want in zip(again.search(items[:3], 4), expected, strict=True):
            np.testing.assert_array_equal(got, want)
    moved.joinpath("a.db").rename(tmp_path / "b.db")
    with pytest.raises(FileNotFoundError, match=r"must be where it was. Got nothing at .* load\(folder, uri=...\)"):
        MilvusIndex.load(moved)
    with MilvusIndex.load(moved, uri=tmp_path / "b.db") as again:
        assert len(again) == 50
        other = pymilvus.MilvusClient(str(tmp_path / "b.db"))
        other.drop_collection("askew")
        other.close()
    with pytest.raises(FileNotFoundError, match="Got no collection 'askew' at"):
        MilvusIndex.load(moved, uri=tmp_path / "b.db")


def test_bad_folders_are_refused(tmp_path: Path, database: Make) -> None:
    index = database()
    index.add(points(3))
    with pytest.raises(OSError, match="folder must be one that can be written to"):
        index.save("/proc/index")
    with pytest.raises(FileNotFoundError, match=r"must be one that MilvusIndex.save wrote, with its index.json"):
        MilvusIndex.load(tmp_path)
    index.save(tmp_path / "saved")
    file = tmp_path / "saved" / "index.json"
    file.write_text(file.read_text().replace("askew", "bskew"))
    with pytest.raises(ValueError, match="damaged"):
        MilvusIndex.load(tmp_path / "saved")
    assert len(index) == 3


def test_a_failing_engine_says_what_is_wrong(database: Make, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    index = database()
    index.add(points(3))

    def fail(*_: object) -> None:
        raise pymilvus.MilvusException(message="collection askew\nis gone")

    with monkeypatch.context() as patch:
        patch.setattr(pymilvus.MilvusClient, "insert", fail)
        with pytest.raises(RuntimeError, match=r"MilvusIndex could not add items: Milvus at .*items\.db says: .*askew"):
            index.add(points(1))
    client.drop_collection("askew")
    with pytest.raises(RuntimeError, match="MilvusIndex could not read items"):
        index.add(points(1), ids=[9])
    with pytest.raises(RuntimeError, match="MilvusIndex could not search"):
        index.search(points(1), 1)


def test_log_messages_of_others_still_pass(database: Make, caplog: pytest.LogCaptureFixture) -> None:
    database().add(points(3))
    with caplog.at_level(logging.ERROR, logger="milvus_lite.server_manager"):
        logging.getLogger("milvus_lite.server_manager").error("of somebody else")
    assert "of somebody else" in caplog.text


def test_repr_shows_where_and_how(database: Make) -> None:
    index = database("kl", kind="ivf")
    assert "no divergence yet" in repr(index)
    index.add(points(2))
    assert re.fullmatch(
        r"MilvusIndex\(Bregman, uri='.*items\.db', collection='askew', direction='query-first', kind='ivf'\)",
        repr(index),
    )


def test_keys_that_overflow_are_refused(database: Make) -> None:
    index = database("euclidean")
    large = torch.full((1, 4), 1e30)
    with pytest.raises(ValueError, match="items of MilvusIndex must be of a size whose keys fit float32"):
        index.add(torch.cat([points(3), large]))
    assert len(index) == 0
    double = database("euclidean", "double")
    double.add(points(3).double())
    with pytest.raises(ValueError, match="queries of MilvusIndex must be of a size whose keys fit float32"):
        double.search(large.double() * 1e10, 1)


def test_the_embedded_engine_is_not_looked_for_behind_a_proxy(database: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    index = database()
    index.add(points(3))
    assert len(index) == 3
