"""Shortest paths in the paper's five graphs, learned from the distances to landmarks."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from askew_paper.data.graphs import graph_names, is_directed, make_graph
from askew_paper.experiment import Cell, Claim, Experiment, Outcome, Score, Value, grid
from askew_paper.experiments import landmarks
from askew_paper.experiments.landmarks import LEARNED, NORMS, PLAIN, R2, ROOTS, SIZES, SPEARMAN, score
from askew_paper.notes import read_notes
from askew_paper.published import published

METHODS = ("mean", *LEARNED)
# The paper's losses fit squared errors of distances whose mean is 50.
UNIT = 50**2
TRAIN = Score("train-loss", "Train MSE x 2500", lower_is_better=True, digits=2)
TEST = Score("test-loss", "Test MSE x 2500", lower_is_better=True, digits=2)
# Nodes a side, where they are not the paper's: its larger graphs take hours of searches for 60,000 pairs.
SIDES: dict[str, dict[str, int]] = {
    "toy": {"3d": 5, "3dd": 5, "taxi": 4, "traffic": 10, "octagon": 10},
    **{key: {"3d": 20, "3dd": 20, "taxi": 9} for key in ("quick", "medium")},
    "paper": {},
}
PAPERS: dict[str, Value] = {"epochs": 100, "batch": 128, "rates": (5e-5, 5e-6), "schedule": "steps", "trial_epochs": 0}
TRAINING = landmarks.TRAINING | {"paper": PAPERS | {"widths": (256,), "out": 128}}


def options(scale: str, setting: str, method: str) -> dict[str, Value]:
    """Return what the result of a method depends on, apart from the graph."""
    size = {"side": SIDES[scale].get(setting), **SIZES[scale]}
    return size if method == "mean" else size | TRAINING[scale]


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Return the cells of all graphs and methods."""
    return grid("shortest-path", scale, seeds, graph_names(), METHODS, functools.partial(options, scale))


def run(cell: Cell) -> Outcome:
    """Learn the distances of one graph by one method."""
    directed = is_directed(cell.setting)
    task = landmarks.task_of(cell, make_graph, cell.setting, cell["side"], cell.seed, directed=directed)
    (trained, tested), chosen = landmarks.predictions(cell, task, task.train, task.test)
    scores = score(task.test_targets, tested)
    del scores["mre"]
    losses = {"train-loss": score(task.train_targets, trained)["mse"], "test-loss": scores.pop("mse")}
    return Outcome({name: UNIT * mse for name, mse in losses.items()} | scores, chosen=chosen)


NOTES = read_notes("shortest-path")
SHORTEST_PATH = Experiment(
    name="shortest-path",
    title="Shortest paths in five graphs, from the distances to landmarks: squared error",
    makes=("table tbl:short_path_results",),
    scores=(TEST, R2, SPEARMAN, TRAIN),
    seeds={"toy": 1, "quick": 1, "medium": 1, "paper": 5},
    minutes={"toy": 0.5, "quick": 6.0, "medium": 180.0, "paper": 3000.0},
    cells=cells,
    run=run,
    notes=NOTES.notes,
    published=published("shortest-path"),
    claims=(
        Claim(
            NOTES.claim("deep-div-last"),
            TEST.name,
            ("mahalanobis", *NORMS, *PLAIN, *ROOTS),
            ("deep-div",),
            each=True,
            factor=0.5,
        ),
        Claim(NOTES.claim("roots-close"), TEST.name, ROOTS, NORMS, factor=1.25),
        Claim(NOTES.claim("roots-ahead"), TEST.name, ROOTS, PLAIN),
        Claim(NOTES.claim("drift"), TEST.name, ("drift-chosen",), (*NORMS, "iqe", "mrn"), ours=True),
    ),
    against={"nbd-paper": "nbd", "mahalanobis-norm": "mahalanobis"},
    # Smaller graphs than the paper's.
    incomparable={name: [scale for scale, sides in SIDES.items() if name in sides] for name in graph_names()},
)
