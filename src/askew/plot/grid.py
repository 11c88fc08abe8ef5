"""Grids over the part of a picture that lies in the domain, and what is drawn from values at their nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from askew import checks
from askew.plot.plane import Floats
from askew.plot.scene import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, PALE_INK = "#222222", "#e6e6e6"


class Grid:
    """Nodes over the part of a rectangle that lies in the domain; ``u`` and ``v`` are those of columns and rows.

    The rectangle is given by its left, right, bottom and top. ``polygon``, ``(k, 2)``, has the corners of the part in
    the domain, which is convex: whatever is drawn is cut there.
    """

    def __init__(self, scene: Scene, limits: Sequence[float], resolution: int) -> None:
        self.scene = scene
        resolution = checks.check_size(resolution, f"resolution of {scene.owner}")
        if resolution < 2:
            raise ValueError(checks.message(f"resolution of {scene.owner}", "at least 2", resolution))
        self.polygon = part_in_domain(scene, limits)
        self.u, self.v = np.linspace(self.polygon.min(0), self.polygon.max(0), resolution).T

    def evaluate(self, function: Callable[[Floats], Floats]) -> Floats:
        """Return a function of coordinates, ``(n, 2) -> (n, ...)``, at all nodes, ``(rows, columns, ...)``.

        NaN outside the domain, but not next to it, so that lines reach its edge.
        """
        nodes = np.stack(np.meshgrid(self.u, self.v), -1).reshape(-1, 2)
        values = function(nodes)
        spacing = np.hypot(self.u[1] - self.u[0], self.v[1] - self.v[0])
        values[self.scene.slacks(nodes, spacing).min(1) < 0] = np.nan
        if not np.isfinite(values).any():
            must = "such that a part of what is seen lies in the domain of the divergence"
            got = "none of the embeddings of the encoder"
            raise ValueError(checks.message(f"limits of {self.scene.owner}", must, got))
        return values.reshape(len(self.v), len(self.u), *values.shape[1:])

    def fill(self, ax: Axes, values: Floats, bounds: Sequence[float] | Floats, **style: Any) -> Any:
        """Fill the areas between bounds with colours; without finite values nothing is drawn."""
        return self._clipped(ax, ax.contourf(self.u, self.v, np.ma.masked_invalid(values), bounds, **style))

    def lines(self, values: Floats, level: float) -> list[Floats]:
        """Return the curves on which values are a level, each ``(n, 2)``."""
        contourpy = checks.optional_import("contourpy", "plot", "askew.plot")
        finite = np.ma.masked_invalid(values)
        generator = contourpy.contour_generator(self.u, self.v, finite, line_type=contourpy.LineType.Separate)
        found: list[Floats] = generator.lines(level)
        return found

    def draw(self, ax: Axes, lines: Sequence[Floats], label: str | None = None, **style: Any) -> None:
        """Draw curves as one collection, which has one entry in the legend."""
        collections = checks.optional_import("matplotlib.collections", "plot", "askew.plot")
        drawn = collections.LineCollection(lines, label=label, **style)
        ax.add_collection(drawn, autolim=False)
        self._clipped(ax, drawn)

    def draw_levels(self, ax: Axes, values: Floats, steps: Floats, signed: bool) -> None:
        """Draw the curves on which values are those of the steps, with these numbers on them.

        Where the sign matters, lines are dashed below zero and thick at zero.
        """
        style: dict[str, Any] = {
            "linewidths": [1.8 if signed and step == 0 else 0.9 for step in steps],
            "linestyles": ["dashed" if signed and step < 0 else "solid" for step in steps],
        }
        drawn = ax.contour(self.u, self.v, np.ma.masked_invalid(values), steps, colors=INK, **style)
        ax.clabel(drawn, fmt=lambda step: f"{step:g}", fontsize=8, inline_spacing=3)
        self._clipped(ax, drawn)

    def _clipped(self, ax: Axes, artist: Any) -> Any:
        patches = checks.optional_import("matplotlib.patches", "plot", "askew.plot")
        artist.set_clip_path(patches.Polygon(self.polygon, transform=ax.transData))
        return artist


def ink(ax: Axes) -> str:
    """Return the colour of lines and marks that stands out from the background of the axes."""
    background: tuple[float, ...] = tuple(ax.patch.get_facecolor())  # type: ignore[arg-type]
    return INK if sum(background[:3]) > 1.5 else PALE_INK


def part_in_domain(scene: Scene, limits: Sequence[float]) -> Floats:
    """Return the corners of the part of a rectangle that lies in the domain, cut at one bound after the other."""
    left, right, bottom, top = limits
    polygon = np.array([[left, bottom], [right, bottom], [right, top], [left, top]])
    for bound in range(scene.slacks(polygon).shape[1]):
        corners: list[Floats] = []
        slack = scene.slacks(polygon)[:, bound]
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
