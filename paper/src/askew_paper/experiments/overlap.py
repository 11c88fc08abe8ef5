"""Overlap of crops: how much of one crop of a photograph another crop lacks, learned from the two images."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from askew import checks
from askew.divergences import Divergence
from askew.encoders import SmallCNN
from askew.training.runtime import best_device
from askew_paper.data.images import load_holidays
from askew_paper.experiment import MSE, Cell, Claim, Experiment, Outcome, Value, grid
from askew_paper.experiments.image_pairs import PairSet, learn_cell, make_head, shrunk, start_evenly

__all__ = ["METHODS", "OVERLAP", "Crops", "draw_crops", "lacking"]

SETTING = "holidays"
METHODS = (
    "mean",
    "euclidean",
    "mahalanobis",
    "deep-div",
    "deepnorm",
    "widenorm",
    "widenorm-legacy",
    "iqe",
    "mrn",
    "nbd-paper",
    "nbd",
    "nbd-separable",
)
BREGMAN = ("nbd-paper", "nbd", "nbd-separable")
PRIOR = ("deep-div", "deepnorm")
EMBEDDING = 128
# Pairs of a step, and how many of all pairs are of different images.
BATCH, DIFFERENT = 128, 0.25
# Photographs to learn from; the others are tested on.
TRAIN = 200
# Side of the middle part of a photograph that is used.
MIDDLE = 64
# Crops of one photograph in a pool.
CROPS = 4


@dataclass(frozen=True)
class Size:
    """How much of everything one scale takes.

    The last three are for short trainings, as in BregMNIST: how many crops the pairs of a batch are drawn from (None
    for new crops in every pair), whether encoders start as :func:`start_evenly` says, and on how many
    of the training photographs the learning rate is chosen.
    """

    side: int
    pairs: int
    test_pairs: int
    epochs: int
    trial_epochs: int
    rates: tuple[float, ...]
    schedule: str
    filters: tuple[int, ...]
    hidden: int
    pool: int | None
    even_start: bool
    held_out: int


SIZES = {
    "toy": Size(16, 512, 512, 2, 1, (1e-3, 3e-3), "linear", (4, 8), 16, 32, True, 10),
    "quick": Size(32, 10_000, 10_000, 6, 2, (1e-3, 3e-3), "linear", (16, 32, 64, 128), 256, 32, True, 40),
    "paper": Size(64, 10_000, 10_000, 200, 0, (5e-4,), "constant", (32, 64, 128, 256), 256, None, False, 0),
}
# Photographs to learn from and to test on, at toy size.
TOY_TRAIN, TOY_TEST = 30, 10


# ---------------------------------------------------------------------- crops


class Crops:
    """Crops of images, made when they are asked for: what is outside of the crop is zero.

    A crop is described by five integers: the number of the image, the first row, the row after the last, and the
    same for columns.

    Parameters
    ----------
    pixels
        Images, uint8 ``(n, channels, side, side)``; on the device once.
    device
        Where the crops are made.

    Examples
    --------
    >>> crops = Crops(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8), torch.device("cpu"))
    >>> crops(torch.tensor([[0, 0, 1, 0, 2]]))
    tensor([[[[1., 1.],
              [0., 0.]]]])
    """

    def __init__(self, pixels: Tensor, device: torch.device) -> None:
        self.pixels = pixels.to(device)

    def __call__(self, codes: Tensor) -> Tensor:
        """Return the crops of some descriptions, ``(m, 5) -> (m, channels, side, side)``, between 0 and 1."""
        number, top, bottom, left, right = codes.t()[:, :, None]
        places = torch.arange(self.pixels.shape[-1], device=codes.device)
        rows, columns = (places >= top) & (places < bottom), (places >= left) & (places < right)
        inside = rows[:, None, :, None] & columns[:, None, None, :]
        some = self.pixels[number[:, 0]].contiguous(memory_format=torch.channels_last)
        return some.float().mul_(inside / 255)


def lacking(first: Tensor, second: Tensor) -> Tensor:
    r"""Return the share of the first crop that the second one lacks.

    .. math:: D(X, Y) = 1 - \frac{|X \cap Y|}{|X|}

    Crops of different images have nothing in common.

    Parameters
    ----------
    first, second
        Descriptions of crops, as in :class:`Crops`, int64 ``(n, 5)``.

    Examples
    --------
    >>> half, whole = torch.tensor([[0, 0, 2, 0, 1]]), torch.tensor([[0, 0, 2, 0, 2]])
    >>> lacking(half, whole), lacking(whole, half), lacking(whole, half + torch.tensor([1, 0, 0, 0, 0]))
    (tensor([0.]), tensor([0.5000]), tensor([1.]))
    """
    shared = torch.ones_like(first[:, 0])
    whole = shared
    for low, high in ((1, 2), (3, 4)):
        begin, end = torch.maximum(first[:, low], second[:, low]), torch.minimum(first[:, high], second[:, high])
        shared = shared * (end - begin).clamp_min(0)
        whole = whole * (first[:, high] - first[:, low])
    share = torch.where(first[:, 0] == second[:, 0], shared / whole, 0.0)
    return (1 - share.double()).float()


def draw_crops(numbers: Tensor, side: int, count: int, pool: int | None, seed: int) -> PairSet:
    """Return random pairs of crops, a quarter of them of different images.

    An image is cut once horizontally and once vertically, both at random, and one of the four rectangles is kept.

    Parameters
    ----------
    numbers
        Images that may be drawn, ``(m,)``.
    side
        Height and width of an image.
    count
        Number of pairs.
    pool
        None cuts both crops of every pair anew. A multiple of 4 cuts so many crops for each batch of pairs, 4 of
        an image, and draws the pairs among them; no crop is paired with itself.
    seed
        The same pairs for the same seed.

    Examples
    --------
    >>> pairs = draw_crops(torch.arange(20), 16, count=256, pool=32, seed=0)
    >>> len(pairs), len(pairs.part(slice(128)).distinct()[0]) <= 32
    (256, True)
    """
    random = torch.Generator().manual_seed(seed)
    different = torch.rand(count, generator=random) < DIFFERENT
    if pool is None:
        images = torch.randint(len(numbers), (count,), generator=random)
        step = torch.randint(1, len(numbers), (count,), generator=random)
        others = torch.where(different, (images + step) % len(numbers), images)
        first, second = (_cut(numbers[some], side, random) for some in (images, others))
    else:
        if pool % CROPS or not 2 * CROPS <= pool <= CROPS * len(numbers):
            must = f"a multiple of {CROPS} from {2 * CROPS} to {CROPS * len(numbers)}, {CROPS} crops of an image"
            raise ValueError(checks.message("pool of draw_crops", must, pool))
        batches, images_of = -(-count // BATCH), pool // CROPS
        chosen = torch.stack([torch.randperm(len(numbers), generator=random)[:images_of] for _ in range(batches)])
        crops = _cut(numbers[chosen.flatten().repeat_interleave(CROPS)], side, random)
        # A pair is an image of the pool and a crop of it, twice: the second time another crop or another image.
        image = torch.randint(images_of, (count,), generator=random)
        crop = torch.randint(CROPS, (count,), generator=random)
        image_step = torch.randint(1, images_of, (count,), generator=random)
        crop_step = torch.randint(1, CROPS, (count,), generator=random)
        other = torch.where(different, (image + image_step) % images_of, image)
        start = torch.arange(count) // BATCH * pool
        first = crops[start + image * CROPS + crop]
        second = crops[start + other * CROPS + (crop + crop_step) % CROPS]
    return PairSet(first, second, lacking(first, second))


def _cut(images: Tensor, side: int, random: torch.Generator) -> Tensor:
    """Return a random crop of each image, ``(n,) -> (n, 5)``."""
    bounds = []
    for _ in range(2):
        cut = torch.randint(1, side, images.shape, generator=random)
        after = torch.rand(images.shape, generator=random) < 0.5
        bounds += [torch.where(after, cut, 0), torch.where(after, side, cut)]
    return torch.stack([images, *bounds], 1)


# ---------------------------------------------------------------------- the experiment


def _images(cell: Cell) -> tuple[Tensor, int]:
    """Return photographs, those to learn from first, and how many these are."""
    side = cell["side"]
    if cell.scale == "toy":
        # Four random colours, one in each corner, which blend into each other.
        random = np.random.RandomState(cell.seed)
        corners = torch.from_numpy(random.randint(40, 256, size=(TOY_TRAIN + TOY_TEST, 3, 2, 2))).float()
        made = nn.functional.interpolate(corners, size=(side, side), mode="bilinear", align_corners=True)
        return made.round().to(torch.uint8), TOY_TRAIN
    pixels = torch.from_numpy(load_holidays())
    edge = (pixels.shape[-1] - MIDDLE) // 2
    middle = pixels[:, :, edge : edge + MIDDLE, edge : edge + MIDDLE]
    return shrunk(middle, side), TRAIN


def options(scale: str, setting: str, method: str) -> dict[str, Value]:
    """Return what the result of a method depends on."""
    size = SIZES[scale]
    found: dict[str, Value] = {
        "pairs": size.pairs,
        "pool": size.pool,
        "side": size.side,
        "test_pairs": size.test_pairs,
    }
    if method == "mean":
        return found
    return found | {
        "batch": BATCH,
        "epochs": size.epochs,
        "even_start": size.even_start,
        "filters": size.filters,
        "held_out": size.held_out,
        "hidden": size.hidden,
        "rates": size.rates,
        "schedule": size.schedule,
        "trial_epochs": size.trial_epochs,
    }


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Return the cells of all methods."""
    return grid("overlap", scale, seeds, (SETTING,), METHODS, functools.partial(options, scale))


def run(cell: Cell) -> Outcome:
    """Learn the overlap by one method."""
    pixels, known = _images(cell)
    side, pool = cell["side"], cell["pool"]
    learned_from, tested_on = torch.arange(known), torch.arange(known, len(pixels))
    # Seeds of the pairs: the tests, the held-out ones, then one for each epoch.
    first_seed = 100_000 * cell.seed
    test = draw_crops(tested_on, side, cell["test_pairs"], pool, first_seed)

    def epoch_pairs(numbers: Tensor, epoch: int) -> PairSet:
        return draw_crops(numbers, side, cell["pairs"], pool, first_seed + 10 + epoch)

    if cell.method == "mean":
        guess = epoch_pairs(learned_from, 0).targets.mean()
        return Outcome({"mse": float((test.targets - guess).double().square().mean())})
    device, held = best_device(), cell["held_out"]
    images = Crops(pixels, device)

    def build() -> tuple[nn.Module, Divergence]:
        torch.manual_seed(cell.seed)
        encoder = SmallCNN(3, side, EMBEDDING, cell["filters"], cell["hidden"])
        divergence = make_head(cell.method, EMBEDDING)
        if cell["even_start"]:
            start_evenly(encoder.to(device), divergence, images, epoch_pairs(learned_from[held:], 0))
        return encoder.to(device), divergence

    held_out = draw_crops(learned_from[:held], side, cell["test_pairs"], pool, first_seed + 1) if held else None
    trial, whole = (functools.partial(epoch_pairs, some) for some in (learned_from[held:], learned_from))
    return learn_cell(cell, build, images, trial, held_out, whole, test)


OVERLAP = Experiment(
    "overlap",
    "Share of a crop that another crop lacks, learned from images: test MSE",
    ("figure fig:overlap_result",),
    (MSE,),
    seeds={"toy": 1, "quick": 1, "paper": 5},
    minutes={"toy": 0.1, "quick": 3.0, "paper": 15_000.0},
    cells=cells,
    run=run,
    needs=(
        "the folder holidays with the JPEG files in the folder that the environment variable ASKEW_DATA names",
        "Pillow",
    ),
    claims=(
        Claim(
            "Widenorm, with the bias of the public code, is first", MSE.name, ("widenorm-legacy",), (*PRIOR, *BREGMAN)
        ),
        Claim("NBD is second", MSE.name, BREGMAN, ("mahalanobis", *PRIOR)),
        Claim("Widenorm is ahead of NBD without that bias, too", MSE.name, ("widenorm",), BREGMAN),
    ),
    notes=(
        "D(X, Y) = 1 - |X and Y| / |X| for crops of one photograph; 1 for a quarter of the pairs, which are of two "
        "photographs. A crop comes from one horizontal and one vertical cut; the rest of the image is zero. The "
        "first 200 photographs are learned from, with new crops in each epoch, the last 100 are tested on, with "
        "fixed crops.",
        "All methods have the same encoder, drawn from the same seed, the same pairs and Adam. The last weights "
        "are tested. mean predicts the mean of the training targets: what is not below it has learned nothing. The "
        "paper shows curves without figures; euclidean, iqe and mrn are not in it. nbd-separable is nbd without "
        "its quadratic term, as in BregMNIST.",
        "widenorm-legacy has the bias of the public code, by which D(x, x) > 0, so that it can predict a constant "
        "where the images tell nothing; a divergence cannot. Its difference to widenorm is what the bias does.",
        "Quick is short: images of 32 x 32 in place of 64 x 64, 6 epochs in place of 200, filters 16-32-64-128, "
        "which are half of the paper's. The 128 pairs of a batch are drawn among 32 crops of 8 photographs, the "
        "test pairs likewise. The encoder's weights start so that signals keep their size, and the last layer so "
        "that D has about the mean of the targets, for every method. The learning rate, 0.001 or 0.003 at its peak "
        "and then falling to 0, is chosen for each method by 2 epochs without 40 of the training photographs and "
        "the error on these.",
    ),
)
