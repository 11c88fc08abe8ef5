"""Folders of several files that change in one step, as models and indexes do.

The files with the numbers come first, under names that no other version has. One JSON file, the description, names them
and is replaced last, by a rename: a process that is killed at any moment leaves the old version or the new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from askew import checks
from askew.io.files import FORMAT, check_description, checksum, damaged, read_json, version, write_json

# How often a folder is read again that other processes keep replacing.
READINGS = 20

Loaded = TypeVar("Loaded")
Content = dict[str, Any]


@dataclass(frozen=True)
class FolderFormat:
    """What is in a folder of one kind.

    Attributes
    ----------
    kind : str
        ``"model"`` or ``"index"``; the description is called ``model.json`` or ``index.json``.
    part : str
        Regular expression for the names of the other files, which also keeps a description from naming a file outside
        its folder.
    parts : callable
        Returns the names of these files from the content of a description; may raise KeyError, TypeError,
        AttributeError if that has another form.
    """

    kind: str
    part: str
    parts: Callable[[Any], Iterable[object]]

    @property
    def description(self) -> str:
        """Name of the file that names the others."""
        return f"{self.kind}.json"

    def is_part(self, name: object) -> bool:
        """Return whether a name can be that of a part."""
        return isinstance(name, str) and re.fullmatch(self.part, name) is not None


def write_folder(
    form: FolderFormat, folder: str | os.PathLike[str], write: Callable[[Path, dict[str, str]], Content]
) -> None:
    """Write a new version into a folder in one step, and remove the files of the old one.

    Another process that writes there waits. After an error the folder is what it was before.

    Parameters
    ----------
    form
        What the folder holds.
    folder
        Created if it does not exist.
    write
        Writes the parts into the folder, enters their names into the dict as it goes, and returns the content of the
        description; format, version, kind and checksum are added.
    """
    place = Path(folder)
    old_parts(form, place)  # a folder of another program is refused before anything is created
    try:
        place.mkdir(parents=True, exist_ok=True)
        with only_writer(place, rf"{form.part}|{re.escape(form.description)}"):
            old, parts = old_parts(form, place), dict[str, str]()
            try:
                content = {"format": FORMAT, "askew": version(), "kind": form.kind, **write(place, parts)}
                write_json(place / form.description, {**content, "checksum": checksum(content)})
            finally:
                # Parts of the version that is not there: the old one, or after an error the new one.
                _remove(place, (old | set(parts.values())) - old_parts(form, place))
    except OSError as error:
        got, hint = f"{str(folder)!r} ({error})", "What was there before is untouched."
        raise type(error)(checks.message("folder", "one that can be written to", got, hint)) from error


def _remove(place: Path, names: Iterable[str]) -> None:
    """Remove parts: files, or folders with a model."""
    for path in (place / name for name in names):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def old_parts(form: FolderFormat, folder: Path) -> set[str]:
    """Return the parts of the version in a folder, if there is one; a description of another program is an error."""
    path = folder / form.description
    if not path.exists():
        return set()
    shown = repr(str(path))
    try:
        names = set(form.parts(check_description(read_json(path.read_bytes(), shown), shown, form.kind)))
    except (ValueError, KeyError, TypeError, AttributeError):
        must = f"without {form.description}, or with one that askew wrote"
        hint = "Choose another folder, or remove the file."
        raise ValueError(checks.message("folder", must, shown, hint)) from None
    return {str(name) for name in names if form.is_part(name)}


def read_description(form: FolderFormat, folder: str | os.PathLike[str], writer: str) -> Content:
    """Return the checked content of a description, without its checksum.

    ``writer`` is the function that writes such folders, for the error of a folder without a description.
    """
    path = Path(folder) / form.description
    shown = repr(str(path))
    if not path.is_file():
        must = f"one that {writer} wrote, with its {form.description}"
        raise FileNotFoundError(checks.message("folder", must, repr(str(folder))))
    description = check_description(read_json(path.read_bytes(), shown), shown, form.kind)
    if description.pop("checksum", None) != checksum(description):
        raise ValueError(damaged(shown, "its checksum does not fit"))
    return description


def settled(form: FolderFormat, folder: str | os.PathLike[str], read: Callable[[], Loaded]) -> Loaded:
    """Return what ``read`` gives, reading again if it failed because another process has replaced the version."""
    path = Path(folder) / form.description
    for _ in range(READINGS):
        before = _identity(path)
        try:
            return read()
        except (OSError, ValueError):
            if before is None or _identity(path) == before:
                raise
    return read()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from one of the same content that replaces it."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns


@contextlib.contextmanager
def only_writer(folder: str | os.PathLike[str], names: str) -> Iterator[None]:
    """Lock a folder while files that belong together are written to it; other processes that ask for it wait.

    The folder itself is locked (``flock``): no lock file stays behind, and the system releases the lock if the process
    is killed. Readers do not ask for it. Temporary files that killed processes left of ``names``, a regular expression,
    are removed first. On Windows, and on file systems that cannot lock folders, nobody waits and nothing is removed.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Unlocked, those of another process at work would look the same. They may be what filled the disk.
            for path in Path(folder).iterdir():
                if re.fullmatch(rf"\.({names})\.\d+\.[0-9a-f]{{8}}\.tmp", path.name):
                    path.unlink(missing_ok=True)
        yield
    finally:
        # Unlock explicitly: a forked child may still hold the descriptor.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def writable_folder(folder: str | os.PathLike[str], what: str = "folder") -> Path:
    """Create a folder if need be, and return it if files can be written to it; an OSError calls it ``what``.

    Call it before long work, so that nothing is lost at the end.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writable_folder(Path(folder) / "a" / "b").name
    'b'
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        why = "it is a file" if place.is_file() else error.strerror or error
        got = f"{str(folder)!r} ({why})"
        raise type(error)(error.errno, checks.message(what, "one that can be written to", got)) from error
    return place
