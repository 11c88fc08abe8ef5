"""The choice of a divergence on held-out data, and the check of what was learned."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from torch import Tensor

import askew
from askew import DivergenceLearner, History, PairRegressor, TripletLearner
from askew.estimators import FitWarning
from askew.estimators.choice import Candidate, Comparison

PAIRS = np.random.default_rng(0).normal(size=(800, 2, 3))
DIFFERENCES = PAIRS[:, 0] - PAIRS[:, 1]
ORDER = np.maximum(DIFFERENCES, 0).sum(1)


# ---------------------------------------------------------------------- successive halving


def compared(
    means: dict[str, float], spread: float = 0.0, smaller_is_better: bool = True
) -> tuple[Comparison, list[Any]]:
    """Compare candidates whose held-out scores are a mean plus a common part and a spread of their own."""
    calls = []

    def scores(candidate: Candidate, share: float) -> Tensor | None:
        calls.append((candidate.divergence, round(share, 3)))
        mean = means[str(candidate.divergence)]
        own = torch.randn(100, generator=torch.Generator().manual_seed(len(str(candidate.divergence))))
        return None if np.isnan(mean) else mean + torch.linspace(0, 50, 100) + spread * own

    return Comparison([Candidate(name, None) for name in means], scores, smaller_is_better), calls


def test_the_best_wins_by_short_trainings_of_all_and_longer_ones_of_three() -> None:
    comparison, calls = compared({"a": 4.0, "bb": 3.0, "ccc": 1.0, "dddd": 2.0, "eeeee": 5.0})
    assert comparison.winner.candidate.divergence == "ccc"
    assert calls[:5] == [(name, 0.083) for name in ("a", "bb", "ccc", "dddd", "eeeee")]
    assert calls[5:] == [(name, 0.25) for name in ("bb", "ccc", "dddd")]
    assert [trial.candidate.divergence for trial in comparison.trials] == ["a", "bb", "ccc", "dddd", "eeeee"]
    lines = comparison.table().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("* 'ccc', no encoder")


def test_the_simplest_within_the_spread_wins() -> None:
    assert compared({"a": 1.001, "bb": 1.0, "ccc": 3.0}, spread=0.1)[0].winner.candidate.divergence == "a"
    assert compared({"a": 1.1, "bb": 1.0, "ccc": 3.0}, spread=0.1)[0].winner.candidate.divergence == "bb"


def test_larger_scores_can_be_better_and_a_diverged_candidate_loses() -> None:
    means = {"a": 1.0, "bb": 3.0, "ccc": float("nan"), "dddd": 2.0}
    assert compared(means, smaller_is_better=False)[0].winner.candidate.divergence == "bb"
    all_diverged = compared(dict.fromkeys(("a", "bb", "ccc"), float("nan")))[0]
    assert all_diverged.winner.candidate.divergence == "a"


def test_two_candidates_are_compared_once() -> None:
    comparison, calls = compared({"a": 2.0, "bb": 1.0})
    assert calls == [("a", 0.5), ("bb", 0.5)]
    assert comparison.winner.candidate.divergence == "bb"


@pytest.mark.parametrize("noisy", [False, True])
def test_easy_tables_are_learned_in_a_quarter_of_the_steps(noisy: bool) -> None:
    points, classes = load_iris(return_X_y=True)
    if noisy:
        classes = np.random.RandomState(0).permutation(classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # random classes can be learned by heart only
        learner = DivergenceLearner(random_state=0).fit(points, classes)
    assert (max(learner.validation_.values()) >= 0.9) is not noisy
    assert learner.history_["step"][-1] == (300 if noisy else 75)


def test_given_steps_are_taken() -> None:
    points, classes = load_iris(return_X_y=True)
    assert DivergenceLearner(steps=9, random_state=0).fit(points, classes).history_["step"][-1] == 9


# ---------------------------------------------------------------------- auto


def test_auto_finds_direction() -> None:
    learner = PairRegressor("auto", encoder=None, steps=300, random_state=0).fit(PAIRS, ORDER)
    assert learner.choice_.splitlines()[0].startswith(("'drift', no encoder: ", "'drift-root', no encoder: "))
    assert len(learner.choice_.splitlines()) == 1 + 4
    assert set(learner.validation_) == {
        f"'{name}', no encoder" for name in ("mahalanobis", "nbd", "drift", "drift-root")
    }
    assert isinstance(learner.divergence_, askew.divergences.Drift)


def test_auto_finds_that_a_quadratic_form_will_do() -> None:
    learner = PairRegressor("auto", None, steps=1000, random_state=0).fit(PAIRS, np.square(DIFFERENCES).sum(1))
    assert learner.choice_.startswith("'mahalanobis', no encoder: the simplest within the spread of the best by mean")
    assert learner.score(PAIRS, np.square(DIFFERENCES).sum(1)) > 0.999


def test_auto_of_labels_and_of_triplets() -> None:
    X, labels = load_iris(return_X_y=True)
    learner = DivergenceLearner("auto", steps=60, random_state=0).fit(X[::2], labels[::2])
    assert learner.score(X[1::2], labels[1::2]) > 0.85
    assert len(learner.validation_) == 6
    triplets = np.random.default_rng(1).normal(size=(600, 3, 3))
    near = np.maximum(triplets[:, 0] - triplets[:, 1], 0).sum(1) < np.maximum(triplets[:, 0] - triplets[:, 2], 0).sum(1)
    triplets = np.where(near[:, None, None], triplets, triplets[:, [0, 2, 1]])
    judge = TripletLearner("auto", encoder=None, steps=120, random_state=0).fit(triplets)
    assert judge.score(triplets) > 0.8
    assert "share of 120 held-out triplets in order" in judge.choice_


def test_auto_with_few_rows_takes_nbd() -> None:
    learner = PairRegressor("auto", steps=10, random_state=0).fit(PAIRS[:50], ORDER[:50])
    assert learner.choice_ == "'nbd', no encoder: 50 pairs are too few to hold out some (200 are needed)"


def test_auto_is_repeatable_and_survives_saving(tmp_path: Any) -> None:
    first, second = (PairRegressor("auto", None, steps=60, random_state=3).fit(PAIRS, ORDER) for _ in range(2))
    np.testing.assert_array_equal(first.predict(PAIRS), second.predict(PAIRS))
    askew.save(first, tmp_path / "model")
    loaded = askew.load(tmp_path / "model")
    assert loaded.choice_ == first.choice_
    np.testing.assert_array_equal(loaded.predict(PAIRS), first.predict(PAIRS))


# ---------------------------------------------------------------------- no fit fails in silence


def dead_fit(times: int) -> Any:
    """Return a training loop that ends with D = 0 everywhere the first few times."""
    calls: list[dict[str, Any]] = []

    def fit(model: Any, *arguments: Any, **settings: Any) -> History:
        calls.append(settings)
        history = askew.fit(model, *arguments, **settings)
        if len(calls) <= times:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
        return history

    fit.calls = calls  # type: ignore[attr-defined]
    return fit


def test_a_dead_training_is_repeated_with_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = dead_fit(1)
    monkeypatch.setattr("askew.estimators.base.fit", fit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = PairRegressor("mahalanobis", None, steps=100, random_state=0).fit(
            PAIRS, np.square(DIFFERENCES).sum(1)
        )
    first, second = fit.calls
    assert (first["learning_rate"], first["clip"]) == (3e-2, None)
    assert (second["learning_rate"], second["clip"]) == (pytest.approx(3e-3), 1.0)
    assert (learner.predict(PAIRS) > 0).mean() > 0.9


@pytest.mark.parametrize(
    ("learner", "data"),
    [
        (PairRegressor, (PAIRS, ORDER)),
        (TripletLearner, (np.random.default_rng(0).normal(size=(50, 3, 2)),)),
        (DivergenceLearner, load_iris(return_X_y=True)),
    ],
)
def test_one_that_stays_dead_is_warned_of(learner: Any, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("askew.estimators.base.fit", dead_fit(2))
    with pytest.warns(FitWarning, match="must be better than a trivial one"):
        learner("mahalanobis", None, steps=5, random_state=0).fit(*data)


def test_what_is_learned_by_heart_is_no_success() -> None:
    """Values that have nothing to do with the points: an encoder knows the training pairs, and no others."""
    random = np.random.default_rng(0)
    pairs, values = random.normal(size=(1000, 2, 20)), random.exponential(size=1000)
    with pytest.warns(FitWarning, match="on held-out pairs, where a trivial one has"):
        PairRegressor("nbd", "mlp", steps=300, random_state=0).fit(pairs, values)
