"""Rows of results as JSON lines: appended as they finish, by any number of processes, and never lost halfway."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from askew import checks
from askew_paper.experiment import Cell

__all__ = ["Row", "RowFile"]

# Raised whenever rows of an older askew can no longer be read as they are.
FORMAT = 1
# An integer may be larger than a float can be.
LARGEST = sys.float_info.max


# ---------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Row:
    """What came out of one cell, and where.

    Parameters
    ----------
    cell
        What was computed.
    scores, curves, chosen
        As in :class:`~askew_paper.experiment.Outcome`.
    seconds
        How long it took.
    started
        When, in coordinated universal time.
    versions
        Of askew, Python and the packages that compute.
    commit
        Of the source of askew, with a ``+`` if files of it were changed since; None outside a repository.
    machine
        Cores, threads and kind of system.

    Examples
    --------
    >>> row = Row(Cell("sums", "small", "exact", 0, "quick"), {"mae": 0.5}, 1.25, started="2023-01-01T00:00:00Z")
    >>> Row.from_line(row.to_line()) == row
    True
    """

    cell: Cell
    scores: Mapping[str, float]
    seconds: float
    started: str
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    chosen: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)

    def to_line(self) -> bytes:
        """Return it as one line of JSON."""
        content = {
            "format": FORMAT,
            "key": self.cell.key,
            **self.cell.description(),
            "scores": dict(self.scores),
            "curves": {name: list(values) for name, values in self.curves.items()},
            "chosen": dict(self.chosen),
            "seconds": self.seconds,
            "started": self.started,
            "versions": dict(self.versions),
            "commit": self.commit,
            "machine": dict(self.machine),
        }
        return json.dumps(content, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Row:
        """Return the row of one line; a ValueError says what is wrong with it."""
        try:
            return cls._from_line(line)
        except RecursionError:
            raise ValueError("it is too deep") from None

    @classmethod
    def _from_line(cls, line: bytes) -> Row:
        try:
            content = json.loads(line, parse_constant=_no_constant)
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise ValueError("it is no JSON") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            got = content.get("format") if isinstance(content, dict) else type(content).__name__
            raise ValueError(f"it is no row of format {FORMAT} but has {got!r}")
        kinds: dict[str, type | tuple[type, ...]] = {
            "scores": dict,
            "curves": dict,
            "chosen": dict,
            "options": dict,
            "versions": dict,
            "machine": dict,
            "seconds": (int, float),
            "started": str,
            "commit": (str, type(None)),
            "key": str,
        }
        for name, kind in kinds.items():
            if not isinstance(content.get(name, ...), kind):
                raise ValueError(f"{name!r} is missing or of a wrong kind")
        pairs = tuple(sorted((name, _tuples(value)) for name, value in content["options"].items()))
        names = ("experiment", "setting", "method", "seed", "scale")
        # Of whatever kind they are, the cell checks them.
        parts: dict[str, Any] = {name: content.get(name) for name in names}
        cell = Cell(options=pairs, **parts)
        if cell.key != content["key"]:
            raise ValueError(f"its key is {content['key']!r}, but that of its settings is {cell.key!r}")
        row = {name: content[name] for name in ("chosen", "versions", "machine", "started", "commit")}
        (row["seconds"],) = _numbers((content["seconds"],), "'seconds'")
        curves = {name: _numbers(values, f"curve {name!r}") for name, values in content["curves"].items()}
        scores = dict(zip(content["scores"], _numbers(content["scores"].values(), "a score"), strict=True))
        return cls(cell, scores=scores, curves=curves, **row)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _numbers(values: object, what: str) -> tuple[float, ...]:
    """Return finite numbers; JSON has no others, but one that is too large for a float reads as infinite."""
    if not isinstance(values, Iterable):
        raise ValueError(f"{what} is no list of numbers")
    found = tuple(values)
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) or not abs(v) <= LARGEST for v in found):
        raise ValueError(f"{what} is no finite number")
    return found


# ---------------------------------------------------------------------- files of rows


class RowFile:
    """The rows of one experiment in a folder: one line each, only ever appended.

    A line is written at once, flushed to the disk, and only while no other process writes to the file. So a
    process that is killed leaves at most half a line at the end: such a line is reported and ignored by
    readers, and cut off by the next writer.

    Parameters
    ----------
    path
        Of the file; it need not exist.

    Attributes
    ----------
    rows : dict of str to Row
        By the keys of their cells, in the order of the file.

    Examples
    --------
    >>> import tempfile
    >>> row = Row(Cell("sums", "small", "exact", 0, "quick"), {"mae": 0.5}, 1.25, started="2023-01-01T00:00:00Z")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     RowFile(Path(folder) / "sums.jsonl").append(row)
    ...     RowFile(Path(folder) / "sums.jsonl").append(row)
    ...     len(RowFile(Path(folder) / "sums.jsonl").rows)
    True
    False
    1
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rows: dict[str, Row] = {}
        self._lines: list[bytes] = []
        self._end = 0
        self.refresh()

    def refresh(self) -> None:
        """Read what other processes have appended since."""
        with contextlib.suppress(FileNotFoundError), _opened(self.path, write=False) as descriptor:
            self._catch_up(descriptor)

    def append(self, row: Row) -> bool:
        """Write a row; False if the file has one of this cell already, which then stays as it is."""
        line = row.to_line()
        with _opened(self.path, write=True) as descriptor:
            self._catch_up(descriptor, hint=True)
            if row.cell.key in self.rows:
                return False
            _write(descriptor, line, self._end, self.path)
            self._accept(line[:-1], row)
        return True

    def _accept(self, line: bytes, row: Row) -> None:
        self.rows[row.cell.key] = row
        self._lines.append(line)
        self._end += len(line) + 1

    def _catch_up(self, descriptor: int, hint: bool = False) -> None:
        """Take in what follows the part of the file that is known; with ``mend``, leave whole lines only."""
        size = os.fstat(descriptor).st_size
        if size < self._end:
            raise ValueError(f"{str(self.path)!r} was cut by another program while rows were written to it.")
        *lines, rest = _read(descriptor, self._end).split(b"\n")
        for line in lines:
            self._accept(line, self._parse(line))
        if not rest:
            return
        try:
            row = self._parse(rest)
        except ValueError:
            if hint:
                os.ftruncate(descriptor, self._end)
            self._report_half(hint)
            return
        # Whole but for the line break, as some editors leave it.
        if hint:
            _write(descriptor, b"\n", size, self.path)
            self._accept(rest, row)
        else:
            self.rows[row.cell.key] = row

    def _parse(self, line: bytes) -> Row:
        """Return the row of the line that comes next; errors name the file and the line."""
        number = len(self._lines) + 1
        where = f"line {number} of {str(self.path)!r}"
        try:
            row = Row.from_line(line)
        except ValueError as error:
            hint = "Delete the line to have it computed again."
            raise ValueError(f"{where} is damaged: {error}. {hint}") from None
        if row.cell.experiment != self.path.stem:
            must = f"a row of {self.path.stem!r}, like its file"
            raise ValueError(checks.message(where, must, f"one of {row.cell.experiment!r}"))
        known = self.rows.get(row.cell.key)
        if known is not None and known != row:
            hint = "Delete one of the two lines."
            raise ValueError(checks.message(where, "the only row of its cell", f"a second one of {row.cell}", hint))
        return row

    def _report_half(self, hint: bool) -> None:
        what = f"line {len(self._lines) + 1} of {str(self.path)!r} is half written, as a killed process leaves it"
        then = "it was cut off" if hint else "it is ignored"
        warnings.warn(f"{what}; {then}, and the cell is computed again by the next run.", RuntimeWarning, stacklevel=4)


@contextlib.contextmanager
def _opened(path: Path, write: bool) -> Iterator[int]:
    """Give a descriptor of the file while no other process writes to it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND if write else os.O_RDONLY
    new = write and not path.exists()
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with _locked(descriptor, write):
            yield descriptor
    finally:
        os.close(descriptor)
    if new and os.name == "posix":
        # Some file systems do not let folders be flushed; the file has its name already.
        with contextlib.suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


@contextlib.contextmanager
def _locked(descriptor: int, write: bool) -> Iterator[None]:
    """Wait for the other processes that hold the file, and hold it; the system lets go if this one is killed."""
    if sys.platform == "win32":
        import msvcrt

        # A byte far beyond the end, as this lock keeps others from reading what is locked.
        os.lseek(descriptor, 1 << 62, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
        try:
            yield
        finally:
            os.lseek(descriptor, 1 << 62, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
        except OSError:
            # Some network file systems know no locks: reading goes without, writing does not.
            if write:
                raise
        # Closing the descriptor lets go.
        yield


def _read(descriptor: int, start: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _write(descriptor: int, data: bytes, end: int, path: Path) -> None:
    """Append all of ``data`` or nothing, and wait until it is on the disk."""
    os.lseek(descriptor, 0, os.SEEK_END)
    try:
        written = os.write(descriptor, data)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end)
        raise
