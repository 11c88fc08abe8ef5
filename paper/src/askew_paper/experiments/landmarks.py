"""Distances in a graph learned from the distances to landmarks: the common part of the shortest-path experiments."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from askew import metrics
from askew.divergences import Divergence, Embedded
from askew.encoders import MLP
from askew.losses import Regression
from askew_paper.data.graphs import landmark_distances, node_features, pair_distances, random_pairs
from askew_paper.experiment import Cell, Score, Value
from askew_paper.experiments.training import Plan, dead, learn
from askew_paper.heads import DIRECTED, make_head

R2 = Score("r2", "R²", lower_is_better=False)
MRE = Score("mre", "Mean relative error", lower_is_better=True)
SPEARMAN = Score("spearman", "Spearman", lower_is_better=False)
NORMS, ROOTS, PLAIN = ("deepnorm", "widenorm"), ("bregman-sqrt", "bregman-gs"), ("nbd-paper", "nbd")
LEARNED: tuple[str, ...] = ("mahalanobis", "mahalanobis-norm", "deep-div", *NORMS, *PLAIN, *ROOTS, "iqe", "mrn")
LEARNED += (*DIRECTED, "drift-chosen")
_WHOLE: dict[str, Value] = {"train": 50_000, "test": 10_000, "landmarks": 32, "noise": 0.2, "distractors": 96}
SIZES: dict[str, dict[str, Value]] = {
    "toy": {"train": 300, "test": 100, "landmarks": 4, "noise": 0.2, "distractors": 4},
    "quick": {"train": 12_000, "test": 4_000, "landmarks": 32, "noise": 0.2, "distractors": 96},
    "medium": _WHOLE,
    "paper": _WHOLE,
}
# The plan, and the hidden layers and outputs of the encoder.
_LINEAR: dict[str, Value] = {"rates": (3e-3, 1e-2), "schedule": "linear"}
TRAINING: dict[str, dict[str, Value]] = {
    "toy": _LINEAR | {"epochs": 2, "batch": 50, "trial_epochs": 1, "widths": (16,), "out": 8},
    "quick": _LINEAR | {"epochs": 10, "batch": 256, "trial_epochs": 2, "widths": (256,), "out": 64},
    # After a quarter of the epochs the larger rate looks better than it is at the end, so trials are whole trainings.
    "medium": _LINEAR | {"epochs": 100, "batch": 512, "trial_epochs": 100, "widths": (256,), "out": 64},
}
# What "drift-chosen" chooses from, by the error on held-out training pairs.
CHOSEN = ("drift", "drift-root")
# Share of the training pairs on which learning rates are compared.
VALIDATION_SHARE = 0.1
# Pairs that are predicted at a time.
BLOCK_PAIRS = 10_000

Targets = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Task:
    """Training and test pairs of nodes with their distances, in units of the mean distance of training pairs."""

    features: Tensor  # of each node, (n, dim)
    train: Tensor  # pairs of nodes, (m, 2)
    test: Tensor
    train_targets: Targets  # (m,)
    test_targets: Targets
    test_reverse: Targets  # distances of the test pairs in the other direction, if they are wanted


def make_task(
    graph: csr_array,
    *,
    directed: bool,
    train: int,
    test: int,
    landmarks: int,
    noise: float,
    distractors: int,
    seed: int,
    reverse: bool = False,
) -> Task:
    """Return pairs of nodes of a graph with their features and distances.

    All nodes of the graph reach each other. In a directed one the features include the distances from landmarks. There
    are fewer pairs, in the same proportion, if the graph has fewer. ``reverse`` is whether to compute the distances of
    test pairs in the other direction as well.

    Examples
    --------
    >>> from askew_paper.data.graphs import make_graph
    >>> task = make_task(make_graph("traffic", side=5), directed=True, train=100, test=20, landmarks=4, noise=0.2,
    ...                  distractors=3, seed=0)
    >>> task.features.shape, task.train.shape, task.test_targets.shape
    (torch.Size([25, 11]), torch.Size([100, 2]), (20,))
    """
    _, distances = landmark_distances(graph, landmarks, directed, seed)
    features = torch.from_numpy(node_features(distances, noise, distractors, seed))
    pairs = random_pairs(graph.shape[0], train + test, seed)
    border = max(1, round(len(pairs) * test / (train + test)))
    # Together, so that there is one search from each node.
    backward = pairs[:border, ::-1] if reverse else pairs[:0]
    distances = pair_distances(graph, np.concatenate([pairs, backward]))
    targets = (distances / distances[border : len(pairs)].mean()).astype(np.float32)
    targets, back = targets[: len(pairs)], targets[len(pairs) :]
    nodes = torch.from_numpy(pairs)
    return Task(features, nodes[border:], nodes[:border], targets[border:], targets[:border], back)


@functools.lru_cache(maxsize=1)  # the methods of one graph come one after the other
def _task(graph: Callable[..., csr_array], arguments: tuple[Any, ...], **settings: Any) -> Task:
    return make_task(graph(*arguments), **settings)


def task_of(cell: Cell, graph: Callable[..., csr_array], *arguments: Any, **directions: bool) -> Task:
    """Return the task of a cell in the graph that ``graph(*arguments)`` makes; the last one is kept."""
    sizes = {name: cell[name] for name in SIZES[cell.scale]}
    return _task(graph, arguments, seed=cell.seed, **sizes, **directions)


# ---------------------------------------------------------------------- training


@functools.lru_cache(maxsize=8)  # "drift-chosen" takes what two other methods have just learned
def learn_distances(
    method: str, task: Task, plan: Plan, seed: int, *, widths: tuple[int, ...], out: int
) -> tuple[Divergence, dict[str, Any]]:
    """Train a divergence of the catalogue behind an encoder by its squared error on the training pairs.

    Return the divergence between features, the learning rate, if it was chosen, and how the training ended.

    With the schedule "linear", the rate with the smallest error on held-out training pairs after a trial is taken; it
    rises and falls as in :func:`askew.fit`, and the weights of the epoch that is best on those pairs are kept. A trial
    that lasts as long as the training is the training. With
    "steps", the rates follow each other, each for the same number of epochs, all training pairs are used and the last
    weights are kept, as in the paper.

    Examples
    --------
    >>> from askew_paper.data.graphs import make_graph
    >>> task = make_task(make_graph("traffic", side=5), directed=True, train=300, test=100, landmarks=4, noise=0.0,
    ...                  distractors=0, seed=0)
    >>> plan = Plan(epochs=30, batch=50, rates=(3e-3,), schedule="linear")
    >>> model, _ = learn_distances("mahalanobis-norm", task, plan, seed=0, widths=(32,), out=8)
    >>> score(task.test_targets, predict(model, task.features, task.test))["r2"] > 0.5
    True
    """

    def parts(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = task.train[rows].T
        return task.features[first], task.features[second], torch.from_numpy(task.train_targets)[rows]

    def trained(plan: Plan, rows: Tensor, **settings: Any) -> tuple[Divergence, str]:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model = Embedded(MLP(task.features.shape[1], out, widths), make_head(method, out))
        learned = learn(model, parts(rows), Regression(), seed=seed, **{**plan.settings(), **settings})
        return model, learned.stopped

    # The rates themselves are the schedule, or the schedule is that of askew.fit.
    own = replace(plan, schedule=None)
    order = torch.arange(len(task.train))
    if plan.schedule == "steps":
        rates = plan.rates

        def rate_at(step: int, steps: int) -> float:
            return rates[min(step * len(rates) // steps, len(rates) - 1)]

        model, stopped = trained(own, order, learning_rate=1.0, schedule=rate_at)
        return model, {"stopped": stopped}
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))]
    held_out, rows = order.split([held := math.ceil(VALIDATION_SHARE * len(order)), len(order) - held])

    @functools.cache
    def learned(plan: Plan) -> tuple[Divergence, str, float]:
        model, stopped = trained(plan, rows, validation=parts(held_out))
        predicted = predict(model, task.features, task.train[held_out])
        return model, stopped, _mse(task.train_targets[held_out.numpy()], predicted)

    best, _ = own.with_best_rate(lambda trial: learned(replace(trial, trial_epochs=0))[2])
    model, stopped, error = learned(replace(best, trial_epochs=0))
    return model, {"learning_rate": best.rates[0], "stopped": stopped, "validation": error}


def predictions(cell: Cell, task: Task, *pairs: Tensor) -> tuple[list[Targets], dict[str, Any]]:
    """Return the predictions of the method of a cell for sets of pairs, and the settings that were chosen for it."""
    if cell.method == "mean":
        mean = task.train_targets.mean()
        return [np.full(len(nodes), mean, np.float32) for nodes in pairs], {}
    shape = {"widths": cell["widths"], "out": cell["out"]}
    methods = CHOSEN if cell.method == "drift-chosen" else (cell.method,)
    learned = {method: learn_distances(method, task, Plan.of(cell), cell.seed, **shape) for method in methods}
    # The test pairs have no part in the choice.
    best = min(methods, key=lambda method: learned[method][1].get("validation", 0.0))
    model, chosen = learned[best]
    chosen = chosen | ({"method": best} if len(methods) > 1 else {})
    values = [predict(model, task.features, nodes) for nodes in pairs]
    return values, chosen | dead(values[0])


@torch.no_grad()
def predict(model: Divergence, features: Tensor, pairs: Tensor) -> Targets:
    """Return the divergence of pairs of nodes, ``(m, 2) -> (m,)``, from the features of all nodes, ``(n, dim)``.

    Examples
    --------
    >>> from askew import make
    >>> predict(make("euclidean", 1), torch.tensor([[1.0], [3.0]]), torch.tensor([[0, 1]]))
    array([4.], dtype=float32)
    """
    like = next(iter(model.parameters()), features)
    values = [model(*(features[nodes].to(like) for nodes in block.T)).cpu() for block in pairs.split(BLOCK_PAIRS)]
    return torch.cat(values).numpy()


def score(targets: Targets, predictions: Targets) -> dict[str, float]:
    """Return the squared and the relative error, R² and the rank correlation of predictions (0 if all are equal).

    Examples
    --------
    >>> score(np.float32([1, 2, 3]), np.float32([2, 2, 2]))
    {'mse': 0.666..., 'mre': 0.444..., 'r2': 0.0, 'spearman': 0.0}
    """
    order = metrics.spearman(targets, predictions, constant=0.0)
    mre = float((np.abs(predictions - targets.astype(np.float64)) / targets).mean())
    return {"mse": _mse(targets, predictions), "mre": mre, "r2": metrics.r2(targets, predictions), "spearman": order}


def _mse(targets: Targets, predictions: Targets) -> float:
    return float(np.square(targets.astype(np.float64) - predictions).mean())
