"""A clock that jumps changes nothing but the times that are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.nursery import Nursery

DAY, YEAR = 86400, 365 * 86400


@pytest.mark.parametrize("seconds", [-DAY, YEAR], ids=["back by a day", "forward by a year"])
def test_training_and_experiments_do_not_look_at_the_clock(seconds: int, nursery: Nursery, tmp_path: Path) -> None:
    """Same weights, also from a checkpoint of before the jump, and same rows, also beside those of before."""
    whole, _, rows = nursery.child(
        ("train", tmp_path / "whole"), ("make", "rows", tmp_path / "plain", 2), ("look", "rows", tmp_path / "plain")
    )
    nursery.child(("make", "checkpoint", tmp_path / "begun", 1), ("make", "rows", tmp_path / "begun", 1))
    jumped, anew, resumed, made, found = nursery.child(
        ("jump", seconds),
        ("train", tmp_path / "jumped", None, None, True),
        ("train", tmp_path / "begun" / "run" / "state"),
        ("make", "rows", tmp_path / "begun", 2),
        ("look", "rows", tmp_path / "begun"),
    )
    assert jumped is None
    assert made is None
    assert anew == resumed == whole
    assert found == rows


def test_decoded_images_are_those_of_the_files(nursery: Nursery, tmp_path: Path) -> None:
    """A file that is changed is decoded again, though its time says that it is older, or not yet written."""
    now = 1_700_000_000
    moments = [now, now - DAY, now + YEAR, now - YEAR, 0]
    assert nursery.child(("decode_at", tmp_path, moments)) == [[[n, n + 1] for n in range(5)]]
