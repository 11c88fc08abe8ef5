"""Activations against many digits: formulas, in-place kernels, derivatives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from askew.potentials.icnn.activations import ACTIVATIONS, Activation, Workspace

NAMES = tuple(ACTIVATIONS)
DTYPES = (torch.float32, torch.float64)
BOUND = {
    ("squareplus", torch.float32): 1e-6,
    ("squareplus", torch.float64): 1e-14,
    ("softplus", torch.float32): 8e-6,  # just above |t| = 0.1, where the difference is taken directly
    ("softplus", torch.float64): 1e-10,
    ("relu", torch.float32): 1e-7,
    ("relu", torch.float64): 1e-15,
}
# What the in-place kernels may lose beyond that: they take b + sqrt(b^2 + 1) as it is down to b = -8.
KERNEL_LOSS = 20.0
# Products of factors below this leave the range where float32 has all its digits.
SMALLEST = {torch.float32: 1e-33, torch.float64: 1e-290}

by_name = pytest.mark.parametrize("name", NAMES)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


# ---------------------------------------------------------------------- the definitions, in the unit gain * a


def _squareplus(b: mpf) -> mpf:
    return b + mpmath.sqrt(b * b + 1)


def _softplus(b: mpf) -> mpf:
    return mpmath.log1p(mpmath.exp(b))


EXACT: dict[str, tuple[Callable[[mpf], mpf], Callable[[mpf], mpf], Callable[[mpf], mpf]]] = {
    "squareplus": (_squareplus, lambda b: 1 + b / mpmath.sqrt(b * b + 1), lambda b: mpmath.sqrt(b * b + 1) ** -3),
    "softplus": (
        _softplus,
        lambda b: 1 / (1 + mpmath.exp(-b)),
        lambda b: 1 / ((1 + mpmath.exp(-b)) * (1 + mpmath.exp(b))),
    ),
    "relu": (lambda b: max(b, mpf(0)), lambda b: mpf(b > 0), lambda b: mpf(0)),
}


def grid(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return base points and steps, every one with every other."""
    bases = [0.0, 1e-6, 0.3, 1.0, 2.7, 8.1, 20.0, 45.3, 60.0]
    steps = [1e-8, 1e-6, 1e-4, 9.9e-4, 1.1e-3, 1e-2, 0.099, 0.101, 0.5, 1.0, 1.01, 3.0, 7.7, 20.0, 60.0, 61.0, 100.0]
    if name == "squareplus":
        bases.append(1e3)
        steps += [300.0, 1e3]
    b, t = (torch.tensor(values + [-value for value in values], dtype=dtype) for values in (bases, steps))
    # Steps that end at, or close to, 0: where the sign changes and half of the terms cancel.
    onto_zero = torch.stack([b, -b]), torch.stack([b, -b * (1 + 1e-3)])
    everywhere = torch.cartesian_prod(b, t).T
    return tuple(torch.cat([everywhere[k], onto_zero[0][k], onto_zero[1][k]]) for k in range(2))  # type: ignore[return-value]


def exact(name: str, b: Tensor, t: Tensor) -> dict[str, list[mpf]]:
    value, slope, curvature = EXACT[name]
    found: dict[str, list[mpf]] = {key: [] for key in ("value", "slope", "curvature", "residual", "slope_difference")}
    # Enough digits that the definition keeps fifty after it has cancelled.
    with mpmath.workdps(150):
        for base, step in zip(map(mpf, b.tolist()), map(mpf, t.tolist()), strict=True):
            g, s, end = value(base), slope(base), base + step
            found["value"].append(g)
            found["slope"].append(s)
            found["curvature"].append(curvature(base))
            found["residual"].append(value(end) - g - s * step)
            found["slope_difference"].append(slope(end) - s)
    return found


def worst(found: Tensor, wanted: list[mpf]) -> float:
    """Return the largest relative error among the numbers that the dtype can hold to all digits."""
    errors = []
    for a, b in zip(found.tolist(), wanted, strict=True):
        if abs(b) < SMALLEST[found.dtype]:
            assert abs(a) <= 2 * SMALLEST[found.dtype]
        else:
            errors.append(float(abs(mpf(a) - b) / abs(b)))
    return max(errors, default=0.0)


def formulas(activation: Activation, b: Tensor, t: Tensor) -> dict[str, Tensor]:
    return {
        "value": activation.value(b),
        "slope": activation.slope(b),
        "curvature": activation.curvature(b),
        "residual": activation.residual(b, t),
        "slope_difference": activation.slope_difference(b, t),
    }


def kernel(
    activation: Activation, b: Tensor, t: Tensor, *, value: bool = True, slope: bool = True, derivatives: bool = True
) -> dict[str, Tensor | None]:
    """Call the kernel with buffers that are NaN, so that one it leaves out or reads first shows."""

    def buffer(wanted: bool = True) -> Tensor | None:
        return torch.full_like(b, torch.nan) if wanted else None

    residual = buffer()
    assert residual is not None
    scratch = tuple(torch.full_like(b, torch.nan) for _ in range(activation.buffers))
    workspace = Workspace(buffer(value), buffer(slope), residual, buffer(derivatives), buffer(derivatives), scratch)
    activation.kernel(b, t, workspace)
    return {key: part for key, part in workspace._asdict().items() if key != "scratch"}


# ---------------------------------------------------------------------- values


@by_dtype
@by_name
def test_formulas_and_kernel_against_many_digits(name: str, dtype: torch.dtype) -> None:
    activation = ACTIVATIONS[name]
    b, t = grid(name, dtype)
    wanted = exact(name, b, t)
    bound = BOUND[name, dtype]
    for key, found in formulas(activation, b, t).items():
        assert worst(found, wanted[key]) <= bound, key
    # The kernel chooses its formula by the range of all numbers: it gets the moderate ones by themselves as well.
    moderate = (b.abs() <= 8) & (t.abs() <= 8)
    for chosen in (torch.ones_like(moderate), moderate):
        for key, found in kernel(activation, b[chosen], t[chosen]).items():
            assert found is not None
            part = [number for number, keep in zip(wanted[key], chosen.tolist(), strict=True) if keep]
            assert worst(found, part) <= KERNEL_LOSS * bound, key


@by_dtype
@by_name
def test_residual_is_never_negative(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    activation = ACTIVATIONS[name]
    for exponent in torch.linspace(-8, 3, 12).tolist():
        b, scale = torch.randn(30_000, generator=generator, dtype=dtype), torch.rand(30_000, generator=generator)
        b = b * 10 ** (3 * scale.to(dtype))
        t = torch.randn(30_000, generator=generator, dtype=dtype) * 10**exponent
        assert (activation.residual(b, t) >= 0).all()
        assert (kernel(activation, b, t)["residual"] >= 0).all()
        # Steps that are a share of b, down to its last digits.
        t = b * torch.randn(30_000, generator=generator, dtype=dtype) * 10 ** min(exponent, 0)
        assert (activation.residual(b, t) >= 0).all()
        assert (kernel(activation, b, t)["residual"] >= 0).all()


@by_dtype
@by_name
def test_nothing_changes_without_a_step(name: str, dtype: torch.dtype) -> None:
    activation = ACTIVATIONS[name]
    b = torch.cat([torch.linspace(-60, 60, 241, dtype=dtype), torch.tensor([-1e3, 1e3], dtype=dtype)])
    for t in (torch.zeros_like(b), -torch.zeros_like(b)):
        for found in (formulas(activation, b, t), kernel(activation, b, t)):
            assert (found["residual"] == 0).all()
            assert (found["slope_difference"] == 0).all()


@by_name
def test_convex_and_non_decreasing(name: str) -> None:
    b = torch.linspace(-30, 30, 601, dtype=torch.float64)
    activation = ACTIVATIONS[name]
    assert (activation.slope(b) >= 0).all()
    assert (activation.curvature(b) >= 0).all()
    assert (activation.value(b).diff() >= 0).all()
    assert (activation.slope(b).diff() >= 0).all()


# ---------------------------------------------------------------------- the in-place kernel

RANGES = {
    "moderate": (3.0, 2.0),
    "far base": (400.0, 2.0),
    "far step": (3.0, 400.0),
    "far apart": (400.0, 400.0),
}


@pytest.mark.parametrize("extent", RANGES)
@by_dtype
@by_name
def test_kernel_equals_the_formulas(name: str, dtype: torch.dtype, extent: str) -> None:
    activation = ACTIVATIONS[name]
    generator = torch.Generator().manual_seed(0)
    b, t = (scale * torch.randn(50, 20, generator=generator, dtype=dtype) for scale in RANGES[extent])
    wanted = formulas(activation, b, t)
    before = b.clone(), t.clone()
    rtol = 2 * KERNEL_LOSS * BOUND[name, dtype]
    for value, slope, derivatives in product((False, True), repeat=3):
        if value and not slope:  # no caller needs g without g'
            continue
        for key, found in kernel(activation, b, t, value=value, slope=slope, derivatives=derivatives).items():
            asked = {"value": value, "slope": slope}.get(key, derivatives or key == "residual")
            assert (found is not None) == asked
            if found is not None:
                # The value only enters sums in the next layer, where its absolute error counts.
                atol = 2 * torch.finfo(dtype).eps if key == "value" else SMALLEST[dtype]
                torch.testing.assert_close(found, wanted[key], rtol=rtol, atol=atol, msg=key)
    assert torch.equal(b, before[0])
    assert torch.equal(t, before[1])


@by_dtype
@by_name
def test_kernel_of_nothing(name: str, dtype: torch.dtype) -> None:
    nothing = torch.empty(0, 5, dtype=dtype)
    for found in kernel(ACTIVATIONS[name], nothing, nothing).values():
        assert found is not None
        assert found.shape == (0, 5)


@by_name
def test_kernel_takes_non_contiguous_buffers(name: str) -> None:
    """The layers of a network are slices of larger blocks."""
    activation = ACTIVATIONS[name]
    b, t = torch.randn(2, 30, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).transpose(1, 2)
    wanted = kernel(activation, b.contiguous(), t.contiguous())
    for key, found in kernel(activation, b, t).items():
        torch.testing.assert_close(found, wanted[key], rtol=1e-12, atol=0)


# ---------------------------------------------------------------------- derivatives


def points(seed: int, *shape: int) -> Tensor:
    """Return points to differentiate at."""
    x = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.requires_grad_()


# A base may serve for many steps, as the centre of all pairs does; a step has the full shape.
SHAPES = {
    "same": ((6,), (6,)),
    "one base for many steps": ((1, 4), (5, 4)),
    "one number for many steps": ((), (5,)),
}


@pytest.mark.parametrize("shapes", SHAPES)
@by_name
def test_derivatives(name: str, shapes: str) -> None:
    activation = ACTIVATIONS[name]
    b, t = (points(seed, *shape) for seed, shape in enumerate(SHAPES[shapes]))
    if name == "relu":
        assert (b + t).abs().min() > 1e-3
        assert b.abs().min() > 1e-3
    for one in (activation.value, activation.slope):
        assert gradcheck(one, (b,))
    for two in (activation.residual, activation.slope_difference):
        assert gradcheck(two, (b, t))


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("name", ["squareplus", "softplus"])
def test_second_derivatives(name: str, shapes: str) -> None:
    activation = ACTIVATIONS[name]
    b, t = (points(seed, *shape) for seed, shape in enumerate(SHAPES[shapes]))
    for one in (activation.value, activation.slope):
        assert gradgradcheck(one, (b,))
    for two in (activation.residual, activation.slope_difference):
        assert gradgradcheck(two, (b, t))


@pytest.mark.parametrize("name", ["squareplus", "softplus"])
def test_derivatives_in_closed_form_equal_those_of_the_formulas(name: str) -> None:
    """Function transforms differentiate the formulas; training uses the derivatives in closed form."""
    activation = ACTIVATIONS[name]
    b, t = (points(seed, 40).detach() for seed in range(2))
    for function in (activation.residual, activation.slope_difference):
        for argument in range(2):
            wanted = torch.func.grad(lambda *a, f=function: f(*a).sum(), argnums=argument)(b, t)
            inputs = [b.clone().requires_grad_(), t.clone().requires_grad_()]
            (found,) = torch.autograd.grad(function(*inputs).sum(), inputs[argument])
            torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9)


def test_units_are_those_of_the_usual_definitions() -> None:
    a = torch.linspace(-20, 20, 81, dtype=torch.float64)
    usual = {
        "squareplus": (a + (a * a + 4).sqrt()) / 2,
        "softplus": torch.nn.functional.softplus(a, threshold=100),
        "relu": a.relu(),
    }
    for name, wanted in usual.items():
        activation = ACTIVATIONS[name]
        torch.testing.assert_close(activation.value(a * activation.gain), wanted, rtol=1e-12, atol=1e-13)
