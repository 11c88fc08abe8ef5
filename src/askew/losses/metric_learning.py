"""Any divergence in the losses and miners of pytorch-metric-learning."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn

from askew import checks
from askew.divergences import Divergence


class MetricLearningDistance(nn.Module):
    """A divergence as a distance of pytorch-metric-learning, for its losses and miners.

    The matrix that those ask for is D(query, reference), the query first: their anchors are our anchors. Nothing is
    normalised, there is no power, and small is near. The parameters of the divergence are parameters of the loss that
    it is given to, so that ``loss.parameters()`` has them.

    Use it for the losses and miners that are not here. For all triplets and for pairs, :class:`AllTriplets` and
    :class:`Contrastive` give the same numbers, the first of them at a fraction of the time and memory. Some of the
    losses are written for one distance and refuse any other (Circle, SmoothAP, Angular, FastAP and the classification
    losses such as ArcFace); ``swap=True`` takes D(positive, negative) for D(anchor, negative), which only a symmetric
    divergence allows.

    The divergence must accept the embeddings that the loss is called with: the encoder, if any, stays outside.

    Parameters
    ----------
    divergence
        Any divergence of askew. It needs the package pytorch-metric-learning: ``pip install ".[metric-learning]"``.

    Examples
    --------
    >>> import torch
    >>> from pytorch_metric_learning.losses import TripletMarginLoss
    >>> from askew.divergences import NeuralBregman
    >>> loss = TripletMarginLoss(distance=MetricLearningDistance(NeuralBregman(4)))
    >>> loss(torch.randn(6, 4), torch.tensor([0, 0, 0, 1, 1, 1])).shape
    torch.Size([])
    """

    def __new__(cls, divergence: Divergence) -> MetricLearningDistance:
        """Make an object that is also a distance of the package, which is imported only now."""
        made: MetricLearningDistance = nn.Module.__new__(_joined())
        return made

    def __init__(self, divergence: Divergence) -> None:
        if not isinstance(divergence, Divergence):
            got = type(divergence).__name__
            raise TypeError(checks.message("divergence of MetricLearningDistance", "an askew divergence", got))
        super().__init__(normalize_embeddings=False, p=1, power=1, is_inverted=False)
        self.divergence = divergence

    def __reduce__(self) -> tuple[Any, ...]:
        # The joined class has no name to be found by.
        return MetricLearningDistance, (self.divergence,), {"training": self.training}

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Return D between all queries and references: ``(n, dim), (m, dim) -> (n, m)``."""
        return self.divergence.pairwise(query_emb, ref_emb)

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Return D row by row: ``(n, dim), (n, dim) -> (n,)``."""
        result: Tensor = self.divergence(query_emb, ref_emb)
        return result


@functools.cache
def _joined() -> type[MetricLearningDistance]:
    """Return the class that inherits from the package as well."""
    name = MetricLearningDistance.__name__
    distances = checks.optional_import("pytorch_metric_learning.distances", "metric-learning", name)
    return type(name, (MetricLearningDistance, distances.BaseDistance), {"__doc__": MetricLearningDistance.__doc__})
