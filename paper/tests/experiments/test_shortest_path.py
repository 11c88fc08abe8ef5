"""The shortest-path experiment: its cells, its training, and that a row can be had again."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.data.graphs import graph_names, make_graph, pair_distances
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments.landmarks import Task, learn_distances, make_task, predict, score
from askew_paper.experiments.shortest_path import METHODS, SHORTEST_PATH, run
from askew_paper.experiments.training import Plan
from askew_paper.published import published
from askew_paper.runner import compute, reproduce
from askew_paper.summary import compare
from torch.optim.optimizer import register_optimizer_step_pre_hook

PLAN = Plan(epochs=6, batch=50, rates=(3e-3, 1e-2), schedule="linear", trial_epochs=1)
learn = functools.partial(learn_distances, widths=(32,), out=8)


def cell_of(method: str, setting: str = "traffic", **options: object) -> Cell:
    [cell] = [c for c in SHORTEST_PATH.cells("toy", 1) if (c.method, c.setting) == (method, setting)]
    return dataclasses.replace(cell, options=tuple(sorted({**dict(cell.options), **options}.items())))


def computed(cell: Cell) -> Outcome:
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    return found


def small_task(**others: object) -> Task:
    settings = {"train": 400, "test": 200, "landmarks": 6, "noise": 0.0, "distractors": 2, "seed": 0, **others}
    return make_task(make_graph("octagon", 7), directed=True, **settings)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- cells


def test_toy_run_gives_every_row(tmp_path: Path) -> None:
    rows = reproduce([SHORTEST_PATH], tmp_path, "toy")
    assert {(row.cell.setting, row.cell.method) for row in rows} == {(s, m) for s in graph_names() for m in METHODS}
    for row in rows:
        assert set(row.scores) == {"train-loss", "test-loss", "r2", "spearman"}
        if row.cell.method == "mean":
            assert row.scores["spearman"] == 0
            assert row.scores["r2"] <= 0
        else:
            assert row.chosen["stopped"] == "finished"
            assert row.chosen["learning_rate"] in (3e-3, 1e-2)


def test_every_figure_of_the_paper_has_its_cell() -> None:
    assert EXPERIMENTS["shortest-path"] is SHORTEST_PATH
    for scale in ("quick", "paper"):
        cells = SHORTEST_PATH.checked_cells(scale, 2)
        assert {(c.setting, c.method) for c in cells} >= {(p.setting, p.method) for p in published("shortest-path")}
        assert {c.seed for c in cells} == {0, 1}
    table = compare(SHORTEST_PATH, [], "paper").table.dropna(subset="published")
    assert table["method"].isin(["nbd-paper", "mahalanobis-norm"]).sum() == 2 * 5 * 2


def test_paper_scale_is_that_of_the_paper() -> None:
    [cell] = [c for c in SHORTEST_PATH.cells("paper", 1) if (c.setting, c.method) == ("3d", "nbd")]
    sizes = {name: cell[name] for name in ("side", "train", "test", "landmarks", "noise", "distractors")}
    expected = {"side": None, "train": 50_000, "test": 10_000, "landmarks": 32, "noise": 0.2, "distractors": 96}
    assert sizes == expected
    assert Plan.of(cell) == Plan(100, 128, (5e-5, 5e-6), "steps", 0)
    assert (cell["widths"], cell["out"]) == ((256,), 128)
    # Traffic and octagon are of that size at quick scale too.
    sides = {c.setting: c["side"] for c in SHORTEST_PATH.cells("quick", 1)}
    assert {setting for setting, side in sides.items() if side is None} == {"traffic", "octagon"}


@pytest.mark.parametrize("method", ["nbd", "deep-div", "mean"])
def test_same_seed_gives_the_same_row(method: str) -> None:
    cell = cell_of(method)
    torch.manual_seed(99)
    first = computed(cell)
    torch.rand(3)
    assert computed(cell) == first
    other = computed(dataclasses.replace(cell, seed=1))
    assert other.scores != first.scores


def test_mean_predicts_the_mean() -> None:
    task = make_task(
        make_graph("traffic", 10),
        directed=True,
        train=300,
        test=100,
        landmarks=4,
        noise=0.2,
        distractors=4,
        seed=0,
    )
    found = computed(cell_of("mean")).scores
    assert task.train_targets.mean() == pytest.approx(1)
    assert found["train-loss"] == pytest.approx(2500 * task.train_targets.var(), rel=1e-5)
    assert found["test-loss"] == pytest.approx(2500 * np.square(task.test_targets - 1).mean(), rel=1e-5)


# ---------------------------------------------------------------------- tasks


def test_task_has_the_distances_of_its_pairs() -> None:
    graph = make_graph("octagon", 7)
    task = small_task(reverse=True)
    assert (len(task.train), len(task.test)) == (400, 200)
    assert not {tuple(p) for p in task.train.tolist()} & {tuple(p) for p in task.test.tolist()}
    unit = pair_distances(graph, task.train.numpy()).mean()
    for pairs, targets in (
        (task.train, task.train_targets),
        (task.test, task.test_targets),
        (task.test.flip(1), task.test_reverse),
    ):
        np.testing.assert_allclose(targets * unit, pair_distances(graph, pairs.numpy()), rtol=1e-5)
    assert task.features.shape == (49, 14)
    assert small_task().test_reverse.size == 0


def test_small_graphs_are_taken_whole() -> None:
    task = small_task(train=50_000, test=10_000, landmarks=100)
    assert (len(task.train), len(task.test)) == (1960, 392)
    assert task.features.shape == (49, 100)


# ---------------------------------------------------------------------- training


def test_divergences_learn_and_the_test_pairs_choose_nothing() -> None:
    task = small_task()
    other = dataclasses.replace(task, test=task.test.flip(1), test_targets=task.test_targets[::-1].copy())
    (first, chosen), (second, others) = (learn("iqe", each, PLAN, seed=0) for each in (task, other))
    assert chosen == others
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)
    found = score(task.test_targets, predict(first, task.features, task.test))
    assert found["r2"] > 0.6
    assert found["spearman"] > 0.7
    assert found["mse"] == pytest.approx((1 - found["r2"]) * task.test_targets.var(), rel=1e-3)


def test_learning_rate_is_chosen_on_held_out_pairs() -> None:
    task = small_task()
    for rates in ((1e-9, 1e-2), (1e-2, 1e-9)):
        plan = dataclasses.replace(PLAN, rates=rates)
        assert learn("mahalanobis-norm", task, plan, seed=0)[1]["learning_rate"] == 1e-2
    # One rate needs no comparison; a rate that makes training diverge is not chosen where another does not.
    assert learn("mahalanobis", task, dataclasses.replace(PLAN, rates=(1e-9,)), 0)[1]["learning_rate"] == 1e-9
    wild = dataclasses.replace(PLAN, rates=(1e25, 1e-2))
    chosen = learn("mahalanobis", task, wild, 0)[1]
    assert (chosen["learning_rate"], chosen["stopped"]) == (1e-2, "finished")
    assert 0 < chosen["validation"] < 1


def test_steps_of_the_learning_rate_follow_each_other() -> None:
    seen: list[float] = []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: seen.append(optimizer.param_groups[0]["lr"]))
    plan = dataclasses.replace(PLAN, epochs=4, schedule="steps", rates=(5e-5, 5e-6), trial_epochs=0)
    try:
        _, chosen = learn("mahalanobis", small_task(), plan, seed=0)
    finally:
        hook.remove()
    # All 400 pairs in batches of 50, two epochs with each rate.
    assert seen == [5e-5] * 16 + [5e-6] * 16
    assert chosen == {"stopped": "finished"}


def test_diverged_training_is_measured_where_it_was_good() -> None:
    plan = dataclasses.replace(PLAN, rates=(1e25,))
    task = small_task()
    model, chosen = learn("mahalanobis", task, plan, seed=0)
    assert chosen["stopped"] == "diverged"
    assert np.isfinite(predict(model, task.features, task.test)).all()
