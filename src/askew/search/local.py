"""Indexes that keep their items in this process: changes, exact search, and their folder on disk."""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from askew import checks, io
from askew._parallel import release_memory, slices
from askew.encoders import as_points
from askew.io import Rows
from askew.search.base import Content, Index, RowNumbers, each_block
from askew.search.certified import SPARE_CANDIDATES, Asked, Mask, ScannedKeys, largest_products, nearest_by_keys
from askew.search.folder import INDEX, load_model, read_index, restored_store
from askew.search.inner_product import InnerProductForm, form_for
from askew.search.store import Store, check_found, check_ids

# Rebuild when the fraction of removed rows exceeds this, or when an index has this many times the items it was built
# for: those may lie elsewhere, and far from the centre of the keys products lose digits.
REMOVED_FRACTION = 0.25
OUTGROWN = 4
# Numbers in added items above which freed memory is given back to the system.
LARGE = 1 << 20
# Entries of the largest block of divergences, where there are no inner products.
BLOCK_ENTRIES = 1 << 22

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
    # What is built from the items: keys, or an engine that holds them. None without items, and for divergences that do
    # not rank as inner products.
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

    def add(self, items: ArrayLike | Tensor, ids: ArrayLike | None = None) -> None:
        """Add items, ``(n, dim)``; see :meth:`Index.add`. After an error the index is what it was before."""
        points = as_points(items)
        with self._changing():
            embeddings = self._embed(points, "items")
            store = self._new_store(embeddings) if self._store is None else copy.copy(self._store)
            new = store.new_ids(ids, len(embeddings), type(self).__name__)
            if len(new) == 0:
                return
            store.append(embeddings.numpy(), new)
            extend = None
            if self._state is not None and not self._outgrown(len(store), self._state.built_for):
                extend = self._state.extension(embeddings, type(self).__name__)
            if extend is None:
                self._rebuild(store)
            else:
                with self._lock.commit():
                    extend()
                    self._store = store
            if embeddings.numel() > LARGE:
                release_memory()

    def add_blocks(self, blocks: Rows | Iterable[ArrayLike | Tensor]) -> None:
        """Add items that come in blocks; see :meth:`Index.add_blocks`.

        An index without items is built once, when all of them are there, and after an error it has none.
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
        wanted = check_ids(ids, owner)
        with self._changing():
            rows = np.full(len(wanted), -1) if self._store is None else self._store.find(wanted)
            check_found(wanted[rows < 0], owner)
            if len(rows) == 0:
                return
            store = copy.copy(self._items)
            store.drop(rows)
            with self._lock.commit():
                self._store = store
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
        """Return what a copy of the index has, while searches go on."""
        with self._changing():
            return self.__dict__.copy()

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

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        store, keys = self._items, self._state
        if keys is None:
            values, rows = self._nearest_by_pairs(queries, k, k + SPARE_CANDIDATES)
        else:
            values, rows = nearest_by_keys(
                keys.asked(queries),
                k,
                keys.sizes,
                len(store),
                scan=lambda vectors, width: self._scan(vectors, keys.keys, width, store.live),
                rank=lambda asked, rows: self._rank(asked, rows, k),
                by_pairs=lambda asked, width: self._nearest_by_pairs(asked.points, k, width),
                least=-math.inf if self.divergence.signed else 0.0,
                owner=type(self).__name__,
            )
        return values, store.ids[rows]

    def _scan(self, vectors: Tensor, keys: Tensor, k: int, allowed: Mask | None) -> tuple[Tensor, Tensor]:
        return largest_products(vectors, keys, k, allowed)

    def _rank(self, asked: Asked, rows: RowNumbers, k: int) -> tuple[Tensor, RowNumbers]:
        """Return the order values and the rows of the k nearest of candidates."""
        items, state = self._items.values, self._state

        def exact(numbers: RowNumbers, rows: RowNumbers) -> Tensor:
            return self._values(asked.points, items, numbers, rows)

        found: tuple[Tensor, RowNumbers] = state.rank(asked, rows, k, exact, self.divergence.ranks_by_order())
        return found

    def _settings(self) -> dict[str, object]:
        """Return arguments of the constructor and state, for ``index.json``."""
        return {}

    def _write_parts(self, folder: Path, parts: dict[str, str]) -> dict[str, Any]:
        """Write files in addition to model and items, name each in ``parts`` first, and return names and digests."""
        return {}

    def _restore(self, settings: dict[str, Any], folder: Path, files: dict[str, Any], shown_file: str) -> None:
        """Set the state from settings and files; the store is restored before."""
        self._rebuild()

    def _nearest_by_pairs(self, queries: Tensor, k: int, width: int) -> tuple[Tensor, RowNumbers]:
        """Return the order values and the rows of the k nearest items, among ``width`` from blocks of ``pairwise``."""
        store = self._items
        width = min(width, len(store))
        columns = max(width, min(4096, store.rows))
        height = max(1, BLOCK_ENTRIES // columns)
        like = next((t for t in (*self.divergence.parameters(), *self.divergence.buffers())), queries)
        nearest = [torch.empty(0, width, dtype=torch.int64)]
        with torch.inference_mode():
            for block in queries.to(like.device).split(height):
                values, numbers = queries.new_empty(len(block), 0), torch.empty(len(block), 0, dtype=torch.int64)
                for part in slices(store.rows, columns):
                    rows = np.arange(part.start, part.stop)
                    rows = rows if store.live is None else rows[store.live[part]]
                    items = torch.from_numpy(store.values[rows]).to(like.device)
                    matrix = self._all_orders(block, items)
                    values = torch.cat([values, matrix.cpu()], 1)
                    numbers = torch.cat([numbers, torch.from_numpy(rows).expand(matrix.shape)], 1)
                    values, place = values.topk(min(width, values.shape[1]), 1, largest=False)
                    numbers = numbers.gather(1, place)
                nearest.append(numbers)
        return self._ranked(queries, store.values, torch.cat(nearest).numpy(), k)

    def _all_orders(self, queries: Tensor, items: Tensor) -> Tensor:
        """Return numbers that order all pairs, ``(n, m)``."""
        first, second = (queries, items) if self.direction == "query-first" else (items, queries)
        if self.divergence.signed:  # D would not tell apart items at 0
            matrix = self.divergence.order(first[:, None], second[None])
        else:
            matrix = self.divergence.pairwise(first, second)
        return matrix if self.direction == "query-first" else matrix.t()

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
                    tensors = {"items": torch.from_numpy(store.values), "ids": torch.from_numpy(store.ids)}
                    parts["items"] = f"items-{io.checksum(None, tensors)[:16]}.safetensors"
                    io.save_tensors(place / parts["items"], tensors, {"kind": "items"})
                own = self._write_parts(place, parts)
                next_id = 0 if store is None else store.next_id
                return {"next_id": next_id, "settings": self._settings(), "own": own, "notes": dict(notes or {})}

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
            index._store = restored_store(tensors, index.divergence, description.get("next_id"), shown_file)
        index._restore(description["settings"], folder, description["own"], shown_file)
        index.notes = description["notes"]
        return index


def load_index(folder: str | os.PathLike[str]) -> LocalIndex:
    """Return the index that :meth:`ExactIndex.save` or :meth:`FaissIndex.save` wrote to a folder.

    Examples
    --------
    >>> import tempfile
    >>> from askew.search import ExactIndex
    >>> index = ExactIndex("kl")
    >>> index.add([[0.5, 0.5], [0.9, 0.1]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index.save(folder)
    ...     type(load_index(folder)).__name__
    'ExactIndex'
    """
    classes = {cls.__name__: cls for cls in LocalIndex.__subclasses__()}

    def read() -> LocalIndex:
        description = io.read_description(INDEX, folder, "askew index or an index")
        what = f"class in {str(Path(folder) / INDEX.description)!r}"
        return classes[checks.check_name(description.get("class"), classes, what)].load(folder)

    return io.settled(INDEX, folder, read)
