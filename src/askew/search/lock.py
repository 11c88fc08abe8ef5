"""A readers-writer lock in two phases: a change is prepared while others read, and committed while nobody does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class ReadWriteLock:
    """Lets in any number of readers, or one writer that commits; a writer that waits comes before new readers.

    Attributes
    ----------
    prepare : threading.RLock
        Keeps other writers out, while readers go on.
    dirty : bool
        Whether a commit is under way or was interrupted, by Ctrl-C or any other error. A reader that sees it inside
        :meth:`read` must not trust the data.

    Examples
    --------
    >>> lock = ReadWriteLock()
    >>> with lock.prepare:
    ...     with lock.commit():
    ...         pass
    """

    def __init__(self, dirty: bool = False) -> None:
        self.dirty = dirty
        self.prepare = threading.RLock()
        self._changed = threading.Condition()
        self._readers = 0
        self._waiting = 0
        self._commits = False

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Keep commits out."""
        inside = False
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._commits and not self._waiting)
                self._readers += 1
                inside = True
            yield
        finally:
            if inside:
                with self._changed:
                    self._readers -= 1
                    self._changed.notify_all()

    @contextlib.contextmanager
    def commit(self) -> Iterator[None]:
        """Keep readers out as well, for as short as possible; with ``prepare`` held."""
        try:
            with self._changed:
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: not self._readers)
                    self._commits = True
                finally:
                    self._waiting -= 1
            self.dirty = True
            yield
            self.dirty = False
        finally:
            with self._changed:
                self._commits = False
                self._changed.notify_all()

    def __reduce__(self) -> tuple[type[ReadWriteLock], tuple[bool]]:
        return ReadWriteLock, (self.dirty,)  # the copy of an index, or another process, gets a lock that nobody holds
