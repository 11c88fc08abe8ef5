"""Semantic distances between classes of images, which obey no triangle inequality, learned from pairs of images."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from askew.divergences import make
from askew.experiments.deep_metric import CALIBRATION_IMAGES, DRAWN, WEIGHTS, encoder_of, some_images, spread_of
from askew.experiments.description import Cell, Experiment, Outcome, Score, Value, grid, register
from askew.experiments.image_pairs import PairSet, learn_pairs, pair_values
from askew.experiments.published import Published, published

__all__ = ["SEMANTIC", "grouped_pairs", "random_pairs", "target_table"]

# Classes of CIFAR10 in its own order: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.
MAN_MADE, NATURAL = (0, 1, 8, 9), (2, 3, 4, 5, 6, 7)
AUTOMOBILE, DEER = 1, 4
SAME, NEAR, FAR = 0.5, 2.0, 8.0

METHODS = (
    "constant",
    "mahalanobis-norm",
    "mahalanobis",
    "deep-div",
    "deepnorm",
    "widenorm",
    "nbd-paper",
    "nbd",
)
PAPER: dict[str, Value] = {"embedding": 128, "learning_rate": 1e-3}
# An epoch of the paper has as many pairs as images, drawn from all of them. Where there is a `group`, the pairs of a
# step are between so many images, each of which is encoded once.
SIZES: dict[str, dict[str, Value]] = {
    "toy": {
        "encoder": "small-cnn",
        "side": 8,
        "train": 200,
        "test": 60,
        "pairs": 500,
        "epochs": 3,
        "batch": 100,
        "group": 25,
        "schedule": "linear",
    },
    "quick": {
        "encoder": "resnet20",
        "side": 32,
        "train": 1000,
        "test": 1000,
        "pairs": 20_000,
        "epochs": 16,
        "batch": 512,
        "group": 32,
        "schedule": "linear",
    },
    "paper": {
        "encoder": "resnet20",
        "side": 32,
        "train": None,
        "test": None,
        "pairs": 50_000,
        "epochs": 200,
        "batch": 128,
        "group": None,
        "schedule": "constant",
    },
}


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


# ---------------------------------------------------------------------- the experiment


def options(scale: str, setting: str, method: str) -> Mapping[str, Value]:
    """Return what the result of a method depends on, beside the images."""
    size = SIZES[scale]
    if method == "constant":
        return {name: size[name] for name in ("train", "test", "pairs", "side")}
    weights = WEIGHTS.get(str(size["encoder"]))
    return size | PAPER | {"spread": spread_of(method)} | ({} if weights is None else {"weights": weights.file})


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Return the cells of all methods."""
    setting = DRAWN if scale == "toy" else "cifar10"
    return grid("semantic", scale, seeds, (setting,), METHODS, functools.partial(options, scale))


def run(cell: Cell) -> Outcome:
    """Learn from pairs of training images; measure other pairs of the same images, and pairs of test images."""
    train, test = (
        some_images(cell.setting, split, cell[split], cell["side"], cell.seed) for split in ("train", "test")
    )
    generator = torch.Generator().manual_seed(cell.seed)
    seen = random_pairs(train.labels, cell["pairs"], generator)
    unseen = random_pairs(test.labels, cell["pairs"], generator)
    if cell.method == "constant":
        mean = seen.targets.mean()
        return Outcome({name: _error(mean, pairs) for name, pairs in (("mse-seen", seen), ("mse-unseen", unseen))})
    encoder = encoder_of(cell["encoder"], cell["embedding"], cell["side"])
    encoder.centre(train.pixels[:CALIBRATION_IMAGES], cell["spread"])
    divergence = make(cell.method, cell["embedding"])
    names = ("epochs", "batch", "learning_rate", "schedule")
    found = learn_pairs(
        encoder,
        divergence,
        train.pixels,
        _epochs(train.labels, cell["batch"], cell["group"], generator),
        tests={},
        seed=cell.seed,
        **{name: cell[name] for name in names},
    )
    scores = {
        "mse-seen": _error(pair_values(encoder, divergence, train.pixels, seen), seen),
        "mse-unseen": _error(pair_values(encoder, divergence, test.pixels, unseen), unseen),
    }
    return Outcome(scores, chosen={"stopped": found.stopped, "loss": found.loss})


def _epochs(labels: Tensor, batch: int, group: int | None, generator: torch.Generator) -> Callable[[int], PairSet]:
    """Return what gives the pairs of an epoch: as many as images, or some of each group."""
    if group is None:
        return lambda epoch: random_pairs(labels, len(labels), generator)
    return lambda epoch: grouped_pairs(labels, batch, group, generator)


def _error(values: Tensor, pairs: PairSet) -> float:
    return float((values - pairs.targets).double().square().mean())


def _as_ours(entry: Published) -> Published:
    """Return a figure of the paper with our names: one setting, two scores, and the norm as what it is."""
    score = "mse-seen" if entry.setting == "same" else "mse-unseen"
    method = "mahalanobis-norm" if entry.method == "mahalanobis" else entry.method
    return dataclasses.replace(entry, setting="cifar10", score=score, method=method)


SEMANTIC = register(
    Experiment(
        name="semantic",
        title="Semantic distances of CIFAR10: values between classes that obey no triangle inequality",
        makes=("table tab:semantic",),
        scores=(
            Score("mse-seen", "MSE, seen images", lower_is_better=True),
            Score("mse-unseen", "MSE, unseen images", lower_is_better=True),
        ),
        seeds={"toy": 1, "quick": 1, "paper": 5},
        minutes={"toy": 0.1, "quick": 8.0, "paper": 3000.0},
        cells=cells,
        run=run,
        needs=("CIFAR10", "published weights of ResNet20 in the data folder"),
        published=tuple(map(_as_ours, published("semantic"))),
        against={"nbd-paper": "nbd"},
        notes=(
            "Targets: 0.5 for images of one class, 2 between the exemplar of a category (automobile, deer) and its "
            "other classes, 8 between two others; no pairs across the categories man-made and natural. Seen are "
            "pairs of training images, unseen pairs of test images.",
            "quick: 1000 training images instead of 50,000, 16 epochs instead of 200, and a learning rate that rises "
            "over the first 2.5 % of the steps and falls to 0. The paper draws the images of each pair from all of "
            "them; here a step has 512 pairs between 32 images, so that an image is encoded once for many pairs.",
            "The ResNet20 starts from weights that were trained as a classifier on the training images of CIFAR10, as "
            "in the paper, and nothing is frozen. Its points are first shifted and scaled by fixed numbers. The "
            "learning rate is the paper's, the same for all methods. constant predicts the mean of the targets.",
            "The paper's Mahalanobis distance is read as the norm, which obeys the triangle inequality, as the paper "
            "says of it here. So its figure stands beside mahalanobis-norm, and mahalanobis, which is squared, has "
            "none.",
        ),
    )
)
