"""Rows of results as JSON lines: each is appended in one write, by any number of processes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from askew import checks, io
from askew_paper.experiment import Cell

# Raised whenever rows of an older version can no longer be read as they are.
FORMAT = 1
KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("scores", "curves", "chosen", "options", "versions", "machine"), dict),
    "seconds": (int, float),
    "started": str,
    "commit": (str, type(None)),
    "key": str,
}


@dataclass(frozen=True)
class Row:
    """The result of one cell, and where it was computed.

    Examples
    --------
    >>> row = Row(Cell("sums", "small", "exact", 0, "quick"), {"mae": 0.5}, 1.25, started="2023-01-01T00:00:00Z")
    >>> Row.from_line(row.to_line()) == row
    True
    """

    cell: Cell
    scores: Mapping[str, float]
    seconds: float  # how long it took
    started: str  # in coordinated universal time
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    chosen: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  # of askew, Python and the packages that compute
    commit: str | None = None  # of the source, with a + if it was changed since; None outside a repository
    machine: Mapping[str, Any] = field(default_factory=dict)  # cores, threads and kind of system

    def to_line(self) -> bytes:
        """Return it as one line of JSON."""
        names = ("scores", "curves", "chosen", "seconds", "started", "versions", "commit", "machine")
        content = {"format": FORMAT, "key": self.cell.key, **self.cell.description()}
        content |= {name: getattr(self, name) for name in names}
        return json.dumps(content, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Row:
        """Return the row of one line; a ValueError says what is wrong with it."""
        try:
            content = json.loads(line, parse_constant=_refuse_constant)
            json.dumps(content, ensure_ascii=False).encode()
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise ValueError("it is no JSON") from None
        except UnicodeEncodeError:
            raise ValueError("it has a lone surrogate, which is no character") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            got = content.get("format") if isinstance(content, dict) else type(content).__name__
            raise ValueError(f"it is no row of format {FORMAT} but has {got!r}")
        for name, kind in KINDS.items():
            if not isinstance(content.get(name, ...), kind):
                raise ValueError(f"{name!r} is missing or of a wrong kind")
        parts: dict[str, Any] = {name: content.get(name) for name in Cell.__match_args__}  # checked by the cell
        parts["options"] = tuple(sorted((name, _tuples(value)) for name, value in content["options"].items()))
        cell = Cell(**parts)
        if cell.key != content["key"]:
            raise ValueError(f"its key is {content['key']!r}, but that of its settings is {cell.key!r}")
        _check_numbers((content["seconds"],), "'seconds'")
        _check_numbers(content["scores"].values(), "a score")
        for name, values in content["curves"].items():
            _check_numbers(values, f"curve {name!r}")
        curves = {name: tuple(values) for name, values in content["curves"].items()}
        names = ("scores", "chosen", "seconds", "started", "versions", "commit", "machine")
        return cls(cell, curves=curves, **{name: content[name] for name in names})


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _check_numbers(values: object, what: str) -> None:
    """Raise unless all are finite: JSON has no NaN, but a number that is too large for a float reads as infinite."""
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise ValueError(f"{what} is no list of numbers")
    for value in values:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not abs(value) <= sys.float_info.max:
            raise ValueError(f"{what} is no finite number")


def read(folder: str | os.PathLike[str]) -> list[Row]:
    """Return all rows of a folder that :func:`~askew_paper.runner.reproduce` wrote.

    A ValueError names the file and the line of a damaged row.

    Examples
    --------
    >>> read("no/such/folder")
    Traceback (most recent call last):
    FileNotFoundError: folder of results must be a folder with .jsonl files. Got 'no/such/folder' instead. ...
    """
    files = sorted(Path(folder).glob("*.jsonl"))
    if not files:
        must, hint = "a folder with .jsonl files", "Make them with: askew-paper run"
        raise FileNotFoundError(checks.message("folder of results", must, repr(os.fspath(folder)), hint))
    return [row for file in files for row in read_rows(file).values()]


def read_rows(path: Path) -> dict[str, Row]:
    """Return the rows of a file by the keys of their cells; half a line at the end is ignored with a warning.

    A file that does not exist has none.
    """
    if not path.exists():
        return {}
    rows, content, whole = _parsed(path)
    if whole < len(content):
        with io.only_writer(path.parent, re.escape(path.name)):  # another process may have been writing it
            rows, content, whole = _parsed(path)
    if whole < len(content):
        _warn_half(path, content, "it is ignored")
    return rows


def append_row(path: Path, row: Row) -> bool:
    """Append a row to a file and flush it to the disk; False if the file has a row of this cell, which is kept.

    Half a line at the end, as a killed process leaves it, is removed first.
    """
    line = row.to_line()
    with io.only_writer(path.parent, re.escape(path.name)):
        rows, content, whole = _parsed(path) if path.exists() else ({}, b"", 0)
        if whole < len(content):
            os.truncate(path, whole)
            _warn_half(path, content, "it was cut off")
        elif content and not content.endswith(b"\n"):  # some editors leave it out
            line = b"\n" + line
        if row.cell.key in rows:
            return False
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, whole)
            raise
        finally:
            os.close(descriptor)
    return True


def _parsed(path: Path) -> tuple[dict[str, Row], bytes, int]:
    """Return the rows of a file, its content, and the size of the content without half a line at the end."""
    content = path.read_bytes()
    *lines, last = content.split(b"\n")
    rows: dict[str, Row] = {}
    for number, line in enumerate(lines, 1):
        _add(rows, line, f"line {number} of {str(path)!r}", path.stem)
    if last:
        try:
            _add(rows, last, "", path.stem)
        except ValueError:
            return rows, content, len(content) - len(last)
    return rows, content, len(content)


def _add(rows: dict[str, Row], line: bytes, where: str, experiment: str) -> None:
    try:
        row = Row.from_line(line)
    except ValueError as error:
        raise ValueError(f"{where} is damaged: {error}. Delete the line to have it computed again.") from None
    if row.cell.experiment != experiment:
        must = f"a row of {experiment!r}, like its file"
        raise ValueError(checks.message(where, must, f"one of {row.cell.experiment!r}"))
    if rows.setdefault(row.cell.key, row) != row:
        hint = "Delete one of the two lines."
        raise ValueError(checks.message(where, "the only row of its cell", f"a second one of {row.cell}", hint))


def _warn_half(path: Path, content: bytes, then: str) -> None:
    line = content.count(b"\n") + 1
    what = f"line {line} of {str(path)!r} is half written, as a killed process leaves it; {then}"
    warnings.warn(f"{what}, and the cell is computed again by the next run.", RuntimeWarning, stacklevel=3)
