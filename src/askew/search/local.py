"""Indexes that keep their items in this process: changes, exact search, and their folder on disk."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import checks, io
from askew._parallel import release_memory
from askew.encoders import as_points
from askew.io import Rows
from askew.search.base import Content, Found, Index, RowNumbers, each_block
from askew.search.certified import SPARE_CANDIDATES, Asked, ScannedKeys, largest_products, nearest_by_keys
from askew.search.columns import Column, Fields, Filter, Mask, check_fields, mask_of
from askew.search.folder import INDEX, load_model, read_index, restored_store, store_tensors
from askew.search.inner_product import InnerProductForm, form_for
from askew.search.pairs import nearest_by_pairs, within
from askew.search.store import Store, check_found, check_ids

# Rebuild when the fraction of removed rows exceeds this, or when an index has this many times the items it was built
# for: those may lie elsewhere, and far from the centre of the keys products lose digits.
REMOVED_FRACTION = 0.25
OUTGROWN = 4
# Numbers in added items above which freed memory is given back to the system.
LARGE = 1 << 20

IndexType = TypeVar("IndexType", bound="LocalIndex")


class LocalIndex(Index):
    """An index whose items are an array of this process; see :class:`Index` for the interface.

    A change is prepared while searches go on (encoding, keys, a whole new engine), and then committed, while there are
    none. An interrupted commit leaves the items as they were or as they should be; the rest is rebuilt from them.

    Attributes
    ----------
    notes : mapping
        What was saved with it, if it was loaded.
    """

    notes: Mapping[str, Any] = MappingProxyType({})
    _store: Store | None = None
    # Keys of the items, perhaps with an engine; None without items, and for divergences without inner products.
    _state: Any = None
    _scratch: Path | None = None

    def __len__(self) -> int:
        """Return the number of items."""
        return 0 if self._store is None else len(self._store)

    def __repr__(self) -> str:
        inside = "no divergence yet" if self._divergence is None else type(self._divergence).__name__
        return f"{type(self).__name__}({inside}, direction={self.direction!r}, items={len(self)})"

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Keep other changes out, once an interrupted commit is recovered."""
        with self._lock.prepare:
            self._recover()
            if self._store is None and isinstance(self._given, str):
                self._divergence = None  # the first items say how many features a name stands for
            yield

    @property
    def ids(self) -> Column:
        """The ids of the items, in the order of a mask, ``(items,)``."""
        return np.empty(0, np.int64) if self._store is None else self._store.ids[self._store.present]

    @property
    def fields(self) -> dict[str, Column]:
        """The fields of the items by their names, in the order of :attr:`ids`."""
        columns = {} if self._store is None else self._store.fields
        return {name: column[self._items.present] for name, column in columns.items()}

    def add(self, items: ArrayLike | Tensor, ids: ArrayLike | None = None, fields: Fields | None = None) -> None:
        """Add items, ``(n, dim)``. After an error the index is what it was before.

        Parameters
        ----------
        items
            An array or a tensor. Behind an encoder, anything it takes, with the batch first.
        ids
            Integers from 0 or strings, all different and not in the index; by default the next free numbers.
        fields
            What a filter can ask for: for each name a column of numbers, booleans or strings, one for each item. All
            items have the same fields.
        """
        self._put(items, ids, fields, "add")

    def upsert(self, items: ArrayLike | Tensor, ids: ArrayLike, fields: Fields | None = None) -> None:
        """Add items, and replace those whose ids are in the index already; both in one step.

        Parameters are those of :meth:`add`. Without ``fields``, items that are replaced keep theirs.
        """
        self._put(items, ids, fields, "upsert")

    def _put(self, items: ArrayLike | Tensor, ids: ArrayLike | None, fields: Fields | None, what: str) -> None:
        points, owner = as_points(items), type(self).__name__
        with self._changing():
            embeddings = self._embed(points, "items")
            store = self._new_store(embeddings) if self._store is None else copy.copy(self._store)
            new = store.new_ids(ids, len(embeddings), owner, replacing=what == "upsert")
            known = store.find(new)
            columns = check_fields(fields, len(new), owner)
            if fields is None and what == "upsert" and bool((known >= 0).all()):
                columns = {name: column[known] for name, column in store.fields.items()}
            columns = store.new_fields(columns, owner)
            if len(new) == 0:
                return
            if bool((known >= 0).any()):
                store.drop(known[known >= 0])
            store.append(embeddings.numpy(), new, columns)
            extend = None
            if self._state is not None and not self._outgrown(len(store), self._state.built_for):
                extend = self._state.extension(embeddings, owner)
            if extend is None:
                self._rebuild(store)
            else:
                with self._lock.commit():
                    extend()
                    self._store = store
                self._close_gaps(store)
            if embeddings.numel() > LARGE:
                release_memory()

    def add_blocks(self, blocks: Rows | Iterable[ArrayLike | Tensor]) -> None:
        """Add items that come in blocks; see :meth:`Index.add_blocks`.

        An index without items is built once, when all are there, and after an error it has none. Items have no fields.
        """
        with self._changing():
            if len(self) == 0:
                self._add_first(blocks)
                return
        super().add_blocks(blocks)

    def _add_first(self, blocks: Rows | Iterable[ArrayLike | Tensor]) -> None:
        store = None
        with contextlib.closing(each_block(blocks, self.progress)) as parts:
            for block in parts:
                embeddings = self._embed(as_points(block), "items", None if store is None else store.dtype)
                if store is None:
                    store = self._new_store(embeddings)
                    store.reserve(len(blocks) if isinstance(blocks, Rows) else 0)
                store.append(embeddings.numpy(), store.new_ids(None, len(embeddings), type(self).__name__))
        if store is not None and len(store):
            release_memory()
            self._rebuild(store)
            release_memory()

    def _new_store(self, embeddings: Tensor) -> Store:
        """Return an empty store for items like these."""
        next_id = 0 if self._store is None else self._store.next_id
        return Store(embeddings[:0].numpy(), np.empty(0, np.int64), self._scratch, next_id)

    def remove(self, ids: ArrayLike) -> None:
        """Remove items by their ids; see :meth:`Index.remove`.

        Items are gone at once. An error for lack of memory or disk after that comes from closing the gaps they have
        left, which :meth:`save` and the next removal try again.
        """
        owner = f"{type(self).__name__}.remove"
        with self._changing():
            if self._store is None:
                check_found(check_ids(ids, owner, strings=True), owner)
                return
            rows = self._store.known(ids, owner)
            if len(rows) == 0:
                return
            store = copy.copy(self._store)
            store.drop(rows)
            with self._lock.commit():
                self._store = store
            self._close_gaps(store)

    def _close_gaps(self, store: Store) -> None:
        if len(store) < (1 - REMOVED_FRACTION) * store.rows:
            self._rebuild(store)

    def _rebuild(self, store: Store | None = None) -> None:
        store = self._store if store is None else store
        state = None
        if store is not None:  # else an addition of the first items was interrupted
            store = store.compacted()
            state = self._build(torch.from_numpy(store.values)) if len(store) else None
        with self._lock.commit():
            self._state, self._store = state, store

    def _item_dtype(self) -> torch.dtype | None:
        return None if self._store is None else self._store.dtype

    @property
    def _items(self) -> Store:
        if self._store is None:
            raise ValueError(checks.message(type(self).__name__, "filled before it is used", "no items"))
        return self._store

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or a pickle: a snapshot that shares nothing, taken between changes."""
        with self._changing():
            return copy.deepcopy(self.__dict__)

    def __deepcopy__(self: IndexType, memo: dict[int, Any]) -> IndexType:
        return copy.copy(self)  # whose state is copied deeply

    def _form(self, items: Tensor) -> InnerProductForm:
        return form_for(self.divergence, self.direction, "inner-product", items, type(self).__name__)

    # ------------------------------------------------------------------ subclasses may replace these

    def _build(self, items: Tensor) -> Any:
        """Return the state for items.

        It has ``built_for``, the number of items, and ``extension(items, owner)``, which returns a function that adds
        items, or None if a new state is needed.
        """
        if self.divergence.ranks_like() is None:
            return None
        return ScannedKeys.of(self._form(items), items, items.numpy().dtype, None, type(self).__name__)

    def _outgrown(self, count: int, built_for: int) -> bool:
        """Return whether there are too many items for a state that was built for fewer."""
        return count > OUTGROWN * built_for

    def search(self, queries: ArrayLike | Tensor, k: int = 10, filter: Filter | None = None) -> Found:
        """Return the k nearest items of each query, of those that pass a filter.

        Parameters
        ----------
        queries, k
            ``(n, dim)``, or anything the encoder takes; how many, without a filter at most as many as there are items.
        filter
            Which items to search: a mask, ``(items,)``, in the order of :attr:`ids`; a set or an array of ids; or a
            function of the fields that returns a mask, such as ``lambda fields: fields["price"] < 10``.

        Returns
        -------
        tuple of arrays, ``(n, k)`` each
            Divergences in ascending order, and the ids of the items; fewer columns if fewer than k items pass the
            filter. In float32 the relative error of a divergence is at most 1.2e-4 where a network gives it, far less
            for most, and 0 is exact. Others, such as ``"kl"``, are as precise as their formula.
        """
        order, ids = self.search_order(queries, k, filter)
        return self.divergence.from_order(torch.from_numpy(order)).numpy(), ids

    def search_order(self, queries: ArrayLike | Tensor, k: int = 10, filter: Filter | None = None) -> Found:
        """Return what :meth:`search` does, with ``divergence.order`` in place of the divergences."""
        checks.check_size(k, f"k of {type(self).__name__}.search")
        with self._searching(queries, k if filter is None else 1, "search") as embeddings, torch.inference_mode():
            if filter is None:
                order, ids = self._search(embeddings, k)
            elif count := int((allowed := self._allowed(filter, "search")).sum()):
                order, ids = self._search(embeddings, min(k, count), allowed)
            else:
                order = embeddings.new_empty(len(embeddings), 0)
                ids = np.empty(order.shape, self._items.ids.dtype)
        return order.numpy(), ids

    def range_search(
        self, queries: ArrayLike | Tensor, radius: float, filter: Filter | None = None
    ) -> tuple[NDArray[np.int64], NDArray[Any], Column]:
        """Return all items with a divergence of at most ``radius``, exactly.

        Parameters
        ----------
        queries, filter
            As in :meth:`search`.
        radius
            At least 0. It is compared with the divergence itself, evaluated for each hit.

        Returns
        -------
        limits, values, ids
            As in FAISS: those of query i are ``values[limits[i] : limits[i + 1]]``, in ascending order.

        Examples
        --------
        >>> from askew.search import ExactIndex
        >>> index = ExactIndex("euclidean")
        >>> index.add([[0.0], [1.0], [3.0]], ids=["a", "b", "c"])
        >>> limits, values, ids = index.range_search([[0.5], [9.0]], radius=1.0)
        >>> limits, values, ids
        (array([0, 2, 2]), array([0.25, 0.25]), array(['a', 'b'], dtype='<U1'))
        """
        what = f"{type(self).__name__}.range_search"
        if not isinstance(radius, int | float | np.number) or not radius >= 0:
            raise ValueError(checks.message(f"radius of {what}", "a number of at least 0", repr(radius)))
        with self._searching(queries, 1, "range_search") as embeddings:
            store = self._items
            rows = store.present if filter is None else np.flatnonzero(self._allowed(filter, "range_search"))
            numbers, rows = within(self.divergence, self.direction, embeddings, store, rows, float(radius), self._state)
            values = self.divergence.from_order(self._values(embeddings, store.values, numbers, rows)).numpy()
            inside = values <= radius
            numbers, rows, values = numbers[inside], rows[inside], values[inside]
            order = np.lexsort((rows, values, numbers))
            limits = np.searchsorted(numbers[order], np.arange(len(embeddings) + 1))
            return limits, values[order], store.ids[rows[order]]

    def _allowed(self, filter: Filter, what: str) -> Mask:
        """Return which rows pass a filter."""
        store, owner = self._items, f"{type(self).__name__}.{what}"
        present = store.present

        def find(ids: object) -> RowNumbers:
            return np.searchsorted(present, store.known(ids, owner))

        allowed = np.zeros(store.rows, bool)
        allowed[present] = mask_of(filter, self.fields, len(present), find, owner)
        return allowed

    def _search(self, queries: Tensor, k: int, allowed: Mask | None = None) -> tuple[Tensor, RowNumbers]:
        """Return the order values and the ids of the nearest; ``allowed`` rows only, if a filter says which."""
        store, keys = self._items, self._state
        count = len(store) if allowed is None else int(allowed.sum())
        mask = store.live if allowed is None else allowed

        def by_pairs(queries: Tensor, width: int) -> tuple[Tensor, RowNumbers]:
            rows = np.arange(store.rows) if mask is None else np.flatnonzero(mask)
            nearest = nearest_by_pairs(self.divergence, self.direction, queries, store, rows, min(width, count))
            return self._ranked(queries, store.values, nearest, k)

        if keys is None:
            values, rows = by_pairs(queries, k + SPARE_CANDIDATES)
        else:
            values, rows = nearest_by_keys(
                keys.asked(queries),
                k,
                keys.sizes,
                count,
                scan=lambda vectors, width: largest_products(vectors, keys.keys, width, mask),
                rank=lambda asked, rows: self._rank(asked, rows, k),
                by_pairs=lambda asked, width: by_pairs(asked.points, width),
                least=-math.inf if self.divergence.signed else 0.0,
                owner=type(self).__name__,
            )
        return values, store.ids[rows]

    def _rank(self, asked: Asked, rows: RowNumbers, k: int) -> tuple[Tensor, RowNumbers]:
        """Return the order values and the rows of the k nearest of candidates."""
        keys: ScannedKeys = self._state
        exact = functools.partial(self._values, asked.points, self._items.values)
        return keys.rank(asked, rows, k, exact, self.divergence.ranks_by_order())

    def _settings(self) -> dict[str, object]:
        """Return arguments of the constructor and state, for ``index.json``."""
        return {}

    def _write_parts(self, folder: Path, parts: dict[str, str]) -> dict[str, Any]:
        """Write files in addition to model and items, name each in ``parts`` first, and return names and digests."""
        return {}

    def _restore(self, settings: dict[str, Any], folder: Path, files: dict[str, Any], shown_file: str) -> None:
        """Set the state from settings and files; the store is restored before."""
        self._rebuild()

    # ------------------------------------------------------------------ on disk

    def save(self, folder: str | os.PathLike[str], notes: Mapping[str, object] | None = None) -> None:
        """Write the index to a folder, without pickle.

        The folder gets the divergence, the items and what is built on them, each in a file whose name has a digest.
        ``index.json``, which names them, is replaced last and in one step: a process killed at any moment leaves the
        old index or the new one, and so does an OSError. If several processes save to one folder, each waits for the
        one before it, and the last one wins. Files of the old index are removed; others are left alone.

        Parameters
        ----------
        folder
            Created if it does not exist.
        notes
            JSON values, such as names of the items, that are replaced together with the index; an attribute of the
            index that :meth:`load` returns.
        """
        with self._changing():  # while searches go on
            if self._store is not None and self._store.live is not None:
                self._rebuild()

            def write(place: Path, parts: dict[str, str]) -> Content:
                store = self._store
                if store is not None:
                    tensors = store_tensors(store)
                    parts["items"] = f"items-{io.checksum(None, tensors)[:16]}.safetensors"
                    io.save_tensors(place / parts["items"], tensors, {"kind": "items"})
                own = self._write_parts(place, parts)
                next_id = 0 if store is None else store.next_id
                names = [] if store is None else list(store.fields)
                return {
                    "next_id": next_id,
                    "fields": names,
                    "settings": self._settings(),
                    "own": own,
                    "notes": dict(notes or {}),
                }

            self._write_folder(folder, write)

    @classmethod
    def load(
        cls: type[IndexType],
        folder: str | os.PathLike[str],
        divergence: object = None,
        encoder: nn.Module | None = None,
        classes: Sequence[type] = (),
    ) -> IndexType:
        """Return the index that :meth:`save` wrote.

        Items stay in their file, mapped into memory, and take memory as they are used. Nothing in the folder is run; a
        file that is damaged, of another program, or of another index is an error. So is a ``divergence`` that is not
        the one the index was made with. ``encoder`` and ``classes`` are as in :func:`askew.load`.
        """
        return io.settled(INDEX, folder, lambda: cls._loaded(Path(folder), divergence, encoder, classes))

    @classmethod
    def _loaded(
        cls: type[IndexType], folder: Path, divergence: object, encoder: nn.Module | None, classes: Sequence[type]
    ) -> IndexType:
        description, shown_file = read_index(folder, cls.__name__)
        parts, wanted = description["parts"], description["divergence"]
        model = load_model(folder / parts["model"], encoder, classes, shown_file) if "model" in parts else wanted
        index = cls(model, description["direction"])
        if "model" in parts and index._fingerprint() != wanted:
            raise ValueError(io.damaged(shown_file, "its model belongs to another index"))
        if divergence is not None:
            given = cls(divergence, description["direction"])
            if given._divergence is None and index._divergence is not None and index.divergence.dim is not None:
                given._set_divergence(index.divergence.dim)  # of a name
            if wanted != (given._given if given._divergence is None else given._fingerprint()):
                must, got = "the one the index was made with", f"another one than that of the index in {str(folder)!r}"
                hint = "Give the divergence it was made with, or make a new index."
                raise ValueError(checks.message("divergence of load", must, got, hint))
        if "items" in parts:
            tensors, _ = io.load_tensors(folder / parts["items"], "items", mapped=True)
            named = description.get("next_id"), description["fields"]
            index._store = restored_store(tensors, index.divergence, *named, shown_file)
        index._restore(description["settings"], folder, description["own"], shown_file)
        index.notes = description["notes"]
        return index
