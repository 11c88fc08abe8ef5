"""Search by a trained divergence compared with plain FAISS, and by KL compared with nmslib.

    python benchmarks/search.py [--items 1000000] [--dim 32] [--queries 1000] [--rounds 3] [--divergences nbd drift]
                                [--only exact approximate build order kl] [--kinds ivf hnsw ivf-pq]

Data are clusters of different shapes, the divergence is learned from labelled points of them. Cases that are compared
run in turn within one process, one round after another, and each time is the median over the rounds: on a machine that
others use as well, only ratios within a table mean something. Build and memory are measured in a process each. FAISS
computes one product after another until queries times features are 128,000, and products of matrices from then on; its
exact search runs in both ways, and the faster one counts.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

import askew
from askew.encoders import encode
from askew.search import ExactIndex, FaissIndex, engines, keys_and_queries
from askew.search.engines import POINTS_PER_LIST, ROUNDS, lists_for
from askew.search.vectors import KeysAndQueries

K = 10
# Calls of a case in one turn, and seconds after which there is no other.
REPEATS, TURN_SECONDS = 9, 0.5
DIRECTIONS = ("query-first", "query-second")
Floats = NDArray[np.float32]


def clusters(count: int, dim: int, queries: int, seed: int = 0) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Return items, their clusters, and queries from the same 200 clusters, each of a shape of its own."""
    random = np.random.default_rng(seed)
    centres = 3 * random.normal(size=(200, dim))
    scales = np.exp(0.5 * random.normal(size=(200, dim)))
    labels = random.integers(200, size=count + queries)
    points = np.empty((count + queries, dim), np.float32)
    for start in range(0, len(points), 100_000):
        part = labels[start : start + 100_000]
        points[start : start + len(part)] = centres[part] + scales[part] * random.normal(size=(len(part), dim))
    return points[:count], labels[:count], points[count:]


def learned(name: str, items: Floats, labels: NDArray[np.int64], steps: int) -> askew.Embedded:
    learner = askew.DivergenceLearner(name, encoder=None, steps=steps, random_state=0)
    learner.fit(items[:5000], labels[:5000])
    values = learner.pairwise(items[5000:5500])
    asymmetry = float(np.median(np.abs(values - values.T) / (values + values.T + 1e-30)))
    print(f"\n{name}: trained on 5000 points, {steps} steps")
    print(f"median |D(x,y) - D(y,x)| / (D(x,y) + D(y,x)) = {asymmetry:.3f}")
    return learner.model_


def in_turn(cases: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median time of each case; all run once before, to warm up.

    Short cases are repeated within a turn, because threads of the case before still spin when the first call begins.
    """
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, case in cases.items():
            calls: list[float] = []
            while len(calls) < REPEATS and sum(calls) < TURN_SECONDS:
                start = time.perf_counter()
                case()
                calls.append(time.perf_counter() - start)
            if turn:
                times[name].append(statistics.median(calls))
    return {name: statistics.median(values) for name, values in times.items()}


def share(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, truth, strict=True)]))


# ---------------------------------------------------------------------- search


def searches(
    model: askew.Embedded, items: Floats, queries: Floats, direction: str, options: argparse.Namespace
) -> None:
    """Exact and approximate search, all in one interleaved run."""
    exact = ExactIndex(model, direction)
    exact.add(items)
    embeddings = encode(model.encoder, torch.from_numpy(items))
    form = keys_and_queries(model.divergence, direction, items=embeddings)
    keys = form.keys(embeddings).numpy()
    vectors = form.queries(encode(model.encoder, torch.from_numpy(queries))).numpy()
    plain = faiss.IndexFlatIP(keys.shape[1])
    plain.add(keys)
    flat = FaissIndex(model, direction, "flat")
    flat.add(items)
    indexes: dict[str, Any] = {"ExactIndex": exact, "FaissIndex flat": flat}
    if "approximate" in options.only:
        for kind in options.kinds:
            indexes[f"FaissIndex {kind}"] = FaissIndex(model, direction, kind)
            indexes[f"FaissIndex {kind}"].add(items)
    truth = exact.search(queries, K)[1]

    def in_products() -> Any:
        before, faiss.cvar.distance_compute_blas_threshold = faiss.cvar.distance_compute_blas_threshold, 1
        try:
            return plain.search(vectors, K)
        finally:
            faiss.cvar.distance_compute_blas_threshold = before

    cases: dict[str, Callable[[], Any]] = {
        "IndexFlatIP by default": lambda: plain.search(vectors, K),
        "IndexFlatIP in products of matrices": in_products,
    }
    for name, index in indexes.items():
        if getattr(index, "kind", "flat") == "flat":
            cases[name] = lambda index=index: index.search(queries, K)
            continue
        tuned = index.effort
        for effort in sorted({max(1, tuned // 2), max(1, 2 * tuned // 3), tuned}):

            def at_effort(index: FaissIndex = index, effort: int = effort) -> Any:
                index.effort = effort
                return index.search(queries, K)

            cases[f"{name}, effort {effort}{', tuned' if effort == tuned else ''}"] = at_effort
    times = in_turn(cases, options.rounds)
    floor = min(seconds for name, seconds in times.items() if name.startswith("IndexFlatIP"))
    print(f"\n{direction}, {len(items)} x {items.shape[1]}, {len(queries)} queries at once, k = {K}")
    print("| | ms | speed relative to the faster IndexFlatIP | to ExactIndex | recall@10 |")
    print("|---|---|---|---|---|")
    for name, seconds in times.items():
        found = cases[name]()[1]
        print(
            f"| {name} | {1e3 * seconds:.0f} | {floor / seconds:.2f} | {times['ExactIndex'] / seconds:.2f} "
            f"| {share(found, truth):.4f} |"
        )
    for name, index in indexes.items():
        if getattr(index, "kind", "flat") != "flat":
            one_at_a_time(name, model, index, queries, options.rounds)


def one_at_a_time(name: str, model: askew.Embedded, index: FaissIndex, queries: Floats, rounds: int) -> None:
    """One query alone: FAISS with vectors that are there already, behind an exported graph, and our search.

    The graph is that of docs/export.md, for services without torch; it gives the order and no divergences.
    """
    # What FAISS alone would be given.
    engine, form, kind, effort = index._state.engine, index._state.form, index.kind, index.effort
    few, padded = queries[:100], engines.KINDS[kind].padded
    vectors = padded(form.queries(encode(index.encoder, torch.from_numpy(few))).float().numpy())
    maps = KeysAndQueries(model, index.direction, form.form, form.centre, form.radius, form.offset, form.stretch)
    with tempfile.TemporaryDirectory() as folder:
        askew.export(maps, f"{folder}/query.onnx", what="query")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(f"{folder}/query.onnx", options)
    (argument,) = (argument.name for argument in session.get_inputs())

    def search(vector: Floats) -> NDArray[np.int64]:
        return engines.search_engine(kind, engine, vector, K, effort, None)

    cases = {
        "FAISS alone": lambda: [search(vector[None]) for vector in vectors],
        "onnxruntime, FAISS": lambda: [search(padded(session.run(None, {argument: q[None]})[0])) for q in few],
        name: lambda: [index.search(query[None], K) for query in few],
    }
    times = {case: 10 * seconds for case, seconds in in_turn(cases, 5 * rounds).items()}
    print("\n| one query alone | ms | relative to FAISS alone |\n|---|---|---|")
    for case, milliseconds in times.items():
        print(f"| {case} | {milliseconds:.3f} | {milliseconds / times['FAISS alone']:.1f} |", flush=True)


def orders(model: askew.Embedded, items: Floats, queries: Floats, direction: str) -> None:
    """Whether the ten nearest in float32 stand where float64 puts them."""
    single = ExactIndex(model, direction)
    single.add(items)
    approximate = FaissIndex(model, direction, "ivf")
    approximate.add(items)
    ids = single.search(queries, K)[1]
    double = ExactIndex(model.divergence.double(), direction)
    double.add(encode(model.encoder, torch.from_numpy(items)).double())
    truth = double.search(encode(model.encoder, torch.from_numpy(queries)).double(), K)[1]
    model.divergence.float()
    found = approximate.search(queries, K)[1]
    complete = (np.sort(found, 1) == np.sort(truth, 1)).all(1)
    print(
        f"{direction}: float32 and float64 have the same item at {100 * (ids == truth).mean():.3f} % of the places of "
        f"the top 10 (exact); {100 * (found[complete] == truth[complete]).mean():.3f} % (ivf, where it found all ten)"
    )


# ---------------------------------------------------------------------- build and memory


def build(case: str, items: Floats, model: askew.Embedded | None) -> Any:
    """Build one index; what is plain has the parameters of ours, or FAISS's own, on vectors of dim features."""
    if case.startswith("askew "):
        index = FaissIndex(model, "query-first", case.removeprefix("askew "))
        index.add(items)
        return index
    dim, count = items.shape[1], len(items)
    if case == "flat":
        plain = faiss.IndexFlatIP(dim)
    elif case == "hnsw":
        plain = faiss.IndexHNSWFlat(dim, 32)
        plain.hnsw.efConstruction = 80
    else:
        coarse = faiss.IndexFlatL2(dim)
        lists = lists_for(count)
        if case.startswith("ivf by"):
            plain = faiss.IndexIVFFlat(coarse, dim, lists)
            plain.train(items)
        elif case == "ivf":
            plain = faiss.IndexIVFFlat(coarse, dim, lists)
        elif case.startswith("ivf-sq8"):
            plain = faiss.IndexIVFScalarQuantizer(
                coarse, dim, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_L2, True
            )
        else:
            plain = faiss.IndexIVFPQ(coarse, dim, lists, dim // 2, 8)
            plain.pq.cp.niter, plain.pq.cp.max_points_per_centroid = ROUNDS, POINTS_PER_LIST
        plain.own_fields = True
        coarse.this.disown()
        plain.cp.niter, plain.cp.max_points_per_centroid = ROUNDS, POINTS_PER_LIST
    if not plain.is_trained:
        most = max(1 << 16, POINTS_PER_LIST * lists_for(count))
        plain.train(items[:: -(-count // most)])
    plain.add(items)
    if case.endswith("refined"):
        refined = faiss.IndexFlat(dim)
        refined.add(items)
        return plain, refined
    return plain


def resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def peak() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return float("nan")


def measure_build(case: str, folder: str) -> None:
    """In a process of its own: build, print seconds and MiB beyond the items as JSON."""
    items = np.load(Path(folder) / "items.npy")
    model = askew.load(Path(folder) / "model")
    with torch.inference_mode():
        model(torch.from_numpy(items[:100]), torch.from_numpy(items[:100]))
    build(case, items[: min(len(items), 60_000)], model)
    gc.collect()
    before = resident()
    start = time.perf_counter()
    index = build(case, items, model)
    seconds = time.perf_counter() - start
    gc.collect()
    result = {"seconds": seconds, "memory": resident() - before, "peak": peak() - before}
    if case.startswith("askew "):
        index.save(Path(folder) / "index")
    print(json.dumps(result))


def measure_load(case: str, folder: str) -> None:
    """In a process of its own: load an index from its folder, where items stay mapped."""
    queries = np.load(Path(folder) / "queries.npy")
    items = np.load(Path(folder) / "items.npy", mmap_mode="r")[:60_000]
    small = build(case, np.array(items), askew.load(Path(folder) / "model"))
    small.search(queries, K)
    del small
    gc.collect()
    before = resident()
    index = FaissIndex.load(Path(folder) / "index")
    index.search(queries, K)
    gc.collect()
    # Pages of the mapped file count as resident while there is memory to spare; they are the system's to take back.
    mapped = sum(
        int(line.split()[1]) / 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssFile")
    )
    print(json.dumps({"memory": resident() - before, "mapped": mapped}))


def builds(model: askew.Embedded, items: Floats, queries: Floats, kinds: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "items.npy", items)
        np.save(Path(folder) / "queries.npy", queries)
        askew.save(model, Path(folder) / "model")

        def measured(what: str, case: str, returning: bool = False) -> dict[str, float]:
            command = [sys.executable, __file__, what, case, folder]
            environment = dict(os.environ, **({"MALLOC_TRIM_THRESHOLD_": "131072"} if returning else {}))
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
            return result

        print(f"\nBuild and memory of {len(items)} x {items.shape[1]}; MiB beyond the items that are handed in.")
        print(
            "Resident: with what the C library keeps of freed memory, which later work uses. Held: in a process whose"
        )
        print("C library gives freed memory back at once, which is slower.")
        print("| kind | build s | to plain | held | to plain | resident | to plain | peak | after load |")
        print("|---|---|---|---|---|---|---|---|---|")
        for kind in ["flat", *kinds]:
            plains = {"ivf": ["ivf", "ivf-sq8 refined", "ivf by FAISS's defaults"]}.get(kind, [kind])
            rows = {case: [] for case in [*plains, f"askew {kind}"]}
            for _ in range(2):
                for case in rows:
                    rows[case].append(measured("--build", case))
            best = {case: {key: min(r[key] for r in found) for key in found[0]} for case, found in rows.items()}
            for case, row in best.items():
                row["held"] = measured("--build", case, returning=True)["memory"]
            base = best[plains[0]]
            for case, row in best.items():
                loaded = measured("--load", case) if case.startswith("askew") else None
                after = "" if loaded is None else f"{loaded['memory']:.0f}, mapped {loaded['mapped']:.0f}"
                fields = [f"{row['seconds']:.2f}", f"{row['seconds'] / base['seconds']:.2f}"]
                for key in ("held", "memory"):
                    fields += [f"{row[key]:.0f}", f"{row[key] / base[key]:.2f}"]
                print("| " + " | ".join([case, *fields, f"{row['peak']:.0f}", after]) + " |", flush=True)


# ---------------------------------------------------------------------- KL and nmslib


def kl(count: int, dim: int, queries: int, rounds: int) -> None:
    """KL of histograms: our index and nmslib's graph for KL, at several efforts of each."""
    import nmslib

    random = np.random.default_rng(0)
    topics = random.dirichlet(np.full(dim, 0.3), size=100)
    picked = topics[random.integers(100, size=count + queries)]
    points = random.gamma(20 * picked + 0.05) + 1e-6
    points = (points / points.sum(1, keepdims=True)).astype(np.float32)
    items, wanted = points[:count], points[count:]
    threads = torch.get_num_threads()
    for direction in DIRECTIONS:
        exact = ExactIndex("kl-simplex", direction)
        exact.add(items)
        truth = exact.search(wanted, K)[1]
        cases: dict[str, Callable[[], Any]] = {"ExactIndex": lambda exact=exact: exact.search(wanted, K)[1]}
        build_times = {}
        for kind in ("ivf", "hnsw"):
            start = time.perf_counter()
            index = FaissIndex("kl-simplex", direction, kind)
            index.add(items)
            build_times[f"FaissIndex {kind}"] = time.perf_counter() - start
            tuned = index.effort
            for effort in sorted({tuned // 2, tuned, 2 * tuned, 4 * tuned} - {0}):

                def ours(index: FaissIndex = index, effort: int = effort) -> Any:
                    index.effort = effort
                    return index.search(wanted, K)[1]

                mark = ", tuned" if effort == tuned else ""
                cases[f"FaissIndex {kind}, effort {effort}{mark}"] = ours
        # In nmslib's words, queries of "kldivfast" are the second argument and those of "kldivfastrq" the first.
        space = "kldivfastrq" if direction == "query-first" else "kldivfast"
        for method, settings in (("hnsw", {"M": 16, "efConstruction": 100, "post": 0}),):
            start = time.perf_counter()
            graph = nmslib.init(method=method, space=space)
            graph.addDataPointBatch(items)
            graph.createIndex({**settings, "indexThreadQty": threads})
            build_times[f"nmslib {method}"] = time.perf_counter() - start
            for effort in (20, 50, 100, 200, 400):

                def theirs(graph: Any = graph, effort: int = effort) -> Any:
                    graph.setQueryTimeParams({"efSearch": effort})
                    found = graph.knnQueryBatch(wanted, k=K, num_threads=threads)
                    return np.array([np.pad(ids, (0, K - len(ids)), constant_values=-1) for ids, _ in found])

                cases[f"nmslib {method}, efSearch {effort}"] = theirs
        times = in_turn(cases, rounds)
        print(f"\nKL on the simplex, {direction}, {count} x {dim}, {queries} queries at once, {threads} threads")
        print("| | ms | queries per second | recall@10 |\n|---|---|---|---|")
        for name, seconds in times.items():
            print(f"| {name} | {1e3 * seconds:.0f} | {queries / seconds:.0f} | {share(cases[name](), truth):.4f} |")
        print("build: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in build_times.items()))


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] in ("--build", "--load"):
        (measure_build if sys.argv[1] == "--build" else measure_load)(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kl-items", type=int, default=200_000)
    parts = ["exact", "approximate", "order", "build", "kl"]
    parser.add_argument("--divergences", nargs="+", default=["nbd", "drift"])
    parser.add_argument("--only", nargs="+", default=parts, choices=parts)
    parser.add_argument("--kinds", nargs="+", default=["ivf"], choices=["ivf", "hnsw", "ivf-pq"])
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, faiss {faiss.__version__}")
    if set(options.only) - {"kl"}:
        items, labels, queries = clusters(options.items, options.dim, options.queries)
        for number, name in enumerate(options.divergences):
            model = learned(name, items, labels, options.steps)
            for direction in DIRECTIONS:
                if {"exact", "approximate"} & set(options.only):
                    searches(model, items, queries, direction, options)
                if "order" in options.only:
                    orders(model, items, queries, direction)
            if "build" in options.only and number == 0:
                builds(model, items, queries, options.kinds)
    if "kl" in options.only:
        kl(options.kl_items, 32, options.queries, options.rounds)


if __name__ == "__main__":
    main()
