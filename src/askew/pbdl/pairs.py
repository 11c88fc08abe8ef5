"""PBDL from class labels: every pair of points is similar or dissimilar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from askew import checks
from askew.pbdl.pieces import Array, Integers, Pieces, PiecewiseFit, check_labels, check_rows, folds_of, stratified

# The divergence that dissimilar pairs should have at least.
MARGIN = 2.0

# Penalties to try, times the number of points.
PENALTIES = (1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3)

# Weight of the agreement of the copies of the slopes relative to that of the divergences, per point: measured.
SLOPE_WEIGHT = 0.1
# Small steps find the objective, large ones convexity: measured. Up to iteration BALANCED_UNTIL the step is halved or
# doubled every BALANCE_EVERY iterations if one residual is IMBALANCE times the other; later it grows by these factors.
FIRST_STEP = 1.0
BALANCE_EVERY = 100
BALANCED_UNTIL = 400
IMBALANCE = 10.0
GROWTH = {500: 3.0, 1000: 3.0}
RELAXATION = 1.6
CHECK_EVERY = 20

# Iterations for each penalty in cross-validation, which start at the solution of the one before it, and rows.
TRIAL_STEPS = 120
TRIAL_POINTS = 240


@dataclass(frozen=True)
class _Pairs:
    """Distinct points, and for each two of them the number of pairs of rows of the same and of different classes."""

    points: Array
    similar: Array
    dissimilar: Array

    @staticmethod
    def of(x: Array, classes: Integers) -> _Pairs:
        points, place = np.unique(x, axis=0, return_inverse=True)
        counts = np.zeros((len(points), int(classes.max()) + 1))
        np.add.at(counts, (place.reshape(-1), classes), 1.0)
        similar = counts @ counts.T
        total = counts.sum(1)
        return _Pairs(points, similar, np.outer(total, total) - similar)

    def objective(self, pieces: Pieces, penalty: float) -> float:
        divergences = pieces.pairwise(self.points, self.points)
        loss = (self.similar * divergences).sum() + (self.dissimilar * np.maximum(0, MARGIN - divergences)).sum()
        return float(loss + penalty * np.abs(pieces.slopes).max(0).sum())


class _LeastSquares:
    """Pieces whose divergences and slopes come nearest to given ones.

    min_{z, a} sum_ij (z_i - z_j - <a_j, x_i - x_j> - q_ij)^2 + w sum_j |a_j - p_j|^2, factorised once: eliminating
    a_j, which depends on z alone, leaves one K x K system for z.
    """

    def __init__(self, x: Array) -> None:
        n, dim = x.shape
        self.x = x
        self.weight = SLOPE_WEIGHT * n * (float(x.var(0).mean()) or 1.0)
        total = x.sum(0)
        # sum_i (x_i - x_j), and the second moments around x_j.
        self.sums = total - n * x
        cross = x[:, :, None] * total
        moments = x.T @ x - cross - cross.transpose(0, 2, 1) + n * x[:, :, None] * x[:, None]
        self.inverse = np.linalg.inv(moments + self.weight * np.eye(dim))
        factor = np.linalg.cholesky(self.inverse)
        columns = np.einsum("id,jde->ije", x, factor) - np.einsum("jd,jde->je", x, factor)
        columns[np.arange(n), np.arange(n)] -= np.einsum("jd,jde->je", self.sums, factor)
        columns = columns.reshape(n, -1)
        # The heights alone give 2 n I - 2; adding 2 fixes their mean, on which no divergence depends.
        self.heights = np.linalg.inv(2 * n * np.eye(n) - columns @ columns.T)

    def solve(self, divergences: Array, slopes: Array) -> tuple[Array, Array]:
        x, sums = self.x, self.sums
        columns = divergences.sum(0)
        right = columns[:, None] * x - divergences.T @ x + self.weight * slopes
        part = np.einsum("jde,je->jd", self.inverse, right)
        cross = (x * part).sum() - x @ part.sum(0) + (sums * part).sum(1)
        z: Array = self.heights @ (divergences.sum(1) - columns - cross)
        back = x * z.sum() - x.T @ z + sums * z[:, None]
        return z, np.einsum("jde,je->jd", self.inverse, right - back)


def _clip_columns(values: Array, radius: float) -> Array:
    """Return argmin_p radius sum_d max_i |p_id| + |p - values|^2 / 2: each column clipped at one level."""
    ordered = np.sort(np.abs(values), axis=0)[::-1]
    excess = np.cumsum(ordered, axis=0) - radius
    count = np.arange(1, len(values) + 1)[:, None]
    above = np.maximum((ordered * count > excess).sum(0), 1)
    level = np.maximum(excess[above - 1, np.arange(values.shape[1])] / above, 0.0)
    level[excess[-1] <= 0] = 0.0
    return np.asarray(np.clip(values, -level, level))


class _Splitting:
    """ADMM with copies S_ij = D(x_i, x_j) and P = slopes that carry the loss and the penalty."""

    def __init__(self, pairs: _Pairs) -> None:
        self.pairs = pairs
        self.squares = _LeastSquares(pairs.points)
        # The divergence of a point from itself is 0 whatever the pieces.
        self.similar, self.dissimilar = pairs.similar.copy(), pairs.dissimilar.copy()
        np.fill_diagonal(self.similar, 0.0)
        np.fill_diagonal(self.dissimilar, 0.0)
        self.copy = np.where(self.dissimilar > self.similar, MARGIN, 0.0)
        self.copy_dual = np.zeros_like(self.copy)
        self.slopes = np.zeros_like(pairs.points)
        self.slopes_dual = np.zeros_like(pairs.points)
        self.step = FIRST_STEP

    def solve(self, penalty: float, tolerance: float, max_iterations: int) -> tuple[Pieces, float, int, bool]:
        """Return the best pieces, their objective, iterations and convergence; continues from the call before."""
        x, weight, root = self.squares.x, self.squares.weight, np.sqrt(self.squares.weight)
        self._rescale(FIRST_STEP)
        converged = False
        for iteration in range(1, max_iterations + 1):
            z, a = self.squares.solve(self.copy - self.copy_dual, self.slopes - self.slopes_dual)
            divergences = z[:, None] - (z - (a * x).sum(1)) - x @ a.T
            old_copy, old_slopes = self.copy, self.slopes
            target = RELAXATION * divergences + (1 - RELAXATION) * old_copy + self.copy_dual
            # prox of similar D + dissimilar max(0, margin - D) over D >= 0
            self.copy = np.maximum(np.maximum(target - self.high, np.minimum(target - self.low, MARGIN)), 0.0)
            self.copy_dual = target - self.copy
            target_slopes = RELAXATION * a + (1 - RELAXATION) * old_slopes + self.slopes_dual
            self.slopes = _clip_columns(target_slopes, penalty / (self.step * weight))
            self.slopes_dual = target_slopes - self.slopes
            if iteration % CHECK_EVERY:
                continue
            size = np.hypot(np.linalg.norm(self.copy), root * np.linalg.norm(self.slopes))
            gap = np.hypot(np.linalg.norm(divergences - self.copy), root * np.linalg.norm(a - self.slopes))
            move = np.hypot(np.linalg.norm(self.copy - old_copy), root * np.linalg.norm(self.slopes - old_slopes))
            dual = np.hypot(np.linalg.norm(self.copy_dual), root * np.linalg.norm(self.slopes_dual))
            gap, move = gap / max(size, 1e-12), move / max(dual, 1e-12)
            converged = max(gap, move) <= tolerance
            if converged:
                break
            if iteration <= BALANCED_UNTIL and iteration % BALANCE_EVERY == 0:
                self._rescale(self.step * (2.0 if gap > IMBALANCE * move else 0.5 if move > IMBALANCE * gap else 1.0))
            self._rescale(self.step * GROWTH.get(iteration, 1.0))
        rated = [(self.pairs.objective(pieces, penalty), pieces) for pieces in Pieces(x, z, a).candidates()]
        objective, best = min(rated, key=lambda pair: pair[0])
        return best, objective, iteration, converged

    def _rescale(self, step: float) -> None:
        self.copy_dual *= self.step / step
        self.slopes_dual *= self.step / step
        self.step = step
        # Largest and smallest slope of the loss of a pair, in steps.
        self.high, self.low = self.similar / step, (self.similar - self.dissimilar) / step


def _cross_validated(x: Array, classes: Integers, folds: int, generator: np.random.Generator) -> dict[float, float]:
    """Return the accuracy on pairs of a held-out and another row for each penalty.

    Similar and dissimilar pairs weigh the same, else a divergence that is 0 everywhere wins where most are similar.
    """
    number = folds_of(classes, folds, generator)
    folds = int(number.max()) + 1  # no more than rows
    scores = dict.fromkeys(PENALTIES, 0.0)
    for fold in range(folds):
        known, held = number != fold, number == fold
        splitting = _Splitting(_Pairs.of(x[known], classes[known]))
        same = classes[held][:, None] == classes[known]
        for penalty in PENALTIES:
            pieces, *_ = splitting.solve(penalty * int(known.sum()), 0.0, TRIAL_STEPS)
            right = (pieces.pairwise(x[held], x[known]) < MARGIN / 2) == same
            shares = [right[kind].mean() for kind in (same, ~same) if kind.any()]
            scores[penalty] += float(np.mean(shares)) / folds
    return scores


def fit_pairs(
    x: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    penalty: float | None = None,
    *,
    max_points: int = 500,
    folds: int = 5,
    tolerance: float = 1e-4,
    max_iterations: int = 2000,
    seed: int = 0,
) -> PiecewiseFit:
    """Learn a max-affine divergence from classes: every ordered pair of rows is similar or dissimilar.

    min_{z, a} sum_{similar} D_ij + sum_{dissimilar} max(0, 2 - D_ij) + penalty sum_d max_i |a_id|, where
    D_ij = z_i - z_j - <a_j, x_i - x_j> >= 0, one piece for each distinct point. The problem is convex and solved by
    ADMM, in which all pieces are one least squares problem that is factorised once. Use it for labelled rows of one
    scale (standardise them first). An iteration costs O(K^2 dim) for K pieces, so at most ``max_points`` rows are used,
    sampled at random in the proportions of the classes.

    Parameters
    ----------
    x
        Points, ``(n, dim)``; equal rows share a piece.
    labels
        Classes, ``(n,)``, at least two; numbers or names.
    penalty
        Weight of the slopes. By default the one of n times 1e3, 1e2, ..., 1e-3 (n rows are used) under which most
        pairs of a held-out and another row are on the right side of D = 1, among at most 240 rows; similar and
        dissimilar pairs have the same weight.
    max_points, max_iterations
        Largest number of rows to use, and of iterations.
    folds, seed
        Number of folds of the cross-validation, and seed of the choice of rows and folds.
    tolerance
        Relative gap and relative move of the copies of D at which to stop.

    Examples
    --------
    >>> import torch
    >>> points = torch.tensor([[0.0], [0.1], [1.0], [1.1], [2.0], [2.1]])
    >>> fit = fit_pairs(points, ["a", "a", "b", "b", "c", "c"], penalty=0.01)
    >>> divergence = fit.divergence.float()
    >>> divergence.pairwise(points[:1], points) > 1  # similar pairs have 0, dissimilar ones 2 or more
    tensor([[False, False,  True,  True,  True,  True]])
    """
    owner = "fit_pairs"
    rows = check_rows(x, "x", owner)
    classes = check_labels(labels, owner, len(rows))
    if checks.check_size(max_points, f"max_points of {owner}") < 2:
        raise ValueError(checks.message(f"max_points of {owner}", "at least 2", max_points))
    checks.check_size(max_iterations, f"max_iterations of {owner}")
    checks.check_positive(tolerance, f"tolerance of {owner}")
    generator = np.random.default_rng(seed)
    if len(rows) > max_points:
        chosen = stratified(classes, max_points, generator)
        rows, classes = rows[chosen], classes[chosen]
    mean = rows.mean(0)
    rows = rows - mean  # no divergence depends on the origin; near the points it costs no digits
    scores: dict[float, float] = {}
    if penalty is None:
        trial = stratified(classes, TRIAL_POINTS, generator)
        per_point = _cross_validated(rows[trial], classes[trial], folds, generator)
        scores = {weight * len(rows): score for weight, score in per_point.items()}
        penalty = max(scores, key=lambda weight: scores[weight])
    checks.check_positive(penalty, f"penalty of {owner}")
    splitting = _Splitting(_Pairs.of(rows, classes))
    pieces, objective, iterations, converged = splitting.solve(penalty, tolerance, max_iterations)
    return PiecewiseFit(pieces.shifted(mean).divergence(), objective, penalty, iterations, converged, scores)
