"""Search in Milvus: embedded in this process, or a server or cluster, by the same code."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import checks, io
from askew.encoders import as_points
from askew.search import milvus_client
from askew.search.base import Content, Found, Index, RowNumbers
from askew.search.exact import nearest_in_blocks
from askew.search.folder import load_model, read_index
from askew.search.inner_product import BLOCK_ROWS, InnerProductForm, form_for
from askew.search.milvus_client import ID, ITEM, KEY, KINDS, MOST_CANDIDATES, Collection, Fields, is_address
from askew.search.store import Ids, check_found, check_ids, check_new, next_ids


class MilvusIndex(Index, contextlib.AbstractContextManager["MilvusIndex"]):
    """Items in a collection of Milvus, found by their keys and ranked by the divergence itself.

    A path that ends in ``.db`` is the embedded engine (milvus-lite), which keeps everything in a folder of that name;
    an address such as ``"http://host:19530"`` is a Milvus server or cluster. The collection holds the embeddings of the
    items together with their keys (see :func:`keys_and_queries`), and hits come back with their true divergences. The
    first :meth:`add` creates it. It records which divergence it was made for, and is refused to others.

    Use it where items must outlive the process, carry fields to filter by, or are too many for one machine. In one
    process and without filters, :class:`FaissIndex` is many times faster. The embedded engine takes one process at a
    time, is meant for some 100,000 items, and as long as it is open listens on a port of 127.0.0.1, where other users
    of the machine can reach it.

    Parameters
    ----------
    divergence, direction, progress
        As in :class:`Index`, for divergences that :class:`FaissIndex` takes.
    uri
        A path that ends in ``.db``, or an address.
    collection
        Name of the collection.
    kind
        ``"flat"`` scans all keys, ``"ivf"`` the nearest lists of them, ``"hnsw"`` follows a graph, and ``"auto"``
        leaves it to Milvus. None is that of a collection that exists, or ``"flat"``.
    effort
        For ``"ivf"`` how many of 128 lists a query visits (16), for ``"hnsw"`` how many candidates it keeps (128, or
        as many as are asked for). More is slower and finds more.
    token
        For a server that asks for one, such as ``"user:password"``. It is not saved.

    Examples
    --------
    >>> import tempfile
    >>> items, fields = [[0.5, 0.5], [0.9, 0.1], [0.1, 0.9]], {"colour": ["red", "blue", "red"]}
    >>> with tempfile.TemporaryDirectory() as folder, MilvusIndex("kl", f"{folder}/items.db") as index:
    ...     index.add(items, ids=[7, 8, 9], fields=fields)
    ...     print(index.search([[0.8, 0.2]], k=2)[1], index.search([[0.8, 0.2]], k=2, filter="colour == 'red'")[1])
    [[8 7]] [[7 9]]
    """

    _needs_inner_products = True
    _form: InnerProductForm | None = None
    _next: int | None = None

    def __init__(
        self,
        divergence: object,
        uri: str | os.PathLike[str],
        collection: str = "askew",
        direction: str = "query-first",
        *,
        kind: str | None = None,
        effort: int | None = None,
        token: str | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__(divergence, direction, progress)
        owner = type(self).__name__
        self._asked = kind and checks.check_name(kind, KINDS, f"kind of {owner}")
        self.kind = kind or "flat"  # how Milvus searches
        self.effort = effort if effort is None else checks.check_size(effort, f"effort of {owner}")
        self._collection = Collection(uri, collection, token, owner)
        try:
            self._opened()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Return the number of items."""
        return 0 if self._opened() is None else self._collection.count()

    def __repr__(self) -> str:
        inside = "no divergence yet" if self._divergence is None else type(self._divergence).__name__
        where = f"uri={self._collection.uri!r}, collection={self._collection.name!r}"
        return f"{type(self).__name__}({inside}, {where}, direction={self.direction!r}, kind={self.kind!r})"

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from Milvus, where the items stay; the index cannot be used any more.

        The embedded engine ends with the last index of this process on its path; then other processes can open it.
        """
        self._collection.close()

    def add(self, items: ArrayLike | Tensor, ids: ArrayLike | None = None, fields: Fields | None = None) -> None:
        """Add items, ``(n, dim)``; see :meth:`Index.add`.

        ``fields`` are to filter by: for each name one number, string, boolean, list or dict for each item.
        """
        self._write(items, ids, fields, "add")

    def upsert(self, items: ArrayLike | Tensor, ids: ArrayLike, fields: Fields | None = None) -> None:
        """Replace the items with the same ids, and add those whose ids are new.

        Parameters are those of :meth:`add`; fields that are not given stay as they are.
        """
        self._write(items, ids, fields, "upsert")

    def remove(self, ids: ArrayLike) -> None:
        """Remove items by their ids; one that is not there is an error, and then nothing is removed."""
        owner = f"{type(self).__name__}.remove"
        wanted = check_ids(ids, owner)
        with self._lock.prepare:
            check_found(wanted[~self._known(wanted)], owner)
            self._collection.delete(wanted)

    def search(self, queries: ArrayLike | Tensor, k: int = 10, filter: str = "") -> Found:
        """Return the k nearest items of each query, of those that pass a filter.

        Parameters
        ----------
        queries
            ``(n, dim)``, or anything the encoder takes.
        k
            How many; without a filter at most as many as there are items, and at most 16384.
        filter
            An expression of Milvus over ``id`` and the fields, such as ``"colour == 'red' and size > 2"``. Items that
            lack a field do not pass; a name that no item has is an error.

        Returns
        -------
        tuple of arrays, ``(n, k)`` each
            True divergences in ascending order, and the ids of the items. Where fewer than k items pass the filter (or
            a graph does not lead to more), infinity and -1 follow.
        """
        owner = f"{type(self).__name__}.search"
        if checks.check_size(k, f"k of {owner}") > MOST_CANDIDATES:
            raise ValueError(checks.message(f"k of {owner}", f"at most {MOST_CANDIDATES}, the limit of Milvus", k))
        if not isinstance(filter, str):
            raise TypeError(checks.message(f"filter of {owner}", "an expression in a string", repr(filter)))
        self._required()
        embeddings = self._embed(as_points(queries), "queries")
        with self._reading():
            self._collection.check_filter(filter)
            values, ids = self._search(embeddings, k, filter)
        found = torch.from_numpy(ids >= 0)
        values[found] = self.divergence.from_order(values[found])
        # Counting may take as long as searching, so it is left to where something is missing.
        if not found.all() and not (filter and found.any()):
            count = len(self)
            if count == 0:
                raise self._empty()
            if k > count and not filter:
                raise ValueError(checks.message(f"k of {owner}", f"at most {count}, the number of items", k))
        return values.numpy(), ids

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the divergence and where the collection is to a folder; the items stay in Milvus.

        An embedded engine with its path inside the folder is found again after the folder was moved.
        """
        self._required()

        def write(place: Path, parts: dict[str, str]) -> Content:
            uri = self._collection.uri
            if self._collection.embedded and Path(uri).is_relative_to(place.resolve()):
                uri = Path(uri).relative_to(place.resolve()).as_posix()
            settings = {"uri": uri, "collection": self._collection.name, "kind": self.kind, "effort": self.effort}
            return {"settings": settings, "own": {}}

        self._write_folder(folder, write)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        encoder: nn.Module | None = None,
        classes: Sequence[type] = (),
        *,
        uri: str | os.PathLike[str] | None = None,
        token: str | None = None,
    ) -> MilvusIndex:
        """Return the index that :meth:`save` wrote, connected to its collection.

        ``encoder`` and ``classes`` are as in :func:`askew.load`; ``uri`` is for a collection that was moved, ``token``
        for a server that asks for one.
        """
        place = Path(folder)
        description, shown_file = read_index(place, cls.__name__)
        settings = description["settings"]
        if set(settings) != {"uri", "collection", "kind", "effort"} or set(description["parts"]) != {"model"}:
            raise ValueError(io.damaged(shown_file, "parts of it are missing"))
        model = load_model(place / description["parts"]["model"], encoder, classes, shown_file)
        if uri is None:  # an absolute path stays what it is
            uri = settings["uri"] if is_address(settings["uri"]) else place.resolve() / settings["uri"]
        name, got, index = settings.pop("collection"), f"nothing at {str(uri)!r}", None
        if is_address(uri) or Path(uri).is_dir():
            del settings["uri"]
            index = cls(model, uri, name, description["direction"], **settings, token=token)
            got = f"no collection {name!r} at {str(uri)!r}"
        if index is None or index._form is None:
            hint = "Say where it is with load(folder, uri=...)."
            raise FileNotFoundError(checks.message(f"the collection of {shown_file}", "where it was", got, hint))
        return index

    # ------------------------------------------------------------------ the metadata of the collection

    def _item_dtype(self) -> torch.dtype | None:
        return None if self._collection.dtype is None else getattr(torch, self._collection.dtype)

    def _empty(self) -> ValueError:
        owner = type(self).__name__
        return ValueError(checks.message(owner, "filled before it is used", "no items", "Call add first."))

    def _required(self) -> InnerProductForm:
        form = self._opened()
        if form is None:
            raise self._empty()
        return form

    def _opened(self) -> InnerProductForm | None:
        """Return the form of the collection, if it exists; another client may have created it by now."""
        if self._form is None and self._collection.call("look for the collection", "has_collection"):
            with self._lock.prepare:
                if self._form is None:  # another thread may have been first
                    self._open()
        return self._form

    def _open(self) -> None:
        """Open the existing collection, if it was made for this divergence."""
        owner = type(self).__name__
        what = f"collection {self._collection.name!r} of {owner}"
        metadata = self._collection.metadata()
        if metadata is None or metadata.get("format") != io.FORMAT:
            got = "one of another program" if metadata is None else f"one of format {str(metadata.get('format'))[:20]}"
            raise ValueError(checks.message(what, f"made by {owner} of this version", got, "Choose another name."))
        if self._divergence is None:
            self._set_divergence(int(metadata["dim"]))
        dim, direction, kind = (metadata[name] for name in ("dim", "direction", "kind"))
        numbers = "made for the same divergence and encoder, with the same numbers"
        for fits, must, got in (
            (dim == self.divergence.dim, f"made for dim {self.divergence.dim}", f"one for dim {dim}"),
            (direction == self.direction, f"made for the direction {self.direction!r}", f"one for {direction!r}"),
            (metadata["divergence"] == self._fingerprint(), numbers, "one for others"),
            (self._asked in (None, kind), f"of the kind {self._asked!r}", f"one of {kind!r}"),
        ):
            if not fits:
                raise ValueError(checks.message(what, must, got, "Choose another name, or what it was made for."))
        self.kind = checks.check_name(kind, KINDS, f"kind of {what}")
        self._adopt(metadata)
        self._collection.load()
        if metadata["remaking"]:  # whoever began it did not finish
            self._replace_keys(self._required())

    def _adopt(self, metadata: Mapping[str, Any]) -> None:
        dtype = checks.check_name(metadata["dtype"], ("float32", "float64"), "dtype of a collection")
        self._collection.dtype, self._collection.dim = dtype, metadata["dim"]
        form = form_for(self.divergence, self.direction, "inner-product", None, type(self).__name__)
        centre = torch.from_numpy(milvus_client.decode([metadata["centre"]], "float64", metadata["dim"]))
        centre = centre.to(self.divergence.dtype or self._item_dtype())
        self._form = form.restored(KINDS[self.kind].form, centre, metadata)

    def _metadata(self, form: InnerProductForm, dtype: str | None, remaking: bool = False) -> dict[str, object]:
        made_for = {"divergence": self._fingerprint(), "dim": self.divergence.dim, "direction": self.direction}
        centre = milvus_client.encode(form.centre.detach().cpu().double().numpy())[0]
        state = {"kind": self.kind, "dtype": dtype, "centre": centre, **form.settings(), "remaking": remaking}
        return {"format": io.FORMAT, "askew": io.version(), **made_for, **state}

    def _current(self) -> InnerProductForm:
        """Return the form as it is now; another client may have made the Euclidean form larger."""
        if self._required().form == "euclidean":
            self._adopt(self._collection.metadata() or {})
        return self._required()

    # ------------------------------------------------------------------ changes

    def _write(self, items: ArrayLike | Tensor, ids: ArrayLike | None, fields: Fields | None, what: str) -> None:
        owner, replacing = f"{type(self).__name__}.{what}", what == "upsert"
        with self._lock.prepare:
            embeddings = self._embed(as_points(items), "items")
            columns = milvus_client.check_fields(fields, len(embeddings), owner)
            numbers = self._new_ids(ids, len(embeddings), owner, replacing)
            if len(embeddings) == 0:
                return
            self._recover()
            keys = self._vectors(self._prepared(embeddings).keys(embeddings), "items")
            self._collection.write(numbers, keys, embeddings.numpy(), columns, replacing)
            if self._next is not None:
                self._next = max(self._next, int(numbers.max()) + 1)

    def _known(self, ids: Ids) -> NDArray[np.bool_]:
        rows = [] if self._opened() is None else self._collection.read(ids)
        return np.isin(ids, np.array([row[ID] for row in rows], np.int64))

    def _new_ids(self, ids: ArrayLike | None, count: int, owner: str, replacing: bool) -> Ids:
        """Return the ids of new items: the given ones, checked, or the next numbers."""
        if ids is not None or replacing:
            numbers = check_ids(ids, owner, count)
            if not replacing:
                hint = "Replace them with upsert, remove them first, or give other ids."
                check_new(numbers[self._known(numbers)], owner, hint)
            return numbers
        if self._opened() is None:
            self._next = 0
        elif self._next is None or self._collection.any_from(self._next):  # others may have added items
            self._next = self._collection.first_free()
        return next_ids(self._next, count, owner)

    def _vectors(self, vectors: Tensor, name: str) -> NDArray[np.float32]:
        """Return vectors as Milvus takes them."""
        array: NDArray[np.float32] = vectors.cpu().float().numpy()
        if not np.isfinite(array).all():
            must, hint = "of a size whose keys fit float32", "Scale them, or use ExactIndex with float64."
            raise ValueError(checks.message(f"{name} of {type(self).__name__}", must, "keys that overflow", hint))
        return array

    def _prepared(self, embeddings: Tensor) -> InnerProductForm:
        """Return a form that can hold new items, after the collection was created or its keys replaced for it."""
        kind, is_new = KINDS[self.kind], self._opened() is None
        owner = type(self).__name__
        form = form_for(self.divergence, self.direction, kind.form, embeddings, owner) if is_new else self._current()
        self._vectors(form.plain_keys(embeddings), "items")
        if is_new:
            metadata = self._metadata(form, str(embeddings.dtype).removeprefix("torch."))
            self._collection.create(kind, form.size, metadata)
            self._adopt(metadata)
        elif form.form == "euclidean" and form.longest(embeddings) > form.radius:
            with contextlib.closing(self._collection.pages([ITEM])) as pages:
                stored = [torch.from_numpy(items) for _, items in itertools.islice(pages, 1)]
            form = form.enlarged(embeddings, torch.cat([embeddings[:BLOCK_ROWS], *stored]))
            self._replace_keys(form)
        return form

    def _replace_keys(self, form: InnerProductForm) -> None:
        """Replace all keys; if that is interrupted, the next to open the collection repeats it."""
        with self._lock.commit():  # a search would find keys of both forms
            dtype = self._collection.dtype
            self._collection.write_metadata(self._metadata(form, dtype, remaking=True))
            for rows, items in self._collection.pages(["*"]):
                keys = self._vectors(form.keys(items), "items")
                self._collection.upsert([{**row, KEY: key} for row, key in zip(rows, keys, strict=True)])
            self._collection.write_metadata(self._metadata(form, dtype))
            self._form = form

    def _rebuild(self) -> None:
        self._adopt(self._collection.metadata() or {})  # which says what was begun
        self._replace_keys(self._required())

    # ------------------------------------------------------------------ search

    def _search(self, queries: Tensor, k: int, filter: str = "") -> tuple[Tensor, RowNumbers]:
        form, kind = self._current(), KINDS[self.kind]
        self._collection.flush()
        width = min(2 * k + 16, MOST_CANDIDATES)
        values, found = [queries.new_empty(0, k)], [np.empty((0, k), np.int64)]
        height = self._collection.queries_at_a_time(width, form.size, form.form)
        for start in range(0, len(queries), height):
            block = queries[start : start + height]
            vectors = self._vectors(form.queries(block), "queries")
            hits = self._collection.search(vectors, width, filter, kind.searching(self.effort, width))
            short = [i for i, row in enumerate(hits) if len(row) < k]
            if short and kind.effort is not None:  # visit everything before giving less than was asked for
                more = self._collection.search(vectors[short], width, filter, kind.searching(kind.most, width))
                hits = [more.pop(0) if i in short else row for i, row in enumerate(hits)]
            candidates, ids, items = self._collection.gather(hits, width)
            exact, chosen = self._ranked(block, items, candidates, k)
            values.append(exact)
            found.append(np.append(ids, -1)[chosen])  # the last one is where -1 points to
        return torch.cat(values), np.concatenate(found)

    def _exact(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        pages = self._collection.pages([ITEM])
        blocks = ((items, np.array([row[ID] for row in rows])) for rows, items in pages)
        return nearest_in_blocks(self, blocks, queries, k)
