"""PBDL from classes: the optimum, cross-validation, duplicates, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from askew.pbdl import PiecewiseFit, fit_pairs
from askew.pbdl.pairs import _clip_columns, _LeastSquares

Floats = NDArray[np.float64]


def reference(x: Floats, labels: NDArray[Any], penalty: float) -> float:
    """The optimum by a generic solver, one piece for each row."""
    cvxpy = pytest.importorskip("cvxpy")
    n, ones = len(x), np.ones((1, len(x)))
    z, a = cvxpy.Variable((n, 1)), cvxpy.Variable(x.shape)
    # D_ij = z_i - <a_j, x_i> - (z_j - <a_j, x_j>)
    at_zero = z - cvxpy.sum(cvxpy.multiply(a, x), axis=1, keepdims=True)
    divergences = z @ ones - x @ a.T - (at_zero @ ones).T
    similar = labels[:, None] == labels
    loss = cvxpy.sum(divergences[similar]) + cvxpy.sum(cvxpy.pos(2 - divergences[~similar]))
    slopes = cvxpy.sum(cvxpy.max(cvxpy.abs(a), axis=0))
    problem = cvxpy.Problem(cvxpy.Minimize(loss + penalty * slopes), [divergences >= 0])
    return float(problem.solve(solver="CLARABEL"))


def objective(fit: PiecewiseFit, x: Floats, labels: NDArray[Any]) -> float:
    """The objective at the rows, from the divergence alone."""
    points = torch.from_numpy(x)
    matrix = fit.divergence.pairwise(points, points).detach().numpy()
    similar = labels[:, None] == labels
    loss = matrix[similar].sum() + np.maximum(0, 2 - matrix)[~similar].sum()
    return float(loss + fit.penalty * fit.divergence.slopes.detach().abs().amax(0).sum())


def blobs(n: int, dim: int, seed: int = 0) -> tuple[Floats, NDArray[np.int64]]:
    """Three overlapping classes, one of them on both sides of another."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, n)
    x = generator.normal(size=(n, dim))
    x[:, 0] += np.where(labels == 0, 3.0 * generator.choice([-1, 1], n), 0.0)
    x[:, -1] += 2.0 * (labels == 2)
    return x, labels


@pytest.mark.parametrize(
    ("n", "dim", "part", "noise"),
    [(12, 2, 1.0, False), (12, 2, 0.01, True), (16, 3, 1.0, True), (16, 3, 0.1, False), (20, 2, 0.1, True)],
)
def test_optimum_is_that_of_a_generic_solver(n: int, dim: int, part: float, noise: bool) -> None:
    x, labels = blobs(n, dim)
    if noise:
        labels = np.random.default_rng(1).integers(0, 2, n)
    fit = fit_pairs(x, labels, penalty=part * n, tolerance=1e-9, max_iterations=4000)
    best = reference(x, labels, fit.penalty)
    # What is returned obeys all constraints, so that it can only be above.
    assert best * (1 - 1e-6) <= fit.objective <= best * (1 + 1e-3)
    assert fit.objective == pytest.approx(objective(fit, x, labels), rel=1e-9)


def test_high_penalty_leaves_nothing() -> None:
    x, labels = blobs(15, 2)
    fit = fit_pairs(x, labels, penalty=1e6)
    assert fit.converged
    assert fit.objective == pytest.approx(2 * (labels[:, None] != labels).sum(), rel=1e-9)


def test_equal_rows_share_a_piece() -> None:
    x, labels = blobs(20, 2)
    rows = np.r_[np.arange(20), np.arange(7), np.arange(3)]
    fit = fit_pairs(x[rows], labels[rows], penalty=3.0)
    assert fit.divergence.pieces == 20
    assert fit.objective == pytest.approx(objective(fit, x[rows], labels[rows]), rel=1e-9)
    # One point of two classes: these pairs pay the whole margin, whatever is learned.
    mixed = fit_pairs([[0.0], [0.0], [4.0]], [0, 1, 1], penalty=1e-3, tolerance=1e-8)
    assert mixed.objective >= 4.0
    assert torch.isfinite(mixed.divergence.slopes).all()


def test_all_rows_equal() -> None:
    fit = fit_pairs(np.ones((6, 2)), [0, 0, 0, 1, 1, 1])
    assert fit.divergence.pieces == 1
    assert fit.objective == pytest.approx(2 * 18)


def test_learns_what_the_euclidean_distance_cannot_see() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 4))
    x[:, 1:] *= 3
    labels = np.digitize(x[:, 0], [-0.4, 0.4])
    test = generator.normal(size=(200, 4))
    test[:, 1:] *= 3
    same = np.digitize(test[:, 0], [-0.4, 0.4])[:, None] == labels
    fit = fit_pairs(x, labels)
    matrix = fit.divergence.pairwise(torch.from_numpy(test), torch.from_numpy(x)).detach().numpy()
    right = (matrix < 1) == same
    plain = np.square(test[:, None] - x).sum(-1)
    euclidean = (plain < np.quantile(plain, same.mean())) == same
    assert right.mean() > 0.75 > 0.65 > euclidean.mean()
    assert len(fit.scores) == 7
    assert fit.scores[fit.penalty] == max(fit.scores.values())
    assert (matrix >= 0).all()


def test_something_is_learned_where_most_pairs_are_similar() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 2))
    labels = (generator.random(60) < 0.1 + 0.2 * (x[:, 0] > 0)).astype(int)
    fit = fit_pairs(x, labels)
    assert fit.scores[6e4] == 0.5  # a divergence of 0 everywhere: all similar pairs are right, the others wrong
    assert fit.scores[fit.penalty] > 0.5


def test_units_and_origin_do_not_matter() -> None:
    x, labels = blobs(40, 3)
    one = fit_pairs(x, labels, penalty=4.0)
    other = fit_pairs(100 * x + 1000, labels, penalty=400.0)
    assert other.objective == pytest.approx(one.objective, rel=1e-6)


def test_seed_and_number_of_rows() -> None:
    x, labels = blobs(80, 2)
    first, again, other = (fit_pairs(x, labels, penalty=5.0, max_points=30, seed=seed) for seed in (1, 1, 2))
    assert first.divergence.pieces == 30
    assert torch.equal(first.divergence.slopes, again.divergence.slopes)
    assert not torch.equal(first.divergence.slopes, other.divergence.slopes)
    assert not fit_pairs(x, labels, penalty=5.0, max_iterations=20).converged


def test_least_squares_is_the_least() -> None:
    generator = np.random.default_rng(0)
    n, dim = 7, 2
    x = generator.normal(size=(n, dim))
    wanted, slopes = generator.normal(size=(n, n)), generator.normal(size=(n, dim))
    squares = _LeastSquares(x)
    z, a = squares.solve(wanted, slopes)
    rows, right = [], []
    for i in range(n):
        for j in range(n):
            row = np.zeros(n + n * dim)
            row[i] += 1
            row[j] -= 1
            row[n + j * dim : n + (j + 1) * dim] = x[j] - x[i]
            rows.append(row)
            right.append(wanted[i, j])
    for k in range(n * dim):
        rows.append(np.sqrt(squares.weight) * np.eye(n + n * dim)[n + k])
        right.append(np.sqrt(squares.weight) * slopes.reshape(-1)[k])
    best = np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0]
    np.testing.assert_allclose(z - z.mean(), best[:n] - best[:n].mean(), atol=1e-10)
    np.testing.assert_allclose(a.reshape(-1), best[n:], atol=1e-10)


def test_clipped_columns_are_the_nearest() -> None:
    generator = np.random.default_rng(0)
    values, radius = generator.normal(size=(9, 4)), 1.3
    values[:, 3] *= 0.01
    clipped = _clip_columns(values, radius)

    def cost(p: Floats) -> float:
        return float(radius * np.abs(p).max(0).sum() + np.square(p - values).sum() / 2)

    assert (clipped[:, 3] == 0).all()
    assert (np.abs(clipped[:, :3]).max(0) > 0).all()
    for _ in range(200):
        assert cost(clipped) <= cost(clipped + 1e-3 * generator.normal(size=values.shape))
        assert cost(clipped) <= cost(np.clip(clipped, *np.sort(generator.normal(size=2))))


def test_bad_input() -> None:
    x = np.zeros((4, 2))
    with pytest.raises(ValueError, match="labels of fit_pairs must be of at least two classes"):
        fit_pairs(x, [1, 1, 1, 1])
    with pytest.raises(ValueError, match=r"x of fit_pairs must be finite\. Got x\[0, 0\] = inf"):
        fit_pairs(x + np.inf, [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"labels of fit_pairs must be of shape \(4,\)"):
        fit_pairs(x, [0, 1])
    with pytest.raises(ValueError, match=r"penalty of fit_pairs must be a finite number above zero\. Got -1"):
        fit_pairs(x, [0, 1, 0, 1], penalty=-1)
    with pytest.raises(ValueError, match=r"folds of fit_pairs must be at least 2\. Got 1 instead\. Without"):
        fit_pairs(x, [0, 1, 0, 1], folds=1)
    with pytest.raises(ValueError, match=r"max_points of fit_pairs must be at least 2\. Got 1"):
        fit_pairs(x, [0, 1, 0, 1], max_points=1)
