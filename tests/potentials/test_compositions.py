"""Sums, multiples, affine images and conjugates of potentials."""

from __future__ import annotations

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from askew.checks import NEGATIVE, POSITIVE, REAL, SIMPLEX, UNIT_BOX
from askew.potentials import AffinePrecomposed, Scaled, Sum
from askew.potentials.closed_form import (
    Burg,
    Exponential,
    FermiDirac,
    LogSumExp,
    NegativeEntropy,
    PowerNorm,
    Quadratic,
)
from askew.potentials.conjugate import Conjugate
from askew.potentials.function import FromFunction

DIM = 3
MATRIX = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.25], [0.5, 0.0, 1.0], [1.0, 1.0, 1.0]])
OFFSET = torch.tensor([0.5, 0.0, 1.0, 0.25])


def normals(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Bowl(nn.Module):
    """sum softplus(U x + b) + curvature |x|^2."""

    def __init__(self, curvature: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(normals(5, DIM, seed=1))
        self.curvature = curvature

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x @ self.weight.mT).sum(-1) + self.curvature * x.square().sum(-1)


COMPOSITIONS = {
    "sum": lambda: Exponential(DIM) + Quadratic(DIM),
    "sum with a domain": lambda: Sum([NegativeEntropy(DIM), Quadratic(DIM), NegativeEntropy(DIM)]),
    "scaled": lambda: 2.5 * PowerNorm(DIM, p=3.0),
    "affine": lambda: AffinePrecomposed(Exponential(4), MATRIX, OFFSET),
    "affine with a domain": lambda: AffinePrecomposed(Burg(4), MATRIX),
    "nested": lambda: 0.5 * (AffinePrecomposed(LogSumExp(4), MATRIX, OFFSET) + Quadratic(DIM)),
}
CLOSED = {
    "quadratic": lambda: Quadratic(DIM),
    "quadratic matrix": lambda: Quadratic(DIM, MATRIX),
    "entropy": lambda: NegativeEntropy(DIM),
    "entropy simplex": lambda: NegativeEntropy(DIM, simplex=True),
    "burg": lambda: Burg(DIM),
    "log-sum-exp": lambda: LogSumExp(DIM),
    "fermi-dirac": lambda: FermiDirac(DIM),
    "exponential": lambda: Exponential(DIM),
    "power": lambda: PowerNorm(DIM, p=1.5),
    "scaled burg": lambda: 2.0 * Burg(DIM),
}
SOLVED = {
    "bowl": lambda: FromFunction(Bowl(), DIM),
    "sum": lambda: Exponential(DIM) + Quadratic(DIM),
    "sum with a domain": lambda: NegativeEntropy(DIM) + Quadratic(DIM),
    "sum on the simplex": lambda: NegativeEntropy(DIM, simplex=True) + Quadratic(DIM),
    "scaled bowl": lambda: 3.0 * FromFunction(Bowl(), DIM),
    "affine": lambda: AffinePrecomposed(NegativeEntropy(4), MATRIX),
}


def points(phi, rows: int, seed: int, name: str = "") -> Tensor:
    z = normals(rows, DIM, seed=seed)
    if phi.domain == SIMPLEX:
        return z.softmax(-1)
    if phi.domain == UNIT_BOX:
        return z.sigmoid()
    return z.exp() if phi.domain == POSITIVE or "affine" in name else z


# ---------------------------------------------------------------------- sum, multiple, affine image


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_value_gradient_hessian_and_divergence_agree(name):
    phi = COMPOSITIONS[name]().double()
    x, y = points(phi, 4, 2, name).requires_grad_(), points(phi, 4, 3, name)
    gradient = phi.gradient(x)
    torch.testing.assert_close(gradient, torch.autograd.grad(phi(x).sum(), x)[0])
    jacobian = torch.stack([torch.autograd.functional.jacobian(phi.compute_gradient, row) for row in x.detach()])
    torch.testing.assert_close(phi.hessian(x), jacobian)
    textbook = phi(x) - phi(y) - (phi.gradient(y) * (x - y)).sum(-1)
    torch.testing.assert_close(phi.divergence(x, y), textbook, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(phi.gradient_difference(x, y), gradient - phi.gradient(y))
    assert (phi.divergence(x, x) == 0).all()


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_derivatives_of_the_divergence(name):
    phi = COMPOSITIONS[name]().double()
    x, y = points(phi, 2, 4, name).requires_grad_(), points(phi, 2, 5, name).requires_grad_()

    def divergence(x: Tensor, y: Tensor) -> Tensor:
        return phi.compute_divergence(x, y, x - y)

    assert gradcheck(divergence, (x, y))
    assert gradgradcheck(divergence, (x, y), fast_mode=True)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_inverse_gradient_goes_back(name):
    phi = COMPOSITIONS[name]().double()
    x = points(phi, 6, 6, name)
    torch.testing.assert_close(phi.inverse_gradient(phi.gradient(x)).point, x, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["sum with a domain", "affine with a domain", "nested"])
def test_hooks_run_compiled_mapped_and_without_data(name):
    phi = COMPOSITIONS[name]().double()
    x, y = points(phi, 3, 7, name), points(phi, 3, 8, name)
    want = phi.divergence(x, y)
    torch.testing.assert_close(torch.func.vmap(phi.divergence)(x, y), want)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(phi.divergence, fullgraph=True, backend="eager")(x, y), want)
    meta = phi.to("meta")
    assert meta.divergence(x.to("meta"), y.to("meta")).shape == (3,)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_an_affine_image_keeps_the_digits_of_near_points(dtype, bound, offset):
    # All numbers are such that A x + b has no rounding of its own; x - y has few digits only.
    phi = (0.25 * AffinePrecomposed(PowerNorm(4, p=3), MATRIX, OFFSET)).to(dtype)
    for exponent in (0, -4, -8, -12):
        y = ((normals(4, DIM, seed=9) * 16).round() / 16 + offset).to(dtype)
        x = y + 2.0**exponent
        for got, a, b in zip(phi.divergence(x, y).tolist(), x.tolist(), y.tolist(), strict=True):
            with mpmath.workdps(50):
                exact = mpf(0)
                for row, shift in zip(MATRIX.tolist(), OFFSET.tolist(), strict=True):
                    s = sum(mpf(w) * t for w, t in zip(row, a, strict=True)) + shift
                    t = sum(mpf(w) * t for w, t in zip(row, b, strict=True)) + shift
                    exact += (abs(s) ** 3 - abs(t) ** 3 - 3 * t * abs(t) * (s - t)) / 4
                assert abs(got - exact) <= bound * exact


def test_domains_of_compositions():
    mixed = NegativeEntropy(DIM) + Quadratic(DIM)
    assert (mixed.domain, mixed.boundary) == (POSITIVE, True)
    assert not (NegativeEntropy(DIM) + Burg(DIM)).boundary
    assert (Exponential(DIM) + Quadratic(DIM)).domain == REAL
    scaled = 2.0 * Burg(DIM)
    assert (scaled.domain, scaled.dual_domain) == (POSITIVE, NEGATIVE)
    assert Scaled(LogSumExp(DIM), 2.0).dual_domain == REAL
    conjugate = Conjugate(Burg(DIM))
    assert (conjugate.domain, conjugate.dual_domain) == (NEGATIVE, POSITIVE)
    zero = torch.tensor([0.0, 1.0, 2.0])
    assert torch.isfinite(mixed.divergence(zero, torch.ones(DIM)))


def test_symmetry_is_guaranteed_only_where_it_holds():
    flat = [Quadratic(DIM), 2.0 * Quadratic(DIM, MATRIX), Quadratic(DIM) + Quadratic(DIM), Conjugate(Quadratic(DIM))]
    flat += [AffinePrecomposed(Quadratic(4), MATRIX, OFFSET), PowerNorm(DIM, p=2)]
    skew = [Exponential(DIM) + Quadratic(DIM), 2.0 * PowerNorm(DIM, p=3), Conjugate(NegativeEntropy(DIM))]
    x, y = normals(4, DIM, seed=19).float(), normals(4, DIM, seed=20).float()
    for phi in flat:
        assert phi.symmetric
        torch.testing.assert_close(phi.divergence(x, y), phi.divergence(y, x))
    for phi in skew:
        assert not phi.symmetric
        assert not torch.allclose(phi.divergence(x, y), phi.divergence(y, x))


def test_buffers_and_parameters_are_held_as_such():
    factor = Scaled(Quadratic(DIM), 0.5)
    assert [name for name, _ in factor.named_buffers()] == ["factor"]
    fixed = AffinePrecomposed(Quadratic(4), MATRIX, OFFSET)
    assert [name for name, _ in fixed.named_buffers()] == ["matrix", "offset"]
    learned = AffinePrecomposed(Quadratic(4), nn.Parameter(MATRIX.clone()))
    assert [name for name, _ in learned.named_parameters()] == ["matrix"]
    learned.divergence(torch.ones(DIM), torch.zeros(DIM)).backward()
    assert learned.matrix.grad.abs().sum() > 0


# ---------------------------------------------------------------------- conjugate


@pytest.mark.parametrize("name", [*CLOSED, *SOLVED])
def test_conjugate_swaps_and_turns_round(name):
    phi = (CLOSED | SOLVED)[name]().double()
    star = Conjugate(phi)
    x, y = points(phi, 5, 10, name), points(phi, 5, 11, name)
    of_x, of_y = phi.gradient(x).detach(), phi.gradient(y).detach()
    torch.testing.assert_close(star.divergence(of_y, of_x), phi.divergence(x, y), rtol=1e-7, atol=1e-10)
    if phi.domain == SIMPLEX or name == "log-sum-exp":
        return  # points or gradients count up to a constant
    torch.testing.assert_close(star.gradient(of_x), x, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(star(of_x), (of_x * x).sum(-1) - phi(x), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(star.inverse_gradient(x).point, of_x)
    torch.testing.assert_close(star.hessian(of_x), torch.linalg.inv(phi.hessian(x)).detach(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(Conjugate(star).divergence(x, y), phi.divergence(x, y), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    ("phi", "formula"),
    [
        (NegativeEntropy(DIM), lambda g: g.exp().sum(-1)),
        (Exponential(DIM), lambda g: (g * g.log() - g).sum(-1)),
        (Burg(DIM), lambda g: (-1 - (-g).log()).sum(-1)),
        (FermiDirac(DIM), lambda g: nn.functional.softplus(g).sum(-1)),
        (Quadratic(DIM), lambda g: g.square().sum(-1) / 4),
        (LogSumExp(DIM), lambda g: (g * g.log()).sum(-1)),
        (NegativeEntropy(DIM, simplex=True), lambda g: g.logsumexp(-1) + 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_conjugates_in_closed_form(phi, formula):
    g = phi.gradient(points(phi, 4, 12))
    torch.testing.assert_close(Conjugate(phi)(g), formula(g))


@pytest.mark.parametrize("name", [*CLOSED, *SOLVED])
def test_near_gradients_keep_their_digits(name):
    make = (CLOSED | SOLVED)[name]
    phi, wide = make().float(), make().double()
    y = points(phi, 5, 13, name)
    v = wide.gradient(y).detach().float()
    on_simplex = wide.dual_domain == SIMPLEX
    u = v + 2**-16 * torch.tensor([1.0, -1.0, 0.0]) if on_simplex else v * (1 + 2**-14)
    got = Conjugate(phi).divergence(u, v)
    # D = h H^-1 h / 2 to first order in h, and the next order is 1e-4 of it at most.
    h = (u - v).double()
    inverse = Conjugate(wide).compute_hessian(v.double())  # float32 rows sum to one in float32 only
    want = torch.einsum("ni,nij,nj->n", h, inverse, h) / 2
    torch.testing.assert_close(got.double().detach(), want.detach(), rtol=2e-3, atol=0)
    assert (Conjugate(phi).divergence(v, v) == 0).all()


@pytest.mark.parametrize("name", ["entropy", "power", "scaled burg", "bowl", "sum with a domain"])
def test_conjugate_is_twice_differentiable_in_g(name):
    phi = (CLOSED | SOLVED)[name]().double()
    star = Conjugate(phi)
    u, v = (phi.gradient(points(phi, 1, seed, name)).detach().requires_grad_() for seed in (14, 15))

    def divergence(u: Tensor, v: Tensor) -> Tensor:
        return star.compute_divergence(u, v, u - v)

    assert gradcheck(star.compute_value, u, fast_mode=True)
    for function, arguments in ((star.compute_gradient, (u,)), (divergence, (u, v))):
        assert gradcheck(function, arguments, fast_mode=True)
        assert gradgradcheck(function, arguments, fast_mode=True)


def test_conjugate_is_differentiable_in_the_parameters():
    net = Bowl()
    star = Conjugate(FromFunction(net, DIM))
    g = normals(2, DIM, seed=16)

    def point(weight: Tensor) -> Tensor:
        net.weight = nn.Parameter(weight.detach())
        return star.gradient(g)

    weight = net.weight.detach().clone()
    (got,) = torch.autograd.grad(point(weight)[0, 1], net.weight)
    (of_value,) = torch.autograd.grad(star(g).sum(), net.weight)
    step = torch.zeros_like(weight)
    step[2, 0] = 1e-5
    numeric = (point(weight + step)[0, 1] - point(weight - step)[0, 1]) / 2e-5
    torch.testing.assert_close(got[2, 0], numeric.detach(), rtol=1e-6, atol=1e-8)
    # By the envelope theorem the value changes by minus the change of phi at the solution.
    net.weight = nn.Parameter(weight)
    solution = star.gradient(g).detach()
    (direct,) = torch.autograd.grad(-star.potential(solution).sum(), net.weight)
    torch.testing.assert_close(of_value, direct)


def test_closed_conjugates_run_compiled_and_mapped():
    star = Conjugate(2.0 * NegativeEntropy(DIM))
    u, v = normals(3, DIM, seed=17), normals(3, DIM, seed=18)
    want = star.divergence(u, v)
    torch.testing.assert_close(torch.func.vmap(star.divergence)(u, v), want)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(star.divergence, fullgraph=True, backend="eager")(u, v), want)


def test_an_unreachable_gradient_is_named():
    star = Conjugate(FromFunction(Bowl(0.0), DIM))
    good = star.potential.gradient(torch.zeros(DIM, dtype=torch.float64)).detach()
    g = torch.stack([good, torch.full((DIM,), 1e3, dtype=torch.float64), good])
    text = r"conjugate of FromFunction .* at row 1: the residual is \S+ where max \|g\| is 1e\+03\. .*"
    with pytest.raises(ValueError, match=text + r"outside the range .* potential \+ 0\.01 \* Quadratic\(3\)"):
        star.gradient(g)
    repaired = Conjugate(star.potential + 0.01 * Quadratic(DIM).double())
    assert torch.isfinite(repaired.gradient(g)).all()


def test_a_gradient_outside_the_range_of_a_flat_quadratic_is_named():
    star = Conjugate(Quadratic(2, torch.tensor([[1.0, 0.0]])))
    torch.testing.assert_close(star.gradient(torch.tensor([2.0, 0.0])), torch.tensor([1.0, 0.0]))
    with pytest.raises(
        ValueError, match=r"conjugate of Quadratic .* at the point: the residual is 1 where max \|g\| is 2"
    ):
        star.gradient(torch.tensor([2.0, 1.0]))


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Sum([]), TypeError, r"potentials of Sum must be a non-empty sequence of potentials"),
        (lambda: Sum([Quadratic(2), nn.Identity()]), TypeError, r"Got \['Quadratic', 'Identity'\]"),
        (lambda: Quadratic(2) + Quadratic(3), ValueError, r"of one dimension\. Got \[2, 3\]"),
        (
            lambda: NegativeEntropy(2) + FermiDirac(2),
            ValueError,
            r"on one domain .*Got \['NegativeEntropy: positive', 'FermiDirac: unit box'\]",
        ),
        (lambda: -1.0 * Quadratic(2), ValueError, r"factor of Scaled must be a finite number above zero\. Got -1\.0"),
        (lambda: Scaled(nn.Identity(), 1.0), TypeError, r"potential of Scaled must be a Potential\. Got Identity"),
        (
            lambda: AffinePrecomposed(Quadratic(2), torch.ones(3, 4)),
            ValueError,
            r"matrix of AffinePrecomposed must be of shape \(2, dim\) because the inner potential has 2 features",
        ),
        (
            lambda: AffinePrecomposed(Quadratic(2), torch.ones(2, 4), torch.ones(4)),
            ValueError,
            r"offset of AffinePrecomposed must be of shape \(2,\)\. Got \(4,\)",
        ),
        (
            lambda: AffinePrecomposed(Burg(1), -torch.ones(1, 1)).divergence(torch.ones(1), torch.ones(1)),
            ValueError,
            r"The point A x \+ b of AffinePrecomposed lies outside the inner domain: x of Burg",
        ),
        (
            lambda: (AffinePrecomposed(Burg(1), -torch.ones(1, 1)) + Quadratic(1)).gradient(torch.ones(1)),
            ValueError,
            r"The point A x \+ b",
        ),
        (lambda: (2.0 * Burg(1))(torch.zeros(1)), ValueError, r"x of Burg must be inside the positive domain"),
        (lambda: (Burg(1) + Quadratic(1))(-torch.ones(1)), ValueError, r"x of Burg must be inside the positive"),
        (lambda: Conjugate(Exponential(1))(-torch.ones(1)), ValueError, r"x of Conjugate must be inside the positive"),
        (
            lambda: Scaled(LogSumExp(2), 2.0).inverse_gradient(torch.ones(2) * 3),
            ValueError,
            r"g of LogSumExp\.inverse_gradient must be inside the simplex",
        ),
    ],
)
def test_errors_say_what_must_be(call, error, text):
    with pytest.raises(error, match=text):
        call()
