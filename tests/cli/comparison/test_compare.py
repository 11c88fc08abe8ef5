"""A comparison gives every divergence the same rows, and says who is best and whether that means something."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.datasets import load_iris

from askew.cli.comparison import SCORES, Leaderboard, Standing, compare


def standing(name: str, *values: float) -> Standing:
    return Standing(name, dict.fromkeys(SCORES, values))


def board(*standings: Standing, folds: int = 2) -> Leaderboard:
    return Leaderboard(standings, folds, rows=10, features=2, classes=2)


@pytest.fixture(scope="module")
def found() -> Leaderboard:
    X, y = load_iris(return_X_y=True)
    return compare(X, y, ["euclidean", "mahalanobis"], folds=2, steps=20, jobs=1)


def test_best_first_with_all_scores(found: Leaderboard) -> None:
    assert [one.name for one in found.standings] == ["mahalanobis", "euclidean"]
    for one in found.standings:
        assert {len(values) for values in one.scores.values()} == {2}
        assert all(0 <= one.mean(score) <= 1 for score in SCORES if score != "seconds")
    assert (found.rows, found.features, found.classes) == (150, 4, 3)


def test_same_seed_same_scores(found: Leaderboard) -> None:
    X, y = load_iris(return_X_y=True)
    again = compare(X, y, ["mahalanobis"], folds=2, steps=20, jobs=1)
    assert again.best.scores["map"] == found.best.scores["map"]


def test_two_processes_find_the_same(found: Leaderboard) -> None:
    X, y = load_iris(return_X_y=True)
    again = compare(X, y, ["euclidean", "mahalanobis"], folds=2, steps=20, jobs=2)
    assert again.best.scores["map"] == found.best.scores["map"]


def test_json_has_all(found: Leaderboard) -> None:
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["best"] == "mahalanobis"


def test_what_cannot_be_learned_is_last() -> None:
    X, y = load_iris(return_X_y=True)
    found = compare(X - 3, y, ["kl", "euclidean"], folds=2, jobs=1)
    assert [one.name for one in found.standings] == ["euclidean", "kl"]
    assert "positive" in found.standings[1].problem
    with pytest.raises(ValueError, match=r"No divergence could be learned\. kl: "):
        compare(X - 3, y, ["kl"], folds=2, jobs=1)


def test_small_classes_are_said() -> None:
    X, y = load_iris(return_X_y=True)
    some = np.r_[0:50, 50:53, 100:150]
    found = compare(X[some], y[some], ["euclidean"], folds=5, jobs=1)
    assert found.notes == ("Classes with fewer rows than folds are judged in some folds only: 1 (3).",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": np.zeros(150)}, "at least two classes"),
        ({"y": np.arange(150)}, "Numbers to predict are for PairRegressor"),
        ({"y": np.zeros(3)}, r"of shapes \(n, dim\) and \(n,\)"),
        ({"X": np.full((150, 4), np.nan)}, "finite numbers"),
        ({"X": np.ma.masked_less(load_iris().data, 2)}, "X of compare must be without masked entries"),
        (
            {"y": np.ma.masked_equal(load_iris().target, 2)},
            "y of compare must be without masked entries. Got 50 of 150",
        ),
        ({"divergences": ["nbdd"]}, "Did you mean 'nbd'"),
        ({"divergences": []}, "at least one name"),
        ({"folds": 1}, "folds of compare must be from 2 to 50"),
        ({"folds": 51}, "folds of compare must be from 2 to 50"),
    ],
)
def test_bad_input(change: dict[str, object], words: str) -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match=words):
        compare(**({"X": X, "y": y, "divergences": ["euclidean"]} | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("standings", "words"),
    [
        (
            [standing("nbd", 0.9, 0.9), standing("euclidean", 0.5, 0.6)],
            "0.350 above euclidean, and more than the spread",
        ),
        ([standing("nbd", 0.9, 0.5), standing("euclidean", 0.5, 0.8)], "but no more than the spread"),
        ([standing("euclidean", 0.9, 0.9), standing("nbd", 0.5, 0.6)], "Nothing learned was better"),
        ([standing("nbd", 0.9, 0.9)], "Best: nbd, MAP 0.900."),
    ],
)
def test_verdicts(standings: list[Standing], words: str) -> None:
    assert words in board(*standings).verdict()
