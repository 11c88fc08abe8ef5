"""Deep metric learning: encoder and divergence learned together from triplets of labelled images."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from askew.divergences import Divergence, Embedded, make
from askew.losses import AllTriplets
from askew.metrics import ranking_per_query
from askew_paper.data.files import find
from askew_paper.data.images import SETS
from askew_paper.experiment import Cell, Claim, Experiment, Outcome, Score, Value, grid
from askew_paper.experiments.images import (
    CALIBRATION_IMAGES,
    DRAWN,
    WEIGHTS,
    Labelled,
    Pixels,
    embed,
    encoder_of,
    some_images,
)
from askew_paper.experiments.training import Learned, Plan, dead, learn
from askew_paper.heads import make_head
from askew_paper.notes import read_notes
from askew_paper.published import published

METHODS = ("untrained", "euclidean", "mahalanobis", "deep-div", "deepnorm", "widenorm", "nbd-paper", "nbd")
# What medium scale has in addition.
MORE = ("iqe", "mrn", "drift", "two-sided")
SETTINGS = ("cifar10", "svhn", "stl10")
# Ranks that count, and entries of a matrix of divergences.
TOP, ENTRIES = 10, 1 << 22
DATA: dict[str, dict[str, Value]] = {
    "toy": {"encoder": "small-cnn", "side": 8, "train": 160, "test": 60},
    "quick": {"encoder": "resnet20", "side": 32, "train": 2000, "test": 1000},
    "medium": {"encoder": "resnet20", "side": 32, "train": None, "test": 1000},
    "paper": {"encoder": "resnet18", "side": 224, "train": None, "test": None},
}
PAPER: dict[str, Value] = {"batch": 64, "embedding": 32, "margin": 0.2, "standardised": True}
# Of several rates, each run takes the one with the largest MAP@10 of held-out training images.
OURS: dict[str, Value] = PAPER | {"rates": (1e-4, 1e-3, 3e-3), "bfloat16": True}
TRAINING: dict[str, dict[str, Value]] = {
    "toy": PAPER | {"epochs": 3, "rates": (1e-3, 3e-3), "trial_epochs": 1, "held_out": 40, "bfloat16": False},
    "quick": OURS | {"epochs": 3, "trial_epochs": 1, "held_out": 500},
    "medium": OURS | {"epochs": 12, "trial_epochs": 3, "held_out": 1000},
    "paper": PAPER | {"epochs": 30, "rates": (1e-4,), "trial_epochs": 0, "held_out": 0, "bfloat16": False},
}


def learn_metric(
    encoder: Pixels, divergence: Divergence, train: Labelled, plan: Plan, seed: int, *, margin: float, **settings: Any
) -> Learned:
    """Train an encoder and a divergence together on all triplets of each batch that violate a margin.

    A batch is encoded once, and its divergences are one matrix. Divergences with scales start with a median of half of
    the margin. A training that diverges leaves the last good weights. ``seed`` is that of the order of the images,
    ``settings`` are other arguments of :func:`askew.fit`.
    """
    loss, points = AllTriplets(margin), embed(encoder, train.pixels[:CALIBRATION_IMAGES])
    # The images are in random order, so one half of them with the other half are random pairs.
    half = len(points) // 2
    divergence.calibrate(points[:half], points[half : 2 * half], median=loss.median)
    settings |= plan.settings() | {"calibrate": False, "seed": seed}
    return learn(Embedded(encoder, divergence), tuple(train), loss, **settings)


def retrieval(encoder: Pixels, divergence: Divergence, queries: Labelled, pool: Labelled) -> dict[str, float]:
    """Return how well images of the class of a query are found in a pool, in percent: MAP@10 and precision@1.

    Items are ranked by D(query, item), the nearest first; ties count as the mean over their orders.

    Examples
    --------
    >>> from torch import nn
    >>> from askew_paper.experiments.images import drawn_images
    >>> images = drawn_images(40, side=8, seed=0)
    >>> scores = retrieval(encoder_of(nn.Flatten(), None, side=8), make("euclidean", 192), images, images)
    >>> list(scores), scores["precision@1"]
    (['map@10', 'precision@1'], 100.0)
    """
    items, points = embed(encoder, pool.pixels), embed(encoder, queries.pixels)
    rows = max(1, ENTRIES // max(1, len(items)))
    parts: dict[str, list[Any]] = {f"map@{TOP}": [], "precision@1": []}
    for block, labels in zip(points.split(rows), queries.labels.split(rows), strict=True):
        with torch.no_grad():
            matrix = divergence.pairwise(block, items)
        scores = ranking_per_query(matrix.cpu(), labels, pool.labels, k=TOP)
        for name, values in parts.items():
            values.append(scores[name])
    # NaN where no item of the pool has the class of a query.
    return {name: 100 * float(np.nanmean(np.concatenate(values))) for name, values in parts.items()}


# ---------------------------------------------------------------------- the experiment


def options(scale: str, setting: str, method: str) -> Mapping[str, Value]:
    """Return what the result of a method depends on, apart from the images."""
    weights = WEIGHTS.get(str(DATA[scale]["encoder"]))
    data = DATA[scale] | ({} if weights is None else {"weights": weights.file})
    return data if method == "untrained" else data | TRAINING[scale]


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Return the cells of all sets of images and methods; STL10 only if its files are there, except at paper scale."""
    settings: tuple[str, ...] = (DRAWN,) if scale == "toy" else SETTINGS
    if scale in ("quick", "medium") and not _is_available("stl10"):
        settings = SETTINGS[:2]
    methods = (*METHODS, *(MORE if scale == "medium" else ()))
    return grid("deep-metric", scale, seeds, settings, methods, functools.partial(options, scale))


def _is_available(name: str) -> bool:
    try:
        for source in SETS[name].train + SETS[name].test:
            find(source)
    except FileNotFoundError:
        return False
    return True


def run(cell: Cell) -> Outcome:
    """Learn from the training images, and search them for the classes of the test images."""
    splits = ("train", "test")
    train, test = (some_images(cell.setting, split, cell[split], cell["side"], cell.seed) for split in splits)
    if cell.method == "untrained":
        encoder = encoder_of(cell["encoder"], None, cell["side"])
        dim = embed(encoder, test.pixels[:1]).shape[1]
        return Outcome(retrieval(encoder, make("euclidean", dim), test, train))

    held = cell["held_out"]

    def trained(images: Labelled, plan: Plan) -> tuple[Pixels, Divergence, Learned]:
        torch.manual_seed(cell.seed)
        encoder = encoder_of(cell["encoder"], cell["embedding"], cell["side"])
        divergence = make_head(cell.method, cell["embedding"], cell["standardised"])
        settings = {"margin": cell["margin"], "autocast": cell["bfloat16"]}
        return encoder, divergence, learn_metric(encoder, divergence, images, plan, cell.seed, **settings)

    held_out, rest = (Labelled(*(part[rows] for part in train)) for rows in (slice(held), slice(held, None)))

    def trial_error(plan: Plan) -> float:
        encoder, divergence, _ = trained(rest, plan)
        return -retrieval(encoder, divergence, held_out, rest)[f"map@{TOP}"]

    plan, errors = Plan.of(cell).with_best_rate(trial_error)
    encoder, divergence, learned = trained(train, plan)
    finite = learned.losses and all(map(math.isfinite, learned.losses))
    curves = {"training loss": learned.losses} if finite else {}
    points = embed(encoder, test.pixels[:CALIBRATION_IMAGES])
    chosen = {"stopped": learned.stopped, "learning_rate": plan.rates[0]} | dead(divergence.pairwise(points, points))
    chosen["validation"] = {str(rate): -error for rate, error in errors.items()}
    return Outcome(retrieval(encoder, divergence, test, train), curves, chosen)


NOTES = read_notes("deep-metric")
DEEP_METRIC = Experiment(
    name="deep-metric",
    title="Deep metric learning: images of the same class found by a learned divergence",
    makes=("table of MAP@10 in the section Deep Metric Learning",),
    scores=(
        Score("map@10", "MAP@10 (%)", lower_is_better=False, digits=1),
        Score("precision@1", "Precision@1 (%)", lower_is_better=False, digits=1),
    ),
    seeds={"toy": 1, "quick": 1, "medium": 1, "paper": 5},
    minutes={"toy": 0.2, "quick": 8.0, "medium": 500.0, "paper": 6000.0},
    cells=cells,
    run=run,
    needs=NOTES.needs,
    notes=NOTES.notes,
    published=published("deep-metric"),
    claims=(
        Claim(
            NOTES.claim("deep-div-last"),
            "map@10",
            tuple(method for method in METHODS if method not in ("untrained", "deep-div")),
            ("deep-div",),
            each=True,
        ),
        Claim(
            NOTES.claim("comparable"),
            "map@10",
            ("nbd-paper", "nbd"),
            ("euclidean", "deep-div", "deepnorm", "widenorm"),
            factor=1.02,
        ),
    ),
    against={"nbd-paper": "nbd"},
)
