"""Indexes that are changed by several threads, and changes that are interrupted in their shortest moments."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import askew
from askew.divergences import Jensen
from askew.search import ExactIndex, FaissIndex, load_index, local
from askew.search.gate import Gate
from askew.search.local import LocalIndex
from askew.search.store import Store

POINTS = (np.random.RandomState(0).rand(3000, 8) + 0.5).astype(np.float32)
# How long a thread may take that must not wait for another one.
PATIENCE = 60.0

KINDS: dict[str, Callable[[], LocalIndex]] = {
    "exact": lambda: ExactIndex("kl"),
    "pairs": lambda: ExactIndex(Jensen(askew.make("kl", 8))),  # no inner products
    "flat": lambda: FaissIndex("kl", kind="flat"),
    "ivf": lambda: FaissIndex("kl", kind="ivf"),
    "hnsw": lambda: FaissIndex("kl", kind="hnsw"),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def nearest(index: LocalIndex, queries: NDArray[Any]) -> NDArray[np.int64]:
    if isinstance(index, FaissIndex) and index.kind != "flat":
        index.effort = 1000  # what is missed is not what is tested
    return index.search(queries, 1)[1][:, 0]


class Threads:
    """Threads whose errors are those of the test."""

    def __init__(self, *work: Callable[[], object]) -> None:
        self.errors: list[BaseException] = []
        self.threads = [threading.Thread(target=self._run, args=(one,), daemon=True) for one in work]
        for thread in self.threads:
            thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]


# ---------------------------------------------------------------------- interrupted


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, is_own: Callable[[Any], bool]) -> None:
    """Let Ctrl-C come once, at the moment a method is called."""
    whole = getattr(owner, name)
    done: list[bool] = []

    def cut(self: Any, *arguments: Any) -> Any:
        if not done and is_own(self):
            done.append(True)
            raise KeyboardInterrupt
        return whole(self, *arguments)

    monkeypatch.setattr(owner, name, cut)


@EVERY_KIND
@pytest.mark.parametrize("after", ["search", "add", "remove", "save"])
def test_interrupted_addition_leaves_the_index_as_it_was(
    kind: str, after: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:1000])
    store = index._store
    interrupt(monkeypatch, Store, "append", lambda one: one is store)  # the keys are in by then
    with pytest.raises(KeyboardInterrupt):
        index.add(POINTS[1000:1500])
    assert len(index) == 1000
    expected = np.arange(900, 1000)
    if after == "add":
        index.add(POINTS[2000:2500])
        np.testing.assert_array_equal(nearest(index, POINTS[2000:2500]), np.arange(1000, 1500))
    elif after == "remove":
        index.remove(np.arange(100))
        assert (nearest(index, POINTS[:100]) >= 100).all()
    elif after == "save":
        index.save(tmp_path)
        index = load_index(tmp_path)  # type: ignore[assignment]
    np.testing.assert_array_equal(nearest(index, POINTS[900:1000]), expected)
    assert (nearest(index, POINTS[1000:1500]) != np.arange(1000, 1500)).all() or after == "add"


@EVERY_KIND
def test_interrupted_first_addition_leaves_no_items(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = KINDS[kind]()
    interrupt(monkeypatch, Store, "append", lambda one: one.values.shape[1] == 8)
    with pytest.raises(KeyboardInterrupt):
        index.add(POINTS[:1000])
    assert len(index) == 0
    with pytest.raises(ValueError, match="must be filled before"):
        index.search(POINTS[:1], 1)
    index.add(POINTS[1000:1500])
    np.testing.assert_array_equal(nearest(index, POINTS[1000:1500]), np.arange(500))


@EVERY_KIND
def test_items_that_were_removed_stay_so_after_an_interrupt(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:1000])
    interrupt(monkeypatch, type(index), "_take_out", lambda one: one is index)
    with pytest.raises(KeyboardInterrupt):
        index.remove(np.arange(10))
    assert len(index) == 990
    assert (nearest(index, POINTS[:10]) >= 10).all()
    np.testing.assert_array_equal(nearest(index, POINTS[10:100]), np.arange(10, 100))


@EVERY_KIND
def test_interrupted_making_of_the_index(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:1000])
    interrupt(monkeypatch, Store, "become", lambda one: one is index._store)
    with pytest.raises(KeyboardInterrupt):
        index.remove(np.arange(400))  # so many that it is made anew
    assert len(index) == 600
    index.add(POINTS[1000:1400])  # as many rows as before
    np.testing.assert_array_equal(nearest(index, POINTS[400:1400]), np.arange(400, 1400))


def test_gate_knows_of_interrupted_writers_only() -> None:
    gate = Gate()
    with gate.changing(), gate.changing(), gate.writing():
        assert gate.torn
    assert not gate.torn
    with pytest.raises(KeyboardInterrupt), gate.changing(), gate.writing():
        raise KeyboardInterrupt
    assert gate.torn
    assert copy.deepcopy(gate).torn
    with gate.reading():  # nobody is inside any more
        pass
    with gate.writing():
        pass
    assert not gate.torn


# ---------------------------------------------------------------------- several threads


@EVERY_KIND
def test_first_items_from_several_threads(kind: str) -> None:
    index = KINDS[kind]()
    parts = (POINTS[:700], POINTS[700:1500], POINTS[1500:1600])
    Threads(*(functools.partial(index.add, part) for part in parts)).join()
    assert len(index) == 1600
    assert len(set(nearest(index, POINTS[:1600]).tolist())) == 1600  # each item under an id of its own


@pytest.mark.parametrize("kind", ["exact", "flat"])
@pytest.mark.parametrize("second", [900, 2000])
def test_blocks_from_two_threads(kind: str, second: int) -> None:
    index = KINDS[kind]()
    begun, go = threading.Event(), threading.Event()

    def blocks() -> Iterator[NDArray[Any]]:
        begun.set()
        assert go.wait(PATIENCE)
        yield POINTS[:1000]

    running = Threads(lambda: index.add_blocks(blocks()))
    assert begun.wait(PATIENCE)
    other = Threads(lambda: index.add_blocks([POINTS[1000 : 1000 + second]]))
    go.set()
    running.join()
    other.join()
    np.testing.assert_array_equal(nearest(index, POINTS[: 1000 + second]), np.arange(1000 + second))


def test_failed_addition_beside_another_does_not_forget_the_divergence(tmp_path: Path) -> None:
    index = ExactIndex("kl")
    inside, go = threading.Event(), threading.Event()

    class Slow:
        def __array__(self, dtype: object = None, copy: object = None) -> NDArray[Any]:
            inside.set()
            assert go.wait(PATIENCE)
            return POINTS[:3]

    failing = Threads(lambda: index.add(Slow(), ids=[1, 1, 2]))  # type: ignore[arg-type]
    assert inside.wait(PATIENCE)
    index.add(POINTS[:1000])
    go.set()
    with pytest.raises(ValueError, match="must be all different"):
        failing.join()
    index.save(tmp_path)
    assert len(load_index(tmp_path)) == 1000
    # Alone, it stands for any number of features again.
    other = ExactIndex("kl")
    with pytest.raises(ValueError, match="must be all different"):
        other.add(POINTS[:3], ids=[1, 1, 2])
    other.add(POINTS[:5, :3])
    assert len(other) == 5


@EVERY_KIND
def test_searches_go_on_while_the_index_is_saved(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:1000])
    saving, go = threading.Event(), threading.Event()
    commit = local.commit

    def slowly(*arguments: Any) -> None:
        saving.set()
        assert go.wait(PATIENCE)
        commit(*arguments)

    monkeypatch.setattr(local, "commit", slowly)
    running = Threads(lambda: index.save(tmp_path))
    assert saving.wait(PATIENCE)
    changing = Threads(lambda: index.add(POINTS[1000:1100]))  # waits, and must not keep searches out
    Threads(lambda: np.testing.assert_array_equal(nearest(index, POINTS[:50]), np.arange(50))).join()
    assert changing.threads[0].is_alive()
    go.set()
    running.join()
    changing.join()
    assert len(index) == 1100
    assert len(load_index(tmp_path)) == 1000


@EVERY_KIND
def test_every_answer_beside_changes_is_right(kind: str) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:1000])
    stop = threading.Event()

    def change() -> None:
        for turn in range(12):
            ids = 1000 + 100 * turn + np.arange(100)
            index.add(POINTS[ids], ids=ids)
            index.remove(ids[:80])
        stop.set()

    def search() -> None:
        queries = POINTS[:200]
        while not stop.is_set():
            np.testing.assert_array_equal(nearest(index, queries), np.arange(200))

    Threads(change, search, search).join()
    assert len(index) == 1000 + 12 * 20


# ---------------------------------------------------------------------- blocks


def test_later_blocks_are_checked_in_the_dtype_of_the_first() -> None:
    index = ExactIndex("euclidean")
    large = np.full((2, 8), 1e300)
    with pytest.raises(ValueError, match="items"):
        index.add_blocks([POINTS[:10], large])
    assert len(index) == 0
    index.add_blocks([POINTS[:10], POINTS[10:20].astype(np.float64)])
    np.testing.assert_array_equal(nearest(index, POINTS[:20]), np.arange(20))
    # What is positive in float64 only is outside of the domain.
    index = ExactIndex("itakura-saito")
    with pytest.raises(ValueError, match="positive"):
        index.add_blocks([POINTS[:10] + np.float32(1), np.full((1, 8), 1e-60)])


def test_files_are_read_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAISS has one limit of what it reads for all threads, and for each file it is another one."""
    counts = {"small": 10, "large": 3000}
    for name, count in counts.items():
        index = FaissIndex("kl", kind="flat")
        index.add(POINTS[:count])
        index.save(tmp_path / name)
    faiss = index._faiss
    before, original = faiss.get_deserialization_vector_byte_limit(), faiss.read_index
    together = threading.Barrier(2)

    def slow(*arguments: Any) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.3)  # for the other thread
        return original(*arguments)

    def load(name: str) -> None:
        for _ in range(20):
            assert len(FaissIndex.load(tmp_path / name)) == counts[name]

    monkeypatch.setattr(faiss, "read_index", slow)
    Threads(*[functools.partial(load, name) for name in counts]).join()
    assert together.broken  # nobody came
    assert faiss.get_deserialization_vector_byte_limit() == before


@EVERY_KIND
def test_ids_are_not_given_twice_after_all_items_were_removed(kind: str) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:10])
    index.remove(np.arange(10))
    index.add_blocks([POINTS[10:15], POINTS[15:20]])
    np.testing.assert_array_equal(nearest(index, POINTS[10:20]), np.arange(10, 20))


def test_copy_of_an_index_is_another_one() -> None:
    index = ExactIndex("euclidean")
    index.add(torch.from_numpy(POINTS[:10]))
    other = copy.deepcopy(index)
    with index._gate.changing(), index._gate.writing():
        assert nearest(other, POINTS[:3]).tolist() == [0, 1, 2]


@pytest.mark.parametrize("place", ["memory", "scratch", "folder"])
@pytest.mark.parametrize("kind", [*KINDS, "ivf-pq"])
def test_copies_change_on_their_own(kind: str, place: str, tmp_path: Path) -> None:
    index = KINDS[kind]() if kind in KINDS else FaissIndex("kl", kind=kind)
    if place == "scratch" and isinstance(index, FaissIndex):
        index._scratch = tmp_path
    index.add(POINTS[:1000])
    if place == "folder":
        index.save(tmp_path)
        index = type(index).load(tmp_path)
    index.remove(np.arange(100))
    other = copy.deepcopy(index)
    for one, same in zip(index.search(POINTS[:50], 5), other.search(POINTS[:50], 5), strict=True):
        np.testing.assert_array_equal(one, same)
    before = index.search(POINTS[:50], 5)
    other.add(POINTS[1000:1050])
    other.remove(np.arange(100, 150))
    index.add(POINTS[2000:2020])
    index.remove(np.arange(1000, 1020))
    assert (len(index), len(other)) == (900, 900)
    np.testing.assert_array_equal(nearest(other, POINTS[1000:1050]), np.arange(1000, 1050))
    assert (nearest(other, POINTS[100:150]) >= 150).all()
    np.testing.assert_array_equal(nearest(index, POINTS[100:150]), np.arange(100, 150))
    del other
    for one, same in zip(index.search(POINTS[:50], 5), before, strict=True):
        np.testing.assert_array_equal(one, same)


def test_copy_of_an_index_in_scratch_is_in_a_file_too(tmp_path: Path) -> None:
    index = FaissIndex("kl", scratch=tmp_path)
    empty = copy.deepcopy(index)
    index.add(POINTS[:100])
    other = copy.deepcopy(index)
    assert isinstance(other._items._values, np.memmap)
    assert not np.shares_memory(other._items._values, index._items._values)
    assert len(empty) == 0
