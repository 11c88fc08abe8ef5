"""Agreement of a clustering with known labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics
from sklearn.metrics.cluster import contingency_matrix

from askew import checks
from askew.metrics.arrays import Values, label_codes, to_labels

__all__ = ["adjusted_rand", "nmi", "purity", "rand"]


def purity(labels_true: Values, labels_pred: Values) -> float:
    r"""Return the share of points that have the most frequent true label of their cluster.

    .. math:: \frac1n \sum_j \max_i n_{ij}, \qquad n_{ij} = \text{points of class } i \text{ in cluster } j

    From 1/n to 1. It never falls when clusters are split, and is 1 if each point is its own cluster: compare it
    between clusterings of the same number of clusters only.

    Parameters
    ----------
    labels_true, labels_pred
        Known labels and clusters of the same points, ``(n,)``; numbers or text.

    Examples
    --------
    >>> purity(["a", "a", "b", "b", "b"], [0, 0, 0, 1, 1])
    0.8
    """
    true, predicted = _codes(labels_true, labels_pred, "purity")
    return float(contingency_matrix(true, predicted).max(axis=0).sum() / true.size)


def rand(labels_true: Values, labels_pred: Values) -> float:
    r"""Return the Rand index: the share of pairs of points that both labellings treat alike.

    .. math:: \frac{\text{pairs together in both} + \text{pairs apart in both}}{n (n - 1) / 2}

    Not adjusted for chance: with many clusters most pairs are apart in both and random labels score high too, which
    :func:`adjusted_rand` corrects.

    Parameters
    ----------
    labels_true, labels_pred
        Known labels and clusters of the same points, ``(n,)``; numbers or text.

    References
    ----------
    Rand (1971), Objective criteria for the evaluation of clustering methods.

    Examples
    --------
    >>> rand([0, 0, 1, 1], [0, 0, 1, 2])  # 5 of 6 pairs
    0.8333...
    """
    return float(metrics.rand_score(*_codes(labels_true, labels_pred, "rand")))


def adjusted_rand(labels_true: Values, labels_pred: Values) -> float:
    r"""Return the Rand index adjusted for chance.

    .. math:: \frac{\text{RI} - E[\text{RI}]}{\max \text{RI} - E[\text{RI}]}

    1 for the same partition, 0 on average for random labels of the same cluster sizes, below 0 if worse. The one to
    take when numbers of clusters differ.

    Parameters
    ----------
    labels_true, labels_pred
        Known labels and clusters of the same points, ``(n,)``; numbers or text.

    References
    ----------
    Hubert, Arabie (1985), Comparing partitions.

    Examples
    --------
    >>> adjusted_rand([0, 0, 1, 1], [1, 1, 0, 0])
    1.0
    """
    return float(metrics.adjusted_rand_score(*_codes(labels_true, labels_pred, "adjusted_rand")))


def nmi(labels_true: Values, labels_pred: Values) -> float:
    r"""Return the normalised mutual information of two labellings.

    .. math:: \frac{I(U; V)}{(H(U) + H(V)) / 2}

    From 0 (independent) to 1 (the same partition). Not adjusted for chance, so it grows with the number of clusters.

    Parameters
    ----------
    labels_true, labels_pred
        Known labels and clusters of the same points, ``(n,)``; numbers or text.

    References
    ----------
    Vinh, Epps, Bailey (2010), Information theoretic measures for clusterings comparison.

    Examples
    --------
    >>> nmi([0, 0, 1, 1], [0, 1, 0, 1])
    0.0
    """
    return float(metrics.normalized_mutual_info_score(*_codes(labels_true, labels_pred, "nmi")))


def _codes(labels_true: Values, labels_pred: Values, owner: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return both labellings as numbers, each of its own: classes and clusters share no names."""
    true = to_labels(labels_true, "labels_true", owner)
    predicted = to_labels(labels_pred, "labels_pred", owner)
    if true.shape != predicted.shape:
        must = f"of shape {true.shape} like labels_true"
        raise ValueError(checks.message(f"labels_pred of {owner}", must, predicted.shape))
    return label_codes(true, true, owner)[0], label_codes(predicted, predicted, owner)[0]
