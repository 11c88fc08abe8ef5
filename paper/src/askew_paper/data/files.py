"""Where the files of published data are, and how they are downloaded: only when asked, checked by their checksums."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import pooch
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TextColumn

from askew import checks, io

CHUNK = 1 << 14
TIMEOUT = 60.0

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Source:
    """A file of published data.

    Examples
    --------
    >>> Source("uci/iris.data", "https://example.org/iris.data", terms="CC BY 4.0").file
    'uci/iris.data'
    """

    file: str  # its path in the data folder, with /
    url: str
    checksum: str = ""  # of what the URL gives: "md5:..." or "sha256:..."; without one, it is not downloaded
    terms: str = ""  # of the publisher, in a few words
    member: str = ""  # where the URL is a .tar.gz archive, the path of the file in it

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError(checks.message(f"url of {self.file}", "an http or https address", repr(self.url)))
        path = PurePosixPath(self.file)
        if path.is_absolute() or ".." in path.parts or not path.name or "\\" in self.file:
            raise ValueError(checks.message("file of a source", "a path inside the data folder", repr(self.file)))


def _uci(path: str, sha256: str) -> tuple[Source, ...]:
    url = f"https://archive.ics.uci.edu/ml/machine-learning-databases/{path}"
    return (Source(f"uci/{path.split('/')[-1]}", url, f"sha256:{sha256}", "CC BY 4.0"),)


def _mnist(**files: str) -> tuple[Source, ...]:
    base, names = "https://ossci-datasets.s3.amazonaws.com/mnist", {"images": "images-idx3", "labels": "labels-idx1"}
    paths = {f"{part}-{names[kind]}-ubyte.gz": md5 for name, md5 in files.items() for part, kind in [name.split("_")]}
    return tuple(
        Source(f"MNIST/raw/{file}", f"{base}/{file}", f"md5:{md5}", "CC BY-SA 3.0") for file, md5 in paths.items()
    )


def _archive(folder: str, files: Sequence[str], url: str, md5: str, terms: str) -> tuple[Source, ...]:
    return tuple(Source(path, url, f"md5:{md5}", terms, member=path) for path in (f"{folder}/{file}" for file in files))


def _svhn(file: str, md5: str) -> Source:
    return Source(
        f"svhn/{file}", f"http://ufldl.stanford.edu/housenumbers/{file}", f"md5:{md5}", "not for commercial use"
    )


# The files of each data set. Of images, those of the training part come first.
SETS: dict[str, tuple[Source, ...]] = {
    "iris": _uci("iris/iris.data", "596ffd580471ca4d4880f8e439c7281f3b50d8249a5960353cb200b1490f63a0"),
    "wine": _uci("wine/wine.data", "6be6b1203f3d51df0b553a70e57b8a723cd405683958204f96d23d7cd6aea659"),
    "balance": _uci(
        "balance-scale/balance-scale.data", "5611187ef7345d807aa8ae22615945ade52a190537c0b1434bd44c3e877c5bb4"
    ),
    "transfusion": _uci(
        "blood-transfusion/transfusion.data", "96c8e1091b9c037bcaf25a19b24b49d07771cd88689ffd273e056e9e8845ffe7"
    ),
    "car": _uci("car/car.data", "b703a9ac69f11e64ce8c223c0a40de4d2e9d769f7fb20be5f8f2e8a619893d83"),
    "abalone": _uci("abalone/abalone.data", "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f"),
    "mnist": _mnist(
        train_images="f68b3c2dcbeaaa9fbdd348bbdeb94873",
        train_labels="d53e105ee54ea40749a09fcbcd1e9432",
        t10k_images="9fb629c4189551a2d022fa330f9573f3",
        t10k_labels="ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "cifar10": _archive(
        "cifar-10-batches-py",
        [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"],
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "none stated; cite Krizhevsky 2009",
    ),
    "svhn": (
        _svhn("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        _svhn("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
    ),
    "stl10": _archive(
        "stl10_binary",
        ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin"],
        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "91f7769df0f17e558f3565bffb0c7dfb",
        "see the publisher's page",
    ),
    "holidays": (Source("holidays", "http://lear.inrialpes.fr/people/jegou/data.php#holidays", terms="research"),),
}


def download_names() -> list[str]:
    """Return the names of the data sets.

    Examples
    --------
    >>> "mnist" in download_names()
    True
    """
    return list(SETS)


# ---------------------------------------------------------------------- folders


def cache_folder() -> Path:
    """Return the folder for what can be made or downloaded again: ``ASKEW_CACHE``, else ``askew`` in the user's cache.

    It need not exist.
    """
    given = os.environ.get("ASKEW_CACHE")
    return Path(given).expanduser().absolute() if given else Path(pooch.os_cache("askew"))


def data_folder(folder: Folder = None) -> Path:
    """Return the folder of the publishers' files: ``folder``, else ``ASKEW_DATA``, else ``data`` in the cache folder.

    Examples
    --------
    >>> data_folder("downloads").name
    'downloads'
    """
    given = folder if folder is not None else os.environ.get("ASKEW_DATA") or None
    return cache_folder() / "data" if given is None else Path(given).expanduser()


def _present(source: Source, root: Path) -> Path | None:
    """Return where a file is: in its place or directly in the folder, also without its ``.gz``."""
    files = (source.file, PurePosixPath(source.file).name)
    paths = (path for file in files for path in (root / file, root / file.removesuffix(".gz")))
    return next((path for path in paths if path.exists()), None)


def find(source: Source, folder: Folder = None) -> Path:
    """Return the path of a file of published data; nothing is downloaded.

    It may be in its place or directly in the folder, and one that is published as ``.gz`` may be unpacked. The error
    for a missing file says where it comes from and where to put it.

    Examples
    --------
    >>> find(Source("a/b.txt", "https://example.org/b.txt"), "nowhere")
    Traceback (most recent call last):
    FileNotFoundError: a/b.txt must be in the folder 'nowhere'. Got no such file instead. Download it from ...
    """
    root = data_folder(folder)
    path = _present(source, root)
    if path is not None:
        return path
    where = f"the folder {str(root)!r}"
    if folder is None and not os.environ.get("ASKEW_DATA"):
        where = f"a folder that the environment variable ASKEW_DATA names, or in {where}"
    place = f"and unpack it in {str(root)!r}" if source.member else f"to {str(root / source.file)!r}"
    hint = f"Download it from {source.url} {place}"
    name = next((name for name, sources in SETS.items() if source in sources), None)
    if name is not None and source.checksum:
        given = "" if folder is None else f", {str(folder)!r}"
        hint += f", or let askew_paper.data.download({name!r}{given}) do it"
    terms = f". Its terms: {source.terms}." if source.terms else "."
    raise FileNotFoundError(checks.message(source.file, f"in {where}", "no such file", hint + terms))


def is_present(name: str, folder: Folder = None) -> bool:
    """Return whether all files of a data set are there; they are not read.

    Examples
    --------
    >>> is_present("mnist", "nowhere")
    False
    """
    checks.check_name(name, SETS, "name of a data set")
    return all(_present(source, data_folder(folder)) is not None for source in SETS[name])


# ---------------------------------------------------------------------- downloads


def download(names: str | Sequence[str], folder: Folder = None, progress: bool | None = None) -> list[Path]:
    """Download the missing files of data sets (:func:`download_names`) from their publishers; return the paths of all.

    A file appears under its name only once its checksum is the published one. After a broken connection the next call
    continues the transfer. A progress bar is shown on terminals, unless ``progress`` says otherwise.

    Examples
    --------
    >>> download("mnits")
    Traceback (most recent call last):
    ValueError: name of a data set must be one of ... Did you mean 'mnist'?
    """
    root = data_folder(folder)
    wanted = [names] if isinstance(names, str) else list(names)
    sources = [source for name in wanted for source in SETS[checks.check_name(name, SETS, "name of a data set")]]
    missing = [source for source in sources if _present(source, root) is None]
    for source in missing:
        if not source.checksum:
            must = f"downloaded by hand from {source.url} to {str(root / source.file)!r}"
            raise ValueError(checks.message(source.file, must, "no published checksum to download it by"))
    for source in missing:
        path = root / (PurePosixPath(urlsplit(source.url).path).name if source.member else source.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with io.only_writer(path.parent, re.escape(path.name)):  # another process may be downloading the same file
            if _present(source, root) is not None:
                continue
            is_kept = path.exists()  # an archive that the user has downloaded
            _retrieve(source, path, sys.stderr.isatty() if progress is None else progress)
            if source.member:
                _unpack(path, [other for other in missing if other.url == source.url], root)
                if not is_kept:
                    path.unlink()
    return [find(source, root) for source in sources]


def _retrieve(source: Source, path: Path, progress: bool) -> None:
    """Download a file by pooch, which checks it before it gets its name."""
    import requests

    part = path.with_name(path.name + ".part")

    def resume(url: str, output: str, _: object) -> None:
        """Append to the part what it lacks; pooch itself would start over."""
        done = part.stat().st_size if part.exists() else 0
        headers = {"User-Agent": "askew", "Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            is_rest = response.headers.get("Content-Range", "").startswith(f"bytes {done}-")
            starts_over = done > 0 and response.status_code in (206, 416) and not is_rest
            if not starts_over:
                response.raise_for_status()
                done = done if response.status_code == 206 else 0
                total = done + int(response.headers.get("Content-Length", 0))
                with part.open("ab" if done else "wb") as file, _bar(path.name, total, done, progress) as advance:
                    for block in response.iter_content(CHUNK):
                        file.write(block)
                        advance(len(block))
        if starts_over:  # the part is longer than the file, or the server has sent another piece
            part.unlink()
            resume(url, output, _)
            return
        if part.stat().st_size < total:
            raise ConnectionError(f"{part.stat().st_size} of {total} bytes before it broke off")
        os.replace(part, output)

    pooch.get_logger().setLevel("WARNING")
    try:
        pooch.retrieve(source.url, source.checksum, path.name, path.parent, downloader=resume)
    except (requests.RequestException, ConnectionError) as error:
        hint = f"Try again later, or download it in another way and put it at {str(path)!r}."
        if part.exists():
            hint = f"What has come is kept in {str(part)!r}; run it again to continue."
        must = f"an address that {path.name} can be downloaded from"
        raise ConnectionError(checks.message(source.url, must, str(error) or type(error).__name__, hint)) from error


@contextlib.contextmanager
def _bar(name: str, total: int, done: int, show: bool) -> Iterator[Callable[[int], None]]:
    columns = TextColumn("{task.description}"), DownloadColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not show) as bar:
        task = bar.add_task(name, total=total, completed=done)
        yield lambda size: bar.advance(task, size)


def _unpack(archive: Path, sources: Sequence[Source], root: Path) -> None:
    """Write members of an archive to the places that their sources name; the archive itself names no place."""
    wanted = {source.member: root / source.file for source in sources}
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            target = wanted.get(member.name.removeprefix("./"))
            content = tar.extractfile(member) if target is not None and member.isreg() else None
            if target is not None and content is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with io.atomic_write(target) as temporary, temporary.open("xb") as file:
                    shutil.copyfileobj(content, file)
    missing = [name for name, target in wanted.items() if not target.exists()]
    if missing:
        raise ValueError(checks.message(f"{str(archive)!r}", f"an archive with the files {', '.join(missing)}", "none"))
