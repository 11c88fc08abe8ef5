"""Processes that are killed, wherever they change the disk: old or new is there, whole, and work goes on."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from faults.nursery import Nursery, sizes_of

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss is not installed")
WHOLE = [
    "model",
    "exact index",
    pytest.param("graph index", marks=needs_faiss),
    pytest.param("index added to", marks=needs_faiss),
    "report",
    "learn",
    "index command",
]


def plain(name: str) -> str:
    """Return the name of a file without the digests in it."""
    return re.sub(r"[0-9a-f]{16}", "*", name)


@pytest.mark.parametrize("subject", WHOLE)
def test_killed_before_any_change_of_the_disk(subject: str, nursery: Nursery, tmp_path: Path) -> None:
    """What is there is the old version or the new one, and the same call then succeeds and leaves nothing else."""
    old = tmp_path / "old" / "files"
    _, first = nursery.child(("make", subject, old, 1), ("look", subject, old))
    (outcomes,) = nursery.child(("killed_everywhere", subject, tmp_path / "new" / "files", old))
    assert isinstance(outcomes, list), outcomes
    *killed, (code, second, again, files) = outcomes
    assert code == 0
    assert first != second
    assert again == second
    assert len(killed) >= 4
    found = [then for _, then, _, _ in killed]
    # Once the new one is there it stays.
    assert found == [first] * found.count(first) + [second] * found.count(second)
    assert found.count(first) >= 3
    for code, _, again, left in killed:
        assert code == -signal.SIGKILL
        assert again == second
        # Only a whole part of either version, which nothing names any more, may stay.
        # Beside a page, a hidden file stays, too.
        assert not any(name.endswith(".tmp") for name in left) or subject == "report"
        assert {plain(name) for name in left} == {plain(name) for name in files} or subject == "report"


@pytest.mark.parametrize(
    "subject", ["model", pytest.param("graph index", marks=needs_faiss), "exact index", "checkpoint", "report"]
)
def test_killed_in_the_middle_of_a_file(subject: str, nursery: Nursery, tmp_path: Path) -> None:
    """The system ends the process at a chosen byte, also in the code of safetensors and FAISS."""
    old = tmp_path / "old" / "files"
    _, first = nursery.child(("make", subject, old, 1), ("look", subject, old))
    sizes = [0, *sizes_of(subject, nursery, tmp_path), 1 << 30]
    (outcomes,) = nursery.child(("killed_at_every_byte", subject, tmp_path / "new" / "files", old, sizes))
    assert isinstance(outcomes, list), outcomes
    *killed, (code, second, _, _) = outcomes
    assert code == 0
    assert len(killed) >= 3
    for code, then, again, left in killed:
        assert code == -signal.SIGXFSZ
        assert then == first or (subject, then) in (("checkpoint", 6), ("checkpoint", 9))
        assert again == second
        # Hidden files that nobody takes for a page stay beside pages.
        assert not any(name.endswith(".tmp") for name in left) or subject == "report"


# ---------------------------------------------------------------------- training


def test_killed_in_training(nursery: Nursery, tmp_path: Path) -> None:
    """Killed in any step, a run that goes on ends with the weights of one that was left alone."""
    (undisturbed,) = nursery.child(("train", tmp_path / "whole"))
    assert isinstance(undisturbed, str)
    for step in range(1, 13):
        file = tmp_path / f"killed-{step}"
        assert nursery.child(("train", file, None, step)) == [{"killed": signal.SIGKILL}]
        assert file.exists() == (step > 3)
        # Killed once more on its way.
        nursery.child(("train", file, None, 2))
        assert nursery.child(("train", file)) == [undisturbed]


def test_killed_while_a_checkpoint_is_written(nursery: Nursery, tmp_path: Path) -> None:
    """The checkpoint is the last one or the one before it, and going on from either gives the same."""
    old = tmp_path / "old" / "files"
    _, first, whole = nursery.child(
        ("make", "checkpoint", old, 1), ("look", "checkpoint", old), ("train", tmp_path / "a")
    )
    assert first == 3
    (outcomes,) = nursery.child(("killed_everywhere", "checkpoint", tmp_path / "new" / "files", old))
    assert isinstance(outcomes, list), outcomes
    found = [then for _, then, _, _ in outcomes]
    assert set(found) == {3, 6, 9, 12}
    assert found == sorted(found)
    assert {again for _, _, again, _ in outcomes} == {12}
    assert nursery.child(("train", tmp_path / "new" / "files" / "run" / "state")) == [whole]


# ---------------------------------------------------------------------- rows of experiments


def test_killed_while_rows_are_written(nursery: Nursery, tmp_path: Path) -> None:
    """At most the row under way is lost, and a second run completes to the same rows."""
    old = tmp_path / "old" / "files"
    _, first = nursery.child(("make", "rows", old, 1), ("look", "rows", old))
    (outcomes,) = nursery.child(("killed_everywhere", "rows", tmp_path / "new" / "files", old))
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


def test_killed_in_the_middle_of_a_row(nursery: Nursery, tmp_path: Path) -> None:
    """Half a line is told of, cut off and computed again."""
    old = tmp_path / "old" / "files"
    _, first = nursery.child(("make", "rows", old, 1), ("look", "rows", old))
    shares = [0, 0.01, 0.5, 0.99, 1]
    (outcomes,) = nursery.child(("killed_within_a_write", "rows", tmp_path / "new" / "files", old, shares))
    assert isinstance(outcomes, list), outcomes
    assert [code for code, *_ in outcomes] == [-signal.SIGKILL] * 5
    assert [then[:4] for _, then, _, _ in outcomes] == [first] * 5
    assert [len(then) for _, then, _, _ in outcomes] == [4, 4, 4, 4, 5]
    for _, then, again, _ in outcomes:
        assert len(again) == 8
        assert again == outcomes[0][2]
        assert then == again[: len(then)]


def test_killed_worker(nursery: Nursery, tmp_path: Path) -> None:
    """The cell of a worker that is gone is told of, all others have rows, and a second run adds the missing one."""
    words = ("reproduce", "sums", "--scale", "toy", "--jobs", "2", "-o", tmp_path / "results")
    _, found, rows = nursery.child(("let_a_worker_die",), ("command", *words), ("look", "rows", tmp_path))
    assert found["code"] == 1
    assert "Traceback" not in found["err"]
    assert "1 cell(s) failed; all others have their rows" in found["err"]
    assert "its process died with exit code -9" in found["err"]
    assert sorted(row[:2] for row in rows) == [["exact", 0], ["exact", 1], ["slow", 0]]
    _, again = nursery.child(("make", "rows", tmp_path, 1), ("look", "rows", tmp_path))
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
        while self.part.stat().st_size < 100_000:
            time.sleep(0.005)
        os.kill(int(self.path.split("/")[1]), signal.SIGKILL)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Killer, "part", tmp_path / "a.bin.part", raising=False)
    monkeypatch.setattr(Killer, "asked", [], raising=False)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Killer)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_killed_in_a_download(server: str, nursery: Nursery, tmp_path: Path) -> None:
    """What has come is kept, and the next process fetches the rest only."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert nursery.child(("fetch", server, tmp_path, digest)) == [{"killed": signal.SIGKILL}]
    kept = Killer.part.read_bytes()
    assert not (tmp_path / "a.bin").exists()
    assert 0 < len(kept) < len(CONTENT)
    assert kept == CONTENT[: len(kept)]
    assert nursery.child(("fetch", server, tmp_path, digest)) == [str(tmp_path / "a.bin")]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert Killer.asked == [None, f"bytes={len(kept)}-"]
    assert not Killer.part.exists()
