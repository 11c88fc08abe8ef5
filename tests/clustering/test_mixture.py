"""BregmanMixture behaves as scikit-learn's estimators do, and finds what made the data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from members import into_domain
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from askew import DivergenceLearner, load, save
from askew.clustering.kmeans import BregmanKMeans
from askew.clustering.mixture import BregmanMixture
from askew.divergences import CATALOGUE, Bregman, Embedded, Mahalanobis, Scaled, make
from askew.metrics import purity

BLOBS, LABELS = make_blobs(150, 2, centers=3, cluster_std=0.8, random_state=3)
COUNTS = np.random.default_rng(0).poisson(np.repeat([[2.0, 9.0], [9.0, 2.0]], 60, axis=0)).astype(float)
FITTED = (
    "weights_",
    "cluster_centers_",
    "temperature_",
    "labels_",
    "lower_bound_",
    "lower_bounds_",
    "converged_",
    "n_iter_",
    "divergence_",
    "encoder_",
    "directions_",
    "n_features_in_",
)


def mixture(n_components: int = 3, **changes: Any) -> BregmanMixture:
    return BregmanMixture(n_components, **{"random_state": 0, **changes})


def exponential_mixture(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(seed)
    scales, labels = random.uniform(0.1, 10, (5, 10)), np.repeat(np.arange(5), 200)
    return random.exponential(scales[labels]), labels


@parametrize_with_checks(
    [
        BregmanMixture(),
        mixture(divergence="exponential", temperature=0.5),
        mixture(init="k-means++", n_init=2),
    ]
)
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


# ---------------------------------------------------------------------- what it finds


def test_one_component_is_a_gaussian() -> None:
    found = mixture(1).fit(BLOBS)
    gaussian = GaussianMixture(1, covariance_type="spherical", reg_covar=0).fit(BLOBS)
    np.testing.assert_allclose(found.cluster_centers_, gaussian.means_)
    np.testing.assert_allclose(found.temperature_, 2 * gaussian.covariances_[0])
    np.testing.assert_allclose(found.score_samples(BLOBS), gaussian.score_samples(BLOBS))
    assert found.score(BLOBS) == pytest.approx(gaussian.score(BLOBS))
    assert found.bic(BLOBS) == pytest.approx(gaussian.bic(BLOBS))
    assert found.aic(BLOBS) == pytest.approx(gaussian.aic(BLOBS))


def test_mixture_of_gaussians_of_one_variance() -> None:
    found = mixture(3).fit(BLOBS)
    spread = found.temperature_ / 2 * np.eye(2)
    parts = np.stack(
        [
            weight * stats.multivariate_normal(mean, spread).pdf(BLOBS)
            for weight, mean in zip(found.weights_, found.cluster_centers_, strict=True)
        ],
        axis=1,
    )
    np.testing.assert_allclose(found.score_samples(BLOBS), np.log(parts.sum(1)))
    np.testing.assert_allclose(found.predict_proba(BLOBS), parts / parts.sum(1, keepdims=True), atol=1e-12)
    np.testing.assert_array_equal(found.predict(BLOBS), parts.argmax(1))
    assert adjusted_rand_score(LABELS, found.labels_) > 0.9
    assert found.temperature_ / 2 == pytest.approx(0.8**2, rel=0.2)


def test_bound_is_the_score_without_the_volume() -> None:
    X, _ = exponential_mixture(0)
    found = mixture(5, divergence="itakura-saito").fit(X)
    assert found.lower_bound_ == pytest.approx(found.score(X, volume=False))
    # The volume of Burg's potential is one over the product of the features.
    np.testing.assert_allclose(found.score_samples(X) - found.score_samples(X, volume=False), -np.log(X).sum(1))
    assert found.lower_bounds_[-1] == found.lower_bound_
    assert len(found.lower_bounds_) == found.n_iter_ + 1
    assert (np.diff(found.lower_bounds_) > 0).all()


def test_score_of_exponential_distributions_is_nearly_the_true_one() -> None:
    X, _ = exponential_mixture(0)
    found = mixture(5, divergence="itakura-saito", temperature=1.0).fit(X)
    parts = stats.expon(scale=found.cluster_centers_[:, None]).pdf(X).prod(2)
    true = np.log(found.weights_ @ parts)
    # Stirling's formula for the gamma function at 1, for each of ten features.
    np.testing.assert_allclose(found.score_samples(X) - true, 10 * (1 - math.log(2 * math.pi) / 2))
    estimated = mixture(5, divergence="itakura-saito").fit(X).temperature_
    assert estimated == pytest.approx(2 * np.euler_gamma, rel=0.05)


@pytest.mark.parametrize("name", ["itakura-saito", "euclidean"])
def test_criteria_find_the_number_of_clusters(name: str) -> None:
    random = np.random.default_rng(0)
    scales = np.repeat([[1.0, 9.0], [9.0, 1.0], [12.0, 12.0]], 150, axis=0)
    X = random.gamma(8.0, scales / 8) if name == "itakura-saito" else random.normal(scales)
    fits = {k: mixture(k, divergence=name, n_init=3).fit(X) for k in range(1, 6)}
    assert min(fits, key=lambda k: fits[k].bic(X)) == 3
    assert min(fits, key=lambda k: fits[k].aic(X)) in (3, 4)
    # The volume is the same for all.
    gaps = [found.bic(X) - found.bic(X, volume=False) for found in fits.values()]
    np.testing.assert_allclose(gaps, gaps[0])


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 3 * 2 + 2 + 1),
        ({"temperature": 1.0}, 3 * 2 + 2),
        ({"divergence": "log-sum-exp"}, 3 * 1 + 2 + 1),
        ({"divergence": Mahalanobis(2, rank=1)}, 3 * 1 + 2 + 1),
    ],
    ids=str,
)
def test_free_parameters(changes: dict[str, Any], count: int) -> None:
    found = mixture(3, **changes).fit(BLOBS)
    n, total = len(BLOBS), found.score_samples(BLOBS).sum()
    assert found.bic(BLOBS) == pytest.approx(-2 * total + count * math.log(n))
    assert found.aic(BLOBS) == pytest.approx(-2 * total + 2 * count)


def test_soft_clusters_are_as_pure_as_hard_ones() -> None:
    soft, hard = [], []
    for seed in range(3):
        X, labels = exponential_mixture(seed)
        start = {"divergence": "itakura-saito", "n_init": 3, "random_state": 0}
        soft.append(purity(labels, BregmanMixture(5, **start).fit_predict(X)))
        hard.append(purity(labels, BregmanKMeans(5, **start).fit_predict(X)))
    # On average over many seeds it is a little above; on few it may be a few points of a thousand below.
    assert np.mean(soft) > np.mean(hard) - 0.005
    assert np.mean(soft) > 0.77


@pytest.mark.parametrize("name", [name for name in CATALOGUE if isinstance(make(name, 4), Bregman)])
def test_every_bregman_member(name: str) -> None:
    torch.manual_seed(0)
    divergence = make(name, 4)
    z = torch.from_numpy(load_iris().data - load_iris().data.mean(0))
    X = into_domain(divergence.domain, z).numpy()
    weights = np.random.default_rng(0).uniform(0, 2, len(X))
    found = mixture(3, divergence=divergence, max_iter=500).fit(X, sample_weight=weights)
    assert (np.diff(found.lower_bounds_) > -1e-10).all()
    assert found.score(X) > mixture(1, divergence=divergence).fit(X, sample_weight=weights).score(X)
    np.testing.assert_allclose(found.predict_proba(X).sum(1), 1)
    np.testing.assert_allclose(found.weights_.sum(), 1)
    np.testing.assert_array_equal(found.predict(X), found.labels_)
    # The mean of the mixture is that of the data, whatever the divergence.
    np.testing.assert_allclose(found.weights_ @ found.cluster_centers_, np.average(X, axis=0, weights=weights))


def test_low_temperature_is_hard_clustering() -> None:
    hard = BregmanKMeans(3, init=BLOBS[:3], tol=0).fit(BLOBS)
    soft = mixture(3, init=BLOBS[:3], temperature=1e-6, tol=0).fit(BLOBS)
    np.testing.assert_array_equal(soft.labels_, hard.labels_)
    np.testing.assert_allclose(soft.cluster_centers_, hard.cluster_centers_)
    assert set(soft.predict_proba(BLOBS).ravel()) == {0.0, 1.0}


@pytest.mark.parametrize("divergence", [Mahalanobis(2), Scaled(make("exponential", 2), 3.0)], ids=repr)
def test_what_equals_a_bregman_divergence(divergence: Any) -> None:
    X = BLOBS / 5
    found = mixture(3, divergence=divergence).fit(X)
    expected = (np.log(found.weights_) - pairs(divergence, X, found.cluster_centers_) / found.temperature_).argmax(1)
    np.testing.assert_array_equal(found.labels_, expected)


def pairs(divergence: Any, X: np.ndarray, centres: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return divergence.double().pairwise(torch.from_numpy(X), torch.from_numpy(centres)).numpy()


# ---------------------------------------------------------------------- starts


@pytest.mark.parametrize("init", ["k-means", "k-means++", "random-points", "random-partition"])
def test_starts(init: str) -> None:
    found = mixture(3, init=init, n_init=5, max_iter=1000, tol=1e-6).fit(BLOBS)
    assert adjusted_rand_score(LABELS, found.labels_) > 0.9
    again = mixture(3, init=init, n_init=5, max_iter=1000, tol=1e-6).fit(BLOBS)
    np.testing.assert_array_equal(found.cluster_centers_, again.cluster_centers_)


def test_best_of_several_starts_is_kept() -> None:
    X, _ = exponential_mixture(2)
    arguments = {"divergence": "itakura-saito", "init": "random-points"}
    random = np.random.RandomState(1)
    singles = [mixture(5, random_state=random, **arguments).fit(X).lower_bound_ for _ in range(4)]
    found = mixture(5, random_state=1, n_init=4, **arguments).fit(X)
    assert found.lower_bound_ == max(singles) > min(singles) + 1e-3


def test_given_start() -> None:
    found = mixture(2, init=COUNTS[:2], weights_init=[0.9, 0.1], divergence="kl", temperature=2.0, max_iter=1, tol=1e9)
    found.fit(COUNTS)
    with torch.no_grad():
        matrix = make("kl", 2).pairwise(torch.from_numpy(COUNTS), torch.from_numpy(COUNTS[:2]))
    parts = (torch.tensor([0.9, 0.1]).log() - matrix / 2).softmax(1).numpy()
    np.testing.assert_allclose(found.weights_, parts.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.cluster_centers_, parts.T @ COUNTS / parts.sum(0)[:, None], rtol=1e-6)


def test_sample_weights_count_like_repetitions() -> None:
    counts = np.arange(len(BLOBS)) % 3
    weighted = mixture(3).fit(BLOBS, sample_weight=counts)
    repeated = mixture(3).fit(np.repeat(BLOBS, counts, axis=0))
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_)
    np.testing.assert_allclose(weighted.lower_bounds_, repeated.lower_bounds_)
    assert weighted.labels_.shape == (len(BLOBS),)


def test_single_precision_stays() -> None:
    double, single = mixture(3).fit(BLOBS), mixture(3).fit(BLOBS.astype(np.float32))
    assert single.cluster_centers_.dtype == single.weights_.dtype == np.float32
    assert single.predict_proba(BLOBS.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(single.cluster_centers_, double.cluster_centers_, rtol=1e-4)
    np.testing.assert_array_equal(single.predict(BLOBS), double.labels_)


def test_search_that_does_not_end_is_told() -> None:
    with pytest.warns(ConvergenceWarning, match="did not converge in 2 steps: raise max_iter or tol"):
        found = mixture(3, init="random-points", max_iter=2, tol=0).fit(BLOBS)
    assert not found.converged_
    assert found.n_iter_ == 2
    assert mixture(3).fit(BLOBS).converged_


def test_fewer_different_points_than_components() -> None:
    X = np.repeat(BLOBS[:3], 5, axis=0)
    found = mixture(6).fit(X)
    for name in ("weights_", "cluster_centers_", "temperature_", "lower_bound_"):
        assert np.isfinite(getattr(found, name)).all()
    assert np.isfinite(found.score_samples(X)).all()
    assert len(set(found.labels_)) == 3


# ---------------------------------------------------------------------- what it is used with


def test_counts_with_zeros() -> None:
    assert (COUNTS == 0).any()
    found = mixture(2, divergence="kl", temperature=1.0).fit(COUNTS)
    assert adjusted_rand_score(np.repeat([0, 1], 60), found.labels_) > 0.9
    with pytest.raises(ValueError, match=r"not on its boundary.*volume=False"):
        found.score(COUNTS)
    assert found.bic(COUNTS, volume=False) < mixture(1, divergence="kl", temperature=1.0).fit(COUNTS).bic(
        COUNTS, volume=False
    )


def test_behind_an_encoder() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    model = Embedded(encoder, make("nbd", 2))
    images = np.random.default_rng(0).normal(size=(60, 2, 2)).astype(np.float32)
    found = mixture(2, divergence=model).fit(images)
    assert found.encoder_ is encoder
    with torch.no_grad():
        codes = encoder(torch.from_numpy(images)).numpy()
    plain = mixture(2, divergence=model.divergence).fit(codes)
    np.testing.assert_allclose(found.cluster_centers_, plain.cluster_centers_, rtol=1e-5)
    np.testing.assert_allclose(found.predict_proba(images), plain.predict_proba(codes), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.score_samples(images), plain.score_samples(codes), rtol=1e-4, atol=1e-5)
    # Given centres are points, and go through the encoder.
    given = mixture(2, divergence=model, init=images[:2]).fit(images)
    same = mixture(2, divergence=model.divergence, init=codes[:2]).fit(codes)
    np.testing.assert_allclose(given.cluster_centers_, same.cluster_centers_, rtol=1e-5)


def test_tokens_reach_an_encoder_as_integers() -> None:
    torch.manual_seed(0)
    encoder = nn.EmbeddingBag(9, 2)
    tokens = np.random.default_rng(0).integers(0, 9, size=(60, 4))
    with torch.no_grad():
        codes = encoder(torch.from_numpy(tokens)).numpy()
    found = mixture(2, divergence=Embedded(encoder, make("euclidean", 2))).fit(tokens)
    plain = mixture(2).fit(codes)
    np.testing.assert_allclose(found.predict_proba(tokens), plain.predict_proba(codes), rtol=1e-4, atol=1e-6)


def test_with_a_fitted_learner() -> None:
    X, labels = load_iris(return_X_y=True)
    learner = DivergenceLearner("nbd", None, steps=30, random_state=0).fit(X, labels)
    found = mixture(3, divergence=learner).fit(X)
    assert purity(labels, found.labels_) > 0.85
    assert found.divergence_ is learner.divergence_
    model = mixture(3, divergence=learner.model_).fit(X)
    frozen = clone(mixture(3, divergence=FrozenEstimator(learner))).fit(X)
    for other in (model, frozen):
        np.testing.assert_array_equal(other.labels_, found.labels_)
    with pytest.raises(ValueError, match=r"Got a DivergenceLearner that is not fitted instead. Call its fit first"):
        clone(mixture(3, divergence=learner)).fit(X)


def test_network_of_single_precision_on_double_data() -> None:
    torch.manual_seed(0)
    network = make("nbd", 2)
    found = mixture(3, divergence=network).fit(BLOBS)
    assert found.cluster_centers_.dtype == np.float64
    assert found.divergence_.dtype == torch.float64
    assert network.dtype == torch.float32
    assert found.score(BLOBS) == pytest.approx(
        mixture(3, divergence=network).fit(BLOBS.astype("f")).score(BLOBS), rel=1e-3
    )


def test_in_a_search_and_with_data_frames() -> None:
    frame = pd.DataFrame(BLOBS, columns=["a", "b"]).sample(frac=1, random_state=0)
    search = GridSearchCV(mixture(n_init=3), {"n_components": [1, 2, 3], "divergence": ["euclidean", Mahalanobis(2)]})
    search.fit(frame)
    assert search.best_params_["n_components"] == 3
    found = search.best_estimator_
    assert list(found.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="feature names should match"):
        found.predict(frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize("name", ["itakura-saito", "log-sum-exp", "encoder", "learner"])
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    X, labels = load_iris(return_X_y=True)
    divergence: Any = name
    if name == "encoder":
        divergence = Embedded(nn.Linear(4, 3), make("nbd", 3)).double()
    if name == "learner":
        divergence = DivergenceLearner("nbd", None, steps=5, random_state=0).fit(X, labels)
    found = mixture(3, divergence=divergence).fit(X)
    save(found, tmp_path)
    again = load(tmp_path)
    np.testing.assert_array_equal(again.predict_proba(X), found.predict_proba(X))
    np.testing.assert_array_equal(again.score_samples(X), found.score_samples(X))
    np.testing.assert_array_equal(again.labels_, found.labels_)
    assert again.get_params().keys() == found.get_params().keys()
    assert all(hasattr(again, attribute) for attribute in FITTED)
    # What was loaded can be fitted again.
    np.testing.assert_array_equal(again.fit(X).labels_, found.labels_)


def test_bar_moves(capfd: pytest.CaptureFixture[str]) -> None:
    mixture(3, progress=True).fit(BLOBS)
    assert "soft clustering" in capfd.readouterr().err
    mixture(3, progress=False).fit(BLOBS)
    assert capfd.readouterr().err == ""


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n_components": 0}, ValueError, "n_components of BregmanMixture must be a positive integer. Got 0"),
        ({"n_components": 151}, ValueError, "n_components of BregmanMixture must be at most .* n_samples=150"),
        ({"n_init": 0}, ValueError, "n_init of BregmanMixture must be a positive integer"),
        ({"max_iter": 0}, ValueError, "max_iter of BregmanMixture must be a positive integer"),
        ({"temperature": 0}, ValueError, "temperature of BregmanMixture must be a finite number above zero"),
        ({"temperature": "hot"}, ValueError, "temperature of BregmanMixture must be a finite number above zero"),
        ({"tol": -1}, ValueError, "tol of BregmanMixture must be a finite number of at least 0"),
        ({"init": "k-mean++"}, ValueError, r"init of BregmanMixture must be one of .* Did you mean 'k-means\+\+'"),
        ({"init": BLOBS[:2]}, ValueError, "init of BregmanMixture must be 3 centres. Got 2"),
        ({"init": BLOBS[:3, :1]}, ValueError, r"init of BregmanMixture must be of shape \(n, 2\)"),
        ({"init": BLOBS[:3] * np.nan}, ValueError, "init contains NaN"),
        ({"init": np.ma.masked_array(BLOBS[:3], BLOBS[:3] > 0)}, ValueError, "init of .* without masked entries"),
        (
            {"weights_init": np.ma.masked_array([0.2, 0.3, 0.5], [True, False, False])},
            ValueError,
            "weights_init of BregmanMixture must be without masked entries",
        ),
        ({"weights_init": [0.5, 0.5]}, ValueError, "weights_init of BregmanMixture must be 3 numbers"),
        ({"weights_init": [1.5, -0.5, 0]}, ValueError, "weights_init of BregmanMixture must be 3 numbers"),
        ({"divergence": "euclid"}, ValueError, "divergence of BregmanMixture must be one of .* Did you mean"),
        ({"divergence": "nbd"}, ValueError, "divergence of BregmanMixture must be one that needs no learning"),
        ({"divergence": "euclidean-norm"}, TypeError, "divergence of BregmanMixture must be a Bregman divergence"),
        ({"divergence": make("iqe", 2)}, TypeError, "must be a Bregman divergence, .* Got IQE instead"),
        ({"divergence": make("kl", 3)}, ValueError, r"X of BregmanMixture must be of shape \(n, 3\)"),
        ({"divergence": "kl"}, ValueError, r"X of BregmanMixture must be inside the positive domain"),
        ({"divergence": DivergenceLearner()}, ValueError, "Got a DivergenceLearner that is not fitted"),
        ({"divergence": 7}, TypeError, "divergence of BregmanMixture must be a divergence, a fitted learner"),
    ],
    ids=str,
)
def test_bad_parameters_leave_a_fitted_mixture_alone(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    found = mixture(2).fit(BLOBS[:, :1])
    before = {name: getattr(found, name) for name in FITTED}
    with pytest.raises(error, match=message):
        found.set_params(**{"n_components": 3, **changes}).fit(BLOBS)
    assert all(getattr(found, name) is before[name] for name in FITTED)
    unfitted = BregmanMixture(**{"n_components": 3, **changes})
    with pytest.raises(error, match=message):
        unfitted.fit(BLOBS)
    assert not any(hasattr(unfitted, name) for name in FITTED)


@pytest.mark.parametrize(
    ("X", "weights", "message"),
    [
        (BLOBS * np.nan, None, "Input X contains NaN"),
        (BLOBS[0], None, "Expected 2D array"),
        (BLOBS[:, None], None, "Found array with dim 3"),
        (BLOBS[:0], None, "Found array with 0 sample"),
        (BLOBS, np.ones(3), "sample_weight.shape"),
        (BLOBS, -np.ones(150), "sample_weight of BregmanMixture must be numbers of at least zero"),
        (BLOBS, np.arange(150) < 2, "n_components of BregmanMixture must be at most .* n_samples=2"),
        (BLOBS, np.full(150, np.nan), "NaN"),
    ],
)
def test_bad_data(X: Any, weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixture(3).fit(X, sample_weight=weights)


def test_bad_queries() -> None:
    found = mixture(3, divergence="itakura-saito").fit(np.exp(BLOBS / 5))
    for method in ("predict", "predict_proba", "score_samples", "score", "bic", "aic"):
        call = getattr(found, method)
        with pytest.raises(ValueError, match="X has 1 features, but BregmanMixture is expecting 2"):
            call(np.ones((4, 1)))
        with pytest.raises(ValueError, match="Input X contains NaN"):
            call([[np.nan, 1.0]])
        with pytest.raises(ValueError, match=r"X of BregmanMixture must be inside the positive domain.*X\[0, 1\] = 0"):
            call([[1.0, 0.0]])
        with pytest.raises(NotFittedError):
            getattr(mixture(), method)(BLOBS)


def test_domain_is_declared() -> None:
    assert not mixture(divergence="exponential").__sklearn_tags__().input_tags.positive_only
    assert mixture(divergence="kl").__sklearn_tags__().input_tags.positive_only
    assert mixture(divergence=make("itakura-saito", 3)).__sklearn_tags__().input_tags.positive_only
    # Asking takes no random numbers.
    state = torch.get_rng_state()
    mixture(divergence="nbd").__sklearn_tags__()
    assert torch.equal(torch.get_rng_state(), state)
