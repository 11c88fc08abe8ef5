"""What BregmanKMeans refuses, and what it says; nothing that was fitted is lost by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from askew import DivergenceLearner, Embedded, NeuralBregman, make
from askew.clustering import BregmanKMeans
from askew.divergences import Euclidean, Reversed, Scaled, Sqrt

X = np.random.RandomState(0).rand(20, 3) + 0.1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"n_clusters": 0}, ValueError, "n_clusters of BregmanKMeans must be a positive integer. Got 0 instead."),
        ({"n_clusters": 2.5}, ValueError, "n_clusters of BregmanKMeans must be a positive integer. Got 2.5"),
        ({"n_clusters": 21}, ValueError, "must be at most the number of points, n_samples=20. Got 21 instead."),
        ({"max_iter": 0}, ValueError, "max_iter of BregmanKMeans must be a positive integer"),
        ({"batch_size": 0}, ValueError, "batch_size of BregmanKMeans must be a positive integer"),
        ({"tol": -1}, ValueError, "tol of BregmanKMeans must be a finite number of at least 0. Got -1"),
        ({"tol": "small"}, ValueError, "tol of BregmanKMeans must be a finite number"),
        ({"n_init": 0}, ValueError, "n_init of BregmanKMeans must be a positive integer"),
        ({"n_init": "many"}, ValueError, "n_init of BregmanKMeans, if not a number, must be one of 'auto'"),
        ({"init": "kmeans++"}, ValueError, r"init of BregmanKMeans must be one of .* Did you mean 'k-means\+\+'"),
        ({"init": X[:3]}, ValueError, "init of BregmanKMeans must be 8 centres. Got"),
        (
            {"init": X[:8, :2]},
            ValueError,
            r"init of BregmanKMeans must be of shape \(n, 3\), .* Got \(8, 2\)",
        ),
        ({"init": X[:8] * np.nan}, ValueError, "init contains NaN"),
        ({"init": np.ma.masked_less(X[:8], 0.3)}, ValueError, "init of BregmanKMeans must be without masked entries"),
        ({"init": -X[:8], "divergence": "kl"}, ValueError, "init of BregmanKMeans must be inside the positive domain"),
        (
            {"divergence": "euclidian"},
            ValueError,
            "divergence of BregmanKMeans must be one of .*Did you mean 'euclidean'",
        ),
        ({"divergence": "nbd"}, ValueError, "must be one that needs no learning, where it is a name. Got 'nbd'"),
        ({"divergence": "euclidean-norm"}, TypeError, "must be a Bregman divergence, such as .* Got Euclidean instead"),
        (
            {"divergence": make("deep-div", 3)},
            TypeError,
            "Got DeepDiv instead. The mean of a cluster is its best centre",
        ),
        ({"divergence": make("iqe", 8)}, TypeError, "must be a Bregman divergence"),
        ({"divergence": Sqrt(NeuralBregman(3))}, TypeError, "must be a Bregman divergence, .* Got Sqrt instead"),
        ({"divergence": Scaled(Sqrt(NeuralBregman(3)))}, TypeError, "must be a Bregman divergence, .* Got Sqrt"),
        ({"divergence": Reversed(NeuralBregman(3))}, TypeError, "Give the divergence inside of it with dual=True"),
        ({"divergence": 3}, TypeError, "must be a divergence, a fitted learner, or a name such as 'kl'. Got int"),
        ({"divergence": DivergenceLearner()}, ValueError, "a DivergenceLearner that is not fitted"),
        ({"divergence": NeuralBregman(4)}, ValueError, r"X of BregmanKMeans must be of shape \(n, 4\)"),
        (
            {"divergence": Embedded(nn.Linear(3, 2), Euclidean(5))},
            ValueError,
            r"embeddings of X of BregmanKMeans must be of shape \(n, 5\), as the divergence takes them. Got \(20, 2\)",
        ),
    ],
)
def test_bad_parameters(options: dict[str, Any], error: type[Exception], text: str) -> None:
    model = BregmanKMeans(**options)
    with pytest.raises(error, match=text):
        model.fit(X)
    assert not [name for name in vars(model) if name.endswith("_")]
    with pytest.raises(error, match=text):
        model.partial_fit(X)
    assert not [name for name in vars(model) if name.endswith("_")]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (np.full((20, 3), np.nan), "contains NaN"),
        (np.full((20, 3), np.inf), "contains infinity"),
        (X[:0], "0 sample"),
        (X[0], "Expected 2D array"),
        (X[:, :, None], "Found array with dim 3"),
        (X - 0.5, r"X of BregmanKMeans must be inside the positive domain.*Got X\[\d+, \d+\] = -.*clamp"),
        (X * 0, r"Got X\[0, 0\] = 0 instead"),
    ],
)
def test_bad_tables(table: Any, text: str) -> None:
    model = BregmanKMeans(2, divergence="itakura-saito", random_state=0).fit(X)
    before = dict(vars(model))
    for method in (model.fit, model.partial_fit, model.predict, model.transform, model.score):
        with pytest.raises(ValueError, match=text):
            method(table)
    assert all(vars(model)[name] is value for name, value in before.items())


def test_zeros_are_inside_for_points_only() -> None:
    zeros = X * (X > 0.3)
    assert BregmanKMeans(2, divergence="kl", random_state=0).fit(zeros).inertia_ > 0
    with pytest.raises(ValueError, match="X of BregmanKMeans must be inside the positive domain"):
        BregmanKMeans(2, divergence="kl", dual=True).fit(zeros)


def test_another_number_of_features() -> None:
    model = BregmanKMeans(2, random_state=0).fit(X)
    for method in (model.predict, model.transform, model.score, model.partial_fit):
        with pytest.raises(ValueError, match="X has 2 features, but BregmanKMeans is expecting 3"):
            method(X[:, :2])


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (np.ones(19), "sample_weight.shape"),
        (-np.ones(20), "sample_weight of BregmanKMeans must be numbers of at least zero, and not all zero"),
        # Newer versions of scikit-learn say it themselves.
        (np.zeros(20), "not all zero. Got zeros only|at least one non-zero"),
        (np.full(20, np.nan), "contains NaN"),
    ],
)
def test_bad_weights(weights: Any, text: str) -> None:
    model = BregmanKMeans(2, random_state=0)
    for method in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=text):
            method(X, sample_weight=weights)
    assert not hasattr(model, "cluster_centers_")


def test_first_batch_is_large_enough() -> None:
    model = BregmanKMeans(5, random_state=0)
    with pytest.raises(ValueError, match=r"n_samples=3\. Got 5"):
        model.partial_fit(X[:3])
    model.partial_fit(X)
    model.partial_fit(X[:1])  # later ones may be small
    assert model.labels_.shape == (1,)


def test_not_fitted() -> None:
    for method in ("predict", "transform", "score"):
        with pytest.raises(ValueError, match="not fitted"):
            getattr(BregmanKMeans(), method)(X)


def test_an_encoder_that_gives_nan() -> None:
    class Broken(nn.Module):
        def forward(self, x: Any) -> Any:
            return x / 0

    with pytest.raises(ValueError, match="the embeddings of X of BregmanKMeans must be finite"):
        BregmanKMeans(2, divergence=Embedded(Broken(), Euclidean(3))).fit(X)
