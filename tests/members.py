"""Every member of the family, behind every wrapper, fresh and after some training steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from askew.checks import NEGATIVE, POSITIVE, REAL, SIMPLEX, UNIT_BOX, Domain
from askew.divergences import (
    CATALOGUE,
    Bregman,
    Divergence,
    Dual,
    Embedded,
    GeneralizedSymmetrized,
    Jensen,
    Reversed,
    Scaled,
    Sqrt,
    Symmetrized,
    make,
)

DIM = 4


def into_domain(domain: Domain, z: Tensor) -> Tensor:
    """Map any real points into a domain."""
    if domain == REAL:
        return z
    if domain == POSITIVE:
        return z.clamp(-4, 4).exp()
    if domain == NEGATIVE:
        return -z.clamp(-4, 4).exp()
    if domain == UNIT_BOX:
        return z.clamp(-4, 4).sigmoid()
    if domain == SIMPLEX:
        return z.clamp(-4, 4).softmax(-1)
    raise ValueError(domain)


def embedded(divergence: Divergence) -> Divergence:
    encoder: nn.Module = nn.Identity()
    if divergence.domain == REAL:
        encoder = nn.Sequential(nn.Linear(DIM, 8), nn.Tanh(), nn.Linear(8, DIM))
    return Embedded(encoder, divergence)


WRAPPERS: dict[str, Callable[[Divergence], Divergence]] = {
    "plain": lambda divergence: divergence,
    "embedded": embedded,
    "sqrt": Sqrt,
    "symmetrized": Symmetrized,
    "scaled": lambda divergence: Scaled(divergence, 2.5, learnable=True),
    "reversed": Reversed,
}
# These take a Bregman divergence only.
BREGMAN_WRAPPERS: dict[str, Callable[[Bregman], Divergence]] = {
    "jensen": Jensen,
    "generalized": GeneralizedSymmetrized,
    "generalized-squared": lambda divergence: GeneralizedSymmetrized(divergence, root=False),
    "dual": Dual,
}


@dataclass(frozen=True)
class Case:
    name: str
    wrapper: str
    trained: bool

    def __str__(self) -> str:
        return f"{self.name}-{self.wrapper}" + ("-trained" if self.trained else "")


def cases() -> list[Case]:
    found = []
    for name, entry in CATALOGUE.items():
        wrappers = list(WRAPPERS)
        if isinstance(make(name, DIM), Bregman):
            wrappers += BREGMAN_WRAPPERS
        if name == "bregman-sqrt":  # of a fourth root nothing is known
            wrappers.remove("sqrt")
        for wrapper in wrappers:
            found += [Case(name, wrapper, trained) for trained in ((False, True) if entry.learned else (False,))]
    return found


@functools.cache
def build(case: Case) -> Divergence:
    """Return the divergence of a case in float64; shared, so tests must not change it."""
    # All wrappers of a member get the same weights.
    torch.manual_seed(sum(map(ord, case.name)))
    inner = make(case.name, DIM)
    if case.trained:
        train(inner)
    inner = inner.double()
    if case.wrapper in WRAPPERS:
        return WRAPPERS[case.wrapper](inner).double()
    assert isinstance(inner, Bregman)
    return BREGMAN_WRAPPERS[case.wrapper](inner).double()


def train(divergence: Divergence, steps: int = 15) -> None:
    """Take some large steps, after which a constraint that training can break is broken."""
    torch.manual_seed(1)
    x, y = (into_domain(divergence.domain, torch.randn(64, DIM)) for _ in range(2))
    target = (x - y).relu().sum(-1) ** 1.5
    divergence.calibrate(x, y, target + 1e-3)
    optimizer = torch.optim.Adam(divergence.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        (divergence(x, y) - target).square().mean().backward()
        optimizer.step()


def points(case: Case, z: Tensor) -> Tensor:
    """Return points that the divergence of a case accepts, from real ones."""
    divergence = build(case)
    if case.wrapper == "dual":
        # The gradients of a potential are the points of its dual.
        potential = build(Case(case.name, "plain", case.trained)).potential
        with torch.no_grad():
            return potential.gradient(into_domain(potential.domain, z))
    inner = divergence.divergence if isinstance(divergence, Embedded) else divergence
    return into_domain(inner.domain, z)


def random_points(case: Case, n: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return points(case, scale * torch.randn(n, DIM, generator=generator, dtype=torch.float64))
