"""The items of an index with their ids: a growing array in memory, or in a temporary file."""

from __future__ import annotations

import copy
import errno
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from askew import checks

# An array that has to grow takes this fraction of its size in addition: many small additions then copy little.
SPARE = 1 / 8
# Rows to copy at a time where the copy is a file.
COPIED_ROWS = 1 << 16
ZEROS = bytes(1 << 20)
LARGEST_ID = int(np.iinfo(np.int64).max)

Ids = NDArray[np.int64]


def empty_rows(rows: int, size: int, dtype: Any, scratch: Path | None) -> NDArray[Any]:
    """Return an uninitialized array in memory or, if ``scratch`` is given, in an anonymous temporary file there."""
    if scratch is None or rows * size == 0:
        return np.empty((rows, size), dtype)
    needed = rows * size * np.dtype(dtype).itemsize
    try:
        # A file without a name: nothing is left behind, even by a process that is killed.
        with tempfile.TemporaryFile(dir=scratch) as file:
            _allocate(file, needed)
            return np.memmap(file, dtype, "r+", shape=(rows, size))
    except OSError as error:
        must, got = f"a folder with room for {needed} more bytes", f"{str(scratch)!r} ({error.strerror or error})"
        raise type(error)(error.errno, checks.message("scratch", must, got, "Make room there.")) from error


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
    assigned again: ``next_id`` is the smallest that :meth:`new_ids` may assign.
    """

    def __init__(self, values: NDArray[Any], ids: Ids, scratch: Path | None = None, next_id: int = 0) -> None:
        self._values = values
        self._scratch = scratch
        self._ids = ids
        self.rows = len(ids)
        self.live: NDArray[np.bool_] | None = None
        self._count = self.rows
        self.next_id = max(next_id, int(ids.max()) + 1) if len(ids) else next_id
        # Whether each id is the number of its row, as long as nobody gives others.
        self._plain = bool(len(ids) == 0 or (ids[0] == 0 and ids[-1] == len(ids) - 1 and np.all(np.diff(ids) == 1)))

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

    def new_ids(self, ids: object, count: int, owner: str) -> Ids:
        """Return the ids of new items: the given ones, checked, or the next numbers."""
        if ids is None:
            return next_ids(self.next_id, count, owner)
        new = check_count(check_ids(ids, owner), count, owner)
        known = new[self.find(new) >= 0]
        if len(known):
            hint = "Remove them first, or give other ids."
            raise ValueError(checks.message(f"ids of {owner}", "new", f"{listed(known)}, in the index already", hint))
        return new

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """Return the rows of ids; -1 for an id that is not there."""
        if self.rows == 0:
            return np.full(len(ids), -1, np.int64)
        if self._plain:
            rows = np.where((ids >= 0) & (ids < self.rows), ids, -1)
        else:
            order = np.argsort(self.ids, kind="stable")
            # If an id was removed and added again, its last row is the one that may be live.
            place = np.searchsorted(self.ids, ids, side="right", sorter=order) - 1
            rows = np.where(place >= 0, order[np.maximum(place, 0)], 0)
            rows = np.where(self.ids[rows] == ids, rows, -1)
        if self.live is not None:
            rows = np.where((rows >= 0) & self.live[np.maximum(rows, 0)], rows, -1)
        return rows

    def reserve(self, count: int) -> None:
        """Allocate memory for new items, after which :meth:`append` cannot fail."""
        needed = self.rows + count
        if needed > len(self._ids):
            room = needed if count > SPARE * self.rows else needed + int(SPARE * needed)
            values = empty_rows(room, self._values.shape[1], self._values.dtype, self._scratch)
            values[: self.rows] = self.values
            ids = np.empty(room, np.int64)
            ids[: self.rows] = self.ids
            self._values, self._ids = values, ids

    def append(self, values: NDArray[Any], ids: Ids) -> None:
        """Add items after the others."""
        self.reserve(len(ids))
        needed = self.rows + len(ids)
        self._values[self.rows : needed] = values
        self._ids[self.rows : needed] = ids
        # In one step: an interrupt comes before it or after it.
        self.__dict__.update(
            rows=needed,
            live=None if self.live is None else np.concatenate([self.live, np.ones(len(ids), bool)]),
            _count=self._count + len(ids),
            next_id=max(self.next_id, int(ids.max()) + 1) if len(ids) else self.next_id,
            _plain=self._plain and bool(len(ids) == 0 or (ids[0] == self.rows and np.all(np.diff(ids) == 1))),
        )

    def drop(self, rows: NDArray[np.int64]) -> None:
        """Remove the items of some rows."""
        live = np.ones(self.rows, bool) if self.live is None else self.live.copy()
        live[rows] = False
        self.__dict__.update(live=live, _count=self._count - len(rows))  # in one step, as above

    def compacted(self) -> Store:
        """Return a store without gaps, where rows have new numbers; this one if it has none."""
        if self.live is None:
            return self
        values = empty_rows(self._count, self._values.shape[1], self._values.dtype, self._scratch)
        rows = np.flatnonzero(self.live)
        for start in range(0, len(rows), COPIED_ROWS):
            values[start : start + COPIED_ROWS] = self.values[rows[start : start + COPIED_ROWS]]
        return Store(values, self.ids[self.live], self._scratch, self.next_id)

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        values = empty_rows(self.rows, self._values.shape[1], self._values.dtype, self._scratch)
        values[:] = self.values
        result = copy.copy(self)
        result._values, result._ids = values, self.ids.copy()
        return result


def next_ids(first: int, count: int, owner: str) -> Ids:
    """Return ids for items that were given none."""
    if first + count > LARGEST_ID:
        must = f"given where the next numbers would be above {LARGEST_ID}"
        raise ValueError(checks.message(f"ids of {owner}", must, None))
    return np.arange(first, first + count, dtype=np.int64)


def check_ids(ids: object, owner: str) -> Ids:
    """Return ids as 64-bit integers, no two of them equal."""
    checks.check_plain(ids, f"ids of {owner}")
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        got = f"an array of {array.dtype} with shape {array.shape}"
        raise TypeError(checks.message(f"ids of {owner}", "integers in one dimension", got))
    if array.size and (array.min() < 0 or int(array.max()) > LARGEST_ID):
        got = listed(array[(array < 0) | (array > LARGEST_ID)])
        raise ValueError(checks.message(f"ids of {owner}", "from 0 to 2^63 - 1", got))
    array = array.astype(np.int64)
    unique, counts = np.unique(array, return_counts=True)
    if len(unique) != len(array):
        got, hint = f"{listed(unique[counts > 1])} twice", "Give each item an id of its own."
        raise ValueError(checks.message(f"ids of {owner}", "all different", got, hint))
    return array


def check_count(ids: Ids, count: int, owner: str) -> Ids:
    """Return ids, if there is one for each of ``count`` items."""
    if len(ids) != count:
        raise ValueError(checks.message(f"ids of {owner}", f"as many as there are items, {count}", len(ids)))
    return ids


def listed(ids: NDArray[Any]) -> str:
    """Return ids as text for a message, the first five of them."""
    few = ", ".join(str(i) for i in ids[:5])
    return few if len(ids) <= 5 else f"{few} and {len(ids) - 5} more"
