"""The items of an index in main memory or mapped from a file, with their ids."""

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

__all__ = ["Store", "empty_rows"]

# What a growing array takes beyond its need: an eighth, so that many small additions do not copy everything each time.
SPARE = 8

# Rows that are copied at a time where the copy is a file.
COPIED_ROWS = 1 << 16

# What a file is filled with at a time.
ZEROS = bytes(1 << 20)

LARGEST = np.iinfo(np.int64).max

Ids = NDArray[np.int64]


def empty_rows(rows: int, size: int, dtype: Any, scratch: Path | None) -> NDArray[Any]:
    """Return an array to be filled: in memory, or mapped from a file in a folder that is gone with the array."""
    if scratch is None or rows * size == 0:
        return np.empty((rows, size), dtype)
    needed = rows * size * np.dtype(dtype).itemsize
    try:
        # A file without a name: nothing is left behind, even by a process that is killed.
        with tempfile.TemporaryFile(dir=scratch) as file:
            _take_room(file, needed)
            return np.memmap(file, dtype, "r+", shape=(rows, size))
    except OSError as error:
        must, got = f"a folder with room for {needed} more bytes", f"{str(scratch)!r} ({error.strerror or error})"
        raise type(error)(error.errno, checks.message("scratch", must, got, "Make room there.")) from error


def _take_room(file: IO[bytes], size: int) -> None:
    """Give an empty file its size on the disk: the system kills a process that writes to a map which finds no room."""
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
    """Items as rows of one array, each with an id; removed ones leave their row empty until :meth:`become`.

    Parameters
    ----------
    values, ids
        The first items.
    scratch
        A folder for a file that holds the items in place of memory.

    Attributes
    ----------
    rows : int
        Number of rows, with those of removed items.
    live : array of bool or None
        Which rows hold an item; None while none was removed.
    """

    def __init__(self, values: NDArray[Any], ids: Ids, scratch: Path | None = None) -> None:
        self._values = values
        self._scratch = scratch
        self._ids = ids
        self.rows = len(ids)
        self.live: NDArray[np.bool_] | None = None
        self._count = self.rows
        self._next = int(ids.max()) + 1 if len(ids) else 0
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
        """Return the ids of new items, checked: given ones, or the next numbers."""
        if ids is None:
            if self._next + count > LARGEST:
                must = f"given where the next numbers would be above {LARGEST}"
                raise ValueError(checks.message(f"ids of {owner}", must, None))
            return np.arange(self._next, self._next + count, dtype=np.int64)
        new = checked_ids(ids, owner)
        if len(new) != count:
            raise ValueError(checks.message(f"ids of {owner}", f"as many as there are items, {count}", len(new)))
        known = new[self.find(new) >= 0]
        if len(known):
            hint = "Remove them first, or give other ids."
            raise ValueError(checks.message(f"ids of {owner}", "new", f"{shown(known)}, in the index already", hint))
        return new

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """Return the rows of ids; -1 for an id that is not there."""
        if self.rows == 0:
            return np.full(len(ids), -1, np.int64)
        if self._plain:
            rows = np.where((ids >= 0) & (ids < self.rows), ids, -1)
        else:
            order = np.argsort(self.ids, kind="stable")
            # Of an id that was removed and added again, the last row is the one that may live.
            place = np.searchsorted(self.ids, ids, side="right", sorter=order) - 1
            rows = np.where(place >= 0, order[np.maximum(place, 0)], 0)
            rows = np.where(self.ids[rows] == ids, rows, -1)
        if self.live is not None:
            rows = np.where((rows >= 0) & self.live[np.maximum(rows, 0)], rows, -1)
        return rows

    def skip_ids(self, other: Store) -> None:
        """Give no ids that another store has given before, unless they are asked for."""
        self._next = max(self._next, other._next)

    def reserve(self, count: int) -> None:
        """Take the memory for new items, so that :meth:`append` cannot fail."""
        needed = self.rows + count
        if needed > len(self._ids):
            room = needed if count * SPARE > self.rows else needed + needed // SPARE
            grown = empty_rows(room, self._values.shape[1], self._values.dtype, self._scratch)
            grown[: self.rows] = self.values
            ids_grown = np.empty(room, np.int64)
            ids_grown[: self.rows] = self.ids
            self._values, self._ids = grown, ids_grown

    def append(self, values: NDArray[Any], ids: Ids) -> None:
        """Put new items behind the others."""
        self.reserve(len(ids))
        needed = self.rows + len(ids)
        self._values[self.rows : needed] = values
        self._ids[self.rows : needed] = ids
        # In one step, so that Ctrl-C leaves all of it as it was, or has come too late.
        self.__dict__.update(
            rows=needed,
            live=None if self.live is None else np.concatenate([self.live, np.ones(len(ids), bool)]),
            _count=self._count + len(ids),
            _next=max(self._next, int(ids.max()) + 1) if len(ids) else self._next,
            _plain=self._plain and bool(len(ids) == 0 or (ids[0] == self.rows and np.all(np.diff(ids) == 1))),
        )

    def drop(self, rows: NDArray[np.int64]) -> None:
        """Empty some rows that hold items."""
        live = np.ones(self.rows, bool) if self.live is None else self.live.copy()
        live[rows] = False
        self.__dict__.update(live=live, _count=self._count - len(rows))  # in one step, as above

    def compacted(self) -> Store:
        """Return a store without the gaps that removed items have left, where rows have new numbers."""
        if self.live is None:
            return self
        values = empty_rows(self._count, self._values.shape[1], self._values.dtype, self._scratch)
        rows = np.flatnonzero(self.live)
        for start in range(0, len(rows), COPIED_ROWS):
            values[start : start + COPIED_ROWS] = self.values[rows[start : start + COPIED_ROWS]]
        result = Store(values, self.ids[self.live], self._scratch)
        result._next = self._next
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        """Return a store with rows of its own, which are in another file where these are in one."""
        values = empty_rows(self.rows, self._values.shape[1], self._values.dtype, self._scratch)
        values[:] = self.values
        result = copy.copy(self)
        result._values, result._ids = values, self.ids.copy()
        return result

    def become(self, other: Store) -> None:
        """Take the rows of another store for its own."""
        self.__dict__.update(other.__dict__)


def checked_ids(ids: object, owner: str) -> Ids:
    """Return ids as 64-bit integers, no two of them equal."""
    checks.check_plain(ids, f"ids of {owner}")
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        got = f"an array of {array.dtype} with shape {array.shape}"
        raise TypeError(checks.message(f"ids of {owner}", "integers in one dimension", got))
    if array.size and (array.min() < 0 or int(array.max()) > LARGEST):
        got = shown(array[(array < 0) | (array > LARGEST)])
        raise ValueError(checks.message(f"ids of {owner}", "from 0 to 2^63 - 1", got))
    array = array.astype(np.int64)
    unique, counts = np.unique(array, return_counts=True)
    if len(unique) != len(array):
        hint = "Give each item an id of its own."
        raise ValueError(checks.message(f"ids of {owner}", "all different", f"{shown(unique[counts > 1])} twice", hint))
    return array


def shown(ids: NDArray[Any]) -> str:
    """Return some ids for a message."""
    few = ", ".join(str(i) for i in ids[:5])
    return few if len(ids) <= 5 else f"{few} and {len(ids) - 5} more"
