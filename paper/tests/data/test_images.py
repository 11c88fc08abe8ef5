"""Images from the publishers' formats: small files made here, bad ones, and the published ones where they are."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from askew_paper.data import Images, images, load_holidays, load_images
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
    assert list(images.SETS) == ["mnist", "cifar10", "svhn", "stl10"]
    with pytest.raises(ValueError, match=r"name of a set of images must be one of 'mnist'.*Did you mean 'cifar10'"):
        load_images("cifar")
    with pytest.raises(ValueError, match="split of load_images must be one of 'train', 'test'"):
        load_images("mnist", "valid")
    for name in images.SETS:
        with pytest.raises(FileNotFoundError, match=rf"no such file.*download\('{name}'"):
            load_images(name, "test", tmp_path)


# ---------------------------------------------------------------------- bad files


def bad_idx() -> dict[str, bytes]:
    whole = idx(random_bytes(2, 28, 28))
    packed = gzip.compress(whole)
    return {
        "empty": b"",
        "magic": b"PK\3\4" + whole[4:],
        "dtype": idx(random_bytes(2, 28, 28), kind=0x0D),
        "labels": idx(random_bytes(2)),
        "header": whole[:9],
        "short": whole[:-1],
        "long": whole + b"0",
        "huge": bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**31, 28, 28) + bytes(100),
        "size": idx(random_bytes(2, 28, 27)),
        "packed short": gzip.compress(whole[:-1]),
        "packed truncated": packed[:-200],
        "packed damaged": packed[:-8] + bytes(8),
    }


@pytest.mark.parametrize("case", bad_idx())
def test_bad_mnist(case: str, tmp_path: Path) -> None:
    put_mnist(tmp_path, random_bytes(2, 28, 28), np.array([1, 2], np.uint8))
    put(tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz", bad_idx()[case])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz' must be an? .*IDX file.* Download it again"):
        load_images("mnist", folder=tmp_path)


def test_labels_of_mnist_that_do_not_fit(tmp_path: Path) -> None:
    put_mnist(tmp_path, random_bytes(2, 28, 28), np.array([1, 2, 3], np.uint8))
    with pytest.raises(ValueError, match=r"a file of 2 labels, as many as there are images. Got 3"):
        load_images("mnist", folder=tmp_path)
    put_mnist(tmp_path, random_bytes(2, 28, 28), np.array([1, 10], np.uint8))
    with pytest.raises(ValueError, match=r"a file of labels from 0 to 9. Got one with labels from 1 to 10"):
        load_images("mnist", folder=tmp_path)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"data": random_bytes(2, 3072)}, "KeyError: b'labels'"),
        ({b"data": random_bytes(2, 3072), b"labels": [1]}, r"labels of int64 \(1,\)"),
        ({b"data": random_bytes(2, 3072), b"labels": [1, b"2"]}, "labels of .S21"),
        ({b"data": random_bytes(2, 3072), b"labels": [1, 2**200]}, "labels of object"),
        ({b"data": random_bytes(2, 3071), b"labels": [1, 2]}, r"data of uint8 \(2, 3071\)"),
        ({b"data": random_bytes(6144), b"labels": [1, 2]}, r"data of uint8 \(6144,\)"),
        ({b"data": [1, 2], b"labels": [1, 2]}, "data of <class 'list'>"),
        ({b"data": np.zeros((2, 3072)), b"labels": [1, 2]}, "data of float64"),
        ({"data": 1}, "KeyError"),
        ([1, 2], "TypeError"),
        (None, "TypeError"),
        ({b"data": {1, 2}}, "it names __builtin__.set"),
    ],
)
def test_bad_cifar10(batch: object, message: str, tmp_path: Path) -> None:
    put_cifar10(tmp_path, batch)
    with pytest.raises(ValueError, match=f"test_batch' must be a python batch of CIFAR-10.*Got .*{message}"):
        load_images("cifar10", "test", tmp_path)


def test_labels_of_cifar10_that_do_not_fit(tmp_path: Path) -> None:
    put_cifar10(tmp_path, {b"data": random_bytes(2, 3072), b"labels": [1, 10]})
    with pytest.raises(ValueError, match="labels from 0 to 9"):
        load_images("cifar10", "test", tmp_path)


def test_cut_pickles(tmp_path: Path) -> None:
    path = put_cifar10(tmp_path, {b"data": random_bytes(1, 3072), b"labels": [1]})
    whole = path.read_bytes()
    for length in (0, 1, 2, 40, 200, 1000, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="one that is damaged or holds more"):
            load_images("cifar10", "test", tmp_path)


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
        with pytest.raises(ValueError, match=r"one that is damaged or holds more \(it names"):
            load_images("cifar10", "test", tmp_path)
        assert not trace.exists()
        # The pickle does what it is feared to do.
        pickle.loads(content)
        created = [path for path in (trace, trace.with_suffix(".npy")) if path.exists()]
        assert created
        for path in created:
            path.rmdir() if path.is_dir() else path.unlink()


def test_bad_svhn(tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(ValueError, match=rf"train_32x32\.mat.* must be a \.mat file of SVHN.*Got {message}"):
            load_images("svhn", folder=tmp_path)

    pixels, labels = random_bytes(32, 32, 3, 2), np.array([[1], [2]], np.uint8)
    put_svhn(tmp_path, {"y": labels})
    refused("one that cannot be read .KeyError: 'X'")
    put_svhn(tmp_path, {"X": pixels})
    refused("one that cannot be read .KeyError: 'y'")
    put_svhn(tmp_path, {"X": pixels.astype(np.float64), "y": labels})
    refused("X of float64")
    put_svhn(tmp_path, {"X": random_bytes(2, 32, 32, 3), "y": labels})
    refused(r"X of uint8 \(2, 32, 32, 3\)")
    put_svhn(tmp_path, {"X": pixels[..., 0], "y": labels})
    refused(r"X of uint8 \(32, 32, 3\)")
    put_svhn(tmp_path, {"X": pixels, "y": labels[:1]})
    refused(r".* and y of uint8 \(1, 1\)")
    put_svhn(tmp_path, {"X": pixels, "y": labels + 0.5})
    refused(".* and y of float64")
    path = put_svhn(tmp_path, {"X": pixels, "y": labels})
    whole = path.read_bytes()
    # These are never given to a reader in native code.
    for content in (b"", b"no such file at all", whole[:150], whole[:200], whole[:5000], whole[:-4], bytes(600)):
        path.write_bytes(content)
        refused("one that is not of version 5, or cut short")
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

    def counted(path: Path, shape: tuple[int, ...]) -> np.ndarray:
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
    # Repaired the first time, unless something is in the way.
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
    monkeypatch.setattr(images, "_read_jpegs", None)  # what is kept needs no decoding
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
