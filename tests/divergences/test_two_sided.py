"""Two encoders: the two arguments of a divergence may be things of different kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import askew
from askew.divergences import Embedded, NeuralBregman, make, split_encoder, split_sides
from askew.losses import Regression, TripletMargin


def two_sided(first: int = 6, second: int = 3, dim: int = 4) -> Embedded:
    torch.manual_seed(0)
    return Embedded(nn.Linear(first, dim), NeuralBregman(dim), second=nn.Linear(second, dim))


def test_each_argument_has_its_own_encoder() -> None:
    model = two_sided()
    x, y = torch.randn(5, 6), torch.randn(5, 3)
    wanted = model.divergence(model.encoder(x), model.second(y))
    torch.testing.assert_close(model(x, y), wanted)
    torch.testing.assert_close(model.pairwise(x, y).diagonal(), wanted, rtol=2e-3, atol=1e-6)
    torch.testing.assert_close(model.order(x, y), wanted)


def test_its_guarantees() -> None:
    model = two_sided(3, 3)
    assert not any((model.reflexive, model.symmetric, model.triangle))
    x = torch.randn(4, 3)
    assert (model(x, x) > 0).all()
    assert (model.pairwise(x, x).diagonal() > 0).all()


def test_one_encoder_is_as_before() -> None:
    shared = Embedded(nn.Linear(3, 4), make("euclidean-norm", 4))
    assert shared.second is None
    assert shared.reflexive
    assert shared.symmetric
    assert shared.triangle


def test_learning_two_kinds_of_things() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(600, 6), torch.randn(600, 3)
    targets = (x[:, :3] - y).square().sum(-1)
    model = make("nbd", 4, encoder=nn.Linear(6, 4), second=nn.Linear(3, 4))
    history = askew.fit(model, (x, y, targets), Regression(), epochs=200, learning_rate=1e-2, seed=0)
    assert history["loss"][-1] < 0.2 * history["loss"][0]
    anchors, positives, negatives = torch.randn(50, 6), torch.randn(50, 3), torch.randn(50, 3)
    loss = TripletMargin(margin=1.0).of(model, anchors, positives, negatives)
    wanted = TripletMargin(margin=1.0)(model(anchors, positives), model(anchors, negatives))
    torch.testing.assert_close(loss, wanted)


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = two_sided()
    askew.save(model, tmp_path / "model")
    loaded = askew.load(tmp_path / "model")
    x, y = torch.randn(5, 6), torch.randn(5, 3)
    assert torch.equal(loaded(x, y), model(x, y))


def test_split_into_two_encoders() -> None:
    model = two_sided()
    nested = Embedded(nn.Linear(9, 6), model, second=nn.Linear(2, 3))
    parts = split_sides(nested, 0, "test")
    x, y = torch.randn(5, 9), torch.randn(5, 2)
    torch.testing.assert_close(parts.divergence(parts.first(x), parts.second(y)), nested(x, y))
    shared = split_sides(Embedded(nn.Linear(3, 4), NeuralBregman(4)), 0, "test")
    assert shared.first is shared.second
    with pytest.raises(ValueError, match="divergence of test must be one whose two points have one encoder"):
        split_encoder(nested, 0, "test")


def test_bad_second_encoders() -> None:
    with pytest.raises(TypeError, match=r"second of Embedded must be a torch\.nn\.Module\. Got str"):
        Embedded(nn.Linear(3, 4), NeuralBregman(4), second="mlp")  # type: ignore[arg-type]
    wrong = Embedded(nn.Linear(3, 4), NeuralBregman(4), second=nn.Linear(3, 5))
    with pytest.raises(ValueError, match="second of Embedded must be a module that returns 4 features, as the first"):
        wrong(torch.randn(2, 3), torch.randn(2, 3))
    with pytest.raises(ValueError, match="second of make must be given together with encoder"):
        make("nbd", 4, second=nn.Linear(3, 4))


def test_k_means_refuses_it() -> None:
    with pytest.raises((TypeError, ValueError), match="second encoder"):
        askew.BregmanKMeans(2, divergence=two_sided(3, 3)).fit(torch.randn(20, 3))
