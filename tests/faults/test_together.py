"""Two processes that write to the same place: what is there in the end is whole, and of one of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from fault_injection.fork_server import ForkServer

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss is not installed")


@pytest.mark.parametrize("subject", ["model", "exact index", pytest.param("graph index", marks=needs_faiss)])
def test_one_waits_for_the_other(subject: str, server: ForkServer, tmp_path: Path) -> None:
    """A process is stopped before each change of the disk, and another one writes meanwhile."""
    old = tmp_path / "old" / "files"
    new = tmp_path / "other" / "files"
    _, first, _, second = server.child(
        ("make", subject, old, 1), ("look", subject, old), ("make", subject, new, 2), ("look", subject, new)
    )
    (outcomes,) = server.child(("interleaved_everywhere", subject, tmp_path / "both" / "files", old))
    assert isinstance(outcomes, list), outcomes
    assert len(outcomes) >= 4
    for codes, _, found, files in outcomes:
        assert codes == [0, 0]
        assert found in (first, second)
        assert not any(name.endswith(".tmp") for name in files)
    # Somewhere in between the second one does wait, and then it is the last one.
    assert any(waited and found == first for _, waited, found, _ in outcomes)


@pytest.mark.parametrize("subject", ["model", pytest.param("graph index", marks=needs_faiss)])
def test_reading_while_others_write(subject: str, server: ForkServer, tmp_path: Path) -> None:
    """Whatever a reader finds is a whole version of one of the writers."""
    versions = []
    for version in (1, 2):
        folder = tmp_path / str(version) / "files"
        versions.append(server.child(("make", subject, folder, version), ("look", subject, folder))[1])
    (outcome,) = server.child(("read_meanwhile", subject, tmp_path / "both" / "files", 15))
    assert isinstance(outcome, list), outcome
    seen, codes, last = outcome
    assert codes == [0, 0]
    assert last in versions
    assert all(found in versions for found in seen)


def test_two_runs_with_one_checkpoint(server: ForkServer, tmp_path: Path) -> None:
    """Both write whole files, and going on from the last one gives what one of them alone gives."""
    old = tmp_path / "old" / "files"
    _, whole = server.child(("make", "checkpoint", old, 1), ("train", tmp_path / "alone"))
    (outcomes,) = server.child(("interleaved_everywhere", "checkpoint", tmp_path / "both" / "files", old))
    assert isinstance(outcomes, list), outcomes
    assert len(outcomes) >= 4
    for codes, _, step, files in outcomes:
        assert codes == [0, 0]
        assert step in (3, 6, 9, 12)
        assert files == ["run", "run/state"]
    assert server.child(("train", tmp_path / "both" / "files" / "run" / "state")) == [whole]
