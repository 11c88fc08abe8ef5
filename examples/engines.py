"""Nearest items by a learned divergence in the engine that you already run: one function for each.

    python examples/engines.py                              # all that are installed
    python examples/engines.py qdrant pgvector --items 5000

An engine stores keys and is searched with query vectors (askew.search.keys_and_queries); it needs to know nothing else.
Most take the inner-product form, which has no limit on items. Those whose index is a graph (Chroma, USearch) and those
without inner products (sqlite-vec) take the Euclidean form, which makes all keys equally long.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import askew
from askew.search import ExactIndex, keys_and_queries

Vectors = NDArray[np.float32]
# How many candidates a graph keeps during a search.
EFFORT = 512


def faiss(keys: Vectors, queries: Vectors, k: int, folder: Path) -> Any:
    import faiss

    index = faiss.IndexFlatIP(keys.shape[1])
    index.add(keys)
    return index.search(queries, k)[1]


def milvus(keys: Vectors, queries: Vectors, k: int, folder: Path) -> Any:
    from pymilvus import MilvusClient

    client = MilvusClient(str(folder / "items.db"))
    client.create_collection("items", dimension=keys.shape[1], metric_type="IP", vector_field_name="key")
    for start in range(0, len(keys), 10_000):
        block = enumerate(keys[start : start + 10_000], start)
        client.insert("items", [{"id": number, "key": key} for number, key in block])
    found = [client.search("items", block, limit=k, anns_field="key") for block in np.array_split(queries, 10)]
    client.close()
    return [[hit["id"] for hit in hits] for block in found for hits in block]


def qdrant(keys: Vectors, queries: Vectors, k: int, folder: Path) -> Any:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")  # local mode; QdrantClient("http://host:6333") for a server
    vectors = models.VectorParams(size=keys.shape[1], distance=models.Distance.DOT)
    client.create_collection("items", vectors_config=vectors)
    client.upload_collection("items", vectors=keys, ids=range(len(keys)))
    asked = [models.QueryRequest(query=query.tolist(), limit=k) for query in queries]
    found = client.query_batch_points("items", asked)
    client.close()
    return [[point.id for point in answer.points] for answer in found]


def lancedb(keys: Vectors, queries: Vectors, k: int, folder: Path) -> Any:
    import lancedb
    import pyarrow

    vectors = pyarrow.FixedSizeListArray.from_arrays(keys.reshape(-1), keys.shape[1])
    data = pyarrow.table({"id": np.arange(len(keys)), "vector": vectors})
    table = lancedb.connect(folder).create_table("items", data)
    return [
        table.search(query).distance_type("dot").limit(k).select(["id", "_distance"]).to_arrow()["id"].to_pylist()
        for query in queries
    ]


def pgvector(keys: Vectors, queries: Vectors, k: int, folder: Path) -> Any:
    import pg8000.dbapi
    import pgserver

    server = pgserver.get_server(folder)  # or the address of your own Postgres
    socket = folder / ".s.PGSQL.5432"
    connection = pg8000.dbapi.connect("postgres", unix_sock=str(socket if socket.exists() else _socket(server)))
    cursor = connection.cursor()
    cursor.execute("CREATE EXTENSION vector")
    cursor.execute(f"CREATE TABLE items (id bigint PRIMARY KEY, key vector({keys.shape[1]}))")
    rows = io.StringIO("".join(f"{number}\t{json.dumps(key)}\n" for number, key in enumerate(keys.tolist())))
    cursor.execute("COPY items FROM STDIN", stream=rows)
    found = []
    for query in queries.tolist():  # <#> is minus the inner product; an index for it has vector_ip_ops
        cursor.execute("SELECT id FROM items ORDER BY key <#> %s::vector LIMIT %s", (json.dumps(query), k))
        found.append([row[0] for row in cursor.fetchall()])
    connection.close()
    server.cleanup()
    return found


def _socket(server: Any) -> Path:
    """Return the socket of a server whose folder has a name too long for one."""
    return Path(server.get_postmaster_info().socket_dir) / ".s.PGSQL.5432"


def chroma(keys: Vectors, queries: Vectors, k: int, folder: Path) -> Any:
    import chromadb

    client = chromadb.PersistentClient(folder, chromadb.Settings(anonymized_telemetry=False))
    graph = {"space": "l2", "ef_search": EFFORT, "ef_construction": 200, "max_neighbors": 32}
    items = client.create_collection("items", configuration={"hnsw": graph}, embedding_function=None)
    for start in range(0, len(keys), 5000):
        block = keys[start : start + 5000]
        items.add(ids=[str(start + i) for i in range(len(block))], embeddings=block)
    return [[int(name) for name in names] for names in items.query(query_embeddings=queries, n_results=k)["ids"]]


def usearch(keys: Vectors, queries: Vectors, k: int, folder: Path) -> Any:
    from usearch.index import Index

    index = Index(
        ndim=keys.shape[1], metric="l2sq", dtype="f32", connectivity=32, expansion_add=200, expansion_search=EFFORT
    )
    # Several threads that add at once leave some items out of the graph's reach.
    index.add(np.arange(len(keys)), keys, threads=1)
    return index.search(queries, k).keys


def sqlite_vec(keys: Vectors, queries: Vectors, k: int, folder: Path) -> Any:
    import sqlite3

    import sqlite_vec

    if not hasattr(sqlite3.Connection, "enable_load_extension"):  # some builds of Python cannot load extensions
        sqlite3 = importlib.import_module("pysqlite3")
    connection = sqlite3.connect(folder / "items.sqlite")
    connection.enable_load_extension(True)
    sqlite_vec.load(connection)
    connection.execute(f"CREATE VIRTUAL TABLE items USING vec0(id integer primary key, key float[{keys.shape[1]}])")
    connection.executemany("INSERT INTO items VALUES (?, ?)", ((i, key.tobytes()) for i, key in enumerate(keys)))
    text = "SELECT id FROM items WHERE key MATCH ? AND k = ? ORDER BY distance"
    found = [[row[0] for row in connection.execute(text, (query.tobytes(), k))] for query in queries]
    connection.close()
    return found


class Engine(NamedTuple):
    """How an engine is searched: by which form, what it calls its metric, and the packages it needs."""

    search: Callable[[Vectors, Vectors, int, Path], Any]
    form: str
    metric: str
    packages: tuple[str, ...]
    extra: str


ENGINES = {
    "faiss": Engine(faiss, "inner-product", "METRIC_INNER_PRODUCT", ("faiss",), "faiss"),
    "milvus": Engine(milvus, "inner-product", "IP", ("pymilvus", "milvus_lite"), "milvus"),
    "qdrant": Engine(qdrant, "inner-product", "Dot", ("qdrant_client",), "qdrant"),
    "lancedb": Engine(lancedb, "inner-product", "dot", ("lancedb", "pyarrow"), "lancedb"),
    "pgvector": Engine(pgvector, "inner-product", "<#>", ("pgserver", "pg8000"), "pgvector"),
    "chroma": Engine(chroma, "euclidean", "l2", ("chromadb",), "chroma"),
    "usearch": Engine(usearch, "euclidean", "l2sq", ("usearch",), "usearch"),
    "sqlite-vec": Engine(sqlite_vec, "euclidean", "L2", ("sqlite_vec",), "sqlite-vec"),
}


def missing(name: str) -> str:
    """Return what keeps an engine from running, and the line that installs it; nothing if it runs."""
    for package in ENGINES[name].packages:
        if importlib.util.find_spec(package) is None:
            return f'{name} needs the package {package!r}. Run: pip install ".[{ENGINES[name].extra}]"'
    return ""


def search(name: str, model: object, direction: str, items: Any, queries: Any, k: int) -> NDArray[np.int64]:
    """Return the ids of the k nearest items of each query, found by an engine."""
    if missing(name):
        raise ImportError(missing(name))
    engine = ENGINES[name]
    maps = keys_and_queries(model, direction, engine.form, items)
    keys, vectors = (maps.keys(items).float().numpy(), maps.queries(queries).float().numpy())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return np.asarray(engine.search(keys, vectors, k, Path(folder)), np.int64)


def recall(model: Any, direction: str, items: Any, queries: Any, ids: NDArray[np.int64]) -> float:
    """Return the share of hits that are as near as the k-th nearest item of an exact search."""
    index = ExactIndex(model, direction)
    index.add(items)
    limit = index.search_order(queries, ids.shape[1])[0][:, -1:]
    chosen = ExactIndex(model, direction)
    chosen.add(items[np.unique(ids)])
    order, found = chosen.search_order(queries, len(np.unique(ids)))
    names = np.unique(ids)[found]
    near = [set(row[value <= edge + 1e-5 * abs(edge)]) for row, value, edge in zip(names, order, limit, strict=True)]
    return float(np.mean([[number in good for number in row] for good, row in zip(near, ids, strict=True)]))


def data(count: int, dim: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return points around fifty centres of unequal spread, and the centre of each."""
    random = np.random.default_rng(0)
    centres, spread = 3 * random.normal(size=(50, dim)), random.uniform(0.3, 2, size=(50, 1))
    random = np.random.default_rng(seed)
    labels = random.integers(50, size=count)
    return centres[labels] + spread[labels] * random.normal(size=(count, dim)), labels


def learned(name: str, dim: int, steps: int) -> askew.DivergenceLearner:
    """Return a divergence that was learned from labels."""
    points, labels = data(2000, dim, 1)
    learner = askew.DivergenceLearner(name, encoder=None, steps=steps, random_state=0, progress=False)
    return learner.fit(points, labels)


def main() -> None:
    """Search with a trained drift in both directions."""
    parser = argparse.ArgumentParser(description="Search in other engines.")
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--items", type=int, default=2000)
    options = parser.parse_args()
    if set(options.engines) - set(ENGINES):
        parser.error(f"engines must be some of {', '.join(ENGINES)}. Got {' '.join(options.engines)} instead.")
    model, (items, _), (queries, _) = learned("drift", 8, 100), data(options.items, 8, 2), data(50, 8, 3)
    for name in options.engines or ENGINES:
        if missing(name):
            print(f"{name}: skipped; {missing(name)}")
            continue
        for direction in ("query-first", "query-second"):
            found = search(name, model, direction, items, queries, 10)
            print(f"{name}, {direction}: recall@10 {recall(model, direction, items, queries, found):.3f}")


if __name__ == "__main__":
    main()
