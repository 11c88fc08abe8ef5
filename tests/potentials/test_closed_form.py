"""Kernels and closed forms against 50 digits, and the laws that every closed form obeys."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from askew.potentials import kernels
from askew.potentials.base import Potential
from askew.potentials.closed_form import (
    Burg,
    Exponential,
    FermiDirac,
    LogSumExp,
    NegativeEntropy,
    PowerNorm,
    Quadratic,
)

DTYPES = (torch.float32, torch.float64)
BOUND = {torch.float32: 1e-6, torch.float64: 1e-14}
POWERS = (1.01, 1.5, 2.0, 3.7)
DIM = 4
MATRIX = torch.tensor([[1.0, 0.5, 0.0, 0.0], [0.0, 2.0, -1.0, 0.0], [0.0, 0.0, 0.5, 0.25], [1.0, 0.0, 0.0, 3.0]])


@pytest.fixture(autouse=True)
def _fifty_digits():
    with mpmath.workdps(50):
        yield


def normals(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def worst(got: Tensor, want: list[mpf]) -> float:
    pairs = zip(got.reshape(-1).tolist(), want, strict=True)
    return max(float(abs(mpf(a) - b) / b) if b else float(a != 0) for a, b in pairs)


# ---------------------------------------------------------------------- kernels


def from_one(kernel: Callable[..., Tensor], *options: float) -> Callable[[Tensor], Tensor]:
    """Return a kernel as a function of u: from y = 1 to x = 1 + u."""
    return lambda u: kernel(1 + u, torch.ones_like(u), u, *options)


def chi(d: Tensor) -> Tensor:
    return kernels.exponential(d, torch.zeros_like(d), d)


ONE_ARGUMENT: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[mpf], mpf], float, float]] = {
    "psi": (
        from_one(kernels.relative_entropy),
        lambda u: (1 + u) * mpmath.log(1 + u) - u if u > -1 else mpf(1),
        -1.0,
        1e30,
    ),
    "itakura": (from_one(kernels.itakura_saito), lambda u: u - mpmath.log(1 + u), -0.999999, 1e30),
    "chi": (chi, lambda d: mpmath.exp(d) - 1 - d, -1e30, 80.0),
} | {
    f"power {p}": (
        from_one(kernels.power_divergence, p),
        lambda u, p=p: abs(1 + u) ** mpf(p) - 1 - mpf(p) * u,
        -1e9,
        1e9,
    )
    for p in POWERS
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_kernel_is_accurate_to_a_few_units_in_the_last_place(name, dtype):
    function, reference, lowest, highest = ONE_ARGUMENT[name]
    sizes = torch.logspace(-12, 8, 61, dtype=torch.float64)
    dense = torch.linspace(-2.2, 2.2, 149, dtype=torch.float64)
    u = torch.cat([sizes, -sizes, dense]).clamp(lowest, highest).to(dtype)
    result = function(u)
    assert (result >= 0).all()
    assert worst(result, [reference(mpf(a)) for a in u.tolist()]) <= 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_kernel_is_exactly_zero_at_zero(name, dtype):
    assert ONE_ARGUMENT[name][0](torch.zeros(1, dtype=dtype)).item() == 0


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_kernel_is_twice_differentiable_on_both_sides_of_its_seams(name):
    u = torch.tensor([-0.7, -0.5 - 1e-3, -0.3, 0.2, 1 - 1e-3, 1 + 1e-3, 3.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(ONE_ARGUMENT[name][0], u)
    assert gradgradcheck(ONE_ARGUMENT[name][0], u)


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_kernel_derivatives_at_zero(name):
    u = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(ONE_ARGUMENT[name][0](u).sum(), u, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), u)
    p = float(name.split()[1]) if name.startswith("power") else 2.0
    assert (slope == 0).all()
    torch.testing.assert_close(curvature, torch.full_like(u, p * (p - 1) if name.startswith("power") else 1.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_relative_entropy_of_arguments_far_apart(dtype):
    # 1 + h / y rounds to 0 or the quotient overflows in each of these.
    x = torch.tensor([1e-30, 1e-37, 0.5, 3e30], dtype=dtype)
    y = torch.tensor([1.0, 1.0, 1e-40, 2e-20], dtype=dtype)
    want = [mpf(a) * mpmath.log(mpf(a) / mpf(b)) - mpf(a) + mpf(b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert worst(kernels.relative_entropy(x, y, x - y), want) <= 1e-6
    want = [mpf(a) / mpf(b) - 1 - mpmath.log(mpf(a) / mpf(b)) for a, b in zip(x[:2].tolist(), y.tolist(), strict=False)]
    assert worst(kernels.itakura_saito(x, y, x - y)[:2], want) <= 1e-6


def test_exponential_does_not_overflow_before_its_result():
    x, y = torch.tensor([50.0, -80.0, 80.0]), torch.tensor([-60.0, 80.0, -200.0])
    want = [mpmath.exp(a) - mpmath.exp(b) * (1 + mpf(a) - b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert worst(kernels.exponential(x, y, x - y), want) <= 1e-6


def test_signed_power_difference_keeps_small_differences():
    x = torch.tensor([3.0, -3.0, 2.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    h = torch.tensor([1e-10, 1e-10, -1.0, -3.0, 2.0, 0.0], dtype=torch.float64)
    y = x - h
    for q in (0.5, 1.0, 2.7):
        got = kernels.signed_power_difference(x, y, x - y, q)
        pairs = [(mpf(a), mpf(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        want = [mpmath.sign(a) * abs(a) ** mpf(q) - mpmath.sign(b) * abs(b) ** mpf(q) for a, b in pairs]
        assert worst(got, want) <= 1e-14


# ---------------------------------------------------------------------- potentials

Case = tuple[Callable[[], Potential], Callable[[list[mpf]], mpf], Callable[[list[mpf]], list[mpf]]]


def _quadratic(x: list[mpf]) -> mpf:
    return sum((sum(mpf(a) * b for a, b in zip(row, x, strict=True)) ** 2 for row in MATRIX.tolist()), mpf(0))


def _quadratic_slope(x: list[mpf]) -> list[mpf]:
    image = [sum((mpf(a) * b for a, b in zip(row, x, strict=True)), mpf(0)) for row in MATRIX.tolist()]
    return [sum((2 * mpf(a) * b for a, b in zip(row, image, strict=True)), mpf(0)) for row in MATRIX.mT.tolist()]


def _entropy(a: mpf) -> mpf:
    return a * mpmath.log(a) if a else mpf(0)


def _softmax(x: list[mpf]) -> list[mpf]:
    total = sum(mpmath.exp(a) for a in x)
    return [mpmath.exp(a) / total for a in x]


CASES: dict[str, Case] = {
    "quadratic": (lambda: Quadratic(DIM), lambda x: sum(a * a for a in x), lambda x: [2 * a for a in x]),
    "quadratic matrix": (lambda: Quadratic(DIM, MATRIX), _quadratic, _quadratic_slope),
    "entropy": (
        lambda: NegativeEntropy(DIM),
        lambda x: sum(_entropy(a) - a for a in x),
        lambda x: [mpmath.log(a) for a in x],
    ),
    "entropy simplex": (
        lambda: NegativeEntropy(DIM, simplex=True),
        lambda x: sum(_entropy(a) - a for a in x),
        lambda x: [mpmath.log(a) for a in x],
    ),
    "burg": (lambda: Burg(DIM), lambda x: -sum(mpmath.log(a) for a in x), lambda x: [-1 / a for a in x]),
    "log-sum-exp": (lambda: LogSumExp(DIM), lambda x: mpmath.log(sum(mpmath.exp(a) for a in x)), _softmax),
    "fermi-dirac": (
        lambda: FermiDirac(DIM),
        lambda x: sum(_entropy(a) + _entropy(1 - a) for a in x),
        lambda x: [mpmath.log(a / (1 - a)) for a in x],
    ),
    "exponential": (
        lambda: Exponential(DIM),
        lambda x: sum(mpmath.exp(a) for a in x),
        lambda x: [mpmath.exp(a) for a in x],
    ),
} | {
    f"power {p}": (
        lambda p=p: PowerNorm(DIM, p=p),
        lambda x, p=p: sum(abs(a) ** mpf(p) for a in x),
        lambda x, p=p: [mpf(p) * mpmath.sign(a) * abs(a) ** (mpf(p) - 1) for a in x],
    )
    for p in POWERS
}


# For the slow tests, one power stands for all.
FEWER = [name for name in CASES if name not in ("power 1.01", "power 2.0", "power 3.7")]


def points(name: str, rows: int, seed: int) -> Tensor:
    """Return points inside the domain of a case."""
    z = normals(rows, DIM, seed=seed)
    if name == "entropy simplex":
        return z.softmax(-1)
    if name in ("entropy", "burg"):
        return z.exp()
    return z.sigmoid() if name == "fermi-dirac" else z


def near_pairs(name: str, dtype: torch.dtype, distance: float) -> tuple[Tensor, Tensor]:
    """Return rows x, y with |x - y| / |x| near ``distance``, some of them far from the origin."""
    y = points(name, 6, seed=1)
    if name in ("fermi-dirac", "entropy simplex"):
        other = points(name, 6, seed=2)
        x = torch.lerp(y, other, min(1.0, distance))
    else:
        offset = torch.tensor([0.0, 1.0, 30.0, 1e3, 0.0, 0.0], dtype=torch.float64)[:, None]
        # exp overflows in float32 above 88; below, it is not the offset but the size of exp that matters.
        y = y + (offset.clamp(max=30) if name == "exponential" else offset)
        x = y + distance * y.abs() * torch.rand(y.shape, generator=torch.Generator().manual_seed(3)).double()
    return x.to(dtype), y.to(dtype)


def reference(name: str, x: Tensor, y: Tensor) -> list[mpf]:
    _, value, slope = CASES[name]
    result = []
    for row_x, row_y in zip(x.tolist(), y.tolist(), strict=True):
        a, b = [mpf(t) for t in row_x], [mpf(t) for t in row_y]
        change = sum((g * (s - t) for g, s, t in zip(slope(b), a, b, strict=True)), mpf(0))
        result.append(value(a) - value(b) - change)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_divergence_has_its_digits_at_every_distance(name, dtype):
    phi = CASES[name][0]().to(dtype)
    for distance in (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        x, y = near_pairs(name, dtype, distance)
        got = phi.divergence(x, y)
        assert (got >= 0).all()
        assert worst(got, reference(name, x, y)) <= BOUND[dtype], distance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_gradient_difference_has_its_digits(name, dtype):
    phi, slope = CASES[name][0]().to(dtype), CASES[name][2]
    for distance in (1.0, 1e-3, 1e-6):
        x, y = near_pairs(name, dtype, distance)
        got = phi.gradient_difference(x, y).double()
        pairs = zip(x.tolist(), y.tolist(), strict=True)
        want = torch.tensor(
            [
                [float(s - t) for s, t in zip(slope([mpf(t) for t in a]), slope([mpf(t) for t in b]), strict=True)]
                for a, b in pairs
            ],
            dtype=torch.float64,
        )
        error = (got - want).norm(dim=-1) / want.norm(dim=-1)
        assert error.max() <= BOUND[dtype]


@pytest.mark.parametrize("name", CASES)
def test_value_gradient_and_hessian_agree(name):
    phi, value, slope = CASES[name]
    phi = phi().double()
    x = points(name, 5, seed=4).requires_grad_()
    exact = [[mpf(t) for t in row] for row in x.tolist()]
    torch.testing.assert_close(phi(x).detach(), torch.tensor([float(value(row)) for row in exact]).double())
    want = torch.tensor([[float(t) for t in slope(row)] for row in exact], dtype=torch.float64)
    torch.testing.assert_close(phi.gradient(x).detach(), want)
    if name != "entropy simplex":  # autograd does not know that the rows sum to one; the gradient does not need it
        torch.testing.assert_close(torch.autograd.grad(phi(x).sum(), x)[0], want)
    jacobian = torch.stack([torch.autograd.functional.jacobian(phi.compute_gradient, row) for row in x.detach()])
    torch.testing.assert_close(phi.hessian(x).detach(), jacobian)


@pytest.mark.parametrize("name", CASES)
def test_inverse_gradient_goes_back(name):
    phi = CASES[name][0]().double()
    x = points(name, 5, seed=5)
    point, residual, iterations = phi.inverse_gradient(phi.gradient(x))
    if name == "log-sum-exp":  # one of many points that differ by a constant
        point, x = point - point.mean(-1, keepdim=True), x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(point, x, rtol=1e-9, atol=1e-12)
    assert residual.shape == (5,)
    assert residual.max() <= 1e-13
    assert iterations == 0


@pytest.mark.parametrize("name", CASES)
def test_inverse_difference_keeps_small_differences(name):
    phi = CASES[name][0]().double()
    x, y = (phi.gradient(t) for t in near_pairs(name, torch.float64, 1e-3))
    direct = phi._inverse(x) - phi._inverse(y)
    if name == "entropy simplex":
        x = x - 0.5  # a constant changes nothing on the simplex
    torch.testing.assert_close(phi._inverse_difference(x, y, x - y), direct, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_divergence_is_exactly_zero_at_equal_points_with_right_derivatives(name):
    phi = CASES[name][0]().double()
    y = points(name, 3, seed=6)
    x = y.clone().requires_grad_()
    value = phi.compute_divergence(x, y, x - y)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    curvature = torch.stack([torch.autograd.grad(slope[:, i].sum(), x, retain_graph=True)[0] for i in range(DIM)], 1)
    assert (value == 0).all()
    assert (slope == 0).all()
    torch.testing.assert_close(curvature, phi.hessian(y))


@pytest.mark.parametrize("name", FEWER)
def test_derivatives_of_the_divergence(name):
    phi = CASES[name][0]().double()
    x, y = points(name, 2, seed=7).requires_grad_(), points(name, 2, seed=8).requires_grad_()

    def divergence(x: Tensor, y: Tensor) -> Tensor:
        return phi.compute_divergence(x, y, x - y)

    def difference(x: Tensor, y: Tensor) -> Tensor:
        return phi.compute_gradient_difference(x, y, x - y)

    assert gradcheck(divergence, (x, y))
    assert gradgradcheck(divergence, (x, y), fast_mode=True)
    assert gradcheck(difference, (x, y))


@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_near_points_keep_their_digits(name):
    phi = CASES[name][0]().double()
    x, y = near_pairs(name, torch.float64, 1e-6)
    x, y = x[4:].requires_grad_(), y[4:].requires_grad_()
    of_x, of_y = torch.autograd.grad(phi.compute_divergence(x, y, x - y).sum(), (x, y))
    h = (x - y).detach()
    torch.testing.assert_close(of_x, phi.gradient_difference(x, y).detach(), rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(of_y, -(phi.hessian(y).detach() @ h[..., None])[..., 0], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", FEWER)
def test_hooks_run_compiled_mapped_and_without_data(name):
    phi = CASES[name][0]().double()
    x, y = points(name, 3, seed=9), points(name, 3, seed=10)
    want = phi.divergence(x, y)
    torch.testing.assert_close(torch.func.vmap(phi.divergence)(x, y), want)
    torch._dynamo.reset()  # or the members use up the limit of recompilations of one function
    compiled = torch.compile(phi.divergence, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, y), want)
    meta = phi.to("meta")
    assert meta.divergence(x.to("meta"), y.to("meta")).shape == (3,)


def test_all_pairs_by_broadcasting():
    x, y = normals(3, 1, DIM, seed=11), normals(1, 2, DIM, seed=12)
    for name in ("quadratic matrix", "log-sum-exp", "power 1.5"):
        phi = CASES[name][0]().double()
        rows = torch.stack([phi.divergence(x[i].expand(2, DIM), y[0]) for i in range(3)])
        torch.testing.assert_close(phi.divergence(x, y), rows)


# ---------------------------------------------------------------------- borders, zeros, errors


def test_zeros_of_x_are_allowed_where_the_potential_is_finite():
    x = torch.tensor([0.0, 0.25, 0.75], requires_grad=True)
    y = torch.tensor([0.25, 0.25, 0.5], requires_grad=True)
    value = NegativeEntropy(3, simplex=True).divergence(x, y)
    torch.testing.assert_close(value, 0.75 * torch.tensor(1.5).log())
    of_x, of_y = torch.autograd.grad(value, (x, y))
    torch.testing.assert_close(of_y, torch.tensor([1.0, 0.0, -0.5]))
    assert torch.isfinite(of_x).all()
    assert of_x[0] < -80
    coin = FermiDirac(2).divergence(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.25]))
    torch.testing.assert_close(coin, torch.tensor(8.0).log())


@pytest.mark.parametrize("p", POWERS)
def test_power_at_zero(p):
    phi = PowerNorm(1, p=p)
    zero, two = torch.zeros(1, requires_grad=True), torch.full((1,), 2.0, requires_grad=True)
    assert phi.divergence(zero, zero).item() == 0
    torch.testing.assert_close(phi.divergence(two, zero), torch.tensor(2.0**p))
    torch.testing.assert_close(phi.divergence(zero, two), torch.tensor((p - 1) * 2.0**p))
    for x, y in ((two, zero), (zero, two), (zero, zero)):
        grads = torch.autograd.grad(phi.divergence(x, y), {x, y})
        assert all(torch.isfinite(g).all() for g in grads)


def test_power_two_at_zero_is_the_quadratic():
    x, y = torch.tensor([3.0, 0.0]).requires_grad_(), torch.zeros(2, requires_grad=True)
    for phi in (PowerNorm(2, p=2), Quadratic(2)):
        of_x, of_y = torch.autograd.grad(phi.divergence(x, y), (x, y))
        torch.testing.assert_close(of_x, torch.tensor([6.0, 0.0]))
        torch.testing.assert_close(of_y, torch.tensor([-6.0, 0.0]))


def test_log_sum_exp_of_logits_far_apart():
    phi = LogSumExp(2)
    x, y = torch.tensor([0.0, 300.0]), torch.tensor([0.0, -300.0])
    torch.testing.assert_close(phi.divergence(x, y), torch.tensor(300.0))
    tiny = phi.divergence(torch.tensor([0.0, -50.0]), torch.tensor([0.0, -90.0])).item()
    exact = float(mpmath.exp(-50) - mpmath.exp(-90) * 41)
    assert tiny == pytest.approx(exact, rel=1e-5)


def test_quadratic_of_low_rank_measures_its_residual():
    phi = Quadratic(2, torch.tensor([[1.0, 0.0]]))
    result = phi.inverse_gradient(torch.tensor([[2.0, 0.0], [2.0, 3.0]]))
    torch.testing.assert_close(result.point, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    torch.testing.assert_close(result.residual, torch.tensor([0.0, 3.0]))


def test_matrix_is_a_buffer_that_moves():
    phi = Quadratic(DIM, MATRIX)
    assert list(dict(phi.named_buffers())) == ["matrix"]
    assert phi.double().divergence(normals(DIM, seed=1), normals(DIM, seed=2)).dtype == torch.float64


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: PowerNorm(2, p=1), ValueError, r"p of PowerNorm must be a finite number above 1\. Got 1 instead"),
        (lambda: Quadratic(3, torch.ones(2, 2)), ValueError, r"matrix of Quadratic must be of shape \(\.\.\., 3\)"),
        (lambda: Quadratic(2, torch.ones(2)), ValueError, r"matrix of Quadratic must be of shape \(rank, 2\)"),
        (lambda: Burg(1).divergence(torch.zeros(1), torch.ones(1)), ValueError, r"x of Burg .*\(0, inf\).*x\[0\] = 0"),
        (
            lambda: NegativeEntropy(1).divergence(torch.ones(1), torch.zeros(1)),
            ValueError,
            r"y of NegativeEntropy must be inside the positive domain.*clamp_min",
        ),
        (
            lambda: NegativeEntropy(2, simplex=True)(torch.ones(2)),
            ValueError,
            r"each row summing to 1 within 0.01\. Got x\.sum\(-1\) = 2 instead.*softmax",
        ),
        (lambda: FermiDirac(1)(torch.full((1,), 1.5)), ValueError, r"unit box domain.*x\[0\] = 1\.5"),
        (lambda: FermiDirac(1).gradient(torch.ones(1)), ValueError, r"unit box domain, each coordinate in \(0, 1\)"),
        (lambda: Burg(1).inverse_gradient(torch.ones(1)), ValueError, r"g of Burg\.inverse_gradient.*negative domain"),
        (lambda: LogSumExp(2).inverse_gradient(torch.ones(2)), ValueError, r"g of LogSumExp.*simplex"),
        (lambda: Exponential(1).inverse_gradient(-torch.ones(1)), ValueError, r"g of Exponential.*positive domain"),
    ],
)
def test_errors_say_what_must_be(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_repr_shows_dimension_domain_and_power():
    assert repr(PowerNorm(3, p=2.5)) == "PowerNorm(dim=3, domain=real, p=2.5)"
    assert repr(NegativeEntropy(3, simplex=True)) == "NegativeEntropy(dim=3, domain=simplex)"
