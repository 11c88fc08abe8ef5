"""Semantic distances between classes of images, which violate the triangle inequality, learned from pairs of images."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from askew.encoders import MLP
from askew.training.runtime import best_device
from askew_paper.experiment import SCALES, Cell, Claim, Experiment, Outcome, Score, Value, grid
from askew_paper.experiments.image_pairs import EMBEDDING, PairSet, first_seed, learn_cell, squared_error
from askew_paper.experiments.images import DRAWN, WEIGHTS, embed, encoder_of, some_images
from askew_paper.notes import read_notes
from askew_paper.published import Published, published

# Classes of CIFAR10 in its order: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.
MAN_MADE, NATURAL = (0, 1, 8, 9), (2, 3, 4, 5, 6, 7)
AUTOMOBILE, DEER = 1, 4
SAME, NEAR, FAR = 0.5, 2.0, 8.0

METHODS = ("mahalanobis-norm", "mahalanobis", "deep-div", "deepnorm", "widenorm", "nbd-paper", "nbd")
# What medium scale has in addition.
MORE = ("iqe", "mrn", "drift", "drift-root", "two-sided")
# The end of the setting in which nothing of the published network is trained: its features are stored, and a small
# network is learned on them. Not in the paper.
FEATURES = "-features"
ENCODERS = {"toy": "small-cnn", "quick": "resnet20", "medium": "resnet20", "paper": "resnet20"}
# Images, and pairs that the error is measured on.
DATA: dict[str, dict[str, Value]] = {
    "toy": {"train": 200, "test": 60, "pairs": 500, "side": 8},
    "quick": {"train": 4_000, "test": 1_000, "pairs": 20_000, "side": 32},
    **{key: {"train": None, "test": None, "pairs": 50000, "side": 32} for key in ("medium", "paper")},
}
# An epoch of the paper has as many pairs as images, drawn from all of them. With a `pool`, the pairs of a step are
# between this many images, each of which is encoded once. All methods see standardised embeddings, start with D of the
# size of the targets, and choose from the same rates; 1e-3 spoils a trained network.
SHORT: dict[str, Value] = {"even_start": False, "standardised": True, "schedule": "linear", "rates": (1e-4, 3e-4)}
TRAINING: dict[str, dict[str, Value]] = {
    "toy": SHORT | {"epochs": 3, "trial_epochs": 1, "held_out": 50, "batch": 100, "pool": 25, "rates": (1e-3, 3e-3)},
    "quick": SHORT | {"epochs": 4, "trial_epochs": 1, "held_out": 500, "batch": 256, "pool": 32, "bfloat16": True},
    "medium": SHORT | {"epochs": 8, "trial_epochs": 2, "held_out": 5_000, "batch": 512, "pool": 64, "bfloat16": True},
    "paper": SHORT | {"epochs": 200, "trial_epochs": 0, "held_out": 0, "batch": 128, "pool": None, "rates": (1e-3,)},
}
TRAINING["paper"]["schedule"] = "constant"
SMALL: dict[str, Value] = {"even_start": True, "rates": (1e-4, 1e-3, 3e-3), "bfloat16": False}
STORED: dict[str, dict[str, Value]] = {
    "toy": TRAINING["toy"] | {"even_start": True, "hidden": 16},
    "quick": TRAINING["quick"] | SMALL | {"epochs": 8, "trial_epochs": 2, "pool": 24, "hidden": 256},
    "medium": TRAINING["medium"] | SMALL | {"epochs": 4, "trial_epochs": 1, "pool": 24, "batch": 256, "hidden": 256},
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


def grouped_pairs(labels: Tensor, batch: int, group: int, generator: torch.Generator, rows: Tensor) -> PairSet:
    """Return the pairs of one epoch in which those of one batch are between few images.

    The images in some rows are split into groups at random, and each group gives one batch of pairs. So an image is
    encoded once for many pairs. Images that do not fill a group are left out.
    """
    order = rows[torch.randperm(len(rows), generator=generator)]
    parts = [
        random_pairs(labels, batch, generator, order[i : i + group]) for i in range(0, len(order) - group + 1, group)
    ]
    return PairSet(*(torch.cat([getattr(part, name) for part in parts]) for name in ("first", "second", "targets")))


# ---------------------------------------------------------------------- the experiment


def options(scale: str, setting: str, method: str) -> dict[str, Value]:
    """Return what the result of a method depends on, apart from the images."""
    if method == "constant":
        return DATA[scale]
    stored = setting.endswith(FEATURES)
    name = str(ENCODERS[scale])
    weights: dict[str, Value] = {"weights": WEIGHTS[name].file} if name in WEIGHTS else {}
    return DATA[scale] | weights | {"encoder": name} | (STORED if stored else TRAINING)[scale]


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Return the cells of both settings, of which the paper has one, and all methods."""
    setting = DRAWN if scale == "toy" else "cifar10"
    settings = (setting, *((setting + FEATURES,) if scale in STORED else ()))
    methods = ("constant", *METHODS, *(MORE if scale == "medium" else ()))
    return grid("semantic", scale, seeds, settings, methods, functools.partial(options, scale))


# The features of the last images, which all methods share.
@functools.lru_cache(maxsize=1)
def _features(setting: str, encoder: str, train: int | None, test: int | None, side: int, seed: int) -> Tensor:
    """Return the standardised features of training and test images under the network with published weights."""
    parts = [some_images(setting, *part, side, seed).pixels for part in (("train", train), ("test", test))]
    torch.manual_seed(seed)
    network = encoder_of(encoder, None, side).to(best_device())
    points = torch.cat([embed(network, pixels) for pixels in parts])
    std, mean = torch.std_mean(points[: len(parts[0])], 0, correction=0)
    return (points - mean) / std.clamp_min(1e-6)


def run(cell: Cell) -> Outcome:
    """Learn from pairs of training images; measure other pairs of the same images, and pairs of test images."""
    setting, side, sizes = cell.setting.removesuffix(FEATURES), cell["side"], (cell["train"], cell["test"])
    parts = [some_images(setting, split, n, side, cell.seed) for split, n in zip(("train", "test"), sizes, strict=True)]
    labels, known = torch.cat([part.labels for part in parts]), len(parts[0].labels)

    def test_pairs(rows: Tensor, seed: int) -> PairSet:
        return random_pairs(labels, cell["pairs"], torch.Generator().manual_seed(seed), rows)

    def train_pairs(rows: Tensor, seed: int) -> PairSet:
        generator = torch.Generator().manual_seed(seed)
        if cell["pool"] is None:
            return random_pairs(labels, len(rows), generator, rows)
        return grouped_pairs(labels, cell["batch"], cell["pool"], generator, rows)

    seen = test_pairs(torch.arange(known), first_seed(cell) + 2)
    unseen = test_pairs(torch.arange(known, len(labels)), first_seed(cell))
    if cell.method == "constant":
        mean = seen.targets.mean()
        return Outcome({"mse-seen": squared_error(mean, seen), "mse-unseen": squared_error(mean, unseen)})
    if cell.setting.endswith(FEATURES):
        images = _features(setting, cell["encoder"], *sizes, side, cell.seed)
        encoder: Callable[[], nn.Module] = functools.partial(MLP, images.shape[1], EMBEDDING, (cell["hidden"],))
    else:
        images = torch.cat([part.pixels for part in parts]).to(best_device())
        encoder = functools.partial(encoder_of, cell["encoder"], EMBEDDING, side)
    outcome = learn_cell(cell, encoder, images, known, train_pairs, test_pairs, unseen, {"mse-seen": seen})
    scores = {"mse-seen": outcome.scores["mse-seen"], "mse-unseen": outcome.scores["mse"]}
    return Outcome(scores, outcome.curves, outcome.chosen)


def _as_ours(entry: Published, setting: str) -> Published:
    """Return a score of the paper with our names: two scores, and the norm as what it is."""
    score = "mse-seen" if entry.setting == "same" else "mse-unseen"
    method = "mahalanobis-norm" if entry.method == "mahalanobis" else entry.method
    return dataclasses.replace(entry, setting=setting, score=score, method=method)


NOTES = read_notes("semantic")
SEMANTIC = Experiment(
    name="semantic",
    title="Semantic distances of CIFAR10: values between classes that obey no triangle inequality",
    makes=("table tab:semantic",),
    scores=(
        Score("mse-seen", "MSE, seen images", lower_is_better=True),
        Score("mse-unseen", "MSE, unseen images", lower_is_better=True),
    ),
    seeds={"toy": 1, "quick": 1, "medium": 1, "paper": 5},
    minutes={"toy": 0.2, "quick": 8.0, "medium": 120.0, "paper": 3000.0},
    cells=cells,
    run=run,
    needs=NOTES.needs,
    notes=NOTES.notes,
    published=tuple(
        _as_ours(entry, name) for entry in published("semantic") for name in ("cifar10", f"cifar10{FEATURES}")
    ),
    incomparable={f"cifar10{FEATURES}": SCALES},
    added=(f"cifar10{FEATURES}",),
    claims=tuple(
        Claim(NOTES.claim(images), f"mse-{images}", ("nbd-paper", "nbd"), METHODS[:5]) for images in ("seen", "unseen")
    ),
    against={"nbd-paper": "nbd"},
)
