"""Search as inner product or Euclidean distance: the same order as by the divergence."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from members import DIM, into_domain, train
from torch import Tensor

import askew
from askew.divergences import (
    Bregman,
    Divergence,
    Dual,
    GeneralizedSymmetrized,
    Jensen,
    Reversed,
    Scaled,
    Sqrt,
    Symmetrized,
    make,
)
from askew.potentials import NegativeEntropy
from askew.search import ExactIndex, InnerProductForm, KeysAndQueries, keys_and_queries
from askew.search.certified import VALUE_UNITS
from askew.search.inner_product import DIRECTIONS, FORMS

# What has no form as an inner product.
OTHERS = {"deep-div", "deep-div-affine", "pbdl", "deepnorm", "widenorm", "widenorm-legacy", "iqe", "mrn"}
REDUCING = [name for name in askew.names() if name not in OTHERS]


@functools.cache
def made(name: str) -> Divergence:
    """Return a divergence in float64, after some training steps where it can learn; tests must not change it."""
    torch.manual_seed(sum(map(ord, name)))
    divergence = make(name, DIM)
    if any(True for _ in divergence.parameters()):
        train(divergence)
    return divergence.double().eval().requires_grad_(False)


def points(divergence: Divergence, n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return into_domain(divergence.domain, torch.randn(n, DIM, generator=generator, dtype=torch.float64))


def truth(divergence: Divergence, queries: Tensor, items: Tensor, direction: str) -> Tensor:
    """Return all divergences, ``(queries, items)``."""
    if direction == "query-first":
        return divergence.pairwise(queries, items)
    return divergence.pairwise(items, queries).t()


def costs(form: InnerProductForm | KeysAndQueries, queries: Tensor, items: Tensor) -> Tensor:
    """Return what an engine makes small, ``(queries, items)``."""
    vectors, keys = form.queries(queries), form.keys(items)
    assert vectors.shape == (len(queries), form.size)
    assert keys.shape == (len(items), form.size)
    return -(vectors @ keys.t()) if form.form == "inner-product" else torch.cdist(vectors, keys)


def assert_same_order(cost: Tensor, values: Tensor) -> None:
    """Raise unless values never fall in the order of costs, but for what rounding leaves."""
    ordered = values.gather(1, cost.argsort(1))
    assert bool((ordered.diff(dim=1) >= -1e-9 * ordered.amax()).all())
    assert bool((ordered.diff(dim=1) > 0).any())


def check(divergence: Divergence, direction: str, form: str) -> None:
    items, queries = points(divergence, 60, 1), points(divergence, 25, 2)
    reduction = keys_and_queries(divergence, direction, form, items)
    assert_same_order(costs(reduction, queries, items), truth(divergence, queries, items, direction))


def test_no_member_is_forgotten() -> None:
    assert {name for name in askew.names() if make(name, DIM).ranks_like() is None} == OTHERS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", REDUCING)
def test_order_is_that_of_the_divergence(name: str, direction: str, form: str) -> None:
    check(made(name), direction, form)


WRAPPED: dict[str, Callable[[Divergence], Divergence]] = {
    "sqrt": Sqrt,
    "scaled": lambda divergence: Scaled(divergence, 2.5),
    "reversed": Reversed,
    "reversed-twice": lambda divergence: Reversed(Scaled(Reversed(divergence), 3.0)),
    "all": lambda divergence: Sqrt(Scaled(Reversed(divergence), 0.1)),
    "fourth-root": lambda divergence: Sqrt(Sqrt(divergence)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("wrapper", WRAPPED)
@pytest.mark.parametrize("name", ["nbd", "kl", "mahalanobis"])
def test_wrappers(name: str, wrapper: str, direction: str, form: str) -> None:
    check(WRAPPED[wrapper](made(name)).double(), direction, form)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("root", [True, False])
def test_generalized_symmetrized_of_closed_forms(root: bool, direction: str) -> None:
    check(GeneralizedSymmetrized(Bregman(NegativeEntropy(DIM)), root).double(), direction, "euclidean")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_dual(direction: str) -> None:
    check(Dual(Bregman(NegativeEntropy(DIM))).double(), direction, "inner-product")


@pytest.mark.parametrize("make_one", [Symmetrized, Jensen])
def test_sums_of_both_directions_do_not_reduce(make_one: Callable[[Any], Divergence]) -> None:
    divergence = make_one(made("nbd"))
    assert divergence.ranks_like() is None
    with pytest.raises(TypeError, match=r"a Bregman divergence.*Got .* instead\. askew\.search\.ExactIndex searches"):
        keys_and_queries(divergence)


# ---------------------------------------------------------------------- the identity


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["nbd", "nbd-paper", "kl", "kl-simplex", "itakura-saito", "logistic", "power"])
def test_divergence_is_base_minus_product(name: str, direction: str) -> None:
    divergence = made(name)
    items, queries = points(divergence, 60, 1), points(divergence, 25, 2)
    form = keys_and_queries(divergence, direction, "inner-product", items)
    torch.testing.assert_close(form.centre, items.mean(0, keepdim=True))
    first = direction == "query-first"
    base = divergence(queries, form.centre) if first else divergence(form.centre, queries)
    values = base[:, None] - form.queries(queries) @ form.keys(items).t()
    wanted = truth(divergence, queries, items, direction)
    torch.testing.assert_close(values, wanted, rtol=1e-9, atol=1e-9 * wanted.amax().item())


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["nbd", "kl", "bregman-gs"])
def test_euclidean_form(name: str, direction: str) -> None:
    divergence = made(name)
    items, queries = points(divergence, 60, 1), points(divergence, 25, 2)
    form = keys_and_queries(divergence, direction, "euclidean", items)
    keys, vectors = form.keys(items), form.queries(queries)
    torch.testing.assert_close(keys.norm(dim=1), torch.full((60,), form.radius, dtype=torch.float64))
    assert bool((vectors[:, -1] == 0).all())
    assert form.size == DIM + 2
    inner = form.inner
    products = inner.plain_queries(queries) @ inner.plain_keys(items).t()
    torch.testing.assert_close(vectors @ keys.t(), form.stretch * products)
    # Items as queries are three times as long as the longest key, in the square mean.
    lengths = form.stretch * inner.plain_queries(items).square().sum(1).mean().sqrt()
    torch.testing.assert_close(lengths.item(), 3 * inner.plain_keys(items).norm(dim=1).amax().item())


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("offset", "stretch"), [(7.0, 1.0), (1e-2, 1.0), (1.0, 20.0), (3.0, 0.1)])
def test_offset_and_stretch_change_no_order(direction: str, offset: float, stretch: float) -> None:
    divergence = made("nbd")
    items, queries = points(divergence, 60, 1), points(divergence, 25, 2)
    form = replace(keys_and_queries(divergence, direction, "euclidean", items).inner, offset=offset, stretch=stretch)
    form = replace(form, radius=1.5 * form.longest(items))
    assert_same_order(costs(form, queries, items), truth(divergence, queries, items, direction))


def test_keys_beyond_the_radius() -> None:
    divergence = made("nbd")
    items = points(divergence, 60, 1)
    form = keys_and_queries(divergence, "query-first", "euclidean", items)
    assert 1 < form.radius / form.inner.longest(items) < 1.2
    bad = torch.cat([items[:7], 10 * items[7:8]])
    message = r"keys must be at most .* long, the radius.*in row 7 instead\. Use form='inner-product', .* no limit"
    with pytest.raises(ValueError, match=message):
        form.keys(bad)
    assert keys_and_queries(divergence, items=items).keys(bad).isfinite().all()
    assert form.keys(items[:0]).shape == (0, DIM + 2)
    assert form.queries(100 * items).shape == (60, DIM + 2)


# ---------------------------------------------------------------------- domains


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("name", "edges"), [("kl", [0.0]), ("kl-simplex", [0.0]), ("logistic", [0.0, 1.0])])
def test_first_points_on_the_boundary(name: str, edges: list[float], direction: str, form: str) -> None:
    divergence = made(name)
    sets = {"items": points(divergence, 60, 1), "queries": points(divergence, 25, 2)}
    on_edge = sets["queries" if direction == "query-first" else "items"]
    for number, edge in enumerate(edges):
        on_edge[number::3, number] = edge
    on_edge[:, 3] = 0  # in all of them, and their mean is on the boundary as well
    if name == "kl-simplex":
        on_edge /= on_edge.sum(1, keepdim=True)
    reduction = keys_and_queries(divergence, direction, form, sets["items"])
    cost = costs(reduction, sets["queries"], sets["items"])
    assert bool(cost.isfinite().all())
    assert_same_order(cost, truth(divergence, sets["queries"], sets["items"], direction))
    if direction == "query-first":
        with pytest.raises(ValueError, match=r"items of keys_and_queries must be inside the .* domain"):
            keys_and_queries(divergence, direction, form, on_edge)


def test_centre_where_all_items_are_zero() -> None:
    form = keys_and_queries(made("kl"), "query-second", "euclidean", torch.zeros(5, DIM, dtype=torch.float64))
    assert bool((form.centre > 0).all())
    assert bool(form.keys(torch.zeros(5, DIM)).isfinite().all())


def test_boundary_of_wrappers() -> None:
    kl, burg = made("kl"), made("itakura-saito")
    assert (kl.takes_boundary("first"), kl.takes_boundary("second")) == (True, False)
    assert (Reversed(kl).takes_boundary("first"), Reversed(kl).takes_boundary("second")) == (False, True)
    assert Sqrt(Scaled(kl)).takes_boundary("first")
    assert not Sqrt(Reversed(kl)).takes_boundary("first")
    # The middle of two points on the boundary may lie there as well.
    assert not Jensen(kl).takes_boundary("first")
    assert not Jensen(kl).takes_boundary("second")
    assert not burg.takes_boundary("first")
    assert not GeneralizedSymmetrized(kl).takes_boundary("first")


@pytest.mark.parametrize("name", ["kl", "itakura-saito", "logistic", "kl-simplex"])
def test_items_outside_the_domain(name: str) -> None:
    with pytest.raises(ValueError, match=r"items of keys_and_queries must be inside the .* domain"):
        keys_and_queries(made(name), "query-second", "euclidean", -torch.ones(3, DIM))


# ---------------------------------------------------------------------- what may be given


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["nbd", "kl", "itakura-saito", "logistic", "kl-simplex"])
def test_without_items(name: str, direction: str) -> None:
    divergence = made(name)
    form = keys_and_queries(divergence, direction).inner
    items, queries = points(divergence, 60, 1), points(divergence, 25, 2)
    form = replace(form, centre=form.centre.double())
    assert_same_order(costs(form, queries, items), truth(divergence, queries, items, direction))
    with pytest.raises(ValueError, match="items of keys_and_queries must be given for the Euclidean form"):
        keys_and_queries(divergence, direction, "euclidean")


def test_arrays_lists_and_names() -> None:
    items = np.abs(np.random.default_rng(0).normal(size=(20, 3))) + 0.1
    form = keys_and_queries("kl", items=items)
    assert form.keys(items.tolist()).dtype == torch.float64
    torch.testing.assert_close(form.keys(items.tolist()), form.keys(torch.from_numpy(items)))
    torch.testing.assert_close(form.keys(items[::-1]), form.keys(items).flip(0))
    single = keys_and_queries("kl", items=items.astype(np.float32)).keys(items)
    assert single.dtype == torch.float32


def test_results_are_plain_tensors() -> None:
    items = torch.randn(10, DIM, requires_grad=True)
    form = keys_and_queries(make("nbd", DIM), items=items)
    keys = form.keys(items)
    assert not keys.requires_grad
    assert not keys.is_inference()
    weight = torch.ones(form.size, requires_grad=True)
    (keys @ weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"divergence": "nbd", "items": np.ones((2, 3))}, ValueError, "one that needs no learning"),
        ({"divergence": "kl"}, ValueError, "items of keys_and_queries must be given where the divergence is a name"),
        ({"divergence": "kll", "items": np.ones((2, 3))}, ValueError, "Did you mean 'kl'"),
        ({"direction": "query-third"}, ValueError, "direction of keys_and_queries.*Did you mean 'query-first'"),
        ({"form": "euclid"}, ValueError, "form of keys_and_queries.*Did you mean 'euclidean'"),
        ({"items": np.ones((2, DIM + 1))}, ValueError, r"items of keys_and_queries must be of shape \(\.\.\., 4\)"),
        ({"items": np.ones(DIM)}, ValueError, r"items of keys_and_queries must be of shape \(n, dim\)"),
        ({"items": np.full((2, DIM), np.nan)}, ValueError, r"must be finite. Got items\[0, 0\] = nan"),
        ({"items": np.full((2, DIM), "a")}, TypeError, "points must be real numbers"),
        ({"divergence": 3}, TypeError, "a divergence, a fitted learner, or a name such as 'kl'. Got int"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        keys_and_queries(**{"divergence": made("nbd"), **arguments})


@pytest.mark.parametrize("bad", [np.ones((2, DIM - 1)), np.ones(DIM), np.ones((1, 2, DIM))])
def test_points_of_another_shape(bad: Any) -> None:
    form = keys_and_queries(made("nbd"))
    for call in (form.keys, form.queries):
        with pytest.raises(
            ValueError, match=r"(items|queries) of keys_and_queries must be of shape \((n, dim|\.\.\., 4)\)"
        ):
            call(bad)
    for call in (form.inner.keys, form.inner.queries):
        with pytest.raises(ValueError, match=r"points of an InnerProductForm must be of shape \(n, 4\)"):
            call(bad)


def test_an_example_for_another_engine() -> None:
    """Vectors in float32, an engine that knows nothing of divergences, values by the divergence."""
    divergence = copy.deepcopy(made("nbd")).float()
    items, queries = (points(divergence, n, n).float() for n in (300, 10))
    form = keys_and_queries(divergence, "query-second", "euclidean", items)
    hits = torch.cdist(form.queries(queries), form.keys(items)).topk(20, largest=False).indices
    values, order = divergence(items[hits], queries[:, None]).sort(1)
    index = ExactIndex(divergence, "query-second")
    index.add(items)
    wanted, ids = index.search(queries, 5)
    np.testing.assert_allclose(values[:, :5].numpy(), wanted, rtol=VALUE_UNITS * np.finfo(np.float32).eps)
    np.testing.assert_array_equal(hits.gather(1, order)[:, :5].numpy(), ids)
