"""The balls of a divergence, of both kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from askew import checks
from askew.plot.frame import FIRST, SECOND, draw_lines, finish, make_axes, mark, place_legend, view_limits
from askew.plot.grid import Grid
from askew.plot.plane import Floats, Plane, as_rows
from askew.plot.scene import SIDES, Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["balls"]

# Rays from each centre along which the end of a ball is looked for; steps on them from 2^-20 to 2^12, by half powers.
RAYS, SMALLEST, LARGEST = 32, -40, 24
# The limits show no more of a ball than this many times the usual distance from its centre to its end.
LONGEST_BALL = 20
# Grid lines that cross every ball, at least, in each direction; of many small balls they are fewer.
LINES_PER_BALL, MOST_LINES = 41, 200
COLOURS = dict(zip(SIDES, (FIRST, SECOND), strict=True))
STYLES: dict[str, str | tuple[float, tuple[float, float]]] = {"first": "solid", "second": (0, (4.0, 1.6))}
NAMES = {"first": "D(x, c)", "second": "D(c, x)"}


def balls(
    divergence: object,
    centres: ArrayLike | Tensor,
    radii: float | Sequence[float],
    *,
    side: str = "both",
    points: ArrayLike | Tensor | None = None,
    plane: Plane | None = None,
    limits: Sequence[float] | None = None,
    resolution: int = 201,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw the balls of a divergence around centres, of both kinds.

    .. math:: \{x : D(x, c) \le r\} \quad\text{(first)} \qquad \{x : D(c, x) \le r\} \quad\text{(second)}

    Where D is symmetric both are the same; where it is not, their difference shows in which directions it is not, and
    how much. For a Bregman divergence the balls of the first kind are convex, those of the second need not be. Every
    corner of the lines drawn has the divergence r to about 1e-6 of it. Behind an encoder, x is a point before encoding,
    and a ball may have several parts: those outside the picture are seen with wider ``limits``.

    Parameters
    ----------
    divergence
        A divergence, also behind an encoder, a fitted learner, or the name of one that needs no learning.
    centres
        The points c, ``(n, dim)`` or one of ``(dim,)``. Those that do not lie on the plane are marked where they fall
        on it; their balls are where they cut it, which may be nowhere.
    radii
        One or several numbers above zero; each centre gets a ball of each.
    side
        ``"first"``, ``"second"`` or ``"both"``.
    points
        Data to show, ``(n, dim)``, which also sets the limits if they are not given: learned balls can be very long.
    plane
        What to show of points that have more than two features. Three features of the simplex need none.
    limits
        Left, right, bottom and top of the picture; by default points fit, or else all balls; of a bounded
        domain all is shown.
    resolution
        Number of grid lines in each direction; balls that few of them cross get more.
    legend
        Whether to explain the lines, below the axes.
    ax
        The axes to draw into; None makes new ones.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> ax = balls("itakura-saito", [[1.0, 1.0], [3.0, 1.5]], [0.1, 0.4])
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['D(x, c) = 0.1, 0.4', 'D(c, x) = 0.1, 0.4', 'centre c']
    """
    ax = make_axes(ax)
    heights = _radii(radii)
    sides = SIDES if checks.check_name(side, (*SIDES, "both"), "side of balls") == "both" else (side,)
    array = as_rows(centres, "centres of balls")
    scene = Scene.of(divergence, array.shape[1], plane, "balls")
    images = scene.given(array, "centres")
    places = scene.plane.coordinates(array)

    boxes = np.array(
        [box for i in range(len(array)) for kind in sides for box in _boxes(scene, array[i], images[i], kind, heights)]
    )
    coordinates = scene.coordinates(points, "points")
    seen = boxes.reshape(-1, 2) if coordinates is None else coordinates
    shown = view_limits(scene, limits, np.concatenate([seen, places]))
    grid = Grid(scene, shown, resolution, *_finer(boxes, shown, resolution))

    filled = []
    for kind in sides:
        matrix = grid.shaped(scene.matrix(grid.inside(grid.nodes), images, kind))
        lines: list[Floats] = []
        for i, image in enumerate(images):
            values = matrix[..., i]
            lowest = float(np.nanmin(values, initial=np.inf))
            for radius in heights:
                lines += grid.curves(lambda uv, c=image, k=kind: scene.column(uv, c, k), values, radius)  # type: ignore[misc]
                if lowest < radius:
                    area = np.ma.masked_invalid(values)
                    bounds = [min(lowest, 0.0) - radius, radius]
                    filled.append(ax.contourf(grid.u, grid.v, area, bounds, colors=COLOURS[kind], alpha=0.08))
        numbers = ", ".join(f"{radius:.3g}" for radius in heights)
        label = f"{NAMES[kind]} = {numbers}"
        draw_lines(ax, lines, label, color=COLOURS[kind], linestyle=STYLES[kind], linewidth=1.8, zorder=2.5)
    finish(ax, grid, filled)
    mark(ax, coordinates, places, "centre c")
    if legend:
        place_legend(ax, len(sides) + 1)
    return ax


def _radii(radii: float | Sequence[float]) -> list[float]:
    """Return radii as a list of positive numbers."""
    values: list[Any] = [radii] if isinstance(radii, (str, bytes)) or np.ndim(radii) == 0 else [*radii]  # type: ignore[misc]
    if not values:
        raise ValueError(checks.message("radii of balls", "one or several numbers above zero", "none"))
    # Numbers of numpy and torch are numbers too.
    plain = [value.item() if hasattr(value, "item") else value for value in values]
    return [checks.check_positive(value, "each of radii of balls") for value in plain]


def _boxes(scene: Scene, centre: Floats, image: Tensor, side: str, radii: Sequence[float]) -> list[Floats]:
    """Return the box around each ball of a centre: its lowest and highest coordinates, ``(2, 2)``.

    Looks along rays from the centre, along which a Bregman divergence of both kinds only grows.
    """
    plane = scene.plane
    place = plane.coordinates(centre)[0]
    lengths = np.linalg.norm(plane.first), np.linalg.norm(plane.second)
    scale = max(float(np.abs(centre).max()), 1e-3) / float(max(lengths))
    if np.abs(plane.points(place) - centre).max() > 1e-9 * max(1.0, float(np.abs(centre).max())):
        place = _nearest(scene, place, image, side, scale)
    angles = 2 * np.pi * np.arange(RAYS) / RAYS
    directions = np.stack([np.cos(angles), np.sin(angles)], 1)
    steps = scale * np.exp2(np.arange(SMALLEST, LARGEST + 1) / 2)

    def along(reach: Floats) -> Floats:
        """Return the divergence at distances on the rays, ``(rays, ...)``; infinite outside the domain."""
        coordinates = place + reach[..., None] * directions.reshape(RAYS, *(1,) * (reach.ndim - 1), 2)
        values = scene.column(coordinates.reshape(-1, 2), image, side).reshape(reach.shape)
        return np.nan_to_num(values, nan=np.inf, posinf=np.inf)

    ladder = along(np.broadcast_to(steps, (RAYS, len(steps))))
    boxes = []
    for radius in radii:
        outside = ladder > radius
        bounded = outside.any(1)
        first = outside.argmax(1)
        high = steps[first]
        low = np.where(first > 0, steps[np.maximum(first - 1, 0)], 0.0)
        for _ in range(12):
            middle = (low + high) / 2
            within = along(middle) <= radius
            low, high = np.where(within, middle, low), np.where(within, high, middle)
        # A ball may go on for ever in some directions; it is then shown for some way.
        far = 2 * high[bounded].max() if bounded.any() else 10 * scale
        reach = np.where(bounded, high, far)
        ends = place + np.minimum(reach, LONGEST_BALL * np.median(reach))[:, None] * directions
        boxes.append(np.stack([ends.min(0), ends.max(0)]))
    return boxes


def _nearest(scene: Scene, place: Floats, image: Tensor, side: str, scale: float) -> Floats:
    """Return where on the plane the divergence is smallest, by steps in ever smaller circles from a place."""
    angles = 2 * np.pi * np.arange(12) / 12
    circle = np.concatenate([np.zeros((1, 2)), np.stack([np.cos(angles), np.sin(angles)], 1)])
    step = scale
    for _ in range(60):
        around = place + step * circle
        values = np.nan_to_num(scene.column(around, image, side), nan=np.inf, posinf=np.inf)
        best = int(values.argmin())
        place = around[best]
        step = step if best else step / 2
    return place


def _finer(boxes: Floats, limits: Sequence[float], resolution: int) -> tuple[list[Floats], list[Floats]]:
    """Return further columns and rows for balls that few of the evenly spaced ones cross."""
    left, right, bottom, top = limits
    lines: tuple[list[Floats], list[Floats]] = ([], [])
    for axis, width in enumerate((right - left, top - bottom)):
        sizes = boxes[:, 1, axis] - boxes[:, 0, axis]
        small = boxes[sizes < LINES_PER_BALL * width / resolution, :, axis]
        count = max(5, min(LINES_PER_BALL, MOST_LINES // max(1, len(small))))
        for low, high in small:
            lines[axis].append(np.linspace(low - (high - low) / 8, high + (high - low) / 8, count))
    return lines
