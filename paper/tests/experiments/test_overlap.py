"""Overlap of crops: the crops, their overlap, the pairs, and small runs on images that need no files."""

from __future__ import annotations

import dataclasses
import math
import os

import pytest
import torch
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments.overlap import BATCH, METHODS, OVERLAP, SIZES, Crops, _images, draw_crops, lacking, run
from askew_paper.runner import compute

CPU = torch.device("cpu")


def cell_of(method: str, scale: str = "toy", **options: object) -> Cell:
    [cell] = [c for c in OVERLAP.checked_cells(scale, 1) if c.method == method]
    return dataclasses.replace(cell, options=tuple(sorted({**dict(cell.options), **options}.items())))


def computed(cell: Cell) -> Outcome:
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    return found


# ---------------------------------------------------------------------- crops


def test_a_crop_keeps_its_rectangle_and_nothing_else() -> None:
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(1, 256, (3, 3, 6, 6), generator=random, dtype=torch.uint8)
    [crop] = Crops(pixels, CPU)(torch.tensor([[2, 1, 4, 3, 6]]))
    expected = torch.zeros(3, 6, 6)
    expected[:, 1:4, 3:6] = pixels[2, :, 1:4, 3:6] / 255
    torch.testing.assert_close(crop, expected)


def test_overlap_is_that_of_the_pixels() -> None:
    side = 12
    pairs = draw_crops(torch.arange(5), side, 400, None, seed=0)
    crops = Crops(torch.full((5, 1, side, side), 255, dtype=torch.uint8), CPU)
    first, second = (crops(codes).flatten(1) for codes in (pairs.first, pairs.second))
    same = pairs.first[:, 0] == pairs.second[:, 0]
    expected = 1 - (first * second).sum(1) / first.sum(1) * same
    torch.testing.assert_close(pairs.targets, expected)


def test_overlap_is_not_symmetric_and_knows_inclusion() -> None:
    small, large = torch.tensor([[0, 0, 2, 0, 2]]), torch.tensor([[0, 0, 4, 0, 4]])
    assert lacking(small, large).item() == 0
    assert lacking(large, small).item() == 0.75
    assert lacking(large, large).item() == 0
    beside = torch.tensor([[0, 4, 8, 0, 8]])
    assert lacking(small, beside).item() == 1


@pytest.mark.parametrize("pool", [None, 32])
def test_pairs(pool: int | None) -> None:
    numbers, side, count = torch.arange(100, 140), 16, 20_000
    pairs = draw_crops(numbers, side, count, pool, seed=0)
    codes = torch.cat([pairs.first, pairs.second])
    assert set(codes[:, 0].tolist()) == set(numbers.tolist())
    different = (pairs.first[:, 0] != pairs.second[:, 0]).float().mean()
    assert different == pytest.approx(0.25, abs=0.02)
    assert (pairs.targets[pairs.first[:, 0] != pairs.second[:, 0]] == 1).all()
    # Every rectangle has a corner of the image, and is neither empty nor, but by chance, whole.
    heights, widths = codes[:, 2] - codes[:, 1], codes[:, 4] - codes[:, 3]
    for low, high, length in ((1, 2, heights), (3, 4, widths)):
        assert ((codes[:, low] == 0) ^ (codes[:, high] == side)).all()
        assert length.min() == 1
        assert length.max() == side - 1
        assert length.double().mean() == pytest.approx(side / 2, abs=0.3)
    again, other = (draw_crops(numbers, side, count, pool, seed=seed) for seed in (0, 1))
    assert torch.equal(again.first, pairs.first)
    assert not torch.equal(other.first, pairs.first)


def test_a_pool_has_few_crops_and_pairs_none_with_itself() -> None:
    pairs = draw_crops(torch.arange(40), 64, 10 * BATCH, 32, seed=0)
    for start in range(0, len(pairs), BATCH):
        some = pairs.part(slice(start, start + BATCH))
        assert len(some.distinct()[0]) <= 32
        assert len(some.first[:, 0].unique()) <= 8
    assert not (pairs.first == pairs.second).all(1).any()
    with pytest.raises(ValueError, match=r"pool of draw_crops must be a multiple of 4 from 8 to 20, .* Got 24 instead"):
        draw_crops(torch.arange(5), 16, 10, 24, seed=0)


# ---------------------------------------------------------------------- cells


def test_cells() -> None:
    assert EXPERIMENTS["overlap"] is OVERLAP
    for scale in SIZES:
        assert [cell.method for cell in OVERLAP.checked_cells(scale, 1)] == list(METHODS)
    names = ("batch", "epochs", "filters", "hidden", "pairs", "pool", "rates", "schedule", "side", "test_pairs")
    assert {name: cell_of("nbd", "paper")[name] for name in names} == {
        "batch": 128,
        "epochs": 200,
        "filters": (32, 64, 128, 256),
        "hidden": 256,
        "pairs": 10_000,
        "pool": None,
        "rates": (5e-4,),
        "schedule": "constant",
        "side": 64,
        "test_pairs": 10_000,
    }


@pytest.mark.parametrize("method", METHODS)
def test_smoke(method: str) -> None:
    found = computed(cell_of(method))
    assert 0 < found.scores["mse"] < math.inf
    if method != "mean":
        assert len(tuple(found.curves["test MSE"])) == 2
        assert set(found.chosen["validation"]) >= {"0.001", "0.003"}


def test_same_seed_gives_the_same_row() -> None:
    cell = cell_of("nbd", pairs=128, test_pairs=128)
    first = computed(cell)
    torch.rand(3)
    assert computed(cell) == first
    assert computed(dataclasses.replace(cell, seed=1)).scores != first.scores


def test_new_crops_in_every_pair() -> None:
    assert computed(cell_of("widenorm", pool=None, pairs=128, test_pairs=128)).scores["mse"] > 0


def test_overlap_is_learned() -> None:
    more = {"pairs": 4096, "epochs": 6, "rates": (3e-3,), "held_out": 0, "hidden": 64}
    assert computed(cell_of("iqe", **more)).scores["mse"] < computed(cell_of("mean")).scores["mse"]


@pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="needs the Holidays images; ASKEW_DATA is not set")
def test_photographs() -> None:
    pixels, known = _images(cell_of("nbd", "quick"))
    assert (pixels.shape, pixels.dtype, known) == ((300, 3, 32, 32), torch.uint8, 200)
    large, _ = _images(cell_of("nbd", "paper"))
    assert large.shape == (300, 3, 64, 64)
    torch.testing.assert_close(large.float().mean(), pixels.float().mean(), rtol=1e-2, atol=0)
