"""Indexes that are changed by several threads, and changes that are interrupted in their shortest moments."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import askew
from askew import io
from askew.divergences import Jensen
from askew.search import ExactIndex, FaissIndex, exact, load_index, local, store
from askew.search import faiss as faiss_index
from askew.search.local import LocalIndex
from askew.search.lock import ReadWriteLock

POINTS = (np.random.RandomState(0).rand(3000, 8) + 0.5).astype(np.float32)
# How long a thread may take that must not wait for another one.
PATIENCE = 300.0

KINDS: dict[str, Callable[[], LocalIndex]] = {
    "exact": lambda: ExactIndex("kl"),
    "pairs": lambda: ExactIndex(Jensen(askew.make("kl", 8))),  # no inner products
    "flat": lambda: FaissIndex("kl", kind="flat"),
    "ivf": lambda: FaissIndex("kl", kind="ivf"),
    "hnsw": lambda: FaissIndex("kl", kind="hnsw"),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda index: pickle.loads(pickle.dumps(index)),
}
EVERY_COPY = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


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


@contextlib.contextmanager
def interrupted_commit(index: LocalIndex, after: bool = False) -> Iterator[None]:
    """Let Ctrl-C come in the middle of a commit: just before the items are replaced, or just after it."""

    class Cut(type(index)):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            if name != "_store" or after:
                object.__setattr__(self, name, value)
            if name == "_store":
                raise KeyboardInterrupt

    kind, index.__class__ = type(index), Cut
    with pytest.raises(KeyboardInterrupt):
        yield
    index.__class__ = kind
    assert index._lock.dirty


# Where changes are prepared and committed.
CHANGING = {module.__file__ for module in (local, exact, faiss_index, store)}


def interrupted(change: Callable[[], object], line: int) -> bool:
    """Make a change during which Ctrl-C comes at the n-th line of the code above; return whether there was one."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in CHANGING:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        change()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@EVERY_KIND
@pytest.mark.parametrize("after", ["search", "add", "remove", "save"])
def test_interrupted_addition_leaves_the_index_as_it_was(kind: str, after: str, tmp_path: Path) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:1000])
    with interrupted_commit(index):
        index.add(POINTS[1000:1500])
    assert len(index) == 1000
    expected = np.arange(900, 1000)
    if after == "add":
        index.add(POINTS[2000:2500])
        np.testing.assert_array_equal(nearest(index, POINTS[2000:2500:5]), np.arange(1000, 1500, 5))
    elif after == "remove":
        index.remove(np.arange(100))
        assert (nearest(index, POINTS[:100]) >= 100).all()
    elif after == "save":
        index.save(tmp_path)
        index = load_index(tmp_path)  # type: ignore[assignment]
    np.testing.assert_array_equal(nearest(index, POINTS[900:1000]), expected)
    assert (index.search(POINTS[1000:1500:5], 1)[0] > 0).all()  # none of these is in it


@EVERY_KIND
def test_interrupted_first_addition_leaves_no_items(kind: str) -> None:
    index = KINDS[kind]()
    with interrupted_commit(index):
        index.add(POINTS[:1000])
    assert len(index) == 0
    with pytest.raises(ValueError, match="must be filled before"):
        index.search(POINTS[:1], 1)
    index.add(POINTS[1000:1500])
    np.testing.assert_array_equal(nearest(index, POINTS[1000:1500]), np.arange(500))


@EVERY_KIND
def test_items_that_were_removed_stay_so_after_an_interrupt(kind: str) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:1000])
    with interrupted_commit(index, after=True):
        index.remove(np.arange(10))
    assert len(index) == 990
    assert (nearest(index, POINTS[:10]) >= 10).all()
    np.testing.assert_array_equal(nearest(index, POINTS[10:100]), np.arange(10, 100))


# A change of an index of 500 items, and the items after it.
CHANGES: dict[str, tuple[Callable[[LocalIndex], None], NDArray[np.int64]]] = {
    "add": (lambda index: index.add(POINTS[500:600]), np.arange(600)),
    "outgrow": (lambda index: index.add(POINTS[500:2100]), np.arange(2100)),  # the index is rebuilt
    "remove": (lambda index: index.remove(np.arange(50)), np.arange(50, 500)),
    "remove many": (lambda index: index.remove(np.arange(200)), np.arange(200, 500)),  # the index is rebuilt
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["exact", "flat"])  # the others commit by the same lines
def test_interrupted_at_any_line(kind: str, change: str) -> None:
    """Ctrl-C at any line of a change leaves the items before it or those after it, and right answers."""
    whole = KINDS[kind]()
    whole.add(POINTS[:500])
    make_change, after = CHANGES[change]
    for line in range(1, 100_000, 3):
        index = copy.deepcopy(whole)
        came = interrupted(lambda index=index: make_change(index), line)  # type: ignore[misc]
        items = after if len(index) == len(after) else np.arange(500)
        assert len(index) == len(items)
        np.testing.assert_array_equal(nearest(index, POINTS[items[::5]]), items[::5])
        if not came:
            break
        index.add(POINTS[2900:3000], ids=np.arange(5000, 5100))
        np.testing.assert_array_equal(nearest(index, POINTS[2900:3000:5]), np.arange(5000, 5100, 5))
    assert not came
    assert len(index) == len(after)


def test_lock_knows_of_interrupted_commits_only() -> None:
    lock = ReadWriteLock()
    with lock.prepare, lock.prepare, lock.commit():
        assert lock.dirty
    assert not lock.dirty
    with pytest.raises(KeyboardInterrupt), lock.prepare, lock.commit():
        raise KeyboardInterrupt
    assert lock.dirty
    assert copy.deepcopy(lock).dirty
    with lock.read():  # nobody is inside any more
        pass
    with lock.commit():
        pass
    assert not lock.dirty


# ---------------------------------------------------------------------- several threads


@EVERY_KIND
def test_first_items_from_several_threads(kind: str) -> None:
    index = KINDS[kind]()
    parts = (POINTS[:350], POINTS[350:750], POINTS[750:800])
    Threads(*(functools.partial(index.add, part) for part in parts)).join()
    assert len(index) == 800
    assert len(set(nearest(index, POINTS[:800]).tolist())) == 800  # each item under an id of its own


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


def test_failed_addition_does_not_forget_the_divergence_of_another(tmp_path: Path) -> None:
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


def slow_down_saving(monkeypatch: pytest.MonkeyPatch, saving: threading.Event, go: threading.Event) -> None:
    write_folder = io.write_folder

    def slowly(*arguments: Any) -> None:
        saving.set()
        assert go.wait(PATIENCE)
        write_folder(*arguments)

    monkeypatch.setattr(io, "write_folder", slowly)


@EVERY_KIND
def test_searches_go_on_while_the_index_is_saved(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:1000])
    saving, go = threading.Event(), threading.Event()
    slow_down_saving(monkeypatch, saving, go)
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
def test_every_answer_during_changes_is_right(kind: str) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:1000])
    stop = threading.Event()

    def change() -> None:
        for turn in range(6):
            ids = 1000 + 100 * turn + np.arange(100)
            index.add(POINTS[ids], ids=ids)
            index.remove(ids[:80])
        stop.set()

    def search() -> None:
        queries = POINTS[:50]
        while not stop.is_set():
            np.testing.assert_array_equal(nearest(index, queries), np.arange(50))

    Threads(change, search, search).join()
    assert len(index) == 1000 + 6 * 20


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
    counts = {"small": 10, "large": 1000}
    for name, count in counts.items():
        index = FaissIndex("kl", kind="hnsw")
        index.add(POINTS[:count])
        index.save(tmp_path / name)
    faiss = pytest.importorskip("faiss")
    before, original = faiss.get_deserialization_vector_byte_limit(), faiss.read_index
    together = threading.Barrier(2)

    def slow(*arguments: Any) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.3)  # for the other thread
        return original(*arguments)

    def load(name: str) -> None:
        for _ in range(3):
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


def test_copy_of_an_index_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index = ExactIndex("euclidean")
    index.add(torch.from_numpy(POINTS[:10]))
    other = copy.deepcopy(index)
    saving, go = threading.Event(), threading.Event()
    slow_down_saving(monkeypatch, saving, go)
    running = Threads(lambda: index.save(tmp_path))
    assert saving.wait(PATIENCE)
    Threads(lambda: other.add(POINTS[10:20])).join()
    go.set()
    running.join()
    assert (len(index), len(other)) == (10, 20)
    assert nearest(other, POINTS[:20]).tolist() == list(range(20))


@EVERY_COPY
@EVERY_KIND
def test_copy_during_a_change_is_of_one_moment(kind: str, copied: Callable[[LocalIndex], LocalIndex]) -> None:
    index = KINDS[kind]()
    index.add(POINTS[:1000])
    changes = []

    class Change:
        """An attribute that starts a change when it is copied."""

        def __reduce__(self) -> tuple[type[None], tuple[()]]:
            changes.append(Threads(lambda: index.add(POINTS[1000:1100])))
            changes[0].threads[0].join(0.05)
            return type(None), ()

    index.progress = Change()  # type: ignore[assignment]
    other = copied(index)
    changes[0].join()
    assert (len(index), len(other)) == (1100, 1000)
    np.testing.assert_array_equal(nearest(index, POINTS[1000:1100]), np.arange(1000, 1100))
    np.testing.assert_array_equal(nearest(other, POINTS[:50]), np.arange(50))
    assert (nearest(other, POINTS[1000:1100]) < 1000).all()


@EVERY_COPY
def test_copies_do_not_share_room_for_more_items(copied: Callable[[LocalIndex], LocalIndex]) -> None:
    index = ExactIndex("kl")
    index.add(POINTS[:100])
    index.add(POINTS[100:110])  # leaves room behind them
    other = copied(index)
    other.add(POINTS[200:210])
    index.add(POINTS[300:305])
    np.testing.assert_array_equal(nearest(other, POINTS[200:210]), np.arange(110, 120))
    np.testing.assert_array_equal(nearest(index, POINTS[300:305]), np.arange(110, 115))


@EVERY_COPY
@pytest.mark.parametrize("place", ["memory", "scratch", "folder"])
@pytest.mark.parametrize("kind", [*KINDS, "ivf-pq"])
def test_copies_change_on_their_own(
    kind: str, place: str, copied: Callable[[LocalIndex], LocalIndex], tmp_path: Path
) -> None:
    index = KINDS[kind]() if kind in KINDS else FaissIndex("kl", kind=kind)
    if place == "scratch" and isinstance(index, FaissIndex):
        index = FaissIndex("kl", kind=index.kind, scratch=tmp_path)
    index.add(POINTS[:1000])
    if place == "folder":
        index.save(tmp_path)
        index = type(index).load(tmp_path)
    index.remove(np.arange(100))
    other = copied(index)
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
