r"""Convex, non-decreasing activations and their Bregman residuals, free of cancellation.

An activation g enters an input-convex network through two functions of a base point b and a step t:

    residual          d(b, t) = g(b + t) - g(b) - g'(b) t  >= 0
    slope difference  c(b, t) = g'(b + t) - g'(b)

Subtracting g(b) from g(b + t) would lose all digits for small t, so each activation has formulas in which every term is
computed directly. They exist twice: `residual` and `slope_difference` are ordinary differentiable torch code, for
compilers, function transforms and second derivatives; `kernel` does the same arithmetic in place, for the hand-written
backward pass of eager training.

Each g is expressed in its natural unit: the network multiplies the pre-activations by `gain` first, so squareplus
(a + sqrt(a^2 + 4)) / 2 becomes b + sqrt(b^2 + 1) with b = a / 2 and has no constants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from askew import checks
from askew._torch_compat import in_transform

# Constants that the in-place kernels add to; they only run on the CPU.
ONE = {dtype: torch.ones((), dtype=dtype) for dtype in (torch.float32, torch.float64)}
HALF = {dtype: one / 2 for dtype, one in ONE.items()}


class Workspace(NamedTuple):
    """Buffers that a kernel fills at (b, t): all of one shape, None where the caller has no use for it."""

    value: Tensor | None  # g(b)
    slope: Tensor | None  # g'(b)
    residual: Tensor  # d(b, t)
    slope_difference: Tensor | None  # c(b, t)
    curvature: Tensor | None  # g''(b)
    scratch: tuple[Tensor, ...]  # as many as `Activation.buffers`, free to be overwritten


class Activation(ABC):
    """A convex non-decreasing function of one variable."""

    name: str
    gain: float = 1.0
    buffers: int = 0

    def value(self, b: Tensor) -> Tensor:
        """Return g(b)."""
        return self._value(b) if _plain() else _apply(_Pointwise, self, 0, b)

    def slope(self, b: Tensor) -> Tensor:
        """Return g'(b)."""
        return self._slope(b) if _plain() else _apply(_Pointwise, self, 1, b)

    def residual(self, b: Tensor, t: Tensor) -> Tensor:
        """Return g(b + t) - g(b) - g'(b) t."""
        if _plain():
            return self._residual(b, t)
        if not (torch.is_grad_enabled() or checks.transformed()):
            return _residual_by_kernel(self, b, t)
        result: Tensor = _apply(_Residual, self, b, t)
        return result

    def residual_and_slope_difference(self, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return both at once, from one pass of the in-place kernel where that is possible."""
        if checks.transformed():
            return self.residual(b, t), self.slope_difference(b, t)
        if not torch.is_grad_enabled():
            return _both_by_kernel(self, b, t)
        result: tuple[Tensor, Tensor] = _apply(_ResidualAndSlopeDifference, self, b, t)
        return result

    @abstractmethod
    def slope_difference(self, b: Tensor, t: Tensor) -> Tensor:
        """Return g'(b + t) - g'(b)."""

    @abstractmethod
    def curvature(self, b: Tensor) -> Tensor:
        """Return g''(b)."""

    @abstractmethod
    def _value(self, b: Tensor) -> Tensor: ...

    @abstractmethod
    def _slope(self, b: Tensor) -> Tensor: ...

    @abstractmethod
    def _residual(self, b: Tensor, t: Tensor) -> Tensor: ...

    def kernel(self, b: Tensor, t: Tensor, out: Workspace) -> None:
        """Fill the buffers of `out`, which has both slope difference and curvature or neither."""
        if out.value is not None:
            out.value.copy_(self._value(b))
        if out.slope is not None:
            out.slope.copy_(self._slope(b))
        out.residual.copy_(self._residual(b, t))
        if out.slope_difference is not None and out.curvature is not None:
            out.slope_difference.copy_(self.slope_difference(b, t))
            out.curvature.copy_(self.curvature(b))


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
        inverse = (b * b + 1).rsqrt()
        return inverse * inverse * inverse

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

    def slope_difference(self, b: Tensor, t: Tensor) -> Tensor:
        q, base, product = self._q(b, t)
        return t * (1 / base + base / product) / q

    def kernel(self, b: Tensor, t: Tensor, out: Workspace) -> None:
        if b.device.type != "cpu" or b.numel() == 0:
            super().kernel(b, t, out)
            return
        one = ONE[b.dtype]
        s0, s1, s2, s3 = out.scratch
        base = torch.addcmul(one, b, b, out=s0)  # R(b)^2
        inverse = torch.rsqrt(base, out=s3)
        end = torch.add(b, t, out=s1)
        # P in the way that leaves behind what is needed later: 1 / R(a) for the derivatives, t^2 without them.
        # M = a b + 1, not R(b)^2 + b t, which cancels for t near -b.
        if out.slope_difference is None:
            middle = torch.addcmul(one, end, b, out=s1)
            squared = torch.mul(t, t, out=out.residual)
            product = torch.addcmul(squared, middle, middle, out=s2).sqrt_()
        else:
            far = torch.addcmul(one, end, end, out=out.slope_difference).rsqrt_()
            product = torch.mul(far, inverse, out=s2).reciprocal_()
            middle = torch.addcmul(one, end, b, out=s1)
        # Where no unit is far out, P + M and b + R(b) lose a few bits at most and are taken as they are.
        if middle.amin().item() > -256:
            q = torch.add(product, middle, out=middle)
        else:
            positive = torch.clamp_min(middle, 0)
            negative = torch.sub(positive, middle, out=middle).add_(product)  # P + M-
            q = torch.mul(positive, positive).addcmul_(t, t).div_(negative).add_(positive)
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
        if out.slope_difference is None or out.curvature is None:
            squared.div_(q).mul_(inverse)
            return
        ratio = torch.div(t, q, out=q)
        y = torch.mul(ratio, inverse, out=out.residual)
        torch.addcmul(y, ratio, far, out=out.slope_difference)
        torch.mul(inverse, inverse, out=out.curvature).mul_(inverse)
        y.mul_(t)


class Softplus(Activation):
    r"""g(b) = log(1 + e^b), the activation of the paper.

    d is even under (b, t) -> (-b, -t), so b <= 0 can be assumed; with s = g'(b) <= 1/2, u = s (e^t - 1):

        c = u (1 - s) / (1 + u),   d = log(1 + u) - s t                      for |t| > T,
                                   d = c t (1/2 - t (1 - 2 s - c) / 12)      for |t| <= T,

    the second being the Euler-Maclaurin formula of the integral of g', whose relative error is below
    3e-6 at T = 0.1 (float32) and 3e-12 at T = 1e-3 (float64). Rounding leaves at most 7e-6 of the first just
    above T.
    """

    name = "softplus"
    buffers = 6

    # Two numbers that are functions: a compiler with dynamic shapes would make a variable of an attribute.

    @staticmethod
    def _far() -> float:
        """Return where e^a is cut off: far above 1, so that log(1 + e^a) = a, and far below overflow."""
        return 60.0

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
        grown = (1 - s) * torch.exp(end.clamp_max(self._far())) - s
        growth = torch.where(step > 1, grown, s * torch.expm1(step.clamp_max(1)))
        return sign, step, s, growth, end

    def _residual(self, b: Tensor, t: Tensor) -> Tensor:
        _, step, s, growth, end = self._flipped(b, t)
        difference = growth * (1 - s) / (1 + growth)
        near = difference * step * (0.5 - step * (1 - 2 * s - difference) / 12)
        direct = torch.log1p(growth) - s * step + (end - self._far()).clamp_min(0)
        return torch.where(t.abs() <= self._threshold(b.dtype), near, direct)

    def slope_difference(self, b: Tensor, t: Tensor) -> Tensor:
        sign, _, s, growth, _ = self._flipped(b, t)
        return sign * growth * (1 - s) / (1 + growth)

    def kernel(self, b: Tensor, t: Tensor, out: Workspace) -> None:
        if b.device.type != "cpu" or b.numel() == 0:
            super().kernel(b, t, out)
            return
        one, half = ONE[b.dtype], HALF[b.dtype]
        s0, s1, s2, s3, s4, s5 = out.scratch
        size = torch.abs(t, out=s3)
        if size.amax().item() > self._far():
            super().kernel(b, t, out)
            return
        # Masks are floats and selections are lerps: torch.where branches and is far slower here.
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
        # Without derivatives the sign is not needed again.
        difference = s4 if out.slope_difference is None else out.slope_difference
        torch.add(growth, 1, out=difference)
        torch.div(growth.mul_(complement), difference, out=difference)
        direct.addcmul_(s, step, value=-1)
        near = torch.sub(complement, s, out=s5).sub_(difference)
        near = torch.addcmul(half, near, step, value=-1 / 12, out=s5).mul_(difference).mul_(step)
        torch.lerp(near, direct, far, out=out.residual)
        if out.slope_difference is not None and out.curvature is not None:
            difference.mul_(sign)
            torch.mul(s, complement, out=out.curvature)


class ReLU(Activation):
    """g(b) = max(b, 0): convex without curvature, so D gives no learning signal through grad phi(y).

    For comparison with the paper's remark on it, not for use.
    """

    name = "relu"

    def _value(self, b: Tensor) -> Tensor:
        return b.clamp_min(0)

    def _slope(self, b: Tensor) -> Tensor:
        return (b > 0).to(b.dtype)

    def curvature(self, b: Tensor) -> Tensor:
        return torch.zeros_like(b)

    def _residual(self, b: Tensor, t: Tensor) -> Tensor:
        a = b + t
        return torch.where((a > 0) == (b > 0), torch.zeros_like(a), a.abs())

    def slope_difference(self, b: Tensor, t: Tensor) -> Tensor:
        return self._slope(b + t) - self._slope(b)


ACTIVATIONS: dict[str, Activation] = {activation.name: activation for activation in (Squareplus(), Softplus(), ReLU())}


# ---------------------------------------------------------------------- derivatives in closed form


def _plain() -> bool:
    """Whether only plain formulas will do: function transforms and exporters cannot look inside autograd functions.

    Differentiating the formulas works everywhere, but costs more than the derivatives below, also when compiled.
    """
    # A compiler cannot trace the second question, and shows plain tensors anyway.
    return torch.compiler.is_exporting() or (not torch.compiler.is_compiling() and in_transform())


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)


class _Pointwise(torch.autograd.Function):
    """g(b) or, with order 1, g'(b)."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, order: int, b: Tensor) -> Tensor:
        ctx.activation, ctx.order = activation, order
        ctx.save_for_backward(b)
        return activation._slope(b) if order else activation._value(b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (b,) = ctx.saved_tensors
        return None, None, grad * (ctx.activation.curvature(b) if ctx.order else ctx.activation.slope(b))


def _residual_by_kernel(activation: Activation, b: Tensor, t: Tensor) -> Tensor:
    residual, *scratch = t.new_empty(1 + activation.buffers, *t.shape).unbind()
    activation.kernel(b.expand_as(t), t, Workspace(None, None, residual, None, None, tuple(scratch)))
    return residual


def _both_by_kernel(activation: Activation, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    residual, difference, curvature, *scratch = t.new_empty(3 + activation.buffers, *t.shape).unbind()
    activation.kernel(b.expand_as(t), t, Workspace(None, None, residual, difference, curvature, tuple(scratch)))
    return residual, difference


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, activation: Activation, b: Tensor, t: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(b, t)
        return activation._residual(b, t) if checks.transformed() else _residual_by_kernel(activation, b, t)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        b, t = ctx.saved_tensors
        difference = ctx.activation.slope_difference(b, t)
        by_base = (grad * (difference - ctx.activation.curvature(b) * t)).sum_to_size(b.shape)
        return None, by_base, (grad * difference).sum_to_size(t.shape)


class _ResidualAndSlopeDifference(torch.autograd.Function):
    """d(b, t) and c(b, t) together; b may be one row for all rows of t."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        residual, difference = _both_by_kernel(activation, b, t)
        ctx.activation = activation
        ctx.save_for_backward(b, t, difference)
        return residual, difference

    @staticmethod
    def backward(ctx: Any, grad_residual: Tensor, grad_difference: Tensor) -> Any:
        b, t, difference = ctx.saved_tensors
        activation = ctx.activation
        if torch.is_grad_enabled():  # the saved difference is a constant, and would be one in the second derivative
            difference = activation.slope_difference(b, t)
        start = activation.curvature(b)
        by_step = torch.addcmul(grad_residual * difference, grad_difference, activation.curvature(b + t))
        # d/db is d/dt minus what the derivative of g' at b takes away; sums first, where b is one row for all.
        lost = (grad_residual * t + grad_difference).sum_to_size(b.shape)
        return None, by_step.sum_to_size(b.shape) - start * lost, by_step
