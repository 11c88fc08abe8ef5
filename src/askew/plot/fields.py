"""Pictures of a number at each place: the potential, and how asymmetric a divergence is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from askew import checks
from askew.divergences import Bregman
from askew.plot.frame import make_axes, mark, set_axes, view_limits
from askew.plot.grid import INK, Grid
from askew.plot.plane import Floats, Plane, as_rows
from askew.plot.scene import Scene
from askew.potentials import Potential

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Share of the nodes that lie below the highest level: at the edge of a domain phi may have a pole.
HIGHEST = 0.93
# Where the scale of an asymmetry may end, and below what it is rounding.
SCALES, ROUNDING = (0.1, 0.2, 0.5, 1.0), 1e-5


def levels(
    divergence: object,
    *,
    at: ArrayLike | Tensor | None = None,
    count: int = 10,
    points: ArrayLike | Tensor | None = None,
    plane: Plane | None = None,
    limits: Sequence[float] | None = None,
    resolution: int = 201,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw the level sets of the potential phi of a Bregman divergence, and return the axes.

    .. math:: \{x : \phi(x) = t\} \quad\text{or}\quad
        \{x : \phi(x) - \phi(a) - \langle\nabla\phi(a), x - a\rangle = t\}

    They bound convex sets. The divergence does not change if an affine function is added to phi, but its level sets
    do: the second form subtracts the tangent plane at a point a. What is left is D(x, a), with its lowest value 0 at a,
    by which potentials can be compared. Behind an encoder f it is phi(f(x)), whose level sets need not be convex.

    Parameters
    ----------
    divergence
        A Bregman divergence, also behind an encoder, a fitted learner of one, its name, or a potential.
    at
        The point a of the tangent plane that is subtracted, ``(dim,)``; None shows phi as it is.
    count
        Number of levels, about.
    points, plane, limits, resolution, ax
        As in :func:`balls`. Without limits or points a neighbourhood of a is shown, or the domain: all of one that is
        bounded, else 0 to 3 or -3 to 3.

    Examples
    --------
    >>> ax = levels("kl", limits=(0, 2, 0, 2))
    >>> ax.get_xlim() == (0, 2), ax.get_xlabel()
    (True, 'feature 1')
    """
    ax = make_axes(ax)
    data = None if points is None else as_rows(points, "points of levels")
    base = None if at is None else as_rows(at, "at of levels", None if data is None else data.shape[1])
    features = next((array.shape[1] for array in (data, base) if array is not None), None)
    model = Bregman(divergence) if isinstance(divergence, Potential) else divergence
    scene = Scene.of(model, features, plane, "levels")
    potential = getattr(scene.divergence, "potential", None)
    if potential is None:
        hint = "Of a squared norm take askew.potentials.Quadratic(dim); balls and asymmetry draw any divergence."
        must, got = "a Bregman divergence, which has a potential", type(scene.divergence).__name__
        raise TypeError(checks.message("divergence of levels", must, got, hint))
    centre = None if base is None else scene.given(base, "at")[:1]
    coordinates, place = scene.coordinates(data, "points"), scene.coordinates(base, "at")
    grid = Grid(scene, view_limits(scene, limits, place if coordinates is None else coordinates), resolution)
    set_axes(ax, grid)
    if centre is None:
        values = grid.evaluate(lambda uv: scene.rows(potential, scene.at(uv)))
    else:
        values = grid.evaluate(lambda uv: scene.matrix(uv, centre, "first")[:, 0])
    steps = _round_levels(values, checks.check_size(count, "count of levels"))
    grid.fill(ax, values, steps, cmap="Blues", extend="both", alpha=0.75)
    grid.draw_levels(ax, values, steps, signed=False)
    mark(ax, coordinates, place, INK)
    return ax


def _round_levels(values: Floats, count: int) -> Floats:
    """Return about ``count`` round numbers among values, without the highest of them."""
    ticker = checks.optional_import("matplotlib.ticker", "plot", "askew.plot")
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [0.0, HIGHEST])
    if not high > low:
        got = f"{low:g} at all places of the picture"
        raise ValueError(checks.message("the potential of levels", "one that varies", got))
    ticks: Floats = ticker.MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    steps = ticks[(ticks > low) & (ticks < finite.max())]
    return steps if len(steps) > 1 else np.linspace(low, high, max(count, 2) + 2)[1:-1]


def asymmetry(
    divergence: object,
    reference: ArrayLike | Tensor,
    *,
    points: ArrayLike | Tensor | None = None,
    plane: Plane | None = None,
    limits: Sequence[float] | None = None,
    resolution: int = 201,
    colorbar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw how asymmetric a divergence is between one point and all others, and return the axes.

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
    points, plane, limits, resolution, ax
        As in :func:`balls`. Without limits or points a neighbourhood of c is shown, or all of a bounded domain.
    colorbar
        Whether to explain the colours, next to the axes.

    Examples
    --------
    >>> ax = asymmetry("kl", [1.0, 1.0], limits=(0, 3, 0, 3))
    >>> ax.get_xlabel()
    'feature 1'
    """
    ax = make_axes(ax)
    base = as_rows(reference, "reference of asymmetry")
    if len(base) > 1:
        raise ValueError(checks.message("reference of asymmetry", "one point, of shape (dim,)", f"{len(base)} points"))
    scene = Scene.of(divergence, base.shape[1], plane, "asymmetry")
    centre = scene.given(base, "reference")
    coordinates, place = scene.coordinates(points, "points"), scene.plane.coordinates(base)
    seen = place if coordinates is None else np.concatenate([coordinates, place])
    grid = Grid(scene, view_limits(scene, limits, seen), resolution)
    set_axes(ax, grid)

    values = grid.evaluate(
        lambda uv: _relative(scene.matrix(uv, centre, "first")[:, 0], scene.matrix(uv, centre, "second")[:, 0])
    )
    sizes = np.abs(values[np.isfinite(values)])
    symmetric = sizes.max() < ROUNDING
    # Only rounding is left of a symmetric divergence, which has no lines.
    values = np.zeros_like(values) if symmetric else values
    end = next(end for end in SCALES if end == 1.0 or np.quantile(sizes, 0.9) <= end)
    filled = grid.fill(ax, values, np.linspace(-end, end, 21), cmap="PuOr_r", extend="both")
    if not symmetric:
        grid.draw_levels(ax, values, np.round(np.linspace(-end, end, 11), 9)[1:-1], signed=True)
    mark(ax, coordinates, place, INK)
    if colorbar:
        label, ticks = "(D(x, c) - D(c, x)) / (D(x, c) + D(c, x))", np.linspace(-end, end, 5)
        ax.figure.colorbar(filled, ax=ax, label=label, shrink=0.8, ticks=ticks).outline.set_visible(False)
    return ax


def _relative(forth: Floats, back: Floats) -> Floats:
    """Return the difference of two divergences relative to their sum; 0 where both are 0, as at one point."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = (forth - back) / (forth + back)
    # One that overflowed is larger than any other.
    quotient = np.where(np.isinf(forth) & np.isfinite(back), 1.0, quotient)
    quotient = np.where(np.isinf(back) & np.isfinite(forth), -1.0, quotient)
    return np.where((forth == 0) & (back == 0), 0.0, quotient)
