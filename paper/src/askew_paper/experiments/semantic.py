"""Semantic distances between classes of images, which violate the triangle inequality, learned from pairs of images."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from askew.divergences import Divergence, Embedded
from askew.training.runtime import best_device
from askew_paper.experiment import Cell, Claim, Experiment, Outcome, Score, Value
from askew_paper.experiments.image_pairs import PairBatches, PairSet, encoded, pair_loss, pair_values, squared_error
from askew_paper.experiments.images import (
    CALIBRATION_IMAGES,
    DRAWN,
    WEIGHTS,
    Labelled,
    Pixels,
    encoder_of,
    some_images,
    spread_of,
)
from askew_paper.experiments.training import Learned, learn
from askew_paper.heads import make_head
from askew_paper.notes import read_notes
from askew_paper.published import Published, published

# Classes of CIFAR10 in its order: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.
MAN_MADE, NATURAL = (0, 1, 8, 9), (2, 3, 4, 5, 6, 7)
AUTOMOBILE, DEER = 1, 4
SAME, NEAR, FAR = 0.5, 2.0, 8.0

METHODS = ("mahalanobis-norm", "mahalanobis", "deep-div", "deepnorm", "widenorm", "nbd-paper", "nbd")
PAPER: dict[str, Value] = {"embedding": 128, "learning_rate": 1e-3}
# Learning rates of the divergence: that of the encoder, as in the paper, and the default of askew.fit for a divergence.
RATES = (1e-3, 3e-2)
# Images, and pairs that the error is measured on.
DATA: dict[str, dict[str, Value]] = {
    "toy": {"train": 200, "test": 60, "pairs": 500, "side": 8},
    "quick": {"train": 500, "test": 1000, "pairs": 20_000, "side": 32},
    "paper": {"train": None, "test": None, "pairs": 50_000, "side": 32},
}
# An epoch of the paper has as many pairs as images, drawn from all of them. With a `group`, the pairs of a step are
# between this many images, each of which is encoded once.
TRAINING: dict[str, dict[str, Value]] = {
    "toy": {"encoder": "small-cnn", "epochs": 3, "batch": 100, "group": 25},
    "quick": {"encoder": "resnet20", "epochs": 16, "batch": 512, "group": 32},
    "paper": {"encoder": "resnet20", "epochs": 200, "batch": 128, "group": None},
}


# ---------------------------------------------------------------------- pairs and their targets


def target_table() -> Tensor:
    """Return the distance of every two classes of CIFAR10, ``(10, 10)``; NaN for classes of different categories.

    Within a category it is 0.5 for the same class, 2 between the exemplar (automobile or deer) and any other class, and
    8 between two others. So the path through the exemplar is half as long as the direct one.

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

    The first image is any one that has a partner, the second any other one of its category. ``labels`` are classes of
    CIFAR10, and ``among`` the images that may be drawn, all by default.

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
    # Between 1 and size - 1 places further, in a circle: any other image of the category, each with the same chance.
    step = 1 + (torch.rand(number, generator=generator, dtype=torch.float64) * (size - 1)).long()
    first, second = among[place], among[start + (place - start + step) % size]
    return PairSet(first, second, target_table()[labels[first], labels[second]])


def grouped_pairs(labels: Tensor, batch: int, group: int, generator: torch.Generator) -> PairSet:
    """Return the pairs of one epoch in which those of one batch are between few images.

    The images are split into groups at random, and each group gives one batch of pairs. So an image is encoded once for
    many pairs. Images that do not fill a group are left out.
    """
    order = torch.randperm(len(labels), generator=generator)
    parts = [
        random_pairs(labels, batch, generator, order[i : i + group]) for i in range(0, len(order) - group + 1, group)
    ]
    return PairSet(*(torch.cat([getattr(part, name) for part in parts]) for name in ("first", "second", "targets")))


def epoch_batches(labels: Tensor, batch: int, group: int | None, seed: int) -> PairBatches:
    """Return the batches of pairs of each epoch, with new pairs in each.

    ``group`` is the number of images that the pairs of a batch are drawn from; None for all, and then an epoch has as
    many pairs as there are images.

    Examples
    --------
    >>> batches = epoch_batches(torch.arange(60) % 10, batch=100, group=20, seed=0)
    >>> images, first, second, targets = next(iter(batches))
    >>> len(batches), len(images) <= 20, len(targets)
    (3, True, 100)
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(epoch: int) -> PairSet:
        if group is None:
            return random_pairs(labels, len(labels), generator)
        return grouped_pairs(labels, batch, group, generator)

    return PairBatches(draw, batch)


def learn_distances(
    encoder: Pixels,
    divergence: Divergence,
    train: Labelled,
    batches: PairBatches,
    *,
    epochs: int,
    learning_rate: float,
    divergence_rate: float,
    spread: float,
    seed: int,
) -> Learned:
    """Train an encoder and a divergence together on the squared error of pairs; each image of a step is encoded once.

    Batch normalisation takes its means over the distinct images of a step. A training that diverges leaves the last
    good weights.

    The rates are those of the encoder and of the divergence, at their peaks. ``spread`` is the standard deviation of
    each feature of the embeddings before training, and ``seed`` that of the pairs that set the divergence's scales.
    """
    encoder.centre(train.pixels[:CALIBRATION_IMAGES], spread)
    among = torch.arange(min(CALIBRATION_IMAGES, len(train.labels)))
    pairs = random_pairs(train.labels, 4 * len(among), torch.Generator().manual_seed(seed), among)
    divergence.calibrate(*encoded(encoder, train.pixels, pairs), pairs.targets)

    def optimizer(parameters: Sequence[nn.Parameter]) -> Optimizer:
        of_divergence = {id(p) for p in divergence.parameters()}
        groups = [[p for p in parameters if (id(p) in of_divergence) == inside] for inside in (False, True)]
        rates = (learning_rate, divergence_rate)
        return Adam([{"params": group, "lr": rate} for group, rate in zip(groups, rates, strict=True)], fused=True)

    device = best_device()
    model, loss = Embedded(encoder, divergence), pair_loss(train.pixels.to(device))
    return learn(model, batches, loss, epochs=epochs, optimizer=optimizer, calibrate=False, seed=seed, device=device)


# ---------------------------------------------------------------------- the experiment


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Yield a cell for every seed, learning rate of the divergence and method."""
    setting = DRAWN if scale == "toy" else "cifar10"
    weights = WEIGHTS.get(str(TRAINING[scale]["encoder"]))
    training = DATA[scale] | TRAINING[scale] | PAPER | ({} if weights is None else {"weights": weights.file})
    for seed in range(seeds):
        yield Cell("semantic", setting, "constant", seed, scale, tuple(sorted(DATA[scale].items())))
        for rate, method in itertools.product(RATES, METHODS):
            options = training | {"divergence_rate": rate, "spread": spread_of(method)}
            yield Cell("semantic", setting, method, seed, scale, tuple(sorted(options.items())))


def run(cell: Cell) -> Outcome:
    """Learn from pairs of training images; measure other pairs of the same images, and pairs of test images."""
    splits = ("train", "test")
    train, test = (some_images(cell.setting, split, cell[split], cell["side"], cell.seed) for split in splits)
    generator = torch.Generator().manual_seed(cell.seed)
    measured = {
        name: (images, random_pairs(images.labels, cell["pairs"], generator))
        for name, images in (("mse-seen", train), ("mse-unseen", test))
    }
    if cell.method == "constant":
        mean = measured["mse-seen"][1].targets.mean()
        return Outcome({name: squared_error(mean, pairs) for name, (_, pairs) in measured.items()})
    encoder = encoder_of(cell["encoder"], cell["embedding"], cell["side"])
    divergence = make_head(cell.method, cell["embedding"])
    batches = epoch_batches(train.labels, cell["batch"], cell["group"], cell.seed + 1)
    settings = {name: cell[name] for name in ("epochs", "learning_rate", "divergence_rate", "spread")}
    learned = learn_distances(encoder, divergence, train, batches, seed=cell.seed, **settings)
    place, scores = encoder.mean.device, {}
    for name, (images, pairs) in measured.items():
        values = pair_values(encoder, divergence, images.pixels.to(place), pairs.to(place))
        scores[name] = squared_error(values.cpu(), pairs)
    return Outcome(scores, chosen={"stopped": learned.stopped, "loss": learned.loss})


def _as_ours(entry: Published) -> Published:
    """Return a score of the paper with our names: one setting, two scores, and the norm as what it is."""
    score = "mse-seen" if entry.setting == "same" else "mse-unseen"
    method = "mahalanobis-norm" if entry.method == "mahalanobis" else entry.method
    return dataclasses.replace(entry, setting="cifar10", score=score, method=method)


NOTES = read_notes("semantic")
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
    needs=NOTES.needs,
    notes=NOTES.notes,
    published=tuple(map(_as_ours, published("semantic"))),
    claims=tuple(
        Claim(NOTES.claim(images), f"mse-{images}", ("nbd-paper", "nbd"), METHODS[:5]) for images in ("seen", "unseen")
    ),
    against={"nbd-paper": "nbd"},
)
