"""Contrastive losses: points of one label should be near, points of two labels far."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from askew import checks
from askew.losses.base import (
    LabelLoss,
    Loss,
    PairLoss,
    check_labels,
    check_nonnegative,
    check_values,
    mean_of_nonzero,
    nan_if_any,
    relations,
)


class _TwoMargins(Loss):
    """Two means over the terms above zero: of positives that are too far and of negatives that are too near."""

    def __init__(self, positive_margin: float = 0.0, negative_margin: float = 1.0) -> None:
        super().__init__()
        self.positive_margin = check_nonnegative(positive_margin, f"positive_margin of {type(self).__name__}")
        self.negative_margin = check_nonnegative(negative_margin, f"negative_margin of {type(self).__name__}")
        self.median = (self.positive_margin + self.negative_margin) / 2 or 1.0

    def _mean(self, values: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        # Values of the other kind are replaced before the formula: no infinity is multiplied by zero.
        too_far = functional.relu(torch.where(positive, values - self.positive_margin, 0.0))
        too_near = functional.relu(torch.where(negative, self.negative_margin - values, 0.0))
        return (mean_of_nonzero(too_far) + mean_of_nonzero(too_near)) * nan_if_any(values)

    def extra_repr(self) -> str:
        """Show the margins."""
        return f"positive_margin={self.positive_margin:g}, negative_margin={self.negative_margin:g}"


class Contrastive(_TwoMargins, LabelLoss):
    r"""Positives nearer than one margin, negatives farther than another, over all ordered pairs of a batch.

    .. math:: \operatorname{mean}^+_{a, p} \max(0, D(x_a, x_p) - m_+) + \operatorname{mean}^+_{a, n}
        \max(0, m_- - D(x_a, x_n))

    where mean^+ is the mean over the terms above zero, and zero without any. D(x_i, x_j) and D(x_j, x_i) both take
    part, a point with itself does not. It equals pytorch-metric-learning's ``ContrastiveLoss``.

    Use it where D itself must mean something, such as "same below 0.5" in verification or deduplication. For
    rankings, :class:`AllTriplets` and :class:`Listwise` ask for less and get more.

    Parameters
    ----------
    positive_margin
        Below it a pair of one label is near enough.
    negative_margin
        Above it a pair of two labels is far enough.

    References
    ----------
    Hadsell, Chopra, LeCun (2006), Dimensionality reduction by learning an invariant mapping, without the squares.

    Examples
    --------
    >>> matrix = torch.tensor([[0.0, 1.0, 0.5], [1.0, 0.0, 3.0], [0.5, 3.0, 0.0]])
    >>> Contrastive()(matrix, torch.tensor([0, 0, 1]))
    tensor(1.5000)
    """

    def forward(self, matrix: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a matrix D(x_i, x_j) and the labels: ``(n, n), (n,) -> ()``."""
        check_labels(matrix, labels, "Contrastive")
        return self._mean(matrix, *relations(labels.to(matrix.device)))


class ContrastivePairs(_TwoMargins, PairLoss):
    r"""The contrastive loss of given pairs, each told to be of one kind or not.

    .. math:: \operatorname{mean}^+_{t = 1} \max(0, D(x, y) - m_+)
        + \operatorname{mean}^+_{t = 0} \max(0, m_- - D(x, y))

    where mean^+ is the mean over the terms above zero, and zero without any.

    Use it where only pairs are labelled, as in verification. With a label for each point, :class:`Contrastive` makes
    all pairs of a batch.

    Parameters
    ----------
    positive_margin
        Below it a pair of one kind is near enough.
    negative_margin
        Above it another pair is far enough.

    Examples
    --------
    >>> ContrastivePairs()(torch.tensor([0.5, 0.25]), torch.tensor([1, 0]))
    tensor(1.2500)
    """

    def forward(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of values D(x, y) and targets 1 (one kind) or 0: ``(n,), (n,) -> ()``."""
        check_values(values, targets, ("values", "targets"), "ContrastivePairs")
        targets = targets.to(values.device)
        positive, negative = targets == 1, targets == 0
        if checks.inspectable(values, targets) and not bool((positive | negative).all()):
            got = targets[~(positive | negative)][0].item()
            raise ValueError(checks.message("targets of ContrastivePairs", "1 (one kind) or 0", got))
        return self._mean(values, positive, negative)
