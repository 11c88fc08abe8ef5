"""Clustering compared with scikit-learn: time, memory, and how well a learned divergence finds clusters.

    python benchmarks/clustering.py [--quick] [--threads 2] [--rounds 3] [--iterations 10 30] [--only TEXT]

Speed: 1,000,000 x 32 points in 100 clusters, the same start, the same number of Lloyd's iterations. The cases run in
turn within one process, one round after another, and each figure is the median over the rounds: on a machine that
others use as well, only ratios within such a row mean something. Memory: each case alone in one process, where the
peak memory is read before and after. Quality: the exponential mixture of the paper's
table of distributional clustering, purity with k-means++ and 10 starts, mean over runs with other data.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from askew import DivergenceLearner, Embedded, fit, losses, make
from askew.clustering import BregmanKMeans
from askew.metrics import purity

CLUSTERS, DIM = 100, 32
CASES = ("scikit-learn KMeans", "squared Euclidean", "NBD, trained")
Floats = NDArray[np.float32]


@functools.cache
def points(n: int) -> tuple[Floats, NDArray[np.intp]]:
    """Return points around 200 places, so that 100 clusters have something to decide, and the places' numbers."""
    random = np.random.default_rng(0)
    middles = 1.5 * random.standard_normal((200, DIM), dtype=np.float32)
    labels = random.integers(200, size=n)
    # In blocks and without a float64 in between: peaks of memory must not be here.
    X = random.standard_normal((n, DIM), dtype=np.float32)
    for start in range(0, n, 1 << 16):
        X[start : start + (1 << 16)] += middles[labels[start : start + (1 << 16)]]
    return X, labels


@functools.cache
def trained() -> Any:
    """Return an NBD that was trained on such points for a short time."""
    X, labels = points(4000)
    torch.manual_seed(0)
    divergence = make("nbd", DIM)
    data = (torch.from_numpy(X), torch.from_numpy(labels))
    fit(divergence, data, losses.AllTriplets(), steps=100, batch_size=256, learning_rate=3e-3, seed=0, progress=False)
    return divergence


def case(name: str, n: int, iterations: int) -> Callable[[], Any]:
    X, _ = points(n)
    start = X[np.random.RandomState(1).permutation(n)[:CLUSTERS]].copy()
    if name == CASES[0]:
        model: Any = KMeans(CLUSTERS, init=start, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd")
    else:
        divergence = "euclidean" if name == CASES[1] else trained()
        model = BregmanKMeans(CLUSTERS, divergence=divergence, init=start, max_iter=iterations, tol=0)

    def run() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what has not converged
            return model.fit(X)

    return run


# ---------------------------------------------------------------------- the tables


def table(title: str, header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n### {title}\n")
    for row in [header, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |", flush=True)


def speed(options: argparse.Namespace) -> None:
    medians: dict[int, dict[str, float]] = {}
    for iterations in options.iterations:
        actions = {name: case(name, options.n, iterations) for name in CASES}
        times: dict[str, list[float]] = {name: [] for name in actions}
        found: dict[str, Any] = {}
        for _ in range(options.rounds):
            for name, action in actions.items():
                start = time.perf_counter()
                found[name] = action()
                times[name].append(time.perf_counter() - start)
        medians[iterations] = {name: statistics.median(seconds) for name, seconds in times.items()}
        theirs = found[CASES[0]]
        rows = []
        for name in CASES:
            seconds = medians[iterations][name]
            same = "" if name == CASES[2] else f"{(found[name].labels_ == theirs.labels_).mean():.6f}"
            rows.append([name, f"{seconds:.2f}", f"{seconds / medians[iterations][CASES[0]]:.2f}", same])
            if found[name].n_iter_ != iterations:
                raise RuntimeError(f"{name} took {found[name].n_iter_} iterations, not {iterations}")
        header = ["", "seconds", "times scikit-learn", "labels equal to scikit-learn's"]
        table(f"{options.n} x {DIM}, k = {CLUSTERS}, {iterations} iterations from the same start", header, rows)
    if len(medians) > 1:
        few, many = min(medians), max(medians)
        each = {name: (medians[many][name] - medians[few][name]) / (many - few) for name in CASES}
        rows = [[name, f"{each[name]:.3f}", f"{each[name] / each[CASES[0]]:.2f}"] for name in CASES]
        table(f"One iteration more ({few} to {many})", ["", "seconds", "times scikit-learn"], rows)


def memory(options: argparse.Namespace) -> None:
    rows = []
    for name in CASES:
        command = [sys.executable, __file__, "--alone", name, "--n", str(options.n), "--threads", str(options.threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append([name, *done.stdout.split()])
    data = f"{4 * DIM * options.n / 1e6:.0f}"
    header = ["", f"peak MB beyond the data ({data} MB)", "of which labels and one number for each point"]
    table(f"Memory: {options.n} x {DIM}, k = {CLUSTERS}, 3 iterations, each in its own process", header, rows)


def alone(name: str, n: int) -> None:
    """Print how far the largest memory of this process rises during one fit, after a small one."""
    X, _ = points(n)
    small = case(name, 2000, 3)
    small()  # imports, threads and first calls
    run = case(name, n, 3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"{peak - before:.0f} {8 * len(X) / 1e6:.0f}")


# ---------------------------------------------------------------------- quality


def exponential(seed: int, n: int = 1000) -> tuple[list[tuple[Floats, NDArray[np.intp]]], NDArray[np.float64]]:
    """Return two sets of points and labels of the paper's exponential mixture, and the scales of its clusters."""
    random = np.random.RandomState(seed)
    scales = random.uniform(0.1, 10, (5, 10))
    sets = []
    for _ in range(2):
        labels = random.randint(5, size=n)
        sets.append((random.exponential(scales[labels]).astype(np.float32), labels))
    return sets, scales


def quality(options: argparse.Namespace) -> None:
    learners: dict[str, Callable[[int], Any]] = {
        "Euclidean": lambda seed: "euclidean",
        "Itakura-Saito, the true divergence": lambda seed: "itakura-saito",
        "Mahalanobis, learned": lambda seed: DivergenceLearner("mahalanobis", encoder=None, random_state=seed),
        "NBD, learned by default": lambda seed: DivergenceLearner("nbd", random_state=seed),
        "NBD, learned without encoder": lambda seed: DivergenceLearner("nbd", encoder=None, random_state=seed),
        "NBD, learned with encoder": lambda seed: DivergenceLearner("nbd", encoder="mlp", random_state=seed),
    }
    oracle = "nobody can do better: the densities known"
    scores: dict[str, list[float]] = {name: [] for name in (*learners, oracle)}
    for seed in range(options.runs):
        ((X, labels), (known, known_labels)), scales = exponential(seed)
        likeliest = (X[:, None] / scales + np.log(scales)).sum(-1).argmin(1)
        scores[oracle].append(purity(labels, likeliest))
        for name, make_learner in learners.items():
            divergence = make_learner(seed)
            if isinstance(divergence, DivergenceLearner):
                divergence = divergence.fit(known, known_labels).model_
                if not isinstance(divergence, Embedded):
                    raise RuntimeError(name)
            model = BregmanKMeans(5, divergence=divergence, n_init=10, random_state=seed)
            scores[name].append(purity(labels, model.fit_predict(X)))
    rows = [
        [name, f"{statistics.mean(values):.3f}", f"{statistics.stdev(values):.3f}"] for name, values in scores.items()
    ]
    table(f"Exponential mixture, k-means++ and 10 starts, {options.runs} runs", ["", "purity", "sd"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, the median of which counts")
    parser.add_argument("--iterations", type=int, nargs="+", default=[10, 30])
    parser.add_argument("--runs", type=int, default=10, help="runs of the quality table")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="only tables whose name contains this text")
    parser.add_argument("--alone", metavar="CASE", help="print the memory of one case in this process")
    options = parser.parse_args()
    if options.quick:
        options.n, options.rounds, options.iterations, options.runs = 20_000, 1, [2, 4], 2
    torch.set_num_threads(options.threads)
    with threadpool_limits(options.threads):
        if options.alone:
            alone(options.alone, options.n)
            return
        print(f"torch {torch.__version__}, {os.cpu_count()} cores, {options.threads} thread(s)")
        for name, run in {"speed": speed, "memory": memory, "quality": quality}.items():
            if options.only in name:
                run(options)


if __name__ == "__main__":
    main()
