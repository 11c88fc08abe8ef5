"""The commands on one's own tables, and what they say when it fails."""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest

import askew
from askew.cli import main, shell
from askew.cli.inputs import load_all, naming_columns
from askew.cli.shell import UNSAFE
from askew.cli.tables import load_bundled, read_frame
from askew.estimators import FitWarning

FAST = ["--steps", "20"]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Return the exit code, what was printed and what was complained."""
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    printed = capsys.readouterr()
    return int(stopped.value.code or 0), printed.out, printed.err


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with an identifier, a category, missing values, and a class with three rows."""
    frame = load_bundled("iris")
    frame = frame.iloc[[*range(50), *range(50, 100), 100, 101, 102]].reset_index(drop=True)
    frame.insert(0, "id", [f"flower-{number}" for number in range(len(frame))])
    frame["colour"] = np.where(frame.index % 3 == 0, "red", "blue")
    frame.loc[5, "petal length (cm)"] = np.nan
    frame.loc[7, "class"] = None
    path = tmp_path_factory.mktemp("tables") / "flowers.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def model(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    with pytest.raises(SystemExit, match="0"):
        main(["learn", str(table), "--label", "class", "--encoder", "none", *FAST, "-o", str(folder)])
    return folder


def test_compare(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "mahalanobis,euclidean"
    words = ["compare", table, "--label", "class", "--divergence", names, "--folds", 2, "--jobs", 1, *FAST]
    code, out, err = run(capsys, *words, "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    for part in (
        "102 rows, 6 features, 3 classes",
        "id: left out: it looks like names or free text",
        "colour: category, 2 values",
        "1 missing or infinite value filled by the median",
        "1 row left out, without a label",
        "class: 3 classes: versicolor 50, setosa 49, virginica 3",
        "kNN accuracy",
        "Best: ",
        "over euclidean",
        "Columns that matter most, by the drop in MAP if permuted: petal",
    ):
        assert part in out
    done = [line.split()[0] for line in out.splitlines() if ", fit seconds " in line]
    assert done == ["euclidean", "largest", "euclidean+mlp", "mahalanobis"]
    assert (tmp_path / "out" / "report.html").read_text().count("<title>flower-") == 204  # on both maps
    learner, columns, _ = load_all(tmp_path / "out" / "model")
    assert learner.divergence in ("mahalanobis", "euclidean")
    assert columns is not None
    assert len(columns.get_feature_names_out().tolist()) == learner.n_features_in_ == 6
    # The explorer shows rows that the model of a fold has not seen; the model itself has seen all.
    for folder, held_out in ((tmp_path / "out", True), (tmp_path / "out" / "model", False)):
        assert run(capsys, "explore", folder, "-o", tmp_path / "page.html")[0] == 0
        page = (tmp_path / "page.html").read_text()
        assert '"shape": [102, 6]' in page
        assert ("with held-out rows" in page) == held_out
        known = re.search(r'"training": \[([a-z, ]*)\]', page)
        assert [0 if known is None else known[1].count(word) for word in ("true", "false")] == [51 * held_out] * 2
        assert page.count('"flower-') == 102  # by the column of names that was found


def test_compare_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--dataset", "iris", "--divergence", "euclidean", "--folds", 2, "--jobs", 1, "--json", *FAST]
    code, out, _ = run(capsys, *words, "-o", tmp_path, "--by", "auc")
    found = json.loads(out)
    assert code == 0
    assert found["best"] in ("euclidean", "euclidean+mlp")
    assert found["by"] == "auc"
    assert found["leaderboard"][0]["scores"]["map"]["mean"] > 0.7
    assert set(found["importance"]) == {
        f"{part} {size} (cm)" for part in ("sepal", "petal") for size in ("length", "width")
    }
    assert Path(found["report"]).is_file()


def test_learned_model_takes_other_tables(
    model: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "index", model, table, "--id", "id", "--kind", "exact", "-o", tmp_path / "index")
    assert (code, err) == (0, "")
    assert "103 items" in out
    code, out, err = run(capsys, "search", tmp_path / "index", table, "-k", 2, "--id", "id", "--json")
    hits = json.loads(out)["hits"]
    assert (code, err, len(hits)) == (0, "", 206)
    # Every flower is nearest to itself, but for those that are the same in all features.
    own = [hit["query"] == hit["item"] or hit["divergence"] == 0 for hit in hits if hit["rank"] == 1]
    assert all(own)
    code, out, _ = run(capsys, "search", tmp_path / "index", table, "-k", 3, "-o", tmp_path / "hits.csv")
    assert "... and 289 more; all are in the file." in out
    with (tmp_path / "hits.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 309


@pytest.mark.parametrize("kind", ["auto", "flat"])
def test_index_in_faiss_in_both_directions(
    kind: str, model: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("faiss")
    learner, columns, _ = load_all(model)
    assert columns is not None
    import pandas

    points = columns.transform(pandas.read_csv(table))
    matrix = learner.pairwise(points)
    for direction, expected in (("query-first", matrix), ("query-second", matrix.T)):
        folder = tmp_path / direction
        assert run(capsys, "index", model, table, "--kind", kind, "--direction", direction, "-o", folder)[0] == 0
        hits = json.loads(run(capsys, "search", folder, table, "-k", 5, "--json")[1])["hits"]
        values = np.array([hit["divergence"] for hit in hits]).reshape(-1, 5)
        np.testing.assert_allclose(values, np.sort(expected, 1)[:, :5], rtol=1e-4, atol=1e-6)


def test_cluster(model: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "cluster", model, table, "-k", 2, "--id", "id", "-o", tmp_path / "clusters.csv")
    assert (code, err) == (0, "")
    assert "cluster" in out
    with (tmp_path / "clusters.csv").open() as file:
        rows = list(csv.DictReader(file))
    first = {row["cluster"] for row in rows[:50]}
    assert len(rows) == 103
    assert len(first) == 1  # setosa is far from all others
    found = json.loads(run(capsys, "cluster", model, table, "-k", 2, "--json")[1])
    assert sum(found["sizes"]) == 103


def test_explore(model: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "explore", model, "-o", tmp_path / "a.html")
    assert (code, err) == (0, "")
    assert "a.html in a browser" in out
    code, out, err = run(
        capsys, "explore", model, "--data", table, "--label", "class", "-o", tmp_path / "b.html", "--json"
    )
    assert (code, err) == (0, "")
    assert (
        Path(json.loads(out)["explorer"]).read_text().count('"flower-')
        == (tmp_path / "a.html").read_text().count('"flower-')
        > 100
    )
    # Names that come twice name nothing.
    pandas.read_csv(table).assign(id="twin").to_csv(tmp_path / "twins.csv", index=False)
    assert run(capsys, "explore", model, "--data", tmp_path / "twins.csv", "-o", tmp_path / "b.html")[0] == 0
    assert '"twin"' not in (tmp_path / "b.html").read_text()


def test_learn_what_is_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dataset", "iris", "--divergence", "auto", "--encoder", "none", *FAST, "-o", tmp_path / "model"]
    code, out, err = run(capsys, "learn", *words)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("Learned"))
    chosen, *rows = lines[place : place + 4]
    assert chosen.startswith("Learned auto: '")
    assert sum(row.startswith("*") for row in rows) == 1
    assert {row.split("'")[1] for row in rows} == {"mahalanobis", "nbd", "drift"}


def test_learn_from_pairs_and_triplets(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    rows = random.integers(103, size=(60, 3))
    names = [[f"flower-{number}" for number in row] for row in rows]
    (tmp_path / "pairs.csv").write_text(
        "a,b,value\n" + "".join(f"{a},{b},{abs(i - 30)}\n" for i, (a, b, _) in enumerate(names))
    )
    (tmp_path / "triplets.csv").write_text("anchor,near,far\n" + "".join(",".join(row) + "\n" for row in names))
    common = [table, "--drop", "class", "--id", "id", "--encoder", "none", *FAST]
    words = [*common, "--pairs", tmp_path / "pairs.csv", "--target", "value", "-o", tmp_path / "p"]
    with pytest.warns(FitWarning, match="better than a trivial one"):  # the values have nothing to do with the flowers
        code, _, err = run(capsys, "learn", *words)
    assert (code, err) == (0, "")
    assert isinstance(askew.load(tmp_path / "p"), askew.PairRegressor)
    code, _, err = run(capsys, "learn", *common, "--triplets", tmp_path / "triplets.csv", "-o", tmp_path / "t")
    assert (code, err) == (0, "")
    assert isinstance(askew.load(tmp_path / "t"), askew.TripletLearner)
    short = ["--divergence", "mahalanobis", "--folds", 2, "--jobs", 1, *FAST]
    common = [table, "--drop", "class", *short, "--json"]  # the names and the values are found
    for what, learner in (("pairs", askew.PairRegressor), ("triplets", askew.TripletLearner)):
        words = [*common, f"--{what}", tmp_path / f"{what}.csv", "-o", tmp_path / f"compared-{what}"]
        code, out, err = run(capsys, "compare", *words)
        assert (code, err) == (0, "")
        assert json.loads(out)["rows"] == 60
        assert isinstance(load_all(tmp_path / f"compared-{what}")[0], learner)


def test_zeros_in_front_of_names(
    model: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:04d}" for number in range(103)]
    file, page = tmp_path / "a.csv", tmp_path / "page.html"
    pandas.read_csv(table).assign(id=names).to_csv(file, index=False)
    for command in (["predict"], ["cluster", "-k", 2], ["transform"]):
        for source in (file, "-"):
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
            rest = [*command[1:], "--id", "id", "-o", tmp_path / "out.csv"]
            assert run(capsys, command[0], model, source, *rest)[0] == 0
            assert pandas.read_csv(tmp_path / "out.csv", dtype=str)["row"].tolist() == names
    for words in (["--data", file], ["--data", file, "--id", "id"], ["--data", file, "--label", "class"]):
        assert run(capsys, "explore", model, *words, "-o", page)[0] == 0
        assert '"0102"' in page.read_text()
    assert run(capsys, "learn", file, "--label", "class", "--encoder", "none", *FAST, "-o", tmp_path / "m")[0] == 0
    np.testing.assert_array_equal(askew.load(tmp_path / "m").points_, askew.load(model).points_)
    assert load_all(tmp_path / "m")[2]["names"][-1] == "0102"
    # A feature may name the rows as well, and stays a number.
    pandas.read_csv(file).assign(**{"petal width (cm)": names}).to_csv(file, index=False)
    vectors = []
    for words in ([], ["--id", "petal width (cm)"]):
        assert run(capsys, "transform", model, file, *words, "-o", tmp_path / "v.npy")[0] == 0
        vectors.append(np.load(tmp_path / "v.npy"))
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize("write", ["{:04d}", "{}", " {}"])
def test_pairs_of_names_with_zeros_in_front(
    write: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random, frame = np.random.default_rng(0), pandas.read_csv(table).drop(columns="class")
    rows, points = random.integers(103, size=(60, 2)), frame["petal width (cm)"].to_numpy()
    values = np.abs(points[rows[:, 0]] - points[rows[:, 1]]) + 0.25
    names = [[write.format(7 * number) for number in row] for row in rows]
    frame.assign(id=[write.format(7 * number) for number in range(103)]).to_csv(tmp_path / "a.csv", index=False)
    lines = [f"{a};{str(value).replace('.', ',')};{b}" for (a, b), value in zip(names, values, strict=True)]
    (tmp_path / "pairs.csv").write_text("a;value;b\n" + "\n".join(lines) + "\n")
    words = ["learn", tmp_path / "a.csv", "--pairs", tmp_path / "pairs.csv", "--target", "value", "-o", tmp_path / "m"]
    words += ["--encoder", "none", "--divergence", "mahalanobis", "--steps", 200]
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert "id: the names of the rows" in out
    learner, columns, _ = load_all(tmp_path / "m")
    assert columns is not None
    pairs = columns.transform(read_frame(tmp_path / "a.csv"))[rows]
    assert np.corrcoef(learner.pair_distance(pairs), values)[0, 1] > 0.9
    (tmp_path / "pairs.csv").write_text("a;value;b\n" + "\n".join([*lines[:3], ";1,5;7"]) + "\n")
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "--pairs must be a table without empty cells, but row 3, counted from 0, has one." in err


@pytest.mark.parametrize("cells", [["1", "2", ""], ["a", "b", " "]])
def test_a_row_without_a_name(
    cells: list[str], model: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pandas.read_csv(table)[:3].assign(id=cells).to_csv(tmp_path / "a.csv", index=False)
    code, _, err = run(capsys, "index", model, tmp_path / "a.csv", "--id", "id", "-o", tmp_path / "index")
    must = "the column 'id' of TABLE must be one that names each row, but row 2, counted from 0, has no name."
    assert (code, err) == (2, f"askew: {must}\n")
    # Where nobody asked for names, rows have none.
    assert run(capsys, "explore", model, "--data", tmp_path / "a.csv", "-o", tmp_path / "page.html")[0] == 0


def test_whole_numbers_of_parquet_are_names(
    model: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    pandas.read_csv(table).assign(id=np.arange(103.0)).to_parquet(tmp_path / "a.parquet")
    run(capsys, "predict", model, tmp_path / "a.parquet", "--id", "id", "-o", tmp_path / "p.csv")
    assert pandas.read_csv(tmp_path / "p.csv", dtype=str)["row"].tolist() == [str(number) for number in range(103)]


def test_compare_by_numbers(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = "petal width (cm)"
    short = ["--divergence", "mahalanobis", "--folds", 2, "--jobs", 1, *FAST]
    code, out, err = run(capsys, "compare", table, "--target", target, *short, "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "R squared" in out
    assert "4 highest quarter" in (tmp_path / "out" / "report.html").read_text()
    code, out, err = run(capsys, "score", tmp_path / "out", table)
    assert (code, err) == (0, "")
    assert "R squared of always the mean is 0." in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["compare"], "input must be either a TABLE or --dataset NAME. Got neither"),
        (["compare", "TABLE"], "--label must be the column with the classes, one of id, sepal"),
        (["compare", "TABLE", "--label", "class", "--by", "seconds"], "--by must be one of 'map', 'auc'"),
        (["compare", "TABLE", "--label", "class", "--target", "id"], "Got --label and --target"),
        (["compare", "TABLE", "--label", "class", "--bins", "3"], "--bins must be at least 2, and given with --target"),
        (["compare", "TABLE", "--label", "clas"], "Did you mean 'class'"),
        (["compare", "TABLE", "--label", "id"], "a column of classes, each with several rows. Got 'id' with 103"),
        (["compare", "TABLE", "--label", "class", "--divergence", "nbdd"], "Did you mean 'nbd'"),
        (["compare", "nowhere.csv", "--label", "class"], "TABLE must be a file that exists"),
        (["compare", "--dataset", "wines"], "Did you mean 'wine'"),
        (["learn", "TABLE"], "what to learn from must be one of --label, --target, --pairs"),
        (["learn", "TABLE", "--label", "class", "--triplets", "TABLE"], "Got --triplets and --label"),
        (["learn", "TABLE", "--pairs", "TABLE"], "--target must be the column of values"),
        (["learn", "TABLE", "--pairs", "WORDS"], "values in 'value' must be numbers, but could not convert"),
        (["learn", "TABLE", "--triplets", "TABLE"], "a table with 3 columns that name rows"),
        (["learn", "TABLE", "--label", "class", "--encoder", "cnn"], "--encoder must be one of"),
        (["index", "nowhere", "TABLE"], "with its model.json"),
        (["index", "MODEL", "TABLE", "--kind", "tree"], "--kind must be one of"),
        (["index", "MODEL", "TABLE", "--id", "class"], "in which no value comes twice"),
        (["search", "nowhere", "TABLE"], "with its index.json"),
        (["cluster", "MODEL", "TABLE", "-k", "0"], "n_clusters"),
        (["explore", "MODEL", "--label", "class"], "--label must be given with --data"),
        (["index", "MODEL", "TABLE", "--direction", "both"], "--direction must be one of"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    complaint: str,
    table: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.csv").write_text("a,b,value\nflower-0,flower-1,far\n")
    places = {"TABLE": str(table), "MODEL": str(model), "WORDS": str(tmp_path / "words.csv")}
    code, out, err = run(capsys, *(places.get(word, word) for word in words))
    assert code == 2
    assert complaint in err
    assert err.count("\n") == 1
    assert err.startswith("askew: ")
    assert "Traceback" not in out + err
    assert not any(tmp_path.glob("**/*.html"))


def test_numbers_name_rows_by_a_column_that_is_called_an_id() -> None:
    table = pandas.DataFrame({"id": [1, 2, 3], "size": [1, 2, 4]})
    assert naming_columns(table, [1, 3]) == ["id"]
    assert naming_columns(table, [0, 1]) == []  # numbers of rows


def test_table_without_the_columns(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    code, _, err = run(capsys, "cluster", model, tmp_path / "other.csv", "-k", 2)
    assert code == 2
    assert "one without 'sepal length (cm)'" in err


@pytest.mark.parametrize(
    "command", ["compare", "learn", "score", "predict", "transform", "index", "search", "cluster", "explore"]
)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"Example: askew {command}" in out


def run_code(text: str) -> None:
    exec(compile(text, "docs/command-line.md", "exec"), {})


def test_commands_of_the_page_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command of docs/command-line.md, in its order; the trainings are shortened."""
    page = Path(__file__).parents[2] / "docs" / "command-line.md"
    commands = [
        line.split()[1:]
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for line in block.splitlines()
    ]
    assert [words[0] for words in commands][:2] == ["compare", "learn"]
    monkeypatch.chdir(tmp_path)
    first, last = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    run_code(first)
    shorter = {
        "compare": ["--divergence", "mahalanobis,euclidean", "--folds", "2", "--jobs", "1", *FAST],
        "learn": ["--encoder", "none", *FAST],
    }
    for words in commands:
        code, _, err = run(capsys, *words, *shorter.get(words[0], []))
        assert (code, err) == (0, ""), words
    for file in (
        "askew-out/report.html",
        "predictions.csv",
        "vectors.csv",
        "hits.csv",
        "clusters.csv",
        "explorer.html",
    ):
        assert Path(file).is_file()
    run_code(last)
    assert capsys.readouterr().out == "largest class\n"


# ---------------------------------------------------------------------- names that a terminal would obey


LETTERS = "Zürich שלום می‌خواهم 👩‍🔬 ½"
ORDERS = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp.\u2066\x00\nall is well"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose file, columns, rows, classes and categories are called by what a terminal obeys."""
    pytest.importorskip("pyarrow")
    random = np.random.default_rng(0)
    orders = ORDERS.replace("\x00", "")  # no table holds that
    frame = pandas.DataFrame(random.normal(size=(24, 2)), columns=["a" + orders, LETTERS])
    frame.iloc[3, 0] = np.nan
    frame["kind" + orders] = np.where(np.arange(24) % 2, "x" + orders, "y")
    frame["class" + orders] = np.where(
        np.arange(24) < 12, "one" + orders, np.where(np.arange(24) < 23, LETTERS, "rare")
    )
    frame["name"] = [f"{number}{LETTERS}{orders}" for number in range(24)]
    path = tmp_path_factory.mktemp("hostile") / "rows\x1b[2J\u202e.parquet"
    frame.to_parquet(path, index=False)
    return path


def test_orders_to_the_terminal_are_shown_and_not_given(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label, out = "class" + ORDERS.replace("\x00", ""), tmp_path / "out\x1b[2J"
    chosen = ["--divergence", "euclidean", "--folds", 2, "--jobs", 1, *FAST]
    commands = [
        ["compare", hostile, "--label", label, *chosen, "-o", out],
        ["learn", hostile, "--label", label, "--encoder", "none", *FAST, "-o", tmp_path / "model"],
        ["index", tmp_path / "model", hostile, "--id", "name", "--kind", "exact", "-o", tmp_path / "index"],
        ["search", tmp_path / "index", hostile, "-k", 2, "--id", "name"],
        ["cluster", tmp_path / "model", hostile, "-k", 2, "--id", "name"],
        ["explore", tmp_path / "model", "-o", tmp_path / "a\x1b[2J.html"],
        # Mistakes, told by the commands and by what reads their words.
        ["compare", hostile],
        ["learn", hostile, "--label", "a" + label, "-o", tmp_path / "model"],
        ["cluster", tmp_path / "model", tmp_path / "none\x1b[2J\udcff.csv", "-k", 2],
        ["cluster", tmp_path / "model", hostile, "-k", "2\x1b[2J"],
        ["cluster", tmp_path / "model", hostile, "extra\x1b[2J", "-k", 2],
        ["cluster", "--no\x1b[2J"],
        ["\x1b[2J"],
        ["--debug", "learn", hostile, "--label", "a" + label, "-o", tmp_path / "model"],
    ]
    texts = []
    for number, words in enumerate(commands):
        code, printed, complained = run(capsys, *words)
        assert (code == 0) == (number < 6), (words, complained)
        assert not UNSAFE.search(printed + complained), words
        assert "\nall is well" not in printed + complained
        texts.append(printed + complained)
    everything = "".join(texts)
    assert (
        "a\\x1b]0;owned\\x07\\x1b[2J\\r\\x9b31m\\u202egnp.\\u2066\\nall is well: number; 1 missing or infinite value"
        in texts[0]
    )
    assert "Classes with fewer rows than folds are judged in some folds only: rare (1)." in texts[0]
    assert "Zürich שלום" in texts[3]  # what is longer is folded there
    assert LETTERS in texts[6]
    assert everything.count("\\x1b[2J") > 20


def test_orders_to_the_terminal_in_json(hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = "class" + ORDERS.replace("\x00", "")
    words = ["learn", hostile, "--label", label, "--encoder", "none", *FAST, "-o", tmp_path / "model", "--json"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert not UNSAFE.search(out)
    found = json.loads(out)
    assert found["features"][:2] == ["a" + ORDERS.replace("\x00", ""), LETTERS]
    assert LETTERS in out


def test_warnings_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []

    def warned(name: str) -> pandas.DataFrame:
        # What warn() would print, if it were not for pytest.
        texts.append(warnings.formatwarning(f"{LETTERS} {ORDERS}", UserWarning, "file", 1))  # type: ignore[arg-type]
        raise ValueError("enough")

    monkeypatch.setattr("askew.cli.inputs.load_bundled", warned)
    assert run(capsys, "compare", "--dataset", "wine") == (2, "", "askew: enough\n")
    assert texts[0].startswith(f"askew: {LETTERS} \\x1b]0;owned\\x07")
    assert not UNSAFE.search("".join(texts))
    assert texts[0].count("\n") == 1


def test_colours_of_tables_stay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    shell.table(("name\x1b[2J", "value"), [("a\x1b[31m", "1"), ("b", "2")], best=0)
    out = capsys.readouterr().out
    assert "\x1b[1" in out  # bold, by us
    assert "\x1b[2J" not in out
    assert "\x1b[31m" not in out
    assert "a\\x1b[31m" in out
