"""Published sets of images, read from the publishers' own files and kept decoded in the cache folder."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import pickle
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew.io import atomic_write
from askew_paper.data import files
from askew_paper.data.files import Folder, Source, cache_folder, find

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Arrays = tuple[Pixels, Labels]

# Raised whenever decoding gives other arrays than before.
DECODING = 1
HOLIDAYS = 300


@dataclass(frozen=True)
class Images:
    """Images with labels.

    Examples
    --------
    >>> images = Images("black", np.zeros((2, 3, 8, 8), np.uint8), np.array([0, 1]))
    >>> len(images)
    2
    """

    name: str
    pixels: Pixels  # (n, channels, height, width), bytes as published
    labels: Labels  # (n,), the class of each image, from 0

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True)
class _Set:
    train: tuple[Source, ...]
    test: tuple[Source, ...]
    read: Callable[[Sequence[Path]], Arrays]


def load_images(name: str, split: str = "train", folder: Folder = None) -> Images:
    """Return the images of a published set (a key of :data:`SETS`), its split ``"train"`` or ``"test"``.

    The first call decodes the publisher's files, later ones read the arrays from :func:`askew_paper.data.cache_folder`,
    as long as the files are the same. Nothing is downloaded; :func:`askew_paper.data.download` does that.

    Examples
    --------
    >>> load_images("mnist", "validation")
    Traceback (most recent call last):
    ValueError: split of load_images must be one of 'train', 'test'. Got 'validation' instead.
    """
    known = SETS[checks.check_name(name, SETS, "name of a set of images")]
    checks.check_name(split, ("train", "test"), "split of load_images")
    paths = [find(source, folder) for source in (known.train if split == "train" else known.test)]
    return Images(name, *_cached(f"{name}-{split}", paths, lambda: known.read(paths)))


def load_holidays(size: int = 72, folder: Folder = None) -> Pixels:
    """Return the INRIA Holidays images of the overlap experiment, sorted by file name: ``(300, 3, size, size)``, uint8.

    These are the first 300 whose names end in 00, one of each scene, all that the publisher's first archive has.
    Each is resized to a square, whatever its shape.

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
    (source,) = files.SETS["holidays"]
    place = find(source, folder)
    paths = sorted((path for path in place.glob("*00.jpg") if path.is_file()), key=lambda path: path.name)
    if len(paths) < HOLIDAYS:
        must = f"a folder with the {HOLIDAYS} images whose names end in 00.jpg"
        hint = f"Put those of jpg1.tar.gz, from {source.url}, there."
        raise ValueError(checks.message(f"{str(place)!r}", must, f"{len(paths)} of them", hint))
    paths = paths[:HOLIDAYS]
    return _cached(f"holidays-{size}", paths, lambda: (_read_jpegs(paths, size), np.arange(HOLIDAYS)))[0]


def _read_jpegs(paths: Sequence[Path], size: int) -> Pixels:
    from PIL import Image

    pixels = np.empty((len(paths), 3, size, size), np.uint8)
    for number, path in enumerate(paths):
        try:
            with Image.open(path, formats=("JPEG",)) as opened:
                # Large photographs are decoded at a fraction of their size, which is still twice what is wanted.
                opened.draft("RGB", (2 * size, 2 * size))
                colours = opened.convert("RGB")
                if colours.size != (size, size):
                    colours = colours.resize((size, size), Image.Resampling.BILINEAR)
                pixels[number] = np.asarray(colours).transpose(2, 0, 1)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise _bad(path, "a whole JPEG file", f"one that cannot be read ({error})") from error
    return pixels


def _bad(path: Path, must: str, got: str) -> ValueError:
    return ValueError(checks.message(f"{str(path)!r}", must, got, "Download it again from its publisher."))


def _cached(label: str, paths: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
    """Return what ``decode`` gives, from the cache folder if it was made from the same files.

    There is one file for each label: the cache does not grow with every folder that data are read from.
    """
    states = [(os.path.abspath(path), os.stat(path)) for path in paths]
    key = json.dumps([DECODING, [[path, state.st_size, state.st_mtime_ns] for path, state in states]])
    file = cache_folder() / "decoded" / f"{label}.npz"
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as kept:
            if str(kept["key"]) == key:
                return kept["pixels"], kept["labels"]
    except Exception:
        pass  # absent, or damaged in one of many ways: decoded again
    pixels, labels = decode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as temporary, temporary.open("xb") as written:
            np.savez(written, key=np.array(key), pixels=pixels, labels=labels)
    except OSError:
        pass  # a read-only or full cache is no reason to fail
    return pixels, labels


# ---------------------------------------------------------------------- formats


def _classes(path: Path, labels: NDArray[Any], first: int) -> Labels:
    """Return ten classes as they are, or raise; ``first`` is the lowest one."""
    if len(labels) and not (first <= labels.min() and labels.max() <= first + 9):
        must = f"a file of labels from {first} to {first + 9}"
        raise _bad(path, must, f"one with labels from {labels.min()} to {labels.max()}")
    return labels.astype(np.int64)


def _idx(path: Path, shape: tuple[int, ...]) -> Pixels:
    """Return the bytes of an IDX file, plain or compressed by gzip, in items of some shape."""
    content = path.read_bytes()
    dimensions = 1 + len(shape)
    try:
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        sizes = struct.unpack_from(f">{dimensions}I", content, 4)
    except (EOFError, zlib.error, gzip.BadGzipFile, struct.error) as error:
        raise _bad(path, "a whole IDX file", f"a damaged one ({error})") from error
    start = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or sizes[1:] != shape or len(content) != start + math.prod(sizes):
        wanted = " x ".join(["n", *map(str, shape)])
        raise _bad(path, f"an IDX file of {wanted} bytes", f"{len(content)} bytes, beginning with {content[:4].hex()}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes).copy()


def _read_mnist(paths: Sequence[Path]) -> Arrays:
    pixels, labels = _idx(paths[0], (28, 28)), _idx(paths[1], ())
    if len(pixels) != len(labels):
        raise _bad(paths[1], f"a file of {len(pixels)} labels, as many as there are images", str(len(labels)))
    return pixels[:, None], _classes(paths[1], labels, 0)


_MAKE_ARRAY = np.empty(0).__reduce__()[0]
# All that a pickle of arrays and plain data may name.
PICKLED = {
    ("numpy.core.multiarray", "_reconstruct"): _MAKE_ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): _MAKE_ARRAY,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, codec: text.encode("latin-1"),  # how Python 3 writes bytes
}


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PICKLED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return PICKLED[module, name]


def read_pickled(content: bytes) -> Any:
    r"""Return the plain data and arrays in a pickle without running code of it; strings of Python 2 become bytes.

    Examples
    --------
    >>> read_pickled(b"\x80\x02]q\x00(K\x01U\x03twoe.")
    [1, b'two']
    >>> read_pickled(b"\x80\x02cos\nsystem\nU\x02ls\x85R.")
    Traceback (most recent call last):
    ValueError: a pickle must be plain data. Got one that is damaged or holds more (it names os.system) instead.
    """
    try:
        return _DataUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # whatever a damaged pickle makes of these few names
        got = f"one that is damaged or holds more ({error})"
        raise ValueError(checks.message("a pickle", "plain data", got)) from error


def _read_cifar10(paths: Sequence[Path]) -> Arrays:
    batches = [_batch(path) for path in paths]
    return np.concatenate([pixels for pixels, _ in batches]), np.concatenate([labels for _, labels in batches])


def _batch(path: Path) -> Arrays:
    must = "a python batch of CIFAR-10, with uint8 'data' of shape (n, 3072) and a list of n integers 'labels'"
    try:
        batch = read_pickled(path.read_bytes())
        data, labels = batch[b"data"], np.array(batch[b"labels"])
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise _bad(path, must, f"{type(error).__name__}: {error}") from error
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise _bad(path, must, f"data of {getattr(data, 'dtype', type(data))} {getattr(data, 'shape', '')}")
    if labels.dtype.kind != "i" or labels.shape != data.shape[:1]:
        raise _bad(path, must, f"labels of {labels.dtype} {labels.shape}")
    return data.reshape(-1, 3, 32, 32).copy(), _classes(path, labels, 0)


def _read_svhn(paths: Sequence[Path]) -> Arrays:
    from scipy.io import loadmat

    (path,) = paths
    must = "a .mat file of SVHN, format 2, with bytes X of 32 x 32 x 3 x n and y of n x 1"
    # scipy trusts what a file declares, and a damaged one can crash the process: what is no whole file of version 5
    # is not given to it. Damage inside is found by the checksum when the file is downloaded.
    if not _is_whole_mat(path):
        raise _bad(path, must, "one that is not of version 5, or cut short")
    try:
        found = loadmat(path, variable_names=("X", "y"))
        pixels, labels = found["X"], found["y"]
    except Exception as error:
        raise _bad(path, must, f"one that cannot be read ({type(error).__name__}: {error})") from error
    is_expected = pixels.shape[:3] == (32, 32, 3) and pixels.ndim == 4 and labels.shape == (pixels.shape[3], 1)
    if not is_expected or pixels.dtype != np.uint8 or labels.dtype != np.uint8:
        raise _bad(path, must, f"X of {pixels.dtype} {pixels.shape} and y of {labels.dtype} {labels.shape}")
    # Zero is written as 10.
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), _classes(path, labels[:, 0], 1) % 10


def _is_whole_mat(path: Path) -> bool:
    """Return whether the elements of a MATLAB file of version 5 end where the file ends."""
    size, place = path.stat().st_size, 128
    with path.open("rb") as file:
        if file.read(place)[124:] != b"\x00\x01IM":
            return False
        while place + 8 <= size:
            file.seek(place)
            place += 8 + struct.unpack("<2I", file.read(8))[1]
    return place == size


def _read_stl10(paths: Sequence[Path]) -> Arrays:
    images, labels = (np.fromfile(path, np.uint8) for path in paths)
    if images.size == 0 or images.size % (3 * 96 * 96):
        raise _bad(paths[0], f"a file of images of {3 * 96 * 96} bytes each", f"{images.size} bytes")
    # Columns first, as published.
    pixels = images.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)
    if len(labels) != len(pixels):
        raise _bad(paths[1], f"a file of {len(pixels)} labels, as many as there are images", f"{len(labels)} bytes")
    return np.ascontiguousarray(pixels), _classes(paths[1], labels, 1) - 1


SETS = {
    "mnist": _Set(files.SETS["mnist"][:2], files.SETS["mnist"][2:], _read_mnist),
    "cifar10": _Set(files.SETS["cifar10"][:5], files.SETS["cifar10"][5:], _read_cifar10),
    "svhn": _Set(files.SETS["svhn"][:1], files.SETS["svhn"][1:], _read_svhn),
    "stl10": _Set(files.SETS["stl10"][:2], files.SETS["stl10"][2:], _read_stl10),
}
