"""Connections to Milvus: the embedded engine on a path, or a server at an address."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from askew import checks

__all__ = ["EXTRA", "check_uri", "connect", "disconnect", "is_address", "listening"]

EXTRA = "milvus"
CONNECT_SECONDS = 10.0
EMBEDDED = "milvus_lite.server_manager"
# These log errors that are raised as well, with tracebacks, and what the embedded engine cannot do.
LOGGERS = (
    EMBEDDED,
    "grpc._server",
    "milvus_lite.adapter.grpc.servicer",
    "pymilvus.decorators",
    "pymilvus.client.iterator.query_iterator",
)

# Indexes of this process on each path of the embedded engine. A finalizer may run while the lock is held.
_users: Counter[str] = Counter()
_lock = threading.RLock()


def is_address(uri: str | os.PathLike[str]) -> bool:
    """Return whether this is the address of a server, and not a path."""
    return isinstance(uri, str) and ("://" in uri or uri.startswith("unix:"))


def check_uri(uri: object, owner: str) -> tuple[str, str | None]:
    """Return what to connect to, and the path if it is that of the embedded engine."""
    what = f"uri of {owner}"
    must = "a path that ends in .db, or an address such as 'http://localhost:19530'"
    if not isinstance(uri, (str, os.PathLike)):
        raise TypeError(checks.message(what, must, repr(uri)))
    if is_address(uri):
        if "@" in str(uri):  # it would end up in files and in errors
            raise ValueError(checks.message(what, "without a password", "one with an '@'", "Give it as token."))
        return str(uri), None
    path = Path(uri).resolve()
    if path.suffix != ".db":
        raise ValueError(checks.message(what, must, repr(str(uri))))
    if not path.parent.is_dir():
        hint = "Make the folder first."
        raise FileNotFoundError(checks.message(what, "in a folder that exists", repr(str(uri)), hint))
    if path.exists() and not path.is_dir():
        hint = "Files of milvus-lite 2 cannot be read by version 3: choose another path and add the items again."
        got = f"the file {str(uri)!r}"
        raise NotADirectoryError(checks.message(what, "a new path, or a folder that MilvusIndex has made", got, hint))
    return str(path), str(path)


def connect(milvus: ModuleType, uri: str, path: str | None, token: str | None, owner: str) -> Any:
    """Return a client of pymilvus; for a path, start the embedded engine in this process unless it is there."""
    if path is not None:
        checks.optional_import(EMBEDDED, EXTRA, f"{owner} on a path")
    # A proxy that the environment names is for servers, and cannot reach this process.
    options = {} if path is None else {"grpc.enable_http_proxy": 0}
    with _lock, listening() as heard:
        try:
            client = milvus.MilvusClient(uri, token=token or "", timeout=CONNECT_SECONDS, grpc_options=options)
        except milvus.MilvusException as error:
            if path is None:
                must = "the address of a Milvus server that answers"
                hint = "Start the server, or correct the address or the token."
                got = f"{uri!r} ({said(error)})"
                raise ConnectionError(checks.message(f"uri of {owner}", must, got, hint)) from error
            if not _users[path]:
                _release(path)
            must = "a path that can be written to and that no other process has open"
            got = f"{uri!r} ({heard[0] if heard else said(error)})"
            raise OSError(checks.message(f"uri of {owner}", must, got)) from error
        if path is not None:
            _users[path] += 1
    return client


def disconnect(client: Any, path: str | None) -> None:
    """Close a client and, after the last one on its path, the embedded engine."""
    with _lock, listening():
        client.close()
        if path is None:
            return
        _users[path] -= 1
        if _users[path] <= 0:
            del _users[path]
            _release(path)


def _release(path: str) -> None:
    """End the embedded engine on a path, which closed clients leave at work and the path locked."""
    checks.optional_import(EMBEDDED, EXTRA, "a path").server_manager_instance.release_server(path)


def said(error: BaseException) -> str:
    """Return the message of an exception of pymilvus, in one line."""
    return " ".join(str(getattr(error, "message", error)).split())


class _Listener(logging.Filter):
    """Keeps the exceptions that are logged, and the terminal quiet."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[BaseException] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Let nothing pass."""
        if record.exc_info and record.exc_info[1] is not None:
            self.heard.append(record.exc_info[1])
        return False


@contextlib.contextmanager
def listening() -> Iterator[list[BaseException]]:
    """Hear why the engine fails, which it tells its log and not its caller."""
    listener = _Listener()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(listener)
    try:
        yield listener.heard
    finally:
        for logger in loggers:
            logger.removeFilter(listener)
