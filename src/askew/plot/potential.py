"""The level sets of the potential of a Bregman divergence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from askew import checks
from askew.divergences import Bregman
from askew.plot.frame import draw_levels, finish, make_axes, mark, view_limits
from askew.plot.grid import Grid
from askew.plot.plane import Floats, Plane, as_rows
from askew.plot.scene import Scene
from askew.potentials import Potential

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["levels"]

# Share of the nodes that lie below the highest level: at the edge of a domain phi may have a pole.
HIGHEST = 0.93


def levels(
    divergence: object,
    *,
    at: ArrayLike | Tensor | None = None,
    count: int = 10,
    points: ArrayLike | Tensor | None = None,
    plane: Plane | None = None,
    limits: Sequence[float] | None = None,
    resolution: int = 151,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw the level sets of the potential phi of a Bregman divergence.

    .. math:: \{x : \phi(x) = t\} \quad\text{or}\quad
        \{x : \phi(x) - \phi(a) - \langle\nabla\phi(a), x - a\rangle = t\}

    They bound convex sets. The divergence does not change if an affine function is added to phi, but its level sets
    do: the second form takes away the tangent plane at a point a, so that the lowest value is 0 there. What is left is
    D(x, a), by which potentials can be compared. Behind an encoder f it is phi(f(x)), whose level sets need not be
    convex.

    Parameters
    ----------
    divergence
        A Bregman divergence, also behind an encoder, a fitted learner of one, its name, or a potential.
    at
        The point a where the tangent plane is taken away, ``(dim,)``; None shows phi as it is.
    count
        Number of levels, about.
    points
        Data to show, ``(n, dim)``, which also sets the limits if they are not given.
    plane, limits, resolution, ax
        As in :func:`balls`. Without limits or points a neighbourhood of a is shown, or the domain: all of one that is
        bounded, else 0 to 3 or -3 to 3.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

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
    bregman = scene.divergence
    if not isinstance(bregman, Bregman):
        hint = "Of a squared norm take askew.potentials.Quadratic(dim); balls and asymmetry draw any divergence."
        must = "a Bregman divergence, which has a potential"
        raise TypeError(checks.message("divergence of levels", must, type(bregman).__name__, hint))
    potential = bregman.potential
    image = None if base is None else scene.given(base, "at")[0]
    coordinates, place = scene.coordinates(data, "points"), scene.coordinates(base, "at")
    grid = Grid(scene, view_limits(scene, limits, place if coordinates is None else coordinates), resolution)

    def height(uv: Floats) -> Floats:
        return scene.values(uv, potential) if image is None else scene.column(uv, image, "first")

    values = grid.evaluate(height)
    inside = values[grid.shaped(grid.distance(grid.nodes)) >= 0]
    steps = _round_levels(inside, checks.check_size(count, "count of levels"))
    area = np.ma.masked_invalid(values)
    filled = ax.contourf(grid.u, grid.v, area, steps, cmap="Blues", extend="both", alpha=0.75)
    draw_levels(ax, grid, height, values, steps, signed=False)
    finish(ax, grid, [filled])
    mark(ax, coordinates, place)
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
