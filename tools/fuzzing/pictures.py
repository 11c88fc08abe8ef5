"""Fuzzing of the publishers' own files of images: IDX, pickles, .mat, plain bytes, JPEG."""

from __future__ import annotations

import functools
import gzip
import io
import pickle
import struct
from random import Random
from typing import Any

import numpy as np
from askew_paper.data import images
from askew_paper.data.pickled import read_pickled

from fuzzing.changes import EXTREMES, changed_bytes
from fuzzing.targets import Target, check, put

__all__ = ["TARGETS"]

Files = dict[str, bytes]


# ---------------------------------------------------------------------- IDX, as MNIST has it


def idx(shape: tuple[int, ...], random: Random) -> bytes:
    sizes = [random.choice(EXTREMES) & 0xFFFFFFFF if random.random() < 0.05 else size for size in shape]
    return (
        bytes((0, 0, 8, len(shape)))
        + struct.pack(f">{len(shape)}I", *sizes)
        + bytes(i % 10 for i in range(int(np.prod(shape))))
    )


def make_idx(random: Random) -> bytes:
    content = idx((random.randrange(3), 28, 28) if random.random() < 0.5 else (random.randrange(9),), random)
    if random.random() < 0.3:
        content = gzip.compress(content, 1, mtime=0)
    elif random.random() < 0.002:
        content = gzip.compress(idx((60000,), random) + bytes(1 << 24), 1, mtime=0)
    return changed_bytes(content, random) if random.random() < 0.9 else content


def run_idx(content: bytes) -> int:
    path = put("idx", content)
    shape = (None, 28, 28) if content[3:4] == b"\x03" else (None,)
    array = images._idx(path, shape)
    check(array.dtype == np.uint8 and array.ndim == len(shape), "another array than asked for")
    check(array.size <= 1032 * len(content), "more bytes than the file can hold")
    return 1


def make_mnist(random: Random) -> Files:
    count = random.randrange(4)
    pair = [idx((count, 28, 28), random), idx((count,), random)]
    number = random.randrange(2)
    pair[number] = changed_bytes(pair[number], random)
    return dict(zip(("images", "labels"), pair, strict=True))


def run_mnist(case: Files) -> int:
    pixels, labels = images._read_mnist([put(name, content) for name, content in case.items()])
    check(len(pixels) == len(labels) and pixels.shape[1:] == (1, 28, 28), "other numbers of images and labels")
    check(not len(labels) or (labels.min() >= 0 and labels.max() <= 9), "a label out of range")
    return 1


# ---------------------------------------------------------------------- pickles, as CIFAR-10 has them


@functools.cache
def batches() -> tuple[bytes, ...]:
    """Return small batches as Python 2 and 3 write them, and what a pickle may be besides."""
    data = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    batch = {b"data": data, b"labels": [3, 9], b"batch_label": b"one", b"filenames": [b"a.png", b"b.png"]}
    kinds: list[Any] = [batch, [1, (2, "x"), {b"k": None}], b"bytes", {b"labels": [True]}, (((), [])), 1 << 70]
    found = [pickle.dumps(kind, protocol=2) for kind in kinds] + [pickle.dumps(batch, protocol=4)]
    small = {b"data": np.zeros((0, 3072), np.uint8), b"labels": []}
    return (*found, pickle.dumps(small, protocol=2), pickle.dumps({b"a": np.arange(6, dtype=np.uint8)}, protocol=2))


INSTRUCTIONS = (
    b"R",
    b"b",
    b"0",
    b"2",
    b"(",
    b"t",
    b"e",
    b"u",
    b"s",
    b"a",
    b"]",
    b"}",
    b")",
    b"q\x00",
    b"h\x00",
    b"h\xff",
    b".",
)
INSTRUCTIONS += (
    b"\x80\x02",
    b"cos\nsystem\n",
    b"c__builtin__\neval\n",
    b"N",
    b"K\x05",
    b"\x85",
    b"\x86",
    b"\x87",
    b"U\x02ls",
)
INSTRUCTIONS += (
    b"J\xff\xff\xff\x7f",
    b"X\xff\xff\xff\x7f",
    b"T\xff\xff\xff\xff",
    b"B\xff\xff\xff\x7f",
    b"\x8a\xff",
    b"G" + bytes(8),
)
INSTRUCTIONS += (
    b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n",
    b"c_codecs\nencode\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
)
INSTRUCTIONS += (
    b"i__main__\nx\n",
    b"Pid\n",
    b"Q",
    b"\x81",
    b"\x92",
    b"L12L\n",
    b"I1\n",
    b"F1e999\n",
    b"Vx\n",
    b"S'x'\n",
)


def make_pickle(random: Random) -> bytes:
    content = random.choice(batches()[1:6]) if random.random() < 0.6 else random.choice(batches())
    if random.random() < 0.3:
        body = b"".join(random.choice(INSTRUCTIONS) for _ in range(random.randrange(1, 20)))
        return b"\x80\x02" + body + b"."
    if random.random() < 0.5:
        place = random.randrange(len(content))
        return content[:place] + random.choice(INSTRUCTIONS) + content[place:]
    return changed_bytes(content, random)


def run_pickle(content: bytes) -> int:
    check(_plain(read_pickled(content)), "something that is no plain data")
    return 1


def _plain(value: Any, depth: int = 0) -> bool:
    if depth > 8:
        return True
    if isinstance(value, (list, tuple)):
        return all(_plain(item, depth + 1) for item in value[:9])
    if isinstance(value, dict):
        return all(_plain(item, depth + 1) for item in list(value.values())[:9])
    # What is begun and never filled, and marks, are the reader's own.
    known = (int, str, bytes, np.ndarray)
    return value is None or isinstance(value, known) or type(value) is object


def make_cifar(random: Random) -> bytes:
    content = random.choice((batches()[0], batches()[0], batches()[7]))
    head, tail = content[:400], content[400:]
    return changed_bytes(head, random) + tail if random.random() < 0.7 else head + changed_bytes(tail, random)


def run_cifar(content: bytes) -> int:
    pixels, labels = images._batch(put("batch", content))
    check(pixels.shape == (len(labels), 3, 32, 32) and labels.dtype == np.int64, "other shapes")
    return 1


# ---------------------------------------------------------------------- .mat, as SVHN has it


@functools.cache
def mats() -> tuple[bytes, ...]:
    from scipy.io import savemat

    found = []
    for packed in (False, True):
        for count in (1, 2):
            file = io.BytesIO()
            pixels = (np.arange(32 * 32 * 3 * count) % 251).astype(np.uint8).reshape(32, 32, 3, count)
            savemat(file, {"X": pixels, "y": np.full((count, 1), 10, np.uint8)}, do_compression=packed)
            found.append(file.getvalue())
    return tuple(found)


def make_mat(random: Random) -> bytes:
    content = random.choice(mats())
    if random.random() < 0.6:  # what is declared stands at the beginning and at the end
        head = changed_bytes(content[120:260], random)
        return content[:120] + head + content[260:]
    return changed_bytes(content, random, mats())


def run_mat(content: bytes) -> int:
    pixels, labels = images._read_svhn([put("svhn.mat", content)])
    check(pixels.shape == (len(labels), 3, 32, 32), "other shapes")
    check(not len(labels) or (labels.min() >= 0 and labels.max() <= 9), "a label out of range")
    return 1


# ---------------------------------------------------------------------- STL-10 and JPEG


def make_stl(random: Random) -> Files:
    count = random.choice((0, 1, 1, 2))
    labels = bytes(random.choice((1, 10, 5, 0, 255)) if random.random() < 0.3 else 1 for _ in range(count))
    pixels = bytes(27648 * count)
    if random.random() < 0.4:
        pixels = pixels[: random.randrange(len(pixels) + 1)] + random.choice((b"", b"x", bytes(27648)))
    return {
        "train_X.bin": pixels,
        "train_y.bin": changed_bytes(labels, random)[:100] if random.random() < 0.4 else labels,
    }


def run_stl(case: Files) -> int:
    pixels, labels = images._read_stl10([put(name, content) for name, content in case.items()])
    check(pixels.shape == (len(labels), 3, 96, 96) and labels.min() >= 0 and labels.max() <= 9, "other shapes")
    return 1


@functools.cache
def jpegs() -> tuple[bytes, ...]:
    from PIL import Image

    found = []
    for size, mode in (((8, 8), "RGB"), ((24, 16), "L"), ((16, 16), "CMYK")):
        file = io.BytesIO()
        Image.new(mode, size, 77).save(file, "JPEG")
        found.append(file.getvalue())
    return tuple(found)


def run_jpeg(content: bytes) -> int:
    pixels = images._jpegs([put("a00.jpg", content)], 8)
    check(pixels.shape == (1, 3, 8, 8), "another shape")
    return 1


TARGETS = (
    Target("idx", make_idx, run_idx, guided=True),
    Target("mnist", make_mnist, run_mnist),
    Target("pickled", make_pickle, run_pickle, guided=True),
    Target("cifar", make_cifar, run_cifar),
    Target("mat", make_mat, run_mat),
    Target("stl", make_stl, run_stl),
    Target("jpeg", lambda random: changed_bytes(random.choice(jpegs()), random, jpegs()), run_jpeg),
)
