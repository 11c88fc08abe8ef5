"""Two processes that train together do what one does: same loss, same gradient, same weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPT = Path(__file__).with_name("together.py")
ALIKE = (
    "labels/encoder",
    "labels/no-encoder",
    "labels/own-matrix",
    "labels/loader",
    "labels-list/encoder",
    "labels-twice/encoder",
    "pairs/encoder",
    "pairs/loader",
    "pairs/called",
    "labels/validated",
    "labels/validated-by-loader",
    "triplets/encoder",
    "function/encoder",
    "learned/encoder",
    "labels/odd-kinds",
    "labels/several",
    "labels/stream",
    "function/several",
)
# Errors of two processes, and whether one alone has them as well.
WRONG = {
    "labels/column": (
        "ValueError: labels of AllTriplets must be a tensor of shape (67,), one for each row of the matrix. "
        "Got (67, 1) instead.",
        True,
    ),
    "labels/short": (
        "ValueError: the parts of a batch given to fit must be equally long. Got points {rows}, labels {less} instead.",
        False,
    ),
    "labels/other-data": (
        "ValueError: data of fit must be the same in all processes. Got other data in process 1 instead. "
        "Give each the whole arrays, of which it takes its rows, or a loader with as many batches.",
        False,
    ),
    "labels/uneven": (
        "ValueError: data of fit must be the same in all processes. Got other data in process 1 instead. "
        "Give each the whole arrays, of which it takes its rows, or a loader with as many batches.",
        False,
    ),
    "labels/uneven-stream": (
        "ValueError: the batches of the loaders given to fit must be the same number in every process. "
        "Got none left in process 1 and one more in process 0 instead. A DistributedSampler gives all of them as many.",
        False,
    ),
    "pairs/tiny": (
        "ValueError: a batch given to fit must be of rows for each of 2 processes. Got 1 and 0 rows instead. "
        "Use larger batches.",
        False,
    ),
    "labels/empty": (
        "ValueError: a batch given to fit must be of rows for each of 2 processes. Got 67 and 0 rows instead. "
        "Use larger batches.",
        False,
    ),
    "pairs/other-size": (
        "ValueError: batch_size of fit must be the same in all processes. Got 33 and, in process 1, 34 instead.",
        False,
    ),
    "pairs/other-every": (
        "ValueError: checkpoint_every of fit must be the same in all processes. Got 3 and, in process 1, 4 instead.",
        False,
    ),
    "pairs/other-calibrate": (
        "ValueError: calibrate of fit must be the same in all processes. Got True and, in process 1, False instead.",
        False,
    ),
    "pairs/other-callback": (
        "ValueError: callback of fit must be the same in all processes. Got False and, in process 1, True instead.",
        False,
    ),
    "pairs/other-model": (
        "ValueError: encoder.1.hidden.0.weight of the model of fit must be the same in all processes. Got 'learned "
        "torch.float64 (8, 6)' and, in process 1, 'learned torch.float64 (9, 6)' instead.",
        False,
    ),
    "learned/other-loss": (
        "ValueError: more of the loss of fit must be the same in all processes. Got None and, in process 1, 'fixed "
        "torch.float32 (2,)' instead.",
        False,
    ),
    "labels-own/encoder": (
        "TypeError: the method of() of OwnWay must be that of LabelLoss, PairLoss or TripletLoss where several "
        "processes train together. Got another one instead. Override forward, which gets the values of all, or give "
        "fit a function that is a mean over rows.",
        False,
    ),
}
# The last one is stopped, and then resumed.
CASES = (*ALIKE, *WRONG, "pairs/resumed", "labels/shuffled", "labels/shuffled-resumed", "labels/shuffled-resumed")
pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo"),
    pytest.mark.xdist_group("test_distributed"),  # all read what one fixture has computed
]


def start(folder: Path, size: int, *more: str) -> None:
    """Run all cases, and more, in so many processes."""
    commands = [[sys.executable, str(SCRIPT), str(folder), str(rank), str(size), *CASES, *more] for rank in range(size)]
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
    (alone / "pairs-resumed-alone.checkpoint").write_bytes((together / "pairs-resumed.checkpoint").read_bytes())
    start(alone, 1, "pairs/resumed-alone")
    for path in [*alone.glob("*.npz"), *alone.glob("*.txt")]:
        (together / path.name).write_bytes(path.read_bytes())
    return together


def assert_same(first: Path, second: Path) -> None:
    with np.load(first) as one, np.load(second) as other:
        assert set(one.files) == set(other.files)
        for name in one.files:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("case", ALIKE)
def test_two_processes_do_what_one_does(case: str, folder: Path) -> None:
    name = case.replace("/", "-")
    assert_same(folder / f"{name}-1-0.npz", folder / f"{name}-2-0.npz")
    assert_same(folder / f"{name}-2-1.npz", folder / f"{name}-2-0.npz")


def test_training_changes_the_weights_of_all_parts(folder: Path) -> None:
    with np.load(folder / "labels-encoder-2-0.npz") as weights:
        assert weights["loss"][0] != weights["loss"][-1]


def test_one_process_takes_up_what_two_began(folder: Path) -> None:
    """The checkpoint is written once, and knows nothing of the number of processes."""
    assert_same(folder / "pairs-resumed-alone-1-0.npz", folder / "pairs-resumed-1-0.npz")
    assert not (folder / "pairs-resumed-2-0.npz").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_takes_up_its_own_order(rank: int, folder: Path) -> None:
    """That of its loader, and its own random numbers, here those of a dropout."""
    assert_same(folder / f"labels-shuffled-resumed-2-{rank}.npz", folder / f"labels-shuffled-2-{rank}.npz")


@pytest.mark.parametrize("case", WRONG)
def test_all_processes_say_the_same_of_what_is_wrong(case: str, folder: Path) -> None:
    """Otherwise one would wait for the others, or die of their death."""
    text, alone = WRONG[case]
    name = case.replace("/", "-")
    for rank, rows in enumerate((34, 33)):
        said = (folder / f"{name}-2-{rank}.txt").read_text("utf-8")
        assert said == text.format(rows=rows, less=rows - 1)
    if alone:
        assert (folder / f"{name}-1-0.txt").read_text("utf-8") == text


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system does not list threads")
@pytest.mark.parametrize("rank", [0, 1])
def test_group_ends_with_its_threads(rank: int, folder: Path) -> None:
    """Those that are left when Python ends may abort a process that has done all its work."""
    names = (folder / f"threads-{rank}.txt").read_text("utf-8").split("\n")
    assert names
    assert not [name for name in names if "gloo" in name]
