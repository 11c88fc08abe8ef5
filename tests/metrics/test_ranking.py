"""Ranking scores against brute force over all orders of ties, scikit-learn, and themselves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import average_precision_score, roc_auc_score

from askew import metrics
from askew.metrics import ties

NAMES = ("map", "auc", "map@3", "recall@3", "precision@1")


def score_of_order(relevant: tuple[bool, ...], k: int) -> tuple[float, ...]:
    """The textbook definitions for one order without ties."""
    precisions = [sum(relevant[: j + 1]) / (j + 1) if relevant[j] else 0.0 for j in range(len(relevant))]
    total = sum(relevant)
    pairs = [(i, j) for i in range(len(relevant)) for j in range(len(relevant)) if relevant[i] and not relevant[j]]
    ordered = [i < j for i, j in pairs]
    return (
        sum(precisions) / total,
        sum(ordered) / len(pairs) if pairs else math.nan,
        sum(precisions[:k]) / min(k, total),
        float(any(relevant[:k])),
        float(relevant[0]),
    )


def brute_force(values: np.ndarray, relevant: np.ndarray, k: int) -> np.ndarray:
    """The mean over all orders of the items that agree with the values."""
    groups = [[bool(r) for r in relevant[values == value]] for value in np.unique(values)]
    orders = itertools.product(*(list(itertools.permutations(group)) for group in groups))
    return np.mean([score_of_order(tuple(itertools.chain(*order)), k) for order in orders], axis=0)


def test_every_small_ranking_with_ties_is_the_mean_over_its_orders() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 3, (60, 6)).astype(float)
    matrix[0], matrix[1] = 0, np.arange(6)
    items = np.array([0, 0, 0, 1, 1, 2])
    for k in (1, 2, 3, 5, 6, 9):
        for label in (0, 1, 2):
            found = metrics.ranking_per_query(matrix, np.full(60, label), items, k)
            expected = np.array([brute_force(row, items == label, k) for row in matrix])
            np.testing.assert_allclose(np.stack(list(found.values()), 1), expected, rtol=1e-12, atol=1e-14)


def test_without_ties_it_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.random((50, 400))
    queries, items = rng.integers(0, 7, 50), rng.integers(0, 7, 400)
    found = metrics.ranking_per_query(matrix, queries, items)
    relevant = queries[:, None] == items
    expected = [average_precision_score(r, -row) for r, row in zip(relevant, matrix, strict=True)]
    np.testing.assert_allclose(found["map"], expected, rtol=1e-12)
    expected = [roc_auc_score(r, -row) for r, row in zip(relevant, matrix, strict=True)]
    np.testing.assert_allclose(found["auc"], expected, rtol=1e-12)


def test_auc_with_ties_is_scikit_learns() -> None:
    rng = np.random.default_rng(2)
    matrix, items = rng.integers(0, 5, (20, 300)), rng.integers(0, 2, 300)
    expected = [roc_auc_score(items, -row) for row in matrix]
    np.testing.assert_allclose(metrics.ranking_per_query(matrix, np.ones(20, int), items)["auc"], expected, rtol=1e-12)


def test_known_values() -> None:
    # Places 1 and 3 of 4 are relevant.
    arguments = ([[0.1, 0.2, 0.3, 0.4]], [1], [1, 0, 1, 0])
    assert metrics.mean_average_precision(*arguments) == pytest.approx((1 + 2 / 3) / 2)
    assert metrics.auc(*arguments) == 0.75
    assert metrics.ranking(*arguments, k=2)["map@2"] == 0.5
    assert metrics.ranking(*arguments, k=3)["map@3"] == pytest.approx((1 + 2 / 3) / 2)
    assert metrics.ranking(*arguments, k=1)["recall@1"] == 1
    assert metrics.ranking(*arguments)["precision@1"] == 1
    far = ([[0.4, 0.2, 0.3, 0.1]], [1], [1, 0, 0, 0])
    assert [metrics.ranking(*far, k=k)[f"recall@{k}"] for k in (1, 3, 4, 99)] == [0, 0, 1, 1]
    assert metrics.ranking([[0, 0, 0, 0]], *far[1:], k=3)["recall@3"] == pytest.approx(0.75)


def test_one_function_each_and_all_at_once_agree() -> None:
    rng = np.random.default_rng(3)
    matrix = rng.integers(0, 9, (30, 40)) / 4
    queries, items = rng.integers(0, 4, 30), rng.integers(0, 4, 40)
    together = metrics.ranking(matrix, queries, items, k=3)
    assert together["map"] == metrics.mean_average_precision(matrix, queries, items)
    assert together["auc"] == metrics.auc(matrix, queries, items)
    assert tuple(together) == NAMES
    assert all(type(value) is float for value in together.values())
    first = metrics.ranking(matrix, queries, items, k=1)
    assert first["precision@1"] == pytest.approx(first["recall@1"])


def test_large_groups_of_ties_keep_their_digits() -> None:
    # One group of n items, r relevant: E[AP] = (H_n + (r - 1) / (n - 1) (n - H_n)) / n.
    n, r = 200_000, 30_000
    harmonic = math.fsum(1 / j for j in range(1, n + 1))
    expected = (harmonic + (r - 1) / (n - 1) * (n - harmonic)) / n
    found = metrics.mean_average_precision(np.zeros((1, n)), [1], np.arange(n) < r)
    assert found == pytest.approx(expected, rel=1e-12)
    k = 7
    none = math.prod((n - r - i) / (n - i) for i in range(k))
    together = metrics.ranking(np.zeros((1, n)), [1], np.arange(n) < r, k=k)
    assert together["recall@7"] == pytest.approx(1 - none, rel=1e-8)


def test_late_places_keep_their_digits() -> None:
    n = 200_000
    found = metrics.mean_average_precision(np.arange(n)[None], [1], np.arange(n) >= n - 2)
    assert found == pytest.approx((1 / (n - 1) + 2 / n) / 2, rel=1e-14)


@pytest.mark.parametrize("exclude_self", [False, True])
def test_blocks_do_not_matter(exclude_self: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    matrix, labels = rng.integers(0, 6, (23, 23)), rng.integers(0, 3, 23)
    whole = metrics.ranking_per_query(matrix, labels, exclude_self=exclude_self)
    for elements in (1, 60, 100):
        monkeypatch.setattr(ties, "BLOCK_ELEMENTS", elements)
        parts = metrics.ranking_per_query(matrix, labels, exclude_self=exclude_self)
        for name, values in whole.items():
            np.testing.assert_array_equal(parts[name], values)


def test_exclude_self_leaves_the_diagonal_out() -> None:
    rng = np.random.default_rng(5)
    matrix, labels = rng.integers(0, 6, (15, 15)).astype(float), rng.integers(0, 3, 15)
    np.fill_diagonal(matrix, np.nan)  # not even looked at
    found = metrics.ranking_per_query(matrix, labels, exclude_self=True)
    assert metrics.ranking_per_query(matrix, labels, labels, exclude_self=True)["map"].tolist() == found["map"].tolist()
    for i in range(15):
        others = np.arange(15) != i
        expected = metrics.ranking_per_query(matrix[i : i + 1, others], labels[i : i + 1], labels[others])
        assert [values[i] for values in found.values()] == [values[0] for values in expected.values()]


def test_queries_without_a_relevant_item_do_not_count() -> None:
    matrix = [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]
    per_query = metrics.ranking_per_query(matrix, ["a", "lone"], ["b", "a", "b"], k=3)
    assert all(np.isnan(values[1]) for values in per_query.values())
    expected = dict(zip(NAMES, (0.5, 0.5, 0.5, 1, 0), strict=True))
    assert metrics.ranking(matrix, ["a", "lone"], ["b", "a", "b"], k=3) == expected


def test_auc_needs_an_irrelevant_item_and_the_others_do_not() -> None:
    found = metrics.ranking([[0.0, 1.0]], [1], [1, 1])
    assert math.isnan(found.pop("auc"))
    assert set(found.values()) == {1.0}
    with pytest.raises(ValueError, match=r"labels of auc must be such that some query has both .* Got relevant items"):
        metrics.auc([[0.0, 1.0]], [1], [1, 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_tensors_and_arrays_give_the_same(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randint(0, 40, (9, 12), generator=generator)
    queries, items = torch.arange(9) % 3, torch.arange(12) % 3
    expected = metrics.ranking(matrix.numpy(), queries.numpy(), items.numpy())
    values = matrix.to(dtype).requires_grad_(dtype.is_floating_point)
    assert metrics.ranking(values, queries, items) == expected
    names = np.array(["x", "y", "z"])
    assert metrics.ranking(matrix.numpy(), names[queries].tolist(), names[items].astype(object)) == expected


def test_infinite_distances_come_last() -> None:
    matrix = [[np.inf, 1e300, np.inf, -np.inf]]
    assert metrics.mean_average_precision(matrix, [1], [1, 0, 1, 1]) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)


MATRICES = arrays.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(2, 9)), elements=st.integers(-3, 3))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(MATRICES, st.integers(0, 2**32 - 1))
def test_the_order_of_items_and_monotone_transforms_do_not_matter(matrix: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = matrix.shape
    queries, items = rng.integers(0, 2, rows), rng.integers(0, 2, columns)
    items[0] = queries[0]
    expected = metrics.ranking_per_query(matrix, queries, items, 3)
    order = rng.permutation(columns)
    shuffled = metrics.ranking_per_query(matrix[:, order], queries, items[order], 3)
    bent = metrics.ranking_per_query(np.exp(matrix) - 7, queries, items, 3)
    for name, values in expected.items():
        np.testing.assert_array_equal(shuffled[name], values)
        np.testing.assert_array_equal(bent[name], values)
        known = values[~np.isnan(values)]
        assert ((known >= -1e-12) & (known <= 1 + 1e-12)).all()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_turning_the_ranking_around_turns_auc_around(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, items = rng.integers(0, 5, (3, 10)), np.arange(10) % 3
    total = metrics.auc(matrix, [0, 1, 2], items) + metrics.auc(-matrix, [0, 1, 2], items)
    assert total == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0], [1], [1, 2]), ValueError, r"matrix of ranking must be of shape \(queries, items\).*Got \(2,\)"),
        ((np.zeros((0, 3)), [], [1, 1, 1]), ValueError, r"neither of them empty. Got \(0, 3\)"),
        ((np.zeros((1, 3)), [], [1, 1, 1]), ValueError, r"query_labels of ranking must be of shape \(n,\) with"),
        ((np.zeros((2, 3)), [1], [1, 1, 1]), ValueError, r"query_labels .* \(2,\), one for each row .* Got \(1,\)"),
        ((np.zeros((2, 3)), [1, 1], [1, 1]), ValueError, r"item_labels .* \(3,\), one for each column .* Got \(2,\)"),
        ((np.zeros((2, 3)), [1, 1]), ValueError, r"item_labels .* Without item_labels the query_labels serve"),
        (
            (np.zeros((1, 2)), [1], [[1, 2]]),
            ValueError,
            r"item_labels of ranking must be of shape \(n,\).*Got \(1, 2\)",
        ),
        (([[0.0, np.nan]], [1], [1, 0]), ValueError, r"without NaN. Got matrix\[0, 1\] = nan .* NaN cannot be ranked"),
        (([[0.0, 1j]], [1], [1, 0]), TypeError, "matrix of ranking must be of real numbers. Got dtype complex128"),
        (([[0.0, 1.0]], [3], [1, 0]), ValueError, "shared by at least one query and one item. Got no relevant item"),
        (([[0.0, 1.0]], ["1"], [1, 0]), TypeError, "of one kind, all numbers or all text. Got dtypes <U1 and int64"),
        (([[0.0, 1.0]], [1], np.array([1, "a"], dtype=object)), TypeError, "of one kind"),
        (
            ([[0.0, 1.0]], [1.0], [1.0, np.nan]),
            ValueError,
            r"item_labels .* missing values. Got item_labels\[1\] = nan",
        ),
        (([[0.0, 1.0]], ["a"], np.array(["a", None])), ValueError, r"Got item_labels\[1\] = None"),
        (([[0.0, 1.0]], [1], [1, 0], 0), ValueError, "k of ranking must be a positive integer. Got 0"),
    ],
)
def test_bad_input_is_named(arguments: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        metrics.ranking(*arguments)


@pytest.mark.parametrize(
    ("shape", "queries", "items", "got"),
    [
        ((2, 3), [1, 1], [1, 1, 1], r"\(2, 3\)"),
        ((2, 2), [1, 0], [0, 1], "with other labels"),
        ((1, 1), [1], [1], "1, 1"),
    ],
)
def test_exclude_self_is_for_a_set_with_itself(shape: tuple, queries: list, items: list, got: str) -> None:
    with pytest.raises(ValueError, match=f"matrix of auc must be square, of at least two points.*{got}"):
        metrics.auc(np.zeros(shape), queries, items, exclude_self=True)


def test_the_place_of_a_nan_is_that_in_the_whole_matrix() -> None:
    matrix = np.zeros((4, 4))
    matrix[2, 3] = np.nan
    with pytest.raises(ValueError, match=r"matrix\[2, 3\] = nan"):
        metrics.ranking(matrix, [0, 0, 1, 1], exclude_self=True)
    with pytest.raises(ValueError, match=r"no relevant item for any query"):
        metrics.ranking(np.zeros((4, 4)), [0, 1, 2, 3], exclude_self=True)
