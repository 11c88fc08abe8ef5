"""What stands for a divergence, taken apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.datasets import load_iris
from torch import nn

import askew
from askew.divergences import CATALOGUE, Embedded, Sqrt, make, split_encoder

FREE = [name for name, entry in CATALOGUE.items() if not entry.learned]


@pytest.mark.parametrize("name", FREE)
def test_names(name: str) -> None:
    encoder, divergence = split_encoder(name, 4, "Test")
    assert encoder is None
    assert divergence.dim == 4
    assert type(divergence) is type(make(name, 4))


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in FREE])
def test_names_that_need_learning(name: str) -> None:
    match = rf"divergence of Test must be one that needs no learning.*Got '{name}'.*DivergenceLearner\(\"{name}\"\).fit"
    with pytest.raises(ValueError, match=match):
        split_encoder(name, 4, "Test")


def test_divergences_are_handed_on() -> None:
    for divergence in (make("nbd", 3), Sqrt(make("nbd", 3)), make("iqe", 3)):
        assert split_encoder(divergence, 0, "Test") == (None, divergence)


def test_encoders_are_taken_off() -> None:
    first, second, divergence = nn.Linear(5, 4), nn.Linear(4, 3), make("nbd", 3)
    parts = split_encoder(Embedded(first, divergence), 0, "Test")
    assert parts.encoder is first
    assert parts.divergence is divergence
    model = Embedded(first, Embedded(nn.Tanh(), Embedded(second, divergence)))
    parts = split_encoder(model, 0, "Test")
    assert parts.divergence is divergence
    x, y = torch.randn(2, 6, 5)
    assert parts.encoder is not None
    torch.testing.assert_close(parts.divergence(parts.encoder(x), parts.encoder(y)), model(x, y))


def test_learners() -> None:
    X, labels = load_iris(return_X_y=True)
    learner = askew.DivergenceLearner("nbd", encoder="mlp", steps=3, random_state=0)
    with pytest.raises(ValueError, match=r"Got a DivergenceLearner that is not fitted instead. Call its fit first"):
        split_encoder(learner, 0, "Test")
    learner.fit(X, labels)
    encoder, divergence = split_encoder(learner, 0, "Test")
    assert divergence is learner.divergence_
    points = torch.from_numpy(X)
    assert encoder is not None
    with torch.no_grad():
        images = encoder(points)
    torch.testing.assert_close(images, torch.from_numpy(learner.transform(X)))
    classifier = askew.DivergenceNeighborsClassifier(askew.DivergenceLearner(steps=3, encoder=None, random_state=0))
    assert split_encoder(classifier.fit(X, labels), 0, "Test").divergence is classifier.learner_.divergence_


def test_a_learner_whose_divergence_has_an_encoder() -> None:
    X, labels = load_iris(return_X_y=True)
    model = Embedded(nn.Linear(4, 3), make("nbd", 3))
    learner = askew.DivergenceLearner(model, steps=3, random_state=0).fit(X, labels)
    parts = split_encoder(learner, 0, "Test")
    assert not isinstance(parts.divergence, Embedded)
    assert parts.divergence.dim == 3


@pytest.mark.parametrize(
    ("model", "error", "match"),
    [
        (None, TypeError, "a divergence, a fitted learner, or a name such as 'kl'. Got NoneType"),
        (3, TypeError, "Got int instead"),
        (nn.Linear(2, 2), TypeError, r"Got Linear instead. Make a divergence with askew.make\(\"nbd\", dim\)"),
        (make, TypeError, "Got function instead"),
        (BaseEstimator(), TypeError, "Got BaseEstimator instead"),
        (askew.PairRegressor(), ValueError, "Got a PairRegressor that is not fitted"),
        (askew.TripletLearner(), ValueError, "Got a TripletLearner that is not fitted"),
        ("Kl", ValueError, "divergence of Test must be one of .* Did you mean 'kl'"),
        ("", ValueError, "divergence of Test must be one of"),
    ],
)
def test_anything_else(model: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        split_encoder(model, 3, "Test")


def test_a_bad_number_of_features() -> None:
    with pytest.raises(ValueError, match=r"dim of 'kl' must be a positive integer. Got 0"):
        split_encoder("kl", 0, "Test")
