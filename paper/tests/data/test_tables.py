"""Tables from the publishers' files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from askew_paper.data import load_table, table_names
from sklearn.datasets import load_wine

SHAPES = {
    "iris": (150, 4, 3),
    "wine": (178, 13, 3),
    "balance": (625, 4, 3),
    "transfusion": (748, 4, 2),
    "car": (1728, 6, 2),
    "abalone": (4177, 7, 6),
}
published = pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="ASKEW_DATA does not name a folder of data")


@published
@pytest.mark.parametrize("name", table_names())
def test_published_files(name: str) -> None:
    table = load_table(name)
    rows, dim, classes = SHAPES[name]
    assert table.points.shape == (rows, dim)
    assert np.isfinite(table.points).all()
    assert table.labels.shape == (rows,)
    assert len(np.unique(table.labels)) == classes


@published
@pytest.mark.parametrize("name", ["iris", "wine"])
def test_scikit_learn_gives_the_same_table(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = load_table(name)
    monkeypatch.delenv("ASKEW_DATA")
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path))
    np.testing.assert_allclose(load_table(name).points, table.points)
    np.testing.assert_array_equal(load_table(name).labels, table.labels)


@published
def test_coding_of_car_and_abalone() -> None:
    car = load_table("car")
    assert sorted(np.unique(car.labels)) == ["acc", "unacc"]
    assert (car.labels == "unacc").sum() == 1210
    assert [len(np.unique(column)) for column in car.points.T] == [4, 4, 4, 3, 3, 3]
    counts = np.bincount(load_table("abalone").labels)
    assert counts.min() > 300  # rings are whole numbers, so that the bins cannot be equal


def test_without_files_the_small_ones_come_from_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path))
    np.testing.assert_array_equal(load_table("wine").points, load_wine().data)
    with pytest.raises(FileNotFoundError, match=r"car\.data must be in a folder that .* ASKEW_DATA names.*Download it"):
        load_table("car")


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"name of a table must be one of 'iris'.*Did you mean 'wine'"):
        load_table("wines")
    with pytest.raises(FileNotFoundError, match=r"iris\.data must be in"):
        load_table("iris", tmp_path)
    for folder in (tmp_path, tmp_path / "uci"):
        folder.mkdir(exist_ok=True)
        (folder / "iris.data").write_text("1,2,3,4,a\n" * 150, "utf-8")
        with pytest.raises(ValueError, match=r"iris\.data' must be the published file, of sha256:.* Got another one"):
            load_table("iris", tmp_path)
