"""Images from the publishers' formats: small files made here, bad ones, and the published ones where they are."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from askew_paper.data import Images, image_names, images, load_holidays, load_images
from askew_paper.data.images import read_pickled
from scipy.io import savemat

published = pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="ASKEW_DATA does not name a folder of data")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep decoded arrays in a folder of the test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ASKEW_CACHE", str(folder))
    return folder


# ---------------------------------------------------------------------- small sets in the published formats


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes((0, 0, kind, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def random_bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def put_mnist(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    put(folder / "MNIST" / "raw" / "train-images-idx3-ubyte.gz", gzip.compress(idx(pixels)))
    put(folder / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz", gzip.compress(idx(labels)))


def put_cifar10(folder: Path, batch: object, name: str = "test_batch") -> Path:
    return put(folder / "cifar-10-batches-py" / name, pickle.dumps(batch, protocol=2))


def put_svhn(folder: Path, arrays: dict[str, np.ndarray], *, packed: bool = False) -> Path:
    (folder / "svhn").mkdir(exist_ok=True)
    savemat(folder / "svhn" / "train_32x32.mat", arrays, do_compression=packed)
    return folder / "svhn" / "train_32x32.mat"


def put_stl10(folder: Path, pixels: bytes, labels: bytes) -> None:
    put(folder / "stl10_binary" / "train_X.bin", pixels)
    put(folder / "stl10_binary" / "train_y.bin", labels)


def check_types(found: Images, name: str) -> None:
    assert found.name == name
    assert found.pixels.dtype == np.uint8
    assert found.labels.dtype == np.int64
    assert found.pixels.flags.c_contiguous
    assert found.pixels.flags.writeable
    assert len(found) == len(found.pixels) == len(found.labels)


@pytest.mark.parametrize("packed", [True, False])
def test_mnist(packed: bool, tmp_path: Path) -> None:
    pixels, labels = random_bytes(5, 28, 28), np.array([3, 0, 9, 1, 2], np.uint8)
    for file, array in (("t10k-images-idx3-ubyte", pixels), ("t10k-labels-idx1-ubyte", labels)):
        content = idx(array)
        put(tmp_path / (f"MNIST/raw/{file}.gz" if packed else file), gzip.compress(content) if packed else content)
    found = load_images("mnist", "test", tmp_path)
    check_types(found, "mnist")
    np.testing.assert_array_equal(found.pixels, pixels[:, None])
    np.testing.assert_array_equal(found.labels, labels)


def test_cifar10(tmp_path: Path) -> None:
    data = random_bytes(10, 3072)
    for number in range(5):
        batch = {b"data": data[2 * number : 2 * number + 2], b"labels": [number, 9 - number]}
        put_cifar10(tmp_path, batch, f"data_batch_{number + 1}")
    found = load_images("cifar10", folder=tmp_path)
    check_types(found, "cifar10")
    # Red of all rows, then green, then blue.
    np.testing.assert_array_equal(found.pixels[7, 1, 2], data[7, 1024 + 64 : 1024 + 96])
    np.testing.assert_array_equal(found.labels, [0, 9, 1, 8, 2, 7, 3, 6, 4, 5])


def test_batch_as_python_2_wrote_it(tmp_path: Path) -> None:
    data = random_bytes(2, 3072)
    content = (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x14testing batch 1 of 1q\x03U\x06labelsq\x04]q\x05(K\x03K\x08e"
        b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\tU\x01bq\n\x87"
        b"q\x0bRq\x0c(K\x01K\x02M\x00\x0c\x86q\rcnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11"
        b"(K\x03U\x01|q\x12NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x13b\x89T\x00\x18\x00\x00"
        + data.tobytes()
        + b"q\x14tq\x15bU\tfilenamesq\x16]q\x17(U\x05a.pngq\x18U\x05b.pngq\x19eu."
    )
    put(tmp_path / "cifar-10-batches-py" / "test_batch", content)
    assert read_pickled(content)[b"filenames"] == [b"a.png", b"b.png"]
    found = load_images("cifar10", "test", tmp_path)
    np.testing.assert_array_equal(found.pixels.reshape(2, -1), data)
    assert found.labels.tolist() == [3, 8]


@pytest.mark.parametrize("packed", [True, False])
def test_svhn(packed: bool, tmp_path: Path) -> None:
    pixels = random_bytes(32, 32, 3, 4)
    put_svhn(tmp_path, {"X": pixels, "y": np.array([[1], [10], [9], [5]], np.uint8)}, packed=packed)
    found = load_images("svhn", "train", tmp_path)
    check_types(found, "svhn")
    np.testing.assert_array_equal(found.pixels[2, 1], pixels[:, :, 1, 2])
    np.testing.assert_array_equal(found.labels, [1, 0, 9, 5])


def test_stl10(tmp_path: Path) -> None:
    columns = random_bytes(2, 3, 96, 96)
    put_stl10(tmp_path, columns.tobytes(), bytes([1, 10]))
    found = load_images("stl10", "train", tmp_path)
    check_types(found, "stl10")
    np.testing.assert_array_equal(found.pixels[1, 2], columns[1, 2].T)
    np.testing.assert_array_equal(found.labels, [0, 9])


def test_names_and_missing_files(tmp_path: Path) -> None:
    assert image_names() == ["mnist", "cifar10", "svhn", "stl10"]
    with pytest.raises(ValueError, match=r"name of a set of images must be one of 'mnist'.*Did you mean 'cifar10'"):
        load_images("cifar")
    with pytest.raises(ValueError, match="split of load_images must be one of 'train', 'test'"):
        load_images("mnist", "valid")
    for name in image_names():
        with pytest.raises(FileNotFoundError, match=rf"no such file.*download\('{name}'"):
            load_images(name, "test", tmp_path)


# ---------------------------------------------------------------------- bad files


def bad_idx() -> dict[str, tuple[bytes, str]]:
    whole = idx(random_bytes(2, 28, 28))
    huge = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**31, 28, 28)
    packed = gzip.compress(whole)
    return {
        "empty": (b"", "beginning with 00000803. Got one that begins with nothing"),
        "magic": (b"PK\3\4" + whole[4:], "Got one that begins with 504b0304"),
        "dtype": (idx(random_bytes(2, 28, 28), kind=0x0D), "an IDX file of bytes .* begins with 00000d03"),
        "labels": (idx(random_bytes(2)), "with 3 dimensions.* begins with 00000801"),
        "header": (whole[:9], "one that ends in its header"),
        "short": (whole[:-1], "one of 1583 bytes that declares 1568"),
        "long": (whole + b"0", "declares 1568 bytes and has more"),
        "huge": (huge + bytes(100), f"one of 116 bytes that declares {2**31 * 784}"),
        "size": (idx(random_bytes(2, 28, 27)), "of n x 28 x 28 bytes. Got one of 2 x 28 x 27"),
        "packed short": (gzip.compress(whole[:-1]), "declares 1568 bytes and has 1567"),
        "packed long": (gzip.compress(whole + b"0"), "declares 1568 bytes and has more"),
        "packed huge": (gzip.compress(huge + bytes(100)), "bytes that declares"),
        "packed truncated": (packed[:-200], "a whole gzip file. Got a damaged one"),
        "packed damaged": (packed[:-8] + bytes(8), "a whole gzip file. Got a damaged one"),
    }


@pytest.mark.parametrize("case", bad_idx())
def test_bad_mnist(case: str, tmp_path: Path) -> None:
    content, message = bad_idx()[case]
    put_mnist(tmp_path, random_bytes(2, 28, 28), np.array([1, 2], np.uint8))
    put(tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz", content)
    with pytest.raises(ValueError, match=message):
        load_images("mnist", folder=tmp_path)


def test_labels_of_mnist_that_do_not_fit(tmp_path: Path) -> None:
    put_mnist(tmp_path, random_bytes(2, 28, 28), np.array([1, 2, 3], np.uint8))
    with pytest.raises(ValueError, match=r"an IDX file of 2 bytes. Got one of 3"):
        load_images("mnist", folder=tmp_path)
    put_mnist(tmp_path, random_bytes(2, 28, 28), np.array([1, 10], np.uint8))
    with pytest.raises(ValueError, match=r"a file of labels from 0 to 9. Got one with labels from 1 to 10"):
        load_images("mnist", folder=tmp_path)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"data": random_bytes(2, 3072)}, "a list of 2 integers 'labels'. Got NoneType"),
        ({b"data": random_bytes(2, 3072), b"labels": [1]}, "a list of 2 integers 'labels'. Got 1"),
        ({b"data": random_bytes(2, 3072), b"labels": [1, b"2"]}, "a list of 2 integers"),
        ({b"data": random_bytes(2, 3072), b"labels": [1, 10]}, "labels from 0 to 9"),
        ({b"data": random_bytes(2, 3072), b"labels": [1, 2**200]}, "labels from 0 to 9"),
        ({b"data": random_bytes(2, 3071), b"labels": [1, 2]}, r"uint8 'data' of shape \(n, 3072\). Got uint8 of shape"),
        ({b"data": random_bytes(6144), b"labels": [1, 2]}, r"Got uint8 of shape \(6144,\)"),
        ({b"data": [1, 2], b"labels": [1, 2]}, "Got list"),
        ({b"data": np.zeros((2, 3072)), b"labels": [1, 2]}, "one that makes bytes or arrays of bytes"),
        ({b"data": np.array([{}]), b"labels": [1]}, "one that makes bytes or arrays of bytes"),
        ({"data": 1}, "of type bytes. Got str"),
        ([1, 2], "Got NoneType"),
        (None, "Got NoneType"),
        ({b"data": 1.5}, "the instructions that it needs. Got BINFLOAT"),
        ({b"data": {1, 2}}, "a name in a pickle of plain data must be one of .* Got '__builtin__ set'"),
    ],
)
def test_bad_cifar10(batch: object, message: str, tmp_path: Path) -> None:
    put_cifar10(tmp_path, batch)
    with pytest.raises(ValueError, match=f"test_batch' must be a .*{message}"):
        load_images("cifar10", "test", tmp_path)


def test_cut_pickles(tmp_path: Path) -> None:
    path = put_cifar10(tmp_path, {b"data": random_bytes(1, 3072), b"labels": [1]})
    whole = path.read_bytes()
    for length in (0, 1, 2, 40, 200, 1000, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="one that is damaged or holds more than data"):
            load_images("cifar10", "test", tmp_path)
    random = np.random.default_rng(0)
    places = random.integers(0, 300, 300)
    for place, value in zip(places, random.integers(0, 256, 300), strict=True):
        changed = bytearray(whole)
        changed[place] = value
        try:
            found = read_pickled(bytes(changed))
        except (ValueError, TypeError, LookupError, OverflowError, struct.error):
            continue  # these are the errors that a reader of batches expects
        assert isinstance(found, (dict, bytes, str, int, list, tuple, np.ndarray, type(None)))


class Evil:
    """Something that runs code when it is unpickled."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_malicious_pickles_run_nothing(protocol: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for evil in (
        Evil(os.mkdir, str(trace)),
        Evil(eval, f"__import__('os').mkdir({str(trace)!r})"),
        Evil(np.save, str(trace), 1),
    ):
        content = pickle.dumps({b"data": evil, b"labels": [evil]}, protocol)
        put(tmp_path / "cifar-10-batches-py" / "test_batch", content)
        with pytest.raises(ValueError, match="one that is damaged or holds more than data"):
            load_images("cifar10", "test", tmp_path)
        assert not trace.exists()
        # The pickle does what it is feared to do.
        pickle.loads(content)
        created = [path for path in (trace, trace.with_suffix(".npy")) if path.exists()]
        assert created
        for path in created:
            path.rmdir() if path.is_dir() else path.unlink()


def test_allowed_names_cannot_be_misused() -> None:
    head = b"\x80\x02"
    array, ndarray, dtype = b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy\nndarray\n", b"cnumpy\ndtype\n"
    for content in (
        b"c_codecs\nencode\nX\x02\x00\x00\x00hiX\x05\x00\x00\x00rot13\x86R.",  # another codec
        dtype + b"U\x02O8\x85R.",  # objects
        array + dtype + b"K\x00\x85U\x01b\x87R.",  # an array of another class
        ndarray + b"K\x05\x85R.",  # a call of the class
        b"X\x0b\x00\x00\x00numpy dtypeU\x02u1\x85R.",  # a string is no name
        dtype + b"U\x02u1\x85.",  # two values
        b"]U\x02hib.",  # a state for a list
    ):
        with pytest.raises(ValueError, match=r"must be|values to unpack"):
            read_pickled(head + content)
    begun = array + ndarray + b"K\x00\x85U\x01b\x87R(K\x01"
    kind = dtype + b"U\x02u1\x85R"
    whole = head + begun + b"K\x02K\x02\x86" + kind + b"\x89U\x04abcdtb."
    np.testing.assert_array_equal(read_pickled(whole), [[97, 98], [99, 100]])
    for content in (
        begun + b"K\x02K\x03\x86" + kind + b"\x89U\x04abcdtb.",  # more than is there
        begun + b"J\xff\xff\xff\xffJ\xfc\xff\xff\xff\x86" + kind + b"\x89U\x04abcdtb.",  # negative sizes
        begun + b"K\x02K\x02\x86K\x01\x89U\x04abcdtb.",  # no dtype
    ):
        with pytest.raises(ValueError, match="in a pickle must be"):
            read_pickled(head + content)


def test_bad_svhn(tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(ValueError, match=rf"train_32x32\.mat.* must be a \.mat file of SVHN.*Got {message}"):
            load_images("svhn", folder=tmp_path)

    pixels, labels = random_bytes(32, 32, 3, 2), np.array([[1], [2]], np.uint8)
    put_svhn(tmp_path, {"y": labels})
    refused("no bytes X")
    put_svhn(tmp_path, {"X": pixels.astype(np.float64), "y": labels})
    refused("no bytes X")
    put_svhn(tmp_path, {"X": random_bytes(2, 32, 32, 3), "y": labels})
    refused("X of 2 x 32 x 32 x 3")
    put_svhn(tmp_path, {"X": pixels[..., 0], "y": labels})
    refused("X of 32 x 32 x 3")
    put_svhn(tmp_path, {"X": pixels})
    refused("no bytes y")
    put_svhn(tmp_path, {"X": pixels, "y": labels[:1]})
    refused("y of 1 x 1")
    put_svhn(tmp_path, {"X": pixels, "y": labels + 0.5})
    refused("no bytes y")
    path = put_svhn(tmp_path, {"X": pixels, "y": labels})
    whole = path.read_bytes()
    # Four sizes follow the number of their bytes; the last one is the number of images.
    sizes = struct.pack("<4i", 32, 32, 3, 2)
    path.write_bytes(whole.replace(sizes, struct.pack("<4i", 32, 32, 3, 2**30)))
    refused(rf"one that cannot be read: array 'X' declares 32 x 32 x 3 x {2**30} values, more than it can have")
    for content in (b"", b"no such file at all", whole[:150], whole[:200], whole[:5000], whole[:-4], bytes(600)):
        path.write_bytes(content)
        refused("(one that cannot be read|no bytes [Xy])")
    put_svhn(tmp_path, {"X": pixels, "y": np.array([[0], [2]], np.uint8)})
    with pytest.raises(ValueError, match=r"labels from 1 to 10. Got one with labels from 0 to 2"):
        load_images("svhn", folder=tmp_path)


def test_bad_stl10(tmp_path: Path) -> None:
    image = bytes(3 * 96 * 96)
    for pixels in (b"", image[:-1], image + b"0"):
        put_stl10(tmp_path, pixels, b"\1")
        with pytest.raises(ValueError, match=f"images of 27648 bytes each. Got {len(pixels)} bytes"):
            load_images("stl10", folder=tmp_path)
    put_stl10(tmp_path, image, b"\1\2")
    with pytest.raises(ValueError, match=r"a file of 1 labels, as many as there are images. Got 2 bytes"):
        load_images("stl10", folder=tmp_path)
    put_stl10(tmp_path, image, b"\0")
    with pytest.raises(ValueError, match="labels from 1 to 10"):
        load_images("stl10", folder=tmp_path)


# ---------------------------------------------------------------------- the cache


def cached_mnist(folder: Path) -> Images:
    return load_images("mnist", "train", folder)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    put_mnist(tmp_path, random_bytes(3, 28, 28), np.array([1, 2, 3], np.uint8))
    return tmp_path


def count_decodings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that grows by two paths whenever MNIST is decoded."""
    calls: list[Path] = []
    decode = images._idx

    def counted(path: Path, shape: tuple[int | None, ...]) -> np.ndarray:
        calls.append(path)
        return decode(path, shape)

    monkeypatch.setattr(images, "_idx", counted)
    return calls


def test_second_time_comes_from_the_cache(small: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_decodings(monkeypatch)
    before = sorted(small.rglob("*"))
    first, second = cached_mnist(small), cached_mnist(small)
    assert len(calls) == 2
    check_types(second, "mnist")
    np.testing.assert_array_equal(first.pixels, second.pixels)
    np.testing.assert_array_equal(first.labels, second.labels)
    assert sorted(small.rglob("*")) == before
    assert len(list((cache / "decoded").iterdir())) == 1


def test_stale_cache_is_made_again(small: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_mnist(small)
    put_mnist(small, random_bytes(2, 28, 28), np.array([4, 5], np.uint8))
    assert cached_mnist(small).labels.tolist() == [4, 5]
    path = small / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    # Files of the same size that differ in their time only.
    put(path, gzip.compress(idx(np.array([7, 6], np.uint8))))
    os.utime(path, ns=(1, 1))
    assert cached_mnist(small).labels.tolist() == [7, 6]
    monkeypatch.setattr(images, "DECODING", images.DECODING + 1)
    calls = count_decodings(monkeypatch)
    cached_mnist(small)
    assert len(calls) == 2
    # Files of another folder.
    put_mnist(small / "other", random_bytes(1, 28, 28), np.array([9], np.uint8))
    assert cached_mnist(small / "other").labels.tolist() == [9]
    assert cached_mnist(small).labels.tolist() == [7, 6]
    # Replaced, not added to.
    assert len(list((cache / "decoded").iterdir())) == 1


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text", "folder", "array"])
def test_damaged_cache_is_made_again(damage: str, small: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = cached_mnist(small)
    (file,) = (cache / "decoded").iterdir()
    content = bytearray(file.read_bytes())
    content[content.find(expected.pixels[1].tobytes())] ^= 1
    if damage == "folder":
        file.unlink()
        file.mkdir()
    elif damage == "array":
        with file.open("wb") as opened:
            np.save(opened, np.zeros(3))
    else:
        harm = {"empty": b"", "cut": content[: len(content) // 2], "flipped": content, "text": b"nothing of the kind"}
        file.write_bytes(harm[damage])
    calls = count_decodings(monkeypatch)
    for _ in range(2):
        found = cached_mnist(small)
        np.testing.assert_array_equal(found.pixels, expected.pixels)
        np.testing.assert_array_equal(found.labels, expected.labels)
    # Mended at the first time, unless something is in the way.
    assert len(calls) == (4 if damage == "folder" else 2)


def test_any_changed_byte_of_the_cache_shows(small: Path, cache: Path) -> None:
    expected = cached_mnist(small)
    (file,) = (cache / "decoded").iterdir()
    whole = file.read_bytes()
    random = np.random.default_rng(0)
    # Headers of arrays and of the archive are at the beginning and at the end.
    near = [*random.integers(0, 800, 50), *random.integers(len(whole) - 800, len(whole), 50)]
    for place in near:
        changed = bytearray(whole)
        changed[place] ^= 1 << random.integers(8)
        file.write_bytes(changed)
        found = cached_mnist(small)
        np.testing.assert_array_equal(found.pixels, expected.pixels)
        np.testing.assert_array_equal(found.labels, expected.labels)


def test_cache_that_cannot_be_written(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = put(tmp_path / "file", b"")
    monkeypatch.setenv("ASKEW_CACHE", str(in_the_way))
    assert len(cached_mnist(small)) == 3
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "full"))

    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert len(cached_mnist(small)) == 3
    assert list((tmp_path / "full" / "decoded").iterdir()) == []


# ---------------------------------------------------------------------- Holidays


def put_holidays(folder: Path, count: int = 302, size: tuple[int, int] = (9, 7)) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    (folder / "holidays").mkdir()
    for number in range(count):
        colour = (number % 256, 255 - number % 256, 128)
        image.new("RGB", size, colour).save(folder / "holidays" / f"{100000 + 100 * number}.jpg", quality=95)
    put(folder / "holidays" / "100001.jpg", b"not one of them")
    put(folder / "holidays" / "index.txt", b"not one of them")


def test_holidays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_holidays(tmp_path)
    found = load_holidays(8, tmp_path)
    assert found.shape == (300, 3, 8, 8)
    assert found.dtype == np.uint8
    numbers = np.arange(300) % 256
    colours = np.stack([numbers, 255 - numbers, np.full(300, 128)], 1)
    # JPEG does not keep colours exactly.
    assert np.abs(found - colours[:, :, None, None].astype(int)).max() <= 4
    monkeypatch.setattr(images, "_jpegs", None)  # what is kept needs no decoding
    np.testing.assert_array_equal(load_holidays(8, tmp_path), found)


def test_bad_holidays(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="size of load_holidays must be a positive integer"):
        load_holidays(0, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holidays must be in .* Download it from http://lear"):
        load_holidays(folder=tmp_path)
    put_holidays(tmp_path, 300)
    path = tmp_path / "holidays" / "110000.jpg"
    whole = path.read_bytes()
    for content in (b"", b"no image", whole[: len(whole) // 2], b"\x89PNG\r\n\x1a\n" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"110000\.jpg' must be a whole JPEG file"):
            load_holidays(8, tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"the 300 images whose names end in 00\.jpg\. Got 299 of them"):
        load_holidays(8, tmp_path)


def test_holidays_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_holidays(tmp_path, 300)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"reading JPEG files needs .*pip install \"askew\[images\]\""):
        load_holidays(8, tmp_path)


# ---------------------------------------------------------------------- the published files


@published
def test_published_mnist() -> None:
    train, test = load_images("mnist"), load_images("mnist", "test")
    assert train.pixels.shape == (60_000, 1, 28, 28)
    assert test.pixels.shape == (10_000, 1, 28, 28)
    assert train.pixels.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert train.labels[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert np.bincount(train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@published
def test_published_cifar10() -> None:
    train, test = load_images("cifar10"), load_images("cifar10", "test")
    assert train.pixels.shape == (50_000, 3, 32, 32)
    assert test.pixels.shape == (10_000, 3, 32, 32)
    np.testing.assert_allclose(train.pixels.mean((0, 2, 3)) / 255, [0.4914, 0.4822, 0.4465], atol=1e-4)
    assert np.bincount(train.labels).tolist() == [5000] * 10
    assert np.bincount(test.labels).tolist() == [1000] * 10


@published
def test_published_svhn() -> None:
    # The whole set, or the first 10,000 of each part.
    for split, whole, first in (("train", 73_257, [1, 9, 2, 3, 2, 5]), ("test", 26_032, [5, 2, 1, 0, 6, 1])):
        found = load_images("svhn", split)
        assert len(found) in (whole, 10_000)
        assert found.pixels.shape[1:] == (3, 32, 32)
        assert found.labels[:6].tolist() == first
        assert np.unique(found.labels).tolist() == list(range(10))
        assert np.bincount(found.labels).argmax() == 1


@published
def test_published_holidays() -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    found = load_holidays()
    assert found.shape == (300, 3, 72, 72)
    # Two scenes are the same photograph; three are nearly black.
    assert np.abs(found[31].astype(int) - found[39]).max() < 40
    dark = found.mean((1, 2, 3)).argsort()[:3]
    assert sorted(dark.tolist()) == [258, 274, 283]
