"""One process that forks, for all tests of faults."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not hasattr(os, "fork"):
        for item in items:
            if FOLDER in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs processes that fork and can be killed"))


@pytest.fixture(scope="session")
def server() -> Iterator[object]:
    from fault_injection.fork_server import ForkServer

    found = ForkServer("paper_scenes")
    yield found
    found.close()
