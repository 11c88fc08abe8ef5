"""What a learned divergence is like at given points: how one-sided, how far from a metric, how well conditioned.

Points are a tensor ``(n, dim)`` in the dtype of the divergence, or whatever the encoder of an
:class:`~askew.divergences.Embedded` takes. An encoder is applied first, in evaluation mode, and its training mode is
put back. The same seed gives the same numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from askew import checks
from askew.divergences import Bregman, Divergence
from askew.metrics import probing
from askew.metrics.findings import Conditioning, Diagnosis, TriangleViolations

__all__ = ["asymmetry", "conditioning", "dead_units", "diagnose", "triangle_violations"]

# Points whose Hessians are made at a time, and the elements of those at most.
BLOCK_POINTS = 256
BLOCK_ELEMENTS = 1 << 22
# Smallest change of the derivative of a hidden unit that counts.
TOLERANCE = 1e-3


def asymmetry(divergence: Divergence, x: Tensor, n_pairs: int = 10_000, seed: int = 0) -> float:
    r"""Return how one-sided a divergence is: 0 if symmetric, 1 if one direction is always 0.

    .. math:: \text{mean of } \frac{|D(x, y) - D(y, x)|}{D(x, y) + D(y, x)}

    over random pairs of different points, or over all pairs if there are no more than that. Pairs with D = 0 both ways
    count 0, and so do differences within rounding. If it is near 0 on data that has a direction, the model has not
    learned it; a symmetric member would do.

    Parameters
    ----------
    divergence
        An askew divergence.
    x
        At least two points, ``(n, dim)``.
    n_pairs
        Most pairs to look at.
    seed
        Of the choice of pairs.

    Examples
    --------
    >>> from askew.divergences import MaxAffine
    >>> ramp = MaxAffine.from_pieces(torch.tensor([[1.0], [0.0]]), torch.zeros(2))  # phi(x) = max(x, 0)
    >>> asymmetry(ramp, torch.tensor([[-3.0], [1.0]]))  # D(-3, 1) = 3, D(1, -3) = 1
    0.5
    """
    n_pairs = checks.check_size(n_pairs, "n_pairs of asymmetry")
    divergence, points = probing.encoded(divergence, x, "asymmetry", 2)
    n = points.shape[0]
    if n * (n - 1) // 2 <= n_pairs:
        first, second = np.triu_indices(n, 1)
    else:
        first, second = probing.distinct(n, 2, n_pairs, seed)
    both = np.concatenate([first, second]), np.concatenate([second, first])
    forth, back = probing.values(divergence, points, *both).chunk(2)
    difference, total = (forth - back).abs(), forth + back
    one_sided = difference > probing.rounding(divergence, points) * total
    return float((difference[one_sided] / total[one_sided]).sum()) / len(first)


def triangle_violations(
    divergence: Divergence, x: Tensor, n_triples: int = 10_000, seed: int = 0
) -> TriangleViolations:
    """Return how often, and by how much, a detour is shorter than the direct way: D(a, c) > D(a, b) + D(b, c).

    Bregman divergences break the triangle inequality by nature (squared distances do); for search by pruning or a claim
    that a learned D is a metric it matters how much. An excess within rounding is none.

    Parameters
    ----------
    divergence
        An askew divergence.
    x
        At least three points, ``(n, dim)``.
    n_triples
        Random triples of different points to look at.
    seed
        Of the choice of triples.

    Examples
    --------
    >>> from askew.divergences import Euclidean
    >>> line = torch.tensor([[0.0], [1.0], [2.0]])
    >>> found = triangle_violations(Euclidean(1), line, n_triples=3000)  # 2 of 6 orders: 4 > 1 + 1
    >>> round(found.share, 1), found.max_excess
    (0.3, 0.5)
    """
    n_triples = checks.check_size(n_triples, "n_triples of triangle_violations")
    divergence, points = probing.encoded(divergence, x, "triangle_violations", 3)
    a, b, c = probing.distinct(points.shape[0], 3, n_triples, seed)
    sides = np.concatenate([a, a, b]), np.concatenate([c, b, c])
    direct, one, two = probing.values(divergence, points, *sides).chunk(3)
    excess = direct - one - two
    broken = excess > probing.rounding(divergence, points) * direct
    sizes = (excess / direct)[broken]
    count = int(broken.sum())
    mean, largest = (float(sizes.mean()), float(sizes.max())) if count else (0.0, 0.0)
    return TriangleViolations(count / n_triples, mean, largest, n_triples)


def conditioning(divergence: Divergence, x: Tensor, n_points: int = 100, seed: int = 0) -> Conditioning:
    r"""Return the condition numbers of the Hessian of a Bregman divergence's potential.

    .. math:: \kappa(x) = \lambda_{\max}(\nabla^2 \phi(x)) / \lambda_{\min}(\nabla^2 \phi(x))

    Near y, D(x, y) is half the quadratic form of the Hessian at y. A large number means that some directions hardly
    count, and that inverse gradients, and with them centres and duals, are slow and inexact. Of a wrapped divergence
    (a root, a multiple, ...) it is the potential inside that is looked at.

    Parameters
    ----------
    divergence
        A Bregman divergence, alone or in wrappers.
    x
        At least one point, ``(n, dim)``.
    n_points
        Most points to look at; more are chosen from at random.
    seed
        Of that choice.

    Examples
    --------
    >>> from askew.potentials import NegativeEntropy
    >>> conditioning(Bregman(NegativeEntropy(2)), torch.tensor([[0.5, 0.25]]))  # diag(1 / x)
    Conditioning(median=2.0, maximum=2.0, points=1)
    """
    n_points = checks.check_size(n_points, "n_points of conditioning")
    core, points = probing.inside(*probing.encoded(divergence, x, "conditioning", 1))
    if not isinstance(core, Bregman):
        must = "a Bregman divergence, which has a potential"
        raise TypeError(checks.message("divergence of conditioning", must, type(core).__name__))
    if points.shape[0] > n_points:
        chosen = np.random.default_rng(seed).choice(points.shape[0], n_points, replace=False)
        points = points[torch.from_numpy(chosen).to(points.device)]
    numbers = []
    with torch.no_grad():
        for block in points.split(max(1, min(BLOCK_POINTS, BLOCK_ELEMENTS // points.shape[1] ** 2))):
            eigenvalues = torch.linalg.eigvalsh(core.potential.hessian(block).cpu().double())
            smallest, largest = eigenvalues[:, 0], eigenvalues[:, -1]
            # Below this share of the largest an eigenvalue of a Hessian in this precision is noise.
            noise = points.shape[1] * torch.finfo(points.dtype).eps
            singular = ~(smallest > noise * largest)
            numbers.append(torch.where(singular, torch.inf, largest / torch.where(singular, 1.0, smallest)))
    found = torch.cat(numbers)
    return Conditioning(float(np.median(found.numpy())), float(found.max()), found.numel())


def dead_units(divergence: Divergence, x: Tensor, tolerance: float = TOLERANCE) -> float:
    """Return the share of a model that does nothing at these points: idle hidden units, or pieces never the best.

    In the network of an :class:`~askew.potentials.ICNN`, a hidden unit is idle if its derivative g'(a), which is
    between 0 and 1, changes by less than ``tolerance`` over all points: then it is affine there (flat, g' near 0;
    linear, g' near 1; or fed by nothing) and adds no bend of its own to D. In Deep-div and other maxima it is
    the share of pieces that are the best one at no point. Many of them tell of a model that is too large, or of a bad
    start.

    Parameters
    ----------
    divergence
        A divergence with a network potential or a maximum of pieces, alone or in wrappers.
    x
        At least two points, ``(n, dim)``.
    tolerance
        Smallest change of a derivative that counts.

    Examples
    --------
    >>> from askew.divergences import MaxAffine
    >>> bend = MaxAffine.from_pieces(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))  # phi(x) = |x|
    >>> dead_units(bend, torch.tensor([[1.0], [2.0]]))  # only the right piece is met
    0.5
    """
    tolerance = checks.check_positive(tolerance, "tolerance of dead_units")
    core, points = probing.inside(*probing.encoded(divergence, x, "dead_units", 2))
    _, share = probing.idle(core, points, tolerance)
    if share is None:
        must = "a divergence with a network potential (ICNN) or a maximum of pieces"
        raise TypeError(checks.message("divergence of dead_units", must, type(core).__name__))
    return share


def diagnose(divergence: Divergence, x: Tensor, seed: int = 0) -> Diagnosis:
    """Return all diagnostics of a divergence at points, to be printed or looked at one by one.

    Parameters
    ----------
    divergence
        An askew divergence.
    x
        At least three points, ``(n, dim)``.
    seed
        Of all random choices.

    Examples
    --------
    >>> from askew.divergences import Euclidean
    >>> print(diagnose(Euclidean(2, squared=False), torch.eye(2).repeat(4, 1)))
    Euclidean at 8 points
    Symmetric: D(x, y) = D(y, x) for all pairs looked at.
    The triangle inequality holds in all 10000 triples looked at.
    """
    name = probing.nested_name(divergence)
    divergence, points = probing.encoded(divergence, x, "diagnose", 3)
    core, inner_points = probing.inside(divergence, points)
    unit, idle = probing.idle(core, inner_points, TOLERANCE)
    return Diagnosis(
        name=name,
        points=points.shape[0],
        asymmetry=asymmetry(divergence, points, seed=seed),
        triangle=triangle_violations(divergence, points, seed=seed),
        conditioning=conditioning(core, inner_points, seed=seed) if isinstance(core, Bregman) else None,
        dead_units=idle,
        unit=unit,
    )
