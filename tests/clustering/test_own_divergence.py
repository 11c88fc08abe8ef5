"""Divergences written outside askew cluster without a change to askew, if they say that they are Bregman."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from askew import BregmanKMeans, BregmanMixture, Embedded
from askew.clustering.any_divergence import cluster
from askew.divergences import Bregman, Divergence, Scaled, make
from askew.potentials import Quadratic


class PlusSquare(Divergence):
    """D(x, y) + |x - y|^2, which is a Bregman divergence if D is one."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.dim)
        self.divergence = divergence
        self.domain = divergence.domain

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute(x, y) + (x - y).square().sum(-1)

    @property
    def inner(self) -> Divergence:
        return self.divergence

    def as_bregman(self) -> Bregman | None:
        inner = self.divergence.as_bregman()
        return None if inner is None else Bregman(inner.potential + Quadratic(inner.potential.dim))


class Root(PlusSquare):
    """An increasing function of one: orders points as that does, but means are not its best centroids."""

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute(x, y).sqrt()

    def as_bregman(self) -> None:
        return None


def points() -> np.ndarray:
    random = np.random.default_rng(0)
    return random.gamma(2.0, np.repeat([[1.0], [6.0], [30.0]], 40, axis=0), size=(120, 3)) + 0.1


@pytest.mark.parametrize("name", ["itakura-saito", "kl", "nbd", "mahalanobis"])
def test_a_wrapper_clusters_as_the_bregman_divergence_that_it_equals(name: str) -> None:
    torch.manual_seed(0)
    own, X = PlusSquare(Scaled(make(name, 3), 0.5)).double(), points()
    same = own.as_bregman()
    for options in ({}, {"dual": True, "max_iter": 5}, {"batch_size": 30, "max_iter": 5}):
        hard = BregmanKMeans(3, divergence=own, random_state=0, **options).fit(X)
        expected = BregmanKMeans(3, divergence=same, random_state=0, **options).fit(X)
        np.testing.assert_array_equal(hard.cluster_centers_, expected.cluster_centers_)
        np.testing.assert_array_equal(hard.labels_, expected.labels_)
        x, y = torch.from_numpy(X), torch.from_numpy(hard.cluster_centers_)
        with torch.no_grad():
            matrix = own.pairwise(y, x).T if "dual" in options else own.pairwise(x, y)
        np.testing.assert_allclose(hard.transform(X), matrix, rtol=1e-6)
    soft = BregmanMixture(3, divergence=own, random_state=0, max_iter=20, tol=0.1).fit(X)
    expected = BregmanMixture(3, divergence=same, random_state=0, max_iter=20, tol=0.1).fit(X)
    np.testing.assert_array_equal(soft.predict_proba(X), expected.predict_proba(X))
    labels = cluster(own, torch.from_numpy(X), 3, "k-means++", 1, 0)
    assert torch.equal(labels, cluster(same, torch.from_numpy(X), 3, "k-means++", 1, 0))


def test_behind_an_encoder() -> None:
    own, X = PlusSquare(make("kl", 3)).double(), points()
    embedded = BregmanKMeans(3, divergence=Embedded(torch.nn.Identity(), own), random_state=0).fit(X)
    np.testing.assert_array_equal(embedded.labels_, BregmanKMeans(3, divergence=own, random_state=0).fit(X).labels_)


def test_one_that_is_not_bregman_is_refused_by_name() -> None:
    root = Root(make("kl", 3)).double()
    with pytest.raises(TypeError, match=r"must be a Bregman divergence, .* Got Root instead"):
        BregmanKMeans(3, divergence=Scaled(root)).fit(points())
    labels = cluster(root, torch.from_numpy(points()), 3, "k-means++", 1, 0)  # with means as centroids
    assert len(labels.unique()) == 3
