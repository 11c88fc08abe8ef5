"""Where the files of published data are, and how they are fetched: only when asked, and whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import ssl
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from askew import checks
from askew._progress import progress_bar
from askew.io import atomic_write

__all__ = ["Source", "cache_folder", "data_folder", "download", "download_names", "find", "is_present", "register"]

CHUNK = 1 << 18
TIMEOUT = 60.0
# The largest archive, STL-10, has 3.1 GB in it.
ARCHIVE_LIMIT = 1 << 32

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Source:
    """A file of published data: where it belongs, where it comes from and how it is recognised.

    Parameters
    ----------
    file
        Its path in the data folder, with ``/``.
    url
        Where its publisher has it; ``http`` or ``https``.
    sha256, md5
        A checksum of what the URL gives, as published. Without one, the file has to be fetched by hand.
    terms
        The publisher's terms, in a few words.
    member
        Where ``url`` is a ``.tar.gz`` archive, the path of the file in it.
    limit
        More bytes than it ever has; a longer file is refused.

    Examples
    --------
    >>> Source("uci/iris.data", "https://example.org/iris.data", terms="CC BY 4.0").file
    'uci/iris.data'
    """

    file: str
    url: str
    sha256: str = ""
    md5: str = ""
    terms: str = ""
    member: str = ""
    limit: int = 1 << 30

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError(checks.message(f"url of {self.file}", "an http or https address", repr(self.url)))
        path = PurePosixPath(self.file)
        if path.is_absolute() or ".." in path.parts or not path.name or "\\" in self.file:
            raise ValueError(checks.message("file of a source", "a path inside the data folder", repr(self.file)))


_SETS: dict[str, tuple[Source, ...]] = {}


def register(name: str, sources: Sequence[Source]) -> None:
    """Let :func:`download` know the files of a data set by its name.

    Examples
    --------
    >>> from askew_paper.data.tables import SOURCES
    >>> register("iris", [SOURCES["iris"].source])
    """
    _SETS[name] = tuple(sources)


def download_names() -> list[str]:
    """Return the names that :func:`download` knows.

    Examples
    --------
    >>> "mnist" in download_names()
    True
    """
    return list(_SETS)


# ---------------------------------------------------------------------- folders


def cache_folder() -> Path:
    """Return the folder where askew may keep what can be made or fetched again.

    ``ASKEW_CACHE`` names it. Otherwise it is ``askew`` in ``XDG_CACHE_HOME`` or in the user's cache folder:
    ``~/.cache``, ``~/Library/Caches`` on macOS, ``%LOCALAPPDATA%`` on Windows. It need not exist.

    Examples
    --------
    >>> cache_folder().is_absolute()
    True
    """
    if own := os.environ.get("ASKEW_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG rules say that a relative one is ignored
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        else:
            base = str(Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache"))
    return Path(base) / "askew"


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
    for file in (source.file, PurePosixPath(source.file).name):
        for path in (root / file, root / file.removesuffix(".gz")):
            if path.exists():
                return path
    return None


def find(source: Source, folder: Folder = None) -> Path:
    """Return the path of a file of published data; nothing is downloaded.

    Parameters
    ----------
    source
        The file.
    folder
        Where to look; :func:`data_folder` by default. A file may also lie directly in the folder, and one that
        is published as ``.gz`` may be unpacked.

    Raises
    ------
    FileNotFoundError
        Where it is missing; the message says where it comes from and where to put it.

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
    name = next((name for name, sources in _SETS.items() if source in sources), None)
    if name is not None and (source.sha256 or source.md5):
        given = "" if folder is None else f", {str(folder)!r}"
        hint += f", or let askew_paper.data.download({name!r}{given}) do it"
    terms = f". Its terms: {source.terms}." if source.terms else "."
    raise FileNotFoundError(checks.message(source.file, f"in {where}", "no such file", hint + terms))


def is_present(name: str, folder: Folder = None) -> bool:
    """Whether all files of a data set are in the folder of data; they are not read.

    Examples
    --------
    >>> is_present("mnist", "nowhere")
    False
    """
    checks.check_name(name, _SETS, "name of a data set")
    return all(_present(source, data_folder(folder)) is not None for source in _SETS[name])


# ---------------------------------------------------------------------- fetching


def download(names: str | Sequence[str], folder: Folder = None, progress: bool | None = None) -> list[Path]:
    """Fetch the files of data sets from their publishers; those that are there already are left alone.

    A file is written aside as ``.part``, compared with the published checksum and renamed, so that it is whole or
    absent. After a broken connection the next call goes on where it stopped.

    Parameters
    ----------
    names
        One or more of :func:`download_names`.
    folder
        Where to put them; :func:`data_folder` by default.
    progress
        Whether to show a progress bar; None means on a terminal only.

    Returns
    -------
    list of Path
        The files, those that were there included.

    Raises
    ------
    ConnectionError
        If the server cannot be reached, does not have the file, or broke off.
    ValueError
        If a file is not the published one, or the publisher gives no checksum.

    Examples
    --------
    >>> download("mnits")
    Traceback (most recent call last):
    ValueError: name of a data set must be one of ... Did you mean 'mnist'?
    """
    root = data_folder(folder)
    wanted = [names] if isinstance(names, str) else list(names)
    sources = [source for name in wanted for source in _SETS[checks.check_name(name, _SETS, "name of a data set")]]
    missing: dict[str, list[Source]] = {}
    for source in sources:
        if _present(source, root) is None:
            missing.setdefault(source.url, []).append(source)
    for url, group in missing.items():
        first = group[0]
        if not (first.sha256 or first.md5):
            must = f"fetched by hand from {url} to {str(root / first.file)!r}"
            raise ValueError(checks.message(first.file, must, "no published checksum to download it by"))
        if not first.member:
            _fetch(first, root / first.file, first.limit, progress)
            continue
        archive = root / PurePosixPath(urlsplit(url).path).name
        kept = archive.is_file()  # a user who has fetched it keeps it
        if kept and _digest(first, archive) != (first.sha256 or first.md5):
            raise ValueError(_not_published(first, archive, "Remove it, or fetch it again."))
        if not kept:
            _fetch(first, archive, ARCHIVE_LIMIT, progress)
        _unpack(archive, group, root)
        if not kept:
            archive.unlink()
    return [find(source, root) for source in sources]


def _digest(source: Source, path: Path) -> str:
    digest = hashlib.sha256() if source.sha256 else hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def _not_published(source: Source, path: Path, hint: str) -> str:
    kind, value = ("sha256", source.sha256) if source.sha256 else ("md5", source.md5)
    must = f"the published file, of {kind} {value}"
    what = f"{path.name.removesuffix('.part')} from {source.url}"
    return checks.message(what, must, _digest(source, path), hint)


def _fetch(source: Source, target: Path, limit: int, progress: bool | None) -> None:
    """Bring the file at the URL of a source to ``target``, whole or not at all."""
    expected = source.sha256 or source.md5
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with _alone(part):
        if target.exists():  # another process was faster
            return
        if _digest(source, part) != expected:
            resumed = _transfer(source, part, limit, progress)
            if resumed and _digest(source, part) != expected:
                # The older bytes were of another file.
                os.truncate(part, 0)
                _transfer(source, part, limit, progress)
        if _digest(source, part) != expected:
            hint = f"What was got is removed. Fetch the file in another way and put it at {str(target)!r}."
            message = _not_published(source, part, hint)
            os.truncate(part, 0)
            raise ValueError(message)
        os.replace(part, target)


@contextlib.contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Hold the part file alone; two processes that append to it would spoil it. An empty one is removed at the end."""
    with contextlib.ExitStack() as stack:
        part.touch()
        if sys.platform != "win32":  # which does not rename open files; the checksum has to do there
            import fcntl

            file = stack.enter_context(part.open("ab"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                got = "one that another process is writing"
                hint = "Wait until that one is done."
                raise RuntimeError(checks.message(f"{str(part)!r}", "a file of this process", got, hint)) from None
            except OSError:
                pass  # some network file systems know no locks
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if part.stat().st_size == 0:
                    part.unlink()


def _transfer(source: Source, part: Path, limit: int, progress: bool | None) -> bool:
    """Append to ``part`` what it lacks of the file at the URL; return whether older bytes were kept."""
    done = part.stat().st_size
    headers = {"User-Agent": "askew", "Accept-Encoding": "identity"}
    request = urllib.request.Request(source.url, headers=headers | ({"Range": f"bytes={done}-"} if done else {}))
    try:
        response = _opener().open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and done:  # the older part is longer than the file
            os.truncate(part, 0)
            return _transfer(source, part, limit, progress)
        raise ConnectionError(_failed(source, part, f"{error.code} {error.reason}")) from None
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(_failed(source, part, f"no answer ({getattr(error, 'reason', error)})")) from error
    with response:
        start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        resumed = bool(done and response.status == 206 and start and int(start[1]) == done)
        if done and response.status == 206 and not resumed:  # another piece than the one asked for
            os.truncate(part, 0)
            return _transfer(source, part, limit, progress)
        if response.status != (206 if resumed else 200):
            raise ConnectionError(_failed(source, part, f"{response.status} {response.reason}"))
        done = done if resumed else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        why = ""
        if total is not None and total > limit:
            raise ConnectionError(_failed(source, part, f"{total} bytes, more than it can have"))
        shown = progress_bar(progress, total or limit, part.name.removesuffix(".part"), done)
        with part.open("ab" if resumed else "wb") as file, shown as move:
            while True:
                try:
                    block = response.read1(CHUNK)
                except (TimeoutError, ConnectionError, ssl.SSLError, http.client.HTTPException) as error:
                    why = f" ({type(error).__name__})"
                    break
                done += len(block)
                if done > limit:
                    file.truncate(0)
                    raise ConnectionError(_failed(source, part, f"more than {limit} bytes, more than it can have"))
                if not block:
                    break
                file.write(block)
                move(done)
            file.flush()
            os.fsync(file.fileno())
    if why or (total is not None and done < total):
        got = f"{done} of {'unknown' if total is None else total} bytes before it broke off{why}"
        raise ConnectionError(_failed(source, part, got, f"They are kept in {str(part)!r}; run it again to go on."))
    return resumed


def _failed(source: Source, part: Path, got: str, hint: str = "") -> str:
    target = part.with_suffix("")
    hint = hint or f"Try again later, or fetch it in another way and put it at {str(target)!r}."
    return checks.message(source.url, f"an address that {target.name} can be had from", got, hint)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener that follows redirections but knows no files and no FTP."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _unpack(archive: Path, sources: Sequence[Source], root: Path) -> None:
    """Write the members that are wanted to the places that their sources name; the archive names no place itself."""
    wanted = {source.member: source for source in sources}
    shown = f"{str(archive)!r}"
    seen = 0
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                seen += member.size
                if seen > ARCHIVE_LIMIT:
                    raise ValueError(checks.message(shown, f"an archive of at most {ARCHIVE_LIMIT} bytes", "more"))
                source = wanted.pop(member.name.removeprefix("./"), None)
                if source is None:
                    continue
                content = tar.extractfile(member) if member.isreg() and member.size <= source.limit else None
                if content is None:
                    must = f"an archive with a plain file {source.member} of at most {source.limit} bytes"
                    got = f"{member.size} bytes" if member.isreg() else "a link or folder"
                    raise ValueError(checks.message(shown, must, got))
                target = root / source.file
                target.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(target) as temporary, temporary.open("xb") as file:
                    shutil.copyfileobj(content, file, CHUNK)
                if not wanted:
                    return
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(checks.message(shown, "a whole tar.gz archive", f"a damaged one ({error})")) from error
    raise ValueError(checks.message(shown, f"an archive with {', '.join(sorted(wanted))}", "one without"))
