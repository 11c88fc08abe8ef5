"""Input that nobody planned for: a clear error, and an index that is what it was."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import askew
from askew.divergences import Embedded, GeneralizedSymmetrized, Jensen, Reversed, make
from askew.search import ExactIndex, FaissIndex

pytest.importorskip("faiss")

DIM = 3
AnyIndex = ExactIndex | FaissIndex
ITEMS = np.random.default_rng(0).uniform(0.5, 2, size=(30, DIM))
QUERIES = np.random.default_rng(1).uniform(0.5, 2, size=(4, DIM))
IDS = 2 * np.arange(30)

MAKERS: dict[str, Callable[..., AnyIndex]] = {
    "exact": lambda divergence="kl", direction="query-first": ExactIndex(divergence, direction),
    "flat": lambda divergence="kl", direction="query-first": FaissIndex(divergence, direction, kind="flat"),
    "ivf": lambda divergence="kl", direction="query-first": FaissIndex(divergence, direction, kind="ivf"),
    "hnsw": lambda divergence="kl", direction="query-first": FaissIndex(divergence, direction, kind="hnsw"),
}
both = pytest.mark.parametrize("make_index", MAKERS.values(), ids=MAKERS)
Maker = Callable[..., AnyIndex]


def filled(make_index: Maker, *arguments: Any) -> AnyIndex:
    index = make_index(*arguments)
    index.add(ITEMS, IDS)
    index.remove([0, 2])
    return index


@contextmanager
def unchanged(index: AnyIndex) -> Iterator[None]:
    """Raise unless the index is after the block what it was before."""
    before = index.search(QUERIES, 5)
    count = len(index)
    yield
    assert len(index) == count
    for one, other in zip(index.search(QUERIES, 5), before, strict=True):
        np.testing.assert_array_equal(one, other)
    index.add(ITEMS[:1])  # and it takes items as before
    assert index.search(ITEMS[:1], 1)[1] == 59


# ---------------------------------------------------------------------- search


@both
@pytest.mark.parametrize(
    ("queries", "k", "error", "match"),
    [
        (QUERIES, 29, ValueError, r"k of \w+Index.search must be at most 28, the number of items. Got 29"),
        (QUERIES, 0, ValueError, r"k of \w+Index.search must be a positive integer. Got 0"),
        (QUERIES, -1, ValueError, "must be a positive integer. Got -1"),
        (QUERIES, 2.5, ValueError, "must be a positive integer. Got 2.5"),
        (QUERIES, True, ValueError, "must be a positive integer. Got True"),
        (QUERIES, "3", ValueError, "must be a positive integer. Got '3'"),
        (QUERIES[:, :2], 1, ValueError, r"queries of \w+Index must be of shape \(\.\.\., 3\). Got \(4, 2\)"),
        (QUERIES[0], 1, ValueError, r"must be of shape \(n, dim\). Got \(3,\) instead. A single point is one row: po"),
        (QUERIES[None], 1, ValueError, r"queries of \w+Index must be of shape \(n, dim\). Got \(1, 4, 3\)"),
        (3.0, 1, ValueError, r"must be of shape \(n, dim\). Got \(\)"),
        (np.array([[1, np.nan, 1]]), 1, ValueError, r"queries of \w+Index must be finite. Got queries\[0, 1\] = nan"),
        (np.array([[1, 1, np.inf]]), 1, ValueError, r"must be finite. Got queries\[0, 2\] = inf"),
        (-QUERIES, 1, ValueError, r"queries of \w+Index must be inside the positive domain.*Got queries\[0, 0\] = -"),
        ([["a", "b", "c"]], 1, TypeError, "points must be real numbers. Got an array of <U1"),
        ([[1, 2, None]], 1, TypeError, "points must be real numbers. Got other objects|must be finite"),
        (QUERIES + 0j, 1, TypeError, "points must be real numbers. Got an array of complex128"),
        (torch.ones(1, DIM, dtype=torch.complex64), 1, TypeError, "points must be real numbers. Got torch.complex64"),
    ],
)
def test_search(make_index: Maker, queries: Any, k: Any, error: type[Exception], match: str) -> None:
    index = filled(make_index)
    with unchanged(index), pytest.raises((error, ValueError) if "|" in match else error, match=match):
        index.search(queries, k)


@both
def test_an_empty_index(make_index: Maker) -> None:
    index = make_index()
    for start in (0, 2):
        with pytest.raises(ValueError, match=r"Index must be filled before it is searched.*Call add first"):
            index.search(QUERIES, 1)
        index.add(ITEMS[:2])
        index.remove([start, start + 1])
    empty = make_index()
    with pytest.raises(ValueError, match=r"dim of \w+Index must be known by the first items before it is used"):
        _ = empty.divergence
    assert "no divergence yet" in repr(empty)
    assert "items=0" in repr(index)


@both
def test_nothing_asked(make_index: Maker) -> None:
    index = filled(make_index)
    for queries in (QUERIES[:0], torch.empty(0, DIM), np.empty((0, DIM), np.float32)):
        values, ids = index.search(queries, 3)
        assert (values.shape, ids.shape) == ((0, 3), (0, 3))
        assert (values.dtype, ids.dtype) == (np.float64, np.int64)
    with pytest.raises(ValueError, match=r"must be of shape \(n, dim\). Got \(0,\)"):
        index.search([], 3)


# ---------------------------------------------------------------------- add


def bad(value: float) -> Any:
    items = ITEMS[:4].copy()
    items[2, 1] = value
    return items


@both
@pytest.mark.parametrize(
    ("items", "ids", "error", "match"),
    [
        (ITEMS[:2], [7, 7], ValueError, r"ids of \w+Index must be all different. Got 7 twice"),
        (ITEMS[:2], [7, 4], ValueError, r"ids of \w+Index must be new. Got 4, in the index already.*Remove them first"),
        (ITEMS[:2], [7, -4], ValueError, r"ids of \w+Index must be from 0 to 2\^63 - 1. Got -4"),
        (ITEMS[:2], [7.0, 9.0], TypeError, r"ids of \w+Index must be integers in one dimension. Got an array of float"),
        (ITEMS[:2], ["7", "9"], TypeError, "must be integers in one dimension"),
        (ITEMS[:2], 7, TypeError, "must be integers in one dimension"),
        (ITEMS[:2], [[7], [9]], TypeError, "must be integers in one dimension"),
        (ITEMS[:2], np.ma.masked_equal([7, 9], 9), ValueError, r"ids of \w+Index must be without masked entries"),
        (ITEMS[:2], [7], ValueError, "must be as many as there are items, 2. Got 1"),
        (ITEMS[:2], [], ValueError, "must be as many as there are items, 2. Got 0"),
        (ITEMS[:0], [7], ValueError, "must be as many as there are items, 0. Got 1"),
        (ITEMS[:, :2], None, ValueError, r"items of \w+Index must be of shape \(\.\.\., 3\). Got \(30, 2\)"),
        (ITEMS[0], None, ValueError, r"must be of shape \(n, dim\). Got \(3,\) instead. A single point is one row"),
        (ITEMS[None], None, ValueError, r"items of \w+Index must be of shape \(n, dim\)"),
        (bad(np.nan), None, ValueError, r"items of \w+Index must be finite. Got items\[2, 1\] = nan"),
        (bad(-np.inf), None, ValueError, r"items of \w+Index must be finite. Got items\[2, 1\] = -inf"),
        (bad(-1.0), None, ValueError, r"items of \w+Index must be inside the positive domain.*Got items\[2, 1\] = -1"),
        (bad(0.0), None, ValueError, r"items of \w+Index must be inside the positive domain.*clamp_min"),
        (ITEMS.astype(str), None, TypeError, "points must be real numbers"),
        (None, None, TypeError, "points must be real numbers|inside|shape"),
    ],
)
def test_add(make_index: Maker, items: Any, ids: Any, error: type[Exception], match: str) -> None:
    index = filled(make_index)
    with unchanged(index), pytest.raises((error, ValueError) if "|" in match else error, match=match):
        index.add(items, ids)


@both
def test_a_failed_first_addition_fixes_nothing(make_index: Maker) -> None:
    index = make_index()
    for items, ids in ((-np.ones((2, 5)), None), (np.ones((2, 5)), [1, 1]), (np.full((2, 5), np.nan), None)):
        with pytest.raises(ValueError, match=r"Index must be"):
            index.add(items, ids)
    index.add(ITEMS)
    assert index.search(ITEMS[:1], 1)[1] == 0


@both
@pytest.mark.parametrize("direction", ["query-first", "query-second"])
def test_domains(make_index: Maker, direction: str) -> None:
    """Zeros are for the first argument of KL only, wherever it comes from."""
    zeros = ITEMS.copy()
    zeros[:, 0] = 0
    index = make_index("kl", direction)
    turned = make_index(Reversed(make("kl", DIM).double()), direction)
    first, second = ("queries", "items") if direction == "query-first" else ("items", "queries")
    for one, allowed, refused in ((index, first, second), (turned, second, first)):
        one.add(zeros if allowed == "items" else ITEMS)
        assert np.isfinite(one.search(np.eye(DIM) if allowed == "queries" else QUERIES, 3)[0]).all()
        with pytest.raises(ValueError, match=f"{refused} of .* must be inside the positive domain"):
            one.add(zeros) if refused == "items" else one.search(zeros, 1)


@pytest.mark.parametrize("wrap", [Jensen, GeneralizedSymmetrized])
def test_domain_of_symmetric_forms(wrap: Callable[[Any], Any]) -> None:
    index = ExactIndex(wrap(make("kl", DIM)))
    with pytest.raises(ValueError, match="items of ExactIndex must be inside the positive domain"):
        index.add(np.eye(DIM))


@both
def test_numbers_that_overflow(make_index: Maker) -> None:
    index = make_index(make("exponential", DIM))
    index.add(ITEMS.astype(np.float32), IDS)
    index.remove([0, 2])
    with unchanged(index), pytest.raises(ValueError, match=r"items of .* must be of a size whose keys fit float32"):
        index.add(np.full((2, DIM), 90, np.float32))
    other = make_index(make("exponential", DIM), "query-second")
    other.add(ITEMS.astype(np.float32))
    with pytest.raises(ValueError, match=r"queries of .* must be of a size whose products .* with float64"):
        other.search(np.full((1, DIM), 90, np.float32), 1)


@both
def test_keys_that_overflow_in_float32_only(make_index: Maker) -> None:
    index = make_index("euclidean")
    large = 1e30 * ITEMS
    if isinstance(index, ExactIndex):
        index.add(large)
        np.testing.assert_array_equal(index.search(large, 1)[1][:, 0], np.arange(30))
    else:
        with pytest.raises(ValueError, match=r"items of FaissIndex must be of a size whose keys fit float32.*float64"):
            index.add(large)


@both
def test_nothing_added(make_index: Maker) -> None:
    index = filled(make_index)
    with unchanged(index):
        index.add(ITEMS[:0])
        index.add(torch.empty(0, DIM), [])
        index.remove([])
    index = make_index()
    index.add(np.empty((0, DIM)))
    assert len(index) == 0


# ---------------------------------------------------------------------- remove


@both
@pytest.mark.parametrize(
    ("ids", "error", "match"),
    [
        ([4, 5, 6, 99], KeyError, r"ids of \w+Index.remove must be in the index. Got unknown 5, 99"),
        ([0], KeyError, "unknown 0"),
        (list(range(1, 31, 2)), KeyError, "unknown 1, 3, 5, 7, 9 and 10 more"),
        ([4, 4], ValueError, r"ids of \w+Index.remove must be all different. Got 4 twice"),
        ([4.0], TypeError, r"ids of \w+Index.remove must be integers in one dimension"),
        (4, TypeError, "integers in one dimension"),
        ([-4], ValueError, "from 0 to"),
        (np.ma.masked_equal([4, 6], 6), ValueError, r"ids of \w+Index.remove must be without masked entries"),
    ],
)
def test_remove(make_index: Maker, ids: Any, error: type[Exception], match: str) -> None:
    index = filled(make_index)
    with unchanged(index), pytest.raises(error, match=match):
        index.remove(ids)
    with pytest.raises(error, match=r"unknown|different|integers|from 0|masked"):
        make_index().remove(ids)


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize("kind", [ExactIndex, FaissIndex])
@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("kl", "query-frist"), ValueError, r"direction of \w+Index must be one of .* Did you mean 'query-first'"),
        (("kll",), ValueError, r"divergence of \w+Index must be one of .* Did you mean 'kl'"),
        (("nbd",), ValueError, r'one that needs no learning.*Got \'nbd\'.*askew.DivergenceLearner\("nbd"\).fit'),
        ((askew.DivergenceLearner(),), ValueError, "a DivergenceLearner that is not fitted instead. Call its fit"),
        ((askew.DivergenceNeighborsClassifier(),), (TypeError, ValueError), "must be a divergence, a fitted learner"),
        ((None,), TypeError, "a divergence, a fitted learner, or a name such as 'kl'. Got NoneType"),
        ((nn.Linear(2, 2),), TypeError, "a divergence, a fitted learner, or a name such as 'kl'. Got Linear"),
        ((lambda x, y: 0,), TypeError, "Got function"),
    ],
)
def test_settings(kind: type[AnyIndex], arguments: tuple[Any, ...], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        kind(*arguments)


def test_kind() -> None:
    with pytest.raises(ValueError, match=r"kind of FaissIndex must be one of 'flat'.* Did you mean 'hnsw'"):
        FaissIndex("kl", kind="hnws")


@pytest.mark.parametrize("name", ["iqe", "mrn", "deepnorm", "widenorm", "deep-div", "pbdl"])
def test_divergences_that_do_not_reduce(name: str) -> None:
    match = r"divergence of FaissIndex must be a Bregman divergence.*askew.search.ExactIndex searches with any"
    for divergence in (make(name, DIM), Embedded(nn.Identity(), make(name, DIM)), Reversed(make(name, DIM))):
        with pytest.raises(TypeError, match=match):
            FaissIndex(divergence)
    ExactIndex(make(name, DIM)).add(ITEMS)


def test_faiss_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    original = importlib.import_module

    def import_module(name: str, package: str | None = None) -> ModuleType:
        if name == "faiss":
            raise ImportError("No module named 'faiss'")
        return original(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(ImportError, match=r'FaissIndex needs the package \'faiss\'.*pip install "\.\[faiss\]"'):
        FaissIndex("kl")


# ---------------------------------------------------------------------- what is not bad


FORMS: dict[str, Callable[[Any], Any]] = {
    "list": lambda a: a.tolist(),
    "tuple": lambda a: tuple(map(tuple, a.tolist())),
    "float16": lambda a: a.astype(np.float16),
    "longdouble": lambda a: a.astype(np.longdouble),
    "object": lambda a: a.astype(object),
    "big-endian": lambda a: a.astype(">f8"),
    "fortran": np.asfortranarray,
    "reversed": lambda a: a[::-1][::-1],
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "read-only": lambda a: np.lib.stride_tricks.as_strided(a, writeable=False),
    "frame": lambda a: pd.DataFrame(a, columns=["a", "b", "c"]),
    "nullable": lambda a: pd.DataFrame(a).astype("Float64"),
    "tensor": torch.from_numpy,
    "gradient": lambda a: torch.from_numpy(a).requires_grad_(),
    "transposed": lambda a: torch.from_numpy(a.T.copy()).T,
    "expanded": lambda a: torch.from_numpy(a)[:, None].expand(-1, 2, -1)[:, 1],
    "half": lambda a: torch.from_numpy(a).half(),
    "bfloat16": lambda a: torch.from_numpy(a).bfloat16(),
    "inference": lambda a: torch.inference_mode()(lambda: torch.from_numpy(a) * 1)(),
}


@both
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_points(make_index: Maker, form: str) -> None:
    convert = FORMS[form]
    items, queries = ITEMS.copy(), QUERIES.copy()
    index, plain = make_index(), ExactIndex("kl")
    index.add(convert(items[:20]))
    index.add(convert(items[20:]))
    index.remove([0])
    index.remove([1])
    plain.add(ITEMS)
    plain.remove([0, 1])
    values, ids = index.search(convert(queries), 5)
    wanted, wanted_ids = plain.search(QUERIES, 5)
    rough = form in ("float16", "half", "bfloat16")
    assert values.dtype == (np.float32 if rough else np.float64)
    np.testing.assert_allclose(values, wanted, rtol=0.3 if rough else 1e-12, atol=0.02 if rough else 0)
    if not rough:
        np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_array_equal(items, ITEMS)
    np.testing.assert_array_equal(queries, QUERIES)


@both
def test_integers(make_index: Maker) -> None:
    items = np.random.default_rng(0).integers(1, 9, size=(40, DIM))
    indexes = [make_index() for _ in range(5)]
    sets = (items, items.astype(np.uint8), torch.from_numpy(items), items.tolist(), pd.DataFrame(items))
    for index, points in zip(indexes, sets, strict=True):
        index.add(points)
        np.testing.assert_array_equal(index.search(points, 3)[0], indexes[0].search(items, 3)[0])
        assert (index.search(points, 1)[0] == 0).all()


@both
def test_what_was_given_may_change(make_index: Maker) -> None:
    items, ids = ITEMS.copy(), IDS.copy()
    index = make_index()
    index.add(items, ids)
    wanted = index.search(QUERIES, 5)
    items[:], ids[:] = 1, 0
    values, found = index.search(QUERIES, 5)
    np.testing.assert_array_equal(values, wanted[0])
    np.testing.assert_array_equal(found, wanted[1])
    values[:], found[:] = 0, 0  # nor is what was given out a part of it
    np.testing.assert_array_equal(index.search(QUERIES, 5)[1], wanted[1])


@both
@pytest.mark.parametrize("threads", [1, 3])
def test_inside_inference_mode(make_index: Maker, threads: int, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    divergence = make("nbd", DIM)
    index, plain = make_index(divergence), make_index(divergence)
    with torch.inference_mode():
        index.add(torch.from_numpy(ITEMS))
        index.remove([3])
        index.search(QUERIES, 2)
    index.add(ITEMS[:3])
    index.remove([4, 31])
    plain.add(ITEMS)
    plain.remove([3])
    plain.add(ITEMS[:3])
    plain.remove([4, 31])
    np.testing.assert_array_equal(index.search(QUERIES, 5)[1], plain.search(QUERIES, 5)[1])
    loss = divergence(torch.ones(2, DIM), torch.from_numpy(ITEMS[:2]).float()).sum()
    loss.backward()


@both
def test_ids_of_any_integer_type(make_index: Maker) -> None:
    index = make_index()
    index.add(ITEMS[:2], np.array([200, 3], np.uint8))
    index.add(ITEMS[2:4], torch.tensor([5, 2**63 - 1]))
    index.add(ITEMS[4:6], pd.Series([7, 9]))
    assert list(index.search(ITEMS[:6], 1)[1][:, 0]) == [200, 3, 5, 2**63 - 1, 7, 9]
    with pytest.raises(ValueError, match="must be given where the next numbers would be above"):
        index.add(ITEMS[6:7])
    index.remove(torch.tensor([2**63 - 1]))
    assert len(index) == 5
