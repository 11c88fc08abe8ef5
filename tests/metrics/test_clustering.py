"""Clustering and regression scores: known values, invariances, bad input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from askew import metrics

CLUSTERING = (metrics.purity, metrics.rand)
REGRESSION = (metrics.mae, metrics.r2, metrics.spearman)


def test_known_clusterings() -> None:
    true, predicted = [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]
    assert metrics.purity(true, predicted) == pytest.approx(5 / 6)
    assert metrics.rand(true, predicted) == pytest.approx(10 / 15)
    assert metrics.purity(predicted, true) == pytest.approx(4 / 6)  # not symmetric


@pytest.mark.parametrize("score", CLUSTERING)
def test_names_of_labels_do_not_matter(score: Callable[..., float]) -> None:
    rng = np.random.default_rng(1)
    true, predicted = rng.integers(0, 4, (2, 60))
    expected = score(true, predicted)
    assert type(expected) is float
    assert expected < 1
    names = np.array(["red", "green", "blue", "grey"])
    assert score(names[true].tolist(), names[predicted].astype(object)) == pytest.approx(expected)
    # Halves are labels too, of which scikit-learn warns.
    assert score(torch.from_numpy(true), torch.from_numpy(3 - predicted) / 2) == pytest.approx(expected)
    assert score(true, 7 - 2 * true) == pytest.approx(1)


@pytest.mark.parametrize("score", CLUSTERING)
@pytest.mark.parametrize(
    ("true", "predicted", "message"),
    [
        ([], [], r"labels_true of {} must be of shape \(n,\) with at least one entry. Got \(0,\)"),
        ([0, 1], [0, 1, 1], r"labels_pred of {} must be of shape \(2,\) like labels_true. Got \(3,\)"),
        ([[0, 1]], [0, 1], r"labels_true of {} must be of shape \(n,\)"),
        ([0, 1], [0, float("nan")], r"labels_pred of {} must be without missing values. Got labels_pred\[1\] = nan"),
    ],
)
def test_bad_labels_are_named(score: Callable[..., float], true: list, predicted: list, message: str) -> None:
    with pytest.raises(ValueError, match=message.format(score.__name__)):
        score(true, predicted)


def test_known_regressions() -> None:
    targets, predictions = [1.0, 2.0, 3.0, 4.0], torch.tensor([1.0, 2.0, 4.0, 3.0], requires_grad=True)
    assert metrics.mae(targets, predictions) == 0.5
    assert metrics.r2(targets, predictions) == pytest.approx(1 - 2 / 5)
    assert metrics.spearman(targets, predictions) == pytest.approx(0.8)
    assert metrics.r2([1, 1], [1, 1]) == 1


def test_spearman_shares_the_ranks_of_ties() -> None:
    rng = np.random.default_rng(2)
    targets, predictions = rng.integers(0, 5, (2, 50))
    ranks = stats.rankdata(targets), stats.rankdata(predictions)
    assert metrics.spearman(targets, predictions) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert metrics.spearman(targets, np.exp(predictions)) == metrics.spearman(targets, predictions)


@pytest.mark.parametrize("score", REGRESSION)
@pytest.mark.parametrize(
    ("targets", "predictions", "error", "message"),
    [
        ([], [], ValueError, r"targets of {} must be of shape \(n,\) with at least one entry. Got \(0,\)"),
        ([0, 1], [0, 1, 2], ValueError, r"predictions of {} must be of shape \(2,\) like targets. Got \(3,\)"),
        ([0, 1], [[0], [1]], ValueError, r"predictions of {} must be of shape \(n,\)"),
        ([0, np.inf], [0, 1], ValueError, r"targets of {} must be finite. Got targets\[1\] = inf"),
        ([0, 1], ["a", "b"], TypeError, r"predictions of {} must be real numbers. Got dtype <U1"),
    ],
)
def test_bad_values_are_named(
    score: Callable[..., float], targets: list, predictions: list, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.format(score.__name__)):
        score(targets, predictions)


def test_scores_that_are_not_defined_are_refused() -> None:
    with pytest.raises(ValueError, match=r"targets of r2 must be at least 2 values. Got 1"):
        metrics.r2([1.0], [2.0])
    with pytest.raises(
        ValueError, match=r"predictions of spearman must be of at least two different values.*Got 3 only"
    ):
        metrics.spearman([1, 2], [3, 3])
    assert metrics.spearman([1, 2], [3, 3], constant=0) == metrics.spearman([3, 3], [1, 2], constant=0) == 0


def test_masked_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="must be without masked entries"):
        metrics.purity(np.ma.masked_array([0, 1, 1], [False, True, False]), [0, 1, 1])
