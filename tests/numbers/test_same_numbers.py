"""The errors that benchmarks/numerics.py prints are those of version 0.1.0, bit for bit.

Other processors and other versions of torch may round in another way, so numbers are compared only where they were
recorded. The test takes some rows; the file as a program takes all of them, or records those of another revision:

    python tests/numbers/test_same_numbers.py
    PYTHONPATH=CHECKOUT/src python tests/numbers/test_same_numbers.py --record CHECKOUT
"""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

RECORDED = Path(__file__).with_name("numerics.json")
ROOT = Path(__file__).parents[2]
# Added to both points, in the test.
OFFSETS = (0.0, 100.0)


def surroundings() -> dict[str, str]:
    """Return what the last bits of numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines() if sys.platform == "linux" else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    instructions = torch.backends.cpu.get_cpu_capability()
    return {
        "processor": f"{next(names, platform.processor())}, {instructions}",
        "torch": torch.__version__,
    }


def benchmark(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("numerics_benchmark", root / "benchmarks" / "numerics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def computed(numerics: ModuleType) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name of each row and, for every distance of the points, the errors of both formulas."""
    formulas = (numerics.ours, numerics.textbook)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            for name, offset, model in numerics.rows():
                cells = []
                for ratio in numerics.RATIOS:
                    points = numerics.pairs(model.domain, offset, ratio)
                    cells.append([numerics.errors(formula, model, *points) for formula in formulas])
                yield f"{name}, offset {offset:g}", cells
    finally:
        torch.set_num_threads(threads)


def test_errors_are_those_that_were_recorded() -> None:
    recorded = json.loads(RECORDED.read_text("utf-8"))
    if recorded["surroundings"] != surroundings():
        pytest.skip(f"the bits were recorded with {recorded['surroundings']}")
    numerics = benchmark(ROOT)
    numerics.OFFSETS = OFFSETS
    rows = dict(computed(numerics))
    endings = tuple(f", offset {offset:g}" for offset in OFFSETS)
    assert list(rows) == [name for name in recorded["rows"] if name.endswith(endings)]
    assert [name for name, cells in rows.items() if cells != recorded["rows"][name]] == []


def main() -> None:
    rows = dict(computed(benchmark(Path(sys.argv[2]) if sys.argv[1:2] == ["--record"] else ROOT)))
    if sys.argv[1:2] == ["--record"]:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(cells)}" for name, cells in rows.items())
        start = json.dumps(surroundings())
        RECORDED.write_text(f'{{"surroundings": {start},\n"rows": {{\n{lines}\n}}}}\n', "utf-8")
    recorded = json.loads(RECORDED.read_text("utf-8"))["rows"]
    different = [name for name in recorded | rows if recorded.get(name) != rows.get(name)]
    print(f"{len(rows)} rows, of which {len(different)} differ", *different, sep="\n")


if __name__ == "__main__":
    main()
