"""Lloyd's algorithm for any Bregman divergence: objective and centres are right, and equal to scikit-learn's."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import torch
from members import DIM, Case, build, cases, random_points
from sklearn.cluster import KMeans
from torch import Tensor

from askew.clustering import kmeans, scan
from askew.clustering.inputs import to_bregman
from askew.clustering.lloyd import nearest
from askew.clustering.seeding import init_centroids
from askew.clustering.view import AffineView
from askew.divergences import Bregman, Euclidean, NeuralBregman, Scaled, make
from askew.potentials import Burg, NegativeEntropy, Quadratic

N, K = 60, 5
# Behind "dual", networks solve a convex problem for each value; closed forms show as much.
MEMBERS = [
    case
    for case in cases()
    if case.name in ("nbd", "nbd-paper", "mahalanobis", "euclidean", "power", "exponential", "log-sum-exp", "logistic")
    or case.name.startswith(("kl", "itakura"))
    if case.wrapper == "plain" or (case.wrapper in ("scaled", "dual") and not case.name.startswith("nbd"))
]


def weights_of(n: int, seed: int = 1) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gaussian(n: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def objective(
    divergence: Bregman, points: Tensor, centres: Tensor, weights: Tensor | None, dual: bool
) -> tuple[float, Tensor]:
    """Return the objective of centres and the labels of all points, straight from the definition."""
    with torch.no_grad():
        rows = [divergence(c, points) if dual else divergence(points, c) for c in centres]
    least = torch.stack(rows, 1).min(1)
    return float((least.values * (1 if weights is None else weights)).sum()), least.indices


@pytest.mark.parametrize("dual", [False, True], ids=["right-weighted", "left"])
@pytest.mark.parametrize("case", MEMBERS, ids=str)
def test_objective_never_increases(case: Case, dual: bool) -> None:
    divergence = to_bregman(build(case), "test")
    points = random_points(case, N, seed=3)
    weights = None if dual else weights_of(N)
    view = AffineView(points, divergence, dual=dual)
    start = init_centroids(
        view, K, "random-points", np.random.RandomState(0), None if weights is None else weights.numpy()
    )
    values = [objective(divergence, points, start, weights, dual)[0]]
    for _ in range(5):
        found = kmeans(points, start, divergence, weights, max_iter=1, dual=dual)
        start = found.centres
        values.append(found.inertia)
        value, labels = objective(divergence, points, found.centres, weights, dual)
        assert found.inertia == pytest.approx(value, rel=1e-9)
        assert (found.labels == labels).float().mean() > 0.98  # all but near ties
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(values)), values
    assert values[-1] < 0.99 * values[0]


@pytest.mark.parametrize("dual", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("name", ["euclidean", "kl", "itakura-saito", "logistic", "exponential", "nbd"])
def test_no_small_step_makes_a_centre_better(name: str, dual: bool) -> None:
    case = Case(name, "plain", name == "nbd")
    divergence = to_bregman(build(case), "test")
    points, weights = random_points(case, N), weights_of(N)
    found = kmeans(points, points[:K], divergence, weights, dual=dual)
    assert found.converged
    best, _ = objective(divergence, points, found.centres, weights, dual)
    for seed in range(20):
        moved = found.centres * (1 + 1e-3 * gaussian(K, DIM, seed))
        assert objective(divergence, points, moved, weights, dual)[0] > best


def test_centres_are_weighted_means() -> None:
    divergence, points, weights = Bregman(Burg(3)), gaussian(50, 3).exp(), weights_of(50)
    found = kmeans(points, points[:4], divergence, weights)
    for j in range(4):
        chosen = found.labels == j
        mean = (weights[chosen, None] * points[chosen]).sum(0) / weights[chosen].sum()
        torch.testing.assert_close(found.centres[j], mean, rtol=1e-12, atol=0)


def test_left_centres_are_harmonic_means_for_itakura_saito() -> None:
    divergence, points = Bregman(Burg(3)), gaussian(50, 3).exp()
    found = kmeans(points, points[:4], divergence, dual=True)
    for j in range(4):
        mean = points[found.labels == j].reciprocal().mean(0).reciprocal()
        torch.testing.assert_close(found.centres[j], mean, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize(("n", "dim", "k"), [(500, 3, 8), (3000, 10, 40), (60, 2, 30)])
def test_equals_scikit_learn(n: int, dim: int, k: int, weighted: bool, dtype: torch.dtype) -> None:
    points = gaussian(n, dim, dtype=dtype) + 10  # far from zero, as real features are
    start = points[:k].clone()
    if k == 40:  # centres without points: re-seeded as scikit-learn does it
        start[[3, 5, 9]] = torch.tensor([[1000.0], [-500.0], [400.0]], dtype=dtype)
    weights = weights_of(n) if weighted else None
    theirs = KMeans(k, init=start.numpy(), n_init=1, tol=0, algorithm="lloyd")
    theirs.fit(points.numpy(), sample_weight=None if weights is None else weights.numpy())
    ours = kmeans(points, start, Bregman(Quadratic(dim)), weights)
    assert ours.centres.dtype == dtype
    np.testing.assert_array_equal(ours.labels.numpy(), theirs.labels_)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(ours.centres.numpy(), theirs.cluster_centers_, rtol=tolerance)
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=10 * tolerance)
    assert ours.n_iter == theirs.n_iter_


def test_multiples_and_mahalanobis_are_clustered_as_their_linear_images() -> None:
    points = gaussian(300, 4)
    distance = make("mahalanobis", 4).double()
    scaled = to_bregman(Scaled(distance, 3.0).double(), "test")
    with torch.no_grad():
        images = points @ distance.weight.T
    found = kmeans(points, points[:6], scaled)
    plain = kmeans(images, images[:6], to_bregman(Euclidean(4), "test"))
    assert torch.equal(found.labels, plain.labels)
    assert found.inertia == pytest.approx(3 * plain.inertia, rel=1e-6)  # the factor came from a float32


def test_a_network_costs_as_many_evaluations_as_there_are_centres(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    divergence, points = NeuralBregman(3, widths=(8,)).double(), gaussian(2000, 3)
    rows = []
    potential = type(divergence.potential)
    seen = type(divergence.potential.seen_from(points[:1]))
    for owner, name in (
        (potential, "compute_gradient_difference"),
        (potential, "compute_divergence"),
        (seen, "value"),
    ):
        original = getattr(owner, name)

        def counting(self: object, *arguments: Tensor, original: object = original) -> Tensor:
            rows.append(max(len(argument) for argument in arguments))
            return original(self, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(owner, name, counting)
    kmeans(points, points[:5], divergence, max_iter=7)
    # The exact objective at the end sees each point once.
    assert sum(count for count in rows if count > 5) == 2000
    assert len([count for count in rows if count <= 5]) == 2 * (7 + 1)


def test_results_do_not_depend_on_threads_or_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    points = gaussian(5000, 6, dtype=torch.float32)
    divergence = Bregman(Quadratic(6))
    monkeypatch.setattr(scan, "CHUNK_PRODUCTS", 1 << 15)
    monkeypatch.setattr(scan, "SUM_ROWS", 300)
    used = set()
    label = scan.Scan._label

    def watched(self: object, *arguments: object) -> int:
        used.add(threading.get_ident())
        return label(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scan.Scan, "_label", watched)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(kmeans(points, points[:20], divergence, weights_of(5000), max_iter=10))
    assert len(used) > 1
    assert torch.equal(found[0].labels, found[1].labels)
    assert torch.equal(found[0].centres, found[1].centres)
    monkeypatch.undo()
    plain = kmeans(points, points[:20], divergence, weights_of(5000), max_iter=10)
    torch.testing.assert_close(plain.centres, found[0].centres, rtol=1e-5, atol=1e-6)


def test_float32_is_as_good_as_float64_far_from_zero() -> None:
    # The middle of the data is taken away before the product; without that, all of this would be rounding.
    points = gaussian(2000, 3) + 1e3
    divergence = Bregman(Quadratic(3))
    rounded = points.float()
    single = kmeans(rounded, rounded[:7], divergence)
    double = kmeans(rounded.double(), rounded[:7].double(), divergence)
    assert (single.labels == double.labels).float().mean() > 0.995
    assert single.inertia == pytest.approx(double.inertia, rel=1e-4)


def test_objective_of_tight_clusters_keeps_its_digits() -> None:
    # The sum over all points cancels here: what is left of a float32 after 1e7 is taken from it is nothing.
    middles = 1e3 * gaussian(4, 3)
    points = (middles.repeat(200, 1) + 1e-2 * gaussian(800, 3, 1)).float()
    divergence = Bregman(Quadratic(3))
    single = kmeans(points, points[:4], divergence)
    double = kmeans(points.double(), points[:4].double(), divergence)
    assert single.inertia == pytest.approx(double.inertia, rel=1e-3)  # centres are rounded


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_zeros_where_the_potential_allows_them(dtype: torch.dtype) -> None:
    # Counts of two topics that share no word, and a word that nobody uses: means lie on the boundary.
    random = np.random.RandomState(0)
    counts = np.zeros((80, 9))
    counts[:40, :4] = random.poisson(1.0, (40, 4))
    counts[40:, 4:8] = random.poisson(1.0, (40, 4))
    points = torch.tensor(counts, dtype=dtype)
    divergence = Bregman(NegativeEntropy(9))
    start = init_centroids(AffineView(points, divergence), 2, "k-means++", np.random.RandomState(0), None)
    found = kmeans(points, start, divergence)
    assert np.isfinite(found.inertia)
    words = points.sum(1) > 0  # a text without words is as near to all
    expected = torch.arange(80) < 40
    agreement = ((found.labels == 1) == expected)[words].float().mean()
    assert max(agreement, 1 - agreement) == 1
    assert (found.centres > 0).all()
    assert (found.centres[:, 8] < 1e-10).all()


def test_more_clusters_than_different_points() -> None:
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(5, 1)
    found = kmeans(points, points[:4].clone(), Bregman(Quadratic(1)))
    assert found.inertia == 0
    assert found.converged
    assert set(points[found.labels == 0].flatten().tolist()) == {0.0}


def test_points_of_no_weight_are_never_seeds() -> None:
    points = torch.tensor([[0.0], [0.1], [5.0], [5.1], [1e6]], dtype=torch.float64)
    weights = torch.tensor([1.0, 1, 1, 1, 0], dtype=torch.float64)
    start = torch.tensor([[0.0], [5.0], [-1e9]], dtype=torch.float64)
    found = kmeans(points, start, Bregman(Quadratic(1)), weights)
    assert found.centres.max() < 6
    assert found.inertia <= 0.005 + 1e-12


def test_labels_are_those_of_new_points() -> None:
    points = gaussian(400, 3)
    divergence = to_bregman(build(Case("nbd", "plain", True)), "test")
    points = random_points(Case("nbd", "plain", True), 400)
    found = kmeans(points, points[:9], divergence)
    view = AffineView(points, divergence)
    np.testing.assert_array_equal(nearest(view, found.centres), found.labels.numpy())


@pytest.mark.parametrize("dual", [False, True])
def test_what_overflows_float32_is_done_by_the_copy_that_is_there(dual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.tensor([[1e25, 1e25], [2e25, 1e25]])
    divergence = to_bregman(make("power", 2), "test")
    view = AffineView(points, divergence, dual=dual)
    monkeypatch.setattr("askew.divergences.affine.widened", None)
    values = torch.full((2,), torch.nan)
    centres, numbers = torch.tensor([[1e25, 1e25]]), torch.zeros(2, dtype=torch.int64)
    found = view._without_nan(values, centres, numbers).double()
    x, y = points.double(), centres.double().expand(2, 2)
    truth = make("power", 2).double()(*((y, x) if dual else (x, y)))
    torch.testing.assert_close(found, truth.float().double(), rtol=1e-6, atol=0.0)


def test_tolerance_stops_early_and_says_so() -> None:
    points = gaussian(2000, 2)
    divergence = Bregman(Quadratic(2))
    strict = kmeans(points, points[:10], divergence)
    loose = kmeans(points, points[:10], divergence, tol=1e-2)
    short = kmeans(points, points[:10], divergence, max_iter=2)
    assert loose.n_iter < strict.n_iter
    assert loose.converged
    assert not short.converged
    assert short.n_iter == 2


def test_input_stays_as_it_was() -> None:
    points, start, weights = gaussian(100, 2), gaussian(5, 2, 1), weights_of(100)
    before = [tensor.clone() for tensor in (points, start, weights)]
    kmeans(points, start, Bregman(Quadratic(2)), weights)
    for tensor, copy in zip((points, start, weights), before, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"points": [[1.0]]}, TypeError, "points of kmeans must be a torch.Tensor"),
        ({"points": torch.zeros(0, 2)}, ValueError, r"points of kmeans must be of shape \(n, dim\) with n > 0"),
        (
            {"points": torch.ones(3, 2).bfloat16()},
            TypeError,
            "must be float32 or float64 in main memory. Got torch.bfloat16",
        ),
        ({"points": torch.ones(3, 3)}, ValueError, r"points of kmeans must be of shape \(..., 2\)"),
        ({"points": torch.tensor([[1.0, float("nan")]] * 4)}, ValueError, r"must be finite. Got points\[0, 1\] = nan"),
        ({"points": -torch.ones(4, 2)}, ValueError, "points of kmeans must be inside the positive domain"),
        ({"centres": torch.ones(2, 3)}, ValueError, r"centres of kmeans must be a tensor of shape \(k, 2\)"),
        ({"centres": torch.ones(9, 2)}, ValueError, "centres of kmeans must be at most as many as points, 4. Got 9"),
        ({"centres": -torch.ones(2, 2)}, ValueError, "centres of kmeans must be inside the positive domain"),
        ({"divergence": Euclidean(2)}, TypeError, "divergence of kmeans must be an askew.Bregman divergence"),
        ({"weights": torch.ones(3)}, ValueError, r"weights of kmeans must be a tensor of shape \(4,\)"),
        ({"weights": torch.tensor([1.0, -1, 1, 1])}, ValueError, "weights of kmeans must be finite and not negative"),
        ({"weights": torch.zeros(4)}, ValueError, "not all 0. Got zeros"),
        ({"max_iter": 0}, ValueError, "max_iter of kmeans must be a positive integer"),
        ({"tol": -1.0}, ValueError, "tol of kmeans must be a number of at least 0"),
    ],
)
def test_bad_input(changes: dict[str, object], error: type[Exception], text: str) -> None:
    good: dict[str, object] = {
        "points": torch.ones(4, 2),
        "centres": torch.ones(2, 2),
        "divergence": Bregman(Burg(2)),
    }
    with pytest.raises(error, match=text):
        kmeans(**{**good, **changes})  # type: ignore[arg-type]


def test_values_too_large_for_the_dtype_are_an_error() -> None:
    points = torch.tensor([[0.0], [200.0], [150.0]])
    with pytest.raises(ValueError, match="between the centres of clusters and their mean must be finite"):
        kmeans(points, points[:2], to_bregman(make("exponential", 1), "test"))
