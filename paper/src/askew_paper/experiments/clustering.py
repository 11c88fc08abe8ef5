"""Distributional clustering: k-means of three mixtures with divergences learned from other labelled points."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch

from askew.clustering.any_divergence import cluster
from askew.divergences import Divergence, make
from askew.losses import AllTriplets, Listwise
from askew.metrics import purity, rand
from askew_paper.data import Mixture, Table, make_mixture, mixture_names
from askew_paper.experiment import PURITY, RAND, Cell, Claim, Experiment, Outcome, Score, Value, grid
from askew_paper.experiments.regression import OUR_TRAINING
from askew_paper.experiments.training import Plan, learn_from_labels, learn_pbdl
from askew_paper.notes import read_notes
from askew_paper.published import Published, published

METHODS = ("bayes", "oracle", "euclidean", "mahalanobis", "deep-div", "pbdl", "nbd-paper", "nbd")
# The paper's methods trained as our network is, with the learning rates of DivergenceLearner. Last, so that a run cut
# short has the paper's table complete.
OURS = {f"{name}{OUR_TRAINING}": rate for name, rate in (("mahalanobis", 0.1), ("deep-div", 0.01), ("nbd-paper", 0.1))}
# How k-means starts and how often, by the ending of the names of its scores.
PROTOCOLS = {"": ("random-partition", 1), "-seeded": ("k-means++", 10)}
# Points of each set, epochs with triplets and with lists, rows and folds of PBDL.
SIZES = {
    "toy": {"points": 150, "epochs": 2, "own_epochs": 5, "rows": 40, "folds": 2},
    "quick": {"points": 1000, "epochs": 50, "own_epochs": 63, "rows": 250, "folds": 5},
    "paper": {"points": 1000, "epochs": 200, "own_epochs": 63, "rows": 500, "folds": 5},
}


def options(scale: str, setting: str, method: str) -> dict[str, Value]:
    """Return what the result of a method depends on, apart from the data."""
    size = SIZES[scale]
    common: dict[str, Value] = {"points": size["points"]}
    if method == "pbdl":
        return common | {"rows": size["rows"], "folds": size["folds"]}
    if method == "nbd" or method in OURS:
        # The plan of askew.DivergenceLearner for this number of rows; its 500 steps are 63 epochs.
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
    """Learn from one set of points of a mixture, and cluster another one by both protocols."""
    mixture = make_mixture(cell.setting, cell.seed)
    known, table = (mixture.sample(cell["points"], seed=2 * cell.seed + i) for i in range(2))
    points, scores, chosen = torch.from_numpy(table.points), dict[str, float](), dict[str, Any]()
    if cell.method != "bayes":
        divergence, chosen = learned(cell, mixture, known)
    for suffix, (start, runs) in PROTOCOLS.items():
        if cell.method == "bayes":
            labels: Any = mixture.log_densities(table.points).argmax(1)
        else:
            labels = cluster(divergence, points, len(mixture.means), start, runs, cell.seed).numpy()
        scores |= {f"purity{suffix}": purity(table.labels, labels), f"rand{suffix}": rand(table.labels, labels)}
    return Outcome(scores, chosen=chosen)


def learned(cell: Cell, mixture: Mixture, known: Table) -> tuple[Divergence, dict[str, Any]]:
    """Return the divergence of a method between raw points, and the settings that were chosen for it."""
    points, labels = torch.from_numpy(known.points), torch.from_numpy(known.labels)
    if cell.method == "oracle":
        return mixture.divergence(), {}
    if cell.method == "euclidean":
        return make("euclidean", points.shape[1]), {}
    if cell.method == "pbdl":
        return learn_pbdl(points, labels, max_points=cell["rows"], folds=cell["folds"], seed=cell.seed)
    loss = Listwise(max_pairs=cell["max_pairs"]) if cell["loss"] == "listwise" else AllTriplets(cell["margin"])
    method = cell.method.removesuffix(OUR_TRAINING)
    return learn_from_labels(method, points, labels, loss, Plan.of(cell), cell.seed), {}


def _published() -> tuple[Published, ...]:
    """Return the paper's scores; those of its Gaussians count for both readings of its description."""
    entries = published("clustering")
    gaussians = [entry for entry in entries if entry.setting == "gaussian"]
    return *entries, *(dataclasses.replace(entry, setting="gaussian-shared") for entry in gaussians)


PAPERS = ("euclidean", "mahalanobis", "deep-div", "pbdl")
NOTES = read_notes("clustering")
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
    notes=NOTES.notes,
    published=_published(),
    claims=(
        Claim(NOTES.claim("paper-training"), PURITY.name, ("nbd-paper",), PAPERS),
        Claim(
            NOTES.claim("our-training"),
            PURITY.name,
            ("nbd",),
            (*PAPERS, f"mahalanobis{OUR_TRAINING}", f"deep-div{OUR_TRAINING}"),
            ours=True,
        ),
    ),
    against={
        "nbd-paper": "nbd",
        f"nbd-paper{OUR_TRAINING}": "nbd",
        **{f"{method}{OUR_TRAINING}": method for method in ("mahalanobis", "deep-div")},
    },
)
