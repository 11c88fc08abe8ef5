"""PBDL from triplets: an anchor is nearer to one point than to another."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.optimize import linprog
from torch import Tensor

from askew import checks
from askew.pbdl.pieces import Array, Integers, Pieces, PiecewiseFit, check_labels, check_rows, folds_of, stratified

PENALTIES = (10.0, 2.0, 0.5, 0.1, 0.02)

# Triplets of each trial of the cross-validation; a linear program with all of them takes seconds.
TRIAL_TRIPLETS = 300
TRIAL_TOLERANCE = 3e-3
TRIAL_ITERATIONS = 2

# Convexity constraints between each point and its nearest ones at first, and added per row and column after a solution.
FIRST_CUTS = 8
MORE_CUTS = 5


class _Program:
    """The linear program over heights z, slopes a = a+ - a-, losses of triplets and the bound L of the slopes.

    It starts with convexity between near points and adds the constraints that a solution violates. Its value is a lower
    bound of the optimum, the objective of the pieces of any solution an upper bound.
    """

    def __init__(self, points: Array, triplets: Integers, penalty: float) -> None:
        count, dim = points.shape
        self.points, self.triplets, self.penalty = points, triplets, penalty
        anchor, near, far = triplets.T
        m = len(triplets)
        self.weight = penalty / np.sqrt(m)
        self.size = count + 2 * count * dim + m + 1
        # D(anchor, near) - D(anchor, far) - loss <= -1: the height of the anchor cancels.
        each = sparse.csr_array((-np.ones(m), (np.arange(m), self.size - 1 - m + np.arange(m))), (m, self.size))
        losses = self._piece(far, points[anchor]) - self._piece(near, points[anchor]) + each
        rows, columns = np.repeat(np.arange(count), 2 * dim), count + np.arange(2 * count * dim)
        columns = columns.reshape(2, count, dim).transpose(1, 0, 2).reshape(-1)
        sums = sparse.csr_array((np.ones(2 * count * dim), (rows, columns)), (count, self.size))
        bound = sparse.csr_array((-np.ones(count), (np.arange(count), np.full(count, self.size - 1))), sums.shape)
        self.matrix = sparse.vstack([losses, sums + bound])
        self.right = np.r_[-np.ones(m), np.zeros(count)]
        self.cost = np.r_[np.zeros(count + 2 * count * dim), np.full(m, 1 / m), self.weight]
        self.bounds = np.tile([0.0, np.inf], (self.size, 1))
        self.bounds[:count, 0] = -np.inf
        self.bounds[0] = 0.0  # no divergence depends on the common height of the pieces

    def _piece(self, pieces: Integers, x: Array) -> sparse.csr_array:
        """Return the matrix that maps the variables to the values of ``pieces`` at ``x``: z_j + <a_j, x - x_j>."""
        count, dim = self.points.shape
        row = np.arange(len(pieces))
        steps = (x - self.points[pieces]).reshape(-1)
        column = (count + pieces[:, None] * dim + np.arange(dim)).reshape(-1)
        values = np.r_[np.ones(len(pieces)), steps, -steps]
        places = np.r_[row, np.repeat(row, dim), np.repeat(row, dim)], np.r_[pieces, column, column + count * dim]
        return sparse.csr_array((values, places), (len(pieces), self.size))

    def objective(self, pieces: Pieces) -> float:
        values = pieces.values(self.points)
        best = values.argmax(1)
        anchor, near, far = self.triplets.T
        # D(anchor, near) - D(anchor, far), as the maximum at the anchor cancels.
        difference = values[anchor, best[far]] - values[anchor, best[near]]
        return float(np.maximum(0, 1 + difference).mean() + self.weight * np.abs(pieces.slopes).sum(1).max())

    def solve(self, tolerance: float, max_iterations: int) -> tuple[Pieces, float, int, bool]:
        """Return the best pieces, their objective, the number of linear programs and whether the gap was closed."""
        points, (count, dim) = self.points, self.points.shape
        squares = np.square(points).sum(1)
        order = np.argsort(squares[:, None] + squares - 2 * points @ points.T, axis=1)[:, : FIRST_CUTS + 1]
        cuts = np.zeros((count, count), dtype=bool)
        cuts[np.arange(count)[:, None], order] = True
        cuts |= cuts.T
        np.fill_diagonal(cuts, False)
        best, upper = Pieces(points, np.zeros(count), np.zeros((count, dim))), 1.0
        for iteration in range(1, max_iterations + 1):
            i, j = np.nonzero(cuts)
            # z_i >= z_j + <a_j, x_i - x_j>
            convex = self._piece(j, points[i]) - self._piece(i, points[i])
            matrix, right = sparse.vstack([self.matrix, convex]), np.r_[self.right, np.zeros(len(i))]
            result = linprog(self.cost, A_ub=matrix, b_ub=right, bounds=self.bounds, method="highs")
            if result.x is None:
                raise RuntimeError(f"the linear program of fit_triplets was not solved: {result.message}")
            z, (plus, minus) = result.x[:count], result.x[count : count + 2 * count * dim].reshape(2, count, dim)
            pieces = Pieces(points, z, plus - minus)
            rated = [(self.objective(candidate), candidate) for candidate in [best, *pieces.candidates()]]
            upper, best = min(rated, key=lambda pair: pair[0])
            if upper - result.fun <= tolerance:
                return best, upper, iteration, True
            # How far piece j is above phi at x_i.
            excess = pieces.values(points) - z[:, None]
            added = np.zeros_like(cuts)
            added[np.argsort(-excess, axis=0)[:MORE_CUTS], np.arange(count)] = True
            added[np.arange(count)[:, None], np.argsort(-excess, axis=1)[:, :MORE_CUTS]] = True
            added &= (excess > 1e-7) & ~cuts
            if not added.any():
                return best, upper, iteration, False
            cuts |= added
        return best, upper, max_iterations, False


def _draw(classes: Integers, size: int, generator: np.random.Generator) -> Integers:
    """Return triplets of an anchor, another row of its class and a row of another class, ``(size, 3)``."""
    counts = np.bincount(classes)
    anchors = generator.choice(np.flatnonzero(counts[classes] > 1), size)
    order = np.argsort(classes, kind="stable")
    place = np.empty(len(classes), dtype=np.int64)
    place[order] = np.arange(len(classes))
    count = counts[classes[anchors]]
    start = (np.cumsum(counts) - counts)[classes[anchors]]
    # The rows of a class are contiguous in `order`: step on by 1 to count - 1 places within it, or past its end.
    near = start + (place[anchors] - start + generator.integers(1, count)) % count
    far = (start + count + generator.integers(0, len(classes) - count)) % len(classes)
    return np.stack([anchors, order[near], order[far]], 1).astype(np.int64)


def _cross_validated(
    points: Array, triplets: Integers, folds: int, generator: np.random.Generator
) -> dict[float, float]:
    """Return the share of triplets of held-out anchors in the right order for each penalty."""
    number = folds_of(np.zeros(len(points), dtype=np.int64), folds, generator, "fit_triplets")
    folds = int(number.max()) + 1  # no more than points
    scores = dict.fromkeys(PENALTIES, 0.0)
    for fold in range(folds):
        held = number[triplets] == fold
        known = triplets[~held.any(1)][:TRIAL_TRIPLETS]
        asked = triplets[held[:, 0] & ~held[:, 1:].any(1)]
        if len(known) == 0 or len(asked) == 0:
            what = "triplets of fit_triplets"
            must = "so many that each fold has some with and some without points that are held out"
            raise ValueError(checks.message(what, must, f"{len(triplets)} triplets", "Give a penalty instead."))
        used, place = np.unique(known, return_inverse=True)
        for penalty in PENALTIES:
            program = _Program(points[used], place.reshape(-1, 3), penalty)
            pieces, *_ = program.solve(TRIAL_TOLERANCE, TRIAL_ITERATIONS)
            anchor, near, far = asked.T
            values = pieces.values(points)
            best = values.argmax(1)
            # Positive if the near point is nearer; a tie is half right.
            lead = values[anchor, best[near]] - values[anchor, best[far]]
            scores[penalty] += float(((lead > 0) + 0.5 * (lead == 0)).mean()) / folds
    return scores


def fit_triplets(
    x: ArrayLike | Tensor,
    triplets: ArrayLike | Tensor | None = None,
    labels: ArrayLike | Tensor | None = None,
    penalty: float | None = None,
    *,
    n_triplets: int = 2000,
    max_points: int = 100,
    folds: int = 3,
    tolerance: float = 1e-3,
    max_iterations: int = 30,
    seed: int = 0,
) -> PiecewiseFit:
    """Learn a max-affine divergence from triplets: D(anchor, near) + 1 <= D(anchor, far).

    min_{z, a, L} mean_t max(0, 1 + D(anchor_t, near_t) - D(anchor_t, far_t)) + penalty L / sqrt(m) over m triplets,
    where D_ij = z_i - z_j - <a_j, x_i - x_j> >= 0 and sum_d |a_id| <= L, one piece for each distinct point. A linear
    program, solved with the violated ones of the K^2 convexity constraints only. Use it for comparisons; with classes,
    :func:`fit_pairs` uses all pairs and is faster. It takes many seconds for 100 points and minutes for a few hundred.
    Standardise the points first.

    Parameters
    ----------
    x
        Points, ``(n, dim)``; equal rows share a piece.
    triplets
        Row numbers of anchor, near and far point, ``(m, 3)``. Every row that occurs gets a piece.
    labels
        Classes instead of triplets, ``(n,)``, at least two; ``n_triplets`` are drawn at random.
    penalty
        Weight of the bound of the slopes. By default the one of 10, 2, 0.5, 0.1 and 0.02 under which most triplets of
        held-out anchors are in the right order, learned from at most 300 triplets each.
    n_triplets, max_points
        Triplets to draw from labels, and the largest number of rows to draw them from, in the proportions of the
        classes.
    folds, seed
        Number of folds of the cross-validation, and seed of the choice of rows, triplets and folds.
    tolerance, max_iterations
        Gap between the bounds of the optimum, which is in [0, 1], at which to stop, and largest number of programs.

    Examples
    --------
    >>> points = [[0.0], [0.5], [3.0], [4.0]]
    >>> fit = fit_triplets(points, [[0, 1, 2], [1, 0, 3], [2, 3, 1], [3, 2, 0]], penalty=0.01)
    >>> fit.converged, fit.objective < 0.1
    (True, True)
    """
    owner = "fit_triplets"
    rows = check_rows(x, "x", owner)
    checks.check_size(max_iterations, f"max_iterations of {owner}")
    checks.check_positive(tolerance, f"tolerance of {owner}")
    generator = np.random.default_rng(seed)
    if (triplets is None) == (labels is None):
        got = "neither" if labels is None else "both"
        raise ValueError(checks.message(f"triplets and labels of {owner}", "one given, the other not", got))
    if labels is not None:
        classes = check_labels(labels, owner, len(rows))
        checks.check_size(n_triplets, f"n_triplets of {owner}")
        chosen = stratified(classes, checks.check_size(max_points, f"max_points of {owner}"), generator)
        rows, classes = rows[chosen], classes[chosen]
        if np.bincount(classes).max() < 2 or len(np.unique(classes)) < 2:
            must = "such that some class has two rows and another has one, among those that are used"
            got = f"{len(rows)} rows of {len(np.unique(classes))} classes"
            raise ValueError(checks.message(f"labels of {owner}", must, got, "Raise max_points."))
        numbers = _draw(classes, n_triplets, generator)
    else:
        numbers = _check_triplets(triplets, len(rows), owner)
        used, numbers = np.unique(numbers, return_inverse=True)
        rows, numbers = rows[used], numbers.reshape(-1, 3)
    mean = rows.mean(0)
    points, place = np.unique(rows - mean, axis=0, return_inverse=True)
    numbers = place.reshape(-1)[numbers]
    scores: dict[float, float] = {}
    if penalty is None:
        scores = _cross_validated(points, numbers, folds, generator)
        penalty = max(scores, key=lambda weight: scores[weight])
    checks.check_positive(penalty, f"penalty of {owner}")
    pieces, objective, iterations, converged = _Program(points, numbers, penalty).solve(tolerance, max_iterations)
    return PiecewiseFit(pieces.shifted(mean).divergence(), objective, penalty, iterations, converged, scores)


def _check_triplets(triplets: ArrayLike | Tensor | None, n: int, owner: str) -> Integers:
    """Return the triplets as row numbers, ``(m, 3)``."""
    array = np.asarray(triplets.detach().cpu().numpy() if isinstance(triplets, Tensor) else triplets)
    if array.ndim != 2 or array.shape[1] != 3 or len(array) == 0:
        raise ValueError(checks.message(f"triplets of {owner}", "of shape (m, 3), m above 0", array.shape))
    if array.dtype.kind not in "iu":
        hint = "They are the row numbers of anchor, near and far point."
        raise TypeError(checks.message(f"triplets of {owner}", "integers", array.dtype, hint))
    outside = array[(array < 0) | (array >= n)]
    if outside.size:
        raise ValueError(checks.message(f"triplets of {owner}", f"row numbers from 0 to {n - 1}", outside[0]))
    return array.astype(np.int64)
