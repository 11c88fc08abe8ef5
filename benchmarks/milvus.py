"""Measure MilvusIndex on the embedded engine: adding, searching and recall, compared with the plain client of Milvus.

    python benchmarks/milvus.py [--items 100000] [--dim 32] [--kinds flat ivf hnsw auto] [--rounds 5]

For each kind two collections stand in one engine: that of MilvusIndex, and one that holds the same keys and nothing
else, written and searched by pymilvus alone. They take turns batch by batch and search by search: then the ratios mean
something on a machine that others use as well. Searches are timed after the engine was closed and opened again, when
all its indexes are built. The divergence is an untrained NBD, calibrated on the items, which lie in 100 clusters.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymilvus
import torch
from torch import Tensor

import askew
from askew.search import KeysAndQueries, MilvusIndex, keys_and_queries
from askew.search.milvus_client import KEY, KINDS, Kind

BATCH = 10_000
K = 10


def clustered(n: int, dim: int, seed: int) -> Tensor:
    centres = 2 * torch.randn(100, dim, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    return centres[torch.randint(100, (n,), generator=generator)] + torch.randn(n, dim, generator=generator)


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def plain_collection(client: Any, kind: Kind, form: KeysAndQueries) -> None:
    """Make a collection of the same vectors with the client alone."""
    schema = client.create_schema(auto_id=False)
    schema.add_field("id", pymilvus.DataType.INT64, is_primary=True)
    schema.add_field(KEY, pymilvus.DataType.FLOAT_VECTOR, dim=form.size)
    indexes = client.prepare_index_params()
    indexes.add_index(KEY, index_type=kind.engine, metric_type=kind.metric, params={"params": dict(kind.building)})
    client.create_collection("plain", schema=schema, index_params=indexes)


def measure(name: str, divergence: askew.Divergence, items: Tensor, queries: Tensor, folder: Path, rounds: int) -> None:
    kind = KINDS[name]
    path = folder / f"{name}.db"
    form = keys_and_queries(divergence, "query-first", kind.form, items)
    # The longest first: the radius of the Euclidean form then holds all.
    items = items[form.inner.plain_keys(items).norm(dim=1).argsort(descending=True)]
    index = MilvusIndex(divergence, path, kind=name)
    client = pymilvus.MilvusClient(str(path))
    plain_collection(client, kind, form)
    own, plain = 0.0, 0.0
    for start in range(0, len(items), BATCH):
        batch = items[start : start + BATCH]
        ids = np.arange(start, start + len(batch))
        own += seconds(lambda batch=batch, ids=ids: index.add(batch, ids))
        keys = form.keys(batch).numpy()
        rows = [{"id": number, KEY: key} for number, key in zip(ids.tolist(), keys, strict=True)]
        plain += seconds(lambda rows=rows: client.insert("plain", rows))
    client.flush("plain")
    index.search(queries[:1], 1)
    client.close()
    closing = seconds(index.close)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    index = MilvusIndex(divergence, path)
    client = pymilvus.MilvusClient(str(path))
    opening = seconds(lambda: client.load_collection("plain"))
    print(
        f"{name:5} add {len(items) / own:7.0f}/s, {own / plain:4.2f} times the plain client; closing {closing:5.1f} s, "
        f"opening {opening:4.1f} s; {size / len(items):5.0f} bytes an item for both",
        flush=True,
    )
    vectors = form.queries(queries).numpy()
    parameters = kind.searching(None, 2 * K + 16)
    for count in (1, 100):
        times: dict[str, list[float]] = {"own": [], "plain": []}
        for _ in range(rounds):
            times["own"].append(seconds(lambda count=count: index.search(queries[:count], K)))
            times["plain"].append(
                seconds(
                    lambda count=count: client.search(
                        "plain", vectors[:count], anns_field=KEY, limit=K, search_params=parameters
                    )
                )
            )
        middle = {key: statistics.median(values) for key, values in times.items()}
        print(
            f"      {count:3} queries: {1e3 * middle['own']:7.1f} ms, {middle['own'] / middle['plain']:4.2f} times the "
            f"plain client for the {K} nearest keys",
            flush=True,
        )
    # Not by index.recall, which reads all items back: the embedded engine walks through all of them for each page.
    exact = askew.search.ExactIndex(divergence)
    exact.add(items)
    found, truth = (searched.search(queries, K)[1] for searched in (index, exact))
    shared = sum(len(np.intersect1d(a, b)) for a, b in zip(found, truth, strict=True))
    print(f"      recall@{K} {shared / truth.size:.4f}", flush=True)
    client.close()
    index.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    items, queries = clustered(arguments.items, arguments.dim, 1), clustered(100, arguments.dim, 2)
    torch.manual_seed(0)
    divergence = askew.NeuralBregman(arguments.dim)
    divergence.calibrate(items[:5000], items[5000:10000] if arguments.items >= BATCH else items[:5000])
    print(f"{arguments.items} x {arguments.dim}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.kinds:
            measure(name, divergence, items, queries, Path(folder), arguments.rounds)


if __name__ == "__main__":
    main()
