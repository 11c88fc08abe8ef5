"""Items with ids: what comes, goes and comes again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from askew.search.store import Store, check_ids, listed

LARGEST = 2**63 - 1


def filled(count: int, ids: Any = None) -> Store:
    store = Store(np.empty((0, 2), np.float32), np.empty(0, np.int64))
    put(store, count, ids)
    return store


def put(store: Store, count: int, ids: Any = None) -> NDArray[np.int64]:
    """Add items whose first feature is their id."""
    new = store.new_ids(ids, count, "Test")
    store.append(np.stack([new, np.full(count, store.rows)], 1).astype(np.float32), new)
    return new


def remove(store: Store, *ids: int) -> None:
    rows = store.find(np.array(ids))
    assert (rows >= 0).all()
    store.drop(rows)


def live(store: Store) -> list[int]:
    ids = store.ids if store.live is None else store.ids[store.live]
    return [int(i) for i in ids]


def assert_whole(store: Store, ids: list[int]) -> None:
    """Raise unless the store holds these ids, each with its own item."""
    assert sorted(live(store)) == sorted(ids)
    assert len(store) == len(ids)
    rows = store.find(np.array(ids, np.int64))
    np.testing.assert_array_equal(store.values[rows, 0], ids)
    assert (store.find(np.array([10**9, -1])) == -1).all()


def test_default_ids_go_on() -> None:
    store = filled(3)
    assert list(put(store, 2)) == [3, 4]
    assert list(put(store, 2, [100, 50])) == [100, 50]
    assert list(put(store, 1)) == [101]
    assert_whole(store, [0, 1, 2, 3, 4, 50, 100, 101])


def test_default_ids_after_removal_are_not_used_again() -> None:
    store = filled(5)
    remove(store, 4, 3)
    assert list(put(store, 2)) == [5, 6]
    remove(store, 6)
    store = store.compacted()
    assert list(put(store, 1)) == [7]
    assert_whole(store, [0, 1, 2, 5, 7])
    remove(store, 0, 1, 2, 5, 7)
    store = store.compacted()
    assert (len(store), store.rows) == (0, 0)
    assert list(put(store, 1)) == [8]


def test_find_an_id_that_came_back() -> None:
    store = filled(4)
    for round_ in range(3):
        remove(store, 1, 3)
        assert list(store.find(np.array([1, 3, 0]))) == [-1, -1, 0]
        put(store, 2, [3, 1])
        assert list(store.find(np.array([1, 3]))) == [5 + 2 * round_, 4 + 2 * round_]
    assert_whole(store, [0, 1, 2, 3])
    remove(store, 1)
    assert_whole(store, [0, 2, 3])


def test_find_in_any_order() -> None:
    random = np.random.default_rng(0)
    ids = random.choice(10_000, 300, replace=False)
    store = filled(300, ids)
    np.testing.assert_array_equal(store.find(ids[::-1]), np.arange(300)[::-1])
    others = np.setdiff1d(np.arange(10_000), ids)
    assert (store.find(others) == -1).all()
    assert list(filled(0).find(np.array([0, 1]))) == [-1, -1]


def test_compacted_is_another_store() -> None:
    store = filled(6, [9, 3, 5, 7, 1, 0])
    assert store.compacted() is store
    remove(store, 5, 0)
    dense = store.compacted()
    assert (store.rows, dense.rows, len(dense)) == (6, 4, 4)
    assert_whole(store, [9, 3, 7, 1])
    assert_whole(dense, [9, 3, 7, 1])
    assert list(dense.ids) == [9, 3, 7, 1]
    assert dense.live is None
    put(dense, 1, [5])
    assert_whole(dense, [9, 3, 7, 1, 5])
    assert_whole(store, [9, 3, 7, 1])


@pytest.mark.parametrize("step", [1, 7, 300])
def test_growth(step: int) -> None:
    store, wanted, copies, address = filled(0), [], 0, None
    while len(wanted) < 900:
        wanted += list(put(store, step))
        copies += store.values.ctypes.data != address
        address = store.values.ctypes.data
    assert_whole(store, wanted)
    for reserved in (store.values.base, store.ids.base):
        assert reserved is not None
        assert store.rows <= len(reserved) <= store.rows + store.rows // 8 + step
    if step == 1:
        assert copies < 100


def test_reserved_memory_is_used() -> None:
    store = filled(3)
    store.reserve(100)
    address = store.values.ctypes.data
    put(store, 100)
    assert store.values.ctypes.data == address
    assert_whole(store, list(range(103)))


def test_given_arrays_are_not_kept() -> None:
    store = filled(0)
    values, ids = np.zeros((2, 2), np.float32), np.array([4, 5])
    store.append(values, ids)
    values[:], ids[:] = 9, 9
    assert list(store.ids) == [4, 5]
    assert (store.values == 0).all()


@pytest.mark.parametrize(
    ("ids", "error", "match"),
    [
        ([1, 2, 1, 3, 2], ValueError, "ids of Test must be all different. Got 1, 2 twice instead"),
        ([0, -1], ValueError, r"ids of Test must be from 0 to 2\^63 - 1. Got -1 instead"),
        (np.array([2**63], np.uint64), ValueError, r"from 0 to 2\^63 - 1. Got 9223372036854775808"),
        ([0.0, 1.0], TypeError, "integers in one dimension. Got an array of float64 with shape"),
        (["a", "b"], TypeError, "integers in one dimension"),
        ([True, False], TypeError, "integers in one dimension. Got an array of bool"),
        (3, TypeError, r"integers in one dimension. Got an array of int64 with shape \(\)"),
        ([[1, 2]], TypeError, "integers in one dimension"),
        ([2**70], TypeError, "integers in one dimension. Got an array of object"),
        (np.ma.masked_equal([3, 1], 1), ValueError, "ids of Test must be without masked entries. Got 1 of 2 masked"),
        (torch.arange(3).to_sparse(), TypeError, "ids of Test must be a dense tensor"),
    ],
)
def test_bad_ids(ids: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        check_ids(ids, "Test")


def test_good_ids() -> None:
    for ids in ([], [3, 1], np.array([3, 1], np.uint8), (LARGEST, 0), range(2), np.ma.array([3, 1])):
        found = check_ids(ids, "Test")
        assert found.dtype == np.int64
        assert list(found) == list(ids)


def test_ids_that_are_there() -> None:
    store = filled(8)
    with pytest.raises(ValueError, match=r"ids of Test must be new. Got 3, 0, in the index already"):
        store.new_ids([3, 100, 0], 3, "Test")
    with pytest.raises(ValueError, match=r"as many as there are items, 2. Got 1"):
        store.new_ids([100], 2, "Test")
    remove(store, 3)
    assert list(store.new_ids([3, 100], 2, "Test")) == [3, 100]
    assert_whole(store, [0, 1, 2, 4, 5, 6, 7])


def test_no_number_follows_the_largest() -> None:
    store = filled(1, [LARGEST])
    with pytest.raises(ValueError, match="ids of Test must be given where the next numbers would be above"):
        store.new_ids(None, 1, "Test")
    put(store, 1, [5])
    assert sorted(live(store)) == [5, LARGEST]


def test_few_ids_are_shown() -> None:
    assert listed(np.arange(5)) == "0, 1, 2, 3, 4"
    assert listed(np.arange(9)) == "0, 1, 2, 3, 4 and 4 more"
