"""Planes in a space of any dimension, for pictures of points with more than two features."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks
from askew.checks import Domain
from askew.encoders import as_points

Floats = NDArray[np.float64]

# Two directions are parallel if the sine of the angle between them is below this.
PARALLEL = 1e-6
# How far from zero the coordinates of a direction may sum up in a plane of distributions.
SUM_TOLERANCE = 1e-6


def as_rows(points: ArrayLike | Tensor, what: str, dim: int | None = None) -> Floats:
    """Return points as an array of finite numbers, ``(n, dim)``; one point becomes one row."""
    try:
        array = as_points(points).cpu().double().numpy()
    except (TypeError, ValueError) as error:
        must = "numbers, as an array or a tensor of shape (n, dim)"
        raise TypeError(checks.message(what, must, type(points).__name__)) from error
    array = array[None] if array.ndim == 1 else array
    if array.ndim != 2 or array.size == 0 or (dim is not None and array.shape[1] != dim):
        must = f"of shape (n, {'dim' if dim is None else dim}), with at least one row"
        raise ValueError(checks.message(what, must, array.shape))
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        i, j = bad[0]
        hint = "Drop or impute such rows first."
        raise ValueError(checks.message(what, "finite", f"row {i}, column {j} = {array[i, j]:g}", hint))
    return array


@dataclass(frozen=True, eq=False)
class Plane:
    r"""A plane in the space of the points: origin + u first + v second.

    A picture of points with more than two features shows a plane of them: the axes are u and v, and what is drawn is
    the divergence of the points of the plane, in all their features. Points off the plane, such as data, are shown at
    their orthogonal projections.

    Parameters
    ----------
    origin
        The point at u = v = 0, ``(dim,)``.
    first, second
        The directions of u and v, ``(dim,)``; not parallel.
    names
        Names of the axes.

    Examples
    --------
    >>> plane = Plane.features(0, 2, at=[1.0, 5.0, 3.0])
    >>> plane.points([[0.5, 0.25]])
    array([[0.5 , 5.  , 0.25]])
    >>> plane.coordinates([[0.5, 7.0, 0.25]])
    array([[0.5 , 0.25]])
    """

    origin: Floats
    first: Floats
    second: Floats
    names: tuple[str, str] = ("u", "v")

    def __post_init__(self) -> None:
        origin = as_rows(self.origin, "origin of Plane")[0]
        for name in ("first", "second"):
            object.__setattr__(self, name, as_rows(getattr(self, name), f"{name} of Plane", len(origin))[0])
        object.__setattr__(self, "origin", origin)
        basis = np.stack([self.first, self.second], 1)
        lengths = np.linalg.norm(basis, axis=0)
        if np.linalg.matrix_rank(basis / np.maximum(lengths, 1e-300), tol=PARALLEL) < 2:
            hint = "Three points on one line, or two that are equal, span no plane."
            got = f"{self.first.tolist()} and {self.second.tolist()}"
            raise ValueError(checks.message("the directions of Plane", "two that are not parallel", got, hint))

    @classmethod
    def features(cls, first: int, second: int, at: ArrayLike | Tensor) -> Plane:
        """Return the slice in which two features vary and the others are those of a point.

        Parameters
        ----------
        first, second
            The columns of the features, from 0.
        at
            The point that the others are taken from, ``(dim,)``, such as the mean of the data.
        """
        origin = as_rows(at, "at of Plane.features")[0].copy()
        dim = len(origin)
        for column in (first, second):
            if isinstance(column, bool) or not isinstance(column, (int, np.integer)) or not 0 <= column < dim:
                must = f"a number from 0 to {dim - 1}"
                raise ValueError(checks.message("each column of Plane.features", must, repr(column)))
        unit = np.eye(dim)
        origin[[first, second]] = 0.0
        return cls(origin, unit[first], unit[second], (f"feature {first + 1}", f"feature {second + 1}"))

    @classmethod
    def through(cls, a: ArrayLike | Tensor, b: ArrayLike | Tensor, c: ArrayLike | Tensor) -> Plane:
        """Return the plane through three points, ``(dim,)`` each: u from a to b, v at right angles on c's side.

        u and v are lengths, so that shapes in the picture are shapes in space.
        """
        origin = as_rows(a, "a of Plane.through")[0]
        to_b = as_rows(b, "b of Plane.through", len(origin))[0] - origin
        to_c = as_rows(c, "c of Plane.through", len(origin))[0] - origin
        cls(origin, to_b, to_c)  # raises for points on one line
        first = to_b / np.linalg.norm(to_b)
        second = to_c - (to_c @ first) * first
        second /= np.linalg.norm(second)
        return cls(origin, first, second, ("along b - a", "towards c"))

    @classmethod
    def pca(cls, points: ArrayLike | Tensor) -> Plane:
        """Return the plane of the first two principal components of points, ``(n, dim)``, through their mean.

        Give it the data, or the centres of clusters. The largest entry of each direction is positive.
        """
        array = as_rows(points, "points of Plane.pca")
        mean = array.mean(0)
        _, sizes, directions = np.linalg.svd(array - mean, full_matrices=False)
        if len(sizes) < 2 or sizes[1] <= PARALLEL * sizes[0]:
            must = "three or more that do not lie on one line"
            raise ValueError(checks.message("points of Plane.pca", must, f"{len(array)} with no second direction"))
        two = directions[:2]
        two = two * np.sign(np.take_along_axis(two, np.abs(two).argmax(1)[:, None], 1))
        return cls(mean, two[0], two[1], ("principal direction 1", "principal direction 2"))

    @classmethod
    def simplex(cls) -> Plane:
        """Return the plane of all distributions over three outcomes, as a triangle with sides of length 1."""
        corners = np.eye(3)
        first = corners[1] - corners[0]
        second = (corners[2] - corners[0] - first / 2) / math.sqrt(0.75)
        return cls(corners[0], first, second, ("", ""))

    @property
    def dim(self) -> int:
        """Number of features of a point."""
        return len(self.origin)

    @property
    def isometric(self) -> bool:
        """Whether shapes in (u, v) are shapes in space: directions at right angles and of one length."""
        lengths = np.linalg.norm(self.first), np.linalg.norm(self.second)
        scale = float(lengths[0] * lengths[1])
        return bool(abs(self.first @ self.second) < 1e-9 * scale and abs(lengths[0] - lengths[1]) < 1e-9 * lengths[0])

    def points(self, coordinates: ArrayLike) -> Floats:
        """Return the points at coordinates u, v: ``(..., 2) -> (..., dim)``."""
        uv = np.asarray(coordinates, dtype=np.float64)
        return self.origin + uv[..., :1] * self.first + uv[..., 1:] * self.second

    def coordinates(self, points: ArrayLike | Tensor) -> Floats:
        """Return u, v of the projections of points onto the plane: ``(n, dim) -> (n, 2)``."""
        array = as_rows(points, "points of Plane.coordinates", self.dim)
        inverse: Floats = np.linalg.pinv(np.stack([self.first, self.second], 1))
        return (array - self.origin) @ inverse.T

    def check_in(self, domain: Domain, owner: str) -> None:
        """Raise if the points of a domain sum to one and those of the plane do not."""
        sums = [float(part.sum()) for part in (self.first, self.second)]
        flat = max(map(abs, sums)) < SUM_TOLERANCE and abs(float(self.origin.sum()) - 1) < SUM_TOLERANCE
        if domain.sums_to_one and not flat:
            must = f"one of points that sum to 1, as the {domain} domain asks"
            hint = "For three features it is Plane.simplex(); for more, Plane.through(a, b, c) of distributions."
            raise ValueError(checks.message(f"plane of {owner}", must, f"directions that sum to {sums}", hint))
