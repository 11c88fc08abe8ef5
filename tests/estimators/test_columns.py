"""Columns become features by rules that the notes say, and later tables are encoded by the same rules."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import askew
from askew.estimators import Columns


def names(columns: Columns) -> list[str]:
    found: list[str] = columns.get_feature_names_out().tolist()
    return found


def test_numbers_stay_and_gaps_get_the_median() -> None:
    table = pandas.DataFrame({"a": [1.0, None, 5.0, None], "b": [True, False, True, True]})
    columns = Columns().fit(table)
    assert names(columns) == ["a", "b"]
    np.testing.assert_array_equal(columns.transform(table), [[1, 1], [3, 0], [5, 1], [3, 1]])
    assert columns.notes_ == (
        "a: number; 2 missing or infinite values filled by the median, 3 [--category, --drop]",
        "b: number [--category, --drop]",
    )


def test_infinite_values_are_filled_like_missing_ones() -> None:
    table = pandas.DataFrame({"a": [1.0, None, np.inf, -np.inf, 3.0]})
    columns = Columns().fit(table)
    assert columns.notes_ == (
        "a: number; 3 missing or infinite values filled by the median, 2, such as '-inf', 'inf' [--category, --drop]",
    )
    assert columns.transform(table).ravel().tolist() == [1.0, 2.0, 2.0, 2.0, 3.0]


def test_infinite_values_of_later_tables_are_told() -> None:
    columns = Columns().fit(pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1, 2, 4]}))
    for bad in (np.inf, "-inf"):
        words = f"a: no number, filled by the median: '{bad}'"
        assert columns.unseen(pandas.DataFrame({"a": [bad, 1.0], "b": [1, 2]})) == [words]
    assert columns.unseen(pandas.DataFrame({"a": [1.0, np.nan], "b": [1, 2]})) == []


def test_categories_have_a_feature_for_each_level() -> None:
    table = pandas.DataFrame({"c": ["b", "a", "b", None]})
    columns = Columns().fit(table)
    assert names(columns) == ["c=b", "c=a"]
    np.testing.assert_array_equal(columns.transform(table), [[1, 0], [0, 1], [1, 0], [0, 0]])
    later = pandas.DataFrame({"c": ["new", "a"]})
    assert columns.unseen(later) == ["c: not seen when it was learned: 'new'"]
    assert columns.unseen(table) == []
    np.testing.assert_array_equal(columns.transform(later), [[0, 0], [0, 1]])


def test_rare_levels_share_a_feature() -> None:
    values = [f"level{i}" for i in range(30)] * 3
    columns = Columns().fit(pandas.DataFrame({"c": values}))
    assert len(names(columns)) == 21
    assert names(columns)[-1] == "c=other"
    later = columns.transform(pandas.DataFrame({"c": ["never seen", None]}))
    assert later[:, -1].tolist() == [1, 0]
    assert later.sum() == 1


def test_dates_become_days() -> None:
    table = pandas.DataFrame(
        {"t": pandas.to_datetime(["1970-01-02", "1970-01-04", None]), "u": ["1970-01-01", "1970-01-03T12:00", None]}
    )
    np.testing.assert_allclose(Columns().fit(table).transform(table), [[1, 0], [3, 2.5], [2, 1.25]])


@pytest.mark.parametrize("unit", ["s", "us"])
def test_dates_of_all_ages(unit: str) -> None:
    """Nanoseconds in 64 bits would wrap around before 1678 and after 2262."""
    dates = np.array(["0001-01-01", "1970-01-02", "3000-01-01", "9999-12-31"], f"datetime64[{unit}]")
    table = pandas.DataFrame({"t": dates})
    days = [-719162, 1, 376200, 2932896]
    assert Columns().fit(table).transform(table).ravel().tolist() == days
    texts = pandas.DataFrame({"t": dates.astype("datetime64[D]").astype(str).tolist()})
    columns = Columns().fit(pandas.DataFrame({"t": ["1970-01-02", "1970-01-04"]}))
    found, told = columns.transform(texts).ravel(), columns.unseen(texts)
    # Older versions of pandas take such text for no dates, and that is said.
    assert found.tolist() == (days if not told else [2, 1, 2, 2])
    assert told in ([], ["t: no date, filled by the median: '0001-01-01', '3000-01-01', '9999-12-31'"])


def test_what_is_no_date_is_told() -> None:
    days = ["2020-01-01", "2020-01-03"] * 20
    columns = Columns().fit(pandas.DataFrame({"t": [*days, "soon"]}))
    assert columns.notes_ == (
        "t: date, as days; 1 missing value filled by the median, 2020-01-02, such as 'soon' "
        "[--date COLUMN=FORMAT, --drop]",
    )
    assert columns.unseen(pandas.DataFrame({"t": ["2021-01-01", None]})) == []
    later = pandas.DataFrame({"t": ["never", None, "2020-01-02", "d", "c", "b"]})
    assert columns.unseen(later) == ["t: no date, filled by the median: 'b', 'c', 'd', ..."]
    assert columns.unseen(pandas.DataFrame({"t": [1.5, np.nan]})) == ["t: no date, filled by the median: '1.5'"]


def test_what_is_no_number_is_told() -> None:
    columns = Columns().fit(pandas.DataFrame({"a": [1.0, 2.0, 3.0]}))
    later = pandas.DataFrame({"a": ["7", "many", None, "inf"]})
    assert columns.unseen(later) == ["a: no number, filled by the median: 'inf', 'many'"]


def test_one_long_text_does_not_make_all_long() -> None:
    """As an array of text of numpy, 501 rows of which one has a long text would take 501 x 80 kB."""
    table = pandas.DataFrame({"c": ["a", "b"] * 250 + ["x" * 20_000]})
    columns = Columns().fit(table)
    tracemalloc.start()
    try:
        assert columns.transform(table).sum(0).tolist() == [250, 250, 1]
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_numbers_among_text() -> None:
    values = [str(i * i % 97) for i in range(99)] + ["unknown"]
    columns = Columns().fit(pandas.DataFrame({"a": values}))
    assert columns.transform(pandas.DataFrame({"a": ["7", "unknown"]})).tolist() == [[7.0], [48.0]]
    assert "number; 1 missing or infinite value filled by the median, 48, such as 'unknown'" in columns.notes_[0]


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ([None] * 30, "empty"),
        ([5] * 30, "the same in all rows"),
        (list(range(30)), "in order, as numbers of rows are"),
        ([f"person {i}" for i in range(30)], "names or free text"),
    ],
)
def test_what_is_left_out(values: list[object], note: str) -> None:
    table = pandas.DataFrame({"a": values, "x": np.linspace(0, 1, 30)})
    columns = Columns().fit(table)
    assert names(columns) == ["x"]
    assert note in columns.notes_[0]


def test_identifiers_by_name_and_keep() -> None:
    table = pandas.DataFrame({"customer_id": [17, 4, 99, 5], "width": [17, 4, 99, 5]})
    assert names(Columns().fit(table)) == ["width"]
    assert names(Columns(keep=["customer_id"]).fit(table)) == ["customer_id", "width"]
    assert names(Columns(drop=["width"], keep=["customer_id"]).fit(table)) == ["customer_id"]


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(ValueError, match="a table with a column that can be learned from"):
        Columns().fit(pandas.DataFrame({"a": [1, 1, 1]}))
    with pytest.raises(ValueError, match=r"must be one of 'a'.*Got 'b'"):
        Columns(drop=["b"]).fit(pandas.DataFrame({"a": [1, 2, 1]}))


def test_other_tables() -> None:
    columns = Columns().fit(pandas.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3, 1, 1]}))
    with pytest.raises(ValueError, match="one without 'b'"):
        columns.transform(pandas.DataFrame({"a": [1.0]}))
    with pytest.raises(ValueError, match=r"column 'a' must be a column of numbers.*Got no number but 'tall'"):
        columns.transform(pandas.DataFrame({"a": ["tall"], "b": [1]}))
    other_order = pandas.DataFrame({"more": ["x"], "b": [1], "a": [2.0]})
    assert columns.transform(other_order).tolist() == [[2.0, 1.0]]


def test_saved_and_loaded() -> None:
    table = pandas.DataFrame(
        {"a": [1.0, None, 5.0], "c": ["b", "a", "b"], "t": pandas.to_datetime(["2020-01-01"] * 2 + [None])}
    )
    columns = Columns().fit(table)
    again = Columns.from_json(json.loads(json.dumps(columns.to_json())), "a file")
    assert (again.columns_, again.notes_) == (columns.columns_, columns.notes_)


@pytest.mark.parametrize("change", [{"used": 3}, {"used": [{"name": "a"}]}, {"notes": None}])
def test_damaged_descriptions(change: dict[str, object]) -> None:
    content = Columns().fit(pandas.DataFrame({"a": [1.0, 2.0]})).to_json()
    for damaged in (content | change, 3, None):
        with pytest.raises(ValueError, match=r"'model'.*does not describe columns"):
            Columns.from_json(damaged, "'model'")


# ---------------------------------------------------------------------- what cells are


@pytest.mark.parametrize(
    ("cells", "numbers", "note"),
    [
        (["1.234,5", "950", "2,25"], [1234.5, 950, 2.25], "'1.234,5' is read as 1234.5"),
        (["1,234.5", "950", "2.25"], [1234.5, 950, 2.25], "'1,234.5' is read as 1234.5"),
        (["1,234", "2,345", "950"], [1234, 2345, 950], "'1,234' is read as 1234"),
        (["0,123", "2,345", "950"], [0.123, 2.345, 950], "'0,123' is read as 0.123"),
        (["1.234", "12.345.678", "950"], [1234, 12345678, 950], ""),
        (["1.234", "12.345", "950"], [1234, 12345, 950], ""),  # text, as the file has decimal commas
        (["1.234", "0.5", "950"], [1.234, 0.5, 950], ""),
        ([" 7 ", "8", "-1e3"], [7, 8, -1000], ""),
    ],
)
def test_numbers_that_are_text(cells: list[str], numbers: list[float], note: str) -> None:
    table = pandas.DataFrame({"a": cells})
    columns = Columns().fit(table)
    assert columns.transform(table).ravel().tolist() == numbers
    assert note in columns.notes_[0]
    again = Columns.from_json(json.loads(json.dumps(columns.to_json())), "a file")
    assert again.transform(table).ravel().tolist() == numbers


@pytest.mark.parametrize(
    ("form", "note"),
    [
        ("%d.%m.%Y", "date, day first (%d.%m.%Y), as days"),
        ("%m/%d/%Y", "date, month first (%m/%d/%Y), as days"),
        ("%d/%m/%Y", "date, day first (%d/%m/%Y), as days"),
        ("%d/%m/%y", "date, day first (%d/%m/%y), as days"),
        ("%d-%b-%Y", "date (%d-%b-%Y), as days"),
        ("%B %d, %Y", "date (%B %d, %Y), as days"),
        ("%Y/%m/%d", "date (%Y/%m/%d), as days"),
        ("%d.%m.%Y %H:%M", "date, day first (%d.%m.%Y %H:%M), as days"),
        ("%Y-%m-%d", "date, as days"),
        ("%Y-%m-%dT%H:%M:%S", "date, as days"),
    ],
)
def test_forms_of_dates(form: str, note: str) -> None:
    days = pandas.date_range("2020-01-01", periods=60, freq="9D")
    table = pandas.DataFrame({"t": days.strftime(form)})
    columns = Columns().fit(table)
    assert columns.notes_ == (f"t: {note} [--date COLUMN=FORMAT, --drop]",)
    assert columns.transform(table).ravel().tolist() == (days - pandas.Timestamp(0)).days.tolist()
    # One row alone could be read in two ways; it is read as the table before.
    assert columns.transform(table[:1])[0, 0] == columns.transform(table)[0, 0]


def test_dates_that_could_be_read_in_two_ways() -> None:
    table = pandas.DataFrame({"t": ["01/02/2020", "03/04/2020", "05/06/2020"]})
    assert "month first (%m/%d/%Y), as days; %d/%m/%Y would fit as well" in Columns().fit(table).notes_[0]
    columns = Columns(date={"t": "%d/%m/%Y"}).fit(table)
    assert "day first" in columns.notes_[0]
    assert columns.transform(table)[0, 0] == 18293  # the first of February
    numbers = pandas.DataFrame({"t": [20200201, 20200403, None]})
    assert Columns(date={"t": "%Y%m%d"}).fit(numbers).transform(numbers)[0, 0] == 18293
    # "May" is short and long: no doubt about the day.
    may = pandas.DataFrame({"t": ["01 May 2020", "02 May 2020", "04 May 2020"]})
    assert "fit as well" not in Columns().fit(may).notes_[0]


@pytest.mark.parametrize(
    ("name", "values", "used"),
    [
        ("CustomerID", [17, 4, 99, 5], False),
        ("customer_nr", [17, 4, 99, 5], False),
        ("humidity", [17, 4, 99, 5], True),
        ("number", [17, 17, 99, 5], True),
        ("a", [10 * number + number % 3 for number in range(20)], False),  # in order
        ("a", [500 - 7 * number for number in range(20)], False),
        ("a", [number * 7 % 20 for number in range(20)], False),  # each once
        ("a", [*range(10), None, *range(11, 20)], False),
        ("a", [number / 2 for number in range(20)], True),  # no whole numbers
        ("a", [number * number % 19 for number in range(20)], True),
        ("a", [1, 2, 4], True),
        ("a", [1, 2, 3], False),
    ],
)
def test_numbers_of_rows(name: str, values: list[float], used: bool) -> None:
    table = pandas.DataFrame({name: values, "x": np.linspace(0, 1, len(values))})
    assert names(Columns().fit(table)) == ([name, "x"] if used else ["x"])
    assert names(Columns(keep=[name]).fit(table)) == [name, "x"]
    assert names(Columns(number=[name]).fit(table)) == [name, "x"]


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([40, 35, -999, 51], "-999"),
        ([40, 35, 9999, 9999, 51], "9999"),
        ([40, 35, 9999, 51], ""),  # one alone may be a large value
        ([-2000, 2000, -999, 51], ""),
        ([40, 35, 99, 51], ""),
    ],
)
def test_values_that_may_be_missing(values: list[int], marks: str) -> None:
    table = pandas.DataFrame({"a": values})
    note = Columns().fit(table).notes_[0]
    assert (f"missing? [--na {marks}]" in note) == bool(marks)
    columns = Columns(na=[marks or "nothing"]).fit(table)
    again = Columns.from_json(columns.to_json(), "a file")
    for one in (columns, again):
        assert (one.transform(table).max() < 100 and one.transform(table).min() > 0) == (
            bool(marks) or max(values) < 100
        )


def test_text_is_cleaned() -> None:
    cells = ["Zürich", "Zürich ", "Zu\u0308rich", "  ", "bern"] * 3
    table = pandas.DataFrame({"city": cells})
    columns = Columns().fit(table)
    assert names(columns) == ["city=Zürich", "city=bern"]
    assert columns.transform(table)[:5].tolist() == [[1, 0], [1, 0], [1, 0], [0, 0], [0, 1]]
    assert "3 missing values, 0 in all; 6 cells stripped of spaces or normalised" in columns.notes_[0]
    assert columns.unseen(pandas.DataFrame({"city": [" Zürich", "rom"]})) == [
        "city: not seen when it was learned: 'rom'"
    ]


def test_categories_that_are_numbers() -> None:
    table = pandas.DataFrame({"zip": [8001, 3011, 8001]})
    columns = Columns(category=["zip"]).fit(table)
    assert names(columns) == ["zip=8001", "zip=3011"]
    floats = pandas.DataFrame({"zip": [8001.0, None]})
    assert columns.transform(floats).tolist() == [[1, 0], [0, 0]]


def test_levels_of_older_files_may_have_spaces() -> None:
    entry = {"name": "c", "kind": "category", "fill": 0.0, "levels": ["a", "a "], "others": False}
    columns = Columns.from_json({"used": [entry], "notes": []}, "a file")
    table = pandas.DataFrame({"c": ["a", "a ", " a"]})
    assert columns.transform(table).tolist() == [[1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    "change", [{"form": "%Q"}, {"form": "\x00%"}, {"decimal": ";"}, {"kind": "text"}, {"fill": np.inf}]
)
def test_columns_that_cannot_be(change: dict[str, object]) -> None:
    content = Columns().fit(pandas.DataFrame({"a": [1.0, 2.0]})).to_json()
    content["used"][0] |= change
    with pytest.raises(ValueError, match="does not describe columns"):
        Columns.from_json(content, "a file")


# ---------------------------------------------------------------------- as a transformer


@pytest.fixture
def customers() -> tuple[pandas.DataFrame, list[str]]:
    random = np.random.default_rng(0)
    labels = ["a", "b"] * 20
    table = pandas.DataFrame({"size": random.normal(size=40), "city": [f"{x} " for x in labels], "id": range(40)})
    return table, labels


def test_learners_point_to_it(customers: tuple[pandas.DataFrame, list[str]]) -> None:
    for cls in (askew.DivergenceLearner, askew.DivergenceNeighborsClassifier):
        hint = rf"make_pipeline\(askew.Columns\(\), askew.{cls.__name__}\(\)\)"
        with pytest.raises(ValueError, match=rf"must be a table of numbers\. Got column 'city'.*{hint}"):
            cls().fit(*customers)
    learner = askew.DivergenceLearner("euclidean", encoder=None)
    numbers = pandas.DataFrame({"a": customers[0]["size"].astype(object), "b": customers[0]["id"].astype("Int64")})
    assert learner.fit(numbers, customers[1]).n_features_in_ == 2
    with pytest.raises(ValueError, match="Got column 'city'"):
        learner.pairwise(customers[0][["size", "city"]])


def test_in_a_pipeline_and_saved(customers: tuple[pandas.DataFrame, list[str]], tmp_path: Path) -> None:
    table, labels = customers
    pipeline = make_pipeline(Columns(drop=["size"]), askew.DivergenceLearner("euclidean", encoder=None))
    assert pipeline.fit(table, labels).score(table, labels) == 1
    assert cross_val_score(pipeline, table, labels, cv=2).tolist() == [1, 1]
    askew.save(pipeline, tmp_path)
    again = askew.load(tmp_path)
    assert again.score(table, labels) == 1
    np.testing.assert_array_equal(again.transform(table), pipeline.transform(table))
    assert again[0].notes_ == pipeline[0].notes_
    assert again[0].get_params() == pipeline[0].get_params()
    askew.save(pipeline[0], tmp_path)
    assert askew.load(tmp_path).columns_ == pipeline[0].columns_
    with pytest.raises((TypeError, ValueError), match="StandardScaler"):
        askew.save(make_pipeline(StandardScaler(), askew.DivergenceLearner()), tmp_path)


def test_interface_of_scikit_learn(customers: tuple[pandas.DataFrame, list[str]]) -> None:
    table, _ = customers
    columns = clone(Columns(category=["city"])).set_output(transform="pandas")
    assert list(columns.fit_transform(table).columns) == ["size", "city=a", "city=b"]
    assert columns.feature_names_in_.tolist() == ["size", "city", "id"]
    with pytest.raises(NotFittedError):
        Columns().transform(table)
    with pytest.raises(TypeError, match=r"X of Columns must be a pandas\.DataFrame\. Got list"):
        columns.fit([[1.0]])  # type: ignore[arg-type]
