"""A network of both points that keeps no law of divergences: what the structure of the others is worth."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from askew.divergences import Divergence


class Unconstrained(Divergence):
    """softplus(f(x, y)) with any network f of both points.

    Nothing holds by structure but D >= 0: D(x, x) is not 0, there is no triangle inequality, and search has to compute
    every pair. Use it as a baseline.

    Examples
    --------
    >>> Unconstrained(3)(torch.zeros(2, 3), torch.ones(2, 3)).shape
    torch.Size([2])
    """

    reflexive = False

    def __init__(self, dim: int, hidden: int = 128) -> None:
        super().__init__(dim)
        layers = (nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.network = nn.Sequential(*layers)
        self._pair_width = hidden

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        both = torch.cat(torch.broadcast_tensors(x, y), -1)
        return functional.softplus(self.network(both)).squeeze(-1)
