"""Columns become features by rules that the notes say, and later tables are encoded by the same rules."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pandas
import pytest

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
