"""The nearest centre of every point and the sums of all clusters, in one pass over the points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from askew._parallel import slices
from askew.clustering.frame import Frame, Planes

__all__ = ["Scan", "Sums"]

# Entries of a block of products: it stays in the cache between the product and the search for the least one.
BLOCK_ENTRIES = 1 << 18
# Rows whose clusters are summed at a time: enough to make the overhead small, few enough to stay in the last cache.
SUM_ROWS = 1 << 14
# A stripe of points is the work of one thread. Their number follows from the work alone, so that sums, and with
# them all results, do not depend on the number of threads.
STRIPE_PRODUCTS = 1 << 24
MOST_STRIPES = 32


class Sums(NamedTuple):
    """What one pass over the points gives.

    Attributes
    ----------
    rows : array of shape (k, dim)
        Weighted sums of the rows of each cluster, float64.
    weights : array of shape (k,)
        Sums of the weights of each cluster.
    changed : int
        Points whose label is another one than before.
    """

    rows: NDArray[np.float64]
    weights: NDArray[np.float64]
    changed: int


class Scan:
    """Passes over the points of a frame, on as many threads as torch has.

    A stripe of points is worked on in blocks of rows: features less the shift and a column of ones, one product with
    the planes of the centres, the least entry of each row. Nothing of size n is made but the labels. It is a context:
    inside of it, the matrix products of numpy use one thread each.

    Parameters
    ----------
    frame
        The points.
    k
        Number of centres.
    weights
        Weights of the points, ``(n,)``; None means 1.
    """

    def __init__(self, frame: Frame, k: int, weights: NDArray[np.float64] | None = None) -> None:
        self.frame = frame
        self.k = k
        self.weights = weights
        n, dim = frame.rows.shape
        count = min(MOST_STRIPES, max(1, n * k * (dim + 1) // STRIPE_PRODUCTS))
        edges = np.linspace(0, n, count + 1).astype(int)
        self.stripes = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
        threads = min(len(self.stripes), torch.get_num_threads())
        rows = min(n, SUM_ROWS, max(256, BLOCK_ENTRIES // k))
        self._spaces: SimpleQueue[_Space] = SimpleQueue()
        for _ in range(threads):
            self._spaces.put(_Space(rows, dim, k, frame.rows.dtype))
        self._threads = ThreadPoolExecutor(threads) if threads > 1 else None
        self._limits: Any = None

    def __enter__(self) -> Scan:
        if len(self.stripes) > 1:  # else there is too little work to be worth the trouble
            self._limits = threadpool_limits(1, user_api="blas")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        if self._limits is not None:
            self._limits.restore_original_limits()

    def assign(self, planes: Planes, labels: NDArray[np.int32]) -> None:
        """Write the number of the nearest centre of each point to ``labels``; of equally near ones, the first."""
        matrix = planes.matrix(self.frame.dtype)
        for _ in self._map(lambda stripe, space: self._label(stripe, space, matrix, labels)):
            pass

    def assign_and_sum(self, planes: Planes, labels: NDArray[np.int32]) -> Sums:
        """Write the labels as :meth:`assign` does, and return the sums of the clusters."""
        matrix = planes.matrix(self.frame.dtype)

        def work(stripe: slice, space: _Space) -> Sums:
            return self._sums(stripe, space, labels, lambda part: self._label(part, space, matrix, labels))

        return self._total(self._map(work))

    def sum(self, labels: NDArray[np.int32]) -> Sums:
        """Return the sums of the clusters of given labels."""
        return self._total(self._map(lambda stripe, space: self._sums(stripe, space, labels, lambda part: 0)))

    # ------------------------------------------------------------------ one stripe

    def _map(self, work: Callable[[slice, _Space], Any]) -> Iterable[Any]:
        """Give the results of all stripes in their order."""

        def in_a_space(stripe: slice) -> Any:
            space = self._spaces.get()
            try:
                return work(stripe, space)
            finally:
                self._spaces.put(space)

        return map(in_a_space, self.stripes) if self._threads is None else self._threads.map(in_a_space, self.stripes)

    def _total(self, parts: Iterable[Sums]) -> Sums:
        rows, weights = np.zeros((self.k, self.frame.rows.shape[1])), np.zeros(self.k)
        changed = 0
        for part in parts:  # in their order, whichever thread is first
            rows += part.rows
            weights += part.weights
            changed += part.changed
        return Sums(rows, weights, changed)

    def _label(self, stripe: slice, space: _Space, matrix: NDArray[Any], labels: NDArray[np.int32]) -> int:
        """Label the points of a stripe and return how many labels have changed."""
        data, shift = self.frame.rows, self.frame.shift
        rows = len(space.products)
        changed = 0
        for start in range(stripe.start, stripe.stop, rows):
            stop = min(stripe.stop, start + rows)
            left, product = space.features[: stop - start], space.products[: stop - start]
            np.subtract(data[start:stop], shift, out=left[:, :-1])
            np.matmul(left, matrix, out=product)
            nearest = product.argmin(1)
            changed += int(np.count_nonzero(nearest != labels[start:stop]))
            labels[start:stop] = nearest
        return changed

    def _sums(self, stripe: slice, space: _Space, labels: NDArray[np.int32], label: Callable[[slice], int]) -> Sums:
        """Label and sum the clusters of a stripe, some rows at a time so that they are in the cache still."""
        data = self.frame.rows
        sums, totals = np.zeros((self.k, data.shape[1])), np.zeros(self.k)
        changed = 0
        for piece in slices(stripe.stop - stripe.start, SUM_ROWS):
            part = slice(stripe.start + piece.start, stripe.start + piece.stop)
            changed += label(part)
            weights = None if self.weights is None else self.weights[part]
            sums += space.choice(labels[part], weights) @ data[part]
            totals += np.bincount(labels[part], weights, self.k)
        return Sums(sums, totals, changed)


class _Space:
    """What one thread works in, made once: fresh memory is slower than memory that is in the cache."""

    def __init__(self, rows: int, dim: int, k: int, dtype: np.dtype[Any]) -> None:
        self.features = np.ones((rows, dim + 1), dtype)
        self.products = np.empty((rows, k), dtype)
        self.k = k
        self._choices: dict[int, sparse.csc_array] = {}

    def choice(self, labels: NDArray[np.int32], weights: NDArray[np.float64] | None) -> sparse.csc_array:
        """Return a matrix ``(k, n)`` with the weight of each point at its label.

        Times the rows of these points, it gives the sum of each cluster, in float64.
        """
        count = len(labels)
        if count not in self._choices:
            ends = np.arange(count + 1, dtype=np.int32)
            parts = (np.ones(count), np.zeros(count, np.int32), ends)
            self._choices[count] = sparse.csc_array(parts, shape=(self.k, count))
        choice = self._choices[count]
        choice.indices[:] = labels
        if weights is not None:
            choice.data[:] = weights
        return choice
