"""Link prediction: F1 by hand, the start, the loss, and a run at toy size."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.data.closure import random_closure
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments.closure import (
    CLOSURE,
    METHODS,
    ClosureLoss,
    best_threshold,
    f1,
    layout,
    learn,
    model_of,
    run,
    scores_of,
)
from askew_paper.experiments.training import Plan
from askew_paper.runner import Failed, compute
from askew_paper.unconstrained import Unconstrained
from sklearn.metrics import f1_score

TOY = {cell.method: cell for cell in CLOSURE.checked_cells("toy") if cell.setting == "d=5/10%"}


def test_threshold_is_the_best_one_also_with_ties() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        positive, negative = random.integers(0, 6, 7) - 1.0, random.integers(0, 9, 30) - 1.0
        values, labels = np.concatenate([positive, negative]), np.arange(37) < 7
        found = {threshold: f1_score(labels, values <= threshold) for threshold in values}
        threshold = best_threshold(positive, negative)
        assert f1(positive, negative, threshold) == pytest.approx(max(found.values()))
        assert f1(positive, negative, threshold) == pytest.approx(found[threshold])


def test_start_is_made_of_the_training_pairs_alone() -> None:
    task = random_closure(50)
    codes = layout(task.train, task.nodes, 5, seed=0)
    assert torch.equal(codes, layout(task.train[::-1], task.nodes, 5, seed=0))
    assert not torch.equal(codes, layout(task.train, task.nodes, 5, seed=1))
    torch.testing.assert_close(codes.std(0, correction=0), torch.ones(5))
    depth = codes[:, -1]
    assert all(depth[low] > depth[high] for low, high in task.train.tolist())


def test_sides_and_structure() -> None:
    codes, nodes = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    for method in METHODS:
        model = model_of(method, codes)
        assert (model.second is not None) == (method == "two-sided")
        assert bool((model(nodes, nodes) == 0).all()) == (method != "unconstrained"), method
    assert not Unconstrained(5).reflexive
    assert (Unconstrained(5).pairwise(codes, codes) > 0).all()
    with pytest.raises(ValueError, match="method behind an encoder must be one of"):
        model_of("cosine", codes)


def test_loss_has_its_three_parts() -> None:
    task = random_closure(0)
    model = model_of("drift-mahalanobis", layout(task.train, task.nodes, 5, seed=0))
    pairs = torch.from_numpy(task.train.copy())

    def loss(inclusion: float) -> float:
        part = ClosureLoss(task, 16, inclusion)
        part.calibrate(model, seed=0)
        torch.manual_seed(0)
        return float(part(model, pairs).detach())

    assert loss(0.0) < loss(1.0) < loss(2.0)
    assert loss(2.0) - loss(1.0) == pytest.approx(loss(1.0) - loss(0.0), rel=1e-4)
    unknown = ClosureLoss(task, 16, 1.0).unknown
    assert not unknown[tuple(pairs.T)].any()
    assert unknown[tuple(torch.from_numpy(task.test.T.copy()))].all()  # no pair is known but those of training


def test_known_pairs_are_learned() -> None:
    task = random_closure(90)
    model, score, epoch = learn("drift-mahalanobis", task, 5, Plan(60, 64, (0.02,)), 16, 1.0, seed=0)
    assert 0 < epoch <= 60
    valid = scores_of(model, task.valid), scores_of(model, task.valid_neg)
    assert f1(*valid, best_threshold(*valid)) == score
    random = np.random.default_rng(0).integers(task.nodes, size=(500, 2))
    assert np.median(scores_of(model, task.train)) < np.quantile(scores_of(model, random), 0.2)


@pytest.mark.parametrize("method", METHODS)
def test_toy_run(method: str) -> None:
    outcome = compute(run, TOY[method])
    assert isinstance(outcome, Outcome), outcome
    assert 0 <= outcome.scores["f1"] <= 100
    assert 0 < outcome.chosen["validation"] <= 100
    again = compute(run, TOY[method])
    assert isinstance(again, Outcome)
    assert (again.scores, again.chosen) == (outcome.scores, outcome.chosen)


def test_settings_are_those_of_the_published_table() -> None:
    assert EXPERIMENTS["closure"] is CLOSURE
    assert {cell.setting for cell in CLOSURE.published} == {cell.setting for cell in CLOSURE.cells("medium", 1)}
    assert not {cell.method for cell in CLOSURE.published} & set(METHODS)


def test_missing_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKEW_DATA", str(tmp_path))
    options = dict(TOY["order"].options) | {"data": "mammals"}
    cell: Cell = dataclasses.replace(TOY["order"], options=tuple(sorted(options.items())))
    failed = compute(run, cell)
    assert isinstance(failed, Failed)
    assert "closure/mammal_closure.tsv.vocab must be in the folder" in failed.error
