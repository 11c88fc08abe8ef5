"""PBDL from triplets: the optimum, drawn triplets, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog

from askew.pbdl import PiecewiseFit, fit_triplets
from askew.pbdl.triplets import _draw

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def problem(n: int, dim: int, m: int, noise: float, seed: int = 0) -> tuple[Floats, Integers]:
    """Points and triplets that a weighted distance made; a part of them is turned around."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, dim))
    triplets = np.array([generator.permutation(n)[:3] for _ in range(m)])
    weights = np.arange(dim) + 0.2
    anchor, near, far = (x[triplets[:, k]] for k in range(3))
    wrong = (weights * (anchor - near) ** 2).sum(1) > (weights * (anchor - far) ** 2).sum(1)
    wrong ^= generator.random(m) < noise
    triplets[wrong] = triplets[wrong][:, [0, 2, 1]]
    return x, triplets


def full_program(x: Floats, triplets: Integers, penalty: float) -> float:
    """All constraints at once, row by row: z, a+, a-, losses, L."""
    (n, dim), m = x.shape, len(triplets)
    size = n + 2 * n * dim + m + 1

    def piece(j: int, point: Floats) -> Floats:
        row = np.zeros(size)
        row[j] = 1
        row[n + j * dim : n + (j + 1) * dim] = point - x[j]
        row[n + (n + j) * dim : n + (n + j + 1) * dim] = x[j] - point
        return row

    rows, right = [], []
    for t, (anchor, near, far) in enumerate(triplets):
        row = piece(far, x[anchor]) - piece(near, x[anchor])
        row[n + 2 * n * dim + t] = -1
        rows.append(row)
        right.append(-1.0)
    for i in range(n):
        row = np.zeros(size)
        row[n + i * dim : n + (i + 1) * dim] = row[n + (n + i) * dim : n + (n + i + 1) * dim] = 1
        row[-1] = -1
        rows.append(row)
        right.append(0.0)
        for j in range(n):
            rows.append(piece(j, x[i]) - piece(i, x[i]))
            right.append(0.0)
    cost = np.r_[np.zeros(n + 2 * n * dim), np.full(m, 1 / m), penalty / np.sqrt(m)]
    bounds = [(None, None)] * n + [(0, None)] * (size - n)
    return float(linprog(cost, np.array(rows), np.array(right), bounds=bounds).fun)


def reference(x: Floats, triplets: Integers, penalty: float) -> float:
    """The optimum by a generic solver."""
    cvxpy = pytest.importorskip("cvxpy")
    (n, dim), m = x.shape, len(triplets)
    z, a, bound = cvxpy.Variable(n), cvxpy.Variable((n, dim)), cvxpy.Variable()

    def divergence(i: int, j: int) -> object:
        return z[i] - z[j] - a[j] @ (x[i] - x[j])

    losses = [cvxpy.pos(1 + divergence(i, j) - divergence(i, k)) for i, j, k in triplets]
    constraints = [divergence(i, j) >= 0 for i in range(n) for j in range(n) if i != j]
    constraints += [cvxpy.norm1(a[i]) <= bound for i in range(n)]
    goal = cvxpy.sum(cvxpy.hstack(losses)) / m + penalty * bound / np.sqrt(m)
    return float(cvxpy.Problem(cvxpy.Minimize(goal), constraints).solve(solver="CLARABEL"))


def objective(fit: PiecewiseFit, x: Floats, triplets: Integers) -> float:
    points = torch.from_numpy(x)
    matrix = fit.divergence.pairwise(points, points).detach().numpy()
    anchor, near, far = triplets.T
    bound = fit.divergence.slopes.detach().abs().sum(1).max()
    losses = np.maximum(0, 1 + matrix[anchor, near] - matrix[anchor, far])
    return float(losses.mean() + fit.penalty * bound / np.sqrt(len(triplets)))


@pytest.mark.parametrize(
    ("n", "dim", "m", "penalty", "noise"),
    [(12, 2, 50, 0.5, 0.0), (12, 2, 50, 0.05, 0.2), (18, 3, 80, 0.5, 0.2), (18, 3, 80, 0.05, 0.0)],
)
def test_optimum_is_that_of_generic_solvers(n: int, dim: int, m: int, penalty: float, noise: float) -> None:
    x, triplets = problem(n, dim, m, noise)
    fit = fit_triplets(x, triplets, penalty=penalty, tolerance=1e-6)
    assert fit.converged
    assert fit.objective == pytest.approx(full_program(x, triplets, penalty), abs=2e-6)
    assert fit.objective == pytest.approx(reference(x, triplets, penalty), abs=5e-6)
    assert fit.objective == pytest.approx(objective(fit, x, triplets), abs=1e-9)


def test_most_constraints_are_never_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, triplets = problem(60, 2, 150, 0.1)
    sizes = []

    def counted(cost: Floats, **rest: object) -> object:
        sizes.append(rest["A_ub"].shape[0] - len(triplets) - 60)  # type: ignore[attr-defined]
        return linprog(cost, **rest)

    monkeypatch.setattr("askew.pbdl.triplets.linprog", counted)
    fit = fit_triplets(x, triplets, penalty=0.1)
    assert fit.converged
    assert len(sizes) == fit.iterations > 1
    assert sizes == sorted(sizes)
    assert sizes[-1] < 60 * 59 / 2


def test_gap_is_reported() -> None:
    x, triplets = problem(40, 2, 120, 0.1)
    short = fit_triplets(x, triplets, penalty=0.1, tolerance=1e-6, max_iterations=1)
    assert not short.converged
    assert short.iterations == 1
    assert short.objective == pytest.approx(objective(short, x, triplets), abs=1e-9)
    assert fit_triplets(x, triplets, penalty=0.1, tolerance=1e-6).objective < short.objective


def test_nothing_is_learned_under_a_high_penalty() -> None:
    x, triplets = problem(15, 2, 40, 0.0)
    fit = fit_triplets(x, triplets, penalty=1e4)
    assert fit.objective == pytest.approx(1.0)
    assert fit.divergence.slopes.abs().max() == 0


def test_labels() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(80, 3))
    labels = np.where(x[:, 0] > 0, "right", "left")
    fit = fit_triplets(x, labels=labels, n_triplets=200, max_points=30)
    assert fit.divergence.pieces == 30
    assert fit.scores[fit.penalty] == max(fit.scores.values()) > 0.75
    test = generator.normal(size=(100, 3))
    points = torch.from_numpy(x)
    matrix = fit.divergence.pairwise(torch.from_numpy(test), points).detach().numpy()
    same = np.where(test[:, 0] > 0, "right", "left")[:, None] == labels
    order = (matrix[:, :, None] < matrix[:, None]) + 0.5 * (matrix[:, :, None] == matrix[:, None])
    wanted = same[:, :, None] & ~same[:, None]
    assert order[wanted].mean() > 0.8
    again = fit_triplets(x, labels=labels, penalty=fit.penalty, n_triplets=200, max_points=30)
    other = fit_triplets(x, labels=labels, penalty=fit.penalty, n_triplets=200, max_points=30, seed=1)
    # The triplets are drawn before the folds, so that a given penalty learns from the same ones.
    assert torch.equal(again.divergence.slopes, fit.divergence.slopes)
    assert not torch.equal(other.divergence.slopes, fit.divergence.slopes)


def test_drawn_triplets_are_of_the_right_classes() -> None:
    classes = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [20, 5, 1]))
    anchor, near, far = _draw(classes, 3000, np.random.default_rng(0)).T
    assert (classes[anchor] == classes[near]).all()
    assert (anchor != near).all()
    assert (classes[anchor] != classes[far]).all()
    assert len(np.unique(near)) == 25
    assert len(np.unique(far)) == 26


def test_equal_rows_share_a_piece() -> None:
    x, triplets = problem(12, 2, 50, 0.0)
    doubled = np.r_[x, x]
    shifted = triplets + 12 * np.random.default_rng(0).integers(0, 2, triplets.shape)
    one = fit_triplets(x, triplets, penalty=0.1, tolerance=1e-7)
    other = fit_triplets(doubled, shifted, penalty=0.1, tolerance=1e-7)
    assert other.divergence.pieces == len(np.unique(triplets))
    assert other.objective == pytest.approx(one.objective, abs=2e-7)


def test_bad_input() -> None:
    x = np.random.default_rng(0).normal(size=(5, 2))
    with pytest.raises(
        ValueError, match=r"triplets and labels of fit_triplets must be one given, the other not\. Got both"
    ):
        fit_triplets(x, [[0, 1, 2]], [0, 0, 0, 1, 1])
    with pytest.raises(ValueError, match="Got neither"):
        fit_triplets(x)
    with pytest.raises(
        ValueError, match=r"triplets of fit_triplets must be of shape \(m, 3\), m above 0\. Got \(1, 2\)"
    ):
        fit_triplets(x, [[0, 1]])
    with pytest.raises(TypeError, match=r"triplets of fit_triplets must be integers\. Got float64"):
        fit_triplets(x, [[0.0, 1.0, 2.0]])
    with pytest.raises(ValueError, match=r"row numbers from 0 to 4\. Got 7"):
        fit_triplets(x, torch.tensor([[0, 1, 7]]))
    with pytest.raises(ValueError, match="labels of fit_triplets must be of at least two classes"):
        fit_triplets(x, labels=[0] * 5)
    with pytest.raises(
        ValueError, match=r"such that some class has two rows and another has one.* Got 5 rows of 5 classes"
    ):
        fit_triplets(x, labels=range(5))
    with pytest.raises(ValueError, match=r"Got 1 triplets instead\. Give a penalty instead"):
        fit_triplets(x, [[0, 1, 2]])
    with pytest.raises(ValueError, match=r"x of fit_triplets must be finite"):
        fit_triplets(x * np.nan, [[0, 1, 2]])
