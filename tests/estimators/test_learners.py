"""What the learners learn, and what can be done with it."""

from __future__ import annotations

import copy
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.exceptions import NotFittedError
from torch import nn

import askew
from askew import (
    DivergenceLearner,
    DivergenceNeighborsClassifier,
    History,
    PairRegressor,
    TrainingDivergedError,
    TripletLearner,
)
from askew.divergences import Embedded
from askew.encoders import MLP

X, LABELS = load_iris(return_X_y=True)
TRAIN, TEST = slice(0, None, 2), slice(1, None, 2)


@pytest.fixture(scope="module")
def learner() -> DivergenceLearner:
    return DivergenceLearner(encoder=None, steps=100, random_state=0).fit(X[TRAIN], LABELS[TRAIN])


@pytest.fixture(scope="module")
def embedded() -> DivergenceLearner:
    return DivergenceLearner(encoder="mlp", steps=100, random_state=0).fit(X[TRAIN], LABELS[TRAIN])


def test_learned_ranking_is_better_than_euclidean(learner: DivergenceLearner, embedded: DivergenceLearner) -> None:
    euclidean = DivergenceLearner("euclidean").fit(X[TRAIN], LABELS[TRAIN]).score(X[TEST], LABELS[TEST])
    for learned in (learner, embedded):
        assert learned.score(X[TEST], LABELS[TEST]) > euclidean + 0.05


@pytest.mark.parametrize("which", ["learner", "embedded"])
def test_ways_to_ask_agree(which: str, request: pytest.FixtureRequest) -> None:
    learner: DivergenceLearner = request.getfixturevalue(which)
    queries, items = X[TEST], X[TRAIN]
    matrix = learner.pairwise(queries, items)
    assert matrix.shape == (75, 75)
    assert (matrix >= 0).all()
    pairs = np.stack([queries, items], axis=1)
    np.testing.assert_allclose(learner.pair_distance(pairs), matrix.diagonal(), rtol=2e-3)
    np.testing.assert_array_equal(learner.pair_distance((queries, items)), learner.pair_distance(pairs))
    first, second = (torch.from_numpy(learner.transform(part)) for part in (queries, items))
    np.testing.assert_allclose(learner.divergence_.pairwise(first, second).detach(), matrix, rtol=1e-3)
    model = learner.model_
    assert isinstance(model, Embedded)
    np.testing.assert_allclose(
        model.pairwise(torch.from_numpy(queries), torch.from_numpy(items)).detach(), matrix, rtol=1e-3
    )
    np.testing.assert_allclose(learner.pairwise(items), learner.pairwise(items, items), rtol=1e-3)
    np.testing.assert_array_equal(learner.pair_distance(np.stack([items, items], axis=1)), 0)


def test_direction_is_rows_first(learner: DivergenceLearner) -> None:
    a, b = X[:1], X[100:101]
    there, back = learner.pairwise(a, b)[0, 0], learner.pairwise(b, a)[0, 0]
    assert abs(there - back) > 1e-3 * (there + back)
    assert learner.pair_distance(np.stack([a, b], axis=1))[0] == pytest.approx(there, rel=2e-3)


def test_neighbors_are_the_nearest_training_points(learner: DivergenceLearner) -> None:
    values, indices = learner.kneighbors(X[TEST], 7)
    matrix = learner.pairwise(X[TEST], X[TRAIN])
    np.testing.assert_allclose(values, np.sort(matrix, axis=1)[:, :7], rtol=1e-3)
    # Row by row is the exact form; values of search are within the error that it guarantees.
    pairs = np.stack([np.repeat(X[TEST], 7, axis=0), X[TRAIN][indices.reshape(-1)]], axis=1)
    np.testing.assert_allclose(learner.pair_distance(pairs).reshape(values.shape), values, rtol=1.2e-4)
    own_values, own = learner.kneighbors(n_neighbors=3)
    assert not (own == np.arange(75)[:, None]).any()
    assert (own_values > 0).any()
    only = learner.kneighbors(X[TEST], 7, return_distance=False)
    np.testing.assert_array_equal(only, indices)
    with pytest.raises(ValueError, match="at most 75, the number of training points"):
        learner.kneighbors(X[TEST], 76)
    with pytest.raises(ValueError, match="at most 74"):
        learner.kneighbors(n_neighbors=75)


def test_neighbors_keep_their_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is built by the first call, and again only where the training points or the divergence have changed."""
    built: list[int] = []

    class Counting(askew.search.ExactIndex):
        def add(self, items: Any, ids: Any = None) -> None:
            built.append(len(items))
            super().add(items, ids)

    monkeypatch.setattr("askew.estimators.fitted.ExactIndex", Counting)
    learner = DivergenceLearner("mahalanobis", None, steps=5, random_state=0).fit(X[TRAIN], LABELS[TRAIN])
    first = learner.kneighbors(X[TEST], 3)
    np.testing.assert_array_equal(learner.kneighbors(X[TEST], 3), first)
    learner.kneighbors(n_neighbors=2)
    assert built == [75]
    # A copy, what was pickled and what was saved build their own; a clone is not fitted.
    askew.save(learner, tmp_path)
    for other in (copy.deepcopy(learner), pickle.loads(pickle.dumps(learner)), askew.load(tmp_path)):
        assert "_index" not in vars(other)
        np.testing.assert_array_equal(other.kneighbors(X[TEST], 3), first)
    assert built == [75] * 4
    assert not hasattr(clone(learner), "_index")
    # Weights that were changed in place, another divergence, other points.
    with torch.no_grad():
        next(learner.divergence_.parameters())[0] += 1
    changed = learner.kneighbors(X[TEST], 3)
    assert not np.array_equal(changed, first)
    np.testing.assert_allclose(changed[0], np.sort(learner.pairwise(X[TEST], X[TRAIN]), axis=1)[:, :3], rtol=1e-3)
    learner.divergence_ = askew.make("euclidean", 4)
    np.testing.assert_allclose(
        learner.kneighbors(X[TEST], 3)[0], np.sort(learner.pairwise(X[TEST], X[TRAIN]), axis=1)[:, :3], rtol=1e-3
    )
    assert len(learner.fit(X, LABELS).kneighbors(n_neighbors=149)[0]) == 150
    assert built == [75] * 6 + [150]


def test_neighbors_in_several_threads(learner: DivergenceLearner) -> None:
    expected = learner.kneighbors(X[TEST], 3)
    other = copy.deepcopy(learner)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: other.kneighbors(X[TEST], 3), range(8)):
            np.testing.assert_array_equal(found, expected)


def test_a_fitted_learner_stands_for_its_divergence(learner: DivergenceLearner) -> None:
    with pytest.raises(NotFittedError):
        DivergenceNeighborsClassifier().as_divergence()
    with pytest.raises(NotFittedError):
        DivergenceLearner().as_divergence()
    points = torch.from_numpy(X[TEST])
    np.testing.assert_allclose(learner.as_divergence().pairwise(points, points).detach(), learner.pairwise(X[TEST]))


def test_no_network_is_built_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only two to compare, one to keep, and that one as it starts; nothing is compared where nothing has to be."""
    made: list[str] = []

    def counting(name: str, dim: int, *encoders: nn.Module) -> askew.Divergence:
        made.append(name)
        return askew.make(name, dim, *encoders)

    monkeypatch.setattr("askew.estimators.base.make", counting)
    DivergenceLearner("mahalanobis", steps=2).fit(X, LABELS)
    assert len(made) == 4
    DivergenceLearner("nbd", None, steps=2).fit(X, LABELS)
    assert len(made) == 6


def test_a_fit_that_fails_sets_no_attribute() -> None:
    learner = DivergenceLearner("kl", None)
    with pytest.raises(ValueError, match="positive domain"):
        learner.fit(X - 3, LABELS)
    assert [name for name in vars(learner) if name.endswith("_")] == ["n_features_in_"]


def test_blocks_do_not_change_the_result(learner: DivergenceLearner, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, nearest = learner.pairwise(X), learner.kneighbors(n_neighbors=4)
    monkeypatch.setattr("askew.estimators.fitted.BLOCK_ENTRIES", 1000)
    np.testing.assert_allclose(learner.pairwise(X), whole, rtol=1e-3)
    np.testing.assert_array_equal(learner.kneighbors(n_neighbors=4)[1], nearest[1])


def test_seed_repeats() -> None:
    results = [
        DivergenceLearner(encoder=None, steps=10, random_state=seed).fit(X, LABELS).pairwise(X[:9])
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_fit_leaves_the_random_state_and_its_input_alone() -> None:
    divergence = askew.make("nbd", 4)
    before, state = X.copy(), torch.get_rng_state()
    weights = {name: tensor.clone() for name, tensor in divergence.state_dict().items()}
    DivergenceLearner(divergence, None, steps=5, random_state=0).fit(X, LABELS)
    np.testing.assert_array_equal(X, before)
    assert all(torch.equal(weights[name], tensor) for name, tensor in divergence.state_dict().items())
    DivergenceLearner(steps=2, random_state=0).fit(X, LABELS)
    assert torch.equal(state, torch.get_rng_state())


def test_far_offsets_and_units_do_not_matter() -> None:
    plain = DivergenceLearner(encoder=None, steps=30, random_state=0).fit(X, LABELS)
    moved = DivergenceLearner(encoder=None, steps=30, random_state=0).fit(1e6 + 1e-3 * X, LABELS)
    np.testing.assert_allclose(moved.pairwise(1e6 + 1e-3 * X), plain.pairwise(X), rtol=0.02, atol=1e-3)


# ---------------------------------------------------------------------- with or without an encoder


def rings(n: int = 400) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two classes that only the distance from the origin tells apart, several times over."""
    points = np.random.default_rng(0).uniform(-2, 2, size=(n, 2))
    return points, (np.floor(2.5 * np.linalg.norm(points, axis=1)) % 2).astype(int)


def test_auto_takes_the_encoder_where_it_helps_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    points, labels = rings()
    with caplog.at_level(logging.INFO, "askew"):
        learner = DivergenceLearner(steps=150, random_state=0).fit(points, labels)
    assert learner.choice_.startswith("encoder 'mlp': mean average precision on 100 held-out rows")
    assert learner.validation_["with encoder"] > learner.validation_["without encoder"]
    assert learner.choice_ in caplog.text
    assert isinstance(learner.encoder_[1], MLP)


def test_auto_leaves_the_encoder_out_where_it_does_not_help() -> None:
    """Here all points of a class are equal, so every model ranks perfectly: the smaller one has to be taken."""
    labels = np.repeat(np.arange(20), 5)
    points = np.random.default_rng(0).normal(size=(20, 3))[labels]
    learner = DivergenceLearner(steps=4, random_state=1).fit(points, labels)
    assert learner.validation_ == {"without encoder": 1.0, "with encoder": 1.0}
    assert learner.choice_.startswith("no encoder: mean average precision on 25 held-out rows")
    assert not isinstance(learner.encoder_, nn.Sequential)


def test_auto_leaves_the_encoder_out_where_it_harms() -> None:
    """The divergence alone can be exactly the target; an encoder would have to become linear first."""
    pairs = np.random.default_rng(0).normal(size=(400, 2, 3))
    targets = ((pairs[:, 0] - pairs[:, 1]) ** 2).sum(1)
    regressor = PairRegressor("nbd", steps=100, random_state=0).fit(pairs, targets)
    assert regressor.validation_["with encoder"] > 3 * regressor.validation_["without encoder"]
    assert regressor.choice_.startswith("no encoder: mean squared error on 80 held-out pairs")
    assert not isinstance(regressor.encoder_, nn.Sequential)


@pytest.mark.parametrize(
    ("learner", "rows", "reason"),
    [
        (DivergenceLearner(steps=5), 30, "no encoder: 30 rows are too few to hold out some"),
        (DivergenceLearner("euclidean", steps=5), 150, "no encoder: 'euclidean' works on the features"),
        (DivergenceLearner("kl", steps=5), 150, "no encoder: 'kl' works on the features"),
        (DivergenceLearner("nbd", None, steps=5), 150, "no encoder, as asked for"),
        (DivergenceLearner("nbd", nn.Linear(4, 3), steps=5), 150, "encoder Linear, as asked for"),
    ],
    ids=lambda value: None if isinstance(value, int) else str(value)[:40],
)
def test_choices_without_a_comparison(learner: DivergenceLearner, rows: int, reason: str) -> None:
    chosen = np.random.default_rng(0).permutation(150)[:rows]
    learner.fit(X[chosen], LABELS[chosen])
    assert learner.choice_.startswith(reason)
    assert learner.validation_ == {}


def test_encoder_of_the_user_and_a_divergence_of_the_user() -> None:
    learner = DivergenceLearner(askew.make("mahalanobis", 3), nn.Linear(4, 3), steps=30, random_state=0).fit(X, LABELS)
    assert learner.transform(X).shape == (150, 3)
    other = DivergenceLearner(askew.make("mahalanobis", 5), "mlp", steps=3).fit(X, LABELS)
    assert other.transform(X).shape == (150, 5)
    double = DivergenceLearner(askew.make("nbd", 4).double(), None, steps=3).fit(X, LABELS)
    assert double.pairwise(X[:3]).dtype == np.float32


def test_a_fit_that_fails_leaves_what_was_there() -> None:
    learner = DivergenceLearner("kl", None)
    with pytest.raises(ValueError, match="positive domain"):
        learner.fit(X - 3, LABELS)
    with pytest.raises(NotFittedError):
        learner.kneighbors(X)
    matrix = learner.fit(X, LABELS).pairwise(X)
    with pytest.raises(ValueError, match="positive domain"):
        learner.fit(X - 3, LABELS[::-1])
    np.testing.assert_array_equal(learner.pairwise(X), matrix)
    np.testing.assert_array_equal(learner.labels_, LABELS)


def test_encoders_and_divergences_that_do_not_fit_each_other() -> None:
    with pytest.raises(ValueError, match="divergence of DivergenceLearner must be of dim 6, as what the encoder gives"):
        DivergenceLearner(askew.make("nbd", 9), nn.Linear(4, 6), steps=2).fit(X, LABELS)
    learner = DivergenceLearner(askew.make("nbd", 8), steps=2).fit(X, LABELS)
    assert learner.choice_ == "encoder 'mlp': the divergence is of dim 8, the data of 4"
    whole = DivergenceLearner(Embedded(nn.Linear(4, 3), askew.make("nbd", 3)), steps=2).fit(X, LABELS)
    assert whole.choice_ == "no further encoder: the divergence has one"
    normalised = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    learner = DivergenceLearner("nbd", normalised, steps=3).fit(X, LABELS)
    assert learner.encoder_[1][1].num_batches_tracked.item() == 3  # once a step, and not before
    assert not learner.model_.training


def test_interrupted_fit_is_not_taken_for_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("askew.estimators.base.fit", lambda *_, **__: History(stopped="interrupted"))
    with pytest.raises(KeyboardInterrupt):
        DivergenceLearner(encoder=None).fit(X, LABELS)


def test_a_candidate_that_diverges_loses_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(model: nn.Module, *arguments: Any, **settings: Any) -> History:
        if isinstance(model, Embedded):
            raise TrainingDivergedError("NaN", History())
        return askew.fit(model, *arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr("askew.estimators.base.fit", fit)
    learner = DivergenceLearner(steps=3, random_state=0).fit(X, LABELS)
    assert learner.validation_["with encoder"] == -np.inf
    assert learner.choice_.startswith("no encoder")


def test_neighbours_of_pairs_are_rows_of_points(learner: DivergenceLearner) -> None:
    pairs = np.stack([X[:50], X[50:100]], axis=1)
    regressor = PairRegressor("euclidean").fit(pairs, np.ones(50))
    values, rows = regressor.kneighbors(X[:3], 1)
    np.testing.assert_allclose(regressor.points_[rows[:, 0]], X[:3])
    np.testing.assert_allclose(values, 0, atol=1e-6)


def test_divergences_with_a_domain_take_points_as_they_are() -> None:
    learner = DivergenceLearner("kl").fit(X, LABELS)
    np.testing.assert_array_equal(learner.transform(X), X.astype(np.float32))
    with pytest.raises(ValueError, match="inside the positive domain"):
        DivergenceLearner("kl").fit(X - 3, LABELS)
    with pytest.raises(ValueError, match="behind an encoder must be one on all points"):
        DivergenceLearner("kl", "mlp").fit(X, LABELS)


@pytest.mark.parametrize("name", [name for name in askew.names() if name != "pbdl"])
def test_every_divergence_of_the_catalogue_can_be_learned(name: str) -> None:
    points = np.random.default_rng(0).dirichlet(np.ones(4), size=60)
    labels = points.argmax(1)
    learner = DivergenceLearner(name, None, steps=5, random_state=0).fit(points, labels)
    matrix = learner.pairwise(points)
    assert np.isfinite(matrix).all()
    assert (matrix >= 0).all()
    assert 0 < learner.score(points, labels) <= 1


def test_pbdl_is_solved() -> None:
    learner = DivergenceLearner("pbdl", random_state=0).fit(X[::3], LABELS[::3])
    assert learner.score(X[1::3], LABELS[1::3]) > 0.8
    assert len(learner.history_) == 0


def test_pbdl_from_pairs_but_not_from_triplets() -> None:
    generator = np.random.default_rng(0)
    pairs = generator.normal(size=(300, 2, 2))
    targets = ((pairs[:, 0] - pairs[:, 1]) ** 2).sum(1)
    regressor = PairRegressor("pbdl").fit(pairs, targets)
    assert regressor.score(pairs, targets) > 0.5
    with pytest.raises(ValueError, match=r"must be one that is learned by gradient\. Got 'pbdl' .* 'deep-div-affine'"):
        TripletLearner("pbdl").fit(generator.normal(size=(20, 3, 2)))


# ---------------------------------------------------------------------- the other learners


def test_pair_regressor_learns_an_asymmetric_target() -> None:
    generator = np.random.default_rng(0)
    pairs = generator.uniform(0.1, 1, size=(1100, 2, 3))
    first, second = pairs[:, 0], pairs[:, 1]
    targets = (first * np.log(first / second) - first + second).sum(1)
    learner = PairRegressor(encoder=None, random_state=0, steps=200).fit(pairs[:600], targets[:600])
    assert learner.score(pairs[600:], targets[600:]) > 0.99
    mahalanobis = PairRegressor("mahalanobis", None, random_state=0, steps=200).fit(pairs[:600], targets[:600])
    assert mahalanobis.score(pairs[600:], targets[600:]) < 0.97
    np.testing.assert_array_equal(learner.predict(pairs), learner.pair_distance(pairs))
    assert learner.kneighbors(first[:4], 3)[0].shape == (4, 3)


def test_pair_regressor_compares_encoders_on_held_out_pairs() -> None:
    generator = np.random.default_rng(0)
    pairs = generator.normal(size=(600, 2, 2))
    targets = np.abs(np.linalg.norm(pairs[:, 0], axis=1) - np.linalg.norm(pairs[:, 1], axis=1)) ** 2
    learner = PairRegressor("nbd", random_state=0, steps=100).fit(pairs, targets)
    assert learner.choice_.startswith("encoder 'mlp': mean squared error on 120 held-out pairs")
    assert learner.validation_["with encoder"] < learner.validation_["without encoder"]


def test_triplet_learner_finds_the_feature_that_counts() -> None:
    points = np.random.default_rng(0).normal(size=(800, 3, 5))
    near = np.abs(points[:, 0, 0] - points[:, 1, 0]) < np.abs(points[:, 0, 0] - points[:, 2, 0])
    triplets = np.where(near[:, None, None], points, points[:, [0, 2, 1]])
    learner = TripletLearner(encoder=None, random_state=0, steps=80).fit(triplets[:600])
    assert learner.score(triplets[600:]) > 0.85
    assert TripletLearner("euclidean").fit(triplets[:600]).score(triplets[600:]) < 0.75
    margins = learner.decision_function(triplets[600:])
    np.testing.assert_array_equal(learner.predict(triplets[600:]), np.where(margins > 0, 1, -1))
    reversed_ = learner.score(triplets[600:][:, [0, 2, 1]])
    assert reversed_ == pytest.approx(1 - learner.score(triplets[600:]))


def test_triplet_learner_compares_encoders() -> None:
    points, _ = rings(900)
    triplets = points.reshape(300, 3, 2)
    learner = TripletLearner(random_state=0, steps=20).fit(triplets)
    assert set(learner.validation_) == {"without encoder", "with encoder"}
    assert "held-out triplets in order" in learner.choice_


def test_classifier_votes() -> None:
    base = DivergenceLearner(encoder=None, steps=100, random_state=0)
    classifier = DivergenceNeighborsClassifier(base, n_neighbors=4).fit(X[TRAIN], LABELS[TRAIN])
    shares = classifier.predict_proba(X[TEST])
    np.testing.assert_allclose(shares.sum(1), 1)
    assert set(np.unique(shares)) <= {0, 0.25, 0.5, 0.75, 1}
    assert classifier.score(X[TEST], LABELS[TEST]) > 0.9
    neighbours = classifier.learner_.kneighbors(X[TEST], 4, return_distance=False)
    np.testing.assert_array_equal(shares[:, 2], (LABELS[TRAIN][neighbours] == 2).mean(1))
    assert not hasattr(base, "divergence_")


def test_never_handed_to_scikit_learn_as_a_metric() -> None:
    """Mirrored distances would show as a symmetric result of an asymmetric divergence."""
    points, labels = make_classification(80, random_state=0)
    learner = DivergenceLearner(encoder=None, steps=30, random_state=0).fit(points, labels)
    matrix = learner.pairwise(points)
    assert np.abs(matrix - matrix.T).max() > 0.01 * matrix.max()
