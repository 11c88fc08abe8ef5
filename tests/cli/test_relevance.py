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


def change(file: object, **columns: Any) -> None:
    """Set columns of a table in a file."""
    pandas.read_csv(Path(str(file))).assign(**columns).to_csv(Path(str(file)), index=False)


def test_columns_that_only_queries_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, model = files(tmp_path), tmp_path / "model"
    names = [f"somebody called {number}" for number in range(60)]
    change(words[1], taste=np.arange(60) % 7 + 0.5, called=names)
    code, out, err = run(capsys, "learn", *words, "--divergence", "mahalanobis", "--steps", 5, "-o", model)
    assert (code, err) == (0, "")
    told = "  queries have columns that items lack ('taste'): each side is encoded by its own columns [--drop]"
    assert told in out.splitlines()
    assert "  queries: taste: number [--category, --drop]" in out.splitlines()
    assert askew.load(model).n_features_in_ == 4
    assert f"Next: askew index {model} ITEMS -o index\n" in out
    code, _, err = run(capsys, "learn", *words, *FAST, "-o", model)
    assert code == 2
    assert "items of RelevanceLearner must be of 4 features, as queries, where both have one encoder" in err
    # A column that cannot be learned from changes nothing, and is told.
    code, out, err = run(capsys, "learn", *words, *FAST, "--drop", "taste", "-o", model)
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line.startswith("  queries")] == [
        "  queries: taste: left out, as asked for",
        "  queries: called: left out: it looks like names or free text (60 different values in 60 rows) "
        "[--keep, --date]",
    ]
    assert askew.load(model).n_features_in_ == 3


def test_cells_of_queries_that_items_have_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = files(tmp_path)
    change(words[3], colour=["red", "blue"] * 75)
    change(words[1], colour=["red", "green"] * 30, a=["n/k", *QUERIES[1:, 0]])
    code, out, err = run(capsys, "learn", *words, *FAST, "-o", tmp_path / "model")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line.startswith("  queries")] == [
        "  queries: a: no number, filled by the median: 'n/k'",
        "  queries: colour: not seen when it was learned: 'green'",
    ]


def test_sides_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, model, vectors = files(tmp_path), tmp_path / "model", tmp_path / "v.npy"
    queries, items = words[1], words[3]
    change(queries, taste=RANDOM.normal(size=60))
    learn = ["learn", *words, "--divergence", "mahalanobis", "--steps", 5, "-o", model]
    assert run(capsys, *learn)[0] == 0
    for side, file, which in (("queries", queries, "first"), ("items", items, "second")):
        code, _, err = run(capsys, "transform", model, file, "--side", side, "-o", vectors)
        assert (code, err) == (0, "")
        wanted = askew.load(model).transform(pandas.read_csv(Path(str(file))).to_numpy(), which)
        np.testing.assert_allclose(np.load(vectors), wanted, rtol=1e-6)
    for command in (
        ["transform", model, items, "-o", vectors],
        ["score", model, items, "--label", "a"],
        ["predict", model, items],
        ["cluster", model, items, "-k", 2],
        ["explore", model],
        ["explore", model, "--data", items],
    ):
        code, _, err = run(capsys, *command)
        assert code == 2
        assert "MODEL must be one whose points are rows of one table" in err
        assert "askew transform with --side queries or --side items" in err
    # Two encoders of the same columns.
    assert run(capsys, *learn, "--drop", "taste", "--encoder", "two-sided")[0] == 0
    code, _, err = run(capsys, "transform", model, items, "-o", vectors)
    assert code == 2
    assert "--side must be queries or items, which MODEL encodes differently. Got none instead." in err
    assert run(capsys, "transform", model, items, "--side", "items", "-o", vectors)[0] == 0
    np.testing.assert_allclose(np.load(vectors), askew.load(model).items_, rtol=1e-6)
    # One encoder.
    assert run(capsys, *learn, "--drop", "taste", "--encoder", "none")[0] == 0
    code, _, err = run(capsys, "transform", model, items, "--side", "items", "-o", vectors)
    assert (code, err) == (2, "askew: --side must be left out: MODEL has one encoder. Got items instead.\n")
    code, _, err = run(capsys, "transform", model, items, "--side", "first", "-o", vectors)
    assert "--side must be one of 'queries', 'items'" in err


def test_a_model_from_python_with_other_features_of_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, clicks = files(tmp_path), np.stack([np.repeat(np.arange(60), 5), NEAREST.ravel()], 1)
    learner = askew.RelevanceLearner("mahalanobis", "two-sided", steps=2, random_state=0)
    askew.save(learner.fit(QUERIES[:, :2], ITEMS, clicks), tmp_path / "model")
    assert run(capsys, "index", tmp_path / "model", words[3], "-o", tmp_path / "index")[0] == 0
    code, _, err = run(capsys, "cluster", tmp_path / "model", words[3], "-k", 2)
    assert code == 2
    assert "MODEL must be one whose points are rows of one table" in err


@pytest.mark.parametrize("column", ["item_id", "product_id"])
def test_zeros_in_front_of_names(column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, model, index, hits = files(tmp_path), *(tmp_path / name for name in ("model", "index", "hits.csv"))
    run(capsys, "learn", *words, *FAST, "-o", model)
    plain = askew.load(model)
    names = [f"{number:05d}" for number in range(150)]
    change(words[3], **{column: names})
    change(words[1], query_id=[f"{number:03d}" for number in range(60)])
    change(words[5], query=[f"{k:03d} " for k in np.repeat(np.arange(60), 5)], item=np.array(names)[NEAREST.ravel()])
    code, out, err = run(capsys, "learn", *words, *FAST, "-o", model)
    assert (code, err) == (0, "")
    assert f"150 items, which clicks name by the column {column!r}" in out
    assert f"{column}: the names of the items" in out
    np.testing.assert_array_equal(askew.load(model).points_, plain.points_)
    page = tmp_path / "page.html"
    assert run(capsys, "explore", model, "-o", page)[0] == 0
    assert '"00149"' in page.read_text()
    assert run(capsys, "index", model, words[3], "--id", column, "--kind", "exact", "-o", index)[0] == 0
    assert run(capsys, "search", index, words[1], "--id", "query_id", "-k", 2, "-o", hits)[0] == 0
    table = pandas.read_csv(hits, dtype=str)
    assert set(table["item"]) <= set(names)
    assert table["query"].tolist()[:3] == ["000", "000", "001"]


def test_numbers_of_rows_may_have_zeros_and_spaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = []
    for item in (NEAREST.ravel(), [f" {k:04d} " for k in NEAREST.ravel()], NEAREST.ravel().astype(float)):
        words = files(tmp_path, item=item, grade=1.5)
        code, out, err = run(capsys, "learn", *words, *FAST, "-o", tmp_path / "model")
        assert (code, err) == (0, "")
        scores.append(_numbers(out))
    assert scores[0] == scores[1] == scores[2]


@pytest.mark.parametrize("ids", [False, True])
def test_cells_without_a_name(ids: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = files(tmp_path, ids)
    if ids:
        change(words[3], item_id=[0.0, 1.0, None, *np.arange(3.0, 150.0)])  # numbers, of which pandas makes floats
        must = "the column 'item_id' of items must be one that names each row, but row 2, counted from 0, has no name."
    else:
        change(words[5], item=[1.0, 2.0, 3.0, None, *NEAREST.ravel()[4:]])
        must = "a table with a query and an item in each row, but click 3, counted from 0, has no item."
    code, _, err = run(capsys, "learn", *words, *FAST, "-o", tmp_path / "model")
    assert code == 2
    assert must in err


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
