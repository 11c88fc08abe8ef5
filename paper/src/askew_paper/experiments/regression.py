"""Regression of known divergences from pairs of points: the paper's table of test errors and its learning curves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from askew import metrics, pbdl
from askew.divergences import Divergence, NeuralBregman, make
from askew.losses import Regression
from askew_paper.data.targets import CORRELATIONS, DIM, TARGETS, Pairs, target_pairs
from askew_paper.experiment import MAE, SCALES, Cell, Claim, Experiment, Outcome
from askew_paper.experiments.training import Plan, learn
from askew_paper.notes import read_notes
from askew_paper.published import published

# PBDL solves convex problems; fewer pairs and pieces bound its time.
SIZES = {
    "toy": {"train": 400, "test": 200, "epochs": 2, "batch": 100, "pairs": 200, "pieces": 10},
    "quick": {"train": 10_000, "test": 2_000, "epochs": 10, "batch": 250, "pairs": 3_000, "pieces": 50},
    "paper": {"train": 50_000, "test": 10_000, "epochs": 100, "batch": 1000, "pairs": 10_000, "pieces": 100},
}
SETTINGS = tuple(f"{target}/{correlation}" for target in TARGETS for correlation in CORRELATIONS)
ASYMMETRIC = tuple(name for name in SETTINGS if name.startswith(("xlogx", "kl")))
# Two ways to train: as the paper does, and as our network is trained.
AS_PAPER = {"learning_rate": 1e-3, "schedule": "constant"}
AS_OURS = {"learning_rate": 3e-2, "schedule": "linear"}
# The end of the name of a method of the paper that is trained as our network is.
OUR_TRAINING = ", our training"
# The rows of the table. IQE and MRN are left out: they obey the triangle inequality, which no target here does.
METHODS: dict[str, dict[str, Any]] = {
    "constant": {},
    "mahalanobis": AS_PAPER,
    f"mahalanobis{OUR_TRAINING}": AS_OURS,
    "deep-div": AS_PAPER,
    "pbdl": {},
    "deepnorm": AS_PAPER,
    "widenorm": AS_PAPER,
    "nbd-paper": AS_PAPER,
    "nbd-plain": AS_OURS,
    "nbd": AS_OURS,
}
# The paper's methods trained like our network; last, so that a run cut short has the paper's table complete.
MORE_METHODS = {f"{method}{OUR_TRAINING}": AS_OURS for method in ("deep-div", "deepnorm", "widenorm")}


def learn_target(
    model: Divergence, train: Pairs, test: Pairs, plan: Plan, seed: int, *, calibrate: bool = True
) -> Outcome:
    """Train a divergence on pairs by its squared error and measure it on others after each epoch.

    The last weights count; the test pairs choose nothing. A training that diverges is measured where it was last good.

    ``seed`` is that of the order of the pairs; ``calibrate`` sets the scales of the model by the training pairs first.

    Examples
    --------
    >>> train, test = target_pairs("euclidean", train=500, test=100)
    >>> plan = Plan(epochs=40, batch=50, rates=(3e-2,), schedule="linear")
    >>> outcome = learn_target(make("mahalanobis", DIM), train, test, plan, seed=0)
    >>> outcome.scores["mae"] < 0.2, len(outcome.curves["test MAE"]), outcome.chosen["stopped"]
    (True, 40, 'finished')
    """

    def measure() -> dict[str, float]:
        return {"test MAE": _error(model, test)}

    learned = learn(model, tuple(train), Regression(), measure, calibrate=calibrate, seed=seed, **plan.settings())
    chosen = {"stopped": learned.stopped, "loss": learned.loss}
    return Outcome({"mae": _error(model, test)}, learned.errors, chosen)


@torch.no_grad()
def _error(model: Divergence, pairs: Pairs) -> float:
    """Return the mean absolute error of a model."""
    like = next(iter(model.parameters()))
    first, second = (torch.from_numpy(points).to(like) for points in (pairs.first, pairs.second))
    return metrics.mae(pairs.targets, model(first, second).cpu())


def plain(dim: int) -> NeuralBregman:
    """Return our network without the quadratic and the separable term: the network alone."""
    return NeuralBregman(dim, quadratic=0, separable=0)


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Yield a cell for every seed, target, correlation, method and way to train it."""
    size = SIZES[scale]
    settings = SETTINGS if scale != "toy" else ("euclidean/none", "kl/high")
    for methods, seed, setting in itertools.product((METHODS, MORE_METHODS), range(seeds), settings):
        for method, training in methods.items():
            names = ["train", "test", *(["epochs", "batch"] if training else [])]
            names += ["pairs", "pieces"] if method == "pbdl" else []
            options = {name: size[name] for name in names} | training
            yield Cell("regression", setting, method, seed, scale, tuple(sorted(options.items())))


def run(cell: Cell) -> Outcome:
    """Learn one target by one method."""
    target, correlation = cell.setting.split("/")
    train, test = target_pairs(target, correlation, cell["train"], cell["test"], seed=cell.seed)
    if cell.method == "constant":
        # The best constant of the error that is reported.
        median = np.full_like(test.targets, np.median(train.targets))
        return Outcome({"mae": metrics.mae(test.targets, median)})
    if cell.method == "pbdl":
        fitted = pbdl.fit_regression(*(part[: cell["pairs"]] for part in train), n_pieces=cell["pieces"])
        return Outcome({"mae": _error(fitted.divergence, test)}, chosen={"converged": fitted.converged})
    model = plain(DIM) if cell.method == "nbd-plain" else make(cell.method.removesuffix(OUR_TRAINING), DIM)
    return learn_target(model, train, test, Plan.of(cell), cell.seed)


NOTES = read_notes("regression")
REGRESSION = Experiment(
    "regression",
    "Learning a known divergence from its values: test MAE",
    ("table tbl:sim_errors_correlation", "figure fig:sim_plots"),
    (MAE,),
    seeds={"toy": 1, "quick": 1, "paper": 3},
    minutes={"toy": 0.1, "quick": 2.0, "paper": 300.0},
    cells=cells,
    run=run,
    notes=NOTES.notes,
    published=published("regression"),
    claims=(
        Claim(
            NOTES.claim("nbd-best"),
            MAE.name,
            ("nbd",),
            tuple(method for method in (*METHODS, *MORE_METHODS) if not method.startswith(("nbd", "constant"))),
            settings=ASYMMETRIC,
        ),
        Claim(
            NOTES.claim("mahalanobis-second"),
            MAE.name,
            ("mahalanobis",),
            ("deep-div", "deepnorm", "widenorm"),
            settings=ASYMMETRIC,
        ),
    ),
    against={
        "nbd-paper": "nbd",
        "nbd-plain": "nbd",
        **{f"{method}{OUR_TRAINING}": method for method in ("mahalanobis", "deep-div", "deepnorm", "widenorm")},
    },
    incomparable={name: SCALES for name in SETTINGS if name.startswith("mahalanobis")},
)
