"""The items of an index with their ids: a growing array in memory, or in a temporary file."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from askew import checks
from askew.search.columns import Column, as_column, joined

# An array that has to grow takes this fraction of its size in addition: many small additions then copy little.
SPARE = 1 / 8
ZEROS = bytes(1 << 20)
LARGEST_ID = int(np.iinfo(np.int64).max)

Ids = NDArray[Any]  # integers, or strings


def empty_rows(shape: tuple[int, ...], dtype: Any, scratch: Path | None) -> NDArray[Any]:
    """Return an uninitialized array in memory or, if ``scratch`` is given, in an anonymous temporary file there."""
    needed = math.prod(shape) * np.dtype(dtype).itemsize
    if scratch is None or needed == 0:
        return np.empty(shape, dtype)
    try:
        # A file without a name: nothing is left behind, even by a process that is killed.
        with tempfile.TemporaryFile(dir=scratch) as file:
            _allocate(file, needed)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        must, got = f"a folder with room for {needed} more bytes", f"{str(scratch)!r} ({error.strerror or error})"
        raise type(error)(error.errno, checks.message("scratch", must, got, "Make room there.")) from error


def with_room(array: NDArray[Any], rows: int, more: int, scratch: Path | None = None) -> NDArray[Any]:
    """Return an array with room for more rows after its first ones: itself, or a larger copy."""
    needed = rows + more
    if needed <= len(array):
        return array
    spare = 0 if more > SPARE * rows else int(SPARE * needed)
    larger = empty_rows((needed + spare, *array.shape[1:]), array.dtype, scratch)
    larger[:rows] = array[:rows]
    return larger


def _allocate(file: IO[bytes], size: int) -> None:
    """Reserve the disk space of a file: a process that writes to a memory map without space behind it is killed."""
    if hasattr(os, "posix_fallocate"):  # not everywhere
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # some file systems cannot
                raise
    for start in range(0, size, len(ZEROS)):
        file.write(ZEROS[: size - start])
    file.flush()


class Store:
    """Items as rows of one array, each with an id; a removed item leaves a gap, which :meth:`compacted` closes.

    ``rows`` is their number, gaps included, and ``live`` says which hold an item (None while there are no gaps).
    ``scratch`` is a folder for a temporary file that holds the items instead of memory. Ids of removed items are not
    assigned again: ``next_id`` is the smallest that :meth:`new_ids` may assign. ``fields`` are further columns.

    What was stored is never overwritten, so changes of a shallow copy do not disturb those who read the original.
    """

    def __init__(
        self,
        values: NDArray[Any],
        ids: Ids,
        scratch: Path | None = None,
        next_id: int = 0,
        fields: dict[str, Column] | None = None,
    ) -> None:
        self._values = values
        self._ids = ids
        self._fields = fields or {}
        self._scratch = scratch
        self.rows = self._count = len(ids)
        self.live: NDArray[np.bool_] | None = None
        self.next_id = _next_after(ids, next_id)

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> NDArray[Any]:
        """The items, ``(rows, dim)``."""
        return self._values[: self.rows]

    @property
    def ids(self) -> Ids:
        """Their ids, ``(rows,)``."""
        return self._ids[: self.rows]

    @property
    def fields(self) -> dict[str, Column]:
        """Further columns by their names, ``(rows,)`` each."""
        return {name: column[: self.rows] for name, column in self._fields.items()}

    @property
    def present(self) -> NDArray[np.int64]:
        """The rows that hold an item."""
        return np.arange(self.rows) if self.live is None else np.flatnonzero(self.live)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the items."""
        return torch.from_numpy(self._values[:0]).dtype

    def new_ids(self, ids: object, count: int, owner: str, replacing: bool = False) -> Ids:
        """Return the ids of items to add: the given ones, checked, or the next numbers."""
        if ids is None and not replacing and not self._has_strings:
            return next_ids(self.next_id, count, owner)
        if ids is None:
            raise ValueError(checks.message(f"ids of {owner}", "given, one for each item", None))
        new = self.check_ids(ids, owner, count)
        if not replacing:
            check_new(new[self.find(new) >= 0], owner)
        return new

    @property
    def _has_strings(self) -> bool:
        return self.rows > 0 and self._ids.dtype.kind == "U"

    def check_ids(self, ids: object, owner: str, count: int | None = None) -> Ids:
        """Return ids, checked, of the kind that the index has."""
        array = check_ids(ids, owner, count, strings=True)
        if self.rows and len(array) and (array.dtype.kind == "U") != self._has_strings:
            kinds = {True: "strings", False: "integers"}
            must = f"{kinds[self._has_strings]} in one dimension, as those in the index"
            raise TypeError(checks.message(f"ids of {owner}", must, kinds[not self._has_strings]))
        return array

    def new_fields(self, fields: dict[str, Column], owner: str) -> dict[str, Column]:
        """Return the fields of new items, if they are those of the items before."""
        if self.rows and set(fields) != set(self._fields):
            must = f"{_named(self._fields)}, as for the items before"
            hint = "Give every item the same fields; all of them with the first items."
            raise ValueError(checks.message(f"fields of {owner}", must, _named(fields), hint))
        return {name: fields[name] for name in (self._fields if self.rows else fields)}

    def known(self, ids: object, owner: str) -> NDArray[np.int64]:
        """Return the rows of ids, checked; one that is not there is an error."""
        wanted = self.check_ids(ids, owner)
        rows = self.find(wanted)
        check_found(wanted[rows < 0], owner)
        return rows

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """Return the rows of ids; -1 for an id that is not there."""
        if self.rows == 0 or len(ids) == 0:
            return np.full(len(ids), -1, np.int64)
        order = np.argsort(self.ids, kind="stable")
        # If an id was removed and added again, its last row is the one that may be live.
        place = np.searchsorted(self.ids, ids, side="right", sorter=order) - 1
        rows = order[np.maximum(place, 0)]
        known = self.ids[rows] == ids
        return np.where(known if self.live is None else known & self.live[rows], rows, -1)

    def reserve(self, count: int) -> None:
        """Allocate memory for new items."""
        self._values = with_room(self._values, self.rows, count, self._scratch)
        self._ids = with_room(self._ids, self.rows, count)

    def append(self, values: NDArray[Any], ids: Ids, fields: dict[str, Column] | None = None) -> None:
        """Add items after the others; ids and fields are of :meth:`new_ids` and :meth:`new_fields`."""
        first, count = self.rows, len(ids)
        columns = {
            name: joined(self._fields.get(name, new), first, new, f"field {name!r}")
            for name, new in (fields or {}).items()
        }
        self._ids = joined(self._ids, first, ids, "ids")
        self.reserve(count)
        columns = {name: with_room(column, first, count) for name, column in columns.items()}
        self.rows = first + count
        self.values[first:], self.ids[first:] = values, ids
        for name, column in columns.items():
            column[first : self.rows] = (fields or {})[name]
        self._fields = columns
        if self.live is not None:
            self.live = np.concatenate([self.live, np.ones(count, bool)])
        self._count += count
        self.next_id = _next_after(ids, self.next_id)

    def drop(self, rows: NDArray[np.int64]) -> None:
        """Remove the items of some rows."""
        self.live = np.ones(self.rows, bool) if self.live is None else self.live.copy()
        self.live[rows] = False
        self._count -= len(rows)

    def compacted(self) -> Store:
        """Return a store without gaps, where rows have new numbers; this one if it has none."""
        if self.live is None:
            return self
        values = empty_rows((self._count, self._values.shape[1]), self._values.dtype, self._scratch)
        # Another mode would make a copy in memory first.
        np.take(self.values, np.flatnonzero(self.live), axis=0, out=values, mode="clip")
        fields = {name: column[self.live] for name, column in self.fields.items()}
        return Store(values, self.ids[self.live], self._scratch, self.next_id, fields)


def _next_after(ids: Ids, next_id: int) -> int:
    return next_id if ids.dtype.kind == "U" else max(next_id, int(ids.max(initial=-1)) + 1)


def _named(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def next_ids(first: int, count: int, owner: str) -> Ids:
    """Return ids for items that were given none."""
    if first + count > LARGEST_ID:
        must = f"given where the next numbers would be above {LARGEST_ID}"
        raise ValueError(checks.message(f"ids of {owner}", must, None))
    return np.arange(first, first + count, dtype=np.int64)


def check_ids(ids: object, owner: str, count: int | None = None, strings: bool = False) -> Ids:
    """Return ids as 64-bit integers or strings, no two equal; one for each of ``count`` items, if that is given."""
    array = as_column(ids, f"ids of {owner}")
    if array.ndim != 1 or (array.size and array.dtype.kind not in ("iuU" if strings else "iu")):
        got = f"an array of {array.dtype} with shape {array.shape}"
        hint = "Or give strings." if strings else ""
        raise TypeError(checks.message(f"ids of {owner}", "integers in one dimension", got, hint))
    if array.dtype.kind != "U" or not array.size:
        bad = array[(array < 0) | (array > LARGEST_ID)] if array.size else array
        if len(bad):
            raise ValueError(checks.message(f"ids of {owner}", "from 0 to 2^63 - 1", listed(bad)))
        array = array.astype(np.int64)
    unique, counts = np.unique(array, return_counts=True)
    if len(unique) != len(array):
        got, hint = f"{listed(unique[counts > 1])} twice", "Give each item its own id."
        raise ValueError(checks.message(f"ids of {owner}", "all different", got, hint))
    if count is not None and len(array) != count:
        raise ValueError(checks.message(f"ids of {owner}", f"as many as there are items, {count}", len(array)))
    return array


def check_new(known: Ids, owner: str, hint: str = "Remove them first, or give other ids.") -> None:
    """Raise if some of the ids of new items are in the index."""
    if len(known):
        raise ValueError(checks.message(f"ids of {owner}", "new", f"{listed(known)}, in the index already", hint))


def check_found(unknown: Ids, owner: str) -> None:
    """Raise if some of the ids to remove are not in the index."""
    if len(unknown):
        raise KeyError(checks.message(f"ids of {owner}", "in the index", f"unknown {listed(unknown)}"))


def listed(ids: NDArray[Any]) -> str:
    """Return ids as text for a message, the first five of them."""
    few = ", ".join(repr(str(i)) if ids.dtype.kind == "U" else str(i) for i in ids[:5])
    return few if len(ids) <= 5 else f"{few} and {len(ids) - 5} more"
