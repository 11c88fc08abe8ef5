"""Distances in a graph learned from the distances to landmarks: what the shortest-path experiments share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from askew import metrics
from askew.divergences import Divergence, Embedded, make
from askew.encoders import MLP
from askew.losses import Regression
from askew.training import TrainingDivergedError, fit
from askew_paper.data.graphs import landmark_distances, node_features, pair_distances, random_pairs
from askew_paper.experiment import Cell, Score, Value

__all__ = ["R2", "SPEARMAN", "Learned", "Plan", "Task", "learn", "make_task", "predict", "score"]

R2 = Score("r2", "R²", lower_is_better=False)
SPEARMAN = Score("spearman", "Spearman", lower_is_better=False)
# Of the training pairs, where learning rates are compared.
VALIDATION_SHARE = 0.1
# Pairs that are predicted at a time.
BLOCK_PAIRS = 10_000

Targets = NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """Pairs of nodes whose distances are learned from, and others for the test.

    Attributes
    ----------
    features : tensor of shape (n, dim)
        What is known of each node, float32.
    train, test : tensor of shape (m, 2)
        Pairs of nodes.
    train_targets, test_targets : array of shape (m,)
        Their distances, in units of the mean distance of training pairs.
    test_reverse : array of shape (m,) or None
        Distances of the test pairs the other way.
    """

    features: Tensor
    train: Tensor
    test: Tensor
    train_targets: Targets
    test_targets: Targets
    test_reverse: Targets | None = None


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

    Parameters
    ----------
    graph
        Lengths of edges, ``(n, n)``; all nodes reach each other.
    directed
        Whether its two directions differ; then features have the distances from landmarks too.
    train, test
        Numbers of pairs; fewer of both, in this proportion, where the graph has not so many.
    landmarks, noise, distractors
        Of the features.
    seed
        Of landmarks, features and pairs.
    reverse
        Whether to find the distances of test pairs the other way too.

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
    # Together, so that a node that is the first of both kinds is searched from once.
    backward = pairs[:border, ::-1] if reverse else pairs[:0]
    found = pair_distances(graph, np.concatenate([pairs, backward]))
    targets = (found / found[border : len(pairs)].mean()).astype(np.float32)
    targets, back = targets[: len(pairs)], targets[len(pairs) :]
    nodes = torch.from_numpy(pairs)
    return Task(features, nodes[border:], nodes[:border], targets[border:], targets[:border], back if reverse else None)


# ---------------------------------------------------------------------- training


@dataclass(frozen=True)
class Plan:
    """How a divergence and the encoder in front of it are trained.

    Parameters
    ----------
    epochs, batch
        Passes over the training pairs, and pairs in a batch.
    rates
        Learning rates. Where ``schedule`` is "linear", the one that is best on held-out training pairs after
        ``trial_epochs`` is taken; it rises and falls as in :func:`askew.fit`, and the weights of the epoch that is best
        on those pairs are kept. Where it is "steps", they follow each other, each for as many epochs as the others,
        all training pairs are learned from and the last weights are kept, as in the paper.
    schedule
        "linear" or "steps".
    trial_epochs
        Epochs of the comparison of learning rates.
    widths, out
        Hidden layers and outputs of the encoder.
    """

    epochs: int
    batch: int
    rates: tuple[float, ...]
    schedule: str
    trial_epochs: int
    widths: tuple[int, ...]
    out: int

    def options(self) -> dict[str, Value]:
        """Return it as options of a cell."""
        return asdict(self)

    @classmethod
    def of(cls, cell: Cell) -> Plan:
        """Return the plan whose options a cell has."""
        return cls(**{field.name: cell[field.name] for field in fields(cls)})


@dataclass(frozen=True)
class Learned:
    """A trained model, and what was chosen and happened on the way to it."""

    model: Divergence
    chosen: dict[str, Any]


class _Steps(Adam):
    """Adam with learning rates that follow each other, in place of the schedule of the training loop."""

    def __init__(self, parameters: Sequence[nn.Parameter], rates: Sequence[float], steps: int) -> None:
        super().__init__(parameters, lr=rates[0], fused=True)
        self.rates, self.steps, self.taken = tuple(rates), steps, 0

    def step(self, closure: Any = None) -> Any:
        """Take one step with the learning rate whose turn it is."""
        for group in self.param_groups:
            group["lr"] = self.rates[min(self.taken * len(self.rates) // self.steps, len(self.rates) - 1)]
        self.taken += 1
        return super().step(closure)


def learn(method: str, task: Task, plan: Plan, seed: int) -> Learned:
    """Train a divergence of the catalogue behind an encoder by its squared error on the training pairs.

    The test pairs are not looked at.

    Parameters
    ----------
    method
        A name of :func:`askew.divergences.names`.
    task
        The pairs.
    plan
        How to train.
    seed
        Of weights, of the order of pairs and of which of them are held out.

    Examples
    --------
    >>> from askew_paper.data.graphs import make_graph
    >>> task = make_task(make_graph("traffic", side=5), directed=True, train=300, test=100, landmarks=4, noise=0.0,
    ...                  distractors=0, seed=0)
    >>> plan = Plan(epochs=30, batch=50, rates=(3e-3,), schedule="linear", trial_epochs=1, widths=(32,), out=8)
    >>> found = learn("mahalanobis-norm", task, plan, seed=0)
    >>> score(task.test_targets, predict(found.model, task.features, task.test))["r2"] > 0.5
    True
    """
    everything = torch.arange(len(task.train))
    if plan.schedule == "steps":
        model, stopped = _train(method, task, plan, plan.rates, plan.epochs, everything, None, seed)
        return Learned(model, {"stopped": stopped})
    held = math.ceil(VALIDATION_SHARE * len(everything))
    order = everything[torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))]
    rows, validation = order[held:], order[:held]
    errors = {}
    for rate in plan.rates if len(plan.rates) > 1 else ():
        model, _ = _train(method, task, plan, (rate,), plan.trial_epochs, rows, validation, seed)
        errors[rate] = _mse(
            task.train_targets[validation.numpy()], predict(model, task.features, task.train[validation])
        )
    rate = min(errors, key=errors.__getitem__, default=plan.rates[0])
    model, stopped = _train(method, task, plan, (rate,), plan.epochs, rows, validation, seed)
    return Learned(model, {"learning_rate": rate, "stopped": stopped})


def _train(
    method: str,
    task: Task,
    plan: Plan,
    rates: tuple[float, ...],
    epochs: int,
    rows: Tensor,
    validation: Tensor | None,
    seed: int,
) -> tuple[Divergence, str]:
    """Return a new model that has learned from some training pairs, and how the training ended."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Embedded(MLP(task.features.shape[1], plan.out, plan.widths), make(method, plan.out))

    def parts(some: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = task.train[some].T
        return task.features[first], task.features[second], torch.from_numpy(task.train_targets)[some]

    def optimizer(parameters: Sequence[nn.Parameter]) -> Optimizer:
        return _Steps(parameters, rates, epochs * math.ceil(len(rows) / plan.batch))

    try:
        history = fit(
            model,
            parts(rows),
            Regression(),
            epochs=epochs,
            batch_size=plan.batch,
            learning_rate=rates[0],
            optimizer=optimizer if plan.schedule == "steps" else None,
            validation=None if validation is None else parts(validation),
            seed=seed,
            progress=False,
        )
    except TrainingDivergedError as error:
        # The model has its last good weights.
        return model, error.history.stopped
    return model, history.stopped


# ---------------------------------------------------------------------- scores


@torch.no_grad()
def predict(model: Divergence, features: Tensor, pairs: Tensor) -> Targets:
    """Return what a model says of pairs of nodes, ``(m,)``; each node that occurs is looked up as often as it does.

    Parameters
    ----------
    model
        A divergence between features.
    features
        Of all nodes, ``(n, dim)``.
    pairs
        Nodes, ``(m, 2)``.

    Examples
    --------
    >>> predict(make("euclidean", 1), torch.tensor([[1.0], [3.0]]), torch.tensor([[0, 1]]))
    array([4.], dtype=float32)
    """
    like = next(iter(model.parameters()), features)
    values = [model(*(features[nodes].to(like) for nodes in some.T)).cpu() for some in pairs.split(BLOCK_PAIRS)]
    return torch.cat(values).numpy()


def score(targets: Targets, predictions: Targets) -> dict[str, float]:
    """Return the mean squared error, R² and the rank correlation of predictions.

    Predictions that are all alike have no order; their rank correlation counts as 0.

    Parameters
    ----------
    targets, predictions
        Distances, ``(m,)``.

    Examples
    --------
    >>> score(np.float32([1, 2, 3]), np.float32([2, 2, 2]))
    {'mse': 0.666..., 'r2': 0.0, 'spearman': 0.0}
    """
    constant = bool((predictions == predictions[0]).all())
    return {
        "mse": _mse(targets, predictions),
        "r2": metrics.r2(targets, predictions),
        "spearman": 0.0 if constant else metrics.spearman(targets, predictions),
    }


def _mse(targets: Targets, predictions: Targets) -> float:
    return float(np.square(targets.astype(np.float64) - predictions).mean())
