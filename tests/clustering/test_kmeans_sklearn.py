"""BregmanKMeans behaves as scikit-learn's own: its checks, its results, pipelines, searches, clones, data frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from askew import DivergenceLearner, NeuralBregman, TripletLearner
from askew.clustering import BregmanKMeans

X, LABELS = load_iris(return_X_y=True)


# Some checks have fewer different points than the eight clusters of the default; KMeans also warns of that.
@pytest.mark.filterwarnings("ignore:.*fewer than n_clusters:sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [
        BregmanKMeans(),
        BregmanKMeans(2, divergence="power", dual=True),
        BregmanKMeans(3, batch_size=10),
    ]
)
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
def test_same_as_kmeans_from_the_same_start(weighted: bool, dtype: type) -> None:
    random = np.random.RandomState(0)
    points = (random.randn(2000, 8) * np.arange(1, 9) + 5).astype(dtype)
    weights = random.rand(2000) if weighted else None
    settings: dict[str, Any] = {"n_clusters": 12, "init": points[:12], "n_init": 1}
    ours = BregmanKMeans(**settings).fit(points, sample_weight=weights)
    theirs = KMeans(**settings, algorithm="lloyd").fit(points, sample_weight=weights)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    tolerance = 1e-10 if dtype is np.float64 else 1e-4
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=tolerance, atol=tolerance)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=tolerance)
    assert ours.n_iter_ == theirs.n_iter_
    np.testing.assert_array_equal(ours.predict(points[::3] + 1), theirs.predict(points[::3] + 1))
    np.testing.assert_allclose(np.sqrt(ours.transform(points)), theirs.transform(points), rtol=1e-3, atol=1e-3)
    assert ours.score(points) == pytest.approx(theirs.score(points), rel=tolerance)


def test_parameters_have_the_names_of_kmeans() -> None:
    ours, theirs = BregmanKMeans().get_params(), KMeans().get_params()
    shared = {"n_clusters", "init", "n_init", "max_iter", "tol", "random_state"}
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


def test_clone_and_parameters() -> None:
    model = BregmanKMeans(5, divergence="kl", tol=0.1, dual=True)
    assert clone(model).get_params() == model.get_params()
    assert repr(model) == "BregmanKMeans(divergence='kl', dual=True, n_clusters=5, tol=0.1)"
    module = NeuralBregman(4)
    copied = clone(BregmanKMeans(divergence=module))
    assert copied.divergence is not module
    assert copied.fit(X).labels_.shape == (150,)


def test_learners_in_clones() -> None:
    learner = DivergenceLearner(encoder=None, steps=3, random_state=0).fit(X, LABELS)
    expected = BregmanKMeans(3, divergence=learner, random_state=0).fit_predict(X)
    for divergence in (learner.model_, FrozenEstimator(learner)):
        copied = clone(BregmanKMeans(3, divergence=divergence, random_state=0))
        np.testing.assert_array_equal(copied.fit_predict(X), expected)
    with pytest.raises(ValueError, match="a DivergenceLearner that is not fitted instead"):
        clone(BregmanKMeans(3, divergence=learner)).fit(X)
    with pytest.raises(ValueError, match="a TripletLearner that is not fitted"):
        BregmanKMeans(divergence=TripletLearner()).fit(X)


def test_in_a_pipeline_and_in_a_search() -> None:
    pipeline = make_pipeline(MinMaxScaler((0.1, 0.9), clip=True), BregmanKMeans(3, random_state=0))
    assert pipeline.fit_predict(X).shape == (150,)
    assert pipeline.transform(X).shape == (150, 3)
    search = GridSearchCV(pipeline, {"bregmankmeans__n_clusters": [2, 6], "bregmankmeans__divergence": ["kl"]}, cv=3)
    assert search.fit(X).best_params_["bregmankmeans__n_clusters"] == 6


def test_data_frames() -> None:
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = BregmanKMeans(3, random_state=0).set_output(transform="pandas").fit(frame)
    assert list(model.feature_names_in_) == list("abcd")
    result = model.transform(frame)
    assert list(result.columns) == ["bregmankmeans0", "bregmankmeans1", "bregmankmeans2"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c", "d"]])


def test_domains_are_declared() -> None:
    assert BregmanKMeans(divergence="kl").__sklearn_tags__().input_tags.positive_only
    assert not BregmanKMeans().__sklearn_tags__().input_tags.positive_only
    assert not BregmanKMeans(divergence="nonsense").__sklearn_tags__().input_tags.positive_only
