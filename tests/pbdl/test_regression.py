"""PBDL from values: the convex problem of a round, its rounds, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from askew.pbdl import fit_regression
from askew.pbdl.pieces import spread
from askew.pbdl.regression import _highest, _Problem

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def pairs(n: int, dim: int, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Points and an asymmetric divergence, that of sum exp(x)."""
    x, y = np.random.default_rng(seed).normal(size=(2, n, dim))
    return x, y, (np.exp(x) - np.exp(y) * (1 + x - y)).sum(1)


def reference(centres: Floats, x: Floats, upper: Integers, lower: Integers, targets: Floats, ridge: float) -> float:
    """The optimum by a generic solver."""
    cvxpy = pytest.importorskip("cvxpy")
    count, dim = centres.shape
    b, a = cvxpy.Variable(count), cvxpy.Variable((count, dim))
    at_x = b[upper] + cvxpy.sum(cvxpy.multiply(a[upper], x), axis=1)
    at_y = b[lower] + cvxpy.sum(cvxpy.multiply(a[lower], x), axis=1)
    constraints = [
        b[k] + a[k] @ centres[k] >= b[other] + a[other] @ centres[k] for k in range(count) for other in range(count)
    ]
    goal = cvxpy.sum_squares(at_x - at_y - targets) / len(x) + ridge * cvxpy.sum_squares(a) / count
    return float(cvxpy.Problem(cvxpy.Minimize(goal), constraints).solve(solver="CLARABEL"))


@pytest.mark.parametrize(("count", "dim", "ridge"), [(6, 2, 1e-2), (10, 3, 1e-1), (10, 3, 1e-4)])
@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_a_round_is_solved(count: int, dim: int, ridge: float, noise: float) -> None:
    x, y, targets = pairs(150, dim)
    # Noise that no divergence explains makes convexity bind.
    targets = np.abs(targets + noise * np.random.default_rng(2).normal(size=150))
    centres = x[spread(x, count)]
    problem = _Problem(centres, ridge)
    nearest = np.c_[-np.square(centres).sum(1) / 2, centres]
    upper, lower = _highest(x, nearest), _highest(y, nearest)
    design = problem.design(x, upper, lower)
    w, _, converged = problem.solve(design, targets, 1e-6, 20_000)
    assert converged
    values = problem.extended @ w.T
    assert (np.diag(values)[:, None] - values).min() > -1e-5
    found = problem.objective(design @ w.reshape(-1), targets, w)
    assert found == pytest.approx(reference(centres, x, upper, lower, targets, ridge), rel=1e-5)


def test_first_pieces_are_those_of_the_nearest_centres() -> None:
    x, _, _ = pairs(200, 3)
    centres = x[:9]
    direct = np.square(x[:, None] - centres).sum(-1).argmin(1)
    assert (_highest(x, np.c_[-np.square(centres).sum(1) / 2, centres]) == direct).all()


def test_objective_is_that_of_the_divergence() -> None:
    x, y, targets = pairs(400, 2)
    fit = fit_regression(5 * x + 3, 5 * y + 3, targets, n_pieces=15, ridge=0.05)
    with torch.no_grad():
        predicted = fit.divergence(torch.from_numpy(5 * x + 3), torch.from_numpy(5 * y + 3)).numpy()
    scale = 5 * np.sqrt(np.mean([x.var(0), y.var(0)]))
    slopes = fit.divergence.slopes.detach().numpy() * scale
    expected = np.square(predicted - targets).mean() + 0.05 * np.square(slopes).sum(1).mean()
    assert fit.objective == pytest.approx(expected, rel=1e-8)
    assert (predicted >= 0).all()


def test_rounds_and_pieces_help() -> None:
    x, y, targets = pairs(3000, 2)
    test = pairs(1000, 2, seed=1)

    def error(n_pieces: int, rounds: int) -> float:
        fit = fit_regression(x, y, targets, n_pieces=n_pieces, rounds=rounds, ridge=1e-4)
        with torch.no_grad():
            return float(np.abs(fit.divergence(*map(torch.from_numpy, test[:2])).numpy() - test[2]).mean())

    constant = np.abs(test[2] - np.median(targets)).mean()
    best = error(40, 8)
    assert best < 0.9 * error(40, 1)
    assert best < 0.5 * error(4, 8)
    assert best < 0.35 * constant


def test_fewer_points_than_pieces() -> None:
    fit = fit_regression([[0.0], [1.0]], [[1.0], [0.0]], [1.0, 1.0], ridge=1e-6)
    assert fit.divergence.pieces == 2
    assert fit.objective < 1e-3
    equal = fit_regression(np.ones((3, 2)), np.ones((3, 2)), [0.0, 1.0, 2.0])
    assert equal.divergence.pieces == 1
    assert equal.objective == pytest.approx(5 / 3)


def test_same_result_again() -> None:
    x, y, targets = pairs(300, 2)
    one, two = (fit_regression(x, y, targets, n_pieces=10) for _ in range(2))
    assert torch.equal(one.divergence.slopes, two.divergence.slopes)


def test_bad_input() -> None:
    x = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"targets of fit_regression must be at least 0\. Got -2 instead"):
        fit_regression(x, x, [0.0, -2.0, 1.0])
    with pytest.raises(ValueError, match=r"targets of fit_regression must be of shape \(3,\)"):
        fit_regression(x, x, [0.0])
    with pytest.raises(ValueError, match=r"second of fit_regression must be of shape \(n, 2\)"):
        fit_regression(x, x[:, :1], [0.0] * 3)
    with pytest.raises(ValueError, match=r"second of fit_regression must be of 3 rows like first\. Got 2 rows"):
        fit_regression(x, x[:2], [0.0] * 3)
    with pytest.raises(ValueError, match=r"targets of fit_regression must be finite\. Got targets\[1\] = nan"):
        fit_regression(x, x, [0.0, float("nan"), 1.0])
    with pytest.raises(ValueError, match="ridge of fit_regression must be a finite number above zero"):
        fit_regression(x, x, [0.0] * 3, ridge=0.0)
