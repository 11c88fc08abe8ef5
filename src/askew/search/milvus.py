"""Search through Milvus: embedded in this process, or a cluster, by the same code."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import checks, io
from askew._progress import progress_bar
from askew.divergences import Divergence, Embedded
from askew.search.base import Found, Index, fingerprint
from askew.search.folder import commit, read_description
from askew.search.forms import BLOCK_ROWS, HEADROOM, Reduction, balanced, reduce
from askew.search.milvus_collection import (
    ID,
    ITEM,
    KEY,
    KINDS,
    LARGEST_ID,
    MESSAGE_BYTES,
    MOST_CANDIDATES,
    Collection,
    Row,
    check_fields,
    decode,
    encode_rows,
    gather,
)
from askew.search.milvus_connection import is_address
from askew.search.store import Ids, checked_ids, shown

__all__ = ["MilvusIndex"]

Fields = Mapping[str, Sequence[object]]


class MilvusIndex(Index):
    """Items in a collection of Milvus, found by their keys and ranked by the divergence itself.

    A path that ends in ``.db`` is the embedded engine (milvus-lite), which keeps everything in a folder of that name;
    an address such as ``"http://host:19530"`` is a Milvus server or cluster. The collection holds the images of the
    items beside their keys (see :func:`keys_and_queries`), so that what Milvus finds comes back with its true
    divergence. It is made by the first :meth:`add`, remembers which divergence it was made for, and is refused to
    others.

    Use it where items must outlive the process, carry fields to filter by, or are too many for one machine. In one
    process and without filters, :class:`FaissIndex` is many times faster. The embedded engine takes one process at a
    time, is meant for some 100,000 items, and as long as it is open listens on a port of 127.0.0.1, where other users
    of the machine can reach it.

    Parameters
    ----------
    divergence
        A Bregman divergence, a Euclidean or Mahalanobis distance, or a root or multiple of these; also behind an
        encoder, a fitted learner, or the name of one that needs no learning. It is copied.
    uri
        A path that ends in ``.db``, or an address.
    collection
        Name of the collection.
    direction
        ``"query-first"`` for the smallest D(query, item), ``"query-second"`` for the smallest D(item, query).
    kind
        ``"flat"`` looks at every key, ``"ivf"`` at the nearest lists of them, ``"hnsw"`` walks along a graph, and
        ``"auto"`` leaves it to Milvus. None is that of a collection that is there, or ``"flat"``.
    effort
        For ``"ivf"`` how many of 128 lists a query looks at (16), for ``"hnsw"`` how many candidates it keeps on its
        way (128, or as many as are asked for). More is slower and finds more.
    token
        For a server that asks for one, such as ``"user:password"``. It is not saved.
    progress
        Whether to show progress bars; None means on a terminal.

    Examples
    --------
    >>> import tempfile
    >>> items, fields = [[0.5, 0.5], [0.9, 0.1], [0.1, 0.9]], {"colour": ["red", "blue", "red"]}
    >>> with tempfile.TemporaryDirectory() as folder, MilvusIndex("kl", f"{folder}/items.db") as index:
    ...     index.add(items, ids=[7, 8, 9], fields=fields)
    ...     print(index.search([[0.8, 0.2]], k=2)[1], index.search([[0.8, 0.2]], k=2, filter="colour == 'red'")[1])
    [[8 7]] [[7 9]]
    """

    _reduction: Reduction | None = None
    _dtype: str | None = None
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
        self._kind = None if kind is None else checks.check_name(kind, KINDS, f"kind of {owner}")
        self.effort = None if effort is None else checks.check_size(effort, f"effort of {owner}")
        self._collection = Collection(uri, collection, token, owner)
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ the interface

    @property
    def kind(self) -> str:
        """How Milvus searches."""
        return self._kind or "flat"

    def __len__(self) -> int:
        """Return the number of items."""
        return 0 if self._look() is None else self._collection.count()

    def __repr__(self) -> str:
        inside = "no divergence yet" if self._divergence is None else type(self._divergence).__name__
        where = f"uri={self._collection.uri!r}, collection={self._collection.name!r}"
        return f"{type(self).__name__}({inside}, {where}, direction={self.direction!r}, kind={self.kind!r})"

    def __enter__(self) -> MilvusIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave Milvus, where the items stay; the index cannot be used any more.

        The embedded engine ends with the last index of this process on its path; then other processes can open it.
        """
        self._collection.close()

    def add(self, items: ArrayLike | Tensor, ids: ArrayLike | None = None, fields: Fields | None = None) -> None:
        """Add items, ``(n, dim)``.

        Parameters
        ----------
        items
            An array or a tensor. Behind an encoder, anything it takes, with the batch first.
        ids
            Integers from 0, all different and not in the index; by default the next free numbers.
        fields
            To filter by: for each name one number, string, boolean, list or dict for each item.
        """
        owner = f"{type(self).__name__}.add"
        with self._gate.changing():
            images, columns = self._checked(items, fields, owner)
            self._put(images, self._new_ids(ids, len(images), owner), columns, replacing=False)

    def upsert(self, items: ArrayLike | Tensor, ids: ArrayLike, fields: Fields | None = None) -> None:
        """Put items in the place of those with the same ids, and add those whose ids are new.

        Parameters are those of :meth:`add`; fields that are not given stay as they are.
        """
        owner = f"{type(self).__name__}.upsert"
        with self._gate.changing():
            images, columns = self._checked(items, fields, owner)
            numbers = _as_many(checked_ids(ids, owner), len(images), owner)
            self._put(images, numbers, columns, replacing=True)

    def remove(self, ids: ArrayLike) -> None:
        """Remove items by their ids; one that is not there is an error, and then nothing is removed."""
        owner = f"{type(self).__name__}.remove"
        wanted = checked_ids(ids, owner)
        with self._gate.changing():
            known = np.empty(0, np.int64) if self._look() is None else self._collection.known(wanted)
            unknown = wanted[~np.isin(wanted, known)]
            if len(unknown):
                raise KeyError(checks.message(f"ids of {owner}", "in the index", f"unknown {shown(unknown)}"))
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
            lack a field do not pass.

        Returns
        -------
        tuple of arrays, ``(n, k)`` each
            True divergences in ascending order, and the ids of the items. Where fewer than k items pass the filter (or
            a graph does not lead to more), infinity and -1 follow.
        """
        owner = f"{type(self).__name__}.search"
        k = checks.check_size(k, f"k of {owner}")
        if k > MOST_CANDIDATES:
            raise ValueError(checks.message(f"k of {owner}", f"at most {MOST_CANDIDATES}, the limit of Milvus", k))
        if not isinstance(filter, str):
            raise TypeError(checks.message(f"filter of {owner}", "an expression in a string", repr(filter)))
        self._needed()
        images = self._images(queries, "queries", is_first=self.direction == "query-first")
        with self._reading():
            values, found = self._search(images, k, filter)
        # Counting may take as long as searching, so it is left to where something is missing.
        if (found < 0).any() and not (filter and (found >= 0).any()):
            count = len(self)
            if count == 0:
                raise self._nothing()
            if k > count and not filter:
                raise ValueError(checks.message(f"k of {owner}", f"at most {count}, the number of items", k))
        return values.numpy(), found

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the divergence and where the collection is to a folder; the items stay in Milvus.

        An embedded engine with its path inside the folder is found again after the folder was moved.
        """
        self._needed()
        commit(folder, self._description)

    def _description(self, place: Path, parts: dict[str, str]) -> dict[str, Any]:
        """Write the divergence, enter its name, and return the content of ``index.json``."""
        mark = fingerprint(self._encoder, self.divergence)
        parts["model"] = f"model-{mark[:16]}"
        uri = self._collection.uri
        if self._collection.embedded and Path(uri).is_relative_to(place.resolve()):
            uri = Path(uri).relative_to(place.resolve()).as_posix()
        model = self.divergence if self._encoder is None else Embedded(self._encoder, self.divergence)
        io.save(model.eval(), place / parts["model"])
        description: dict[str, Any] = {
            "format": io.FORMAT,
            "askew": io.version(),
            "kind": "index",
            "class": type(self).__name__,
            "direction": self.direction,
            "divergence": mark,
            "settings": {"uri": uri, "collection": self._collection.name, "kind": self.kind, "effort": self.effort},
            "parts": parts,
            "own": {},
        }
        return description | {"checksum": io.checksum(description)}

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

        Parameters
        ----------
        folder
            Where it is.
        encoder, classes
            As in :func:`askew.load`, for models with classes of the user.
        uri
            Where the collection is, if it was moved.
        token
            For a server that asks for one.
        """
        place = Path(folder)
        description, shown_file = read_description(place, str(folder), cls.__name__)
        settings = description["settings"]
        if set(settings) != {"uri", "collection", "kind", "effort"} or set(description["parts"]) != {"model"}:
            raise ValueError(io.damaged(shown_file, "parts of it are missing"))
        model = io.load(place / description["parts"]["model"], encoder, classes)
        if not isinstance(model, Divergence):
            raise ValueError(io.damaged(shown_file, "its model is no divergence"))
        if uri is None:  # an absolute path stays what it is
            uri = settings["uri"] if is_address(settings["uri"]) else place.resolve() / settings["uri"]
        what, hint = f"the collection of {shown_file}", "Say where it is with load(folder, uri=...)."
        if not is_address(uri) and not Path(uri).is_dir():
            raise FileNotFoundError(checks.message(what, "where it was", f"nothing at {str(uri)!r}", hint))
        kind, effort = settings["kind"], settings["effort"]
        index = cls(model, uri, settings["collection"], description["direction"], kind=kind, effort=effort, token=token)
        if index._reduction is None:
            index.close()
            got = f"no collection {settings['collection']!r} at {str(uri)!r}"
            raise FileNotFoundError(checks.message(what, "where it was", got, hint))
        return index

    # ------------------------------------------------------------------ what a collection remembers

    def _set_divergence(self, dim: int) -> None:
        super()._set_divergence(dim)
        self._blank()

    def _blank(self) -> Reduction:
        return reduce(self.divergence, self.direction, "inner-product", None, type(self).__name__)

    def _own_dtype(self) -> torch.dtype | None:
        return None if self._dtype is None else torch.float64 if self._dtype == "float64" else torch.float32

    def _needed(self) -> Reduction:
        found = self._look()
        if found is None:
            raise self._nothing()
        return found

    def _nothing(self) -> ValueError:
        return ValueError(
            checks.message(type(self).__name__, "filled before it is used", "no items", "Call add first.")
        )

    def _look(self) -> Reduction | None:
        """Return the reduction of the collection, if it is there; another client may have made it by now."""
        if self._reduction is None and self._collection.exists():
            with self._gate.changing():
                if self._reduction is None:  # another thread may have been first
                    self._open()
        return self._reduction

    def _open(self) -> None:
        """Take up the collection that is there, if it was made for this divergence."""
        owner = type(self).__name__
        what = f"collection {self._collection.name!r} of {owner}"
        found = self._collection.remembered()
        if found is None or found.get("format") != io.FORMAT:
            got = "one of another program" if found is None else f"one of format {str(found.get('format'))[:20]}"
            raise ValueError(checks.message(what, f"made by {owner} of this version", got, "Choose another name."))
        if self._divergence is None:
            self._set_divergence(int(found["dim"]))
        hint = "Choose another name, or give the divergence that it was made for."
        if found["dim"] != self.divergence.dim:
            must, got = f"made for dim {self.divergence.dim}", f"one for dim {found['dim']}"
            raise ValueError(checks.message(what, must, got, hint))
        if found["direction"] != self.direction:
            must, got = f"made for the direction {self.direction!r}", f"one for {found['direction']!r}"
            raise ValueError(checks.message(what, must, got, "Each direction needs its own collection."))
        if found["divergence"] != fingerprint(self._encoder, self.divergence):
            must = "made for the same divergence and encoder, with the same numbers"
            raise ValueError(checks.message(what, must, "one for others", hint))
        if self._kind not in (None, found["kind"]):
            raise ValueError(checks.message(what, f"of the kind {self._kind!r}", f"one of {found['kind']!r}"))
        self._kind = checks.check_name(found["kind"], KINDS, f"kind of {what}")
        self._adopt(found)
        self._collection.load()
        if found["remaking"]:  # whoever began it did not end it
            self._remake(self._needed())

    def _adopt(self, found: Mapping[str, Any]) -> None:
        self._dtype = checks.check_name(found["dtype"], ("float32", "float64"), "dtype of a collection")
        blank = self._blank()
        centre = torch.from_numpy(decode([found["centre"]], "float64", blank.centre.shape[1]))
        centre = centre.to(blank.centre.device, self.divergence.dtype or self._own_dtype())
        reduction = replace(blank, form=KINDS[self.kind].form, centre=centre)
        if reduction.form == "euclidean":
            radius, offset, stretch = (float(found[name]) for name in ("radius", "offset", "stretch"))
            reduction = replace(reduction, radius=radius, offset=offset, stretch=stretch)
        self._reduction = reduction

    def _remembered(self, reduction: Reduction, remaking: bool = False) -> dict[str, object]:
        return {
            "format": io.FORMAT,
            "askew": io.version(),
            "divergence": fingerprint(self._encoder, self.divergence),
            "dim": self.divergence.dim,
            "direction": self.direction,
            "kind": self.kind,
            "dtype": self._dtype,
            "centre": encode_rows(reduction.centre.detach().cpu().double().numpy())[0],
            "radius": reduction.radius if math.isfinite(reduction.radius) else None,
            "offset": reduction.offset,
            "stretch": reduction.stretch,
            "remaking": remaking,
        }

    # ------------------------------------------------------------------ into the collection

    def _checked(self, items: ArrayLike | Tensor, fields: Fields | None, owner: str) -> tuple[Tensor, Fields]:
        images = self._images(items, "items", is_first=self.direction == "query-second")
        return images, check_fields(fields, len(images), owner)

    def _new_ids(self, ids: ArrayLike | None, count: int, owner: str) -> Ids:
        """Return the ids of new items, checked: given ones, or the next numbers."""
        there = self._look() is not None
        if ids is not None:
            numbers = _as_many(checked_ids(ids, owner), count, owner)
            known = numbers[np.isin(numbers, self._collection.known(numbers))] if there else numbers[:0]
            if len(known):
                hint = "Replace them with upsert, remove them first, or give other ids."
                got = f"{shown(known)}, in the index already"
                raise ValueError(checks.message(f"ids of {owner}", "new", got, hint))
            return numbers
        if not there:
            self._next = 0
        elif self._next is None or self._collection.any_from(self._next):  # others may have added items
            self._next = self._collection.first_free()
        if self._next + count > LARGEST_ID:
            must = f"given where the next numbers would be above {LARGEST_ID}"
            raise ValueError(checks.message(f"ids of {owner}", must, None))
        return np.arange(self._next, self._next + count, dtype=np.int64)

    def _put(self, images: Tensor, ids: Ids, columns: Fields, replacing: bool) -> None:
        if len(images) == 0:
            return
        self._mend()
        fresh = self._look() is None
        reduction = self._fitted(images) if fresh else self._current()
        keys = self._vectors(reduction.plain_keys(images), "items")
        if fresh:
            self._make(reduction, images)
        if reduction.form == "euclidean":
            if reduction.longest(images) > reduction.radius:
                reduction = self._grown(reduction, images)
            keys = self._vectors(reduction.keys(images), "items")
        batch = max(1, MESSAGE_BYTES // (16 * reduction.size))
        with progress_bar(self.progress if len(images) > batch else False, len(images), "adding") as move:
            for start in range(0, len(images), batch):
                part = slice(start, start + batch)
                kept = self._collection.fields(ids[part]) if replacing and not fresh else {}
                texts = encode_rows(images[part].numpy())
                rows: list[Row] = [
                    {**kept.get(number, {}), ID: number, KEY: key, ITEM: text}
                    for number, key, text in zip(ids[part].tolist(), keys[part], texts, strict=True)
                ]
                for name, values in columns.items():
                    for row, value in zip(rows, values[part], strict=True):
                        row[name] = value
                done = f"The first {start} of {len(images)} are in; give all to upsert." if start else ""
                self._collection.write(rows, replacing, len(rows) - len(kept), done)
                move(start + len(rows))
        if self._next is not None:
            self._next = max(self._next, int(ids.max()) + 1)

    def _vectors(self, vectors: Tensor, name: str) -> NDArray[np.float32]:
        """Return vectors as Milvus takes them."""
        array: NDArray[np.float32] = vectors.cpu().float().numpy()
        if not np.isfinite(array).all():
            must, hint = "of a size whose keys fit float32", "Scale them, or use ExactIndex with float64."
            raise ValueError(checks.message(f"{name} of {type(self).__name__}", must, "keys that overflow", hint))
        return array

    def _fitted(self, images: Tensor) -> Reduction:
        """Return the reduction for a collection whose first items these are."""
        return reduce(self.divergence, self.direction, KINDS[self.kind].form, images, type(self).__name__)

    def _make(self, reduction: Reduction, images: Tensor) -> None:
        """Make the collection."""
        self._dtype = str(images.dtype).removeprefix("torch.")
        item_bytes = images.shape[1] * images.element_size()
        self._collection.create(KINDS[self.kind], reduction.size, item_bytes, self._remembered(reduction))
        self._reduction = reduction

    def _current(self) -> Reduction:
        """Return the reduction as it is now; another client may have made the Euclidean form larger."""
        if self._needed().form == "euclidean":
            self._adopt(self._collection.remembered() or {})
        return self._needed()

    def _grown(self, old: Reduction, images: Tensor) -> Reduction:
        """Make all keys anew for a Euclidean form that can hold new items, which are too long for the old one."""
        pages = self._stored([ITEM])
        sample = torch.cat([images[:BLOCK_ROWS], *(items for _, items in itertools.islice(pages, 1))])
        pages.close()
        plain = replace(old, form="inner-product", radius=math.inf, offset=1.0, stretch=1.0)
        new = balanced(plain, sample)
        # With a larger offset no key gets longer, so that the old radius holds the old ones.
        new = replace(new, offset=max(new.offset, old.offset))
        new = replace(new, radius=max(old.radius, HEADROOM * new.longest(images)))
        self._remake(new)
        return new

    def _remake(self, reduction: Reduction) -> None:
        """Make all keys anew; if that is cut short, the next to open the collection repeats it."""
        with self._gate.writing():  # a search would find keys of both kinds
            self._collection.remember(self._remembered(reduction, remaking=True))
            for rows, items in self._stored(["*"]):
                keys = self._vectors(reduction.keys(items), "items")
                renewed = [{**row, KEY: key} for row, key in zip(rows, keys, strict=True)]
                self._collection.write(renewed, replacing=True, new=0)
            self._collection.remember(self._remembered(reduction))
            self._reduction = reduction

    def _make_anew(self) -> None:
        # What was begun is remembered by the collection.
        self._adopt(self._collection.remembered() or {})
        self._remake(self._needed())

    # ------------------------------------------------------------------ out of the collection

    def _search(self, queries: Tensor, k: int, filter: str = "") -> tuple[Tensor, NDArray[np.int64]]:
        reduction, kind = self._current(), KINDS[self.kind]
        self._collection.settle()
        width = min(2 * k + 16, MOST_CANDIDATES)
        values, found = [queries.new_empty(0, k)], [np.empty((0, k), np.int64)]
        height = self._collection.queries_at_a_time(width, reduction.size, reduction.form)
        for start in range(0, len(queries), height):
            block = queries[start : start + height]
            vectors = self._vectors(reduction.queries(block), "queries")
            hits = self._collection.search(vectors, width, filter, kind.searching(self.effort, width))
            short = [i for i, row in enumerate(hits) if len(row) < k]
            if short and kind.effort is not None:  # look everywhere before giving less than was asked for
                more = self._collection.search(vectors[short], width, filter, kind.searching(kind.most, width))
                for i, row in zip(short, more, strict=True):
                    hits[i] = row
            candidates, ids, texts = gather(hits, width)
            items = decode(texts, self._dtype or "float32", queries.shape[1])
            exact, chosen = self._reranked(block, items, candidates, k)
            values.append(exact)
            found.append(np.append(ids, -1)[chosen])  # the last one is where -1 points to
        return torch.cat(values), np.concatenate(found)

    def _exact(self, queries: Tensor, k: int) -> tuple[Tensor, NDArray[np.int64]]:
        """Go through all items and keep the best k of each query."""
        values = queries.new_full((len(queries), k), torch.inf)
        found = np.full((len(queries), k), -1, np.int64)
        reduction = self._needed()
        vectors = reduction.plain_queries(queries)
        for rows, items in self._stored([ITEM]):
            ids = np.array([row[ID] for row in rows], np.int64)
            scores = vectors @ reduction.plain_keys(items).t()
            candidates = scores.topk(min(2 * k + 16, len(ids)), 1).indices.cpu().numpy()
            exact, chosen = self._reranked(queries, items.numpy(), candidates, k)
            both = torch.cat([values, exact], 1)
            both_found = np.concatenate([found, ids[chosen]], 1)
            order = np.lexsort((both_found, both.numpy()), axis=1)[:, :k]
            values, found = both.gather(1, torch.from_numpy(order)), np.take_along_axis(both_found, order, 1)
        return values, found

    def _stored(self, names: list[str]) -> Generator[tuple[list[Row], Tensor], None, None]:
        """Yield all rows with these fields, in batches, and their items."""
        dim = int(self._needed().centre.shape[1])
        for rows in self._collection.pages(names, 24 * dim):
            yield rows, torch.from_numpy(decode([row[ITEM] for row in rows], self._dtype or "float32", dim))


def _as_many(ids: Ids, count: int, owner: str) -> Ids:
    if len(ids) != count:
        raise ValueError(checks.message(f"ids of {owner}", f"as many as there are items, {count}", len(ids)))
    return ids
