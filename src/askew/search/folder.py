"""The folder of an index: what is in it, checked before it is used."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from askew import checks, io
from askew.divergences import Divergence
from askew.search.store import Store, checked_ids

__all__ = [
    "DESCRIPTION",
    "commit",
    "old_parts",
    "part_name",
    "read_description",
    "remove_part",
    "restored_store",
    "settled",
]

DESCRIPTION = "index.json"
# Also keeps a file from naming one outside of its folder.
PART = re.compile(r"(items-[0-9a-f]{16}\.safetensors|model-[0-9a-f]{16}|faiss-[0-9a-f]{16}\.index)")
FILES = rf"{PART.pattern}|index\.json"
# How often a folder is read again that other processes keep replacing.
READINGS = 20

Loaded = TypeVar("Loaded")


def part_name(kind: str, ending: str) -> str:
    """Return a new name for a file of an index."""
    return f"{kind}-{secrets.token_hex(8)}.{ending}"


def restored_store(tensors: dict[str, Tensor], divergence: Divergence, following: object, shown_file: str) -> Store:
    """Return the items of a file, checked."""
    items, ids = tensors.get("items"), tensors.get("ids")
    if (
        set(tensors) != {"items", "ids"}
        or items is None
        or ids is None
        or items.ndim != 2
        or items.dtype not in (torch.float32, torch.float64)
        or ids.dtype != torch.int64
        or ids.shape != items.shape[:1]
        or not isinstance(following, int)
    ):
        raise ValueError(io.damaged(shown_file, "its items are not as they were written"))
    if divergence.dim is not None and items.shape[1] != divergence.dim:
        got = f"of dim {items.shape[1]}"
        raise ValueError(checks.message(f"items of {shown_file}", f"of dim {divergence.dim}, as the divergence", got))
    store = Store(items.numpy(), checked_ids(ids.numpy(), shown_file))
    store._next = max(store._next, following)
    return store


def old_parts(folder: Path) -> set[str]:
    """Return the files of the index in a folder, if there is one; refuse a stranger's."""
    path = folder / DESCRIPTION
    if not path.exists():
        return set()
    shown_file = repr(str(path))
    try:
        description = io.check_description(io.read_json(path.read_bytes(), shown_file), shown_file, "index")
        names = set(description["parts"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        hint = "Choose another folder, or remove the file."
        raise ValueError(
            checks.message("folder", f"without an {DESCRIPTION} that askew did not write", shown_file, hint)
        ) from None
    return {name for name in names if isinstance(name, str) and PART.fullmatch(name)}


def commit(folder: str | os.PathLike[str], write: Callable[[Path, dict[str, str]], dict[str, Any]]) -> None:
    """Write an index to a folder in one step: its parts, then ``index.json``, which names them; remove the old parts.

    Another process that writes here waits. After an error the folder is what it was before.

    Parameters
    ----------
    folder
        Made if need be.
    write
        Writes the parts to the folder, enters their names as it goes, and returns the content of ``index.json``.
    """
    place = Path(folder)
    old_parts(place)  # a stranger's folder is refused before anything is made
    try:
        place.mkdir(parents=True, exist_ok=True)
        with io.only_writer(place, FILES):
            _write(place, write)
    except OSError as error:
        got = f"{str(folder)!r} ({error})"
        hint = "An index that was there before is untouched."
        raise type(error)(checks.message("folder", "one that can be written to", got, hint)) from error


def _write(place: Path, write: Callable[[Path, dict[str, str]], dict[str, Any]]) -> None:
    old = old_parts(place)
    parts: dict[str, str] = {}
    try:
        io.write_json(place / DESCRIPTION, write(place, parts))
    except BaseException:
        for name in set(parts.values()) - old_parts(place):
            remove_part(place / name)
        raise
    for name in old - set(parts.values()):
        remove_part(place / name)


def settled(folder: str | os.PathLike[str], read: Callable[[], Loaded]) -> Loaded:
    """Return what ``read`` gives; it reads again if it failed because another process has replaced the index."""
    path = Path(folder) / DESCRIPTION
    for _ in range(READINGS):
        before = _identity(path)
        try:
            return read()
        except (OSError, ValueError):
            if before is None or _identity(path) == before:
                raise
    return read()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from one that replaces it, though it may have the same content."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns


def remove_part(path: Path) -> None:
    """Remove a file, or the model in a folder."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            for file in path.iterdir():
                if file.name == "model.json" or file.suffix in (".safetensors", ".tmp"):
                    file.unlink()
            path.rmdir()
        else:
            path.unlink()


def read_description(folder: Path, given: str, class_name: str) -> tuple[dict[str, Any], str]:
    """Return the checked content of ``index.json`` and how to call the file in errors."""
    path = folder / DESCRIPTION
    shown_file = repr(str(path))
    if not path.is_file():
        must = f"one that {class_name}.save wrote, with an {DESCRIPTION}"
        raise FileNotFoundError(checks.message("folder", must, repr(given)))
    description = io.check_description(io.read_json(path.read_bytes(), shown_file), shown_file, "index")
    if description.pop("checksum", None) != io.checksum(description):
        raise ValueError(io.damaged(shown_file, "its checksum does not fit"))
    if description.get("class") != class_name:
        hint = f"Load it with askew.search.{str(description.get('class'))[:40]}.load."
        got = f"one of {str(description.get('class'))[:40]}"
        raise ValueError(checks.message(shown_file, f"an index of {class_name}", got, hint))
    parts, own = description.get("parts"), description.get("own")
    if not (
        isinstance(parts, dict)
        and isinstance(own, dict)
        and isinstance(description.get("settings"), dict)
        and isinstance(description.setdefault("notes", {}), dict)
        and isinstance(description.get("divergence"), str)
        and isinstance(description.get("direction"), str)
        and all(isinstance(name, str) and PART.fullmatch(name) for name in parts.values())
    ):
        raise ValueError(io.damaged(shown_file, "parts of it are missing"))
    missing = [name for name in parts.values() if not (folder / name).exists()]
    if missing:
        raise ValueError(io.damaged(shown_file, f"{missing[0]!r} is missing"))
    return description, shown_file
