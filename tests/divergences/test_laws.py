"""The laws of a divergence, for every member of the catalogue, behind every wrapper, fresh and trained."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from members import BREGMAN_WRAPPERS, DIM, WRAPPERS, Case, build, cases, points, random_points
from torch import Tensor

import askew.divergences as divergences
from askew.divergences import CATALOGUE, Bregman, Divergence, Dual, Embedded
from askew.potentials import FromFunction

CASES = cases()
BREGMAN = [case for case in CASES if isinstance(build(case), Bregman)]
by_case = pytest.mark.parametrize("case", CASES, ids=str)
by_bregman = pytest.mark.parametrize("case", BREGMAN, ids=str)

coordinates = st.lists(st.floats(-3, 3, width=32), min_size=3 * DIM, max_size=3 * DIM)
some = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def drawn(case: Case, numbers: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    x, y, z = points(case, torch.tensor(numbers, dtype=torch.float64).view(3, DIM))
    return x, y, z


def close(found: Tensor, wanted: Tensor, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


@by_case
@given(coordinates)
@some
def test_non_negative_and_zero_at_the_same_point(case: Case, numbers: list[float]) -> None:
    divergence = build(case)
    x, y, _ = drawn(case, numbers)
    with torch.no_grad():
        assert divergence(x, y) >= 0
        if divergence.reflexive:
            assert divergence(x, x) == 0
        else:
            assert divergence(x, x) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@by_case
def test_non_negative_and_zero_in_low_precision(case: Case, dtype: torch.dtype) -> None:
    if case.wrapper == "dual" and dtype == torch.bfloat16:
        pytest.skip("a gradient rounded to 8 bits need not be one of a network any more")
    divergence = copy.deepcopy(build(case)).to(dtype)
    x = random_points(case, 40).to(dtype)
    if case.name == "kl-simplex" and case.wrapper != "dual":
        x = x / x.sum(-1, keepdim=True)
    y = x.flip(0)
    with torch.no_grad():
        result = divergence(x, y)
        assert result.dtype == dtype
        assert (result >= 0).all()
        assert (divergence.pairwise(x, y) >= 0).all()
        if divergence.reflexive:
            assert (divergence(x, x) == 0).all()
            assert (divergence.pairwise(x, x).diagonal() == 0).all()


@by_case
@given(coordinates)
@some
def test_batches_broadcasts_and_all_pairs_agree(case: Case, numbers: list[float]) -> None:
    divergence = build(case)
    batch = torch.stack(drawn(case, numbers))
    with torch.no_grad():
        # Column k has D(x_i, x_{i - k}), so that encoders, which need not broadcast, can take part.
        shifted = torch.stack([divergence(batch, batch.roll(k, 0)) for k in range(3)], 1)
        close(torch.stack([divergence(batch[i], batch[i - 1]) for i in range(3)]), shifted[:, 1])
        matrix = torch.stack([shifted[i, [(i - j) % 3 for j in range(3)]] for i in range(3)])
        if not isinstance(divergence, Embedded):
            close(divergence(batch[:, None], batch[None]), matrix)
            close(divergence(batch[0], batch), matrix[0])
        close(divergence.pairwise(batch, batch), matrix, rtol=1e-7)
        close(divergence.pairwise(batch[:2], batch), matrix[:2], rtol=1e-7)


@by_case
def test_state_survives_saving_and_copying(case: Case) -> None:
    divergence = build(case)
    x, y = random_points(case, 5), random_points(case, 5, seed=1)
    clone = copy.deepcopy(divergence)
    with torch.no_grad():
        wanted = divergence(x, y)
        assert torch.equal(clone(x, y), wanted)
        for tensor in clone.state_dict().values():
            tensor.zero_()
        clone.load_state_dict(divergence.state_dict())
        assert torch.equal(clone(x, y), wanted)


def triples(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Random triples and collinear ones, where a curved function shows itself first."""
    # The dual of a network solves for each point: fewer of them.
    n = 100 if case.wrapper == "dual" else 1000
    x, z, other = (random_points(case, n, seed=seed, scale=1.5) for seed in range(3))
    share = torch.rand(n, 1, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    between = x + share * (z - x)
    if case.wrapper == "dual":  # between two gradients need not lie another one
        return x, other, z
    return torch.cat([x, x]), torch.cat([other, between]), torch.cat([z, z])


@by_case
def test_guarantee_of_symmetry(case: Case) -> None:
    divergence = build(case)
    x, y, _ = triples(case)
    with torch.no_grad():
        there, back = divergence(x, y), divergence(y, x)
    if divergence.symmetric:
        close(there, back)
    else:
        assert ((there - back).abs() > 1e-3 * (there + back)).any(), "no counter-example to symmetry found"


@by_case
def test_guarantee_of_the_triangle_inequality(case: Case) -> None:
    divergence = build(case)
    if case.name == "widenorm-legacy" and not divergence.triangle:
        pytest.skip("its bias may or may not break the inequality; test_norms chooses one that does")
    x, y, z = triples(case)
    with torch.no_grad():
        direct, detour = divergence(x, z), divergence(x, y) + divergence(y, z)
    if divergence.triangle:
        assert (direct <= detour * (1 + 1e-9) + 1e-12).all()
    else:
        assert (direct > detour * (1 + 1e-6)).any(), "no counter-example to the triangle inequality found"


# ---------------------------------------------------------------------- laws of Bregman divergences


@by_bregman
@given(coordinates, st.floats(0, 1))
@some
def test_convex_in_the_first_argument(case: Case, numbers: list[float], share: float) -> None:
    divergence = build(case)
    if isinstance(divergence, Dual) and not has_real_dual(case):
        pytest.skip("the gradients of this network are not a convex set")
    x, y, z = drawn(case, numbers)
    with torch.no_grad():
        between = divergence(share * x + (1 - share) * y, z)
        assert between <= share * divergence(x, z) + (1 - share) * divergence(y, z) + 1e-9


def has_real_dual(case: Case) -> bool:
    """Whether every vector between two gradients is a gradient, as with closed forms and quadratic terms."""
    return case.name != "nbd-paper"


@by_bregman
@given(coordinates)
@some
def test_three_points(case: Case, numbers: list[float]) -> None:
    divergence = build(case)
    x, y, z = drawn(case, numbers)
    with torch.no_grad():
        corner = ((divergence.potential.gradient(z) - divergence.potential.gradient(y)) * (x - y)).sum()
        close(divergence(x, y) + divergence(y, z) - divergence(x, z), corner, atol=1e-8)


@by_bregman
def test_affine_terms_do_not_matter(case: Case) -> None:
    if case.wrapper == "dual":
        pytest.skip("the value of a conjugate is found by a solve, which a function through autograd cannot use")
    divergence = build(case)
    potential = divergence.potential
    slope = torch.arange(1.0, DIM + 1, dtype=torch.float64)
    tilted = Bregman(FromFunction(lambda x: potential.compute_value(x) + x @ slope - 7, DIM, domain=potential.domain))
    x, y = random_points(case, 20), random_points(case, 20, seed=1)
    close(tilted(x, y), divergence(x, y), rtol=1e-6, atol=1e-9)


@by_bregman
def test_the_mean_is_the_right_centre(case: Case) -> None:
    if case.wrapper == "dual":
        pytest.skip("the mean of gradients need not be a gradient")
    divergence = build(case)
    x = random_points(case, 30)
    mean = x.mean(0).requires_grad_()
    total = divergence(x, mean).sum()
    (slope,) = torch.autograd.grad(total, mean)
    if divergence.domain.sums_to_one:  # stationary within the simplex
        slope = slope - slope.mean()
    assert slope.abs().max() < 1e-7 * max(1.0, total.item())
    with torch.no_grad():
        for seed in range(5):
            elsewhere = mean + 0.3 * (random_points(case, 1, seed=seed)[0] - mean)
            assert divergence(x, elsewhere).sum() > total * (1 - 1e-12)


@by_bregman
def test_duality(case: Case) -> None:
    if case.wrapper == "dual":
        pytest.skip("the dual of the dual is checked by the plain case")
    divergence = build(case)
    x, y = random_points(case, 20), random_points(case, 20, seed=1)
    with torch.no_grad():
        gradient_x, gradient_y = divergence.potential.gradient(x), divergence.potential.gradient(y)
        close(Dual(divergence)(gradient_y, gradient_x), divergence(x, y), rtol=1e-5, atol=1e-8)


# ---------------------------------------------------------------------- nobody is forgotten


def test_every_class_is_in_the_catalogue_or_among_the_wrappers() -> None:
    classes = {c for c in vars(divergences).values() if inspect.isclass(c) and issubclass(c, Divergence)}
    reached: set[type] = {Divergence}
    for case in CASES:
        reached |= set(type(build(case)).__mro__)
    # NeuralBregman and Bregman come with "nbd" and "kl"; every other class has to appear by itself.
    assert classes <= reached, f"without a case: {classes - reached}"


def test_the_list_of_cases_is_complete() -> None:
    assert {case.name for case in CASES} == set(CATALOGUE)
    assert {case.wrapper for case in CASES} == {*WRAPPERS, *BREGMAN_WRAPPERS}
    for name, entry in CATALOGUE.items():
        has_parameters = any(True for _ in entry.factory(DIM).parameters())
        assert has_parameters == entry.learned, name
