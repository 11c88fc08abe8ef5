"""The kinds of FAISS index: how each is built, searched, read and checked."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askew import checks, io
from askew.search.store import empty_rows

# From this many items on an inverted file is faster than a scan; and from this many on, memory decides.
IVF_FROM = 50_000
PQ_FROM = 20_000_000
# Training points per list, and training iterations. With 64 points, training takes three times as long, and searches
# that visit as many lists find no more neighbours.
POINTS_PER_LIST = 16
ROUNDS = 10
# Rows that are put into lists at a time.
ADDED_ROWS = 1 << 14
# Values of one code of 8 bits.
CODES = 256
# FAISS builds no table for product codes; and bytes of a table that is worth its memory whatever the codes take.
WITHOUT_TABLE = -1
SMALL_TABLE = 1 << 26
# From this many queries on, their nearest lists come from products of matrices, of so many distances at a time. FAISS
# itself computes one distance after another until queries times features are 128,000, which is several times slower.
QUERIES_TO_MULTIPLY = 16
DISTANCES = 1 << 20
# Links of a node of the graph, and how many nodes are visited while it is built.
LINKS = 32
BUILD_EFFORT = 80
# The limits of what FAISS reads are global to the process, so one file is read at a time.
LIMITS = threading.Lock()

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Kind:
    """Properties of a kind of index."""

    engines: tuple[str, ...]  # classes in FAISS
    factor: int  # candidates that are re-ranked for each of the k wanted
    codes: tuple[str, ...]  # encodings of a key, the shortest first; the next is taken where one loses neighbours
    multiple: int  # zeros are added to keys up to a multiple of this many features, which changes no distance
    margin: int  # the effort is set for so many times fewer misses than are allowed

    def candidates(self, k: int) -> int:
        """Return how many candidates are re-ranked for the k nearest."""
        return self.factor * k + 8

    def goal(self, target: float) -> float:
        """Return the recall to set the effort for: items as queries are easier than others, most of all in a graph."""
        return 1 - (1 - target) / self.margin

    def features(self, size: int) -> int:
        """Return the number of features of an engine for vectors of a size, zeros included.

        Examples
        --------
        >>> KINDS["ivf"].features(33), KINDS["ivf-pq"].features(33)
        (40, 34)
        """
        return -(-size // self.multiple) * self.multiple

    def padded(self, vectors: Vectors) -> Vectors:
        """Return vectors with the zeros that :meth:`features` counts."""
        padded = np.zeros((len(vectors), self.features(vectors.shape[1])), np.float32)
        padded[:, : vectors.shape[1]] = vectors
        return padded


# Lists and graphs hold keys of a lower precision than the items: they only choose candidates, and items in full
# precision are there to rank these. So the index takes little more memory than one on plain vectors. Few features, or
# some items far longer than the others, need more digits. FAISS decodes eight features at a time where their number
# allows, else one, which is three times slower; product codes are of two features each.
KINDS: dict[str, Kind] = {
    "ivf": Kind(("IndexIVFScalarQuantizer",), 2, ("QT_8bit", "QT_fp16"), 8, 3),
    "hnsw": Kind(("IndexHNSWSQ", "IndexHNSWFlat"), 2, ("QT_fp16", "float"), 8, 4),
    "ivf-pq": Kind(("IndexIVFPQ",), 10, ("pairs", "features"), 2, 2),
}


def import_faiss() -> ModuleType:
    """Return the package, or raise and say how to install it."""
    return checks.optional_import("faiss", "faiss", "FaissIndex")


def kind_for(count: int) -> str:
    """Return the kind of index for a number of items.

    Examples
    --------
    >>> kind_for(1000), kind_for(1_000_000)
    ('flat', 'ivf')
    """
    return "flat" if count < IVF_FROM else "ivf" if count < PQ_FROM else "ivf-pq"


def lists_for(count: int) -> int:
    """Return the number of lists of an inverted file: four times the root of the number of items."""
    return max(1, min(int(4 * math.sqrt(count)), count // 8))


def make_engine(kind: str, codes: str, keys: Vectors, scratch: Path | None = None) -> Any:
    """Return an engine of a kind, trained on padded keys and holding them in their order, in an encoding.

    The training sample is kept in a file in the folder ``scratch``, if there is one.
    """
    count, size = keys.shape
    engine = _empty_engine(kind, codes, size, lists_for(count))
    if not engine.is_trained:
        # FAISS draws the training sample of its lists itself, but not that of its codes.
        most = max(1 << 16, POINTS_PER_LIST * lists_for(count))
        sample = keys
        if count > most:
            chosen = keys[:: -(-count // most)]
            sample = empty_rows(chosen.shape, np.float32, scratch)
            sample[:] = chosen
        # For product codes it wants at least as many points as there are codes.
        engine.train(np.resize(sample, (CODES, size)) if kind == "ivf-pq" and count < CODES else sample)
    if kind.startswith("ivf"):
        _fill_lists(engine, keys)
    else:
        engine.add(keys)
    if kind == "ivf-pq":
        _add_table(engine)
    return engine


def _empty_engine(kind: str, codes: str, size: int, lists: int) -> Any:
    faiss = import_faiss()
    if kind == "hnsw":
        if codes == "float":
            engine = faiss.IndexHNSWFlat(size, LINKS)
        else:
            engine = faiss.IndexHNSWSQ(size, getattr(faiss.ScalarQuantizer, codes), LINKS)
        engine.hnsw.efConstruction = BUILD_EFFORT
        return engine
    coarse = faiss.IndexFlatL2(size)
    if kind == "ivf":
        bits = getattr(faiss.ScalarQuantizer, codes)
        engine = faiss.IndexIVFScalarQuantizer(coarse, size, lists, bits, faiss.METRIC_L2, True)
    else:
        # A byte for two features or for one.
        engine = faiss.IndexIVFPQ(coarse, size, lists, size // 2 if codes == "pairs" else size, 8)
        engine.use_precomputed_table = WITHOUT_TABLE
    engine.own_fields = True
    coarse.this.disown()
    for training in (engine.cp, engine.pq.cp) if kind == "ivf-pq" else (engine.cp,):
        training.niter = ROUNDS
        training.max_points_per_centroid = POINTS_PER_LIST
        training.min_points_per_centroid = 1
    return engine


def _fill_lists(engine: Any, keys: Vectors) -> None:
    """Add keys to the empty lists of an inverted file, each of which allocates memory for its own keys and no more.

    FAISS alone lets lists grow by doubling, and codes take up to twice their memory, three times while they grow.
    """
    faiss, count = import_faiss(), len(keys)
    list_of = np.empty(count, np.int64)
    for start in range(0, count, ADDED_ROWS):
        block = np.ascontiguousarray(keys[start : start + ADDED_ROWS])
        list_of[start : start + len(block)] = engine.quantizer.assign(block, 1).reshape(-1)
    lists = faiss.downcast_InvertedLists(engine.invlists)
    # A key that is not finite has no list.
    for number, length in enumerate(np.bincount(list_of[list_of >= 0], minlength=engine.nlist).tolist()):
        lists.resize(number, length)
        lists.resize(number, 0)  # empty, and keeps its memory
    for start in range(0, count, ADDED_ROWS):
        block = np.ascontiguousarray(keys[start : start + ADDED_ROWS])
        rows = np.arange(start, start + len(block))
        chosen = np.ascontiguousarray(list_of[start : start + len(block)])
        engine.add_core(len(block), faiss.swig_ptr(block), faiss.swig_ptr(rows), faiss.swig_ptr(chosen))


def _add_table(engine: Any) -> None:
    """Build the table that makes searches of product codes faster, where it is no larger than the codes."""
    table = 4 * engine.nlist * engine.pq.M * engine.pq.ksub
    if table <= max(SMALL_TABLE, engine.ntotal * engine.code_size):
        engine.use_precomputed_table = 0  # let FAISS decide, and build it
        engine.precompute_table()


def most_effort(kind: str, engine: Any) -> int:
    """Return the effort of a search that visits all lists, or so much of a graph that more is slower than a scan."""
    count = int(engine.ntotal)
    return int(engine.nlist) if kind.startswith("ivf") else max(1024, min(4096, count), count // 16)


def search_engine(
    kind: str, engine: Any, vectors: Vectors, k: int, effort: int, live: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Return the rows of k candidates for each query, ``(n, k)``; -1 where there are fewer."""
    faiss = import_faiss()
    if kind.startswith("ivf"):
        parameters = faiss.SearchParametersIVF if kind == "ivf" else faiss.IVFPQSearchParameters
        options = {"nprobe": min(effort, int(engine.nlist))}
    else:
        # More than there are vectors would only take memory.
        parameters, options = faiss.SearchParametersHNSW, {"efSearch": max(min(effort, int(engine.ntotal)), k)}
    if live is not None:
        options["sel"] = faiss.IDSelectorBitmap(np.packbits(live, bitorder="little"))
    vectors, chosen = np.ascontiguousarray(vectors), parameters(**options)
    if kind == "hnsw" or len(vectors) < QUERIES_TO_MULTIPLY:
        found: NDArray[np.int64] = engine.search(vectors, k, params=chosen)[1]
        return found
    distances, lists = _nearest_lists(engine, vectors, options["nprobe"])
    found, values = np.empty((len(vectors), k), np.int64), np.empty((len(vectors), k), np.float32)
    arrays = (faiss.swig_ptr(array) for array in (lists, distances, values, found))
    engine.search_preassigned_c(len(vectors), faiss.swig_ptr(vectors), k, *arrays, False, chosen)
    return found


def _nearest_lists(engine: Any, vectors: Vectors, count: int) -> tuple[Vectors, NDArray[np.int64]]:
    """Return the squared distances of the nearest centroids of an inverted file, and their numbers."""
    faiss = import_faiss()
    coarse = faiss.downcast_index(engine.quantizer)
    points = torch.from_numpy(faiss.rev_swig_ptr(coarse.get_xb(), coarse.ntotal * coarse.d)).view(-1, coarse.d)
    squares, found = points.square().sum(1), []
    for block in torch.from_numpy(vectors).split(max(1, DISTANCES // len(points))):
        nearest, numbers = torch.addmm(squares, block, points.t(), alpha=-2).topk(count, 1, largest=False)
        found.append((nearest + block.square().sum(1, keepdim=True), numbers))
    distances, lists = map(torch.cat, zip(*found, strict=True))
    return distances.numpy(), lists.numpy()


def read_engine(path: Path, kind: str, size: int, count: int) -> Any:
    """Return the engine in a file, if it is of this kind, with ``count`` vectors of ``size`` features.

    None of its parts may be larger than the file, whatever it declares.
    """
    faiss, shown, classes = import_faiss(), repr(str(path)), KINDS[kind].engines
    with _limited(faiss, path.stat().st_size + 1):
        try:
            # The table of product codes is not in the file.
            engine = faiss.read_index(str(path), faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE)
        except (RuntimeError, MemoryError) as error:
            why = (str(error).splitlines() or ["it declares more than there is"])[0]
            raise ValueError(io.damaged(shown, why)) from None
    if engine is None:  # a file may say so
        raise ValueError(io.damaged(shown, "it holds no index"))
    name = type(engine).__name__
    for what, must, got in (
        ("class", name if name in classes else classes[0], name),
        ("number of features", size, engine.d),
        ("number of vectors", count, engine.ntotal),
        ("metric", faiss.METRIC_L2, engine.metric_type),
    ):
        if must != got:
            raise ValueError(checks.message(f"{what} of the FAISS index in {shown}", str(must), got))
    if kind.startswith("ivf"):
        coarse = faiss.downcast_index(engine.quantizer)
        if not isinstance(coarse, faiss.IndexFlat) or (coarse.ntotal, coarse.d) != (engine.nlist, engine.d):
            raise ValueError(io.damaged(shown, "its lists do not have a centroid each"))
        lists = faiss.extract_index_ivf(engine).invlists
        seen, total = np.zeros(count, np.bool_), 0
        for number in range(lists.nlist):
            size = lists.list_size(number)
            rows = faiss.rev_swig_ptr(lists.get_ids(number), size) if size else np.empty(0, np.int64)
            seen[rows[(rows >= 0) & (rows < count)]] = True
            total += size
        if total != count or not seen.all():
            raise ValueError(io.damaged(shown, "its lists do not have every row once"))
    if kind == "ivf-pq":
        _add_table(engine)
    return engine


@contextlib.contextmanager
def _limited(faiss: ModuleType, size: int) -> Iterator[None]:
    """Let FAISS read no more bytes into an array, and build no more lists, than a file can have."""
    before = []
    with LIMITS:
        for what in ("vector_byte", "loop"):
            setting = getattr(faiss, f"set_deserialization_{what}_limit", None)  # not in older ones
            if setting is not None:
                before.append((setting, getattr(faiss, f"get_deserialization_{what}_limit")()))
        try:
            for setting, _ in before:
                setting(size)
            yield
        finally:
            for setting, value in before:
                setting(value)
