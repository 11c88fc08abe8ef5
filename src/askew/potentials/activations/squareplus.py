"""Squareplus, the default: exact without a branch, an exponential or a logarithm."""

from __future__ import annotations

import torch
from torch import Tensor

from askew.potentials.activations.base import ONE, Activation, Stage

__all__ = ["Squareplus"]


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

    def _bend(self, b: Tensor, t: Tensor) -> Tensor:
        q, base, product = self._q(b, t)
        return t * (1 / base + base / product) / q

    def kernel(self, b: Tensor, t: Tensor, out: Stage) -> None:
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
        if out.bend is None:
            middle = torch.addcmul(one, end, b, out=s1)
            squared = torch.mul(t, t, out=out.residual)
            product = torch.addcmul(squared, middle, middle, out=s2).sqrt_()
        else:
            far = torch.addcmul(one, end, end, out=out.bend).rsqrt_()
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
        if out.bend is None or out.curvature is None:
            squared.div_(q).mul_(inverse)
            return
        ratio = torch.div(t, q, out=q)
        y = torch.mul(ratio, inverse, out=out.residual)
        torch.addcmul(y, ratio, far, out=out.bend)
        torch.mul(inverse, inverse, out=out.curvature).mul_(inverse)
        y.mul_(t)
