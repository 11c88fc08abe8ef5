"""What the three forms of PBDL share: checks, choice of the points that get a piece, and the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks
from askew.divergences.max_affine import MaxAffine

__all__ = [
    "Array",
    "Integers",
    "Pieces",
    "PiecewiseFit",
    "check_folds",
    "check_labels",
    "check_rows",
    "check_values",
    "folds_of",
    "spread",
    "stratified",
]

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

# Curvatures that `Pieces.candidates` adds, as parts of the steepest slope over the widest feature.
CURVATURES = (0.0, 1e-8, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


@dataclass(frozen=True)
class PiecewiseFit:
    """A learned max-affine divergence and how it was found.

    Parameters
    ----------
    divergence
        The divergence, float64; ``divergence.float()`` for float32 points.
    objective
        Value of the objective at the pieces of ``divergence``, which obey all constraints.
    penalty
        Weight of the penalty, given or chosen.
    iterations
        Steps of the solver in the last fit, without those of the cross-validation.
    converged
        Whether the solver met its tolerance.
    scores
        Score of each penalty that was tried in cross-validation, higher is better; empty if it was given.
    """

    divergence: MaxAffine
    objective: float
    penalty: float
    iterations: int
    converged: bool
    scores: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pieces:
    """Affine pieces at points: phi(x) = max_j z_j + <a_j, x - x_j>.

    Parameters
    ----------
    points
        Points x_j, ``(K, dim)``.
    heights
        Values z_j, ``(K,)``.
    slopes
        Slopes a_j, ``(K, dim)``.
    """

    points: Array
    heights: Array
    slopes: Array

    @property
    def intercepts(self) -> Array:
        """Return the values of the pieces at zero, ``(K,)``."""
        intercepts: Array = self.heights - (self.slopes * self.points).sum(1)
        return intercepts

    def values(self, x: Array) -> Array:
        """Return the values of all pieces, ``(n, dim) -> (n, K)``."""
        values: Array = x @ self.slopes.T + self.intercepts
        return values

    def pairwise(self, x: Array, y: Array) -> Array:
        """Return the divergence of all pairs, ``(n, dim), (m, dim) -> (n, m)``, as :class:`MaxAffine` computes it."""
        values = self.values(x)
        divergences: Array = values.max(1)[:, None] - values[:, self.values(y).argmax(1)]
        return divergences

    def curved(self, curvature: float) -> Pieces:
        """Return the pieces of phi(x) + curvature |x - m|^2 / 2, m the middle of the points.

        Where several pieces meet at x_j, this makes the one that belongs there the single highest.
        """
        centred = self.points - self.points.mean(0)
        heights = self.heights + curvature / 2 * np.square(centred).sum(1)
        return Pieces(self.points, heights, self.slopes + curvature * centred)

    def candidates(self) -> list[Pieces]:
        """Return these pieces with more and more curvature added.

        An optimum has many pieces that meet at one point, and a solver leaves small violations of convexity
        there. A little curvature mends both, and the objective says which one is best.
        """
        unit = float(np.abs(self.slopes).max() / max(float(np.ptp(self.points, axis=0).max()), 1e-300))
        return [self.curved(part * unit) for part in CURVATURES]

    def shifted(self, offset: Array) -> Pieces:
        """Return the same pieces after the points moved by ``offset``, ``(dim,)``."""
        return Pieces(self.points + offset, self.heights, self.slopes)

    def divergence(self) -> MaxAffine:
        """Return the divergence, float64."""
        return MaxAffine.from_pieces(torch.from_numpy(self.slopes.copy()), torch.from_numpy(self.intercepts))


def check_rows(x: ArrayLike | Tensor, name: str, owner: str, dim: int | None = None) -> Array:
    """Return ``x`` as a finite float64 array of shape ``(n, dim)`` with at least one row and column."""
    rows = _array(x, name, owner)
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] == 0 or dim not in (None, rows.shape[1]):
        must = f"of shape (n, {'dim' if dim is None else dim}), neither of them 0"
        raise ValueError(checks.message(f"{name} of {owner}", must, rows.shape))
    return rows


def check_values(x: ArrayLike | Tensor, name: str, owner: str, n: int) -> Array:
    """Return ``x`` as a finite float64 array of shape ``(n,)``."""
    values = _array(x, name, owner)
    if values.shape != (n,):
        raise ValueError(checks.message(f"{name} of {owner}", f"of shape ({n},), one for each row", values.shape))
    return values


def _array(x: ArrayLike | Tensor, name: str, owner: str) -> Array:
    try:
        numbers = x.detach().cpu().double().numpy() if isinstance(x, Tensor) else np.array(x, dtype=np.float64)
    except (TypeError, ValueError):
        hint = "Encode categories as numbers first."
        raise TypeError(checks.message(f"{name} of {owner}", "an array of numbers", type(x).__name__, hint)) from None
    checks.check_finite(torch.from_numpy(numbers), name, owner)
    return numbers


def check_labels(labels: ArrayLike | Tensor, owner: str, n: int) -> Integers:
    """Return the classes as integers from 0, ``(n,)``; at least two classes."""
    array: NDArray[Any] = np.asarray(labels.detach().cpu().numpy() if isinstance(labels, Tensor) else labels)
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
    """Return at most ``size`` different row numbers, in order, the classes in the proportions that they have.

    Every class keeps a row, as long as there are no more classes than ``size``.
    """
    order = generator.permutation(len(classes))
    # The k-th row of a class of c rows stands at k / c: that list, cut anywhere, keeps the proportions.
    place = np.empty(len(classes))
    for number, count in enumerate(np.bincount(classes)):
        place[order[classes[order] == number]] = np.arange(count) / max(count, 1)
    return np.sort(order[np.argsort(place[order], kind="stable")][:size]).astype(np.int64)


def spread(x: Array, size: int) -> Integers:
    """Return row numbers of at most ``size`` farthest points: each is the one farthest from those before it.

    The first is the one farthest from the mean. No point is chosen twice, even where rows are equal.
    """
    centred = x - x.mean(0)
    squares = np.square(centred).sum(1)
    chosen = [int(squares.argmax())]
    nearest = np.full(len(x), np.inf)
    # Rounding leaves the squared distance of equal points at some 1e-16 of the squares.
    floor = 1e-12 * float(squares.max())
    while len(chosen) < size:
        last = centred[chosen[-1]]
        np.minimum(nearest, squares + last @ last - 2 * centred @ last, out=nearest)
        farthest = int(nearest.argmax())
        if nearest[farthest] <= floor:
            break
        chosen.append(farthest)
    return np.array(chosen, dtype=np.int64)


def check_folds(folds: object, owner: str) -> int:
    """Return the number of parts of a cross-validation, at least two."""
    number = checks.check_size(folds, f"folds of {owner}")
    if number < 2:
        hint = "Without cross-validation, give a penalty."
        raise ValueError(checks.message(f"folds of {owner}", "at least 2", number, hint))
    return number


def folds_of(classes: Integers, folds: int, generator: np.random.Generator) -> Integers:
    """Return the number of the fold of each row, ``(n,)``; each class is dealt out over the folds in turn."""
    order = generator.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    numbers = np.empty(len(classes), dtype=np.int64)
    numbers[order] = np.arange(len(classes)) % folds
    return numbers
