"""One process that forks, for all tests of faults."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
# Of the process that forks, which alone imports them; the first knows no Windows.
collect_ignore = ["harm.py", "scenes.py", "nursery.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not hasattr(os, "fork"):
        for item in items:
            if FOLDER in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs processes that fork and can be killed"))


@pytest.fixture(scope="session")
def nursery() -> Iterator[object]:
    from faults.nursery import Nursery

    found = Nursery()
    yield found
    found.close()
