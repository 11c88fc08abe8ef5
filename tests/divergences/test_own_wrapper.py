"""Divergences written outside askew that answer the questions of search and clustering themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from askew.divergences import (
    AffineForm,
    Bregman,
    Divergence,
    Embedded,
    GeneralizedSymmetrized,
    Ranking,
    Reversed,
    Scaled,
    Sqrt,
    Symmetrized,
    make,
    split_encoder,
)
from askew.divergences.base import Side
from askew.potentials import Quadratic


class Logarithm(Divergence):
    """log(1 + D): increasing in D, so that it orders points as D does."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.dim)
        self.divergence = divergence
        self.domain = divergence.domain

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute(x, y).log1p()

    def ranks_like(self) -> Ranking | None:
        return self.divergence.ranks_like()

    def takes_boundary(self, side: Side) -> bool:
        return self.divergence.takes_boundary(side)


class PlusSquare(Divergence):
    """D(x, y) + |x - y|^2, which is a Bregman divergence if D is one."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.dim)
        self.divergence = divergence
        self.domain = divergence.domain

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute(x, y) + (x - y).square().sum(-1)

    def as_bregman(self) -> Bregman | None:
        inner = self.divergence.as_bregman()
        return None if inner is None else Bregman(inner.potential + Quadratic(inner.potential.dim))


class Shop:
    """Stands for a divergence without being one, as a fitted learner does."""

    def __init__(self, divergence: Divergence) -> None:
        self.kept = divergence

    def as_divergence(self) -> Divergence:
        return self.kept


def order(matrix: Tensor) -> list[list[int]]:
    ranked: list[list[int]] = matrix.argsort(1).tolist()
    return ranked


def form_values(ranking: Ranking, x: Tensor, y: Tensor) -> Tensor:
    """Return all pairs from the affine form of a ranking, up to an increasing function."""
    if ranking.swapped:
        x, y = y, x
    x, y = ranking.views(x), ranking.views(y)
    form = ranking.divergence.affine(y.mean(0, keepdim=True))
    assert form is not None
    (features, base), (slopes, offsets) = form.left(x), form.right(y)
    matrix = base[:, None] + offsets - features @ slopes.T
    return matrix.T if ranking.swapped else matrix


@pytest.mark.parametrize("name", ["nbd", "kl", "itakura-saito", "mahalanobis", "euclidean-norm"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda divergence: divergence,
        Logarithm,
        Sqrt,
        lambda divergence: Scaled(divergence, 3.0),
        lambda divergence: Logarithm(Sqrt(Logarithm(divergence))),
        lambda divergence: Logarithm(Reversed(divergence)),
        lambda divergence: Reversed(Logarithm(Reversed(divergence))),
        lambda divergence: Reversed(Scaled(Logarithm(divergence), 0.5)),
    ],
)
def test_an_increasing_function_orders_items_as_its_inner_divergence(name: str, wrap: type[Divergence]) -> None:
    torch.manual_seed(0)
    divergence = wrap(make(name, 4)).double()
    x, y = torch.rand(6, 4).double() + 0.1, torch.rand(30, 4).double() + 0.1
    ranking = divergence.ranks_like()
    assert ranking is not None
    with torch.no_grad():
        assert order(form_values(ranking, x, y)) == order(divergence.pairwise(x, y))
        assert order(form_values(ranking, x, y).T) == order(divergence.pairwise(x, y).T)


def test_views() -> None:
    torch.manual_seed(0)
    divergence = Logarithm(GeneralizedSymmetrized(make("nbd", 4))).double()
    x, y = torch.randn(6, 4).double(), torch.randn(30, 4).double()
    ranking = divergence.ranks_like()
    assert ranking is not None
    with torch.no_grad():
        assert order(form_values(ranking, x, y)) == order(divergence.pairwise(x, y))


@pytest.mark.parametrize("name", ["nbd", "kl", "mahalanobis", "euclidean"])
def test_a_sum_that_is_a_bregman_divergence(name: str) -> None:
    torch.manual_seed(0)
    divergence = PlusSquare(Scaled(make(name, 3), 2.0)).double()
    bregman = divergence.as_bregman()
    assert bregman is not None
    x, y = torch.rand(5, 3).double() + 0.1, torch.rand(7, 3).double() + 0.1
    torch.testing.assert_close(bregman.double().pairwise(x, y), divergence.pairwise(x, y))
    ranking, form = divergence.ranks_like(), divergence.affine(y[:1])
    assert ranking is not None
    assert isinstance(ranking.divergence, Bregman)
    assert isinstance(form, AffineForm)
    torch.testing.assert_close(form.exact(x, y[:5]), divergence(x, y[:5]))


def test_answers_of_divergences_that_know_nothing() -> None:
    divergence = make("iqe", 3)
    assert divergence.ranks_like() is None
    assert divergence.as_bregman() is None
    assert divergence.affine(torch.zeros(1, 3)) is None
    assert divergence.inner is None
    assert not divergence.takes_boundary("first")
    assert PlusSquare(divergence).ranks_like() is None
    assert Logarithm(divergence).ranks_like() is None
    assert Logarithm(divergence).inner is divergence


@pytest.mark.parametrize("wrap", [Sqrt, Symmetrized, Reversed, Logarithm, lambda divergence: Scaled(divergence, 2.0)])
def test_wrappers_around_an_encoder_take_what_the_encoder_takes(wrap: type[Divergence]) -> None:
    torch.manual_seed(0)
    divergence = make("nbd", 3)
    tokens = nn.Sequential(nn.Embedding(10, 3), nn.Flatten(), nn.Linear(12, 3))
    pictures = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    for encoder, points in ((tokens, torch.randint(10, (6, 4))), (pictures, torch.randn(6, 1, 4, 4))):
        model, plain = wrap(Embedded(encoder, divergence)), wrap(divergence)
        x, y = points[:3], points[3:]
        with torch.no_grad():
            torch.testing.assert_close(model(x, y), plain(encoder(x), encoder(y)))
            torch.testing.assert_close(model.pairwise(x, y[:2]), plain.pairwise(encoder(x), encoder(y[:2])))
    with pytest.raises(ValueError, match=r"x of NeuralBregman must be of shape \(..., 3\)"):
        wrap(Embedded(nn.Identity(), divergence))(torch.zeros(2, 4), torch.zeros(2, 4))


def test_an_encoder_inside_of_a_wrapper_runs_in_the_precision_of_autocast() -> None:
    seen = []

    class Encoder(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            seen.append(result.dtype)
            return result

    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = Sqrt(Embedded(Encoder(4, 3), make("nbd", 3)))(torch.randn(2, 4), torch.randn(2, 4))
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert value.dtype == torch.float32


def test_the_boundary() -> None:
    kl = make("kl", 3)
    assert Logarithm(kl).takes_boundary("first")
    assert not Logarithm(kl).takes_boundary("second")
    assert Reversed(Logarithm(kl)).takes_boundary("second")


def test_anything_may_stand_for_a_divergence() -> None:
    divergence = Logarithm(make("kl", 3))
    assert split_encoder(Shop(divergence), 0, "Test") == (None, divergence)
    with pytest.raises(TypeError, match="Got type instead"):
        split_encoder(Shop, 0, "Test")
