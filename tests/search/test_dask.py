"""Search among dask's blocks finds what one exact search finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import askew
from askew.search import ExactIndex, search_blocks

da = pytest.importorskip("dask.array", reason='dask is not installed: pip install ".[dask]"')
dask = pytest.importorskip("dask")


@pytest.fixture(autouse=True)
def one_thread_for_tasks() -> object:
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.parametrize("direction", ["query-first", "query-second"])
@pytest.mark.parametrize("chunks", [(1000, 4), (37, 2), (3, 4)])
def test_finds_what_one_search_finds(direction: str, chunks: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    items, queries = random.gamma(2.0, size=(300, 4)) + 0.1, random.gamma(2.0, size=(7, 4)) + 0.1
    index = ExactIndex("kl", direction)
    index.add(items)
    expected = index.search(queries, 9)
    found = search_blocks("kl", da.from_array(items, chunks=chunks), queries, k=9, direction=direction)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)


def test_learned_model() -> None:
    random = np.random.default_rng(0)
    model = askew.NeuralBregman(3).double().eval()
    items = random.normal(size=(100, 3))
    values, places = search_blocks(model, da.from_array(items, chunks=(40, 3)), items[:5], k=1)
    np.testing.assert_array_equal(places[:, 0], np.arange(5))
    np.testing.assert_array_equal(values, 0)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_the_first_bad_item_is_named_whichever_block_is_first_in_time(scheduler: str) -> None:
    items = np.ones((40, 3))
    items[[13, 25, 31], [1, 0, 2]] = np.nan
    words = r"Got items\[3, 1\] = nan instead\..* Rows are counted from row 10, where block 1 begins\."
    with dask.config.set(scheduler=scheduler):
        for _ in range(5):
            with pytest.raises(ValueError, match=words):
                search_blocks("euclidean", da.from_array(items, chunks=(10, 3)), items[:2])


@pytest.mark.parametrize(
    ("items", "k", "error", "words"),
    [
        (np.zeros((3, 2)), 1, TypeError, "a dask array of shape"),
        (dask.delayed(np.zeros)((3, 2)), 1, TypeError, "a dask array of shape"),
        (da.zeros((3, 2)), 4, ValueError, "k of search_blocks must be at most 3"),
        (da.zeros((3, 2))[da.zeros(3) == 0], 4, ValueError, "k of search_blocks must be at most 3"),
        (da.zeros((3, 2))[da.zeros(3) == 1], 1, ValueError, "k of search_blocks must be at most 0"),
        (
            da.zeros((3, 2), dtype=complex),
            1,
            TypeError,
            "items of search_blocks must be real numbers. Got .*complex128",
        ),
        (da.full((3, 2), np.nan), 1, ValueError, r"items of ExactIndex must be finite. Got items\[0, 0\] = nan"),
        (da.ma.masked_equal(da.zeros((3, 2)), 0), 1, ValueError, "points must be without masked entries"),
    ],
)
def test_bad_input(items: object, k: int, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        search_blocks("euclidean", items, [[0.0, 0.0]], k)


def test_blocks_of_unknown_lengths() -> None:
    """As a filter leaves them, some without a row; the numbers are those of the rows that are left."""
    random = np.random.default_rng(0)
    items, queries = random.normal(size=(2, 300, 4)).astype(np.float32)
    kept = np.arange(300) % 90 > 50
    index = ExactIndex("euclidean")
    index.add(items[kept])
    expected = index.search(queries, 5)
    lazily = da.from_array(items, chunks=(30, 4))[da.from_array(kept, chunks=30)]
    found = search_blocks("euclidean", lazily, queries, 5)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    assert found[0].dtype == np.float32


def test_tensors_as_queries() -> None:
    items = da.from_array(np.arange(6.0)[:, None], chunks=(4, 1))
    queries = torch.tensor([[4.2]], dtype=torch.bfloat16, requires_grad=True)
    assert search_blocks("euclidean", items, queries, 1)[1].tolist() == [[4]]


# ---------------------------------------------------------------------- what blocks may be of


def frames(points: np.ndarray, parts: int) -> object:
    dd = pytest.importorskip("dask.dataframe")
    import pandas

    names = [f"c{number}" for number in range(points.shape[1])]
    return dd.from_pandas(pandas.DataFrame(points, columns=names), npartitions=parts)


def test_data_frames() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3))
    np.testing.assert_array_equal(search_blocks("euclidean", frames(x, 4), x[:9], 1)[1][:, 0], np.arange(9))


def test_data_frames_that_do_not_fit() -> None:
    numbers = frames(np.zeros((6, 2)), 2)
    with pytest.raises(TypeError, match=r"items of search_blocks must be columns of numbers\. Got column 'day' of"):
        search_blocks("euclidean", numbers.assign(day="Monday"), [[0.0, 0.0]], 1)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="items of search_blocks must be a dask array of shape"):
        search_blocks("euclidean", numbers["c0"], [[0.0]], 1)  # type: ignore[index]


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint16, np.uint8])
def test_tokens_stay_integers(kind: type) -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Embedding(10, 3), nn.Flatten())
    model = askew.Embedded(encoder, askew.make("euclidean", 6)).requires_grad_(False)
    x, y = np.random.default_rng(0).integers(0, 10, size=(2, 20, 2))
    items = da.from_array(x.astype(kind), chunks=(7, 2))
    index = ExactIndex(model)
    index.add(x.astype(kind))
    found = search_blocks(model, items, y[:5].astype(kind), 3)
    truth = index.search(torch.from_numpy(y[:5]), 3)
    np.testing.assert_array_equal(found[1], truth[1])
    np.testing.assert_allclose(found[0], truth[0], rtol=1e-5)


def test_two_workers_of_which_one_is_killed() -> None:
    """What is lost with it is made again, and the answers are those of one process."""
    pytest.importorskip("distributed")
    script = Path(__file__).with_name("dask_workers.py")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["gone"] == 1
    assert found["values"] < 1e-12
    assert found["places"] == 0
