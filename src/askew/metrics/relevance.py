r"""Scores of retrieval by graded or binary relevance, exact in the presence of ties.

Items at the same distance have no order: every score is the mean over all orders of the tied items. Take a group of t
tied items preceded by s items. Each item of it has each of the places s + 1, ..., s + t with probability 1 / t, which
gives DCG and recall. The first of its r relevant items is at place s + j with probability C(t - j, r - 1) / C(t, r),
which gives the reciprocal rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import gammaln

from askew import checks
from askew.metrics.inputs import Array, Values, to_array

Floats = NDArray[np.float64]


def ndcg_at_k(matrix: Values, grades: Any, k: int | None = 10) -> float:
    r"""Return the normalised discounted cumulative gain of the k nearest items, averaged over queries.

    .. math:: \text{NDCG@k} = \frac{\sum_{j \le k} g_j / \log_2(j + 1)}{\sum_{j \le k} g^*_j / \log_2(j + 1)}

    where g_j is the grade of the item at place j and g* are the grades in descending order. It equals
    ``sklearn.metrics.ndcg_score(grades, -matrix, k=k)``, ties included, except that queries without a relevant item are
    left out (scikit-learn counts them as 0). For exponential gains pass ``2.0**grades - 1``.

    Parameters
    ----------
    matrix
        D(query, item), ``(queries, items)``; smaller is nearer. Infinite entries come last, NaN is an error.
    grades
        How relevant each item is to each query, ``(queries, items)``, zero or above; 0 and 1 for binary relevance. An
        array or, for many items, a sparse matrix of SciPy.
    k
        Number of nearest items; None for all.

    Examples
    --------
    >>> ndcg_at_k([[0.1, 0.2, 0.3]], [[0, 3, 1]], k=2)  # (3 / log2(3)) / (3 + 1 / log2(3))
    0.5212...
    """
    return float(np.nanmean(relevance_per_query(matrix, grades, k, "ndcg_at_k")["ndcg"]))


def mrr(matrix: Values, grades: Any, k: int | None = None) -> float:
    """Return the mean reciprocal rank: 1 / place of the nearest relevant item, averaged over queries.

    Items with a grade above 0 are relevant. With ``k``, places behind the k-th count as 0. Queries without a relevant
    item are left out.

    Parameters
    ----------
    matrix, grades, k
        As in :func:`ndcg_at_k`.

    Examples
    --------
    >>> mrr([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]], [[0, 1, 1], [0, 0, 1]])  # second and first place
    0.75
    """
    return float(np.nanmean(relevance_per_query(matrix, grades, k, "mrr")["mrr"]))


def recall_at_k(matrix: Values, grades: Any, k: int | None = 10) -> float:
    """Return the share of a query's relevant items that are among its k nearest, averaged over queries.

    Items with a grade above 0 are relevant; queries without one are left out. This is the recall of information
    retrieval. That of metric learning, the share of queries with any relevant item among their k nearest, is returned
    by :func:`ranking`.

    Parameters
    ----------
    matrix, grades, k
        As in :func:`ndcg_at_k`.

    Examples
    --------
    >>> recall_at_k([[0.1, 0.2, 0.3, 0.4]], [[1, 0, 1, 0]], k=2)
    0.5
    """
    return float(np.nanmean(relevance_per_query(matrix, grades, k, "recall_at_k")["recall"]))


def relevance_per_query(
    matrix: Values, grades: Any, k: int | None = 10, owner: str = "relevance_per_query"
) -> dict[str, Floats]:
    """Return ``ndcg``, ``mrr`` and ``recall`` of each query at k, ``(queries,)``; NaN without a relevant item.

    Parameters
    ----------
    matrix, grades, k
        As in :func:`ndcg_at_k`.
    owner
        The function that errors name.

    Examples
    --------
    >>> relevance_per_query([[1, 2], [1, 1], [1, 2]], [[0, 1], [0, 1], [0, 0]], k=1)["recall"].tolist()
    [0.0, 0.5, nan]
    """
    values, relevant = _checked(matrix, grades, owner)
    places = values.shape[1] if k is None else min(checks.check_size(k, f"k of {owner}"), values.shape[1])
    discounts = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, places + 2))))
    inverse = 1 / np.arange(1, places + 1)
    scores = {name: np.full(len(values), np.nan) for name in ("ndcg", "mrr", "recall")}
    for query, row in enumerate(values):
        items = slice(relevant.indptr[query], relevant.indptr[query + 1])
        gains = relevant.data[items]
        if not gains.size:
            continue
        at = row[relevant.indices[items]]
        ordered = np.sort(row)
        before, end = (np.searchsorted(ordered, at, side) for side in ("left", "right"))
        size = end - before
        first, last = np.minimum(before, places), np.minimum(end, places)
        # Divided before the multiplication: gains may be as large as floats are.
        share = gains / gains.max()
        best = np.sort(share)[::-1][:places]
        ideal = float(best @ np.diff(discounts)[: len(best)])
        scores["ndcg"][query] = float((share * (discounts[last] - discounts[first]) / size).sum()) / ideal
        scores["recall"][query] = float(((last - first) / size).mean())
        nearest = before == before.min()
        s, t, r = int(before.min()), int(size[nearest][0]), int(nearest.sum())
        chances = _first_place(t, r, min(t - r + 1, max(0, places - s)))
        scores["mrr"][query] = float(chances @ inverse[s : s + len(chances)])
    return scores


def _first_place(t: int, r: int, count: int) -> Floats:
    """Return C(t - j, r - 1) / C(t, r) for j = 1, ..., count: where the first of r items among t is."""
    if r == t or count == 0:
        return np.ones(min(count, 1))
    j = np.arange(1, count + 1)
    log = gammaln(t - j + 1) - gammaln(t - j - r + 2) + gammaln(t - r + 1) - gammaln(t + 1)
    result: Floats = r * np.exp(log)
    return result


def _checked(matrix: Values, grades: Any, owner: str) -> tuple[Array, sparse.csr_array]:
    """Return the matrix, and the grades above 0 as a sparse one."""
    values = to_array(matrix)
    if values.ndim != 2 or values.size == 0:
        must = "of shape (queries, items), neither of them empty"
        raise ValueError(checks.message(f"matrix of {owner}", must, values.shape, "Make it with divergence.pairwise."))
    if values.dtype.kind not in "biuf":
        raise TypeError(checks.message(f"matrix of {owner}", "of real numbers", f"dtype {values.dtype}"))
    if values.dtype.kind == "f" and np.isnan(values).any():
        place = tuple(int(i) for i in np.argwhere(np.isnan(values))[0])
        hint = "NaN cannot be ranked: look for NaN in the points or an overflow in the divergence."
        raise ValueError(checks.message(f"matrix of {owner}", "without NaN", f"NaN at {place}", hint))
    given = grades if sparse.issparse(grades) else to_array(grades)
    if given.shape != values.shape:
        raise ValueError(checks.message(f"grades of {owner}", f"of shape {values.shape}, as the matrix", given.shape))
    if given.dtype.kind not in "biuf":
        raise TypeError(checks.message(f"grades of {owner}", "of real numbers", f"dtype {given.dtype}"))
    known = sparse.csr_array(given, dtype=np.float64)
    known.sum_duplicates()
    bad = ~((known.data >= 0) & (known.data < np.inf))
    if bad.any():
        raise ValueError(checks.message(f"grades of {owner}", "finite, zero or above", known.data[bad][0]))
    known.eliminate_zeros()
    if not known.nnz:
        raise ValueError(checks.message(f"grades of {owner}", "above 0 for some item of some query", "none"))
    return values, known
