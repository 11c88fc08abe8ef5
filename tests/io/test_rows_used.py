"""Training, search and clustering from the disk come to what they come to in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import askew
from askew.io import Rows

POINTS = np.random.RandomState(0).rand(500, 3).astype(np.float32) + 0.1
LABELS = (POINTS[:, 0] > 0.6).astype(np.int64)


def mapped(folder: Path, name: str, array: NDArray[Any]) -> NDArray[Any]:
    np.save(folder / name, array)
    found: NDArray[Any] = np.load(folder / name, mmap_mode="r")
    return found


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mapped_arrays_train_as_arrays_do(dtype: type, tmp_path: Path) -> None:
    data = (POINTS.astype(dtype), LABELS)
    files = (mapped(tmp_path, "points.npy", data[0]), mapped(tmp_path, "labels.npy", data[1]))
    weights = []
    for source in (data, files):
        torch.manual_seed(0)
        model = askew.NeuralBregman(3)
        askew.fit(model, source, askew.losses.AllTriplets(0.2), epochs=2, seed=0, device="cpu")
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)


def test_a_mapped_array_with_a_gap_is_said(tmp_path: Path) -> None:
    points = POINTS.copy()
    points[400, 2] = np.nan
    files = (mapped(tmp_path, "points.npy", points), LABELS)
    with pytest.raises(ValueError, match=r"points\[400, 2\] = nan"):
        askew.fit(askew.NeuralBregman(3), files, askew.losses.AllTriplets(0.2), epochs=1, device="cpu")


# ---------------------------------------------------------------------- search


@pytest.mark.parametrize("make", [askew.search.ExactIndex, askew.search.FaissIndex])
def test_an_index_of_blocks_is_that_of_the_table(make: type[Any], tmp_path: Path) -> None:
    whole, blocks, more = make("kl"), make("kl"), make("kl")
    whole.add(POINTS)
    blocks.add_blocks(Rows(POINTS).blocks(64))
    more.add(POINTS[:100])
    more.add_blocks(Rows(POINTS[100:]))
    wanted = whole.search(POINTS[:20], 5)
    for index in (blocks, more):
        assert len(index) == 500
        for mine, theirs in zip(index.search(POINTS[:20], 5), wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    blocks.add(POINTS[:1])
    assert len(blocks) == 501


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw", "ivf-pq"])
def test_items_in_a_file(kind: str, tmp_path: Path) -> None:
    points = np.random.RandomState(1).rand(3000, 4).astype(np.float32) + 0.1
    folder = tmp_path / "scratch"
    folder.mkdir()
    index = askew.search.FaissIndex("kl", kind=kind, scratch=folder)
    plain = askew.search.FaissIndex("kl", kind=kind)
    for one in (index, plain):
        one.add_blocks(Rows(points).blocks(700))
        one.remove(np.arange(0, 1500, 2))
        one.add(points[:100])
    if sys.platform == "linux":
        assert str(folder) in Path("/proc/self/maps").read_text()
    assert list(folder.iterdir()) == []
    wanted = plain.search(points[:20], 5)
    for mine, theirs in zip(index.search(points[:20], 5), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    index.save(tmp_path / "index")
    again = askew.search.FaissIndex.load(tmp_path / "index")
    np.testing.assert_array_equal(again.search(points[:20], 5)[1], index.search(points[:20], 5)[1])


def test_a_bad_block_leaves_an_empty_index_empty() -> None:
    index = askew.search.ExactIndex("kl")
    with pytest.raises(ValueError, match="finite"):
        index.add_blocks([POINTS[:10], np.full((3, 3), np.nan)])
    assert len(index) == 0
    index.add_blocks([])
    assert len(index) == 0
    index.add_blocks([POINTS[:10, :2]])  # a name stands for any number of features still
    assert len(index) == 10


def test_a_scratch_folder_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="a folder that exists"):
        askew.search.FaissIndex("kl", scratch=tmp_path / "nowhere")


# ---------------------------------------------------------------------- clustering


def test_clustering_block_by_block(tmp_path: Path) -> None:
    centres = np.array([[0.1, 1.0], [1.0, 0.1], [1.0, 1.0]])
    random = np.random.RandomState(0)
    numbers = random.randint(3, size=3000)
    points = centres[numbers] * random.gamma(100, 0.01, (3000, 2))
    np.save(tmp_path / "points.npy", points)
    kmeans = askew.BregmanKMeans(3, divergence="itakura-saito", random_state=0)
    for block in Rows(tmp_path / "points.npy", dtype=np.float64).blocks(250):
        kmeans.partial_fit(block)
    found = kmeans.cluster_centers_[np.argsort(kmeans.cluster_centers_ @ [1, 2])]
    wanted = centres[np.argsort(centres @ [1, 2])]
    np.testing.assert_allclose(found, wanted, rtol=0.05)
