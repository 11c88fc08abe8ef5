"""Grids over the part of a picture that lies in the domain, and curves found on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew.plot.plane import Floats
from askew.plot.scene import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Function = Callable[[Floats], Floats]

# Points outside a domain are moved to its edge, and from there inwards by this share of the way to the middle.
INSET = 1e-6
# Bisections of a piece of a grid line: 1e-7 of its length is left.
HALVINGS = 24
# Stands for infinity where values are interpolated.
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
    """Nodes over the part of a rectangle that lies in the domain; ``u`` and ``v`` are those of columns and rows.

    The rectangle is given by its left, right, bottom and top. ``columns`` and ``rows`` are further ones, for more
    detail; ``reach`` is how far from the edge of the domain the grid stays, in units of the axes.
    ``polygon``, ``(k, 2)``, has the corners of the part in the domain, which is convex.
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
        self.u = _merged(np.linspace(low[0], high[0], resolution), columns)
        self.v = _merged(np.linspace(low[1], high[1], resolution), rows)

    @property
    def nodes(self) -> Floats:
        """All nodes, row by row, ``(rows x columns, 2)``."""
        return np.stack(np.meshgrid(self.u, self.v), -1).reshape(-1, 2)

    def evaluate(self, function: Function) -> Floats:
        """Return a function of coordinates, ``(n, 2) -> (n, ...)``, at all nodes, ``(rows, columns, ...)``."""
        values = function(self.inside(self.nodes))
        if not np.isfinite(values).any():
            must = "such that a part of what is seen lies in the domain of the divergence"
            got = "none of the embeddings of the encoder"
            raise ValueError(checks.message(f"limits of {self.scene.owner}", must, got))
        return values.reshape(len(self.v), len(self.u), *values.shape[1:])

    def fill(self, ax: Axes, values: Floats, bounds: Sequence[float] | Floats, **style: Any) -> Any:
        """Fill the areas between bounds with colours; without finite values nothing is drawn."""
        return ax.contourf(self.u, self.v, np.ma.masked_invalid(values), bounds, **style)

    def inside(self, coordinates: Floats) -> Floats:
        """Return coordinates, those outside the domain moved to its edge, straight towards the middle.

        All nodes then have values, and curves run up to the edge of the domain, where they are cut.
        """
        middle = self.polygon.mean(0)
        slacks, most = (self.scene.slacks(places, self.reach) for places in (coordinates, middle[None]))
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(slacks < INSET * most, (1 - INSET) * most / (most - slacks), 1.0).min(1)
        moved: Floats = middle + shares[:, None] * (coordinates - middle)
        return moved

    def distance(self, coordinates: Floats) -> Floats:
        """Return a number that is positive inside the domain, 0 on its edge and negative outside."""
        smallest: Floats = self.scene.slacks(coordinates, self.reach).min(1)
        return smallest

    def curves(self, function: Function, values: Floats, level: float) -> list[Floats]:
        """Return the curves on which a function, with these values at the nodes, has a level, each ``(n, 2)``.

        Each crossing of a grid line, found by interpolation, is refined by bisection. The first point of a closed
        curve is also its last.
        """
        contourpy = checks.optional_import("contourpy", "plot", "askew.plot")
        finite = np.ma.masked_invalid(np.nan_to_num(values, nan=np.nan, posinf=HUGE, neginf=-HUGE))
        generator = contourpy.contour_generator(self.u, self.v, finite, line_type=contourpy.LineType.Separate)
        lines: list[Floats] = [np.asarray(line, dtype=np.float64) for line in generator.lines(level)]
        if not lines:
            return []
        refined = self._refined(lambda uv: function(self.inside(uv)) - level, np.concatenate(lines))
        return cut(np.split(refined, np.cumsum([len(line) for line in lines])[:-1]), self.distance)

    def _refined(self, function: Function, places: Floats) -> Floats:
        """Return the zeros of a function on the pieces of grid lines that places lie on."""
        ends, off = np.empty((2, *places.shape)), np.empty_like(places)
        for axis, nodes in enumerate((self.u, self.v)):
            after = np.clip(np.searchsorted(nodes, places[:, axis]), 1, len(nodes) - 1)
            ends[:, :, axis] = nodes[after - 1], nodes[after]
            off[:, axis] = np.abs(ends[:, :, axis] - places[:, axis]).min(0) / np.ptp(nodes)
        # A place is on a column or on a row, whichever is nearer, and moves along it.
        fixed = np.arange(len(places)), off.argmin(1)
        ends[:, fixed[0], fixed[1]] = places[fixed]
        low, high = ends
        positive = function(low) >= 0
        # At a node, or next to NaN, there is no change of sign.
        crossing = positive != (function(high) >= 0)
        places = places.copy()
        places[crossing] = _bisect(function, low[crossing], high[crossing], positive[crossing])
        return places


def cut(lines: Iterable[Floats], function: Function) -> list[Floats]:
    """Return the pieces of lines on which a function is not negative, their ends where it is zero."""
    pieces: list[Floats] = []
    for line in lines:
        kept = function(line) >= 0
        if kept.all() or not kept.any():
            pieces += [line] * bool(kept.any())
            continue
        if np.array_equal(line[0], line[-1]):  # a closed line begins where it is cut away
            start = int(kept.argmin())
            line, kept = (np.concatenate([part[start:-1], part[: start + 1]]) for part in (line, kept))
        changes = np.flatnonzero(kept[1:] != kept[:-1])
        inner, outer = line[changes + ~kept[changes]], line[changes + kept[changes]]
        ends = _bisect(function, inner, outer, np.ones(len(changes), dtype=bool))
        line, kept = np.insert(line, changes + 1, ends, axis=0), np.insert(kept, changes + 1, True)
        runs = np.flatnonzero(np.diff(kept, prepend=not kept[0]))
        pieces += [run for run, keep in zip(np.split(line, runs[1:]), kept[runs], strict=True) if keep]
    return pieces


def _bisect(function: Function, start: Floats, end: Floats, positive: NDArray[np.bool_]) -> Floats:
    """Return where a function changes its sign between places, ``(n, 2)``, on the side of the start.

    ``positive`` is its sign there, which may be rounding: it is not computed again.
    """
    for _ in range(HALVINGS):
        middle = (start + end) / 2
        same = ((function(middle) >= 0) == positive)[:, None]
        start, end = np.where(same, middle, start), np.where(same, end, middle)
    return start


def _clip(scene: Scene, limits: Sequence[float], reach: float) -> Floats:
    """Return the corners of the part of a rectangle that lies in the domain, cut at one bound after the other."""
    left, right, bottom, top = limits
    polygon = np.array([[left, bottom], [right, bottom], [right, top], [left, top]])
    for bound in range(scene.slacks(polygon).shape[1]):
        corners: list[Floats] = []
        slack = scene.slacks(polygon, reach)[:, bound]
        for i, corner in enumerate(polygon):
            if (slack[i] > 0) != (slack[i - 1] > 0):
                corners.append(polygon[i - 1] + slack[i - 1] / (slack[i - 1] - slack[i]) * (corner - polygon[i - 1]))
            if slack[i] > 0:
                corners.append(corner)
        polygon = np.array(corners).reshape(-1, 2)
    if len(polygon) < 3:
        must = f"such that a part of the plane in the {scene.domain} domain is seen"
        hint = "Give limits=(left, right, bottom, top), or another plane."
        raise ValueError(checks.message(f"limits of {scene.owner}", must, tuple(map(float, limits)), hint))
    return polygon


def _merged(nodes: Floats, extra: Iterable[Floats]) -> Floats:
    """Return nodes and further ones between the first and the last, ascending, without near duplicates."""
    merged = np.unique(np.concatenate([nodes, *extra]))
    merged = merged[(merged >= nodes[0]) & (merged <= nodes[-1])]
    kept: Floats = merged[np.diff(merged, prepend=-np.inf) > 1e-9 * np.ptp(nodes)]
    return kept
