"""The experiment of the UCI tables, at toy size."""

from __future__ import annotations

import dataclasses
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from askew_paper.data import table_names
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments import ranking
from askew_paper.experiments.ranking import METHODS, PAPERS_TRAINING, RANKING, run
from askew_paper.published import published
from askew_paper.runner import Failed, compute
from numpy.typing import NDArray

from askew.clustering.any_divergence import cluster, cluster_from_euclidean
from askew.divergences import Euclidean, make
from askew.estimators.plans import label_plan
from askew.metrics import purity

TOY = {(cell.setting, cell.method): cell for cell in RANKING.checked_cells("toy")}
has_data = pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="ASKEW_DATA does not name a folder of data")


def of_table(cell: Cell, table: str) -> Cell:
    return Cell(cell.experiment, table, cell.method, cell.seed, cell.scale, cell.options)


def outcome(cell: Cell) -> dict[str, float]:
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    return dict(found.scores)


def test_all_that_is_published_is_there() -> None:
    for scale in ("quick", "paper"):
        cells = RANKING.checked_cells(scale, 1)
        assert {(cell.setting, cell.method) for cell in cells} == {(t, m) for t in table_names() for m in METHODS}
        assert {(c.setting, c.method) for c in published("ranking")} <= {(c.setting, c.method) for c in cells}
        assert {cell["repetitions"] for cell in cells} == {20}
        assert {cell["rows"] for cell in cells} == {None}
    assert "ASKEW_DATA" in RANKING.needs[0]


@pytest.mark.parametrize("method", METHODS)
def test_smoke(method: str) -> None:
    scores = outcome(TOY["iris", method])
    assert set(scores) == {"map", "auc", "purity", "rand"}
    assert all(0 < value <= 1 for value in scores.values())


@has_data
@pytest.mark.parametrize("table", table_names())
def test_smoke_of_every_table(table: str) -> None:
    assert set(outcome(of_table(TOY["iris", "nbd"], table))) == {"map", "auc", "purity", "rand"}


def test_without_the_files_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path))
    found = compute(run, of_table(TOY["iris", "euclidean"], "car"))
    assert isinstance(found, Failed)
    assert "car.data must be in a folder that the environment variable ASKEW_DATA names" in found.error
    assert "Download it from https://" in found.error


@pytest.mark.parametrize("method", ["nbd", "deep-div", "nbd-auto"])
def test_the_same_seed_gives_the_same_row(method: str) -> None:
    cell = TOY["wine", method]
    first = outcome(cell)
    torch.rand(3)  # what happened before does not matter
    assert outcome(cell) == first
    assert outcome(Cell(cell.experiment, cell.setting, cell.method, 1, cell.scale, cell.options)) != first


def test_the_plan_is_the_one_that_rows_were_made_with() -> None:
    """Settings of rows do not have it: who changes it adds an option to the cells, so that old rows are left out."""
    found = {}
    for name, encoder, rows in itertools.product(("nbd", "deep-div"), (False, True), (120, 600, 3341)):
        plan = label_plan(name, encoder, rows, 3)
        shown = (type(plan.loss).__name__, plan.steps, plan.batch_size, round(plan.learning_rate, 6))
        found[name, encoder, rows] = shown
    assert found == {
        ("nbd", False, 120): ("Listwise", 300, 128, 0.04),
        ("nbd", False, 600): ("Listwise", 300, 128, 0.1),
        ("nbd", False, 3341): ("Listwise", 500, 128, 0.1),
        ("nbd", True, 120): ("Listwise", 300, 128, 0.01),
        ("nbd", True, 600): ("Listwise", 300, 128, 0.01),
        ("nbd", True, 3341): ("Listwise", 500, 128, 0.01),
        ("deep-div", False, 120): ("Listwise", 300, 128, 0.01),
        ("deep-div", False, 600): ("Listwise", 300, 128, 0.01),
        ("deep-div", False, 3341): ("Listwise", 500, 128, 0.01),
        ("deep-div", True, 120): ("AllTriplets", 300, 128, 0.001),
        ("deep-div", True, 600): ("AllTriplets", 300, 128, 0.001),
        ("deep-div", True, 3341): ("AllTriplets", 500, 128, 0.001),
    }


@pytest.mark.parametrize("method", ["mahalanobis", "deep-div", "nbd-paper"])
def test_rate_and_epochs_of_the_papers_training_are_chosen_without_queries(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = TOY["iris", f"{method}{PAPERS_TRAINING}"]
    several = dict(cell.options) | {"rates": (1e-3, 1e-1), "epochs": (1, 2)}
    cell = dataclasses.replace(cell, options=tuple(sorted(several.items())))
    seen = []

    def score(matrix: torch.Tensor, labels: NDArray[Any], known: NDArray[Any]) -> float:
        seen.append((len(labels), len(known)))
        return float(len(seen) == 3)  # the third of four choices

    monkeypatch.setattr(ranking.metrics, "mean_average_precision", score)
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    assert found.chosen == {"learning_rate": 1e-1, "epochs": 1}
    # Of 60 rows 12 are queries; of the other 48, 10 decide. The last call is the one that is reported.
    assert seen == [(10, 38)] * 4 + [(12, 48)]


def test_clusters_start_at_those_of_euclid() -> None:
    torch.manual_seed(0)
    points = torch.cat([torch.randn(30, 2) + shift for shift in (-4.0, 0.0, 4.0)])
    seeds = [0, 1, 2]
    plain = [cluster(Euclidean(2), points, 3, "k-means++", 1, seed) for seed in seeds]
    # They are at rest under the same distance, and under one that ends where it starts.
    for labels, start in zip(cluster_from_euclidean(points, points, Euclidean(2), 3, seeds), plain, strict=True):
        torch.testing.assert_close(torch.from_numpy(labels), start)
    for labels in cluster_from_euclidean(points, points, make("deepnorm", 2), 3, seeds):
        assert labels.shape == (90,)


def test_the_divergence_decides_not_euclid() -> None:
    # Classes differ in the first feature only; the second one, which Euclid sees, is noise.
    torch.manual_seed(0)
    classes = torch.arange(200) % 2
    points = torch.stack([2.0 * classes + 0.2 * torch.randn(200), 1.5 * torch.randn(200)], 1)
    distance = make("mahalanobis", 2)
    with torch.no_grad():
        distance.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.01]]))
    seeds = list(range(10))
    learned = [purity(classes, labels) for labels in cluster_from_euclidean(points, points, distance, 2, seeds)]
    plain = [purity(classes, labels) for labels in cluster_from_euclidean(points, points, Euclidean(2), 2, seeds)]
    assert sum(learned) > sum(plain)
