"""The Bregman divergence of an input-convex network by its definition, independent of how the library computes it."""

from __future__ import annotations

import mpmath
import torch
from mpmath import mpf
from torch import Tensor
from torch.nn import functional

from askew.potentials import ICNN
from askew.potentials.icnn.terms import Network, QuadraticTerm, SeparableTerm

ACTIVATION = {
    "squareplus": lambda a: (a + (a * a + 4).sqrt()) / 2,
    "softplus": functional.softplus,
    "relu": torch.relu,
}
NONNEGATIVE = {
    "softplus": functional.softplus,
    "abs": torch.abs,
    "clamp": torch.relu,
    "square": torch.square,
    "exp": torch.exp,
}


def value(phi: ICNN, x: Tensor) -> Tensor:
    """Return phi(x) from the raw parameters, layer by layer, for rows of points."""
    v = (x - phi.shift) * phi.inverse_spread if phi.calibrated else x
    total = v.new_zeros(v.shape[:-1])
    for term in phi.terms:
        if isinstance(term, Network):
            activation, transform = ACTIVATION[term.activation.name], NONNEGATIVE[term.nonnegative]
            z = None
            for i, lift in enumerate(term.lifts):
                a = v @ lift[:-1] + lift[-1]
                z = activation(a if z is None else a + z @ transform(term.mixes[i - 1]))
            assert z is not None
            total = total + z @ transform(term.out)
        elif isinstance(term, QuadraticTerm):
            total = total + (v @ term.matrix).square().sum(-1)
        else:
            assert isinstance(term, SeparableTerm)
            sharpness = term.log_sharpness.exp()
            units = ACTIVATION["squareplus"](sharpness * (v[..., None] - term.place))
            total = total + (term.amplitude.square() / sharpness * units).sum((-1, -2))
    return total * phi.output_scale if phi.calibrated else total


def divergence(phi: ICNN, x: Tensor, y: Tensor) -> Tensor:
    """Return phi(x) - phi(y) - <grad phi(y), x - y> with the gradient from autograd, itself differentiable."""
    with torch.enable_grad():
        point = y if y.requires_grad else y.detach().requires_grad_()
        at_y = value(phi, point)
        (gradient,) = torch.autograd.grad(at_y.sum(), point, create_graph=True)
        return value(phi, x) - at_y - (gradient * (x - point)).sum(-1)


# ---------------------------------------------------------------------- in as many digits as mpmath is set to

Dual = tuple[mpf, mpf]  # a number and its derivative in one direction

EXACT = {
    "squareplus": lambda a: ((a + mpmath.sqrt(a * a + 4)) / 2, (1 + a / mpmath.sqrt(a * a + 4)) / 2),
    "softplus": lambda a: (mpmath.log1p(mpmath.exp(a)), 1 / (1 + mpmath.exp(-a))),
}


def _activated(activation: str, a: Dual) -> Dual:
    g, slope = EXACT[activation](a[0])
    return g, slope * a[1]


def _combined(weights: list[float], numbers: list[Dual]) -> Dual:
    pairs = list(zip(map(mpf, weights), numbers, strict=True))
    return sum((w * a[0] for w, a in pairs), mpf(0)), sum((w * a[1] for w, a in pairs), mpf(0))


def _exact_value(phi: ICNN, x: list[mpf], direction: list[mpf]) -> Dual:
    """Return phi(x) and its derivative in a direction; weights are those of the float64 network."""
    v = list(zip(x, direction, strict=True))
    if phi.calibrated:
        shift, inverse = (list(map(mpf, buffer.tolist())) for buffer in (phi.shift, phi.inverse_spread))
        v = [((a - s) * r, d * r) for (a, d), s, r in zip(v, shift, inverse, strict=True)]
    total, slope = mpf(0), mpf(0)
    for term in phi.terms:
        parts: list[Dual] = []
        if isinstance(term, Network):
            network = term.layers()
            z: list[Dual] = []
            inputs = [*v, (mpf(1), mpf(0))]
            for layer in network.layers:
                wx = layer.wxb.T.tolist()
                wz = [[]] * len(wx) if layer.wz is None else layer.wz.T.tolist()
                z = [
                    _activated(term.activation.name, _combined([*u, *w], [*inputs, *z]))
                    for u, w in zip(wx, wz, strict=True)
                ]
            parts = [_combined(network.out.tolist(), z)]
        elif isinstance(term, QuadraticTerm):
            for row in term.matrix.T.tolist():
                a, d = _combined(row, v)
                parts.append((a * a, 2 * a * d))
        else:
            assert isinstance(term, SeparableTerm)
            for i, (a, d) in enumerate(v):
                for place, log_sharpness, amplitude in zip(
                    term.place[i].tolist(), term.log_sharpness[i].tolist(), term.amplitude[i].tolist(), strict=True
                ):
                    s = mpmath.exp(mpf(log_sharpness))
                    g, change = _activated("squareplus", (s * (a - mpf(place)), s * d))
                    scale = mpf(amplitude) ** 2 / s
                    parts.append((scale * g, scale * change))
        total, slope = total + sum(p[0] for p in parts), slope + sum(p[1] for p in parts)
    scale = mpf(phi.output_scale.item()) if phi.calibrated else mpf(1)
    return total * scale, slope * scale


def exact_divergence(phi: ICNN, x: Tensor, y: Tensor) -> mpf:
    """Return the divergence of two single points by the definition, in the precision of mpmath."""
    first, second = (list(map(mpf, point.tolist())) for point in (x, y))
    step = [a - b for a, b in zip(first, second, strict=True)]
    at_y, slope = _exact_value(phi, second, step)
    return _exact_value(phi, first, step)[0] - at_y - slope
