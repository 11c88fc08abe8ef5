"""Potentials from a user's function, and the search for counter-examples to convexity."""

from __future__ import annotations

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from askew.checks import POSITIVE, SIMPLEX
from askew.potentials.closed_form import (
    Burg,
    Exponential,
    FermiDirac,
    LogSumExp,
    NegativeEntropy,
    PowerNorm,
    Quadratic,
)
from askew.potentials.function import FromFunction, check_convexity

DIM = 3


def normals(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Net(nn.Module):
    """sum softplus(U x + b) + |x|^2, with a buffer too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(normals(4, DIM, seed=1).float())
        self.register_buffer("bias", normals(4, seed=2).float())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x @ self.weight.mT + self.bias).sum(-1) + x.square().sum(-1)


def quartic(x: Tensor) -> Tensor:
    return (x.pow(4) + x.exp()).sum(-1)


# ---------------------------------------------------------------------- FromFunction


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-8)])
@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_divergence_keeps_its_digits_for_near_points(dtype, bound, offset):
    phi = FromFunction(quartic, DIM)
    for distance in (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        y = (normals(5, DIM, seed=3) + offset).to(dtype)
        x = y + distance * normals(5, DIM, seed=4).to(dtype)
        got = phi.divergence(x, y)
        for row, a, b in zip(got.tolist(), x.tolist(), y.tolist(), strict=True):
            with mpmath.workdps(50):
                exact = mpf(0)
                for s, t in zip(map(mpf, a), map(mpf, b), strict=True):
                    exact += s**4 + mpmath.exp(s) - t**4 - mpmath.exp(t) - (4 * t**3 + mpmath.exp(t)) * (s - t)
                assert abs(row - exact) <= bound * exact, distance


def test_divergence_agrees_with_a_closed_form():
    phi = FromFunction(lambda x: (x * x.log() - x).sum(-1), DIM, domain=POSITIVE)
    x, y = normals(20, DIM, seed=5).exp(), normals(20, DIM, seed=6).exp()
    torch.testing.assert_close(phi.divergence(x, y), NegativeEntropy(DIM).divergence(x, y), rtol=1e-9, atol=0)
    near = y * (1 + 1e-6)
    torch.testing.assert_close(phi.divergence(near, y), NegativeEntropy(DIM).divergence(near, y), rtol=1e-8, atol=0)
    assert (phi.divergence(y, y) == 0).all()


def test_value_gradient_hessian_and_shapes():
    phi = FromFunction(quartic, DIM)
    x = normals(2, 4, DIM, seed=7)
    torch.testing.assert_close(phi(x), quartic(x))
    torch.testing.assert_close(phi.gradient(x), 4 * x**3 + x.exp())
    torch.testing.assert_close(phi.hessian(x), torch.diag_embed(12 * x**2 + x.exp()))
    assert phi(x[0, 0]).shape == ()
    torch.testing.assert_close(phi.gradient(x[0, 0]), phi.gradient(x)[0, 0])
    assert phi.divergence(x[:, :1], x[:1]).shape == (2, 4)
    difference = phi.gradient_difference(x.float(), x.float() + 1)
    torch.testing.assert_close(difference, (phi.gradient(x) - phi.gradient(x + 1)).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("distance", [1.0, 1e-3, 0.0])
def test_derivatives_of_the_divergence(distance):
    phi = FromFunction(quartic, DIM)
    y = normals(2, DIM, seed=8).requires_grad_()
    x = (y + distance * normals(2, DIM, seed=9)).detach().requires_grad_()

    def divergence(x: Tensor, y: Tensor) -> Tensor:
        return phi.compute_divergence(x, y, x - y)

    if distance:
        assert gradcheck(divergence, (x, y))
        assert gradgradcheck(divergence, (x, y))
    of_x, of_y = torch.autograd.grad(divergence(x, y).sum(), (x, y), create_graph=True)
    hessian = phi.hessian(y)
    torch.testing.assert_close(of_x, phi.gradient_difference(x, y), rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(of_y, -(hessian @ (x - y)[..., None])[..., 0], rtol=1e-7, atol=1e-12)
    if not distance:
        curvature = torch.stack([torch.autograd.grad(of_x[:, i].sum(), x, retain_graph=True)[0] for i in range(DIM)], 1)
        torch.testing.assert_close(curvature, hessian)


def test_gradients_reach_the_parameters_of_a_module_in_its_dtype():
    phi = FromFunction(Net(), DIM)
    assert [name for name, _ in phi.named_parameters()] == ["function.weight"]
    y = normals(4, DIM, seed=10).float()
    for x in (y + 1, y + 1e-3):
        wide = FromFunction(Net().double(), DIM)
        (got,) = torch.autograd.grad(phi.divergence(x, y).sum(), phi.function.weight)
        (want,) = torch.autograd.grad(wide.divergence(x.double(), y.double()).sum(), wide.function.weight)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-9)
    (of_gradient,) = torch.autograd.grad(phi.gradient(y).square().sum(), phi.function.weight)
    assert of_gradient.abs().sum() > 0


def test_hooks_run_compiled_mapped_and_without_data():
    phi = FromFunction(quartic, DIM)
    y = normals(4, DIM, seed=11)
    x = y + torch.tensor([1.0, 1e-2, 1e-4, 0.0], dtype=torch.float64)[:, None]
    want = phi.divergence(x, y)
    torch.testing.assert_close(torch.func.vmap(phi.divergence)(x, y), want, rtol=1e-9, atol=0)
    torch._dynamo.reset()
    compiled = torch.compile(phi.divergence, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, y), want, rtol=1e-9, atol=0)
    assert phi.divergence(x.to("meta"), y.to("meta")).shape == (4,)


def test_a_function_that_is_not_convex_is_clamped_at_zero():
    assert FromFunction(lambda x: -x.square().sum(-1), 1).divergence(torch.ones(1), torch.zeros(1)).item() == 0


def test_inverse_gradient():
    phi = FromFunction(Net(), DIM)
    x = normals(5, DIM, seed=12).float()
    torch.testing.assert_close(phi.inverse_gradient(phi.gradient(x).detach()).point, x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: FromFunction(lambda x: x.sum(), 2)(torch.ones(3, 2)),
            ValueError,
            r"points of shape \(3, 2\) to values of shape \(3,\)\. Got shape \(\) instead\. Sum over the last",
        ),
        (lambda: FromFunction(lambda x: 1.0, 2)(torch.ones(3, 2)), ValueError, r"Got float instead"),
        (lambda: FromFunction(3, 2), TypeError, r"function of FromFunction must be callable"),
        (
            lambda: FromFunction(lambda x: (x @ torch.ones(2, 2)).square().sum(-1), 2).divergence(
                torch.ones(2), torch.zeros(2)
            ),
            TypeError,
            r"able to take points of torch\.float64.*Cast its constants with \.to\(x\.dtype\)",
        ),
        (
            lambda: FromFunction(quartic, 2, domain=POSITIVE).divergence(torch.zeros(2), torch.ones(2)),
            ValueError,
            r"x of FromFunction must be inside the positive domain",
        ),
    ],
)
def test_errors_say_what_must_be(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_other_runtime_errors_pass_through():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        FromFunction(lambda x: (x @ torch.ones(5, 1)).sum(-1), 2)(torch.ones(3, 2))


# ---------------------------------------------------------------------- check_convexity


def test_finds_a_counter_example_that_is_one():
    wave = FromFunction(lambda x: x.sin().sum(-1), 1)
    report = check_convexity(wave, torch.linspace(0, 6, 40)[:, None])
    assert not report.convex
    middle = (1 - report.t) * report.x + report.t * report.y
    chord = (1 - report.t) * report.x.sin() + report.t * report.y.sin()
    assert report.violation == pytest.approx((middle.sin() - chord).item(), rel=1e-9)
    assert report.violation > 0.1
    assert str(report).startswith("Not convex: between x = [")
    assert "above the chord" in str(report)
    assert f"t = {report.t:.6g}" in str(report)


def test_finds_a_small_flaw_by_short_segments():
    dented = FromFunction(lambda x: (x.square() - 0.02 * torch.exp(-200 * x.square())).sum(-1), 1)
    report = check_convexity(dented, normals(200, 1, seed=13))
    assert not report.convex
    assert report.violation > 0


def test_finds_gradients_that_are_not_those_of_a_convex_function():
    class Liar(Quadratic):
        def compute_gradient(self, x: Tensor) -> Tensor:
            return -2 * x

    report = check_convexity(Liar(2), normals(10, 2, seed=14))
    assert not report.convex
    assert report.t is None
    assert report.violation == pytest.approx(2 * (report.x - report.y).square().sum().item())
    assert "the gradient falls" in str(report)


@pytest.mark.parametrize(
    "phi",
    [
        Quadratic(DIM),
        NegativeEntropy(DIM),
        NegativeEntropy(DIM, simplex=True),
        Burg(DIM),
        LogSumExp(DIM),
        FermiDirac(DIM),
        Exponential(DIM),
        PowerNorm(DIM, p=1.2),
        FromFunction(Net(), DIM),
        FromFunction(lambda x: x.abs().sum(-1), DIM),
        FromFunction(lambda x: 1e6 + 0 * x.sum(-1), DIM),
    ],
    ids=lambda phi: type(phi).__name__,
)
def test_convex_functions_pass(phi):
    z = normals(50, DIM, seed=15).float()
    points = z.softmax(-1) if phi.domain == SIMPLEX else z.sigmoid() if phi.domain.lower == 0 else z
    report = check_convexity(phi, points)
    assert report.convex, report
    assert report.violation == 0
    assert str(report) == "No counter-example to convexity on 1000 segments; this is evidence, not a proof."


def test_one_point_is_enough_and_the_seed_decides():
    bad = FromFunction(lambda x: -x.square().sum(-1), 2)
    reports = [check_convexity(bad, torch.zeros(1, 2), samples=20, seed=seed) for seed in (0, 0, 1)]
    assert not any(report.convex for report in reports)
    assert torch.equal(reports[0].y, reports[1].y)
    assert not torch.equal(reports[0].y, reports[2].y)


@pytest.mark.parametrize(
    ("points", "samples", "text"),
    [
        (torch.ones(2), 10, r"points of check_convexity must be of shape \(n, 2\)"),
        (torch.ones(0, 2), 10, r"with n > 0\. Got \(0, 2\)"),
        (torch.ones(3, 2), 0, r"samples of check_convexity must be a positive integer"),
        (-torch.ones(3, 2), 10, r"x of Burg must be inside the positive domain"),
    ],
)
def test_check_convexity_errors(points, samples, text):
    with pytest.raises(ValueError, match=text):
        check_convexity(Burg(2), points, samples=samples)
