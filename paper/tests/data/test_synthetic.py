"""Mixtures: what is drawn has the distribution that is guaranteed, and the same seed gives the same points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from askew_paper.data import ExponentialMixture, GaussianMixture, MultinomialMixture, make_mixture, mixture_names
from scipy import stats


@pytest.mark.parametrize("name", mixture_names())
def test_sizes_and_seeds(name: str) -> None:
    mixture = make_mixture(name, seed=3)
    assert mixture.means.shape == (5, 10)
    first, again, other = mixture.sample(200, seed=0), mixture.sample(200, seed=0), mixture.sample(200, seed=1)
    assert first.name == name
    assert first.points.shape == (200, 10)
    assert first.points.dtype == np.float64
    assert set(first.labels) == set(range(5))
    np.testing.assert_array_equal(first.points, again.points)
    np.testing.assert_array_equal(first.labels, again.labels)
    assert (first.points != other.points).any(1).mean() > 0.9
    np.testing.assert_array_equal(mixture.means, make_mixture(name, seed=3).means)
    assert not np.allclose(mixture.means, make_mixture(name, seed=4).means)
    assert make_mixture(name, seed=0, clusters=3, dim=4).sample(7, seed=0).points.shape == (7, 4)


@pytest.mark.parametrize("name", mixture_names())
def test_points_have_the_means_of_their_clusters(name: str) -> None:
    mixture = make_mixture(name, seed=0)
    table = mixture.sample(20_000, seed=0)
    shares = np.bincount(table.labels) / len(table.labels)
    np.testing.assert_allclose(shares, 0.2, atol=0.01)
    for number, mean in enumerate(mixture.means):
        points = table.points[table.labels == number]
        error = points.std(0) / np.sqrt(len(points))
        assert (np.abs(points.mean(0) - mean) < 5 * error).all()


def test_ranges_of_the_paper() -> None:
    scales = np.concatenate([make_mixture("exponential", seed).means for seed in range(50)])
    assert scales.min() >= 0.1
    assert scales.max() <= 10
    assert stats.kstest(scales.ravel(), stats.uniform(0.1, 9.9).cdf).pvalue > 1e-3
    centres = np.concatenate([make_mixture("gaussian", seed).means for seed in range(50)])
    assert stats.kstest(centres.ravel(), stats.uniform(-4, 8).cdf).pvalue > 1e-3
    gaussian = make_mixture("gaussian", 0)
    assert isinstance(gaussian, GaussianMixture)
    assert (np.linalg.eigvalsh(gaussian.covariances) > 5).all()
    counts = make_mixture("multinomial", 0).sample(500, seed=0).points
    np.testing.assert_array_equal(counts.sum(1), 100)
    np.testing.assert_array_equal(counts, counts.round())


def test_gaussian_points_have_the_covariances_of_their_clusters() -> None:
    mixture = make_mixture("gaussian", seed=1, clusters=2, dim=3)
    assert isinstance(mixture, GaussianMixture)
    table = mixture.sample(40_000, seed=0)
    for number in range(2):
        np.testing.assert_allclose(
            np.cov(table.points[table.labels == number].T), mixture.covariances[number], atol=0.35
        )


def test_gaussians_of_one_covariance_are_the_others_but_for_that() -> None:
    own, shared = (make_mixture(name, seed=2) for name in ("gaussian", "gaussian-shared"))
    assert isinstance(own, GaussianMixture)
    assert isinstance(shared, GaussianMixture)
    np.testing.assert_array_equal(own.means, shared.means)
    for covariance in shared.covariances:
        np.testing.assert_array_equal(covariance, own.covariances[0])
    assert not np.allclose(own.covariances[1], own.covariances[0])


def test_log_densities() -> None:
    random = np.random.default_rng(0)
    points = random.exponential(2.0, (6, 3))
    scales = random.uniform(0.5, 3, (2, 3))
    expected = [stats.expon(scale=row).logpdf(points).sum(1) for row in scales]
    np.testing.assert_allclose(ExponentialMixture(scales).log_densities(points), np.stack(expected, 1))

    gaussian = make_mixture("gaussian", 0, clusters=2, dim=3)
    assert isinstance(gaussian, GaussianMixture)
    pairs = zip(gaussian.centres, gaussian.covariances, strict=True)
    expected = [stats.multivariate_normal(mean, covariance).logpdf(points) for mean, covariance in pairs]
    constant = -1.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(gaussian.log_densities(points) + constant, np.stack(expected, 1))

    probabilities = np.array([[0.2, 0.8], [0.5, 0.5]])
    counts = np.array([[0.0, 4.0], [3.0, 1.0]])
    expected = [stats.multinomial(4, row).logpmf(counts) for row in probabilities]
    found = MultinomialMixture(probabilities, 4).log_densities(counts)
    # The multinomial coefficient is the same for both clusters.
    np.testing.assert_allclose(found[:, 0] - found[:, 1], expected[0] - expected[1])


@pytest.mark.parametrize("name", ["exponential", "gaussian-shared", "multinomial"])
def test_the_divergence_belongs_to_the_family(name: str) -> None:
    # log p(x | mu) = -D(x, mu) + a function of x alone, for some factor of D.
    mixture = make_mixture(name, seed=0)
    points = mixture.sample(50, seed=0).points + (name == "multinomial")
    matrix = mixture.divergence().pairwise(torch.from_numpy(points), torch.from_numpy(mixture.means)).numpy()
    if name == "gaussian-shared":
        matrix = matrix / 2
    sums = mixture.log_densities(points) + matrix
    if name == "multinomial":  # D has the sums of points and means too, which are constant
        sums = sums - mixture.means.sum(1)
    np.testing.assert_allclose(sums - sums[:, :1], 0, atol=1e-8 * np.abs(matrix).max())


def test_the_divergence_of_gaussians_is_that_of_the_mean_covariance() -> None:
    mixture = make_mixture("gaussian", seed=0)
    assert isinstance(mixture, GaussianMixture)
    x, y = mixture.sample(2, seed=0).points
    expected = (x - y) @ np.linalg.solve(mixture.covariances.mean(0), x - y)
    found = mixture.divergence()(torch.from_numpy(x), torch.from_numpy(y)).item()
    assert found == pytest.approx(expected)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"name of a mixture must be one of 'exponential'.*Did you mean 'gaussian'"):
        make_mixture("gausian", seed=0)
    with pytest.raises(ValueError, match=r"seed of make_mixture must be an integer of at least 0\. Got -1"):
        make_mixture("gaussian", seed=-1)
    with pytest.raises(ValueError, match="seed of sample must be"):
        make_mixture("gaussian", seed=0).sample(3, seed=True)
    with pytest.raises(ValueError, match="n of sample must be a positive integer"):
        make_mixture("gaussian", seed=0).sample(0, seed=0)
