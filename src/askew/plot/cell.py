"""The cells of clusters: which points are nearest to which centre."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from askew import checks
from askew.divergences import split_encoder
from askew.plot.frame import CYCLE, make_axes, place_legend, set_axes, view_limits
from askew.plot.grid import Grid, ink
from askew.plot.plane import Floats, Plane, as_rows
from askew.plot.scene import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# How far away the nearest other centre is where there is none.
FAR = 1e300
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
    resolution: int = 301,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw the cells of clusters and the bisectors between them, and return the axes.

    .. math:: \text{cell}_i = \{x : D(x, c_i) \le D(x, c_j)\ \forall j\}, \qquad
        \text{dual:}\ \{x : D(c_i, x) \le D(c_j, x)\ \forall j\}

    For a Bregman divergence, D(x, a) - D(x, b) is affine in x: the bisectors are straight, and at a place that the
    potential decides. D(a, x) - D(b, x) is affine in the gradient at x instead, so the bisectors of the dual cells are
    curved. Behind an encoder both are.

    Parameters
    ----------
    clusters
        A fitted :class:`askew.BregmanKMeans`, or centres, ``(k, dim)``.
    divergence
        The divergence between points and centres, as in :func:`balls`; a fitted clustering has one.
    points
        Data to show, ``(n, dim)``, each with the colour and the marker of its nearest centre. With more than two
        features that may be another one than that of the cell it is drawn in, as not all points lie on the plane.
    dual
        Whether the centre is the first argument; False by default, and as it was for a fitted clustering.
    plane, limits, resolution, legend, ax
        As in :func:`balls`; by default points and centres fit, and a bounded domain is shown as a whole.

    Examples
    --------
    >>> ax = cells([[1.0, 1.0], [3.0, 1.0], [1.0, 4.0]], "itakura-saito")
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['D(x, a) = D(x, b)', 'centre']
    """
    ax = make_axes(ax)
    data = None if points is None else as_rows(points, "points of cells")
    fitted = getattr(clusters, "cluster_centers_", None)
    if fitted is None:
        _check_centres(clusters, divergence)
    elif divergence is not None or dual is not None:
        must = "left out for a fitted clustering, which has its own"
        raise ValueError(checks.message("divergence and dual of cells", must, f"{divergence!r} and {dual!r}"))
    else:
        # The parameter, as the fitted divergence may be without its encoder; other clusterings are Euclidean.
        divergence, dual = getattr(clusters, "divergence", "euclidean"), bool(getattr(clusters, "dual", False))
    array = as_rows(clusters if fitted is None else fitted, "clusters of cells")  # type: ignore[arg-type]
    embedded = fitted is not None and split_encoder(divergence, array.shape[1], "cells").encoder is not None
    features = getattr(clusters, "n_features_in_", None if embedded else array.shape[1])
    scene = Scene.of(divergence, features if data is None else data.shape[1], plane, "cells")
    side = "second" if dual else "first"
    if embedded:  # centres that are embeddings have no place among the points
        centres, places = scene.converted(torch.from_numpy(array)), None
    else:
        centres, places = scene.given(array, "centres"), scene.plane.coordinates(array)
    coordinates = scene.coordinates(data, "points")
    seen = [part for part in (coordinates, places) if part is not None]
    grid = Grid(scene, view_limits(scene, limits, np.concatenate(seen) if seen else None), resolution)
    set_axes(ax, grid)

    ground = ax.patch.get_facecolor()
    matrix = grid.evaluate(lambda uv: scene.matrix(uv, centres, side))
    edges: list[Floats] = []
    for i in range(len(centres)):
        lead = matrix[..., i] - np.delete(matrix, i, -1).min(-1, initial=FAR)
        if np.nanmin(lead) < 0:
            grid.fill(ax, lead, [-2 * FAR, 0.0], colors=CYCLE[i % len(CYCLE)], alpha=0.22)
            edges += grid.lines(lead, 0.0)
    label = "D(a, x) = D(b, x)" if dual else "D(x, a) = D(x, b)"
    grid.draw(ax, edges, label, color=ink(ax), linewidth=1.6, zorder=2.2)
    if data is not None and coordinates is not None:
        owners = scene.pairs(scene.given(data, "points", first=not dual), centres, side).argmin(1).cpu().numpy()
        for i in np.unique(owners):
            u, v = coordinates[owners == i].T
            colour, marker = CYCLE[i % len(CYCLE)], MARKERS[i % len(MARKERS)]
            ax.scatter(u, v, s=20, color=colour, marker=marker, edgecolor=ground, linewidths=0.5, zorder=2.4)
    if places is not None:
        ax.plot(*places.T, "X", label="centre", color=ink(ax), markersize=11, markeredgecolor=ground, zorder=3)
    if legend:
        place_legend(ax, 2)
    return ax


def _check_centres(clusters: object, divergence: object) -> None:
    """Raise for what was given instead of a fitted clustering, if it cannot be centres with a divergence."""
    if hasattr(clusters, "fit"):
        got, hint = f"a {type(clusters).__name__} that is not fitted", "Call its fit first."
        raise ValueError(checks.message("clusters of cells", "a fitted clustering, or centres", got, hint))
    if divergence is None:
        hint = 'Example: cells(centres, "kl").'
        raise ValueError(checks.message("divergence of cells", "given together with centres", "None", hint))
