"""Published sets of images, read from the publishers' own files and kept decoded in the cache folder."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew.io import atomic_write
from askew.io.arrays import DEFLATE
from askew_paper.data.files import Folder, Source, cache_folder, find, register
from askew_paper.data.mat import read_mat
from askew_paper.data.pickled import read_pickled

__all__ = ["Images", "image_names", "load_holidays", "load_images"]

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]

SPLITS = ("train", "test")
# Raised whenever decoding gives other arrays than before.
DECODING = 1
# More bytes than any of these sets has in one file.
MOST_BYTES = 1 << 31
CHUNK = 1 << 20
# More pixels than any photograph of these sets has; a file of a few bytes can declare billions.
MOST_PIXELS = 1 << 26
HOLIDAYS = 300


@dataclass(frozen=True)
class Images:
    """Images with labels.

    Attributes
    ----------
    name : str
        What the set is called.
    pixels : array of shape (n, channels, height, width)
        Bytes as published, uint8; nothing is scaled.
    labels : array of shape (n,)
        The class of each image, from 0, int64.

    Examples
    --------
    >>> images = Images("black", np.zeros((2, 3, 8, 8), np.uint8), np.array([0, 1]))
    >>> len(images)
    2
    """

    name: str
    pixels: Pixels
    labels: Labels

    def __len__(self) -> int:
        return len(self.pixels)


Arrays = tuple[Pixels, Labels]


@dataclass(frozen=True)
class _Set:
    train: tuple[Source, ...]
    test: tuple[Source, ...]
    read: Callable[[Sequence[Path]], Arrays]


def image_names() -> list[str]:
    """Return the names that :func:`load_images` knows.

    Examples
    --------
    >>> image_names()
    ['mnist', 'cifar10', 'svhn', 'stl10']
    """
    return list(SETS)


def load_images(name: str, split: str = "train", folder: Folder = None) -> Images:
    """Return the images of a published set.

    The first call decodes the publisher's files, later ones read the arrays from :func:`askew_paper.data.cache_folder`,
    as long as the files are the same. Nothing is downloaded; :func:`askew_paper.data.download` does that.

    Parameters
    ----------
    name
        One of :func:`image_names`.
    split
        ``"train"`` or ``"test"``.
    folder
        Where the files are; ``ASKEW_DATA`` or the cache folder by default.

    Raises
    ------
    FileNotFoundError
        If a file is missing; the message says where it comes from and where to put it.
    ValueError
        If a file is damaged or not the published one.

    Examples
    --------
    >>> load_images("mnist", "validation")
    Traceback (most recent call last):
    ValueError: split of load_images must be one of 'train', 'test'. Got 'validation' instead.
    """
    checks.check_name(name, SETS, "name of a set of images")
    checks.check_name(split, SPLITS, "split of load_images")
    known = SETS[name]
    paths = [find(source, folder) for source in (known.train if split == "train" else known.test)]
    pixels, labels = _cached(f"{name}-{split}", paths, lambda: known.read(paths))
    return Images(name, pixels, labels)


def load_holidays(size: int = 72, folder: Folder = None) -> Pixels:
    """Return the INRIA Holidays images of the overlap experiment, sorted by file name.

    These are the first 300 whose names end in 00, one of each scene, all that the publisher's first archive has.
    Each is resized to a square, whatever its shape. Needs Pillow, ``pip install "askew[images]"``.

    Parameters
    ----------
    size
        Height and width.
    folder
        Where the folder ``holidays`` with the JPEG files is; ``ASKEW_DATA`` or the cache folder by default.

    Returns
    -------
    array of shape (300, 3, size, size)
        Bytes, uint8.

    References
    ----------
    Jegou, Douze, Schmid (2008), Hamming embedding and weak geometry consistency for large scale image search.

    Examples
    --------
    >>> load_holidays(folder="nowhere")
    Traceback (most recent call last):
    FileNotFoundError: holidays must be in the folder 'nowhere'. Got no such file instead. Download it from ...
    """
    size = checks.check_size(size, "size of load_holidays")
    place = find(HOLIDAYS_SOURCE, folder)
    paths = sorted((path for path in place.glob("*00.jpg") if path.is_file()), key=lambda path: path.name)
    if len(paths) < HOLIDAYS:
        must = f"a folder with the {HOLIDAYS} images whose names end in 00.jpg"
        hint = f"Put those of jpg1.tar.gz, from {HOLIDAYS_SOURCE.url}, there."
        raise ValueError(checks.message(f"{str(place)!r}", must, f"{len(paths)} of them", hint))
    paths = paths[:HOLIDAYS]
    pixels, _ = _cached(f"holidays-{size}", paths, lambda: (_jpegs(paths, size), np.arange(HOLIDAYS)))
    return pixels


def _jpegs(paths: Sequence[Path], size: int) -> Pixels:
    image = checks.optional_import("PIL.Image", "images", "reading JPEG files")
    pixels = np.empty((len(paths), 3, size, size), np.uint8)
    for number, path in enumerate(paths):
        try:
            with image.open(path, formats=("JPEG",)) as opened:
                if opened.width * opened.height > MOST_PIXELS:
                    raise ValueError(f"it declares {opened.width} x {opened.height} pixels")
                # Large photographs are decoded at a fraction of their size, which is still twice what is wanted.
                opened.draft("RGB", (2 * size, 2 * size))
                colours = opened.convert("RGB")
                if colours.size != (size, size):
                    colours = colours.resize((size, size), image.Resampling.BILINEAR)
                pixels[number] = np.asarray(colours).transpose(2, 0, 1)
        except Exception as error:  # Pillow raises many kinds for a file that is no such one; all mean the same here
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise _bad(path, "a whole JPEG file", f"one that cannot be read ({error})") from error
    return pixels


def _bad(path: Path, must: str, got: str) -> ValueError:
    return ValueError(checks.message(f"{str(path)!r}", must, got, "Fetch it again from its publisher."))


# ---------------------------------------------------------------------- decoded arrays are kept


def _cached(label: str, paths: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
    """Return what ``decode`` gives, from the cache folder where it was made from the same files.

    There is one file for each label, so that the cache does not grow with every folder that data are read from. It
    holds everything, with the checksums that a zip archive has, so that damage shows.
    """
    states = [(os.path.abspath(path), os.stat(path)) for path in paths]
    key = json.dumps([DECODING, [[path, state.st_size, state.st_mtime_ns] for path, state in states]])
    try:
        file = cache_folder() / "decoded" / f"{label}.npz"
    except RuntimeError:  # a user without a home
        return decode()
    try:
        with zipfile.ZipFile(file) as kept:
            if str(_member(kept, "key")) == key:
                pixels, labels = _member(kept, "pixels"), _member(kept, "labels")
                if pixels.dtype == np.uint8 and labels.dtype == np.int64 and len(pixels) == len(labels):
                    return pixels, labels
    except Exception:
        pass  # absent, or damaged in one of many ways: made again
    pixels, labels = decode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as temporary, temporary.open("xb") as written:
            np.savez(written, key=np.array(key), pixels=pixels, labels=labels)
    except OSError:
        pass  # a read-only or full cache is no reason to fail
    return pixels, labels


def _member(kept: zipfile.ZipFile, name: str) -> NDArray[Any]:
    # Read as a whole, as only then its checksum is looked at.
    array: NDArray[Any] = np.load(io.BytesIO(kept.read(f"{name}.npy")), allow_pickle=False)
    return array


# ---------------------------------------------------------------------- MNIST


def _idx(path: Path, shape: tuple[int | None, ...]) -> Pixels:
    """Read an IDX file of bytes, plain or compressed by gzip, whose shape fits (None: any size)."""
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        try:
            # What gzip gives is a file to read from, but its type does not say so.
            file = cast(BinaryIO, gzip.GzipFile(fileobj=plain)) if packed else plain
            head = file.read(4 + 4 * len(shape))
            if len(head) < 4 or head[:4] != bytes((0, 0, 8, len(shape))):
                must = f"an IDX file of bytes with {len(shape)} dimensions, beginning with 0000080{len(shape)}"
                raise _bad(path, must, f"one that begins with {head[:4].hex() or 'nothing'}")
            if len(head) < 4 + 4 * len(shape):
                raise _bad(path, "a whole IDX file", "one that ends in its header")
            sizes = struct.unpack(f">{len(shape)}I", head[4:])
            if any(want not in (None, size) for want, size in zip(shape, sizes, strict=True)):
                wanted = " x ".join("n" if want is None else str(want) for want in shape)
                raise _bad(path, f"an IDX file of {wanted} bytes", f"one of {' x '.join(map(str, sizes))}")
            declared = math.prod(sizes)
            length = path.stat().st_size
            most = length * DEFLATE if packed else length - len(head)
            if declared > min(most, MOST_BYTES):
                raise _bad(path, "a whole IDX file", f"one of {length} bytes that declares {declared}")
            content = bytearray()
            # One byte more, to see whether there is; in blocks, so that memory is taken only for what is there.
            while block := file.read(min(CHUNK, declared + 1 - len(content))):
                content += block
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _bad(path, "a whole gzip file", f"a damaged one ({error})") from error
    if len(content) != declared:
        got = f"one that declares {declared} bytes and has {'more' if len(content) > declared else len(content)}"
        raise _bad(path, "a whole IDX file", got)
    return np.frombuffer(content, np.uint8).reshape(sizes).copy()


def _read_mnist(paths: Sequence[Path]) -> Arrays:
    pixels = _idx(paths[0], (None, 28, 28))
    labels = _idx(paths[1], (len(pixels),))
    return pixels[:, None], _classes(paths[1], labels, 0)


def _classes(path: Path, labels: NDArray[Any], first: int) -> Labels:
    """Return ten classes as they are, or raise; ``first`` is the lowest one."""
    if len(labels) and not (first <= labels.min() and labels.max() <= first + 9):
        must = f"a file of labels from {first} to {first + 9}"
        raise _bad(path, must, f"one with labels from {labels.min()} to {labels.max()}")
    return labels.astype(np.int64)


# ---------------------------------------------------------------------- CIFAR-10


def _read_cifar10(paths: Sequence[Path]) -> Arrays:
    batches = [_batch(path) for path in paths]
    return np.concatenate([pixels for pixels, _ in batches]), np.concatenate([labels for _, labels in batches])


def _batch(path: Path) -> Arrays:
    try:
        batch = read_pickled(path.read_bytes())
    except ValueError as error:
        raise _bad(
            path, "a python batch of CIFAR-10", f"one that is damaged or holds more than data ({error})"
        ) from error
    data = batch.get(b"data") if isinstance(batch, dict) else None
    labels = batch.get(b"labels") if isinstance(batch, dict) else None
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == 3072):
        got = f"{data.dtype} of shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise _bad(path, "a python batch of CIFAR-10, with uint8 'data' of shape (n, 3072)", got)
    if not (isinstance(labels, list) and len(labels) == len(data) and all(type(label) is int for label in labels)):
        got = f"{len(labels)}" if isinstance(labels, list) else type(labels).__name__
        raise _bad(path, f"a python batch of CIFAR-10, with a list of {len(data)} integers 'labels'", got)
    return data.reshape(-1, 3, 32, 32).copy(), _classes(path, np.array(labels, dtype=object), 0)


# ---------------------------------------------------------------------- SVHN


def _read_svhn(paths: Sequence[Path]) -> Arrays:
    path = paths[0]
    must = "a .mat file of SVHN, format 2, with bytes X of 32 x 32 x 3 x n and y of n x 1"
    try:
        found = read_mat(path, ("X", "y"), MOST_BYTES)
    except ValueError as error:
        raise _bad(path, must, f"one that cannot be read: {error}") from error
    missing = [name for name in ("X", "y") if name not in found]
    if missing:
        raise _bad(path, must, f"no bytes {missing[0]}")
    pixels, labels = found["X"], found["y"]
    if pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise _bad(path, must, f"X of {' x '.join(map(str, pixels.shape))}")
    if labels.shape != (pixels.shape[3], 1):
        raise _bad(path, must, f"y of {' x '.join(map(str, labels.shape))}")
    # Zero is written as 10.
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), _classes(path, labels[:, 0], 1) % 10


# ---------------------------------------------------------------------- STL-10


def _read_stl10(paths: Sequence[Path]) -> Arrays:
    images, labels = paths
    pixel_count = 3 * 96 * 96
    length = images.stat().st_size
    if length == 0 or length % pixel_count or length > MOST_BYTES:
        raise _bad(images, f"a file of images of {pixel_count} bytes each", f"{length} bytes")
    if labels.stat().st_size != length // pixel_count:
        got = f"{labels.stat().st_size} bytes"
        raise _bad(labels, f"a file of {length // pixel_count} labels, as many as there are images", got)
    # Columns first, as published.
    pixels = np.fromfile(images, np.uint8).reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(pixels), _classes(labels, np.fromfile(labels, np.uint8), 1) - 1


# ---------------------------------------------------------------------- where they come from


def _mnist(stem: str, images: str, labels: str) -> tuple[Source, ...]:
    base = "https://ossci-datasets.s3.amazonaws.com/mnist"
    return tuple(
        Source(f"MNIST/raw/{stem}-{file}", f"{base}/{stem}-{file}", md5=md5, terms="CC BY-SA 3.0")
        for file, md5 in (("images-idx3-ubyte.gz", images), ("labels-idx1-ubyte.gz", labels))
    )


def _cifar10(*files: str) -> tuple[Source, ...]:
    url, md5 = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"
    paths = [f"cifar-10-batches-py/{file}" for file in files]
    return tuple(Source(path, url, md5=md5, terms="none stated; cite Krizhevsky 2009", member=path) for path in paths)


def _svhn(file: str, md5: str) -> tuple[Source, ...]:
    url = f"http://ufldl.stanford.edu/housenumbers/{file}"
    return (Source(f"svhn/{file}", url, md5=md5, terms="not for commercial use"),)


def _stl10(*files: str) -> tuple[Source, ...]:
    url, md5 = "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz", "91f7769df0f17e558f3565bffb0c7dfb"
    paths = [f"stl10_binary/{file}" for file in files]
    return tuple(Source(path, url, md5=md5, terms="see the publisher's page", member=path) for path in paths)


SETS = {
    "mnist": _Set(
        _mnist("train", "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432"),
        _mnist("t10k", "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
        _read_mnist,
    ),
    "cifar10": _Set(
        _cifar10(*(f"data_batch_{number}" for number in range(1, 6))), _cifar10("test_batch"), _read_cifar10
    ),
    "svhn": _Set(
        _svhn("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        _svhn("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        _read_svhn,
    ),
    "stl10": _Set(_stl10("train_X.bin", "train_y.bin"), _stl10("test_X.bin", "test_y.bin"), _read_stl10),
}
HOLIDAYS_SOURCE = Source("holidays", "http://lear.inrialpes.fr/people/jegou/data.php#holidays", terms="research")

for _name, _files in SETS.items():
    register(_name, _files.train + _files.test)
register("holidays", [HOLIDAYS_SOURCE])
