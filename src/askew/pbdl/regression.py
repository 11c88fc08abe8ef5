"""PBDL from values: the divergence of each pair of points is given."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor

from askew import checks
from askew.pbdl.pieces import Array, Integers, Pieces, PiecewiseFit, check_numbers, check_rows, spread

RELAXATION = 1.6
CHECK_EVERY = 20
# Weight of convexity in an ADMM step relative to the curvature of the loss: measured.
STEP = 1.0
# Rows among which to look for the farthest points; more rows only add outliers.
MAX_CANDIDATES = 20_000


class _Problem:
    """Least squares with the pieces of both points of each pair fixed, solved by ADMM.

    min_{b, a} mean (e . w_i - e . w_j - target)^2 + ridge mean_k |a_k|^2 with e = (1, x), w_k = (b_k, a_k), i and j
    the pieces of x and y, and convexity between the centres: e_k . w_k >= e_k . w_l, e_k = (1, centre_k).
    """

    def __init__(self, centres: Array, ridge: float) -> None:
        count, dim = centres.shape
        self.centres, self.ridge = centres, ridge
        self.extended = np.c_[np.ones(count), centres]
        self.copy = np.zeros((count, count))
        self.dual = np.zeros((count, count))
        # C^T C of all constraints: piece k is the upper one in K - 1 of them and the lower one in K - 1.
        outer = self.extended[:, :, None] * self.extended[:, None]
        total = outer.sum(0)
        blocks = -outer[:, :, None] - outer.transpose(1, 0, 2)
        numbers = np.arange(count)
        blocks[numbers, :, numbers] = total + (count - 2) * outer
        size = count * (dim + 1)
        self.constraints = blocks.reshape(size, size)
        # The tiny weight fixes the common height of the pieces, on which no divergence depends.
        self.diagonal = np.tile(np.r_[1e-9, np.full(dim, ridge / count)], count)

    def design(self, x: Array, upper: Integers, lower: Integers) -> sparse.csr_array:
        """Return the matrix that gives D of all pairs from the pieces, ``(n, K (dim + 1))``."""
        width = x.shape[1] + 1
        entries = np.c_[np.ones(len(x)), x].reshape(-1)
        rows = np.repeat(np.arange(len(x)), width)
        places = [(number[:, None] * width + np.arange(width)).reshape(-1) for number in (upper, lower)]
        shape = len(x), len(self.diagonal)
        return sparse.csr_array((np.r_[entries, -entries], (np.r_[rows, rows], np.r_[places[0], places[1]])), shape)

    def solve(self, design: sparse.csr_array, targets: Array, tolerance: float, limit: int) -> tuple[Array, int, bool]:
        """Return the pieces as ``(K, dim + 1)``, the number of iterations and whether they converged."""
        count = len(self.centres)
        extended = self.extended
        gram = (design.T @ design).toarray() / len(targets)
        right = design.T @ targets / len(targets)
        step = STEP * max(float(np.trace(gram) / max(np.trace(self.constraints), 1e-300)), 1e-12)
        factor = cho_factor(gram + np.diag(self.diagonal) + step * self.constraints)
        for iteration in range(1, limit + 1):
            wanted = self.copy - self.dual
            pull = wanted.sum(1)[:, None] * extended - wanted.T @ extended
            w = cho_solve(factor, right + step * pull.reshape(-1)).reshape(count, -1)
            values = extended @ w.T
            excess = np.diag(values)[:, None] - values
            relaxed = RELAXATION * excess + (1 - RELAXATION) * self.copy + self.dual
            old, self.copy = self.copy, np.maximum(relaxed, 0.0)
            self.dual = relaxed - self.copy
            if iteration % CHECK_EVERY == 0:
                allowed = tolerance * np.linalg.norm(self.copy)
                if np.linalg.norm(excess - self.copy) <= allowed and np.linalg.norm(self.copy - old) <= allowed:
                    return w, iteration, True
        return w, limit, False

    def objective(self, predicted: Array, targets: Array, w: Array) -> float:
        return float(np.square(predicted - targets).mean() + self.ridge * np.square(w[:, 1:]).sum(1).mean())


def fit_regression(
    first: ArrayLike | Tensor,
    second: ArrayLike | Tensor,
    targets: ArrayLike | Tensor,
    *,
    n_pieces: int = 100,
    ridge: float = 1e-2,
    rounds: int = 8,
    tolerance: float = 1e-4,
    max_iterations: int = 200,
) -> PiecewiseFit:
    """Learn a max-affine divergence from its values at pairs of points.

    min mean (phi_i(x) - phi_j(x) - target)^2 + ridge mean_k |a_k|^2, where i and j are the pieces of x and y, and
    phi_k(c_k) >= phi_l(c_k) at the centres c_k of the pieces, which are farthest points of the data. In
    :class:`MaxAffine` i and j are the highest pieces at x and y, which is not convex. So they are fixed, first at the
    nearest centres, the convex problem is solved, the highest pieces are found again, and so on for some rounds
    (Magnani, Boyd 2009, Convex piecewise-linear fitting); the pieces with the smallest error of D itself are kept.
    A baseline: the number of pieces that a smooth divergence needs grows fast with ``dim``.

    Parameters
    ----------
    first, second
        Points x and y, ``(n, dim)`` each.
    targets
        Values of D(x, y), ``(n,)``, not negative.
    n_pieces
        Number of pieces, fewer if there are fewer distinct points.
    ridge
        Weight of the slopes for features of variance 1; other data are scaled to it by one common factor.
    rounds, max_iterations
        Number of convex problems, and largest number of iterations for each.
    tolerance
        Relative gap and relative move at which the solver stops.

    Examples
    --------
    >>> import torch
    >>> x, y = torch.rand(2, 500, 1, generator=torch.Generator().manual_seed(0))
    >>> targets = (x - y).square().sum(-1)
    >>> fit = fit_regression(x, y, targets, n_pieces=20, ridge=1e-6)
    >>> bool((fit.divergence.float()(x, y) - targets).abs().mean() < 0.02)
    True
    """
    owner = "fit_regression"
    x = check_rows(first, "first", owner)
    y = check_rows(second, "second", owner, x.shape[1])
    if len(x) != len(y):
        raise ValueError(checks.message(f"second of {owner}", f"of {len(x)} rows like first", f"{len(y)} rows"))
    values = check_numbers(targets, "targets", owner)
    if values.shape != (len(x),):
        must = f"of shape ({len(x)},), one for each row"
        raise ValueError(checks.message(f"targets of {owner}", must, values.shape))
    if (values < 0).any():
        hint = "A divergence has no negative values."
        raise ValueError(checks.message(f"targets of {owner}", "at least 0", f"{values.min():.6g}", hint))
    for name, number in {"ridge": ridge, "tolerance": tolerance}.items():
        checks.check_positive(number, f"{name} of {owner}")
    for name, count in {"n_pieces": n_pieces, "rounds": rounds, "max_iterations": max_iterations}.items():
        checks.check_size(count, f"{name} of {owner}")
    # The divergence does not depend on the origin, and the solver should not depend on the units.
    offset = (x.mean(0) + y.mean(0)) / 2
    scale = float(np.sqrt(np.mean([x.var(0), y.var(0)]))) or 1.0
    x, y = (x - offset) / scale, (y - offset) / scale
    points = np.concatenate([x, y])[:: max(1, 2 * len(x) // MAX_CANDIDATES)]
    centres = points[spread(points, n_pieces)]
    problem = _Problem(centres, ridge)
    # The nearest centre has the highest tangent of |x|^2 / 2.
    w = np.c_[-np.square(centres).sum(1) / 2, centres]
    upper, lower = _highest(x, w), _highest(y, w)
    solutions: list[tuple[float, Array, int, bool]] = []
    for _ in range(rounds):
        w, iterations, converged = problem.solve(problem.design(x, upper, lower), values, tolerance, max_iterations)
        old_upper, old_lower = upper, lower
        upper, lower = _highest(x, w), _highest(y, w)
        predicted = problem.design(x, upper, lower) @ w.reshape(-1)
        solutions.append((problem.objective(predicted, values, w), w, iterations, converged))
        if (upper == old_upper).all() and (lower == old_lower).all():
            break
    objective, w, iterations, converged = min(solutions, key=lambda solution: solution[0])
    heights = (problem.extended * w).sum(1)
    pieces = Pieces(centres * scale + offset, heights, w[:, 1:] / scale)
    return PiecewiseFit(pieces.divergence(), objective, ridge, iterations, converged)


def _highest(x: Array, w: Array) -> Integers:
    """Return the highest piece at each point, ``(n, dim), (K, dim + 1) -> (n,)``."""
    return np.asarray((x @ w[:, 1:].T + w[:, 0]).argmax(1))
