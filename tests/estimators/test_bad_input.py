"""Input that nobody planned for: a clear error or a sensible result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError

import askew
from askew import DivergenceLearner, DivergenceNeighborsClassifier, PairRegressor, TripletLearner
from askew.estimators import FitWarning

X, LABELS = load_iris(return_X_y=True)
GENERATOR = np.random.default_rng(0)
PAIRS, TARGETS = GENERATOR.normal(size=(40, 2, 3)), GENERATOR.uniform(size=40)
TRIPLETS = GENERATOR.normal(size=(40, 3, 3))


def short(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


def quick(**changes: Any) -> DivergenceLearner:
    return DivergenceLearner(**{"encoder": None, "steps": 10, "random_state": 0, **changes})


def with_nan() -> np.ndarray[Any, Any]:
    bad = X.copy()
    bad[3, 1] = np.nan
    return bad


@pytest.mark.parametrize(
    ("points", "labels", "match"),
    [
        (X, np.zeros(150), "y of DivergenceLearner must be labels of at least two classes. Got one class"),
        (X, np.arange(150), "at least two points in a class. Got 150 classes of one point each"),
        (with_nan(), LABELS, "Input X contains NaN"),
        (X.astype(str), np.full(150, "a"), "at least two classes"),
        (np.full((4, 2), "low"), [0, 0, 1, 1], "could not convert string to float"),
        (X[:0], LABELS[:0], "Found array with 0 sample"),
        (X[:, :0], LABELS, "Found array with 0 feature"),
        (X, LABELS[:-1], "inconsistent numbers of samples"),
        (X[:, 0], LABELS, "Expected 2D array, got 1D array"),
        (X[None], LABELS, "Found array with dim 3"),
        (X, LABELS + 0.5, "Unknown label type"),
        (X, np.where(LABELS == 0, np.nan, LABELS), "contains NaN"),
        (X, None, "requires y to be passed"),
        (X[:1], LABELS[:1], "at least two classes"),
        (X * np.inf, LABELS, "infinity|NaN"),
    ],
    ids=short,
)
def test_labels_and_points(points: Any, labels: Any, match: str) -> None:
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=match):
        quick().fit(points, labels)


@pytest.mark.parametrize("encoder", [None, "auto", "mlp"])
def test_class_of_one_member_is_no_obstacle(encoder: str | None) -> None:
    labels = LABELS.copy()
    labels[7] = 9
    learner = quick(encoder=encoder).fit(X, labels)
    assert list(learner.classes_) == [0, 1, 2, 9]
    assert 0.5 < learner.score(X, labels) <= 1


@pytest.mark.parametrize("encoder", [None, "mlp"])
def test_constant_and_repeated_features(encoder: str | None) -> None:
    points = np.column_stack([X, np.full(150, 1e8), X[:, 0]])
    learner = quick(encoder=encoder, steps=50).fit(points, LABELS)
    assert np.isfinite(learner.pairwise(points)).all()
    assert learner.score(points, LABELS) > 0.8


def test_only_constant_features() -> None:
    with pytest.warns(FitWarning, match="must be better than a trivial one"):
        learner = quick().fit(np.ones((20, 2)), np.arange(20) % 2)
    np.testing.assert_array_equal(learner.pairwise(np.ones((3, 2))), 0)


def test_identical_rows_of_different_classes() -> None:
    points = np.repeat(X[::10], 10, axis=0)
    with pytest.warns(FitWarning):
        learner = quick().fit(points, np.arange(150) % 3)
    assert np.isfinite(learner.pairwise(points)).all()


def test_two_rows_of_a_class_and_one_of_another() -> None:
    learner = quick().fit(X[[0, 1, 100]], [0, 0, 1])
    assert learner.pairwise(X[:2]).shape == (2, 2)


def test_more_classes_than_a_batch_holds() -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(200), 2)
    points = generator.normal(size=(200, 3))[labels] + 0.01 * generator.normal(size=(400, 3))
    learner = quick(steps=30).fit(points, labels)
    assert learner.score(points, labels) > 0.9


def test_huge_and_tiny_values() -> None:
    for factor in (1e150, 1e-150):
        matrix = quick().fit(X * factor, LABELS).pairwise(X * factor)
        assert np.isfinite(matrix).all()


def test_strings_booleans_and_mixed_labels() -> None:
    assert list(quick().fit(X, LABELS > 0).classes_) == [False, True]
    assert list(quick().fit(X, np.array(["x", "y", "z"], dtype=object)[LABELS]).classes_) == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        (
            {"divergence": "nbdd"},
            ValueError,
            "divergence of DivergenceLearner must be one of 'auto', 'nbd'.*Did you mean 'nbd'",
        ),
        ({"divergence": 3}, ValueError, "divergence of DivergenceLearner must be one of"),
        ({"divergence": askew.make("nbd", 7)}, ValueError, "divergence of DivergenceLearner must be of dim 4"),
        ({"encoder": "cnn"}, ValueError, "encoder of DivergenceLearner must be one of 'auto', 'mlp'"),
        ({"steps": 0}, ValueError, "steps of fit must be a positive integer"),
        ({"batch_size": 0}, ValueError, "batch_size of fit must be a positive integer"),
        ({"learning_rate": -1.0}, ValueError, "learning_rate of fit must be a finite number above zero"),
    ],
)
def test_parameters(changes: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        quick(**changes).fit(X, LABELS)


@pytest.mark.parametrize(
    ("pairs", "targets", "match"),
    [
        (PAIRS[:, :1], TARGETS, r"pairs of PairRegressor must be of shape \(n, 2, dim\). Got \(40, 1, 3\)"),
        (PAIRS[:, 0], TARGETS, r"pairs of PairRegressor must be of shape \(n, 2, dim\). Got \(40, 3\)"),
        (PAIRS[:, :, :0], TARGETS, "at least one feature|0 feature"),
        (PAIRS, -TARGETS, r"targets of PairRegressor must be at least 0. Got targets\[0\] = -"),
        (PAIRS, TARGETS * np.nan, "targets contains NaN|Input targets contains NaN"),
        (PAIRS * np.nan, TARGETS, "contains NaN"),
        (PAIRS, TARGETS[:-1], "inconsistent numbers of samples"),
        (PAIRS, TARGETS[:, None], r"targets of PairRegressor must be of shape \(n,\)"),
        (PAIRS[:0], TARGETS[:0], "0 sample"),
        (PAIRS, ["a"] * 40, "could not convert string to float"),
    ],
    ids=short,
)
def test_pairs(pairs: Any, targets: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        PairRegressor(encoder=None, steps=5).fit(pairs, targets)


@pytest.mark.parametrize(
    ("triplets", "match"),
    [
        (TRIPLETS[:, :2], r"triplets of TripletLearner must be of shape \(n, 3, dim\). Got \(40, 2, 3\)"),
        (TRIPLETS[0], r"triplets of TripletLearner must be of shape \(n, 3, dim\). Got \(3, 3\)"),
        (TRIPLETS[:0], "0 sample"),
        (np.abs(TRIPLETS) * np.inf, "infinity"),
    ],
    ids=short,
)
def test_triplets(triplets: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        TripletLearner(encoder=None, steps=5).fit(triplets)


def test_all_targets_zero() -> None:
    learner = PairRegressor(encoder=None, steps=50, random_state=0).fit(PAIRS, 0 * TARGETS)
    assert (learner.predict(PAIRS) >= 0).all()
    assert np.isfinite(learner.predict(PAIRS)).all()


def test_another_number_of_features_afterwards() -> None:
    learner = quick().fit(X, LABELS)
    with pytest.raises(ValueError, match="X has 3 features, but DivergenceLearner is expecting 4"):
        learner.pairwise(X[:, :3])
    with pytest.raises(ValueError, match=r"of points with 4 features, as in fit\. Got 3"):
        learner.pair_distance(PAIRS)


@pytest.mark.parametrize(
    ("learner", "call"),
    [
        (DivergenceLearner(), lambda learner: learner.pairwise(X)),
        (DivergenceLearner(), lambda learner: learner.transform(X)),
        (DivergenceLearner(), lambda learner: learner.kneighbors(X)),
        (DivergenceLearner(), lambda learner: learner.score(X, LABELS)),
        (DivergenceLearner(), lambda learner: learner.model_),
        (PairRegressor(), lambda learner: learner.predict(PAIRS)),
        (TripletLearner(), lambda learner: learner.score(TRIPLETS)),
        (DivergenceNeighborsClassifier(), lambda learner: learner.predict(X)),
    ],
)
def test_not_fitted_yet(learner: Any, call: Any) -> None:
    with pytest.raises(NotFittedError):
        call(learner)


def test_classifier_parameters() -> None:
    with pytest.raises(ValueError, match="n_neighbors of DivergenceNeighborsClassifier must be a positive integer"):
        DivergenceNeighborsClassifier(quick(), n_neighbors=0).fit(X, LABELS)
    with pytest.raises(TypeError, match="learner of DivergenceNeighborsClassifier must be a DivergenceLearner or None"):
        DivergenceNeighborsClassifier("nbd").fit(X, LABELS)  # type: ignore[arg-type]
    few = DivergenceNeighborsClassifier(quick(), n_neighbors=50).fit(X[::20], LABELS[::20])
    assert few.predict(X).shape == (150,)
