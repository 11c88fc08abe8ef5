"""What all losses have in common: how they meet a model, and what they say to wrong input."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor, nn

import askew
from askew import losses
from askew.losses import (
    AllTriplets,
    Contrastive,
    ContrastivePairs,
    GradedSoftmax,
    HardTriplets,
    LabelLoss,
    Listwise,
    Loss,
    PairLoss,
    Regression,
    SemiHardTriplets,
    TripletLoss,
    TripletMargin,
)

LABEL_LOSSES = (AllTriplets, HardTriplets, SemiHardTriplets, Contrastive, Listwise)
PAIR_LOSSES = (Regression, ContrastivePairs)
VALUE_LOSSES = (*PAIR_LOSSES, TripletMargin)
KINDS = {LabelLoss: LABEL_LOSSES, PairLoss: PAIR_LOSSES, TripletLoss: (TripletMargin,), Loss: (GradedSoftmax,)}


def points(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_no_loss_is_forgotten() -> None:
    public = {getattr(losses, name) for name in losses.__all__}
    made = {kind for kind in public if issubclass(kind, Loss)} - {Loss, *KINDS}
    assert made == {kind for group in KINDS.values() for kind in group}
    for base, group in KINDS.items():
        assert all(issubclass(kind, base) for kind in group)


@pytest.mark.parametrize("kind", LABEL_LOSSES)
def test_labels_meet_a_model(kind: type[LabelLoss]) -> None:
    torch.manual_seed(0)
    model: askew.Divergence = askew.NeuralBregman(3)
    x, labels = points(12, 3), torch.arange(12) % 3
    kind().of(model, x, labels).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model, x = askew.make("kl", 3), x.exp()
    matrix = model.pairwise(x, x)
    loss = kind().of(model, x, labels)
    torch.testing.assert_close(loss, kind()(matrix, labels))
    # D(anchor, other); the contrastive loss takes all ordered pairs and does not mind.
    assert torch.isclose(loss, kind()(matrix.T, labels), rtol=1e-3) == (kind is Contrastive)


@pytest.mark.parametrize("kind", PAIR_LOSSES)
def test_pairs_meet_a_model(kind: type[PairLoss]) -> None:
    model = askew.make("kl", 3)
    x, y, targets = points(8, 3).exp(), points(9, 3)[:8].exp(), torch.arange(8.0) % 2
    torch.testing.assert_close(kind().of(model, x, y, targets), kind()(model(x, y), targets))


@pytest.mark.parametrize("encoded", [False, True])
def test_triplets_meet_a_model(encoded: bool) -> None:
    torch.manual_seed(0)
    model: askew.Divergence = askew.NeuralBregman(3)
    if encoded:
        model = askew.Embedded(nn.Linear(3, 3), model)
    a, p, n = points(8, 3), points(9, 3)[:8], points(10, 3)[:8]
    wanted = TripletMargin(1.0)(model(a, p), model(a, n))
    torch.testing.assert_close(TripletMargin(1.0).of(model, a, p, n), wanted)


@pytest.mark.parametrize("kind", ["squared", "absolute", "huber"])
def test_regression(kind: str) -> None:
    values, targets = points(50).double(), points(51)[:50].double()
    errors = (values - targets).abs()
    wanted = {
        "squared": errors.square(),
        "absolute": errors,
        "huber": torch.where(errors < 0.5, errors.square() / 2, 0.5 * (errors - 0.25)),
    }[kind]
    torch.testing.assert_close(Regression(kind, delta=0.5)(values, targets), wanted.mean())
    leaf = values.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: Regression(kind, delta=0.5)(v, targets), leaf)
    assert Regression(kind)(values[:0], targets[:0]) == 0
    assert Regression(kind)(values * math.nan, targets).isnan()
    torch.testing.assert_close(
        Regression(kind)(values.round(), targets.round().long()), Regression(kind)(values.round(), targets.round())
    )


# ---------------------------------------------------------------------- wrong input


@pytest.mark.parametrize("kind", LABEL_LOSSES)
def test_wrong_matrix_or_labels(kind: type[LabelLoss]) -> None:
    name, loss = kind.__name__, kind()
    for matrix, got in ((torch.ones(3, 4), r"\(3, 4\)"), (torch.ones(3), r"\(3,\)"), ([[0.0]], "list")):
        text = rf"^matrix of {name} must be a tensor of shape \(n, n\)\. Got {got} instead\. Make it with"
        with pytest.raises(ValueError, match=text):
            loss(matrix, torch.zeros(3))
    for labels, got in ((torch.zeros(4), r"\(4,\)"), (torch.zeros(3, 1), r"\(3, 1\)"), ([0, 1, 1], "list")):
        text = (
            rf"^labels of {name} must be a tensor of shape \(3,\), one for each row of the matrix\. Got {got} instead"
        )
        with pytest.raises(ValueError, match=text):
            loss(torch.ones(3, 3), labels)
    with pytest.raises(TypeError, match=rf"^matrix of {name} must be float32, float64 or bfloat16\. Got torch.int64"):
        loss(torch.ones(3, 3, dtype=torch.int64), torch.zeros(3))


@pytest.mark.parametrize("kind", VALUE_LOSSES)
def test_wrong_values(kind: type[PairLoss] | type[TripletLoss]) -> None:
    loss = kind()
    first, second = ("positives", "negatives") if kind is TripletMargin else ("values", "targets")
    text = rf"^{second} of {kind.__name__} must be a tensor of shape \(3,\) like its {first}\. Got \(3, 1\) instead\."
    with pytest.raises(ValueError, match=text):
        loss(torch.ones(3), torch.ones(3, 1))
    with pytest.raises(TypeError, match=rf"^{first} of {kind.__name__} must be a torch\.Tensor\. Got list"):
        loss([1.0], torch.ones(1))
    with pytest.raises(TypeError, match=rf"^{first} of {kind.__name__} must be float32, .* Got torch\.int64"):
        loss(torch.ones(3, dtype=torch.int64), torch.ones(3))


@pytest.mark.parametrize("kind", [AllTriplets, HardTriplets, SemiHardTriplets, TripletMargin])
@pytest.mark.parametrize("margin", [math.nan, math.inf, 1e31, True, "0.2", None])
def test_wrong_margins(kind: type[AllTriplets], margin: object) -> None:
    text = re.escape(f"margin of {kind.__name__} must be a number of at most 1e+30 in size. Got {margin!r} instead.")
    with pytest.raises(ValueError, match=text):
        kind(margin)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Contrastive(positive_margin=-1),
            "positive_margin of Contrastive must be a finite number, zero or above",
        ),
        (lambda: Contrastive(negative_margin=math.inf), "negative_margin of Contrastive must be a finite number"),
        (lambda: ContrastivePairs(-1.0), "positive_margin of ContrastivePairs must be a finite number, zero or above"),
        (lambda: Listwise(temperature=0), "temperature of Listwise must be a finite number above zero"),
        (lambda: Listwise(contrast=-0.1), "contrast of Listwise must be a finite number, zero or above"),
        (lambda: Listwise(contrast_temperature=-1), "contrast_temperature of Listwise must be a finite number above"),
        (lambda: Listwise(max_pairs=0), "max_pairs of Listwise must be a positive integer. Got 0 instead"),
        (lambda: Regression("square"), "kind of Regression must be one of .* Did you mean 'squared'"),
        (lambda: Regression("huber", delta=0), "delta of Regression must be a finite number above zero"),
    ],
)
def test_wrong_settings(make: object, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (AllTriplets(), "AllTriplets(margin=0.2)"),
        (TripletMargin(1), "TripletMargin(margin=1)"),
        (HardTriplets(-0.5), "HardTriplets(margin=-0.5)"),
        (SemiHardTriplets(), "SemiHardTriplets(margin=0.2)"),
        (Contrastive(), "Contrastive(positive_margin=0, negative_margin=1)"),
        (ContrastivePairs(), "ContrastivePairs(positive_margin=0, negative_margin=1)"),
        (Listwise(max_pairs=9), "Listwise(temperature=0.02, contrast=0.3, contrast_temperature=1, max_pairs=9)"),
        (Regression(), "Regression('squared')"),
        (Regression("huber", 0.1), "Regression('huber', delta=0.1)"),
    ],
)
def test_settings_are_shown(loss: Loss, text: str) -> None:
    assert repr(loss) == text
