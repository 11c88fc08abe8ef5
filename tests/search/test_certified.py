"""The k largest inner products, against sorting all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from askew.search import certified
from askew.search.certified import largest_products


def brute_force(queries: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest products; of equals the smaller number first."""
    products = (queries @ keys.t()).numpy()
    numbers = np.broadcast_to(np.arange(products.shape[1]), products.shape)
    order = np.lexsort((numbers, -products), axis=1)[:, :k]
    return torch.from_numpy(np.take_along_axis(products, order, 1)), torch.from_numpy(order)


def whole_numbers(n: int, size: int, seed: int, most: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return points whose products are exact in any order of summation, and often equal."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, (n, size), generator=generator).to(dtype)


def assert_equal(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(6))
def test_random_sizes(seed: int, dtype: torch.dtype) -> None:
    random = np.random.default_rng(seed)
    n, m, size = int(random.integers(1, 700)), int(random.integers(1, 7000)), int(random.integers(1, 9))
    k = int(random.integers(1, min(m, 40) + 1))
    # Few values give many equals, many values next to none.
    most = [1, 3, 1000][seed % 3]
    queries, keys = whole_numbers(n, size, 1, most, dtype), whole_numbers(m, size, 2, most, dtype)
    assert_equal(largest_products(queries, keys, k), brute_force(queries, keys, k))


@pytest.mark.parametrize("k", [1, 2, 17, 500, 2048, 4999, 5000])
def test_large_k(k: int) -> None:
    queries, keys = whole_numbers(5, 6, 1), whole_numbers(5000, 6, 2)
    assert_equal(largest_products(queries, keys, k), brute_force(queries, keys, k))


@pytest.mark.parametrize("count", [11, 127, 129, 2047, 2049, 4223])
def test_odd_numbers_of_keys(count: int) -> None:
    queries, keys = whole_numbers(9, 6, 1), whole_numbers(count, 6, 2)
    assert_equal(largest_products(queries, keys, 11), brute_force(queries, keys, 11))


def test_all_equal() -> None:
    values, numbers = largest_products(torch.ones(600, 3), torch.ones(4500, 3), 20)
    assert bool((values == 3).all())
    torch.testing.assert_close(numbers, torch.arange(20).expand(600, 20))


@pytest.mark.parametrize("k", [1, 3, 20])
def test_ties_across_blocks(k: int) -> None:
    # The best is far behind the first of many equals.
    keys = torch.ones(6000, 1)
    keys[5000] = 2
    _, numbers = largest_products(torch.ones(3, 1), keys, k)
    torch.testing.assert_close(numbers, torch.tensor([5000, *range(k - 1)]).expand(3, k))


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_sorted_keys(order: str) -> None:
    keys = torch.arange(9000.0)[:, None]
    keys = keys if order == "rising" else keys.flip(0)
    queries = torch.tensor([[1.0], [-1.0], [0.0]])
    assert_equal(largest_products(queries, keys, 10), brute_force(queries, keys, 10))


@pytest.mark.parametrize("k", [1, 10, 60])
def test_keys_that_nothing_is_near_to(k: int) -> None:
    keys = whole_numbers(5000, 4, 2)
    empty = torch.ones(5000, dtype=torch.bool)
    empty[::83] = False  # 61 are left
    keys[empty] = torch.tensor([0, 0, 0, -torch.inf])
    queries = whole_numbers(7, 4, 1)
    queries[:, -1] = 1
    values, numbers = largest_products(queries, keys, k)
    assert not bool(empty[numbers].any())
    assert_equal((values, numbers), brute_force(queries, keys, k))


def test_no_queries() -> None:
    values, numbers = largest_products(torch.empty(0, 3, dtype=torch.float64), torch.ones(300, 3).double(), 4)
    assert (values.shape, numbers.shape) == ((0, 4), (0, 4))
    assert (values.dtype, numbers.dtype) == (torch.float64, torch.int64)


@pytest.mark.parametrize(("query_rows", "key_rows"), [(1, 128), (7, 256), (64, 128)])
def test_sizes_of_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, query_rows: int, key_rows: int) -> None:
    queries, keys = whole_numbers(50, 6, 1), whole_numbers(3000, 6, 2)
    wanted = brute_force(queries, keys, 15)
    monkeypatch.setattr(certified, "QUERY_ROWS", query_rows)
    monkeypatch.setattr(certified, "KEY_ROWS", key_rows)
    assert_equal(largest_products(queries, keys, 15), wanted)


@pytest.mark.parametrize("column", [5, 3000])
def test_products_that_are_no_numbers_come_out(column: int) -> None:
    keys = whole_numbers(5000, 4, 2)
    keys[column] = torch.nan
    values, _ = largest_products(whole_numbers(7, 4, 1), keys, 3)
    assert bool(values.isnan().any(1).all())


def test_real_numbers_and_views() -> None:
    torch.manual_seed(0)
    queries, keys = torch.randn(40, 12)[:, ::2], torch.randn(6, 4000).t()
    values, numbers = largest_products(queries, keys, 10)
    wanted = (queries @ keys.t()).topk(10).values
    torch.testing.assert_close(values, wanted)
    torch.testing.assert_close((queries[:, None] * keys[numbers]).sum(-1), values)
