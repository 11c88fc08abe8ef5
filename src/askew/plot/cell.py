"""The cells of clusters: which points are nearest to which centre."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from askew import checks
from askew.divergences import split_encoder
from askew.plot.frame import CYCLE, INK, draw_lines, finish, make_axes, place_legend, view_limits
from askew.plot.grid import HUGE, Grid, cut
from askew.plot.plane import Floats, Plane, as_rows
from askew.plot.scene import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["cells"]

# Clusters differ by colour and by marker.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def cells(
    clusters: object,
    divergence: object = None,
    *,
    points: ArrayLike | Tensor | None = None,
    dual: bool | None = None,
    plane: Plane | None = None,
    limits: Sequence[float] | None = None,
    resolution: int = 201,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw the cells of clusters and the bisectors between them.

    .. math:: \text{cell}_i = \{x : D(x, c_i) \le D(x, c_j)\ \forall j\}, \qquad
        \text{dual:}\ \{x : D(c_i, x) \le D(c_j, x)\ \forall j\}

    For a Bregman divergence, D(x, a) - D(x, b) is affine in x: the bisectors are straight, and at a place that the
    potential decides. D(a, x) - D(b, x) is affine in the gradient at x instead, so the bisectors of the dual cells are
    curved. Behind an encoder both are. Every corner of a line is as far from both of its centres, to about 1e-6.

    Parameters
    ----------
    clusters
        A fitted :class:`askew.BregmanKMeans`, or centres, ``(k, dim)``.
    divergence
        What compares points with centres, as in :func:`balls`; a fitted clustering knows its own.
    points
        Data to show, ``(n, dim)``, each with the colour and the marker of its nearest centre. Of more than two features
        that may be another one than that of the cell it is drawn in, as the plane does not go through all points.
    dual
        Whether the centre is the first argument; False by default, and as it was for a fitted clustering.
    plane, limits, resolution, legend, ax
        As in :func:`balls`; by default points and centres fit, and all of a bounded domain is shown.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> ax = cells([[1.0, 1.0], [3.0, 1.0], [1.0, 4.0]], "itakura-saito")
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['D(x, a) = D(x, b)', 'centre']
    """
    ax = make_axes(ax)
    data = None if points is None else as_rows(points, "points of cells")
    known = _known(clusters, divergence, dual)
    features = known.features if data is None else data.shape[1]
    scene = Scene.of(known.divergence, features, plane, "cells")
    side = "second" if known.dual else "first"
    if known.encoded:
        # Centres of images have no place among the points.
        images, places = scene.compared(known.centres, "centres"), None
    else:
        images, places = scene.given(known.centres, "centres"), scene.plane.coordinates(known.centres)
    coordinates = scene.coordinates(data, "points")
    seen = [part for part in (coordinates, places) if part is not None]
    grid = Grid(scene, view_limits(scene, limits, np.concatenate(seen) if seen else None), resolution)

    matrix = grid.evaluate(lambda uv: scene.matrix(uv, images, side))
    filled = _fill(ax, grid, matrix)
    label = "D(a, x) = D(b, x)" if known.dual else "D(x, a) = D(x, b)"
    draw_lines(ax, _bisectors(grid, images, side, matrix), label, color=INK, linewidth=1.6, zorder=2.2)
    if data is not None and coordinates is not None:
        owners = _nearest(scene, data, images, side)
        for i in np.unique(owners):
            u, v = coordinates[owners == i].T
            colour, marker = CYCLE[i % len(CYCLE)], MARKERS[i % len(MARKERS)]
            ax.scatter(u, v, s=20, color=colour, marker=marker, edgecolor="white", linewidths=0.5, zorder=2.4)
    if places is not None:
        ax.plot(*places.T, "X", label="centre", color=INK, markersize=11, markeredgecolor="white", zorder=3)
    finish(ax, grid, filled)
    if legend:
        place_legend(ax, 2)
    return ax


class _Known(NamedTuple):
    """What was given: centres, of how many features points are, whether centres are images, what compares them how."""

    centres: Floats
    features: int | None
    encoded: bool
    divergence: object
    dual: bool


def _known(clusters: object, divergence: object, dual: bool | None) -> _Known:
    fitted = getattr(clusters, "cluster_centers_", None)
    if fitted is None and hasattr(clusters, "fit"):
        got = f"a {type(clusters).__name__} that is not fitted"
        raise ValueError(
            checks.message("clusters of cells", "a fitted clustering, or centres", got, "Call its fit first.")
        )
    if fitted is None:
        if divergence is None:
            hint = 'Example: cells(centres, "kl").'
            raise ValueError(checks.message("divergence of cells", "given together with centres", "None", hint))
        centres = as_rows(clusters, "clusters of cells")  # type: ignore[arg-type]
        return _Known(centres, centres.shape[1], False, divergence, bool(dual))
    if divergence is not None or dual is not None:
        must = "left out for a fitted clustering, which has its own"
        raise ValueError(checks.message("divergence and dual of cells", must, f"{divergence!r} and {dual!r}"))
    centres = as_rows(fitted, "clusters of cells")
    # The parameter and not what was fitted, which may come without its encoder; other clusterings are Euclidean.
    own = getattr(clusters, "divergence", "euclidean")
    encoded = split_encoder(own, centres.shape[1], "cells").encoder is not None
    features = getattr(clusters, "n_features_in_", None if encoded else centres.shape[1])
    return _Known(centres, features, encoded, own, bool(getattr(clusters, "dual", False)))


def _nearest(scene: Scene, data: Floats, images: Tensor, side: str) -> Floats:
    """Return the number of the centre that is nearest to each point."""
    owners: Floats = scene.pairs(scene.given(data, "points", first=side == "first"), images, side).argmin(1)
    return owners


def _fill(ax: Axes, grid: Grid, matrix: Floats) -> list[object]:
    """Colour each cell lightly."""
    filled: list[object] = []
    for i in range(matrix.shape[-1]):
        others = np.delete(matrix, i, -1)
        lead = matrix[..., i] - others.min(-1) if others.shape[-1] else np.full(matrix.shape[:2], -1.0)
        if np.nanmin(lead) < 0:
            area = np.ma.masked_invalid(lead)
            colour = CYCLE[i % len(CYCLE)]
            filled.append(ax.contourf(grid.u, grid.v, area, [-HUGE, 0.0], colors=colour, alpha=0.22))
    return filled


def _bisectors(grid: Grid, images: Tensor, side: str, matrix: Floats) -> list[Floats]:
    """Return the lines between cells that touch, each where its two centres are nearest and equally far."""
    scene = grid.scene
    lines: list[Floats] = []
    for i, j in sorted(_touching(matrix)):

        def difference(uv: Floats, i: int = i, j: int = j) -> Floats:
            return scene.column(uv, images[i], side) - scene.column(uv, images[j], side)

        def lead(uv: Floats, i: int = i, j: int = j) -> Floats:
            """Return how much farther away the nearest of the other centres is."""
            values = scene.matrix(grid.inside(uv), images, side)
            own: Floats = np.minimum(values[:, i], values[:, j])
            rest: Floats = np.delete(values, [i, j], 1).min(1)
            return rest - own

        whole = grid.curves(difference, matrix[..., i] - matrix[..., j], 0.0)
        lines += cut(whole, lead) if len(images) > 2 else whole
    return lines


def _touching(matrix: Floats) -> set[tuple[int, int]]:
    """Return the pairs of centres whose cells have neighbouring nodes."""
    owners = np.where(np.isnan(matrix).any(-1), -1, matrix.argmin(-1))
    pairs: set[tuple[int, int]] = set()
    for a, b in ((owners[1:], owners[:-1]), (owners[:, 1:], owners[:, :-1]), (owners[1:, 1:], owners[:-1, :-1])):
        apart = (a != b) & (a >= 0) & (b >= 0)
        couples = np.unique(np.sort(np.stack([a[apart], b[apart]], 1), axis=1), axis=0)
        pairs |= {(int(i), int(j)) for i, j in couples}
    return pairs
