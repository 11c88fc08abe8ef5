"""BregMNIST and BregCIFAR: targets, pairs, cells, and small runs on images that need no files."""

from __future__ import annotations

import dataclasses
import math
import os

import pytest
import torch
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.experiment import Cell, Experiment, Outcome
from askew_paper.experiments.bregman_images import (
    BATCH,
    BREGCIFAR,
    BREGMNIST,
    METHODS,
    SETTINGS,
    TRAINED,
    class_divergence,
    draw_pairs,
    made_images,
    run,
    settings_of,
)
from askew_paper.runner import compute

from askew.divergences import Bregman
from askew.potentials import FromFunction

LABELS = torch.arange(200) % 10


def cell_of(method: str, setting: str = "asymmetric", experiment: Experiment = BREGMNIST, **options: object) -> Cell:
    [cell] = [c for c in experiment.checked_cells("toy", 1) if (c.method, c.setting) == (method, setting)]
    return dataclasses.replace(cell, options=tuple(sorted({**dict(cell.options), **options}.items())))


def computed(cell: Cell) -> Outcome:
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    return found


# ---------------------------------------------------------------------- targets and pairs


def test_asymmetric_target_is_the_bregman_divergence_of_its_potential() -> None:
    first, second = torch.cartesian_prod(torch.arange(10), torch.arange(10)).unbind(1)
    potential = FromFunction(lambda x: ((x + 1) * torch.log(x + 1)).sum(-1), 1)
    expected = Bregman(potential)(first[:, None].double(), second[:, None].double())
    found = class_divergence(first, second, "asymmetric")
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert (found[first != second] > 0).all()
    assert (found[first == second] == 0).all()


def test_symmetric_target_is_the_squared_difference() -> None:
    first, second = torch.tensor([0, 9, 4]), torch.tensor([9, 0, 2])
    assert class_divergence(first, second, "symmetric").tolist() == [81, 81, 4]


@pytest.mark.parametrize("pool", [None, 16])
def test_pairs_are_of_the_images_that_may_be_drawn(pool: int | None) -> None:
    numbers = torch.arange(50, 150)
    pairs = draw_pairs(LABELS, numbers, "asymmetric", 300, pool, seed=0)
    assert len(pairs) == 300
    codes = pairs.distinct()[0]
    assert 50 <= codes.min() <= codes.max() < 150
    torch.testing.assert_close(
        pairs.targets, class_divergence(LABELS[pairs.first], LABELS[pairs.second], "asymmetric"), rtol=0, atol=0
    )
    again, other = (draw_pairs(LABELS, numbers, "asymmetric", 300, pool, seed=seed) for seed in (0, 1))
    assert torch.equal(again.first, pairs.first)
    assert not torch.equal(other.first, pairs.first)


def test_a_pool_has_few_images_and_all_pools_have_all() -> None:
    count = 200 // 8 * BATCH
    pairs = draw_pairs(LABELS, torch.arange(200), "symmetric", count, 8, seed=0)
    for start in range(0, count, BATCH):
        assert len(pairs.part(slice(start, start + BATCH)).distinct()[0]) == 8
    assert len(pairs.distinct()[0]) == 200
    # Without a pool a batch of the paper has almost as many images as places.
    assert (pairs.first == pairs.second).any()
    different = draw_pairs(LABELS, torch.arange(200), "symmetric", 512, 32, seed=0, distinct=True)
    assert not (different.first == different.second).any()
    plain = draw_pairs(torch.zeros(60_000), torch.arange(60_000), "symmetric", BATCH, None, seed=0)
    assert len(plain.distinct()[0]) > 2 * BATCH - 5


def test_made_images_tell_their_class() -> None:
    made = made_images(3, 8, count=400, seed=0)
    assert made.pixels.shape == (400, 3, 8, 8)
    assert set(made.labels.tolist()) == set(range(10))
    brightest = made.pixels.mean((1, 2)).argmax(1)
    assert brightest[made.labels == 0].max() < brightest[made.labels == 5].min() < brightest[made.labels == 9].min()


# ---------------------------------------------------------------------- cells


@pytest.mark.parametrize("experiment", [BREGMNIST, BREGCIFAR])
def test_every_method_and_target_has_its_cell(experiment: Experiment) -> None:
    assert EXPERIMENTS[experiment.name] is experiment
    for scale in ("toy", "quick", "paper"):
        cells = experiment.checked_cells(scale, 2)
        assert {(c.setting, c.method, c.seed) for c in cells} == {
            (s, m, seed) for s in settings_of(experiment.name, scale) for m in METHODS for seed in (0, 1)
        }
        assert {name.removesuffix(TRAINED) for name in settings_of(experiment.name, scale)} == set(SETTINGS)
        assert SETTINGS[0] in settings_of(experiment.name, scale)
    filters = {"bregmnist": (32, 64), "bregcifar": (32, 64, 128, 256)}[experiment.name]
    for cell in experiment.checked_cells("paper"):
        if cell.method != "mean":
            found = {name: cell[name] for name in ("batch", "epochs", "filters", "hidden", "rates", "schedule", "pool")}
            assert found == {
                "batch": 128,
                "epochs": 200,
                "filters": filters,
                "hidden": 256,
                "rates": (1e-3,),
                "schedule": "constant",
                "pool": None,
            }


@pytest.mark.parametrize("method", METHODS)
def test_smoke(method: str) -> None:
    experiment = BREGCIFAR if method in ("nbd", "mean") else BREGMNIST
    found = computed(cell_of(method, "symmetric", experiment))
    assert math.isfinite(found.scores["mse"])
    if method != "mean":
        curve = found.curves["test MSE"]
        assert isinstance(curve, tuple)
        assert len(curve) == 2
        assert curve[-1] == found.scores["mse"]
        assert found.chosen["learning_rate"] in (1e-4, 1e-3, 3e-3)
        best = min(found.chosen["validation"], key=found.chosen["validation"].get)
        assert float(best) == found.chosen["learning_rate"]


@pytest.mark.parametrize("method", ["nbd", "mean"])
def test_same_seed_gives_the_same_row(method: str) -> None:
    cell = cell_of(method)
    first = computed(cell)
    torch.rand(3)
    assert computed(cell) == first
    assert computed(dataclasses.replace(cell, seed=1)).scores != first.scores


def test_mean_is_about_the_variance_of_the_targets() -> None:
    pairs = draw_pairs(LABELS, torch.arange(200), "symmetric", 20_000, None, seed=0)
    found = computed(cell_of("mean", "symmetric", train=2000, test=2000, test_pairs=5000)).scores["mse"]
    assert found == pytest.approx(pairs.targets.var().item(), rel=0.1)


def test_asymmetric_target_is_learned_where_symmetric_distances_cannot() -> None:
    more = {"train": 1024, "test": 256, "epochs": 10, "rates": (3e-3,), "held_out": 0, "hidden": 32}
    errors = {m: computed(cell_of(m, **more)).scores["mse"] for m in ("nbd", "mahalanobis")}
    # No symmetric function is nearer to the target than the mean of both directions.
    first, second = torch.cartesian_prod(torch.arange(10), torch.arange(10)).unbind(1)
    there, back = (class_divergence(*pair, "asymmetric") for pair in ((first, second), (second, first)))
    least = ((there - back) / 2).square().mean().item()
    assert errors["nbd"] < 0.75 * least
    assert errors["mahalanobis"] > 0.9 * least


def test_encoder_of_fixed_features() -> None:
    cell = cell_of("nbd", "asymmetric-trained", BREGCIFAR, train=512, epochs=6)
    found = computed(cell)
    mean = computed(cell_of("mean", "asymmetric-trained", BREGCIFAR, train=512))
    assert found.scores["mse"] < 0.5 * mean.scores["mse"]
    # The target is that of the setting without the ending.
    assert mean == computed(cell_of("mean", "asymmetric", BREGCIFAR, train=512))


@pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="needs the files of MNIST; ASKEW_DATA is not set")
def test_subset_of_published_images() -> None:
    [cell] = [c for c in BREGMNIST.checked_cells("quick", 1) if (c.method, c.setting) == ("mean", "asymmetric")]
    assert 5 < computed(cell).scores["mse"] < 8


@pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="needs CIFAR-10 and ResNet20; ASKEW_DATA is not set")
def test_published_classifier_makes_the_task_easy() -> None:
    cells = [c for c in BREGCIFAR.checked_cells("quick", 1) if c.setting == "asymmetric-trained"]
    few = {"train": 320, "test": 100, "held_out": 0, "rates": (3e-3,), "epochs": 4}
    errors = {}
    for cell in cells:
        if cell.method in ("mean", "nbd"):
            options = dict(cell.options)
            cell = dataclasses.replace(
                cell, options=tuple(sorted((options | {n: v for n, v in few.items() if n in options}).items()))
            )
            errors[cell.method] = computed(cell).scores["mse"]
    assert errors["nbd"] < 0.8 * errors["mean"]
