"""Read .npy, .npz and Parquet files of others: no code is run, and no file takes more memory than it can fill."""

from __future__ import annotations

import io
import math
import os
import sys
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Compression by deflate gives no more than this times the bytes that it takes.
DEFLATE = 1032
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# Values that any Parquet file may unpack to: equal ones take no room in a file.
MOST_VALUES = 1 << 26


def read_array(path: str | os.PathLike[str]) -> Array:
    """Return the array of a ``.npy`` file, mapped into memory, so that only what is used takes any.

    The file must hold exactly the bytes that its header declares, and no Python objects. The message of the ValueError
    says what is wrong, not in which file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/a.npy", np.arange(3))
    ...     read_array(f"{folder}/a.npy").tolist()
    [0, 1, 2]
    """
    with Path(path).open("rb") as file:
        shape, order, dtype = _header(file, os.fstat(file.fileno()).st_size)
        if math.prod(shape) == 0:  # nothing to map
            return np.empty(shape, dtype)
        return _readable(np.memmap(file, dtype, "r", file.tell(), shape, order))


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of a ``.npz`` file, plain or compressed, by their names.

    An archive whose members declare more than compression can have saved is refused before anything is unpacked. The
    message of the ValueError says what is wrong, not in which file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", x=np.arange(3), y=np.zeros((1, 2)))
    ...     {name: array.shape for name, array in read_arrays(f"{folder}/a.npz").items()}
    {'x': (3,), 'y': (1, 2)}
    """
    arrays = {}
    with Path(path).open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                length, members = os.fstat(file.fileno()).st_size, archive.infolist()
                declared = sum(member.file_size for member in members)
                if any(member.compress_size > length for member in members):  # so much would be taken to read it
                    raise ValueError(f"it has {length} bytes and members that say they are longer")
                if declared > DEFLATE * length:
                    raise ValueError(f"it has {length} bytes that say they unpack to {declared}")
                for member in members:
                    arrays[member.filename.removesuffix(".npy")] = _unpacked(archive.read(member))
        except Exception as error:  # damaged archives raise many kinds
            raise ValueError(f"it is no whole archive of arrays: {error}") from error
    return arrays


def _unpacked(content: bytes) -> Array:
    file = io.BytesIO(content)
    shape, order, dtype = _header(file, len(content))
    return _readable(np.frombuffer(content, dtype, math.prod(shape), file.tell()).reshape(shape, order=order))


def _readable(array: Array) -> Array:
    """Return an array whose text has characters only: numpy takes any number for one, and then Python fails."""
    if array.dtype.kind == "U" and array.size:
        codes = array.reshape(-1, order="A").view(f"{array.dtype.byteorder}u4")
        if codes.max() > sys.maxunicode:
            raise ValueError("it has text with numbers that are no characters")
    return array


def _header(file: BinaryIO, length: int) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Return shape, order and dtype of an array whose bytes are the rest of the file, and nothing else."""
    try:
        shape, fortran, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    except Exception as error:  # damaged headers raise many kinds
        what = " ".join(str(error).split())[:200]
        raise ValueError(f"it is no array of numpy: {what}") from error
    odd = any(type(size) is not int or size < 0 for size in shape) or len(shape) > 32
    if odd or dtype.hasobject or dtype.itemsize == 0:  # Python objects are not read
        raise ValueError(f"it is {dtype} of shape {shape}")
    declared, there = math.prod(shape) * dtype.itemsize, length - file.tell()
    if declared != there or (declared == 0 and max(shape, default=0) > length):
        raise ValueError(f"it declares {declared} bytes, {dtype} of shape {shape}, and has {there}")
    return shape, "F" if fortran else "C", dtype


# ---------------------------------------------------------------------- Parquet


def group_rows(file: Any) -> list[int]:
    """Return the number of rows that each row group of an open ``pyarrow.parquet.ParquetFile`` declares.

    The total number of rows that a file declares is ignored, as readers ignore it.
    """
    counts = [int(file.metadata.row_group(number).num_rows) for number in range(file.metadata.num_row_groups)]
    if min(counts, default=0) < 0:
        raise ValueError(f"it says that it has a group of {min(counts)} rows")
    return counts


def check_values(values: int, length: int) -> None:
    """Raise ValueError if a file of ``length`` bytes declares far more values that are read at a time.

    Examples
    --------
    >>> check_values(10**9, 1200)
    Traceback (most recent call last):
    ValueError: it has 1200 bytes that say they are 1000000000 values
    """
    if values > max(MOST_VALUES, DEFLATE * length):
        raise ValueError(f"it has {length} bytes that say they are {values} values")
