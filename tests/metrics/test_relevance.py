"""Scores of retrieval: equal to scikit-learn, and to a brute force over all orders of tied items."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.metrics import ndcg_score

from askew.metrics import mrr, ndcg_at_k, recall_at_k, relevance_per_query

RANDOM = np.random.default_rng(0)


def in_order(grades: Any, k: int) -> tuple[float, float, float]:
    """Return NDCG, reciprocal rank and recall of grades in the order of places."""
    grades = np.asarray(grades, float)
    discounts = 1 / np.log2(np.arange(2, len(grades) + 2))
    ideal = (np.sort(grades)[::-1][:k] * discounts[:k]).sum()
    first = int(np.argmax(grades > 0))
    return (
        float((grades[:k] * discounts[:k]).sum() / ideal),
        1 / (first + 1) if first < k else 0.0,
        float((grades[:k] > 0).sum() / (grades > 0).sum()),
    )


def brute_force(values: Any, grades: Any, k: int) -> np.ndarray[Any, Any]:
    orders = [p for p in itertools.permutations(range(len(values))) if (np.diff(np.take(values, p)) >= 0).all()]
    return np.mean([in_order(np.take(grades, p), k) for p in orders], axis=0)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 6, 9])
@pytest.mark.parametrize("levels", [1, 2, 3, 6])
@pytest.mark.parametrize("top", [1, 3])
def test_scores_are_means_over_the_orders_of_ties(k: int, levels: int, top: int) -> None:
    values = RANDOM.integers(levels, size=(10, 6)).astype(float)
    grades = RANDOM.integers(top + 1, size=(10, 6))
    grades[:, 2] = top  # some item is relevant
    scores = relevance_per_query(values, grades, k)
    expected = np.array([brute_force(*rows, k) for rows in zip(values, grades, strict=True)])
    np.testing.assert_allclose(np.stack([scores["ndcg"], scores["mrr"], scores["recall"]], 1), expected, rtol=1e-12)
    assert ndcg_at_k(values, grades, k) == pytest.approx(expected[:, 0].mean())
    assert mrr(values, grades, k) == pytest.approx(expected[:, 1].mean())
    assert recall_at_k(values, grades, k) == pytest.approx(expected[:, 2].mean())


@pytest.mark.parametrize("k", [1, 10, 100, None])
@pytest.mark.parametrize("levels", [4, 1000])
def test_ndcg_is_that_of_scikit_learn(k: int | None, levels: int) -> None:
    values = RANDOM.integers(levels, size=(20, 100)).astype(float)
    grades = np.maximum(RANDOM.integers(-20, 4, size=(20, 100)), 0)
    grades[:, 0] = 1
    assert ndcg_at_k(values, grades, k) == pytest.approx(ndcg_score(grades, -values, k=k), rel=1e-12)


def test_sparse_grades_and_tensors() -> None:
    values, grades = torch.rand(5, 40), np.maximum(RANDOM.integers(-10, 4, size=(5, 40)), 0)
    grades[:, 3] = 2
    for form in (sparse.csr_array, sparse.coo_array, sparse.csc_matrix):
        assert ndcg_at_k(values, form(grades)) == ndcg_at_k(values, grades)


def test_queries_without_a_relevant_item_are_left_out() -> None:
    values, grades = [[1.0, 2.0], [1.0, 2.0]], [[1, 0], [0, 0]]
    assert ndcg_at_k(values, grades) == mrr(values, grades) == recall_at_k(values, grades, 1) == 1
    assert np.isnan(relevance_per_query(values, grades)["ndcg"]).tolist() == [False, True]


def test_infinite_values_come_last_and_all_ties_score_as_chance() -> None:
    assert mrr([[np.inf, 0.0]], [[1, 0]]) == 0.5
    assert recall_at_k(np.zeros((1, 1000)), np.eye(1, 1000), 10) == pytest.approx(0.01)
    assert mrr(np.zeros((1, 100_000)), np.ones((1, 100_000))) == 1
    assert ndcg_at_k([[1.0, 2.0]], [[1e308, 1e308]]) == 1


@pytest.mark.parametrize("score", [ndcg_at_k, mrr, recall_at_k])
@pytest.mark.parametrize(
    ("values", "grades", "k", "match"),
    [
        ([[1.0, np.nan]], [[1, 0]], 1, r"without NaN. Got NaN at \(0, 1\)"),
        ([[1.0, 2.0]], [[1, -1]], 1, "grades of .* must be finite, zero or above. Got -1.0"),
        ([[1.0, 2.0]], [[1, np.nan]], 1, "finite, zero or above. Got nan"),
        ([[1.0, 2.0]], [[0, 0]], 1, "above 0 for some item of some query. Got none"),
        ([[1.0, 2.0]], [[1, 0, 0]], 1, r"of shape \(1, 2\), as the matrix. Got \(1, 3\)"),
        ([1.0, 2.0], [1, 0], 1, r"\(queries, items\)"),
        ([[1.0, 2.0]], [[1, 0]], 0, "k of"),
    ],
)
def test_bad_input(score: Callable[..., float], values: Any, grades: Any, k: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        score(values, grades, k)


def test_grades_must_be_numbers() -> None:
    with pytest.raises(TypeError, match="of real numbers"):
        ndcg_at_k([[1.0, 2.0]], [["a", "b"]])
