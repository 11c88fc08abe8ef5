"""Cells: bisectors lie between the right centres, straight or curved as the mathematics says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from plot_lines import CLOSE, off_level
from sklearn.cluster import KMeans
from torch import nn

import askew
from askew import plot
from askew.clustering import BregmanKMeans
from askew.plot import Plane

CENTRES = np.array([[0.5, 0.5], [2.0, 0.6], [0.7, 2.2], [1.2, 1.2]])
POINTS = np.random.default_rng(0).uniform(0.1, 3.0, size=(60, 2))
Array = np.ndarray[Any, Any]


def edges(ax: Axes) -> list[Array]:
    """Return the edges of the cells, each drawn for both of its cells."""
    (found,) = [part for part in ax.collections if str(part.get_label()).startswith("D(")]
    assert isinstance(found, LineCollection)
    return [np.asarray(segment) for segment in found.get_segments()]


def distances(divergence: askew.Divergence, x: Array, centres: Array, dual: bool) -> Array:
    first, second = torch.from_numpy(x), torch.from_numpy(centres)
    values = divergence.pairwise(second, first).T if dual else divergence.pairwise(first, second)
    return values.numpy()


def bend(line: Array) -> float:
    """Return the largest distance of a corner from the straight line between the ends, relative to its length."""
    along = line[-1] - line[0]
    offset = line - line[0]
    cross = offset[:, 0] * along[1] - offset[:, 1] * along[0]
    return float(np.abs(cross).max() / (along @ along))


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("name", ["kl", "itakura-saito", "exponential", "euclidean"])
def test_edges_are_as_far_from_their_two_centres_and_farther_from_all_others(name: str, dual: bool) -> None:
    divergence, centres = askew.make(name, 2), torch.from_numpy(CENTRES)

    def lead(x: torch.Tensor) -> torch.Tensor:
        values = divergence.pairwise(centres, x).T if dual else divergence.pairwise(x, centres)
        nearest = values.sort(1).values
        return nearest[:, 1] - nearest[:, 0]

    ax = plot.cells(CENTRES, name, dual=dual, limits=(0.02, 3, 0.02, 3))
    drawn = edges(ax)
    assert len(drawn) >= 4
    errors = np.concatenate([off_level(ax, lead, line, 0.0) for line in drawn])
    # Where three cells meet, the corner of a cell is cut off within one square of the grid.
    assert np.quantile(errors, 0.97) < CLOSE
    assert errors.max() < 5e-3


@pytest.mark.parametrize("name", ["kl", "itakura-saito", "exponential"])
def test_bisectors_of_bregman_cells_are_straight_and_of_dual_ones_curved(name: str) -> None:
    for pair in ([0, 1], [0, 2], [1, 2]):
        straight, curved = (
            edges(plot.cells(CENTRES[pair], name, dual=dual, limits=(0.1, 3, 0.1, 3), resolution=71))
            for dual in (False, True)
        )
        assert max(bend(line) for line in straight) < 1e-6
        assert max(bend(line) for line in curved) > 0.01


def test_bisector_of_two_centres_under_the_squared_distance_is_the_perpendicular() -> None:
    ax = plot.cells([[0.0, 0.0], [2.0, 2.0]], "euclidean", limits=(-1, 3, -1, 3))
    for line in edges(ax):
        np.testing.assert_allclose(line.sum(1), 2, atol=1e-6)
        np.testing.assert_allclose(sorted(line[[0, -1], 0]), [-1, 3])


def test_three_cells_meet_in_one_point() -> None:
    centres = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    drawn = edges(plot.cells(centres, "euclidean", limits=(-2, 4, -2, 4)))
    assert len(drawn) == 3
    for line in drawn:  # the middle of the circle through all three
        assert np.linalg.norm(line - [1.0, 1.0], axis=1).min() < 0.02


def test_lines_stay_in_the_domain() -> None:
    ax = plot.cells([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2], [0.1, 0.8, 0.1]], "kl-simplex", dual=True, resolution=71)
    x = Plane.simplex().points(np.concatenate(edges(ax)))
    assert x.min() > -0.05, "at most one square of the grid, which is cut away"
    ax = plot.cells(CENTRES, "itakura-saito", dual=True, limits=(-1, 3, -1, 3), resolution=71)
    assert np.concatenate(edges(ax)).min() >= 0


def test_points_have_the_colour_of_the_centre_nearest_to_them() -> None:
    ax = plot.cells(CENTRES, "itakura-saito", points=POINTS, resolution=51)
    owners = distances(askew.make("itakura-saito", 2), POINTS, CENTRES, False).argmin(1)
    groups = [part for part in ax.collections if isinstance(part, PathCollection)]
    assert len(groups) == len(np.unique(owners))
    for group, owner in zip(groups, np.unique(owners), strict=True):
        np.testing.assert_allclose(np.asarray(group.get_offsets()), POINTS[owners == owner])
    assert len({tuple(group.get_facecolor()[0]) for group in groups}) == len(groups)
    assert len({len(group.get_paths()[0].vertices) for group in groups}) > 1, (
        "markers differ, for readers without colours"
    )


class Clustering:
    """What a fitted clustering looks like from outside."""

    def __init__(self, centres: Array, divergence: object, dual: bool) -> None:
        self.cluster_centers_, self.divergence, self.dual = centres, divergence, dual

    def fit(self) -> None:
        """Be a clustering."""


@pytest.mark.parametrize("dual", [False, True])
def test_fitted_clustering_knows_its_divergence_and_its_side(dual: bool) -> None:
    own = edges(plot.cells(Clustering(CENTRES, "kl", dual), limits=(0, 3, 0, 3), resolution=51))
    same = edges(plot.cells(CENTRES, "kl", dual=dual, limits=(0, 3, 0, 3), resolution=51))
    assert len(own) == len(same)
    for a, b in zip(own, same, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dual", [False, True])
def test_points_of_a_clustering_are_in_the_cells_of_their_labels(dual: bool) -> None:
    clusters = BregmanKMeans(3, divergence="itakura-saito", dual=dual, random_state=0).fit(POINTS)
    ax = plot.cells(clusters, points=POINTS, resolution=51)
    groups = [np.asarray(part.get_offsets()) for part in ax.collections if isinstance(part, PathCollection)]
    assert len(groups) == 3
    for label, group in enumerate(groups):
        np.testing.assert_allclose(group, POINTS[clusters.labels_ == label])
    assert str(ax.get_legend().get_texts()[0].get_text()) == ("D(a, x) = D(b, x)" if dual else "D(x, a) = D(x, b)")


def test_data_may_lie_on_the_edge_of_the_domain_where_it_comes_first() -> None:
    counts = np.array([[0.0, 3.0], [1.0, 0.0], [2.0, 2.0]])
    ax = plot.cells([[1.0, 1.0], [2.0, 3.0]], "kl", points=counts, resolution=31)
    assert ax.get_xlim()[0] == 0
    with pytest.raises(ValueError, match=r"points of cells must be inside the positive domain"):
        plot.cells([[1.0, 1.0], [2.0, 3.0]], "kl", points=counts, dual=True, resolution=31)


def test_clustering_of_scikit_learn_is_euclidean() -> None:
    ax = plot.cells(KMeans(2, n_init=1, random_state=0).fit(POINTS), points=POINTS, resolution=51)
    assert max(bend(line) for line in edges(ax)) < 1e-6


def test_centres_of_a_clustering_behind_an_encoder_are_images() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model = askew.Embedded(encoder, askew.make("euclidean", 3))
    with torch.no_grad():
        images = encoder(torch.from_numpy(POINTS[:3])).numpy()
    ax = plot.cells(Clustering(images, model, False), points=POINTS, resolution=61)
    drawn = edges(ax)
    assert drawn
    with torch.no_grad():
        x = encoder(torch.from_numpy(np.concatenate(drawn)))
        values = torch.cdist(x, torch.from_numpy(images)).square().sort(1).values
    assert (values[:, 1] - values[:, 0]).median() < 1e-4
    assert "centre" not in [text.get_text() for text in ax.get_legend().get_texts()], "an image has no place here"
    # The same centres as points, which the encoder maps to these images.
    again = edges(plot.cells(POINTS[:3], model, points=POINTS, resolution=61))
    np.testing.assert_allclose(np.concatenate(again), np.concatenate(drawn), atol=1e-5)


def test_plane_of_higher_dimensions() -> None:
    points = np.random.default_rng(0).uniform(0.5, 3, size=(50, 4))
    plane, centres = Plane.pca(points), points[:2]
    ax = plot.cells(centres, "kl", points=points, plane=plane, resolution=61)
    drawn = edges(ax)
    assert drawn
    for line in drawn:
        values = np.sort(distances(askew.make("kl", 4), plane.points(line), centres, False), axis=1)
        np.testing.assert_allclose(values[:, 0], values[:, 1], atol=1e-6)
        assert bend(line) < 1e-5


def test_one_cell_has_no_bisectors_and_fills_the_picture() -> None:
    ax = plot.cells([[1.0, 1.0]], "kl", points=POINTS)
    assert edges(ax) == []
    assert ax.get_legend() is not None


def test_cells_cover_the_picture_and_are_cut_out_of_it_once() -> None:
    figure = Figure(figsize=(3, 3), dpi=50)
    ax = plot.cells(CENTRES, "kl", limits=(0, 3, 0, 3), legend=False, ax=figure.add_axes((0, 0, 1, 1)))
    ax.set_axis_off()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[3:-3, 3:-3, :3].reshape(-1, 3)
    assert (pixels.min(1) < 254).mean() > 0.995, "no gaps"
    assert len(np.unique(pixels, axis=0)) > 4


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: plot.cells(CENTRES), ValueError, "divergence of cells must be given together with centres. Got None"),
        (lambda: plot.cells(KMeans(3)), ValueError, "Got a KMeans that is not fitted instead. Call its fit first"),
        (lambda: plot.cells(Clustering(CENTRES, "kl", False), "kl"), ValueError, "left out for a fitted clustering"),
        (
            lambda: plot.cells(Clustering(CENTRES, "kl", False), dual=True),
            ValueError,
            "left out for a fitted clustering",
        ),
        (lambda: plot.cells(-CENTRES, "kl"), ValueError, "centres of cells must be inside the positive domain"),
        (lambda: plot.cells(CENTRES, "kl", points=-POINTS), ValueError, "points of cells must be inside the positive"),
        (lambda: plot.cells(CENTRES * np.nan, "kl"), ValueError, "clusters of cells must be finite"),
        (lambda: plot.cells(CENTRES, "kl", points=np.ones((3, 3))), ValueError, "None with 3 features"),
        (lambda: plot.cells(np.ones((3, 5)), "kl"), ValueError, "plane of cells must be given"),
        (lambda: plot.cells("nothing", "kl"), TypeError, "clusters of cells must be numbers"),
    ],
)
def test_wrong_input_is_told(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
