"""Mixtures of exponential families: the synthetic data of the paper's table of distributional clustering."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, special
from sklearn.datasets import make_spd_matrix

from askew import checks
from askew.divergences import Bregman
from askew.potentials import Burg, NegativeEntropy, Quadratic
from askew_paper.data.graphs import random_stream
from askew_paper.data.tables import Table

Array = NDArray[np.float64]

# Streams of random numbers: clusters and points share none.
CLUSTERS_STREAM, POINTS_STREAM = 0, 1


class Mixture(ABC):
    """Equally likely clusters with known distributions, from which labelled points are drawn.

    Draw two sets from one mixture to learn from the first and to cluster the second.
    """

    name: str

    @property
    @abstractmethod
    def means(self) -> Array:
        """The mean of each cluster, ``(k, dim)``."""

    @abstractmethod
    def _draw(self, labels: NDArray[np.int64], random: np.random.Generator) -> Array:
        """Return a point of each cluster of ``labels``, ``(n,) -> (n, dim)``."""

    @abstractmethod
    def log_densities(self, points: Array) -> Array:
        """Return the log density of points in each cluster, up to what depends on the point alone: ``(n, k)``.

        Assigning each point to the cluster where it is highest is the Bayes rule: on average nothing is better.
        """

    @abstractmethod
    def divergence(self) -> Bregman:
        """Return the Bregman divergence of this exponential family."""

    def sample(self, n: int, seed: int) -> Table:
        """Return ``n`` points with the number of their cluster as the label; another seed gives other points."""
        random = random_stream(POINTS_STREAM, seed, "sample")
        labels = random.integers(len(self.means), size=checks.check_size(n, "n of sample"))
        return Table(self.name, self._draw(labels, random), labels)


@dataclass(frozen=True, eq=False)
class ExponentialMixture(Mixture):
    """Independent exponential distributions in each feature: p(x) = prod_i exp(-x_i / s_i) / s_i.

    The scales s, which are the means, are drawn from U[0.1, 10] for each cluster and feature. The divergence is
    Itakura-Saito. Clusters differ in scale and have much of their mass near 0: squared distances hardly see them.

    Examples
    --------
    >>> mixture = ExponentialMixture(np.array([[1.0, 9.0], [9.0, 1.0]]))
    >>> table = mixture.sample(1000, seed=0)
    >>> table.points[table.labels == 0].mean(0).round()
    array([1., 9.])
    """

    scales: Array  # (k, dim), above 0
    name = "exponential"

    @classmethod
    def draw(cls, clusters: int, dim: int, random: np.random.Generator) -> ExponentialMixture:
        return cls(random.uniform(0.1, 10.0, (clusters, dim)))

    @property
    def means(self) -> Array:
        return self.scales

    def _draw(self, labels: NDArray[np.int64], random: np.random.Generator) -> Array:
        # Rounding can give a zero, which has no Itakura-Saito divergence.
        return np.maximum(random.exponential(self.scales[labels]), 1e-12)

    def log_densities(self, points: Array) -> Array:
        values: Array = -(points @ (1 / self.scales).T) - np.log(self.scales).sum(1)
        return values

    def divergence(self) -> Bregman:
        return Bregman(Burg(self.scales.shape[1]))


@dataclass(frozen=True, eq=False)
class GaussianMixture(Mixture):
    """Gaussian distributions, each with its own covariance or all with the same.

    Means are drawn from U[-4, 4], covariances are ``make_spd_matrix(dim) + 5 I``. Where they differ, no single Bregman
    divergence is exact: :meth:`divergence` is the squared Mahalanobis distance of their mean. The paper does not say
    whether they do.

    Examples
    --------
    >>> mixture = make_mixture("gaussian", seed=0)
    >>> mixture.covariances.shape, bool((np.linalg.eigvalsh(mixture.covariances) > 5).all())
    ((5, 10, 10), True)
    >>> bool(np.ptp(make_mixture("gaussian-shared", seed=0).covariances, axis=0).any())
    False
    """

    centres: Array  # (k, dim)
    covariances: Array  # (k, dim, dim)
    name: str = "gaussian"

    @classmethod
    def draw(cls, clusters: int, dim: int, random: np.random.Generator) -> GaussianMixture:
        centres = random.uniform(-4.0, 4.0, (clusters, dim))
        seeds = random.integers(2**31, size=clusters)
        covariances = [make_spd_matrix(dim, random_state=int(seed)) + 5.0 * np.eye(dim) for seed in seeds]
        return cls(centres, np.stack(covariances))

    @classmethod
    def draw_shared(cls, clusters: int, dim: int, random: np.random.Generator) -> GaussianMixture:
        """Return the mixture of :meth:`draw`, but with the covariance of the first cluster for all."""
        drawn = cls.draw(clusters, dim, random)
        return cls(drawn.centres, np.repeat(drawn.covariances[:1], clusters, 0), "gaussian-shared")

    @property
    def means(self) -> Array:
        return self.centres

    def _draw(self, labels: NDArray[np.int64], random: np.random.Generator) -> Array:
        factors = np.linalg.cholesky(self.covariances)
        noise = random.standard_normal((len(labels), self.centres.shape[1]))
        drawn: Array = self.centres[labels] + np.einsum("nij,nj->ni", factors[labels], noise)
        return drawn

    def log_densities(self, points: Array) -> Array:
        columns = []
        for centre, factor in zip(self.centres, np.linalg.cholesky(self.covariances), strict=True):
            whitened = linalg.solve_triangular(factor, (points - centre).T, lower=True)
            columns.append(-0.5 * (whitened**2).sum(0) - np.log(np.diag(factor)).sum())
        return np.stack(columns, 1)

    def divergence(self) -> Bregman:
        dim = self.centres.shape[1]
        factor = np.linalg.cholesky(self.covariances.mean(0))
        matrix = linalg.solve_triangular(factor, np.eye(dim), lower=True)
        return Bregman(Quadratic(dim, torch.from_numpy(matrix)))


@dataclass(frozen=True, eq=False)
class MultinomialMixture(Mixture):
    """Counts of a fixed number of draws: p(x) is proportional to prod_i p_i^x_i / x_i!.

    p is drawn from Dirichlet(10, ..., 10) for each cluster, and there are 100 draws. The divergence is
    Kullback-Leibler. Counts of 0 occur.

    Examples
    --------
    >>> table = make_mixture("multinomial", seed=0).sample(3, seed=0)
    >>> table.points.sum(1)
    array([100., 100., 100.])
    """

    probabilities: Array  # (k, dim), each row sums to 1
    counts: int = 100
    name = "multinomial"

    @classmethod
    def draw(cls, clusters: int, dim: int, random: np.random.Generator) -> MultinomialMixture:
        return cls(random.dirichlet(np.full(dim, 10.0), clusters))

    @property
    def means(self) -> Array:
        return self.counts * self.probabilities

    def _draw(self, labels: NDArray[np.int64], random: np.random.Generator) -> Array:
        return random.multinomial(self.counts, self.probabilities[labels]).astype(np.float64)

    def log_densities(self, points: Array) -> Array:
        return np.stack([special.xlogy(points, row).sum(1) for row in self.probabilities], 1)

    def divergence(self) -> Bregman:
        return Bregman(NegativeEntropy(self.probabilities.shape[1]))


MIXTURES: dict[str, Callable[[int, int, np.random.Generator], Mixture]] = {
    "exponential": ExponentialMixture.draw,
    "gaussian": GaussianMixture.draw,
    "gaussian-shared": GaussianMixture.draw_shared,
    "multinomial": MultinomialMixture.draw,
}


def mixture_names() -> list[str]:
    """Return the names of the mixtures.

    Examples
    --------
    >>> mixture_names()
    ['exponential', 'gaussian', 'gaussian-shared', 'multinomial']
    """
    return list(MIXTURES)


def make_mixture(name: str, seed: int, clusters: int = 5, dim: int = 10) -> Mixture:
    """Return a mixture with random clusters; the defaults are the sizes of the paper.

    References
    ----------
    Lu, Raff, Ferraro (2023), section 4.1 and appendix, "Distributional clustering".

    Examples
    --------
    >>> mixture = make_mixture("exponential", seed=0)
    >>> known, points = mixture.sample(1000, seed=1), mixture.sample(1000, seed=2)
    >>> known.points.shape, mixture.means.shape
    ((1000, 10), (5, 10))
    """
    checks.check_name(name, MIXTURES, "name of a mixture")
    checks.check_size(clusters, "clusters of make_mixture")
    checks.check_size(dim, "dim of make_mixture")
    return MIXTURES[name](clusters, dim, random_stream(CLUSTERS_STREAM, seed, "make_mixture"))
