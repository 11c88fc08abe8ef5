"""Indexes that keep their items in this process: adding, removing, exact search, and their folder on disk."""

from __future__ import annotations

import contextlib
import copy
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import checks, io
from askew._parallel import release_memory
from askew.divergences import Divergence, Embedded
from askew.encoders import as_points
from askew.io import Rows
from askew.search.base import Index, fingerprint, shown_blocks
from askew.search.folder import commit, read_description, restored_store, settled
from askew.search.forms import BLOCK_ROWS, Reduction, ranking, reduce
from askew.search.scan import largest_products
from askew.search.store import Store, checked_ids, shown

__all__ = ["LocalIndex"]

# Candidates beyond k that an exact search looks at, and how many it looks at before it takes equals for equals.
SPARE_CANDIDATES = 8
MOST_CANDIDATES = 1024
# The rounding error of an inner product is taken to be below this many units of eps |query| |key|, for numbers that are
# not too small for eps to say anything about them.
ERROR_UNITS = 8.0
# An index is made anew when more than this share of its rows is empty, or when it has this many times the items it was
# made for: those may lie elsewhere, and far from the centre of the keys products lose digits.
EMPTY_SHARE = 0.25
OUTGROWN = 4
# Numbers in items from which on memory is given back after they were added.
LARGE = 1 << 20
# Entries of the largest block of divergences, where there are no inner products.
BLOCK_ENTRIES = 1 << 22

RowNumbers = NDArray[np.int64]
IndexType = TypeVar("IndexType", bound="LocalIndex")


class LocalIndex(Index):
    """An index whose items are an array of this process; see :class:`Index` for the interface.

    Attributes
    ----------
    notes : mapping
        What was saved with it, if it was loaded.
    """

    notes: Mapping[str, Any] = MappingProxyType({})
    _store: Store | None = None
    # A folder for items that are larger than memory.
    _scratch: Path | None = None

    def __len__(self) -> int:
        """Return the number of items."""
        return 0 if self._store is None else len(self._store)

    def __repr__(self) -> str:
        inside = "no divergence yet" if self._divergence is None else type(self._divergence).__name__
        return f"{type(self).__name__}({inside}, direction={self.direction!r}, items={len(self)})"

    def add(self, items: ArrayLike | Tensor, ids: ArrayLike | None = None) -> None:
        """Add items, ``(n, dim)``; see :meth:`Index.add`. After an error the index is what it was before."""
        points = as_points(items)
        if self._divergence is None:
            with self._first_items():
                self._add(self._item_images(points), ids)
            return
        images = self._item_images(points)  # beside other changes
        with self._gate.changing():
            self._add(images, ids)

    @contextlib.contextmanager
    def _first_items(self) -> Iterator[None]:
        """Keep other changes out while the first items tell how many features the name of a divergence stands for."""
        with self._gate.changing():
            try:
                yield
            except BaseException:
                if self._store is None and isinstance(self._given, str):  # it stands for any number again
                    self._divergence = None
                raise

    def _item_images(self, points: ArrayLike | Tensor) -> Tensor:
        return self._images(points, "items", is_first=self.direction == "query-second")

    def _like_items(self, images: Tensor, store: Store) -> Tensor:
        """Return images in the dtype of the items: other ones may have set it since these were checked."""
        dtype = torch.from_numpy(store.values[:0]).dtype
        if images.dtype == dtype:
            return images
        return self._checked_images(images.to(dtype), "items", is_first=self.direction == "query-second")

    def _add(self, images: Tensor, ids: ArrayLike | None) -> None:
        self._mend()
        store = self._new_store(images) if self._store is None else self._store
        images = self._like_items(images, store)
        new = store.new_ids(ids, len(images), type(self).__name__)
        if len(new) == 0:
            return
        store.reserve(len(new))
        put = self._taken_in(images, store)
        with self._gate.writing():
            put()
            store.append(images.numpy(), new)
            self._store = store
        if images.numel() > LARGE:
            release_memory()

    def add_blocks(self, blocks: Rows | Iterable[ArrayLike | Tensor]) -> None:
        """Add items that come in blocks; see :meth:`Index.add_blocks`.

        An index without items is made once, when all of them are there, and after an error it has none.
        """
        with self._first_items():
            if len(self) == 0:
                self._add_first(blocks)
                return
        super().add_blocks(blocks)

    def _add_first(self, blocks: Rows | Iterable[ArrayLike | Tensor]) -> None:
        store = None
        with shown_blocks(blocks, self.progress) as some:
            for block in some:
                images = self._item_images(block)
                if store is None:
                    store = self._new_store(images)
                    store.reserve(len(blocks) if isinstance(blocks, Rows) else 0)
                images = self._like_items(images, store)
                store.append(images.numpy(), store.new_ids(None, len(images), type(self).__name__))
        if store is None or len(store) == 0:
            return
        release_memory()
        put = self._made_anew(store)
        with self._gate.writing():
            put()
            self._store = store
        release_memory()

    def _new_store(self, images: Tensor) -> Store:
        """Return a store for items like these, without any; ids of items that were removed are not given again."""
        store = Store(np.empty((0, images.shape[1]), images.numpy().dtype), np.empty(0, np.int64), self._scratch)
        if self._store is not None:
            store.skip_ids(self._store)
        return store

    def remove(self, ids: ArrayLike) -> None:
        """Remove items by their ids; see :meth:`Index.remove`.

        Items are gone at once. An error for want of memory or disk after that is of closing the gaps they have left,
        which :meth:`save` and the next removal try again.
        """
        owner = f"{type(self).__name__}.remove"
        wanted = checked_ids(ids, owner)
        with self._gate.changing():
            self._remove(wanted, owner)

    def _remove(self, wanted: RowNumbers, owner: str) -> None:
        self._mend()
        rows = np.full(len(wanted), -1) if self._store is None else self._store.find(wanted)
        if (rows < 0).any():
            raise KeyError(checks.message(f"ids of {owner}", "in the index", f"unknown {shown(wanted[rows < 0])}"))
        if self._store is None or len(rows) == 0:
            return
        with self._gate.writing():
            self._store.drop(rows)
            self._take_out(rows)
        if len(self._store) < (1 - EMPTY_SHARE) * self._store.rows:
            self._make_anew()

    def _own_dtype(self) -> torch.dtype | None:
        return None if self._store is None else torch.from_numpy(self._store.values[:0]).dtype

    @property
    def _items(self) -> Store:
        if self._store is None:
            raise ValueError(checks.message(type(self).__name__, "filled before it is used", "no items"))
        return self._store

    def __deepcopy__(self: IndexType, memo: dict[int, Any]) -> IndexType:
        """Return an index with the same items that changes on its own."""
        with self._gate.changing():  # while searches go on
            self._mend()
            twin = type(self).__new__(type(self))
            memo[id(self)] = twin
            twin.__dict__.update(self._copied(memo))
        return twin

    def _copied(self, memo: dict[int, Any]) -> dict[str, Any]:
        """Return copies of all attributes."""
        return copy.deepcopy(self.__dict__, memo)

    # ------------------------------------------------------------------ what an index writes

    @abstractmethod
    def _taken_in(self, images: Tensor, store: Store) -> Callable[[], None]:
        """Do what takes long for items that are about to become the next rows of the store, or raise.

        Searches go on beside it. What it returns puts it to work, while there are none.
        """

    @abstractmethod
    def _take_out(self, rows: RowNumbers) -> None:
        """Forget rows that were emptied."""

    @abstractmethod
    def _made_anew(self, store: Store) -> Callable[[], None]:
        """Close the gaps of removed items and build everything from the rows of the store; as `_taken_in`."""

    def _change(self, store: Store, dense: Store, **state: object) -> Callable[[], None]:
        """Return what gives the index another state, and its store the rows of another."""

        def put() -> None:
            for name, value in state.items():
                setattr(self, name, value)
            store.become(dense)

        return put

    def _make_anew(self) -> None:
        # An addition of the first items that was interrupted has left no store.
        store = Store(np.empty((0, 1), np.float32), np.empty(0, np.int64)) if self._store is None else self._store
        put = self._made_anew(store)
        with self._gate.writing():
            put()

    def _settings(self) -> dict[str, object]:
        """Return the arguments of the constructor and the state that a file has to keep."""
        return {}

    def _restore(self, settings: dict[str, Any], folder: Path, files: dict[str, Any], shown_file: str) -> None:
        """Set what :meth:`_settings` returned and read own files; the store is there."""
        if self._store is not None:
            self._make_anew()

    def _write_parts(self, folder: Path) -> dict[str, Any]:
        """Write own files and return their names and digests."""
        return {}

    # ------------------------------------------------------------------ exact search

    def _exact(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        store = self._items
        if ranking(self.divergence) is None:
            return self._by_pairs(queries, k)
        sample = torch.from_numpy(store.values[:: max(1, store.rows // BLOCK_ROWS)])
        reduction = reduce(self.divergence, self.direction, "inner-product", sample, type(self).__name__)
        return self._by_keys(queries, k, reduction, KeysOnTheWay(reduction, store, type(self).__name__))

    def _by_keys(self, queries: Tensor, k: int, reduction: Reduction, keys: Keys) -> tuple[Tensor, RowNumbers]:
        """Search all items by inner products with their keys.

        Products are rounded, so a few more than k candidates get their exact divergence. A query is repeated with more
        of them until no other item can belong to its k nearest by more than the rounding error of products. Where
        that takes too many, as for clusters that are far apart and narrow, it gets the divergences of all pairs.
        """
        store = self._items
        rows = np.empty((len(queries), k), np.int64)
        values = queries.new_empty(len(queries), k)
        waiting = torch.arange(len(queries))
        most = min(len(store), max(MOST_CANDIDATES, 2 * k))
        width = min(k + SPARE_CANDIDATES, most)
        while len(waiting):
            subset = queries[waiting]
            vectors = reduction.plain_queries(subset).to(keys.dtype)
            scores, numbers = keys.largest(vectors, width)
            if not bool(torch.isfinite(scores).all()):
                must = f"of a size whose products with the items fit {keys.dtype}"
                hint = "Scale the points, or use ExactIndex with float64."
                owner = type(self).__name__
                raise ValueError(checks.message(f"queries of {owner}", must, "products that overflow", hint))
            error = rounding_error(vectors, keys.sizes)
            # One that is behind the k-th by more than rounding needs no exact value.
            behind = scores < (scores[:, k - 1] - 2 * error)[:, None]
            candidates = numbers.masked_fill(behind, -1).numpy()
            found, chosen = self._reranked(subset, store.values, candidates, k)
            values[waiting], rows[waiting.numpy()] = found, chosen
            apart = store.rows * np.arange(len(subset))[:, None]
            taken = torch.from_numpy(np.isin(numbers.numpy() + apart, chosen + apart))
            worst = torch.where(taken, scores, torch.inf).amin(1)
            # Nothing is nearer than 0.
            waiting = waiting[(worst - scores[:, -1] <= 2 * error) & (found[:, -1] > 0)]
            if width == most:
                break
            width = min(4 * width, most)
        if len(waiting) and most < len(store):
            subset = queries[waiting]
            found, chosen = self._reranked(subset, store.values, self._nearest_by_pairs(subset, most), k)
            values[waiting], rows[waiting.numpy()] = found, chosen
        return values, store.ids[rows]

    def _by_pairs(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        """Search all items by the divergences of all pairs, for any divergence."""
        store = self._items
        candidates = self._nearest_by_pairs(queries, min(k + SPARE_CANDIDATES, len(store)))
        values, rows = self._reranked(queries, store.values, candidates, k)
        return values, store.ids[rows]

    def _nearest_by_pairs(self, queries: Tensor, k: int) -> RowNumbers:
        """Return the rows of the k nearest items from blocks of all pairs, for any divergence."""
        store = self._items
        columns = max(k, min(4096, store.rows))
        height = max(1, BLOCK_ENTRIES // columns)
        like = next((t for t in (*self.divergence.parameters(), *self.divergence.buffers())), queries)
        found = []
        with torch.inference_mode():
            for block in queries.split(height):
                best, rows = queries.new_empty(len(block), 0), torch.empty(len(block), 0, dtype=torch.int64)
                for start in range(0, store.rows, columns):
                    numbers = np.arange(start, min(start + columns, store.rows))
                    if store.live is not None:
                        numbers = numbers[store.live[numbers]]
                    items = torch.from_numpy(store.values[numbers]).to(like.device)
                    first, second = (block.to(like.device), items)
                    if self.direction == "query-first":
                        matrix = self.divergence.pairwise(first, second).cpu()
                    else:
                        matrix = self.divergence.pairwise(second, first).t().cpu()
                    both = torch.cat([best, matrix], 1)
                    all_rows = torch.cat([rows, torch.from_numpy(numbers).expand(matrix.shape)], 1)
                    best, place = both.topk(min(k, both.shape[1]), 1, largest=False)
                    rows = all_rows.gather(1, place)
                found.append(rows)
        return torch.cat(found).numpy() if found else np.empty((0, k), np.int64)

    # ------------------------------------------------------------------ on disk

    def save(self, folder: str | os.PathLike[str], notes: Mapping[str, object] | None = None) -> None:
        """Write the index to a folder, without pickle.

        The folder gets the divergence, the items and what is built on them, each in a file whose name has a digest, and
        at the end ``index.json``, which names them, in one step: a process killed at any moment leaves the old index or
        the new one. Of several processes that save to one folder each waits for the one before it, and the last one
        wins. Files of the index that was there before and those that killed processes were writing are removed; others
        are left alone.

        Parameters
        ----------
        folder
            Where to; made if it does not exist.
        notes
            Values that JSON can hold, such as names of the items, kept with the index, so that they change together
            with it. :meth:`load` gives the index an attribute ``notes``.

        Raises
        ------
        OSError
            If the folder cannot be written. What was there is untouched.
        """
        with self._gate.changing():  # while searches go on
            self._mend()
            if self._store is not None and self._store.live is not None:
                self._make_anew()
            commit(folder, lambda place, parts: self._description(place, parts, notes or {}))

    def _description(self, place: Path, parts: dict[str, str], notes: Mapping[str, object]) -> dict[str, Any]:
        """Write all parts, enter their names, and return the content of ``index.json``."""
        if self._divergence is not None:
            mark = fingerprint(self._encoder, self._divergence)
            parts["model"] = f"model-{mark[:16]}"
            model = self._divergence if self._encoder is None else Embedded(self._encoder, self._divergence)
            io.save(model.eval(), place / parts["model"])
        if self._store is not None:
            tensors = {"items": torch.from_numpy(self._store.values), "ids": torch.from_numpy(self._store.ids)}
            parts["items"] = f"items-{io.checksum(None, tensors)[:16]}.safetensors"
            io.save_tensors(place / parts["items"], tensors, {"kind": "items"})
        own = self._write_parts(place)
        parts.update({name: part["file"] for name, part in own.items()})
        description: dict[str, Any] = {
            "format": io.FORMAT,
            "askew": io.version(),
            "kind": "index",
            "class": type(self).__name__,
            "direction": self.direction,
            "divergence": self._given if self._divergence is None else mark,
            "next_id": 0 if self._store is None else self._store._next,
            "settings": self._settings(),
            "parts": parts,
            "own": own,
            "notes": dict(notes),
        }
        return description | {"checksum": io.checksum(description)}

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
        file that is damaged, of another program, or of another index is an error.

        Parameters
        ----------
        folder
            Where it is.
        divergence
            The divergence that the index must have been made with; another one is an error. None takes what the folder
            has.
        encoder, classes
            As in :func:`askew.load`, for models with classes of the user.
        """
        return settled(folder, lambda: cls._loaded(folder, divergence, encoder, classes))

    @classmethod
    def _loaded(
        cls: type[IndexType],
        folder: str | os.PathLike[str],
        divergence: object,
        encoder: nn.Module | None,
        classes: Sequence[type],
    ) -> IndexType:
        place = Path(folder)
        description, shown_file = read_description(place, str(folder), cls.__name__)
        parts = description["parts"]
        if "model" not in parts:
            index = cls(description["divergence"], description["direction"])
            if divergence is not None and divergence != description["divergence"]:
                raise _another_divergence(folder)
            index._restore(description["settings"], place, description["own"], shown_file)
            index.notes = description["notes"]
            return index
        model = io.load(place / parts["model"], encoder, classes)
        if not isinstance(model, Divergence):
            raise ValueError(io.damaged(shown_file, "its model is no divergence"))
        index = cls(model, description["direction"])
        mark = fingerprint(index._encoder, index.divergence)
        if mark != description["divergence"]:
            raise ValueError(io.damaged(shown_file, "its model belongs to another index"))
        if divergence is not None:
            given = cls(divergence, description["direction"])
            if given._divergence is None and index.divergence.dim is not None:  # a name
                given._set_divergence(index.divergence.dim)
            if fingerprint(given._encoder, given.divergence) != mark:
                raise _another_divergence(folder)
        if "items" in parts:
            tensors, _ = io.load_tensors(place / parts["items"], "items", mapped=True)
            index._store = restored_store(tensors, index.divergence, description.get("next_id"), shown_file)
        index._restore(description["settings"], place, description["own"], shown_file)
        index.notes = description["notes"]
        return index


def _another_divergence(folder: str | os.PathLike[str]) -> ValueError:
    hint = "Give the divergence it was made with, or make a new index."
    got = f"another one than that of the index in {str(folder)!r}"
    return ValueError(checks.message("divergence of load", "the one the index was made with", got, hint))


class Sizes(NamedTuple):
    """The largest sizes among some keys: of whole ones, of all but their last feature, and of that."""

    whole: float = 0.0
    slopes: float = 0.0
    last: float = 0.0

    def joined(self, other: Sizes) -> Sizes:
        """Return the sizes of two sets of keys together."""
        return Sizes(*map(max, self, other))


class Keys:
    """The keys of all rows of a store in order, and their sizes."""

    def __init__(self, keys: Tensor, sizes: Sizes) -> None:
        self.keys = keys
        self.dtype = keys.dtype
        self.sizes = sizes

    def __iter__(self) -> Iterator[Tensor]:
        yield self.keys

    def largest(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k largest inner products of each vector with the keys, and the rows of these keys."""
        return largest_products(vectors, self, k)


class KeysOnTheWay(Keys):
    """Keys that are made block by block when they are needed, for an index that does not hold them."""

    def __init__(self, reduction: Reduction, store: Store, owner: str) -> None:
        self.reduction = reduction
        self.store = store
        self.owner = owner
        self.dtype = reduction.centre.dtype
        self.sizes = Sizes()

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, self.store.rows, BLOCK_ROWS):
            keys = self.reduction.keys(torch.from_numpy(self.store.values[start : start + BLOCK_ROWS]))
            self.sizes = self.sizes.joined(sizes_of(keys.numpy(), self.owner))
            if self.store.live is not None:
                keys[torch.from_numpy(~self.store.live[start : start + BLOCK_ROWS])] = empty_key(keys)
            yield keys


def sample_of(parts: Sequence[Tensor]) -> Tensor:
    """Return some thousand points of several sets, for the centre of their keys."""
    step = max(1, sum(map(len, parts)) // BLOCK_ROWS)
    return torch.cat([part[::step] for part in parts])


def fill_keys(keys: NDArray[Any], reduction: Reduction, parts: Sequence[Tensor]) -> None:
    """Write the plain keys of several sets of items one below the other."""
    for part, place in zip(parts, torch.from_numpy(keys).split([len(part) for part in parts]), strict=True):
        reduction.fill_plain_keys(part, place)


def sizes_of(keys: NDArray[Any], owner: str) -> Sizes:
    """Return the sizes of keys, and refuse those that overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", keys[:, :-1], keys[:, :-1])
        last = np.abs(keys[:, -1])
        whole = squares + np.square(last)
        sizes = Sizes(math.sqrt(float(whole.max())), math.sqrt(float(squares.max())), float(last.max()))
    if not math.isfinite(sizes.whole):
        must, hint = f"of a size whose keys fit {keys.dtype}", "Scale the items, or use ExactIndex with float64."
        raise ValueError(checks.message(f"items of {owner}", must, "keys that overflow", hint))
    return sizes


def rounding_error(vectors: Tensor, sizes: Sizes) -> Tensor:
    """Return, for each query, a bound of what rounding may change in its inner products with keys, ``(n,)``.

    Besides the relative part there is an absolute one, for numbers below the smallest normal one: they lose digits, and
    some processors and libraries take them for 0. So each feature of a query or of a key may be wrong by that smallest
    number, which counts times the other one, and so may each of their products. Lengths are sums of squares, and may be
    too short by its root.
    """
    kind, size = torch.finfo(vectors.dtype), vectors.shape[1]
    hidden = math.sqrt(size * kind.tiny)
    lengths: Tensor = vectors[:, :-1].norm(dim=1) + hidden
    slopes = sizes.slopes + hidden
    relative = kind.eps * (lengths * slopes + sizes.last)
    return ERROR_UNITS * (relative + kind.tiny * size * (1 + lengths + slopes))


def empty_key(keys: Tensor) -> Tensor:
    """Return a key that no query is near to."""
    key = keys.new_zeros(keys.shape[1])
    key[-1] = -torch.inf
    return key
