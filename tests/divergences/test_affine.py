"""The affine form against the divergence itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from askew.checks import POSITIVE, REAL, SIMPLEX, UNIT_BOX
from askew.divergences import CATALOGUE, AffineForm, Bregman, make, pairwise_tolerance
from askew.potentials import Exponential
from tests.members import Case, build, cases, random_points

BREGMAN = [case for case in cases() if case.wrapper in ("plain", "dual") and isinstance(build(case), Bregman)]


def form_of(case: Case) -> tuple[AffineForm, Bregman, Tensor, Tensor]:
    divergence = build(case)
    assert isinstance(divergence, Bregman)
    x, y = random_points(case, 12), random_points(case, 9, seed=1)
    return divergence.affine(y.mean(0, keepdim=True)), divergence, x, y


@pytest.mark.parametrize("case", BREGMAN, ids=str)
@torch.no_grad()
def test_both_sides_multiply_to_the_divergence(case: Case) -> None:
    if case.wrapper == "dual" and case.name == "nbd-paper":
        pytest.skip("the mean of gradients may have no point")
    form, divergence, x, y = form_of(case)
    (features, base), (slopes, offsets) = form.left(x), form.right(y)
    expected = divergence(x[:, None], y)
    tolerance = {"rtol": 1e-7, "atol": 1e-9 * float(expected.max())}
    torch.testing.assert_close(base[:, None] + offsets - features @ slopes.T, expected, **tolerance)
    torch.testing.assert_close(form.pairwise(x, y, 1e-3), expected, **tolerance)
    torch.testing.assert_close(form.exact(x[:9], y), divergence(x[:9], y))
    # The three ways to the same numbers.
    planes = form.planes(y)
    torch.testing.assert_close(planes.base, form.base(y), **tolerance)
    torch.testing.assert_close(planes.offsets, form.offsets(y), **tolerance)
    torch.testing.assert_close(planes.slopes, form.slopes(y), rtol=1e-7, atol=1e-9 * float(slopes.abs().max()))


def test_another_dtype() -> None:
    divergence = make("nbd", 3)
    form = divergence.affine(torch.zeros(1, 3))
    assert form is not None
    assert form.to(torch.float32).potential is form.potential
    wide = form.to(torch.float64)
    assert wide.centre.dtype == torch.float64
    assert wide.exact(torch.ones(1, 3).double(), torch.zeros(1, 3).double()).dtype == torch.float64
    assert next(form.potential.parameters()).dtype == torch.float32


@torch.no_grad()
def test_values_that_overflow_on_the_way_are_recomputed() -> None:
    # exp(h) overflows in float32 although exp(y) makes the divergence finite again.
    form = Bregman(Exponential(1)).affine(torch.zeros(1, 1))
    x, y = torch.tensor([[10.0], [0.5]]), torch.tensor([[-85.0], [0.25]])
    values = form.exact(x, y)
    wide = form.to(torch.float64).exact(x.double(), y.double())
    assert bool(torch.isfinite(values).all())
    torch.testing.assert_close(values.double(), wide, rtol=1e-6, atol=0)


def test_the_catalogue_knows_domains() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.domain == make(name, 3).domain, name


def test_pairwise_tolerance_raises_the_error_of_near_pairs_only_inside_of_it() -> None:
    torch.manual_seed(0)
    divergence = make("nbd", 4)
    assert isinstance(divergence, Bregman)
    x = torch.randn(200, 4)
    y = x + 1e-3 * torch.randn(200, 4)
    with torch.no_grad():
        fine = divergence.pairwise(x, y)
        with pairwise_tolerance(0.5):
            assert divergence.current_rtol() == 0.5
            coarse = divergence.pairwise(x, y)
            with pairwise_tolerance(1e-6):  # never below that of the divergence
                assert divergence.current_rtol() == divergence.pairwise_rtol
        with pytest.raises(KeyError), pairwise_tolerance(0.5):
            raise KeyError
        again = divergence.pairwise(x, y)
    assert bool((fine != coarse).any())
    torch.testing.assert_close(coarse, fine, rtol=0.5, atol=0)
    assert torch.equal(fine, again)
    with torch.no_grad(), pairwise_tolerance(1.0):  # an error of 1 permits 0, so nothing is recomputed
        coarsest = divergence.pairwise(x, y)
    assert bool((coarsest.diag() != coarse.diag()).any())
    assert bool((coarsest >= 0).all())
    torch.testing.assert_close(coarsest, fine, rtol=1e-3, atol=1e-3)
    assert divergence.pairwise_rtol == 1e-3
    with pytest.raises(ValueError, match=r"rtol of pairwise_tolerance must be a finite number above zero. Got 0"):
        pairwise_tolerance(0).__enter__()


def test_points_are_moved_inside_a_domain() -> None:
    points, centre = torch.tensor([[0.0, 2.0], [1.0, 3.0]]), torch.tensor([[2.0, 4.0]])
    # Rows towards a point; rows that are inside stay.
    moved = POSITIVE.inside(points, towards=centre, margin=0.25)
    torch.testing.assert_close(moved, torch.tensor([[0.5, 2.5], [1.0, 3.0]]))
    least = POSITIVE.inside(points, towards=centre)
    assert 0 < float(least[0, 0]) < 1e-6
    assert torch.equal(least[1], points[1])
    stay = POSITIVE.inside(points, towards=centre, margin=0.25, valid=torch.tensor([True, False]))
    torch.testing.assert_close(stay, torch.tensor([[0.0, 2.0], [1.25, 3.25]]))
    # Coordinates alone.
    torch.testing.assert_close(
        UNIT_BOX.inside(torch.tensor([[0.0, 0.005, 1.0]]), margin=0.01), torch.tensor([[0.01, 0.005, 0.99]])
    )
    torch.testing.assert_close(POSITIVE.inside(torch.tensor([[0.0, 4.0]]), margin=0.1), torch.tensor([[0.2, 4.0]]))
    torch.testing.assert_close(POSITIVE.inside(torch.zeros(1, 2), margin=0.1), torch.full((1, 2), 0.1))
    for dtype in (torch.float32, torch.float64):
        box = UNIT_BOX.inside(torch.tensor([[0.0, 0.5, 1.0]], dtype=dtype))
        assert bool(UNIT_BOX.contains(box).all())
        assert float(box[0, 0]) < 1e-12
    assert REAL.inside(points).equal(points)
    assert REAL.inside(points, margin=0.1).equal(points)


@pytest.mark.parametrize("domain", [REAL, POSITIVE, UNIT_BOX, SIMPLEX], ids=repr)
def test_the_middle_of_a_domain(domain: object) -> None:
    point = torch.full((1, 5), domain.middle(5))
    domain.check(point, "point", "Test")
