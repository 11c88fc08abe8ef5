"""How asymmetric a divergence is: between one point and all others, and between neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks
from askew.plot.frame import INK, draw_colorbar, draw_levels, finish, make_axes, mark, view_limits
from askew.plot.grid import Grid
from askew.plot.plane import Floats, Plane, as_rows
from askew.plot.scene import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["asymmetry", "local_asymmetry"]

# Where the scale of an asymmetry may end, and below what it is rounding.
SCALES, ROUNDING = (0.1, 0.2, 0.5, 1.0), 1e-5
# Directions that are tried at each place for the local asymmetry.
DIRECTIONS = 24


def asymmetry(
    divergence: object,
    reference: ArrayLike | Tensor,
    *,
    points: ArrayLike | Tensor | None = None,
    plane: Plane | None = None,
    limits: Sequence[float] | None = None,
    resolution: int = 121,
    colorbar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw how asymmetric a divergence is between one point and all others.

    .. math:: A(x) = \frac{D(x, c) - D(c, x)}{D(x, c) + D(c, x)} \in [-1, 1]

    A = 0 where both directions agree, 0.5 where D(x, c) is three times D(c, x), -0.5 where it is a third of it. For a
    Bregman divergence it is 0 at c and grows in proportion to the distance from there. Lines are dashed where A is
    negative, and the line A = 0 is thick.

    Parameters
    ----------
    divergence
        As in :func:`balls`.
    reference
        The point c, ``(dim,)``.
    points
        Data to show, ``(n, dim)``, which also sets the limits if they are not given.
    plane, limits, resolution, ax
        As in :func:`balls`. Without limits or points a neighbourhood of c is shown, or all of a bounded domain.
    colorbar
        Whether to explain the colours, beside the axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> ax = asymmetry("kl", [1.0, 1.0], limits=(0, 3, 0, 3))
    >>> ax.get_xlabel()
    'feature 1'
    """
    ax = make_axes(ax)
    centre = as_rows(reference, "reference of asymmetry")
    if len(centre) > 1:
        must = "one point, of shape (dim,)"
        raise ValueError(checks.message("reference of asymmetry", must, f"{len(centre)} points"))
    scene = Scene.of(divergence, centre.shape[1], plane, "asymmetry")
    image = scene.given(centre, "reference")[0]
    coordinates, place = scene.coordinates(points, "points"), scene.plane.coordinates(centre)
    seen = place if coordinates is None else np.concatenate([coordinates, place])
    grid = Grid(scene, view_limits(scene, limits, seen), resolution)

    def relative(uv: Floats) -> Floats:
        return _relative(scene.column(uv, image, "first"), scene.column(uv, image, "second"))

    values = grid.evaluate(relative)
    sizes = np.abs(values[np.isfinite(values)])
    symmetric = sizes.max() < ROUNDING
    # Of a symmetric divergence only rounding is left, which has no lines.
    values = np.zeros_like(values) if symmetric else values
    end = next(end for end in SCALES if end == 1.0 or np.quantile(sizes, 0.9) <= end)
    area = np.ma.masked_invalid(values)
    filled = ax.contourf(grid.u, grid.v, area, np.linspace(-end, end, 21), cmap="PuOr_r", extend="both")
    if not symmetric:
        draw_levels(ax, grid, relative, values, np.round(np.linspace(-end, end, 11), 9)[1:-1], signed=True)
    finish(ax, grid, [filled])
    mark(ax, coordinates, place)
    if colorbar:
        draw_colorbar(ax, filled, "(D(x, c) - D(c, x)) / (D(x, c) + D(c, x))", np.linspace(-end, end, 5))
    return ax


def local_asymmetry(
    divergence: object,
    *,
    step: float | None = None,
    arrows: int = 13,
    points: ArrayLike | Tensor | None = None,
    plane: Plane | None = None,
    limits: Sequence[float] | None = None,
    resolution: int = 51,
    colorbar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw how asymmetric a divergence is between each point and its neighbours, and in which direction.

    .. math:: \max_{|h| = s}\ \frac{D(x + h, x) - D(x, x + h)}{D(x + h, x) + D(x, x + h)}

    The colour is this number, and the arrow is the direction h that has it: for a step along the arrow D(there, here)
    is larger than D(here, there), for one against it smaller. For a Bregman divergence the numerator is, for small h,
    minus a sixth of the third derivative of phi along h: arrows point to where phi curves less, and the number grows
    in proportion to s. Places nearer to the edge of the domain than s are left white.

    Parameters
    ----------
    divergence
        As in :func:`balls`.
    step
        The length s of a step, in units of the axes; by default a twentieth of the shorter one.
    arrows
        Number of arrows along the longer axis.
    points
        Data to show, ``(n, dim)``, which also sets the limits if they are not given.
    plane, limits, resolution, colorbar, ax
        As in :func:`asymmetry`. Without limits or points the domain is shown: all of one that is bounded, else 0 to 3
        or -3 to 3.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> ax = local_asymmetry("itakura-saito", limits=(0, 3, 0, 3), resolution=11)
    >>> ax.get_xlabel()
    'feature 1'
    """
    ax = make_axes(ax)
    data = None if points is None else as_rows(points, "points of local_asymmetry")
    arrows = checks.check_size(arrows, "arrows of local_asymmetry")
    scene = Scene.of(divergence, None if data is None else data.shape[1], plane, "local_asymmetry")
    coordinates = scene.coordinates(data, "points")
    grid = Grid(scene, view_limits(scene, limits, coordinates), resolution)
    sides = np.ptp(grid.polygon, axis=0)
    ticker = checks.optional_import("matplotlib.ticker", "plot", "askew.plot")
    colormaps = checks.optional_import("matplotlib", "plot", "askew.plot").colormaps
    length = float(sides.min()) / 20 if step is None else checks.check_positive(step, "step of local_asymmetry")

    inner = Grid(scene, view_limits(scene, limits, coordinates), resolution, reach=length)
    strength = inner.evaluate(lambda uv: _strongest(scene, uv, length)[0])
    finite = strength[np.isfinite(strength)]
    symmetric = finite.max() < ROUNDING
    # Round numbers, and the few highest values at the edge of a domain above them.
    most = 1.0 if symmetric else float(np.quantile(finite, 0.95))
    shades = ticker.MaxNLocator(8).tick_values(0, most)
    # Light enough for the arrows to be seen on all of them.
    colours = colormaps["YlOrBr"](np.linspace(0, 0.6, len(shades)))
    area = np.ma.masked_invalid(strength)
    filled = ax.contourf(inner.u, inner.v, area, shades, colors=colours, extend="max")
    if not symmetric:
        places = _spread(inner, arrows)
        sizes, directions = _strongest(scene, places, length)
        kept = sizes > ROUNDING
        longest = 0.85 * float(sides.max()) / arrows
        # Lengths that follow the colours closely would be too short to see in most places.
        vectors = longest * directions[kept] * np.sqrt(np.minimum(1, sizes[kept] / most))[:, None]
        tails = places[kept] - vectors / 2
        ax.quiver(*tails.T, *vectors.T, angles="xy", scale_units="xy", scale=1, color=INK, width=0.004, zorder=2.5)
    finish(ax, grid, [filled], inner)
    mark(ax, coordinates, None)
    if colorbar:
        draw_colorbar(ax, filled, f"largest asymmetry of a step of length {length:.2g}", None)
    return ax


def _relative(forth: Floats, back: Floats) -> Floats:
    """Return the difference of two divergences relative to their sum; 0 where both are 0, as at one point."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = (forth - back) / (forth + back)
    # One that overflowed is larger than any other.
    quotient = np.where(np.isinf(forth) & np.isfinite(back), 1.0, quotient)
    quotient = np.where(np.isinf(back) & np.isfinite(forth), -1.0, quotient)
    result: Floats = np.where((forth == 0) & (back == 0), 0.0, quotient)
    return result


def _strongest(scene: Scene, places: Floats, length: float) -> tuple[Floats, Floats]:
    """Return the largest relative asymmetry of steps from places, and their directions, ``(n,)`` and ``(n, 2)``.

    NaN where a step leads out of the domain.
    """
    angles = 2 * np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    directions = np.stack([np.cos(angles), np.sin(angles)], 1)
    here = scene.images(scene.plane.points(places))
    found = np.empty((len(places), DIRECTIONS))
    for i, direction in enumerate(directions):
        there = scene.images(scene.plane.points(places + length * direction))
        found[:, i] = _relative(scene.rowwise(there, here), scene.rowwise(here, there))
    safe = np.isfinite(found.sum(1))
    best: NDArray[np.int64] = np.where(safe[:, None], found, 0.0).argmax(1)
    return np.where(safe, found[np.arange(len(found)), best], np.nan), directions[best]


def _spread(grid: Grid, count: int) -> Floats:
    """Return evenly spaced places inside the domain, ``count`` along the longer side of the picture."""
    low, high = grid.polygon.min(0), grid.polygon.max(0)
    spacing = (high - low).max() / count
    axes = []
    for start, end in zip(low, high, strict=True):
        number = max(1, round((end - start) / spacing))
        axes.append(start + (np.arange(number) + 0.5) * (end - start) / number)
    places: Floats = np.stack([part.ravel() for part in np.meshgrid(*axes)], 1)
    return places[grid.distance(places) > 0]
