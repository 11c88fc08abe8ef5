"""Training on pairs of images: distinct images are encoded once, and nothing else changes by that."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from askew_paper.experiment import Outcome
from askew_paper.experiments import image_pairs
from askew_paper.experiments.bregman_images import BREGMNIST
from askew_paper.experiments.image_pairs import (
    PairSet,
    choose_rate,
    learn_pairs,
    pair_values,
    start_evenly,
)
from askew_paper.experiments.images import Standardised, shrunk
from askew_paper.experiments.training import Plan
from askew_paper.heads import make_head
from askew_paper.runner import compute
from torch import Tensor, nn
from torch.nn import functional

from askew.divergences import Divergence, make
from askew.encoders import SmallCNN

CPU = torch.device("cpu")


def some_pairs(images: int, count: int, seed: int = 0) -> PairSet:
    random = torch.Generator().manual_seed(seed)
    first, second = torch.randint(images, (2, count), generator=random)
    return PairSet(first, second, (first - second).float().abs() / images)


def some_images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


class Counting(nn.Module):
    """An encoder that notes how many images it has seen."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return self.encoder(x)


def parts(divergence: str = "nbd", dim: int = 6) -> tuple[SmallCNN, Divergence]:
    torch.manual_seed(0)
    return SmallCNN(1, 8, dim, filters=(4, 8), hidden=16), make(divergence, dim)


# ---------------------------------------------------------------------- pairs


def test_distinct_images_of_pairs() -> None:
    pairs = PairSet(torch.tensor([3, 1, 3]), torch.tensor([1, 1, 7]), torch.zeros(3))
    codes, first, second = pairs.distinct()
    assert codes.tolist() == [1, 3, 7]
    assert codes[first].tolist() == [3, 1, 3]
    assert codes[second].tolist() == [1, 1, 7]


def test_distinct_images_of_pairs_by_description() -> None:
    rows = torch.tensor([[0, 5], [0, 6], [0, 5]])
    codes, first, second = PairSet(rows, rows.flip(0), torch.zeros(3)).distinct()
    assert codes.tolist() == [[0, 5], [0, 6]]
    assert torch.equal(codes[first], rows)
    assert torch.equal(codes[second], rows.flip(0))


# ---------------------------------------------------------------------- one encoding of each image


@pytest.mark.parametrize("name", ["nbd", "nbd-paper", "mahalanobis", "widenorm", "deep-div"])
def test_one_step_is_that_of_encoding_both_images_of_every_pair(name: str) -> None:
    images, pairs = some_images(9), some_pairs(9, 40)
    encoder, divergence = parts(name)
    plain = copy.deepcopy(nn.ModuleList([encoder, divergence]))
    values = plain[1](plain[0](images[pairs.first]), plain[0](images[pairs.second]))
    loss = functional.mse_loss(values, pairs.targets)
    loss.backward()

    plan = Plan(epochs=1, batch=40, rates=(1e-30,), schedule="constant")
    found = learn_pairs(encoder, divergence, images, pairs, pairs, plan, seed=0, calibrate=False)
    assert found.chosen["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert found.scores["mse"] == pytest.approx(loss.item(), rel=1e-5)
    ours = nn.ModuleList([encoder, divergence])
    for (label, one), two in zip(ours.named_parameters(), plain.parameters(), strict=True):
        if two.grad is not None:
            assert one.grad is not None, label
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-6, msg=label)


def test_each_distinct_image_is_encoded_once() -> None:
    encoder, divergence = parts()
    counting = Counting(encoder)
    test = some_pairs(7, 300, seed=1)
    plan = Plan(epochs=2, batch=50, rates=(1e-3,), schedule="constant")
    learn_pairs(counting, divergence, some_images(20), some_pairs(20, 100), test, plan, seed=0, calibrate=False)
    # Two steps and one look at the 7 images of the test pairs in each of two epochs, and one at the end.
    assert len(counting.seen) == 7
    assert counting.seen[2] == counting.seen[5] == counting.seen[6] == 7
    assert max(counting.seen) <= 20


def test_batch_normalisation_counts_each_image_of_a_batch_once() -> None:
    images = torch.arange(3.0).reshape(3, 1, 1, 1)
    encoder = nn.Sequential(nn.BatchNorm2d(1, momentum=1.0), nn.Flatten())
    pairs = PairSet(torch.tensor([0, 0, 0]), torch.tensor([1, 2, 0]), torch.zeros(3))
    plan = Plan(epochs=1, batch=3, rates=(1e-30,), schedule="constant")
    learn_pairs(encoder, make("euclidean", 1), images, pairs, pairs, plan, seed=0)
    assert encoder[0].running_mean.item() == pytest.approx(1.0)  # not 0.5, the mean over the pairs


def test_values_do_not_depend_on_what_else_is_asked() -> None:
    encoder, divergence = parts()
    images, pairs = some_images(30), some_pairs(30, 500)
    values = pair_values(encoder, divergence, images, pairs)
    torch.testing.assert_close(pair_values(encoder, divergence, images, pairs.part(slice(3, 9))), values[3:9])
    with torch.no_grad():
        expected = divergence(encoder(images[pairs.first]), encoder(images[pairs.second]))
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------- training


def learn(
    name: str = "nbd", *, test: PairSet | None = None, seed: int = 0, curve: int | None = None, **changed: Any
) -> Outcome:
    encoder, divergence = parts(name)
    pairs = some_pairs(12, 200)
    plan = Plan(**{"epochs": 8, "batch": 50, "rates": (3e-3,), "schedule": "linear", **changed})
    test = pairs if test is None else test
    return learn_pairs(encoder, divergence, some_images(12), pairs, test, plan, seed, curve=curve)


def curve_of(found: Outcome) -> tuple[float, ...]:
    return tuple(found.curves["test MSE"])


def test_it_learns_and_the_same_seed_gives_the_same() -> None:
    first = learn()
    assert first.chosen["stopped"] == "finished"
    assert first.scores["mse"] == curve_of(first)[-1] < 0.5 * curve_of(first)[0]
    torch.rand(3)
    assert learn() == first
    assert learn(seed=1) != first


def test_what_is_tested_changes_nothing() -> None:
    found = learn(test=some_pairs(12, 30, seed=5))
    assert curve_of(found) != curve_of(learn())
    assert found.chosen == learn().chosen  # with the training loss


@pytest.mark.parametrize("curve", [0, 50])
def test_a_curve_of_fewer_pairs_changes_no_score(curve: int) -> None:
    found = learn(curve=curve)
    assert ("test MSE" in found.curves) == (curve > 0)
    assert found.curves != learn().curves
    assert (found.scores, found.chosen) == (learn().scores, learn().chosen)


def test_bytes_are_images_between_0_and_1() -> None:
    pixels = (some_images(12) * 255).round().to(torch.uint8)
    pairs = some_pairs(12, 50)
    encoder, divergence = parts()
    torch.testing.assert_close(
        pair_values(encoder, divergence, pixels, pairs), pair_values(encoder, divergence, pixels.float() / 255, pairs)
    )


def test_pairs_of_an_epoch_are_taken_in_their_order() -> None:
    asked: list[int] = []
    seen: list[Tensor] = []
    images = torch.arange(6.0).reshape(6, 1, 1, 1)

    def train(epoch: int) -> PairSet:
        asked.append(epoch)
        return PairSet(torch.tensor([4, 2, 0]), torch.tensor([5, 3, 1]), torch.zeros(3))

    def made(codes: Tensor) -> Tensor:
        seen.append(codes)
        return images[codes]

    nothing = PairSet(torch.tensor([0]), torch.tensor([0]), torch.zeros(1))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(1, 1))
    plan = Plan(epochs=2, batch=1, rates=(1e-3,), schedule="constant")
    learn_pairs(encoder, make("euclidean", 1), made, train, nothing, plan, seed=0, calibrate=False)
    assert asked == [0, 1]
    assert [codes.tolist() for codes in seen[:4]] == [[4, 5], [2, 3], [0, 1], [0]]


@pytest.mark.parametrize("name", ["nbd", "mahalanobis", "deepnorm"])
def test_diverged_training_ends_with_what_it_had(name: str) -> None:
    found = learn(name, rates=(1e30,), schedule="constant")
    assert found.chosen == {"stopped": "diverged", "loss": None}
    assert math.isfinite(found.scores["mse"])
    assert found.curves == {}


def test_training_that_diverges_later_keeps_the_last_good_epoch() -> None:
    encoder, divergence = parts("mahalanobis")
    pairs = some_pairs(12, 50)

    def train(epoch: int) -> PairSet:
        return pairs if epoch < 2 else PairSet(pairs.first, pairs.second, torch.full((50,), math.inf))

    plan = Plan(epochs=5, batch=25, rates=(1e-3,), schedule="constant")
    found = learn_pairs(encoder, divergence, some_images(12), train, pairs, plan, seed=0)
    assert found.chosen["stopped"] == "diverged"
    assert len(curve_of(found)) == 2
    values = pair_values(encoder, divergence, some_images(12), pairs)
    assert found.scores["mse"] == pytest.approx(functional.mse_loss(values, pairs.targets).item(), rel=1e-5)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"epochs of fit must be a positive integer\. Got 0"):
        learn(epochs=0)
    with pytest.raises(ValueError, match=r"schedule of a plan must be one of .* Did you mean 'cosine'"):
        learn(schedule="cosines")
    encoder, divergence = parts()
    with pytest.raises(ValueError, match=r"train of learn_pairs must be at least one pair\. Got none"):
        learn_pairs(encoder, divergence, some_images(2), some_pairs(2, 0), some_pairs(2, 1), Plan(1, 1, (1e-3,)), 0)


# ---------------------------------------------------------------------- what goes with it


def test_standardised_images() -> None:
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (40, 3, 5, 5), generator=random, dtype=torch.uint8)
    images = Standardised(pixels, known=30, device=CPU)(torch.arange(40))
    std, mean = torch.std_mean(pixels[:30].float(), (0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(images, (pixels.float() - mean) / std)
    constant = Standardised(torch.full((4, 1, 2, 2), 9, dtype=torch.uint8), known=4, device=CPU)
    assert constant(torch.tensor([0])).abs().max() < 1e-3


def test_smaller_images() -> None:
    pixels = torch.arange(600 * 16, dtype=torch.float32).reshape(600, 1, 4, 4).remainder(200).to(torch.uint8)
    small = shrunk(pixels, 2)
    assert small.shape == (600, 1, 2, 2)
    assert small[599, 0, 1, 1] == pixels[599, 0, 2:, 2:].double().mean().round()
    assert shrunk(pixels, 4) is pixels
    with pytest.raises(ValueError, match=r"side of shrunk must be a divisor of 4\. Got 3 instead"):
        shrunk(pixels, 3)


def test_the_network_without_its_quadratic_term() -> None:
    names = {"nbd-quadratic": 3, "nbd": 2, "nbd-paper": 1}
    for name, terms in names.items():
        assert len(make_head(name, 4).potential.terms) == terms  # type: ignore[union-attr, arg-type]
    with pytest.raises(ValueError, match="method behind an encoder must be one of"):
        make_head("nbd-nothing", 4)


@pytest.mark.parametrize("name", ["euclidean", "mahalanobis", "nbd-paper", "deepnorm", "iqe"])
def test_all_divergences_start_at_the_size_of_the_targets(name: str) -> None:
    images = torch.randn(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    pairs = some_pairs(50, 200)
    pairs = PairSet(pairs.first, pairs.second, 100 * pairs.targets)
    encoder, divergence = parts(name)
    before = pair_values(encoder, divergence, images, pairs).mean() / pairs.targets.mean()
    start_evenly(encoder, divergence, images, pairs)
    after = pair_values(encoder, divergence, images, pairs).mean() / pairs.targets.mean()
    assert 0.4 < after < 2.5
    assert before < 0.2


def test_the_rate_is_chosen_on_held_out_pairs() -> None:
    images, pairs, held = some_images(12), some_pairs(12, 100), some_pairs(12, 40, seed=3)
    plan = Plan(epochs=9, batch=25, rates=(1e-9, 3e-3, 1e30), schedule="constant", trial_epochs=3)
    best, errors = choose_rate(parts, images, pairs, held, plan, seed=0)
    assert best == replace(plan, rates=(3e-3,))
    assert set(errors) == {"1e-09", "0.003"}  # the third diverged
    expected = learn_pairs(*parts(), images, pairs, held, replace(best, epochs=3), seed=0)
    assert errors["0.003"] == expected.scores["mse"]
    one = replace(plan, rates=(1e30,))
    assert choose_rate(parts, images, pairs, held, one, seed=0) == (one, {})


def test_a_dead_training_gives_its_turn_to_the_next_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = BREGMNIST.checked_cells("toy")
    cell = next(cell for cell in cells if cell.method == "deep-div")
    tried: list[float] = []

    def learned(*parts: Any, **settings: Any) -> Outcome:
        [rate] = parts[5].rates
        tried.append(rate)
        dead = {"dead": True} if len(tried) > 3 and rate > 2e-3 else {}
        return Outcome({"mse": 1 / rate}, {}, {"stopped": "finished"} | dead)

    monkeypatch.setattr(image_pairs, "learn_pairs", learned)
    found = compute(BREGMNIST.run, cell)
    assert isinstance(found, Outcome), found
    # Three trials, of which the last was best; its whole training is dead.
    assert tried == [1e-4, 1e-3, 3e-3, 3e-3, 1e-3]
    assert found.chosen["learning_rate"] == 1e-3
    assert "dead" not in found.chosen
