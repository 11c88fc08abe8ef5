"""Contrastive losses against their formula and pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor

from askew.losses import Contrastive, ContrastivePairs

MARGINS = [(0.0, 1.0), (0.2, 0.7), (0.5, 0.5), (2.0, 0.0)]


class GivenMatrix(BaseDistance):
    def __init__(self) -> None:
        super().__init__(normalize_embeddings=False)

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return query_emb


def batch(n: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, n, generator=generator, dtype=torch.float64), torch.arange(n) % 3


@pytest.mark.parametrize("margins", MARGINS)
@pytest.mark.parametrize("layout", ["mixed", "one class", "singletons"])
def test_equals_pytorch_metric_learning(margins: tuple[float, float], layout: str) -> None:
    matrix, labels = batch()
    labels = {"mixed": labels, "one class": 0 * labels, "singletons": torch.arange(20)}[layout]
    ours, theirs = matrix.clone().requires_grad_(), matrix.clone().requires_grad_()
    found = Contrastive(*margins)(ours, labels)
    wanted = ContrastiveLoss(*margins, distance=GivenMatrix())(theirs, labels)
    torch.testing.assert_close(found, wanted)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_terms_at_a_margin_do_not_count() -> None:
    matrix = torch.tensor([[9.0, 0.5, 0.25], [1.0, 9.0, 1.0], [1.0, 2.0, 9.0]])
    found = Contrastive(positive_margin=0.5)(matrix, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(found, torch.tensor(0.5 + 0.75))


def test_gradcheck_and_a_batch_without_terms() -> None:
    matrix, labels = batch(6)
    assert torch.autograd.gradcheck(lambda m: Contrastive(0.1, 0.9)(m, labels), matrix.requires_grad_())
    leaf = torch.ones(4, 4, requires_grad=True)
    loss = Contrastive(positive_margin=1)(leaf, torch.arange(4) % 2)
    loss.backward()
    assert loss == 0
    assert leaf.grad is not None
    assert not leaf.grad.any()
    assert Contrastive()(torch.zeros(0, 0), torch.zeros(0)) == 0


def test_infinity_and_nan() -> None:
    matrix, labels = batch()
    matrix[0, 1] = 50.0
    wanted = Contrastive()(matrix, labels)
    matrix[0, 1] = math.inf  # a negative that is far enough
    torch.testing.assert_close(Contrastive()(matrix, labels), wanted)
    for place in ((0, 1), (0, 3), (2, 2)):
        spoilt = matrix.clone()
        spoilt[place] = math.nan
        assert Contrastive()(spoilt, labels).isnan()
    assert ContrastivePairs()(torch.tensor([0.5, math.nan]), torch.tensor([1, 0])).isnan()


@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.bool])
def test_pairs_are_the_labelled_loss_of_a_list(kind: torch.dtype) -> None:
    matrix, labels = batch()
    other = ~torch.eye(20, dtype=torch.bool)
    values, targets = matrix[other], (labels[:, None] == labels)[other]
    torch.testing.assert_close(
        ContrastivePairs(0.1, 0.8)(values, targets.to(kind)), Contrastive(0.1, 0.8)(matrix, labels)
    )


def test_targets_are_zero_or_one() -> None:
    text = r"^targets of ContrastivePairs must be 1 \(one kind\) or 0\. Got -1 instead\."
    with pytest.raises(ValueError, match=text):
        ContrastivePairs()(torch.ones(3), torch.tensor([1, -1, 0]))
