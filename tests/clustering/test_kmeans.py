"""BregmanKMeans: starts and restarts, encoders, mini-batches, both sides, saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from askew import DivergenceLearner, DivergenceNeighborsClassifier, Embedded, NeuralBregman, load, make, metrics, save
from askew.clustering import BregmanKMeans, kmeans
from askew.divergences import Bregman, Euclidean, Scaled
from askew.potentials import Burg, NegativeEntropy

X, LABELS = load_iris(return_X_y=True)


def blobs(n: int = 600, k: int = 6, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    points, labels, _ = make_blobs(n, 3, centers=k, cluster_std=0.3, random_state=seed, return_centers=True)
    return points, labels


def exponential(n: int = 600, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return a mixture that only ratios tell apart."""
    random = np.random.RandomState(seed)
    scales = random.uniform(0.1, 10, (3, 12))
    labels = random.randint(3, size=n)
    return random.exponential(scales[labels]) + 1e-9, labels


def test_attributes_fit_together() -> None:
    model = BregmanKMeans(4, divergence="itakura-saito", random_state=0)
    labels = model.fit_predict(X)
    assert labels is model.labels_
    np.testing.assert_array_equal(model.predict(X), labels)
    matrix = model.transform(X)
    assert matrix.shape == (150, 4)
    np.testing.assert_allclose(matrix.min(1).sum(), model.inertia_, rtol=1e-12)
    np.testing.assert_array_equal(matrix.argmin(1), labels)
    assert model.score(X) == pytest.approx(-model.inertia_, rel=1e-12)
    assert (np.bincount(labels, minlength=4) == model.counts_).all()
    assert model.cluster_centers_.shape == (4, 4)
    assert 1 <= model.n_iter_ <= 300
    ratio = X[:, None] / model.cluster_centers_
    np.testing.assert_allclose(matrix, (ratio - np.log(ratio) - 1).sum(-1), rtol=1e-9)


def test_the_right_divergence_finds_what_euclid_cannot() -> None:
    points, labels = exponential()
    purities = {
        name: metrics.purity(labels, BregmanKMeans(3, divergence=name, n_init=5, random_state=0).fit_predict(points))
        for name in ("itakura-saito", "euclidean")
    }
    assert purities["itakura-saito"] > 0.9 > 0.6 > purities["euclidean"]


@pytest.mark.parametrize("init", ["k-means++", "random-points", "random", "random-partition"])
def test_every_start(init: str) -> None:
    points, labels = blobs()
    model = BregmanKMeans(6, init=init, n_init=10, random_state=0).fit(points)
    assert metrics.purity(labels, model.labels_) > 0.99


def test_restarts_keep_the_lowest_objective() -> None:
    points = np.random.RandomState(0).rand(300, 2)
    random = np.random.RandomState(0)
    single = [BregmanKMeans(12, init="random", n_init=1, random_state=random).fit(points).inertia_ for _ in range(8)]
    best = BregmanKMeans(12, init="random", n_init=8, random_state=np.random.RandomState(0)).fit(points)
    assert best.inertia_ == min(single) < max(single)


@pytest.mark.parametrize(
    ("init", "runs"),
    [
        ("k-means++", 1),
        ("random", 10),
        ("random-partition", 10),
        (X[:3], 1),
        (lambda *a, **b: X[:3], 10),
    ],
)
def test_automatic_number_of_starts(init: object, runs: int) -> None:
    assert BregmanKMeans(3, init=init)._runs() == runs  # type: ignore[arg-type]


def test_given_centres_and_functions() -> None:
    given = BregmanKMeans(3, init=X[[0, 60, 120]].tolist()).fit(X)

    def pick(points: NDArray[np.float64], n_clusters: int, random_state: np.random.RandomState) -> NDArray[np.float64]:
        assert n_clusters == 3
        assert isinstance(random_state, np.random.RandomState)
        return points[[0, 60, 120]]

    called = BregmanKMeans(3, init=pick, n_init=1).fit(X)
    np.testing.assert_array_equal(given.labels_, called.labels_)
    with pytest.warns(RuntimeWarning, match="one start is made instead of n_init=4"):
        BregmanKMeans(3, init=X[:3], n_init=4).fit(X)


def test_weights_count_as_repetitions() -> None:
    weights = np.random.RandomState(0).randint(0, 4, 150)
    weighted = BregmanKMeans(3, divergence="kl", random_state=0).fit(X, sample_weight=weights)
    repeated = BregmanKMeans(3, divergence="kl", random_state=0).fit(X.repeat(weights, axis=0))
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, rtol=1e-12)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-12)
    assert weighted.score(X, sample_weight=weights) == pytest.approx(-weighted.inertia_, rel=1e-12)
    np.testing.assert_array_equal(weighted.counts_, repeated.counts_)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_kept(dtype: type) -> None:
    torch.manual_seed(0)
    points = X.astype(dtype)
    for divergence in ("euclidean", "kl", NeuralBregman(4, widths=(8,)), Scaled(Euclidean(4), 2.0)):
        model = BregmanKMeans(3, divergence=divergence, random_state=0).fit(points)
        assert model.cluster_centers_.dtype == dtype
        assert model.transform(points).dtype == dtype
        assert model.labels_.dtype == np.int32
    other = np.float64 if dtype is np.float32 else np.float32
    assert (model.predict(X.astype(other)) == model.labels_).mean() > 0.98


# ---------------------------------------------------------------------- what a divergence can be


def test_a_name_a_module_and_a_multiple_are_the_same() -> None:
    labels = BregmanKMeans(3, divergence="itakura-saito", random_state=0).fit_predict(X)
    for divergence in (Bregman(Burg(4)), make("itakura-saito", 4), Scaled(Bregman(Burg(4)), 3.0)):
        np.testing.assert_array_equal(BregmanKMeans(3, divergence=divergence, random_state=0).fit_predict(X), labels)


def test_encoders_are_used_for_points_and_for_given_centres() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model = BregmanKMeans(3, divergence=Embedded(encoder, NeuralBregman(2, widths=(8,))), init=X[[0, 60, 120]]).fit(X)
    with torch.no_grad():
        images = encoder(torch.tensor(X, dtype=torch.float32))
    plain = BregmanKMeans(3, divergence=model.divergence_, init=images[[0, 60, 120]].numpy()).fit(images.numpy())
    np.testing.assert_array_equal(model.labels_, plain.labels_)
    np.testing.assert_allclose(model.cluster_centers_, plain.cluster_centers_, rtol=1e-6)
    assert model.cluster_centers_.shape == (3, 2)
    assert model.n_features_in_ == 4
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    assert encoder.training


def test_images_behind_a_network() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 3))
    pictures = np.random.RandomState(0).rand(30, 1, 8, 8).astype(np.float32)
    model = BregmanKMeans(4, divergence=Embedded(encoder, Euclidean(3)), random_state=0).fit(pictures)
    assert model.transform(pictures).shape == (30, 4)
    np.testing.assert_array_equal(model.predict(pictures), model.labels_)


@pytest.mark.parametrize("form", [np.asarray, np.uint8, torch.from_numpy, np.ndarray.tolist])
def test_tokens_reach_an_encoder_as_integers(form: Any) -> None:
    torch.manual_seed(0)
    encoder = nn.EmbeddingBag(9, 2)
    tokens = np.random.RandomState(0).randint(0, 9, size=(60, 4))
    with torch.no_grad():
        images = encoder(torch.from_numpy(tokens)).numpy()
    expected = BregmanKMeans(3, init=images[:3]).fit(images)
    model = BregmanKMeans(3, divergence=Embedded(encoder, make("euclidean", 2)), init=form(tokens[:3]))
    np.testing.assert_array_equal(model.fit(form(tokens)).labels_, expected.labels_)
    np.testing.assert_array_equal(model.predict(form(tokens[:5])), expected.labels_[:5])
    assert model.score(form(tokens)) == pytest.approx(-expected.inertia_, rel=1e-5)
    assert model.set_params(batch_size=20).fit(form(tokens)).partial_fit(form(tokens)).inertia_ > 0


def test_integers_for_an_encoder_that_keeps_them() -> None:
    """No integer is merged with its neighbours, as float32 would."""
    whole = 2**25 + np.arange(20)[:, None] // 10
    model = BregmanKMeans(2, divergence=Embedded(nn.Identity(), make("euclidean", 1)), random_state=0).fit(whole)
    assert sorted(model.cluster_centers_.ravel()) == [2**25, 2**25 + 1]


@pytest.mark.filterwarnings("error")
def test_weights_that_are_read_only() -> None:
    weights = np.arange(len(X), dtype=np.float64)
    weights.flags.writeable = False
    assert BregmanKMeans(2, random_state=0).fit(X, sample_weight=weights).score(X, sample_weight=weights) < 0


@pytest.mark.parametrize("encoder", [None, "mlp"])
def test_a_fitted_learner(encoder: str | None) -> None:
    learner = DivergenceLearner(encoder=encoder, steps=60, random_state=0).fit(X[::2], LABELS[::2])
    model = BregmanKMeans(3, divergence=learner, n_init=3, random_state=0)
    assert metrics.purity(LABELS[1::2], model.fit_predict(X[1::2])) > 0.85
    matrix = model.transform(X[:5])
    images = torch.from_numpy(learner.transform(X[:5]))
    centres = torch.from_numpy(model.cluster_centers_)
    np.testing.assert_allclose(matrix, learner.divergence_.pairwise(images, centres).detach().numpy(), rtol=1e-4)
    again = BregmanKMeans(3, divergence=learner.model_, n_init=3, random_state=0).fit(X[1::2])
    np.testing.assert_array_equal(again.labels_, model.labels_)


def test_a_fitted_classifier() -> None:
    learner = DivergenceLearner(encoder=None, steps=5, random_state=0)
    classifier = DivergenceNeighborsClassifier(learner).fit(X, LABELS)
    assert BregmanKMeans(3, divergence=classifier, random_state=0).fit(X).labels_.shape == (150,)


# ---------------------------------------------------------------------- left centroids


def test_left_centroids() -> None:
    model = BregmanKMeans(3, divergence="itakura-saito", dual=True, random_state=0).fit(X)
    for j in range(3):
        harmonic = 1 / (1 / X[model.labels_ == j]).mean(0)
        np.testing.assert_allclose(model.cluster_centers_[j], harmonic, rtol=1e-9)
    ratio = model.cluster_centers_ / X[:, None]
    np.testing.assert_allclose(model.transform(X), (ratio - np.log(ratio) - 1).sum(-1), rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    assert model.score(X) == pytest.approx(-model.inertia_, rel=1e-12)


def test_left_centroids_of_a_learned_divergence() -> None:
    learner = DivergenceLearner(encoder=None, steps=60, random_state=0).fit(X[::2], LABELS[::2])
    model = BregmanKMeans(3, divergence=learner, dual=True, n_init=3, random_state=0)
    assert metrics.purity(LABELS[1::2], model.fit_predict(X[1::2])) > 0.85
    right = BregmanKMeans(3, divergence=learner, n_init=3, random_state=0).fit(X[1::2])
    assert not np.allclose(right.cluster_centers_, model.cluster_centers_, rtol=1e-3)


# ---------------------------------------------------------------------- mini-batches


@pytest.mark.parametrize("dual", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("divergence", ["euclidean", "exponential"])
def test_mini_batches_come_near_to_all_points(divergence: str, dual: bool) -> None:
    points, labels = blobs(3000)
    points = points / 5
    full = BregmanKMeans(6, divergence=divergence, dual=dual, random_state=0).fit(points)
    mini = BregmanKMeans(6, divergence=divergence, dual=dual, random_state=0, batch_size=200).fit(points)
    assert mini.inertia_ < 1.1 * full.inertia_
    assert metrics.purity(labels, mini.labels_) > 0.99
    assert mini.counts_.shape == (6,)
    np.testing.assert_array_equal(mini.predict(points), mini.labels_)


def test_a_batch_moves_a_centre_to_the_mean_of_all_it_has_seen() -> None:
    model = BregmanKMeans(2, divergence="kl", init=np.array([[1.0], [100.0]]))
    first, second = np.array([[2.0], [4.0], [90.0]]), np.array([[6.0], [80.0], [70.0]])
    model.partial_fit(first)
    np.testing.assert_allclose(model.cluster_centers_, [[3], [90]])
    model.partial_fit(second, sample_weight=[2.0, 1.0, 1.0])
    np.testing.assert_allclose(model.cluster_centers_, [[18 / 4], [80]])
    np.testing.assert_array_equal(model.counts_, [4, 3])
    np.testing.assert_array_equal(model.labels_, [0, 1, 1])
    assert model.inertia_ == pytest.approx(-model.score(second, sample_weight=[2.0, 1.0, 1.0]))
    assert model.n_iter_ == 2


def test_pieces_of_a_table_find_its_clusters() -> None:
    points, labels = blobs(3000)
    model = BregmanKMeans(6, random_state=0)
    for piece in np.array_split(points, 30):
        model.partial_fit(piece)
    assert metrics.purity(labels, model.predict(points)) > 0.99


def test_pieces_go_on_from_a_fit() -> None:
    points, _ = blobs(600)
    model = BregmanKMeans(6, random_state=0).fit(points)
    before = model.cluster_centers_.copy()
    model.partial_fit(points)  # once more the same: the means stay
    np.testing.assert_allclose(model.cluster_centers_, before, rtol=1e-10)
    np.testing.assert_allclose(model.counts_.sum(), 1200)


def test_centres_that_no_point_is_near_to_are_put_elsewhere() -> None:
    points, _ = blobs(3000)
    start = points[:6].copy()
    start[3:] = 1e4
    model = BregmanKMeans(6, init=start, batch_size=100, random_state=0).fit(points)
    assert len(np.unique(model.labels_)) == 6
    assert np.abs(model.cluster_centers_).max() < 20


# ---------------------------------------------------------------------- bookkeeping


def test_the_same_seed_gives_the_same_clusters() -> None:
    for options in ({}, {"batch_size": 50}, {"init": "random-partition"}):
        first, second = (BregmanKMeans(5, random_state=3, **options).fit(X) for _ in range(2))  # type: ignore[arg-type]
        np.testing.assert_array_equal(first.labels_, second.labels_)
        np.testing.assert_array_equal(first.cluster_centers_, second.cluster_centers_)


def test_global_random_numbers_are_left_alone() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    BregmanKMeans(3, random_state=0).fit(X)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # type: ignore[index]


@pytest.mark.parametrize("kind", ["name", "module", "learner"])
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    divergence: object = "kl"
    if kind == "module":
        divergence = Embedded(nn.Linear(4, 3), NeuralBregman(3, widths=(8,)))
    elif kind == "learner":
        divergence = DivergenceLearner(encoder="mlp", steps=5, random_state=0).fit(X, LABELS)
    model = BregmanKMeans(3, divergence=divergence, random_state=0, dual=kind == "module").fit(X)
    save(model, tmp_path)
    again = load(tmp_path)
    assert type(again) is BregmanKMeans
    assert again.get_params(deep=False).keys() == model.get_params(deep=False).keys()
    np.testing.assert_array_equal(again.predict(X), model.labels_)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(again.cluster_centers_, model.cluster_centers_)
    assert (again.inertia_, again.n_iter_, again.n_features_in_) == (model.inertia_, model.n_iter_, 4)
    again.partial_fit(X)
    again.fit(X)
    np.testing.assert_array_equal(again.labels_, model.labels_)


def test_not_fitted_is_saved_too(tmp_path: Path) -> None:
    save(BregmanKMeans(7, init=X[:7], tol=0.5), tmp_path)
    again = load(tmp_path)
    assert (again.n_clusters, again.tol) == (7, 0.5)
    np.testing.assert_array_equal(again.init, X[:7])


def test_function_and_class_agree() -> None:
    points = torch.from_numpy(X)
    found = kmeans(points, points[:5], Bregman(NegativeEntropy(4)))
    model = BregmanKMeans(5, divergence="kl", init=X[:5], tol=0).fit(X)
    np.testing.assert_array_equal(model.labels_, found.labels.numpy())
    assert model.inertia_ == found.inertia
    assert model.n_iter_ == found.n_iter


def test_ctrl_c_leaves_the_old_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    model = BregmanKMeans(3, random_state=0).fit(X)
    before = dict(vars(model))

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("askew.clustering.scan.Sums.means", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :2])
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())


def test_fewer_clusters_than_asked_for_are_told() -> None:
    points = np.repeat([[0.0], [1.0]], 5, axis=0)
    with pytest.warns(ConvergenceWarning, match="2 clusters have points, fewer than n_clusters=3. X may have equal"):
        model = BregmanKMeans(3, random_state=0).fit(points)
    assert model.inertia_ == 0


def test_progress_is_shown_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    BregmanKMeans(3, random_state=0, progress=True).fit(X)
    assert "k-means" in capsys.readouterr().err
    BregmanKMeans(3, random_state=0).fit(X)
    assert capsys.readouterr().err == ""
