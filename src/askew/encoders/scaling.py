"""Standardisation as an encoder, so that a learned model takes points as they were measured."""

from __future__ import annotations

import torch
from torch import Tensor

from askew import checks
from askew.io import Rebuildable

__all__ = ["Standardize"]


class Standardize(Rebuildable):
    r"""Each feature shifted by its mean and divided by its standard deviation, v = (x - mean) / std.

    The two are fixed numbers found by :meth:`fit`, not learned. They are kept in float64 and so is the difference, so
    that features far from 0 lose no digits; the result has the default dtype.

    Parameters
    ----------
    dim
        Number of features.

    Examples
    --------
    >>> scale = Standardize(1).fit(torch.tensor([[1e6], [1e6 + 2]], dtype=torch.float64))
    >>> scale(torch.tensor([[1e6 + 2]], dtype=torch.float64))
    tensor([[1.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = self.out = checks.check_size(dim, "dim of Standardize")
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("std", torch.ones(dim, dtype=torch.float64))

    def fit(self, x: Tensor) -> Standardize:
        """Set mean and standard deviation by points, ``(n, dim)``; a constant feature keeps its unit."""
        x = checks.check_points(x, self.dim, "x", "Standardize").reshape(-1, self.dim).double()
        checks.check_finite(x, "x", "Standardize")
        std, mean = torch.std_mean(x, 0, correction=0)
        # Rounding may leave a trace of spread in a feature that has none.
        constant = std <= 1e-12 * x.abs().amax(0)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(constant, torch.ones_like(std), std))
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised points: ``(..., dim) -> (..., dim)``."""
        x = checks.check_points(x, self.dim, "x", "Standardize")
        return ((x.to(self.mean.dtype) - self.mean) / self.std).to(torch.get_default_dtype())
