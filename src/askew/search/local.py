"""Indexes that keep their items in this process: adding, removing, exact search, and their folder on disk."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import checks, models, storage
from askew.divergences import Divergence, Embedded
from askew.search.base import Index, fingerprint
from askew.search.folder import DESCRIPTION, old_parts, read_description, remove_part, restored_store
from askew.search.forms import BLOCK_ROWS, Reduction, ranking, reduce
from askew.search.scan import largest_products
from askew.search.store import Store, checked_ids, shown

__all__ = ["LocalIndex"]

# Candidates beyond k that an exact search looks at, and how many it looks at before it takes equals for equals.
SPARE_CANDIDATES = 8
MOST_CANDIDATES = 1024
# The rounding error of an inner product is taken to be below this many units of eps |query| |key|.
ERROR_UNITS = 8.0
# An index is made anew when more than this share of its rows is empty.
EMPTY_SHARE = 0.25
# Entries of the largest block of divergences, where there are no inner products.
BLOCK_ENTRIES = 1 << 22

Rows = NDArray[np.int64]
IndexType = TypeVar("IndexType", bound="LocalIndex")


class LocalIndex(Index):
    """An index whose items are an array of this process; see :class:`Index` for the interface."""

    _store: Store | None = None

    def __len__(self) -> int:
        """Return the number of items."""
        return 0 if self._store is None else len(self._store)

    def __repr__(self) -> str:
        inside = "no divergence yet" if self._divergence is None else type(self._divergence).__name__
        return f"{type(self).__name__}({inside}, direction={self.direction!r}, items={len(self)})"

    def add(self, items: ArrayLike | Tensor, ids: ArrayLike | None = None) -> None:
        """Add items, ``(n, dim)``; see :meth:`Index.add`. After an error the index is what it was before."""
        images = self._images(items, "items", is_first=self.direction == "query-second")
        store = self._store
        if store is None:
            store = Store(np.empty((0, images.shape[1]), images.numpy().dtype), np.empty(0, np.int64))
        new = store.new_ids(ids, len(images), type(self).__name__)
        if len(new) == 0:
            return
        store.reserve(len(new))
        self._take_in(images, store)
        store.append(images.numpy(), new)
        self._store = store

    def remove(self, ids: ArrayLike) -> None:
        """Remove items by their ids; see :meth:`Index.remove`."""
        owner = f"{type(self).__name__}.remove"
        wanted = checked_ids(ids, owner)
        rows = np.full(len(wanted), -1) if self._store is None else self._store.find(wanted)
        if (rows < 0).any():
            raise KeyError(checks.problem(f"ids of {owner}", "in the index", f"unknown {shown(wanted[rows < 0])}"))
        if self._store is None or len(rows) == 0:
            return
        self._store.drop(rows)
        self._take_out(rows)
        if len(self._store) < (1 - EMPTY_SHARE) * self._store.rows:
            self._compact()

    def _own_dtype(self) -> torch.dtype | None:
        return None if self._store is None else torch.from_numpy(self._store.values[:0]).dtype

    @property
    def _items(self) -> Store:
        if self._store is None:
            raise ValueError(checks.problem(type(self).__name__, "filled before it is used", "no items"))
        return self._store

    def _compact(self) -> None:
        """Close the gaps of removed items and make what is built on the rows anew."""
        self._items.compact()
        self._make_anew()

    # ------------------------------------------------------------------ what an index writes

    @abstractmethod
    def _take_in(self, images: Tensor, store: Store) -> None:
        """Take in items that are about to become the next rows of the store, or raise and change nothing."""

    @abstractmethod
    def _take_out(self, rows: Rows) -> None:
        """Forget rows that were emptied."""

    @abstractmethod
    def _make_anew(self) -> None:
        """Build everything from the rows of the store, none of which is empty."""

    def _settings(self) -> dict[str, object]:
        """Return the arguments of the constructor and the state that a file has to keep."""
        return {}

    def _restore(self, settings: dict[str, Any], folder: Path, files: dict[str, Any], shown_file: str) -> None:
        """Set what :meth:`_settings` returned and read own files; the store is there."""
        self._make_anew()

    def _write_parts(self, folder: Path) -> dict[str, Any]:
        """Write own files and return their names and digests."""
        return {}

    # ------------------------------------------------------------------ exact search

    def _exact(self, queries: Tensor, k: int) -> tuple[Tensor, Rows]:
        store = self._items
        if ranking(self.divergence) is None:
            return self._by_pairs(queries, k)
        sample = torch.from_numpy(store.values[:: max(1, store.rows // BLOCK_ROWS)])
        reduction = reduce(self.divergence, self.direction, "inner-product", sample, type(self).__name__)
        return self._by_keys(queries, k, reduction, KeysOnTheWay(reduction, store))

    def _by_keys(self, queries: Tensor, k: int, reduction: Reduction, keys: Keys) -> tuple[Tensor, Rows]:
        """Search all items by inner products with their keys.

        Products are rounded, so a few more than k candidates get their exact divergence. A query is repeated with more
        of them until no other item can belong to its k nearest by more than the rounding error of products. Where
        hundreds of items are equally near, it stops: they are equals.
        """
        store = self._items
        rows = np.empty((len(queries), k), np.int64)
        values = queries.new_empty(len(queries), k)
        waiting = torch.arange(len(queries))
        most = min(len(store), max(MOST_CANDIDATES, k + SPARE_CANDIDATES))
        width = min(k + SPARE_CANDIDATES, most)
        while len(waiting):
            subset = queries[waiting]
            vectors = reduction.queries(subset)
            scores, numbers = largest_products(vectors, keys, width)
            found, chosen = self._reranked(subset, store.values, numbers.numpy(), k)
            values[waiting], rows[waiting.numpy()] = found, chosen
            if width == most:
                break
            taken = torch.from_numpy((numbers.numpy()[:, :, None] == chosen[:, None, :]).any(2))
            worst = torch.where(taken, scores, torch.inf).amin(1)
            error = ERROR_UNITS * torch.finfo(scores.dtype).eps * vectors.norm(dim=1) * keys.longest
            waiting = waiting[worst - scores[:, -1] <= 2 * error]
            width = min(4 * width, most)
        return values, store.ids[rows]

    def _by_pairs(self, queries: Tensor, k: int) -> tuple[Tensor, Rows]:
        """Search all items by the divergences of all pairs, for any divergence."""
        store = self._items
        candidates = self._nearest_by_pairs(queries, min(k + SPARE_CANDIDATES, len(store)))
        values, rows = self._reranked(queries, store.values, candidates, k)
        return values, store.ids[rows]

    def _nearest_by_pairs(self, queries: Tensor, k: int) -> Rows:
        """Return the rows of the k nearest items from blocks of all pairs, for any divergence."""
        store = self._items
        columns = max(k, min(4096, store.rows))
        height = max(1, BLOCK_ENTRIES // columns)
        like = next((t for t in (*self.divergence.parameters(), *self.divergence.buffers())), queries)
        found = []
        with torch.inference_mode():
            for block in queries.split(height):
                best = queries.new_full((len(block), k), torch.inf)
                rows = torch.full((len(block), k), -1, dtype=torch.int64)
                for start in range(0, store.rows, columns):
                    items = torch.from_numpy(np.array(store.values[start : start + columns])).to(like.device)
                    first, second = (block.to(like.device), items)
                    if self.direction == "query-first":
                        matrix = self.divergence.pairwise(first, second).cpu()
                    else:
                        matrix = self.divergence.pairwise(second, first).t().cpu()
                    if store.live is not None:
                        matrix = matrix.masked_fill(torch.from_numpy(~store.live[start : start + columns]), torch.inf)
                    numbers = torch.arange(start, start + matrix.shape[1]).expand(matrix.shape)
                    both, all_rows = torch.cat([best, matrix], 1), torch.cat([rows, numbers], 1)
                    best, place = both.topk(k, 1, largest=False)
                    rows = all_rows.gather(1, place)
                found.append(rows)
        return torch.cat(found).numpy() if found else np.empty((0, k), np.int64)

    # ------------------------------------------------------------------ on disk

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index to a folder, without pickle.

        The folder gets the divergence, the items and what is built on them, each in a file whose name has a digest, and
        at the end ``index.json``, which names them, in one step: a process killed at any moment leaves the old index or
        the new one. Files of an index that was there before are removed at the end; others are left alone.

        Raises
        ------
        OSError
            If the folder cannot be written. What was there is untouched.
        """
        if self._store is not None and self._store.live is not None:
            self._compact()
        place = Path(folder)
        old = old_parts(place)
        try:
            place.mkdir(parents=True, exist_ok=True)
            description = self._description(place)
            storage.write_json(place / DESCRIPTION, description)
        except OSError as error:
            got = f"{str(folder)!r} ({error})"
            mend = "An index that was there before is untouched."
            raise type(error)(checks.problem("folder", "one that can be written to", got, mend)) from error
        for name in old - set(description["parts"].values()):
            remove_part(place / name)

    def _description(self, place: Path) -> dict[str, Any]:
        """Write all parts and return the content of ``index.json``."""
        parts: dict[str, str] = {}
        if self._divergence is not None:
            mark = fingerprint(self._encoder, self._divergence)
            parts["model"] = f"model-{mark[:16]}"
            model = self._divergence if self._encoder is None else Embedded(self._encoder, self._divergence)
            models.save(model.eval(), place / parts["model"])
        if self._store is not None:
            tensors = {"items": torch.from_numpy(self._store.values), "ids": torch.from_numpy(self._store.ids)}
            parts["items"] = f"items-{storage.checksum(None, tensors)[:16]}.safetensors"
            storage.save_tensors(place / parts["items"], tensors, {"kind": "items"})
        own = self._write_parts(place)
        parts |= {name: part["file"] for name, part in own.items()}
        description: dict[str, Any] = {
            "format": storage.FORMAT,
            "askew": storage.version(),
            "kind": "index",
            "class": type(self).__name__,
            "direction": self.direction,
            "divergence": self._given if self._divergence is None else mark,
            "next_id": 0 if self._store is None else self._store._next,
            "settings": self._settings(),
            "parts": parts,
            "own": own,
        }
        return description | {"checksum": storage.checksum(description)}

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
        place = Path(folder)
        description, shown_file = read_description(place, str(folder), cls.__name__)
        parts = description["parts"]
        if "model" not in parts:
            index = cls(description["divergence"], description["direction"])
            index._restore(description["settings"], place, description["own"], shown_file)
            return index
        model = models.load(place / parts["model"], encoder, classes)
        if not isinstance(model, Divergence):
            raise ValueError(storage.damaged(shown_file, "its model is no divergence"))
        index = cls(model, description["direction"])
        mark = fingerprint(index._encoder, index.divergence)
        if mark != description["divergence"]:
            raise ValueError(storage.damaged(shown_file, "its model belongs to another index"))
        if divergence is not None:
            given = cls(divergence, description["direction"])
            if given._divergence is None or fingerprint(given._encoder, given.divergence) != mark:
                mend = "Give the divergence it was made with, or make a new index."
                got = f"another one than that of the index in {str(folder)!r}"
                raise ValueError(checks.problem("divergence of load", "the one the index was made with", got, mend))
        if "items" in parts:
            tensors, _ = storage.load_tensors(place / parts["items"], "items", mapped=True)
            index._store = restored_store(tensors, index.divergence, description["next_id"], shown_file)
        index._restore(description["settings"], place, description["own"], shown_file)
        return index


class Keys:
    """The keys of all rows of a store in order, and the length of the longest."""

    def __init__(self, keys: Tensor, longest: float) -> None:
        self.keys = keys
        self.longest = longest

    def __iter__(self) -> Iterator[Tensor]:
        yield self.keys


class KeysOnTheWay(Keys):
    """Keys that are made block by block when they are needed, for an index that does not hold them."""

    def __init__(self, reduction: Reduction, store: Store) -> None:
        self.reduction = reduction
        self.store = store
        self.longest = 0.0

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, self.store.rows, BLOCK_ROWS):
            keys = self.reduction.keys(torch.from_numpy(self.store.values[start : start + BLOCK_ROWS]))
            self.longest = max(self.longest, float(keys.norm(dim=1).amax()))
            if self.store.live is not None:
                keys[torch.from_numpy(~self.store.live[start : start + BLOCK_ROWS])] = empty_key(keys)
            yield keys


def empty_key(keys: Tensor) -> Tensor:
    """Return a key that no query is near to."""
    key = keys.new_zeros(keys.shape[1])
    key[-1] = -torch.inf
    return key
