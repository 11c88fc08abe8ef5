"""Folders with several writers: one at a time, and found out early where nothing can be written."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from askew import checks

__all__ = ["only_writer", "writable_folder"]


@contextlib.contextmanager
def only_writer(folder: str | os.PathLike[str], names: str) -> Iterator[bool]:
    """Hold a folder while files that belong together are written to it; another process that wants to waits.

    The folder itself is locked, so that nothing is left behind and the system lets go of it if the process is killed.
    Readers do not ask and are not held up. What killed processes have left of such files is removed first.

    Parameters
    ----------
    folder
        Which must exist.
    names
        Of the files, as a regular expression. All that write them must ask for the folder.

    Yields
    ------
    bool
        Whether other writers really wait: not on Windows, and not on file systems that cannot lock folders.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, only_writer(folder, "a.txt") as alone:
    ...     isinstance(alone, bool)
    True
    """
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            alone = True
        except OSError:  # some network file systems
            alone = False
        try:
            if alone:  # those of another process at work would look the same
                _remove_leftovers(Path(folder), names)
            yield alone
        finally:
            # Said in words, as a process that was forked meanwhile has the descriptor, too.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _remove_leftovers(folder: Path, names: str) -> None:
    """Remove what was to become of files with such names; it may be what a disk is full of."""
    pattern = re.compile(rf"\.({names})\.\d+\.[0-9a-f]{{8}}\.tmp")
    for path in folder.iterdir():
        if pattern.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def writable_folder(folder: str | os.PathLike[str], what: str = "folder") -> Path:
    """Make a folder if need be, and return it if files can be written to it.

    To be called before long work, so that nothing is lost at its end.

    Parameters
    ----------
    folder
        Where something is to be written later.
    what
        What errors call it.

    Raises
    ------
    OSError
        If nothing can be written there.

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
        got = f"{str(folder)!r} ({error.strerror or error})"
        raise type(error)(error.errno, checks.message(what, "one that can be written to", got)) from error
    return place
