"""Searches in several threads while items come and go."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["Gate"]


class Gate:
    """Lets any number of readers in, or one writer; writers that wait come before new readers, or they never would.

    Neither may be entered again from inside.

    Examples
    --------
    >>> gate = Gate()
    >>> with gate.reading():
    ...     with gate.reading():  # of another thread, say
    ...         pass
    >>> with gate.writing():
    ...     pass
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._waiting = 0
        self._writes = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keep writers out."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writes and not self._waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep everybody else out."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writes and not self._readers)
                self._writes = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._writes = False
                self._changed.notify_all()

    def __deepcopy__(self, memo: dict[int, Any]) -> Gate:
        """Return a gate of its own for the copy of an index."""
        return Gate()

    def __reduce__(self) -> tuple[type[Gate], tuple[()]]:
        """Go to other processes as a new gate."""
        return Gate, ()
