"""Tables as people have them: labels, columns and files may be anything, and the commands say what they did."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pandas
import pytest

from askew.cli import main
from askew.cli.inputs import load_all
from askew.io import load_with_notes, save

# Nothing is trained.
PLAIN = ["--divergence", "euclidean", "--encoder", "none"]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Return the exit code, what was printed and what was complained."""
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    printed = capsys.readouterr()
    return int(stopped.value.code or 0), printed.out, printed.err


@pytest.fixture(scope="module")
def customers() -> pandas.DataFrame:
    random, n = np.random.default_rng(0), 120
    segment = random.choice(["basic", "premium", "vip"], n, p=[0.6, 0.35, 0.05])
    age = random.integers(20, 70, n)
    age[::20] = -999
    income = random.uniform(2e4, 9e4, n)
    days = pandas.Timestamp("2020-01-01") + pandas.to_timedelta(random.integers(0, 900, n), "D")
    return pandas.DataFrame(
        {
            "customer_id": [f"C{number:05d}" for number in range(n)],
            "rownum": np.arange(1, n + 1),
            "invoice": np.sort(random.choice(10**6, n, replace=False)),
            "account": random.permutation(n) + 1,
            "age": age,
            "income": [f"{value:,.2f}".translate(str.maketrans(",.", ".,")) for value in income],
            "zip": random.choice([8001, 8002, 3011], n),
            "city": random.choice(["Zürich", "Bern"], n),
            "signup": days.strftime("%d.%m.%Y"),
            "comment": [f"called {number} times" for number in random.permutation(n)],
            "newsletter": random.choice(["yes", "no", "Yes"], n),
            "segment": [name + " " * (number % 10 == 0) for number, name in enumerate(segment)],
            "ltv": (income / 10 + random.normal(0, 100, n)).round(2),
        }
    )


@pytest.fixture
def file(customers: pandas.DataFrame, tmp_path: Path) -> Path:
    customers.to_csv(tmp_path / "customers.csv", index=False)
    return tmp_path / "customers.csv"


def test_every_column_has_a_line(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "learn", file, "--label", "segment", "--drop", "ltv", *PLAIN, "-o", tmp_path / "m")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line.startswith("  ")] == [
        "  12 labels stripped of spaces or normalised",
        "  segment: 3 classes: basic 62, premium 50, vip 8",
        "  customer_id: left out: it looks like names or free text (120 different values in 120 rows); names the "
        "points in the explorer [--keep, --date]",
        "  rownum: left out: its values differ and it is named like a number of rows [--keep]",
        "  invoice: left out: its values differ and are in order, as numbers of rows are [--keep]",
        "  account: left out: its values are 1 to 120, each once, as numbers of rows are [--keep]",
        "  age: number; 6 cells are -999: missing? [--na -999] [--category, --drop]",
        "  income: number; '80.249,10' is read as 80249.1 [--category, --drop]",
        "  zip: number; only 3 different values [--category, --drop]",
        "  city: category, 2 values [--number, --date, --drop]",
        "  signup: date, day first (%d.%m.%Y), as days [--date COLUMN=FORMAT, --drop]",
        "  comment: left out: it looks like names or free text (120 different values in 120 rows) [--keep, --date]",
        "  newsletter: category, 3 values; differ only by case: 'Yes' and 'yes' [--number, --date, --drop]",
        "  segment: the classes",
        "  ltv: left out, as asked for",
    ]


def test_options_overrule(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--category", "zip", "--na", "-999", "--date", "signup=%d.%m.%Y", "--keep", "account", "--drop", "ltv"]
    code, out, err = run(capsys, "learn", file, "--label", "segment", *words, *PLAIN, "-o", tmp_path / "m", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"zip=8001", "account", "signup"} <= {*found["features"]}
    [age] = [note for note in found["columns"] if note.startswith("age")]
    assert age.startswith("age: number; 6 missing or infinite values filled by the median")
    _, columns, _ = load_all(tmp_path / "m")
    assert columns is not None
    later = pandas.read_csv(file)[:1].assign(age=-999)
    position = columns.get_feature_names_out().tolist().index("age")
    assert columns.transform(later)[0, position] > 20  # read as the first table was


def test_columns_are_judged_before_rows_are_left_out(
    customers: pandas.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    customers.assign(segment=customers["segment"].where(customers.index != 5)).to_csv(tmp_path / "a.csv", index=False)
    code, out, _ = run(capsys, "learn", tmp_path / "a.csv", "--label", "segment", *PLAIN, "-o", tmp_path / "m")
    assert code == 0
    assert "1 row left out, without a label" in out
    assert "rownum: left out" in out
    assert "account: left out" in out


def test_numeric_classes_and_classes_that_differ_by_case(
    customers: pandas.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pandas.concat([customers] * 2).assign(age=np.arange(240) % 56)
    table.to_csv(tmp_path / "a.csv", index=False)
    code, out, _ = run(capsys, "learn", tmp_path / "a.csv", "--label", "age", *PLAIN, "-o", tmp_path / "m")
    assert code == 0
    assert "56 classes that are numbers: to learn from their values, use askew learn --target age" in out
    assert "age: 56 classes: 0 5, 1 5, 10 5" in out
    code, out, _ = run(capsys, "learn", tmp_path / "a.csv", "--label", "newsletter", *PLAIN, "-o", tmp_path / "m")
    assert "Classes that differ only by case: 'Yes' and 'yes'. Are they the same?" in out
    code, _, err = run(capsys, "compare", tmp_path / "a.csv", "--label", "ltv", "-o", tmp_path / "m")
    assert code == 2
    assert "Learn from numbers by: askew learn TABLE --target ltv" in err


@pytest.mark.parametrize(
    ("encoding", "separator"), [("utf-8", ";"), ("utf-8-sig", ","), ("utf-16", "\t"), ("latin-1", "|")]
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encodings_and_separators_make_no_difference(
    encoding: str, separator: str, end: str, customers: pandas.DataFrame, file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.csv"
    customers.to_csv(other, index=False, sep=separator, encoding=encoding, lineterminator=end)
    from askew.cli.tables import read_frame
    from askew.estimators import Columns

    plain, changed = Columns().fit(read_frame(file)), Columns().fit(read_frame(other))
    assert plain.notes_ == changed.notes_
    np.testing.assert_array_equal(plain.transform(read_frame(file)), changed.transform(read_frame(other)))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", b"", "must be a table with rows and columns. Got an empty file instead."),
        ("a.csv", b"a,b\n", "must be a table with rows and columns. Got a header without rows: a, b instead."),
        ("a.csv", "a,b\n1,2\n".encode("utf-16-le"), "but reading it failed: it has zero bytes, as UTF-16 without"),
        (
            "a.csv",
            b"a,b,label\n1,2,x\n2,1,x\n",
            "must be a column with at least two classes. Got 'label' with one",
        ),
        (
            "a.csv",
            b"a,b,label\n1,2,\n2,1,\n",
            "must be a column with labels. Got the empty column 'label'",
        ),
        ("a.csv", b"a,b,Label\n1,2,x\n", "Did you mean 'Label'?"),
        (
            "a.csv",
            b"id,label\n1,x\n2,y\n3,x\n",
            "but id: left out: its values differ and it is named like a number",
        ),
        ("a.csv.gz", b"no gzip", "but reading it failed: it is no whole gzip file"),
        ("a.xls", b"", "must be a file that ends in .csv"),
    ],
)
def test_what_cannot_be_learned_from(
    name: str, content: bytes, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    for command in ("learn", "compare"):
        code, _, err = run(capsys, command, tmp_path / name, "--label", "label", "-o", tmp_path / "out")
        assert code == 2
        assert complaint in err
        assert err.count("\n") == 1


def test_packed_and_standard_input(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(file.read_bytes()))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    outputs = []
    for source in (file, tmp_path / "b.csv.gz", "-"):
        code, out, err = run(capsys, "learn", source, "--label", "segment", *PLAIN, "-o", tmp_path / str(len(outputs)))
        assert (code, err) == (0, "")
        outputs.append(out.splitlines()[1:-3])
    assert outputs[0] == outputs[1] == outputs[2]


def test_other_mistakes(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, complaint in (
        (["--label", "segment", "--category", "zipp"], "Did you mean 'zip'"),
        (["--label", "segment", "--drop", "Income"], "Got 'Income' instead. Did you mean 'income'?"),
        (["--label", "segment", "--number", "city"], "column 'city' must be numbers, as asked for. Got "),
        (["--label", "segment", "--date", "city"], "Give its form: --date 'city=%d.%m.%Y'."),
        (["--label", "segment", "--date", "signup=%Y"], "column 'signup' must be dates, as asked for"),
        (["--label", "segment", "--date", "signup=%Q"], "a form of dates must be as of strftime, such as %d.%m.%Y."),
        (["--label", "segment", "--category", "zip", "--number", "zip"], "must be different columns. Got one twice"),
        (["--target", "city"], "--target must be a column of numbers. Got 'city' with 0 different numbers in 120 rows"),
        (["--target", "ltv", "--bins", "1"], "--bins must be at least 2, and given with --target"),
        (["--label", "segment", "--target", "ltv"], "Got --label and --target instead"),
        (["--target", "value", "--pairs", "nowhere.csv"], "--pairs must be a file that exists"),
    ):
        code, _, err = run(capsys, "learn", file, *words, "-o", tmp_path / "m")
        assert code == 2, words
        assert complaint in err, err
    code, _, err = run(capsys, "learn", file, "--label", "klass", "-o", tmp_path / "m")
    assert "--label must be one of" in err
    assert "Did you mean" not in err  # nothing is alike
    code, _, err = run(capsys, "compare", file, "--label", "segment", "--folds", 1)
    assert (code, err) == (2, "askew: --folds must be at least 2. Got 1 instead.\n")


# ---------------------------------------------------------------------- with a model


def test_numbers_to_learn_from(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for bins in ([], ["--bins", 4]):
        model = tmp_path / f"model{len(bins)}"
        words = ["--target", "ltv", "--encoder", "none", "--steps", 100, "--drop", "segment", *bins, "-o", model]
        code, out, err = run(capsys, "learn", file, *words, "--json")
        assert (code, err) == (0, "")
        scores = json.loads(out)["r2"]
        assert scores["without encoder"] > scores["euclidean"]
        assert "on 30 held-out rows" in json.loads(out)["choice"]
        code, out, err = run(capsys, "score", model, file, "--json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert (found["rows"], found["column"]) == (120, "ltv")
        assert found["scores"]["model"]["R squared"] > 0.7
        code, out, err = run(capsys, "predict", model, file, "--id", "customer_id", "-o", tmp_path / "p.csv")
        assert (code, err) == (0, "")
        predicted, table = pandas.read_csv(tmp_path / "p.csv"), pandas.read_csv(file)
        assert list(predicted.columns) == ["row", "ltv"]
        assert np.corrcoef(predicted["ltv"], table["ltv"])[0, 1] > 0.8
        # A prediction is a mean of numbers that were learned from.
        assert predicted["ltv"].between(table["ltv"].min(), table["ltv"].max()).all()


def test_few_rows_with_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"{number / 7},{number**2}\n" for number in range(20)))
    code, out, err = run(capsys, "learn", tmp_path / "a.csv", "--target", "b", "--steps", 20, "-o", tmp_path / "m")
    assert (code, err) == (0, "")
    assert "without encoder: 20 rows are too few to hold out some (50 are needed)" in out


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The folder that compare wrote for half of iris, that half, and the other."""
    from askew.cli.tables import load_bundled

    folder = tmp_path_factory.mktemp("learned")
    frame = load_bundled("iris")
    frame[::2].to_csv(folder / "train.csv", index=False)
    frame[1::2].to_csv(folder / "test.csv", index=False)
    words = ["--label", "class", "--divergence", "mahalanobis", "--folds", "2", "--jobs", "1", "--steps", "30"]
    with pytest.raises(SystemExit, match="0"):
        main(["compare", str(folder / "train.csv"), *words, "-o", str(folder / "out")])
    return folder / "out", folder / "train.csv", folder / "test.csv"


def test_score_and_predict(
    learned: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, train, test = learned
    assert "75 of 75 rows were learned from: new rows will have lower scores." in run(capsys, "score", model, train)[1]
    code, out, err = run(capsys, "score", model, test, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["rows"], found["learned_from"], found["column"]) == (75, 1, "class")  # two flowers are equal
    learner, columns, _ = load_all(model)
    assert columns is not None
    frame = pandas.read_csv(test)
    scores = found["scores"]
    assert scores["model"]["MAP"] == pytest.approx(learner.score(columns.transform(frame), frame["class"]))
    assert scores["model"]["MAP"] > scores["euclidean"]["MAP"] > 0.5
    assert scores["largest class"]["kNN accuracy"] == pytest.approx(1 / 3)
    frame[frame["class"] == "setosa"].to_csv(tmp_path / "one.csv", index=False)
    assert json.loads(run(capsys, "score", model, tmp_path / "one.csv", "--json")[1])["rows"] == 25
    code, out, err = run(capsys, "predict", model, test, "-o", tmp_path / "p.csv")
    assert (code, err) == (0, "")
    assert "... and 55 more; all are in the file." in out
    predicted = pandas.read_csv(tmp_path / "p.csv")
    accuracy = (predicted["class"] == frame["class"]).mean()
    assert accuracy == pytest.approx(scores["model"]["kNN accuracy"], abs=0.03)  # ties are broken in another order
    assert predicted["share"].between(1 / 3, 1).all()
    code, out, _ = run(capsys, "predict", model, test, "-o", tmp_path / "p.csv", "-k", 1)
    assert f"Replaces {tmp_path / 'p.csv'}, there from an earlier run." in out
    assert (pandas.read_csv(tmp_path / "p.csv")["share"] == 1).all()


def test_transform(learned: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, train, _ = learned
    learner, _, _ = load_all(model)
    for name in ("v.csv", "v.npy"):
        code, out, err = run(capsys, "transform", model, train, "-o", tmp_path / name)
        assert (code, err) == (0, "")
        assert "75 vectors of" in out
    vectors = pandas.read_csv(tmp_path / "v.csv")
    assert list(vectors.columns[:2]) == ["row", "e0"]
    np.testing.assert_allclose(vectors.to_numpy()[:, 1:], learner.items_, rtol=1e-6)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), learner.items_)


def test_the_folder_of_compare_is_a_model(
    learned: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, train, test = learned
    assert run(capsys, "explore", model, "-o", tmp_path / "a.html")[0] == 0
    assert run(capsys, "index", model, train, "--kind", "exact", "-o", tmp_path / "index")[0] == 0
    code, _, err = run(capsys, "search", tmp_path / "index", test, "-k", 76)
    assert (code, err) == (2, "askew: -k must be at most 75, the number of items. Got 76 instead.\n")
    assert f"Replaces {tmp_path / 'a.html'}" in run(capsys, "explore", model, "-o", tmp_path / "a.html")[1]
    assert (
        f"Replaces {tmp_path / 'index'}"
        in run(capsys, "index", model, train, "--kind", "exact", "-o", tmp_path / "index")[1]
    )


def test_models_that_do_not_fit(
    learned: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, train, test = learned
    frame = pandas.read_csv(test)
    frame.rename(columns={"petal width (cm)": "Petal Width (cm)"}).to_csv(tmp_path / "a.csv", index=False)
    code, _, err = run(capsys, "predict", model, tmp_path / "a.csv")
    assert code == 2
    assert "Should it be 'Petal Width (cm)' renamed to 'petal width (cm)'?" in err
    frame.assign(**{"petal width (cm)": "wide"}).to_csv(tmp_path / "a.csv", index=False)
    code, _, err = run(capsys, "predict", model, tmp_path / "a.csv")
    assert code == 2
    assert "column 'petal width (cm)' must be a column of numbers" in err
    (tmp_path / "t.csv").write_text("anchor,near,far\n" + "".join(f"{i},{i + 1},{74 - i}\n" for i in range(30)))
    words = ["--triplets", tmp_path / "t.csv", "--drop", "class", "--encoder", "none", "--steps", 5]
    assert run(capsys, "learn", train, *words, "-o", tmp_path / "m")[0] == 0
    code, _, err = run(capsys, "predict", tmp_path / "m", test)
    assert code == 2
    assert "MODEL must be a model that was learned from --label or --target" in err
    # Rows are then ranked among each other.
    code, out, err = run(capsys, "score", tmp_path / "m", test, "--label", "class")
    assert (code, err) == (0, "")
    assert "kNN accuracy" in out


def test_damaged_numbers_of_a_model(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--target", "ltv", "--encoder", "none", "--steps", 5, "-o", tmp_path / "m"]
    assert run(capsys, "learn", file, *words)[0] == 0
    learner, notes = load_with_notes(tmp_path / "m")
    for values in (None, [1.0], ["x"] * 120, [[1.0]]):
        save(learner, tmp_path / "m", notes=notes | {"values": values})
        code, _, err = run(capsys, "predict", tmp_path / "m", file)
        assert code == 2
        assert "it has not a number for each of its points" in err
