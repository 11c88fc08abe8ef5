"""Rows of files larger than memory: `Rows` reads ranges of them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew.io.arrays import check_values, group_rows, read_array

# Numbers that are read at a time where nobody says how many: 64 MB in float32.
BLOCK_NUMBERS = 1 << 24

Numbers = NDArray[Any]


class Rows:
    """Rows of ``.npy`` or Parquet files that stay on the disk; only those that are read take memory.

    Use it for tables larger than memory, which :meth:`blocks` reads for an index or a clustering. A table that fits
    into memory is simpler as an array, and :func:`askew.fit` takes arrays that are mapped from ``.npy`` files.

    Parameters
    ----------
    source
        A file, several files with the same columns, or a folder whose ``.npy`` or Parquet files are taken in the order
        of their names; or an array, such as one mapped by ``numpy.load(file, mmap_mode="r")``.
    columns
        Which columns: names (Parquet) or numbers (``.npy``), in this order. One name or number alone gives vectors
        ``(n,)`` in place of matrices. None takes all; those of several Parquet files in the order of the first.
    dtype
        Of what is read; None keeps integers and gives float32 for everything else. A number that it does not hold is an
        error when its row is read: integers must be the same, and finite numbers must stay finite.

    Attributes
    ----------
    shape : tuple of int
        ``(rows, columns)``, or ``(rows,)``.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing or damaged, its columns are not numbers or differ from the first file, or an array has
        masked entries.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(Path(folder) / "points.npy", np.arange(12.0).reshape(6, 2))
    ...     rows = Rows(Path(folder) / "points.npy")
    ...     rows.shape, rows.read(4, 6), [len(block) for block in rows.blocks(4)]
    ((6, 2), array([[ 8.,  9.],
           [10., 11.]], dtype=float32), [4, 2])
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Numbers,
        columns: str | int | Sequence[str] | Sequence[int] | None = None,
        dtype: np.dtype[Any] | type | None = None,
    ) -> None:
        self._parts: list[_Array | _Parquet] = []
        if isinstance(source, np.ndarray):
            checks.check_plain(source, "the array given to Rows")
            self._parts.append(_Array(np.asarray(source), columns, "the array given to Rows"))
        else:
            for path in _files(source):
                follows = self._parts[0].names if self._parts and columns is None else None
                self._parts.append(_open(path, columns, follows))
        widths = {part.width for part in self._parts}
        if len(widths) > 1:
            got = " and ".join("vectors" if width is None else f"{width} columns" for width in sorted(widths, key=str))
            raise ValueError(checks.message("the files given to Rows", "of the same columns", got))
        self._ends = np.cumsum([part.rows for part in self._parts])
        self.dtype = (
            _common([each for part in self._parts for each in part.dtypes]) if dtype is None else np.dtype(dtype)
        )
        count, width = int(self._ends[-1]), self._parts[0].width
        if count == 0:
            raise ValueError(checks.message("the files given to Rows", "with at least one row", "none"))
        self.shape: tuple[int, ...] = (count,) if width is None else (count, width)

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, start: int, stop: int) -> Numbers:
        """Return the rows from ``start`` up to ``stop``, in memory.

        Parameters
        ----------
        start, stop
            ``0 <= start <= stop <= len(self)``.
        """
        if not 0 <= start <= stop <= len(self):
            must = f"a range within 0 to {len(self)}"
            raise ValueError(checks.message("start and stop of Rows.read", must, (start, stop)))
        result = np.empty((stop - start, *self.shape[1:]), self.dtype)
        first = 0
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                part.read_into(result[low - start : high - start], low - first)
            first = end
        return result

    def blocks(self, size: int | None = None) -> Iterator[Numbers]:
        """Yield all rows in their order, ``size`` at a time; by default as many as 64 MB hold."""
        if size is None:
            size = max(1, BLOCK_NUMBERS // max(1, int(np.prod(self.shape[1:]))))
        size = checks.check_size(size, "size of Rows.blocks")
        for start in range(0, len(self), size):
            yield self.read(start, min(start + size, len(self)))


class _Array:
    """A vector or a matrix, mapped from a file or in memory."""

    names = None

    def __init__(self, array: Numbers, columns: Any, shown: str) -> None:
        if array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
            got = f"{array.dtype} of shape {array.shape}"
            raise ValueError(checks.message(shown, "numbers in a vector or a matrix", got))
        self.array, self.columns, self.shown = array, columns, shown
        self.rows, self.dtypes = array.shape[0], [array.dtype]
        try:
            width = self._chosen(slice(0, 1)).shape[1:]  # older NumPy looks at no column of 0 rows
        except IndexError:
            must = f"None or numbers of columns of {shown}, which is of shape {array.shape}"
            raise ValueError(checks.message("columns of Rows", must, repr(columns))) from None
        self.width: int | None = width[0] if width else None

    def _chosen(self, rows: slice) -> Numbers:
        return self.array[rows] if self.columns is None else self.array[rows, self.columns]

    def read_into(self, place: Numbers, start: int) -> None:
        """Fill ``place`` with the rows from ``start`` on."""
        _fill(place, self._chosen(slice(start, start + len(place))), start, self.shown)


class _Parquet:
    """Columns of a Parquet file; those of the first of several files are ``follows``."""

    def __init__(self, path: Path, columns: Any, shown: str, follows: list[str] | None) -> None:
        types = checks.optional_import("pyarrow", "parquet", "Rows of Parquet files").types
        from pyarrow import parquet

        self.shown = shown
        with _whole(shown):
            # Pages of the file that were read are not kept.
            self.file = parquet.ParquetFile(path, memory_map=False, pre_buffer=False)
            groups = group_rows(self.file)
        schema = self.file.schema_arrow
        wanted = [columns] if isinstance(columns, str) else columns or follows or schema.names
        # The index of a name that the file has not, or has twice, is -1.
        unclear = [name for name in wanted if not isinstance(name, str) or schema.get_field_index(name) < 0]
        if follows is not None:
            unclear += [name for name in schema.names if name not in follows]
        if unclear:
            few = ", ".join(map(repr, schema.names[:8])) + (", ..." if len(schema.names) > 8 else "")
            must = f"names of columns that {shown} has once, all of them if there are several files: {few}"
            raise ValueError(checks.message("columns of Rows", must, repr(unclear[0])))
        self.names: list[str] = list(wanted)
        kinds = [schema.field(name).type for name in self.names]
        for name, kind in zip(self.names, kinds, strict=True):
            if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
                hint = "Name the columns of numbers by columns=."
                raise ValueError(checks.message(f"column {name!r} of {shown}", "of numbers", str(kind), hint))
        self.dtypes = [np.dtype(kind.to_pandas_dtype()) for kind in kinds]
        self.width = None if isinstance(columns, str) else len(self.names)
        with _whole(shown):  # a group is read at a time
            check_values(max(groups, default=0) * len(self.names), path.stat().st_size)
        self.ends = np.cumsum([0, *groups])
        self.rows = int(self.ends[-1])
        # The group that was read last: its neighbours come next.
        self.last: tuple[int, list[Numbers]] | None = None

    def read_into(self, place: Numbers, start: int) -> None:
        """Fill ``place`` with the rows from ``start`` on."""
        for group, (first, end) in enumerate(itertools.pairwise(self.ends.tolist())):
            low, high = max(start, first), min(start + len(place), end)
            if low < high:
                rows = place[low - start : high - start]
                for target, column in zip([rows] if rows.ndim == 1 else rows.T, self._group(group), strict=True):
                    _fill(target, column[low - first : high - first], low, self.shown)

    def _group(self, number: int) -> list[Numbers]:
        """Return the columns of a group of rows, the least that can be read."""
        if self.last is None or self.last[0] != number:
            self.last = None  # not two at a time
            with _whole(self.shown):
                table = self.file.read_row_group(number, columns=self.names, use_threads=False)
                rows = int(self.ends[number + 1] - self.ends[number])
                if table.num_rows != rows:
                    raise ValueError(f"a group of {rows} rows has {table.num_rows}")
                read = [table.column(name).to_numpy() for name in self.names]
            for name in self.names:
                if table.column(name).null_count:
                    must, hint = "without missing values", "Fill them or drop their rows first."
                    raise ValueError(checks.message(f"column {name!r} of {self.shown}", must, "some", hint))
            self.last = (number, read)
        return self.last[1]


def _common(dtypes: list[np.dtype[Any]]) -> np.dtype[Any]:
    """Return a dtype for numbers of several: that of integers, or float32."""
    found = np.result_type(*dtypes)
    if found.kind == "f" and all(dtype.kind in "biu" for dtype in dtypes):  # numpy has floats for uint64 and int64
        return np.dtype(np.int64)
    return found if found.kind in "iu" else np.dtype(np.float32)


def _fill(place: Numbers, values: Numbers, first: int, shown: str) -> None:
    """Copy rows from ``first`` on into a place of another dtype, which must hold them: numpy overflows silently."""
    with np.errstate(invalid="ignore", over="ignore"):
        place[...] = values
    if np.can_cast(values.dtype, place.dtype):
        return
    lost = np.isfinite(values) & ~np.isfinite(place) if place.dtype.kind == "f" else place != values
    if lost.any():
        where = np.unravel_index(int(lost.argmax()), lost.shape)
        must, hint = f"of numbers that {place.dtype} holds", f"Pass dtype=numpy.{values.dtype.name} to Rows."
        raise ValueError(checks.message(f"row {first + int(where[0])} of {shown}", must, values[where], hint))


@contextlib.contextmanager
def _whole(shown: str) -> Iterator[None]:
    """Raise whatever pyarrow raises of a damaged file as one kind of error."""
    try:
        yield
    except Exception as error:
        raise ValueError(checks.message(shown, "a whole Parquet file", " ".join(str(error).split())[:200])) from error


ENDINGS = (".npy", ".parquet")


def _open(path: Path, columns: object, follows: list[str] | None) -> _Array | _Parquet:
    shown = repr(str(path))
    if not path.is_file() or path.suffix.lower() not in ENDINGS:
        must = f"files that exist and end in {' or '.join(ENDINGS)}"
        raise (ValueError if path.is_file() else FileNotFoundError)(checks.message("source of Rows", must, shown))
    if path.suffix.lower() == ".parquet":
        return _Parquet(path, columns, shown, follows)
    try:
        array = read_array(path)
    except ValueError as error:
        raise ValueError(checks.message(shown, "a whole .npy file of numbers", str(error))) from error
    return _Array(array, columns, shown)


def _files(source: object) -> list[Path]:
    if isinstance(source, (str, os.PathLike)):
        place = Path(source)
        if not place.is_dir():
            return [place]
        found = [path for path in place.iterdir() if path.suffix.lower() in ENDINGS and path.name[0] not in "._"]
        return sorted(found) or [place]
    if isinstance(source, Sequence) and source and all(isinstance(one, (str, os.PathLike)) for one in source):
        return [Path(one) for one in source]
    must = "a file, a folder, several files or an array"
    raise TypeError(checks.message("source of Rows", must, type(source).__name__))
