"""Scores of predicted clusters and values: those of scikit-learn and scipy, with checked inputs of any kind.

Labels are numbers or text, values finite numbers; both are arrays, tensors or lists of shape ``(n,)``.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics
from sklearn.metrics.cluster import contingency_matrix

from askew import checks
from askew.metrics.inputs import Array, Values, label_codes, to_labels, to_row


def purity(labels_true: Values, labels_pred: Values) -> float:
    r"""Return the share of points that have the most frequent true label of their cluster.

    .. math:: \frac1n \sum_j \max_i n_{ij}, \qquad n_{ij} = \text{points of class } i \text{ in cluster } j

    Splitting clusters never lowers it: compare it between clusterings with the same number of clusters only.

    Examples
    --------
    >>> purity(["a", "a", "b", "b", "b"], [0, 0, 0, 1, 1])
    0.8
    """
    true, predicted = _codes(labels_true, labels_pred, "purity")
    return float(contingency_matrix(true, predicted).max(axis=0).sum() / true.size)


def rand(labels_true: Values, labels_pred: Values) -> float:
    """Return the Rand index: the share of pairs of points that are together in both labellings or apart in both.

    It is not adjusted for chance: with many clusters, random labels score high as well. To compare different numbers of
    clusters, use ``sklearn.metrics.adjusted_rand_score``.

    Examples
    --------
    >>> rand([0, 0, 1, 1], [0, 0, 1, 2])  # 5 of 6 pairs
    0.8333...
    """
    return float(metrics.rand_score(*_codes(labels_true, labels_pred, "rand")))


def mae(targets: Values, predictions: Values) -> float:
    """Return the mean absolute error, in the unit of the targets."""
    return float(metrics.mean_absolute_error(*_numbers(targets, predictions, "mae", 1)))


def r2(targets: Values, predictions: Values) -> float:
    r"""Return the share of the variance of the targets, two or more, that the predictions explain.

    .. math:: 1 - \sum_i (t_i - p_i)^2 \Big/ \sum_i (t_i - \bar t)^2

    1 is perfect, 0 as good as the mean of the targets. If targets are constant: 1 if all predictions are right, else 0.

    Examples
    --------
    >>> r2([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    0.5
    """
    return float(metrics.r2_score(*_numbers(targets, predictions, "r2", 2)))


def spearman(targets: Values, predictions: Values, constant: float | None = None) -> float:
    """Return Spearman's rank correlation: how well the order of two or more values is predicted, from -1 to 1.

    Equal values share the mean of their ranks. Use it when only the order matters, and :func:`mae` when values do. If
    all targets, or all predictions, are equal, there is no order: the result is ``constant`` or, by default, an error.

    Examples
    --------
    >>> spearman([1.0, 2.0, 3.0], [1.0, 10.0, 100.0]), spearman([1.0, 2.0], [7.0, 7.0], constant=0.0)
    (1.0, 0.0)
    """
    arrays = _numbers(targets, predictions, "spearman", 2)
    for name, values in zip(("targets", "predictions"), arrays, strict=True):
        if (values == values[0]).all():
            if constant is not None:
                return constant
            must = "of at least two different values, else there is no order"
            hint = "Give constant=0.0 to count it as no correlation."
            raise ValueError(checks.message(f"{name} of spearman", must, f"{values[0]:g} only", hint))
    return float(np.clip(stats.spearmanr(*arrays).statistic, -1, 1))  # rounding may leave 1 + 2e-16


def _codes(labels_true: Values, labels_pred: Values, owner: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return both labellings as integers, as scikit-learn warns of other numbers."""
    true, predicted = to_labels(labels_true, "labels_true", owner), to_labels(labels_pred, "labels_pred", owner)
    _check_same_shape(true, predicted, "labels_true", "labels_pred", owner)
    # One by one: classes and clusters share no names.
    return label_codes(true, true, owner)[0], label_codes(predicted, predicted, owner)[0]


def _numbers(targets: Values, predictions: Values, owner: str, fewest: int) -> list[NDArray[np.float64]]:
    arrays = []
    for name, values in {"targets": targets, "predictions": predictions}.items():
        array = to_row(values, name, owner)
        if array.dtype.kind not in "biuf":
            raise TypeError(checks.message(f"{name} of {owner}", "real numbers", f"dtype {array.dtype}"))
        arrays.append(array.astype(np.float64))
        checks.check_finite(torch.from_numpy(arrays[-1]), name, owner)
    _check_same_shape(arrays[0], arrays[1], "targets", "predictions", owner)
    if arrays[0].size < fewest:
        raise ValueError(checks.message(f"targets of {owner}", f"at least {fewest} values", arrays[0].size))
    return arrays


def _check_same_shape(true: Array, predicted: Array, true_name: str, name: str, owner: str) -> None:
    if true.shape != predicted.shape:
        must = f"of shape {true.shape} like {true_name}"
        raise ValueError(checks.message(f"{name} of {owner}", must, predicted.shape))
