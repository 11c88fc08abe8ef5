r"""Convex, non-decreasing activations and their Bregman residuals, free of cancellation.

An activation g enters an input-convex network through two functions of a base point b and a step t:

    residual  d(b, t) = g(b + t) - g(b) - g'(b) t  >= 0
    bend      c(b, t) = g'(b + t) - g'(b)

Subtracting g(b) from g(b + t) would lose all digits for small t, so each activation has formulas of its
own in which every term is computed directly. They exist twice: `residual` and `bend` are ordinary
differentiable torch code, for compilers, function transforms and second derivatives; `kernel` does the
same arithmetic in place, for the hand-written backward pass of eager training.

Each g is expressed in its natural unit: the network multiplies the pre-activations by `gain` first, so
that squareplus (a + sqrt(a^2 + 4)) / 2 becomes b + sqrt(b^2 + 1) with b = a / 2 and has no constants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from askew import checks

__all__ = ["ACTIVATIONS", "Activation", "ReLU", "Softplus", "Squareplus", "Stage"]

# Constants that the in-place kernels add to; they only run on the CPU.
_ONE = {dtype: torch.ones((), dtype=dtype) for dtype in (torch.float32, torch.float64)}
_HALF = {dtype: one / 2 for dtype, one in _ONE.items()}


class Stage(NamedTuple):
    """Buffers that a kernel fills at (b, t): all of one shape, None where the caller has no use for it."""

    value: Tensor | None  # g(b)
    slope: Tensor | None  # g'(b)
    residual: Tensor  # d(b, t)
    bend: Tensor | None  # c(b, t)
    curvature: Tensor | None  # g''(b)
    scratch: tuple[Tensor, ...]  # as many as `Activation.buffers`, free to be overwritten


class Activation(ABC):
    """A convex non-decreasing function of one variable."""

    name: str
    gain: float = 1.0
    buffers: int = 0

    def value(self, b: Tensor) -> Tensor:
        """Return g(b)."""
        return _with_derivative(_Value, self, b)

    def slope(self, b: Tensor) -> Tensor:
        """Return g'(b)."""
        return _with_derivative(_Slope, self, b)

    def residual(self, b: Tensor, t: Tensor) -> Tensor:
        """Return g(b + t) - g(b) - g'(b) t."""
        return _with_derivative(_Residual, self, b, t)

    def bend(self, b: Tensor, t: Tensor) -> Tensor:
        """Return g'(b + t) - g'(b)."""
        return _with_derivative(_Bend, self, b, t)

    def residual_and_bend(self, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return both at once, from one pass of the in-place kernel where that is possible."""
        if checks.transformed():
            return self.residual(b, t), self.bend(b, t)
        result: tuple[Tensor, Tensor] = _ResidualAndBend.apply(self, b, t)  # type: ignore[no-untyped-call]
        return result

    @abstractmethod
    def curvature(self, b: Tensor) -> Tensor:
        """Return g''(b)."""

    @abstractmethod
    def _value(self, b: Tensor) -> Tensor: ...

    @abstractmethod
    def _slope(self, b: Tensor) -> Tensor: ...

    @abstractmethod
    def _residual(self, b: Tensor, t: Tensor) -> Tensor: ...

    @abstractmethod
    def _bend(self, b: Tensor, t: Tensor) -> Tensor: ...

    def kernel(self, b: Tensor, t: Tensor, out: Stage) -> None:
        """Fill the buffers of `out`; bend and curvature are there both or not at all."""
        if out.value is not None:
            out.value.copy_(self._value(b))
        if out.slope is not None:
            out.slope.copy_(self._slope(b))
        out.residual.copy_(self._residual(b, t))
        if out.bend is not None and out.curvature is not None:
            out.bend.copy_(self._bend(b, t))
            out.curvature.copy_(self.curvature(b))


def _with_derivative(function: type[_Unit], activation: Activation, *arguments: Tensor) -> Tensor:
    """Evaluate with the derivative known in closed form instead of the one of the formula.

    Differentiating the formulas works but costs several times as much. Function transforms and exporters,
    which cannot look inside an autograd function, get the formula.
    """
    if torch.compiler.is_exporting() or checks.in_function_transform():
        return function.formula(activation, *arguments)
    result: Tensor = function.apply(activation, *arguments)  # type: ignore[no-untyped-call]
    return result


class _Unit(torch.autograd.Function):
    """An elementwise function of an activation that knows its own derivative."""

    @staticmethod
    def formula(activation: Activation, *arguments: Tensor) -> Tensor:
        raise NotImplementedError


class _Value(_Unit):
    @staticmethod
    def formula(activation: Activation, *arguments: Tensor) -> Tensor:
        return activation._value(*arguments)

    @staticmethod
    def forward(ctx: Any, activation: Activation, b: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(b)
        return activation._value(b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (b,) = ctx.saved_tensors
        return None, grad * ctx.activation.slope(b)


class _Slope(_Unit):
    @staticmethod
    def formula(activation: Activation, *arguments: Tensor) -> Tensor:
        return activation._slope(*arguments)

    @staticmethod
    def forward(ctx: Any, activation: Activation, b: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(b)
        return activation._slope(b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (b,) = ctx.saved_tensors
        return None, grad * ctx.activation.curvature(b)


class _Residual(_Unit):
    @staticmethod
    def formula(activation: Activation, *arguments: Tensor) -> Tensor:
        return activation._residual(*arguments)

    @staticmethod
    def forward(ctx: Any, activation: Activation, b: Tensor, t: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(b, t)
        if checks.transformed():
            return activation._residual(b, t)
        residual = torch.empty_like(t)
        scratch = t.new_empty(activation.buffers, *t.shape).unbind()
        activation.kernel(b.expand_as(t), t, Stage(None, None, residual, None, None, scratch))
        return residual

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        b, t = ctx.saved_tensors
        bend = ctx.activation.bend(b, t)
        by_base = (grad * (bend - ctx.activation.curvature(b) * t)).sum_to_size(b.shape)
        return None, by_base, (grad * bend).sum_to_size(t.shape)


class _Bend(_Unit):
    @staticmethod
    def formula(activation: Activation, *arguments: Tensor) -> Tensor:
        return activation._bend(*arguments)

    @staticmethod
    def forward(ctx: Any, activation: Activation, b: Tensor, t: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(b, t)
        return activation._bend(b, t)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        b, t = ctx.saved_tensors
        end = ctx.activation.curvature(b + t)
        by_base = (grad * (end - ctx.activation.curvature(b))).sum_to_size(b.shape)
        return None, by_base, (grad * end).sum_to_size(t.shape)


class _ResidualAndBend(torch.autograd.Function):
    """d(b, t) and c(b, t) together; b may be one row for all rows of t."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        residual, bend, curvature, *scratch = t.new_empty(3 + activation.buffers, *t.shape).unbind()
        activation.kernel(b.expand_as(t), t, Stage(None, None, residual, bend, curvature, tuple(scratch)))
        # Views of one block would keep all of it alive.
        residual, bend = residual.clone(), bend.clone()
        ctx.activation = activation
        ctx.save_for_backward(b, t, bend)
        return residual, bend

    @staticmethod
    def backward(ctx: Any, grad_residual: Tensor, grad_bend: Tensor) -> Any:
        b, t, bend = ctx.saved_tensors
        activation = ctx.activation
        if torch.is_grad_enabled():  # the saved bend is a constant, and would be one in the second derivative
            bend = activation.bend(b, t)
        end, start = activation.curvature(b + t), activation.curvature(b)
        by_step = grad_residual * bend + grad_bend * end
        by_base = by_step - grad_residual * (start * t) - grad_bend * start
        return None, by_base.sum_to_size(b.shape), by_step


class Squareplus(Activation):
    r"""g(a) = (a + sqrt(a^2 + 4)) / 2, in the unit b = a / 2: b + sqrt(b^2 + 1).

    With a = b + t, R(b) = sqrt(b^2 + 1), M = a b + 1 and P = R(a) R(b) = sqrt(M^2 + t^2):

        d = t^2 / (R(b) Q),   c = t (1 / R(b) + 1 / R(a)) / Q,   Q = P + M.

    Q cancels when a and b have opposite signs. Since (P + M)(P - M) = t^2, it equals
    M+ + (M+^2 + t^2) / (P + M-), the positive and negative part of M, in which nothing cancels.
    """

    name = "squareplus"
    gain = 0.5
    buffers = 4

    def _value(self, b: Tensor) -> Tensor:
        # b + sqrt(b^2 + 1) cancels for b < 0, where it equals 1 / (|b| + sqrt(b^2 + 1)).
        return 2 * b.clamp_min(0) + 1 / (b.abs() + (b * b + 1).sqrt())

    def _slope(self, b: Tensor) -> Tensor:
        return self._value(b) * (b * b + 1).rsqrt()

    def curvature(self, b: Tensor) -> Tensor:
        return (b * b + 1).rsqrt() ** 3

    def _q(self, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        square = b * b + 1
        middle = (b + t) * b + 1
        product = (middle * middle + t * t).sqrt()
        positive = middle.clamp_min(0)
        q = positive + (positive * positive + t * t) / (product + (positive - middle))
        return q, square.sqrt(), product

    def _residual(self, b: Tensor, t: Tensor) -> Tensor:
        q, base, _ = self._q(b, t)
        return t * t / (base * q)

    def _bend(self, b: Tensor, t: Tensor) -> Tensor:
        q, base, product = self._q(b, t)
        return t * (1 / base + base / product) / q

    def kernel(self, b: Tensor, t: Tensor, out: Stage) -> None:
        if b.device.type != "cpu" or b.numel() == 0:
            super().kernel(b, t, out)
            return
        one = _ONE[b.dtype]
        s0, s1, s2, s3 = out.scratch
        gradient = out.bend is not None
        base = torch.addcmul(one, b, b, out=s0)  # R(b)^2
        end = torch.add(b, t, out=s1)
        # P in the way that leaves behind what is needed later: R(a)^2 for the derivatives, t^2 without them.
        if gradient:
            far = torch.addcmul(one, end, end, out=out.bend)
            product = torch.mul(far, base, out=s2).sqrt_()
        # M = a b + 1, not R(b)^2 + b t, which cancels for t near -b.
        middle = torch.addcmul(one, end, b, out=s1)
        if not gradient:
            squared = torch.mul(t, t, out=out.residual)
            product = torch.addcmul(squared, middle, middle, out=s2).sqrt_()
        # Where no unit is far out, P + M and b + R(b) lose a few bits at most and are taken as they are.
        if middle.amin().item() > -64:
            q = torch.add(product, middle, out=middle)
        else:
            positive = torch.clamp_min(middle, 0, out=s3)
            negative = middle.sub_(positive).neg_().add_(product)  # P + M-
            q = torch.mul(positive, positive).addcmul_(t, t).div_(negative).add_(positive)
        inverse = torch.rsqrt(base, out=s3)
        if out.slope is not None:
            if b.amin().item() > -8:
                torch.addcmul(one, b, inverse, out=out.slope)
                if out.value is not None:
                    torch.addcmul(b, base, inverse, out=out.value)
            else:
                z = torch.mul(base, inverse, out=out.slope if out.value is None else out.value)
                z.add_(torch.abs(b)).reciprocal_()
                z.add_(torch.clamp_min(b, 0), alpha=2)
                torch.mul(z, inverse, out=out.slope)
        if out.bend is None or out.curvature is None:
            squared.div_(q).mul_(inverse)
            return
        ratio = torch.div(t, q, out=q)
        y = torch.mul(ratio, inverse, out=out.residual)
        torch.addcmul(y, ratio, far.rsqrt_(), out=out.bend)
        torch.mul(inverse, inverse, out=out.curvature).mul_(inverse)
        y.mul_(t)


class Softplus(Activation):
    r"""g(b) = log(1 + e^b), the activation of the paper.

    d is even under (b, t) -> (-b, -t), so b <= 0 can be assumed; with s = g'(b) <= 1/2, u = s (e^t - 1):

        c = u (1 - s) / (1 + u),   d = log(1 + u) - s t                      for |t| > T,
                                   d = c t (1/2 - t (1 - 2 s - c) / 12)      for |t| <= T,

    the second being the Euler-Maclaurin formula of the integral of g', whose relative error is below
    3e-6 at T = 0.1 (float32) and 3e-12 at T = 1e-3 (float64).
    """

    name = "softplus"
    buffers = 6
    # Where e^a is cut off: far above 1, so that log(1 + e^a) = a, and far below overflow.
    _far = 60.0

    @staticmethod
    def _threshold(dtype: torch.dtype) -> float:
        return 1e-3 if dtype == torch.float64 else 0.1

    def _value(self, b: Tensor) -> Tensor:
        return b.clamp_min(0) + torch.log1p(torch.exp(-b.abs()))

    def _slope(self, b: Tensor) -> Tensor:
        return torch.sigmoid(b)

    def curvature(self, b: Tensor) -> Tensor:
        return torch.sigmoid(b) * torch.sigmoid(-b)

    def _flipped(self, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return (sign, flipped step, smaller slope s, growth u, flipped end where u is capped)."""
        sign = torch.where(b > 0, -1.0, 1.0).to(b.dtype)
        step = t * sign
        base = -b.abs()
        s = torch.sigmoid(base)
        end = base + step
        # s e^t = (1 - s) e^(base + t): the right side does not overflow before the result does.
        grown = (1 - s) * torch.exp(end.clamp_max(self._far)) - s
        growth = torch.where(step > 1, grown, s * torch.expm1(step.clamp_max(1)))
        return sign, step, s, growth, end

    def _residual(self, b: Tensor, t: Tensor) -> Tensor:
        _, step, s, growth, end = self._flipped(b, t)
        bend = growth * (1 - s) / (1 + growth)
        near = bend * step * (0.5 - step * (1 - 2 * s - bend) / 12)
        direct = torch.log1p(growth) - s * step + (end - self._far).clamp_min(0)
        return torch.where(t.abs() <= self._threshold(b.dtype), near, direct)

    def _bend(self, b: Tensor, t: Tensor) -> Tensor:
        sign, _, s, growth, _ = self._flipped(b, t)
        return sign * growth * (1 - s) / (1 + growth)

    def kernel(self, b: Tensor, t: Tensor, out: Stage) -> None:
        if b.device.type != "cpu" or b.numel() == 0:
            super().kernel(b, t, out)
            return
        one, half = _ONE[b.dtype], _HALF[b.dtype]
        s0, s1, s2, s3, s4, s5 = out.scratch
        size = torch.abs(t, out=s3)
        if size.amax().item() > self._far:
            super().kernel(b, t, out)
            return
        # Masks are floats and selections are lerps: torch.where branches and is ten times slower here.
        far = size.gt_(self._threshold(b.dtype))
        positive = torch.gt(b, 0, out=s0)
        sign = torch.add(one, positive, alpha=-2, out=s4)
        s = torch.mul(b, sign, out=s1).sigmoid_()  # of -|b|
        complement = torch.sub(one, s, out=s2)
        if out.slope is not None:
            torch.lerp(s, complement, positive, out=out.slope)
        if out.value is not None:
            torch.clamp_min(b, 0, out=out.value).sub_(torch.log(complement, out=s5))
        step = torch.mul(t, sign, out=out.residual)
        growth = torch.expm1(step, out=s5).mul_(s)  # u
        direct = torch.log1p(growth, out=s0)
        bend = s4 if out.bend is None else out.bend  # without derivatives the sign is not needed again
        torch.add(growth, 1, out=bend)
        torch.div(growth.mul_(complement), bend, out=bend)
        direct.addcmul_(s, step, value=-1)
        near = torch.sub(complement, s, out=s5).sub_(bend)
        near = torch.addcmul(half, near, step, value=-1 / 12, out=s5).mul_(bend).mul_(step)
        torch.lerp(near, direct, far, out=out.residual)
        if out.bend is not None and out.curvature is not None:
            bend.mul_(sign)
            torch.mul(s, complement, out=out.curvature)


class ReLU(Activation):
    """g(b) = max(b, 0): convex but with no curvature, so its gradient teaches nothing through y.

    It is here to show what the paper says of it, not to be used.
    """

    name = "relu"
    smooth = False

    def _value(self, b: Tensor) -> Tensor:
        return b.clamp_min(0)

    def _slope(self, b: Tensor) -> Tensor:
        return (b > 0).to(b.dtype)

    def curvature(self, b: Tensor) -> Tensor:
        return torch.zeros_like(b)

    def _residual(self, b: Tensor, t: Tensor) -> Tensor:
        a = b + t
        return torch.where((a > 0) == (b > 0), torch.zeros_like(a), a.abs())

    def _bend(self, b: Tensor, t: Tensor) -> Tensor:
        return self._slope(b + t) - self._slope(b)


ACTIVATIONS: dict[str, Activation] = {a.name: a for a in (Squareplus(), Softplus(), ReLU())}
