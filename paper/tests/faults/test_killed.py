"""Experiments, reports and downloads that are killed: nothing that was finished is lost."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fault_injection.fork_server import ForkServer, sizes_of


@pytest.mark.parametrize("series", ["killed_everywhere", "killed_at_every_byte"])
def test_killed_while_a_report_is_written(series: str, server: ForkServer, tmp_path: Path) -> None:
    """The old page or the new one is there, and the same command then succeeds; a hidden file may stay."""
    old = tmp_path / "old" / "files"
    _, first = server.child(("make", "report", old, 1), ("look", "report", old))
    sizes = [[0, *sizes_of("report", server, tmp_path), 1 << 30]] if series == "killed_at_every_byte" else []
    (outcomes,) = server.child((series, "report", tmp_path / "new" / "files", old, *sizes))
    assert isinstance(outcomes, list), outcomes
    *killed, (code, second, _, _) = outcomes
    assert code == 0
    assert first != second
    assert len(killed) >= 3
    found = [then for _, then, _, _ in killed]
    assert found == [first] * found.count(first) + [second] * found.count(second)
    for code, _, again, left in killed:
        assert code in (-signal.SIGKILL, -signal.SIGXFSZ)
        assert again == second
        assert {name for name in left if not name.endswith(".tmp")} == {"page.html"}


def test_killed_while_rows_are_written(server: ForkServer, tmp_path: Path) -> None:
    """At most the row under way is lost, and a second run completes to the same rows."""
    old = tmp_path / "old" / "files"
    _, first = server.child(("make", "rows", old, 1), ("look", "rows", old))
    (outcomes,) = server.child(("killed_everywhere", "rows", tmp_path / "new" / "files", old))
    assert isinstance(outcomes, list), outcomes
    second = outcomes[-1][1]
    assert len(first) == 4
    assert len(second) == 8
    lengths = []
    for _, then, again, _ in outcomes:
        assert then == second[: len(then)]
        assert again == second
        lengths.append(len(then))
    assert lengths == sorted(lengths)
    assert set(lengths) == {4, 5, 6, 7, 8}


def test_killed_in_the_middle_of_a_row(server: ForkServer, tmp_path: Path) -> None:
    """Half a line is told of, cut off and computed again."""
    old = tmp_path / "old" / "files"
    _, first = server.child(("make", "rows", old, 1), ("look", "rows", old))
    shares = [0, 0.01, 0.5, 0.99, 1]
    (outcomes,) = server.child(("killed_within_a_write", "rows", tmp_path / "new" / "files", old, shares))
    assert isinstance(outcomes, list), outcomes
    assert [code for code, *_ in outcomes] == [-signal.SIGKILL] * 5
    assert [then[:4] for _, then, _, _ in outcomes] == [first] * 5
    assert [len(then) for _, then, _, _ in outcomes] == [4, 4, 4, 4, 5]
    for _, then, again, _ in outcomes:
        assert len(again) == 8
        assert again == outcomes[0][2]
        assert then == again[: len(then)]


def test_killed_worker(server: ForkServer, tmp_path: Path) -> None:
    """The cell of a worker that is gone is told of, all others have rows, and a second run adds the missing one."""
    words = ("run", "sums", "--scale", "toy", "--jobs", "2", "-o", tmp_path / "results")
    _, found, rows = server.child(("let_a_worker_die",), ("paper_command", *words), ("look", "rows", tmp_path))
    assert found["code"] == 1
    assert "Traceback" not in found["err"]
    assert "1 cell(s) failed; all others have their rows" in found["err"]
    assert "its process died with exit code -9" in found["err"]
    assert sorted(row[:2] for row in rows) == [["exact", 0], ["exact", 1], ["slow", 0]]
    _, again = server.child(("make", "rows", tmp_path, 1), ("look", "rows", tmp_path))
    assert again[:3] == rows
    assert again[3][:2] == ["slow", 1]


# ---------------------------------------------------------------------- downloads

CONTENT = bytes(range(256)) * 4000


class Killer(BaseHTTPRequestHandler):
    """Serves half a file, and kills the process that its address names once some of that is on the disk."""

    part: Path
    asked: list[str | None]

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.asked.append(wanted)
        start = 0 if wanted is None else int(wanted.removeprefix("bytes=").rstrip("-"))
        self.send_response(200 if wanted is None else 206)
        if wanted is not None:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        if wanted is not None:
            self.wfile.write(CONTENT[start:])
            return
        self.wfile.write(CONTENT[: len(CONTENT) // 2])
        while not self.part.exists() or self.part.stat().st_size < 100_000:
            time.sleep(0.005)
        os.kill(int(self.path.split("/")[1]), signal.SIGKILL)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Killer, "part", tmp_path / "a.bin.part", raising=False)
    monkeypatch.setattr(Killer, "asked", [], raising=False)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Killer)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_killed_in_a_download(web: str, server: ForkServer, tmp_path: Path) -> None:
    """What has come is kept, and the next process fetches the rest only."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert server.child(("fetch", web, tmp_path, digest)) == [{"killed": signal.SIGKILL}]
    kept = Killer.part.read_bytes()
    assert not (tmp_path / "a.bin").exists()
    assert 0 < len(kept) < len(CONTENT)
    assert kept == CONTENT[: len(kept)]
    assert server.child(("fetch", web, tmp_path, digest)) == [str(tmp_path / "a.bin")]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert Killer.asked == [None, f"bytes={len(kept)}-"]
    assert not Killer.part.exists()
