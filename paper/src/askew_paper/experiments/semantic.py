"""Semantic distances between classes of images, which obey no triangle inequality, learned from pairs of images."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, Optimizer

from askew.divergences import Divergence, Embedded, make
from askew.training import TrainingDivergedError, fit
from askew_paper.experiment import Cell, Claim, Experiment, Outcome, Score, Value
from askew_paper.experiments.deep_metric import (
    CALIBRATION_IMAGES,
    DRAWN,
    WEIGHTS,
    Labelled,
    Pixels,
    encoder_of,
    some_images,
    spread_of,
)
from askew_paper.experiments.image_pairs import PairSet, pair_values
from askew_paper.published import Published, published

__all__ = ["SEMANTIC", "Steps", "grouped_pairs", "learn_distances", "random_pairs", "target_table"]

# Classes of CIFAR10 in its own order: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.
MAN_MADE, NATURAL = (0, 1, 8, 9), (2, 3, 4, 5, 6, 7)
AUTOMOBILE, DEER = 1, 4
SAME, NEAR, FAR = 0.5, 2.0, 8.0

METHODS = ("mahalanobis-norm", "mahalanobis", "deep-div", "deepnorm", "widenorm", "nbd-paper", "nbd")
PAPER: dict[str, Value] = {"embedding": 128, "learning_rate": 1e-3}
# Learning rates of the divergence: that of the encoder, as in the paper, and what askew.fit has for a divergence alone.
RATES = (1e-3, 3e-2)
# An epoch of the paper has as many pairs as images, drawn from all of them. Where there is a `group`, the pairs of a
# step are between so many images, each of which is encoded once.
SIZES: dict[str, dict[str, Value]] = {
    "toy": {"encoder": "small-cnn", "side": 8, "train": 200, "test": 60, "epochs": 3, "batch": 100, "group": 25},
    "quick": {"encoder": "resnet20", "side": 32, "train": 500, "test": 1000, "epochs": 16, "batch": 512, "group": 32},
    "paper": {
        "encoder": "resnet20",
        "side": 32,
        "train": None,
        "test": None,
        "epochs": 200,
        "batch": 128,
        "group": None,
    },
}
# Pairs that the error is measured on.
MEASURED = {"toy": 500, "quick": 20_000, "paper": 50_000}


# ---------------------------------------------------------------------- pairs and their targets


def target_table() -> Tensor:
    """Return the distance of every two classes of CIFAR10, ``(10, 10)``; NaN for classes of different categories.

    Within a category it is 0.5 for the same class, 2 between the exemplar (automobile or deer) and any other class, and
    8 between two others. So the way over the exemplar is half as long as the straight one.

    Examples
    --------
    >>> table = target_table()
    >>> [table[0, other].item() for other in (0, 1, 8, 2)]  # from airplane to itself, automobile, ship and bird
    [0.5, 2.0, 8.0, nan]
    """
    table = torch.full((10, 10), float("nan"))
    for category, exemplar in ((MAN_MADE, AUTOMOBILE), (NATURAL, DEER)):
        for first in category:
            for second in category:
                table[first, second] = SAME if first == second else NEAR if exemplar in (first, second) else FAR
    return table


def random_pairs(labels: Tensor, number: int, generator: torch.Generator, among: Tensor | None = None) -> PairSet:
    """Return random pairs of different images of one category, with their targets.

    The first image is any one that has a partner, the second any other one of its category.

    Parameters
    ----------
    labels
        Classes of CIFAR10, ``(n,)``.
    number
        Of pairs.
    generator
        Where they are drawn from.
    among
        Numbers of the images to take; all by default.

    Examples
    --------
    >>> labels = torch.tensor([0, 1, 8, 2, 4])
    >>> pairs = random_pairs(labels, 100, torch.Generator().manual_seed(0))
    >>> sorted(set(pairs.targets.tolist())), bool((pairs.first == pairs.second).any())
    ([2.0, 8.0], False)
    """
    among = torch.arange(len(labels)) if among is None else among
    natural = torch.isin(labels[among], torch.tensor(NATURAL)).long()
    among = among[natural.argsort(stable=True)]  # man-made first
    natural = natural.sort().values
    sizes = torch.bincount(natural, minlength=2)
    starts = torch.stack([torch.zeros_like(sizes[0]), sizes[0]])
    usable = (sizes[natural] > 1).nonzero()[:, 0]
    place = usable[torch.randint(len(usable), (number,), generator=generator)]
    size, start = sizes[natural[place]], starts[natural[place]]
    # Between 1 and size - 1 places on, in a circle: any other one of the category, each as likely.
    step = 1 + (torch.rand(number, generator=generator, dtype=torch.float64) * (size - 1)).long()
    first, second = among[place], among[start + (place - start + step) % size]
    return PairSet(first, second, target_table()[labels[first], labels[second]])


def grouped_pairs(labels: Tensor, batch: int, group: int, generator: torch.Generator) -> PairSet:
    """Return the pairs of one epoch, so that those of one batch are between few images.

    The images are cut into groups at random, and each group gives one batch of pairs. So an image is encoded once for
    many pairs. What is left over by the groups is left out.

    Parameters
    ----------
    labels
        Classes of CIFAR10, ``(n,)``.
    batch
        Pairs of a group.
    group
        Images of a group.
    generator
        Where they are drawn from.

    Examples
    --------
    >>> pairs = grouped_pairs(torch.arange(60) % 10, batch=100, group=20, generator=torch.Generator().manual_seed(0))
    >>> len(pairs), len(pairs.part(slice(100)).distinct()[0]) <= 20
    (300, True)
    """
    order = torch.randperm(len(labels), generator=generator)
    parts = [
        random_pairs(labels, batch, generator, order[i : i + group]) for i in range(0, len(order) - group + 1, group)
    ]
    return PairSet(*(torch.cat([getattr(part, name) for part in parts]) for name in ("first", "second", "targets")))


# ---------------------------------------------------------------------- learning


class Steps:
    """The pairs of all steps of an epoch, drawn anew in each: what :func:`askew.fit` takes as a loader.

    A step is the numbers of its distinct images, the places of the first and the second image of each pair among
    them, and the targets.

    Parameters
    ----------
    labels
        Classes of all images, ``(n,)``.
    batch
        Pairs of a step.
    group
        Images that these are drawn from; None for all, and then an epoch has as many pairs as there are images.
    seed
        Of the pairs.

    Examples
    --------
    >>> steps = Steps(torch.arange(60) % 10, batch=100, group=20, seed=0)
    >>> images, first, second, targets = next(iter(steps))
    >>> len(steps), len(images) <= 20, len(targets)
    (3, True, 100)
    """

    def __init__(self, labels: Tensor, batch: int, group: int | None, seed: int) -> None:
        self.labels, self.batch, self.group = labels, batch, group
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return math.ceil(len(self.labels) / self.batch) if self.group is None else len(self.labels) // self.group

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        if self.group is None:
            pairs = random_pairs(self.labels, len(self.labels), self.generator)
        else:
            pairs = grouped_pairs(self.labels, self.batch, self.group, self.generator)
        for start in range(0, len(pairs), self.batch):
            some = pairs.part(slice(start, start + self.batch))
            yield *some.distinct(), some.targets


def learn_distances(
    encoder: Pixels,
    divergence: Divergence,
    train: Labelled,
    steps: Steps,
    *,
    epochs: int,
    learning_rate: float,
    divergence_rate: float,
    spread: float,
    seed: int,
) -> tuple[float | None, str]:
    """Train an encoder and a divergence together on the squared error of pairs; each image of a step is encoded once.

    Batch normalisation takes its means over the distinct images of a step. A training that diverges leaves the last
    good weights.

    Parameters
    ----------
    encoder
        From :func:`askew_paper.experiments.deep_metric.encoder_of`; its points are centred, and it is trained in place.
    divergence
        Between its points; trained in place.
    train
        Images and classes.
    steps
        The pairs of an epoch.
    epochs
        How often.
    learning_rate, divergence_rate
        Of the encoder and of the divergence, at their peaks.
    spread
        Standard deviation of each feature of the points before training.
    seed
        Of what is left to chance beside the pairs.

    Returns
    -------
    loss, stopped
        The mean loss of the last epoch, if there was one, and ``"finished"`` or ``"diverged"``.

    Examples
    --------
    >>> from askew_paper.experiments.deep_metric import drawn_images
    >>> train = drawn_images(60, side=8, seed=0)
    >>> encoder, divergence = encoder_of("small-cnn", 8, side=8), make("nbd", 8)
    >>> loss, stopped = learn_distances(encoder, divergence, train, Steps(train.labels, 100, 20, seed=0), epochs=2,
    ...                                 learning_rate=1e-3, divergence_rate=1e-2, spread=0.25, seed=0)
    >>> loss > 0, stopped
    (True, 'finished')
    """
    encoder.centre(train.pixels[:CALIBRATION_IMAGES], spread)
    model = Embedded(encoder, divergence)
    among = torch.arange(min(CALIBRATION_IMAGES, len(train.labels)))
    pairs = random_pairs(train.labels, 4 * len(among), torch.Generator().manual_seed(seed), among)
    _calibrate(model, train.pixels, pairs)
    # On the device of the first batch, once.
    tables: dict[torch.device, Tensor] = {}

    def loss(model: Embedded, images: Tensor, first: Tensor, second: Tensor, targets: Tensor) -> Tensor:
        if images.device not in tables:
            tables[images.device] = train.pixels.to(images.device)
        points = model.encode(tables[images.device][images])
        return functional.mse_loss(model.divergence(points[first], points[second]), targets)

    def optimizer(parameters: Sequence[nn.Parameter]) -> Optimizer:
        own = {id(p) for p in divergence.parameters()}
        groups = [[p for p in parameters if (id(p) in own) == inside] for inside in (False, True)]
        rates = (learning_rate, divergence_rate)
        return Adam([{"params": some, "lr": rate} for some, rate in zip(groups, rates, strict=True)], fused=True)

    try:
        history = fit(
            model, steps, loss, epochs=epochs, optimizer=optimizer, calibrate=False, seed=seed, progress=False
        )
    except TrainingDivergedError as error:
        return (error.history["loss"][-1] if len(error.history) else None), "diverged"
    return history["loss"][-1], "finished"


@torch.no_grad()
def _calibrate(model: Embedded, pixels: Tensor, pairs: PairSet) -> None:
    """Set the scales of a divergence, if it has any, by some pairs."""
    images, first, second = pairs.distinct()
    points = model.eval().encode(pixels[images])
    model.divergence.calibrate(points[first], points[second], pairs.targets)


# ---------------------------------------------------------------------- the experiment


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Yield a cell for every seed, learning rate of the divergence and method."""
    setting = DRAWN if scale == "toy" else "cifar10"
    size = SIZES[scale] | {"pairs": MEASURED[scale]}
    weights = WEIGHTS.get(str(size["encoder"]))
    more: dict[str, Value] = {} if weights is None else {"weights": weights.file}
    for seed in range(seeds):
        data = {name: size[name] for name in ("train", "test", "pairs", "side")}
        yield Cell("semantic", setting, "constant", seed, scale, tuple(sorted(data.items())))
        for rate, method in itertools.product(RATES, METHODS):
            own: dict[str, Value] = {"divergence_rate": rate, "spread": spread_of(method)}
            options = size | PAPER | more | own
            yield Cell("semantic", setting, method, seed, scale, tuple(sorted(options.items())))


def run(cell: Cell) -> Outcome:
    """Learn from pairs of training images; measure other pairs of the same images, and pairs of test images."""
    train, test = (
        some_images(cell.setting, split, cell[split], cell["side"], cell.seed) for split in ("train", "test")
    )
    generator = torch.Generator().manual_seed(cell.seed)
    measured = {
        "mse-seen": (train, random_pairs(train.labels, cell["pairs"], generator)),
        "mse-unseen": (test, random_pairs(test.labels, cell["pairs"], generator)),
    }
    if cell.method == "constant":
        mean = measured["mse-seen"][1].targets.mean()
        return Outcome({name: _error(mean, pairs) for name, (_, pairs) in measured.items()})
    encoder = encoder_of(cell["encoder"], cell["embedding"], cell["side"])
    divergence = make(cell.method, cell["embedding"])
    steps = Steps(train.labels, cell["batch"], cell["group"], cell.seed + 1)
    names = ("epochs", "learning_rate", "divergence_rate", "spread")
    loss, stopped = learn_distances(
        encoder, divergence, train, steps, seed=cell.seed, **{name: cell[name] for name in names}
    )
    place = encoder.mean.device
    scores = {}
    for name, (images, pairs) in measured.items():
        values = pair_values(encoder, divergence, images.pixels.to(place), pairs.to(place))
        scores[name] = _error(values.cpu(), pairs)
    return Outcome(scores, chosen={"stopped": stopped, "loss": loss})


def _error(values: Tensor, pairs: PairSet) -> float:
    return float((values - pairs.targets).double().square().mean())


def _as_ours(entry: Published) -> Published:
    """Return a figure of the paper with our names: one setting, two scores, and the norm as what it is."""
    score = "mse-seen" if entry.setting == "same" else "mse-unseen"
    method = "mahalanobis-norm" if entry.method == "mahalanobis" else entry.method
    return dataclasses.replace(entry, setting="cifar10", score=score, method=method)


SEMANTIC = Experiment(
    name="semantic",
    title="Semantic distances of CIFAR10: values between classes that obey no triangle inequality",
    makes=("table tab:semantic",),
    scores=(
        Score("mse-seen", "MSE, seen images", lower_is_better=True),
        Score("mse-unseen", "MSE, unseen images", lower_is_better=True),
    ),
    seeds={"toy": 1, "quick": 1, "paper": 5},
    minutes={"toy": 0.1, "quick": 6.0, "paper": 3000.0},
    cells=cells,
    run=run,
    needs=("CIFAR10", "published weights of ResNet20 in the data folder"),
    published=tuple(map(_as_ours, published("semantic"))),
    claims=tuple(
        Claim(f"NBD is best on {images} images", f"mse-{images}", ("nbd-paper", "nbd"), METHODS[:5])
        for images in ("seen", "unseen")
    ),
    against={"nbd-paper": "nbd"},
    notes=(
        "Targets: 0.5 for images of one class, 2 between the exemplar of a category (automobile, deer) and its "
        "other classes, 8 between two others; no pairs across the categories man-made and natural. Seen are "
        "pairs of training images, unseen pairs of test images.",
        "quick: 500 training images instead of 50,000, and 16 epochs instead of 200: few images, so that "
        "each is seen often. The paper draws "
        "the images of each pair from all of them; here a step has 512 pairs between 32 images, so that an image "
        "is encoded once for many pairs.",
        "The ResNet20 starts from weights that were trained as a classifier on the training images of CIFAR10, as "
        "in the paper, and nothing is frozen. Its points are first shifted and scaled by fixed numbers. The "
        "learning rate of the encoder is the paper's. Every method is there twice: with the same learning rate for "
        "the divergence, as in the paper, and with the one that askew.fit has for a divergence alone. Both rise "
        "over the first 5 % of the steps and then fall to 0. constant predicts the mean of the targets.",
        "The paper's Mahalanobis distance is read as the norm, which obeys the triangle inequality, as the paper "
        "says of it here. So its figure stands beside mahalanobis-norm, and mahalanobis, which is squared, has "
        "none.",
    ),
)
