"""First centres: drawn by divergence, free of order, inside the domain."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from members import Case, build, random_points
from torch import Tensor

from askew.clustering import kmeans
from askew.clustering.inputs import to_bregman
from askew.clustering.seeding import SEEDINGS, init_centroids
from askew.clustering.view import AffineView
from askew.divergences import Bregman
from askew.potentials import Burg, NegativeEntropy, Quadratic

NAMES = ["euclidean", "mahalanobis", "kl", "kl-simplex", "itakura-saito", "logistic", "log-sum-exp", "power", "nbd"]


def gaussian(n: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def start(
    points: Tensor,
    k: int,
    divergence: Bregman,
    method: str,
    seed: int | np.random.RandomState = 0,
    weights: Tensor | None = None,
    dual: bool = False,
) -> Tensor:
    array = None if weights is None else weights.numpy()
    random = np.random.RandomState(seed) if isinstance(seed, int) else seed
    return init_centroids(AffineView(points, divergence, array, dual), k, method, random, array)


@pytest.mark.parametrize("dual", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("method", SEEDINGS)
@pytest.mark.parametrize("name", NAMES)
def test_every_method_for_every_divergence(name: str, method: str, dual: bool) -> None:
    case = Case(name, "plain", name == "nbd")
    divergence = to_bregman(build(case), "test")
    points = random_points(case, 60)
    centres = start(points, 7, divergence, method, dual=dual)
    assert centres.shape == (7, points.shape[1])
    assert centres.dtype == points.dtype
    assert len(np.unique(centres.numpy(), axis=0)) == 7
    divergence.domain.check(centres, "centres", "test")
    assert torch.equal(centres, start(points, 7, divergence, method, dual=dual))
    assert not torch.equal(centres, start(points, 7, divergence, method, seed=1, dual=dual))
    if method != "random-partition":
        assert all((centre == points).all(1).any() for centre in centres)


@pytest.mark.parametrize("dual", [False, True], ids=["right", "left"])
def test_seeds_find_far_clusters(dual: bool) -> None:
    # As far from each other in ratios, of which alone this divergence knows.
    middles = 10.0 ** torch.arange(6, dtype=torch.float64)[:, None]
    points = middles.repeat(30, 1) * (1 + 0.01 * gaussian(180, 1))
    for seed in range(5):
        centres = start(points, 6, Bregman(Burg(1)), "k-means++", seed=seed, dual=dual)
        assert centres.log10().round().unique().numel() == 6


def test_points_are_drawn_in_proportion_to_their_divergence() -> None:
    # After 0, the others are drawn by 0.9 * 1 and 1 * 4, and of two draws the better one, 2, is taken.
    points = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    weights = torch.tensor([1e9, 0.9, 1.0], dtype=torch.float64)
    random = np.random.RandomState(0)
    chosen = []
    for _ in range(500):
        centres = start(points, 2, Bregman(Quadratic(1)), "k-means++", random, weights)
        assert centres[0] == 0
        chosen.append(float(centres[1]) == 1)
    assert np.mean(chosen) == pytest.approx((0.9 / 4.9) ** 2, abs=0.02)


def test_plus_plus_depends_neither_on_order_nor_on_repetition() -> None:
    divergence = Bregman(NegativeEntropy(4))
    points = gaussian(40, 4).exp()
    weights = torch.randint(0, 4, (40,), generator=torch.Generator().manual_seed(1)).double()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    weighted = start(points[order], 6, divergence, "k-means++", weights=weights[order])
    repeated = start(points.repeat_interleave(weights.long(), 0), 6, divergence, "k-means++")
    assert torch.equal(weighted, repeated)


@pytest.mark.parametrize("method", ["k-means++", "random-points"])
def test_points_of_no_weight_are_not_drawn(method: str) -> None:
    points = gaussian(50, 2)
    weights = (torch.arange(50) < 10).double()
    for seed in range(5):
        centres = start(points, 8, Bregman(Quadratic(2)), method, seed=seed, weights=weights)
        assert all((centre == points[:10]).all(1).any() for centre in centres)


@pytest.mark.parametrize("method", SEEDINGS)
def test_fewer_different_or_heavy_points_than_centres(method: str) -> None:
    points = torch.tensor([[1.0], [2.0]], dtype=torch.float64).repeat(4, 1)
    centres = start(points, 5, Bregman(Burg(1)), method)
    assert centres.shape == (5, 1)
    assert torch.isfinite(centres).all()
    weights = torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    assert start(points, 5, Bregman(Burg(1)), method, weights=weights).shape == (5, 1)


def test_a_point_is_not_drawn_twice_though_products_round() -> None:
    # Far from zero in float32, the divergence of a point to itself is rounding; it is computed again exactly.
    points = (gaussian(12, 3) + 100).float()
    for seed in range(20):
        centres = start(points, 12, Bregman(Quadratic(3)), "k-means++", seed=seed)
        assert len(centres.unique(dim=0)) == 12


def test_seeding_beats_random_points() -> None:
    middles = 20 * gaussian(15, 2)
    points = middles.repeat(40, 1) + gaussian(600, 2, 1)
    divergence = Bregman(Quadratic(2))
    means = {}
    for method in SEEDINGS:
        found = [kmeans(points, start(points, 15, divergence, method, seed), divergence).inertia for seed in range(8)]
        means[method] = float(np.mean(found))
    assert means["k-means++"] < 0.7 * min(means["random-points"], means["random-partition"])


def test_points_on_the_boundary_start_inside() -> None:
    points = torch.eye(6, dtype=torch.float64).repeat(3, 1)
    centres = start(points, 4, Bregman(NegativeEntropy(6)), "k-means++")
    assert (centres > 0).all()
    assert len(centres.argmax(1).unique()) == 4


@pytest.mark.parametrize("dual", [False, True], ids=["right", "left"])
def test_threads_change_nothing_and_are_left_as_they_were(dual: bool) -> None:
    points = gaussian(20_000, 3).exp()
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            centres = start(points, 4, Bregman(Burg(3)), "k-means++", dual=dual)
            found.append(kmeans(points, centres, Bregman(Burg(3)), max_iter=2, dual=dual))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].centres, found[1].centres)
    assert found[0].inertia == found[1].inertia
