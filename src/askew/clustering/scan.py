"""Assign every point to its nearest centroid and sum all clusters in one pass over the points."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from askew.clustering.view import AffineCentroids, AffineView, Weights

# Entries of a block of products: it stays in the cache between the product and the search for the smallest one.
BLOCK_ENTRIES = 1 << 18
# Rows of clusters to sum at a time: enough to make the overhead small, few enough to stay in the last cache.
SUM_ROWS = 1 << 14
# One thread works on one chunk of points. The number of chunks depends on the work alone, so sums, and with them all
# results, do not depend on the number of threads.
CHUNK_PRODUCTS = 1 << 24
MOST_CHUNKS = 32


class Sums(NamedTuple):
    """Sums of the clusters of some points."""

    rows: NDArray[np.float64]  # weighted sums of the rows of each cluster, (k, dim)
    weights: NDArray[np.float64]  # sums of the weights of each cluster, (k,)
    changed: int = 0  # points whose label has changed
    value: float = 0.0  # their part of the objective, where it was asked for

    def means(self) -> NDArray[np.float64]:
        """Return the mean row of each cluster; an empty one gets that of the largest."""
        means = self.rows / np.where(self.weights > 0, self.weights, 1)[:, None]
        means[self.weights == 0] = means[self.weights.argmax()]
        return np.asarray(means)

    @staticmethod
    def total(parts: Iterable[Sums]) -> Sums:
        """Return the sums of all parts, added in their order."""
        rows, weights, changed, values = zip(*parts, strict=True)
        return Sums(sum(rows), sum(weights), sum(changed), sum(values))


class Scan:
    """Passes over the points of a view, on as many threads as torch has.

    A chunk of points is processed in blocks of rows: features with a column of ones, one product with the affine
    centroids, the smallest entry of each row. Labels are the only array of size n. Use it as a context manager: inside,
    matrix products of numpy use one thread each.
    """

    def __init__(self, view: AffineView, k: int, weights: Weights | None = None) -> None:
        self.view, self.k, self.weights = view, k, weights
        n, dim = view.rows.shape
        count = min(MOST_CHUNKS, max(1, n * k * (dim + 1) // CHUNK_PRODUCTS))
        edges = np.linspace(0, n, count + 1).astype(int)
        self.chunks = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
        self._local = threading.local()
        self._map: Callable[[Callable[[slice], Any], list[slice]], Iterable[Any]] = map
        self._stack = ExitStack()

    def __enter__(self) -> Scan:
        if len(self.chunks) > 1:  # else there is too little work to be worth the trouble
            self._stack.enter_context(threadpool_limits(1, user_api="blas"))
            pool = ThreadPoolExecutor(min(len(self.chunks), torch.get_num_threads()))
            self._stack.callback(pool.shutdown, cancel_futures=True)
            self._map = pool.map
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def assign(self, centroids: AffineCentroids, labels: NDArray[np.int32]) -> None:
        """Write the number of the nearest centroid of each point to ``labels``; of equally near ones, the first."""
        matrix = centroids.matrix(self.view.dtype)
        list(self._map(lambda chunk: self._label(chunk, matrix, labels), self.chunks))

    def assign_and_sum(self, centroids: AffineCentroids, labels: NDArray[np.int32]) -> Sums:
        """Write the labels as :meth:`assign` does, and return the sums of the clusters."""
        matrix = centroids.matrix(self.view.dtype)
        return Sums.total(self._map(lambda chunk: self._sums(chunk, labels, matrix), self.chunks))

    def sum(self, labels: NDArray[np.int32]) -> Sums:
        """Return the sums of the clusters of given labels."""
        return Sums.total(self._map(lambda chunk: self._sums(chunk, labels), self.chunks))

    def _label(self, part: slice, matrix: NDArray[Any], labels: NDArray[np.int32]) -> int:
        """Label some points and return how many labels have changed."""
        data, shift, workspace = self.view.rows, self.view.shift, self._workspace()
        rows = len(workspace.products)
        changed = 0
        for start in range(part.start, part.stop, rows):
            stop = min(part.stop, start + rows)
            left, product = workspace.features[: stop - start], workspace.products[: stop - start]
            np.subtract(data[start:stop], shift, out=left[:, :-1])
            np.matmul(left, matrix, out=product)
            nearest = product.argmin(1)
            changed += int(np.count_nonzero(nearest != labels[start:stop]))
            labels[start:stop] = nearest
        return changed

    def _sums(self, chunk: slice, labels: NDArray[np.int32], matrix: NDArray[Any] | None = None) -> Sums:
        """Label (given a matrix) and sum the clusters of a chunk, a few rows at a time while they are in the cache."""
        data = self.view.rows
        sums, totals = np.zeros((self.k, data.shape[1])), np.zeros(self.k)
        changed = 0
        for start in range(chunk.start, chunk.stop, SUM_ROWS):
            part = slice(start, min(chunk.stop, start + SUM_ROWS))
            if matrix is not None:
                changed += self._label(part, matrix, labels)
            weights = None if self.weights is None else self.weights[part]
            sums += self._workspace().indicator(labels[part], weights) @ data[part]
            totals += np.bincount(labels[part], weights, self.k)
        return Sums(sums, totals, changed)

    def _workspace(self) -> _Workspace:
        """Return the arrays of this thread."""
        if not hasattr(self._local, "workspace"):
            rows = min(len(self.view.rows), SUM_ROWS, max(256, BLOCK_ENTRIES // self.k))
            self._local.workspace = _Workspace(rows, self.view.rows.shape[1], self.k, self.view.rows.dtype)
        workspace: _Workspace = self._local.workspace
        return workspace


class _Workspace:
    """The arrays of one thread, allocated once: fresh memory is slower than memory that is in the cache."""

    def __init__(self, rows: int, dim: int, k: int, dtype: np.dtype[Any]) -> None:
        self.features = np.ones((rows, dim + 1), dtype)
        self.products = np.empty((rows, k), dtype)
        self.k = k
        self._indicators: dict[int, sparse.csc_array] = {}

    def indicator(self, labels: NDArray[np.int32], weights: Weights | None) -> sparse.csc_array:
        """Return the matrix ``(k, n)`` with the weight of each point at its label; times rows it sums each cluster."""
        count = len(labels)
        if count not in self._indicators:
            ends = np.arange(count + 1, dtype=np.int32)
            parts = (np.ones(count), np.zeros(count, np.int32), ends)
            self._indicators[count] = sparse.csc_array(parts, shape=(self.k, count))
        indicator = self._indicators[count]
        indicator.indices[:] = labels
        if weights is not None:
            indicator.data[:] = weights
        return indicator
