"""Search among dask's blocks finds what one exact search finds."""

from __future__ import annotations

import numpy as np
import pytest

import askew
from askew.search import ExactIndex, search_blocks

da = pytest.importorskip("dask.array", reason='dask is not installed: pip install "askew[dask]"')
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


@pytest.mark.parametrize(
    ("items", "k", "error", "words"),
    [
        (np.zeros((3, 2)), 1, TypeError, "a dask array of shape"),
        (da.zeros((3, 2)), 4, ValueError, "k of search_blocks must be at most 3"),
        (da.zeros((3, 2))[da.zeros(3) == 0], 1, ValueError, "compute_chunk_sizes"),
    ],
)
def test_bad_input(items: object, k: int, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        search_blocks("euclidean", items, [[0.0, 0.0]], k)
