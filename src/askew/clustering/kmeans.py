"""Hard Bregman clustering as a scikit-learn estimator."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
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
from askew.clustering.blocks import Blocks, check_lazy, lazy_rows
from askew.clustering.frame import Frame, as_bregman, check_inside, mean_row
from askew.clustering.inputs import as_images, as_table, check_tolerance, checked_weights, has_encoder, positive_only
from askew.clustering.lazy import Lens, best_of_runs, centred, encoded, lazy_objective, lazy_start
from askew.clustering.lloyd import Clustering, lloyd, nearest, total
from askew.clustering.minibatch import absorb, minibatch, reseed
from askew.clustering.starts import STARTS, choose_start
from askew.divergences import Bregman, split_encoder
from askew.encoders import as_points, encode, for_numpy

__all__ = ["BregmanKMeans"]

# Runs from random starts by default; those that choose their points need one.
RANDOM_RUNS = 10
# Starts of data that dask holds. One point after the other would be as many passes as clusters: both are k-means||.
LAZY_STARTS = ("k-means++", "k-means||")
# Entries of a block of the matrix of divergences.
BLOCK_ENTRIES = 1 << 20
# Bytes of a batch from which on what was freed is given back after it, which then costs little beside the rest.
LARGE_BATCH = 1 << 20

Weights = NDArray[np.float64]


class BregmanKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    r"""K-means with any Bregman divergence, given or learned.

    .. math:: \min_{\mu, l} \sum_i w_i D(x_i, \mu_{l_i})

    Parameters and attributes are those of ``sklearn.cluster.KMeans``, and so are the results for the squared Euclidean
    distance from the same start. The centre of a cluster is its mean, for every Bregman divergence. Use it where the
    divergence says what near means: ``"kl"`` for counts and distributions, ``"itakura-saito"`` for spectra and
    durations, or one that was learned from labels of other data. Each iteration costs one matrix product.

    Parameters
    ----------
    n_clusters
        Number of clusters.
    divergence
        A name of :func:`askew.names` that needs no learning, a Bregman divergence (also behind an encoder, as
        :class:`askew.Embedded`), or a fitted learner. Its weights are shared, not copied. Pipelines and searches clone
        what they are given: hand in ``learner.model_`` there, as a clone of a learner is not fitted.
    init
        ``"k-means++"``, ``"k-means||"``, ``"random-points"`` (or ``"random"``), ``"random-partition"``
        (:func:`askew.clustering.start_centres`); centres as an array of shape ``(n_clusters, dim)``; or a function of
        X, ``n_clusters`` and ``random_state`` that returns such. Given centres are points as X has them: where there is
        an encoder, they go through it.
    n_init
        Number of starts, of which the one with the lowest objective is kept. ``"auto"`` means 10 if ``init`` is random
        or a function, else 1.
    max_iter
        Number of iterations of each start at most.
    tol
        Stop when the squared distance that the centres move by is in sum at most this times the mean variance of the
        features (of the images, behind an encoder).
    random_state
        A seed makes the result repeatable.
    batch_size
        Points in a mini-batch, for tables so large that some passes over all points take too long. None means that
        each iteration takes all points.
    dual
        Whether the centre comes first, D(centre, point). Centres are then left centroids, (grad phi)^-1 of the mean
        gradient, and the gradients of all points are kept in memory.
    progress
        Whether to show a bar; by default on a terminal only.

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, dim)
        The centres; behind an encoder, these are images.
    labels_ : array of shape (n,)
        The cluster of each point.
    inertia_ : float
        The objective: the weighted sum of the divergences between points and their centres.
    n_iter_ : int
        Number of iterations of the start that was kept; with mini-batches, of passes over as many points.
    counts_ : array of shape (n_clusters,)
        The weight of the points of each cluster; :meth:`partial_fit` goes on from it.
    divergence_ : Bregman
        What compares points, or their images, with centres.
    encoder_ : torch.nn.Module or None
        What maps points to images.

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

    _saved: ClassVar[tuple[str, ...]] = (
        "cluster_centers_",
        "labels_",
        "inertia_",
        "n_iter_",
        "counts_",
        "divergence_",
        "encoder_",
        "n_features_in_",
        "feature_names_in_",
        "_middle",
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
        self.n_clusters = n_clusters
        self.divergence = divergence
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.batch_size = batch_size
        self.dual = dual
        self.progress = progress

    # ------------------------------------------------------------------ learning

    @torch.no_grad()
    def fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> BregmanKMeans:
        """Cluster points.

        Parameters
        ----------
        X
            ``(n, dim)``, or anything with n first that the encoder takes; integers, such as tokens, go into it as they
            are. A dask array or data frame is clustered block by block where its blocks are; ``labels_`` are then a
            dask array, and the start is by k-means||.
        y
            Not used.
        sample_weight
            Weights of the points, ``(n,)``; with dask's data, an array of dask's or in memory.
        """
        self._check_parameters()
        if checks.is_lazy(X):
            return self._fit_lazy(X, sample_weight)
        array, encoder, divergence, points = self._take(X)
        weights = checked_weights(sample_weight, array, type(self).__name__)
        self._check_count(len(points))
        random = check_random_state(self.random_state)
        frame = Frame(points, divergence, weights, self.dual)
        tol = self.tol * _mean_variance(points, weights) if self.tol else 0.0
        runs = self._runs()
        best: tuple[Clustering, Weights | None] | None = None
        with progress_bar(self.progress, runs * self.max_iter, "k-means") as move:
            for run in range(runs):
                centres = self._start(frame, X, encoder, random, weights)

                def moved(iteration: int, run: int = run) -> None:
                    move(run * self.max_iter + iteration)

                found: tuple[Clustering, Weights | None]
                if self.batch_size is None:
                    found = lloyd(frame, centres, weights, self.max_iter, tol, moved), None
                else:
                    found = minibatch(frame, centres, weights, self.batch_size, random, self.max_iter, tol, moved)
                if best is None or found[0].inertia < best[0].inertia:
                    best = found
        if best is None:  # there is at least one run
            raise RuntimeError("no start was run")
        result, counts = best
        labels = result.labels.numpy()
        if counts is None:
            counts = np.bincount(labels, weights, self.n_clusters).astype(np.float64)
        self._warn_of_few(labels)
        self._keep(X, encoder, divergence, frame, result.centres, labels, result.inertia, counts)
        self.n_iter_ = result.n_iter
        self.__dict__.pop("_random", None)
        return self

    @torch.no_grad()
    def partial_fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> BregmanKMeans:
        """Move the centres by the points of one batch; the first batch also gives the first centres.

        After :meth:`fit`, it goes on from what was found. ``labels_`` and ``inertia_`` are those of the batch.

        Parameters
        ----------
        X
            ``(n, dim)``; the first batch has at least as many points as clusters.
        y
            Not used.
        sample_weight
            Weights of the points, ``(n,)``.
        """
        self._check_parameters()
        X = for_numpy(X, f"X of {type(self).__name__}")
        first = not hasattr(self, "cluster_centers_")
        if first:
            array, encoder, divergence, points = self._take(X)
        else:
            array, points = self._again(X)
            encoder, divergence = self.encoder_, self.divergence_
        weights = checked_weights(sample_weight, array, type(self).__name__)
        random: np.random.RandomState = getattr(self, "_random", None) or check_random_state(self.random_state)
        if first:
            self._check_count(len(points))
            frame = Frame(points, divergence, weights, self.dual)
            centres = self._start(frame, X, encoder, random, weights)
            counts, steps = np.zeros(self.n_clusters), 0
        else:
            frame = self._frame(points)
            centres = torch.from_numpy(self.cluster_centers_).to(points.dtype)
            counts, steps = self.counts_, self.n_iter_
        absorbed = absorb(frame, centres, counts, weights)
        if not first:
            absorbed = reseed(frame, absorbed, random)
        labels = nearest(frame, absorbed.centres)
        inertia = total(frame.to_centres(absorbed.centres, labels), weights)
        names = X if first else None
        self._keep(names, encoder, divergence, frame, absorbed.centres, labels, inertia, absorbed.counts)
        self.n_iter_, self._random = steps + 1, random
        if points.nbytes > LARGE_BATCH:  # a stream of batches is to take the memory of one
            del frame, points, array
            release_memory()
        return self

    # ------------------------------------------------------------------ after fit

    @torch.no_grad()
    def predict(self, X: ArrayLike) -> NDArray[np.int32]:
        """Return the number of the nearest centre of each point, ``(n,)``; of dask's data, when it is computed."""
        if checks.is_lazy(X):
            lazily: NDArray[np.int32] = lazy_rows(X, self._on_workers(X).predict, np.int32)
            return lazily
        _, points = self._again(X)
        return nearest(self._frame(points), self._centres(points))

    @torch.no_grad()
    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Return the divergence of each point to each centre (or, dual, from each centre), ``(n, n_clusters)``."""
        if checks.is_lazy(X):
            work = self._on_workers(X).transform
            lazily: NDArray[Any] = lazy_rows(X, work, self.cluster_centers_.dtype, self.n_clusters)
            return lazily
        _, points = self._again(X)
        centres = self._centres(points)
        frame = self._frame(points)
        like = Bregman(frame.potential, self.divergence_.pairwise_rtol)
        result = points.new_empty(len(points), len(centres))
        for part in slices(len(points), max(1, BLOCK_ENTRIES // len(centres))):
            block = points[part]
            result[part] = like.pairwise(centres, block).T if self.dual else like.pairwise(block, centres)
        return result.numpy()

    def fit_transform(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> NDArray[Any]:
        """Cluster points and return their divergences to the centres, as ``fit(X).transform(X)``."""
        return self.fit(X, sample_weight=sample_weight).transform(X)

    def fit_predict(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> NDArray[np.int32]:
        """Cluster points and return the cluster of each, ``(n,)``."""
        labels: NDArray[np.int32] = self.fit(X, sample_weight=sample_weight).labels_
        return labels

    @torch.no_grad()
    def score(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Return minus the objective of points: the larger, the nearer they are to their centres."""
        if checks.is_lazy(X):
            self._check_lazy_again(X)
            lens = Lens(self.encoder_, self.divergence_, self.dual, type(self).__name__, torch.from_numpy(self._middle))
            return -lazy_objective(Blocks(X, sample_weight, lens.owner), lens, torch.from_numpy(self.cluster_centers_))
        array, points = self._again(X)
        weights = checked_weights(sample_weight, array, type(self).__name__)
        frame, centres = self._frame(points), self._centres(points)
        return -total(frame.to_centres(centres, nearest(frame, centres)), weights)

    # ------------------------------------------------------------------ dask

    def _fit_lazy(self, X: Any, sample_weight: Any) -> BregmanKMeans:
        """Cluster what dask holds, block by block, wherever the blocks are."""
        owner = type(self).__name__
        if self.batch_size is not None:
            raise ValueError(checks.message(f"batch_size of {owner}", "None for dask's data", self.batch_size))
        if isinstance(self.init, str):
            checks.check_name(self.init, LAZY_STARTS, f"init of {owner} of dask's data")
        blocks = Blocks(X, sample_weight, owner)
        encoder, divergence = split_encoder(self.divergence, blocks.columns, owner)
        lens = Lens(encoder, as_bregman(divergence, owner), self.dual, owner)
        blocks, lens = encoded(blocks, lens)
        lens, middle, variance, count = centred(blocks, lens)
        self._check_count(count)
        random, runs = check_random_state(self.random_state), self._runs()

        def start() -> Tensor:
            """Return the first centres: those given, or by k-means||, which needs few passes over the data."""
            if isinstance(self.init, str):
                return lazy_start(blocks, lens, self.n_clusters, random)
            return self._start(Frame(middle, lens.divergence, None, self.dual, middle), X, encoder, random, None)

        with progress_bar(self.progress, runs * self.max_iter, "k-means") as move:
            found = best_of_runs(blocks, lens, start, runs, self.max_iter, self.tol * variance, move)
        validate_data(self, _features(X), skip_check_array=True)  # number and names of features
        self.encoder_, self.divergence_ = encoder, lens.divergence
        self.cluster_centers_, self.n_iter_ = found.centres.numpy(), found.n_iter
        self.inertia_, self.counts_ = float(found.sums.value), found.sums.weights
        self._middle = middle.numpy()
        self.labels_ = self.predict(X)
        return self

    def _check_lazy_again(self, X: Any) -> None:
        """Raise unless dask's data are a table with the features of fit; nothing is computed."""
        check_is_fitted(self, "cluster_centers_")
        check_lazy(X, f"X of {type(self).__name__}")
        validate_data(self, _features(X), reset=False, skip_check_array=True)

    def _on_workers(self, X: Any) -> BregmanKMeans:
        """Return a copy to send to workers, for such data: labels may be as large as those, and are not needed."""
        self._check_lazy_again(X)
        light = copy.copy(self)
        light.__dict__.pop("labels_", None)
        return light

    # ------------------------------------------------------------------ what comes in

    def _check_parameters(self) -> None:
        owner = type(self).__name__
        checks.check_size(self.n_clusters, f"n_clusters of {owner}")
        checks.check_size(self.max_iter, f"max_iter of {owner}")
        if self.batch_size is not None:
            checks.check_size(self.batch_size, f"batch_size of {owner}")
        check_tolerance(self.tol, owner)
        if isinstance(self.n_init, str):
            checks.check_name(self.n_init, ["auto"], f"n_init of {owner}, if not a number,")
        else:
            checks.check_size(self.n_init, f"n_init of {owner}")
        if isinstance(self.init, str):
            checks.check_name(self.init, [*STARTS, "random"], f"init of {owner}")

    def _runs(self) -> int:
        """Return the number of starts."""
        named = isinstance(self.init, str)
        given = not named and not callable(self.init)
        if self.n_init == "auto":
            chosen = given or (named and str(self.init).startswith("k-means"))
            return 1 if chosen else RANDOM_RUNS
        if given and self.n_init != 1:
            text = "Centres were given as init of BregmanKMeans: one start is made instead of n_init={}."
            warnings.warn(text.format(self.n_init), RuntimeWarning, stacklevel=3)
            return 1
        return int(self.n_init)

    def _take(self, X: ArrayLike) -> tuple[NDArray[Any], nn.Module | None, Bregman, Tensor]:
        """Return what is fitted to: the table, the encoder, the divergence, the images."""
        owner = type(self).__name__
        array = as_table(X, has_encoder(self.divergence, owner), owner)
        encoder, divergence = split_encoder(self.divergence, array.shape[1], owner)
        bregman = as_bregman(divergence, owner)
        return array, encoder, bregman, self._images(array, encoder, bregman)

    def _images(self, array: NDArray[Any], encoder: nn.Module | None, divergence: Bregman) -> Tensor:
        return as_images(array, encoder, divergence, type(self).__name__, dual=self.dual, progress=self.progress)

    def _again(self, X: ArrayLike) -> tuple[NDArray[Any], Tensor]:
        """Return a table after fit, and its images."""
        check_is_fitted(self, "cluster_centers_")
        array = as_table(X, self.encoder_ is not None, type(self).__name__)
        validate_data(self, X, reset=False, skip_check_array=True)
        return array, self._images(array, self.encoder_, self.divergence_)

    def _check_count(self, count: int) -> None:
        if count < self.n_clusters:
            must = f"at most the number of points, n_samples={count}"
            raise ValueError(checks.message(f"n_clusters of {type(self).__name__}", must, self.n_clusters))

    def _start(
        self,
        frame: Frame,
        X: ArrayLike,
        encoder: nn.Module | None,
        random: np.random.RandomState,
        weights: Weights | None,
    ) -> Tensor:
        """Return the first centres."""
        if isinstance(self.init, str):
            name = "random-points" if self.init == "random" else self.init
            return choose_start(frame, self.n_clusters, name, random, weights)
        owner = type(self).__name__
        given = self.init(X, self.n_clusters, random_state=random) if callable(self.init) else self.init
        array = as_table(given, encoder is not None, owner, "init")
        centres = encode(encoder, as_points(array)).to(frame.dtype)
        if centres.shape != (self.n_clusters, frame.points.shape[1]):
            must = f"{self.n_clusters} centres, as n_clusters, with as many features as X"
            raise ValueError(checks.message(f"init of {owner}", must, f"an array of shape {array.shape}"))
        check_inside(centres, frame.divergence, False, "init", owner)
        return frame.inside(centres)

    # ------------------------------------------------------------------ what is kept

    def _keep(
        self,
        X: ArrayLike | None,
        encoder: nn.Module | None,
        divergence: Bregman,
        frame: Frame,
        centres: Tensor,
        labels: NDArray[np.int32],
        inertia: float,
        counts: Weights,
    ) -> None:
        """Set the attributes of a fitted clustering, after all that can fail."""
        if X is not None:
            validate_data(self, X, skip_check_array=True)  # number and names of features
        self.encoder_, self.divergence_ = encoder, divergence
        self.cluster_centers_, self.labels_ = centres.numpy(), labels
        self.inertia_, self.counts_ = inertia, counts
        self._middle = frame.middle.numpy()

    def _frame(self, points: Tensor) -> Frame:
        """Return new points as seen in fit: from its middle, so that rounding is the same, too."""
        return Frame(points, self.divergence_, None, self.dual, torch.from_numpy(self._middle))

    def _centres(self, points: Tensor) -> Tensor:
        return torch.from_numpy(self.cluster_centers_).to(points.dtype)

    def _warn_of_few(self, labels: NDArray[np.int32]) -> None:
        found = len(np.unique(labels))
        if found < self.n_clusters:
            text = f"{found} clusters have points, fewer than n_clusters={self.n_clusters}. X may have equal rows."
            warnings.warn(text, ConvergenceWarning, stacklevel=3)

    @property
    def _n_features_out(self) -> int:
        return int(self.cluster_centers_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.positive_only = positive_only(self.divergence)
        return tags


def _features(X: Any) -> Any:
    """Return what has the number and the names of the features of dask's data: of a data frame, one without rows."""
    return X._meta if hasattr(X, "to_dask_array") else X


def _mean_variance(points: Tensor, weights: Weights | None) -> float:
    """Return the mean variance of the features, in little memory."""
    rows = points.numpy()
    mean = mean_row(rows, weights)
    total = np.zeros_like(mean)
    for part in slices(len(rows), 1 << 13):
        squares = np.square(rows[part] - mean)
        total += squares.sum(0) if weights is None else weights[part] @ squares
    return float((total / (len(rows) if weights is None else weights.sum())).mean())
