"""Distributional clustering: k-means of three mixtures with divergences learned from other labelled points."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray

from askew import pbdl
from askew.clustering.alternating import cluster
from askew.divergences import Divergence, Embedded, make
from askew.encoders import Standardize
from askew.losses import AllTriplets, Listwise
from askew.metrics import purity, rand
from askew.training import fit
from askew_paper.data import Mixture, Table, make_mixture, mixture_names
from askew_paper.experiment import PURITY, RAND, Cell, Claim, Experiment, Outcome, Score, Value, grid
from askew_paper.experiments.regression import OUR_TRAINING
from askew_paper.experiments.schedules import scheduled_adam
from askew_paper.published import Published, published

__all__ = ["CLUSTERING"]

METHODS = ("bayes", "oracle", "euclidean", "mahalanobis", "deep-div", "pbdl", "nbd-paper", "nbd")
# Methods of the paper once more, trained as our network is, and their learning rates: what DivergenceLearner has for
# them. Last, so that a run cut short has the paper's table whole.
OURS = {f"{name}{OUR_TRAINING}": rate for name, rate in (("mahalanobis", 0.1), ("deep-div", 0.01), ("nbd-paper", 0.1))}
# How k-means starts, how often, and what the scores of that are called.
PROTOCOLS = {"": ("random-partition", 1), "-seeded": ("k-means++", 10)}

# Points of each set, epochs with triplets and with lists, rows and folds of PBDL.
SIZES = {
    "toy": {"points": 150, "epochs": 2, "own_epochs": 5, "rows": 40, "folds": 2},
    "quick": {"points": 1000, "epochs": 50, "own_epochs": 63, "rows": 250, "folds": 5},
    "paper": {"points": 1000, "epochs": 200, "own_epochs": 63, "rows": 500, "folds": 5},
}


def options(scale: str, setting: str, method: str) -> dict[str, Value]:
    """Return what the result of a method depends on, beside the data."""
    size = SIZES[scale]
    common: dict[str, Value] = {"points": size["points"]}
    if method == "pbdl":
        return common | {"rows": size["rows"], "folds": size["folds"]}
    if method == "nbd" or method in OURS:
        # The plan of askew.DivergenceLearner for so many rows; its 500 steps are 63 epochs.
        plan: dict[str, Value] = {"loss": "listwise", "max_pairs": 3000, "batch": 128}
        return common | plan | {"learning_rate": OURS.get(method, 0.1), "epochs": size["own_epochs"]}
    if method in ("mahalanobis", "deep-div", "nbd-paper"):
        training: dict[str, Value] = {"loss": "all triplets", "margin": 0.2, "batch": 128, "learning_rate": 1e-3}
        return common | training | {"epochs": size["epochs"], "schedule": "constant"}
    return common


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Yield the cells of all mixtures and methods."""
    for methods in (METHODS, OURS):
        yield from grid("clustering", scale, seeds, mixture_names(), methods, functools.partial(options, scale))


def run(cell: Cell) -> Outcome:
    """Learn from one set of points of a mixture, and cluster another one in both ways."""
    mixture = make_mixture(cell.setting, cell.seed)
    known, table = (mixture.sample(cell["points"], seed=2 * cell.seed + i) for i in range(2))
    k = len(mixture.means)
    found: dict[str, float] = {}
    chosen: dict[str, Any] = {}
    if cell.method != "bayes":
        divergence, chosen = prepare(cell, mixture, known)
    for suffix, (start, runs) in PROTOCOLS.items():
        if cell.method == "bayes":
            labels: NDArray[Any] = mixture.log_densities(table.points).argmax(1)
        else:
            points = torch.from_numpy(table.points)
            labels = cluster(divergence, points, k, start, runs, cell.seed).numpy()
        found |= {f"purity{suffix}": purity(table.labels, labels), f"rand{suffix}": rand(table.labels, labels)}
    return Outcome(found, chosen=chosen)


# ---------------------------------------------------------------------- learning


def prepare(cell: Cell, mixture: Mixture, known: Table) -> tuple[Divergence, dict[str, Any]]:
    """Return the divergence of a method between points as they are, and what was chosen on the way to it."""
    dim = known.points.shape[1]
    if cell.method == "oracle":
        return mixture.divergence(), {}
    if cell.method == "euclidean":
        return make("euclidean", dim), {}
    points, labels = torch.from_numpy(known.points), torch.from_numpy(known.labels)
    scaling = Standardize(dim).fit(points)
    scaled = scaling(points)
    if cell.method == "pbdl":
        found = pbdl.fit_pairs(scaled.double(), labels, max_points=cell["rows"], folds=cell["folds"], seed=cell.seed)
        return Embedded(scaling, found.divergence.float()), {"penalty": found.penalty}
    model = make(cell.method.removesuffix(OUR_TRAINING), dim)
    rate, epochs, batch = cell["learning_rate"], cell["epochs"], cell["batch"]
    as_ours = cell["loss"] == "listwise"  # with the schedule of the training loop
    steps = epochs * math.ceil(len(points) / batch)
    fit(
        model,
        (scaled, labels),
        Listwise(max_pairs=cell["max_pairs"]) if as_ours else AllTriplets(cell["margin"]),
        epochs=epochs,
        batch_size=batch,
        learning_rate=rate if as_ours else None,
        optimizer=None if as_ours else scheduled_adam(rate, cell["schedule"], steps),
        seed=cell.seed,
        device="cpu",
        progress=False,
    )
    return Embedded(scaling, model.eval()), {}


def _of_both_readings() -> tuple[Published, ...]:
    """Return the paper's figures; those of its Gaussians stand beside both readings of what it says of them."""
    entries = published("clustering")
    gaussians = [entry for entry in entries if entry.setting == "gaussian"]
    return *entries, *(dataclasses.replace(entry, setting="gaussian-shared") for entry in gaussians)


CLUSTERING = Experiment(
    name="clustering",
    title="Distributional clustering: k-means of three mixtures with learned divergences",
    makes=("table tab:distr",),
    scores=(
        PURITY,
        RAND,
        Score("purity-seeded", "Purity, seeded", lower_is_better=False),
        Score("rand-seeded", "Rand index, seeded", lower_is_better=False),
    ),
    seeds={"toy": 1, "quick": 3, "paper": 10},
    minutes={"toy": 0.5, "quick": 2.0, "paper": 20.0},
    cells=cells,
    run=run,
    published=_of_both_readings(),
    claims=(
        Claim(
            "With the paper's training, its network is ahead of all other methods",
            PURITY.name,
            ("nbd-paper",),
            ("euclidean", "mahalanobis", "deep-div", "pbdl"),
        ),
        Claim(
            "With our training, NBD is ahead of all other methods",
            PURITY.name,
            ("nbd",),
            ("euclidean", "mahalanobis", "deep-div", "pbdl", f"mahalanobis{OUR_TRAINING}", f"deep-div{OUR_TRAINING}"),
        ),
    ),
    against={
        "nbd-paper": "nbd",
        f"nbd-paper{OUR_TRAINING}": "nbd",
        **{f"{method}{OUR_TRAINING}": method for method in ("mahalanobis", "deep-div")},
    },
    notes=(
        "1000 points in 5 clusters; divergences are learned from 1000 other labelled points of the same clusters, "
        "scaled by their means and deviations.",
        "Purity and Rand index are of the paper's protocol: k-means from one random partition. Those marked "
        "seeded are of the best of 10 runs from k-means++; the paper has nothing like it.",
        "bayes assigns each point to the cluster where its density is highest, all distributions known: nobody "
        "can do better on average. oracle is k-means with the true divergence: Itakura-Saito, "
        "Kullback-Leibler, and for Gaussians the Mahalanobis distance of the mean covariance.",
        "nbd learns from lists with the settings that askew.DivergenceLearner has for so many rows, the same for "
        "all mixtures. mahalanobis, deep-div and nbd-paper learn from triplets as in the paper, with a constant "
        "learning rate; those marked our training learn as nbd does, a rate that rises over 5 % of the steps and falls "
        "to 0. PBDL learns by its own convex program from pairs.",
        "Where the seeded figure is above the other, the difference is that of single random starts, some of which end "
        "in a poor optimum, also of the oracle's. Less so with deep-div: its first centres lie in one or two of "
        "its pieces and cannot be told apart there, so that most clusters get no point and then the farthest ones, "
        "which is much like a seeded start.",
        "gaussian: each cluster has a covariance of its own; gaussian-shared: all have the same one. The paper's words "
        "leave this open, and its figures stand beside both. The borders between clusters of any Bregman divergence "
        "are hyperplanes, and so are those between Gaussians of one covariance; where covariances differ they are "
        "curved, so that bayes is out of its reach there.",
        "How difficult a mixture is varies from one to the next, and so does a mean over ten: compare methods with "
        "bayes, which has the same ones. The page on reproducing the paper has figures over many mixtures.",
    ),
)
