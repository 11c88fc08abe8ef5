"""Ranking and clustering of six UCI tables with divergences learned from labels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor

from askew import metrics
from askew.clustering.any_divergence import cluster_from_euclidean
from askew.divergences import Divergence, split_encoder
from askew.encoders import Standardize, encode
from askew.estimators import DivergenceLearner
from askew.losses import AllTriplets
from askew_paper.data import load_table, table_names
from askew_paper.experiment import AUC, MAP, PURITY, RAND, SCALES, Cell, Claim, Experiment, Outcome, Value, grid
from askew_paper.experiments.training import Plan, learn_from_labels, learn_pbdl
from askew_paper.notes import read_notes
from askew_paper.published import published

# The end of the names of methods that are trained as in the paper; the others are trained as our network is.
PAPERS_TRAINING = ", paper's training"
# Quasimetrics take a third of the time and are not in the paper: last, so that a run cut short has its table complete.
SECOND = ("iqe", "mrn")
PLAIN = ("euclidean", "mahalanobis", "deep-div", "pbdl", *SECOND, "nbd-paper", "nbd")
# The divergence and the encoder of each method.
METHODS: dict[str, tuple[str, str | None]] = {
    **{name: (name, None) for name in PLAIN},
    **{f"{name}-mlp": (name, "mlp") for name in PLAIN if name not in SECOND},
    "pbdl-mlp": ("deep-div-affine", "mlp"),
    "nbd-auto": ("nbd", "auto"),
    **{f"{name}{PAPERS_TRAINING}": (name, None) for name in ("mahalanobis", "deep-div", "nbd-paper")},
}
FIRST = tuple(method for method in METHODS if method not in SECOND)
# The toy tables come with scikit-learn.
TABLES = {"toy": ("iris", "wine"), "quick": tuple(table_names()), "paper": tuple(table_names())}
TEST_SHARE = 0.2
# Splits at paper scale. More of them would query the rows that are reserved.
SEEDS = 10
# Runs of k-means whose scores are averaged.
REPETITIONS = 20
# Rows that PBDL learns from at most; its time grows with their square.
PBDL_ROWS = {"toy": 60, "quick": 500, "paper": 1000}
# Rates and epochs of the paper's training, chosen on held-out rows of the training part.
RATES = {"toy": (1e-3,), "quick": (1e-3,), "paper": (1e-2, 1e-3)}
EPOCHS = {"toy": (2,), "quick": (50,), "paper": (50, 250)}


def reserved(rows: int) -> NDArray[np.int64]:
    """Return the rows of a table of this size that no split queries, about a tenth: to choose training settings on.

    Examples
    --------
    >>> len(reserved(150))
    19
    """
    splits = (train_test_split(np.arange(rows), test_size=TEST_SHARE, random_state=seed) for seed in range(SEEDS))
    return np.setdiff1d(np.arange(rows), np.concatenate([queries for _, queries in splits]))


def options(scale: str, setting: str, method: str) -> dict[str, Value]:
    """Return what the result of a method depends on, apart from the table; None leaves the choice to the learner."""
    divergence, encoder = METHODS[method]
    common: dict[str, Value] = {"divergence": divergence, "encoder": encoder, "test": TEST_SHARE}
    if method == "pbdl":
        common["max_points"] = PBDL_ROWS[scale]
    if method.endswith(PAPERS_TRAINING):
        common |= {"loss": "all triplets", "margin": 0.2, "batch": 256, "schedule": "constant"}
        common |= {"rates": RATES[scale], "epochs": EPOCHS[scale], "held_out": 0.2}
    if scale == "toy":
        return common | {"repetitions": 2, "rows": 60, "steps": 5}
    return common | {"repetitions": REPETITIONS, "rows": None, "steps": 150 if scale == "quick" else None}


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Yield the cells of all tables and methods."""
    for methods in (FIRST, SECOND):
        yield from grid("ranking", scale, seeds, TABLES[scale], methods, functools.partial(options, scale))


def run(cell: Cell) -> Outcome:
    """Learn from four fifths of a table, rank them for the other rows, and cluster these."""
    table = load_table(cell.setting)
    sample = np.arange(len(table.labels))
    if cell["rows"] is not None:
        sample = np.random.RandomState(cell.seed).permutation(sample)[: cell["rows"]]
    rows, queries = train_test_split(sample, test_size=cell["test"], random_state=cell.seed)
    points, labels = torch.from_numpy(table.points), np.unique(table.labels, return_inverse=True)[1]
    model, chosen = _learned(cell, points[rows], torch.from_numpy(labels[rows]))
    encoder, divergence = split_encoder(model, points.shape[1], "ranking")
    embeddings = encode(encoder, points)
    with torch.inference_mode():
        matrix = divergence.pairwise(embeddings[queries], embeddings[rows])
    scores = {
        "map": metrics.mean_average_precision(matrix, labels[queries], labels[rows]),
        "auc": metrics.auc(matrix, labels[queries], labels[rows]),
    }
    clusters = cluster_from_euclidean(
        Standardize(points.shape[1]).fit(points[rows])(points[queries]),
        embeddings[queries],
        divergence,
        int(labels.max()) + 1,
        [cell.seed * cell["repetitions"] + number for number in range(cell["repetitions"])],
    )
    scores["purity"] = float(np.mean([metrics.purity(labels[queries], each) for each in clusters]))
    scores["rand"] = float(np.mean([metrics.rand(labels[queries], each) for each in clusters]))
    return Outcome(scores, chosen=chosen)


def _learned(cell: Cell, points: Tensor, labels: Tensor) -> tuple[Divergence, dict[str, Any]]:
    """Return the divergence of a method between raw points, and the settings that were chosen for it."""
    if cell.method == "pbdl":
        return learn_pbdl(points, labels, max_points=cell["max_points"], seed=cell.seed)
    if cell.method.endswith(PAPERS_TRAINING):
        return _learned_as_in_the_paper(cell, points, labels)
    learner = DivergenceLearner(
        cell["divergence"],
        cell["encoder"],
        # Given, also where they are the learner's own: by itself it would take fewer where it chooses an encoder.
        steps=cell["steps"] or min(500, max(300, len(points) // 2)),
        random_state=cell.seed,
        device="cpu",
        progress=False,
    ).fit(points.numpy(), labels.numpy())
    if learner.history_.stopped == "interrupted":  # Ctrl-C: an unfinished training must not become a row
        raise KeyboardInterrupt
    # The scores on held-out rows of the training part, where it compared.
    seen = {"validation": dict(learner.validation_)} if learner.validation_ else {}
    return learner.model_, {"choice": learner.choice_, **seen}


def _learned_as_in_the_paper(cell: Cell, points: Tensor, labels: Tensor) -> tuple[Divergence, dict[str, Any]]:
    """Return a divergence trained from triplets; rate and epochs are chosen on held-out rows."""
    rows, rest = train_test_split(np.arange(len(points)), test_size=cell["held_out"], random_state=cell.seed)

    def trained(points: Tensor, labels: Tensor, rate: float, epochs: int) -> Divergence:
        plan = Plan(epochs, cell["batch"], (rate,), cell["schedule"])
        return learn_from_labels(cell["divergence"], points, labels, AllTriplets(cell["margin"]), plan, cell.seed)

    def score(choice: tuple[float, int]) -> float:
        model = trained(points[rows], labels[rows], *choice)
        with torch.inference_mode():
            matrix = model.pairwise(points[rest], points[rows])
        return metrics.mean_average_precision(matrix, labels[rest], labels[rows])

    choices = list(itertools.product(cell["rates"], cell["epochs"]))
    rate, epochs = max(choices, key=score) if len(choices) > 1 else choices[0]
    return trained(points, labels, rate, epochs), {"learning_rate": rate, "epochs": epochs}


NOTES = read_notes("ranking")
RANKING = Experiment(
    name="ranking",
    title="Ranking and clustering of six UCI tables with learned divergences",
    makes=("table tab:ranking", "table tab:ranking-full"),
    scores=(MAP, AUC, PURITY, RAND),
    seeds={"toy": 1, "quick": 1, "paper": SEEDS},
    minutes={"toy": 0.5, "quick": 2.0, "paper": 150.0},
    cells=cells,
    run=run,
    needs=NOTES.needs,
    notes=NOTES.notes,
    published=published("ranking"),
    claims=tuple(
        Claim(NOTES.claim(f"{score.name}-{training}"), score.name, (ahead,), behind, ours=training == "our-training")
        for score in (MAP, PURITY)
        for training, ahead, behind in (
            (
                "paper-training",
                f"nbd-paper{PAPERS_TRAINING}",
                (f"mahalanobis{PAPERS_TRAINING}", f"deep-div{PAPERS_TRAINING}", "pbdl"),
            ),
            ("our-training", "nbd", ("mahalanobis", "deep-div", "pbdl")),
        )
    ),
    against={
        "nbd-paper": "nbd",
        f"nbd-paper{PAPERS_TRAINING}": "nbd",
        **{f"{method}{PAPERS_TRAINING}": method for method in ("mahalanobis", "deep-div")},
    },
    incomparable={"abalone": SCALES},
)
