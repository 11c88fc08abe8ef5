"""Evaluate a module in another floating dtype than that of its parameters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call

from askew import checks

# A function of a module and two sets of points.
PairFunction = Callable[..., Tensor]

# Pairs that are recomputed in float64 at a time.
BLOCK_PAIRS = 1 << 14


def autocasting(x: Tensor) -> bool:
    """Whether autocast is on for the device of ``x``."""
    device = x.device.type  # some devices, such as meta, have no autocast
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def call_in(dtype: torch.dtype, module: nn.Module, function: PairFunction, x: Tensor, y: Tensor) -> Tensor:
    """Return ``function(module, x, y)`` with the points, and the numbers of the module of their dtype, converted."""
    tensors = chain(module.named_parameters(), module.named_buffers())
    converted = {f"module.{name}": tensor.to(dtype) for name, tensor in tensors if tensor.dtype == x.dtype}
    result: Tensor = functional_call(_Call(module, function), converted, (x.to(dtype), y.to(dtype)))
    return result


def without_nan(values: Tensor, module: nn.Module, function: PairFunction, x: Tensor, y: Tensor) -> Tensor:
    """Return ``values = function(module, x, y)`` of finite points with each NaN recomputed in float64.

    Points so large that float32 overflows on the way have a NaN for a value that is finite, or infinite. While a
    gradient is recorded, NaN stays: it tells the training loop that weights have run away.
    """
    if values.dtype != torch.float32 or values.requires_grad or not checks.inspectable(values):
        return values
    bad = values.isnan()
    if not bool(bad.any()):
        return values
    x, y = (points.expand(*values.shape, points.shape[-1]) for points in (x, y))
    chunks = [tuple(chunk.unbind(1)) for chunk in bad.nonzero().split(BLOCK_PAIRS)]
    exact = [call_in(torch.float64, module, function, x[chunk], y[chunk]).reshape(-1) for chunk in chunks]
    return values.masked_scatter(bad, torch.cat(exact).to(values.dtype))


class _Call(nn.Module):
    """A function of a module as ``forward``, the only method that ``functional_call`` knows."""

    def __init__(self, module: nn.Module, function: PairFunction) -> None:
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(self.module, x, y)
