"""Searches in several threads while items come and go."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Gate"]


class Gate:
    """Lets any number of readers in, or one writer; writers that wait come before new readers, or they never would.

    A change prepares what it can beside the readers, and writes only to put that to work. A change may begin another
    one inside; readers and writers must not enter again.

    Attributes
    ----------
    torn : bool
        Whether a writer is at work or was interrupted, by Ctrl-C or any other error: a reader that sees it must not
        trust what is there.

    Examples
    --------
    >>> gate = Gate()
    >>> with gate.reading():
    ...     with gate.reading():  # of another thread, say
    ...         pass
    >>> with gate.changing():
    ...     with gate.writing():
    ...         pass
    """

    def __init__(self) -> None:
        self.torn = False
        self._changes = threading.RLock()
        self._changed = threading.Condition()
        self._readers = 0
        self._waiting = 0
        self._writes = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keep writers out."""
        inside = False
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._writes and not self._waiting)
                self._readers += 1
                inside = True
            yield
        finally:
            if inside:
                with self._changed:
                    self._readers -= 1
                    self._changed.notify_all()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Keep other changes out, while readers go on."""
        with self._changes:
            yield

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep readers out, too: for the shortest time, inside :meth:`changing`."""
        inside = False
        try:
            with self._changed:
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: not self._writes and not self._readers)
                    inside = self._writes = True  # the first of the two, whatever comes between them
                finally:
                    self._waiting -= 1
                    self._changed.notify_all()
            self.torn = True
            yield
            self.torn = False
        finally:
            if inside:
                with self._changed:
                    self._writes = False
                    self._changed.notify_all()

    def __deepcopy__(self, memo: dict[int, Any]) -> Gate:
        """Return a gate of its own for the copy of an index."""
        return _again(self.torn)

    def __reduce__(self) -> tuple[Callable[[bool], Gate], tuple[bool]]:
        """Go to other processes as a new gate."""
        return _again, (self.torn,)


def _again(torn: bool) -> Gate:
    gate = Gate()
    gate.torn = torn
    return gate
