"""Learning from clicks: what is learned, how it is repeated and resumed, and input that cannot be learned from."""

from __future__ import annotations

import copy
import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import nn

import askew
from askew import RelevanceLearner, metrics
from askew.estimators import FitWarning
from askew.estimators.judgements import RelevanceBatches, grades_of
from askew.search import ExactIndex, FaissIndex

RANDOM = np.random.default_rng(0)
QUERIES, ITEMS = RANDOM.normal(size=(120, 6)), RANDOM.normal(size=(400, 6))
# An item is relevant if it is not below the query in the first two features, by little.
GAP = ITEMS[None, :, :2] - QUERIES[:, None, :2]
TRUTH = (np.maximum(-GAP, 0) * 4 + np.maximum(GAP, 0)).sum(-1)
NEAREST = TRUTH.argsort(1)[:, :12]
CLICKS = np.stack([np.repeat(np.arange(120), 12), NEAREST.ravel(), np.tile([3] * 4 + [2] * 4 + [1] * 4, 120)], 1)
KNOWN, HELD_OUT = CLICKS[CLICKS[:, 0] < 90], CLICKS[CLICKS[:, 0] >= 90]


def quick(divergence: Any = "nbd", encoder: Any = None, **changes: Any) -> RelevanceLearner:
    return RelevanceLearner(divergence, encoder, **{"steps": 60, "random_state": 0, **changes})


@pytest.fixture(scope="module")
def learner() -> RelevanceLearner:
    return quick("drift", steps=120).fit(QUERIES[:90], ITEMS, KNOWN)


def same(first: RelevanceLearner, second: RelevanceLearner) -> bool:
    weights = first.model_.state_dict(), second.model_.state_dict()
    return all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_learned_order_is_better_than_cosine_and_euclidean(learner: RelevanceLearner) -> None:
    grades = sparse.csr_array((HELD_OUT[:, 2], (HELD_OUT[:, 0] - 90, HELD_OUT[:, 1])), shape=(30, 400))
    unit = [points / np.linalg.norm(points, axis=1, keepdims=True) for points in (QUERIES[90:], ITEMS)]
    others = -unit[0] @ unit[1].T, np.linalg.norm(QUERIES[90:, None] - ITEMS, axis=2)
    score = learner.score(QUERIES, ITEMS, HELD_OUT)
    assert score > max(metrics.ndcg_at_k(matrix, grades) for matrix in others) + 0.2
    with torch.inference_mode():
        points = (torch.from_numpy(part) for part in (QUERIES[90:], ITEMS))
        order = learner.model_.pairwise_order(*points)
    assert score == pytest.approx(metrics.ndcg_at_k(order, grades), abs=1e-3)


def test_searches_as_it_ranks(learner: RelevanceLearner) -> None:
    values, rows = learner.kneighbors(QUERIES[:5], 7)
    np.testing.assert_allclose(values, np.sort(learner.pairwise(QUERIES[:5], ITEMS))[:, :7], rtol=2e-3, atol=1e-5)
    for index in (ExactIndex(learner), FaissIndex(learner)):
        index.add(ITEMS)
        np.testing.assert_array_equal(index.search(QUERIES[:5], 7)[1], rows)
    with pytest.raises(ValueError, match=r"X of RelevanceLearner\.kneighbors must be queries"):
        learner.kneighbors()


@pytest.mark.parametrize("encoder", [None, "two-sided"])
def test_saved_and_loaded(encoder: str | None, tmp_path: Path) -> None:
    learner = quick(encoder=encoder).fit(QUERIES, ITEMS, CLICKS)
    askew.save(learner, tmp_path / "model")
    again = askew.load(tmp_path / "model")
    assert same(learner, again)
    assert again.get_params() == learner.get_params()
    for first, second in zip(learner.kneighbors(QUERIES), again.kneighbors(QUERIES), strict=True):
        np.testing.assert_array_equal(first, second)
    assert again.score(QUERIES, ITEMS, CLICKS) == learner.score(QUERIES, ITEMS, CLICKS)


def test_clone_and_parameters() -> None:
    learner = quick("drift", "two-sided", hard=3, scale=False)
    assert clone(learner).get_params() == learner.get_params()
    assert RelevanceLearner().get_params()["divergence"] == "auto"


def test_seed_repeats(learner: RelevanceLearner) -> None:
    again = clone(learner).fit(QUERIES[:90], ITEMS, KNOWN)
    other = clone(learner).set_params(random_state=1).fit(QUERIES[:90], ITEMS, KNOWN)
    assert same(learner, again)
    assert not same(learner, other)


@pytest.mark.parametrize("form", ["tuple", "frame", "columns", "list", "order"])
def test_forms_of_judgements(form: str) -> None:
    frame = pd.DataFrame(CLICKS, columns=["query", "item", "grade"])
    given = {
        "tuple": tuple(CLICKS.T),
        "frame": frame[["grade", "item", "query"]],
        "columns": frame.rename(columns={"query": "a", "item": "b", "grade": "c"}),
        "list": CLICKS.tolist(),
        "order": CLICKS[::-1],
    }[form]
    expected = grades_of(CLICKS, 120, 400, "x")
    assert (grades_of(given, 120, 400, "x") != expected).nnz == 0
    assert (grades_of(CLICKS[:, :2], 120, 400, "x").data == 1).all()
    assert grades_of([[0, 1, 2], [0, 1, 3]], 2, 2, "x")[0, 1] == 5


def test_two_sides_take_points_of_different_sizes() -> None:
    wide = np.concatenate([ITEMS, RANDOM.normal(size=(400, 3))], 1)
    for learner in (quick(encoder="auto"), quick("mahalanobis", "two-sided"), quick("auto", "auto", steps=24)):
        learner.fit(QUERIES, wide, CLICKS)
        assert learner.encoder != "auto" or "two-sided" in learner.choice_
        assert learner.pairwise(QUERIES[:3], wide).shape == (3, 400)
        assert learner.kneighbors(QUERIES[:3], 4)[1].shape == (3, 4)
        assert learner.transform(wide, side="second").shape == learner.items_.shape
        expected = learner.pairwise(QUERIES[:3], wide[:3]).diagonal()
        np.testing.assert_allclose(learner.pair_distance((QUERIES[:3], wide[:3])), expected, rtol=1e-3)
        with pytest.raises(ValueError, match=r"must be as many first points as second ones\. Got 3 and 2"):
            learner.pair_distance((QUERIES[:3], wide[:2]))
        with pytest.raises(ValueError, match=r"items of RelevanceLearner must be of 9 features, as in fit\. Got 6"):
            learner.pairwise(QUERIES, ITEMS)
    given = askew.make("nbd", 4, encoder=nn.Linear(6, 4), second=nn.Linear(9, 4))
    assert quick(given).fit(QUERIES, wide, CLICKS).pairwise(QUERIES[:3], wide).shape == (3, 400)
    for encoder in (None, "mlp", nn.Linear(6, 4)):
        with pytest.raises(ValueError, match=r"as queries, where both have one encoder\. Got 9 instead\. Give"):
            quick(encoder=encoder).fit(QUERIES, wide, CLICKS)


def test_names_of_columns_are_those_of_fit(tmp_path: Path) -> None:
    queries, items = (pd.DataFrame(points, columns=list("abcdef")) for points in (QUERIES, ITEMS))
    learner = quick(steps=5).fit(queries, items, CLICKS)
    expected = learner.score(queries, items, CLICKS)
    askew.save(learner, tmp_path / "new")
    del (older := copy.deepcopy(learner)).item_feature_names_in_
    askew.save(older, tmp_path / "old")
    older = askew.load(tmp_path / "old")
    assert older.score(queries, items, CLICKS) == older.score(queries, ITEMS, CLICKS) == expected
    uses = (
        lambda learned, items: learned.score(queries, items, CLICKS),
        lambda learned, items: learned.pairwise(queries, items),
        lambda learned, items: learned.transform(items, side="second"),
    )
    for learned in (learner, askew.load(tmp_path / "new")):
        assert learned.score(queries, items, CLICKS) == expected
        for use, other in itertools.product(uses, (items[list("fedcba")], items.rename(columns={"a": "x"}))):
            with pytest.raises(ValueError, match="feature names should match those that were passed during fit"):
                use(learned, other)
        with pytest.warns(UserWarning, match="X does not have valid feature names, but RelevanceLearner was fitted"):
            learned.pairwise(queries, ITEMS)
    reordered = items[list("abcdfe")]
    for encoder in (None, "auto"):
        with pytest.raises(ValueError, match=r"in the order of queries, .*\. Got 'f' in place of 'e'"):
            quick(encoder=encoder).fit(queries, reordered, CLICKS)
    quick(encoder="two-sided", steps=1).fit(queries, reordered, CLICKS)
    quick(steps=1).fit(queries, items.add_prefix("item "), CLICKS)
    assert not hasattr(learner.fit(queries, ITEMS, CLICKS), "item_feature_names_in_")


def test_auto_chooses_by_held_out_queries() -> None:
    learner = RelevanceLearner(steps=60, random_state=0).fit(QUERIES, ITEMS, CLICKS)
    assert len(learner.validation_) == 6
    assert "NDCG@10 on 24 held-out queries" in learner.choice_
    few = RelevanceLearner(steps=20, random_state=0).fit(QUERIES[:9], ITEMS, CLICKS[CLICKS[:, 0] < 9])
    assert few.choice_ == "'nbd', no encoder: 9 queries are too few to hold out some (50 are needed)"
    assert few.validation_ == {}


def test_hard_negatives_are_trained_after_the_rest() -> None:
    learner = quick(steps=40, hard=2).fit(QUERIES, ITEMS, CLICKS)
    steps = [row["step"] for row in learner.history_.rows]
    assert steps[-1] == 60
    assert sorted(steps) == steps
    assert not same(learner, quick(steps=40).fit(QUERIES, ITEMS, CLICKS))
    assert same(learner, clone(learner).fit(QUERIES, ITEMS, CLICKS))


@pytest.mark.parametrize("hard", [0, 2])
def test_resumed_fit_is_the_same(hard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"divergence": "auto", "encoder": None, "steps": 24, "hard": hard}
    expected = quick(**settings).fit(QUERIES, ITEMS, CLICKS)
    batch = RelevanceBatches._batch
    trained = {"batches": 0}

    def counted(self: RelevanceBatches, *given: Any) -> Any:
        trained["batches"] += 1
        if trained["batches"] == 30:
            raise MemoryError
        return batch(self, *given)

    monkeypatch.setattr(RelevanceBatches, "_batch", counted)
    with pytest.raises(MemoryError):
        quick(**settings).fit(QUERIES, ITEMS, CLICKS, checkpoint=tmp_path)
    files = set(tmp_path.iterdir())
    assert files
    resumed = quick(**settings).fit(QUERIES, ITEMS, CLICKS, checkpoint=tmp_path)
    assert same(resumed, expected)
    assert resumed.choice_ == expected.choice_
    before = trained["batches"]
    assert same(quick(**settings).fit(QUERIES, ITEMS, CLICKS, checkpoint=tmp_path), expected)
    assert trained["batches"] == before  # nothing is trained twice
    with pytest.raises(ValueError, match="checkpoint"):
        quick(**settings).fit(QUERIES + 1e-3, ITEMS[::-1], CLICKS, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="random_state of RelevanceLearner must be an integer for checkpoint="):
        quick(**settings | {"random_state": None}).fit(QUERIES, ITEMS, CLICKS, checkpoint=tmp_path)


def test_batches_know_every_grade() -> None:
    grades = grades_of(CLICKS, 120, 400, "x")
    queries, items = torch.arange(120.0)[:, None], torch.arange(400.0)[:, None]
    batches = RelevanceBatches(queries, items, grades, 50, 4, 20, seed=0)
    assert len(batches) == 3
    seen = []
    for rows, columns, values in batches:
        rows, columns = rows[:, 0].long().numpy(), columns[:, 0].long().numpy()
        np.testing.assert_array_equal(values, grades[rows][:, columns].toarray())
        assert (values.sum(1) > 0).all()
        seen.extend(rows)
    assert sorted(seen) == list(range(120))


def test_the_same_clicks_of_other_queries_are_other_data() -> None:
    queries, items = torch.arange(2.0)[:, None], torch.arange(3.0)[:, None]
    logs = [[0, 0], [0, 1], [1, 2]], [[0, 0], [1, 1], [1, 2]]
    batches = (RelevanceBatches(queries, items, grades_of(log, 2, 3, "x"), 50, 4, 20, seed=0) for log in logs)
    assert len({part.fingerprint() for part in batches}) == 2


@pytest.mark.parametrize("name", ["iqe", "deepnorm", "deep-div"])
def test_exact_search_only_is_announced_before_the_training(name: str) -> None:
    learner = quick(name, steps=1)
    with pytest.warns(UserWarning, match=f"into FAISS, Milvus or another engine. Got '{name}'.*'drift'"):
        learner.fit(QUERIES[:10], ITEMS, CLICKS[CLICKS[:, 0] < 10])
    # Warnings are errors in these tests: the training has not begun.
    with pytest.raises(UserWarning, match="'drift'"):
        RelevanceLearner(askew.make(name, 6), None).fit(QUERIES, ITEMS, CLICKS)


def test_queries_without_a_click_are_told_and_do_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    expected = quick().fit(QUERIES[:90], ITEMS, KNOWN)
    with caplog.at_level(logging.WARNING, "askew"):
        learner = quick(scale=True).fit(QUERIES, ITEMS, KNOWN)
    assert "30 of 120 queries have no relevant item" in caplog.text
    assert same(learner, expected)
    assert learner.score(QUERIES, ITEMS, HELD_OUT) > 0


def test_clicks_at_random_are_a_warning() -> None:
    clicks = np.stack([np.repeat(np.arange(120), 3), RANDOM.integers(400, size=360)], 1)
    constant = np.ones_like(ITEMS)
    with pytest.warns(FitWarning, match="must be better than a trivial one. Got NDCG@10"):
        quick(steps=5).fit(np.ones_like(QUERIES), constant, clicks)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"judgements": [[0, 400]]}, "item rows in judgements of .* must be whole numbers from 0 to 399. Got 400 at 0"),
        ({"judgements": [[0, 1], [120, 0]]}, "query rows in judgements .* from 0 to 119. Got 120 at 1"),
        ({"judgements": [[-1, 0]]}, "from 0 to 119. Got -1 at 0"),
        ({"judgements": [[0.5, 0]]}, "whole numbers from 0 to 119. Got 0.5"),
        ({"judgements": [[np.nan, 0]]}, "whole numbers from 0 to 119. Got nan"),
        ({"judgements": [[0, 1, -1]]}, "grades in judgements .* must be finite, zero or above. Got -1 at 0"),
        ({"judgements": [[0, 1, np.nan]]}, "finite, zero or above. Got nan at 0"),
        ({"judgements": [[0, 1, np.inf]]}, "finite, zero or above. Got inf"),
        ({"judgements": [[0, 1, 0]]}, "above 0 for some of them. Got 0 for all"),
        ({"judgements": np.zeros((0, 3))}, "at least one judgement. Got none"),
        ({"judgements": []}, "judgements of RelevanceLearner must be"),
        ({"judgements": CLICKS[:, 0]}, "judgements of RelevanceLearner must be .query row, item row"),
        ({"judgements": CLICKS[:, [0, 1, 2, 2]]}, r"Got shape \(1440, 4\)"),
        ({"judgements": (CLICKS[:, 0], CLICKS[:-1, 1])}, "columns of one length"),
        ({"judgements": pd.DataFrame({"query": [0], "score": [1], "a": [1], "b": [2]})}, "columns query, item"),
        ({"items": ITEMS[:1], "judgements": [[0, 0]]}, "items of RelevanceLearner must be at least two. Got 1"),
        ({"items": ITEMS[:, :5]}, "of 6 features, as queries, where both have one encoder. Got 5"),
        ({"items": ITEMS[:0]}, "0 sample"),
        ({"items": ITEMS[0]}, "Expected 2D array"),
        ({"queries": QUERIES[0]}, "Expected 2D array"),
        ({"queries": np.where(QUERIES[2, 2] == QUERIES, np.nan, QUERIES)}, "NaN"),
        ({"items": np.where(ITEMS[2, 2] == ITEMS, np.inf, ITEMS)}, "infinity"),
    ],
)
def test_bad_input(learner: RelevanceLearner, change: dict[str, Any], match: str) -> None:
    learner = copy.deepcopy(learner)
    before = learner.kneighbors(QUERIES)[1]
    given = {"queries": QUERIES, "items": ITEMS, "judgements": CLICKS} | change
    with pytest.raises(ValueError, match=match):
        learner.fit(**given)
    np.testing.assert_array_equal(learner.kneighbors(QUERIES)[1], before)  # what was learned is still there
    if change.keys() == {"judgements"}:
        with pytest.raises(ValueError, match=match):
            learner.score(**given)


def test_other_bad_input() -> None:
    for names in (np.array([["a", "b"]]), pd.DataFrame({"query": ["a"], "item": ["b"]})):
        with pytest.raises(TypeError, match=r"query rows in judgements of .* must be numbers\. .*Names of rows become"):
            quick().fit(QUERIES, ITEMS, names)
    for hard in (-1, 1.5, True):
        with pytest.raises(ValueError, match="hard of RelevanceLearner"):
            quick(hard=hard).fit(QUERIES, ITEMS, CLICKS)
    with (
        pytest.raises(ValueError, match=r"must be one that is learned by gradient\. Got 'pbdl'"),
        pytest.warns(UserWarning, match="another engine"),
    ):
        quick("pbdl").fit(QUERIES, ITEMS, CLICKS)
    with pytest.raises(NotFittedError):
        quick().score(QUERIES, ITEMS, CLICKS)
    with pytest.raises(ValueError, match="divergence of RelevanceLearner"):
        quick("nbb").fit(QUERIES, ITEMS, CLICKS)
