"""Softplus, the activation of the paper."""

from __future__ import annotations

import torch
from torch import Tensor

from askew.potentials.activations.base import HALF, ONE, Activation, Stage

__all__ = ["Softplus"]


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
        bend = growth * (1 - s) / (1 + growth)
        near = bend * step * (0.5 - step * (1 - 2 * s - bend) / 12)
        direct = torch.log1p(growth) - s * step + (end - self._far()).clamp_min(0)
        return torch.where(t.abs() <= self._threshold(b.dtype), near, direct)

    def _bend(self, b: Tensor, t: Tensor) -> Tensor:
        sign, _, s, growth, _ = self._flipped(b, t)
        return sign * growth * (1 - s) / (1 + growth)

    def kernel(self, b: Tensor, t: Tensor, out: Stage) -> None:
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
