"""Processes that are killed, wherever they change the disk: old or new is there, whole, and work goes on."""

from __future__ import annotations

import importlib.util
import re
import signal
from pathlib import Path

import pytest
from fault_injection.fork_server import ForkServer, sizes_of

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss is not installed")
WHOLE = [
    "model",
    "exact index",
    pytest.param("graph index", marks=needs_faiss),
    pytest.param("index added to", marks=needs_faiss),
    "learn",
    "index command",
]


def plain(name: str) -> str:
    """Return the name of a file without the digests in it."""
    return re.sub(r"[0-9a-f]{16}", "*", name)


@pytest.mark.parametrize("subject", WHOLE)
def test_killed_before_any_change_of_the_disk(subject: str, server: ForkServer, tmp_path: Path) -> None:
    """What is there is the old version or the new one, and the same call then succeeds and leaves nothing else."""
    old = tmp_path / "old" / "files"
    _, first = server.child(("make", subject, old, 1), ("look", subject, old))
    (outcomes,) = server.child(("killed_everywhere", subject, tmp_path / "new" / "files", old))
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
        assert not any(name.endswith(".tmp") for name in left)
        assert {plain(name) for name in left} == {plain(name) for name in files}


@pytest.mark.parametrize(
    "subject", ["model", pytest.param("graph index", marks=needs_faiss), "exact index", "checkpoint"]
)
def test_killed_in_the_middle_of_a_file(subject: str, server: ForkServer, tmp_path: Path) -> None:
    """The system ends the process at a chosen byte, also in the code of safetensors and FAISS."""
    old = tmp_path / "old" / "files"
    _, first = server.child(("make", subject, old, 1), ("look", subject, old))
    sizes = [0, *sizes_of(subject, server, tmp_path), 1 << 30]
    (outcomes,) = server.child(("killed_at_every_byte", subject, tmp_path / "new" / "files", old, sizes))
    assert isinstance(outcomes, list), outcomes
    *killed, (code, second, _, _) = outcomes
    assert code == 0
    assert len(killed) >= 3
    for code, then, again, left in killed:
        assert code == -signal.SIGXFSZ
        assert then == first or (subject, then) in (("checkpoint", 6), ("checkpoint", 9))
        assert again == second
        assert not any(name.endswith(".tmp") for name in left)


# ---------------------------------------------------------------------- training


def test_killed_in_training(server: ForkServer, tmp_path: Path) -> None:
    """Killed in any step, a run that goes on ends with the weights of one that was left alone."""
    (undisturbed,) = server.child(("train", tmp_path / "whole"))
    assert isinstance(undisturbed, str)
    for step in range(1, 13):
        file = tmp_path / f"killed-{step}"
        assert server.child(("train", file, None, step)) == [{"killed": signal.SIGKILL}]
        assert file.exists() == (step > 3)
        # Killed once more on its way.
        server.child(("train", file, None, 2))
        assert server.child(("train", file)) == [undisturbed]


def test_killed_while_a_checkpoint_is_written(server: ForkServer, tmp_path: Path) -> None:
    """The checkpoint is the last one or the one before it, and going on from either gives the same."""
    old = tmp_path / "old" / "files"
    _, first, whole = server.child(
        ("make", "checkpoint", old, 1), ("look", "checkpoint", old), ("train", tmp_path / "a")
    )
    assert first == 3
    (outcomes,) = server.child(("killed_everywhere", "checkpoint", tmp_path / "new" / "files", old))
    assert isinstance(outcomes, list), outcomes
    found = [then for _, then, _, _ in outcomes]
    assert set(found) == {3, 6, 9, 12}
    assert found == sorted(found)
    assert {again for _, _, again, _ in outcomes} == {12}
    assert server.child(("train", tmp_path / "new" / "files" / "run" / "state")) == [whole]
