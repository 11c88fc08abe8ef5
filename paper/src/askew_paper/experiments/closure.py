"""Link prediction in a hierarchy: which pairs follow from known ones, with codes of two or five numbers."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from askew.divergences import Divergence, Embedded
from askew.training import History, TrainingDivergedError
from askew_paper.data.closure import SHARES, Closure, Nodes, load_closure, random_closure
from askew_paper.experiment import Cell, Claim, Experiment, Outcome, Score, Value, grid
from askew_paper.experiments.entailment_training import OrderEmbedding
from askew_paper.experiments.training import Plan, train
from askew_paper.heads import make_head
from askew_paper.notes import read_notes
from askew_paper.published import published

__all__ = ["CLOSURE", "ClosureLoss", "best_threshold", "f1", "layout", "model_of", "scores_of"]

QUASIMETRICS = ("mahalanobis-norm", "deepnorm", "widenorm", "iqe", "mrn", "order")
OURS = ("drift", "drift-root", "drift-mahalanobis", "two-sided")
METHODS = (*QUASIMETRICS, "unconstrained", "nbd-paper", "nbd", *OURS)
# The divergence of the method with a code for each side.
TWO_SIDED = "drift-mahalanobis"
# Random pairs of nodes that set the scales of a divergence.
CALIBRATION = 4000
# Times that a training is validated.
LOOKS = 50
# A wrong pair of training counts as those of the test do: ten for each that holds.
WRONG_WEIGHT = 10.0
_SEARCH: dict[str, Value] = {"rates": (0.02, 0.1), "inclusion": (10.0, 1.0)}
# The same for all methods: with more steps those that are light to compute were ahead for that reason alone.
PLANS: dict[str, dict[str, Value]] = {
    "toy": {"steps": 40, "batch": 64, "random": 16, "rates": (0.02,), "inclusion": (1.0,)},
    "quick": _SEARCH | {"steps": 100, "batch": 256, "random": 16},
    "medium": _SEARCH | {"steps": 1000, "batch": 256, "random": 16},
    "paper": _SEARCH | {"steps": 2000, "batch": 512, "random": 64},
}


# ---------------------------------------------------------------------- scores


def f1(positive: NDArray[Any], negative: NDArray[Any], threshold: float) -> float:
    """Return F1 of calling the pairs with values up to a threshold positive.

    Examples
    --------
    >>> f1(np.array([0.1, 0.9]), np.array([0.2, 0.3, 0.8]), 0.2)
    0.5
    """
    hits, called = (positive <= threshold).sum(), (positive <= threshold).sum() + (negative <= threshold).sum()
    return float(2 * hits / (called + len(positive)))


def best_threshold(positive: NDArray[Any], negative: NDArray[Any]) -> float:
    """Return the value of a pair that is the threshold with the largest F1.

    Examples
    --------
    >>> best_threshold(np.array([0.1, 0.4]), np.array([0.2, 0.5]))
    0.4
    """
    values = np.concatenate([positive, negative])
    order = np.argsort(values, kind="stable")
    hits = np.cumsum(order < len(positive))
    scores = 2 * hits / (np.arange(1, len(values) + 1) + len(positive))
    # All pairs of one value are called at once.
    last = np.append(np.diff(values[order]) > 0, True)
    return float(values[order][np.where(last, scores, -1).argmax()])


@torch.no_grad()
def scores_of(model: Embedded, pairs: Nodes) -> NDArray[np.float64]:
    """Return numbers that sort pairs as D(specific, general) does: ``(m, 2) -> (m,)``."""
    nodes = torch.from_numpy(np.ascontiguousarray(pairs))
    return model.order(nodes[:, 0], nodes[:, 1]).double().numpy()


# ---------------------------------------------------------------------- the model and its start


def layout(pairs: Nodes, nodes: int, dim: int, seed: int) -> Tensor:
    """Return codes ``(nodes, dim)`` that training starts from, made of the training pairs alone.

    The last coordinate is the depth. The others are those of a node above plus a step in a random direction, which is
    shorter where fewer nodes follow: nodes of one branch are near each other.

    Examples
    --------
    >>> codes = layout(np.array([[1, 0], [2, 1], [3, 0]]), nodes=4, dim=3, seed=0)
    >>> codes[:, 2].argsort(stable=True).tolist()
    [0, 1, 3, 2]
    """
    above: list[list[int]] = [[] for _ in range(nodes)]
    for low, high in pairs.tolist():
        above[low].append(high)

    @functools.cache
    def depth(node: int) -> int:
        return 1 + max(map(depth, above[node]), default=-1)

    depths = np.array([depth(node) for node in range(nodes)])
    # The deepest node above is a direct one, whatever else is known.
    parents = [max(upper, key=depth, default=None) for upper in above]
    size = np.ones(nodes)
    for node in np.argsort(-depths, kind="stable"):
        if parents[node] is not None:
            size[parents[node]] += size[node]
    random = np.random.default_rng(seed)
    steps = random.normal(size=(nodes, dim - 1))
    codes = steps / np.linalg.norm(steps, axis=1, keepdims=True)
    for node in np.argsort(depths, kind="stable"):
        if (parent := parents[node]) is not None:
            codes[node] = codes[parent] + codes[node] * (size[parent] / nodes) ** (1 / (dim - 1))
    codes = np.concatenate([codes, depths[:, None]], 1)
    return torch.from_numpy((codes - codes.mean(0)) / codes.std(0).clip(1e-6)).float()


def model_of(method: str, codes: Tensor) -> Embedded:
    """Return a new divergence between nodes that have codes of their own, or one for each side.

    Examples
    --------
    >>> model_of("two-sided", torch.eye(3))(torch.tensor([0]), torch.tensor([0])).shape
    torch.Size([1])
    """
    dim, both = codes.shape[1], method == "two-sided"
    first, second = (nn.Embedding.from_pretrained(codes.clone(), freeze=False) for _ in range(2))
    divergence = OrderEmbedding(dim) if method == "order" else make_head(TWO_SIDED if both else method, dim)
    return Embedded(first, divergence, second if both else None)


# ---------------------------------------------------------------------- training


class ClosureLoss(nn.Module):
    r"""Logistic loss of known pairs against pairs with random general nodes, and a penalty on broken inclusions.

    .. math:: \operatorname{mean}\, s(a S(x, y) - b) + 10 \operatorname{mean}\, s(b - a D(x, u))
        + w \operatorname{mean}\, a \max(0, D(z, y) - D(z, x)), \qquad s(t) = \log(1 + e^t)

    for known pairs (x, y) and random nodes u and z. S is :meth:`~askew.divergences.Divergence.order`, which may be
    negative where D is 0: known pairs are drawn deep into that region. The last term says that nothing is closer to x
    than to y, as y includes x. It compares values of the model with each other: no pair but the known ones is said to
    hold. The scale a and the threshold b are learned. Pairs that hold and are not known count as wrong if drawn.
    """

    def __init__(self, task: Closure, random: int, inclusion: float) -> None:
        super().__init__()
        self.nodes, self.random, self.inclusion = task.nodes, random, inclusion
        known = torch.eye(task.nodes, dtype=torch.bool)
        known[tuple(torch.from_numpy(task.train.T.copy()))] = True
        self.unknown = ~known
        self.log_scale = nn.Parameter(torch.tensor(1.0))
        self.threshold = nn.Parameter(torch.tensor(2.0))

    @torch.no_grad()
    def calibrate(self, model: Embedded, seed: int) -> None:
        """Set the scales of a model and of the loss: random pairs start about the threshold."""
        first, second = torch.randint(self.nodes, (2, CALIBRATION), generator=torch.Generator().manual_seed(seed))
        model.calibrate(first, second)
        size = float(model(first, second).mean())
        if size > 0:
            self.log_scale.sub_(math.log(size))

    def forward(self, model: Embedded, pairs: Tensor) -> Tensor:
        """Return the loss of a batch of known pairs: ``(n, 2) -> ()``."""
        low, high = pairs.T
        general, below = torch.randint(self.nodes, (2, self.random))
        x, y, scale = model.encode(low), model.encode(high, "second"), self.log_scale.exp()
        order = model.divergence.order(x, y)
        wrong = model.divergence.pairwise(x, model.encode(general, "second"))
        unknown = self.unknown[low][:, general]
        loss = functional.softplus(scale * order - self.threshold).mean()
        loss = loss + WRONG_WEIGHT * (functional.softplus(self.threshold - scale * wrong) * unknown).mean()
        z, through = model.encode(below), model.encode(low, "second")
        there, halfway = model.divergence.pairwise(z, torch.cat([y, through])).chunk(2, 1)
        return loss + self.inclusion * scale * (there - halfway).relu().mean()


def learn(
    method: str, task: Closure, dim: int, plan: Plan, random: int, inclusion: float, seed: int
) -> tuple[Embedded, float, int]:
    """Return the model of the epoch with the best F1 on the validation pairs, that F1, and the epoch."""
    torch.manual_seed(seed)
    model = model_of(method, layout(task.train, task.nodes, dim, seed))
    loss = ClosureLoss(task, random, inclusion)
    loss.calibrate(model, seed)
    best: tuple[float, int, dict[str, Tensor]] = (-1.0, 0, {})

    def look(_: Divergence, history: History) -> None:
        nonlocal best
        if len(history) % max(1, plan.epochs // LOOKS) == 0:
            valid, wrong = scores_of(model, task.valid), scores_of(model, task.valid_neg)
            score = f1(valid, wrong, best_threshold(valid, wrong))
            if score > best[0]:
                best = score, len(history), copy.deepcopy(model.state_dict())

    settings = plan.settings() | {"calibrate": False, "device": "cpu", "seed": seed, "callback": look}
    try:
        train(model, (torch.from_numpy(task.train.copy()),), loss, **settings)
    except TrainingDivergedError:
        if not best[2]:
            raise
    model.load_state_dict(best[2])
    return model, best[0], best[1]


# ---------------------------------------------------------------------- the experiment


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Return the cells of all methods, dimensions and shares."""
    shares = {"toy": (10,), "quick": (10, 50)}.get(scale, SHARES)
    settings = [f"d={dim}/{share}%" for dim in ((5,) if scale == "quick" else (2, 5)) for share in shares]
    options: dict[str, Value] = PLANS[scale] | {"data": "random trees" if scale == "toy" else "mammals"}
    return grid("closure", scale, seeds, settings, METHODS, options)


def run(cell: Cell) -> Outcome:
    """Choose rate, weight of inclusions, epoch and threshold on the validation pairs; return F1 on the test pairs."""
    dim, share = (int(part.strip("d=%")) for part in cell.setting.split("/"))
    task = random_closure(share) if cell["data"] == "random trees" else load_closure(share)
    epochs = math.ceil(cell["steps"] / math.ceil(len(task.train) / cell["batch"]))

    @functools.cache
    def trial(rate: float, inclusion: float) -> tuple[Embedded, float, int]:
        plan = Plan(epochs, cell["batch"], (rate,))
        return learn(cell.method, task, dim, plan, cell["random"], inclusion, cell.seed)

    rate = max(cell["rates"], key=lambda rate: trial(rate, cell["inclusion"][0])[1])
    inclusion = max(cell["inclusion"], key=lambda inclusion: trial(rate, inclusion)[1])
    model, score, epoch = trial(rate, inclusion)
    threshold = best_threshold(scores_of(model, task.valid), scores_of(model, task.valid_neg))
    tested = f1(scores_of(model, task.test), scores_of(model, task.test_neg), threshold)
    chosen = {"learning rate": rate, "inclusion": inclusion, "epoch": epoch, "validation": 100 * score}
    return Outcome({"f1": 100 * tested}, chosen=chosen)


NOTES = read_notes("closure")
CLOSURE = Experiment(
    name="closure",
    title="Link prediction in WordNet's mammals: pairs that follow from known ones",
    makes=("table 2 of Shadow Cones (ICLR 2024), not in the paper",),
    scores=(Score("f1", "F1, per cent", lower_is_better=False, digits=1),),
    seeds={"toy": 1, "quick": 1, "medium": 1, "paper": 5},
    minutes={"toy": 0.3, "quick": 5.0, "medium": 180.0, "paper": 10_000.0},
    cells=cells,
    run=run,
    needs=NOTES.needs,
    published=published("closure"),
    notes=NOTES.notes,
    claims=(Claim(NOTES.claim("quasimetrics"), "f1", OURS, QUASIMETRICS, ours=True),),
)
