"""Scores of rankings of items by nearness to queries, exact in the presence of ties.

Items at the same distance have no order. Every score is the mean over all orders of the tied items, computed exactly:
a divergence that is 0 everywhere scores as a random order does. Arguments are as in :func:`ranking`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew.metrics.inputs import Array, Values, label_codes, to_array, to_labels
from askew.metrics.ties import tie_groups, unscaled_scores


def ranking(
    matrix: Values, query_labels: Values, item_labels: Values | None = None, k: int = 10, *, exclude_self: bool = False
) -> dict[str, float]:
    """Return MAP, AUC, MAP@k, recall@k and precision@1 from one sort, by their names.

    An item is relevant to a query if their labels are equal. Each score is the mean over the queries that have a
    relevant item; AUC, over those that also have an irrelevant one (NaN if there is none). MAP and AUC are those of
    :func:`mean_average_precision` and :func:`auc`. MAP@k looks at the first k places, of which min(k, R) could be
    relevant. Recall@k is that of metric learning (Jégou, Douze, Schmid 2011; Oh Song et al. 2016): the share of queries
    with a relevant item among their k nearest, not the share of the relevant items that are found.

    Parameters
    ----------
    matrix
        D(query, item), ``(queries, items)``; smaller is nearer. Infinite entries come last, NaN is an error.
    query_labels, item_labels
        Labels of the rows, ``(queries,)``, and of the columns, ``(items,)``; numbers or text. Without item labels the
        items are the queries.
    k
        Number of nearest items for MAP@k and recall@k.
    exclude_self
        Whether to leave out the diagonal of a square matrix between a set and itself.

    Examples
    --------
    >>> ranking([[0.1, 0.2, 0.3, 0.4]], ["cat"], ["dog", "cat", "dog", "cat"], k=2)
    {'map': 0.5, 'auc': 0.25, 'map@2': 0.25, 'recall@2': 1.0, 'precision@1': 0.0}
    """
    scores = _score(matrix, query_labels, item_labels, k, exclude_self, "ranking")
    return {name: _mean(values) for name, values in scores.items()}


def ranking_per_query(
    matrix: Values, query_labels: Values, item_labels: Values | None = None, k: int = 10, *, exclude_self: bool = False
) -> dict[str, NDArray[np.float64]]:
    """Return the scores of :func:`ranking` for each query, ``(queries,)``; NaN where a query has no such score.

    Examples
    --------
    >>> ranking_per_query([[1, 2], [1, 2], [1, 1]], [0, 1, 1], [0, 1])["map"].tolist()
    [1.0, 0.5, 0.75]
    """
    return _score(matrix, query_labels, item_labels, k, exclude_self, "ranking_per_query")


def mean_average_precision(
    matrix: Values, query_labels: Values, item_labels: Values | None = None, *, exclude_self: bool = False
) -> float:
    r"""Return MAP over the full ranking.

    .. math:: AP = \frac1R \sum_{j \text{ relevant}} \frac{\text{relevant items in the first } j}{j}

    with j over places and R the number of relevant items; the mean over queries that have one. Where there are ties,
    scikit-learn differs: it gives all tied items the precision at the end of their group.

    Examples
    --------
    >>> mean_average_precision([[0.1, 0.2, 0.3]], [1], [1, 0, 1])  # (1/1 + 2/3) / 2
    0.8333...
    >>> mean_average_precision([[0.0, 0.0]], [1], [1, 0])  # first or second place
    0.75
    """
    return _mean(_score(matrix, query_labels, item_labels, 1, exclude_self, "mean_average_precision")["map"])


def auc(
    matrix: Values, query_labels: Values, item_labels: Values | None = None, *, exclude_self: bool = False
) -> float:
    r"""Return the area under the ROC curve of each query's ranking, averaged.

    .. math:: 1 - \frac{\text{pairs of a relevant and an irrelevant item in the wrong order}}
                       {\text{relevant items} \times \text{irrelevant items}}

    Tied pairs count half; the mean over queries that have a relevant and an irrelevant item. A random order has 0.5
    whatever the number of relevant items. All places weigh the same: if only the first ones matter, use MAP@k of
    :func:`ranking`.

    Examples
    --------
    >>> auc([[0.1, 0.2, 0.3]], [1], [1, 0, 1])
    0.5
    """
    value = _mean(_score(matrix, query_labels, item_labels, 1, exclude_self, "auc")["auc"])
    if np.isnan(value):
        must = "such that some query has both relevant and irrelevant items"
        raise ValueError(checks.message("labels of auc", must, "relevant items only"))
    return value


def knn_accuracy(matrix: Values, query_labels: Values, item_labels: Values, k: int = 5) -> float:
    """Return the accuracy of classification by majority vote of the k nearest items.

    If classes tie, the one with the nearest item wins; items at the same distance are in the order
    of the matrix. So unlike the other scores this one may depend on the order of tied items.

    Examples
    --------
    >>> knn_accuracy([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]], ["a", "b"], ["a", "b", "b"], k=3)
    0.5
    """
    values, queries, items = _checked(matrix, query_labels, item_labels, False, "knn_accuracy")
    if checks.check_size(k, "k of knn_accuracy") > values.shape[1]:
        raise ValueError(checks.message("k of knn_accuracy", f"at most {values.shape[1]}, the number of items", k))
    if np.isnan(values).any():
        raise ValueError(checks.message("matrix of knn_accuracy", "numbers", "NaN"))
    nearest = items[np.argsort(values, axis=1, kind="stable")[:, :k]]
    # Votes for the class of each of the k items; the first place with most of them decides.
    votes = (nearest[:, :, None] == nearest[:, None, :]).sum(2)
    winners = nearest[np.arange(len(nearest)), votes.argmax(1)]
    return float(np.mean(winners == queries))


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _score(
    matrix: Values, query_labels: Values, item_labels: Values | None, k: int, exclude_self: bool, owner: str
) -> dict[str, NDArray[np.float64]]:
    """Return every score of every query."""
    k = checks.check_size(k, f"k of {owner}")
    values, queries, items = _checked(matrix, query_labels, item_labels, exclude_self, owner)
    relevant = np.bincount(items, minlength=queries.max() + 1)[queries] - int(exclude_self)
    if not relevant.any():
        must = "shared by at least one query and one item"
        hint = "Check that both use the same names, and that the matrix has queries as rows."
        raise ValueError(checks.message(f"labels of {owner}", must, "no relevant item for any query", hint))
    blocks = [unscaled_scores(groups, k) for groups in tie_groups(values, queries, items, exclude_self, owner)]
    sums = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    irrelevant = values.shape[1] - int(exclude_self) - relevant
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: no such score
        return {
            "map": sums["precisions"] / relevant,
            "auc": 1 - sums["misordered"] / (relevant * irrelevant),
            f"map@{k}": sums["precisions at k"] / np.minimum(k, relevant),
            f"recall@{k}": np.where(relevant > 0, sums["hit"], np.nan),
            "precision@1": np.where(relevant > 0, sums["first"], np.nan),
        }


def _checked(
    matrix: Values, query_labels: Values, item_labels: Values | None, exclude_self: bool, owner: str
) -> tuple[Array, NDArray[np.intp], NDArray[np.intp]]:
    """Return the matrix, and the labels of its rows and columns as integers."""
    values = to_array(matrix)
    if values.ndim != 2 or values.size == 0:
        must = "of shape (queries, items), neither of them empty"
        raise ValueError(checks.message(f"matrix of {owner}", must, values.shape, "Make it with divergence.pairwise."))
    if values.dtype.kind not in "biuf":
        raise TypeError(checks.message(f"matrix of {owner}", "of real numbers", f"dtype {values.dtype}"))
    rows, columns = values.shape
    of_queries = to_labels(query_labels, "query_labels", owner)
    of_items = of_queries if item_labels is None else to_labels(item_labels, "item_labels", owner)
    sides = (("query_labels", of_queries, rows, "row"), ("item_labels", of_items, columns, "column"))
    for name, labels, count, side in sides:
        if labels.size != count:
            must = f"of shape ({count},), one for each {side} of the matrix"
            hint = "" if item_labels is not None or side == "row" else "Without item_labels the query_labels serve."
            raise ValueError(checks.message(f"{name} of {owner}", must, labels.shape, hint))
    queries, items = label_codes(of_queries, of_items, owner)
    if exclude_self and (rows != columns or rows < 2 or not np.array_equal(queries, items)):
        must = "square, of at least two points with themselves and with the same labels, for exclude_self=True"
        got = f"{values.shape}" + (" with other labels" if rows == columns > 1 else "")
        raise ValueError(checks.message(f"matrix of {owner}", must, got))
    return values, queries, items
