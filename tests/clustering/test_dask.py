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
from askew.clustering import dask as blockwise
from askew.encoders import MLP

da = pytest.importorskip("dask.array", reason='dask is not installed: pip install ".[dask]"')
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
    view = blockwise.BlockContext.view

    def watched(context: blockwise.BlockContext, block: np.ndarray) -> object:
        seen.append(len(block))
        return view(context, block)

    monkeypatch.setattr(blockwise.BlockContext, "view", watched)
    askew.BregmanKMeans(4, random_state=0, max_iter=3).fit(da.from_array(points(), chunks=(50, 3)))
    assert max(seen) == 50


@pytest.mark.parametrize(
    ("X", "options", "words"),
    [
        (da.zeros((5,)), {}, r"a dask array of numbers of shape \(n, dim\)"),
        (da.zeros((5, 2), dtype=complex), {}, r"of shape \(n, dim\).* Got complex128 of shape \(5, 2\)"),
        (dask.delayed(np.zeros)((5, 2)), {}, "X of BregmanKMeans must be a dask array .* Got Delayed instead"),
        (da.ones((5, 2)), {"batch_size": 3}, "batch_size of BregmanKMeans must be None for dask's data"),
        (da.ones((5, 2)), {"init": "random-partition"}, "init of BregmanKMeans of dask's data must be .*k-means"),
        (da.ones((2, 2)), {}, "n_clusters of BregmanKMeans must be at most the number of points, n_samples=2"),
        (-da.ones((5, 2)), {"divergence": "kl"}, "positive"),
        (da.full((5, 2), np.nan), {}, "finite"),
        (
            da.ones((5, 2)),
            {"init": np.ma.masked_equal([[1.0, 2.0], [3.0, 9.0], [5.0, 6.0]], 9)},
            "init of BregmanKMeans must be without masked entries",
        ),
    ],
)
def test_bad_input(X: object, options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        askew.BregmanKMeans(3, **options).fit(X)


def masked(chunks: object) -> object:
    """Return points of which one is hidden."""
    return da.from_array(np.ma.masked_greater(np.append(points(40), [[1e6, 1.0, 1.0]], axis=0), 1e5), chunks=chunks)


def test_masks_are_not_dropped() -> None:
    """Also where blocks have to be put together, or all is computed."""
    found = askew.BregmanKMeans(2, random_state=0).fit(points(40))
    mixture = askew.BregmanMixture(2, random_state=0).fit(points(40))
    for X in (masked((20, 3)), masked((20, 1))):
        calls = [
            lambda X=X: found.predict(X).compute(),
            lambda X=X: found.transform(X).compute(),
            lambda X=X: found.score(X),
            lambda X=X: found.partial_fit(X),
            lambda X=X: askew.BregmanKMeans(2).fit(X),
            lambda X=X: askew.BregmanKMeans(2).partial_fit(X),
            lambda X=X: askew.BregmanKMeans(2, init=X[-2:]).fit(points(40)),
            lambda X=X: mixture.predict(X),
            lambda X=X: askew.BregmanMixture(2).fit(X),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"of Bregman.* must be without masked entries. Got 1 of"):
                call()
    nothing_hidden = masked((20, 3))[:40]
    assert askew.BregmanKMeans(2, random_state=0).fit(nothing_hidden).counts_.sum() == 40


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: np.ma.masked_array(w, w == 3), "sample_weight of BregmanKMeans must be without masked entries"),
        (lambda w: np.where(w == 3, -1, w), "sample_weight of BregmanKMeans must be numbers of at least zero, and not"),
        (lambda w: np.where(w == 3, np.nan, w), "Input sample_weight contains NaN"),
        (lambda w: np.where(w == 3, np.inf, w), "Input sample_weight contains infinity"),
        (lambda w: w[:30], r"sample_weight of BregmanKMeans must be of shape \(40,\).* Got \(30,\) instead"),
        (lambda w: w[:, None], r"sample_weight of BregmanKMeans must be of shape \(40,\).* Got \(40, 1\) instead"),
        (lambda w: w * 0, "at least one point that has weight"),
    ],
)
def test_bad_weights(change: object, words: str) -> None:
    X = da.from_array(points(40), chunks=(15, 3))
    found = askew.BregmanKMeans(2, random_state=0).fit(X)
    weights = change(np.arange(40.0))  # type: ignore[operator]
    for given in (weights, da.from_array(weights, chunks=7)):
        with pytest.raises(ValueError, match=words):
            askew.BregmanKMeans(2).fit(X, sample_weight=given)
        with pytest.raises(ValueError, match=words):
            found.score(X, sample_weight=given)


def test_weights_may_be_in_memory_or_have_blocks_of_unknown_lengths() -> None:
    dd = pytest.importorskip("dask.dataframe")
    import pandas

    table, weights = points(80), np.arange(80.0) % 3
    X = da.from_array(table, chunks=(40, 3))
    column = dd.from_pandas(pandas.Series(weights), npartitions=2)
    local = askew.BregmanKMeans(4, init=table[::20], tol=0.0).fit(table, sample_weight=weights)
    for given in (weights, weights.tolist(), torch.from_numpy(weights), column):
        found = askew.BregmanKMeans(4, init=table[::20], tol=0.0).fit(X, sample_weight=given)
        np.testing.assert_allclose(found.cluster_centers_, local.cluster_centers_, rtol=1e-9)
        assert found.score(X, sample_weight=given) == pytest.approx(-local.inertia_)
    mask = np.arange(80) % 40 >= 10
    kept = da.from_array(mask, chunks=40)
    found.fit(X[kept], sample_weight=da.from_array(weights, chunks=40)[kept])
    assert found.counts_.sum() == weights[mask].sum()
    with pytest.raises(ValueError, match=r"in the blocks of X, one of which has 30 rows\. Got a block of shape"):
        found.fit(X[kept], sample_weight=column)
    with pytest.raises(ValueError, match=r"must be in 2 blocks, as X, .* Got 1 instead. Call compute_chunk_sizes"):
        found.fit(X[kept], sample_weight=weights)


def test_columns_of_data_frames() -> None:
    """Those that are not numbers, and those that are not where they were."""
    dd = pytest.importorskip("dask.dataframe")
    import pandas

    frame = pandas.DataFrame(points(40), columns=list("abc"))
    X, turned = (dd.from_pandas(one, npartitions=3) for one in (frame, frame[["b", "a", "c"]]))
    found = askew.BregmanKMeans(2, random_state=0).fit(X)
    for other in (["1", "2"] * 20, frame["b"] + 3j, pandas.date_range("2020", periods=40)):
        strange = dd.from_pandas(frame.assign(b=other), npartitions=3)
        for call in (askew.BregmanKMeans(2).fit, found.predict, found.transform, found.score):
            with pytest.raises(TypeError, match=r"X of BregmanKMeans must be columns of numbers\. Got column 'b' of"):
                call(strange)
    incomplete = frame.assign(b=pandas.array([1, None] * 20, dtype="Int64"))
    with pytest.raises(ValueError, match=r"X of BregmanKMeans must be finite. Got X\[1, 1\] = nan"):
        askew.BregmanKMeans(2).fit(dd.from_pandas(incomplete, npartitions=3))
    mixture = askew.BregmanMixture(2, random_state=0).fit(X)
    for call in (found.predict, found.transform, found.score, found.partial_fit, mixture.predict):
        with pytest.raises(ValueError, match="feature names should match"):
            call(turned)
        with pytest.raises(ValueError, match="feature names should match"):
            call(X[["a", "b"]])
    for call in (found.predict, found.transform, found.score):
        with (
            pytest.warns(UserWarning, match="does not have valid feature names"),
            pytest.raises(ValueError, match="X has 2 features, but BregmanKMeans is expecting 3"),
        ):
            call(X.to_dask_array()[:, :2])
    assert not hasattr(found.fit(X.to_dask_array()), "feature_names_in_")


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("encoded", [False, True])
def test_the_first_bad_entry_is_named_whichever_block_is_first_in_time(encoded: bool, scheduler: str) -> None:
    """Tasks have random keys, by which Dask orders them; threads add the order of time."""
    X = points(40)
    X[[3, 17, 30], [1, 0, 2]] = np.nan
    torch.manual_seed(0)
    model = askew.Embedded(torch.nn.Identity(), askew.NeuralBregman(3)).double() if encoded else "euclidean"
    name = "the embeddings of X" if encoded else "X"
    with dask.config.set(scheduler=scheduler):
        for _ in range(6):
            with pytest.raises(ValueError, match=rf"{name} of BregmanKMeans must be finite. Got {name}\[3, 1\] = nan"):
                askew.BregmanKMeans(2, divergence=model).fit(da.from_array(X, chunks=(10, 3)))


def test_bad_entries_of_later_blocks_say_where_the_block_begins() -> None:
    dd = pytest.importorskip("dask.dataframe")
    import pandas

    X, weights = points(40), np.ones(40)
    X[[27, 35], 1] = np.nan
    weights[[14, 33]] = -1
    words = r"Got X\[7, 1\] = nan instead\..* Rows are counted from row 20, where block 2 begins\."
    for lazily in (da.from_array(X, chunks=(10, 3)), dd.from_pandas(pandas.DataFrame(X), npartitions=4)):
        with pytest.raises(ValueError, match=words):
            askew.BregmanKMeans(2).fit(lazily)
    with pytest.raises(ValueError, match=r"sample_weight .* a least one of -1 .* from row 10, where block 1 begins"):
        askew.BregmanKMeans(2).fit(da.from_array(points(40), chunks=(10, 3)), sample_weight=weights)


def test_nothing_to_score() -> None:
    found = askew.BregmanKMeans(2, random_state=0).fit(points(40))
    with pytest.raises(ValueError, match="X of BregmanKMeans must be with at least one point that has weight"):
        found.score(da.zeros((0, 3)))


def test_tokens() -> None:
    """Integers reach the encoder as they are, also those that start the clusters."""
    torch.manual_seed(0)
    model = askew.Embedded(torch.nn.EmbeddingBag(9, 2), askew.NeuralBregman(2))
    tokens = np.random.default_rng(0).integers(0, 9, size=(60, 4))
    options = {"divergence": model, "init": tokens[:3], "tol": 0.0}
    local = askew.BregmanKMeans(3, **options).fit(tokens)
    found = askew.BregmanKMeans(3, **options).fit(da.from_array(tokens.astype(np.int32), chunks=(25, 2)))
    np.testing.assert_allclose(found.cluster_centers_, local.cluster_centers_, rtol=1e-5)
    np.testing.assert_array_equal(found.labels_.compute(), local.labels_)


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
