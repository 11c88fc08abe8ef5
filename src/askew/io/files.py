"""Files that are whole or absent: written under another name and renamed, checked when read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from askew import checks
from askew._version import __version__

# Raised whenever files of an older askew can no longer be read as they are.
FORMAT = 1
# Levels that a description may have; a wrapper around a model takes about five.
DEEPEST = 200
HEADER = "askew"


def version() -> str:
    """Return the version of askew, for files to say what wrote them."""
    return __version__


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path that replaces ``path`` once the block has ended without an error.

    After an error, or if the process is killed at any moment, ``path`` is the old file, or absent as before. The new
    one is flushed to the disk before it is renamed. The folder must exist; a symbolic link is followed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "a.txt") as temporary:
    ...         size = temporary.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    target = Path(os.path.realpath(path))
    # Hidden, so that nothing that lists the folder takes it for a result; short, as names have a longest length.
    temporary = target.with_name(f".{target.name[:80]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        _flush(temporary, os.O_RDWR)
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        # The name of the temporary file would not tell what could not be written.
        if isinstance(error, OSError) and error.errno and str(error.filename or temporary) == str(temporary):
            raise type(error)(error.errno, f"{str(path)!r} could not be written: {error.strerror}") from error
        raise
    # The file has its name already; Windows and some file systems do not let folders be flushed.
    with contextlib.suppress(OSError):
        _flush(target.parent, os.O_RDONLY)


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------- one file of tensors


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], description: Mapping[str, object]
) -> None:
    """Write named tensors and a description of them as one safetensors file, all or nothing.

    Tensors may be views of each other, which become copies. The description is JSON with a string under ``kind``, which
    :func:`load_tensors` asks for; the versions of format and askew and a checksum are added.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "state.safetensors"
    ...     save_tensors(file, {"step": torch.tensor(3)}, {"kind": "checkpoint", "loss": 0.5})
    ...     tensors, description = load_tensors(file, "checkpoint")
    >>> tensors["step"], description["loss"]
    (tensor(3), 0.5)
    """
    plain = _plain_copies(tensors)
    header = {**description, "format": FORMAT, "askew": version()}
    text = json.dumps(header | {"checksum": checksum(header, plain)}, allow_nan=False)
    with atomic_write(path) as temporary:
        try:
            # safetensors replaces the file by one that only its owner may read; others get what the umask leaves them.
            temporary.touch()
            mode = temporary.stat().st_mode
            save_file(plain, temporary, metadata={HEADER: text})
            temporary.chmod(mode)
        except SafetensorError as error:
            why = f"{error}. What was there before is untouched."
            raise OSError(f"{str(path)!r} could not be written: {why}") from error


def _plain_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors in main memory, no two of which share it."""
    plain: dict[str, Tensor] = {}
    storages = set()
    for name, tensor in tensors.items():
        checks.check_plain(tensor, f"tensor {name!r} of a file")
        copy = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        address = copy.untyped_storage().data_ptr()
        plain[name] = copy.clone() if address in storages else copy
        storages.add(address)
    return plain


def checksum(header: object, tensors: Mapping[str, Tensor] | None = None) -> str:
    """Return the SHA-256 of a JSON value and of the names, dtypes, shapes and bytes of tensors."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, allow_nan=False).encode())
    for name, tensor in sorted(_plain_copies(tensors or {}).items()):
        digest.update(f"\n{name!a} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_tensors(
    path: str | os.PathLike[str], kind: str, mapped: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and description of a file of :func:`save_tensors`; anything but what was written is an error.

    With ``mapped`` the numbers stay in the file, mapped into memory, and only what is used takes any. The file may then
    be replaced or removed, but not changed in place.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is truncated, damaged, of another program, of another kind or of a newer askew.

    Examples
    --------
    >>> load_tensors("nowhere.safetensors", "checkpoint")
    Traceback (most recent call last):
    FileNotFoundError: path must be an askew file. Got 'nowhere.safetensors' instead.
    """
    shown = repr(str(path))
    if not Path(path).is_file():
        raise FileNotFoundError(checks.message("path", "an askew file", shown))
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(HEADER, "null")
            description = check_description(read_json(text, shown), shown, kind)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if not mapped:  # copies stay right if the file is changed later
                tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    except SafetensorError as error:
        raise ValueError(damaged(shown, str(error))) from None
    except RuntimeError:
        if Path(path).is_file():
            raise
        # Removed meanwhile: torch opens the file a second time.
        raise FileNotFoundError(checks.message("path", "an askew file", shown)) from None
    if description.pop("checksum", None) != checksum(description, tensors):
        raise ValueError(damaged(shown, "its checksum does not fit"))
    return tensors, description


def damaged(shown: str, why: str) -> str:
    """Return the error message for a file that is not as it was written."""
    hint = "Use another copy, or write it again."
    return checks.message(shown, "a whole askew file", f"one that is damaged or cut short ({why})", hint)


def check_description(description: object, shown: str, kind: str) -> dict[str, Any]:
    """Return the description of a file if this version of askew can read it and it is of this kind."""
    found = description.get("format") if isinstance(description, dict) else None
    if not isinstance(description, dict) or type(found) is not int or found < 1:
        raise ValueError(checks.message(shown, "a file written by askew", "a file of another program"))
    if found > FORMAT:
        wrote = f"format {found}, which was written by a newer askew ({str(description.get('askew'))[:20]})"
        hint = "Install a newer version of askew."
        raise ValueError(checks.message(shown, f"of format {FORMAT} or older", wrote, hint))
    if description.get("kind") != kind:
        raise ValueError(checks.message(shown, f"an askew {kind}", f"an askew {str(description.get('kind'))[:40]}"))
    return description


def read_json(text: str | bytes, shown: str) -> object:
    """Parse strict JSON; ``shown`` names its file in errors."""
    try:
        value: object = json.loads(text)
        json.dumps(value, allow_nan=False)  # raises if a number is none
        if _depth(value) > DEEPEST:  # whatever goes through it afterwards goes as deep as it is
            raise ValueError(f"it has more than {DEEPEST} levels")
    except (ValueError, RecursionError) as error:
        raise ValueError(damaged(shown, f"its JSON cannot be read: {error}")) from None
    return value


def _depth(node: object) -> int:
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return 1 + max(map(_depth, items), default=0)


# Characters that no text file may hold: controls, surrogates, and noncharacters.
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    r"""Replace characters that no text file may hold by the replacement character.

    Examples
    --------
    >>> ascii(printable("a\x00b"))
    "'a\\ufffdb'"
    """
    return UNPRINTABLE.sub("\ufffd", text)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write printable text in UTF-8, all or nothing."""
    with atomic_write(path) as temporary:
        temporary.write_text(printable(text), encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Write a value as indented JSON, all or nothing."""
    write_text(path, json.dumps(value, allow_nan=False, indent=1) + "\n")
