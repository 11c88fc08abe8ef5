"""Disks that are full and folders that are read-only: an error  what was there before is intact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_injection.fork_server import ForkServer, sizes_of

SUBJECTS = ["rows", "report"]
# A disk in memory has pages of 4 kB, and the files have a few of them.
SIZES = [0, 4096, 8192, 12288, 16384, 32768, 1 << 20]


def check_words(error: dict[str, str]) -> None:
    text = error["text"]
    assert "Traceback" not in text
    assert "No space left on device" in text or "File too large" in text
    assert error["raised"] == "CommandError"
    code, _, shown = text.partition(": ")
    assert code in ("exit code 1", "exit code 2")
    assert shown.startswith("askew: ")
    assert len(shown.splitlines()) == 1


def check(subject: str, outcomes: Any) -> None:
    """Check what came of writing the second version where there is no room for all of it."""
    assert isinstance(outcomes, list), outcomes
    *short, (error, _, second, _, again) = outcomes
    assert error is None
    assert again == second
    failures = [outcome for outcome in short if outcome[0] is not None]
    assert len(failures) >= 2, outcomes
    for error, first, then, left, again in failures:
        check_words(error)
        assert again == second
        assert left == []
        if subject == "rows":  # those that did fit are kept
            assert then == second[: len(then)]
            assert len(then) >= len(first) > 0
        else:
            assert then == first != second


@pytest.mark.parametrize("subject", SUBJECTS)
def test_full_disk(subject: str, server: ForkServer, tmp_path: Path) -> None:
    """A disk in memory that is filled up to its last pages."""
    disk = tmp_path / "disk"
    mounted, outcomes = server.child(
        ("mount_small_disk", disk, 2 << 20), ("too_little_room", subject, disk, True, SIZES)
    )
    if mounted is not True:
        pytest.skip("no disk can be mounted here; test_files_that_must_not_grow does the same by a limit of the system")
    check(subject, outcomes)
    assert list(disk.iterdir()) == []  # it was a disk of the child only


@pytest.mark.parametrize("subject", SUBJECTS)
def test_files_that_must_not_grow(subject: str, server: ForkServer, tmp_path: Path) -> None:
    """A limit of the system for the size of files, which works everywhere."""
    sizes = [1, *sizes_of(subject, server, tmp_path), 1 << 30]
    (outcomes,) = server.child(("too_little_room", subject, tmp_path / "files", False, sizes))
    check(subject, outcomes)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that becomes read-only, and can be removed afterwards."""
    place = tmp_path / "folder"
    place.mkdir()
    yield place
    for path in [place, *place.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_read_only_folder(subject: str, server: ForkServer, folder: Path) -> None:
    """The error says so, before the work where that is long; what is there can still be read."""
    made, first = server.child(("make", subject, folder, 1), ("look", subject, folder))
    assert made is None
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    denied, error, then = server.child(
        ("deny_writing", folder), ("try_to_make", subject, folder, 2), ("look", subject, folder)
    )
    if not denied:
        pytest.skip("nothing can be mounted here, and this user may write everywhere")
    assert error is not None
    assert "Read-only file system" in error["text"] or "Permission denied" in error["text"]
    assert "Traceback" not in error["text"]
    assert then == first
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_long_work_finds_out_at_its_beginning(server: ForkServer, folder: Path) -> None:
    """Not at its end, when the work would be lost: in the first cell of a run."""
    (folder / "results").mkdir()
    denied, ran = server.child(
        ("deny_writing", folder), ("paper_command", "run", "sums", "--scale", "toy", "-o", folder / "results")
    )
    if not denied:
        pytest.skip("nothing can be mounted here, and this user may write everywhere")
    assert ran["code"] == 2
    assert "folder must be one that can be written to" in ran["err"]
