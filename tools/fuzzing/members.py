"""Fuzzing of the divergence family: every member behind every wrapper, with numbers of all sizes."""

from __future__ import annotations

import copy
import functools
from random import Random
from typing import Any

import torch
from torch import Tensor

from askew.checks import REAL
from askew.divergences import (
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
    names,
)
from askew.encoders import MLP
from fuzzing.numbers import awkward, edge_rows, inside, layout, moderate_rows, seeded
from fuzzing.targets import Target, Wrong, check

__all__ = ["TARGETS"]

DIMS = (1, 2, 3, 5, 8)
# Points beyond this may overflow in products with weights and with each other.
HUGE = 1e15
ROWS = 500
PAIRED = 40
# Relative errors of float32 that are let pass: of one value, and of one value of all pairs.
RTOL, PAIRWISE_RTOL = 2e-3, 5e-3
WRAPPERS = ("plain", "sqrt", "symmetrized", "scaled", "reversed", "embedded", "jensen", "generalized", "dual")
# Divergences of which the terms of a value cancel: what is lost is lost of the size of the points.
CANCEL = ("deep-div", "deep-div-affine", "pbdl")


@functools.cache
def member(name: str, wrapper: str, dim: int) -> tuple[Divergence, Divergence] | None:
    """Return a member in float32 and the same one in float64; None where there is no such one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(map(ord, name)) + dim)
        inner = make(name, dim)
        if wrapper in ("jensen", "generalized", "dual") and not isinstance(inner, Bregman):
            return None
        if (wrapper == "sqrt" and name == "bregman-sqrt") or (wrapper == "embedded" and inner.domain != REAL):
            return None
        makers: dict[str, Any] = {
            "plain": lambda d: d,
            "sqrt": Sqrt,
            "symmetrized": Symmetrized,
            "scaled": lambda d: Scaled(d, 2.5),
            "reversed": Reversed,
            "embedded": lambda d: Embedded(MLP(dim, widths=(4,), out=dim), d),
            "jensen": Jensen,
            "generalized": GeneralizedSymmetrized,
            "dual": Dual,
        }
        found: Divergence = makers[wrapper](inner).eval().requires_grad_(False)
    return found, copy.deepcopy(found).double()


Case = tuple[str, str, int, int, bool]


def make_case(random: Random) -> Case:
    while True:
        name, wrapper, dim = random.choice(names()), random.choice(WRAPPERS), random.choice(DIMS)
        if random.random() < 0.5:
            wrapper = "plain"
        if wrapper == "dual":  # solves a problem for each point: rarely
            wrapper = "dual" if random.random() < 0.1 else "plain"
        if member(name, wrapper, dim) is not None:
            return name, wrapper, dim, random.getrandbits(60), random.random() < 0.5


def points_of(divergence: Divergence, z: Tensor, edges: bool) -> Tensor:
    """Return points that a divergence takes."""
    if isinstance(divergence, Dual):
        potential = divergence.potential.potential if hasattr(divergence.potential, "potential") else None
        if potential is not None:
            return potential.gradient(inside(potential.domain, z.clamp(-2, 2), False))
    return inside(divergence.domain, z, edges)


def run_rows(case: Case) -> int:
    """D(x, y) row by row: not negative, no NaN, zero at x = y, right where the points are of ordinary size."""
    name, wrapper, dim, seed, edges = case
    found = member(name, wrapper, dim)
    if found is None:
        return 1
    single, double = found
    random = Random(seed)
    numbers = seeded(random)
    edges = edges and wrapper not in ("dual", "embedded")
    rows = 60 if wrapper == "dual" else ROWS
    draw = edge_rows if edges else moderate_rows
    x, y, z = (points_of(single, draw(numbers, rows, dim), edges) for _ in range(3))
    near = torch.from_numpy(numbers.random((rows, 1)) < 0.2)
    if wrapper != "dual" and not single.domain.sums_to_one:
        moved = x * (1 + 1e-3) if single.domain == REAL else x
        y = torch.where(near & torch.isfinite(moved), moved, y)
    values = single(layout(x, random), layout(y, random))
    where = f"{name}/{wrapper}/{dim}"
    check(values.shape == (rows,), f"{where}: another shape")
    # Where products overflow, members that do not look at their values give NaN, which nobody takes for an answer.
    bad = ~(values >= 0) & ~(values.isnan() & (_size(x) + _size(y) > HUGE) & (not single._checks_values))
    if bad.any():
        i = int(bad.nonzero()[0, 0])
        raise Wrong(f"{where}: D = {values[i].item()} at x = {x[i].tolist()}, y = {y[i].tolist()}")
    if single.reflexive:
        same = single(x, x.clone())
        if (same != 0).any():
            i = int((same != 0).nonzero()[0, 0])
            raise Wrong(f"{where}: D(x, x) = {same[i].item()} at x = {x[i].tolist()}")
    if edges:
        return rows
    check(torch.isfinite(values).all(), f"{where}: infinite for points of ordinary size")
    _close(values, double(x.double(), y.double()), x, y, f"{where}: float32 against float64", RTOL, name)
    if single.symmetric:
        _close(values, single(y, x).double(), x, y, f"{where}: D(x, y) against D(y, x)", RTOL, name)
    if single.triangle:
        over = values - (single(x, z) + single(z, y)) * (1 + 1e-4) - 1e-5 * (1 + _size(x) + _size(y) + _size(z))
        check((over <= 0).all(), f"{where}: the triangle inequality")
    return rows


def run_pairwise(case: Case) -> int:
    """All pairs against the same pairs one by one."""
    name, wrapper, dim, seed, edges = case
    found = member(name, wrapper, dim)
    if found is None or wrapper == "dual":
        return 1
    single, _ = found
    random = Random(seed)
    numbers = seeded(random)
    n, m = random.choice(((PAIRED, PAIRED), (1, PAIRED), (PAIRED, 1), (0, 3), (3, 0), (7, PAIRED)))
    edges = edges and wrapper != "embedded"
    draw = edge_rows if edges else moderate_rows
    x, y = (points_of(single, draw(numbers, count, dim), edges) for count in (n, m))
    if min(n, m) > 3:
        y[:2] = x[:2]
    where = f"{name}/{wrapper}/{dim}"
    matrix = single.pairwise(layout(x, random), layout(y, random))
    check(matrix.shape == (n, m), f"{where}: another shape")
    wide_x, wide_y = x[:, None].expand(n, m, dim), y[None].expand(n, m, dim)
    paired = single(wide_x, wide_y)
    # Where a value overflows, the matrix product has no right to be finite or not.
    fits = torch.isfinite(paired) & (paired < 1e30)
    bad = (matrix.isnan() & fits) | (matrix < 0) if edges else ~(matrix >= 0)
    if bad.any():
        i, j = bad.nonzero()[0].tolist()
        raise Wrong(
            f"{where}: pairwise {matrix[i, j].item()}, forward {paired[i, j].item()}, {x[i].tolist()}, {y[j].tolist()}"
        )
    if not edges:
        both = (wide_x.reshape(-1, dim), wide_y.reshape(-1, dim))
        _close(
            matrix.reshape(-1),
            paired.reshape(-1).double(),
            *both,
            f"{where}: pairwise against forward",
            PAIRWISE_RTOL,
            name,
        )
    return max(1, n * m)


def _size(x: Tensor) -> Tensor:
    return x.abs().amax(-1)


def _close(values: Tensor, truth: Tensor, x: Tensor, y: Tensor, what: str, rtol: float, name: str) -> None:
    """Raise unless values are near the truth, by a relative error, or by one of the points where terms cancel."""
    size = (_size(x) + _size(y)).double()
    slack = (1e-4 if name in CANCEL else 1e-6) * size + 1e-12
    slack = slack + 1e-5 if "embedded" in what else slack  # images of points are about 1
    # Roots double the share of what was lost, and make a lot of a little: of 1e-7, which is rounding, 3e-4.
    root = (1e-3 if name in CANCEL else 3e-4) * size
    slack = torch.maximum(slack, root) if "sqrt" in what or "generalized" in what or "norm" in name else slack
    off = (values.double() - truth).abs() - rtol * truth.abs() - slack
    if (off > 0).any():
        i = int(off.argmax())
        raise Wrong(f"{what}: {values[i].item()} and {truth[i].item()} at x = {x[i].tolist()}, y = {y[i].tolist()}")


# ---------------------------------------------------------------------- arguments


def make_arguments(random: Random) -> tuple[str, str, int, int]:
    return (
        random.choice(names()),
        random.choice(("forward", "pairwise")),
        random.choice((1, 2, 3)),
        random.getrandbits(60),
    )


def run_arguments(case: tuple[str, str, int, int]) -> int:
    """Anything at all as x and y: an answer of the right shape, or words."""
    name, call, dim, seed = case
    found = member(name, "plain", dim)
    assert found is not None
    random = Random(seed)
    usual = inside(found[0].domain, torch.full((3, dim), 0.4), False)
    x, y = (awkward(random) if random.random() < 0.7 else usual for _ in range(2))
    divergence = found[random.randrange(2)]
    values = divergence(x, y) if call == "forward" else divergence.pairwise(x, y)
    if call == "pairwise":
        check(values.shape == (len(x), len(y)), "another shape")
    else:
        check(values.shape == torch.broadcast_shapes(x.shape, y.shape)[:-1], "another shape")
    hidden = [points for points in (x, y) if not bool(torch.isfinite(points).all())]
    if hidden and values.numel():
        check(not bool(torch.isfinite(values).all()), "a finite value of a point that is not")
    elif values.numel():
        check((values >= 0).all(), "a negative value")
    return 1


# ---------------------------------------------------------------------- many columns

WIDE = ("euclidean", "euclidean-norm", "kl", "itakura-saito", "logistic", "exponential", "power", "log-sum-exp")


def make_wide(random: Random) -> tuple[str, int, int]:
    return random.choice(WIDE), 10 ** random.choice((3, 4, 5, 6)), random.getrandbits(60)


def run_wide(case: tuple[str, int, int]) -> int:
    """Up to a million columns."""
    name, dim, seed = case
    divergence = make(name, dim)
    numbers = seeded(Random(seed))
    x, y = (inside(divergence.domain, moderate_rows(numbers, 2, dim), False) for _ in range(2))
    values, truth = divergence(x, y), divergence(x.double(), y.double())
    check(torch.isfinite(values).all() and (values >= 0).all(), f"{name}/{dim}: {values.tolist()}")
    check(((values - truth).abs() <= RTOL * truth + 1e-6).all(), f"{name}/{dim}: {values.tolist()}, {truth.tolist()}")
    check((divergence(x, x.clone()) == 0).all(), f"{name}/{dim}: D(x, x) is not 0")
    matrix = divergence.pairwise(x, y)
    check(((matrix.diagonal() - truth).abs() <= PAIRWISE_RTOL * truth + 1e-6).all(), f"{name}/{dim}: pairwise")
    return 2


TARGETS = (
    Target("members", make_case, run_rows, share=4),
    Target("pairwise", make_case, run_pairwise, share=4),
    Target("arguments", make_arguments, run_arguments),
    Target("wide", make_wide, run_wide, work=5),  # a million columns
)
