"""Balls: their lines are where they should be, in every domain, on every plane, of both kinds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from plot_lines import CLOSE, off_level
from torch import nn

import askew
from askew import plot
from askew.plot import Plane

CENTRES = np.array([[0.5, 0.7], [2.0, 1.0]])


def lines(ax: Axes, label: str) -> list[np.ndarray[Any, Any]]:
    """Return the curves whose label begins like this."""
    found = [part for part in ax.collections if str(part.get_label()).startswith(label)]
    assert len(found) == 1
    assert isinstance(found[0], LineCollection)
    return [np.asarray(segment) for segment in found[0].get_segments()]


def as_points(uv: np.ndarray[Any, Any], plane: Plane | None) -> torch.Tensor:
    return torch.from_numpy(uv if plane is None else plane.points(uv))


def closed(line: np.ndarray[Any, Any]) -> bool:
    return bool(np.array_equal(line[0], line[-1]))


@pytest.mark.parametrize("name", ["kl", "itakura-saito", "exponential", "log-sum-exp", "power", "euclidean-norm"])
def test_lines_are_where_the_divergence_is_the_radius(name: str) -> None:
    divergence = askew.make(name, 2)
    ax = plot.balls(name, CENTRES, [0.02, 0.1])
    for label, forth in (("D(x, c)", True), ("D(c, x)", False)):
        drawn = lines(ax, label)
        assert len(drawn) >= 4
        for line in drawn:
            errors = [
                off_level(ax, lambda x, c=c, f=forth: divergence(x, c) if f else divergence(c, x), line, r).max()  # type: ignore[misc]
                for c in torch.from_numpy(CENTRES)
                for r in (0.02, 0.1)
            ]
            assert min(errors) < CLOSE


def test_balls_of_a_network() -> None:
    torch.manual_seed(0)
    divergence = askew.make("nbd", 2)
    ax = plot.balls(divergence, [0.3, -0.2], 0.5, resolution=101)
    for label, forth in (("D(x, c)", True), ("D(c, x)", False)):
        (line,) = lines(ax, label)
        x, c = torch.from_numpy(line).float(), torch.tensor([0.3, -0.2])
        with torch.no_grad():
            values = divergence(x, c) if forth else divergence(c, x)
        torch.testing.assert_close(values, torch.full_like(values, 0.5), rtol=5e-3, atol=0)
        assert closed(line)


def test_balls_of_real_points_are_closed_and_go_round_their_centre() -> None:
    ax = plot.balls("exponential", CENTRES, 0.1)
    for label in ("D(x, c)", "D(c, x)"):
        drawn = lines(ax, label)
        assert len(drawn) == len(CENTRES)
        for centre in CENTRES:
            winding = []
            for line in drawn:
                assert closed(line)
                angles = np.unwrap(np.arctan2(*(line - centre).T[::-1]))
                winding.append(round(abs(angles[-1] - angles[0]) / (2 * np.pi)))
            assert sorted(winding) == [0, 1]


def test_both_kinds_coincide_for_a_symmetric_divergence_only() -> None:
    torch.manual_seed(0)
    for divergence, same in ((askew.make("mahalanobis", 2), True), (askew.make("kl", 2), False)):
        ax = plot.balls(divergence, CENTRES, 0.1, resolution=81)
        first, second = (np.concatenate(lines(ax, label)) for label in ("D(x, c)", "D(c, x)"))
        gaps = np.linalg.norm(first[:, None] - second, axis=2).min(1)
        assert (gaps.max() < 1e-5) == same
        assert same or gaps.max() > 0.02


def test_balls_of_the_first_kind_are_convex_those_of_the_second_need_not_be() -> None:
    ax = plot.balls("itakura-saito", [1.0, 1.0], 1.5)

    def turns(line: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        steps = np.diff(line[::20], axis=0)  # longer than the grid is wide
        following = np.roll(steps, -1, 0)
        cross: np.ndarray[Any, Any] = steps[:, 0] * following[:, 1] - steps[:, 1] * following[:, 0]
        return cross / np.linalg.norm(steps, axis=1) / np.linalg.norm(following, axis=1)

    (first,), (second,) = lines(ax, "D(x, c)"), lines(ax, "D(c, x)")
    assert turns(first).min() > 0 or turns(first).max() < 0
    assert turns(second).min() < -0.01
    assert turns(second).max() > 0.01


@pytest.mark.parametrize("side", ["first", "second"])
def test_one_side_draws_one_kind(side: str) -> None:
    ax = plot.balls("kl", CENTRES, 0.1, side=side)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [{"first": "D(x, c) = 0.1", "second": "D(c, x) = 0.1"}[side], "centre c"]


def test_lines_end_at_the_edge_of_the_domain() -> None:
    ax = plot.balls("kl", [0.2, 0.5], 0.25)
    (line,) = lines(ax, "D(x, c)")
    assert (line >= 0).all()
    assert not closed(line)
    np.testing.assert_allclose([line[0, 0], line[-1, 0]], 0, atol=1e-6)
    assert ax.get_xlim()[0] == 0


def test_filled_areas_are_cut_at_the_edge_of_the_domain() -> None:
    ax = plot.balls("kl-simplex", [0.2, 0.2, 0.6], 0.3)
    filled = [part for part in ax.collections if not isinstance(part, LineCollection)]
    assert len(filled) == 2
    triangle = Plane.simplex().coordinates(np.eye(3))
    for part in filled:
        path = part.get_clip_path().get_fully_transformed_path()
        corners = ax.transData.inverted().transform(path.vertices)
        for corner in triangle:
            assert np.linalg.norm(corners - corner, axis=1).min() < 1e-6


def test_simplex_of_three_outcomes_needs_no_plane() -> None:
    divergence, plane = askew.make("kl-simplex", 3), Plane.simplex()
    centres = torch.tensor([[0.3, 0.3, 0.4], [0.8, 0.1, 0.1]], dtype=torch.float64)
    ax = plot.balls("kl-simplex", centres, 0.1)
    for label, forth in (("D(x, c)", True), ("D(c, x)", False)):
        for line in lines(ax, label):
            x = as_points(line, plane)
            assert (x > -0.01).all()  # what lies outside is cut away
            inner = x[(x > 0.02).all(1)]
            errors = [((divergence(inner, c) if forth else divergence(c, inner)) - 0.1).abs().max() for c in centres]
            assert min(errors) < 1e-3
    names = {text.get_text() for text in ax.texts}
    assert names == {"$x_1 = 1$", "$x_2 = 1$", "$x_3 = 1$"}


def test_unit_box_is_kept_to() -> None:
    ax = plot.balls("logistic", [[0.1, 0.5], [0.9, 0.9]], 0.3)
    drawn = np.concatenate(lines(ax, "D(x, c)") + lines(ax, "D(c, x)"))
    assert drawn.min() >= 0
    assert drawn.max() <= 1


@pytest.mark.parametrize("kind", ["through", "pca", "features"])
def test_planes_of_higher_dimensions(kind: str) -> None:
    points = np.random.default_rng(1).uniform(0.5, 2.0, size=(20, 5))
    plane = {
        "through": Plane.through(*points[:3]),
        "pca": Plane.pca(points),
        "features": Plane.features(1, 4, at=points[0]),
    }[kind]
    divergence = askew.make("itakura-saito", 5)
    ax = plot.balls(divergence, points[:1], [0.3, 1.0], plane=plane)
    c = torch.from_numpy(points[0])
    drawn = lines(ax, "D(x, c)")
    assert drawn
    for line in drawn:
        values = divergence(as_points(line, plane), c)
        assert min((values - radius).abs().max() for radius in (0.3, 1.0)) < 5e-3
    assert ax.get_xlabel() == plane.names[0]


def test_centre_beside_the_plane_is_marked_at_its_projection_and_its_ball_is_found() -> None:
    plane = Plane.features(0, 1, at=[1.0, 1.0, 1.0])
    ax = plot.balls("euclidean", [0.5, 3.0, 1.8], 1.0, plane=plane)  # cut at height 0.8: a circle of radius 0.6
    (line,) = lines(ax, "D(x, c)")
    np.testing.assert_allclose(np.linalg.norm(line - [0.5, 3.0], axis=1), 0.6, atol=1e-4)
    (marker,) = [part for part in ax.lines if part.get_label() == "centre c"]
    np.testing.assert_allclose(marker.get_xydata(), [[0.5, 3.0]])
    far = plot.balls("euclidean", [0.5, 3.0, 2.8], 1.0, plane=plane)
    assert lines(far, "D(x, c)") == []


def test_encoders_are_looked_through() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))
    model = askew.Embedded(encoder, askew.make("nbd", 3))
    ax = plot.balls(model, [0.1, 0.2], 0.1, limits=(-1, 1, -1, 1), resolution=61)
    assert encoder.training, "the mode of the model is left alone"
    model.eval()
    drawn = lines(ax, "D(x, c)")
    assert drawn
    for line in drawn:
        with torch.no_grad():
            values = model(torch.from_numpy(line).float(), torch.tensor([[0.1, 0.2]]))
        torch.testing.assert_close(values, torch.full_like(values, 0.1), rtol=2e-2, atol=0)


def test_images_outside_the_domain_are_left_out() -> None:
    # Images are positive where the first feature is above zero.
    model = askew.Embedded(nn.Identity(), askew.make("kl", 2))
    ax = plot.balls(model, [0.2, 0.5], 0.2, limits=(-1, 2, -1, 2))
    drawn = np.concatenate(lines(ax, "D(x, c)"))
    assert drawn.min() >= 0
    assert ax.get_xlim() == (-1, 2)


def test_fitted_learner_is_drawn_on_its_own_features() -> None:
    points = np.random.default_rng(0).normal(size=(40, 2)) * [100.0, 1.0]
    labels = (points[:, 1] > 0).astype(int)
    learner = askew.DivergenceLearner("nbd", encoder=None, steps=5, random_state=0).fit(points, labels)
    ax = plot.balls(learner, points[0], 0.5)
    for line in lines(ax, "D(x, c)"):
        pairs = np.stack([line, np.broadcast_to(points[0], line.shape)], 1)
        np.testing.assert_allclose(learner.pair_distance(pairs), 0.5, rtol=1e-2)
    with pytest.raises(ValueError, match="points of balls must be of 2 features like the divergence"):
        plot.balls(learner, [1.0, 2.0, 3.0], 0.5)


def test_data_sets_the_limits_of_long_balls() -> None:
    points = np.random.default_rng(0).normal(size=(30, 2))
    ax = plot.balls("log-sum-exp", points[0], 0.1, points=points, resolution=41)
    assert -4 < ax.get_xlim()[0] < points[:, 0].min() < points[:, 0].max() < ax.get_xlim()[1] < 4
    assert any(np.shape(part.get_offsets()) == (30, 2) for part in ax.collections)


def test_all_balls_fit() -> None:
    ax = plot.balls("itakura-saito", [[0.05, 0.05], [1.0, 1.0]], 0.1)
    assert len(lines(ax, "D(c, x)")) == len(lines(ax, "D(x, c)")) == 2
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    every = np.concatenate(lines(ax, "D(c, x)") + lines(ax, "D(x, c)"))
    assert left <= every[:, 0].min() < every[:, 0].max() < right < 2
    assert bottom <= every[:, 1].min() < every[:, 1].max() < top < 2


def test_unbounded_balls_are_shown_for_some_way() -> None:
    ax = plot.balls("log-sum-exp", [0.0, 0.0], 0.1)  # does not change along (1, 1)
    assert np.isfinite([*ax.get_xlim(), *ax.get_ylim()]).all()
    assert len(lines(ax, "D(x, c)")) == 2


def test_given_axes_are_used_and_pyplot_is_not_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    own = Figure().add_subplot()
    assert plot.balls("kl", [1.0, 1.0], 0.1, ax=own) is own
    assert own.get_legend() is not None
    new = plot.balls("kl", [1.0, 1.0], 0.1, legend=False)
    assert new is not own
    assert new.get_legend() is None
    new.figure.savefig(tmp_path / "balls.png")
    assert (tmp_path / "balls.png").stat().st_size > 5000


def test_figures_of_pyplot_and_its_settings_stay_as_they_were() -> None:
    before, settings = pyplot.get_fignums(), dict(mpl.rcParams)
    plot.balls("kl", [1.0, 1.0], 0.1)
    plot.cells(CENTRES, "kl", resolution=11)
    plot.levels("kl", resolution=11)
    plot.asymmetry("kl", [1.0, 1.0], resolution=11)
    assert pyplot.get_fignums() == before
    assert dict(mpl.rcParams) == settings


def test_shapes_are_not_distorted() -> None:
    assert plot.balls("kl", CENTRES, 0.1).get_aspect() == 1
    skew = Plane([0.0, 0.0], [1.0, 0.0], [1.0, 1.0])
    assert plot.balls("euclidean", CENTRES, 0.1, plane=skew).get_aspect() == "auto"


def test_several_pictures_fit_into_one_figure(tmp_path: Path) -> None:
    figure = Figure(layout="constrained")
    for ax, name in zip(figure.subplots(1, 2), ("kl", "itakura-saito"), strict=True):
        assert plot.balls(name, CENTRES, np.float32(0.1), ax=ax) is ax
    figure.savefig(tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"centres": [[1.0, 1.0, 1.0]]}, ValueError, "plane of balls must be given .* Got None with 3 features"),
        ({"centres": [[1.0]]}, ValueError, "Got None with 1 features"),
        ({"centres": [[1.0, -1.0]]}, ValueError, r"inside the positive domain.*Got centres\[0, 1\] = -1"),
        ({"centres": [[1.0, np.nan]]}, ValueError, "centres of balls must be finite. Got row 0, column 1 = nan"),
        ({"centres": np.zeros((0, 2))}, ValueError, "centres of balls must be of shape .* at least one row"),
        ({"centres": "here"}, TypeError, "centres of balls must be numbers"),
        ({"radii": 0.0}, ValueError, "each of radii of balls must be a finite number above zero. Got 0.0"),
        ({"radii": [0.1, -1]}, ValueError, "above zero. Got -1"),
        ({"radii": float("nan")}, ValueError, "above zero. Got nan"),
        ({"radii": []}, ValueError, "radii of balls must be one or several numbers above zero. Got none"),
        ({"radii": "0.1"}, ValueError, "above zero. Got '0.1'"),
        ({"side": "left"}, ValueError, "side of balls must be one of 'first', 'second', 'both'. Got 'left'"),
        ({"limits": (1, 0, 0, 1)}, ValueError, "limits of balls must be four finite numbers"),
        ({"limits": (0, 1)}, ValueError, "limits of balls must be four finite numbers"),
        ({"limits": (-2, -1, 0, 1)}, ValueError, "limits of balls must be such that a part of the plane"),
        ({"resolution": 1}, ValueError, "resolution of balls must be at least 2"),
        ({"plane": "pca"}, TypeError, "plane of balls must be an askew.plot.Plane. Got str"),
        ({"plane": Plane.simplex()}, ValueError, "plane of balls must be one of points of 2 features. Got 3"),
        ({"ax": Figure()}, TypeError, "ax must be matplotlib axes or None. Got Figure"),
        ({"divergence": "nbd"}, ValueError, "one that needs no learning"),
        ({"divergence": "kll"}, ValueError, "Did you mean 'kl'"),
        ({"divergence": askew.make("kl", 3)}, ValueError, "points of balls must be of 3 features like the divergence"),
        ({"divergence": askew.DivergenceLearner()}, ValueError, "not fitted"),
        ({"divergence": 3}, TypeError, "divergence of balls must be a divergence"),
        (
            {"divergence": "kl-simplex", "centres": [0.5, 0.5]},
            ValueError,
            "plane of balls must be one of points that sum",
        ),
    ],
)
def test_wrong_input_is_told(change: dict[str, Any], error: type[Exception], match: str) -> None:
    arguments = {"divergence": "kl", "centres": [[1.0, 1.0]], "radii": 0.1, **change}
    with pytest.raises(error, match=match):
        plot.balls(**arguments)


@pytest.mark.parametrize(
    "call",
    [
        lambda: plot.balls("kl", [1.0, 1.0], 0.1),
        lambda: plot.cells(CENTRES, "kl"),
        lambda: plot.levels("kl"),
        lambda: plot.asymmetry("kl", [1.0, 1.0]),
    ],
)
def test_missing_matplotlib_is_told_with_the_line_that_installs_it(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'askew.plot needs .*Run in the clone of askew: pip install "\.\[plot\]"'):
        call()
