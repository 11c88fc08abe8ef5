"""What a fitted learner can do: compare points, embed them, and find their neighbours."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor, nn

from askew import checks
from askew.divergences import Divergence, Embedded
from askew.divergences.base import Side
from askew.encoders import as_points, encode, for_numpy
from askew.search import ExactIndex

# Entries of the largest block of divergences that is computed at a time.
BLOCK_ENTRIES = 1 << 24


def table_for_numpy(X: Any, owner: str) -> Any:
    """Return a table that numpy can convert; the error for a frame with text says how to encode it."""
    for name in X.columns if hasattr(X, "columns") and hasattr(X, "iloc") else ():
        if X[name].dtype.kind not in "biuf":
            try:
                X[name].astype(float)
            except (ValueError, TypeError):
                got = f"column {name!r} of {X[name].dtype}, with {str(X[name].iloc[0])[:40]!r}"
                hint = f"Encode its columns: make_pipeline(askew.Columns(), askew.{owner}())."
                raise ValueError(checks.message(f"X of {owner}", "a table of numbers", got, hint)) from None
    return for_numpy(X, f"X of {owner}")


class FittedLearner(BaseEstimator):  # type: ignore[misc]
    """The methods of a learner that use what it has learned."""

    divergence_: Divergence
    encoder_: nn.Module
    points_: NDArray[Any]
    items_: NDArray[Any]
    # What askew.save(learner, folder, points=False) leaves out.
    training_data: ClassVar[tuple[str, ...]] = ("points_", "items_")
    # What it never writes, as it follows from the rest.
    recomputed: ClassVar[tuple[str, ...]] = ("items_",)
    # Whether each row of the data is a tuple of points.
    _takes_tuples: ClassVar[bool] = False
    # Whether items_ are embedded as first or as second points of D(query, item).
    _items_side: ClassVar[Side] = "first"

    def __getattr__(self, name: str) -> Any:
        if name == "items_" and "points_" in self.__dict__:  # a file holds the points alone
            self.items_ = self._embed(torch.from_numpy(self.points_), self._items_side).numpy()
            return self.items_
        owner = type(self).__name__
        if name in self.training_data and "divergence_" in self.__dict__:
            hint = "Save it with points=True, or search other items: askew.search.ExactIndex(learner)."
            got = "a learner that was saved with points=False"
            raise AttributeError(checks.message(f"{name} of {owner}", "there, as it holds training data", got, hint))
        return object.__getattribute__(self, name)  # raises what it raised before, such as NotFittedError of a property

    @property
    def _second(self) -> nn.Module | None:
        """The encoder of second points, where they have their own."""
        second: nn.Module | None = self.__dict__.get("second_encoder_")
        return second

    @property
    def model_(self) -> Embedded:
        """The learned divergence between points, ``D(encoder_(x), encoder_(y))``.

        It shares its weights with the learner: to train it further, copy it first.
        """
        check_is_fitted(self, "divergence_")
        return Embedded(self.encoder_, self.divergence_, self._second).eval()

    def as_divergence(self) -> Embedded:
        """Return :attr:`model_`: search, clustering and plots take a fitted learner for its divergence."""
        return self.model_

    def transform(self, X: ArrayLike, side: Side = "first") -> NDArray[Any]:
        """Return the embeddings of points, ``(n, dim) -> (n, out)``, which ``divergence_`` compares.

        ``divergence_.pairwise`` of two sets of embeddings is :meth:`pairwise` of the points. ``side`` matters where
        second points have an encoder of their own.
        """
        checks.check_name(side, ("first", "second"), f"side of {type(self).__name__}.transform")
        return self._embed(self._points(X, side), side).numpy()

    def pairwise(self, A: ArrayLike, B: ArrayLike | None = None) -> NDArray[Any]:
        """Return the divergence D(a, b) of each row of A to each row of B, ``(n, dim), (m, dim) -> (n, m)``.

        Without B it is A against itself. The matrix is not symmetric in general: rows come first.
        """
        first = self._embed(self._points(A))
        shared = B is None and self._second is None
        second = first if shared else self._embed(self._points(A if B is None else B, "second"), "second")
        rows = max(1, BLOCK_ENTRIES // max(1, second.shape[0]))
        with torch.inference_mode():
            if first.shape[0] <= rows:
                return self.divergence_.pairwise(first, second).numpy()
            return torch.cat([self.divergence_.pairwise(block, second) for block in first.split(rows)]).numpy()

    def pair_distance(self, pairs: ArrayLike) -> NDArray[Any]:
        """Return the divergence of the first point of each pair to the second, ``(n, 2, dim) -> (n,)``.

        Pairs may also be a tuple of two arrays, first and second points, ``(n, dim)`` each; they must be where the two
        sides have different features.
        """
        if isinstance(pairs, tuple) and len(pairs) == 2 and all(getattr(part, "ndim", 0) == 2 for part in pairs):
            first, second = self._points(pairs[0]), self._points(pairs[1], "second")
            if len(first) != len(second):
                must, got = "as many first points as second ones", f"{len(first)} and {len(second)}"
                raise ValueError(checks.message(f"pairs of {type(self).__name__}", must, got))
        else:
            first, second = self._tuples(pairs, 2).unbind(1)
        with torch.inference_mode():
            values: Tensor = self.divergence_(self._embed(first), self._embed(second, "second"))
            return values.numpy()

    def kneighbors(
        self, X: ArrayLike | None = None, n_neighbors: int = 5, return_distance: bool = True
    ) -> tuple[NDArray[Any], NDArray[np.int64]] | NDArray[np.int64]:
        """Return the training points nearest to each query, by D(query, point), and their divergences.

        The first call builds an index of the training points, which later calls use.

        Parameters
        ----------
        X
            Queries, ``(n, dim)``. None means the training points, each of which is then not its own neighbour.
        n_neighbors
            How many.
        return_distance
            Whether to return the divergences as well.

        Returns
        -------
        tuple of arrays, ``(n, n_neighbors)`` each
            Divergences in ascending order, and the numbers of rows of ``points_``.
        """
        check_is_fitted(self, "divergence_")
        if self._second is not None and self._items_side == "first":
            hint = "Choose the items: index = askew.search.ExactIndex(learner); index.add(items); index.search(X)."
            must = "a learner whose two points have one encoder"
            raise ValueError(checks.message(f"{type(self).__name__}.kneighbors", must, "a second encoder", hint))
        queries = None if X is None else self._points(X)
        what = f"n_neighbors of {type(self).__name__}.kneighbors"
        checks.check_size(n_neighbors, what)
        available = len(self.items_) - (X is None)
        if n_neighbors > available:
            must = f"at most {available}, the number of training points to choose from"
            raise ValueError(checks.message(what, must, n_neighbors))
        values, indices = self._nearest(queries, n_neighbors)
        return (values, indices) if return_distance else indices

    def _nearest(self, queries: Tensor | None, count: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        if queries is not None:
            return self._item_index().search(self._embed(queries), count)
        values, indices = self._item_index().search(torch.from_numpy(self.items_), count + 1)
        itself = indices == np.arange(len(indices))[:, None]
        itself[~itself.any(1), -1] = True  # points equal to it have crowded it out
        return values[~itself].reshape(-1, count), indices[~itself].reshape(-1, count)

    def _item_index(self) -> ExactIndex:
        """Return the index of the training points; it is built again if these or the divergence have changed."""
        index: ExactIndex | None
        items, divergence, index = self.__dict__.get("_index", (None, None, None))
        same = items is self.items_ and divergence is self.divergence_
        if index is None or not same or not _has_weights(index.divergence, divergence):
            index = ExactIndex(self.divergence_)
            index.add(torch.from_numpy(self.items_))
            self._index = (self.items_, self.divergence_, index)
        return index

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self._takes_tuples:
            tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles build their own index.
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_index"}

    # ------------------------------------------------------------------ input

    def _points(self, X: ArrayLike, side: Side = "first") -> Tensor:
        """Return a table as float64 points after scikit-learn's checks."""
        check_is_fitted(self, "divergence_")
        whole = table_for_numpy(X, type(self).__name__)
        return as_points(validate_data(self, whole, reset=False, dtype=np.float64, order="C"))

    def _tuples(self, tuples: ArrayLike, size: int, reset: bool = False) -> Tensor:
        """Return pairs or triplets of points, ``(n, size, dim)``, as float64."""
        owner = type(self).__name__
        name = {2: "pairs", 3: "triplets"}[size]
        if not reset:
            check_is_fitted(self, "divergence_")
        whole = for_numpy(tuples, f"{name} of {owner}")
        options = {"allow_nd": True, "ensure_2d": False, "dtype": np.float64}
        array = check_array(whole, estimator=self, input_name=name, **options)
        if array.ndim != 3 or array.shape[1] != size:
            hint = f"Columns of points are put together by numpy.stack([{', '.join('abc'[:size])}], axis=1)."
            raise ValueError(checks.message(f"{name} of {owner}", f"of shape (n, {size}, dim)", array.shape, hint))
        if array.shape[2] == 0:
            raise ValueError(checks.message(f"{name} of {owner}", "of points with at least one feature", array.shape))
        if reset:
            self.n_features_in_ = array.shape[2]
        elif array.shape[2] != self.n_features_in_:
            must = f"of points with {self.n_features_in_} features, as in fit"
            raise ValueError(checks.message(f"{name} of {owner}", must, array.shape[2]))
        return as_points(array)

    def _embed(self, points: Tensor, side: Side = "first") -> Tensor:
        return encode(self._second if side == "second" and self._second is not None else self.encoder_, points)


def _has_weights(copied: Divergence, divergence: Divergence) -> bool:
    """Return whether a divergence still has the weights of its copy."""
    then, now = copied.state_dict(), divergence.state_dict()
    return then.keys() == now.keys() and all(torch.equal(then[name], now[name]) for name in then)
