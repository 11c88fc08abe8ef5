"""Loss base classes for label, pair and triplet supervision."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from askew import checks
from askew.divergences import Divergence

# Larger margins would overflow in single precision once they are added to something.
LARGEST_MARGIN = 1e30


class Loss(nn.Module, ABC):
    """A number to minimise, computed from values of a divergence and supervision.

    ``forward`` takes values that were already computed, so a loss can be used in any loop; :meth:`of` computes them
    from a model and a batch, and is what :func:`askew.fit` calls.

    Examples
    --------
    >>> import askew, torch
    >>> x, y = torch.zeros(2, 3), torch.ones(2, 3)
    >>> askew.losses.Regression().of(askew.make("euclidean", 3), x, y, torch.tensor([3.0, 3.0])).item()
    0.0
    """

    # The names of the parts of a batch, for errors.
    parts: ClassVar[tuple[str, ...]]
    # The median that D should have at the start, where there are no targets to say it.
    median: float = 1.0
    # Whether only the order of each row of a matrix matters, so that near pairs need few digits.
    ranks: ClassVar[bool] = False
    # The relative error that near pairs may have in training then.
    near_rtol: float = 0.1

    def calibration(self, *batch: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return first points, second points and, if known, values of D by which a model is calibrated."""
        return batch[0], batch[2], None

    @abstractmethod
    def of(self, model: Divergence, *batch: Tensor) -> Tensor:
        """Return the loss of a model on a batch."""


class LabelLoss(Loss):
    """A loss of all pairs of a labelled batch: ``loss(matrix, labels)``, ``(n, n), (n,) -> ()``.

    Row i of the matrix is D(x_i, .): the anchor comes first.

    Examples
    --------
    >>> from askew.losses import AllTriplets
    >>> isinstance(AllTriplets(margin=1.0), LabelLoss)
    True
    """

    parts = ("points", "labels")
    ranks = True

    def calibration(self, *batch: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the points in two orders."""
        points = batch[0]
        order = torch.randperm(points.shape[0], generator=torch.Generator().manual_seed(0)).to(points.device)
        return points, points[order], None

    def of(self, model: Divergence, *batch: Tensor) -> Tensor:
        """Return the loss of a model on points and their labels."""
        points, labels = batch
        result: Tensor = self(model.pairwise(points, points), labels)
        return result


class PairLoss(Loss):
    """A loss of values against targets: ``loss(values, targets)``, ``(n,), (n,) -> ()``.

    Examples
    --------
    >>> import torch
    >>> from askew.losses import Regression
    >>> Regression()(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])).item()
    2.0
    """

    parts = ("first points", "second points", "targets")

    def calibration(self, *batch: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the pairs and their targets."""
        return batch[0], batch[1], batch[2].clamp_min(0)

    def of(self, model: Divergence, *batch: Tensor) -> Tensor:
        """Return the loss of a model on pairs of points and the values wanted for them."""
        first, second, targets = batch
        result: Tensor = self(model(first, second), targets)
        return result


class TripletLoss(Loss):
    """A loss of given triplets: ``loss(D(anchor, positive), D(anchor, negative))``, ``(n,), (n,) -> ()``.

    Examples
    --------
    >>> import torch
    >>> from askew.losses import TripletMargin
    >>> TripletMargin(margin=1.0)(torch.tensor([1.0]), torch.tensor([1.5])).item()
    0.5
    """

    parts = ("anchors", "positives", "negatives")

    def of(self, model: Divergence, *batch: Tensor) -> Tensor:
        """Return the loss of a model on anchors and points that should be nearer and farther."""
        result: Tensor = self(*self.values(model, *batch))
        return result

    def values(self, model: Any, anchors: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """Return D(anchor, positive) and D(anchor, negative); each point is encoded once."""
        if getattr(model, "second", None) is not None:  # anchors may be things of another kind
            others = model.encode(torch.cat([positives, negatives]), "second").chunk(2)
            anchors, (positives, negatives), model = model.encode(anchors), others, model.divergence
        elif hasattr(model, "encode"):
            points, model = embed(model, torch.cat([anchors, positives, negatives]))
            anchors, positives, negatives = points.chunk(3)
        return model(anchors, positives), model(anchors, negatives)


def embed(model: Any, points: Tensor) -> tuple[Tensor, Divergence]:
    """Return the embeddings of points and the divergence between them; without an encoder, the points and the model."""
    return (model.encode(points), model.divergence) if hasattr(model, "encode") else (points, model)


class MarginLoss(Loss):
    """A loss whose only parameter is a margin."""

    margin: float

    def __init__(self, margin: float = 0.2) -> None:
        super().__init__()
        what = f"margin of {type(self).__name__}"
        if isinstance(margin, bool) or not isinstance(margin, Real) or not abs(margin) <= LARGEST_MARGIN:
            raise ValueError(checks.message(what, f"a number of at most {LARGEST_MARGIN:g} in size", repr(margin)))
        self.margin = float(margin)
        # D that starts far above the margin learns slowly: all triplets are then as good as decided.
        self.median = self.margin / 2 if self.margin > 0 else 1.0

    def extra_repr(self) -> str:
        """Show the margin."""
        return f"margin={self.margin:g}"


def check_labels(matrix: Tensor, labels: Tensor, owner: str, square: bool = True) -> None:
    """Raise unless a floating matrix of all points, or with ``square=False`` rows of it, and all labels were given."""
    hint = "Make it with divergence.pairwise(x, x)."
    if square and not (isinstance(matrix, Tensor) and matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]):
        raise ValueError(checks.message(f"matrix of {owner}", "a tensor of shape (n, n)", _shape(matrix), hint))
    if matrix.dtype not in checks.DTYPES:
        raise TypeError(checks.message(f"matrix of {owner}", "float32, float64 or bfloat16", matrix.dtype, hint))
    if not (isinstance(labels, Tensor) and labels.shape == matrix.shape[1:]):
        must = f"a tensor of shape ({matrix.shape[1]},), one for each row of the matrix"
        raise ValueError(checks.message(f"labels of {owner}", must, _shape(labels)))


def check_values(first: Tensor, second: Tensor, names: tuple[str, str], owner: str) -> None:
    """Raise unless two tensors of one shape were given, the first of them floating."""
    if not isinstance(first, Tensor):
        raise TypeError(checks.message(f"{names[0]} of {owner}", "a torch.Tensor", type(first).__name__))
    if first.dtype not in checks.DTYPES:
        raise TypeError(checks.message(f"{names[0]} of {owner}", "float32, float64 or bfloat16", first.dtype))
    if not (isinstance(second, Tensor) and second.shape == first.shape):
        must = f"a tensor of shape {tuple(first.shape)} like its {names[0]}"
        raise ValueError(checks.message(f"{names[1]} of {owner}", must, _shape(second)))


def check_nonnegative(value: float, what: str) -> float:
    """Return ``value`` if it is a finite number, zero or above."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < math.inf:
        raise ValueError(checks.message(what, "a finite number, zero or above", repr(value)))
    return float(value)


def relations(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return which ordered pairs have one label, a point with itself left out, and which have two: ``(n, n)`` each."""
    same = labels[:, None] == labels
    return same.clone().fill_diagonal_(False), ~same


def mean_of_nonzero(terms: Tensor) -> Tensor:
    """Return the mean of the terms above zero, or zero with a gradient of zero if there are none."""
    return terms.sum() / (terms > 0).sum().clamp_min(1)


def nan_if_any(matrix: Tensor) -> Tensor:
    """Return NaN if the matrix has one, else 1: a factor for losses that would not see it otherwise."""
    one = matrix.new_ones(())
    return torch.where(matrix.detach().isnan().any(), one * math.nan, one)


def _shape(value: object) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
