"""Points, pairs of points and the inside of a divergence: what diagnostics look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askew import checks
from askew.divergences import Bregman, Divergence, Embedded
from askew.divergences.max_affine import MaxOfPieces
from askew.potentials import ICNN, AffinePrecomposed, Conjugate, Potential, Scaled, Sum, residual
from askew.potentials.terms import Network

__all__ = ["distinct", "encoded", "idle", "inside", "nested_name", "rounding", "values"]

# Points that are encoded, and pairs that are evaluated, at a time.
BLOCK_POINTS = 256
BLOCK_PAIRS = 4096


def encoded(divergence: Divergence, x: Tensor, owner: str, fewest: int) -> tuple[Divergence, Tensor]:
    """Return a divergence without its encoder, and the points at which to look at it."""
    if not isinstance(divergence, Divergence):
        got = type(divergence).__name__
        raise TypeError(checks.message(f"divergence of {owner}", "an askew divergence", got))
    if not isinstance(x, Tensor):
        hint = "Convert it with torch.as_tensor(x, dtype=torch.float32)."
        raise TypeError(checks.message(f"x of {owner}", "a torch.Tensor", type(x).__name__, hint))
    if x.ndim < 2 or x.shape[0] < fewest:
        must = f"of shape (n, dim) with n >= {fewest}"
        raise ValueError(checks.message(f"x of {owner}", must, tuple(x.shape)))
    while isinstance(divergence, Embedded):
        x = _encode(divergence, x)
        divergence = divergence.divergence
    if divergence.dim is not None:
        checks.check_points(x, divergence.dim, "x", owner, divergence.dtype)
    if x.is_floating_point():
        checks.check_finite(x, "x", owner)
    return divergence, x.detach()


def inside(divergence: Divergence, points: Tensor) -> tuple[Divergence, Tensor]:
    """Return what wrappers hold inside, and the points it sees."""
    while (inner := _inner(divergence)) is not None:
        if isinstance(divergence, Embedded):
            points = _encode(divergence, points)
        divergence = inner
    return divergence, points


def nested_name(divergence: Divergence) -> str:
    """Return the names of a divergence and of what it wraps, as ``Sqrt(NeuralBregman)``."""
    inner = _inner(divergence)
    name = type(divergence).__name__
    return name if inner is None else f"{name}({nested_name(inner)})"


def _inner(divergence: Divergence) -> Divergence | None:
    inner = getattr(divergence, "divergence", None)
    return inner if isinstance(inner, Divergence) else None


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation, so that looking at it neither drops units nor teaches it; then back."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True


def _encode(divergence: Embedded, x: Tensor) -> Tensor:
    with _evaluating(divergence.encoder):
        return torch.cat([divergence.encode(block) for block in x.split(BLOCK_POINTS)])


def distinct(n: int, size: int, count: int, seed: int) -> list[NDArray[np.intp]]:
    """Return random tuples of different numbers below n, as one array for each place."""
    generator = np.random.default_rng(seed)
    chosen: list[NDArray[np.intp]] = []
    for taken in range(size):
        index = generator.integers(n - taken, size=count)
        # Step over those that are taken, the smallest first.
        for other in np.sort(np.stack(chosen), axis=0) if chosen else ():
            index = index + (index >= other)
        chosen.append(index)
    return chosen


def values(divergence: Divergence, points: Tensor, first: NDArray[np.intp], second: NDArray[np.intp]) -> Tensor:
    """Return D(points[first], points[second]) in float64 on the host, because not every device has float64.

    Pairs that come up several times, as they do among few points, are evaluated once.
    """
    pairs, places = np.unique(first * points.shape[0] + second, return_inverse=True)
    left, right = np.divmod(pairs, points.shape[0])
    indices = (torch.from_numpy(index).to(points.device).split(BLOCK_PAIRS) for index in (left, right))
    with _evaluating(divergence):
        found = torch.cat([divergence(points[i], points[j]).cpu().double() for i, j in zip(*indices, strict=True)])
    bad = ~torch.isfinite(found)
    if bool(bad.any()):
        place = int(bad.nonzero()[0])
        got = f"{found[place].item()} for points {int(left[place])} and {int(right[place])}"
        must = "finite at the points"
        raise ValueError(checks.message(f"D of {type(divergence).__name__}", must, got, "Scale the points first."))
    return found[torch.from_numpy(places)]


def rounding(divergence: Divergence, points: Tensor) -> float:
    """Return the relative difference of two values that rounding may be the cause of."""
    dtype = divergence.dtype or points.dtype
    return min(256 * torch.finfo(dtype if dtype.is_floating_point else torch.float32).eps, 0.03)


def idle(core: Divergence, points: Tensor, tolerance: float) -> tuple[str, float | None]:
    """Return what a model is made of and the share of it that is idle, or None if of neither units nor pieces."""
    with torch.no_grad():
        if isinstance(core, MaxOfPieces):
            used = torch.cat([core._best(block) for block in points.split(BLOCK_PAIRS)]).unique().numel()
            return "pieces", 1 - used / core.pieces
        networks = _networks(core.potential, points) if isinstance(core, Bregman) else ()
        changes = [_slope_ranges(network, rows) for network, rows in networks]
        return ("hidden units", float((torch.cat(changes) < tolerance).double().mean())) if changes else ("", None)


def _networks(potential: Potential, points: Tensor) -> Iterator[tuple[Network, Tensor]]:
    """Yield the networks a potential is made of, with the points in their coordinates."""
    if isinstance(potential, ICNN):
        for term in potential.terms:
            if isinstance(term, Network):
                yield term, potential._rows(points)
    elif isinstance(potential, Sum):
        for member in potential._members:
            yield from _networks(member, points)
    elif isinstance(potential, Scaled):
        yield from _networks(potential.potential, points)
    elif isinstance(potential, AffinePrecomposed):
        yield from _networks(potential.potential, potential._image(points))
    elif isinstance(potential, Conjugate) and any(isinstance(part, Network) for part in potential.modules()):
        yield from _networks(potential.potential, potential.gradient(points))


def _slope_ranges(network: Network, rows: Tensor) -> Tensor:
    """Return how much the derivative of every hidden unit changes over the points."""
    weights = network.weights()
    low: list[Tensor] = []
    high: list[Tensor] = []
    for block in rows.split(BLOCK_PAIRS):
        _, bases, _ = residual.base_point(network.activation, block, weights)
        slopes = torch.cat([network.activation.slope(b) for b in bases], 1) * network.activation.gain
        low.append(slopes.amin(0))
        high.append(slopes.amax(0))
    return torch.stack(high).amax(0) - torch.stack(low).amin(0)
