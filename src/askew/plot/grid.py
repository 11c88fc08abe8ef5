"""The nodes on which a scene is evaluated, and exact curves from the values there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from askew import checks
from askew.plot.plane import Floats
from askew.plot.scene import Scene

__all__ = ["Grid", "check_limits"]

# Points outside a domain are moved to its edge, and from there inwards by this share of the way to the middle.
INSET = 1e-6
# Halvings of the piece of a grid line on which a curve crosses it: 1e-7 of its length is left.
HALVINGS = 24
# What stands for infinity where a value is to be interpolated.
HUGE = 1e300


def check_limits(limits: object, owner: str) -> tuple[float, float, float, float]:
    """Return the limits of a picture as four finite numbers, left < right and bottom < top."""
    try:
        left, right, bottom, top = (float(value) for value in limits)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        left, right, bottom, top = 0.0, 0.0, 0.0, 0.0
    if not (np.isfinite([left, right, bottom, top]).all() and left < right and bottom < top):
        must = "four finite numbers, (left, right, bottom, top), with left < right and bottom < top"
        raise ValueError(checks.message(f"limits of {owner}", must, repr(limits)))
    return left, right, bottom, top


class Grid:
    """Nodes over that part of a rectangle of the plane which lies in the domain of a scene.

    Parameters
    ----------
    scene
        What is evaluated.
    limits
        Left, right, bottom and top of the rectangle.
    resolution
        Number of columns and of rows, evenly spaced.
    columns, rows
        Further ones, where the picture needs more detail.
    reach
        How far from the edge of the domain the grid stays, in units of the axes.

    Attributes
    ----------
    u, v : arrays
        The coordinates of columns and rows, ascending.
    polygon : array of shape (k, 2)
        The corners of the part of the rectangle that lies in the domain.
    """

    def __init__(
        self,
        scene: Scene,
        limits: Sequence[float],
        resolution: int,
        columns: Iterable[Floats] = (),
        rows: Iterable[Floats] = (),
        reach: float = 0.0,
    ) -> None:
        self.scene = scene
        self.reach = reach
        resolution = checks.check_size(resolution, f"resolution of {scene.owner}")
        if resolution < 2:
            raise ValueError(checks.message(f"resolution of {scene.owner}", "at least 2", resolution))
        self.polygon = _clip(scene, limits, reach)
        low, high = self.polygon.min(0), self.polygon.max(0)
        self.u, self.v = (
            _merged(np.linspace(low[i], high[i], resolution), extra) for i, extra in enumerate((columns, rows))
        )
        # The polygon is convex, so this lies inside.
        self.middle = self.polygon.mean(0)

    @property
    def nodes(self) -> Floats:
        """All nodes, row by row, ``(rows x columns, 2)``."""
        u, v = np.meshgrid(self.u, self.v)
        return np.stack([u.ravel(), v.ravel()], 1)

    def shaped(self, values: Floats) -> Floats:
        """Return values of the nodes as rows and columns, ``(rows, columns, ...)``."""
        return values.reshape(len(self.v), len(self.u), *values.shape[1:])

    def evaluate(self, function: Callable[[Floats], Floats]) -> Floats:
        """Return a function of coordinates, ``(n, 2) -> (n, ...)``, at all nodes, as rows and columns."""
        values = self.shaped(function(self.inside(self.nodes)))
        if not np.isfinite(values).any():
            must = "such that a part of what is seen lies in the domain of the divergence"
            got = "none of the images that the encoder makes"
            raise ValueError(checks.message(f"limits of {self.scene.owner}", must, got))
        return values

    def inside(self, coordinates: Floats) -> Floats:
        """Return coordinates, those outside the domain moved to its edge, straight towards the middle.

        So that values can be had at all nodes and curves run up to the edge of the domain, where they are cut.
        """
        slacks, own = (self.scene.slacks(places, self.reach) for places in (coordinates, self.middle[None]))
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(slacks < INSET * own, (1 - INSET) * own / (own - slacks), 1.0).min(1)
        moved: Floats = self.middle + shares[:, None] * (coordinates - self.middle)
        return moved

    def distance(self, coordinates: Floats) -> Floats:
        """Return a number that is positive inside the domain, 0 on its edge and negative outside."""
        smallest: Floats = self.scene.slacks(coordinates, self.reach).min(1)
        return smallest

    def curves(self, function: Callable[[Floats], Floats], values: Floats, level: float) -> list[Floats]:
        """Return the curves function = level inside the domain, each ``(n, 2)``, with every corner exactly on it.

        The curves come from values at the nodes, by interpolation along grid lines; then each crossing of a grid line
        is found by halving. Curves that end where they begin have their first point twice.

        Parameters
        ----------
        function
            Maps coordinates, ``(n, 2)``, to values, ``(n,)``.
        values
            The values at the nodes, ``(rows, columns)``.
        level
            A number.
        """
        contourpy = checks.optional_import("contourpy", "plot", "askew.plot")
        finite = np.ma.masked_invalid(np.nan_to_num(values, nan=np.nan, posinf=HUGE, neginf=-HUGE))
        generator = contourpy.contour_generator(self.u, self.v, finite, line_type=contourpy.LineType.Separate)
        lines: list[Floats] = [np.asarray(line, dtype=np.float64) for line in generator.lines(level)]
        if not lines:
            return []

        def above(coordinates: Floats) -> Floats:
            return function(self.inside(coordinates)) - level

        exact = np.split(self._crossings(above, np.concatenate(lines)), np.cumsum([len(line) for line in lines])[:-1])
        return cut(exact, self.distance)

    def _crossings(self, function: Callable[[Floats], Floats], places: Floats) -> Floats:
        """Return the zeros of a function on the pieces of grid lines that places lie on."""
        low, high = places.copy(), places.copy()
        on_column = _offset(self.u, places[:, 0]) <= _offset(self.v, places[:, 1])
        for axis, nodes, others in ((1, self.v, on_column), (0, self.u, ~on_column)):
            after = np.clip(np.searchsorted(nodes, places[:, axis]), 1, len(nodes) - 1)
            low[others, axis] = nodes[after - 1][others]
            high[others, axis] = nodes[after][others]
        at_low = function(low)
        # A crossing at a node, or a value that is no number within a piece, has no change of sign to look for.
        crossing = np.signbit(at_low) != np.signbit(function(high))
        result = places.copy()
        low, high, negative = low[crossing], high[crossing], np.signbit(at_low[crossing])
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            same = np.signbit(function(middle)) == negative
            low[same], high[~same] = middle[same], middle[~same]
        result[crossing] = (low + high) / 2
        return result


def cut(lines: Iterable[Floats], function: Callable[[Floats], Floats]) -> list[Floats]:
    """Return the pieces of lines on which a function is not negative, their ends where it is zero."""
    pieces: list[Floats] = []
    for line in lines:
        kept = function(line) >= 0
        if kept.all():
            pieces.append(line)
            continue
        changes = np.flatnonzero(kept[1:] != kept[:-1])
        inner, outer = line[changes + ~kept[changes]], line[changes + kept[changes]]
        for _ in range(HALVINGS):
            middle = (inner + outer) / 2
            good = function(middle) >= 0
            inner[good], outer[~good] = middle[good], middle[~good]
        bounds = [0, *(changes + 1), len(line)]
        parts = []
        for i, (start, end) in enumerate(pairwise(bounds)):
            if kept[start]:
                head = [inner[i - 1 : i]] if i > 0 else []
                tail = [inner[i : i + 1]] if i < len(changes) else []
                parts.append(np.concatenate([*head, line[start:end], *tail]))
        # A closed line that was cut is one piece less: its last part runs on into its first.
        if len(parts) > 1 and kept[0] and kept[-1] and np.array_equal(line[0], line[-1]):
            last = parts.pop()
            parts[0] = np.concatenate([last, parts[0][1:]])
        pieces += parts
    return pieces


def _clip(scene: Scene, limits: Sequence[float], reach: float) -> Floats:
    """Return the corners of the part of a rectangle that lies in the domain."""
    left, right, bottom, top = limits
    polygon = np.array([[left, bottom], [right, bottom], [right, top], [left, top]])
    for bound in range(scene.slacks(polygon).shape[1]):
        corners: list[Floats] = []
        slack = scene.slacks(polygon, reach)[:, bound] if len(polygon) else np.empty(0)
        for i in range(len(polygon)):
            before = i - 1
            if (slack[i] > 0) != (slack[before] > 0):
                share = slack[before] / (slack[before] - slack[i])
                corners.append(polygon[before] + share * (polygon[i] - polygon[before]))
            if slack[i] > 0:
                corners.append(polygon[i])
        polygon = np.array(corners).reshape(-1, 2)
    if len(polygon) < 3:
        must = f"such that a part of the plane in the {scene.domain} domain is seen"
        hint = "Give limits=(left, right, bottom, top), or another plane."
        raise ValueError(checks.message(f"limits of {scene.owner}", must, tuple(map(float, limits)), hint))
    return polygon


def _merged(nodes: Floats, extra: Iterable[Floats]) -> Floats:
    """Return nodes and further ones between the first and the last, ascending, without near duplicates."""
    merged: Floats = np.unique(np.concatenate([nodes, *extra]))
    merged = merged[(merged >= nodes[0]) & (merged <= nodes[-1])]
    keep = np.diff(merged, prepend=-np.inf) > 1e-9 * (nodes[-1] - nodes[0])
    kept: Floats = merged[keep]
    return kept


def _offset(nodes: Floats, places: Floats) -> Floats:
    """Return how far places are from the nearest node, in units of the length of the axis."""
    after = np.clip(np.searchsorted(nodes, places), 1, len(nodes) - 1)
    distance = np.minimum(np.abs(places - nodes[after - 1]), np.abs(nodes[after] - places))
    relative: Floats = distance / (nodes[-1] - nodes[0])
    return relative
