"""Hard Bregman clustering as a scikit-learn estimator."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from askew import checks
from askew._parallel import release_memory, slices
from askew._progress import progress_bar
from askew.clustering import inputs
from askew.clustering.lloyd import Clustering, lloyd, nearest, total
from askew.clustering.minibatch import batch_step, minibatch, reassign
from askew.clustering.seeding import SEEDINGS
from askew.clustering.view import AffineView, Weights, mean_row
from askew.divergences import Bregman, split_encoder
from askew.encoders import for_numpy

# Default number of random starts; the other seedings need one.
RANDOM_RUNS = 10
# Entries of a block of the matrix of divergences.
BLOCK_ENTRIES = 1 << 20
# Bytes of a batch from which on freed memory is given back after it; that then costs little.
LARGE_BATCH = 1 << 20


class BregmanKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    r"""K-means with any Bregman divergence, given or learned.

    .. math:: \min_{\mu, l} \sum_i w_i D(x_i, \mu_{l_i})

    Parameters and attributes are those of ``sklearn.cluster.KMeans``, and so are the results for the squared Euclidean
    distance from the same start. The centre of a cluster is its mean for every Bregman divergence. Use it with a
    divergence that fits the data: ``"kl"`` for counts and distributions, ``"itakura-saito"`` for spectra and durations,
    or one that was learned from labels of other data. Each iteration costs one matrix product.

    Parameters
    ----------
    n_clusters
        Number of clusters.
    divergence
        A name of :func:`askew.names` that needs no learning, a divergence that is Bregman (also behind an encoder, as
        :class:`askew.Embedded`), or a fitted learner. Its weights are shared, not copied. Pipelines and grid searches
        clone their parameters: pass ``learner.model_`` there, as the clone of a learner is not fitted.
    init
        ``"k-means++"``, ``"random-points"`` (or ``"random"``), ``"random-partition"``; centres as an array of shape
        ``(n_clusters, dim)``; or a function of X, ``n_clusters`` and ``random_state`` that returns them. Given centres
        are points like those of X: if there is an encoder, they go through it.
    n_init
        Number of starts; the one with the lowest objective is kept. ``"auto"`` means 10 if ``init`` is random or a
        function, else 1.
    max_iter
        Largest number of iterations of each start.
    tol
        Stop when the sum of the squared distances that the centres move is at most this times the mean variance of the
        features (of the embeddings, behind an encoder). Mini-batches stop when their objective does not fall any more.
    random_state
        A seed makes the result reproducible.
    batch_size
        Points in a mini-batch, for tables so large that a few passes over all points take too long. None means that
        each iteration uses all points.
    dual
        Whether the centre comes first, D(centre, point). Centres are then left centroids, (grad phi)^-1 of the mean
        gradient, and the gradients of all points are kept in memory.
    progress
        Whether to show a progress bar; by default on a terminal only.

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, dim)
        The centres; behind an encoder, means of embeddings.
    labels_ : array of shape (n,)
        The cluster of each point.
    inertia_ : float
        The objective: the weighted sum of the divergences between points and their centres.
    n_iter_ : int
        Number of iterations of the start that was kept; with mini-batches, of passes over as many points.
    counts_ : array of shape (n_clusters,)
        The weight of the points of each cluster; :meth:`partial_fit` continues from it.
    divergence_ : Bregman
        Compares points, or their embeddings, with centres.
    encoder_ : torch.nn.Module or None
        Maps points to embeddings.

    References
    ----------
    Banerjee, Merugu, Dhillon, Ghosh: Clustering with Bregman divergences. JMLR 6, 2005.

    Examples
    --------
    >>> X = [[1.0], [2.0], [3.0], [100.0], [200.0], [300.0]]
    >>> BregmanKMeans(2, divergence="itakura-saito", random_state=0).fit(X).cluster_centers_.ravel()
    array([  2., 200.])
    >>> BregmanKMeans(2, random_state=0).fit_predict(X)  # the squared distance sees the large ones only
    array([1, 1, 1, 1, 0, 0], dtype=int32)
    """

    # What askew.save keeps; `_middle` is the centre of the affine view.
    saved_attributes: ClassVar[tuple[str, ...]] = (
        *("cluster_centers_", "labels_", "inertia_", "n_iter_", "counts_", "divergence_", "encoder_"),
        *("n_features_in_", "feature_names_in_", "_middle"),
    )

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        divergence: Any = "euclidean",
        init: str | ArrayLike | Callable[..., ArrayLike] = "k-means++",
        n_init: int | str = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: Any = None,
        batch_size: int | None = None,
        dual: bool = False,
        progress: bool | None = None,
    ) -> None:
        self.n_clusters, self.divergence, self.dual = n_clusters, divergence, dual
        self.init, self.n_init, self.random_state = init, n_init, random_state
        self.max_iter, self.tol, self.batch_size = max_iter, tol, batch_size
        self.progress = progress

    # ------------------------------------------------------------------ fit

    @torch.no_grad()
    def fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> BregmanKMeans:
        """Cluster points.

        Parameters
        ----------
        X
            ``(n, dim)``, or any batch that the encoder takes, with n first; integers, such as tokens, reach it as they
            are. A Dask array or data frame is clustered block by block where its blocks are; ``labels_`` is then a Dask
            array, and ``"k-means++"`` samples many points at a time (k-means||).
        y
            Ignored.
        sample_weight
            Weights of the points, ``(n,)``; for Dask data, a Dask array or an array in memory.
        """
        self._check_parameters()
        if checks.is_lazy(X):
            return self._fit_dask(X, sample_weight)
        owner = type(self).__name__
        table, encoder, divergence, points = inputs.convert(X, self.divergence, owner, self.dual, self.progress)
        weights = inputs.checked_weights(sample_weight, table, owner)
        self._check_count(len(points))
        random = check_random_state(self.random_state)
        view = AffineView(points, divergence, weights, self.dual)
        tol = self.tol * _mean_variance(points, weights) if self.tol else 0.0
        runs = self._runs()
        with progress_bar(self.progress, runs * self.max_iter, "k-means") as move:

            def run(number: int) -> tuple[Clustering, Weights | None]:
                centroids = self._start(view, X, encoder, random, weights)

                def moved(iteration: int) -> None:
                    move(number * self.max_iter + iteration)

                if self.batch_size is None:
                    return lloyd(view, centroids, weights, self.max_iter, tol, moved), None
                return minibatch(view, centroids, weights, self.batch_size, random, self.max_iter, moved)

            result, counts = min(map(run, range(runs)), key=lambda run: run[0].inertia)
        labels = result.labels.numpy()
        if counts is None:
            counts = np.bincount(labels, weights, self.n_clusters).astype(np.float64)
        used = len(np.unique(labels))
        if used < self.n_clusters:
            text = f"{used} clusters have points, fewer than n_clusters={self.n_clusters}. X may have equal rows."
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        validate_data(self, X, skip_check_array=True)  # number and names of features
        self._keep(view, encoder, result.centres, result.inertia, counts, result.n_iter)
        self.labels_ = labels
        self.__dict__.pop("_random", None)
        return self

    @torch.no_grad()
    def partial_fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> BregmanKMeans:
        """Move the centres by the points of one batch; the first batch, of ``n_clusters`` points or more, gives them.

        After :meth:`fit`, it continues from its result. ``labels_`` and ``inertia_`` are those of the batch.
        """
        self._check_parameters()
        owner = type(self).__name__
        X = for_numpy(X, f"X of {owner}")
        first = not hasattr(self, "cluster_centers_")
        random: np.random.RandomState = getattr(self, "_random", None) or check_random_state(self.random_state)
        if first:
            table, encoder, divergence, points = inputs.convert(X, self.divergence, owner, self.dual, self.progress)
            weights = inputs.checked_weights(sample_weight, table, owner)
            self._check_count(len(points))
            view = AffineView(points, divergence, weights, self.dual)
            centroids = self._start(view, X, encoder, random, weights)
            result = batch_step(view, centroids, np.zeros(self.n_clusters), weights)
        else:
            view, centroids, weights = self._seen(X, sample_weight)
            encoder = self.encoder_
            result = reassign(view, batch_step(view, centroids, self.counts_, weights), random)
        labels = nearest(view, result.centroids)
        inertia = total(view.divergences_to(result.centroids, labels), weights)
        if first:
            validate_data(self, X, skip_check_array=True)  # number and names of features
        steps = 0 if first else self.n_iter_
        self._keep(view, encoder, result.centroids, inertia, result.counts, steps + 1)
        self.labels_, self._random = labels, random
        if view.points.nbytes > LARGE_BATCH:  # a stream of batches should take the memory of one
            del view
            release_memory()
        return self

    # ------------------------------------------------------------------ after fit

    @torch.no_grad()
    def predict(self, X: ArrayLike) -> NDArray[np.int32]:
        """Return the number of the nearest centre of each point, ``(n,)``; for Dask data, a Dask array."""
        if checks.is_lazy(X):
            labels: NDArray[np.int32] = self._map_rows(X, "predict", np.int32)
            return labels
        view, centroids, _ = self._seen(X)
        return nearest(view, centroids)

    @torch.no_grad()
    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Return the divergence of each point to each centre (or, dual, from each centre), ``(n, n_clusters)``."""
        if checks.is_lazy(X):
            values: NDArray[Any] = self._map_rows(X, "transform", self.cluster_centers_.dtype, (self.n_clusters,))
            return values
        view, centroids, _ = self._seen(X)
        like = Bregman(view.potential, self.divergence_.pairwise_rtol)
        result = view.points.new_empty(len(view.points), len(centroids))
        for part in slices(len(result), max(1, BLOCK_ENTRIES // len(centroids))):
            block = view.points[part]
            result[part] = like.pairwise(centroids, block).T if self.dual else like.pairwise(block, centroids)
        return result.numpy()

    @torch.no_grad()
    def score(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Return minus the objective of points: the larger, the nearer they are to their centres."""
        if checks.is_lazy(X):
            dask, centre = self._dask_after_fit(X), torch.from_numpy(self._middle)
            context = dask.BlockContext(self.encoder_, self.divergence_, self.dual, type(self).__name__, centre)
            blocks = dask.Blocks(X, sample_weight, context)
            return -float(dask.objective(blocks, torch.from_numpy(self.cluster_centers_)).value)
        view, centroids, weights = self._seen(X, sample_weight)
        return -total(view.divergences_to(centroids, nearest(view, centroids)), weights)

    # ------------------------------------------------------------------ Dask

    def _fit_dask(self, X: Any, sample_weight: Any) -> BregmanKMeans:
        from askew.clustering import dask

        owner = type(self).__name__
        if self.batch_size is not None:
            raise ValueError(checks.message(f"batch_size of {owner}", "None for dask's data", self.batch_size))
        if isinstance(self.init, str):
            checks.check_name(self.init, ["k-means++"], f"init of {owner} of dask's data")
        dask.check_collection(X, f"X of {owner}")
        encoder, divergence = split_encoder(self.divergence, int(X.shape[1]), owner)
        context = dask.BlockContext(encoder, inputs.to_bregman(divergence, owner), self.dual, owner)
        blocks = dask.Blocks(X, sample_weight, context)
        blocks.embed()
        view, variance, count = dask.centre(blocks)
        self._check_count(count)
        random, runs = check_random_state(self.random_state), self._runs()
        with progress_bar(self.progress, runs * self.max_iter, "k-means") as move:

            def run(number: int) -> Any:
                seeded = isinstance(self.init, str)
                k = self.n_clusters
                start = dask.init_parallel(blocks, k, random) if seeded else self._start(view, X, encoder, random, None)

                def moved(iteration: int) -> None:
                    move(number * self.max_iter + iteration)

                return dask.lloyd(blocks, start, self.max_iter, self.tol * variance, moved)

            end, sums = min(map(run, range(runs)), key=lambda run: run[1].value)
        validate_data(self, _features(X), skip_check_array=True)  # number and names of features
        self._keep(view, encoder, end.centroids, float(sums.value), sums.weights, end.n_iter)
        self.labels_ = self.predict(X)
        return self

    def _dask_after_fit(self, X: Any) -> ModuleType:
        """Return the module that works on Dask data if X has the features of fit; nothing is computed."""
        from askew.clustering import dask

        check_is_fitted(self, "cluster_centers_")
        dask.check_collection(X, f"X of {type(self).__name__}")
        validate_data(self, _features(X), reset=False, skip_check_array=True)
        return dask

    def _map_rows(self, X: Any, method: str, dtype: Any, columns: tuple[int, ...] = ()) -> Any:
        """Return a Dask array of the results of a method for all rows."""
        dask = self._dask_after_fit(X)
        sent = copy.copy(self)
        for name in ("labels_", "feature_names_in_"):  # as large as the data; blocks are arrays and have no names
            sent.__dict__.pop(name, None)
        return dask.map_rows(X, getattr(sent, method), dtype, columns)

    # ------------------------------------------------------------------ parameters and input

    def _check_parameters(self) -> None:
        owner = type(self).__name__
        checks.check_size(self.n_clusters, f"n_clusters of {owner}")
        checks.check_size(self.max_iter, f"max_iter of {owner}")
        if self.batch_size is not None:
            checks.check_size(self.batch_size, f"batch_size of {owner}")
        inputs.check_tolerance(self.tol, owner)
        if isinstance(self.n_init, str):
            checks.check_name(self.n_init, ["auto"], f"n_init of {owner}, if not a number,")
        else:
            checks.check_size(self.n_init, f"n_init of {owner}")
        if isinstance(self.init, str):
            checks.check_name(self.init, SEEDINGS, f"init of {owner}")

    def _runs(self) -> int:
        """Return the number of starts."""
        given = not isinstance(self.init, str) and not callable(self.init)
        if self.n_init == "auto":
            return 1 if given or self.init == "k-means++" else RANDOM_RUNS
        if given and self.n_init != 1:
            text = "Centres were given as init of BregmanKMeans: one start is made instead of n_init={}."
            warnings.warn(text.format(self.n_init), RuntimeWarning, stacklevel=3)
            return 1
        return int(self.n_init)

    def _seen(self, X: ArrayLike, sample_weight: ArrayLike | None = None) -> tuple[AffineView, Tensor, Weights | None]:
        """Return new points as seen in fit, from the same centre so that rounding is the same; centroids; weights."""
        check_is_fitted(self, "cluster_centers_")
        owner, encoder, divergence = type(self).__name__, self.encoder_, self.divergence_
        table = inputs.as_table(X, encoder is not None, owner)
        validate_data(self, X, reset=False, skip_check_array=True)
        points = inputs.embed(table, encoder, divergence, owner, dual=self.dual, progress=self.progress)
        weights = inputs.checked_weights(sample_weight, table, owner)
        view = AffineView(points, divergence, None, self.dual, torch.from_numpy(self._middle))
        return view, torch.from_numpy(self.cluster_centers_).to(points.dtype), weights

    def _check_count(self, count: int) -> None:
        if count < self.n_clusters:
            must = f"at most the number of points, n_samples={count}"
            raise ValueError(checks.message(f"n_clusters of {type(self).__name__}", must, self.n_clusters))

    def _start(
        self,
        view: AffineView,
        X: ArrayLike,
        encoder: nn.Module | None,
        random: np.random.RandomState,
        weights: Weights | None,
    ) -> Tensor:
        """Return the first centroids."""
        k = self.n_clusters
        init = self.init(X, k, random_state=random) if callable(self.init) else self.init
        return inputs.first_centroids(init, view, k, encoder, random, weights, type(self).__name__)

    # ------------------------------------------------------------------ fitted state

    def _keep(
        self,
        view: AffineView,
        encoder: nn.Module | None,
        centroids: Tensor,
        inertia: float,
        counts: Weights,
        n_iter: int,
    ) -> None:
        """Set the fitted attributes, after everything that can fail."""
        self.encoder_, self.divergence_ = encoder, view.divergence
        self.cluster_centers_, self.inertia_ = centroids.numpy(), inertia
        self.counts_, self.n_iter_ = counts, n_iter
        self._middle = view.centre.numpy()

    @property
    def _n_features_out(self) -> int:
        return int(self.cluster_centers_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.positive_only = inputs.positive_only(self.divergence)
        return tags


def _features(X: Any) -> Any:
    """Return an object with the number and names of the features of a Dask collection: the empty meta frame."""
    return X._meta if hasattr(X, "to_dask_array") else X


def _mean_variance(points: Tensor, weights: Weights | None) -> float:
    """Return the mean variance of the features, in little memory."""
    rows = points.numpy()
    mean = mean_row(rows, weights)
    shares = np.ones(len(rows)) if weights is None else weights
    total = sum(shares[part] @ np.square(rows[part] - mean) for part in slices(len(rows), 1 << 13))
    return float(np.mean(total) / shares.sum())
