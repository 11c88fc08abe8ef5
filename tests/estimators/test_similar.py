"""Learning from pairs that are similar or dissimilar."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import askew
from askew import DivergenceLearner, DivergenceNeighborsClassifier, PairClassifier

RANDOM = np.random.default_rng(0)
PAIRS = RANDOM.normal(size=(600, 2, 4))
SIMILAR = np.where(np.abs(PAIRS[:, 0, 0] - PAIRS[:, 1, 0]) < 0.7, 1, -1)  # only the first feature counts


@pytest.fixture(scope="module")
def learner() -> PairClassifier:
    return PairClassifier("mahalanobis", None, steps=200, random_state=0).fit(PAIRS[:400], SIMILAR[:400])


def test_beats_euclidean_on_other_pairs(learner: PairClassifier) -> None:
    pairs, labels = PAIRS[400:], SIMILAR[400:]
    plain = PairClassifier("euclidean", None).fit(PAIRS[:400], SIMILAR[:400])
    assert learner.score(pairs, labels) > 0.95 > 0.85 > plain.score(pairs, labels)
    assert learner.score(pairs, labels) == pytest.approx(roc_auc_score(labels, learner.decision_function(pairs)))
    assert np.mean(learner.predict(pairs) == labels) > 0.9


def test_threshold_is_the_best_on_training_pairs(learner: PairClassifier) -> None:
    values, similar = learner.pair_distance(PAIRS[:400]), SIMILAR[:400] > 0

    def balanced(threshold: float) -> float:
        return float((np.mean(values[similar] < threshold) + np.mean(values[~similar] >= threshold)) / 2)

    assert balanced(learner.threshold_) == pytest.approx(max(map(balanced, np.append(values, values.max() + 1))))


def test_encoder_is_chosen_by_auc() -> None:
    learner = PairClassifier("mahalanobis", steps=60, random_state=0).fit(PAIRS[:400], SIMILAR[:400])
    assert "ROC AUC on 80 held-out pairs" in learner.choice_
    assert all(0.5 < score <= 1 for score in learner.validation_.values())


def test_saved_with_its_threshold(learner: PairClassifier, tmp_path: Path) -> None:
    askew.save(learner, tmp_path)
    again = askew.load(tmp_path)
    assert again.threshold_ == learner.threshold_
    np.testing.assert_array_equal(again.predict(PAIRS), learner.predict(PAIRS))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.ones(600), r"labels of PairClassifier must be 1 \(similar\) and -1 \(dissimilar\), both of them. Got 1 "),
        (SIMILAR > 0, "Got 0, 1 instead. Values of pairs are for PairRegressor"),
        (SIMILAR[:, None], r"of shape \(n,\), one for each pair"),
        (SIMILAR[:5], "inconsistent numbers of samples"),
    ],
)
def test_bad_labels(labels: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PairClassifier("euclidean", None).fit(PAIRS, labels)


def test_pbdl_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one that is learned by gradient. Got 'pbdl'"):
        PairClassifier("pbdl", None).fit(PAIRS, SIMILAR)


def test_classifier_takes_the_parameters_of_its_learner() -> None:
    X, labels = PAIRS[:100, 0], PAIRS[:100, 0, 0] > 0
    settings = {"divergence": "mahalanobis", "encoder": None, "steps": 10, "random_state": 0}
    direct = DivergenceNeighborsClassifier(n_neighbors=3, **settings).fit(X, labels)
    nested = DivergenceNeighborsClassifier(DivergenceLearner(**settings), 3).fit(X, labels)
    assert direct.learner_.get_params() == nested.learner_.get_params()
    np.testing.assert_array_equal(direct.predict_proba(X), nested.predict_proba(X))
    with pytest.raises(ValueError, match="Got a learner and steps instead"):
        DivergenceNeighborsClassifier(DivergenceLearner(), steps=5).fit(X, labels)
    assert set(DivergenceLearner().get_params()) < set(DivergenceNeighborsClassifier().get_params())
