"""The convex terms that an ICNN is the sum of: a network, a quadratic, separable one-dimensional units.

Each term is a convex function of a point v. Besides its value and gradient it gives the divergence of v + h from v and
the change of its gradient, both from v and h without subtracting two values. Points are rows, ``(n, dim)``. `at` is for
a single v that serves for all h, and computes what depends on it once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from askew import checks
from askew.potentials.icnn.activations import ACTIVATIONS, Activation, Squareplus, Workspace
from askew.potentials.icnn.layers import Layer, Layers, LayersAt
from askew.potentials.icnn.residual import differentiable_gradients, residual

# Ways to make a raw parameter non-negative, and the raw value that gives a wanted weight.
NONNEGATIVE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "softplus": (nn.functional.softplus, lambda weight: weight + torch.log(-torch.expm1(-weight.clamp_min(1e-6)))),
    "abs": (torch.abs, torch.clone),
    "clamp": (torch.relu, torch.clone),
    "square": (torch.square, torch.sqrt),
    "exp": (torch.exp, lambda weight: weight.clamp_min(1e-6).log()),
}


class TermAt(Protocol):
    """A term as seen from v."""

    def divergence(self, h: Tensor) -> Tensor:
        """Return the divergence of v + h from v, ``(n,)``."""

    def change(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the divergence of v + h from v, and the gradient at v + h minus that at v."""


class Term(nn.Module, ABC):
    """One convex term of an ICNN."""

    @abstractmethod
    def value(self, v: Tensor) -> Tensor:
        """Return the value, ``(n,)``."""

    @abstractmethod
    def gradient(self, v: Tensor) -> Tensor:
        """Return the gradient, ``(n, dim)``."""

    @abstractmethod
    def divergence(self, v: Tensor, h: Tensor) -> Tensor:
        """Return the divergence of v + h from v, ``(n,)``."""

    @abstractmethod
    def at(self, v: Tensor) -> TermAt:
        """Return the term as seen from v, ``(n, dim)`` or one row for all steps."""

    @abstractmethod
    def hessian(self, v: Tensor) -> Tensor:
        """Return the second derivatives, ``(n, dim, dim)``."""


class Network(Term):
    """The fully input-convex network of Amos et al.: z -> g(z W_z + v W_x + b) with W_z >= 0, and z . w at the end.

    The last layer has no affine function of v: it would cancel in every divergence and be a parameter without a
    gradient. The parameters keep the names they have in saved models: ``lifts`` are W_x with the bias as last row;
    ``mixes`` and ``out`` are raw, and ``nonnegative`` turns them into W_z and w.
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

    def layers(self) -> Layers:
        """Return the layers with their weights made non-negative."""
        transform = NONNEGATIVE[self.nonnegative][0]
        wz = [None, *(transform(raw) for raw in self.mixes)]
        return Layers(self.activation, tuple(map(Layer, wz, self.lifts)), transform(self.out))

    def slope_ranges(self, v: Tensor) -> Tensor:
        """Return how much the derivative of each hidden unit changes over points, ``(units,)``."""
        preactivations = self.layers().base_point(v).preactivations
        slopes = torch.cat([self.activation.slope(b) for b in preactivations], 1) * self.activation.gain
        return slopes.amax(0) - slopes.amin(0)

    def value(self, v: Tensor) -> Tensor:
        return self.layers().base_point(v).value

    def gradient(self, v: Tensor) -> Tensor:
        layers = self.layers()
        return layers.gradient(layers.base_point(v))

    def divergence(self, v: Tensor, h: Tensor) -> Tensor:
        return residual(self.layers(), v, h)

    def at(self, v: Tensor) -> LayersAt:
        return self.layers().at(v)

    def hessian(self, v: Tensor) -> Tensor:
        layers = self.layers()
        return layers.hessian(layers.base_point(v))


class QuadraticTerm(Term):
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

    def at(self, v: Tensor) -> _QuadraticAt:
        return _QuadraticAt(self.matrix)

    def hessian(self, v: Tensor) -> Tensor:
        return (2 * self.matrix @ self.matrix.t()).expand(v.shape[0], -1, -1)


class _QuadraticAt(NamedTuple):
    """|A h|^2, which is the same from everywhere."""

    matrix: Tensor

    def divergence(self, h: Tensor) -> Tensor:
        return (h @ self.matrix).square().sum(-1)

    def change(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.divergence(h), 2 * (h @ self.matrix) @ self.matrix.t()


# The activation of separable units, whatever that of the network is.
G = Squareplus()


class SeparableTerm(Term):
    """One-dimensional units of each feature: sum over features i and units k of c_ik^2 / s_ik g(s_ik (v_i - m_ik)).

    g is squareplus; place m, sharpness s and amplitude c are learned. The places first cover [-2, 2], where
    standardised features lie.
    """

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        places = torch.linspace(-2, 2, count) if count > 1 else torch.zeros(1)
        self.place = nn.Parameter(places.repeat(dim, 1) + 0.1 * torch.randn(dim, count))
        self.log_sharpness = nn.Parameter(math.log(2) + 0.5 * torch.randn(dim, count))
        self.amplitude = nn.Parameter(torch.full((dim, count), 1 / math.sqrt(count)))

    def units(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return sharpness, offset and weight of the units, with b = sharpness v + offset in the activation's unit."""
        sharpness = self.log_sharpness.exp()
        weight = self.amplitude.square() / sharpness
        sharpness = sharpness * G.gain
        return sharpness, -sharpness * self.place, weight

    def value(self, v: Tensor) -> Tensor:
        sharpness, offset, weight = self.units()
        return (G.value(v[..., None] * sharpness + offset) * weight).sum((-1, -2))

    def gradient(self, v: Tensor) -> Tensor:
        sharpness, offset, weight = self.units()
        return (G.slope(v[..., None] * sharpness + offset) * (weight * sharpness)).sum(-1)

    def divergence(self, v: Tensor, h: Tensor) -> Tensor:
        sharpness, offset, weight = self.units()
        tensors = (v, h, sharpness, offset, weight)
        if checks.transformed():
            return _separable(*tensors)
        recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        result: Tensor = _SeparableResidual.apply(recorded, *tensors)  # type: ignore[no-untyped-call]
        return result

    def at(self, v: Tensor) -> _SeparableAt:
        return _SeparableAt(v, *self.units())

    def hessian(self, v: Tensor) -> Tensor:
        sharpness, offset, weight = self.units()
        curvature = G.curvature(v[..., None] * sharpness + offset)
        return torch.diag_embed((curvature * (weight * sharpness.square())).sum(-1))


class _SeparableAt(NamedTuple):
    """Separable units at base points, with the parameters that `SeparableTerm.units` returns."""

    v: Tensor
    sharpness: Tensor
    offset: Tensor
    weight: Tensor

    def divergence(self, h: Tensor) -> Tensor:
        return _separable(self.v, h, self.sharpness, self.offset, self.weight)

    def change(self, h: Tensor) -> tuple[Tensor, Tensor]:
        # Points are columns, as in `_SeparableResidual`.
        b = self.v.t()[:, None] * self.sharpness[..., None] + self.offset[..., None]
        t = h.t()[:, None] * self.sharpness[..., None]
        residuals, differences = G.residual_and_slope_difference(b, t)
        gradient_difference = torch.bmm((self.weight * self.sharpness)[:, None], differences)[:, 0]
        return self.weight.flatten() @ residuals.flatten(0, 1), gradient_difference.t()


def _separable(v: Tensor, h: Tensor, sharpness: Tensor, offset: Tensor, weight: Tensor) -> Tensor:
    b, t = v[..., None] * sharpness + offset, h[..., None] * sharpness
    return (G.residual(b, t) * weight).sum((-1, -2))


class _SeparableResidual(torch.autograd.Function):
    """The divergence of separable units with a backward pass derived by hand, as in `residual`.

    Points are columns here, ``(dim, units, n)``: then every elementwise pass runs over long contiguous rows, and
    every sum, over units or over points, is a matrix product.
    """

    @staticmethod
    def forward(
        ctx: Any, recorded: bool, v: Tensor, h: Tensor, sharpness: Tensor, offset: Tensor, weight: Tensor
    ) -> Tensor:
        columns_v, columns_h = v.t().contiguous(), h.t().contiguous()
        shape = (*sharpness.shape, v.shape[0])
        blocks = v.new_empty((5 if recorded else 3) + G.buffers, *shape).unbind()
        b = torch.mul(columns_v[:, None], sharpness[..., None], out=blocks[0]).add_(offset[..., None])
        t = torch.mul(columns_h[:, None], sharpness[..., None], out=blocks[1])
        total, scratch = blocks[2], blocks[-G.buffers :]
        if recorded:
            difference, by_base = blocks[3:5]
            G.kernel(b, t, Workspace(None, None, total, difference, by_base, scratch))
            torch.addcmul(difference, by_base, t, value=-1, out=by_base)  # d r / d b = c - v t
            ctx.save_for_backward(v, h, sharpness, offset, weight, columns_v, columns_h, total, difference, by_base)
        else:
            G.kernel(b, t, Workspace(None, None, total, None, None, scratch))
        return torch.mv(total.flatten(0, 1).t(), weight.flatten())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        v, h, sharpness, offset, weight, columns_v, columns_h, total, difference, by_base = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return None, *differentiable_gradients(_separable, (v, h, sharpness, offset, weight), needed, grad)
        grad_v = grad_h = None
        if needed[0] or needed[1]:
            factor = (weight * sharpness)[:, None]
            grad_v = (torch.bmm(factor, by_base)[:, 0] * grad).t()
            grad_h = (torch.bmm(factor, difference)[:, 0] * grad).t()
        grad_weight = torch.mv(total.flatten(0, 1), grad).view_as(weight)
        grad_offset = torch.mv(by_base.flatten(0, 1), grad).view_as(weight)
        grad_sharpness = torch.bmm(by_base, (columns_v * grad)[..., None])
        grad_sharpness.baddbmm_(difference, (columns_h * grad)[..., None])
        return None, grad_v, grad_h, grad_sharpness[..., 0] * weight, grad_offset * weight, grad_weight
