r"""The layers of an input-convex network, in the letters of Amos, Xu and Kolter (2017).

    z_0 = 0,   z_{l+1} = g(z_l W_z + y W_x + b),   phi(y) = z_L . w,   W_z >= 0, w >= 0, g convex and non-decreasing

All functions here are ordinary differentiable operations; `residual` has the fast divergence of eager training.
Matrices multiply from the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from askew.potentials.icnn.activations import Activation


class Layer(NamedTuple):
    """One layer: z -> g(z W_z + y W_x + b).

    Attributes
    ----------
    wz : Tensor or None
        W_z, ``(width before, width)``, non-negative; None in the first layer.
    wxb : Tensor
        W_x and, as its last row, the bias b: ``(dim + 1, width)``. One matrix, so that the bias needs no code of its
        own in the products of `residual`.
    """

    wz: Tensor | None
    wxb: Tensor


class BasePoint(NamedTuple):
    """What every derivative and divergence at y starts from."""

    value: Tensor  # phi(y), (n,)
    preactivations: list[Tensor]  # gain (z_l W_z + y W_x + b) of each layer, (n, width)
    adjoints: list[Tensor]  # d phi / d z_{l+1} of each layer, (n, width)


@dataclass(frozen=True)
class Layers:
    """A network: its activation g, its layers and the output weights w."""

    activation: Activation
    layers: tuple[Layer, ...]
    out: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all weights in the order (W_xb of layer 0, W_z and W_xb of layer 1, ..., w)."""
        flat = [tensor for layer in self.layers for tensor in layer if tensor is not None]
        return (*flat, self.out)

    @staticmethod
    def from_tensors(activation: Activation, tensors: tuple[Tensor, ...]) -> Layers:
        """Return the network of these weights, in the order of :meth:`tensors`."""
        first, *others, out = tensors
        later = zip(others[::2], others[1::2], strict=True)
        return Layers(activation, (Layer(None, first), *(Layer(wz, wxb) for wz, wxb in later)), out)

    def base_point(self, y: Tensor) -> BasePoint:
        """Return phi(y) with the pre-activations and the adjoints of all layers."""
        g = self.activation
        preactivations = []
        z = y
        for wz, wxb in self.layers:
            b = y @ wxb[:-1] + wxb[-1]
            if wz is not None:
                b = b + z @ wz
            b = b * g.gain
            preactivations.append(b)
            z = g.value(b)
        adjoints = [self.out.expand_as(z)]
        for (wz, _), b in zip(reversed(self.layers), reversed(preactivations), strict=True):
            if wz is not None:
                adjoints.append((g.slope(b) * adjoints[-1]) @ wz.t() * g.gain)
        return BasePoint(z @ self.out, preactivations, adjoints[::-1])

    def gradient(self, base: BasePoint) -> Tensor:
        """Return grad phi(y), ``(n, dim)``."""
        g = self.activation
        total = torch.zeros((), dtype=self.out.dtype, device=self.out.device)
        for (_, wxb), b, adjoint in zip(self.layers, base.preactivations, base.adjoints, strict=True):
            total = total + (g.slope(b) * adjoint) @ wxb[:-1].t()
        return total * g.gain

    def hessian(self, base: BasePoint) -> Tensor:
        """Return the second derivatives of phi at y, ``(n, dim, dim)``."""
        g = self.activation
        total = torch.zeros((), dtype=self.out.dtype, device=self.out.device)
        jacobian: Tensor | None = None  # d z_l / d y, (n, width, dim)
        for (wz, wxb), b, adjoint in zip(self.layers, base.preactivations, base.adjoints, strict=True):
            slope = wxb[:-1].t().expand(b.shape[0], -1, -1)
            if wz is not None and jacobian is not None:
                slope = slope + wz.t() @ jacobian
            slope = slope * g.gain
            total = total + slope.mT @ ((g.curvature(b) * adjoint)[..., None] * slope)
            jacobian = g.slope(b)[..., None] * slope
        return total

    def at(self, y: Tensor) -> LayersAt:
        """Return the network at base points y, ``(n, dim)`` or one row for all steps."""
        base = self.base_point(y)
        return LayersAt(self, base, [self.activation.slope(b) for b in base.preactivations])


class LayersAt(NamedTuple):
    """A network at base points y: what depends on y alone is computed once for all steps h."""

    network: Layers
    base: BasePoint
    slopes: list[Tensor]

    def divergence(self, h: Tensor) -> Tensor:
        """Return D(y + h, y), ``(n,)``."""
        return self._divergence(h, None)

    def change(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return D(y + h, y) and grad phi(y + h) - grad phi(y), ``(n,), (n, dim)``."""
        gain, layers = self.network.activation.gain, self.network.layers
        slope_differences: list[Tensor] = []
        divergence = self._divergence(h, slope_differences)
        gradient_difference = h.new_zeros(())
        adjoint_difference: Tensor | None = None  # d phi / d z_{l+1} at y + h minus that at y
        for (wz, wxb), adjoint, slope, slope_difference in zip(
            reversed(layers),
            reversed(self.base.adjoints),
            reversed(self.slopes),
            reversed(slope_differences),
            strict=True,
        ):
            difference = slope_difference * adjoint
            if adjoint_difference is not None:
                difference = torch.addcmul(difference, slope_difference + slope, adjoint_difference)
            gradient_difference = gradient_difference + difference @ wxb[:-1].t()
            if wz is not None:
                adjoint_difference = difference @ wz.t() * gain
        return divergence, gradient_difference * gain

    def _divergence(self, h: Tensor, slope_differences: list[Tensor] | None) -> Tensor:
        """Return D(y + h, y) as the sum over layers of adjoint . d(b, t), of which every term is non-negative.

        The slope differences of all layers are appended to the list, if there is one.
        """
        g, base = self.network.activation, self.base
        divergence = h.new_zeros(())
        before: tuple[Tensor, Tensor, Tensor] | None = None  # residual, slope and step of the layer before
        layers = zip(self.network.layers, base.preactivations, base.adjoints, self.slopes, strict=True)
        for (wz, wxb), b, adjoint, slope in layers:
            t = (h * g.gain) @ wxb[:-1]  # the pre-activation at y + h minus that at y
            if wz is not None and before is not None:
                t = torch.addmm(t, torch.addcmul(*before), wz, alpha=g.gain)
            if slope_differences is None:
                residual = g.residual(b, t)
            else:
                residual, slope_difference = g.residual_and_slope_difference(b, t)
                slope_differences.append(slope_difference)
            divergence = divergence + _dot(residual, adjoint)
            before = residual, slope, t
        return divergence


def _dot(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the inner product of each row with its weight, or with the only one there is."""
    if weight.shape[0] == 1 and rows.shape[0] != 1:
        return rows @ weight[0]
    return (rows * weight).sum(-1)
