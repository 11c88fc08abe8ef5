"""Divergences in the losses and miners of pytorch-metric-learning: values, gradients, direction."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor, nn

import askew
from askew.losses import AllTriplets, Contrastive, MetricLearningDistance

LABELS = torch.arange(15) % 3
LOSSES: dict[str, Callable[[BaseDistance], nn.Module]] = {
    "contrastive": lambda d: losses.ContrastiveLoss(distance=d),
    "triplet": lambda d: losses.TripletMarginLoss(distance=d),
    "smooth triplet": lambda d: losses.TripletMarginLoss(smooth_loss=True, distance=d),
    "margin": lambda d: losses.MarginLoss(distance=d),
    "multi-similarity": lambda d: losses.MultiSimilarityLoss(alpha=1, beta=2, distance=d),
    "nca": lambda d: losses.NCALoss(distance=d),
    "nt-xent": lambda d: losses.NTXentLoss(temperature=1.0, distance=d),
    "supervised contrastive": lambda d: losses.SupConLoss(temperature=1.0, distance=d),
    "n-pairs": lambda d: losses.NPairsLoss(distance=d),
    "lifted structure": lambda d: losses.LiftedStructureLoss(distance=d),
    "generalised lifted structure": lambda d: losses.GeneralizedLiftedStructureLoss(distance=d),
    "intra-pair variance": lambda d: losses.IntraPairVarianceLoss(distance=d),
    "proxy nca": lambda d: losses.ProxyNCALoss(3, 4, distance=d),
    "ranked list": lambda d: losses.RankedListLoss(margin=0.4, Tn=1, distance=d),
    "cross-batch memory": lambda d: losses.CrossBatchMemory(losses.ContrastiveLoss(distance=d), 4, 20),
}
MINERS: dict[str, Callable[[BaseDistance], nn.Module]] = {
    "batch hard": lambda d: miners.BatchHardMiner(distance=d),
    "batch easy hard": lambda d: miners.BatchEasyHardMiner(distance=d),
    "multi-similarity": lambda d: miners.MultiSimilarityMiner(distance=d),
    "pair margin": lambda d: miners.PairMarginMiner(pos_margin=0.1, neg_margin=5.0, distance=d),
    "triplet margin": lambda d: miners.TripletMarginMiner(margin=0.5, distance=d),
    "histogram": lambda d: miners.UniformHistogramMiner(distance=d),
    "hdc": lambda d: miners.HDCMiner(distance=d),
}


def model() -> askew.NeuralBregman:
    torch.manual_seed(0)
    return askew.NeuralBregman(4)


def points(n: int = 15, seed: int = 0) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_teach_the_divergence(name: str) -> None:
    divergence = model()
    loss = LOSSES[name](MetricLearningDistance(divergence))
    x = points().requires_grad_()
    value = loss(x, LABELS)
    assert value.isfinite()
    assert value > 0
    value.backward()
    gradients = [parameter.grad for parameter in divergence.parameters() if parameter.grad is not None]
    assert any(bool(gradient.any()) for gradient in gradients)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert x.grad is not None
    assert x.grad.any()
    own = {id(parameter) for parameter in divergence.parameters()}
    assert own <= {id(parameter) for parameter in loss.parameters()}


@pytest.mark.parametrize("name", MINERS)
def test_miners(name: str) -> None:
    divergence = model()
    x = points()
    found = MINERS[name](MetricLearningDistance(divergence))(x, LABELS)
    assert all(len(indices) > 0 for indices in found)
    value = losses.TripletMarginLoss(distance=MetricLearningDistance(divergence))(x, LABELS, found)
    assert value.isfinite()


# ---------------------------------------------------------------------- by hand, anchors first


def mask() -> Tensor:
    return (LABELS[:, None] == LABELS) & ~torch.eye(15, dtype=torch.bool)


def by_hand_nca(matrix: Tensor) -> Tensor:
    logits = -matrix.masked_fill(torch.eye(15, dtype=torch.bool), torch.inf)
    return -(logits.softmax(1) * mask()).sum(1).log().mean()


def by_hand_supervised_contrastive(matrix: Tensor) -> Tensor:
    logits = -matrix.masked_fill(torch.eye(15, dtype=torch.bool), torch.inf)
    return -torch.where(mask(), logits.log_softmax(1), 0.0).sum(1).div(mask().sum(1)).mean()


def by_hand_smooth_triplets(matrix: Tensor) -> Tensor:
    triplets = mask()[:, :, None] & (LABELS[:, None] != LABELS)[:, None, :]
    return nn.functional.softplus(matrix[:, :, None] - matrix[:, None, :] + 0.05)[triplets].mean()


BY_HAND: dict[str, tuple[Callable[[BaseDistance], nn.Module], Callable[[Tensor], Tensor]]] = {
    "triplet": (LOSSES["triplet"], lambda matrix: AllTriplets(0.05)(matrix, LABELS)),
    "smooth triplet": (
        lambda d: losses.TripletMarginLoss(smooth_loss=True, reducer=MeanReducer(), distance=d),
        by_hand_smooth_triplets,
    ),
    "nca": (LOSSES["nca"], by_hand_nca),
    "supervised contrastive": (LOSSES["supervised contrastive"], by_hand_supervised_contrastive),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_anchor_comes_first(name: str) -> None:
    divergence, x = askew.make("kl", 4), points().exp()
    make, by_hand = BY_HAND[name]
    found = make(MetricLearningDistance(divergence))(x, LABELS)
    matrix = divergence.pairwise(x, x)
    torch.testing.assert_close(found, by_hand(matrix), rtol=1e-4, atol=1e-5)
    assert not torch.isclose(found, by_hand(matrix.T), rtol=1e-2)
    turned = make(MetricLearningDistance(askew.divergences.Reversed(divergence)))(x, LABELS)
    torch.testing.assert_close(turned, by_hand(matrix.T), rtol=1e-4, atol=1e-5)


def test_contrastive_is_ours() -> None:
    divergence, x = model(), points()
    found = LOSSES["contrastive"](MetricLearningDistance(divergence))(x, LABELS)
    torch.testing.assert_close(found, Contrastive()(divergence.pairwise(x, x), LABELS))


def test_the_hardest_triplets_are_of_rows() -> None:
    divergence, x = askew.make("kl", 4), points().exp()
    anchors, positives, negatives = MINERS["batch hard"](MetricLearningDistance(divergence))(x, LABELS)
    matrix = divergence.pairwise(x, x)
    assert torch.equal(positives, matrix.masked_fill(~mask(), -1).argmax(1)[anchors])
    assert torch.equal(negatives, matrix.masked_fill(LABELS[:, None] == LABELS, torch.inf).argmin(1)[anchors])
    turned = matrix.T.masked_fill(LABELS[:, None] == LABELS, torch.inf).argmin(1)[anchors]
    assert not torch.equal(negatives, turned)


def test_references_of_their_own() -> None:
    divergence = askew.make("kl", 4)
    distance = MetricLearningDistance(divergence)
    x, y = points(5).exp(), points(7, seed=1).exp()
    torch.testing.assert_close(distance(x, y), divergence.pairwise(x, y))
    torch.testing.assert_close(distance(x), divergence.pairwise(x, x))
    torch.testing.assert_close(distance.pairwise_distance(x, y[:5]), divergence(x, y[:5]))
    assert not torch.allclose(distance(x, y), divergence.pairwise(y, x).T, rtol=1e-2)


# ---------------------------------------------------------------------- as an object


def test_it_is_a_distance_of_the_package_and_can_be_copied() -> None:
    distance = MetricLearningDistance(model())
    assert isinstance(distance, BaseDistance)
    assert isinstance(distance, MetricLearningDistance)
    assert (distance.normalize_embeddings, distance.p, distance.power, distance.is_inverted) == (False, 1, 1, False)
    for twin in (copy.deepcopy(distance.eval()), pickle.loads(pickle.dumps(distance))):
        assert type(twin) is type(distance)
        assert not twin.training
        assert twin.divergence is not distance.divergence
        torch.testing.assert_close(twin(points()), distance(points()))


def test_it_wants_a_divergence() -> None:
    text = "^divergence of MetricLearningDistance must be an askew divergence. Got Linear instead."
    with pytest.raises(TypeError, match=text):
        MetricLearningDistance(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_the_package_is_imported_when_it_is_used() -> None:
    code = """
import sys
import askew.losses
assert "pytorch_metric_learning" not in sys.modules
sys.modules["pytorch_metric_learning"] = None
try:
    askew.losses.MetricLearningDistance(askew.make("euclidean", 2))
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "MetricLearningDistance needs the package 'pytorch_metric_learning.distances', which is not installed. "
        'Run in the clone of askew: pip install ".[metric-learning]"\n'
    )
