"""What all pictures share: axes, the edge of the domain, points, legend, colours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from askew import checks
from askew.checks import POSITIVE, REAL
from askew.plot.grid import Grid, check_limits
from askew.plot.plane import Floats, Plane
from askew.plot.scene import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "CYCLE",
    "FIRST",
    "INK",
    "SECOND",
    "draw_colorbar",
    "draw_levels",
    "draw_lines",
    "finish",
    "make_axes",
    "mark",
    "place_legend",
    "view_limits",
]

# The palette of Okabe and Ito, which colour-blind readers can tell apart, with purple for its yellow, which is hard to
# see on white, and grey for black. Line styles and markers differ as well.
CYCLE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7A5195", "#7F7F7F")
FIRST, SECOND = CYCLE[0], CYCLE[5]
INK = "#222222"

# Room around points and around the triangle of distributions, as a share of their extent.
MARGIN, TRIANGLE_MARGIN = 0.08, 0.07
# Least distance of the number of a line from the border, and half that from other numbers, as a share of the picture.
LABEL_ROOM = 0.045
# The longer side of a picture is at most this many times the shorter one if both have the same unit.
LONGEST = 3.0
# Where nothing is given that could tell: what is shown of all numbers and of positive ones.
REAL_LIMITS, POSITIVE_LIMITS = (-3.0, 3.0), (0.0, 3.0)


def make_axes(ax: Axes | None) -> Axes:
    """Return the axes to draw into: those given, or new ones in a figure that pyplot does not know of."""
    figure = checks.optional_import("matplotlib.figure", "plot", "askew.plot")
    if ax is None:
        new: Axes = figure.Figure(figsize=(5.2, 5.2), layout="constrained").add_subplot()
        return new
    if not hasattr(ax, "add_collection"):
        hint = "Of a figure take figure.gca(), of plt.subplots() the second result."
        raise TypeError(checks.message("ax", "matplotlib axes or None", type(ax).__name__, hint))
    return ax


def view_limits(scene: Scene, limits: object, points: Floats | None) -> tuple[float, float, float, float]:
    """Return the limits of a picture: as given, or such that coordinates fit, or what the domain suggests."""
    if limits is not None:
        return check_limits(limits, scene.owner)
    domain = scene.domain
    if domain.sums_to_one or np.isfinite([domain.lower, domain.upper]).all():
        return _whole_domain(scene)
    if points is None:
        low, high = POSITIVE_LIMITS if domain == POSITIVE else REAL_LIMITS
        return low, high, low, high
    lowest, highest = points.min(0), points.max(0)
    half, middle = (1 + 2 * MARGIN) * (highest - lowest) / 2, (lowest + highest) / 2
    if half.max() == 0:
        # One point: as much around it as there is of all numbers, or somewhat more than to the edge of a domain.
        half = np.full(2, REAL_LIMITS[1] if domain == REAL else 1.5 * np.abs(middle).max())
    # Not too long a rectangle, if both sides have the same unit.
    half = np.maximum(half, half.max() / (LONGEST if scene.plane.isometric else 1e6))
    (left, bottom), (right, top) = middle - half, middle + half
    return float(left), float(right), float(bottom), float(top)


def _whole_domain(scene: Scene) -> tuple[float, float, float, float]:
    """Return limits around all of a bounded domain."""
    # A bounded domain lies within this distance of the point of the plane that is nearest to its middle.
    middle = scene.plane.coordinates(
        np.full(scene.plane.dim, 1.0 / scene.plane.dim if scene.domain.sums_to_one else 0.5)
    )
    reach = 2 * np.sqrt(scene.plane.dim) / min(np.linalg.norm(scene.plane.first), np.linalg.norm(scene.plane.second))
    wide = Grid(scene, [middle[0, 0] - reach, middle[0, 0] + reach, middle[0, 1] - reach, middle[0, 1] + reach], 2)
    (left, bottom), (right, top) = wide.polygon.min(0), wide.polygon.max(0)
    return float(left), float(right), float(bottom), float(top)


def draw_lines(ax: Axes, lines: Sequence[Floats], label: str | None = None, **style: Any) -> None:
    """Draw curves as one collection, which has one entry in the legend."""
    collections = checks.optional_import("matplotlib.collections", "plot", "askew.plot")
    ax.add_collection(collections.LineCollection(lines, label=label, **style), autolim=False)


def finish(ax: Axes, grid: Grid, filled: Iterable[Any] = (), inner: Grid | None = None) -> None:
    """Cut what is filled at the edge of the domain, draw that edge, set limits, aspect and names of the axes.

    What was filled from an inner grid is cut at the edge of that.
    """
    patches = checks.optional_import("matplotlib.patches", "plot", "askew.plot")
    plane, domain = grid.scene.plane, grid.scene.domain
    polygon, triangle = grid.polygon, domain.sums_to_one and plane.dim == 3
    for artist in filled:
        artist.set_clip_path(patches.Polygon(polygon if inner is None else inner.polygon, transform=ax.transData))
    low, high = polygon.min(0), polygon.max(0)
    if domain != REAL:
        edges = np.stack([polygon, np.roll(polygon, -1, 0)], 1)
        on_edge = np.abs(grid.distance(edges.mean(1))) < 1e-9 * (high - low).max()
        draw_lines(ax, list(edges[on_edge]), color=INK, linewidth=1.0, zorder=1.5)
    if triangle:
        # Room for the names of the corners.
        low, high = low - TRIANGLE_MARGIN * (high - low), high + TRIANGLE_MARGIN * (high - low)
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    if plane.isometric and max((high - low) / (high - low)[::-1]) < 2 * LONGEST:
        ax.set_aspect("equal")
    if triangle:
        _draw_corners(ax, plane)
    else:
        ax.set_xlabel(plane.names[0])
        ax.set_ylabel(plane.names[1])
        ax.spines[["top", "right"]].set_visible(False)


def _draw_corners(ax: Axes, plane: Plane) -> None:
    """Name the corners of the triangle of distributions, which needs no axes."""
    ax.set_axis_off()
    corners = plane.coordinates(np.eye(3))
    middle = corners.mean(0)
    for i, corner in enumerate(corners):
        away = (corner - middle) / np.linalg.norm(corner - middle)
        ax.annotate(
            f"$x_{i + 1} = 1$",
            corner,
            9 * away,
            textcoords="offset points",
            ha="center",
            va="bottom" if away[1] > 0 else "top",
            annotation_clip=False,
        )


def draw_levels(
    ax: Axes, grid: Grid, function: Callable[[Floats], Floats], values: Floats, steps: Floats, signed: bool
) -> None:
    """Draw the curves on which a function has given values and write these on them.

    Where the sign matters, lines are dashed below zero and thick at zero.
    """
    contour = checks.optional_import("matplotlib.contour", "plot", "askew.plot")
    curves = [(float(step), grid.curves(function, values, float(step))) for step in steps]
    curves = [(step, lines) for step, lines in curves if lines]
    if not curves:
        return
    drawn = contour.ContourSet(
        ax,
        [step for step, _ in curves],
        [lines for _, lines in curves],
        colors=INK,
        linewidths=[1.8 if signed and step == 0 else 0.9 for step, _ in curves],
        linestyles=["dashed" if signed and step < 0 else "solid" for step, _ in curves],
    )
    places = _label_places(grid, [lines for _, lines in curves])
    if len(places):
        ax.clabel(drawn, fmt=lambda step: f"{step:g}", fontsize=8, inline_spacing=3, manual=places)


def _label_places(grid: Grid, curves: Sequence[Sequence[Floats]]) -> list[tuple[float, float]]:
    """Return where to write the number of each set of curves: away from the border and from other numbers."""
    size = np.ptp(grid.polygon, axis=0)
    edges = np.roll(grid.polygon, -1, 0) - grid.polygon
    lengths = np.hypot(*(edges / size).T)
    places: list[Floats] = []
    for lines in curves:
        candidates = np.concatenate([line[:: max(1, len(line) // 60)] for line in lines])
        gaps = (candidates[:, None] - grid.polygon) / size
        cross = gaps[..., 0] * (edges / size)[:, 1] - gaps[..., 1] * (edges / size)[:, 0]
        room = np.abs(cross / lengths).min(1)
        if places:
            apart = np.linalg.norm((candidates[:, None] - np.array(places)) / size, axis=2).min(1)
            room = np.minimum(room, apart / 2)
        best = int(room.argmax())
        if room[best] > LABEL_ROOM:
            places.append(candidates[best])
    return [(float(u), float(v)) for u, v in places]


def draw_colorbar(ax: Axes, filled: Any, label: str, ticks: Floats | None) -> None:
    """Explain colours beside the axes."""
    bar = ax.figure.colorbar(filled, ax=ax, label=label, shrink=0.8, ticks=ticks)
    bar.outline.set_visible(False)


def mark(ax: Axes, points: Floats | None, places: Floats | None, label: str | None = None) -> None:
    """Show data as small dots and places as crosses."""
    if points is not None:
        ax.scatter(points[:, 0], points[:, 1], s=9, color=INK, alpha=0.6, linewidths=0, zorder=2.2)
    if places is not None:
        ax.plot(*places.T, "+", color=INK, markersize=9, markeredgewidth=1.6, label=label, zorder=3)


def place_legend(ax: Axes, columns: int) -> None:
    """Put the legend below the axes, where it hides nothing."""
    transforms = checks.optional_import("matplotlib.transforms", "plot", "askew.plot")
    # A fixed distance, as the label of the axis has it too; a share of the axes would be too little for small ones.
    points = 12 if not ax.axison else 38
    below = transforms.ScaledTranslation(0, -points / 72, ax.figure.dpi_scale_trans)
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=ax.transAxes + below,
        ncols=columns,
        frameon=False,
        borderaxespad=0,
    )
