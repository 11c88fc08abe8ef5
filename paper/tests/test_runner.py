"""Runs that stop, die or fail lose nothing that was finished, and go on where they were."""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import askew_paper
import joblib
import numpy as np
import pytest
import torch
from askew_paper.catalogue import chosen
from askew_paper.experiment import MAE, PURITY, Cell, Experiment, Outcome, grid
from askew_paper.published import Published
from askew_paper.rows import Row, append_row, read
from askew_paper.runner import FailedCellsError, cell_seconds, reproduce, seeded

import askew

# For processes that are started: the folders of the two packages.
SOURCES = [str(Path(package.__file__ or "").parents[1]) for package in (askew, askew_paper)]
# A module that other processes can import. Its cells tell which process they run in, and some wait or die.
MODULE = """
import os, time
from pathlib import Path
import torch
from askew_paper.experiment import MAE, Experiment, Outcome, grid

def cells(scale, seeds):
    return grid("sums", scale, seeds, ["small"], ["exact", "slow"], {"size": 3})

def run(cell):
    folder = Path(os.environ["SUMS"])
    (folder / f"{cell.method}-{cell.seed}").write_text(str(os.getpid()))
    if cell.method == "slow" and (folder / "wait").exists():
        time.sleep(600)
    if cell.method == "slow" and cell.seed == 1 and (folder / "die").exists():
        os._exit(3)
    if (folder / "die-once").exists():
        (folder / "die-once").unlink()
        os._exit(3)
    value = torch.rand(()).item() + torch.randn(64, 64).mm(torch.randn(64, 64)).sum().item()
    return Outcome({"mae": value}, curves={"error": [value, torch.tensor(1.0)]}, chosen={"pid": os.getpid()})

def signals(cell):
    lines = Path("/proc/self/status").read_text().splitlines()
    return Outcome({"mae": 1.0}, chosen=dict(line.split(":\t") for line in lines if line.startswith("Sig")))

def watch(cell):
    mark = Path(os.environ["SUMS"]) / f"at-work-{cell.method}-{cell.seed}"
    mark.touch()
    most = 0
    for _ in range(20):
        time.sleep(0.05)
        most = max(most, len(list(mark.parent.glob("at-work-*"))) - 1)
    mark.unlink()
    return Outcome({"mae": float(most)})

def meet(cell):
    mark = Path(os.environ["SUMS"]) / f"waiting-{cell.method}"
    mark.touch()
    end = time.monotonic() + 300
    while len(list(mark.parent.glob("waiting-*"))) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    return Outcome({"mae": float(time.monotonic() < end)})

SUMS = Experiment("sums", "Sums", ("table 1",), (MAE,), {"quick": 2}, {"quick": 1.0}, cells, run)
"""


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    return grid("sums", scale, seeds, ["small", "large"], ["exact"], {"size": 3})


class Counted:
    """Computes cells, and knows which ones."""

    def __init__(self, result: Callable[[Cell], Any]) -> None:
        self.cells: list[Cell] = []
        self.result = result

    def __call__(self, cell: Cell) -> Any:
        self.cells.append(cell)
        return self.result(cell)


def make(result: Callable[[Cell], Any] = lambda cell: Outcome({"mae": cell.seed + 0.5}), **changes: Any) -> Any:
    run = Counted(result)
    usual = {"toy": 1, "quick": 2, "paper": 3}
    sums = Experiment("sums", "Sums", ("table 1",), (MAE,), usual, dict.fromkeys(usual, 1.0), cells, run)
    return dataclasses.replace(sums, **changes), run


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sums_of_test_running.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setenv("SUMS", str(tmp_path))
    yield importlib.import_module("sums_of_test_running")
    del sys.modules["sums_of_test_running"]


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# ---------------------------------------------------------------------- one process


def test_rows_say_everything(tmp_path: Path) -> None:
    outcome = Outcome({"mae": np.float32(0.5)}, {"error": torch.tensor([2.0, 1.0])}, chosen={"lr": 0.1})  # type: ignore[arg-type]
    sums, _ = make(lambda cell: outcome)
    rows = reproduce([sums], tmp_path / "new" / "results", "paper", seeds=1)
    assert rows == read(tmp_path / "new" / "results")
    line = json.loads((tmp_path / "new" / "results" / "sums.jsonl").read_text().splitlines()[0])
    assert line["scores"] == {"mae": 0.5}
    assert line["curves"] == {"error": [2.0, 1.0]}
    assert line["chosen"] == {"lr": 0.1}
    assert (line["setting"], line["method"], line["seed"], line["scale"]) == ("small", "exact", 0, "paper")
    assert line["options"] == {"size": 3}
    assert line["seconds"] >= 0
    assert line["versions"]["torch"] == torch.__version__
    assert "commit" in line
    assert line["machine"]["cores"] == joblib.cpu_count()
    assert line["machine"]["threads"] == torch.get_num_threads()
    assert line["started"].endswith("Z")


def test_what_is_there_is_not_computed_again(tmp_path: Path) -> None:
    sums, run = make()
    first = reproduce([sums], tmp_path, seeds=1)
    again = reproduce([sums], tmp_path, seeds=2)
    assert [(cell.setting, cell.seed) for cell in run.cells] == [("small", 0), ("large", 0), ("small", 1), ("large", 1)]
    assert again[:2] == first
    # Another scale, or other options, are other cells.
    reproduce([sums], tmp_path, "paper", seeds=1)
    other = dataclasses.replace(sums, cells=lambda scale, seeds: grid("sums", scale, seeds, ["small"], ["exact"], {}))
    assert len(reproduce([other], tmp_path, seeds=1)) == 1
    assert len(run.cells) == len(read(tmp_path)) == 7


def test_interrupt_keeps_what_is_finished(tmp_path: Path) -> None:
    def interrupted(cell: Cell) -> Outcome:
        if cell.seed == 1:
            raise KeyboardInterrupt
        return Outcome({"mae": 1.0})

    with pytest.raises(KeyboardInterrupt):
        reproduce([make(interrupted)[0]], tmp_path)
    assert [row.cell.seed for row in read(tmp_path)] == [0, 0]
    sums, run = make()
    reproduce([sums], tmp_path)
    assert [cell.seed for cell in run.cells] == [1, 1]


def test_failing_cell_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def failing(cell: Cell) -> Outcome:
        if cell.setting == "small":
            raise ZeroDivisionError("no\n  luck")
        return Outcome({"mae": 1.0})

    with caplog.at_level(logging.WARNING), pytest.raises(FailedCellsError, match=r"2 cell\(s\) failed") as caught:
        reproduce([make(failing)[0]], tmp_path)
    assert "sums: small, exact, seed 1, quick scale: ZeroDivisionError: no luck" in str(caught.value)
    assert "in failing" in caught.value.failures[0].details
    assert caplog.messages[0] == "sums: small, exact, seed 0, quick scale failed: ZeroDivisionError: no luck"
    assert {row.cell.setting for row in read(tmp_path)} == {"large"}
    sums, run = make()
    assert len(reproduce([sums], tmp_path)) == 4
    assert {cell.setting for cell in run.cells} == {"small"}


def test_only_some_of_many_failures_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FailedCellsError, match=r"8 cell\(s\) failed.*(\n.*seed.*){5}\n  and 3 more$") as caught:
        reproduce([make(lambda cell: 1 // 0)[0]], tmp_path, seeds=4)
    assert len(caught.value.failures) == len(caplog.records) == 8


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ({"mae": 1.0}, "result of the run of 'sums' must be an Outcome. Got dict"),
        (Outcome({}), "scores of the run of 'sums' must be at least one. Got none"),
        (
            Outcome({"mea": 1.0}),
            "each score of the run of 'sums' must be one of 'mae'. Got 'mea' instead. Did you mean",
        ),
        (Outcome({"mae": math.nan}), "ValueError"),
        (Outcome({"mae": math.inf}), "ValueError"),
        (Outcome({"mae": 1.0}, curves={"error": [1.0, math.nan]}), "ValueError"),
        (Outcome({"mae": 1.0}, curves={"error": 3}), "TypeError"),  # type: ignore[dict-item]
        (Outcome({"mae": 1.0}, chosen={"model": object()}), "TypeError"),
    ],
)
def test_what_is_no_result_is_a_failure(tmp_path: Path, outcome: Any, text: str) -> None:
    with pytest.raises(FailedCellsError, match=text):
        reproduce([make(lambda cell: outcome)[0]], tmp_path, seeds=1)
    assert not (tmp_path / "sums.jsonl").exists()


def test_same_seed_same_row(tmp_path: Path) -> None:
    def draw(cell: Cell) -> Outcome:
        return Outcome({"mae": torch.rand(()).item() + 10 * np.random.rand() + 100 * random.random()})

    def scores(name: str, **options: Any) -> dict[tuple[str, int], float]:
        rows = reproduce([make(draw)[0]], tmp_path / name, **options)
        return {(row.cell.setting, row.cell.seed): row.scores["mae"] for row in rows}

    def disturb(seed: int) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)

    disturb(1)
    first = scores("a")
    disturb(2)
    # Started in the middle, as a run that goes on is.
    scores("b", seeds=1)
    assert scores("b") == first
    assert first["small", 0] == first["large", 0] != first["small", 1]


def test_random_numbers_of_the_caller_are_left_alone() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    with seeded(next(cells("quick", 1))):
        torch.rand(3), np.random.rand(3), random.random()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # type: ignore[index]
    assert random.getstate() == states[2]


def test_row_that_another_process_wrote_meanwhile_is_taken(tmp_path: Path) -> None:
    first, second, *_ = cells("quick", 2)

    def meanwhile(cell: Cell) -> Outcome:
        if cell == first:
            append_row(tmp_path / "sums.jsonl", Row(second, {"mae": 9.0}, 1.0, "2023-05-01T00:00:00Z"))
            raise ZeroDivisionError
        return Outcome({"mae": 1.0})

    sums, run = make(meanwhile)
    with pytest.raises(FailedCellsError):
        reproduce([sums], tmp_path)
    assert second not in run.cells
    assert [row.scores["mae"] for row in reproduce([make()[0]], tmp_path)] == [0.5, 9.0, 1.0, 1.0]


def test_time_is_estimated_from_medians() -> None:
    sums, _ = make()
    small, large = cells("quick", 1)
    assert cell_seconds(sums, "quick", [])(small) == 15.0
    times = [(small, 2.0), (dataclasses.replace(small, seed=1), 4.0), (dataclasses.replace(small, seed=2), 90.0)]
    rows = [Row(cell, {"mae": 1.0}, seconds, "") for cell, seconds in times]
    rows.append(Row(dataclasses.replace(small, scale="paper"), {"mae": 1.0}, 1000.0, ""))
    assert cell_seconds(sums, "quick", rows)(small) == 4.0
    # The same method in another setting, then anything of the experiment.
    assert cell_seconds(sums, "quick", rows)(large) == 4.0
    assert cell_seconds(sums, "quick", rows)(dataclasses.replace(large, method="fast")) == 4.0
    rows.append(Row(large, {"mae": 1.0}, 7.0, ""))
    assert cell_seconds(sums, "quick", rows)(large) == 7.0


def test_a_part_of_an_experiment_is_run_alone_and_the_rest_later(tmp_path: Path) -> None:
    sums, run = make()
    everything = {(cell.setting, cell.method) for cell in sums.checked_cells("quick")}
    setting, method = sorted(everything)[0]
    rows = reproduce([sums], tmp_path, settings=[setting], methods=[method])
    assert {(row.cell.setting, row.cell.method) for row in rows} == {(setting, method)}
    done = len(run.cells)
    assert done == len(rows) < len(reproduce([sums], tmp_path)) == len(run.cells)


def test_progress_is_shown_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce([make()[0]], tmp_path, progress=True)
    shown = capsys.readouterr().err
    assert "4/4" in shown
    assert "minutes left 0" in shown
    reproduce([make()[0]], tmp_path / "silent")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"scale": "papr"}, "scale must be one of"),
        ({"seeds": 0}, "seeds must be a positive integer"),
        ({"jobs": 0}, "jobs must be a positive integer"),
        ({"settings": ["smal"]}, "--setting must be one of .* Did you mean 'small'"),
        ({"settings": ["small"], "methods": ["none"]}, "--method must be one of"),
    ],
)
def test_arguments_are_checked_before_anything_runs(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    sums, run = make()
    with pytest.raises(ValueError, match=text):
        reproduce([sums], tmp_path / "results", **change)
    assert not run.cells
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            lambda s, n: grid("products", s, n, ["small"], ["exact"], {}),
            "each cell of 'sums' must be one of it at quick",
        ),
        (
            lambda s, n: grid("sums", "paper", n, ["small"], ["exact"], {}),
            "each cell of 'sums' must be one of it at qui",
        ),
        (lambda s, n: grid("sums", s, n, ["small"] * 2, ["exact"], {}), "each cell of 'sums' must be there once"),
    ],
)
def test_cells_of_an_experiment_are_checked(changed: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(cells=changed)[0].checked_cells("quick")


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"name": "Sums!"}, ValueError, "name of an experiment must be lower-case letters"),
        ({"makes": "table 1"}, TypeError, "makes of 'sums' must be a tuple"),
        ({"scores": ()}, ValueError, "scores of 'sums' must be at least one Score"),
        ({"seeds": {"quick": 0}}, ValueError, r"seeds\['quick'\] of 'sums' must be a positive integer"),
        ({"seeds": {"fast": 1}}, ValueError, "scale must be one of"),
        ({"minutes": {}}, ValueError, r"minutes\['toy'\] of 'sums' must be a finite number above zero"),
        (
            {"published": (Published("t", "small", "exact", "mse", 1.0, None, "E"),)},
            ValueError,
            "published score of 'sums' must be one of 'mae'. Got 'mse'",
        ),
    ],
)
def test_descriptions_are_checked(change: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make(**change)


def test_experiment_without_a_scale_says_so() -> None:
    with pytest.raises(ValueError, match=r"scale of 'sums' must be one of 'quick'. Got 'paper' instead"):
        make(seeds={"quick": 1})[0].checked_cells("paper")


def test_experiments_are_found_by_name() -> None:
    sums = make()[0]
    products = make(name="products", scores=(MAE, PURITY))[0]
    known = {"sums": sums, "products": products}
    assert chosen([], known) == [sums, products]
    assert chosen(["products", "sums", "products"], known) == [products, sums]
    with pytest.raises(ValueError, match="Did you mean 'products'"):
        chosen(["product"], known)


def test_experiments_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="experiments must be of different names"):
        reproduce([make()[0], make()[0]], tmp_path)


# ---------------------------------------------------------------------- many processes


def test_processes_compute_the_same_and_survive_a_death(
    tmp_path: Path, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "die").touch()
    with pytest.raises(FailedCellsError, match="slow, seed 1, quick scale: its process died with exit code 3"):
        reproduce([module.SUMS], tmp_path / "two", jobs=2)
    (tmp_path / "die").unlink()
    rows = read(tmp_path / "two")
    assert len(rows) == 3
    assert os.getpid() not in {row.chosen["pid"] for row in rows}
    assert {row.machine["threads"] for row in rows} == {min(torch.get_num_threads(), max(1, joblib.cpu_count() // 2))}
    assert "OMP_NUM_THREADS" not in os.environ
    here = {row.cell: row for row in reproduce([module.SUMS], tmp_path / "one")}
    # What other numbers of threads do to rounding.
    for row in rows:
        assert row.scores == pytest.approx(here[row.cell].scores, rel=1e-4)
    # A worker that was killed from outside takes nothing with it: its cell is computed once more.
    (tmp_path / "die-once").touch()
    assert len(reproduce([module.SUMS], tmp_path / "two", jobs=2)) == 4
    assert not (tmp_path / "die-once").exists()


def test_cells_that_measure_times_are_computed_one_at_a_time(tmp_path: Path, module: ModuleType) -> None:
    # Cells that see another one at work say so.
    alone = dataclasses.replace(module.SUMS, run=module.watch, alone=True)
    assert {row.scores["mae"] for row in reproduce([alone], tmp_path / "alone", jobs=2)} == {0.0}
    # Others run at the same time: each of two waits until the other one has begun.
    together = dataclasses.replace(module.SUMS, run=module.meet)
    assert {row.scores["mae"] for row in reproduce([together], tmp_path / "together", seeds=1, jobs=2)} == {1.0}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell which signals are ignored")
def test_processes_are_started_with_interrupts_ignored(tmp_path: Path, module: ModuleType) -> None:
    """A terminal sends them to all processes; one that is importing would answer with a long traceback."""
    rows = reproduce([dataclasses.replace(module.SUMS, run=module.signals)], tmp_path / "results", seeds=1, jobs=2)
    for row in rows:
        assert int(row.chosen["SigIgn"], 16) >> (signal.SIGINT - 1) & 1
        assert not int(row.chosen["SigCgt"], 16) >> (signal.SIGINT - 1) & 1


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"the folder of results must be a folder\. Got the file"):
        reproduce([make()[0]], tmp_path / "file")


def test_killed_run_loses_only_what_was_under_way(tmp_path: Path, module: ModuleType) -> None:
    (tmp_path / "wait").touch()
    script = (
        "from pathlib import Path; from sums_of_test_running import SUMS\n"
        "from askew_paper.runner import reproduce\n"
        "if __name__ == '__main__': reproduce([SUMS], 'results', jobs=2)\n"
    )
    (tmp_path / "script.py").write_text(script)
    folders = (*SOURCES, str(tmp_path / "code"))
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    )
    try:
        # Both processes sleep in the slow cells; the others are finished.
        marks = [tmp_path / f"slow-{seed}" for seed in range(2)]
        wait_for(lambda: all(mark.exists() and mark.read_text() != "" for mark in marks))
        workers = [int(mark.read_text()) for mark in marks]
        wait_for(lambda: len(read(tmp_path / "results")) == 2)
        assert len(set(workers)) == 2
        assert all(map(alive, workers))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_for(lambda: not any(map(alive, workers)))
    assert [row.cell.method for row in read(tmp_path / "results")] == ["exact", "exact"]
    (tmp_path / "wait").unlink()
    rows = reproduce([module.SUMS], tmp_path / "results")
    assert [row.cell.method for row in rows] == ["exact", "slow"] * 2
    assert [row.cell.method for row in read(tmp_path / "results")] == ["exact", "exact", "slow", "slow"]
