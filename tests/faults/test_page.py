"""The page on faults names tests that exist, and all of those in this folder."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def names_in(path: Path) -> set[str]:
    return set(re.findall(r"^def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE))


def test_tests_in_the_table_exist() -> None:
    text = (ROOT / "docs" / "faults.md").read_text("utf-8").partition("## Measured")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    named = set()
    for row in rows:
        found = re.findall(r"`((?:paper/)?tests/[\w/]+\.py)::(test_\w+)`", row)
        assert found, row
        for file, name in found:
            assert name in names_in(ROOT / file), f"{file}::{name}"
        named |= set(found)
    here = {
        (path.relative_to(ROOT).as_posix(), name)
        for folder in ("tests/faults", "paper/tests/faults")
        for path in (ROOT / folder).glob("test_*.py")
        if path != Path(__file__)
        for name in names_in(path)
    }
    assert here <= named, here - named
