"""Soft clustering with a Bregman divergence: expectation-maximisation, block by block and in the log domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from askew import checks
from askew.clustering.lloyd import check_points_and_weights
from askew.clustering.volume import curved_directions
from askew.divergences import Bregman
from askew.potentials import Potential
from askew.potentials.inverse import widened

__all__ = ["SoftClustering", "in_dtype", "log_densities", "most_probable", "responsibilities", "soft_clusters"]

# Numbers in a block of points with their responsibilities: what stays in the cache.
BLOCK_ELEMENTS = 1 << 18
# An estimated temperature is at least this many units of eps times that of one component: below it all is rounding.
TEMPERATURE_UNITS = 16.0


class SoftClustering(NamedTuple):
    """A mixture of Bregman balls and how well it fits.

    Attributes
    ----------
    labels : Tensor
        The component that each point most probably belongs to, ``(n,)``.
    centres : Tensor
        The means of the components, ``(k, dim)``.
    shares : Tensor
        The weights of the components, which sum to one, ``(k,)``.
    temperature : float
        The T of exp(-D / T).
    bound : float
        The mean log-likelihood of a point, without its volume (:func:`~askew.clustering.volume.log_volumes`), which
        no parameter changes.
    bounds : tuple of float
        The same before the first step and after each step; but for rounding it never falls.
    n_iter : int
        Steps that were taken.
    converged : bool
        Whether the last step changed the bound by at most ``tol``.
    """

    labels: Tensor
    centres: Tensor
    shares: Tensor
    temperature: float
    bound: float
    bounds: tuple[float, ...]
    n_iter: int
    converged: bool


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
    NaN, and the bound does not fall as it would if the component were put elsewhere.

    Parameters
    ----------
    points
        ``(n, dim)``, inside the domain of the divergence.
    centres
        Centres to start at, ``(k, dim)``.
    divergence
        A Bregman divergence; in another dtype than the points, a copy of it is used.
    weights
        How often each point counts, ``(n,)``; once if not given.
    shares
        Weights of the components to start at, ``(k,)``; equal ones if not given.
    temperature
        T, kept fixed; None estimates it.
    dimension
        The d of the formula, where known: the number of :func:`~askew.clustering.volume.curved_directions`.
    max_iter
        Largest number of steps.
    tol
        The search ends when a step raises the bound by no more than this.
    report
        Called with the number of each step and the bound before it.

    References
    ----------
    Banerjee, Merugu, Dhillon and Ghosh, Clustering with Bregman divergences, JMLR 6, 2005, section 5.

    Examples
    --------
    >>> from askew.potentials import Quadratic
    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> found = soft_clusters(points, points[[0, 3]], Bregman(Quadratic(1)))
    >>> found.centres.flatten(), found.labels, round(found.temperature, 3)  # twice the variance, which is 1/4
    (tensor([ 0.5000, 10.5000]), tensor([0, 0, 1, 1]), 0.5)
    """
    centres = _check(points, centres, divergence, weights, tol)
    checks.check_size(max_iter, "max_iter of soft_clusters")
    divergence = in_dtype(divergence, points.dtype)
    potential = divergence.potential
    # Of mean one, so that small weights do not vanish in single precision.
    weights = torch.ones(points.shape[0]) if weights is None else weights.double() / weights.double().mean()
    weights = weights.to(points)
    shares = _shares(shares, centres)
    # Every divergence is taken relative to one to the mean, which is computed once: see `_Components`.
    total = float(weights.sum(dtype=torch.float64))
    middle = _mean(points, weights, total, potential)
    values = _values(points, middle, potential)
    spread = float(weights.double() @ values.double()) / total
    d = max(1, curved_directions(points, potential).shape[1] if dimension is None else dimension)
    components = _Components.at(centres, middle, potential)
    numbers = torch.finfo(points.dtype)
    coldest = max(TEMPERATURE_UNITS * numbers.eps * 2 / d * spread, math.sqrt(numbers.tiny))
    if temperature is None:
        t = max(coldest, 2 / d * _mean_nearest(points, weights, values, components))
    else:
        t = checks.check_positive(temperature, "temperature of soft_clusters")
    bounds: list[float] = []
    while True:
        bound, masses, moments = _sums(points, weights, values, components, shares, t)
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
        # Less than this is a sum of numbers that have lost their digits.
        alive = masses > numbers.tiny / numbers.eps
        moved = moments / torch.where(alive, masses, 1.0)[:, None]
        centres = torch.where(alive[:, None], moved.to(points.dtype), components.centres)
        components = _Components.at(centres, middle, potential)
        if temperature is None:
            # The mean divergence to the mean is that within components plus that of their centres.
            t = max(coldest, 2 / d * (spread - float(shares @ components.from_middle.double())))
    centres, shares = components.centres, shares.to(points.dtype)
    labels = most_probable(points, centres, divergence, shares, t)
    return SoftClustering(labels, centres, shares, t, bounds[-1], tuple(bounds), len(bounds) - 1, converged)


def in_dtype(divergence: Bregman, dtype: torch.dtype) -> Bregman:
    """Return a Bregman divergence whose numbers have this dtype: itself or a copy."""
    potential = widened(divergence.potential, dtype)
    return divergence if potential is divergence.potential else Bregman(potential, divergence.pairwise_rtol)


@torch.no_grad()
def most_probable(points: Tensor, centres: Tensor, divergence: Bregman, shares: Tensor, temperature: float) -> Tensor:
    """Return the most probable component of each point, ``(n, dim) -> (n,)``.

    Examples
    --------
    >>> from askew.potentials import Quadratic
    >>> square = Bregman(Quadratic(1))
    >>> most_probable(torch.tensor([[1.0]]), torch.tensor([[0.0], [2.0]]), square, torch.tensor([0.25, 0.75]), 1.0)
    tensor([1])
    """
    return torch.cat([block.argmax(1) for block in _logits(points, divergence, centres, shares, temperature)])


@torch.no_grad()
def responsibilities(
    points: Tensor, centres: Tensor, divergence: Bregman, shares: Tensor, temperature: float
) -> Tensor:
    r"""Return the probability of each component at each point, ``(n, dim) -> (n, k)``.

    .. math:: \frac{\pi_j e^{-D(x, \mu_j) / T}}{\sum_i \pi_i e^{-D(x, \mu_i) / T}}

    Examples
    --------
    >>> from askew.potentials import Quadratic
    >>> square = Bregman(Quadratic(1))
    >>> responsibilities(torch.tensor([[1.0]]), torch.tensor([[0.0], [2.0]]), square, torch.tensor([0.25, 0.75]), 1.0)
    tensor([[0.2500, 0.7500]])
    """
    blocks = [block.softmax(1) for block in _logits(points, divergence, centres, shares, temperature)]
    return torch.cat(blocks).to(points.dtype)


@torch.no_grad()
def log_densities(
    points: Tensor, centres: Tensor, divergence: Bregman, shares: Tensor, temperature: float, dimension: int
) -> Tensor:
    """Return the log-density of each point without its volume, ``(n, dim) -> (n,)``; in float64.

    Examples
    --------
    >>> from askew.potentials import Quadratic
    >>> zero = torch.zeros(1, 1)
    >>> log_densities(zero, zero, Bregman(Quadratic(1)), torch.ones(1), 1.0, 1).exp()  # (2 pi)^(-1/2)
    tensor([0.3989], dtype=torch.float64)
    """
    blocks = [_shared(block)[1] for block in _logits(points, divergence, centres, shares, temperature)]
    values = _values(points, _middle(centres, shares), divergence.potential).double()
    return torch.cat(blocks) - values / temperature - dimension / 2 * math.log(2 * math.pi * temperature)


# ---------------------------------------------------------------------- one pass over the points


class _Components(NamedTuple):
    """Centres, seen from one point in their middle.

    D(x, mu) = D(x, m) + D(m, mu) - <grad phi(mu) - grad phi(m), x - m>, where the first term is the same for all
    components and the others are one matrix product of small numbers.
    """

    centres: Tensor
    middle: Tensor
    from_middle: Tensor  # D(mu, m)
    to_middle: Tensor  # D(m, mu)
    slopes: Tensor
    positive: bool  # whether coordinates have a lower bound

    @classmethod
    def at(cls, centres: Tensor, middle: Tensor, potential: Potential) -> _Components:
        centres = _inside(centres, middle, potential)
        values, slopes = potential.centred(centres, middle)
        positive = math.isfinite(potential.domain.lower)
        return cls(centres, middle, values, (slopes * (centres - middle)).sum(1) - values, slopes, positive)

    def products(self, block: Tensor) -> Tensor:
        """Return D(x, m) - D(x, mu) for all pairs; the block has the middle taken away."""
        return torch.addmm(-self.to_middle, block, self.slopes.mT)

    def scaled(self, shares: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Return offsets and slopes of log(share) + (D(x, m) - D(x, mu)) / temperature."""
        offsets = shares.log() - self.to_middle.double() / temperature
        return offsets.to(self.slopes.dtype), self.slopes / temperature


def _blocks(points: Tensor, width: int) -> Iterator[slice]:
    rows = max(1, BLOCK_ELEMENTS // (points.shape[1] + width))
    for start in range(0, points.shape[0], rows):
        yield slice(start, start + rows)


def _sums(
    points: Tensor, weights: Tensor, values: Tensor, components: _Components, shares: Tensor, temperature: float
) -> tuple[float, Tensor, Tensor]:
    """Return the summed bound (but for its constant), and mass and sum of points of each component."""
    offsets, slopes = components.scaled(shares, temperature)
    k = len(offsets)
    positive = components.positive
    bound = 0.0
    masses = torch.zeros(k, dtype=torch.float64, device=points.device)
    moments = torch.zeros(k, points.shape[1], dtype=torch.float64, device=points.device)
    for rows in _blocks(points, k):
        block = points[rows] - components.middle
        parts, levels = _shared(torch.addmm(offsets, block, slopes.mT))
        counted = weights[rows]
        bound += float(counted.double() @ (levels - values[rows].double() / temperature))
        masses += parts.mT @ counted
        # Sums of positive numbers lose no digits; others are smaller from their middle.
        moments += parts.mT @ ((points[rows] if positive else block) * counted[:, None])
    return bound, masses, moments if positive else moments + masses[:, None] * components.middle


def _shared(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax and log-sum-exp of each row, ``(n, k) -> (n, k), (n,)``; the latter in float64."""
    parts = logits.softmax(1)
    # From the largest part, as torch's exp, and with it logsumexp, is ten times slower where it underflows.
    return parts, logits.amax(1).double() - parts.amax(1).double().log()


def _logits(
    points: Tensor, divergence: Bregman, centres: Tensor, shares: Tensor, temperature: float
) -> Iterator[Tensor]:
    """Yield log(share) - D(x, mu) / T, up to a number for each point, in blocks ``(rows, k)``."""
    middle = _middle(centres, shares)
    divergence.potential.check_domain(points, middle)
    components = _Components.at(centres, middle, divergence.potential)
    offsets, slopes = components.scaled(shares.double(), temperature)
    for rows in _blocks(points, len(centres)):
        yield torch.addmm(offsets, points[rows] - middle, slopes.mT)


def _values(points: Tensor, middle: Tensor, potential: Potential) -> Tensor:
    """Return the divergence of each point to one point."""
    return torch.cat([potential.centred_value(points[rows], middle) for rows in _blocks(points, 0)])


def _mean_nearest(points: Tensor, weights: Tensor, values: Tensor, components: _Components) -> float:
    """Return the mean divergence of points to their nearest centre."""
    total = 0.0
    for rows in _blocks(points, len(components.centres)):
        nearest = components.products(points[rows] - components.middle).amax(1)
        total += float(weights[rows].double() @ (values[rows] - nearest).clamp_min(0).double())
    return total / float(weights.sum(dtype=torch.float64))


def _mean(points: Tensor, weights: Tensor, total: float, potential: Potential) -> Tensor:
    """Return the weighted mean of points, ``(1, dim)``, which must not lie on the boundary of the domain."""
    sums = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for rows in _blocks(points, 0):
        sums += weights[rows] @ points[rows]
    mean = (sums / total).to(points.dtype)[None]
    if not bool(potential.contains(mean)):
        bad = ~((mean > potential.domain.lower) & (mean < potential.domain.upper))
        feature = int(bad[0].nonzero()[0])
        must = f"inside the {potential.domain} domain in at least one point"
        got = f"{float(mean[0, feature]):g} in all of them"
        raise ValueError(checks.message(f"feature {feature} of the points", must, got, "Drop this feature."))
    return mean


def _middle(centres: Tensor, shares: Tensor) -> Tensor:
    """Return the mean of a mixture, ``(1, dim)``."""
    return (shares.double() @ centres.double() / shares.double().sum()).to(centres.dtype)[None]


def _inside(centres: Tensor, middle: Tensor, potential: Potential) -> Tensor:
    """Return centres that are inside the domain: those on its boundary take the least step towards the middle.

    The mean of counts may be zero in a component, where the gradient of phi is infinite.
    """
    inside = potential.contains(centres)
    if bool(inside.all()):
        return centres
    clamped = centres.clamp(potential.domain.lower, potential.domain.upper)
    return torch.where(inside[:, None], centres, clamped + torch.finfo(centres.dtype).eps * (middle - clamped))


# ---------------------------------------------------------------------- checks


def _shares(shares: Tensor | None, centres: Tensor) -> Tensor:
    """Return weights of components in float64 that sum to one."""
    k = centres.shape[0]
    if shares is None:
        return torch.full((k,), 1 / k, dtype=torch.float64, device=centres.device)
    if shares.shape != (k,) or not bool((shares >= 0).all()) or abs(float(shares.sum()) - 1) > checks.SUM_TOLERANCE:
        must = f"{k} numbers of at least zero that sum to one, as there are {k} centres"
        raise ValueError(checks.message("shares of soft_clusters", must, shares.tolist()))
    return shares.double() / shares.double().sum()


def _check(points: Tensor, centres: object, divergence: object, weights: Tensor | None, tol: float) -> Tensor:
    """Return the centres in the dtype of the points if all is as it must be."""
    owner = "soft_clusters"
    if not isinstance(divergence, Bregman):
        raise TypeError(checks.message(f"divergence of {owner}", "a Bregman divergence", type(divergence).__name__))
    check_points_and_weights(points, divergence, weights, False, owner)
    found = checks.check_points(centres, divergence.dim, "centres", owner)
    if found.ndim != 2 or found.shape[0] == 0:
        must = f"of shape (k, {divergence.dim}) with k > 0"
        raise ValueError(checks.message(f"centres of {owner}", must, tuple(found.shape)))
    checks.check_finite(found, "centres", owner)
    divergence.domain.check(found, "centres", owner, boundary=True)
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not tol >= 0:
        raise ValueError(checks.message(f"tol of {owner}", "a number of at least zero", repr(tol)))
    return found.to(points.dtype)
