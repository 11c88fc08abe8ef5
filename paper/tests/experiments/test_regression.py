"""The regression experiment: its cells, its training, and that a row can be had again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.data.targets import DIM, target_pairs
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments.regression import REGRESSION, SETTINGS, learn_target, plain, run
from askew_paper.experiments.training import SCHEDULES, Plan
from askew_paper.published import published
from askew_paper.runner import compute, reproduce
from askew_paper.summary import compare

import askew


def cell_of(method: str, setting: str = "euclidean/none", **options: object) -> Cell:
    [cell, *_] = [c for c in REGRESSION.cells("toy", 1) if c.method == method]
    return dataclasses.replace(cell, setting=setting, options=tuple(sorted({**dict(cell.options), **options}.items())))


def computed(cell: Cell) -> Outcome:
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    return found


# ---------------------------------------------------------------------- cells


def test_toy_run_gives_every_row(tmp_path: Path) -> None:
    rows = reproduce([REGRESSION], tmp_path, "toy")
    assert len(rows) == len(REGRESSION.checked_cells("toy"))
    assert {row.cell.method for row in rows} >= {"constant", "pbdl", "mahalanobis", "deep-div", "nbd"}
    for row in rows:
        trained = "schedule" in dict(row.cell.options)
        assert set(row.curves) == ({"test MAE"} if trained else set())
        if trained:
            assert len(row.curves["test MAE"]) == row.cell["epochs"]
            assert row.curves["test MAE"][-1] == row.scores["mae"]
            assert row.chosen["stopped"] == "finished"
    # All methods see the same data: their errors are of one size, and some are below that of a constant.
    errors = {row.cell.method: row.scores["mae"] for row in rows if row.cell.setting == "euclidean/none"}
    assert errors["nbd"] < errors["constant"]


def test_every_figure_of_the_paper_has_its_cell() -> None:
    assert EXPERIMENTS["regression"] is REGRESSION
    for scale in ("quick", "paper"):
        cells = REGRESSION.checked_cells(scale, 2)
        assert {(c.setting, c.method) for c in cells} >= {(p.setting, p.method) for p in published("regression")}
        assert {c.setting for c in cells} == set(SETTINGS)
        assert {c.seed for c in cells} == {0, 1}
    values = compare(REGRESSION, [], "paper").table.dropna(subset="published").groupby("method")["published"]
    assert values.size()["nbd-plain"] == 12
    # Trained in both ways, a method stands beside the same figures.
    theirs = {entry.mean for entry in published("regression", method="deep-div")}
    assert set(values.get_group("deep-div, our training")) == theirs


def test_paper_scale_is_that_of_the_paper() -> None:
    sizes = {
        (c["train"], c["test"], c["epochs"], c["batch"]) for c in REGRESSION.cells("paper", 1) if c.method == "nbd"
    }
    assert sizes == {(50_000, 10_000, 100, 1000)}
    trained = {
        c.method: (c["learning_rate"], c["schedule"])
        for c in REGRESSION.cells("paper", 1)
        if c.method in ("nbd-paper", "nbd")
    }
    assert trained == {"nbd-paper": (1e-3, "constant"), "nbd": (3e-2, "linear")}


@pytest.mark.parametrize("method", ["nbd", "deep-div", "pbdl", "constant"])
def test_same_seed_gives_the_same_row(method: str) -> None:
    cell = cell_of(method)
    torch.manual_seed(99)
    first = computed(cell)
    torch.rand(3)
    assert computed(cell) == first
    other = computed(dataclasses.replace(cell, seed=1))
    assert other.scores != first.scores


# ---------------------------------------------------------------------- training


def test_constant_predicts_the_median() -> None:
    train, test = target_pairs("euclidean", "none", 400, 200, seed=0)
    expected = np.abs(test.targets - np.median(train.targets)).mean()
    assert computed(cell_of("constant")).scores["mae"] == pytest.approx(expected, rel=1e-5)


def test_network_learns_an_asymmetric_target_and_symmetric_ones_cannot() -> None:
    sizes = {"train": 4000, "test": 1000, "epochs": 15, "batch": 100}
    ours, plainly, other = (
        computed(cell_of(method, "xlogx/none", **sizes, learning_rate=3e-2, schedule="linear")).scores["mae"]
        for method in ("nbd", "nbd-plain", "mahalanobis")
    )
    constant = computed(cell_of("constant", "xlogx/none", train=4000, test=1000)).scores["mae"]
    assert ours < 0.2
    assert ours < plainly < 0.6 * other
    assert other < constant


def test_test_pairs_choose_nothing() -> None:
    train, test = target_pairs("euclidean", train=500, test=100)
    other = target_pairs("kl", train=500, test=100)[1]
    models = []
    for watched in (test, other):
        torch.manual_seed(0)
        models.append(plain(DIM))
        plan = Plan(epochs=6, batch=50, rates=(3e-2,), schedule="linear")
        found = learn_target(models[-1], train, watched, plan, seed=0)
    curve = tuple(found.curves["test MAE"])
    # On a target that was not learned the error is not falling, and still the last weights are kept.
    assert min(curve) < curve[-1] == found.scores["mae"]
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, two)


def test_own_schedule_is_that_of_the_training_loop() -> None:
    train, test = target_pairs("euclidean", train=500, test=100)
    torch.manual_seed(0)
    mine = askew.make("mahalanobis", DIM)
    learn_target(mine, train, test, Plan(epochs=4, batch=50, rates=(1e-2,), schedule="linear"), seed=3)
    torch.manual_seed(0)
    theirs = askew.make("mahalanobis", DIM)
    loss = askew.losses.Regression()
    askew.fit(theirs, tuple(train), loss, epochs=4, batch_size=50, learning_rate=1e-2, warmup=0.025, seed=3)
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    shares = [SCHEDULES[schedule](step, 1000) for step in range(1000)]
    assert max(shares) == pytest.approx(1)
    assert min(shares) >= 0
    if schedule == "constant":
        assert set(shares) == {1.0}
    else:
        top = int(np.argmax(shares))
        assert shares[:top] == sorted(shares[:top])
        assert shares[top:] == sorted(shares[top:], reverse=True)
        assert shares[0] < 0.1
        assert shares[-1] < 0.01


def test_diverged_training_is_measured_where_it_was_good() -> None:
    train, test = target_pairs("euclidean", train=500, test=100)
    torch.manual_seed(0)
    model = askew.make("mahalanobis", DIM)
    found = learn_target(model, train, test, Plan(epochs=40, batch=50, rates=(1e25,)), seed=0)
    assert found.chosen == {"stopped": "diverged", "loss": None}
    assert 0 < found.scores["mae"] < 20
    assert found.curves == {}
