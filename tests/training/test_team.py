"""Two processes that train together do what one does: same loss, same gradient, same weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPT = Path(__file__).with_name("together.py")
CASES = (
    "labels/encoder",
    "labels/no-encoder",
    "labels/loader",
    "labels-list/encoder",
    "pairs/encoder",
    "pairs/loader",
    "triplets/encoder",
    "function/encoder",
    "pairs/resumed",
)
pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")


def start(folder: Path, size: int) -> None:
    """Run all cases in so many processes."""
    commands = [[sys.executable, str(SCRIPT), str(folder), str(rank), str(size), *CASES] for rank in range(size)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for command in commands]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors.decode()
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes and one have written; the one takes up the run that the two left at a checkpoint."""
    together, alone = tmp_path_factory.mktemp("together"), tmp_path_factory.mktemp("alone")
    start(together, 2)
    start(alone, 1)
    resumed = tmp_path_factory.mktemp("resumed")
    (resumed / "checkpoint").write_bytes((together / "checkpoint").read_bytes())
    commands = [sys.executable, str(SCRIPT), str(resumed), "0", "1", "pairs/resumed"]
    subprocess.run(commands, check=True, capture_output=True, timeout=300)
    for path in [*alone.glob("*.npz")]:
        (together / path.name).write_bytes(path.read_bytes())
    (together / "resumed.npz").write_bytes((resumed / "pairs-resumed-1-0.npz").read_bytes())
    return together


def assert_same(first: Path, second: Path) -> None:
    with np.load(first) as one, np.load(second) as other:
        assert set(one.files) == set(other.files)
        for name in one.files:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("case", [case for case in CASES if case != "pairs/resumed"])
def test_two_processes_do_what_one_does(case: str, folder: Path) -> None:
    name = case.replace("/", "-")
    assert_same(folder / f"{name}-1-0.npz", folder / f"{name}-2-0.npz")
    assert_same(folder / f"{name}-2-1.npz", folder / f"{name}-2-0.npz")


def test_training_changes_the_weights_of_all_parts(folder: Path) -> None:
    with np.load(folder / "labels-encoder-2-0.npz") as weights:
        assert weights["loss"][0] != weights["loss"][-1]


def test_one_process_takes_up_what_two_began(folder: Path) -> None:
    """The checkpoint is written once, and knows nothing of the number of processes."""
    assert_same(folder / "resumed.npz", folder / "pairs-resumed-1-0.npz")
    assert not (folder / "pairs-resumed-2-0.npz").exists()
