"""The experiment of distributional clustering, at toy size, and the k-means that it uses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from askew_paper.data import make_mixture, mixture_names
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments.clustering import (
    CLUSTERING,
    METHODS,
    OURS,
    run,
)
from askew_paper.published import published
from askew_paper.runner import compute

from askew.clustering import kmeans
from askew.clustering.any_divergence import cluster, cluster_by_means, cluster_from, cluster_means
from askew.clustering.inputs import to_bregman
from askew.divergences import DeepDiv, Divergence, MaxAffine, make
from askew.metrics import purity

TOY = {(cell.setting, cell.method): cell for cell in CLUSTERING.checked_cells("toy")}


def outcome(cell: Cell) -> dict[str, float]:
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    return dict(found.scores)


def test_all_that_is_published_is_there() -> None:
    for scale in ("toy", "quick", "paper"):
        cells = CLUSTERING.checked_cells(scale)
        methods = (*METHODS, *OURS)
        assert {(cell.setting, cell.method) for cell in cells} == {(s, m) for s in mixture_names() for m in methods}
        assert {(c.setting, c.method) for c in published("clustering")} <= {(c.setting, c.method) for c in cells}
    paper = {cell.method: cell for cell in CLUSTERING.checked_cells("paper")}["nbd-paper"]
    settings = {"points": 1000, "epochs": 200, "batch": 128, "learning_rate": 1e-3, "margin": 0.2}
    settings |= {"schedule": "constant"}
    assert {name: paper[name] for name in settings} == settings
    assert CLUSTERING.seeds["paper"] == 10


def test_published_figures_stand_beside_the_protocol_of_the_paper_only() -> None:
    assert {entry.score for entry in CLUSTERING.published} == {"purity", "rand"}
    assert {score.name for score in CLUSTERING.scores} == {"purity", "rand", "purity-seeded", "rand-seeded"}


@pytest.mark.parametrize("method", [*METHODS, *OURS])
@pytest.mark.parametrize("setting", mixture_names())
def test_smoke(setting: str, method: str) -> None:
    scores = outcome(TOY[setting, method])
    assert set(scores) == {score.name for score in CLUSTERING.scores}
    assert all(0.2 <= value <= 1 for value in scores.values())


@pytest.mark.parametrize("method", ["nbd", "deep-div", "pbdl"])
def test_the_same_seed_gives_the_same_row(method: str) -> None:
    cell = TOY["exponential", method]
    first = outcome(cell)
    torch.rand(3), np.random.rand(3)  # what happened before does not matter
    assert outcome(cell) == first
    other = Cell(cell.experiment, cell.setting, cell.method, 1, cell.scale, cell.options)
    assert outcome(other) != first


def test_all_methods_see_the_same_points_and_the_same_start() -> None:
    # The squared Euclidean distance, once as such and once as a learned form that equals it.
    mixture = make_mixture("gaussian", seed=0)
    points = torch.from_numpy(mixture.sample(200, seed=1).points)
    scaled = make("mahalanobis", 10).double()
    with torch.no_grad():
        scaled.weight.copy_(2 * torch.eye(10))
    for start in ("random-partition", "k-means++"):
        first = cluster(make("euclidean", 10), points, 5, start, 2, seed=3)
        torch.testing.assert_close(cluster(scaled, points, 5, start, 2, seed=3), first)


@pytest.mark.parametrize("name", ["euclidean", "nbd"])
def test_the_general_k_means_is_the_one_of_bregman_divergences(name: str) -> None:
    torch.manual_seed(0)
    points = torch.randn(300, 4, dtype=torch.float64)
    divergence: Divergence = make(name, 4).double()
    centres = points[:5]
    labels, total = cluster_by_means(points, centres, divergence)
    expected = kmeans(points, centres, to_bregman(divergence, "test"), max_iter=500)
    torch.testing.assert_close(labels, expected.labels.long())
    assert total == pytest.approx(expected.inertia)
    torch.testing.assert_close(cluster_from(points, centres, divergence)[0], labels)


def test_centres_that_get_no_point_move_to_the_farthest_one() -> None:
    points = torch.tensor([[0.0], [0.1], [10.0], [-20.0]])
    centres = torch.tensor([[0.0], [0.0], [0.0]])  # the last two get nothing
    labels, _ = cluster_by_means(points, centres, make("euclidean", 1))
    assert labels[0] == labels[1]
    assert len(labels.unique()) == 3


def test_ties_of_max_affine_divergences_do_not_leave_one_cluster() -> None:
    # From a random partition all centres lie in one cell, so that all are at the same divergence from a point.
    torch.manual_seed(0)
    points = torch.cat([torch.randn(50, 2) + shift for shift in (-5.0, 5.0)])
    divergence = MaxAffine.from_pieces(torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]]), torch.tensor([0, 0, 4.0]))
    labels = cluster(divergence, points, 2, "random-partition", 1, seed=0)
    assert purity(np.arange(100) // 50, labels) == 1.0


def test_more_clusters_than_different_points() -> None:
    points = torch.zeros(6, 2)
    for start in ("random-partition", "k-means++"):
        labels = cluster(DeepDiv(2), points, 3, start, 2, seed=0)
        assert labels.shape == (6,)


def test_means() -> None:
    points = torch.tensor([[1.0], [3.0], [5.0]])
    labels = torch.tensor([0, 0, 2])
    empty = torch.tensor([[7.0], [8.0], [9.0]])
    assert cluster_means(points, labels, 3, empty).flatten().tolist() == [2.0, 8.0, 5.0]


def test_what_is_learned_finds_clusters_that_euclid_does_not() -> None:
    options = dict(TOY["exponential", "nbd"].options) | {"points": 400, "epochs": 20}
    cell = Cell("clustering", "exponential", "nbd", 0, "toy", tuple(sorted(options.items())))
    plain = Cell("clustering", "exponential", "euclidean", 0, "toy", (("points", 400),))
    assert outcome(cell)["purity-seeded"] > outcome(plain)["purity-seeded"] + 0.1
