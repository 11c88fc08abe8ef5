"""The learners behave as scikit-learn's own: its checks, pipelines, searches, clones, data frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from askew import DivergenceLearner, DivergenceNeighborsClassifier, PairRegressor, TripletLearner, make

X, LABELS = load_iris(return_X_y=True)
QUICK = {"encoder": None, "steps": 20, "random_state": 0}


def quick(**changes: Any) -> DivergenceLearner:
    return DivergenceLearner(**{**QUICK, **changes})


@parametrize_with_checks(
    [
        quick(),
        # A new learner has no seed; steps are few because there are some fifty fits.
        quick(divergence="mahalanobis"),
        quick(divergence="euclidean"),
        DivergenceNeighborsClassifier(quick(divergence="mahalanobis", steps=60)),
    ]
)
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("learner", [PairRegressor(), TripletLearner()], ids=repr)
def test_tuples_are_declared(learner: Any) -> None:
    # scikit-learn has no checks for inputs of three dimensions; what it offers for them is this declaration.
    tags = learner.__sklearn_tags__()
    assert tags.input_tags.three_d_array
    assert not tags.input_tags.two_d_array


@pytest.mark.parametrize(
    "learner",
    [
        DivergenceLearner("mahalanobis", None, steps=3, random_state=1),
        PairRegressor(make("nbd", 4)),
        TripletLearner(learning_rate=0.1),
        DivergenceNeighborsClassifier(quick(), n_neighbors=3),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_clone_and_parameters(learner: Any) -> None:
    copied = clone(learner)
    assert {**copied.get_params(deep=False), "divergence": 0, "learner": 0} == {
        **learner.get_params(deep=False),
        "divergence": 0,
        "learner": 0,
    }
    assert type(learner).__name__ in repr(learner)


def test_in_a_pipeline_and_in_a_search() -> None:
    pipeline = make_pipeline(PowerTransformer(), DivergenceNeighborsClassifier(quick()))
    assert cross_val_score(pipeline, X, LABELS, cv=3).mean() > 0.85
    search = GridSearchCV(
        DivergenceNeighborsClassifier(quick()),
        {"learner__divergence": ["euclidean", "mahalanobis"], "n_neighbors": [1, 5]},
        cv=3,
    )
    search.fit(X, LABELS)
    assert search.best_score_ > 0.9
    assert set(search.best_params_) == {"learner__divergence", "n_neighbors"}


def test_learner_alone_in_a_search_is_scored_by_ranking() -> None:
    # A learner is no classifier, so folds are not balanced by themselves.
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(quick(), {"divergence": ["euclidean", "mahalanobis"]}, cv=folds).fit(X, LABELS)
    assert 0.7 < search.best_score_ <= 1
    assert search.best_params_ == {"divergence": "mahalanobis"}


def test_pairs_in_a_search() -> None:
    pairs = np.random.default_rng(0).normal(size=(150, 2, 3))
    targets = ((pairs[:, 0] - pairs[:, 1]) ** 2).sum(1)
    search = GridSearchCV(PairRegressor(**QUICK), {"divergence": ["mahalanobis", "euclidean"]}, cv=3)
    search.fit(pairs, targets)
    assert search.best_score_ > 0.5


def test_data_frames_keep_the_names_of_their_columns() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    names = pd.Series(np.array(["setosa", "versicolor", "virginica"])[LABELS])
    learner = quick().fit(frame, names)
    assert list(learner.feature_names_in_) == ["a", "b", "c", "d"]
    assert list(learner.classes_) == ["setosa", "versicolor", "virginica"]
    assert learner.pairwise(frame[:5], frame[:7]).shape == (5, 7)
    with pytest.raises(ValueError, match="feature names should match"):
        learner.pairwise(frame.rename(columns={"a": "z"}))
    numbers = quick().fit(X, LABELS)
    np.testing.assert_array_equal(numbers.pairwise(X[:5]), learner.pairwise(frame[:5]))
