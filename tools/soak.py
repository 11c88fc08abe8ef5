"""Search indexes from several threads and processes while items come and go, and check every answer.

    python tools/soak.py [--minutes 60] [--kinds exact flat ivf hnsw ivf-pq milvus] [--threads 3] [--processes 1]

The minutes are shared among the kinds, each with an nbd, queries first and ids that are numbers, then with a drift,
queries second and ids that are strings (numbers in Milvus). Threads search one index, half of the time with a filter,
while another adds, upserts and removes items, and saves the index from time to time; processes load what is saved and
search that (the embedded Milvus takes one process at a time, and has none of them). Of every answer it is checked that

- each item was in the index at some moment of the search, and passes the filter,
- each value is the divergence between query and item, to 1e-5 of it, with the point that the item had at some moment of
  the search, and values ascend,
- no item that is always there, passes, and is nearer than the last one found is missing (exact, flat and milvus, which
  is flat here; the other kinds may miss some: the share that they find is printed).

At the end a line for each kind: searches, percentiles of their time, changes, answers that were wrong, and the memory
of the process after a quarter of the time and at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import multiprocessing
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import askew
from askew.search import ExactIndex, FaissIndex, MilvusIndex, load_index

KINDS = ("exact", "flat", "ivf", "hnsw", "ivf-pq", "milvus")
EXACT = ("exact", "flat", "milvus")
DIM, ALWAYS, CHURN, K, QUERIES = 16, 20_000, 5_000, 10, 8
COLOURS = 4
# Of every index the search without a filter looks at so many, to know the nearest that pass one.
WIDE = 100
# Seconds between two savings of the index.
SAVE_EVERY = 15.0
TOLERANCE = 1e-5
# Seconds after which no search still runs that began before an item was removed.
FORGET_AFTER = 60.0


@functools.cache
def pool() -> np.ndarray:
    return np.random.RandomState(7).randn(ALWAYS + 4 * CHURN, DIM).astype(np.float32)


def points(numbers: np.ndarray, versions: np.ndarray | int = 0) -> np.ndarray:
    """Return the items with some numbers: each has a point of its own in each version, in any process."""
    return pool()[(numbers + 7919 * np.asarray(versions)) % len(pool())]


def fields(numbers: np.ndarray, version: int = 0) -> dict[str, np.ndarray]:
    return {"colour": numbers % COLOURS, "version": np.full(len(numbers), version)}


def divergence(name: str) -> askew.Divergence:
    torch.manual_seed(0)
    model = askew.make(name, DIM).eval()
    first, second = torch.from_numpy(points(np.arange(1000))).chunk(2)
    model.calibrate(first, second)
    return model


@dataclass(frozen=True)
class Way:
    """How an index is asked: its divergence, its direction, and whether its ids are strings."""

    name: str
    direction: str
    strings: bool

    def ids(self, numbers: np.ndarray) -> np.ndarray:
        return np.char.add("item ", numbers.astype(str)) if self.strings else numbers

    def numbers(self, ids: np.ndarray) -> np.ndarray:
        return np.char.lstrip(ids, "item ").astype(np.int64) if self.strings else ids

    def values(self, model: askew.Divergence, queries: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Return the divergences of queries ``(n, dim)`` and items ``(n, k, dim)``."""
        pair = torch.from_numpy(queries)[:, None].expand(items.shape), torch.from_numpy(items)
        with torch.no_grad():
            return model(*(pair if self.direction == "query-first" else pair[::-1])).numpy()


WAYS = (Way("nbd", "query-first", strings=False), Way("drift", "query-second", strings=True))


@dataclass
class Record:
    """What happened, written by all threads; lists and dictionaries take one entry at a time from any of them."""

    started: float = field(default_factory=time.monotonic)
    times: list[float] = field(default_factory=list)
    filtered: int = 0
    wrong: list[str] = field(default_factory=list)
    found: list[float] = field(default_factory=list)
    # Of each item that comes and goes: its versions, each with the times at which it came and went.
    history: dict[int, tuple[tuple[int, float, float], ...]] = field(default_factory=dict)
    changes: int = 0
    saved: int = 0
    memory: list[int] = field(default_factory=list)
    other_searches: int = 0

    def versions(self, number: int, begun: float, ended: float) -> list[int]:
        """Return the versions of an item that were in the index at some moment between two times."""
        if number < ALWAYS:
            return [0]
        return [one for one, came, went in self.history.get(number, ()) if came <= ended and went >= begun]


def check_values(values: np.ndarray, truth: np.ndarray, numbers: np.ndarray) -> str:
    """Return what is wrong with the values of an answer, or nothing; the last axis of truth is of versions."""
    off = (np.abs(values[..., None] - truth) / (TOLERANCE * truth + 1e-7)).min(-1)
    if not (off <= 1).all():
        return f"values off by {off.max():.3g} times the tolerance"
    if (np.diff(values, axis=1) < 0).any():
        return "values do not ascend"
    return "" if all(len(set(row)) == len(row) for row in numbers.tolist()) else "an item twice"


def search(
    index: Any, model: askew.Divergence, way: Way, kind: str, record: Record, stop: threading.Event, seed: int
) -> None:
    random = np.random.RandomState(seed)
    own = ExactIndex(model, way.direction)
    own.add(points(np.arange(ALWAYS)))
    some = np.arange(0, ALWAYS, 3)
    while not stop.is_set():
        queries = random.randn(QUERIES, DIM).astype(np.float32)
        colour, chosen = random.randint(COLOURS), random.randint(4)
        filter: Any = None
        passes = np.ones_like
        if chosen == 2 or (chosen == 3 and kind == "milvus"):
            filter = f"colour == {colour}" if kind == "milvus" else lambda columns, c=colour: columns["colour"] == c
            passes = lambda numbers, c=colour: numbers % COLOURS == c  # noqa: E731
        elif chosen == 3:
            filter, passes = way.ids(some), lambda numbers: (numbers < ALWAYS) & (numbers % 3 == 0)
        begun = time.monotonic()
        try:
            values, ids = index.search(queries, K, **({} if filter is None else {"filter": filter}))
        except Exception as error:
            record.wrong.append(f"{type(error).__name__}: {error}")
            continue
        ended = time.monotonic()
        record.times.append(ended - begun)
        record.filtered += filter is not None
        numbers = way.numbers(ids)
        there = [[record.versions(one, begun, ended) for one in row] for row in numbers.tolist()]
        gone = [int(numbers[i, j]) for i, row in enumerate(there) for j, one in enumerate(row) if not one]
        # Almost always one version, and at most as many as an item had in the time of a search.
        most = max(len(one) for row in there for one in row)
        versions = np.array(
            [[(one or [0]) + (one or [0])[-1:] * (most - len(one or [0])) for one in row] for row in there]
        )
        truth = [way.values(model, queries, points(numbers, versions[..., i])) for i in range(versions.shape[-1])]
        problem = check_values(values, np.stack(truth, -1), numbers)
        if gone:
            problem = f"item {gone[0]} was not there"
        if not np.all(passes(numbers)):
            problem = "an item that does not pass the filter"
        near, always = own.search(queries, K if filter is None else WIDE)
        share = []
        for row in range(QUERIES):
            nearer = always[row][(near[row] < values[row, -1] * (1 - TOLERANCE)) & passes(always[row]).astype(bool)]
            share.append(np.isin(nearer, numbers[row]).mean() if len(nearer) else 1.0)
        record.found.append(float(np.mean(share)))
        if kind in EXACT and record.found[-1] < 1:
            problem = "a nearer item is missing"
        if problem:
            record.wrong.append(problem + ("" if filter is None else " (filtered)"))


def change(index: Any, way: Way, record: Record, stop: threading.Event, folder: Path, seed: int) -> None:
    try:
        change_on(index, way, record, stop, folder, seed)
    except Exception as error:
        record.wrong.append(f"no more changes: {type(error).__name__}: {error}")


def change_on(index: Any, way: Way, record: Record, stop: threading.Event, folder: Path, seed: int) -> None:
    random, history = np.random.RandomState(seed), record.history
    there: list[int] = []
    removed: dict[int, float] = {}
    following, version, saved = ALWAYS, 0, time.monotonic()
    while not stop.is_set():
        count, choice = int(random.randint(1, 200)), random.rand()
        chosen = [there[i] for i in random.permutation(len(there))[:count]]
        if not there or (choice < 0.4 and len(there) < CHURN):
            new = np.arange(following, following + count)
            for one in new.tolist():
                history[one] = ((0, time.monotonic(), np.inf),)
            index.add(points(new), ids=way.ids(new), fields=fields(new))
            there += new.tolist()
            following += count
        elif choice < 0.7:  # items that are there, and some that are not
            version += 1
            new = np.array([*chosen, *range(following, following + count // 4)])
            for one in new.tolist():
                history[one] = (*history.get(one, ()), (version, time.monotonic(), np.inf))
            index.upsert(points(new, version), way.ids(new), fields(new, version))
            now = time.monotonic()
            for one in new.tolist():
                *old, last = history[one]
                kept = ((v, came, min(went, now)) for v, came, went in old)
                history[one] = (*(entry for entry in kept if entry[2] > now - FORGET_AFTER), last)
            there += new[len(chosen) :].tolist()
            following += count // 4
        else:
            index.remove(way.ids(np.array(chosen)))
            for one in chosen:
                removed[one] = time.monotonic()
                history[one] = tuple((v, came, min(went, removed[one])) for v, came, went in history[one])
            there = [one for one in there if one not in removed]
        record.changes += 1
        # What went long ago is known to be gone without its times, which would look like growth of the index.
        while removed and next(iter(removed.values())) < time.monotonic() - FORGET_AFTER:
            oldest = next(iter(removed))
            del removed[oldest], history[oldest]
        if time.monotonic() - saved > SAVE_EVERY:
            index.save(folder)
            record.saved += 1
            saved = time.monotonic()
        stop.wait(0.05)


def search_saved(folder: str, way: Way, seconds: float, seed: int, results: Any) -> None:
    """Load what is saved, again and again, and search it; this runs in a process of its own."""
    torch.set_num_threads(1)
    model, random, done, wrong = divergence(way.name), np.random.RandomState(seed), 0, []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            index: Any = load_index(folder)
            versions = dict(zip(way.numbers(index.ids).tolist(), index.fields["version"].tolist(), strict=True))
            for colour in np.arange(20) % (2 * COLOURS):  # the half of them filter
                queries = random.randn(QUERIES, DIM).astype(np.float32)
                filter = (lambda columns, c=colour: columns["colour"] == c) if colour < COLOURS else None
                values, ids = index.search(queries, K, filter)
                numbers = way.numbers(ids)
                items = points(numbers, np.vectorize(versions.__getitem__)(numbers))
                problem = check_values(values, way.values(model, queries, items)[..., None], numbers)
                if filter is not None and (numbers % COLOURS != colour).any():
                    problem = "an item that does not pass the filter"
                done += 1
                if problem:
                    wrong.append(f"{problem} (saved)")
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
        time.sleep(0.2)
    results.put((done, wrong))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def soak(kind: str, way: Way, seconds: float, threads: int, processes: int) -> Record:
    model = divergence(way.name)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if kind == "milvus":
            index: Any = stack.enter_context(
                MilvusIndex(model, Path(folder) / "items.db", direction=way.direction, progress=False)
            )
        else:
            index = ExactIndex(model, way.direction) if kind == "exact" else FaissIndex(model, way.direction, kind=kind)
        always = np.arange(ALWAYS)
        index.add(points(always), way.ids(always), fields(always))
        index.save(folder)
        record, stop = Record(), threading.Event()
        others = [
            context.Process(target=search_saved, args=(folder, way, seconds, 100 + i, results))
            for i in range(0 if kind == "milvus" else processes)
        ]
        workers = [
            threading.Thread(target=search, args=(index, model, way, kind, record, stop, i)) for i in range(threads)
        ]
        workers.append(threading.Thread(target=change, args=(index, way, record, stop, Path(folder), 99)))
        for one in (*others, *workers):
            one.start()
        while time.monotonic() - record.started < seconds:
            time.sleep(min(1.0, seconds / 20))
            record.memory.append(resident())
        stop.set()
        for worker in workers:
            worker.join()
        for _ in others:
            with contextlib.suppress(Exception):
                done, wrong = results.get(timeout=120)
                record.other_searches += done
                record.wrong += wrong
        for process in others:
            process.join(timeout=60)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = "kind searches filtered p50-ms p95-ms p99-ms longest-ms found changes savings in-processes wrong"
    print("| " + " | ".join(columns.split()) + " |\n|" + "---|" * len(columns.split()), flush=True)
    failed = False
    for kind, way in itertools.product(arguments.kinds, WAYS):
        if kind == "milvus":
            way = dataclasses.replace(way, strings=False)
        seconds = 60 * arguments.minutes / len(arguments.kinds) / len(WAYS)
        record = soak(kind, way, seconds, arguments.threads, arguments.processes)
        times = [f"{one:.1f}" for one in 1000 * np.quantile(record.times, [0.5, 0.95, 0.99, 1.0])]
        counts = [record.changes, record.saved, record.other_searches, len(record.wrong)]
        found = f"{np.mean(record.found):.4f}"
        cells = [f"{kind} {way.name}", len(record.times), record.filtered, *times, found, *counts]
        print("| " + " | ".join(map(str, cells)) + " |")
        quarter, last = record.memory[len(record.memory) // 4], record.memory[-1]
        print(
            f"  {kind}: memory {quarter / 2**20:.0f} MB after a quarter, {last / 2**20:.0f} MB at the end", flush=True
        )
        for text in sorted(set(record.wrong))[:5]:
            print(f"  wrong: {text}", flush=True)
        failed = failed or bool(record.wrong)
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
