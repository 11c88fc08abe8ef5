"""All targets by name."""

from __future__ import annotations

import os

from fuzzing import folders, members, pages, parts, published, results, tables
from fuzzing.targets import Target

__all__ = ["FILES", "NUMBERS", "PLANTED", "TARGETS"]

MODULES = (tables, published, folders, results, pages, members, parts)
TARGETS: dict[str, Target] = {target.name: target for module in MODULES for target in module.TARGETS}
NUMBERS: tuple[str, ...] = tuple(target.name for module in (members, parts) for target in module.TARGETS)
FILES: tuple[str, ...] = tuple(name for name in TARGETS if name not in NUMBERS)


def _fall(case: float) -> int:
    """Crash, take memory, or do nothing: shows that the runner sees it."""
    if 0.2 < case < 0.25:
        os.abort()
    if 0.1 < case < 0.2:
        bytearray(1 << 36)
    return 1


# Not among the targets: it fails.
PLANTED = Target("planted", lambda random: random.random(), _fall)
