"""A loss of lists of items that are more or less relevant to queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from askew import checks
from askew.divergences import Divergence
from askew.losses.base import Loss, check_values


class GradedSoftmax(Loss):
    r"""The cross-entropy between grades and a softmax of nearness, over all items of a batch.

    .. math:: -\operatorname{mean}_q \sum_i \frac{g_{qi}}{\sum_j g_{qj}}
        \log \frac{e^{-s D(q, i)}}{\sum_j e^{-s D(q, j)}}

    over queries q that have an item with a grade above 0 in the batch; without any the loss is zero. Items with grade 0
    are the negatives: give each query the items of all others ("in-batch negatives"), and every known grade, so that no
    relevant item is taken for a negative. The scale s is learned with the model.

    Use it for clicks and graded judgements, where only the order of each query's items matters. It ranks by
    :meth:`askew.Divergence.pairwise_order`, as search does, so a drift has a gradient also where D is 0.

    Parameters
    ----------
    scale
        The scale s at the start.

    References
    ----------
    Cao et al. (2007), Learning to rank: from pairwise approach to listwise approach (ListNet); in-batch negatives:
    Henderson et al. (2017), Efficient natural language response suggestion for Smart Reply.

    Examples
    --------
    >>> GradedSoftmax()(torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[2.0, 0.0, 0.0]]))
    tensor(0.3490, grad_fn=...)
    """

    parts = ("queries", "items", "grades")
    ranks = True

    def calibration(self, *batch: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return queries and items in turn, as many as there are of the more numerous."""
        queries, items, _ = batch
        numbers = torch.arange(max(len(queries), len(items)), device=queries.device)
        return queries[numbers % len(queries)], items[numbers % len(items)], None

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = checks.check_positive(scale, "scale of GradedSoftmax")
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))

    def of(self, model: Divergence, *batch: Tensor) -> Tensor:
        """Return the loss of a model on queries, items and the grades of all pairs, ``(n, ...), (m, ...), (n, m)``."""
        queries, items, grades = batch
        result: Tensor = self(model.pairwise_order(queries, items), grades)
        return result

    def forward(self, matrix: Tensor, grades: Tensor) -> Tensor:
        """Return the loss of D(query, item) and grades of zero or above: ``(n, m), (n, m) -> ()``."""
        check_values(matrix, grades, ("matrix", "grades"), "GradedSoftmax")
        grades = grades.to(matrix.device, matrix.dtype)
        if checks.inspectable(matrix, grades) and bool((grades < 0).any()):
            raise ValueError(checks.message("grades of GradedSoftmax", "zero or above", grades.min().item()))
        totals = grades.sum(1, keepdim=True)
        logarithms = (-self.log_scale.exp() * matrix).log_softmax(1)
        # Items without a grade have no part in the sum, also if they are infinitely far.
        terms = torch.where(grades > 0, logarithms, 0.0) * (grades / totals.clamp_min(torch.finfo(grades.dtype).tiny))
        return -terms.sum() / (totals > 0).sum().clamp_min(1)

    def extra_repr(self) -> str:
        """Show the scale at the start."""
        return f"scale={self.scale:g}"
