"""Soft clustering with a Bregman divergence: expectation-maximisation, in blocks and in the log domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from askew import checks
from askew._parallel import slices
from askew.clustering.lloyd import check_points_and_weights
from askew.clustering.volume import curved_directions
from askew.divergences import AffineForm, Bregman, Planes
from askew.potentials.inverse import widened

# Numbers in a block of points with their responsibilities, which stays in the cache.
BLOCK_ELEMENTS = 1 << 18
# An estimated temperature is at least this many units of eps times that of one component: below it all is rounding.
TEMPERATURE_UNITS = 16.0


class SoftClustering(NamedTuple):
    """A mixture of Bregman balls and how well it fits."""

    labels: Tensor  # the most probable component of each point, (n,)
    centres: Tensor  # the means of the components, (k, dim)
    shares: Tensor  # the weights of the components, which sum to one, (k,)
    temperature: float  # the T of exp(-D / T)
    bound: float  # the mean log-likelihood of a point, without its volume, on which no parameter depends
    bounds: tuple[float, ...]  # the same before the first step and after each step; up to rounding it never falls
    n_iter: int
    converged: bool  # whether the last step raised the bound by at most tol


@torch.no_grad()
def soft_clusters(
    points: Tensor,
    centres: Tensor,
    divergence: Bregman,
    weights: Tensor | None = None,
    *,
    shares: Tensor | None = None,
    temperature: float | None = None,
    dimension: int | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
    report: Callable[[int, float], None] | None = None,
) -> SoftClustering:
    r"""Fit a mixture of Bregman balls to points by expectation-maximisation, from given centres.

    .. math:: p(x) = \sum_j \pi_j \, (2 \pi T)^{-d/2} \, |\nabla^2 \phi(x)|^{1/2} \, e^{-D(x, \mu_j) / T}

    For every phi the best centre of a component is the mean of the points, weighted by its responsibilities, and the
    best temperature is T = 2/d times the mean expected divergence. Both need sums over the points only, so memory
    beyond the data is O(n + k dim). A component that loses all its points keeps its centre with a share of zero: no
    NaN, and the bound does not fall as it would if the component moved elsewhere.

    Parameters
    ----------
    points, weights
        ``(n, dim)``, inside the domain of the divergence; their weights, ``(n,)``.
    centres, shares
        First centres, ``(k, dim)``, and weights of the components, ``(k,)``, equal by default.
    divergence
        A Bregman divergence; copied if it has another dtype than the points.
    temperature
        T, kept fixed; None estimates it.
    dimension
        The d of the formula, if known: the number of :func:`~askew.clustering.volume.curved_directions`.
    max_iter, tol
        Stop after so many steps, or when a step raises the bound by no more than ``tol``.
    report
        Called with the number of each step and the bound before it.

    Examples
    --------
    >>> from askew.potentials import Quadratic
    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> mixture = soft_clusters(points, points[[0, 3]], Bregman(Quadratic(1)))
    >>> mixture.centres.flatten(), mixture.labels, round(mixture.temperature, 3)  # twice the variance, which is 1/4
    (tensor([ 0.5000, 10.5000]), tensor([0, 0, 1, 1]), 0.5)
    """
    centres = _check(points, centres, divergence, weights, tol)
    checks.check_size(max_iter, "max_iter of soft_clusters")
    divergence = in_dtype(divergence, points.dtype)
    # Of mean one, so that small weights do not vanish in single precision.
    weights = torch.ones(points.shape[0]) if weights is None else weights.double() / weights.double().mean()
    weights = weights.to(points)
    shares = _check_shares(shares, centres)
    # Every divergence is taken relative to the one to the mean, which is computed once.
    total = float(weights.sum(dtype=torch.float64))
    form = divergence.affine(_mean(points, weights, total, divergence))
    base = _base(points, form)
    spread = float(weights.double() @ base.double()) / total
    d = max(1, curved_directions(points, divergence.potential).shape[1] if dimension is None else dimension)
    centres, planes = _affine_centres(centres, form)
    numbers = torch.finfo(points.dtype)
    coldest = max(TEMPERATURE_UNITS * numbers.eps * 2 / d * spread, math.sqrt(numbers.tiny))
    if temperature is None:
        t = max(coldest, 2 / d * _mean_nearest(points, weights, base, form, planes))
    else:
        t = checks.check_positive(temperature, "temperature of soft_clusters")
    bounds: list[float] = []
    while True:
        bound, masses, moments = _sums(points, weights, base, form, planes, shares, t)
        bound = bound / total - d / 2 * math.log(2 * math.pi * t)
        if not math.isfinite(bound):
            hint = "Bring the features to a scale of about one, or raise the temperature."
            raise ValueError(checks.message("divergences of soft_clusters", "finite", f"a bound of {bound}", hint))
        converged = bool(bounds) and bound - bounds[-1] <= tol
        bounds.append(bound)
        if converged or len(bounds) > max_iter:
            break
        if report is not None:
            report(len(bounds), bound)
        shares = masses / total
        # A smaller mass is a sum of numbers that have lost their digits.
        alive = masses > numbers.tiny / numbers.eps
        means = moments / torch.where(alive, masses, 1.0)[:, None]
        centres, planes = _affine_centres(torch.where(alive[:, None], means.to(points.dtype), centres), form)
        if temperature is None:
            # The mean divergence to the mean is that within components plus that of their centres.
            t = max(coldest, 2 / d * (spread - float(shares @ planes.base.double())))
    shares = shares.to(points.dtype)
    labels = most_probable(points, centres, divergence, shares, t)
    return SoftClustering(labels, centres, shares, t, bounds[-1], tuple(bounds), len(bounds) - 1, converged)


def in_dtype(divergence: Bregman, dtype: torch.dtype) -> Bregman:
    """Return a Bregman divergence whose numbers have this dtype: itself or a copy."""
    potential = widened(divergence.potential, dtype)
    return divergence if potential is divergence.potential else Bregman(potential, divergence.pairwise_rtol)


@torch.no_grad()
def most_probable(points: Tensor, centres: Tensor, divergence: Bregman, shares: Tensor, temperature: float) -> Tensor:
    """Return the most probable component of each point, ``(n, dim) -> (n,)``."""
    return torch.cat([block.argmax(1) for block in _logits(points, divergence, centres, shares, temperature)])


@torch.no_grad()
def responsibilities(
    points: Tensor, centres: Tensor, divergence: Bregman, shares: Tensor, temperature: float
) -> Tensor:
    """Return the probability of each component at each point, ``(n, dim) -> (n, k)``."""
    blocks = [block.softmax(1) for block in _logits(points, divergence, centres, shares, temperature)]
    return torch.cat(blocks).to(points.dtype)


@torch.no_grad()
def log_densities(
    points: Tensor, centres: Tensor, divergence: Bregman, shares: Tensor, temperature: float, dimension: int
) -> Tensor:
    """Return the log-density of each point without its volume, ``(n, dim) -> (n,)``; in float64."""
    blocks = [_softmax(block)[1] for block in _logits(points, divergence, centres, shares, temperature)]
    base = _base(points, divergence.affine(_mixture_mean(centres, shares))).double()
    return torch.cat(blocks) - base / temperature - dimension / 2 * math.log(2 * math.pi * temperature)


# ---------------------------------------------------------------------- one pass over the points


def _affine_centres(centres: Tensor, form: AffineForm) -> tuple[Tensor, Planes]:
    """Return centres inside the domain, and their planes.

    The mean of counts may be zero in a component, where the gradient of phi is infinite: it moves by the least step.
    """
    potential = form.potential
    centres = potential.domain.inside(centres, towards=form.centre, valid=potential.contains(centres))
    return centres, form.planes(centres)


def _scaled(planes: Planes, shares: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return offsets and slopes of log(share) + (D(x, c) - D(x, mu)) / temperature."""
    offsets = shares.log() - planes.offsets.double() / temperature
    return offsets.to(planes.slopes.dtype), planes.slopes / temperature


def _blocks(points: Tensor, width: int) -> Iterator[slice]:
    return slices(points.shape[0], max(1, BLOCK_ELEMENTS // (points.shape[1] + width)))


def _sums(
    points: Tensor, weights: Tensor, base: Tensor, form: AffineForm, planes: Planes, shares: Tensor, temperature: float
) -> tuple[float, Tensor, Tensor]:
    """Return the summed bound (up to its constant), and mass and sum of points of each component."""
    offsets, slopes = _scaled(planes, shares, temperature)
    positive = math.isfinite(form.potential.domain.lower)
    bound = 0.0
    masses = torch.zeros(len(offsets), dtype=torch.float64, device=points.device)
    moments = torch.zeros(len(offsets), points.shape[1], dtype=torch.float64, device=points.device)
    for rows in _blocks(points, len(offsets)):
        block = points[rows] - form.centre
        parts, levels = _softmax(torch.addmm(offsets, block, slopes.mT))
        weight = weights[rows]
        bound += float(weight.double() @ (levels - base[rows].double() / temperature))
        masses += parts.mT @ weight
        # Sums of positive numbers lose no digits; others are smaller relative to the centre.
        moments += parts.mT @ ((points[rows] if positive else block) * weight[:, None])
    return bound, masses, moments if positive else moments + masses[:, None] * form.centre


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax and log-sum-exp of each row, ``(n, k) -> (n, k), (n,)``; the latter in float64."""
    parts = logits.softmax(1)
    # From the largest part: torch's exp, and with it logsumexp, is ten times slower where it underflows.
    return parts, logits.amax(1).double() - parts.amax(1).double().log()


def _logits(
    points: Tensor, divergence: Bregman, centres: Tensor, shares: Tensor, temperature: float
) -> Iterator[Tensor]:
    """Yield log(share) - D(x, mu) / T, up to a number for each point, in blocks ``(rows, k)``."""
    form = divergence.affine(_mixture_mean(centres, shares))
    divergence.potential.check_domain(points, form.centre)
    offsets, slopes = _scaled(_affine_centres(centres, form)[1], shares.double(), temperature)
    for rows in _blocks(points, len(centres)):
        yield torch.addmm(offsets, points[rows] - form.centre, slopes.mT)


def _base(points: Tensor, form: AffineForm) -> Tensor:
    return torch.cat([form.base(points[rows]) for rows in _blocks(points, 0)])


def _mean_nearest(points: Tensor, weights: Tensor, base: Tensor, form: AffineForm, planes: Planes) -> float:
    """Return the mean divergence of points to their nearest centre."""
    total = 0.0
    for rows in _blocks(points, len(planes.offsets)):
        nearest = torch.addmm(-planes.offsets, points[rows] - form.centre, planes.slopes.mT).amax(1)
        total += float(weights[rows].double() @ (base[rows] - nearest).clamp_min(0).double())
    return total / float(weights.sum(dtype=torch.float64))


def _mean(points: Tensor, weights: Tensor, total: float, divergence: Bregman) -> Tensor:
    """Return the weighted mean of points, ``(1, dim)``, which must not lie on the boundary of the domain."""
    sums = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for rows in _blocks(points, 0):
        sums += weights[rows] @ points[rows]
    mean, domain = (sums / total).to(points.dtype)[None], divergence.domain
    if not bool(divergence.potential.contains(mean)):
        feature = int((~((mean > domain.lower) & (mean < domain.upper)))[0].nonzero()[0])
        must = f"inside the {domain} domain in at least one point"
        got = f"{float(mean[0, feature]):g} in all of them"
        raise ValueError(checks.message(f"feature {feature} of the points", must, got, "Drop this feature."))
    return mean


def _mixture_mean(centres: Tensor, shares: Tensor) -> Tensor:
    return (shares.double() @ centres.double() / shares.double().sum()).to(centres.dtype)[None]


def _check_shares(shares: Tensor | None, centres: Tensor) -> Tensor:
    """Return weights of components in float64 that sum to one."""
    k = centres.shape[0]
    if shares is None:
        return torch.full((k,), 1 / k, dtype=torch.float64, device=centres.device)
    if shares.shape != (k,) or not bool((shares >= 0).all()) or abs(float(shares.sum()) - 1) > checks.SUM_TOLERANCE:
        must = f"{k} numbers of at least zero that sum to one, as there are {k} centres"
        raise ValueError(checks.message("shares of soft_clusters", must, shares.tolist()))
    return shares.double() / shares.double().sum()


def _check(points: Tensor, centres: object, divergence: Bregman, weights: Tensor | None, tol: float) -> Tensor:
    """Return the centres in the dtype of the points if all arguments are valid."""
    owner = "soft_clusters"
    check_points_and_weights(points, divergence, weights, False, owner)
    checked = checks.check_points(centres, divergence.dim, "centres", owner)
    if checked.ndim != 2 or checked.shape[0] == 0:
        must = f"of shape (k, {divergence.dim}) with k > 0"
        raise ValueError(checks.message(f"centres of {owner}", must, tuple(checked.shape)))
    checks.check_finite(checked, "centres", owner)
    divergence.domain.check(checked, "centres", owner, boundary=True)
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not tol >= 0:
        raise ValueError(checks.message(f"tol of {owner}", "a number of at least zero", repr(tol)))
    return checked.to(points.dtype)
