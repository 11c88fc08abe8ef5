"""Pairs of points and the divergences that are computed from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from askew_paper.data import target_pairs
from askew_paper.data.targets import CORRELATIONS, INFORMATIVE, TARGETS, Pairs, _positive_definite


def informative(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    return tuple(points[:, :INFORMATIVE].astype(np.float64) for points in pairs[:2])  # type: ignore[return-value]


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("target", TARGETS)
def test_pairs_are_of_the_right_kind(target: str, correlation: str) -> None:
    train, test = target_pairs(target, correlation, train=300, test=200, seed=1)
    assert train.first.shape == train.second.shape == (300, 20)
    assert test.first.shape == (200, 20)
    for pairs in (train, test):
        assert all(part.dtype == np.float32 for part in pairs)
        assert all(np.isfinite(part).all() for part in pairs)
        assert (pairs.targets > 0).all()
    u, _ = informative(train)
    assert (u > 0).all() == (target in ("xlogx", "kl"))
    assert (train.first[:, INFORMATIVE:] < 0).any()


def test_targets_by_hand() -> None:
    (first, second, targets), _ = target_pairs("xlogx", train=5, test=5)
    for x, y, value in zip(first.tolist(), second.tolist(), targets.tolist(), strict=True):
        expected = sum(a * math.log(a / b) - a + b for a, b in zip(x[:10], y[:10], strict=True))
        assert value == pytest.approx(expected, rel=1e-4)
    (first, second, targets), _ = target_pairs("kl", train=5, test=5)
    for x, y, value in zip(first.tolist(), second.tolist(), targets.tolist(), strict=True):
        p, q = ([a / sum(points[:10]) for a in points[:10]] for points in (x, y))
        assert value == pytest.approx(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)), rel=1e-4)
    pairs, _ = target_pairs("euclidean", train=50, test=5)
    u, v = informative(pairs)
    np.testing.assert_allclose(pairs.targets, ((u - v) ** 2).sum(1), rtol=1e-5)


def test_mahalanobis_target_is_a_quadratic_form_of_trace_ten() -> None:
    pairs, test = target_pairs("mahalanobis", "med", train=300, test=100, seed=2)
    # All products of two differences, of which the target is a linear function.
    products = [np.einsum("ni,nj->nij", u - v, u - v).reshape(-1, 100) for u, v in map(informative, (pairs, test))]
    matrix = np.linalg.lstsq(products[0], pairs.targets, rcond=None)[0]
    np.testing.assert_allclose(products[1] @ matrix, test.targets, rtol=1e-3)
    matrix = matrix.reshape(10, 10)
    assert np.trace(matrix) == pytest.approx(10, rel=1e-3)
    assert np.linalg.eigvalsh(matrix + matrix.T).min() > 0
    assert not np.allclose(matrix, np.eye(10), atol=0.1)
    assert np.trace(_positive_definite(np.random.default_rng(0))) == pytest.approx(10)


@pytest.mark.parametrize(("correlation", "low", "high"), [("none", 1, 1.3), ("med", 40, 125), ("high", 200, 625)])
def test_features_have_variance_one_and_the_condition_number(correlation: str, low: float, high: float) -> None:
    for seed in range(3):
        pairs, _ = target_pairs("euclidean", correlation, train=20_000, test=1, seed=seed)
        covariance = np.cov(np.concatenate([pairs.first, pairs.second]).T)
        np.testing.assert_allclose(np.diag(covariance), 1, atol=0.05)
        assert low <= np.linalg.cond(covariance) <= high
        across = np.abs(covariance[:INFORMATIVE, INFORMATIVE:]).mean()
        assert (across > 0.1) == (correlation != "none")


def test_constant_predictor_is_as_good_as_known() -> None:
    # 6.95 is the figure for the median; the Euclidean target is twice a chi-squared variable.
    train, test = target_pairs("euclidean", train=20_000, test=20_000)
    assert np.abs(test.targets - np.median(train.targets)).mean() == pytest.approx(6.95, abs=0.1)
    assert train.targets.mean() == pytest.approx(20, abs=0.2)


def test_seed_decides_and_test_pairs_stay() -> None:
    one, again, other = (target_pairs("mahalanobis", "high", 40, 30, seed=seed) for seed in (0, 0, 1))
    for first, second, third in zip(one[0] + one[1], again[0] + again[1], other[0] + other[1], strict=True):
        np.testing.assert_array_equal(first, second)
        assert not np.array_equal(first, third)
    _, longer = target_pairs("mahalanobis", "high", 100, 30, seed=0)
    np.testing.assert_array_equal(longer.targets, one[1].targets)
    assert not np.isin(one[0].targets, one[1].targets).any()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"target of target_pairs must be one of 'euclidean'.*Did you mean 'xlogx'"):
        target_pairs("xlogs")
    with pytest.raises(ValueError, match=r"correlation of target_pairs must be one of 'none', 'med', 'high'"):
        target_pairs("kl", "medium")
    with pytest.raises(ValueError, match="train of target_pairs must be"):
        target_pairs("kl", train=0)
