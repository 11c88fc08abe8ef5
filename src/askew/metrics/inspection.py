"""Evaluate divergences, and look inside them, for diagnostics."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks
from askew.divergences import Divergence, Embedded
from askew.divergences.max_affine import MaxOfPieces
from askew.encoders import evaluating
from askew.potentials import Potential

# Points to encode, and pairs to evaluate, at a time.
BLOCK_POINTS = 256
BLOCK_PAIRS = 4096


def encoded(divergence: Divergence, x: Tensor, owner: str, fewest: int) -> tuple[Divergence, Tensor]:
    """Return a divergence without its encoder, and the embeddings of the points, checked."""
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


def unwrapped(divergence: Divergence, points: Tensor) -> tuple[Divergence, Tensor]:
    """Return the innermost divergence of wrappers, and the points that it compares."""
    while (inner := divergence.inner) is not None:
        if isinstance(divergence, Embedded):
            points = _encode(divergence, points)
        divergence = inner
    return divergence, points


def nested_name(divergence: Divergence) -> str:
    """Return the names of a divergence and of those that it wraps, as ``Sqrt(NeuralBregman)``."""
    name, inner = type(divergence).__name__, getattr(divergence, "inner", None)
    return name if inner is None else f"{name}({nested_name(inner)})"


def potential_of(core: Divergence) -> Potential | None:
    """Return the potential of a Bregman divergence; None for others, also for those that equal one."""
    bregman = core.as_bregman()
    return bregman.potential if bregman is core else None


def _encode(divergence: Embedded, x: Tensor) -> Tensor:
    with evaluating(divergence.encoder), torch.no_grad():
        return torch.cat([divergence.encode(block) for block in x.split(BLOCK_POINTS)])


def distinct(n: int, size: int, count: int, seed: int) -> list[NDArray[np.intp]]:
    """Return random tuples of different integers below n, as one array for each place."""
    generator = np.random.default_rng(seed)
    chosen: list[NDArray[np.intp]] = []
    for taken in range(size):
        index = generator.integers(n - taken, size=count)
        # Step over the integers that are taken, the smallest first.
        for other in np.sort(np.stack(chosen), axis=0) if chosen else ():
            index = index + (index >= other)
        chosen.append(index)
    return chosen


def values(divergence: Divergence, points: Tensor, first: NDArray[np.intp], second: NDArray[np.intp]) -> Tensor:
    """Return D(points[first], points[second]) in float64 on the CPU, because not every device has float64.

    Pairs that occur several times, as they do among few points, are evaluated once.
    """
    pairs, places = np.unique(first * points.shape[0] + second, return_inverse=True)
    left, right = np.divmod(pairs, points.shape[0])
    indices = (torch.from_numpy(index).to(points.device).split(BLOCK_PAIRS) for index in (left, right))
    with evaluating(divergence), torch.no_grad():
        results = torch.cat([divergence(points[i], points[j]).cpu().double() for i, j in zip(*indices, strict=True)])
    bad = ~torch.isfinite(results)
    if bool(bad.any()):
        place = int(bad.nonzero()[0])
        got = f"{results[place].item()} for points {int(left[place])} and {int(right[place])}"
        must = "finite at the points"
        raise ValueError(checks.message(f"D of {type(divergence).__name__}", must, got, "Scale the points first."))
    return results[torch.from_numpy(places)]


def rounding(divergence: Divergence, points: Tensor) -> float:
    """Return the relative difference of two values that may come from rounding."""
    dtype = divergence.dtype or points.dtype
    return min(256 * torch.finfo(dtype if dtype.is_floating_point else torch.float32).eps, 0.03)


def idle(core: Divergence, points: Tensor, tolerance: float) -> tuple[str, float | None]:
    """Return the name of the parts of a model and the share of them that is idle; None if it has no parts."""
    with torch.no_grad():
        if isinstance(core, MaxOfPieces):
            used = torch.cat([core.best_piece(block) for block in points.split(BLOCK_PAIRS)]).unique().numel()
            return "pieces", 1 - used / core.pieces
        potential = potential_of(core)
        changes = [] if potential is None else potential.slope_ranges(points)
        return ("hidden units", float((torch.cat(changes) < tolerance).double().mean())) if changes else ("", None)
