"""ReLU, for comparison."""

from __future__ import annotations

import torch
from torch import Tensor

from askew.potentials.activations.base import Activation

__all__ = ["ReLU"]


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
