"""One of several processes that train together is lost: the others say so, and the run can be taken up."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from fault_injection.fork_server import ForkServer

from askew import io

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
# Seconds that a process waits for one that is stopped; less than it would have waited for one that was killed.
PATIENCE, BOUND = 5, 55


def step_of(checkpoint: Path) -> int:
    tensors, description = io.load_tensors(checkpoint, "checkpoint")
    return int(io.unflatten(tensors, description["tree"])["counters"]["step"])


@pytest.fixture(scope="module")
def undisturbed(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What two processes learn that are left alone."""
    ((codes, (first, second), _),) = server.child(("train_together", tmp_path_factory.mktemp("whole") / "state", 2))
    assert codes == [0, 0]
    assert first == second
    weights: list[float] = first
    return weights


def test_lost_process_with_loaders(server: ForkServer, tmp_path: Path) -> None:
    """Each process has its own, and the same number of them goes on in the order of each."""
    file = tmp_path / "state"
    ((_, (undisturbed, _), _),) = server.child(("train_together", tmp_path / "whole", 2, -1, 0, 60, True))
    ((codes, _, _),) = server.child(("train_together", file, 2, 1, signal.SIGKILL, 60, True))
    assert codes == [0, -signal.SIGKILL]
    assert step_of(file) == 6
    ((codes, said, _),) = server.child(("train_together", file, 2, -1, 0, 60, True))
    assert codes == [0, 0]
    for weights in said:
        np.testing.assert_allclose(weights, undisturbed, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("victim", "fatal"), [(0, "SIGKILL"), (1, "SIGKILL"), (1, "SIGSTOP")])
def test_lost_process(victim: int, fatal: str, server: ForkServer, tmp_path: Path, undisturbed: list[float]) -> None:
    """Killed, or stopped so that the other waits for it in vain; the first one is that which writes the checkpoint."""
    file = tmp_path / "state"
    patience = PATIENCE if fatal == "SIGSTOP" else 60
    ((codes, said, seconds),) = server.child(("train_together", file, 2, victim, getattr(signal, fatal), patience))
    other = 1 - victim
    assert codes[victim] == -signal.SIGKILL
    assert codes[other] == 0
    assert said[victim] is None
    assert said[other]["raised"] == "RuntimeError"
    text = "the processes that train together must be at work until the end. Got no answer from one of them ("
    assert said[other]["text"].startswith(text)
    assert "With checkpoint= the same call goes on from the last checkpoint" in said[other]["text"]
    assert seconds < BOUND
    # The last one before the eighth step, and nothing else.
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert step_of(file) == 6
    whole = file.read_bytes()
    for size in (2, 1):
        file.write_bytes(whole)
        ((codes, said, _),) = server.child(("train_together", file, size))
        assert codes == [0] * size
        for weights in said:
            np.testing.assert_allclose(weights, undisturbed, rtol=1e-8, atol=1e-10)
