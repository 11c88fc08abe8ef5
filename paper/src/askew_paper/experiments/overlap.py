"""Overlap of crops: the share of one crop of a photograph that another crop lacks, learned from the two images."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from askew import checks
from askew.encoders import SmallCNN
from askew.training.runtime import best_device
from askew_paper.data.images import load_holidays
from askew_paper.experiment import MSE, Cell, Claim, Experiment, Outcome, Value, grid
from askew_paper.experiments.image_pairs import EMBEDDING, STANDARDISED, PairSet, first_seed, learn_cell, squared_error
from askew_paper.experiments.images import shrunk
from askew_paper.heads import DIRECTED
from askew_paper.notes import read_notes

PRIOR, BREGMAN = ("deep-div", "deepnorm"), ("nbd-paper", "nbd-quadratic", "nbd")
METHODS = ("mean", "euclidean", "mahalanobis", *PRIOR, "widenorm", "widenorm-legacy", "iqe", "mrn", *BREGMAN, *DIRECTED)
# Pairs of a step, and the share of pairs of different images.
BATCH, DIFFERENT = 128, 0.25
# Number of training photographs, at toy scale with that of test photographs.
TRAIN, TOY_TRAIN, TOY_TEST = 200, 30, 10
# Side of the centre of a photograph that is used.
CENTRE = 64
# Crops of one photograph in a pool.
CROPS = 4
# Short trainings draw the pairs of a batch from a pool of crops, start evenly, and choose the rate on held-out images.
SHORT: dict[str, Value] = {"pool": 32, "even_start": True, "rates": (1e-3, 3e-3), "schedule": "linear"}
LONG: dict[str, Value] = {"pool": None, "even_start": False, "rates": (5e-4,), "schedule": "constant"}
PAIRS: dict[str, Value] = {"pairs": 10_000, "test_pairs": 10_000}
SIZES: dict[str, dict[str, Value]] = {
    "toy": SHORT | {"side": 16, "pairs": 512, "test_pairs": 512, "epochs": 2, "trial_epochs": 1, "held_out": 10},
    "quick": SHORT | PAIRS | {"side": 32, "epochs": 6, "trial_epochs": 2, "held_out": 40},
    "medium": SHORT
    | PAIRS
    | {"side": 64, "epochs": 200, "trial_epochs": 50, "held_out": 40, "bfloat16": True, "rates": (1e-4, 1e-3)}
    # To measure all test pairs after each epoch would be much of the work.
    | {"curve": 2048},
    "paper": LONG | PAIRS | {"side": 64, "epochs": 200, "trial_epochs": 0, "held_out": 0},
}
ENCODERS: dict[str, dict[str, Value]] = {
    "toy": {"filters": (4, 8), "hidden": 16},
    "quick": {"filters": (16, 32, 64, 128), "hidden": 256},
    **{key: {"filters": (32, 64, 128, 256), "hidden": 256} for key in ("medium", "paper")},
}


# ---------------------------------------------------------------------- crops


class Crops:
    """Crops of images, computed on demand: pixels outside of the crop are zero.

    A crop is described by five integers: the number of the image, the first row, the row after the last, and the
    same for columns.

    The images, uint8 ``(n, channels, side, side)``, are on the device once.

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
        images = self.pixels[number[:, 0]].contiguous(memory_format=torch.channels_last)
        return images.float().mul_(inside / 255)


def lacking(first: Tensor, second: Tensor) -> Tensor:
    r"""Return the share of the first crop that the second one lacks.

    .. math:: D(X, Y) = 1 - \frac{|X \cap Y|}{|X|}

    Crops of different images have nothing in common. Crops are described as in :class:`Crops`, ``(n, 5)``.

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


def draw_crops(rows: Tensor, side: int, count: int, pool: int | None, seed: int) -> PairSet:
    """Return random pairs of crops, a quarter of them of different images.

    An image is cut once horizontally and once vertically, both at random, and one of the four rectangles is kept.

    Without a ``pool`` there are new crops for every pair. A pool, a multiple of 4, cuts this many crops for each batch
    of pairs, 4 of an image, and draws the pairs among them; no crop is paired with itself.

    Examples
    --------
    >>> pairs = draw_crops(torch.arange(20), 16, count=256, pool=32, seed=0)
    >>> len(pairs), len(pairs.part(slice(128)).distinct()[0]) <= 32
    (256, True)
    """
    random = torch.Generator().manual_seed(seed)
    different = torch.rand(count, generator=random) < DIFFERENT
    if pool is None:
        images = torch.randint(len(rows), (count,), generator=random)
        step = torch.randint(1, len(rows), (count,), generator=random)
        others = torch.where(different, (images + step) % len(rows), images)
        first, second = (_cut(rows[numbers], side, random) for numbers in (images, others))
    else:
        if pool % CROPS or not 2 * CROPS <= pool <= CROPS * len(rows):
            must = f"a multiple of {CROPS} from {2 * CROPS} to {CROPS * len(rows)}, {CROPS} crops of an image"
            raise ValueError(checks.message("pool of draw_crops", must, pool))
        batches, images_of = -(-count // BATCH), pool // CROPS
        chosen = torch.stack([torch.randperm(len(rows), generator=random)[:images_of] for _ in range(batches)])
        crops = _cut(rows[chosen.flatten().repeat_interleave(CROPS)], side, random)
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
    """Return photographs, training ones first, and the number of training ones."""
    side = cell["side"]
    if cell.scale == "toy":
        # Four random colours, one in each corner, which blend into each other.
        random = np.random.RandomState(cell.seed)
        corners = torch.from_numpy(random.randint(40, 256, size=(TOY_TRAIN + TOY_TEST, 3, 2, 2))).float()
        made = nn.functional.interpolate(corners, size=(side, side), mode="bilinear", align_corners=True)
        return made.round().to(torch.uint8), TOY_TRAIN
    pixels = torch.from_numpy(load_holidays())
    edge = (pixels.shape[-1] - CENTRE) // 2
    return shrunk(pixels[:, :, edge : edge + CENTRE, edge : edge + CENTRE], side), TRAIN


def options(scale: str, setting: str, method: str) -> dict[str, Value]:
    """Return what the result of a method depends on."""
    if method == "mean":
        return {name: SIZES[scale][name] for name in ("pairs", "pool", "side", "test_pairs")}
    size = SIZES[scale] | ENCODERS[scale] | {"batch": BATCH}
    return size | (STANDARDISED.get(scale, {}) if method == "deep-div" else {})


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Return the cells of all methods."""
    return grid("overlap", scale, seeds, ("holidays",), METHODS, functools.partial(options, scale))


def run(cell: Cell) -> Outcome:
    """Learn the overlap by one method."""
    pixels, known = _images(cell)
    side, pool = cell["side"], cell["pool"]

    def train_pairs(rows: Tensor, seed: int) -> PairSet:
        return draw_crops(rows, side, cell["pairs"], pool, seed)

    def test_pairs(rows: Tensor, seed: int) -> PairSet:
        return draw_crops(rows, side, cell["test_pairs"], pool, seed)

    test = test_pairs(torch.arange(known, len(pixels)), first_seed(cell))
    if cell.method == "mean":
        mean = train_pairs(torch.arange(known), first_seed(cell) + 10).targets.mean()
        return Outcome({"mse": squared_error(mean, test)})
    encoder = functools.partial(SmallCNN, 3, side, EMBEDDING, cell["filters"], cell["hidden"])
    return learn_cell(cell, encoder, Crops(pixels, best_device()), known, train_pairs, test_pairs, test)


NOTES = read_notes("overlap")
OVERLAP = Experiment(
    "overlap",
    "Share of a crop that another crop lacks, learned from images: test MSE",
    ("figure fig:overlap_result",),
    (MSE,),
    seeds={"toy": 1, "quick": 1, "medium": 1, "paper": 5},
    minutes={"toy": 0.1, "quick": 4.0, "medium": 250.0, "paper": 15_000.0},
    cells=cells,
    run=run,
    needs=NOTES.needs,
    notes=NOTES.notes,
    claims=(
        Claim(NOTES.claim("widenorm-bias-first"), MSE.name, ("widenorm-legacy",), (*PRIOR, *BREGMAN)),
        Claim(NOTES.claim("nbd-second"), MSE.name, BREGMAN, ("mahalanobis", *PRIOR)),
        Claim(NOTES.claim("widenorm-no-bias"), MSE.name, ("widenorm",), BREGMAN, ours=True),
    ),
)
