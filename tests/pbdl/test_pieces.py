"""What the forms of PBDL share: pieces, choice of rows, and checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from askew.pbdl.pieces import Pieces, check_labels, check_rows, folds_of, spread, stratified


def random_pieces(count: int = 12, dim: int = 3) -> Pieces:
    """Tangents of a convex function at random points, so that each piece is the highest at its own point."""
    generator = np.random.default_rng(0)
    points = generator.normal(size=(count, dim))
    return Pieces(points, (points**4).sum(1), 4 * points**3)


def test_divergence_is_that_of_the_pieces() -> None:
    pieces = random_pieces()
    x, y = np.random.default_rng(1).normal(size=(2, 30, 3))
    matrix = pieces.divergence().pairwise(torch.from_numpy(x), torch.from_numpy(y))
    assert matrix.dtype == torch.float64
    np.testing.assert_allclose(matrix.detach().numpy(), pieces.pairwise(x, y), atol=1e-12)
    # Interpolation: at the points themselves D_ij = z_i - z_j - <a_j, x_i - x_j>.
    steps = pieces.points[:, None] - pieces.points
    direct = pieces.heights[:, None] - pieces.heights - (pieces.slopes * steps).sum(-1)
    np.testing.assert_allclose(pieces.pairwise(pieces.points, pieces.points), direct, atol=1e-12)


def test_a_shift_of_the_points_shifts_the_divergence() -> None:
    pieces, offset = random_pieces(), np.array([3.0, -2.0, 1.0])
    x, y = np.random.default_rng(1).normal(size=(2, 30, 3))
    moved = pieces.shifted(offset).pairwise(x + offset, y + offset)
    np.testing.assert_allclose(moved, pieces.pairwise(x, y), atol=1e-12)


def test_curvature_gives_each_point_its_own_piece() -> None:
    points = np.array([[0.0], [1.0], [2.0]])
    flat = Pieces(points, np.zeros(3), np.zeros((3, 1)))
    assert flat.values(points).argmax(1).tolist() == [0, 0, 0]
    curved = flat.curved(0.1)
    assert curved.values(points).argmax(1).tolist() == [0, 1, 2]
    np.testing.assert_allclose(curved.pairwise(points, points), 0.05 * (points - points.T) ** 2, atol=1e-15)


def test_candidates_begin_with_the_pieces_themselves() -> None:
    pieces = random_pieces()
    first, *others = pieces.candidates()
    np.testing.assert_array_equal(first.slopes, pieces.slopes)
    sizes = [np.abs(other.slopes - pieces.slopes).max() for other in others]
    assert sizes == sorted(sizes)
    assert sizes[0] > 0


def test_stratified_keeps_proportions_and_every_class() -> None:
    classes = np.repeat([0, 1, 2], [600, 300, 3])
    rows = stratified(classes, 90, np.random.default_rng(0))
    assert len(np.unique(rows)) == 90
    counts = np.bincount(classes[rows], minlength=3)
    assert abs(counts[0] - 60) <= 1
    assert abs(counts[1] - 30) <= 1
    assert counts[2] >= 1
    assert len(np.unique(classes[stratified(classes, 3, np.random.default_rng(1))])) == 3
    assert stratified(classes, 5000, np.random.default_rng(0)).tolist() == list(range(903))


def test_spread_takes_the_farthest_and_no_point_twice() -> None:
    x = np.array([[0.0], [1.0], [1.0], [10.0], [10.0], [4.0]])
    assert spread(x, 3).tolist() == [3, 0, 5]
    assert sorted(x[spread(x, 100)].ravel().tolist()) == [0.0, 1.0, 4.0, 10.0]
    assert len(spread(np.ones((4, 2)), 3)) == 1


def test_folds_deal_out_each_class() -> None:
    classes = np.array([0] * 10 + [1] * 15)
    number = folds_of(classes, 5, np.random.default_rng(0))
    assert np.bincount(number[:10]).tolist() == [2] * 5
    assert np.bincount(number[10:]).tolist() == [3] * 5


def test_tensors_of_any_precision_are_taken() -> None:
    x = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    assert check_rows(x, "x", "f").tolist() == [[1.0, 2.0]]
    assert check_labels(torch.tensor([5, 3, 5]), "f", 3).tolist() == [1, 0, 1]
    assert check_labels(["b", "a"], "f", 2).tolist() == [1, 0]


def test_bad_arrays_are_named() -> None:
    with pytest.raises(ValueError, match=r"x of f must be of shape \(n, dim\), neither of them 0\. Got \(3,\) instead"):
        check_rows([1.0, 2.0, 3.0], "x", "f")
    with pytest.raises(ValueError, match=r"neither of them 0\. Got \(0, 2\)"):
        check_rows(np.zeros((0, 2)), "x", "f")
    with pytest.raises(ValueError, match=r"of shape \(n, 3\)"):
        check_rows(np.zeros((4, 2)), "x", "f", 3)
    with pytest.raises(ValueError, match=r"x of f must be finite\. Got x\[0, 1\] = nan instead"):
        check_rows([[1.0, float("nan")]], "x", "f")
    with pytest.raises(TypeError, match="must be an array of numbers"):
        check_rows([["red"]], "x", "f")
    with pytest.raises(ValueError, match=r"at least two classes\. Got 1 class instead"):
        check_labels([1, 1, 1], "f", 3)
    with pytest.raises(ValueError, match=r"labels of f must be finite\. Got labels\[1\] = nan"):
        check_labels([1.0, float("nan")], "f", 2)
    with pytest.raises(ValueError, match=r"labels of f must be of shape \(3,\)"):
        check_labels([0, 1], "f", 3)
