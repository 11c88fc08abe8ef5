"""One collection of Milvus as rows of ids, keys, items and fields, in the embedded engine or on a server."""

from __future__ import annotations

import base64
import bisect
import contextlib
import json
import logging
import os
import re
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from askew import checks, io
from askew._parallel import slices
from askew.search.store import LARGEST_ID, Ids

# The property of a collection that says what it was made for, and the names of its fields.
PROPERTY = "askew"
ID, KEY, ITEM = "id", "key", "item"
# What Milvus allows: candidates of a query, and the length of a text.
MOST_CANDIDATES = 16384
LONGEST_TEXT = 65535
# Bytes of one message; Milvus refuses those above 64 MiB.
MESSAGE_BYTES = 1 << 23
# Ids in one filter expression, and queries in one search.
ID_BATCH = 5000
QUERIES = 1000
# Items whose fields an error lists.
SAMPLE = 100
# Rows that the embedded engine may keep in its log, which each search scans row by row.
LOG_ROWS = 2000
# Numbers in the largest temporary of the embedded engine, which makes it for all queries of a call at once; or twice as
# many as the keys have, since each call scans all of them.
ENGINE_ELEMENTS = 1 << 24
CONNECT_SECONDS = 10.0
EMBEDDED = "milvus_lite.server_manager"
# These log errors that are raised as well, with tracebacks, and what the embedded engine cannot do.
LOGGERS = (
    EMBEDDED,
    "grpc._server",
    "milvus_lite.adapter.grpc.servicer",
    "pymilvus.decorators",
    "pymilvus.client.iterator.query_iterator",
)

# In a filter: texts, names that are no functions, and words of the language.
TEXTS = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
NAMES = r"(?<![\w$.])[A-Za-z_]\w*\b(?!\s*\()"
WORDS = {"and", "or", "not", "in", "like", "true", "false", "exists", "is", "null"}

Row = dict[str, Any]
Fields = Mapping[str, Sequence[object]]


class Kind(NamedTuple):
    """How Milvus searches: its name for the index, the form of keys, parameters of the index and of a search."""

    engine: str
    form: str
    building: Mapping[str, int]
    effort: str | None = None  # the parameter of a search that trades speed for recall
    usual: int = 0
    most: int = 0

    @property
    def metric(self) -> str:
        """The name in Milvus for the measure of the form."""
        return "IP" if self.form == "inner-product" else "L2"

    def searching(self, effort: int | None, width: int) -> dict[str, object]:
        """Return the parameters of a search for ``width`` candidates."""
        value = max(effort or self.usual, width if self.effort == "ef" else 1)
        return {"metric_type": self.metric, "params": {self.effort: value} if self.effort else {}}


KINDS = {
    "flat": Kind("FLAT", "inner-product", {}),
    "ivf": Kind("IVF_FLAT", "inner-product", {"nlist": 128}, "nprobe", 16, 128),
    # Graphs find next to nothing by raw inner product.
    "hnsw": Kind("HNSW", "euclidean", {"M": 32, "efConstruction": 200}, "ef", 128, MOST_CANDIDATES),
    "auto": Kind("AUTOINDEX", "euclidean", {}),
}


class Collection:
    """One collection, which need not exist yet; parameters are those of :class:`MilvusIndex`."""

    def __init__(self, uri: str | os.PathLike[str], name: str, token: str | None, owner: str) -> None:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            must = "a name of letters, digits and underscores that does not begin with a digit"
            raise ValueError(checks.message(f"collection of {owner}", must, repr(name)))
        self.name = name
        self.owner = owner
        self.milvus: Any = checks.optional_import("pymilvus", "milvus", owner)
        path = _check_uri(uri, owner)
        self.uri, self.embedded = path or str(uri), path is not None
        # Of the embedded engine: how many items there are, how many in its log, and whether indexes may be missing.
        self.rows = self.logged = 0
        self.building = False
        self.dtype: str | None = None  # of the items
        self.dim = 0
        self.fields = {ID}  # that some item has or had
        self.client = _connect(self.milvus, self.uri, path, token, owner)
        # The embedded engine loses rows that come while another thread has it write its log to files.
        self.writing = _writing[path] if path else threading.RLock()
        self.close = weakref.finalize(self, _disconnect, self.client, path)  # also when nobody calls it

    @contextlib.contextmanager
    def _errors(self, doing: str, hint: str = "", filter: str = "") -> Iterator[None]:
        """Turn what pymilvus raises into one clear error."""
        if not self.close.alive:
            raise ValueError(checks.message(self.owner, "open", "one that was closed", "Make a new one."))
        try:
            with _listening():
                yield
        except self.milvus.MilvusException as error:
            if filter:
                must, got = "an expression that Milvus can evaluate", f"{filter!r} ({_text(error)})"
                raise ValueError(checks.message(f"filter of {self.owner}", must, got)) from error
            text = f"{self.owner} could not {doing}: Milvus at {self.uri} says: {_text(error)}. {hint}"
            raise RuntimeError(text.strip()) from error

    def call(self, doing: str, method: str, *arguments: object, **options: object) -> Any:
        """Call a method of pymilvus's client for this collection."""
        with self._errors(doing):
            return getattr(self.client, method)(self.name, *arguments, **options)

    def query(self, filter: str = "", names: Sequence[str] = (ID,), **options: object) -> Sequence[Row]:
        """Return the rows that pass a filter, with these fields."""
        rows: Sequence[Row] = self.call("read items", "query", filter=filter, output_fields=list(names), **options)
        return rows

    def create(self, kind: Kind, size: int, metadata: Mapping[str, Any]) -> None:
        """Create the collection for keys of ``size`` features."""
        item_bytes = metadata["dim"] * np.dtype(metadata["dtype"]).itemsize
        if item_bytes > LONGEST_TEXT // 4 * 3:
            must = f"of at most {LONGEST_TEXT // 4 * 3} bytes, the limit of Milvus"
            raise ValueError(checks.message(f"an item of {self.owner}", must, item_bytes))
        types = self.milvus.DataType
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=True)
        schema.add_field(ID, types.INT64, is_primary=True)
        schema.add_field(KEY, types.FLOAT_VECTOR, dim=size)
        # As text: an array comes back as Python numbers, and a second vector field needs another index.
        schema.add_field(ITEM, types.VARCHAR, max_length=4 * -(-item_bytes // 3))
        indexes = self.client.prepare_index_params()
        # The embedded engine reads parameters from a field of this name only; servers read them from there as well.
        parameters = {"params": dict(kind.building)}
        indexes.add_index(KEY, index_type=kind.engine, metric_type=kind.metric, params=parameters)
        # Strong: a search sees all that was added before it.
        options = {"schema": schema, "properties": _property(metadata), "consistency_level": "Strong"}
        self.call("make the collection", "create_collection", **options)
        self.call("make the collection", "create_index", indexes, sync=False)  # there is nothing in it to wait for
        self.call("load the collection", "load_collection")

    def metadata(self) -> dict[str, Any] | None:
        """Return what the collection says it was made for; None for one of another program."""
        text = self.call("read the collection", "describe_collection").get("properties", {}).get(PROPERTY)
        metadata = None if text is None else io.read_json(text, f"collection {self.name!r}")
        return metadata if isinstance(metadata, dict) else None

    def write_metadata(self, metadata: Mapping[str, object]) -> None:
        """Write what the collection is made for."""
        self.call("write to the collection", "alter_collection_properties", _property(metadata))

    def load(self) -> None:
        """Make the collection ready for searches; the embedded engine builds the indexes that are missing."""
        if self.embedded:
            with self.writing:
                self.call("load the collection", "flush")  # what a killed process has left in the log
        self.call("load the collection", "load_collection")
        self.rows = self.count() if self.embedded else 0

    def count(self) -> int:
        """Return the number of items."""
        return int(self.query(names=["count(*)"])[0]["count(*)"])

    def read(self, ids: Ids, names: Sequence[str] = (ID,)) -> list[Row]:
        """Return those of some ids that are in the collection, with these fields."""
        batches = (ids[part].tolist() for part in slices(len(ids), ID_BATCH))
        return [row for batch in batches for row in self.query(f"{ID} in {batch}", names)]

    def any_from(self, number: int) -> bool:
        """Return whether there is an id that is not smaller."""
        return bool(self.query(f"{ID} >= {number}", limit=1))

    def first_free(self) -> int:
        """Return the number after the largest id, by bisection: Milvus has no maximum."""
        largest = range(LARGEST_ID)  # as many as Python can count
        free = bisect.bisect_left(largest, True, key=lambda number: not self.any_from(number))
        return free + (free == LARGEST_ID and self.any_from(LARGEST_ID))

    def check_filter(self, filter: str) -> None:
        """Raise if a filter names a field that no item has: Milvus lets no item pass it, and says nothing."""
        for name in dict.fromkeys(re.findall(NAMES, re.sub(TEXTS, "", filter))):
            if name.lower() in WORDS or name in self.fields:
                continue
            try:
                known = bool(self.query(f"exists {name}", limit=1))
            except RuntimeError:  # the search itself will say what is wrong
                continue
            rows = [] if known else self.query(names=["*"], limit=SAMPLE)
            if rows:
                there = {one for row in rows for one in row} - {KEY, ITEM, name}
                checks.check_name(name, sorted(there), f"a field in the filter of {self.owner}")
            self.fields |= {name} if known else set()

    def write(self, ids: Ids, keys: NDArray[Any], items: NDArray[Any], fields: Fields, replacing: bool) -> None:
        """Add rows, or replace those with the same ids, which keep fields that are not given."""
        for part in slices(len(ids), max(1, MESSAGE_BYTES // (16 * keys.shape[1]))):
            columns = {ID: ids[part].tolist(), KEY: keys[part], ITEM: encode(items[part])}
            columns |= {name: values[part] for name, values in fields.items()}
            rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            # An upsert keeps the other fields in some engines only.
            old = {row[ID]: row for row in self.read(ids[part], ["*"])} if replacing else {}
            hint = f"The first {part.start} of {len(ids)} are in; give all to upsert." if part.start else ""
            with self.writing, self._errors("add items", hint):
                send = self.client.upsert if replacing else self.client.insert
                send(self.name, [{**old.get(row[ID], {}), **row} for row in rows])
            self.rows += len(rows) - len(old)
            self.logged += len(rows)

    def upsert(self, rows: list[Row]) -> None:
        """Replace whole rows."""
        with self.writing:
            self.call("add items", "upsert", rows)
        self.logged += len(rows)

    def delete(self, ids: Ids) -> None:
        """Remove rows."""
        for part in slices(len(ids), ID_BATCH):
            with self.writing:
                self.call("remove items", "delete", ids=ids[part].tolist())
        self.rows -= len(ids)

    def pages(self, names: list[str]) -> Generator[tuple[list[Row], NDArray[Any]], None, None]:
        """Yield all rows with these fields and their items, in batches."""
        batch = max(1, min(MOST_CANDIDATES, MESSAGE_BYTES // (24 * self.dim)))
        pages = self.call("read items", "query_iterator", batch_size=batch, output_fields=names)
        with contextlib.closing(pages):
            while True:
                with self._errors("read items"):
                    rows = list(pages.next())
                if not rows:
                    return
                yield rows, self._items(row[ITEM] for row in rows)

    def search(self, vectors: object, width: int, filter: str, parameters: object) -> list[list[Row]]:
        """Return the rows of candidates of each query, at most ``width`` of them."""
        options = {"anns_field": KEY, "output_fields": [ITEM], "search_params": parameters}
        with self._errors("search", filter=filter):
            hits = self.client.search(self.name, data=vectors, filter=filter, limit=width, **options)
        return [list(row) for row in hits]

    def gather(self, hits: list[list[Row]], width: int) -> tuple[Ids, Ids, NDArray[Any]]:
        """Return places in an ascending array of ids ``(n, width)``, -1 for none; the ids; and their items.

        An item that many queries have found is there once.
        """
        texts = {hit[ID]: hit["entity"][ITEM] for row in hits for hit in row}
        ids = np.array(sorted(texts), np.int64)
        candidates = np.full((len(hits), width), -1, np.int64)
        for row, places in zip(hits, candidates, strict=True):
            places[: len(row)] = np.searchsorted(ids, [hit[ID] for hit in row])
        return candidates, ids, self._items(texts[number] for number in ids.tolist())

    def _items(self, texts: Iterable[str]) -> NDArray[Any]:
        return decode(texts, self.dtype or "float32", self.dim)

    def flush(self) -> None:
        """Have the embedded engine write a long log to files, in which it searches many times faster."""
        if self.embedded and self.logged >= LOG_ROWS:
            with self.writing:
                self.call("write items to files", "flush")
                self.logged, self.building = 0, True

    def queries_at_a_time(self, width: int, size: int, form: str) -> int:
        """Return how many queries fit one message and the memory of the embedded engine."""
        answers = MESSAGE_BYTES // (width * 8 * size)
        if self.embedded:
            # All products at once or, by distance and where there is no index yet, all differences.
            unindexed = self.rows if self.building else self.logged
            elements = unindexed * size if form == "euclidean" else self.rows
            answers = min(answers, max(ENGINE_ELEMENTS, 2 * self.rows * size) // max(1, elements))
        return max(1, min(QUERIES, answers))


# ---------------------------------------------------------------------- values


def encode(items: NDArray[Any]) -> list[str]:
    """Return the bytes of each row as text, which keeps every digit."""
    return [base64.b64encode(row).decode("ascii") for row in items.astype(items.dtype.newbyteorder("<"))]


def decode(texts: Iterable[str], dtype: str, dim: int) -> NDArray[Any]:
    """Return the rows of :func:`encode`, ``(n, dim)``."""
    flat = np.frombuffer(b"".join(map(base64.b64decode, texts)), np.dtype(dtype).newbyteorder("<"))
    return flat.astype(dtype).reshape(-1, dim)


def _property(metadata: Mapping[str, object]) -> dict[str, str]:
    return {PROPERTY: json.dumps(metadata, allow_nan=False)}


def check_fields(fields: Fields | None, count: int, owner: str) -> dict[str, list[object]]:
    """Return the columns of fields as lists of plain values, one for each item."""
    what, columns = f"fields of {owner}", {}
    if fields is not None and not isinstance(fields, Mapping):
        must, hint = "a mapping of names to one value for each item", "Example: fields={'colour': ['red', 'blue']}."
        raise TypeError(checks.message(what, must, type(fields).__name__, hint))
    for name, values in (fields or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or name in (ID, KEY, ITEM):
            must = f"named like variables, and not {ID!r}, {KEY!r} or {ITEM!r}"
            raise ValueError(checks.message(what, must, repr(name)))
        column = values.tolist() if isinstance(values, (np.ndarray, Tensor)) else list(values)
        if isinstance(values, str) or len(column) != count:
            got = "a string" if isinstance(values, str) else len(column)
            raise ValueError(checks.message(f"{name!r} in {what}", f"one value for each of {count} items", got))
        try:
            columns[name] = json.loads(json.dumps(column, allow_nan=False, default=np.generic.item))
        except (TypeError, ValueError) as error:
            must = "finite numbers, strings, booleans, lists or dicts"
            raise ValueError(checks.message(f"{name!r} in {what}", must, f"other values ({error})")) from None
    return columns


# ---------------------------------------------------------------------- connections

# Indexes of this process on each path of the embedded engine. A finalizer may run while the lock is held.
_users: Counter[str | None] = Counter()
_writing: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
_lock = threading.RLock()


def is_address(uri: str | os.PathLike[str]) -> bool:
    """Return whether this is the address of a server, and not a path."""
    return isinstance(uri, str) and ("://" in uri or uri.startswith("unix:"))


def _check_uri(uri: object, owner: str) -> str | None:
    """Return the path if it is that of the embedded engine, None for an address."""
    must = "a path that ends in .db, or an address such as 'http://localhost:19530'"
    if not isinstance(uri, (str, os.PathLike)):
        raise TypeError(checks.message(f"uri of {owner}", must, repr(uri)))
    shown, path = repr(str(uri)), Path(uri).resolve()
    where, whose = "in a folder that exists", "a new path, or a folder that MilvusIndex has made"
    older = "Files of milvus-lite 2 cannot be read by version 3: choose another path and add the items again."
    for refused, error, required, got, hint in (
        # It would end up in files and in errors.
        (is_address(uri) and "@" in shown, ValueError, "without a password", "one with an '@'", "Give it as token."),
        (not is_address(uri) and path.suffix != ".db", ValueError, must, shown, ""),
        (not is_address(uri) and not path.parent.is_dir(), FileNotFoundError, where, shown, "Make the folder first."),
        (not is_address(uri) and path.is_file(), NotADirectoryError, whose, f"the file {shown}", older),
    ):
        if refused:
            raise error(checks.message(f"uri of {owner}", required, got, hint))
    return None if is_address(uri) else str(path)


def _connect(milvus: Any, uri: str, path: str | None, token: str | None, owner: str) -> Any:
    """Return a client of pymilvus; for a path, start the embedded engine in this process unless it runs."""
    if path is not None:
        checks.optional_import(EMBEDDED, "milvus", f"{owner} on a path")
    # A proxy that the environment names is for servers, and cannot reach this process.
    options = {} if path is None else {"grpc.enable_http_proxy": 0}
    with _lock, _listening() as logged:
        _users[path] += 1
        try:
            return milvus.MilvusClient(uri, token=token or "", timeout=CONNECT_SECONDS, grpc_options=options)
        except milvus.MilvusException as error:
            _release(path)
            text, kind = logged[0] if logged and path else _text(error), OSError if path else ConnectionError
            server = "the address of a Milvus server that answers", "Start it, or correct address or token."
            local = "a path that can be written to and that no other process has open", ""
            must, hint = local if path else server
            raise kind(checks.message(f"uri of {owner}", must, f"{uri!r} ({text})", hint)) from error


def _disconnect(client: Any, path: str | None) -> None:
    with _lock, _listening():
        client.close()
        _release(path)


def _release(path: str | None) -> None:
    """Stop the embedded engine after its last client; closed clients leave it running and the path locked."""
    _users[path] -= 1
    if path is not None and not _users[path]:
        checks.optional_import(EMBEDDED, "milvus", "a path").server_manager_instance.release_server(path)


def _text(error: BaseException) -> str:
    return " ".join(str(getattr(error, "message", error)).split())


@contextlib.contextmanager
def _listening() -> Iterator[list[BaseException]]:
    """Give the exceptions that the engine logs, and keep them from the terminal."""
    logged: list[BaseException] = []

    def keep(record: logging.LogRecord) -> bool:
        logged.extend(error for error in (record.exc_info or ())[1:2] if isinstance(error, BaseException))
        return False

    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield logged
    finally:
        for logger in loggers:
            logger.removeFilter(keep)
