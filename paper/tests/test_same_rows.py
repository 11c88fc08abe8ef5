"""Experiments at toy scale give the rows that they gave in version 0.1.0, bit for bit.

Other processors and other versions of the libraries may round in another way, so rows are compared only where they were
recorded. The test takes some cells; the file as a program takes all of them, or records those of another revision:

    python paper/tests/test_same_rows.py
    PYTHONPATH=CHECKOUT/src:CHECKOUT/paper/src python paper/tests/test_same_rows.py --record

Toy cells need no data. Times differ from run to run; only that they are there is compared.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import scipy
import sklearn
import threadpoolctl
import torch

RECORDED = Path(__file__).with_name("same_rows.json")
# Up to version 0.1.0 the experiments were a part of the library.
OLD = importlib.util.find_spec("askew.experiments") is not None
TIMES = {"step", "ratio", "milliseconds"}
# One method beside nbd in each experiment, at its first setting: together they have most kinds of divergences.
METHODS = {
    "clustering": "pbdl",
    "ranking": "nbd-auto",
    "regression": "deepnorm",
    "timing": "iqe",
    "ablation": "plain",
    "bregmnist": "mrn",
    "bregcifar": "iqe",
    "deep-metric": "nbd-paper",
    "semantic": "mahalanobis-norm",
    "overlap": "widenorm",
    "shortest-path": "bregman-gs",
    "roads": "bregman-sqrt",
    "entailment": "deep-div",
    "closure": "mrn",
}


def surroundings() -> dict[str, str]:
    """Return what the last bits of numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines() if sys.platform == "linux" else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = f"{next(names, platform.processor())}, {torch.backends.cpu.get_cpu_capability()}"
    versions = {module.__name__: str(module.__version__) for module in (torch, numpy, scipy, sklearn)}
    return {"processor": processor, **versions}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, as the order of sums depends on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpoolctl.threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def experiments() -> dict[str, Any]:
    module = "askew.experiments.description" if OLD else "askew_paper.catalogue"
    found: dict[str, Any] = importlib.import_module(module).EXPERIMENTS
    return found


def run_cell(experiment: str, identity: dict[str, Any]) -> dict[str, Any]:
    """Compute the cell of an experiment that is described as in a row, and return what JSON has of its outcome."""
    cells = experiments()[experiment].checked_cells("toy")
    cell = next(cell for cell in cells if as_json(cell.description()) == identity)
    engine = importlib.import_module("askew.experiments.workers" if OLD else "askew_paper.runner")
    with one_thread(), engine.seeded(cell):
        outcome = experiments()[experiment].run(cell)
    scores = {name: "a time" if name in TIMES else float(value) for name, value in outcome.scores.items()}
    curves = {name: [float(value) for value in values] for name, values in outcome.curves.items()}
    return as_json({"scores": scores, "curves": curves, "chosen": outcome.chosen})


def as_json(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(value))
    return found


def recorded() -> tuple[dict[str, str], list[dict[str, Any]]]:
    content = json.loads(RECORDED.read_text("utf-8"))
    return content["surroundings"], content["rows"]


@pytest.mark.parametrize("experiment", METHODS)
def test_rows_are_those_that_were_recorded(experiment: str) -> None:
    where, rows = recorded()
    if where != surroundings():
        pytest.skip(f"the bits were recorded with {where}")
    for method in ("nbd", METHODS[experiment]):
        same = (row for row in rows if (row["cell"]["experiment"], row["cell"]["method"]) == (experiment, method))
        row = next(same)
        assert run_cell(experiment, row["cell"]) == row["outcome"]


def test_every_experiment_is_there() -> None:
    assert list(METHODS) == list(experiments())


def main() -> None:
    cells = [cell for experiment in experiments().values() for cell in experiment.checked_cells("toy")]
    identities = [as_json(cell.description()) for cell in cells]
    rows = [{"cell": identity, "outcome": run_cell(identity["experiment"], identity)} for identity in identities]
    if sys.argv[1:] == ["--record"]:
        lines = ",\n".join(map(json.dumps, rows))
        start = json.dumps(surroundings())
        RECORDED.write_text(f'{{"surroundings": {start},\n"rows": [\n{lines}\n]}}\n', "utf-8")
    known = {json.dumps(row["cell"]): row["outcome"] for row in recorded()[1]}
    found = {json.dumps(row["cell"]): row["outcome"] for row in rows}
    different = [cell for cell in known | found if known.get(cell) != found.get(cell)]
    print(f"{len(rows)} cells, of which {len(different)} differ", *different, sep="\n")


if __name__ == "__main__":
    main()
