"""Wrappers that a user writes are searched in every index, without a change to askew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import askew
from askew.divergences import Divergence, Ranking, Reversed, Scaled, Sqrt
from askew.divergences.base import Side
from askew.search import ExactIndex, FaissIndex, Index, MilvusIndex, keys_and_queries
from askew.search.inner_product import DIRECTIONS, FORMS

DIM = 6


class Wrapper(Divergence):
    """What both have in common."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.dim)
        self.divergence = divergence
        self.domain = divergence.domain

    def takes_boundary(self, side: Side) -> bool:
        return self.divergence.takes_boundary(side)


class Logarithm(Wrapper):
    """log(1 + D), which orders items as D does."""

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute(x, y).log1p()

    def ranks_like(self) -> Ranking | None:
        return self.divergence.ranks_like()


class Doubled(Wrapper):
    """D(2 x, 2 y), which orders items as D orders their doubles."""

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute(2 * x, 2 * y)

    def ranks_like(self) -> Ranking | None:
        ranking = self.divergence.ranks_like()
        return None if ranking is None else replace(ranking, view=lambda points: ranking.views(2 * points))


WRAPPERS: dict[str, Callable[[Divergence], Divergence]] = {
    "logarithm": Logarithm,
    "doubled": Doubled,
    "inside": lambda divergence: Sqrt(Scaled(Logarithm(divergence), 3.0)),
    "around": lambda divergence: Logarithm(Reversed(Doubled(Sqrt(divergence)))),
}
INDEXES: dict[str, Callable[[Divergence, str, Path], Index]] = {
    "exact": lambda divergence, direction, folder: ExactIndex(divergence, direction),
    "milvus": lambda divergence, direction, folder: MilvusIndex(divergence, folder / "a.db", direction=direction),
    **{
        kind: lambda divergence, direction, folder, kind=kind: FaissIndex(divergence, direction, kind)  # type: ignore[misc]
        for kind in ("flat", "ivf", "hnsw", "ivf-pq")
    },
}
every_wrapper = pytest.mark.parametrize("wrapper", WRAPPERS)
every_name = pytest.mark.parametrize("name", ["nbd", "kl", "mahalanobis"])
both_directions = pytest.mark.parametrize("direction", DIRECTIONS)


def points(count: int, seed: int) -> Tensor:
    """Return positive points in clusters."""
    centres = 1 + 5 * torch.rand(10, DIM, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    return centres[torch.arange(count) % 10] * (1 + torch.rand(count, DIM, generator=generator))


def wrapped(wrapper: str, name: str) -> Divergence:
    torch.manual_seed(0)
    return WRAPPERS[wrapper](askew.make(name, DIM)).eval().requires_grad_(False)


def matrix(divergence: Divergence, queries: Tensor, items: Tensor, direction: str) -> Tensor:
    first, second = queries[:, None], items[None]
    return divergence(first, second) if direction == "query-first" else divergence(second, first)


@every_wrapper
@every_name
@both_directions
@pytest.mark.parametrize("index", [name for name in INDEXES if name != "milvus"])
def test_every_index_finds_the_nearest(index: str, direction: str, name: str, wrapper: str, tmp_path: Path) -> None:
    check(INDEXES[index](wrapped(wrapper, name), direction, tmp_path), 0.95 if "ivf" in index or index == "hnsw" else 1)


@both_directions
def test_milvus_finds_the_nearest(direction: str, tmp_path: Path) -> None:
    pytest.importorskip("pymilvus")
    with INDEXES["milvus"](wrapped("around", "nbd"), direction, tmp_path) as index:  # type: ignore[attr-defined]
        check(index, 1)


def check(index: Index, recall: float) -> None:
    """Raise unless values are those of the wrapper, and next to all neighbours are found."""
    items, queries = points(400, 0), points(30, 1)
    index.add(items)
    values, ids = index.search(queries, 8)
    exact = matrix(index.divergence, queries, items, index.direction).numpy()
    np.testing.assert_allclose(values, np.take_along_axis(exact, ids, 1), rtol=1e-5)
    wanted = np.argsort(exact, 1, kind="stable")[:, :8]
    found = np.mean([len(np.intersect1d(a, b)) / 8 for a, b in zip(ids, wanted, strict=True)])
    assert found >= recall


@every_wrapper
@every_name
@both_directions
@pytest.mark.parametrize("form", FORMS)
def test_vectors_for_other_engines(form: str, direction: str, name: str, wrapper: str) -> None:
    divergence = wrapped(wrapper, name).double()
    items, queries = points(100, 0).double(), points(20, 1).double()
    maps = keys_and_queries(divergence, direction, form, items)
    keys, vectors = maps.keys(items), maps.queries(queries)
    costs = -(vectors @ keys.t()) if form == "inner-product" else torch.cdist(vectors, keys)
    ordered = matrix(divergence, queries, items, direction).gather(1, costs.argsort(1))
    assert bool((ordered.diff(dim=1) >= -1e-9 * ordered.amax()).all())


def test_a_ranking_without_an_affine_form_is_refused() -> None:
    class Wrong(Logarithm):
        def ranks_like(self) -> Ranking:
            return Ranking(self)

    index = ExactIndex(Wrong(askew.make("kl", DIM)))
    with pytest.raises(TypeError, match=r"divergence of a Ranking must be one with an affine form\. Got Wrong instead"):
        index.add(points(10, 0))
