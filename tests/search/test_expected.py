"""What people expect of an index: ids that are strings, upsert, filters, fields, and all items within a radius."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from askew.divergences import Divergence, Sqrt, make
from askew.search import ExactIndex, FaissIndex, folder, load_index
from askew.search.columns import packed
from askew.search.inner_product import DIRECTIONS

DIM, COUNT = 6, 300
AnyIndex = ExactIndex | FaissIndex
KINDS: dict[str, Callable[..., AnyIndex]] = {
    "exact": ExactIndex,
    **{
        kind: lambda divergence, direction="query-first", kind=kind: FaissIndex(divergence, direction, kind)  # type: ignore[misc]
        for kind in ("flat", "ivf", "hnsw", "ivf-pq")
    },
}
every_kind = pytest.mark.parametrize("kind", KINDS)
both_directions = pytest.mark.parametrize("direction", DIRECTIONS)
random = np.random.default_rng(0)
POINTS = np.exp(random.normal(size=(COUNT, DIM))).astype(np.float32)
QUERIES = np.exp(random.normal(size=(15, DIM))).astype(np.float32)
NAMES = np.array([f"item-{i}-é" + "x" * (i % 7) for i in range(COUNT)])
COLOURS = np.array(["red", "blue", "green"])[np.arange(COUNT) % 3]
PRICES = np.arange(COUNT) / 10
FIELDS = {"colour": COLOURS.tolist(), "price": PRICES, "old": np.arange(COUNT) % 2 == 0}


def filled(kind: str, direction: str = "query-first", divergence: Any = "kl") -> AnyIndex:
    index = KINDS[kind](divergence, direction)
    index.add(POINTS[:200], NAMES[:200], {name: column[:200] for name, column in FIELDS.items()})
    index.add(POINTS[200:], NAMES[200:].tolist(), {name: column[200:] for name, column in FIELDS.items()})
    return index


def numbers(ids: Any) -> Any:
    """Return the rows of ids in POINTS."""
    return np.array([[int(name.split("-")[1]) for name in row] for row in np.atleast_2d(ids)])


def matrix(divergence: Divergence, direction: str, queries: Any = QUERIES) -> Any:
    first, second = torch.from_numpy(queries)[:, None], torch.from_numpy(POINTS)[None]
    with torch.no_grad():
        return (divergence(first, second) if direction == "query-first" else divergence(second, first)).numpy()


# ---------------------------------------------------------------------- ids


@every_kind
@both_directions
def test_ids_that_are_strings(kind: str, direction: str, tmp_path: Path) -> None:
    index = filled(kind, direction)
    _, ids = index.search(POINTS[:20], 3)
    assert ids.dtype.kind == "U"
    np.testing.assert_array_equal(ids[:, 0], NAMES[:20])
    index.remove(NAMES[:5])
    np.testing.assert_array_equal(index.ids, NAMES[5:])
    index.save(tmp_path)
    loaded = load_index(tmp_path)
    for one, other in zip(loaded.search(QUERIES, 4), index.search(QUERIES, 4), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(loaded.ids, NAMES[5:])
    for name, column in FIELDS.items():
        np.testing.assert_array_equal(loaded.fields[name], np.asarray(column)[5:])
        assert loaded.fields[name].dtype.kind == np.asarray(column).dtype.kind
    loaded.add(POINTS[:1], [NAMES[0]], {name: column[:1] for name, column in FIELDS.items()})
    assert loaded.search(POINTS[:1], 1)[1][0, 0] == NAMES[0]


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (["a", "a"], ValueError, r"ids of ExactIndex must be all different. Got 'a' twice"),
        (["a", 7], TypeError, "ids of ExactIndex must be all of one kind. Got strings and 7"),
        (["a", "b\0"], ValueError, "without zero characters"),
        (["a", "b\ud800"], ValueError, "lone surrogates"),
        (np.array(["a\0b", "b"]), ValueError, "without zero characters"),
        (np.array(["a", "b\ud800"]), ValueError, "lone surrogates"),
        (["a"], ValueError, "as many as there are items, 2"),
        ([1, 2], TypeError, "ids of ExactIndex must be strings in one dimension, as those in the index. Got integers"),
        (None, ValueError, "ids of ExactIndex must be given, one for each item"),
        ([str(NAMES[3]), "b"], ValueError, r"must be new. Got 'item-3-éxxx', in the index already"),
    ],
)
def test_bad_ids(ids: Any, error: type[Exception], message: str) -> None:
    index = filled("exact")
    with pytest.raises(error, match=message):
        index.add(POINTS[:2], ids, {name: column[:2] for name, column in FIELDS.items()})
    assert len(index) == COUNT


def test_unknown_strings() -> None:
    index = filled("exact")
    with pytest.raises(KeyError, match=r"ids of ExactIndex.remove must be in the index. Got unknown 'nobody'"):
        index.remove([NAMES[0], "nobody"])
    with pytest.raises(TypeError, match="must be strings"):
        index.remove([3])
    assert len(index) == COUNT


def test_strings_do_not_follow_numbers() -> None:
    index = ExactIndex("kl")
    index.add(POINTS[:3])
    with pytest.raises(TypeError, match=r"must be integers in one dimension, as those in the index. Got strings"):
        index.add(POINTS[3:5], ["a", "b"])


def test_pandas_and_objects() -> None:
    pandas = pytest.importorskip("pandas")
    for ids in (pandas.Series(["a", "bc", "d"]), np.array(["a", "bc", "d"], object)):
        index = ExactIndex("kl")
        index.add(POINTS[:3], ids)
        assert index.search(POINTS[1:2], 1)[1].tolist() == [["bc"]]


# ---------------------------------------------------------------------- upsert


@every_kind
def test_upsert(kind: str) -> None:
    index = filled(kind)
    moved = POINTS[:50] * np.float32(7)
    ids = [*NAMES[:40], *(f"new-{i}" for i in range(10))]
    index.upsert(moved, ids, {name: column[100:150] for name, column in FIELDS.items()})
    assert len(index) == COUNT + 10
    assert len(set(index.ids.tolist())) == COUNT + 10
    np.testing.assert_array_equal(index.search(moved, 1)[1][:, 0], ids)
    assert not np.isin(NAMES[:40], index.search(POINTS[:40], 1)[1][:, 0]).all()
    place = index.ids.tolist().index(NAMES[7])
    assert index.fields["colour"][place] == COLOURS[107]
    # Without fields they are kept.
    index.upsert(POINTS[:3], NAMES[:3])
    place = index.ids.tolist().index(NAMES[2])
    assert index.fields["price"][place] == PRICES[102]
    for _ in range(5):  # more than a quarter of the rows have been replaced
        index.upsert(POINTS[:100], NAMES[:100])
    hits = index.search(POINTS[:100], 1)[1][:, 0] == NAMES[:100]
    assert hits.mean() >= (0.95 if kind == "hnsw" else 1)


def test_bad_upsert() -> None:
    index = filled("exact")
    with pytest.raises(ValueError, match=r"fields of ExactIndex must be 'colour', 'price', 'old', as for the items"):
        index.upsert(POINTS[:2], [NAMES[0], "new"])
    with pytest.raises(ValueError, match="ids of ExactIndex must be given"):
        index.upsert(POINTS[:2], None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="all different"):
        index.upsert(POINTS[:2], [NAMES[0]] * 2)
    assert len(index) == COUNT
    np.testing.assert_array_equal(index.search(POINTS[:9], 1)[1][:, 0], NAMES[:9])


# ---------------------------------------------------------------------- filters


FILTERS: dict[str, tuple[Any, Any]] = {
    "mask": (np.arange(COUNT) % 4 == 1, np.arange(COUNT) % 4 == 1),
    "tensor": (torch.arange(COUNT) % 4 == 1, np.arange(COUNT) % 4 == 1),
    "few": (set(NAMES[::30].tolist()), np.arange(COUNT) % 30 == 0),
    "array": (NAMES[::3], np.arange(COUNT) % 3 == 0),
    "predicate": (
        lambda fields: (fields["colour"] == "red") & (fields["price"] < 20),
        (np.arange(COUNT) % 3 == 0) & (PRICES < 20),
    ),
    "boolean field": (lambda fields: fields["old"], np.arange(COUNT) % 2 == 0),
}


@every_kind
@both_directions
@pytest.mark.parametrize("name", FILTERS)
def test_filters(name: str, direction: str, kind: str) -> None:
    index = filled(kind, direction)
    chosen, mask = FILTERS[name]
    values, ids = index.search(QUERIES, 5, filter=chosen)
    rows = numbers(ids)
    assert mask[rows].all()
    truth = np.where(mask, matrix(index.divergence, direction), np.inf)
    np.testing.assert_allclose(values, np.take_along_axis(truth, rows, 1), rtol=1e-5)
    limit = np.sort(truth, 1)[:, 4:5] * (1 + 1e-5)
    assert (values <= limit).mean() >= (0.9 if kind in ("ivf", "hnsw", "ivf-pq") else 1)


@every_kind
def test_filters_after_removals(kind: str) -> None:
    index = filled(kind)
    index.remove(NAMES[:30])
    mask = np.arange(30, COUNT) % 2 == 0
    _, ids = index.search(POINTS[:30], 3, filter=mask)
    rows = numbers(ids)
    assert (rows >= 30).all()
    assert (rows % 2 == 0).all()
    _, ids = index.search(QUERIES, int(mask.sum()), filter=mask)
    np.testing.assert_array_equal(np.sort(numbers(ids), 1), np.tile(np.arange(30, COUNT, 2), (len(QUERIES), 1)))


@pytest.mark.parametrize(
    ("filter", "error", "message"),
    [
        (np.ones(7, bool), ValueError, r"filter of \w+Index.search must be of shape \(300,\), one for each item"),
        ({"nobody"}, KeyError, r"ids of \w+Index.search must be in the index. Got unknown 'nobody'"),
        ([3, 4], TypeError, r"must be strings in one dimension, as those in the index"),
        (
            lambda fields: fields["color"] == "red",
            ValueError,
            r"field of the filter of \w+Index.search must be .*colour",
        ),
        (lambda fields: fields["price"], TypeError, "a function that returns a mask. Got one that returns float64"),
        (lambda fields: fields["price"][:5] > 3, ValueError, r"must be of shape \(300,\)"),
        ("colour == 'red'", TypeError, r"a function of the fields that returns a mask. .*lambda"),
        ({"colour": "red"}, TypeError, "a function of the fields that returns a mask"),
    ],
)
@pytest.mark.parametrize("kind", ["exact", "ivf"])
def test_bad_filters(kind: str, filter: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        filled(kind).search(QUERIES, 5, filter=filter)


@pytest.mark.parametrize("filter", [NAMES[:4].tolist(), np.arange(COUNT) < 4, [], np.zeros(COUNT, bool)])
@pytest.mark.parametrize("kind", ["exact", "ivf"])
def test_fewer_hits_than_k_where_fewer_items_pass(kind: str, filter: Any) -> None:
    index, count = filled(kind), 4 if np.any(filter) else 0
    for k in (5, COUNT + 1):
        values, ids = index.search(QUERIES, k, filter=filter)
        assert values.shape == ids.shape == (len(QUERIES), count)
        assert ids.dtype.kind == "U"
        assert (np.sort(ids, 1) == np.sort(NAMES[:count])).all()
        assert (np.diff(values, axis=1) >= 0).all()


def test_predicates_need_fields() -> None:
    index = ExactIndex("kl")
    index.add(POINTS)
    with pytest.raises(KeyError, match=r"must be in the index. Got 'price' instead. Give fields to add"):
        index.search(QUERIES, 5, filter=lambda fields: fields["price"] > 3)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"price": [1, 2]}, ValueError, "fields of ExactIndex must be 'colour', 'price', 'old', as for the items"),
        (None, ValueError, "Got none instead"),
        ({**FIELDS, "price": [1.0]}, ValueError, "field 'colour' of ExactIndex must be as long as there are items, 2"),
        ({"price": [[1], [2]]}, TypeError, "field 'price' of ExactIndex must be numbers of at most 64 bits, boo"),
        ({"price": np.ones(2, np.longdouble)}, TypeError, r"in one dimension. Got an array of (float|longdouble)"),
        ({"colour": np.array(["a\ud800", "b"])}, ValueError, "lone surrogates"),
        ({"price": ["a", None]}, TypeError, "field 'price' of ExactIndex must be all of one kind"),
        ([1, 2], TypeError, "a dict from names to columns. Got list"),
        (
            {"colour": ["red"] * 2, "price": ["a", "b"], "old": [True] * 2},
            TypeError,
            "must be numbers, as those in the",
        ),
    ],
)
def test_bad_fields(fields: Any, error: type[Exception], message: str) -> None:
    index = filled("exact")
    with pytest.raises(error, match=message):
        index.add(POINTS[:2], ["a", "b"], fields)
    assert len(index) == COUNT
    np.testing.assert_array_equal(index.fields["price"], PRICES)


@pytest.mark.parametrize("ids", [np.array([7, 8, 9], ">i4"), np.array(["a", "é", "𝄞"], ">U2")])
def test_columns_of_another_byte_order(ids: Any, tmp_path: Path) -> None:
    index = ExactIndex("kl")
    fields = {"price": np.array([1.5, 2.5, 3.5], ">f8"), "colour": np.array(["r", "g", "b"], ">U1")}
    index.add(POINTS[:3], ids, fields | {"views": np.array([7, 8, 9], np.ulonglong)})
    index.save(tmp_path)
    loaded = load_index(tmp_path)
    assert loaded.fields["views"].tolist() == [7, 8, 9]
    assert loaded.ids.tolist() == ids.tolist()
    assert loaded.fields["price"].tolist() == [1.5, 2.5, 3.5]
    assert loaded.fields["colour"].tolist() == ["r", "g", "b"]


def _packed_at_first(name: str, column: Any) -> dict[str, torch.Tensor]:
    """Return tensors with the names that they had at first."""
    ends = {"text of ": ".text", "ends of ": ".ends"}
    return {f"{name}{ends[key[:8]]}" if key[:8] in ends else key: part for key, part in packed(name, column).items()}


@pytest.mark.parametrize("form", [packed, _packed_at_first])
def test_fields_are_loaded_whatever_their_names(form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "packed", form)
    fields = {"bus": ["x", "y", "zé"], "text of ids": [1, 2, 3], "ids": ["", "b", "c"], "line.ends": [7, 8, 9]}
    if form is packed:
        fields |= {"bus.ends": [600, 620, 640], "bus.text": ["p", "q", "r"], "text of field bus": [True, False, True]}
    index = ExactIndex("kl")
    index.add(POINTS[:3], ["a", "b", "cé"], fields)
    index.save(tmp_path)
    loaded = load_index(tmp_path)
    assert loaded.ids.tolist() == ["a", "b", "cé"]
    assert {name: column.tolist() for name, column in loaded.fields.items()} == fields


# ---------------------------------------------------------------------- within a radius


def trained(name: str) -> Divergence:
    torch.manual_seed(0)
    divergence = make(name, DIM)
    if any(True for _ in divergence.parameters()):
        divergence.calibrate(torch.from_numpy(POINTS[:100]), torch.from_numpy(POINTS[100:200]))
    return divergence.eval().requires_grad_(False)


@both_directions
@pytest.mark.parametrize("kind", ["exact", "ivf"])
@pytest.mark.parametrize("name", ["nbd", "drift", "kl", "mahalanobis", "sqrt"])
def test_range_search(name: str, kind: str, direction: str) -> None:
    divergence = Sqrt(trained("nbd")) if name == "sqrt" else trained(name)
    index = filled(kind, direction, divergence)
    index.remove(NAMES[::50])
    truth = matrix(divergence, direction)
    truth[:, ::50] = np.inf
    for radius in (0.0, float(np.quantile(truth, 0.01)), float(np.quantile(truth, 0.2)), 1e9):
        limits, values, ids = index.range_search(QUERIES, radius)
        assert limits.shape == (len(QUERIES) + 1,)
        assert limits[-1] == len(values) == len(ids)
        for i, row in enumerate(truth):
            part = slice(limits[i], limits[i + 1])
            near = np.abs(row - radius) <= 1e-5 * radius  # on either side
            inside = set(np.flatnonzero((row <= radius) & ~near))
            chosen = set(numbers(ids[part])[0]) if part.stop > part.start else set()
            assert inside <= chosen <= inside | set(np.flatnonzero(near))
            assert (np.diff(values[part]) >= 0).all()
    limits, values, ids = index.range_search(POINTS[1:9], 0.0, filter=NAMES[1:40])
    assert (values == 0).all()
    assert set(NAMES[1:9]) <= set(ids.tolist()) or name in ("drift",)


def test_range_search_without_inner_products() -> None:
    index = filled("exact", divergence=make("deepnorm", DIM).eval().requires_grad_(False))
    truth = matrix(index.divergence, "query-first")
    radius = float(np.quantile(truth, 0.1))
    limits, values, _ = index.range_search(QUERIES, radius)
    np.testing.assert_array_equal(np.diff(limits), (truth <= radius).sum(1))
    assert (values <= radius).all()


@pytest.mark.parametrize("radius", [-1, float("nan"), "1", None])
def test_bad_radius(radius: Any) -> None:
    with pytest.raises(ValueError, match=r"radius of ExactIndex.range_search must be a number of at least 0"):
        filled("exact").range_search(QUERIES, radius)
