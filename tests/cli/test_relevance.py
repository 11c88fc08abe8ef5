"""``--relevance`` of learn and compare: clicks between two tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import askew
from askew.cli import main
from askew.cli.comparison import compare_task
from askew.cli.tasks import Clicks

RANDOM = np.random.default_rng(0)
QUERIES, ITEMS = RANDOM.normal(size=(60, 3)), RANDOM.normal(size=(150, 3))
NEAREST = np.abs(QUERIES[:, None, 0] - ITEMS[:, 0]).argsort(1)[:, :5]  # only the first feature counts
FAST = ["--steps", "60", "--encoder", "none", "--divergence", "mahalanobis"]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    printed = capsys.readouterr()
    return int(stopped.value.code or 0), printed.out, printed.err


def files(folder: Path, ids: bool = False, columns: str = "abc", **changes: Any) -> list[object]:
    """Write the three tables and return the words that name them."""
    queries = pandas.DataFrame(QUERIES, columns=list(columns))
    items = pandas.DataFrame(ITEMS, columns=list("abc"))
    clicks = pandas.DataFrame({"query": np.repeat(np.arange(60), 5), "item": NEAREST.ravel()}).assign(**changes)
    if ids:
        queries.insert(0, "query_id", [f"q{k}" for k in range(60)])
        items.insert(0, "sku", [f"sku-{k}" for k in range(150)])  # found by its values
        clicks = clicks.assign(
            query=[f"q{k}" for k in clicks["query"]], item=[f"sku-{k}" for k in clicks["item"]], grade=2
        )
    words: list[object] = []
    for option, table in (("--queries", queries), ("--items", items), ("--relevance", clicks)):
        table.to_csv(folder / f"{option[2:]}.csv", index=False)
        words += [option, folder / f"{option[2:]}.csv"]
    return words


@pytest.mark.parametrize("ids", [False, True])
def test_learns_and_searches(ids: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, index = tmp_path / "model", tmp_path / "index"
    words = files(tmp_path, ids)
    code, out, err = run(capsys, "learn", *words, *FAST, "-o", model)
    assert (code, err) == (0, "")
    by = ("the column 'query_id'", "the column 'sku'") if ids else ("their numbers from 0",) * 2
    assert f"60 queries, which clicks name by {by[0]}" in out
    assert f"150 items, which clicks name by {by[1]}" in out
    scores = dict(zip(("learned", "cosine", "euclidean"), map(float, _numbers(out)), strict=True))
    assert scores["learned"] > max(scores["cosine"], scores["euclidean"]) + 0.1
    assert isinstance(askew.load(model), askew.RelevanceLearner)
    assert run(capsys, "index", model, tmp_path / "items.csv", "--kind", "exact", "-o", index)[0] == 0
    code, out, _ = run(capsys, "search", index, tmp_path / "queries.csv", "-k", 3, "--json")
    assert code == 0
    assert len(json.loads(out)["hits"]) == 180


def _numbers(out: str) -> list[str]:
    line = next(line for line in out.splitlines() if line.startswith("NDCG@10 on held-out queries: "))
    return [part.split()[-1] for part in line.split(": ")[1].split(", ")]


def test_queries_with_other_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = files(tmp_path, columns="xyz")
    model, index = tmp_path / "model", tmp_path / "index"
    code, out, err = run(
        capsys, "learn", *words, "--encoder", "two-sided", "--divergence", "nbd", "--steps", 20, "--json", "-o", model
    )
    assert (code, err) == (0, "")
    assert set(json.loads(out)["ndcg@10"]) == {"learned", "cosine", "euclidean"}
    assert run(capsys, "index", model, tmp_path / "items.csv", "-o", index)[0] == 0
    assert run(capsys, "search", index, tmp_path / "queries.csv", "--json")[0] == 0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"item": 150}, "values in --relevance that name items must be rows there are. Got '150'"),
        ({"query": "q1"}, "values in --relevance that name queries must be rows there are. Got 'q1'"),
        ({"grade": -1}, "grades in judgements of --relevance must be finite, zero or above. Got -1"),
        ({"grade": [np.nan] + [1.0] * 299}, "finite, zero or above. Got nan"),
        ({"grade": "good"}, "grades in --relevance must be numbers"),
        ({"a": 1, "b": 2}, None),
    ],
)
def test_bad_clicks(
    change: dict[str, Any], match: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = files(tmp_path, **change)
    code, _, err = run(capsys, "learn", *words, *FAST, "-o", tmp_path / "model")
    assert code == (0 if match is None else 2 if code == 2 else 1)
    assert match is None or match in err
    assert (tmp_path / "model" / "model.json").exists() == (match is None)


def test_words_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = files(tmp_path)
    for given, match in (
        (words[2:], "input with --relevance must be --queries FILE and --items FILE. Got only one of them"),
        ([tmp_path / "items.csv", *words], "Got TABLE"),
        ([*words, "--label", "a"], "Got --relevance and --label"),
    ):
        code, _, err = run(capsys, "learn", *given)
        assert code != 0
        assert match in err


def test_compares_on_held_out_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = [*files(tmp_path, ids=True), "--divergence", "mahalanobis", "--folds", "2", "--steps", "40", "--jobs", "1"]
    code, text, err = run(capsys, "compare", *words, "-o", out, "--json")
    assert (code, err) == (0, "")
    found = json.loads(text)
    scores = {one["divergence"]: one["scores"]["ndcg"]["mean"] for one in found["leaderboard"]}
    assert set(scores) == {"mahalanobis", "euclidean", "euclidean+mlp", "cosine", "random order"}
    assert scores["mahalanobis"] > max(scores["euclidean"], scores["cosine"]) + 0.1
    assert min(scores["euclidean"], scores["cosine"]) > scores["random order"]
    assert isinstance(askew.load(out / "model"), askew.RelevanceLearner)
    assert max(found["importance"], key=found["importance"].get) == "a"  # only the first feature counts
    assert "NDCG@10" in (out / "report.html").read_text()
    assert run(capsys, "index", out, tmp_path / "items.csv", "--kind", "exact", "-o", tmp_path / "index")[0] == 0


@pytest.mark.parametrize("change", ["items", "grades", "nothing"])
def test_kept_folds_are_of_the_same_items_and_judgements(change: str, tmp_path: Path) -> None:
    clicks, items = np.stack([np.repeat(np.arange(60), 5), NEAREST.ravel(), np.ones(300)], 1), ITEMS.copy()
    settings: dict[str, Any] = {"folds": 2, "steps": 3, "jobs": 1, "keep": tmp_path / "folds"}
    compare_task(Clicks(QUERIES, (items, clicks)), ["euclidean"], **settings)
    if change == "items":
        items[7, 1] += 1
    elif change == "grades":
        clicks[7, 2] = 2
    board = compare_task(Clicks(QUERIES, (items, clicks)), ["euclidean"], **settings)
    assert any("from an earlier run" in note for note in board.notes) == (change == "nothing")


def test_sides_of_other_features_have_no_plain_baseline() -> None:
    task = Clicks(QUERIES[:, :2], (ITEMS, np.stack([np.repeat(np.arange(60), 5), NEAREST.ravel()], 1)))
    board = compare_task(task, ["nbd"], folds=2, steps=5, jobs=1)
    assert [one.name for one in board.standings if not one.problem] == [one.name for one in board.standings]
    assert {one.name for one in board.standings} == {"nbd", "random order"}
