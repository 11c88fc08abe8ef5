"""Training of the entailment experiment: two divergences, the loss and the optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from askew.divergences import Divergence, Embedded
from askew.training import History
from askew_paper.experiments.entailment_task import Flags, Rows, Task
from askew_paper.experiments.training import Plan, train

__all__ = ["Cosine", "EntailmentLoss", "OrderEmbedding", "learn_entailment"]

# Pairs of random words that set the scales of a divergence.
CALIBRATION = 4000


class Cosine(Divergence):
    """One minus the cosine of the angle between two vectors.

    It needs no training. It is symmetric: it measures how related two words are, not which is more general.

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
    """Order embedding: the squared distance of a point from being above another in every coordinate.

    D(x, y) = |max(0, y - x)|^2 is zero if and only if no coordinate of y exceeds that of x: the general word y has the
    smaller coordinates. Use it for orders such as hypernymy; it does not rank pairs that are in order.

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


class EntailmentLoss(nn.Module):
    r"""Logistic loss of pairs that hold against four kinds of pairs that do not.

    .. math:: \operatorname{mean}\, s(a D(x, y) - b) + \sum_{k} w_k \operatorname{mean}\, s(b - a D(x_k, y_k)),
        \qquad s(u) = \log(1 + e^u)

    where y is above x. The other pairs are x with random words, random words with y, the reversed pair (y, x), and x
    with a sibling; pairs that hold by the taxonomy do not count. The scale a and the threshold b are learned. Graded
    pairs have the cross-entropy between their degree and the logistic function of b - a D.

    ``random`` words are compared with all first and all second words of a batch; ``graded_batch`` is the number of
    graded pairs of a step, and ``noise`` the deviation of the noise on each vector, relative to that of the vectors.
    """

    def __init__(
        self,
        task: Task,
        *,
        random: int = 16,
        random_weight: float = 1.0,
        reversed_weight: float = 1.0,
        sibling_weight: float = 1.0,
        graded_weight: float = 1.0,
        graded_batch: int = 64,
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.task, self.random, self.graded_batch, self.noise = task, random, graded_batch, noise
        self.random_weight, self.reversed_weight = random_weight, reversed_weight
        self.sibling_weight, self.graded_weight = sibling_weight, graded_weight
        self.points = torch.from_numpy(task.vectors.vectors)
        self.spread = self.points.std(0)
        self.degrees = torch.from_numpy(task.degrees)
        self.log_scale = nn.Parameter(torch.tensor(1.0))
        self.threshold = nn.Parameter(torch.tensor(2.0))

    def forward(self, model: Embedded, pairs: Tensor) -> Tensor:
        """Return the loss of a batch of pairs that hold: ``(n, 2) -> ()``."""
        task = self.task
        # From torch's generator, which the training loop seeds.
        random = np.random.default_rng(int(torch.randint(2**62, ())))
        first, second = pairs.numpy().T
        n, k = len(pairs), self.random
        drawn = task.train[random.integers(len(task.train), size=(2, k))]
        # Half of the random second words are more general words of pairs, half are any words.
        others = np.where(random.random(k) < 0.5, drawn[0, :, 0], drawn[0, :, 1])
        firsts = drawn[1, :, 0]
        siblings = task.sibling(first, random.random(n))
        graded = random.integers(max(1, len(task.graded)), size=min(self.graded_batch, len(task.graded)))
        words = np.concatenate([first, second, siblings, others, firsts, task.graded[graded].T.ravel()])
        g, points = len(graded), self._points(words)
        sizes = [n, n, n, k, k, g, g]
        x, y, _, _, v, low, _ = left = model.encode(points).split(sizes)
        right_side = left if model.second is None else model.encode(points, "second").split(sizes)
        x_right, y_right, z, u, _, _, high = right_side
        D, upper = model.divergence, torch.cat([y_right, x_right, z, high])
        right, reverse, sibling, degree = self._logits(D(torch.cat([x, y, x, low]), upper)).split([n, n, n, g])
        loss = functional.softplus(-right).mean()
        to_random = self._wrong(self._logits(D.pairwise(x, u)), task.holds(first[:, None], others))
        from_random = self._wrong(self._logits(D.pairwise(v, y_right)), task.holds(firsts[:, None], second))
        loss = loss + self.random_weight * (to_random + from_random)
        loss = loss + self.reversed_weight * self._wrong(reverse, task.holds(second, first))
        loss = loss + self.sibling_weight * self._wrong(sibling, task.holds(first, siblings))
        if g:
            wanted = self.degrees[torch.from_numpy(graded)]
            loss = loss + self.graded_weight * functional.binary_cross_entropy_with_logits(degree, wanted)
        return loss

    def _points(self, words: Rows) -> Tensor:
        points = self.points[torch.from_numpy(words)]
        return points + self.noise * self.spread * torch.randn_like(points) if self.noise else points

    def _logits(self, divergences: Tensor) -> Tensor:
        return self.threshold - self.log_scale.exp() * divergences

    @staticmethod
    def _wrong(logits: Tensor, holds: Flags) -> Tensor:
        """Return the loss of pairs that do not hold; those that do count nothing."""
        return (functional.softplus(logits) * torch.from_numpy(~holds)).mean()


def learn_entailment(model: Embedded, loss: EntailmentLoss, plan: Plan, seed: int = 0) -> History:
    """Train an encoder of word vectors and a divergence so that D(word, word above it) is small.

    The seed is that of the order of the pairs, of negatives and of noise.
    """
    task = loss.task
    rows = np.random.default_rng(seed).integers(len(task.vectors), size=(2, CALIBRATION))
    with torch.no_grad():
        first, second = (loss.points[torch.from_numpy(part)] for part in rows)
        model.calibrate(first, second)
        # Random pairs start about the threshold, whatever the unit of the divergence is.
        size = float(model(first, second).mean())
        if size > 0:
            loss.log_scale.sub_(math.log(size))

    def optimizer(parameters: Sequence[nn.Parameter]) -> Optimizer:
        return AdamW(parameters, lr=plan.rates[0], weight_decay=0.0)

    settings = plan.settings() | {"optimizer": optimizer, "calibrate": False, "device": "cpu", "seed": seed}
    return train(model, (torch.from_numpy(task.train),), loss, **settings)
