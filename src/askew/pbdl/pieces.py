"""Affine pieces, the result of a fit, input checks and sampling, shared by the forms of PBDL."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks
from askew.divergences.max_affine import MaxAffine

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

# Curvatures that `Pieces.candidates` adds, relative to the steepest slope over the widest feature.
CURVATURES = (0.0, 1e-8, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


@dataclass(frozen=True)
class PiecewiseFit:
    """A learned max-affine divergence and how it was found.

    Attributes
    ----------
    divergence : MaxAffine
        The divergence, float64; use ``divergence.float()`` for float32 points.
    objective : float
        Value of the objective at the pieces of ``divergence``, which satisfy all constraints.
    penalty : float
        Weight of the penalty, given or chosen.
    iterations : int
        Iterations of the last fit, without those of the cross-validation.
    converged : bool
        Whether the solver met its tolerance.
    scores : dict
        Cross-validation score of each penalty, higher is better; empty if the penalty was given.

    Examples
    --------
    >>> import torch
    >>> from askew.pbdl import fit_pairs
    >>> points = torch.tensor([[0.0], [0.1], [1.0], [1.1]])
    >>> fit_pairs(points, ["a", "a", "b", "b"], penalty=0.01).scores  # the penalty was given
    {}
    """

    divergence: MaxAffine
    objective: float
    penalty: float
    iterations: int
    converged: bool
    scores: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pieces:
    """Affine pieces at points: phi(x) = max_j z_j + <a_j, x - x_j>."""

    points: Array  # x_j, (K, dim)
    heights: Array  # z_j, (K,)
    slopes: Array  # a_j, (K, dim)

    @property
    def intercepts(self) -> Array:
        """The values of the pieces at zero, ``(K,)``."""
        return np.asarray(self.heights - (self.slopes * self.points).sum(1))

    def values(self, x: Array) -> Array:
        """Return the values of all pieces, ``(n, dim) -> (n, K)``."""
        return np.asarray(x @ self.slopes.T + self.intercepts)

    def pairwise(self, x: Array, y: Array) -> Array:
        """Return the divergence of all pairs, ``(n, dim), (m, dim) -> (n, m)``, as :class:`MaxAffine` computes it."""
        values = self.values(x)
        return np.asarray(values.max(1)[:, None] - values[:, self.values(y).argmax(1)])

    def curved(self, curvature: float) -> Pieces:
        """Return the pieces of phi(x) + curvature |x - mean|^2 / 2; where several meet at x_j, the j-th wins."""
        centred = self.points - self.points.mean(0)
        heights = self.heights + curvature / 2 * np.square(centred).sum(1)
        return Pieces(self.points, heights, self.slopes + curvature * centred)

    def candidates(self) -> list[Pieces]:
        """Return these pieces with increasing curvature added.

        At an optimum many pieces meet at one point, and the solver leaves small violations of convexity there. A little
        curvature repairs both; the objective tells how much is best.
        """
        unit = float(np.abs(self.slopes).max() / max(float(np.ptp(self.points, axis=0).max()), 1e-300))
        return [self.curved(part * unit) for part in CURVATURES]

    def shifted(self, offset: Array) -> Pieces:
        """Return the pieces after moving the points by ``offset``, ``(dim,)``."""
        return Pieces(self.points + offset, self.heights, self.slopes)

    def divergence(self) -> MaxAffine:
        """Return the divergence, float64."""
        return MaxAffine.from_pieces(torch.from_numpy(self.slopes.copy()), torch.from_numpy(self.intercepts))


def check_rows(x: ArrayLike | Tensor, name: str, owner: str, dim: int | None = None) -> Array:
    """Return ``x`` as a finite float64 array of shape ``(n, dim)`` with at least one row and column."""
    rows = check_numbers(x, name, owner)
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] == 0 or dim not in (None, rows.shape[1]):
        must = f"of shape (n, {'dim' if dim is None else dim}), neither of them 0"
        raise ValueError(checks.message(f"{name} of {owner}", must, rows.shape))
    return rows


def check_numbers(x: ArrayLike | Tensor, name: str, owner: str) -> Array:
    """Return ``x`` as a finite float64 array."""
    try:
        numbers = x.detach().cpu().double().numpy() if isinstance(x, Tensor) else np.array(x, dtype=np.float64)
    except (TypeError, ValueError):
        hint = "Encode categories as numbers first."
        raise TypeError(checks.message(f"{name} of {owner}", "an array of numbers", type(x).__name__, hint)) from None
    checks.check_finite(torch.from_numpy(numbers), name, owner)
    return numbers


def check_labels(labels: ArrayLike | Tensor, owner: str, n: int) -> Integers:
    """Return labels of at least two classes as integers from 0, ``(n,)``."""
    array = np.asarray(labels.detach().cpu().numpy() if isinstance(labels, Tensor) else labels)
    if array.shape != (n,):
        must = f"of shape ({n},), one for each row of x"
        raise ValueError(checks.message(f"labels of {owner}", must, array.shape))
    if array.dtype.kind == "f":
        checks.check_finite(torch.from_numpy(array.astype(np.float64)), "labels", owner)
    names, numbers = np.unique(array, return_inverse=True)
    if len(names) < 2:
        hint = "One class has no dissimilar pairs to learn from."
        raise ValueError(checks.message(f"labels of {owner}", "of at least two classes", f"{len(names)} class", hint))
    return numbers.reshape(-1).astype(np.int64)


def stratified(classes: Integers, size: int, generator: np.random.Generator) -> Integers:
    """Return at most ``size`` sorted row numbers in the proportions of the classes; every class keeps one if it can."""
    order = generator.permutation(len(classes))
    # The k-th row of a class of c rows is placed at k / c: the sorted list, cut anywhere, keeps the proportions.
    place = np.empty(len(classes))
    for number, count in enumerate(np.bincount(classes)):
        place[order[classes[order] == number]] = np.arange(count) / max(count, 1)
    return np.sort(order[np.argsort(place[order], kind="stable")][:size]).astype(np.int64)


def spread(x: Array, size: int) -> Integers:
    """Return at most ``size`` rows of distinct points, each farthest from those before it, the first from the mean."""
    centred = x - x.mean(0)
    squares = np.square(centred).sum(1)
    chosen = [int(squares.argmax())]
    nearest = np.full(len(x), np.inf)
    # Rounding leaves a squared distance of about 1e-16 of the squares between equal points.
    floor = 1e-12 * float(squares.max())
    while len(chosen) < size:
        last = centred[chosen[-1]]
        np.minimum(nearest, squares + last @ last - 2 * centred @ last, out=nearest)
        farthest = int(nearest.argmax())
        if nearest[farthest] <= floor:
            break
        chosen.append(farthest)
    return np.array(chosen, dtype=np.int64)


def folds_of(classes: Integers, folds: int, generator: np.random.Generator) -> Integers:
    """Return the fold of each row, ``(n,)``; the rows of each class are dealt out over the folds in turn."""
    if checks.check_size(folds, "folds of fit_pairs") < 2:
        hint = "Without cross-validation, give a penalty."
        raise ValueError(checks.message("folds of fit_pairs", "at least 2", folds, hint))
    order = generator.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    numbers = np.empty(len(classes), dtype=np.int64)
    numbers[order] = np.arange(len(classes)) % min(folds, len(classes))
    return numbers
