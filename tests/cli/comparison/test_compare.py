"""A comparison gives every divergence the same rows, and says who is best and whether that means something."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from askew.cli.board import ENCODED
from askew.cli.comparison import SCORES, Fold, Leaderboard, Standing, compare, compare_task, held_out, importance
from askew.cli.tasks import Classes, Numbers, Pairs, Task, Triplets


def standing(name: str, *values: float, parameters: int = 0) -> Standing:
    return Standing(name, dict.fromkeys(SCORES, values), parameters=(parameters,) * len(values))


def board(*standings: Standing, folds: int = 2) -> Leaderboard:
    return Leaderboard(standings, folds, rows=10, features=2, classes=2)


@pytest.fixture(scope="module")
def found() -> Leaderboard:
    X, y = load_iris(return_X_y=True)
    return compare(X, y, ["euclidean", "mahalanobis"], folds=2, steps=20, jobs=1)


def test_best_first_with_all_scores(found: Leaderboard) -> None:
    assert [one.name for one in found.standings][2:] == ["euclidean", "largest class"]
    assert {one.name for one in found.standings[:2]} == {"mahalanobis", ENCODED}
    for one in found.standings:
        assert {len(values) for values in one.scores.values()} == {2}
        assert all(0 <= one.mean(score) <= 1 for score in SCORES if score != "seconds")
    assert (found.rows, found.features, found.classes) == (150, 4, 3)


def test_same_seed_same_scores(found: Leaderboard) -> None:
    X, y = load_iris(return_X_y=True)
    again = compare(X, y, ["mahalanobis"], folds=2, steps=20, jobs=1)
    assert [one.scores["map"] for one in again.standings] == [one.scores["map"] for one in found.standings]


def test_two_processes_find_the_same(found: Leaderboard) -> None:
    X, y = load_iris(return_X_y=True)
    again = compare(X, y, ["euclidean", "mahalanobis"], folds=2, steps=20, jobs=2)
    assert again.best.scores["map"] == found.best.scores["map"]


def test_json_has_all(found: Leaderboard) -> None:
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["best"] == found.best.name
    assert [one["encoder"] for one in json.loads(text)["leaderboard"]] == ["mlp", "mlp", "none", ""]


def test_what_cannot_be_learned_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = load_iris(return_X_y=True)
    found = compare(X - 3, y, ["kl"], folds=2, steps=5, jobs=1)
    assert [one.name for one in found.standings][-3:] == ["euclidean", "largest class", "kl"]
    assert "positive" in found.standings[-1].problem
    monkeypatch.setattr(Classes, "judge", lambda *_: 1 / 0)
    with pytest.raises(ValueError, match=r"No divergence could be learned\. euclidean: "):
        compare(X, y, ["euclidean"], folds=2, steps=5, jobs=1)


def test_small_classes_are_said() -> None:
    X, y = load_iris(return_X_y=True)
    some = np.r_[0:50, 50:53, 100:150]
    found = compare(X[some], y[some], ["euclidean"], folds=5, steps=5, jobs=1)
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
        ([standing("euclidean", 0.9, 0.9), standing("nbd", 0.5, 0.6)], "Nothing learned was clearly better"),
        (
            [standing("nbd", 0.9, 0.5, parameters=9), standing("euclidean", 0.5, 0.8)],
            "Best: euclidean, MAP 0.650, the simplest within the spread of nbd, which has 0.700. Nothing learned",
        ),
        (
            [
                standing("nbd", 0.9, 0.7, parameters=9),
                standing("drift", 0.8, 0.7, parameters=5),
                standing("euclidean", 0, 0),
            ],
            "Best: drift, MAP 0.750, the simplest within the spread of nbd, which has 0.800.",
        ),
        (
            [standing("nbd", 0.9, 0.9, parameters=5), standing("drift", 0.8, 0.7), standing(ENCODED, 0.6, 0.7)],
            "Best: nbd, MAP 0.900. Euclidean behind an encoder has 0.650.",
        ),
        ([standing("nbd", 0.9, 0.9)], "Best: nbd, MAP 0.900."),
    ],
)
def test_verdicts(standings: list[Standing], words: str) -> None:
    assert words in board(*standings).verdict()


def test_no_better_than_guessing_is_said() -> None:
    found = Leaderboard((standing("guess", 0.5, 0.5), standing("nbd", 0.4, 0.5)), 2, 10, 2, 2, trivial=("guess",))
    assert found.best.name == "nbd"
    assert found.verdict().endswith("It is not clearly better than guess, which has 0.500.")


def test_another_score_decides() -> None:
    X, y = load_iris(return_X_y=True)
    found = compare(X, y, ["mahalanobis"], folds=2, steps=20, jobs=1, by="rand")
    assert "Rand" in found.verdict()
    values = [one.mean("rand") for one in found.standings]
    assert values == sorted(values, reverse=True)
    with pytest.raises(ValueError, match="by of compare must be one of"):
        compare(X, y, ["mahalanobis"], by="seconds")


def test_the_largest_class_is_a_baseline() -> None:
    X, y = load_iris(return_X_y=True)
    some = np.r_[0:50, 50:60]
    found = compare(X[some], y[some], ["euclidean"], folds=2, steps=5, jobs=1).named("largest class")
    assert found is not None
    assert found.mean("knn") == found.mean("purity") == pytest.approx(5 / 6)
    assert found.mean("auc") == pytest.approx(0.5)


# ---------------------------------------------------------------------- finished folds


def test_a_second_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = load_iris(return_X_y=True)
    task, file, settings = Classes(X, y), tmp_path / "folds.jsonl", {"folds": 2, "steps": 5, "jobs": 1}
    told: list[str] = []

    def stop(standing: Standing) -> None:
        told.append(standing.name)
        if standing.name == ENCODED:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_task(task, ["mahalanobis"], keep=file, done=stop, **settings)
    assert told == ["euclidean", "largest class", ENCODED]
    with file.open("a") as stream:  # as a process leaves it that is killed
        stream.write(file.read_text().splitlines()[-1][:-20])
    fitted: list[object] = []
    fit = Classes.fit
    monkeypatch.setattr(Classes, "fit", lambda self, rows, **rest: fitted.append(rest) or fit(self, rows, **rest))
    found = compare_task(task, ["mahalanobis"], keep=file, **settings)
    assert len(fitted) == 2
    assert found.notes == (f"4 of 6 trainings are from an earlier run, in {file}.",)
    fresh = compare_task(task, ["mahalanobis"], **settings)
    assert [one.scores["map"] for one in found.standings] == [one.scores["map"] for one in fresh.standings]
    fitted.clear()
    compare_task(Classes(X[::-1], y[::-1]), ["mahalanobis"], keep=file, **settings)
    assert len(fitted) == 6  # other data


@pytest.mark.parametrize(
    "change",
    [
        {"fold": 7}, {"fold": "a"}, {"name": "nbd"}, {"scores": 1}, {"scores": {"map": "x"}}, {"parameters": None},
        {"encoder": None, "scores": []},
    ],
)  # fmt: skip
def test_lines_that_are_no_folds_do_not_count(change: dict[str, object], tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    file = tmp_path / "folds.jsonl"
    compare_task(Classes(X, y), ["euclidean"], keep=file, folds=2, steps=2, jobs=1)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line | change) + "\n" for line in lines) + "[]\n\xff\n")
    found = compare_task(Classes(X, y), ["euclidean"], keep=file, folds=2, steps=2, jobs=1)
    assert found.notes == ()


def test_small_work_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = load_iris(return_X_y=True)
    monkeypatch.setattr("joblib.Parallel", None)
    assert compare(X, y, ["euclidean"], folds=2, steps=2).folds == 2


# ---------------------------------------------------------------------- other supervision


def random_tasks() -> list[tuple[Task, str, str]]:
    random = np.random.default_rng(0)
    X = random.normal(size=(120, 3))
    tuples = random.normal(size=(120, 3, 3))
    values = (tuples[:, 0, 0] - tuples[:, 1, 0]) ** 2
    near = np.abs(tuples[:, 0, 0] - tuples[:, 1, 0]) < np.abs(tuples[:, 0, 0] - tuples[:, 2, 0])
    ordered = np.where(near[:, None, None], tuples, tuples[:, [0, 2, 1]])
    return [
        (Numbers(X, 5 * X[:, 0]), "r2", "mean"),
        (Numbers(X, 5 * X[:, 0], bins=3), "r2", "mean"),
        (Pairs(tuples[:, :2], values), "r2", "mean"),
        (Triplets(ordered), "order", "coin toss"),
    ]


@pytest.mark.parametrize("number", range(4))
def test_numbers_pairs_and_triplets(number: int) -> None:
    task, score, trivial = random_tasks()[number]
    found = compare_task(task, ["mahalanobis"], folds=2, steps=100, jobs=1)
    assert (found.by, found.classes) == (score, 0)
    learned, plain, guess = (found.named(name) for name in ("mahalanobis", "euclidean", trivial))
    assert learned is not None
    assert plain is not None
    assert guess is not None
    assert learned.mean(score) > plain.mean(score) > guess.mean(score)
    fold = held_out(task, "mahalanobis", folds=2, steps=100)
    drops = importance(task, fold, {"used": [0], "noise": [1, 2]})
    assert list(drops) == ["used", "noise"]
    assert drops["used"][0] > 0.1 > drops["noise"][0]


def test_pairs_in_both_orders_are_held_out_together_and_judged_by_direction() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 150, 2))
    pairs = np.concatenate([np.stack([first, second], 1), np.stack([second, first], 1)[:140]])
    uphill = pairs[:, 1, 0] - pairs[:, 0, 0]
    task = Pairs(pairs, np.abs(uphill) * np.where(uphill > 0, 2.0, 1.0))
    for rows, rest in task.folds(3, 0):
        assert sorted([*rows, *rest]) == list(range(290))
        both = rest[rest < 140]
        assert set(both + 150) == set(rest[rest >= 150])
    board = compare_task(task, ["drift", "mahalanobis"], folds=2, steps=100, jobs=1)
    scores = {one.name: one.mean("direction") for one in board.standings}
    assert scores.pop("drift") > 0.8
    assert set(scores.values()) == {0.5}
    assert "direction" not in Pairs(pairs[:150], task.truth[:150]).headings


def test_pairs_that_come_twice_are_held_out_together() -> None:
    x, y, z, w = np.random.default_rng(0).normal(size=(4, 2))
    pairs = np.array([(x, y), (y, x), (x, y), (z, w), (w, z), (x, z), (z, -0.0 * x), (0.0 * x, z)])
    for seed in range(5):
        for rows, rest in Pairs(pairs, np.arange(8.0)).folds(2, seed):
            assert len(rows)
            assert len(rest)
            for together in ({0, 1, 2}, {3, 4}, {6, 7}):
                assert together <= set(rest) or together <= set(rows)


def test_importance_is_that_of_held_out_rows() -> None:
    """Classes of noise: a model that knows its training rows by heart has nothing to lose on others."""
    random = np.random.default_rng(0)
    task = Classes(random.normal(size=(300, 4)), random.integers(2, size=300))
    fold = held_out(task, "euclidean+mlp", steps=300)
    drops = importance(task, fold, {"a": [0], "b": [1, 2, 3]})
    assert all(abs(drop) < 0.05 for drop, _ in drops.values())
    by_heart = importance(task, Fold(fold.learner, fold.rows, fold.rows), {"a": [0]})
    assert by_heart["a"][0] > 0.1
