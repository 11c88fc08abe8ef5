"""Rows of files are those of the arrays they were made from, whatever the files and the ranges are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from askew.io import Rows

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

POINTS = np.random.RandomState(0).rand(103, 4).astype(np.float32)


def npy(folder: Path, points: NDArray[Any] = POINTS) -> Path:
    np.save(folder / "points.npy", points)
    return folder / "points.npy"


def parquet(folder: Path, points: NDArray[Any] = POINTS) -> Path:
    frame = pandas.DataFrame(points, columns=list("abcd"))
    frame.to_parquet(folder / "points.parquet", row_group_size=10)
    return folder / "points.parquet"


def several(folder: Path, points: NDArray[Any] = POINTS) -> Path:
    for number, part in enumerate(np.array_split(points, 3)):
        np.save(folder / f"part-{number}.npy", part)
    return folder


WRITERS = {"npy": npy, "parquet": parquet, "folder": several}


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> Callable[[Path], Path]:
    return WRITERS[request.param]


def test_blocks_are_the_table(writer: Callable[[Path], Path], tmp_path: Path) -> None:
    rows = Rows(writer(tmp_path))
    assert rows.shape == POINTS.shape
    for size in (1, 7, 10, 103, 1000, None):
        blocks = list(rows.blocks(size))
        np.testing.assert_array_equal(np.concatenate(blocks), POINTS)
        assert all(len(block) == size for block in blocks[:-1])


@given(st.integers(0, 103), st.integers(0, 103))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_range(first: int, second: int) -> None:
    import tempfile

    start, stop = sorted((first, second))
    with tempfile.TemporaryDirectory() as folder:
        for writer in WRITERS.values():
            place = Path(folder) / writer.__name__
            place.mkdir()
            np.testing.assert_array_equal(Rows(writer(place)).read(start, stop), POINTS[start:stop])


def test_columns_are_chosen_and_ordered(tmp_path: Path) -> None:
    np.testing.assert_array_equal(Rows(parquet(tmp_path), ["d", "b"]).read(5, 40), POINTS[5:40][:, [3, 1]])
    np.testing.assert_array_equal(Rows(parquet(tmp_path), "c").read(5, 40), POINTS[5:40, 2])
    np.testing.assert_array_equal(Rows(npy(tmp_path), [3, 1]).read(5, 40), POINTS[5:40][:, [3, 1]])
    np.testing.assert_array_equal(Rows(npy(tmp_path), 2).read(5, 40), POINTS[5:40, 2])


def test_integers_stay_and_other_numbers_become_float32(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"label": np.arange(9), "flag": np.arange(9) > 3, "value": np.arange(9.0)})
    frame.to_parquet(tmp_path / "t.parquet")
    assert Rows(tmp_path / "t.parquet", "label").read(0, 9).dtype == np.int64
    assert Rows(tmp_path / "t.parquet", "flag").read(0, 9).dtype == np.float32
    assert Rows(tmp_path / "t.parquet").read(0, 9).dtype == np.float32
    assert Rows(tmp_path / "t.parquet", "value", dtype=np.float64).read(0, 9).dtype == np.float64


def test_files_follow_the_columns_of_the_first(tmp_path: Path) -> None:
    frame = pandas.DataFrame(POINTS[:6], columns=list("abcd"))
    frame[:3].to_parquet(tmp_path / "1.parquet")
    frame[3:][["d", "b", "a", "c"]].to_parquet(tmp_path / "2.parquet", index=False)
    np.testing.assert_array_equal(Rows(tmp_path).read(0, 6), POINTS[:6])
    np.testing.assert_array_equal(Rows(tmp_path, ["b", "d"]).read(0, 6), POINTS[:6, [1, 3]])
    frame[3:].rename(columns={"c": "e"}).to_parquet(tmp_path / "3.parquet")
    with pytest.raises(ValueError, match=r"columns that '.*3\.parquet' has once.*'e', 'd'\. Got 'c'"):
        Rows(tmp_path)
    assert Rows(tmp_path, ["b", "d"]).shape == (9, 2)
    frame.assign(e=0.0).to_parquet(tmp_path / "3.parquet")
    with pytest.raises(ValueError, match=r"columns that '.*3\.parquet' has once.*Got 'e'"):
        Rows(tmp_path)


def test_two_columns_of_one_name_are_said(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table([[1.0], [2.0], [3.0]], names=["a", "a", "b"]), tmp_path / "a.parquet")
    for columns in (None, "a"):
        with pytest.raises(ValueError, match=r"has once.*Got 'a'"):
            Rows(tmp_path / "a.parquet", columns)
    assert Rows(tmp_path / "a.parquet", "b").read(0, 1).tolist() == [3.0]


def test_a_group_that_has_other_rows_than_it_says(tmp_path: Path) -> None:
    """The rows of a page are also stated in its header, and readers trust it."""
    import pyarrow
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    schema = pyarrow.schema([pyarrow.field("a", pyarrow.float32(), nullable=False)])
    table = pyarrow.table({"a": np.zeros(60, np.float32)}, schema=schema)
    parquet.write_table(table, file, compression="none", use_dictionary=False, write_statistics=False)
    content = file.read_bytes()
    place = content.index(b"\x15\x78", content.index(b"PAR1") + 4)  # 60 as it is written there
    file.write_bytes(content[:place] + b"\x15\x10" + content[place + 2 :])
    with pytest.raises(ValueError, match="whole Parquet file"):
        Rows(file).read(0, 60)


@pytest.mark.parametrize(
    ("values", "dtype", "words"),
    [
        (np.array([1, 2**40, -1]), np.int32, "row 1 of .* must be of numbers that int32 holds. Got 1099511627776"),
        (np.array([1, 2, -1]), np.uint64, "row 2 of .* must be of numbers that uint64 holds. Got -1"),
        (np.array([1.0, 2.0, np.nan]), np.uint8, "row 2 of .* uint8 holds. Got nan"),
        (np.array([1.0, 300.0, 2.0]), np.uint8, "row 1 of .* uint8 holds. Got 300.0"),
        (np.array([1.7, 1.0]), np.int64, "row 0 of .* int64 holds. Got 1.7"),
        (np.array([1.0, -1e300]), None, "row 1 of .* float32 holds. Got -1e.300.*Pass dtype=numpy.float64 to Rows"),
        (np.array([1, 70000]), np.float16, "row 1 of .* float16 holds. Got 70000"),
    ],
)
def test_numbers_that_a_dtype_does_not_hold_are_said(
    values: NDArray[Any], dtype: type | None, words: str, tmp_path: Path
) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.table({"a": values}), tmp_path / "a.parquet", row_group_size=2
    )  # pandas reads nan as missing
    np.save(tmp_path / "a.npy", np.stack([values, values], 1))
    for rows in (
        Rows(values, dtype=dtype),
        Rows(tmp_path / "a.npy", dtype=dtype),
        Rows(tmp_path / "a.parquet", "a", dtype=dtype),
        Rows(tmp_path / "a.parquet", dtype=dtype),
    ):
        with pytest.raises(ValueError, match=words):
            rows.read(0, len(rows))


def test_numbers_that_a_dtype_holds_stay(tmp_path: Path) -> None:
    assert Rows(np.array([1.0, -3.0]), dtype=np.int8).read(0, 2).tolist() == [1, -3]
    assert Rows(np.array([0.1, np.inf, np.nan])).read(1, 3).tolist()[0] == np.inf
    # Neither numbers of the other column nor other files make floats of integers.
    large = np.array([2**53 + 1, 5])
    pandas.DataFrame({"a": large, "b": large.astype(np.uint64), "c": [0.5, 1.0]}).to_parquet(tmp_path / "a.parquet")
    assert Rows(tmp_path / "a.parquet", ["a", "b"]).read(0, 1).tolist() == [[2**53 + 1] * 2]
    with pytest.raises(ValueError, match=r"row 0 of .* int64 holds\. Got 0\.5"):
        Rows(tmp_path / "a.parquet", dtype=np.int64).read(0, 1)
    assert Rows(tmp_path / "a.parquet", ["a", "c"], dtype=np.int64).read(1, 2).tolist() == [[5, 1]]


def test_masked_entries_are_said() -> None:
    masked = np.ma.masked_array([1.0, 999.0], mask=[False, True])
    with pytest.raises(ValueError, match=r"the array given to Rows must be without masked entries\. Got 1 of 2"):
        Rows(masked)
    assert Rows(masked[:1]).read(0, 1).tolist() == [1.0]


def test_what_is_no_table_is_said(tmp_path: Path) -> None:
    good = npy(tmp_path)
    cut = tmp_path / "cut.npy"
    cut.write_bytes(good.read_bytes()[:-50])
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    incomplete = tmp_path / "incomplete.parquet"
    pandas.DataFrame({"a": [1.0, None]}).to_parquet(incomplete)
    words = tmp_path / "words.parquet"
    pandas.DataFrame({"a": ["x"]}).to_parquet(words)
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 nothing PAR1")
    empty = tmp_path / "empty"
    empty.mkdir()
    for source, error, text in (
        (tmp_path / "none.npy", FileNotFoundError, "files that exist"),
        (empty, FileNotFoundError, "files that exist and end in .npy or .parquet"),
        (cut, ValueError, r"whole \.npy file"),
        (objects, ValueError, r"whole \.npy file"),
        (words, ValueError, "of numbers"),
        (damaged, ValueError, "whole Parquet file"),
        (np.zeros((0, 3)), ValueError, "at least one row"),
        (np.zeros((2, 2, 2)), ValueError, "vector or a matrix"),
        (3, TypeError, "a file, a folder"),
        ([], TypeError, "a file, a folder"),
        ([good, incomplete], ValueError, "same columns"),
    ):
        with pytest.raises(error, match=text):
            Rows(source)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without missing values"):
        Rows(incomplete).read(0, 2)
    with pytest.raises(ValueError, match=r"numbers of columns of .*of shape \(103, 4\)"):
        Rows(good, [4])
    with pytest.raises(ValueError, match="names of columns"):
        Rows(incomplete, ["b"])
    with pytest.raises(ValueError, match="range within"):
        Rows(good).read(3, 104)
