"""Deep metric learning: encoder and divergence learned together from triplets of labelled images."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from askew import checks
from askew.divergences import Divergence, Embedded, make
from askew.encoders import SmallCNN
from askew.losses import AllTriplets
from askew.metrics import ranking_per_query
from askew.training import TrainingDivergedError, fit
from askew_paper.data.files import Source, find
from askew_paper.data.images import SETS, load_images
from askew_paper.encoders import IMAGENET_MEAN, IMAGENET_STD, ResNet18, ResNet20, load_weights
from askew_paper.experiment import Cell, Claim, Experiment, Outcome, Score, Value, grid
from askew_paper.published import published

__all__ = [
    "DEEP_METRIC",
    "Labelled",
    "Pixels",
    "drawn_images",
    "encoder_of",
    "learn_metric",
    "retrieval",
    "some_images",
    "spread_of",
]

METHODS = ("untrained", "euclidean", "mahalanobis", "deep-div", "deepnorm", "widenorm", "nbd-paper", "nbd")
OTHERS = tuple(method for method in METHODS if method not in ("untrained", "deep-div"))
SETTINGS = ("cifar10", "svhn", "stl10")
# Images that the experiment makes itself, where no files are wanted.
DRAWN = "drawn"
CLASSES = 10
LOOK = 10  # places of a ranking that count
# Images that go through an encoder at a time when nothing is learned, and entries of a matrix of divergences.
IMAGES, ENTRIES = 256, 1 << 22
# Images that the scales of a divergence are set by before training.
CALIBRATION_IMAGES = 256
# Standard deviation of each feature at the start: norms and their squares are then of the size of what is learned. The
# features of published networks lie far from 0 and close together, and so may be those with this deviation for
# Deep-div: where one of its pieces is the largest at all images, it is 0 and so is its gradient.
SPREAD, DEEP_DIV_SPREAD = 0.25, 1.0

WEIGHTS = {
    "resnet20": Source(
        "resnet20/resnet20-12fca82f.th",
        "https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models/resnet20-12fca82f.th",
        terms="BSD 2-clause",
    ),
    "resnet18": Source(
        "resnet18/resnet18-f37072fd.pth",
        "https://download.pytorch.org/models/resnet18-f37072fd.pth",
        terms="BSD 3-clause",
    ),
}
PAPER: dict[str, Value] = {"batch": 64, "embedding": 32, "margin": 0.2}
SIZES: dict[str, dict[str, Value]] = {
    "toy": {"encoder": "small-cnn", "side": 8, "train": 160, "test": 60, "epochs": 3, "learning_rate": 3e-3},
    "quick": {"encoder": "resnet20", "side": 32, "train": 2000, "test": 1000, "epochs": 3, "learning_rate": 3e-3},
    "paper": {"encoder": "resnet18", "side": 224, "train": None, "test": None, "epochs": 30, "learning_rate": 1e-4},
}


# ---------------------------------------------------------------------- images


class Labelled(NamedTuple):
    """Images as they are stored, uint8 ``(n, channels, height, width)``, and their classes, int64 ``(n,)``."""

    pixels: Tensor
    labels: Tensor


def drawn_images(number: int, side: int, seed: int) -> Labelled:
    """Return small images of ten classes that are made here: a pattern for each class, under noise.

    Parameters
    ----------
    number
        Of images.
    side
        Height and width.
    seed
        Of the classes and the noise; the patterns are always the same.

    Examples
    --------
    >>> pixels, labels = drawn_images(50, side=8, seed=0)
    >>> pixels.shape, pixels.dtype, len(labels.unique())
    (torch.Size([50, 3, 8, 8]), torch.uint8, 10)
    """
    patterns = torch.rand(CLASSES, 3, side, side, generator=torch.Generator().manual_seed(12))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randperm(number, generator=generator) % CLASSES
    noise = torch.randn(number, 3, side, side, generator=generator)
    return Labelled((patterns[labels] * 255 + 60 * noise).clamp(0, 255).to(torch.uint8), labels)


def some_images(setting: str, split: str, number: int | None, side: int, seed: int) -> Labelled:
    """Return images of a published set, drawn at random, each at most once.

    Parameters
    ----------
    setting
        One of :func:`askew_paper.data.image_names`, or ``"drawn"`` for :func:`drawn_images`.
    split
        ``"train"`` or ``"test"``.
    number
        Of images; all where it is None or larger than the set.
    side
        Height and width of drawn images; others are as they were published.
    seed
        Which images; the same for all methods.

    Examples
    --------
    >>> len(some_images("drawn", "test", 30, side=8, seed=0).labels)
    30
    """
    if setting == DRAWN:
        return drawn_images(100 if number is None else number, side, 2 * seed + (split == "test"))
    images = load_images(setting, split)
    order = np.random.RandomState(seed).permutation(len(images))[:number]
    return Labelled(torch.from_numpy(images.pixels[order]), torch.from_numpy(images.labels[order]))


# ---------------------------------------------------------------------- encoders


class Pixels(nn.Module):
    """An encoder that takes images as they are stored, bytes or numbers in [0, 1], of any size.

    They are resized, and normalised as the published weights expect it, (x - mean) / std for each channel. So a set
    of images stays in bytes, and is on its device once. What comes out is shifted and scaled by fixed numbers, if
    :meth:`centre` has set them.

    Parameters
    ----------
    encoder
        Takes images ``(n, 3, side, side)``.
    side
        Height and width of what the encoder takes.

    Examples
    --------
    >>> Pixels(ResNet20(out=4), side=32)(torch.zeros(2, 3, 96, 96, dtype=torch.uint8)).shape
    torch.Size([2, 4])
    """

    mean: Tensor
    std: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, encoder: nn.Module, side: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.side = checks.check_size(side, "side of Pixels")
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)
        self.register_buffer("shift", torch.zeros(()), persistent=False)
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def centre(self, pixels: Tensor, spread: float) -> Pixels:
        """Set shift and scale so that each feature of the points of these images has mean 0 and this deviation."""
        self.shift, self.scale = torch.zeros_like(self.shift), torch.ones_like(self.scale)
        deviation, mean = torch.std_mean(_points(self, pixels), 0, correction=0)
        self.shift, self.scale = mean, spread / deviation.clamp_min(1e-6)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return one point per image: ``(n, 3, height, width) -> (n, out)``."""
        # The layout first: the fewer the bytes, the cheaper. Convolutions are faster in it.
        x = x.contiguous(memory_format=torch.channels_last)
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        if x.shape[-2:] != (self.side, self.side):
            x = functional.interpolate(x, (self.side, self.side), mode="bilinear", antialias=True)
        points: Tensor = self.encoder((x - self.mean) / self.std)
        return (points - self.shift) * self.scale


def encoder_of(encoder: str | nn.Module, out: int | None, side: int) -> Pixels:
    """Return an encoder of stored images, by its name or made from any module.

    Parameters
    ----------
    encoder
        ``"resnet20"`` or ``"resnet18"``, with published weights from a local file; ``"small-cnn"``, a small network
        that starts at random; or a module that takes normalised images ``(n, 3, side, side)``.
    out
        Number of features, by a linear layer that starts at random; None gives those of the published network.
        A module has its own.
    side
        Height and width that images are brought to.

    Raises
    ------
    FileNotFoundError
        If the file of weights is missing; the message says where it comes from and where to put it.

    Examples
    --------
    >>> encoder_of("small-cnn", 16, side=8)(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)).shape
    torch.Size([2, 16])
    """
    if isinstance(encoder, str):
        checks.check_name(encoder, ["small-cnn", *WEIGHTS], "name of an encoder")
        if encoder == "small-cnn":
            network: nn.Module = SmallCNN(3, side, out=out or 32, filters=(8, 16), hidden=32)
        else:
            network = (ResNet20 if encoder == "resnet20" else ResNet18)(out)
            load_weights(network, find(WEIGHTS[encoder]))
    else:
        network = encoder
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Pixels(network, side)


# ---------------------------------------------------------------------- learning and measuring


def learn_metric(
    encoder: Pixels,
    divergence: Divergence,
    train: Labelled,
    *,
    epochs: int,
    batch: int,
    learning_rate: float,
    margin: float,
    spread: float,
    seed: int,
) -> tuple[list[float], str]:
    """Train an encoder and a divergence together on all triplets of each batch that violate a margin.

    A batch is encoded once, and its divergences are one matrix. A training that diverges leaves the last good weights.

    Parameters
    ----------
    encoder
        From :func:`encoder_of`; its points are centred, and it is trained in place.
    divergence
        Between its points; trained in place.
    train
        Images and classes.
    epochs, batch, learning_rate
        As in :func:`askew.fit`.
    margin
        As in :class:`askew.losses.AllTriplets`.
    spread
        Standard deviation of each feature of the points before training.
    seed
        Of the order of the images.

    Returns
    -------
    losses, stopped
        The mean loss of each epoch, and ``"finished"`` or ``"diverged"``.

    Examples
    --------
    >>> encoder, divergence = encoder_of("small-cnn", 8, side=8), make("euclidean", 8)
    >>> train = drawn_images(60, side=8, seed=0)
    >>> losses, stopped = learn_metric(encoder, divergence, train, epochs=2, batch=20, learning_rate=1e-3,
    ...                                margin=0.2, spread=0.25, seed=0)
    >>> len(losses), stopped
    (2, 'finished')
    """
    some = train.pixels[:CALIBRATION_IMAGES]
    model = Embedded(encoder.centre(some, spread), divergence)
    points = _points(encoder, some)
    # The images are in random order, so that half of them with the other half are random pairs.
    half = len(points) // 2
    divergence.calibrate(points[:half], points[half : 2 * half])
    try:
        history = fit(
            model,
            tuple(train),
            AllTriplets(margin),
            epochs=epochs,
            batch_size=batch,
            learning_rate=learning_rate,
            calibrate=False,
            seed=seed,
            progress=False,
        )
    except TrainingDivergedError as error:
        return list(error.history["loss"]) if len(error.history) else [], "diverged"
    return list(history["loss"]), "finished"


def retrieval(encoder: Pixels, divergence: Divergence, queries: Labelled, pool: Labelled) -> dict[str, float]:
    """Return how well images of the class of a query are found in a pool, in percent: MAP@10 and precision@1.

    Items are ranked by D(query, item), the nearest first; ties count as the mean over their orders. The matrix is
    computed for some queries at a time.

    Parameters
    ----------
    encoder, divergence
        As in :func:`learn_metric`.
    queries, pool
        Images and classes.

    Examples
    --------
    >>> images = drawn_images(40, side=8, seed=0)
    >>> found = retrieval(encoder_of(nn.Flatten(), None, side=8), make("euclidean", 192), images, images)
    >>> list(found), found["precision@1"]
    (['map@10', 'precision@1'], 100.0)
    """
    items = _points(encoder, pool.pixels)
    asked = _points(encoder, queries.pixels)
    rows = max(1, ENTRIES // max(1, len(items)))
    names = (f"map@{LOOK}", "precision@1")
    parts: dict[str, list[Any]] = {name: [] for name in names}
    for some, labels in zip(asked.split(rows), queries.labels.split(rows), strict=True):
        with torch.no_grad():
            matrix = divergence.pairwise(some, items)
        found = ranking_per_query(matrix.cpu(), labels, pool.labels, k=LOOK)
        for name in names:
            parts[name].append(found[name])
    # NaN where no item of the pool has the class of a query.
    return {name: 100 * float(np.nanmean(np.concatenate(values))) for name, values in parts.items()}


@torch.no_grad()
def _points(encoder: Pixels, pixels: Tensor) -> Tensor:
    """Return the points of images, a few of them at a time, on the device of the encoder."""
    encoder.eval()
    return torch.cat([encoder(some.to(encoder.mean.device)) for some in pixels.split(IMAGES)])


# ---------------------------------------------------------------------- the experiment


def spread_of(method: str) -> float:
    """Return the standard deviation of each feature that a divergence starts with."""
    return DEEP_DIV_SPREAD if method == "deep-div" else SPREAD


def options(scale: str, setting: str, method: str) -> Mapping[str, Value]:
    """Return what the result of a method depends on, beside the images."""
    size = SIZES[scale]
    found: dict[str, Value] = {name: size[name] for name in ("encoder", "side", "train", "test")}
    weights = WEIGHTS.get(str(size["encoder"]))
    if weights is not None:
        found["weights"] = weights.file
    if method == "untrained":
        return found
    return found | PAPER | {"spread": spread_of(method)} | {name: size[name] for name in ("epochs", "learning_rate")}


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Return the cells of all sets of images and methods."""
    if scale == "toy":
        settings: tuple[str, ...] = (DRAWN,)
    elif scale == "quick":
        # What takes minutes is for whoever has some of the data; the paper's table is for who has all of it.
        settings = SETTINGS if _there("stl10") else SETTINGS[:2]
    else:
        settings = SETTINGS
    return grid("deep-metric", scale, seeds, settings, METHODS, functools.partial(options, scale))


def _there(name: str) -> bool:
    """Whether the files of a set of images are in the data folder; they are not read."""
    try:
        for source in SETS[name].train + SETS[name].test:
            find(source)
    except FileNotFoundError:
        return False
    return True


def run(cell: Cell) -> Outcome:
    """Learn from the training images, and look for the classes of the test images among them."""
    train, test = (
        some_images(cell.setting, split, cell[split], cell["side"], cell.seed) for split in ("train", "test")
    )
    if cell.method == "untrained":
        encoder = encoder_of(cell["encoder"], None, cell["side"])
        points = _points(encoder, test.pixels[:1])
        return Outcome(retrieval(encoder, make("euclidean", points.shape[1]), test, train))
    encoder = encoder_of(cell["encoder"], cell["embedding"], cell["side"])
    divergence = make(cell.method, cell["embedding"])
    names = ("epochs", "batch", "learning_rate", "margin", "spread")
    losses, stopped = learn_metric(encoder, divergence, train, seed=cell.seed, **{name: cell[name] for name in names})
    scores = retrieval(encoder, divergence, test, train)
    curves = {"training loss": losses} if losses and all(map(math.isfinite, losses)) else {}
    return Outcome(scores, curves, chosen={"stopped": stopped})


DEEP_METRIC = Experiment(
    name="deep-metric",
    title="Deep metric learning: images of the same class found by a learned divergence",
    makes=("table of MAP@10 in the section Deep Metric Learning",),
    scores=(
        Score("map@10", "MAP@10 (%)", lower_is_better=False, digits=1),
        Score("precision@1", "Precision@1 (%)", lower_is_better=False, digits=1),
    ),
    seeds={"toy": 1, "quick": 1, "paper": 5},
    minutes={"toy": 0.1, "quick": 6.0, "paper": 6000.0},
    cells=cells,
    run=run,
    needs=(
        "CIFAR10 and SVHN; STL10 at paper scale, and at quick scale where its files are",
        "published weights of ResNet20 (quick) or ResNet18 (paper) in the data folder",
    ),
    published=published("deep-metric"),
    claims=(
        Claim("Deep-div is behind all other methods", "map@10", OTHERS, ("deep-div",), each=True),
        Claim("NBD is best", "map@10", ("nbd-paper", "nbd"), ("euclidean", "deep-div", "deepnorm", "widenorm")),
    ),
    against={"nbd-paper": "nbd"},
    notes=(
        "Queries are test images, the pool is the training images. MAP@10 divides by 10, or by the number of "
        "images of the class where there are fewer. All methods see the same images in the same order, start "
        "from the same encoder and train all of it. Before that its points are shifted and scaled by fixed "
        "numbers. The learning rate rises over the first 5 % of the steps and falls to 0.",
        "quick: a ResNet20 at 32 x 32 instead of a ResNet18 at 224 x 224; 2000 training and 1000 test images, "
        "drawn at random; 3 epochs instead of 30, and so a learning rate of 0.003 instead of 0.0001.",
        "quick: the weights of the ResNet20 were trained as a classifier on the training images of CIFAR10 itself, "
        "labels included. The column of CIFAR10 shows what a learned divergence keeps of that, not what it "
        "learns; SVHN is new to these weights. The paper's ResNet18 knew ImageNet.",
        "untrained is the squared Euclidean distance between the features of the given weights, without any "
        "training here. The paper does not have it, nor Mahalanobis.",
    ),
)
