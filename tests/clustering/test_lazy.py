"""K-means of dask's data finds what it finds in memory, without bringing the data together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import askew
from askew.clustering import lazy
from askew.encoders import MLP

da = pytest.importorskip("dask.array", reason='dask is not installed: pip install "askew[dask]"')
dask = pytest.importorskip("dask")


@pytest.fixture(autouse=True)
def one_thread_for_tasks() -> object:
    with dask.config.set(scheduler="synchronous"):
        yield


def points(n: int = 400, dim: int = 3, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.gamma(2.0, np.repeat([[1.0], [5.0], [20.0], [60.0]], n // 4, axis=0), size=(n, dim)) + 0.1


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("name", ["euclidean", "itakura-saito", "kl"])
def test_same_centres_as_in_memory_from_the_same_start(name: str, dual: bool) -> None:
    X = points()
    start = X[[0, 100, 200, 300]]
    options = {"divergence": name, "init": start, "dual": dual, "tol": 0.0}
    local = askew.BregmanKMeans(4, **options).fit(X)
    found = askew.BregmanKMeans(4, **options).fit(da.from_array(X, chunks=(70, 2)))
    np.testing.assert_allclose(found.cluster_centers_, local.cluster_centers_, rtol=1e-9)
    np.testing.assert_array_equal(found.labels_.compute(), local.labels_)
    assert found.inertia_ == pytest.approx(local.inertia_, rel=1e-9)
    np.testing.assert_allclose(found.counts_, local.counts_)
    np.testing.assert_allclose(found.transform(da.from_array(X, chunks=(50, 3))).compute(), local.transform(X))


def test_weights_are_rows_that_come_again() -> None:
    X = points(80)
    weights = np.random.default_rng(1).integers(0, 3, size=80).astype(float)
    start = X[[0, 20, 40, 60]]
    twice = askew.BregmanKMeans(4, init=start, tol=0.0).fit(np.repeat(X, weights.astype(int), axis=0))
    lazily = askew.BregmanKMeans(4, init=start, tol=0.0)
    lazily.fit(da.from_array(X, chunks=(30, 3)), sample_weight=da.from_array(weights, chunks=17))
    np.testing.assert_allclose(lazily.cluster_centers_, twice.cluster_centers_, rtol=1e-9)
    assert lazily.counts_.sum() == weights.sum()


def test_learned_divergence_behind_an_encoder() -> None:
    torch.manual_seed(0)
    model = askew.Embedded(MLP(3, 2, (8,)), askew.NeuralBregman(2)).double().eval()
    X = np.log(points())
    start = X[[0, 100, 200, 300]]
    local = askew.BregmanKMeans(4, divergence=model, init=start, tol=0.0).fit(X)
    found = askew.BregmanKMeans(4, divergence=model, init=start, tol=0.0).fit(da.from_array(X, chunks=(90, 3)))
    np.testing.assert_allclose(found.cluster_centers_, local.cluster_centers_, rtol=1e-6, atol=1e-9)
    assert (found.predict(X) == found.labels_.compute()).all()


def test_start_is_good_and_repeats_itself() -> None:
    X = da.from_array(points(), chunks=(64, 3))
    first, second = (askew.BregmanKMeans(4, divergence="itakura-saito", random_state=3).fit(X) for _ in range(2))
    np.testing.assert_array_equal(first.cluster_centers_, second.cluster_centers_)
    local = askew.BregmanKMeans(4, divergence="itakura-saito", random_state=3, n_init=5).fit(points())
    assert first.inertia_ < 1.3 * local.inertia_
    several = askew.BregmanKMeans(4, divergence="itakura-saito", random_state=3, n_init=4).fit(X)
    assert several.inertia_ <= first.inertia_


def test_empty_clusters_get_far_points() -> None:
    X = points(40)
    start = np.concatenate([X[[0, 10, 20]], [[1e6, 1e6, 1e6]]])
    found = askew.BregmanKMeans(4, init=start).fit(da.from_array(X, chunks=(9, 3)))
    assert (found.counts_ > 0).all()


def test_data_frames() -> None:
    dd = pytest.importorskip("dask.dataframe")
    import pandas

    frame = pandas.DataFrame(points(), columns=list("abc"))
    start = points()[[0, 100, 200, 300]]
    local = askew.BregmanKMeans(4, init=start, tol=0.0).fit(frame.to_numpy())
    found = askew.BregmanKMeans(4, init=start, tol=0.0).fit(dd.from_pandas(frame, npartitions=5))
    np.testing.assert_allclose(found.cluster_centers_, local.cluster_centers_, rtol=1e-9)
    assert list(found.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_array_equal(found.labels_.compute(), local.labels_)


def test_no_task_sees_more_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    frame = lazy.Lens.frame

    def watched(lens: lazy.Lens, block: np.ndarray) -> object:
        seen.append(len(block))
        return frame(lens, block)

    monkeypatch.setattr(lazy.Lens, "frame", watched)
    askew.BregmanKMeans(4, random_state=0, max_iter=3).fit(da.from_array(points(), chunks=(50, 3)))
    assert max(seen) == 50


@pytest.mark.parametrize(
    ("X", "options", "words"),
    [
        (da.zeros((5,)), {}, r"a dask array of numbers of shape \(n, dim\)"),
        (da.ones((5, 2)), {"batch_size": 3}, "batch_size of BregmanKMeans must be None for dask's data"),
        (da.ones((5, 2)), {"init": "random-partition"}, "init of BregmanKMeans of dask's data must be one of"),
        (da.ones((2, 2)), {}, "n_clusters of BregmanKMeans must be at most the number of points, n_samples=2"),
        (-da.ones((5, 2)), {"divergence": "kl"}, "positive"),
        (da.full((5, 2), np.nan), {}, "finite"),
    ],
)
def test_bad_input(X: object, options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        askew.BregmanKMeans(3, **options).fit(X)


def test_saved_without_labels_that_are_not_computed(tmp_path: Path) -> None:
    X = da.from_array(points(), chunks=(50, 3))
    fitted = askew.BregmanKMeans(3, random_state=0).fit(X)
    askew.save(fitted, tmp_path / "model")
    again = askew.load(tmp_path / "model")
    assert not hasattr(again, "labels_")
    np.testing.assert_array_equal(again.predict(X).compute(), fitted.labels_.compute())


def test_two_workers_that_are_killed() -> None:
    """What is lost with one worker, and later with both, is made again, and the centres are those found in memory."""
    pytest.importorskip("distributed")
    script = Path(__file__).with_name("cluster_of_workers.py")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["gone"] >= 2
    assert found["iterations"] > 6
    assert found["difference"] < 1e-8
    assert found["labels"] == 0


@pytest.mark.parametrize("encoded", [False, True])
def test_blocks_without_rows(encoded: bool) -> None:
    """As a filter leaves them, the first among them."""
    torch.manual_seed(0)
    model = askew.Embedded(MLP(3, 2, (8,)), askew.NeuralBregman(2)).double().eval() if encoded else "euclidean"
    X = points()
    lazily = da.from_array(X, chunks=(50, 3))[da.from_array(np.arange(400) >= 100, chunks=50)]
    start = X[[100, 200, 300]]
    local = askew.BregmanKMeans(3, divergence=model, init=start, tol=0.0).fit(X[100:])
    found = askew.BregmanKMeans(3, divergence=model, init=start, tol=0.0).fit(lazily)
    np.testing.assert_allclose(found.cluster_centers_, local.cluster_centers_, rtol=1e-6, atol=1e-9)
    assert found.inertia_ == pytest.approx(local.inertia_, rel=1e-6)
    np.testing.assert_array_equal(found.labels_.compute(), local.labels_)
    assert found.transform(lazily).compute().shape == (300, 3)
    assert found.score(lazily) == pytest.approx(-found.inertia_)
    assert askew.BregmanKMeans(3, divergence=model, random_state=0).fit(lazily).counts_.sum() == 300
