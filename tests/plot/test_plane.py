"""Planes: where they lie, what they map where, which ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from askew.plot import Plane

POINTS = np.random.default_rng(0).normal(size=(30, 5)) @ np.diag([3.0, 2.0, 0.1, 0.1, 0.1])


def test_coordinates_and_points_are_inverse_to_each_other() -> None:
    plane = Plane([1.0, 2.0, 3.0], [1.0, 1.0, 0.0], [0.0, 2.0, 1.0])
    uv = np.random.default_rng(0).normal(size=(10, 2))
    np.testing.assert_allclose(plane.coordinates(plane.points(uv)), uv, atol=1e-12)
    np.testing.assert_allclose(plane.points([2.0, -1.0]), [3.0, 2.0, 2.0])


def test_points_off_the_plane_are_projected_at_right_angles() -> None:
    plane = Plane.through([0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [1.0, 5.0, 1.0])
    np.testing.assert_allclose(plane.coordinates([[3.0, 4.0, 7.0]]), [[3.0, 4.0]])


def test_plane_through_three_points_holds_them_at_their_distances() -> None:
    a, b, c = POINTS[:3]
    plane = Plane.through(a, b, c)
    uv = plane.coordinates(POINTS[:3])
    np.testing.assert_allclose(plane.points(uv), POINTS[:3], atol=1e-12)
    assert uv[0].tolist() == [0.0, 0.0]
    assert uv[2, 1] > 0
    np.testing.assert_allclose(np.linalg.norm(uv[2] - uv[1]), np.linalg.norm(c - b))
    assert plane.isometric


def test_principal_plane_is_the_nearest_to_the_points() -> None:
    plane = Plane.pca(POINTS)

    def error(other: Plane) -> float:
        return float(((other.points(other.coordinates(POINTS)) - POINTS) ** 2).sum())

    assert plane.isometric
    np.testing.assert_allclose(plane.coordinates(POINTS).mean(0), 0, atol=1e-12)
    assert error(plane) < error(Plane.features(0, 1, POINTS.mean(0))) < error(Plane.features(2, 3, POINTS.mean(0)))
    assert plane.first[np.abs(plane.first).argmax()] > 0, "the sign is fixed"


def test_slice_of_features_keeps_the_others() -> None:
    plane = Plane.features(1, 3, at=torch.arange(5.0))
    np.testing.assert_array_equal(plane.points([7.0, 8.0]), [0.0, 7.0, 2.0, 8.0, 4.0])
    assert plane.names == ("feature 2", "feature 4")


def test_simplex_is_an_equilateral_triangle() -> None:
    plane = Plane.simplex()
    corners = plane.coordinates(np.eye(3))
    np.testing.assert_allclose(np.linalg.norm(corners - np.roll(corners, 1, 0), axis=1), 1)
    np.testing.assert_allclose(plane.points(np.random.default_rng(0).normal(size=(9, 2))).sum(1), 1)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Plane([0.0, 0.0], [1.0, 0.0], [2.0, 0.0]), "directions of Plane must be two that are not parallel"),
        (lambda: Plane([0.0, 0.0], [1.0, 0.0], [0.0, 0.0]), "directions of Plane must be two that are not parallel"),
        (lambda: Plane([0.0, 0.0, 0.0], [1.0, 0.0], [0.0, 1.0]), r"first of Plane must be of shape \(n, 3\)"),
        (lambda: Plane([0.0, np.nan], [1.0, 0.0], [0.0, 1.0]), "origin of Plane must be finite. Got row 0, column 1"),
        (lambda: Plane.through([0.0, 0.0], [1.0, 1.0], [2.0, 2.0]), "Three points on one line"),
        (lambda: Plane.through([0.0, 0.0], [0.0, 0.0], [2.0, 1.0]), "Three points on one line"),
        (
            lambda: Plane.through([0.0, 0.0], [1.0, 0.0, 0.0], [2.0, 1.0]),
            r"b of Plane.through must be of shape \(n, 2\)",
        ),
        (lambda: Plane.pca([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]), "three or more that do not lie on one line"),
        (lambda: Plane.pca([[0.0, 1.0, 2.0]]), "three or more that do not lie on one line. Got 1 with no second"),
        (lambda: Plane.features(0, 3, at=[0.0, 1.0, 2.0]), "from 0 to 2. Got 3 instead"),
        (lambda: Plane.features(1, 1, at=[0.0, 1.0, 2.0]), "not parallel"),
        (lambda: Plane.pca([["a", "b"]]), "points of Plane.pca must be numbers"),
        (lambda: Plane.pca(np.zeros((0, 3))), "with at least one row"),
    ],
)
def test_what_spans_no_plane_is_refused(make: object, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        make()  # type: ignore[operator]
