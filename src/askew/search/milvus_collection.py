"""A collection of Milvus as ids, keys, items and fields; it knows nothing of divergences."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from askew import checks, io
from askew.search.milvus_connection import EXTRA, check_uri, connect, disconnect, listening, said
from askew.search.store import Ids

__all__ = ["KINDS", "MOST_CANDIDATES", "Collection", "Kind", "check_fields", "decode", "encode_rows", "gather"]

# Where a collection says what it was made for, and the names of its fields.
PROPERTY = "askew"
ID, KEY, ITEM = "id", "key", "item"
# What Milvus allows: candidates of a query, and the length of a text.
MOST_CANDIDATES = 16384
LONGEST_TEXT = 65535
# Bytes of one message; Milvus refuses those above 64 MiB.
MESSAGE_BYTES = 1 << 23
# Ids in one filter expression.
ID_BATCH = 5000
# Rows that the embedded engine may keep in its log, where each search walks through them one by one.
LOG_ROWS = 2000
# Numbers in the largest temporary of the embedded engine, which makes it for all queries of a call at once; or twice as
# many as the keys have, since each call walks through all of them.
ENGINE_ELEMENTS = 1 << 24
QUERIES = 1000
LARGEST_ID = int(np.iinfo(np.int64).max)

Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """How Milvus searches.

    Attributes
    ----------
    index : str
        Its name for the index.
    form : str
        The form of the vectors; see :func:`keys_and_queries`.
    building : Mapping
        Parameters of the index.
    effort : str or None
        The parameter of a search that decides between speed and recall.
    usual, most : int
        Its value if none is given, and the largest.
    """

    index: str
    form: str
    building: Mapping[str, int] = field(default_factory=dict)
    effort: str | None = None
    usual: int = 0
    most: int = 0

    @property
    def metric(self) -> str:
        """What Milvus calls the measure of the form."""
        return "IP" if self.form == "inner-product" else "L2"

    def searching(self, effort: int | None, width: int) -> dict[str, object]:
        """Return the parameters of a search for ``width`` candidates."""
        inner = {}
        if self.effort is not None:
            value = effort or self.usual
            inner[self.effort] = max(value, width) if self.effort == "ef" else value
        return {"metric_type": self.metric, "params": inner}


KINDS = {
    "flat": Kind("FLAT", "inner-product"),
    "ivf": Kind("IVF_FLAT", "inner-product", {"nlist": 128}, "nprobe", 16, 128),
    # Graphs find next to nothing by raw inner product.
    "hnsw": Kind("HNSW", "euclidean", {"M": 32, "efConstruction": 200}, "ef", 128, MOST_CANDIDATES),
    "auto": Kind("AUTOINDEX", "euclidean"),
}


class Collection:
    """One collection, also one that is not there yet.

    Parameters
    ----------
    uri, name, token
        As in :class:`MilvusIndex`.
    owner
        Who asks, for errors.
    """

    def __init__(self, uri: str | os.PathLike[str], name: str, token: str | None, owner: str) -> None:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            must = "a name of letters, digits and underscores that does not begin with a digit"
            raise ValueError(checks.message(f"collection of {owner}", must, repr(name)))
        self.name = name
        self.owner = owner
        self.milvus = checks.optional_import("pymilvus", EXTRA, owner)
        self.uri, path = check_uri(uri, owner)
        self.embedded = path is not None
        # Of the embedded engine: how many items there are, how many in its log, and whether indexes may be missing.
        self.rows = self.logged = 0
        self.building = False
        self._client: Any = connect(self.milvus, self.uri, path, token, owner)
        self._finalizer = weakref.finalize(self, disconnect, self._client, path)

    def close(self) -> None:
        """Leave the engine; what was written is kept."""
        self._finalizer()

    @property
    def client(self) -> Any:
        """The client of pymilvus."""
        if not self._finalizer.alive:
            raise ValueError(checks.message(self.owner, "open", "one that was closed", "Make a new one."))
        return self._client

    @contextlib.contextmanager
    def asking(self, doing: str, hint: str = "", filter: str = "") -> Iterator[Any]:
        """Give the client, and turn what it raises into one clear error."""
        client = self.client
        with listening():
            try:
                yield client
            except self.milvus.MilvusException as error:
                if filter:
                    must = "an expression that Milvus can evaluate"
                    got = f"{filter!r} ({said(error)})"
                    raise ValueError(checks.message(f"filter of {self.owner}", must, got)) from error
                text = f"{self.owner} could not {doing}: Milvus at {self.uri} says: {said(error)}. {hint}"
                raise RuntimeError(text.strip()) from error

    # ------------------------------------------------------------------ the collection as a whole

    def exists(self) -> bool:
        """Return whether the collection is there."""
        with self.asking("look for the collection") as client:
            return bool(client.has_collection(self.name))

    def create(self, kind: Kind, size: int, item_bytes: int, remembered: Mapping[str, object]) -> None:
        """Make the collection for keys of ``size`` features and items of so many bytes."""
        length = 4 * -(-item_bytes // 3)
        if length > LONGEST_TEXT:
            must = f"of at most {LONGEST_TEXT // 4 * 3} bytes, the limit of Milvus"
            raise ValueError(checks.message(f"an item of {self.owner}", must, item_bytes))
        types = self.milvus.DataType
        with self.asking("make the collection") as client:
            schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
            schema.add_field(ID, types.INT64, is_primary=True)
            schema.add_field(KEY, types.FLOAT_VECTOR, dim=size)
            # As text: an array comes back as Python numbers, and a second vector field must have its own index.
            schema.add_field(ITEM, types.VARCHAR, max_length=length)
            indexes = client.prepare_index_params()
            # The embedded engine reads parameters from a field of this name only; servers read them from there, too.
            parameters = {"params": dict(kind.building)}
            indexes.add_index(KEY, index_type=kind.index, metric_type=kind.metric, params=parameters)
            client.create_collection(
                self.name,
                schema=schema,
                properties={PROPERTY: json.dumps(remembered, allow_nan=False)},
                consistency_level="Strong",  # a search sees all that was added before it
            )
            client.create_index(self.name, indexes, sync=False)  # there is nothing in it to wait for
            client.load_collection(self.name)

    def remembered(self) -> dict[str, Any] | None:
        """Return what the collection says it was made for; None of one of another program."""
        with self.asking("read the collection") as client:
            text = client.describe_collection(self.name).get("properties", {}).get(PROPERTY)
        found = None if text is None else io.read_json(text, f"collection {self.name!r}")
        return found if isinstance(found, dict) else None

    def remember(self, remembered: Mapping[str, object]) -> None:
        """Write what the collection is made for."""
        with self.asking("write to the collection") as client:
            client.alter_collection_properties(self.name, {PROPERTY: json.dumps(remembered, allow_nan=False)})

    def load(self) -> None:
        """Make the collection ready for searches; the embedded engine builds the indexes that are missing."""
        with self.asking("load the collection") as client:
            if self.embedded:
                client.flush(self.name)  # what a killed process has left in the log
            client.load_collection(self.name)
        self.rows = self.count() if self.embedded else 0

    def count(self) -> int:
        """Return the number of items."""
        with self.asking("count the items") as client:
            return int(client.query(self.name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    # ------------------------------------------------------------------ ids

    def known(self, ids: Ids) -> Ids:
        """Return those of some ids that are in the collection."""
        found = [row[ID] for batch in _batches(ids) for row in self._query(f"{ID} in {batch.tolist()}", [ID])]
        return np.asarray(found, np.int64)

    def any_from(self, number: int) -> bool:
        """Return whether there is an id that is not smaller."""
        return bool(self._query(f"{ID} >= {number}", [ID], limit=1))

    def first_free(self) -> int:
        """Return the number after the largest id; Milvus knows no maximum, so it is found by bisection."""
        low, high = 0, 1  # there is an id from low - 1, and none from high - 1
        while self.any_from(high - 1):
            low, high = high, min(2 * high, LARGEST_ID + 1)
            if low == high:
                return low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.any_from(middle - 1) else (low, middle)
        return low

    def _query(self, filter: str, names: list[str], limit: int | None = None) -> list[Row]:
        with self.asking("read items") as client:
            rows = client.query(
                self.name, filter=filter, output_fields=names, **({} if limit is None else {"limit": limit})
            )
        return list(rows)

    # ------------------------------------------------------------------ rows

    def write(self, rows: list[Row], replacing: bool, new: int, hint: str = "") -> None:
        """Insert or upsert some rows in one message; so many of them are new."""
        with self.asking("add items", hint) as client:
            (client.upsert if replacing else client.insert)(self.name, rows)
        self.rows += new
        self.logged += len(rows)

    def fields(self, ids: Ids) -> dict[int, Row]:
        """Return the fields of items, which an upsert drops in some engines and keeps in others."""
        found: dict[int, Row] = {}
        for batch in _batches(ids):
            for row in self._query(f"{ID} in {batch.tolist()}", ["*"]):
                found[row[ID]] = {name: value for name, value in row.items() if name not in (ID, KEY, ITEM)}
        return found

    def delete(self, ids: Ids) -> None:
        """Remove rows."""
        for batch in _batches(ids):
            with self.asking("remove items") as client:
                client.delete(self.name, ids=batch.tolist())
        self.rows -= len(ids)

    def pages(self, names: list[str], row_bytes: int) -> Iterator[list[Row]]:
        """Yield all rows, in batches."""
        batch = max(1, min(MOST_CANDIDATES, MESSAGE_BYTES // row_bytes))
        with self.asking("read items") as client:
            iterator = client.query_iterator(self.name, batch_size=batch, output_fields=names)
        try:
            while True:
                with self.asking("read items"):
                    rows = list(iterator.next())
                if not rows:
                    return
                yield rows
        finally:
            iterator.close()

    def search(
        self, vectors: NDArray[np.float32], width: int, filter: str, parameters: Mapping[str, object]
    ) -> list[list[Row]]:
        """Return the rows of candidates of each query, at most ``width`` of them."""
        with self.asking("search", filter=filter) as client:
            hits = client.search(
                self.name,
                data=vectors,
                anns_field=KEY,
                filter=filter,
                limit=width,
                output_fields=[ITEM],
                search_params=parameters,
            )
        return [list(row) for row in hits]

    def settle(self) -> None:
        """Have the embedded engine write its log to files, in which it searches many times faster."""
        if self.embedded and self.logged >= LOG_ROWS:
            with self.asking("write items to files") as client:
                client.flush(self.name)
            self.logged, self.building = 0, True

    def queries_at_a_time(self, width: int, size: int, form: str) -> int:
        """Return how many queries fit one message and the memory of the embedded engine."""
        answers = MESSAGE_BYTES // (width * 8 * size)
        if self.embedded:
            # All products at once or, by distance and where there is no index yet, all differences.
            bare = self.rows if self.building else self.logged
            elements = bare * size if form == "euclidean" else self.rows
            answers = min(answers, max(ENGINE_ELEMENTS, 2 * self.rows * size) // max(1, elements))
        return max(1, min(QUERIES, answers))


def _batches(ids: Ids) -> Iterator[Ids]:
    return (ids[start : start + ID_BATCH] for start in range(0, len(ids), ID_BATCH))


# ---------------------------------------------------------------------- values


def gather(hits: list[list[Row]], width: int) -> tuple[Ids, Ids, list[str]]:
    """Return places in an ascending array of ids ``(n, width)``, -1 for none; the ids; and their items.

    An item that many queries have found is there once.
    """
    counts = np.array([len(row) for row in hits])
    numbers = np.array([hit[ID] for row in hits for hit in row], np.int64)
    texts = [hit["entity"][ITEM] for row in hits for hit in row]
    ids, first, places = np.unique(numbers, return_index=True, return_inverse=True)
    candidates = np.full((len(hits), width), -1, np.int64)
    candidates[np.arange(width) < counts[:, None]] = places
    return candidates, ids, [texts[i] for i in first]


def encode_rows(items: NDArray[Any]) -> list[str]:
    """Return the bytes of each row as text, so that every digit comes back."""
    return [base64.b64encode(row).decode("ascii") for row in items.astype(items.dtype.newbyteorder("<"))]


def decode(texts: Sequence[str], dtype: str, dim: int) -> NDArray[Any]:
    """Return the rows of :func:`encode_rows`, ``(n, dim)``."""
    stored = np.dtype(dtype).newbyteorder("<")
    flat = np.frombuffer(b"".join(map(base64.b64decode, texts)), stored)
    return flat.astype(dtype).reshape(len(texts), dim)


def check_fields(fields: Mapping[str, Sequence[object]] | None, count: int, owner: str) -> dict[str, list[object]]:
    """Return the columns of fields as lists of plain values, one for each item."""
    what = f"fields of {owner}"
    if fields is not None and not isinstance(fields, Mapping):
        must = "a mapping of names to one value for each item"
        hint = "Example: fields={'colour': ['red', 'blue']}."
        raise TypeError(checks.message(what, must, type(fields).__name__, hint))
    columns = {}
    for name, values in (fields or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or name in (ID, KEY, ITEM):
            must = f"named like variables, and not {ID!r}, {KEY!r} or {ITEM!r}"
            raise ValueError(checks.message(what, must, repr(name)))
        column = values.tolist() if isinstance(values, (np.ndarray, Tensor)) else list(values)
        column = [value.item() if isinstance(value, np.generic) else value for value in column]
        if isinstance(values, str) or len(column) != count:
            got = "a string" if isinstance(values, str) else len(column)
            raise ValueError(checks.message(f"{name!r} in {what}", f"one value for each of {count} items", got))
        try:
            json.dumps(column, allow_nan=False)
        except (TypeError, ValueError) as error:
            must = "finite numbers, strings, booleans, lists or dicts"
            raise ValueError(checks.message(f"{name!r} in {what}", must, f"other values ({error})")) from None
        columns[name] = column
    return columns
