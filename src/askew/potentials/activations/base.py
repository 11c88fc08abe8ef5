"""What every activation has in common: the contract, the derivatives, the buffers of a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from askew import checks

__all__ = ["HALF", "ONE", "Activation", "Stage"]

# Constants that the in-place kernels add to; they only run on the CPU.
ONE = {dtype: torch.ones((), dtype=dtype) for dtype in (torch.float32, torch.float64)}
HALF = {dtype: one / 2 for dtype, one in ONE.items()}


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
        return _with_derivative(_Value, self._value, self, b)

    def slope(self, b: Tensor) -> Tensor:
        """Return g'(b)."""
        return _with_derivative(_Slope, self._slope, self, b)

    def residual(self, b: Tensor, t: Tensor) -> Tensor:
        """Return g(b + t) - g(b) - g'(b) t."""
        return _with_derivative(_Residual, self._residual, self, b, t)

    def bend(self, b: Tensor, t: Tensor) -> Tensor:
        """Return g'(b + t) - g'(b)."""
        return _with_derivative(_Bend, self._bend, self, b, t)

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


def _with_derivative(
    function: type[torch.autograd.Function],
    formula: Callable[..., Tensor],
    activation: Activation,
    *arguments: Tensor,
) -> Tensor:
    """Evaluate a formula by a function that knows its derivative in closed form.

    Differentiating the formulas works but costs more. Function transforms and exporters, which cannot
    look inside an autograd function, get the formula.
    """
    if torch.compiler.is_exporting() or checks.in_function_transform():
        return formula(*arguments)
    result: Tensor = function.apply(activation, *arguments)
    return result


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, activation: Activation, b: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(b)
        return activation._value(b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (b,) = ctx.saved_tensors
        return None, grad * ctx.activation.slope(b)


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, activation: Activation, b: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(b)
        return activation._slope(b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (b,) = ctx.saved_tensors
        return None, grad * ctx.activation.curvature(b)


class _Residual(torch.autograd.Function):
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


class _Bend(torch.autograd.Function):
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
        residual, bend = torch.empty_like(t), torch.empty_like(t)
        curvature, *scratch = t.new_empty(1 + activation.buffers, *t.shape).unbind()
        activation.kernel(b.expand_as(t), t, Stage(None, None, residual, bend, curvature, tuple(scratch)))
        ctx.activation = activation
        ctx.save_for_backward(b, t, bend)
        return residual, bend

    @staticmethod
    def backward(ctx: Any, grad_residual: Tensor, grad_bend: Tensor) -> Any:
        b, t, bend = ctx.saved_tensors
        activation = ctx.activation
        if torch.is_grad_enabled():  # the saved bend is a constant, and would be one in the second derivative
            bend = activation.bend(b, t)
        start = activation.curvature(b)
        by_step = torch.addcmul(grad_residual * bend, grad_bend, activation.curvature(b + t))
        # d/db is d/dt minus what the derivative of g' at b takes away; sums first, where b is one row for all.
        lost = (grad_residual * t + grad_bend).sum_to_size(b.shape)
        return None, by_step.sum_to_size(b.shape) - start * lost, by_step
