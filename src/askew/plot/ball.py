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

# Rays from each centre along which the end of a ball is searched; steps on them from 2^-20 to 2^12, by half powers.
RAYS, SMALLEST, LARGEST = 32, -40, 24
# The limits show no more of a ball than this many times the usual distance from its centre to its end.
LONGEST_BALL = 20
# Grid lines that cross every ball, at least, in each direction; fewer for many small balls.
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
    r"""Draw the balls of a divergence around centres, of both kinds, and return the axes.

    .. math:: \{x : D(x, c) \le r\} \quad\text{(first)} \qquad \{x : D(c, x) \le r\} \quad\text{(second)}

    Where D is symmetric both are the same; where it is not, their difference shows in which directions it is not, and
    how much. For a Bregman divergence the balls of the first kind are convex, those of the second need not be. Every
    vertex of the lines has the divergence r to about 1e-6 of it. Behind an encoder, x is a point before encoding, and a
    ball may have several parts: those outside the picture are seen with wider ``limits``.

    Parameters
    ----------
    divergence
        A divergence, also behind an encoder, a fitted learner, or the name of one that needs no learning.
    centres
        The points c, ``(n, dim)`` or one of ``(dim,)``. Those off the plane are marked at their projections; their
        balls are drawn where they cut the plane, which may be nowhere.
    radii
        One or several numbers above zero; each centre gets a ball of each.
    side
        ``"first"``, ``"second"`` or ``"both"``.
    points
        Data to show, ``(n, dim)``, which also sets the limits if they are not given: learned balls can be very long.
    plane
        The plane to show of points with more than two features. Three features of the simplex need none.
    limits
        Left, right, bottom and top of the picture; by default points fit, or else all balls; a bounded domain is
        shown as a whole.
    resolution
        Number of grid lines in each direction; balls that few of them cross get more.
    legend
        Whether to explain the lines, below the axes.
    ax
        The axes to draw into; None makes new ones.

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
    embeddings = scene.given(array, "centres")
    places = scene.plane.coordinates(array)

    around = list(zip(array, embeddings, strict=True))
    boxes = np.array([box for c, e in around for kind in sides for box in _boxes(scene, c, e, kind, heights)])
    coordinates = scene.coordinates(points, "points")
    seen = boxes.reshape(-1, 2) if coordinates is None else coordinates
    shown = view_limits(scene, limits, np.concatenate([seen, places]))
    grid = Grid(scene, shown, resolution, *_finer(boxes, shown, resolution))

    filled = []
    for kind in sides:
        matrix = scene.matrix(grid.inside(grid.nodes), embeddings, kind)
        lines: list[Floats] = []
        for i, centre in enumerate(embeddings):
            values = matrix[:, i].reshape(len(grid.v), len(grid.u))
            lowest = float(np.nanmin(values, initial=np.inf))
            for radius in heights:
                lines += grid.curves(lambda uv, c=centre, k=kind: scene.column(uv, c, k), values, radius)  # type: ignore[misc]
                if lowest < radius:
                    bounds = [min(lowest, 0.0) - radius, radius]
                    filled.append(grid.fill(ax, values, bounds, colors=COLOURS[kind], alpha=0.08))
        label = f"{NAMES[kind]} = {', '.join(f'{radius:.3g}' for radius in heights)}"
        draw_lines(ax, lines, label, color=COLOURS[kind], linestyle=STYLES[kind], linewidth=1.8, zorder=2.5)
    finish(ax, grid, filled)
    mark(ax, coordinates, places, "centre c")
    if legend:
        place_legend(ax, len(sides) + 1)
    return ax


def _radii(radii: float | Sequence[float]) -> list[float]:
    values: list[Any] = [radii] if isinstance(radii, (str, bytes)) or np.ndim(radii) == 0 else [*radii]  # type: ignore[misc]
    if not values:
        raise ValueError(checks.message("radii of balls", "one or several numbers above zero", "none"))
    # Scalars of numpy and torch are numbers as well.
    plain = [value.item() if hasattr(value, "item") else value for value in values]
    return [checks.check_positive(value, "each of radii of balls") for value in plain]


def _boxes(scene: Scene, centre: Floats, embedding: Tensor, side: str, radii: Sequence[float]) -> list[Floats]:
    """Return the box around each ball of a centre: its lowest and highest coordinates, ``(2, 2)``.

    Searches along rays from the centre, along which a Bregman divergence of both kinds only grows.
    """
    plane = scene.plane
    place = plane.coordinates(centre)[0]
    scale = max(float(np.abs(centre).max()), 1e-3) / float(max(np.linalg.norm([plane.first, plane.second], axis=1)))

    def at(coordinates: Floats) -> Floats:
        """Return the divergence at coordinates, ``(..., 2) -> (...)``; infinite outside the domain."""
        values = scene.column(coordinates.reshape(-1, 2), embedding, side)
        return np.nan_to_num(values, nan=np.inf, posinf=np.inf).reshape(coordinates.shape[:-1])

    angles = 2 * np.pi * np.arange(RAYS) / RAYS
    directions = np.stack([np.cos(angles), np.sin(angles)], 1)
    if np.abs(plane.points(place) - centre).max() > 1e-9 * max(1.0, float(np.abs(centre).max())):
        # The centre is off the plane: go where the divergence is smallest, in ever smaller steps.
        step = scale
        for _ in range(60):
            around = np.concatenate([place[None], place + step * directions])
            best = int(at(around).argmin())
            place, step = around[best], step if best else step / 2
    steps = scale * np.exp2(np.arange(SMALLEST, LARGEST + 1) / 2)
    ladder = at(place + steps[:, None] * directions[:, None])
    boxes = []
    for radius in radii:
        outside = ladder > radius
        bounded, first = outside.any(1), outside.argmax(1)
        low, high = np.where(first > 0, steps[first - 1], 0.0), steps[first]
        for _ in range(12):
            middle = (low + high) / 2
            within = at(place + middle[:, None] * directions) <= radius
            low, high = np.where(within, middle, low), np.where(within, high, middle)
        # A ball may be unbounded in some directions; it is then shown for some way.
        reach = np.where(bounded, high, 2 * high[bounded].max() if bounded.any() else 10 * scale)
        ends = place + np.minimum(reach, LONGEST_BALL * np.median(reach))[:, None] * directions
        boxes.append(np.stack([ends.min(0), ends.max(0)]))
    return boxes


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
