"""Level sets and asymmetry: lines and colours show the numbers that they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.path import Path
from plot_lines import CLOSE, off_level
from torch import nn

import askew
from askew import plot, potentials
from askew.plot import Plane

Array = np.ndarray[Any, Any]


def drawn_levels(ax: Axes) -> Iterator[tuple[float, Array]]:
    """Give the level and the corners of each line that has a number."""
    for part in ax.collections:
        if isinstance(part, ContourSet) and not part.filled:
            for level, path in zip(part.levels, part.get_paths(), strict=True):
                corners = np.asarray(path.vertices)
                # A path that is closed ends with a pair of numbers that is not one of its corners.
                codes = np.full(len(corners), Path.LINETO) if path.codes is None else path.codes
                if len(corners):
                    yield float(level), corners[np.isfinite(corners).all(1) & (codes != Path.CLOSEPOLY)]


def filled(ax: Axes) -> ContourSet:
    (found,) = [part for part in ax.collections if isinstance(part, ContourSet) and part.filled]
    return found


def typical_error(ax: Axes, function: Callable[[torch.Tensor], torch.Tensor], line: Array, level: float) -> float:
    """Return the median error: where a number breaks a line, its ends are between corners."""
    # At the point of reference itself the asymmetry is 0 / 0.
    return float(np.nanmedian(off_level(ax, function, line, level)))


# ---------------------------------------------------------------------- levels


@pytest.mark.parametrize(
    "potential",
    [potentials.NegativeEntropy(2), potentials.Burg(2), potentials.FermiDirac(2), potentials.LogSumExp(2)],
    ids=lambda potential: type(potential).__name__,
)
def test_lines_are_where_phi_has_their_level(potential: potentials.Potential) -> None:
    ax = plot.levels(potential)
    found = list(drawn_levels(ax))
    assert len(found) >= 4
    for level, line in found:
        # On the edge of the domain phi may have no value.
        inner = line[potential.contains(torch.from_numpy(line)).numpy()]
        assert typical_error(ax, potential, inner, level) < CLOSE
    assert len(ax.texts) >= 3, "lines have numbers"


def test_potential_divergence_name_and_learner_give_the_same_picture() -> None:
    given = ("kl", askew.make("kl", 2), potentials.NegativeEntropy(2))
    pictures = [list(drawn_levels(plot.levels(model, limits=(0, 2, 0, 2), resolution=31))) for model in given]
    for other in pictures[1:]:
        for (level, line), (same_level, same_line) in zip(pictures[0], other, strict=True):
            assert level == same_level
            np.testing.assert_array_equal(line, same_line)


def test_without_its_tangent_plane_phi_is_the_divergence_and_affine_parts_do_not_show() -> None:
    torch.manual_seed(0)
    divergence, a = askew.make("itakura-saito", 2), [1.0, 1.5]
    tilted = potentials.FromFunction(lambda x: -x.log().sum(-1) + 7 * x[..., 0] - 3 * x[..., 1] + 2, 2, checks_domain())
    axes = [plot.levels(model, at=a, limits=(0, 3, 0, 3), resolution=101) for model in (divergence, tilted)]
    pictures = [dict(drawn_levels(ax)) for ax in axes]
    assert pictures[0].keys() == pictures[1].keys()
    for level, line in pictures[0].items():
        inner = line[(line > 0.05).all(1)]
        error = typical_error(axes[0], lambda x: divergence(x, torch.tensor(a, dtype=torch.float64)), inner, level)
        assert error < CLOSE
    levels = [
        list(drawn_levels(plot.levels(model, limits=(0, 3, 0, 3), resolution=31))) for model in (divergence, tilted)
    ]
    assert [level for level, _ in levels[0]] != [level for level, _ in levels[1]]


def checks_domain() -> Any:
    return askew.checks.POSITIVE


def test_level_sets_behind_an_encoder_and_on_a_plane() -> None:
    torch.manual_seed(0)
    encoder = nn.Linear(3, 2).double()
    model = askew.Embedded(encoder, askew.Bregman(potentials.Exponential(2)))
    plane = Plane.through([0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0])
    found = list(drawn_levels(plot.levels(model, plane=plane)))
    assert found
    for level, line in found:
        with torch.no_grad():
            values = model.divergence.potential(encoder(torch.from_numpy(plane.points(line))))  # type: ignore[operator, union-attr]
        assert (values - level).abs().median() < 1e-3 * max(1, abs(level))


def test_data_sets_the_limits_and_is_shown() -> None:
    points = np.random.default_rng(0).normal(5, 1, size=(30, 2))
    ax = plot.levels("exponential", points=points, resolution=41)
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert left < points[:, 0].min() < points[:, 0].max() < right
    assert bottom < points[:, 1].min() < points[:, 1].max() < top
    assert any(np.shape(part.get_offsets()) == (30, 2) for part in ax.collections)


# ---------------------------------------------------------------------- asymmetry


def relative(divergence: askew.Divergence, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    forth, back = divergence(x, c), divergence(c, x)
    return (forth - back) / (forth + back)


@pytest.mark.parametrize(
    ("name", "c"), [("kl", [1.0, 1.0]), ("itakura-saito", [0.5, 2.0]), ("exponential", [0.0, 0.5])]
)
def test_lines_are_where_the_asymmetry_has_their_level(name: str, c: list[float]) -> None:
    divergence = askew.make(name, 2)
    ax = plot.asymmetry(name, c)
    found = dict(drawn_levels(ax))
    assert 0.0 in found
    assert len(found) >= 4
    for level, line in found.items():
        inner = line[(line > 1e-3).all(1)] if divergence.domain != askew.checks.REAL else line
        place = torch.tensor(c, dtype=torch.float64)
        assert typical_error(ax, lambda x, p=place: relative(divergence, x, p), inner, level) < CLOSE  # type: ignore[misc]


def test_colours_are_the_asymmetry_and_its_sign_turns_with_the_arguments() -> None:
    pictures = []
    for model in (askew.make("kl", 2), askew.divergences.Reversed(askew.make("kl", 2))):
        area = filled(plot.asymmetry(model, [1.0, 1.0], limits=(0.5, 2, 0.5, 2), resolution=41))
        pictures.append(area)
        assert area.norm.vmin == -area.norm.vmax
    np.testing.assert_allclose(pictures[0].zmax, -pictures[1].zmin, rtol=1e-6)
    x, c = torch.tensor([[2.0, 2.0]], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    np.testing.assert_allclose(pictures[0].zmax, relative(askew.make("kl", 2), x, c), rtol=1e-5)


@pytest.mark.parametrize("name", ["euclidean", "mahalanobis"])
def test_symmetric_divergence_has_no_lines(name: str) -> None:
    torch.manual_seed(0)
    model = askew.make(name, 2)
    ax = plot.asymmetry(model, [1.0, 1.0], resolution=21)
    assert list(drawn_levels(ax)) == []
    assert filled(ax).zmin == filled(ax).zmax == 0


def test_colorbar_says_what_it_shows_and_can_be_left_out() -> None:
    ax = plot.asymmetry("kl", [1.0, 1.0], resolution=21)
    assert [other.get_ylabel() for other in ax.figure.axes] == [
        "feature 2",
        "(D(x, c) - D(c, x)) / (D(x, c) + D(c, x))",
    ]
    assert len(plot.asymmetry("kl", [1.0, 1.0], colorbar=False, resolution=21).figure.axes) == 1


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: plot.levels("euclidean"),
            TypeError,
            "divergence of levels must be a Bregman divergence.*Got Euclidean",
        ),
        (lambda: plot.levels("iqe"), ValueError, "one that needs no learning"),
        (lambda: plot.levels(askew.make("iqe", 2)), TypeError, "Got IQE instead"),
        (lambda: plot.levels("kl", at=[1.0, -1.0]), ValueError, r"at of levels must be inside .* Got at\[0, 1\] = -1"),
        (lambda: plot.levels("kl", at=[1.0, 1.0, 1.0]), ValueError, "plane of levels must be given"),
        (lambda: plot.levels("kl", at=[1.0, 1.0], points=np.ones((3, 3))), ValueError, r"of shape \(n, 3\)"),
        (lambda: plot.levels("kl", count=0), ValueError, "count of levels must be a positive integer"),
        (lambda: plot.levels(potentials.NegativeEntropy(3)), ValueError, "plane of levels must be given"),
        (lambda: plot.levels("kl", points=[[1.0, np.inf]]), ValueError, "points of levels must be finite"),
        (lambda: plot.asymmetry("kl", [-1.0, 1.0]), ValueError, "reference of asymmetry must be inside the positive"),
        (lambda: plot.asymmetry("kl", [1.0, np.nan]), ValueError, "reference of asymmetry must be finite"),
        (lambda: plot.asymmetry("kl", np.ones((2, 2))), ValueError, "must be one point.*Got 2 points"),
        (lambda: plot.asymmetry("kl", np.ones(4)), ValueError, "plane of asymmetry must be given"),
        (
            lambda: plot.asymmetry(
                askew.Embedded(nn.Identity(), askew.make("kl", 2)), [1.0, 1.0], limits=(-2, -1, 0, 1)
            ),
            ValueError,
            "Got none of the embeddings of the encoder",
        ),
    ],
)
def test_wrong_input_is_told(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
