"""BregMNIST and BregCIFAR: a divergence between class values, learned from images of the classes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from askew.encoders import MLP, SmallCNN
from askew.training.runtime import best_device
from askew_paper.data.images import Images, load_images
from askew_paper.experiment import MSE, Cell, Claim, Experiment, Outcome, Value, grid
from askew_paper.experiments.image_pairs import (
    EMBEDDING,
    RATES,
    STANDARDISED,
    ImageSource,
    PairSet,
    first_seed,
    learn_cell,
    squared_error,
)
from askew_paper.experiments.images import Standardised, embed, encoder_of, shrunk
from askew_paper.notes import read_notes

SETTINGS = ("asymmetric", "symmetric")
# The same targets with an encoder that was trained on the classes; not in the paper.
TRAINED = "-trained"
PRIOR, BREGMAN = ("deep-div", "deepnorm", "widenorm"), ("nbd-paper", "nbd-quadratic", "nbd")
OTHERS = ("euclidean", "mahalanobis", *PRIOR, "iqe", "mrn")
METHODS = ("mean", *OTHERS, *BREGMAN)
# What medium scale has in addition.
MORE = ("drift", "drift-root", "two-sided")
CLASSES = 10
# Pairs of a step.
BATCH = 128
SOURCES = {"bregmnist": "mnist", "bregcifar": "cifar10"}
# Short trainings draw the pairs of a batch from a pool of images, start evenly, and choose the rate on held-out images.
SHORT: dict[str, Value] = {"pool": 32, "even_start": True, "rates": (1e-3, 3e-3), "schedule": "linear"}
TOY = SHORT | {"train": 192, "test": 64, "test_pairs": 500, "side": 8}
TOY |= {"epochs": 2, "trial_epochs": 1, "held_out": 64, "filters": (4, 8), "hidden": 16}
QUICK = SHORT | {"test": 2_000, "test_pairs": 10_000, "trial_epochs": 1, "hidden": 256}
PAPER: dict[str, Value] = {"train": None, "test": None, "test_pairs": 10_000, "hidden": 256, "epochs": 200}
PAPER |= {"trial_epochs": 0, "rates": (1e-3,), "schedule": "constant", "pool": None, "even_start": False, "held_out": 0}
MEDIUM = QUICK | {"rates": RATES[:2], "distinct": True}
SIZES: dict[str, dict[str, dict[str, Value]]] = {
    "bregmnist": {
        "toy": TOY,
        "quick": QUICK | {"train": 5_000, "held_out": 625, "epochs": 4, "side": 28, "filters": (16, 32)},
        "medium": MEDIUM
        | {"train": 20_000, "held_out": 2_500, "epochs": 40, "trial_epochs": 10, "side": 28, "filters": (32, 64)},
        "paper": PAPER | {"side": 28, "filters": (32, 64)},
    },
    "bregcifar": {
        "toy": TOY,
        "quick": QUICK | {"train": 10_000, "held_out": 1_250, "epochs": 5, "side": 16, "filters": (16, 32, 64)},
        "medium": MEDIUM
        | {"train": 50_000, "held_out": 6_250, "epochs": 20, "trial_epochs": 5, "side": 32}
        | {"filters": (32, 64, 128, 256)},
        "paper": PAPER | {"side": 32, "filters": (32, 64, 128, 256)},
    },
}
TRAINED_SIZES = {
    "quick": QUICK | {"train": 4_000, "held_out": 500, "epochs": 6, "side": 32},
    "medium": MEDIUM
    | {"train": 20_000, "held_out": 2_500, "epochs": 20, "trial_epochs": 5, "side": 32, "rates": RATES},
}


# ---------------------------------------------------------------------- pairs


def class_divergence(first: Tensor, second: Tensor, setting: str) -> Tensor:
    r"""Return the target of pairs of classes, whose values are the numbers 0 to 9.

    .. math:: D(a, b) = (a + 1) \log \frac{a + 1}{b + 1} - a + b \quad \text{or} \quad D(a, b) = (a - b)^2

    The first, ``"asymmetric"``, is the Bregman divergence of :math:`\phi(x) = (x + 1) \log (x + 1)`; the second is
    ``"symmetric"``.

    Examples
    --------
    >>> nine, zero = torch.tensor([9]), torch.tensor([0])
    >>> class_divergence(nine, zero, "asymmetric"), class_divergence(zero, nine, "asymmetric")
    (tensor([14.0259]), tensor([6.6974]))
    """
    a, b = first.double(), second.double()
    if setting == "symmetric":
        return (a - b).square().float()
    return ((a + 1) * torch.log((a + 1) / (b + 1)) - a + b).float()


def draw_pairs(
    labels: Tensor, rows: Tensor, setting: str, count: int, pool: int | None, seed: int, distinct: bool = False
) -> PairSet:
    """Return random pairs of images among ``rows`` with the targets of their classes.

    Without a ``pool`` both images of every pair are drawn at random. A pool of 32, say, first draws this many different
    images for each batch of pairs, and then the pairs among them, with ``distinct`` none of an image and itself. There
    are fewer images in a batch, and so less work for an encoder that encodes each of them once.

    Examples
    --------
    >>> labels = torch.arange(100) % 10
    >>> pairs = draw_pairs(labels, torch.arange(100), "symmetric", count=256, pool=32, seed=0)
    >>> len(pairs), len(pairs.part(slice(128)).distinct()[0]) <= 32, len(pairs.distinct()[0]) > 32
    (256, True, True)
    """
    random = torch.Generator().manual_seed(seed)
    if pool is None:
        first, second = rows[torch.randint(len(rows), (2, count), generator=random)]
    else:
        pool = min(pool, len(rows))
        batches = -(-count // BATCH)
        # Every image comes once before any comes twice.
        rounds = -(-batches * pool // len(rows))
        order = torch.cat([torch.randperm(len(rows), generator=random) for _ in range(rounds)])
        pools = rows[order[: batches * pool]].reshape(batches, pool)
        places = torch.randint(pool, (2, batches, BATCH), generator=random)
        if distinct:
            places[1] = (places[0] + torch.randint(1, pool, places[0].shape, generator=random)) % pool
        first, second = (pools.gather(1, place).flatten()[:count] for place in places)
    return PairSet(first, second, class_divergence(labels[first], labels[second], setting))


# ---------------------------------------------------------------------- images


def made_images(channels: int, side: int, count: int, seed: int) -> Images:
    """Return images ``(channels, side, side)`` of ten classes: a bright bar whose position tells the class, and noise.

    Examples
    --------
    >>> made_images(1, 8, count=5, seed=0).pixels.shape
    (5, 1, 8, 8)
    """
    random = np.random.RandomState(seed)
    labels = random.randint(CLASSES, size=count)
    pixels = random.randint(0, 60, size=(count, channels, side, side))
    places = (labels[:, None] * (side - 1) / (CLASSES - 1) - np.arange(side)) ** 2
    pixels += (190 * np.exp(-places))[:, None, None, :].astype(np.int64)
    return Images("made", pixels.astype(np.uint8), labels.astype(np.int64))


def _images(cell: Cell) -> tuple[Tensor, Tensor, int]:
    """Return pixels and labels, training images first, and the number of training images."""
    if cell.scale == "toy":
        channels = 1 if cell.experiment == "bregmnist" else 3
        made = made_images(channels, cell["side"], cell["train"] + cell["test"], cell.seed)
        return torch.from_numpy(made.pixels), torch.from_numpy(made.labels), cell["train"]
    parts = []
    for number, split in enumerate(("train", "test")):
        images = load_images(SOURCES[cell.experiment], split)
        rows = np.random.RandomState(2 * cell.seed + number).permutation(len(images))[: cell[split]]
        parts.append((torch.from_numpy(images.pixels[rows]), torch.from_numpy(images.labels[rows])))
    pixels, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return shrunk(pixels, cell["side"]), labels, len(parts[0][1])


def _features(cell: Cell, pixels: Tensor, known: int) -> Tensor:
    """Return the features of images under the ResNet20 with published weights, standardised, ``(n, 64)``.

    At toy scale, which reads no files, they are the pixels.
    """
    points = pixels.flatten(1).float() if cell.scale == "toy" else _resnet_features(cell, pixels)
    std, mean = torch.std_mean(points[:known], 0, correction=0)
    return (points - mean) / std.clamp_min(1e-6)


# The features of the last images, which all methods share.
_LAST: dict[tuple[int, int, int], Tensor] = {}


def _resnet_features(cell: Cell, pixels: Tensor) -> Tensor:
    key = (cell.seed, cell["train"], cell["test"])
    if key not in _LAST:
        _LAST.clear()
        _LAST[key] = embed(encoder_of("resnet20", None, side=32).to(best_device()), pixels).cpu()
    return _LAST[key]


# ---------------------------------------------------------------------- the experiments


def options(experiment: str, scale: str, setting: str, method: str) -> dict[str, Value]:
    """Return what the result of a method depends on."""
    size = SIZES[experiment][scale]
    if setting.endswith(TRAINED):
        # The filters are those of the trained encoder.
        size = TRAINED_SIZES.get(scale, size) | {"filters": None}
    if method == "mean":
        return {name: size[name] for name in ("train", "test", "test_pairs", "side")}
    return size | {"batch": BATCH} | (STANDARDISED.get(scale, {}) if method == "deep-div" else {})


def settings_of(experiment: str, scale: str) -> tuple[str, ...]:
    """Return the settings of an experiment at a scale."""
    if experiment == "bregmnist" or scale == "paper":
        return SETTINGS
    return (*(SETTINGS if scale == "toy" else SETTINGS[:1]), *(f"{setting}{TRAINED}" for setting in SETTINGS))


def cells(experiment: str, scale: str, seeds: int) -> Iterator[Cell]:
    """Return the cells of all settings and all methods."""
    settings = settings_of(experiment, scale)
    methods = (*METHODS, *(MORE if scale == "medium" else ()))
    return grid(experiment, scale, seeds, settings, methods, functools.partial(options, experiment, scale))


def run(cell: Cell) -> Outcome:
    """Learn one target by one method."""
    pixels, labels, known = _images(cell)
    target = cell.setting.removesuffix(TRAINED)

    def test_pairs(rows: Tensor, seed: int) -> PairSet:
        return draw_pairs(labels, rows, target, cell["test_pairs"], None, seed)

    def train_pairs(rows: Tensor, seed: int) -> PairSet:
        # As many pairs as images; from a pool, as many batches as use every image once.
        count = len(rows) if cell["pool"] is None else len(rows) // cell["pool"] * cell["batch"]
        return draw_pairs(labels, rows, target, count, cell["pool"], seed, dict(cell.options).get("distinct") is True)

    test = test_pairs(torch.arange(known, len(labels)), first_seed(cell))
    if cell.method == "mean":
        mean = test_pairs(torch.arange(known), first_seed(cell) + 2).targets.mean()
        return Outcome({"mse": squared_error(mean, test)})
    images: ImageSource
    if cell.setting.endswith(TRAINED):
        images = _features(cell, pixels, known).to(best_device())
        encoder: Callable[[], nn.Module] = functools.partial(MLP, images.shape[1], EMBEDDING, (cell["hidden"],))
    else:
        images, (_, channels, side, _) = Standardised(pixels, known, best_device()), pixels.shape
        encoder = functools.partial(SmallCNN, channels, side, EMBEDDING, cell["filters"], cell["hidden"])
    return learn_cell(cell, encoder, images, known, train_pairs, test_pairs, test)


def _experiment(name: str, title: str, figures: tuple[str, ...], minutes: Mapping[str, float]) -> Experiment:
    notes = read_notes(name)
    return Experiment(
        name,
        title,
        figures,
        (MSE,),
        seeds={"toy": 1, "quick": 1, "medium": 1, "paper": 5},
        minutes=minutes,
        cells=functools.partial(cells, name),
        run=run,
        needs=notes.needs,
        notes=notes.notes,
        added=tuple(f"{setting}{TRAINED}" for setting in SETTINGS),
        claims=(
            Claim(notes.claim("nbd-best"), MSE.name, BREGMAN, OTHERS),
            Claim(notes.claim("each-nbd"), MSE.name, BREGMAN, OTHERS, each=True, ours=True),
            Claim(notes.claim("mahalanobis"), MSE.name, ("mahalanobis",), PRIOR),
        ),
    )


BREGMNIST = _experiment(
    "bregmnist",
    "Divergence between digits, learned from images: test MSE",
    ("figure fig:bregMNIST_asym", "figure fig:bregMNIST_sym"),
    {"toy": 0.1, "quick": 4.0, "medium": 180.0, "paper": 10_000.0},
)
BREGCIFAR = _experiment(
    "bregcifar",
    "Divergence between classes of CIFAR-10, learned from images: test MSE",
    ("figure fig:bregCIFAR_asym",),
    {"toy": 0.2, "quick": 5.0, "medium": 300.0, "paper": 20_000.0},
)
