"""Numbers at the edges of what floats can hold, and points made of them."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from askew.checks import NEGATIVE, POSITIVE, SIMPLEX, UNIT_BOX, Domain

__all__ = ["LARGEST", "awkward", "edge_rows", "inside", "layout", "moderate_rows", "seeded"]

# Edges of float32: zero, the smallest denormal and normal number, rounding, the largest square and number.
EDGES = (0.0, -0.0, 1e-45, -1e-45, 1.2e-38, 1e-30, 1e-19, 6e-8, 1.0, -1.0, 1e-3, 0.5, 88.0, -88.0, 104.0, 1e4, 1e10)
EDGES += (1.8e19, -1.8e19, 1e30, 3.4e38, -3.4e38, 1e-7, 3.0, -1e4, 16777216.0)
# Sizes up to which a value in float32 has to be right and not only to be no wrong one.
LARGEST = 30.0


def seeded(random: Random) -> np.random.Generator:
    return np.random.default_rng(random.getrandbits(63))


def moderate_rows(numbers: np.random.Generator, n: int, dim: int) -> Tensor:
    """Return real points of ordinary size, each row with a size of its own, in float32."""
    sizes = 10.0 ** numbers.uniform(-3, 0.7, (n, 1))
    return torch.from_numpy((numbers.standard_normal((n, dim)).clip(-4, 4) * sizes).astype(np.float32))


def edge_rows(numbers: np.random.Generator, n: int, dim: int) -> Tensor:
    """Return real points with entries from the edges of float32, some rows with one of them, some with only such."""
    entries = np.asarray(EDGES, np.float32)[numbers.integers(len(EDGES), size=(n, dim))]
    with np.errstate(over="ignore", under="ignore"):
        sizes = (numbers.choice((-1, 1), (n, dim)) * 10.0 ** numbers.uniform(-45, 38.4, (n, dim))).astype(np.float32)
    usual = numbers.standard_normal((n, dim)).astype(np.float32)
    kind = numbers.integers(3, size=(n, 1))
    found = np.where(kind == 0, entries, np.where(kind == 1, sizes, usual))
    found = np.where((kind == 2) & (numbers.random((n, dim)) < 0.3), entries, found)
    return torch.from_numpy(found.astype(np.float32))


def inside(domain: Domain, z: Tensor, edges: bool) -> Tensor:
    """Return points of a domain from real ones; with ``edges``, also ones that hardly lie in it."""
    tiny = 1e-38 if edges else 1e-4
    largest = 3e38 if edges else 1e4
    if domain == POSITIVE:
        return z.abs().clamp(tiny, largest)
    if domain == NEGATIVE:
        return -z.abs().clamp(tiny, largest)
    if domain == UNIT_BOX:
        return z.sigmoid().clamp(tiny, 1 - 6e-8 if edges else 0.999)
    if domain == SIMPLEX:
        points = z.clamp(-80, 80).softmax(-1).clamp_min(1e-30 if edges else 1e-4)
        return points / points.sum(-1, keepdim=True)
    return z


def layout(points: Tensor, random: Random) -> Tensor:
    """Return the same points in another layout in memory."""
    kind = random.randrange(5)
    if kind == 0:
        return points.t().contiguous().t()
    if kind == 1:
        wide = points.new_full((points.shape[0], 2 * points.shape[1]), float("nan"))
        wide[:, ::2] = points
        return wide[:, ::2]
    if kind == 2:
        tall = points.new_full((3 * points.shape[0], points.shape[1]), float("nan"))
        tall[::3] = points
        return tall[::3]
    if kind == 3:
        return torch.nn.functional.pad(points, (1, 1), value=float("inf"))[:, 1:-1]
    return points


def awkward(random: Random) -> Any:
    """Return something that is no matrix of floating points, or one with an entry that is none."""
    array = np.ones((random.choice((0, 1, 3)), random.choice((0, 1, 2, 3))))
    kind = random.randrange(14)
    if kind < 7:
        dtype = (torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.bfloat16, torch.float64)[
            kind
        ]
        return torch.ones(array.shape, dtype=dtype)
    if kind == 7:
        return array.astype(np.float32)[::-1, ::-1]
    if kind == 8:
        return array.tolist()
    if kind == 9:
        return random.choice((None, "x", 1.0, [], {}, [[1.0], [1.0, 2.0]], object()))
    if kind == 10:
        return torch.ones(random.choice(((), (2,), (1, 1, 2), (2, 1, 2))))
    array = np.ones((3, 2), random.choice((np.float32, np.float64)))
    array[random.randrange(3), random.randrange(2)] = random.choice((np.nan, np.inf, -np.inf))
    return torch.from_numpy(array) if kind < 13 else array
