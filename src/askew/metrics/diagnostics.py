"""Properties of a learned divergence at given points: how one-sided, how far from a metric, how well conditioned.

Points are a tensor ``(n, dim)`` in the dtype of the divergence, or a batch for the encoder of an
:class:`~askew.divergences.Embedded`, which is applied first, in evaluation mode. The same seed gives the same numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from askew import checks
from askew.divergences import Divergence
from askew.metrics import inspection
from askew.metrics.reports import Conditioning, Diagnosis, TriangleViolations

# Most points, and most elements, of a block of Hessians.
BLOCK_POINTS = 256
BLOCK_ELEMENTS = 1 << 22
# Smallest change of the derivative of a hidden unit that counts.
TOLERANCE = 1e-3


def asymmetry(divergence: Divergence, x: Tensor, n_pairs: int = 10_000, seed: int = 0) -> float:
    r"""Return how one-sided a divergence is: 0 if symmetric, 1 if one direction is always 0.

    .. math:: \text{mean of } \frac{|D(x, y) - D(y, x)|}{D(x, y) + D(y, x)}

    over at most ``n_pairs`` pairs of different points, at random if there are more. Pairs with D = 0 both ways and
    differences within rounding count 0. If it is near 0 on data that has a direction, the model has not learned it.

    Examples
    --------
    >>> from askew.divergences import MaxAffine
    >>> ramp = MaxAffine.from_pieces(torch.tensor([[1.0], [0.0]]), torch.zeros(2))  # phi(x) = max(x, 0)
    >>> asymmetry(ramp, torch.tensor([[-3.0], [1.0]]))  # D(-3, 1) = 3, D(1, -3) = 1
    0.5
    """
    n_pairs = checks.check_size(n_pairs, "n_pairs of asymmetry")
    divergence, points = inspection.encoded(divergence, x, "asymmetry", 2)
    n = points.shape[0]
    if n * (n - 1) // 2 <= n_pairs:
        first, second = np.triu_indices(n, 1)
    else:
        first, second = inspection.distinct(n, 2, n_pairs, seed)
    both = np.concatenate([first, second]), np.concatenate([second, first])
    forth, back = inspection.values(divergence, points, *both).chunk(2)
    difference, total = (forth - back).abs(), forth + back
    one_sided = difference > inspection.rounding(divergence, points) * total
    return float((difference[one_sided] / total[one_sided]).sum()) / len(first)


def triangle_violations(
    divergence: Divergence, x: Tensor, n_triples: int = 10_000, seed: int = 0
) -> TriangleViolations:
    """Return how often, and by how much, a detour is shorter than the direct way: D(a, c) > D(a, b) + D(b, c).

    ``n_triples`` random triples of different points are tested; an excess within rounding does not count. Bregman
    divergences violate the triangle inequality by nature, as squared distances do.

    Examples
    --------
    >>> from askew.divergences import Euclidean
    >>> line = torch.tensor([[0.0], [1.0], [2.0]])
    >>> violations = triangle_violations(Euclidean(1), line, n_triples=3000)  # 2 of 6 orders: 4 > 1 + 1
    >>> round(violations.share, 1), violations.max_excess
    (0.3, 0.5)
    """
    n_triples = checks.check_size(n_triples, "n_triples of triangle_violations")
    divergence, points = inspection.encoded(divergence, x, "triangle_violations", 3)
    a, b, c = inspection.distinct(points.shape[0], 3, n_triples, seed)
    sides = np.concatenate([a, a, b]), np.concatenate([c, b, c])
    direct, one, two = inspection.values(divergence, points, *sides).chunk(3)
    excess = direct - one - two
    violated = excess > inspection.rounding(divergence, points) * direct
    sizes = (excess / direct)[violated]
    count = int(violated.sum())
    mean, largest = (float(sizes.mean()), float(sizes.max())) if count else (0.0, 0.0)
    return TriangleViolations(count / n_triples, mean, largest, n_triples)


def conditioning(divergence: Divergence, x: Tensor, n_points: int = 100, seed: int = 0) -> Conditioning:
    r"""Return condition numbers of the Hessian of a Bregman divergence's potential, at ``n_points`` points at most.

    .. math:: \kappa(x) = \lambda_{\max}(\nabla^2 \phi(x)) / \lambda_{\min}(\nabla^2 \phi(x))

    Near y, D(x, y) is half the quadratic form of the Hessian at y. A large number means that some directions hardly
    count, and that inverse gradients, and with them centroids and duals, are slow and inexact. For a wrapped divergence
    (a root, a multiple, ...) it is that of the potential inside.

    Examples
    --------
    >>> from askew.divergences import make
    >>> conditioning(make("kl", 2), torch.tensor([[0.5, 0.25]]))  # diag(1 / x)
    Conditioning(median=2.0, maximum=2.0, points=1)
    """
    n_points = checks.check_size(n_points, "n_points of conditioning")
    core, points = inspection.unwrapped(*inspection.encoded(divergence, x, "conditioning", 1))
    potential = inspection.potential_of(core)
    if potential is None:
        must = "a Bregman divergence, which has a potential"
        raise TypeError(checks.message("divergence of conditioning", must, type(core).__name__))
    if points.shape[0] > n_points:
        chosen = np.random.default_rng(seed).choice(points.shape[0], n_points, replace=False)
        points = points[torch.from_numpy(chosen).to(points.device)]
    # Below this share of the largest, an eigenvalue of a Hessian in this precision is noise.
    noise = points.shape[1] * torch.finfo(points.dtype).eps
    blocks = []
    with torch.no_grad():
        for block in points.split(max(1, min(BLOCK_POINTS, BLOCK_ELEMENTS // points.shape[1] ** 2))):
            eigenvalues = torch.linalg.eigvalsh(potential.hessian(block).cpu().double())
            smallest, largest = eigenvalues[:, 0], eigenvalues[:, -1]
            singular = ~(smallest > noise * largest)
            blocks.append(torch.where(singular, torch.inf, largest / torch.where(singular, 1.0, smallest)))
    numbers = torch.cat(blocks)
    return Conditioning(float(np.median(numbers.numpy())), float(numbers.max()), numbers.numel())


def dead_units(divergence: Divergence, x: Tensor, tolerance: float = TOLERANCE) -> float:
    """Return the share of a model that is idle at these points: hidden units that never bend, or pieces never used.

    A hidden unit of an :class:`~askew.potentials.ICNN` is idle if its derivative g'(a), which is between 0 and 1,
    changes by less than ``tolerance`` over all points: it is affine there and adds nothing to D. A piece of Deep-div
    and other maxima is idle if it is the largest at no point. Many idle ones tell of a model that is too large or of a
    bad initialisation.

    Examples
    --------
    >>> from askew.divergences import MaxAffine
    >>> bend = MaxAffine.from_pieces(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))  # phi(x) = |x|
    >>> dead_units(bend, torch.tensor([[1.0], [2.0]]))  # the left piece is not used
    0.5
    """
    tolerance = checks.check_positive(tolerance, "tolerance of dead_units")
    core, points = inspection.unwrapped(*inspection.encoded(divergence, x, "dead_units", 2))
    _, share = inspection.idle(core, points, tolerance)
    if share is None:
        must = "a divergence with a network potential (ICNN) or a maximum of pieces"
        raise TypeError(checks.message("divergence of dead_units", must, type(core).__name__))
    return share


def diagnose(divergence: Divergence, x: Tensor, seed: int = 0) -> Diagnosis:
    """Return all diagnostics of a divergence at three points or more; ``print`` the result to read it as text.

    Examples
    --------
    >>> from askew.divergences import Euclidean
    >>> print(diagnose(Euclidean(2, squared=False), torch.eye(2).repeat(4, 1)))
    Euclidean at 8 points
    Symmetric: D(x, y) = D(y, x) for all pairs looked at.
    The triangle inequality holds in all 10000 triples looked at.
    """
    name = inspection.nested_name(divergence)
    divergence, points = inspection.encoded(divergence, x, "diagnose", 3)
    core, inner_points = inspection.unwrapped(divergence, points)
    unit, idle = inspection.idle(core, inner_points, TOLERANCE)
    curved = inspection.potential_of(core) is not None
    return Diagnosis(
        name=name,
        points=points.shape[0],
        asymmetry=asymmetry(divergence, points, seed=seed),
        triangle=triangle_violations(divergence, points, seed=seed),
        conditioning=conditioning(core, inner_points, seed=seed) if curved else None,
        dead_units=idle,
        unit=unit,
    )
