"""Data files: where they are looked for, and fetching them from a server on this machine."""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from askew_paper.data import cache_folder, data_folder, download, download_names, files, find, images, table_names
from askew_paper.data.files import Source

from askew.io import only_writer

CONTENT = np.random.default_rng(0).bytes(700_000)
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Handler(BaseHTTPRequestHandler):
    """A server of files, some of which it serves badly."""

    protocol_version = "HTTP/1.1"
    contents: dict[str, bytes]
    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.asked.append((self.path, wanted))
        behaviour, _, name = self.path.removeprefix("/").rpartition("/")
        if behaviour == "moved":
            self.send_response(302)
            self.send_header("Location", f"/{name}" if name != "elsewhere.bin" else "ftp://127.0.0.1/a.bin")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = self.contents.get(name)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and behaviour != "no-range" else None
        if start is not None and start >= len(content):
            self.send_error(416)
            return
        self.send_response(200 if start is None else 206)
        if start is not None:
            shown = 0 if behaviour == "wrong-piece" else start
            self.send_header("Content-Range", f"bytes {shown}-{len(content) - 1}/{len(content)}")
        rest = content[start or 0 :]
        if behaviour == "endless":
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if behaviour == "breaks" and start is None:
            rest = rest[:300_000]
            self.close_connection = True
        self.wfile.write(rest)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(files, "SETS", dict(files.SETS))
    monkeypatch.setattr(Handler, "contents", {"a.bin": CONTENT}, raising=False)
    monkeypatch.setattr(Handler, "asked", [], raising=False)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def register(name: str, sources: list[Source]) -> None:
    files.SETS[name] = tuple(sources)


def names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------------- fetching


def test_good_file(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    register("good", [Source("set/a.bin", f"{server}/a.bin", checksum=SHA256)])
    assert download("good", tmp_path, progress=True) == [tmp_path / "set" / "a.bin"]
    assert (tmp_path / "set" / "a.bin").read_bytes() == CONTENT
    assert names_in(tmp_path) == ["set/a.bin"]
    assert "a.bin 700.0/700.0 kB" in capsys.readouterr().err
    # What is there is not fetched again.
    assert download(["good"], tmp_path) == [tmp_path / "set" / "a.bin"]
    assert Handler.asked == [("/a.bin", None)]


def test_md5_and_a_redirection(server: str, tmp_path: Path) -> None:
    register("moved", [Source("a.bin", f"{server}/moved/a.bin", checksum=f"md5:{hashlib.md5(CONTENT).hexdigest()}")])
    assert download("moved", tmp_path)[0].read_bytes() == CONTENT


def test_redirection_to_another_protocol_is_not_followed(server: str, tmp_path: Path) -> None:
    register("moved", [Source("a.bin", f"{server}/moved/elsewhere.bin", checksum=SHA256)])
    with pytest.raises(ConnectionError, match=r"No connection adapters were found for 'ftp"):
        download("moved", tmp_path)
    assert names_in(tmp_path) == []


def test_wrong_checksum_leaves_nothing(server: str, tmp_path: Path) -> None:
    register("changed", [Source("a.bin", f"{server}/a.bin", checksum="sha256:" + "0" * 64)])
    with pytest.raises(ValueError, match=r"a\.bin.* does not match the known hash: expected sha256:0+ but got"):
        download("changed", tmp_path)
    assert names_in(tmp_path) == []
    assert len(Handler.asked) == 1


def test_broken_off_and_resumed(server: str, tmp_path: Path) -> None:
    register("breaks", [Source("a.bin", f"{server}/breaks/a.bin", checksum=SHA256)])
    with pytest.raises(ConnectionError, match=r"must be an address that a\.bin can be .*; run it again to continue"):
        download("breaks", tmp_path)
    assert names_in(tmp_path) == ["a.bin.part"]
    kept = (tmp_path / "a.bin.part").stat().st_size
    assert 300_000 - files.CHUNK < kept <= 300_000
    assert (tmp_path / "a.bin.part").read_bytes() == CONTENT[:kept]
    assert download("breaks", tmp_path)[0].read_bytes() == CONTENT
    assert names_in(tmp_path) == ["a.bin"]
    assert Handler.asked == [("/breaks/a.bin", None), ("/breaks/a.bin", f"bytes={kept}-")]


@pytest.mark.parametrize("behaviour", ["no-range", "wrong-piece"])
def test_server_that_cannot_resume_starts_over(behaviour: str, server: str, tmp_path: Path) -> None:
    register("whole", [Source("a.bin", f"{server}/{behaviour}/a.bin", checksum=SHA256)])
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1000])
    assert download("whole", tmp_path)[0].read_bytes() == CONTENT
    assert names_in(tmp_path) == ["a.bin"]


def test_parts_that_do_not_fit(server: str, tmp_path: Path) -> None:
    register("good", [Source("a.bin", f"{server}/a.bin", checksum=SHA256)])
    for part in (CONTENT, CONTENT + b"more"):
        (tmp_path / "a.bin.part").write_bytes(part)
        path = download("good", tmp_path)[0]
        assert path.read_bytes() == CONTENT
        assert names_in(tmp_path) == ["a.bin"]
        path.unlink()
    (tmp_path / "a.bin.part").write_bytes(b"another file")
    with pytest.raises(ValueError, match="does not match the known hash"):
        download("good", tmp_path)
    assert names_in(tmp_path) == []
    assert download("good", tmp_path)[0].read_bytes() == CONTENT


def test_missing_file_and_missing_server(server: str, tmp_path: Path) -> None:
    register("gone", [Source("b.bin", f"{server}/b.bin", checksum=SHA256)])
    with pytest.raises(ConnectionError, match=r"must be an address that b\.bin can be downloaded from\. Got 404"):
        download("gone", tmp_path)
    register("nowhere", [Source("b.bin", "http://127.0.0.1:9/b.bin", checksum=SHA256)])
    with pytest.raises(ConnectionError, match=r"Connection refused.*put it at '.*b\.bin'"):
        download("nowhere", tmp_path)
    assert names_in(tmp_path) == []


def test_file_of_unknown_length(server: str, tmp_path: Path) -> None:
    register("long", [Source("a.bin", f"{server}/endless/a.bin", checksum=SHA256)])
    assert download("long", tmp_path)[0].read_bytes() == CONTENT


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_two_processes_do_not_write_one_file(server: str, tmp_path: Path) -> None:
    """The second one waits for the first, and finds the file there."""
    register("good", [Source("a.bin", f"{server}/a.bin", checksum=SHA256)])
    found: list[Path] = []
    with only_writer(tmp_path, "a.bin"):
        second = threading.Thread(target=lambda: found.extend(download("good", tmp_path)))
        second.start()
        second.join(0.3)
        assert second.is_alive()
        (tmp_path / "a.bin").write_bytes(CONTENT)
    second.join()
    assert found == [tmp_path / "a.bin"]
    assert Handler.asked == []


def test_what_cannot_be_downloaded(server: str, tmp_path: Path) -> None:
    register("unchecked", [Source("a.bin", f"{server}/a.bin")])
    with pytest.raises(ValueError, match=r"a\.bin must be downloaded by hand from http.*no published checksum"):
        download("unchecked", tmp_path)
    with pytest.raises(ValueError, match="name of a data set must be one of"):
        download(["iris", "unknown"], tmp_path)
    assert Handler.asked == []
    for url in ("file:///etc/passwd", "ftp://example.org/a", "a.bin"):
        with pytest.raises(ValueError, match=r"url of a\.bin must be an http or https address"):
            Source("a.bin", url)
    for file in ("../a.bin", "/a.bin", "a/../../b", "", "a\\b"):
        with pytest.raises(ValueError, match="file of a source must be a path inside the data folder"):
            Source(file, "https://example.org/a.bin")


# ---------------------------------------------------------------------- archives


def archive(members: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    """Return a tar.gz archive of files, and of members as they are."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name) if isinstance(content, bytes) else content
            member.size = len(content) if isinstance(content, bytes) else 0
            tar.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return stream.getvalue()


def serve(content: bytes, url: str, *wanted: str) -> None:
    """Serve an archive and register the members that are wanted."""
    Handler.contents["set.tar.gz"] = content
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    register("archive", [Source(f"set/{name}", f"{url}/set.tar.gz", checksum, member=f"set/{name}") for name in wanted])


def test_members_of_an_archive(server: str, tmp_path: Path) -> None:
    members: dict[str, bytes | tarfile.TarInfo] = {
        "../escaped": b"0",
        "/tmp/escaped": b"0",
        "set/b": b"two",
        "set/unwanted": b"0" * 1000,
        "./set/a": b"one",
    }
    serve(archive(members), server, "a", "b")
    folder = tmp_path / "data"
    assert [path.read_bytes() for path in download("archive", folder)] == [b"one", b"two"]
    assert names_in(tmp_path) == ["data/set/a", "data/set/b"]
    assert len(Handler.asked) == 1
    # An archive that the user has fetched is used, and kept.
    (folder / "set" / "a").unlink()
    (folder / "set.tar.gz").write_bytes(Handler.contents["set.tar.gz"])
    download("archive", folder)
    assert names_in(folder) == ["set.tar.gz", "set/a", "set/b"]
    assert len(Handler.asked) == 1
    # One that is not the published one is downloaded again.
    (folder / "set" / "a").unlink()
    (folder / "set.tar.gz").write_bytes(b"another")
    assert [path.read_bytes() for path in download("archive", folder)] == [b"one", b"two"]
    assert len(Handler.asked) == 2


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_links_are_not_unpacked(kind: bytes, server: str, tmp_path: Path) -> None:
    link = tarfile.TarInfo("set/a")
    link.type, link.linkname = kind, "/etc/passwd"
    serve(archive({"set/a": link}), server, "a")
    with pytest.raises(ValueError, match=r"must be an archive with the files set/a\. Got none"):
        download("archive", tmp_path)
    assert names_in(tmp_path) == ["set.tar.gz"]
    assert not (tmp_path / "set" / "a").exists()


def test_archive_without_a_member(server: str, tmp_path: Path) -> None:
    serve(archive({"set/a": CONTENT, "set/b": b"two"}), server, "c")
    with pytest.raises(ValueError, match=r"must be an archive with the files set/c\. Got none"):
        download("archive", tmp_path)
    assert not (tmp_path / "set").exists()


# ---------------------------------------------------------------------- finding


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ASKEW_DATA", "ASKEW_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "askew"
    assert data_folder() == tmp_path / "askew" / "data"
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "own"))
    assert data_folder() == tmp_path / "own" / "data"
    monkeypatch.setenv("ASKEW_DATA", str(tmp_path / "published"))
    assert data_folder() == tmp_path / "published"
    assert data_folder(tmp_path) == tmp_path


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("set/a.txt.gz", "https://example.org/a.txt.gz")
    for place in ("a.txt", "a.txt.gz", "set/a.txt", "set/a.txt.gz"):
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        path.write_text("a", "utf-8")
        # Each of these is nearer to what is published than the one before.
        assert find(source, tmp_path) == path
    monkeypatch.setenv("ASKEW_DATA", str(tmp_path))
    assert find(source) == tmp_path / "set" / "a.txt.gz"
    monkeypatch.delenv("ASKEW_DATA")
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError):
        find(source)
    (tmp_path / "cache" / "data").mkdir(parents=True)
    (tmp_path / "cache" / "data" / "a.txt").write_text("a", "utf-8")
    assert find(source) == tmp_path / "cache" / "data" / "a.txt"


def test_message_for_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = next(s for s in files.SETS["mnist"] if "train-labels" in s.file)
    monkeypatch.setenv("ASKEW_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        find(source)
    message = str(caught.value)
    assert message.startswith(f"MNIST/raw/train-labels-idx1-ubyte.gz must be in the folder {str(tmp_path)!r}.")
    assert f"Download it from {source.url} to {str(tmp_path / source.file)!r}" in message
    assert "askew_paper.data.download('mnist')" in message
    assert "Its terms: CC BY-SA 3.0." in message
    with pytest.raises(FileNotFoundError, match=r"download\('cifar10', 'here'\)") as caught:
        find(files.SETS["cifar10"][0], "here")
    assert "cifar-10-python.tar.gz and unpack it in 'here'" in str(caught.value)
    monkeypatch.delenv("ASKEW_DATA")
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"in a folder that .* ASKEW_DATA names, or in the folder") as caught:
        find(source)
    assert str(tmp_path / "data") in str(caught.value)


def test_every_set_has_checksums_and_terms() -> None:
    assert set(images.SETS) | set(table_names()) <= set(download_names())
    for name in (*images.SETS, *table_names()):
        for source in files.SETS[name]:
            assert re.fullmatch("sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", source.checksum)
            assert source.terms


@pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="ASKEW_DATA does not name a folder of data")
def test_files_of_the_tables_are_the_published_ones() -> None:
    for name in table_names():
        (source,) = files.SETS[name]
        assert f"sha256:{hashlib.sha256(find(source).read_bytes()).hexdigest()}" == source.checksum
