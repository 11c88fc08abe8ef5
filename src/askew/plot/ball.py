"""The balls of a divergence, of both kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from askew import checks
from askew.plot.frame import FIRST, SECOND, make_axes, mark, place_legend, set_axes, view_limits
from askew.plot.grid import Grid, ink
from askew.plot.plane import Floats, Plane, as_rows
from askew.plot.scene import SIDES, Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Rays from each centre along which the end of a ball is searched; steps on them from 2^-20 to 2^12, by eighth powers.
RAYS, STEPS = 32, np.exp2(np.arange(-160, 97) / 8)
# The limits show no more of a ball than this many times the usual distance from its centre to its end.
LONGEST_BALL = 20
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
    resolution: int = 301,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw the balls of a divergence around centres, of both kinds, and return the axes.

    .. math:: \{x : D(x, c) \le r\} \quad\text{(first)} \qquad \{x : D(c, x) \le r\} \quad\text{(second)}

    Where D is symmetric both are the same; where it is not, their difference shows in which directions it is not, and
    how much. For a Bregman divergence the balls of the first kind are convex, those of the second need not be. Behind
    an encoder, x is a point before encoding, and a ball may have several parts: those outside the picture are seen with
    wider ``limits``.

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
        Number of grid lines in each direction. Balls that are smaller than their spacing are not seen.
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

    coordinates = scene.coordinates(points, "points")
    seen = [places]
    if coordinates is not None:
        seen.append(coordinates)
    elif limits is None:
        around = list(zip(array, embeddings, strict=True))
        seen += [_ends(scene, c, e, kind, max(heights)) for c, e in around for kind in sides]
    grid = Grid(scene, view_limits(scene, limits, np.concatenate(seen)), resolution)
    set_axes(ax, grid)
    for kind in sides:
        matrix = grid.evaluate(lambda uv, k=kind: scene.matrix(uv, embeddings, k))  # type: ignore[misc]
        lines: list[Floats] = []
        for values in np.moveaxis(matrix, -1, 0):
            lowest = float(np.nanmin(values))
            for radius in heights:
                lines += grid.lines(values, radius)
                if lowest < radius:
                    grid.fill(ax, values, [min(lowest, 0.0) - radius, radius], colors=COLOURS[kind], alpha=0.08)
        label = f"{NAMES[kind]} = {', '.join(f'{radius:.3g}' for radius in heights)}"
        grid.draw(ax, lines, label, color=COLOURS[kind], linestyle=STYLES[kind], linewidth=1.8, zorder=2.5)
    mark(ax, coordinates, places, ink(ax), "centre c")
    if legend:
        place_legend(ax, len(sides) + 1)
    return ax


def _radii(radii: float | Sequence[float]) -> list[float]:
    values = np.asarray(radii).ravel().tolist()
    if not values:
        raise ValueError(checks.message("radii of balls", "one or several numbers above zero", "none"))
    return [checks.check_positive(value, "each of radii of balls") for value in values]


def _ends(scene: Scene, centre: Floats, embedding: Tensor, side: str, radius: float) -> Floats:
    """Return where rays from a centre, or from its projection onto the plane, leave a ball for good, ``(rays, 2)``."""
    plane = scene.plane
    place = plane.coordinates(centre)[0]
    scale = max(float(np.abs(centre).max()), 1e-3) / float(max(np.linalg.norm([plane.first, plane.second], axis=1)))
    angles = 2 * np.pi * np.arange(RAYS) / RAYS
    directions = np.stack([np.cos(angles), np.sin(angles)], 1)
    steps = scale * STEPS[:, None]
    ladder = (place + steps[..., None] * directions).reshape(-1, 2)
    inside = (scene.matrix(ladder, embedding[None], side)[:, 0] <= radius) & (scene.slacks(ladder).min(1) > 0)
    reach = (steps * inside.reshape(-1, RAYS)).max(0)
    # A ball may be unbounded in some directions; it is then shown for some way.
    ends: Floats = place + np.minimum(reach, LONGEST_BALL * np.median(reach))[:, None] * directions
    return ends
