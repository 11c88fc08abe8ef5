"""Search indexes from several threads and processes while items come and go, and check every answer.

    python tools/soak.py [--minutes 60] [--kinds exact flat ivf hnsw ivf-pq milvus] [--threads 3] [--processes 1]

The minutes are shared among the kinds. In each, threads search one index while another adds and removes items, and
saves the index from time to time; processes load what is saved and search that (the embedded Milvus takes one process
at a time, and has none of them). Of every answer it is checked that

- each item was in the index at some moment of the search,
- each value is the divergence between query and item, to 1e-5 of it, and values ascend,
- no item that is always there and nearer than the last one found is missing (exact, flat and milvus, which is flat
  here; the other kinds may miss some: the share that they find is printed).

At the end a line for each kind: searches, percentiles of their time, changes, answers that were wrong, and the memory
of the process after a quarter of the time and at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
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
# Seconds between two savings of the index.
SAVE_EVERY = 15.0
TOLERANCE = 1e-5
# Seconds after which no search still runs that began before an item was removed.
FORGET_AFTER = 60.0


@functools.cache
def pool() -> np.ndarray:
    return np.random.RandomState(7).randn(ALWAYS + 4 * CHURN, DIM).astype(np.float32)


def points(ids: np.ndarray) -> np.ndarray:
    """Return the items with some ids: each id has a point of its own, in any process."""
    return pool()[ids % len(pool())]


def divergence() -> askew.Divergence:
    torch.manual_seed(0)
    model = askew.NeuralBregman(DIM).eval()
    some = torch.from_numpy(points(np.arange(1000)))
    model.calibrate(some[:500], some[500:])
    return model


@dataclass
class Record:
    """What happened, written by all threads; lists and dictionaries take one entry at a time from any of them."""

    started: float = field(default_factory=time.monotonic)
    times: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    found: list[float] = field(default_factory=list)
    added: dict[int, float] = field(default_factory=dict)
    removed: dict[int, float] = field(default_factory=dict)
    changes: int = 0
    saved: int = 0
    memory: list[int] = field(default_factory=list)
    other_searches: int = 0


def check_values(model: askew.Divergence, queries: np.ndarray, values: np.ndarray, ids: np.ndarray) -> str:
    """Return what is wrong with the values of an answer, or nothing."""
    items = torch.from_numpy(points(ids.reshape(-1)))
    with torch.no_grad():
        truth = model(torch.from_numpy(queries).repeat_interleave(ids.shape[1], 0), items).numpy().reshape(ids.shape)
    if not np.allclose(values, truth, rtol=TOLERANCE, atol=1e-7):
        return f"values off by {np.abs(values - truth).max():.3g}"
    if (np.diff(values, axis=1) < 0).any():
        return "values do not ascend"
    return "" if all(len(set(row)) == len(row) for row in ids.tolist()) else "an item twice"


def search(index: Any, model: askew.Divergence, kind: str, record: Record, stop: threading.Event, seed: int) -> None:
    random = np.random.RandomState(seed)
    own = ExactIndex(model)
    own.add(points(np.arange(ALWAYS)))
    while not stop.is_set():
        queries = random.randn(QUERIES, DIM).astype(np.float32)
        begun = time.monotonic()
        try:
            values, ids = index.search(queries, K)
        except Exception as error:
            record.wrong.append(f"{type(error).__name__}: {error}")
            continue
        ended = time.monotonic()
        record.times.append(ended - begun)
        problem = check_values(model, queries, values, ids)
        for one in ids.reshape(-1).tolist():
            if one >= ALWAYS and not (
                record.added.get(one, np.inf) <= ended and record.removed.get(one, np.inf) >= begun
            ):
                problem = f"item {one} was not there"
        truth, always = own.search(queries, K)
        share = []
        for row in range(QUERIES):
            nearer = always[row][truth[row] < values[row, -1] * (1 - TOLERANCE)]
            share.append(np.isin(nearer, ids[row]).mean() if len(nearer) else 1.0)
        record.found.append(float(np.mean(share)))
        if kind in EXACT and record.found[-1] < 1:
            problem = "a nearer item is missing"
        if problem:
            record.wrong.append(problem)


def change(index: Any, record: Record, stop: threading.Event, folder: Path, seed: int) -> None:
    random = np.random.RandomState(seed)
    there: list[int] = []
    following, saved = ALWAYS, time.monotonic()
    while not stop.is_set():
        if len(there) < CHURN and (random.rand() < 0.55 or not there):
            count = int(random.randint(1, 200))
            for one in range(following, following + count):
                record.added[one] = time.monotonic()
            new = np.arange(following, following + count)
            index.add(points(new), ids=new)
            there += range(following, following + count)
            following += count
        else:
            chosen = random.permutation(len(there))[: int(random.randint(1, 200))]
            gone = [there[i] for i in chosen]
            index.remove(gone)
            for one in gone:
                record.removed[one] = time.monotonic()
            there = [one for i, one in enumerate(there) if i not in set(chosen.tolist())]
        record.changes += 1
        # What went long ago is known to be gone without its times, which would look like growth of the index.
        while record.removed and next(iter(record.removed.values())) < time.monotonic() - FORGET_AFTER:
            oldest = next(iter(record.removed))
            del record.removed[oldest], record.added[oldest]
        if time.monotonic() - saved > SAVE_EVERY:
            index.save(folder)
            record.saved += 1
            saved = time.monotonic()
        stop.wait(0.05)


def search_saved(folder: str, seconds: float, seed: int, results: Any) -> None:
    """Load what is saved, again and again, and search it; this runs in a process of its own."""
    torch.set_num_threads(1)
    model, random, done, wrong = divergence(), np.random.RandomState(seed), 0, []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            index = load_index(folder)
            for _ in range(20):
                queries = random.randn(QUERIES, DIM).astype(np.float32)
                problem = check_values(model, queries, *index.search(queries, K))
                done += 1
                if problem:
                    wrong.append(problem)
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
        time.sleep(0.2)
    results.put((done, wrong))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def soak(kind: str, seconds: float, threads: int, processes: int) -> Record:
    model = divergence()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if kind == "milvus":
            index: Any = stack.enter_context(MilvusIndex(model, Path(folder) / "items.db", progress=False))
        else:
            index = ExactIndex(model) if kind == "exact" else FaissIndex(model, kind=kind)
        index.add(points(np.arange(ALWAYS)))
        index.save(folder)
        record, stop = Record(), threading.Event()
        others = [
            context.Process(target=search_saved, args=(folder, seconds, 100 + i, results))
            for i in range(0 if kind == "milvus" else processes)
        ]
        workers = [threading.Thread(target=search, args=(index, model, kind, record, stop, i)) for i in range(threads)]
        workers.append(threading.Thread(target=change, args=(index, record, stop, Path(folder), 99)))
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
    print(
        "| kind | searches | p50 ms | p95 ms | p99 ms | longest ms | found | changes | savings | in processes | wrong |"
    )
    print("|" + "---|" * 11, flush=True)
    failed = False
    for kind in arguments.kinds:
        record = soak(kind, 60 * arguments.minutes / len(arguments.kinds), arguments.threads, arguments.processes)
        times = 1000 * np.quantile(record.times, [0.5, 0.95, 0.99, 1.0])
        shown = " | ".join(f"{one:.1f}" for one in times)
        print(
            f"| {kind} | {len(record.times)} | {shown} | {np.mean(record.found):.4f} | {record.changes} | "
            f"{record.saved} | {record.other_searches} | {len(record.wrong)} |"
        )
        quarter = record.memory[len(record.memory) // 4]
        print(
            f"  {kind}: memory {quarter / 2**20:.0f} MB after a quarter, {record.memory[-1] / 2**20:.0f} MB at the end"
        )
        for text in sorted(set(record.wrong))[:5]:
            print(f"  wrong: {text}", flush=True)
        failed = failed or bool(record.wrong)
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
