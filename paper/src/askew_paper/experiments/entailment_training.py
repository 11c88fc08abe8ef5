"""Learning divergences between words: the divergences that only this experiment has, the loss and the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from askew.divergences import Divergence, Embedded
from askew.training import History, fit
from askew_paper.experiments.entailment_task import Flags, Rows, Task

__all__ = ["Cosine", "EntailmentLoss", "OrderEmbedding", "Plan", "learn"]

# Pairs of random words that the scales of a divergence are set by.
CALIBRATION = 4000


# ---------------------------------------------------------------------- divergences


class Cosine(Divergence):
    """One minus the cosine of the angle between two vectors.

    It needs no training and is symmetric: it says how related two words are, never which is the more general.

    Examples
    --------
    >>> Cosine(2)(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])).item()
    1.0
    """

    symmetric = True

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        unit_x, unit_y = functional.normalize(x, dim=-1), functional.normalize(y, dim=-1)
        # Half the squared chord is 1 - cos, and exactly zero at x = y.
        return (unit_x - unit_y).square().sum(-1) / 2


class OrderEmbedding(Divergence):
    """How far a point is from being above another in every coordinate.

    D(x, y) = |max(0, y - x)|^2 is zero if and only if no coordinate of y exceeds that of x. So the general word y has
    the smaller coordinates. It is made for orders such as hypernymy and says nothing of pairs that are in order.

    References
    ----------
    Vendrov, Kiros, Fidler, Urtasun (2016), Order-embeddings of images and language.

    Examples
    --------
    >>> order = OrderEmbedding(2)
    >>> x, y = torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0])
    >>> order(x, y).item(), order(y, x).item()
    (0.0, 4.0)
    """

    root_triangle = True

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return (y - x).relu().square().sum(-1)


# ---------------------------------------------------------------------- training


@dataclass(frozen=True)
class Plan:
    """How a divergence is trained.

    Parameters
    ----------
    epochs, batch, learning_rate
        As in :func:`askew.fit`.
    decay
        Weight decay of AdamW.
    random
        Random words that all first and all second words of a batch are compared with.
    random_weight, reversed_weight, sibling_weight, graded_weight
        What the kinds of pairs count, relative to the pairs that hold.
    graded_batch
        Graded pairs of a step.
    noise
        Standard deviation of what is added to each vector in training, relative to that of the vectors.

    Examples
    --------
    >>> Plan(epochs=1).learning_rate
    0.003
    """

    epochs: int = 6
    batch: int = 256
    learning_rate: float = 3e-3
    decay: float = 0.0
    random: int = 16
    random_weight: float = 1.0
    reversed_weight: float = 1.0
    sibling_weight: float = 1.0
    graded_weight: float = 1.0
    graded_batch: int = 64
    noise: float = 0.0


class EntailmentLoss(nn.Module):
    r"""Logistic loss of pairs that hold against four kinds of pairs that do not.

    .. math:: \operatorname{mean}\, s(a D(x, y) - b) + \sum_{k} w_k \operatorname{mean}\, s(b - a D(x_k, y_k)),
        \qquad s(u) = \log(1 + e^u)

    where y is above x. The other pairs are x with random words, random words with y, the reversed pair (y, x), and x
    with a sibling; those that the taxonomy says hold count nothing. The scale a and the threshold b are learned too.
    Graded pairs have the cross-entropy between their degree and what the same a and b make of D.

    Parameters
    ----------
    task
        Where words and pairs come from.
    plan
        Numbers and weights.

    Examples
    --------
    >>> from askew_paper.data.taxonomy import random_taxonomy
    >>> from askew.divergences import make
    >>> from askew_paper.experiments.entailment_task import make_task
    >>> tree, vectors = random_taxonomy()
    >>> loss = EntailmentLoss(make_task(vectors, tree, held_out=()), Plan())
    >>> bool(loss(Embedded(nn.Linear(16, 4), make("nbd", 4)), torch.from_numpy(loss.task.train[:8])) > 0)
    True
    """

    def __init__(self, task: Task, plan: Plan) -> None:
        super().__init__()
        self.task, self.plan = task, plan
        self.points = torch.from_numpy(task.vectors.vectors)
        self.spread = self.points.std(0)
        self.degrees = torch.from_numpy(task.degrees)
        self.log_scale = nn.Parameter(torch.tensor(1.0))
        self.threshold = nn.Parameter(torch.tensor(2.0))

    def forward(self, model: Embedded, pairs: Tensor) -> Tensor:
        """Return the loss of a batch of pairs that hold: ``(n, 2) -> ()``."""
        task, plan = self.task, self.plan
        # From torch's generator, which the training loop seeds.
        random = np.random.default_rng(int(torch.randint(2**62, ())))
        first, second = pairs.numpy().T
        n, k = len(pairs), plan.random
        drawn = task.train[random.integers(len(task.train), size=(2, k))]
        # Half of the random second words are words that something is below, half are any.
        others = np.where(random.random(k) < 0.5, drawn[0, :, 0], drawn[0, :, 1])
        firsts = drawn[1, :, 0]
        siblings = task.sibling(first, random.random(n))
        graded = random.integers(max(1, len(task.graded)), size=min(plan.graded_batch, len(task.graded)))
        words = np.concatenate([first, second, siblings, others, firsts, task.graded[graded].T.ravel()])
        g = len(graded)
        x, y, z, u, v, low, high = model.encode(self._points(words)).split([n, n, n, k, k, g, g])
        rows = self._logits(model.divergence(torch.cat([x, y, x, low]), torch.cat([y, x, z, high])))
        right, reverse, sibling, degree = rows.split([n, n, n, g])
        loss = functional.softplus(-right).mean()
        to_random = self._wrong(self._logits(model.divergence.pairwise(x, u)), task.holds(first[:, None], others))
        from_random = self._wrong(self._logits(model.divergence.pairwise(v, y)), task.holds(firsts[:, None], second))
        loss = loss + plan.random_weight * (to_random + from_random)
        loss = loss + plan.reversed_weight * self._wrong(reverse, task.holds(second, first))
        loss = loss + plan.sibling_weight * self._wrong(sibling, task.holds(first, siblings))
        if g:
            wanted = self.degrees[torch.from_numpy(graded)]
            loss = loss + plan.graded_weight * functional.binary_cross_entropy_with_logits(degree, wanted)
        return loss

    def _points(self, words: Rows) -> Tensor:
        """Return the vectors of words, with noise."""
        points = self.points[torch.from_numpy(words)]
        return points + self.plan.noise * self.spread * torch.randn_like(points) if self.plan.noise else points

    def _logits(self, divergences: Tensor) -> Tensor:
        return self.threshold - self.log_scale.exp() * divergences

    @staticmethod
    def _wrong(logits: Tensor, holds: Flags) -> Tensor:
        """Return the loss of pairs that do not hold; those that do count nothing."""
        return (functional.softplus(logits) * torch.from_numpy(~holds)).mean()


def learn(model: Embedded, task: Task, plan: Plan, seed: int = 0) -> History:
    """Train an encoder of word vectors and a divergence so that D(word, word above it) is small.

    Parameters
    ----------
    model
        Trained in place.
    task
        What is learned from.
    plan
        How.
    seed
        Of the order of the pairs, of negatives and of noise.

    Examples
    --------
    >>> from askew_paper.data.taxonomy import random_taxonomy
    >>> from askew.divergences import make
    >>> from askew_paper.experiments.entailment_task import make_task
    >>> tree, vectors = random_taxonomy(depth=3, branches=3)
    >>> model = Embedded(nn.Linear(16, 8), make("nbd", 8))
    >>> history = learn(model, make_task(vectors, tree, held_out=()), Plan(epochs=20, batch=32))
    >>> history["loss"][-1] < history["loss"][0]
    True
    """
    loss = EntailmentLoss(task, plan)
    rows = np.random.default_rng(seed).integers(len(task.vectors), size=(2, CALIBRATION))
    with torch.no_grad():
        first, second = (model.encode(loss.points[torch.from_numpy(part)]) for part in rows)
        model.divergence.calibrate(first, second)
        # Whatever the divergence is measured in, random pairs start about the threshold.
        size = float(model.divergence(first, second).mean())
        if size > 0:
            loss.log_scale.sub_(math.log(size))

    def optimizer(parameters: Sequence[nn.Parameter]) -> Optimizer:
        return AdamW(parameters, lr=plan.learning_rate, weight_decay=plan.decay)

    return fit(
        model,
        (torch.from_numpy(task.train),),
        loss,
        epochs=plan.epochs,
        batch_size=plan.batch,
        optimizer=optimizer,
        calibrate=False,
        seed=seed,
        device="cpu",
        progress=False,
    )
