"""Triplet losses: an anchor should be nearer to a positive than to a negative, by a margin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from askew import checks
from askew.losses.base import (
    LabelLoss,
    MarginLoss,
    TripletLoss,
    check_labels,
    check_values,
    mean_of_nonzero,
    nan_if_any,
    relations,
)
from askew.losses.counting import count_by_packed_sort, count_by_sorting

# Adds a tensor over processes.
Add = Callable[[Tensor], Tensor]


class _MeanOfTriplets(torch.autograd.Function):
    """The mean over the triplets above zero, on a CPU; the backward pass multiplies by counts of the forward pass."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, labels: Tensor, margin: float, add: Add | None) -> Tensor:
        with np.errstate(all="ignore"):  # infinities and NaN are taken care of
            counts, number, total = _count(matrix.detach().contiguous(), labels, margin)
        if add is not None:
            number, total = add(torch.tensor([number, total], dtype=torch.float64)).tolist()
        if number == 0:
            value = ctx.scale = total  # zero, or NaN
        else:
            value, ctx.scale = total / number + margin, float("nan") if total != total else 1 / number
        ctx.save_for_backward(counts)
        return matrix.new_tensor(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        # The counts do not change with the matrix, so that this is right for a second derivative as well.
        (counts,) = ctx.saved_tensors
        return counts * (grad * ctx.scale), None, None, None


def _count(matrix: Tensor, labels: Tensor, margin: float) -> tuple[Tensor, float, float]:
    """Return the counts, how many triplets are above zero, and their sum without the margins."""
    values = matrix.numpy()
    if values.dtype == np.float32:
        counts = count_by_packed_sort(values, labels.numpy(), margin)
    else:
        counts = count_by_sorting(matrix, labels, margin).numpy()
    total = _inner_product(counts, values)
    if total - total != 0.0:  # an infinity in no triplet does no harm, a NaN does everywhere
        total = float("nan") if np.isnan(values).any() else _inner_product(counts, np.where(counts == 0, 0, values))
    return torch.from_numpy(counts), 0.5 * float(np.abs(counts).sum(dtype=np.float64)), total


def _inner_product(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    # Not by a BLAS: its threads cost milliseconds to wake on a busy machine, many times what there is to do.
    return float(np.einsum("ij,ij", first, second, dtype=np.float64))


class AllTriplets(MarginLoss, LabelLoss):
    r"""The mean over all triplets of a batch that violate the margin, exact, without listing them.

    .. math:: \operatorname{mean} \{\ell_{apn} : \ell_{apn} > 0\}, \qquad
        \ell_{apn} = \max(0, \text{margin} + D(x_a, x_p) - D(x_a, x_n))

    over anchors a, positives p of the same label, p different from a, and negatives n of another label. Without any
    triplet above zero, the loss and its gradient are zero. The value and the gradient are those of
    pytorch-metric-learning's ``TripletMarginLoss`` with all triplets, in time O(n^2 log n) and memory O(n^2) where
    that needs O(n^3): batches of thousands are no trouble.

    Use it as the first choice for labels with a learned divergence. A margin of about the typical value of D at the
    start does well; after :meth:`~askew.Divergence.calibrate` that is 1. It looks at differences within a row only,
    so it says nothing about the size of D: for thresholds on D, take :class:`Contrastive`. For rankings judged by
    average precision, :class:`Listwise` is better and slower.

    A NaN anywhere in the matrix makes the loss and its gradient NaN. The second derivative is zero, as that of any
    piecewise linear function.

    Parameters
    ----------
    margin
        How much farther than a positive a negative must be; zero and negative numbers are allowed.

    References
    ----------
    Weinberger, Saul (2009), Distance metric learning for large margin nearest neighbor classification; Hermans,
    Beyer, Leibe (2017), In defense of the triplet loss, "batch all" with the mean over non-zero terms.

    Examples
    --------
    >>> matrix = torch.tensor([[0.0, 1.0, 1.1], [1.0, 0.0, 3.0], [1.0, 1.0, 0.0]])
    >>> AllTriplets(margin=0.2)(matrix, torch.tensor([0, 0, 1]))
    tensor(0.1000)
    """

    def forward(self, matrix: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a matrix D(x_i, x_j) and the labels: ``(n, n), (n,) -> ()``."""
        check_labels(matrix, labels, "AllTriplets")
        return matrix.sum() if matrix.numel() == 0 else self._of(matrix, labels, None)

    @property
    def divisible(self) -> bool:
        """Whether ``of_rows`` matches a call of the loss: a subclass or a hook that changes only one of them does not.

        If so, each of several processes computes the terms of its own anchors; otherwise each gets the whole matrix.
        """
        if "forward" in vars(self) or self._forward_hooks or self._forward_pre_hooks:
            return False
        kinds = (kind for kind in type(self).__mro__ if vars(kind).keys() & {"of_rows", "forward", "__call__"})
        return "of_rows" in vars(next(kinds))

    def of_rows(self, rows: Tensor, labels: Tensor, add: Add) -> Tensor:
        """Return the loss of a batch of which each process has some rows, the same in all of them.

        Parameters
        ----------
        rows
            The matrix of the first m points and all of them, ``(m, n)``.
        labels
            The labels of all points, ``(n,)``.
        add
            Adds a tensor over processes; the gradient goes to the tensor of each of them.
        """
        check_labels(rows, labels, "AllTriplets", square=False)
        return self._of(rows, labels, add)

    def _of(self, matrix: Tensor, labels: Tensor, add: Add | None) -> Tensor:
        if matrix.dtype == torch.bfloat16:
            return self._of(matrix.float(), labels, add).to(torch.bfloat16)
        labels = labels.to(matrix.device)
        if checks.inspectable(matrix, labels):
            names = labels.detach()
            if names.dtype == torch.bfloat16:  # numpy does not know it
                names = names.float()
            result: Tensor = _MeanOfTriplets.apply(matrix, names, self.margin, add)  # type: ignore[no-untyped-call]
            return result
        return self._by_torch(matrix, labels, add)

    def _by_torch(self, matrix: Tensor, labels: Tensor, add: Add | None = None) -> Tensor:
        """Return the same from plain operations, for other devices, compilers and function transforms."""
        counts = count_by_sorting(matrix.detach(), labels, self.margin, whole=checks.transformed())
        wide = torch.float32 if matrix.device.type == "mps" else torch.float64
        number = counts.to(wide).abs().sum() / 2
        total = (counts.to(wide) * torch.where(counts == 0, 0.0, matrix).to(wide)).sum() * nan_if_any(matrix)
        if add is not None:
            number, total = add(torch.stack([number, total])).unbind()
        mean = total / number.clamp_min(1) + self.margin * (number > 0)
        return mean.to(matrix.dtype)


class HardTriplets(MarginLoss, LabelLoss):
    r"""The farthest positive and the nearest negative of each anchor ("batch hard").

    .. math:: \operatorname{mean}_a \max\bigl(0, \text{margin} + \max_p D(x_a, x_p) - \min_n D(x_a, x_n)\bigr)

    over the anchors that have both a positive and a negative; zero if there are none.

    Use it late in training or with clean labels: one triplet for each anchor is a strong, noisy signal, which a single
    wrong label can own. Early in training it may pull all points together, above all with divergences that grow like a
    squared distance, so take the root (``"bregman-sqrt"``, ``"drift-root"``). :class:`AllTriplets` and
    :class:`SemiHardTriplets` do not.

    Parameters
    ----------
    margin
        How much farther than the farthest positive the nearest negative must be.

    References
    ----------
    Hermans, Beyer, Leibe (2017), In defense of the triplet loss, equation 5.

    Examples
    --------
    >>> matrix = torch.tensor([[0.0, 1.0, 1.1], [1.0, 0.0, 3.0], [1.0, 1.0, 0.0]])
    >>> HardTriplets(margin=0.2)(matrix, torch.tensor([0, 0, 1]))
    tensor(0.0500)
    """

    def forward(self, matrix: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a matrix D(x_i, x_j) and the labels: ``(n, n), (n,) -> ()``."""
        check_labels(matrix, labels, "HardTriplets")
        if matrix.numel() == 0:
            return matrix.sum()
        positive, negative = relations(labels.to(matrix.device))
        infinity = torch.full_like(matrix, torch.inf)
        farthest = torch.where(positive, matrix, -infinity).amax(1)
        nearest = torch.where(negative, matrix, infinity).amin(1)
        usable = positive.any(1) & negative.any(1)
        # Where one is missing the difference is infinite: it is replaced before the formula, not after.
        gap = torch.where(usable, farthest, 0.0) - torch.where(usable, nearest, 0.0)
        terms = functional.relu(gap + self.margin) * usable
        return terms.sum() / usable.sum().clamp_min(1) * nan_if_any(matrix)


class SemiHardTriplets(MarginLoss, LabelLoss):
    r"""For each anchor and positive, the nearest negative that is farther than the positive.

    .. math:: \operatorname{mean}_{a, p} \max\bigl(0, \text{margin} + D(x_a, x_p) - D(x_a, x_{n(a, p)})\bigr), \qquad
        n(a, p) = \arg\min_n \{D(x_a, x_n) : D(x_a, x_n) > D(x_a, x_p)\}

    A pair all of whose negatives are as near as the positive or nearer takes the farthest of them: the mildest of its
    violations, so that it still learns. Pairs without any negative are left out; without pairs the loss is zero.

    Use it where :class:`AllTriplets` is dominated by a few wrong labels or outliers: it never picks the hardest
    negatives. It learns from fewer triplets, so it is slower to converge on small clean tables.

    Parameters
    ----------
    margin
        How much farther than a positive its negative must be.

    References
    ----------
    Schroff, Kalenichenko, Philbin (2015), FaceNet, equation 4.

    Examples
    --------
    >>> matrix = torch.tensor([[0.0, 1.0, 1.1], [1.0, 0.0, 3.0], [1.0, 1.0, 0.0]])
    >>> SemiHardTriplets(margin=0.2)(matrix, torch.tensor([0, 0, 1]))
    tensor(0.0500)
    """

    def forward(self, matrix: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a matrix D(x_i, x_j) and the labels: ``(n, n), (n,) -> ()``."""
        check_labels(matrix, labels, "SemiHardTriplets")
        if matrix.numel() == 0:
            return matrix.sum()
        positive, negative = relations(labels.to(matrix.device))
        with torch.no_grad():
            # Half precision can be sorted but not searched on all devices; widening changes no order.
            values = (matrix.float() if matrix.dtype == torch.bfloat16 else matrix.detach()).contiguous()
            values = values.clamp_max(torch.finfo(values.dtype).max)  # only what is no negative is infinite
            ordered, order = values.masked_fill(~negative, torch.inf).sort(1)
            place = torch.searchsorted(ordered, values, right=True)
            number = negative.sum(1, keepdim=True)
            chosen = order.gather(1, place.minimum(number - 1).clamp_min(0))
        used = positive & (number > 0)
        gap = torch.where(used, matrix - matrix.gather(1, chosen), -self.margin)
        terms = functional.relu(gap + self.margin) * used
        return terms.sum() / used.sum().clamp_min(1) * nan_if_any(matrix)


class TripletMargin(MarginLoss, TripletLoss):
    r"""The mean over given triplets that violate the margin.

    .. math:: \operatorname{mean} \{\ell : \ell > 0\}, \qquad \ell = \max(0, \text{margin} + D(a, p) - D(a, n))

    Use it where the supervision is triplets, "a is nearer to p than to n". With labels, :class:`AllTriplets` makes all
    triplets of a batch at a fraction of the cost. Without a triplet above zero, the loss and its gradient are zero.

    Parameters
    ----------
    margin
        How much farther than the positive the negative must be; zero and negative numbers are allowed.

    Examples
    --------
    >>> TripletMargin(margin=0.5)(torch.tensor([1.0, 1.0]), torch.tensor([1.25, 4.0]))
    tensor(0.2500)
    """

    def forward(self, positives: Tensor, negatives: Tensor) -> Tensor:
        """Return the loss of D(anchor, positive) and D(anchor, negative): ``(n,), (n,) -> ()``."""
        check_values(positives, negatives, ("positives", "negatives"), "TripletMargin")
        return mean_of_nonzero(functional.relu(positives - negatives + self.margin))
