"""The divergence of a method behind an encoder: one of the catalogue, or a form that only experiments have."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from askew import checks
from askew.divergences import CATALOGUE, Divergence, Embedded, NeuralBregman, Sqrt
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


def make_head(method: str, dim: int) -> Divergence:
    """Return a new divergence between embeddings of ``dim`` features.

    Methods are names of the catalogue; ``"nbd-quadratic"``, the NBD with its quadratic term, which an encoder makes
    superfluous; ``"two-sided"`` and ``"two-sided-root"``, with a linear map for each argument; and
    ``"unconstrained"``, a network of both points.

    Examples
    --------
    >>> len(make_head("nbd", 4).potential.terms), len(make_head("nbd-quadratic", 4).potential.terms)
    (2, 3)
    """
    checks.check_name(method, [*OWN, *CATALOGUE], "method behind an encoder")
    if method in OWN:
        return OWN[method](dim)
    entry = CATALOGUE[method]
    return (entry.head or entry.factory)(dim)
