"""Recall of every engine with a trained NBD and a trained drift, in both directions, as one table.

    python benchmarks/engines.py [--items 10000] [--dim 16] [--queries 100] [--steps 300] [--engines qdrant ...]

Engines are those of examples/engines.py, at the settings there; one that is not installed is named with the line that
installs it. Seconds are the mean of the four searches: keys, storing them in a new engine, and answering all queries.

The second table is the failure that people report of graphs on raw inner products. The items are points of hyperbolic
space, as trees are embedded in: the deeper a node, the longer its vector. Raw are Lorentz vectors, whose inner product
orders them as their hyperbolic distance does. Balanced is the Euclidean form of askew.search.keys_and_queries for the
divergence "hyperbolic". Depth is the largest distance from the origin. Graph and effort are the same for both (HNSW of
FAISS, 32 links).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from askew.search import keys_and_queries

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import engines as shown

DIRECTIONS = ("query-first", "query-second")
K = 10


def all_engines(names: list[str], options: argparse.Namespace) -> None:
    (items, _), (queries, _) = shown.data(options.items, options.dim, 2), shown.data(options.queries, options.dim, 3)
    models = {name: shown.learned(name, options.dim, options.steps) for name in ("nbd", "drift")}
    heads = [f"{name} {direction[6:]}" for name in models for direction in DIRECTIONS]
    print(f"recall@{K}, {len(items)} items x {options.dim}, {len(queries)} queries\n")
    print("| engine | form | metric | features |", " | ".join(heads), "| seconds |")
    print("|---" * (len(heads) + 5) + "|")
    for name in names:
        engine = shown.ENGINES[name]
        if shown.missing(name):
            print(f"| {name} | skipped: {shown.missing(name)} |")
            continue
        recalls, start = [], time.perf_counter()
        for model in models.values():
            for direction in DIRECTIONS:
                found = shown.search(name, model, direction, items, queries, K)
                recalls.append((model, direction, found))
        seconds = (time.perf_counter() - start) / len(recalls)
        cells = [f"{shown.recall(model, way, items, queries, found):.3f}" for model, way, found in recalls]
        size = options.dim + (1 if engine.form == "inner-product" else 2)
        print(
            f"| {name} | {engine.form} | {engine.metric} | {size} |",
            " | ".join(cells),
            f"| {seconds:.1f} |",
            flush=True,
        )


def hyperbolic(count: int, dim: int, depth: float, seed: int) -> NDArray[np.float64]:
    """Return points of hyperbolic space, most of them far from the origin, as (n, dim) of a hyperboloid."""
    random = np.random.default_rng(seed)
    directions = random.normal(size=(count, dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # The number of nodes grows by a factor with each level of a tree.
    radii = depth + np.log(random.uniform(np.exp(-depth), 1, size=(count, 1)))
    return np.sinh(radii) * directions


def graph_recall(
    keys: NDArray[np.float32], queries: NDArray[np.float32], metric: str, effort: int, truth: object
) -> str:
    import faiss

    index = faiss.IndexHNSWFlat(keys.shape[1], 32, getattr(faiss, metric))
    index.hnsw.efConstruction, index.hnsw.efSearch = 200, effort
    index.add(keys)
    found = index.search(queries, K)[1]
    return f"{np.mean([len(set(a) & set(b)) / K for a, b in zip(found, truth, strict=True)]):.3f}"  # type: ignore


def failure(options: argparse.Namespace) -> None:
    if shown.missing("faiss"):
        print(shown.missing("faiss"))
        return
    print(f"\nHNSW on hyperbolic points, {options.items} items x {options.dim}, recall@{K}\n")
    print("| depth | candidates kept | raw inner product | balanced form |\n|---|---|---|---|")
    for depth in options.depths:
        items, queries = (
            hyperbolic(options.items, options.dim, depth, 0),
            hyperbolic(options.queries, options.dim, depth, 1),
        )
        height, high = (np.sqrt(1 + np.square(x).sum(1, keepdims=True)) for x in (items, queries))
        truth = np.argsort(high * height.T - queries @ items.T, 1)[:, :K]  # cosh of the distance
        maps = keys_and_queries("hyperbolic", "query-second", "euclidean", items)
        raw = np.hstack([-height, items]), np.hstack([high, queries])
        ours = maps.keys(items), maps.queries(queries)
        for effort in (64, 512):
            cells = [
                graph_recall(*(np.asarray(x, np.float32) for x in pair), metric, effort, truth)
                for pair, metric in ((raw, "METRIC_INNER_PRODUCT"), (ours, "METRIC_L2"))
            ]
            print(f"| {depth:g} | {effort} |", " | ".join(cells), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Recall of every engine.")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--engines", nargs="*", default=list(shown.ENGINES), choices=list(shown.ENGINES))
    parser.add_argument("--depths", nargs="*", type=float, default=[3.0, 5.0, 7.0])
    options = parser.parse_args()
    all_engines(options.engines, options)
    failure(options)


if __name__ == "__main__":
    main()
