"""Expectation-maximisation for Bregman mixtures: its steps, its limits, and the densities it speaks of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from members import into_domain
from scipy import integrate, special, stats
from torch import Tensor

from askew.checks import SIMPLEX
from askew.clustering import expectation, volume
from askew.clustering.expectation import Mixture, SoftClustering, soft_clusters
from askew.clustering.lloyd import kmeans
from askew.clustering.volume import curved_directions, log_volumes
from askew.divergences import CATALOGUE, Bregman, make
from askew.potentials import Burg, Exponential, FermiDirac, LogSumExp, NegativeEntropy, Potential, PowerNorm, Quadratic
from askew.potentials.inverse import widened

DIM = 4
NAMES = [name for name in CATALOGUE if isinstance(make(name, DIM), Bregman)]


def member(name: str, dtype: torch.dtype = torch.float64) -> Bregman:
    torch.manual_seed(1)
    divergence = make(name, DIM).to(dtype).requires_grad_(False)
    assert isinstance(divergence, Bregman)
    return divergence


def clusters(divergence: Bregman, n: int = 200, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return points of four overlapping clusters inside the domain of a divergence."""
    generator = torch.Generator().manual_seed(seed)
    means = 1.5 * torch.randn(4, DIM, generator=generator, dtype=torch.float64)
    z = means.repeat(n // 4, 1) + 0.7 * torch.randn(n, DIM, generator=generator, dtype=torch.float64)
    return into_domain(divergence.domain, z).to(dtype)


def squared(dim: int = 1, matrix: Tensor | None = None) -> Bregman:
    return Bregman(Quadratic(dim, matrix))


def fit(
    points: Tensor,
    centres: Tensor,
    divergence: Bregman,
    weights: Tensor | None = None,
    shares: Tensor | None = None,
    temperature: float | None = None,
    **options: Any,
) -> SoftClustering:
    """Fit a mixture from given centres, by default with equal shares and an estimated temperature."""
    shares = torch.full((len(centres),), 1 / len(centres), dtype=torch.float64) if shares is None else shares
    divergence = Bregman(widened(divergence.potential, points.dtype))
    start = Mixture(divergence, centres.to(points.dtype), shares, temperature or 1.0)
    d = curved_directions(points, divergence.potential).shape[1]
    return soft_clusters(points, start, d, weights, estimate=temperature is None, **options)


@pytest.mark.parametrize("temperature", [None, 0.5])
@pytest.mark.parametrize("name", NAMES)
def test_bound_never_falls(name: str, temperature: float | None) -> None:
    divergence = member(name)
    points = clusters(divergence)
    weights = torch.rand(len(points), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = fit(points, points[:5], divergence, weights, temperature=temperature, max_iter=30, tol=0.0)
    assert len(found.bounds) > 5
    assert np.diff(found.bounds).min() > -1e-12
    assert found.bounds[-1] > found.bounds[0] + 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_step_is_the_textbook_one(name: str) -> None:
    divergence = member(name)
    points, weights = clusters(divergence, 40), torch.linspace(0.5, 2, 40, dtype=torch.float64)
    start, shares, t = points[:3], torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 0.8
    d = curved_directions(points, divergence.potential).shape[1]
    found = fit(points, start, divergence, weights, shares=shares, temperature=t, max_iter=1)
    logits = shares.log() - divergence(points[:, None], start[None]) / t - d / 2 * math.log(2 * math.pi * t)
    torch.testing.assert_close(found.bounds[0], float((weights * logits.logsumexp(1)).sum() / weights.sum()))
    parts = logits.softmax(1) * weights[:, None]
    torch.testing.assert_close(found.mixture.shares, parts.sum(0) / weights.sum())
    torch.testing.assert_close(found.mixture.centres, parts.T @ points / parts.sum(0)[:, None])
    # The estimated temperature is that of the same step with the new centres.
    estimated = fit(points, start, divergence, weights, shares=shares, max_iter=1)
    t0 = 2 / d * float((weights * divergence.pairwise(points, start).amin(1)).sum() / weights.sum())
    parts = (shares.log() - divergence.pairwise(points, start) / t0).softmax(1) * weights[:, None]
    within = (parts * divergence.pairwise(points, estimated.mixture.centres)).sum() / weights.sum()
    torch.testing.assert_close(estimated.mixture.temperature, 2 / d * float(within))


@pytest.mark.parametrize("name", ["nbd", "itakura-saito", "exponential"])
def test_estimated_temperature_is_the_most_likely_one(name: str) -> None:
    divergence = member(name)
    points = clusters(divergence)
    found = fit(points, points[:4], divergence, max_iter=2000, tol=0.0)

    def likelihood(t: float) -> float:
        return float(found.mixture._replace(temperature=t).log_densities(points, DIM).mean())

    best = likelihood(found.mixture.temperature)
    torch.testing.assert_close(best, found.bounds[-1])
    assert best > likelihood(1.05 * found.mixture.temperature)
    assert best > likelihood(found.mixture.temperature / 1.05)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    divergence = member("nbd")
    points = clusters(divergence)
    whole = fit(points, points[:4], divergence)
    volumes = log_volumes(points, divergence.potential, torch.eye(DIM))
    monkeypatch.setattr(expectation, "BLOCK_ELEMENTS", 7 * (DIM + 4))
    monkeypatch.setattr(volume, "BLOCK_ELEMENTS", 3 * DIM**2)
    parts = fit(points, points[:4], divergence)
    labels = parts.mixture.most_probable(points)
    torch.testing.assert_close(parts.mixture.centres, whole.mixture.centres)
    torch.testing.assert_close(parts.bounds, whole.bounds)
    torch.testing.assert_close(log_volumes(points, divergence.potential, torch.eye(DIM)), volumes)
    assert torch.equal(labels, whole.mixture.most_probable(points))


def test_weights_count_like_repetitions() -> None:
    divergence = member("itakura-saito")
    points = clusters(divergence, 40)
    counts = torch.arange(40) % 4
    repeated = fit(points.repeat_interleave(counts, 0), points[:3], divergence)
    weighted = fit(points, points[:3], divergence, counts.double())
    torch.testing.assert_close(weighted.mixture.centres, repeated.mixture.centres)
    torch.testing.assert_close(weighted.mixture.shares, repeated.mixture.shares)
    torch.testing.assert_close(weighted.bounds, repeated.bounds)
    # Only their ratios count, however small they are.
    tiny = fit(points.float(), points[:3], divergence, 1e-60 * counts.double())
    torch.testing.assert_close(tiny.mixture.centres.double(), repeated.mixture.centres, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_finds_the_same(name: str) -> None:
    divergence = member(name)
    points = clusters(divergence)
    double = fit(points, points[:4], divergence)
    # The divergence is one of double precision, of which a copy is used.
    single = fit(points.float(), points[:4], divergence)
    assert single.mixture.centres.dtype == single.mixture.shares.dtype == torch.float32
    torch.testing.assert_close(single.mixture.centres.double(), double.mixture.centres, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(single.mixture.temperature, double.mixture.temperature, rtol=1e-3, atol=0)
    torch.testing.assert_close(single.bounds[-1], double.bounds[-1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_cold_limit_is_hard_clustering(name: str) -> None:
    divergence = member(name)
    points = clusters(divergence)
    hard = kmeans(points, points[:4], divergence)
    soft = fit(points, points[:4], divergence, temperature=1e-7, tol=0.0, max_iter=300)
    torch.testing.assert_close(soft.mixture.centres, hard.centres)
    assert torch.equal(soft.mixture.most_probable(points), hard.labels.long())
    torch.testing.assert_close(soft.mixture.shares, hard.labels.bincount(minlength=4) / len(points), check_dtype=False)


def test_responsibilities_are_those_of_the_divergence() -> None:
    divergence = member("kl")
    points = clusters(divergence, 20)
    shares = torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64)
    found = Mixture(divergence, points[:3], shares, 0.3).responsibilities(points)
    torch.testing.assert_close(found, (shares.log() - divergence.pairwise(points, points[:3]) / 0.3).softmax(1))
    assert (found[:, 2] == 0).all()


# ---------------------------------------------------------------------- densities


def density(points: Tensor, centres: Tensor, divergence: Bregman, shares: Tensor, t: float) -> Tensor:
    directions = curved_directions(centres, divergence.potential)
    volumes = log_volumes(points, divergence.potential, directions)
    return Mixture(divergence, centres, shares, t).log_densities(points, directions.shape[1]) + volumes


@pytest.mark.parametrize("matrix", [None, torch.tensor([[1.0, 0.5], [0.0, 2.0]], dtype=torch.float64)])
def test_quadratic_potentials_are_gaussians(matrix: Tensor | None) -> None:
    generator = torch.Generator().manual_seed(0)
    points, centres = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (30, 2))
    shares, t = torch.tensor([0.3, 0.7], dtype=torch.float64), 0.6
    gram = torch.eye(2, dtype=torch.float64) if matrix is None else matrix.T @ matrix
    covariance = (t / 2 * gram.inverse()).numpy()
    expected = sum(
        share * stats.multivariate_normal(mean, covariance).pdf(points.numpy())
        for share, mean in zip(shares.tolist(), centres.numpy(), strict=True)
    )
    found = density(points, centres, squared(2, matrix), shares, t)
    np.testing.assert_allclose(found.exp().numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("t", [1.0, 0.25, 0.02])
def test_gamma_distributions_are_off_by_a_constant(t: float) -> None:
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5 + 0.01
    mean = torch.tensor([[0.5, 1.0, 3.0]], dtype=torch.float64)
    found = density(points, mean, Bregman(Burg(3)), torch.ones(1, dtype=torch.float64), t)
    true = stats.gamma(1 / t, scale=t * mean.numpy()).logpdf(points.numpy()).sum(1)
    # What Stirling's formula leaves of the gamma function, the same for every point.
    stirling = special.gammaln(1 / t) + 1 / t + math.log(t) / t - math.log(2 * math.pi * t) / 2
    np.testing.assert_allclose(found.numpy() - true, 3 * stirling, rtol=1e-6)
    assert stirling == pytest.approx(t / 12, rel=0.03)


def test_poisson_counts_are_off_by_little() -> None:
    counts = torch.arange(1.0, 40, dtype=torch.float64)[:, None]
    mean = torch.tensor([[10.0]], dtype=torch.float64)
    found = density(counts, mean, Bregman(NegativeEntropy(1)), torch.ones(1, dtype=torch.float64), 1.0)
    true = stats.poisson(10).logpmf(counts[:, 0].numpy())
    np.testing.assert_allclose(found.numpy() - true, 1 / (12 * counts[:, 0].numpy()), rtol=0.04)


@pytest.mark.parametrize(
    ("potential", "mean", "low", "high"),
    [
        (NegativeEntropy(1), 2.0, 1e-9, 6.0),
        (Burg(1), 2.0, 1e-9, 10.0),
        (FermiDirac(1), 0.3, 1e-9, 1 - 1e-9),
        (Exponential(1), 0.5, -4.0, 4.0),
        (PowerNorm(1, 3.0), 1.0, 1e-9, 4.0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Potential) else "",
)
def test_densities_integrate_to_one_where_it_is_cold(
    potential: Potential, mean: float, low: float, high: float
) -> None:
    grid = torch.linspace(low, high, 20001, dtype=torch.float64)[:, None]
    centre, whole = torch.tensor([[mean]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    totals = [
        integrate.trapezoid(density(grid, centre, Bregman(potential), whole, t).exp().numpy(), grid[:, 0].numpy())
        for t in (0.04, 0.01)
    ]
    wrong = np.abs(np.array(totals) - 1)
    assert wrong[1] < 0.01
    # The error is of first order in the temperature.
    assert wrong[1] < 0.3 * wrong[0] + 1e-5


def test_density_on_the_simplex_has_one_dimension_less() -> None:
    potential = NegativeEntropy(2, simplex=True)
    centre = torch.tensor([[0.4, 0.6]], dtype=torch.float64)

    def at(x: float) -> float:
        point = torch.tensor([[x, 1 - x]], dtype=torch.float64)
        return float(density(point, centre, Bregman(potential), torch.ones(1, dtype=torch.float64), 0.01).exp())

    # A step of dx along the first coordinate is one of sqrt(2) dx along the simplex.
    assert math.sqrt(2) * integrate.quad(at, 1e-9, 1 - 1e-9, points=[0.4])[0] == pytest.approx(1, abs=0.01)


def test_volume_on_the_simplex_is_that_of_its_directions() -> None:
    potential = NegativeEntropy(5, simplex=True)
    points = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(1)
    basis = curved_directions(points, potential)
    torch.testing.assert_close(basis.T @ basis, torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(basis.sum(0), torch.zeros(4, dtype=torch.float64))
    plain = torch.linalg.slogdet(basis.T @ potential.hessian(points) @ basis).logabsdet / 2
    torch.testing.assert_close(log_volumes(points, potential, basis), plain)


@pytest.mark.parametrize("name", NAMES)
def test_directions(name: str) -> None:
    divergence = member(name)
    points = clusters(divergence, 40)
    directions = curved_directions(points, divergence.potential)
    flat = divergence.domain == SIMPLEX or name == "log-sum-exp"
    assert directions.shape == (DIM, DIM - flat)
    plain = torch.linalg.slogdet(directions.T @ divergence.potential.hessian(points) @ directions).logabsdet / 2
    torch.testing.assert_close(log_volumes(points, divergence.potential, directions), plain)


def test_flat_directions_do_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(500, 3, generator=generator, dtype=torch.float64)
    matrix = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    found = fit(points, points[:1], squared(3, matrix))
    # Twice the variance of the only feature that the divergence sees.
    assert found.mixture.temperature == pytest.approx(2 * float((points @ matrix.T).var(unbiased=False)))
    assert curved_directions(points, Quadratic(3, matrix)).shape == (3, 1)
    assert curved_directions(points, LogSumExp(3)).shape == (3, 2)


# ---------------------------------------------------------------------- edges


def test_component_without_points_keeps_its_centre() -> None:
    points = torch.tensor([[0.0], [0.2], [5.0], [5.2]], dtype=torch.float64)
    start = torch.tensor([[0.0], [5.0], [1e6]], dtype=torch.float64)
    found = fit(points, start, squared(), temperature=0.1)
    torch.testing.assert_close(found.mixture.centres[:, 0], torch.tensor([0.1, 5.1, 1e6], dtype=torch.float64))
    torch.testing.assert_close(found.mixture.shares, torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    assert found.converged


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["kl", "itakura-saito", "nbd"])
def test_as_many_components_as_points(name: str, dtype: torch.dtype) -> None:
    divergence = member(name, dtype)
    points = clusters(divergence, 8, dtype=dtype)
    for data in (points, points[:1].expand(8, -1)):
        found = fit(data, data, divergence)
        assert torch.isfinite(found.mixture.centres).all()
        assert 0 < found.mixture.temperature < 1e-4
        assert math.isfinite(found.bounds[-1])
        torch.testing.assert_close(found.mixture.centres, data, rtol=1e-3, atol=1e-3)


def test_counts_with_zeros() -> None:
    # The mean of a component is zero in a feature, where the gradient of the potential is infinite.
    counts = torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 7.0], [0.0, 6.0]], dtype=torch.float64)
    divergence = Bregman(NegativeEntropy(2))
    found = fit(counts, counts[[0, 2]], divergence, temperature=1.0)
    torch.testing.assert_close(found.mixture.centres, torch.tensor([[3.5, 0.0], [0.0, 6.5]], dtype=torch.float64))
    labels = found.mixture.most_probable(counts)
    assert labels.tolist() == [0, 0, 1, 1]
    # The centres are next to the boundary, not on it, where the divergence would refuse them.
    assert torch.equal(divergence.pairwise(counts, found.mixture.centres).argmin(1), labels)


def test_far_from_the_origin() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    points[100:] += 4
    near = fit(points, points[[0, 199]], squared(2))
    far = fit(points + 1e6, points[[0, 199]] + 1e6, squared(2))
    torch.testing.assert_close(far.mixture.centres - 1e6, near.mixture.centres, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(far.bounds, near.bounds, rtol=1e-6, atol=1e-8)


def test_steps_are_reported_and_limited() -> None:
    points = clusters(member("nbd"))
    steps: list[tuple[int, float]] = []
    found = fit(
        points, points[:4], member("nbd"), max_iter=3, tol=0.0, report=lambda step, bound: steps.append((step, bound))
    )
    assert steps == list(zip((1, 2, 3), found.bounds[:3], strict=True))
    assert (len(found.bounds) - 1, found.converged) == (3, False)
    again = float(found.mixture.log_densities(points, DIM).mean())
    torch.testing.assert_close(found.bounds[-1], again)


def test_feature_that_is_zero_in_all_points_is_named() -> None:
    points = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    with pytest.raises(ValueError, match="feature 1 of the points must be inside the positive"):
        fit(points, points[:2] + 1, Bregman(NegativeEntropy(2)))


def test_overflow_is_told() -> None:
    divergence = Bregman(Exponential(1))
    points = torch.tensor([[0.0], [800.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"must be finite. Got a bound of .* Bring the features to a scale"):
        fit(points, points, divergence)


def test_density_on_the_boundary_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not on its boundary.*row 1 = \[0.0\].*volume=False"):
        log_volumes(torch.tensor([[1.0], [0.0]]), NegativeEntropy(1), torch.eye(1))
