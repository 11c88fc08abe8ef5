"""The parts an input-convex network is the sum of: the network proper, a quadratic, separable atoms.

Each part is a convex function of a point v. Beside its value and gradient it gives the divergence of
v + h from v and the change of its gradient, both from v and h without subtracting two values. Points are
rows, ``(n, dim)``; in `divergence` and `change` the base point may be a single row that serves for all h.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from askew import checks
from askew.potentials import residual
from askew.potentials.activations import ACTIVATIONS, Activation, Squareplus, Stage

__all__ = ["NONNEGATIVE", "Atoms", "Network", "Quadratic", "Term"]

# Points to evaluate hidden units at together.
BLOCK_ROWS = 4096
# Ways to make a raw parameter non-negative, and the raw value that gives a wanted weight.
NONNEGATIVE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "softplus": (nn.functional.softplus, lambda weight: weight + torch.log(-torch.expm1(-weight.clamp_min(1e-6)))),
    "abs": (torch.abs, torch.clone),
    "clamp": (torch.relu, torch.clone),
    "square": (torch.square, torch.sqrt),
    "exp": (torch.exp, lambda weight: weight.clamp_min(1e-6).log()),
}


class Term(nn.Module, ABC):
    """One convex part of an input-convex network."""

    @abstractmethod
    def value(self, v: Tensor) -> Tensor:
        """Return the value, ``(n,)``."""

    @abstractmethod
    def gradient(self, v: Tensor) -> Tensor:
        """Return the gradient, ``(n, dim)``."""

    def value_and_gradient(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return both; those who can share work between them say how."""
        return self.value(v), self.gradient(v)

    @abstractmethod
    def divergence(self, v: Tensor, h: Tensor) -> Tensor:
        """Return the divergence of v + h from v, ``(n,)``."""

    @abstractmethod
    def change(self, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the divergence of v + h from v, and the gradient at v + h minus that at v."""

    @abstractmethod
    def hessian(self, v: Tensor) -> Tensor:
        """Return the second derivatives, ``(n, dim, dim)``."""


class Network(Term):
    """z_{l+1} = g(W_l z_l + U_l v + bias_l) with W >= 0; the value is a non-negative combination of the last z.

    Affine functions of v are left out of the last layer: they cancel in every divergence and would be
    parameters without a gradient.
    """

    def __init__(self, dim: int, widths: tuple[int, ...], activation: str, nonnegative: str, init: str) -> None:
        super().__init__()
        self.activation: Activation = ACTIVATIONS[checks.check_name(activation, ACTIVATIONS, "activation")]
        self.nonnegative = checks.check_name(nonnegative, NONNEGATIVE, "nonnegative")
        checks.check_name(init, ("averaging", "linear"), "init")
        bound = 1 / math.sqrt(dim)
        self.lifts = nn.ParameterList(nn.Parameter(torch.empty(dim + 1, w).uniform_(-bound, bound)) for w in widths)
        invert = NONNEGATIVE[nonnegative][1]

        def raw(inputs: int, *shape: int) -> nn.Parameter:
            if init == "averaging":  # each unit starts as an average of its inputs: its weights sum to one
                return nn.Parameter(invert(torch.rand(shape) * 2 / inputs))
            width = 1 / math.sqrt(inputs)
            return nn.Parameter(torch.empty(shape).uniform_(-width, width))

        self.mixes = nn.ParameterList(raw(before, before, after) for before, after in pairwise(widths))
        self.out = raw(widths[-1], widths[-1])

    def weights(self) -> residual.Weights:
        """Return (U_0, W_1, U_1, ..., w) with the non-negative ones transformed."""
        transform = NONNEGATIVE[self.nonnegative][0]
        lifts = list(self.lifts)
        layers = [lifts[0]]
        for mix, lift in zip(self.mixes, lifts[1:], strict=True):
            layers += [transform(mix), lift]
        return (*layers, transform(self.out))

    def value(self, v: Tensor) -> Tensor:
        return residual.base_point(self.activation, v, self.weights())[0]

    def gradient(self, v: Tensor) -> Tensor:
        return self.value_and_gradient(v)[1]

    def value_and_gradient(self, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.weights()
        value, bases, adjoints = residual.base_point(self.activation, v, weights)
        return value, residual.gradient(self.activation, bases, adjoints, weights)

    def divergence(self, v: Tensor, h: Tensor) -> Tensor:
        return residual.residual(self.activation, v, h, self.weights())

    def change(self, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.weights()
        _, bases, adjoints = residual.base_point(self.activation, v, weights)
        return residual.change(self.activation, bases, adjoints, h, weights)

    def slope_ranges(self, v: Tensor) -> Tensor:
        """Return how much the derivative of each hidden unit changes over points, ``(units,)``."""
        weights, activation = self.weights(), self.activation
        low, high = [], []
        for block in v.split(BLOCK_ROWS):
            _, bases, _ = residual.base_point(activation, block, weights)
            slopes = torch.cat([activation.slope(b) for b in bases], 1) * activation.gain
            low.append(slopes.amin(0))
            high.append(slopes.amax(0))
        return torch.stack(high).amax(0) - torch.stack(low).amin(0)

    def hessian(self, v: Tensor) -> Tensor:
        weights = self.weights()
        _, bases, adjoints = residual.base_point(self.activation, v, weights)
        gain = self.activation.gain
        total = torch.zeros((), dtype=v.dtype, device=v.device)
        rise: Tensor | None = None  # d z_l / d v, (n, width, dim)
        for i, (b, adjoint) in enumerate(zip(bases, adjoints, strict=True)):
            slope = weights[2 * i][:-1].t().expand(v.shape[0], -1, -1)
            if rise is not None:
                slope = slope + weights[2 * i - 1].t() @ rise
            slope = slope * gain
            bent = (self.activation.curvature(b) * adjoint)[..., None] * slope
            total = total + slope.mT @ bent
            rise = self.activation.slope(b)[..., None] * slope
        return total


class Quadratic(Term):
    """|A v|^2: exactly a Mahalanobis divergence."""

    def __init__(self, dim: int, rank: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(dim)
        self.matrix = nn.Parameter(torch.empty(dim, rank).uniform_(-bound, bound))

    def value(self, v: Tensor) -> Tensor:
        return (v @ self.matrix).square().sum(-1)

    def gradient(self, v: Tensor) -> Tensor:
        return 2 * (v @ self.matrix) @ self.matrix.t()

    def divergence(self, v: Tensor, h: Tensor) -> Tensor:
        return self.value(h)

    def change(self, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.value(h), self.gradient(h)

    def hessian(self, v: Tensor) -> Tensor:
        return (2 * self.matrix @ self.matrix.t()).expand(v.shape[0], -1, -1)


class Atoms(Term):
    """Separable one-dimensional bends: sum over features i and atoms k of c_ik^2 / s_ik g(s_ik (v_i - m_ik)).

    g is squareplus; place m, sharpness s and amplitude c are learned. At the start the places cover
    [-2, 2], where standardised features lie.
    """

    activation = Squareplus()

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        places = torch.linspace(-2, 2, count) if count > 1 else torch.zeros(1)
        self.place = nn.Parameter(places.repeat(dim, 1) + 0.1 * torch.randn(dim, count))
        self.log_sharpness = nn.Parameter(math.log(2) + 0.5 * torch.randn(dim, count))
        self.amplitude = nn.Parameter(torch.full((dim, count), 1 / math.sqrt(count)))

    def _scaled(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (sharpness, offset, weight) with b = sharpness v - offset in the activation's unit."""
        sharpness = self.log_sharpness.exp()
        weight = self.amplitude.square() / sharpness
        sharpness = sharpness * self.activation.gain
        return sharpness, -sharpness * self.place, weight

    def value(self, v: Tensor) -> Tensor:
        sharpness, offset, weight = self._scaled()
        return (self.activation.value(v[..., None] * sharpness + offset) * weight).sum((-1, -2))

    def gradient(self, v: Tensor) -> Tensor:
        sharpness, offset, weight = self._scaled()
        return (self.activation.slope(v[..., None] * sharpness + offset) * (weight * sharpness)).sum(-1)

    def divergence(self, v: Tensor, h: Tensor) -> Tensor:
        sharpness, offset, weight = self._scaled()
        tensors = (v, h, sharpness, offset, weight)
        if checks.transformed() or v.shape != h.shape:
            return _separable(self.activation, *tensors)
        recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        result: Tensor = _SeparableResidual.apply(self.activation, recorded, *tensors)  # type: ignore[no-untyped-call]
        return result

    def change(self, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        sharpness, offset, weight = self._scaled()
        # Points are columns, as in `_SeparableResidual`.
        b = v.t()[:, None] * sharpness[..., None] + offset[..., None]
        t = h.t()[:, None] * sharpness[..., None]
        r, bend = self.activation.residual_and_bend(b, t)
        difference = torch.bmm((weight * sharpness)[:, None], bend)[:, 0]
        return weight.flatten() @ r.flatten(0, 1), difference.t()

    def hessian(self, v: Tensor) -> Tensor:
        sharpness, offset, weight = self._scaled()
        curvature = self.activation.curvature(v[..., None] * sharpness + offset)
        return torch.diag_embed((curvature * (weight * sharpness.square())).sum(-1))


def _separable(
    activation: Activation, v: Tensor, h: Tensor, sharpness: Tensor, offset: Tensor, weight: Tensor
) -> Tensor:
    b, t = v[..., None] * sharpness + offset, h[..., None] * sharpness
    return (activation.residual(b, t) * weight).sum((-1, -2))


class _SeparableResidual(torch.autograd.Function):
    """The divergence of the atoms with a backward pass derived by hand, as in `residual`.

    Points are columns here, ``(dim, atoms, n)``: then every elementwise pass runs over long contiguous rows, and
    every sum, over atoms or over points, is a matrix product.
    """

    @staticmethod
    def forward(
        ctx: Any,
        activation: Activation,
        recorded: bool,
        v: Tensor,
        h: Tensor,
        sharpness: Tensor,
        offset: Tensor,
        weight: Tensor,
    ) -> Tensor:
        columns_v, columns_h = v.t().contiguous(), h.t().contiguous()
        shape = (*sharpness.shape, v.shape[0])
        blocks = v.new_empty((5 if recorded else 3) + activation.buffers, *shape).unbind()
        b = torch.mul(columns_v[:, None], sharpness[..., None], out=blocks[0]).add_(offset[..., None])
        t = torch.mul(columns_h[:, None], sharpness[..., None], out=blocks[1])
        total, scratch = blocks[2], blocks[-activation.buffers :]
        if recorded:
            bend, drift = blocks[3:5]
            activation.kernel(b, t, Stage(None, None, total, bend, drift, scratch))
            torch.addcmul(bend, drift, t, value=-1, out=drift)  # d r / d b = c - v t
            ctx.activation = activation
            ctx.save_for_backward(v, h, sharpness, offset, weight, columns_v, columns_h, total, bend, drift)
        else:
            activation.kernel(b, t, Stage(None, None, total, None, None, scratch))
        return torch.mv(total.flatten(0, 1).t(), weight.flatten())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        v, h, sharpness, offset, weight, columns_v, columns_h, total, bend, drift = ctx.saved_tensors
        if torch.is_grad_enabled():
            formula = functools.partial(_separable, ctx.activation)
            inputs = (v, h, sharpness, offset, weight)
            return None, None, *residual.differentiable_gradients(formula, inputs, ctx.needs_input_grad[2:], grad)
        grad_v = grad_h = None
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            factor = (weight * sharpness)[:, None]
            grad_v = (torch.bmm(factor, drift)[:, 0] * grad).t()
            grad_h = (torch.bmm(factor, bend)[:, 0] * grad).t()
        grad_weight = torch.mv(total.flatten(0, 1), grad).view_as(weight)
        grad_offset = torch.mv(drift.flatten(0, 1), grad).view_as(weight)
        grad_sharpness = torch.bmm(drift, (columns_v * grad)[..., None])
        grad_sharpness.baddbmm_(bend, (columns_h * grad)[..., None])
        return None, None, grad_v, grad_h, grad_sharpness[..., 0] * weight, grad_offset * weight, grad_weight
