"""A loss of whole rankings: smooth average precision, with a softmax term that reaches far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from askew import checks
from askew.losses.base import LabelLoss, check_labels, check_nonnegative, nan_if_any, relations

# Sigmoids of a block of anchors; in larger ones memory is the limit, in smaller ones the number of calls.
BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class _Anchors:
    """Anchors of classes of one size: the anchors, the columns of each, and which of its positives are scored.

    The first ``positives`` columns of an anchor are its positives, the others its negatives; itself is left out.
    ``picks`` are places among the positives, or None for all of them.
    """

    rows: Tensor
    columns: Tensor
    positives: int
    picks: Tensor | None


class _ListwiseLoss(torch.autograd.Function):
    """The loss of some anchors; the forward pass makes the gradient while it has the sigmoids."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, add: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        values = matrix.detach()
        gradient = torch.zeros_like(values) if ctx.needs_input_grad[0] else None
        total = add(values, gradient)
        if bool(values.isnan().any()):  # also where no anchor looks
            total.fill_(math.nan)
            gradient = None if gradient is None else gradient.fill_(math.nan)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if torch.is_grad_enabled():  # the gradient of the forward pass is a constant: no silent zeros
            raise RuntimeError(
                "Listwise has no graph of its gradient. Call torch.func.grad instead of create_graph=True."
            )
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None


def _groups_loss(
    matrix: Tensor, gradient: Tensor | None, groups: list[_Anchors], settings: tuple[float, float, float]
) -> Tensor:
    """Return the loss of all groups, and write its gradient."""
    # The number of anchors, and of pairs of an anchor and a positive, scored or not.
    numbers = sum(len(group.rows) for group in groups), sum(len(group.rows) * group.positives for group in groups)
    total = matrix.new_zeros(())
    for group in groups:
        total += _anchors_loss(matrix, group, numbers, settings, gradient)
    return total


def _anchors_loss(
    matrix: Tensor,
    group: _Anchors,
    numbers: tuple[int, int],
    settings: tuple[float, float, float],
    gradient: Tensor | None,
) -> Tensor:
    """Return what one group adds to the loss, and write the gradient of its rows."""
    number, pairs = numbers
    temperature, contrast, contrast_temperature = settings
    items = matrix[group.rows].gather(1, group.columns)
    scaled = items * (1 / temperature)
    own = scaled[:, : group.positives] if group.picks is None else scaled.gather(1, group.picks)
    slopes = None if gradient is None else (torch.empty_like(items), torch.empty_like(own))
    share = group.positives / (pairs * own.shape[1])
    value = (1 - _precision(scaled, own, group.positives, slopes)).sum() * share
    if slopes is not None:
        to_items, to_own = slopes
        if group.picks is None:
            to_items[:, : group.positives] += to_own
        else:
            to_items.scatter_add_(1, group.picks, to_own)
        to_items.mul_(share / temperature)
    if contrast:
        logarithms = items.mul_(-1 / contrast_temperature).log_softmax(1)
        weight = contrast / (number * group.positives)
        value -= weight * logarithms[:, : group.positives].sum()
        if slopes is not None:
            to_items.sub_(logarithms.exp_(), alpha=contrast / (number * contrast_temperature))
            to_items[:, : group.positives] += weight / contrast_temperature
    if gradient is not None:
        gradient[group.rows] = torch.zeros_like(matrix[group.rows]).scatter_(1, group.columns, to_items)
    return value


def _precision(items: Tensor, own: Tensor, positives: int, slopes: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the terms N / M of the average precision of the values ``own`` among ``items``, whose positives are first.

    The derivatives of minus their sum with respect to ``items`` and ``own`` are written into ``slopes``.
    """
    rows, scored, width = *own.shape, items.shape[1]
    result = torch.empty_like(own)
    step = max(1, min(rows, BLOCK_ELEMENTS // (scored * width)))
    buffer = items.new_empty((step, scored, width))
    for first in range(0, rows, step):
        block = slice(first, min(first + step, rows))
        near = buffer[: block.stop - first]
        torch.sub(own[block, :, None], items[block, None, :], out=near).sigmoid_()
        # At j = p the sigmoid is one half, which stands for half of the one to be added.
        above = near[:, :, :positives].sum(-1).add_(0.5)
        inverse = near[:, :, positives:].sum(-1).add_(above).reciprocal_()
        precision = torch.mul(above, inverse, out=result[block])
        if slopes is None:
            continue
        torch.addcmul(near, near, near, value=-1, out=near)  # s' = s (1 - s)
        # The average precision rises with the sum over positives and falls with that over negatives.
        for_negatives = precision * inverse
        for_positives = for_negatives - inverse
        to_positives, to_negatives = near[:, :, :positives], near[:, :, positives:]
        to_items, to_own = slopes[0][block], slopes[1][block]
        torch.mul(to_positives.sum(-1), for_positives, out=to_own).addcmul_(to_negatives.sum(-1), for_negatives)
        to_items[:, :positives] = torch.bmm(for_positives.neg_()[:, None], to_positives)[:, 0]
        to_items[:, positives:] = torch.bmm(for_negatives.neg_()[:, None], to_negatives)[:, 0]
    return result


def _groups(labels: Tensor, max_pairs: int | None) -> list[_Anchors]:
    """Return the anchors that have a positive and a negative, by the size of their class."""
    names = (labels.float() if labels.dtype == torch.bfloat16 else labels).detach().cpu().numpy()
    n = len(names)
    # The points in the order of their classes and, at each place of it, where the class starts and its size.
    order = names.argsort(kind="stable")
    _, starts, sizes = np.unique(names[order], return_index=True, return_counts=True, equal_nan=False)
    start, size = starts.repeat(sizes), sizes.repeat(sizes)
    usable = np.flatnonzero((size > 1) & (size < n))
    scored = n
    if max_pairs is not None and len(usable):
        if max_pairs < len(usable):
            usable = usable[torch.randperm(len(usable))[:max_pairs].numpy()]
        scored = max_pairs // len(usable)
    usable = usable[order[usable].argsort()]  # by row of the matrix
    groups = []
    for one_size in np.unique(size[usable]).tolist():
        places = usable[size[usable] == one_size]
        first = start[places, None]
        others = first + (places[:, None] - first + np.arange(1, one_size)) % one_size
        negatives = (first + np.arange(one_size, n)) % n
        picks = None
        if scored < one_size - 1:
            picks = torch.rand(len(places), one_size - 1).argsort(1)[:, :scored].to(labels.device)
        columns = torch.from_numpy(order[np.concatenate([others, negatives], axis=1)]).to(labels.device)
        rows = torch.from_numpy(order[places]).to(labels.device)
        groups.append(_Anchors(rows, columns, one_size - 1, picks))
    return groups


def _sampled_loss(
    matrix: Tensor, gradient: Tensor | None, labels: Tensor, count: int, settings: tuple[float, float, float]
) -> Tensor:
    """Return the loss with ``count`` random positives of each anchor, and write its gradient.

    Masks instead of groups: a fixed number of calls, whatever sizes the classes have.
    """
    temperature, contrast, contrast_temperature = settings
    n = matrix.shape[0]
    masks = torch.stack(relations(labels), 1).to(matrix.dtype)  # positives and negatives, (n, 2, n)
    positives, negatives = masks.sum(2).unbind(1)
    usable = (negatives > 0) * positives
    pairs, number = usable.sum().clamp_min(1), usable.count_nonzero().clamp_min(1)
    # The points in the order of their classes, the place of each point there, and where its class starts.
    order = labels.argsort(stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(n, device=labels.device))
    size = positives.long() + 1
    start = torch.searchsorted(labels[order], labels)
    step = 1 + (torch.rand(n, count, device=matrix.device) * positives[:, None]).long()
    picks = order[start[:, None] + (place - start)[:, None].add(step) % size[:, None]]
    scaled = matrix * (1 / temperature)
    own = scaled.gather(1, picks)
    near = torch.sub(own[:, :, None], scaled[:, None, :]).sigmoid_()
    sums = near @ masks.mT
    # At j = p the sigmoid is one half, which stands for half of the one to be added.
    above = sums[..., 0].add_(0.5)
    inverse = sums.sum(2).reciprocal_()
    precision = above * inverse
    weight = (usable / (pairs * count))[:, None]
    total = ((1 - precision) * weight).sum()
    if gradient is not None:
        torch.addcmul(near, near, near, value=-1, out=near)  # s' = s (1 - s)
        for_negatives = precision.mul_(inverse).mul_(weight / temperature)
        factors = torch.stack((for_negatives - inverse * (weight / temperature), for_negatives), 1)
        gradient.copy_(((factors @ near) * masks).sum(1)).neg_()
        gradient.scatter_add_(1, picks, ((near @ masks.mT) * factors.mT).sum(2))
    if contrast:
        logarithms = (matrix * (-1 / contrast_temperature)).fill_diagonal_(-math.inf).log_softmax(1)
        shares = masks[:, 0] * (usable.sign() / (number * positives.clamp_min(1)))[:, None]
        total -= contrast * (shares * logarithms.fill_diagonal_(0)).sum()
        if gradient is not None:
            softmax = logarithms.exp_().fill_diagonal_(0).mul_((usable.sign() / number)[:, None])
            gradient.add_(shares.sub_(softmax), alpha=contrast / contrast_temperature)
    return total


def _plain_loss(matrix: Tensor, labels: Tensor, settings: tuple[float, float, float]) -> Tensor:
    """Return the loss of all anchors and positives by operations of fixed shapes, in memory n^3."""
    temperature, contrast, contrast_temperature = settings
    positive, negative = relations(labels)
    positive = positive & negative.any(1, keepdim=True)
    itself = torch.eye(matrix.shape[0], dtype=torch.bool, device=matrix.device)
    near = torch.sigmoid((matrix[:, :, None] - matrix[:, None, :]) / temperature)
    near = torch.where(itself[:, None, :] | itself[None, :, :], 0.0, near)
    above = 1 + torch.where(positive[:, None, :], near, 0.0).sum(-1)
    precision = above / (1 + near.sum(-1))
    result = (positive * (1 - precision)).sum() / positive.sum().clamp_min(1)
    if contrast:
        number = positive.sum(1, keepdim=True) * positive.any(1).sum()
        logarithms = (matrix / -contrast_temperature).masked_fill(itself, -math.inf).log_softmax(1)
        # Only positives have a part in it, also if others are infinite.
        result = result - contrast * (torch.where(positive, logarithms, 0.0) / number.clamp_min(1)).sum()
    return result * nan_if_any(matrix)


class Listwise(LabelLoss):
    r"""One minus the smooth average precision of each anchor's ranking, plus a supervised contrastive term.

    .. math::
        1 - \operatorname{mean}_{a, p}
        \frac{1 + \sum_{p' \ne p} s(D_{ap} - D_{ap'})}{1 + \sum_{j \ne p, a} s(D_{ap} - D_{aj})}
        - c \operatorname{mean}_a \operatorname{mean}_p \log \frac{e^{-D_{ap} / t}}{\sum_{j \ne a} e^{-D_{aj} / t}},
        \qquad s(u) = \frac{1}{1 + e^{-u / \tau}}

    over anchors a that have a positive and a negative, and all their positives p. The first mean is over pairs, so
    that a large class counts for more than a small one; a mean over anchors first gave less AUC where classes differ
    in size.
    Without such an anchor the loss and its gradient are zero. A NaN anywhere in the matrix makes both NaN.

    Use it on small and middle-sized tables that are judged by the ranking of neighbours: mean average precision is
    what it minimises. The temperature is meant for divergences of about 1, as they are after
    :meth:`~askew.Divergence.calibrate`. It costs one sigmoid for each anchor, positive and point, so the time grows
    with n^3 / classes; for batches of many hundreds take :class:`AllTriplets` or set ``max_pairs``.

    Parameters
    ----------
    temperature
        Width of the sigmoid, tau: the smaller, the nearer to average precision, and the fewer pairs have a gradient.
    contrast
        Weight c of the contrastive term, which has a gradient where all sigmoids are flat; 0 leaves it out.
    contrast_temperature
        The temperature t of its softmax.
    max_pairs
        Bound of the number of pairs of an anchor and a positive that are scored. If there are more, each anchor keeps
        an equal number of random positives (or, if there are more anchors than that, random anchors keep one each), by
        torch's global generator. None scores all. In compiled code and function transforms all are scored.
    positives
        Number of random positives that are scored for each anchor, drawn with replacement; ``max_pairs`` is not used
        then. Half the time for 128 rows: anchors are not grouped by the size of their class. In training, near pairs
        of a Bregman divergence then keep the rounding error of the matrix product.

    References
    ----------
    Brown, Xie, Kalogeiton, Zisserman (2020), Smooth-AP; Khosla et al. (2020), Supervised contrastive learning.

    Examples
    --------
    >>> matrix = torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 3.0], [2.0, 1.0, 0.0]])
    >>> Listwise(contrast=0)(matrix, torch.tensor([0, 0, 1]))
    tensor(0.)
    >>> Listwise(contrast=1)(matrix, torch.tensor([0, 0, 1]))
    tensor(0.1269)
    """

    def __init__(
        self,
        temperature: float = 0.02,
        contrast: float = 0.3,
        contrast_temperature: float = 1.0,
        max_pairs: int | None = None,
        positives: int | None = None,
    ) -> None:
        super().__init__()
        self.temperature = checks.check_positive(temperature, "temperature of Listwise")
        self.contrast = check_nonnegative(contrast, "contrast of Listwise")
        self.contrast_temperature = checks.check_positive(contrast_temperature, "contrast_temperature of Listwise")
        self.max_pairs = None if max_pairs is None else checks.check_size(max_pairs, "max_pairs of Listwise")
        self.positives = None if positives is None else checks.check_size(positives, "positives of Listwise")
        if positives is not None:  # meant for speed: errors of near pairs are far below the temperature
            self.near_rtol = 1.0

    def forward(self, matrix: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a matrix D(x_i, x_j) and the labels: ``(n, n), (n,) -> ()``."""
        check_labels(matrix, labels, "Listwise")
        if matrix.numel() == 0:
            return matrix.sum()
        if matrix.dtype == torch.bfloat16:
            return self.forward(matrix.float(), labels).to(torch.bfloat16)
        labels = labels.to(matrix.device)
        settings = self.temperature, self.contrast, self.contrast_temperature
        if checks.transformed():
            return _plain_loss(matrix, labels, settings)
        if self.positives is not None:
            add = partial(_sampled_loss, labels=labels, count=self.positives, settings=settings)
        else:
            add = partial(_groups_loss, groups=_groups(labels, self.max_pairs), settings=settings)
        result: Tensor = _ListwiseLoss.apply(matrix, add)  # type: ignore[no-untyped-call]
        return result

    def extra_repr(self) -> str:
        """Show the temperatures and the weight."""
        given = {"max_pairs": self.max_pairs, "positives": self.positives}
        pairs = "".join(f", {name}={value}" for name, value in given.items() if value is not None)
        softmax = f"contrast={self.contrast:g}, contrast_temperature={self.contrast_temperature:g}"
        return f"temperature={self.temperature:g}, {softmax}{pairs}"
