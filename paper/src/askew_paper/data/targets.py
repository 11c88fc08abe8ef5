"""Pairs of points whose divergence is known: the data of the regression experiment of the paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from askew import checks

DIM, INFORMATIVE = 20, 10
# Where the condition number of the covariance of all features is drawn from; the paper says "below 100" for the first.
CONDITIONS = {"none": (1.0, 1.0), "med": (50.0, 100.0), "high": (250.0, 500.0)}
CORRELATIONS = tuple(CONDITIONS)
# Normal numbers can be 0, where a logarithm is not finite.
SMALLEST = 1e-6

Array = NDArray[np.float64]


class Pairs(NamedTuple):
    """Pairs of points and the values of a divergence, as :func:`askew.fit` takes them."""

    first: NDArray[np.float32]  # x, (n, 20)
    second: NDArray[np.float32]  # y, (n, 20)
    targets: NDArray[np.float32]  # D(x, y), (n,)


def _euclidean(x: Array, y: Array, matrix: Array) -> Array:
    squares: Array = np.square(x - y).sum(1)
    return squares


def _mahalanobis(x: Array, y: Array, matrix: Array) -> Array:
    difference = x - y
    squares: Array = np.einsum("ni,ij,nj->n", difference, matrix, difference, optimize=True)
    return squares


def _xlogx(x: Array, y: Array, matrix: Array) -> Array:
    values: Array = special.kl_div(x, y).sum(1)
    return values


def _kl(x: Array, y: Array, matrix: Array) -> Array:
    return _xlogx(x / x.sum(1, keepdims=True), y / y.sum(1, keepdims=True), matrix)


# By the names of the paper's table.
TARGETS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "euclidean": _euclidean,
    "mahalanobis": _mahalanobis,
    "xlogx": _xlogx,
    "kl": _kl,
}
# These are defined for positive numbers only.
POSITIVE = ("xlogx", "kl")


def target_pairs(
    target: str, correlation: str = "none", train: int = 50_000, test: int = 10_000, seed: int = 0
) -> tuple[Pairs, Pairs]:
    r"""Return training and test pairs of points with 20 features, 10 of which a known divergence is computed from.

    .. math:: |u - v|^2, \quad (u - v)^\top M (u - v), \quad \sum_i u_i \log\frac{u_i}{v_i} - u_i + v_i, \quad
        \mathrm{KL}\Bigl(\frac{u}{|u|_1}, \frac{v}{|v|_1}\Bigr)

    u and v are the first 10 features of x and y, the rest are distractors. All features are normal with variance 1;
    for the last two targets the first 10 are absolute values of such numbers. M is a random positive definite matrix
    of trace 10. The points of "kl" are not normalised themselves, so this target is no Bregman divergence of them, and
    no learner of such a divergence can be exact.

    Parameters
    ----------
    target
        ``"euclidean"``, ``"mahalanobis"``, ``"xlogx"`` or ``"kl"``.
    correlation
        Among all features: ``"none"``, ``"med"`` (a random covariance whose condition number is between 50 and 100) or
        ``"high"`` (250 to 500).
    train, test
        Numbers of pairs. The test pairs do not depend on the number of training pairs.
    seed
        Of points, M and covariance.

    References
    ----------
    Lu, Raff, Ferraro (2023), table "Regression test MAE" and the appendix on noise features.

    Examples
    --------
    >>> train, test = target_pairs("euclidean", "high", train=100, test=50)
    >>> train.first.shape, test.targets.shape
    ((100, 20), (50,))
    >>> difference = test.first[0, :10] - test.second[0, :10]
    >>> bool(abs((difference**2).sum() - test.targets[0]) < 1e-4)
    True
    """
    checks.check_name(target, TARGETS, "target of target_pairs")
    checks.check_name(correlation, CONDITIONS, "correlation of target_pairs")
    sizes = [checks.check_size(test, "test of target_pairs"), checks.check_size(train, "train of target_pairs")]
    generator = np.random.default_rng(seed)
    matrix = _positive_definite(generator)
    factor = _factor(correlation, generator)

    def draw(size: int) -> Pairs:
        x, y = (generator.standard_normal((size, DIM)) @ factor.T for _ in range(2))
        for points in (x, y) if target in POSITIVE else ():
            points[:, :INFORMATIVE] = np.maximum(np.abs(points[:, :INFORMATIVE]), SMALLEST)
        values = TARGETS[target](x[:, :INFORMATIVE], y[:, :INFORMATIVE], matrix)
        return Pairs(x.astype(np.float32), y.astype(np.float32), values.astype(np.float32))

    found = [draw(size) for size in sizes]
    return found[1], found[0]


def _positive_definite(generator: np.random.Generator) -> Array:
    """Return a random matrix of the informative features, with trace 10 like the identity and no tiny eigenvalue."""
    root = generator.standard_normal((INFORMATIVE, INFORMATIVE))
    matrix: Array = root @ root.T / INFORMATIVE + np.eye(INFORMATIVE) / 2
    matrix *= INFORMATIVE / np.trace(matrix)
    return matrix


def _factor(correlation: str, generator: np.random.Generator) -> Array:
    """Return a factor of a random covariance with ones on the diagonal and a condition number in the given range."""
    condition = generator.uniform(*CONDITIONS[correlation])
    if correlation == "none":
        return np.eye(DIM)
    exponents = np.r_[0.0, generator.uniform(size=DIM - 2), 1.0]
    eigenvalues = condition**exponents
    eigenvalues *= DIM / eigenvalues.sum()
    covariance = stats.random_correlation.rvs(eigenvalues, random_state=generator)
    factor: Array = np.linalg.cholesky(covariance)
    return factor
