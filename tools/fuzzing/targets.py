"""What is fuzzed: a target makes cases from random numbers and runs them; an outcome is refused, accepted or wrong."""

from __future__ import annotations

import functools
import os
import re
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["Target", "Wrong", "check", "describe", "generator", "place", "put", "write_case"]

# Errors that a user may see, if their message says what must be and what was got.
REFUSALS = (ValueError, TypeError, KeyError, OSError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
FORMS = re.compile(
    r"must be .*(\. Got .* instead|, but .*\.)|line \d+ of .* is damaged: |could not be written"
    # What scikit-learn says of a table, the same from all estimators.
    r"|Found array with (0 sample|0 feature|dim)|Input .* contains (NaN|infinity)|Expected 2D array, got"
    r"|Complex data not supported|Sample weights must|Unable to convert array of bytes|could not convert string to"
    r" float|dtype='numeric' is not compatible",
    re.DOTALL,
)


class Wrong(Exception):  # noqa: N818
    """An answer that is not right."""


@dataclass(frozen=True)
class Target:
    """Something that takes input from outside.

    Parameters
    ----------
    name
        On the command line.
    make
        Returns a case from random numbers: bytes, a dict of file names to bytes, or plain Python values.
    run
        Takes a case; returns the number of rows it checked, 1 for files. Raises what the library raises, or `Wrong`.
    guided
        Whether a case is bytes, so that a coverage-guided engine can make them.
    share
        Share of the time, relative to the 1 of others.
    work
        How many times longer than others a case may take: some do as much on purpose.
    """

    name: str
    make: Callable[[Random], Any]
    run: Callable[[Any], int]
    guided: bool = False
    share: int = 1
    work: int = 1


def generator(name: str, seed: int, number: int) -> Random:
    """Return the random numbers of one case: they depend on nothing but target, seed and number."""
    return Random((sum(ord(c) * 257**i for i, c in enumerate(name)) << 80) ^ (seed << 40) ^ number)


def check(condition: object, what: str) -> None:
    """Raise `Wrong` unless the condition holds."""
    if not condition:
        raise Wrong(what)


@functools.cache
def place() -> Path:
    """Return a folder in main memory, where there is one, that belongs to this process."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.TemporaryDirectory(prefix="askew-fuzz-", dir=base)
    _KEPT.append(folder)  # removed when the process ends
    return Path(folder.name)


_KEPT: list[Any] = []


def put(name: str, content: bytes) -> Path:
    """Write a file to the folder in main memory and return its path."""
    path = place() / name
    with open(path, "wb") as file:
        file.write(content)
    return path


# ---------------------------------------------------------------------- outcomes


def describe(error: BaseException) -> str:
    """Return what is bad about an error, with the place it came from; nothing if it is a refusal with a message."""
    chain, cause = [], error
    while cause is not None and len(chain) < 10:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    if any(isinstance(link, MemoryError) or "not enough memory" in str(link) for link in chain):
        return f"memory: {type(error).__name__} at {_origin(error)}"
    if type(error) in REFUSALS or type(error).__module__.startswith("askew."):
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        if FORMS.search(text):
            return ""
        return f"not a refusal: {type(error).__name__}: {text[:120]!r} at {_origin(error)}"
    return f"{type(error).__name__}: {str(error)[:160]!r} at {_origin(error)}"


def _origin(error: BaseException) -> str:
    """Return the innermost place in the library, or else in the target, that an error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}askew{os.sep}" in frame.filename] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"


def write_case(case: Any, path: Path) -> None:
    """Write a case to a file, or to a folder if it has several files."""
    if isinstance(case, bytes):
        path.write_bytes(case)
    elif isinstance(case, Mapping) and case and all(isinstance(value, bytes) for value in case.values()):
        path.mkdir(parents=True, exist_ok=True)
        for number, (name, content) in enumerate(case.items()):
            safe = re.sub(r"[^A-Za-z0-9_.-]", "_", str(name))[:80] or "file"
            (path / f"{number}-{safe}").write_bytes(content)
    else:
        path.write_text(ascii(case) + "\n", encoding="ascii")
