"""Arrays of bytes in MATLAB's files of version 5, as SVHN is published in.

Readers in native code trust what such a file declares, and a damaged one can end the process. What is needed here is
little: elements with a tag of type and size, some of them packed by zlib, of which an array is made of four.

References
----------
MathWorks: MAT-File Format, level 5.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from askew.io.arrays import DEFLATE

__all__ = ["read_mat"]

HEADER = 128
# Types of elements, and the class of an array of bytes.
INT8, UINT8, INT32, UINT32, MATRIX, PACKED = 1, 2, 5, 6, 14, 15
BYTES = 9
COMPLEX = 0x0800
# Bytes of a name, and numbers of a shape, beyond which nobody means it.
LONGEST = 1 << 10
CHUNK = 1 << 20

Read = Callable[[int], bytes]


def read_mat(path: Path, names: Collection[str], most: int) -> dict[str, NDArray[np.uint8]]:
    """Return those of some arrays in a file that are there and are of bytes; all others are passed over.

    Parameters
    ----------
    path
        A file of version 5, bytes in the order of Intel's.
    names
        Of the arrays.
    most
        Bytes that an array may have.

    Raises
    ------
    ValueError
        If the file is no such one, or damaged, or declares more than it can have.
    """
    length = path.stat().st_size
    found: dict[str, NDArray[np.uint8]] = {}
    seen: set[str] = set()
    with path.open("rb") as file:
        head = file.read(HEADER)
        if len(head) < HEADER or head[124:128] != b"\x00\x01IM":
            raise ValueError("it has no header of version 5")
        while file.tell() < length:
            kind, size, small = _tag(_exactly(file))
            start = file.tell()
            if small or size > length - start:
                raise ValueError("an element is cut short")
            if kind == PACKED:
                read: Read = _Unpacked(file, size).read
                kind, inner, small = _tag(read)
                room = inner if not small and inner <= size * DEFLATE else -1
            else:
                read, room = _exactly(file), size
            if kind == MATRIX:
                if room < 0:
                    raise ValueError("an array declares more than it can have")
                name, array = _matrix(read, names, min(room, most))
                if name in seen:  # which of two would be meant?
                    raise ValueError("two arrays have one name")
                seen.add(name)
                if array is not None:
                    found[name] = array
            file.seek(start + size)
    return found


def _matrix(read: Read, names: Collection[str], room: int) -> tuple[str, NDArray[np.uint8] | None]:
    """Return the name of an array and its values; None where these are not bytes, or not asked for."""
    flags = _element(read, UINT32, 8)
    (flag,) = struct.unpack("<I", flags[:4]) if len(flags) == 8 else (0,)
    sizes = _element(read, INT32, LONGEST)
    if len(flags) != 8 or len(sizes) % 4 or len(sizes) < 8:
        raise ValueError("an array has no shape")
    shape = struct.unpack(f"<{len(sizes) // 4}i", sizes)
    name = _element(read, INT8, LONGEST).decode("latin-1")
    if name not in names or flag & 0xFF != BYTES or flag & COMPLEX:
        return name, None
    count = math.prod(shape)
    if min(shape) < 0 or count > room:
        raise ValueError(f"array {name!r} declares {' x '.join(map(str, shape))} values, more than it can have")
    values = _element(read, UINT8, count)
    if len(values) != count:
        raise ValueError(f"array {name!r} has {len(values)} of {count} values")
    return name, np.frombuffer(values, np.uint8).reshape(shape, order="F")


def _element(read: Read, wanted: int, most: int) -> bytes | bytearray:
    """Return the content of the next element, which must have a type and no more than some bytes."""
    kind, size, small = _tag(read)
    if kind != wanted or size > most:
        raise ValueError(f"an element of type {wanted} and at most {most} bytes is of type {kind} with {size}")
    if small:
        return read(4)[:size]
    content = bytearray()
    while len(content) < size:  # what a file declares is not taken before it is there
        content += read(min(CHUNK, size - len(content)))
    if size % 8:
        read(8 - size % 8)
    return content


def _tag(read: Read) -> tuple[int, int, bool]:
    """Return the type and the size of an element, and whether its content stands in the tag."""
    (first,) = struct.unpack("<I", read(4))
    if first >> 16:
        if first >> 16 > 4:
            raise ValueError("a small element is larger than four bytes")
        return first & 0xFFFF, first >> 16, True
    (size,) = struct.unpack("<I", read(4))
    return first, size, False


def _exactly(file: BinaryIO) -> Read:
    def read(count: int) -> bytes:
        content = file.read(count)
        if len(content) < count:
            raise ValueError("it is cut short")
        return content

    return read


class _Unpacked:
    """What an element packed by zlib holds, unpacked as far as it is asked for."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.left = file, size
        self.zlib = zlib.decompressobj()
        self.ready = bytearray()

    def read(self, count: int) -> bytes:
        while len(self.ready) < count:
            packed = self.zlib.unconsumed_tail
            if not packed:
                packed = self.file.read(min(CHUNK, self.left))
                self.left -= len(packed)
            try:
                more = self.zlib.decompress(packed, CHUNK)
            except zlib.error as error:
                raise ValueError(f"it is damaged ({error})") from None
            if not more and not packed:
                raise ValueError("it is cut short")
            self.ready += more
        content = bytes(self.ready[:count])
        del self.ready[:count]
        return content
