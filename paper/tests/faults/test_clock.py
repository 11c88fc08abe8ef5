"""A clock that jumps changes nothing but the times that are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_injection.fork_server import ForkServer

DAY, YEAR = 86400, 365 * 86400


@pytest.mark.parametrize("seconds", [-DAY, YEAR], ids=["back by a day", "forward by a year"])
def test_experiments_do_not_look_at_the_clock(seconds: int, server: ForkServer, tmp_path: Path) -> None:
    """The same rows, also next to those of before the jump."""
    _, rows = server.child(("make", "rows", tmp_path / "plain", 2), ("look", "rows", tmp_path / "plain"))
    server.child(("make", "rows", tmp_path / "begun", 1))
    jumped, made, found = server.child(
        ("jump", seconds), ("make", "rows", tmp_path / "begun", 2), ("look", "rows", tmp_path / "begun")
    )
    assert jumped is None
    assert made is None
    assert found == rows


def test_decoded_images_are_those_of_the_files(server: ForkServer, tmp_path: Path) -> None:
    """A file that is changed is decoded again, though its time says that it is older, or not yet written."""
    now = 1_700_000_000
    moments = [now, now - DAY, now + YEAR, now - YEAR, 0]
    assert server.child(("decode_at", tmp_path, moments)) == [[[n, n + 1] for n in range(5)]]
