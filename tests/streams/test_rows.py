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

from askew.streams import Rows

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


def test_what_is_no_table_is_said(tmp_path: Path) -> None:
    good = npy(tmp_path)
    cut = tmp_path / "cut.npy"
    cut.write_bytes(good.read_bytes()[:-50])
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    gaps = tmp_path / "gaps.parquet"
    pandas.DataFrame({"a": [1.0, None]}).to_parquet(gaps)
    words = tmp_path / "words.parquet"
    pandas.DataFrame({"a": ["x"]}).to_parquet(words)
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 nothing PAR1")
    empty = tmp_path / "empty"
    empty.mkdir()
    for source, error, text in (
        (tmp_path / "none.npy", FileNotFoundError, "files that exist"),
        (empty, FileNotFoundError, "a folder with files"),
        (cut, ValueError, r"whole \.npy file"),
        (objects, ValueError, r"whole \.npy file"),
        (words, ValueError, "of numbers"),
        (damaged, ValueError, "whole Parquet file"),
        (np.zeros((0, 3)), ValueError, "at least one row"),
        (np.zeros((2, 2, 2)), ValueError, "vector or a matrix"),
        (3, TypeError, "a file, a folder"),
        ([], TypeError, "a file, a folder"),
        ([good, gaps], ValueError, "same columns"),
    ):
        with pytest.raises(error, match=text):
            Rows(source)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without gaps"):
        Rows(gaps).read(0, 2)
    with pytest.raises(ValueError, match="numbers from 0 to 3"):
        Rows(good, [4])
    with pytest.raises(ValueError, match="names of columns"):
        Rows(gaps, ["b"])
    with pytest.raises(ValueError, match="range within"):
        Rows(good).read(3, 104)
