"""Soft clustering with a Bregman divergence: expectation-maximisation, in blocks and in the log domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from askew import checks
from askew._parallel import slices
from askew.divergences import AffineForm, Bregman, Planes

# Numbers in a block of points with their responsibilities, which stays in the cache.
BLOCK_ELEMENTS = 1 << 18
# An estimated temperature is at least this many units of eps times that of one component: below it all is rounding.
TEMPERATURE_UNITS = 16.0


class Mixture(NamedTuple):
    """A mixture of Bregman balls: sum_j share_j exp(-D(x, centre_j) / T), up to a factor that depends on x and T."""

    divergence: Bregman
    centres: Tensor  # (k, dim)
    shares: Tensor  # the weights of the components, which sum to one, (k,)
    temperature: float

    @torch.no_grad()
    def most_probable(self, points: Tensor) -> Tensor:
        """Return the most probable component of each point, ``(n, dim) -> (n,)``."""
        return torch.cat([block.argmax(1) for block in self._logits(points)])

    @torch.no_grad()
    def responsibilities(self, points: Tensor) -> Tensor:
        """Return the probability of each component at each point, ``(n, dim) -> (n, k)``."""
        return torch.cat([block.softmax(1) for block in self._logits(points)])

    @torch.no_grad()
    def log_densities(self, points: Tensor, dimension: int) -> Tensor:
        """Return the log-density of each point without its volume, ``(n, dim) -> (n,)``; in float64."""
        levels = torch.cat([_softmax(block)[1] for block in self._logits(points)])
        constant = dimension / 2 * math.log(2 * math.pi * self.temperature)
        return levels - _base(points, self._form()).double() / self.temperature - constant

    def _form(self) -> AffineForm:
        """Return the affine form as seen from the mean of the mixture."""
        shares, centres = self.shares.double(), self.centres.double()
        return self.divergence.affine((shares @ centres / shares.sum()).to(self.centres.dtype)[None])

    def _logits(self, points: Tensor) -> Iterator[Tensor]:
        """Yield log(share) - D(x, centre) / T, up to a number for each point, in blocks ``(rows, k)``."""
        form = self._form()
        self.divergence.potential.check_domain(points, form.centre)
        offsets, slopes = _scaled(_affine_centres(self.centres, form)[1], self.shares.double(), self.temperature)
        for rows in _blocks(points, len(self.centres)):
            yield torch.addmm(offsets, points[rows] - form.centre, slopes.mT)


class SoftClustering(NamedTuple):
    """A fitted mixture and how it was found."""

    mixture: Mixture
    bounds: list[float]  # the mean log-likelihood without volume, before the first step and after each step
    converged: bool  # whether the last step raised the bound by at most tol


@torch.no_grad()
def soft_clusters(
    points: Tensor,
    start: Mixture,
    dimension: int,
    weights: Tensor | None = None,
    *,
    estimate: bool = True,
    max_iter: int = 100,
    tol: float = 1e-3,
    report: Callable[[int, float], object] = lambda step, bound: None,
) -> SoftClustering:
    r"""Fit a mixture of Bregman balls to checked points by expectation-maximisation.

    .. math:: p(x) = \sum_j \pi_j \, (2 \pi T)^{-d/2} \, |\nabla^2 \phi(x)|^{1/2} \, e^{-D(x, \mu_j) / T}

    For every phi the best centre of a component is the mean of the points, weighted by its responsibilities, and the
    best temperature is T = 2/d times the mean expected divergence. Both need sums over the points only, so memory
    beyond the data is O(n + k dim). A component that loses all its points keeps its centre with a share of zero: no
    NaN, and the bound does not fall as it would if the component moved elsewhere.

    Parameters
    ----------
    points, weights
        ``(n, dim)``, in the dtype of the divergence; their weights, ``(n,)``.
    start
        The first mixture. Its temperature counts only if it is not to be estimated.
    dimension
        The d of the formula, the number of :func:`~askew.clustering.volume.curved_directions`.
    estimate
        Whether to estimate the temperature.
    max_iter, tol
        Stop after this many steps, or when a step raises the bound by no more than ``tol``.
    report
        Called with the number of each step and the bound before it.

    Examples
    --------
    >>> from askew.potentials import Quadratic
    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> start = Mixture(Bregman(Quadratic(1)), points[[0, 3]], torch.tensor([0.5, 0.5]), 1.0)
    >>> mixture = soft_clusters(points, start, 1).mixture
    >>> mixture.centres.flatten(), round(mixture.temperature, 3)  # twice the variance, which is 1/4
    (tensor([ 0.5000, 10.5000]), 0.5)
    """
    divergence, centres, shares, t = start
    shares = shares.double() / shares.double().sum()
    # Of mean one, so that small weights do not vanish in single precision.
    weights = torch.ones(points.shape[0]) if weights is None else weights.double() / weights.double().mean()
    weights = weights.to(points)
    # Every divergence is taken relative to the one to the mean, which is computed once.
    total = float(weights.sum(dtype=torch.float64))
    form = divergence.affine(_mean(points, weights, total, divergence))
    base = _base(points, form)
    spread = float(weights.double() @ base.double()) / total
    d = max(1, dimension)
    centres, planes = _affine_centres(centres, form)
    numbers = torch.finfo(points.dtype)
    coldest = max(TEMPERATURE_UNITS * numbers.eps * 2 / d * spread, math.sqrt(numbers.tiny))
    if estimate:
        t = max(coldest, 2 / d * _mean_nearest(points, weights, base, form, planes))
    bounds: list[float] = []
    while True:
        bound, masses, moments = _sums(points, weights, base, form, planes, shares, t)
        bound = bound / total - d / 2 * math.log(2 * math.pi * t)
        if not math.isfinite(bound):
            hint = "Bring the features to a scale of about one, or raise the temperature."
            raise ValueError(checks.message("divergences of a mixture", "finite", f"a bound of {bound}", hint))
        converged = bool(bounds) and bound - bounds[-1] <= tol
        bounds.append(bound)
        if converged or len(bounds) > max_iter:
            break
        report(len(bounds), bound)
        shares = masses / total
        # A smaller mass is a sum of numbers that have lost their digits.
        alive = masses > numbers.tiny / numbers.eps
        means = moments / torch.where(alive, masses, 1.0)[:, None]
        centres, planes = _affine_centres(torch.where(alive[:, None], means.to(points.dtype), centres), form)
        if estimate:
            # The mean divergence to the mean is that within components plus that of their centres.
            t = max(coldest, 2 / d * (spread - float(shares @ planes.base.double())))
    return SoftClustering(Mixture(divergence, centres, shares.to(points.dtype), t), bounds, converged)


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
