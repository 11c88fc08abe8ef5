"""Axes, limits, legend, colours and the edge of the domain, for all pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from askew import checks
from askew.checks import POSITIVE, REAL
from askew.plot.grid import Grid, ink, part_in_domain
from askew.plot.plane import Floats, Plane
from askew.plot.scene import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The palette of Okabe and Ito, which colour-blind readers can tell apart, with purple for its yellow, which is hard to
# see on white, and grey for black. Line styles and markers differ as well.
CYCLE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7A5195", "#7F7F7F")
FIRST, SECOND = CYCLE[0], CYCLE[5]

# Room around points and around the triangle of distributions, as a share of their extent.
MARGIN, TRIANGLE_MARGIN = 0.08, 0.07
# The longer side of a picture is at most this many times the shorter one if both have the same unit.
LONGEST = 3.0
# Limits of domains without data: of all numbers and of positive ones.
REAL_LIMITS, POSITIVE_LIMITS = (-3.0, 3.0), (0.0, 3.0)


def make_axes(ax: Axes | None) -> Axes:
    """Return the axes to draw into: those given, or new ones in a figure that pyplot does not know."""
    figure = checks.optional_import("matplotlib.figure", "plot", "askew.plot")
    if ax is None:
        new: Axes = figure.Figure(figsize=(5.2, 5.2), layout="constrained").add_subplot()
        return new
    if not hasattr(ax, "add_collection"):
        hint = "Of a figure take figure.gca(), of plt.subplots() the second result."
        raise TypeError(checks.message("ax", "matplotlib axes or None", type(ax).__name__, hint))
    return ax


def view_limits(scene: Scene, limits: object, points: Floats | None) -> tuple[float, float, float, float]:
    """Return the limits of a picture: as given, or to fit the coordinates, or the bounds of the domain."""
    if limits is not None:
        return _check_limits(limits, scene.owner)
    domain, plane = scene.domain, scene.plane
    if domain.sums_to_one or np.isfinite([domain.lower, domain.upper]).all():
        # All of a bounded domain, which lies within this distance of the place nearest to its middle.
        middle = plane.coordinates(np.full(plane.dim, 1.0 / plane.dim if domain.sums_to_one else 0.5))[0]
        reach = 2 * np.sqrt(plane.dim) / min(np.linalg.norm(plane.first), np.linalg.norm(plane.second))
        polygon = part_in_domain(scene, [middle[0] - reach, middle[0] + reach, middle[1] - reach, middle[1] + reach])
        lowest, highest = polygon.min(0), polygon.max(0)
    elif points is None:
        low, high = POSITIVE_LIMITS if domain == POSITIVE else REAL_LIMITS
        lowest, highest = np.full(2, low), np.full(2, high)
    else:
        half, middle = (1 + 2 * MARGIN) * np.ptp(points, axis=0) / 2, (points.min(0) + points.max(0)) / 2
        if half.max() == 0:
            # One point: as much around it as there is of all numbers, or somewhat more than to the edge of a domain.
            half = np.full(2, REAL_LIMITS[1] if domain == REAL else 1.5 * np.abs(middle).max())
        half = np.maximum(half, half.max() / (LONGEST if plane.isometric else 1e6))
        lowest, highest = middle - half, middle + half
    return float(lowest[0]), float(highest[0]), float(lowest[1]), float(highest[1])


def _check_limits(limits: object, owner: str) -> tuple[float, float, float, float]:
    try:
        left, right, bottom, top = (float(value) for value in limits)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        left, right, bottom, top = 0.0, 0.0, 0.0, 0.0
    if not (np.isfinite([left, right, bottom, top]).all() and left < right and bottom < top):
        must = "four finite numbers, (left, right, bottom, top), with left < right and bottom < top"
        raise ValueError(checks.message(f"limits of {owner}", must, repr(limits)))
    return left, right, bottom, top


def set_axes(ax: Axes, grid: Grid) -> None:
    """Draw the edge of the domain, set limits, aspect and names of the axes."""
    plane, domain, polygon = grid.scene.plane, grid.scene.domain, grid.polygon
    triangle = domain.sums_to_one and plane.dim == 3
    low, high = polygon.min(0), polygon.max(0)
    if domain != REAL:
        edges = np.stack([polygon, np.roll(polygon, -1, 0)], 1)
        slacks = grid.scene.slacks(edges.mean(1)).min(1)
        on_edge = np.abs(slacks) < 1e-9 * (high - low).max()
        grid.draw(ax, list(edges[on_edge]), color=ink(ax), linewidth=1.0, zorder=1.5, clip_on=False)
    if triangle:  # room for the names of the corners
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
    for i, (u, v) in enumerate(corners + 0.04 * (corners - corners.mean(0))):
        ax.text(u, v, f"$x_{i + 1} = 1$", ha="center", va="bottom" if v > corners.mean() else "top")


def mark(ax: Axes, points: Floats | None, places: Floats | None, colour: str, label: str | None = None) -> None:
    """Show data as small dots and places as crosses."""
    if points is not None:
        ax.scatter(points[:, 0], points[:, 1], s=9, color=colour, alpha=0.6, linewidths=0, zorder=2.2)
    if places is not None:
        ax.plot(*places.T, "+", color=colour, markersize=9, markeredgewidth=1.6, label=label, zorder=3)


def place_legend(ax: Axes, columns: int) -> None:
    """Put the legend below the axes, where it hides nothing."""
    transforms = checks.optional_import("matplotlib.transforms", "plot", "askew.plot")
    # A fixed distance, as the label of the axis has; a share of the axes would be too little for small ones.
    below = transforms.ScaledTranslation(0, -(38 if ax.axison else 12) / 72, ax.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": ax.transAxes + below}
    ax.legend(**place, ncols=columns, frameon=False, borderaxespad=0)
