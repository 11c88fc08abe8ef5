"""A clock that jumps changes nothing but the times that are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_injection.fork_server import ForkServer

DAY, YEAR = 86400, 365 * 86400


@pytest.mark.parametrize("seconds", [-DAY, YEAR], ids=["back by a day", "forward by a year"])
def test_training_does_not_look_at_the_clock(seconds: int, server: ForkServer, tmp_path: Path) -> None:
    """The same weights, also from a checkpoint of before the jump."""
    (whole,) = server.child(("train", tmp_path / "whole"))
    server.child(("make", "checkpoint", tmp_path / "begun", 1))
    jumped, fresh, resumed = server.child(
        ("jump", seconds),
        ("train", tmp_path / "jumped", None, None, True),
        ("train", tmp_path / "begun" / "run" / "state"),
    )
    assert jumped is None
    assert fresh == resumed == whole
