"""The divergence of a method behind an encoder: one of the catalogue, or a form that only experiments have."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from askew import checks
from askew.divergences import CATALOGUE, Divergence, Embedded, NeuralBregman, Sqrt
from askew.divergences.wrappers import Wrapper
from askew_paper.unconstrained import Unconstrained

# What is compared with the paper's methods where direction matters.
DIRECTED = ("drift", "drift-root", "drift-mahalanobis", "two-sided", "two-sided-root", "unconstrained")


def _linear(dim: int) -> nn.Linear:
    """Return a linear map that starts as the identity."""
    layer = nn.Linear(dim, dim)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(dim))
        layer.bias.zero_()
    return layer


def _two_sided(divergence: Divergence, dim: int) -> Embedded:
    """Return D(A x + a, B y + b): an encoder for each argument that share all but their last layer."""
    return Embedded(_linear(dim), divergence, second=_linear(dim))


OWN: dict[str, Callable[[int], Divergence]] = {
    "nbd-quadratic": NeuralBregman,
    "two-sided": lambda dim: _two_sided(NeuralBregman(dim, quadratic=0), dim),
    "two-sided-root": lambda dim: _two_sided(Sqrt(NeuralBregman(dim, quadratic=0)), dim),
    "unconstrained": Unconstrained,
}


class Calibrated(Wrapper):
    """A divergence of standardised points times a fixed number: every method starts with D of the same size.

    :meth:`calibrate` sets these numbers. Without it, it is the divergence itself.

    Examples
    --------
    >>> x, y = torch.randn(2, 100, 3, generator=torch.Generator().manual_seed(0))
    >>> norm = Calibrated(make_head("deepnorm", 3))
    >>> norm.calibrate(100 * x, 100 * y, median=0.1)
    >>> round(norm(100 * x, 100 * y).median().item(), 4)
    0.1
    """

    shift: Tensor
    inverse: Tensor
    size: Tensor

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence)
        for name in ("shift", "inverse", "size"):
            self.register_buffer(name, torch.zeros(()) if name == "shift" else torch.ones(()))

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = ((points - self.shift) * self.inverse for points in (x, y))
        return self.divergence.compute(x, y) * self.size

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = ((points - self.shift) * self.inverse for points in (x, y))
        return self.divergence.compute_pairwise(x, y) * self.size

    @torch.no_grad()
    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None, median: float = 1.0) -> None:
        deviation, self.shift = torch.std_mean(torch.cat([x, y]), 0, correction=0)
        self.inverse, self.size = 1 / deviation.clamp_min(1e-6), torch.ones_like(self.size)
        first, second = ((points - self.shift) * self.inverse for points in (x, y))
        self.divergence.calibrate(first, second, targets, median)
        values = self(x, y)
        wanted, found = (median, values.median()) if targets is None else (targets.mean(), values.mean())
        self.size = wanted / found.clamp_min(1e-6)


def make_head(method: str, dim: int, standardised: bool = False) -> Divergence:
    """Return a new divergence between embeddings of ``dim`` features, or of standardised ones.

    Methods are names of the catalogue; ``"nbd-quadratic"``, the NBD with its quadratic term, which an encoder makes
    superfluous; ``"two-sided"`` and ``"two-sided-root"``, with a linear map for each argument; and
    ``"unconstrained"``, a network of both points.

    Examples
    --------
    >>> len(make_head("nbd", 4).potential.terms), len(make_head("nbd-quadratic", 4).potential.terms)
    (2, 3)
    """
    checks.check_name(method, [*OWN, *CATALOGUE], "method behind an encoder")
    entry = CATALOGUE.get(method)
    head = OWN[method](dim) if entry is None or method in OWN else (entry.head or entry.factory)(dim)
    return Calibrated(head) if standardised else head
