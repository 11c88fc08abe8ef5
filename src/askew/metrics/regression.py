"""Predicted values against known ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics

from askew import checks
from askew.metrics.arrays import Values, to_numbers

__all__ = ["mae", "r2", "spearman"]


def mae(targets: Values, predictions: Values) -> float:
    r"""Return the mean absolute error.

    .. math:: \frac1n \sum_i |t_i - p_i|

    In the unit of the targets, and less moved by a few large errors than squares are.

    Parameters
    ----------
    targets, predictions
        Known and predicted values, ``(n,)``.

    Examples
    --------
    >>> mae([1.0, 2.0], [1.0, 4.0])
    1.0
    """
    return float(metrics.mean_absolute_error(*_numbers(targets, predictions, "mae", 1)))


def r2(targets: Values, predictions: Values) -> float:
    r"""Return the share of the targets' variance that the predictions explain.

    .. math:: 1 - \sum_i (t_i - p_i)^2 \Big/ \sum_i (t_i - \bar t)^2

    1 is perfect, 0 as good as the mean of the targets, below 0 worse than that. Targets that are all alike have no
    variance: then it is 1 if all predictions are right, else 0.

    Parameters
    ----------
    targets, predictions
        Known and predicted values, ``(n,)`` with n >= 2.

    Examples
    --------
    >>> r2([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    0.5
    """
    return float(metrics.r2_score(*_numbers(targets, predictions, "r2", 2)))


def spearman(targets: Values, predictions: Values) -> float:
    """Return Spearman's rank correlation: how well the order of the values is predicted, from -1 to 1.

    The correlation of the ranks, equal values sharing the mean of theirs. Scale and offset of the predictions do not
    matter, nor does any monotone transform: take it where only the order counts, and :func:`mae` where values do.

    Parameters
    ----------
    targets, predictions
        Known and predicted values, ``(n,)`` with n >= 2, neither of them all alike.

    Examples
    --------
    >>> spearman([1.0, 2.0, 3.0], [1.0, 10.0, 100.0])
    1.0
    """
    arrays = _numbers(targets, predictions, "spearman", 2)
    for name, values in zip(("targets", "predictions"), arrays, strict=True):
        if (values == values[0]).all():
            must = "of at least two different values, else there is no order"
            raise ValueError(checks.message(f"{name} of spearman", must, f"{values[0]:g} only"))
    return float(np.clip(stats.spearmanr(*arrays).statistic, -1, 1))  # rounding may leave 1 + 2e-16


def _numbers(
    targets: Values, predictions: Values, owner: str, fewest: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    true = to_numbers(targets, "targets", owner)
    predicted = to_numbers(predictions, "predictions", owner)
    if true.shape != predicted.shape:
        must = f"of shape {true.shape} like targets"
        raise ValueError(checks.message(f"predictions of {owner}", must, predicted.shape))
    if true.size < fewest:
        raise ValueError(checks.message(f"targets of {owner}", f"at least {fewest} values", true.size))
    return true, predicted
