"""Soft Bregman clustering, a mixture model, as a scikit-learn estimator."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from askew import checks
from askew._progress import progress_bar
from askew.clustering import expectation
from askew.clustering.expectation import SoftClustering, soft_clusters
from askew.clustering.inputs import as_table, check_tolerance, checked_weights, convert, embed, positive_only
from askew.clustering.lloyd import lloyd
from askew.clustering.seeding import SEEDINGS, init_centroids
from askew.clustering.view import AffineView
from askew.clustering.volume import curved_directions, log_volumes
from askew.divergences import Bregman
from askew.encoders import as_points, for_numpy

# A cluster starts with at least this fraction of an equal share.
LEAST_SHARE = 1e-3
# Iterations of the hard clustering at the start.
HARD_ITERATIONS = 300


class BregmanMixture(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    r"""A mixture model with any Bregman divergence: each point belongs to every cluster with some probability.

    .. math:: p(x) = \sum_j \pi_j \, (2 \pi T)^{-d/2} \, |\nabla^2 \phi(x)|^{1/2} \, e^{-D(x, \mu_j) / T}

    Every Bregman divergence belongs to an exponential family: squared Euclidean to Gaussians (T is twice the variance),
    Itakura-Saito to gamma distributions (T is one over the shape, 1 for exponential distributions), KL to Poisson
    counts (T = 1). Fitted by expectation-maximisation; names and behaviour are those of scikit-learn's
    ``GaussianMixture``. Use it when clusters overlap, when you need probabilities, or to choose the number of clusters
    by :meth:`bic`. For well separated clusters :class:`BregmanKMeans`, its limit for T to 0, is faster.

    The factor before the exponential is a saddle-point approximation, as the true one has no closed form for most phi.
    It is exact for quadratic phi, and for all others as T goes to 0. It depends on x and T only, so it changes no
    probability of :meth:`predict_proba` and no centre. For gamma distributions the log-likelihood of a point is too
    high by about T / 12 per feature, whatever the point, and an estimated T too large by a fraction of about T / 6.

    Parameters
    ----------
    n_components
        Number of clusters.
    divergence
        A name of :func:`askew.names` that needs no learning, a divergence that is Bregman (also behind an encoder, as
        :class:`askew.Embedded`), or a fitted learner. Its weights are shared, not copied. Pipelines and grid searches
        clone their parameters: pass ``learner.model_`` there, as the clone of a learner is not fitted.
    temperature
        T, the size of the clusters in units of the divergence; None estimates one for all clusters.
    init
        First centres: ``"k-means"``, hard clustering from ``"k-means++"``; ``"k-means++"``, ``"k-means||"``,
        ``"random-points"`` or ``"random-partition"``, which take longer and end in local optima more often; or an array
        of centres, ``(n_components, dim)``: points like those of X, which go through the encoder.
    weights_init
        First weights of the clusters, ``(n_components,)``; None takes the sizes of the hard clusters.
    n_init
        Number of starts; the one with the highest bound is kept. One if ``init`` is an array.
    max_iter
        Largest number of steps from each start.
    tol
        Stop when a step raises the bound by no more than this.
    random_state
        Seed of the starts.
    progress
        Whether to show a progress bar; by default on a terminal only.

    Attributes
    ----------
    weights_ : array of shape (n_components,)
        Share of each cluster.
    cluster_centers_ : array of shape (n_components, dim)
        Mean of each cluster; behind an encoder, of embeddings.
    temperature_ : float
        T, as given or as estimated.
    labels_ : array of shape (n,)
        The most probable cluster of each training point.
    lower_bound_, lower_bounds_ : float, array
        The mean log-likelihood of a training point, without its volume: at the end, and before the first step and
        after each. Up to rounding it never falls.
    converged_ : bool
        Whether it stopped by ``tol``.
    n_iter_ : int
        Number of steps from the best start.
    divergence_ : Bregman
        Compares points, or their embeddings, with centres.
    encoder_ : torch.nn.Module or None
        Maps points to embeddings.
    directions_ : array of shape (dim, d) or None
        Basis of the directions in which phi is curved, if these are not all.

    References
    ----------
    Banerjee, Merugu, Dhillon and Ghosh, Clustering with Bregman divergences, JMLR 6, 2005, section 5; Jorgensen,
    The theory of dispersion models, 1997, section 3.5 (saddle-point approximation).

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> X = random.exponential(np.repeat([[1.0, 9.0], [9.0, 1.0]], 200, axis=0))
    >>> mixture = BregmanMixture(2, divergence="itakura-saito", random_state=0).fit(X)
    >>> mixture.predict_proba([[1.0, 9.0]]).max().item() > 0.99
    True
    >>> min(range(1, 5), key=lambda k: mixture.set_params(n_components=k).fit(X).bic(X))
    2
    """

    # What askew.save keeps.
    saved_attributes: ClassVar[tuple[str, ...]] = (
        *("weights_", "cluster_centers_", "temperature_", "labels_", "lower_bound_", "lower_bounds_", "converged_"),
        *("n_iter_", "divergence_", "encoder_", "directions_", "n_features_in_", "feature_names_in_"),
    )

    def __init__(
        self,
        n_components: int = 8,
        *,
        divergence: Any = "euclidean",
        temperature: float | None = None,
        init: str | ArrayLike = "k-means",
        weights_init: ArrayLike | None = None,
        n_init: int = 1,
        max_iter: int = 100,
        tol: float = 1e-3,
        random_state: Any = None,
        progress: bool | None = None,
    ) -> None:
        self.n_components, self.divergence, self.temperature = n_components, divergence, temperature
        self.init, self.weights_init, self.n_init, self.random_state = init, weights_init, n_init, random_state
        self.max_iter, self.tol = max_iter, tol
        self.progress = progress

    # ------------------------------------------------------------------ fit

    def fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> BregmanMixture:
        """Fit the mixture to points, ``(n, dim)`` or any batch that the encoder takes, and their weights, ``(n,)``."""
        owner = type(self).__name__
        self._check_parameters()
        X = for_numpy(X, f"X of {owner}")
        table, encoder, bregman, points = convert(X, self.divergence, owner, progress=self.progress)
        divergence = expectation.in_dtype(bregman, points.dtype)
        array = checked_weights(sample_weight, table, owner)
        weights = None if array is None else as_points(array)
        counted = points.shape[0] if weights is None else int((weights > 0).sum())
        if self.n_components > counted:
            unit = "sample" if counted == 1 else "samples"
            must = f"at most {counted}, as X has {counted} {unit} of a weight above zero"
            raise ValueError(checks.message(f"n_components of {owner}", must, self.n_components))
        directions = curved_directions(points, divergence.potential)
        best = self._best_of_starts(points, encoder, divergence, weights, directions.shape[1])
        # All at once: a fit that fails leaves the attributes as they were.
        validate_data(self, X, reset=True, skip_check_array=True)
        self.divergence_, self.encoder_ = divergence, encoder
        self.directions_ = None if directions.shape[1] == points.shape[1] else directions.numpy()
        self.weights_, self.cluster_centers_ = best.shares.numpy(), best.centres.numpy()
        self.temperature_, self.labels_ = best.temperature, best.labels.numpy()
        self.lower_bound_, self.lower_bounds_ = best.bound, np.array(best.bounds)
        self.converged_, self.n_iter_ = best.converged, best.n_iter
        if not best.converged:
            text = f"{owner} did not converge in {best.n_iter} steps: raise max_iter or tol, or look for another start."
            warnings.warn(text, ConvergenceWarning, stacklevel=2)
        return self

    def fit_predict(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> NDArray[np.int64]:
        """Fit the mixture and return the most probable cluster of each point, ``(n, dim) -> (n,)``."""
        return self.fit(X, y, sample_weight).labels_

    def _best_of_starts(
        self, points: Tensor, encoder: nn.Module | None, divergence: Bregman, weights: Tensor | None, dimension: int
    ) -> SoftClustering:
        starts = self.n_init if isinstance(self.init, str) else 1
        random = check_random_state(self.random_state)
        view = AffineView(points, divergence, None if weights is None else weights.numpy())
        with progress_bar(self.progress, starts * self.max_iter, "soft clustering", value="bound") as move:

            def run(start: int) -> SoftClustering:
                def report(step: int, bound: float) -> None:
                    move(start * self.max_iter + step, bound)

                centres, shares = self._start(view, encoder, weights, random)
                options: dict[str, Any] = {"temperature": self.temperature, "max_iter": self.max_iter, "tol": self.tol}
                return soft_clusters(
                    points, centres, divergence, weights, shares=shares, dimension=dimension, report=report, **options
                )

            return max(map(run, range(starts)), key=lambda clustering: clustering.bound)

    def _start(
        self, view: AffineView, encoder: nn.Module | None, weights: Tensor | None, random: np.random.RandomState
    ) -> tuple[Tensor, Tensor | None]:
        """Return the first centres and shares."""
        owner = type(self).__name__
        shares: Tensor | None = None
        if isinstance(self.init, str):
            array = None if weights is None else weights.numpy()
            method = "k-means++" if self.init == "k-means" else self.init
            centres = init_centroids(view, self.n_components, method, random, array)
            if self.init == "k-means":
                hard = lloyd(view, centres, array, HARD_ITERATIONS, tol=0.0)
                counts = torch.bincount(hard.labels.long(), weights, minlength=self.n_components).double()
                # With a share of zero a cluster would never get a point again.
                shares = (counts / counts.sum()).clamp_min(LEAST_SHARE / self.n_components)
                centres, shares = hard.centres, shares / shares.sum()
        else:
            table = as_table(self.init, encoder is not None, owner, "init")
            centres = embed(table, encoder, view.divergence, owner, "init").to(view.dtype)
            if centres.shape[0] != self.n_components:
                must = f"{self.n_components} centres, as n_components"
                raise ValueError(checks.message(f"init of {owner}", must, centres.shape[0]))
        if self.weights_init is not None:
            shares = torch.as_tensor(np.array(for_numpy(self.weights_init, f"weights_init of {owner}"), np.float64))
            off = shares.shape != (self.n_components,) or not bool((shares >= 0).all())
            if off or abs(float(shares.sum()) - 1) > checks.SUM_TOLERANCE:
                must = f"{self.n_components} numbers of at least zero that sum to one"
                raise ValueError(checks.message(f"weights_init of {owner}", must, shares.tolist()))
        return centres, shares

    # ------------------------------------------------------------------ after fit

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the most probable cluster of each point, ``(n, dim) -> (n,)``."""
        return expectation.most_probable(*self._model(X)).numpy()

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return the probability of each cluster at each point, ``(n, dim) -> (n, n_components)``."""
        return expectation.responsibilities(*self._model(X)).numpy()

    def score_samples(self, X: ArrayLike, volume: bool = True) -> NDArray[np.float64]:
        """Return the log-likelihood of each point, ``(n, dim) -> (n,)``; behind an encoder, of its embedding.

        The ``volume``, half the log-determinant of the Hessian of phi at the point, makes values comparable between
        divergences, and takes ``dim`` squared numbers per point if phi is a network. It is the same for all mixtures of
        one divergence: leave it out if it costs too much, or if points lie on the boundary of the domain, where it is
        infinite (zero counts).
        """
        points, centres, divergence, shares, temperature = self._model(X)
        directions = torch.eye(points.shape[1]) if self.directions_ is None else torch.from_numpy(self.directions_)
        levels = expectation.log_densities(points, centres, divergence, shares, temperature, directions.shape[1])
        if volume:
            levels = levels + log_volumes(points, divergence.potential, directions)
        return levels.numpy()

    def score(self, X: ArrayLike, y: object = None, volume: bool = True) -> float:
        """Return the mean log-likelihood of points; ``volume`` as in :meth:`score_samples`."""
        return float(self.score_samples(X, volume).mean())

    def bic(self, X: ArrayLike, volume: bool = True) -> float:
        r"""Return the Bayesian information criterion, :math:`-2 \sum_i \log p(x_i) + m \log n`, the lower the better.

        There are m free parameters: the centres, all weights but one, and the temperature if it was estimated. Without
        ``volume`` (see :meth:`score_samples`), compare mixtures of the same divergence only.
        """
        levels = self.score_samples(X, volume)
        return float(-2 * levels.sum() + self._n_parameters() * math.log(len(levels)))

    def aic(self, X: ArrayLike, volume: bool = True) -> float:
        r"""Return the Akaike information criterion, :math:`-2 \sum_i \log p(x_i) + 2 m`; otherwise as :meth:`bic`."""
        return float(-2 * self.score_samples(X, volume).sum() + 2 * self._n_parameters())

    def _n_parameters(self) -> int:
        k, dim = self.cluster_centers_.shape
        d = dim if self.directions_ is None else self.directions_.shape[1]
        return int(k * d + k - 1 + (self.temperature is None))

    def _model(self, X: ArrayLike) -> tuple[Tensor, Tensor, Bregman, Tensor, float]:
        """Return the embeddings of points, and the mixture."""
        check_is_fitted(self, "cluster_centers_")
        centres, shares = as_points(self.cluster_centers_), as_points(self.weights_)
        owner = type(self).__name__
        X = for_numpy(X, f"X of {owner}")
        table = as_table(X, self.encoder_ is not None, owner)
        validate_data(self, X, reset=False, skip_check_array=True)
        points = embed(table, self.encoder_, self.divergence_, owner, progress=self.progress).to(centres.dtype)
        return points, centres, self.divergence_, shares, self.temperature_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = positive_only(self.divergence)
        return tags

    def _check_parameters(self) -> None:
        owner = type(self).__name__
        for name in ("n_components", "n_init", "max_iter"):
            checks.check_size(getattr(self, name), f"{name} of {owner}")
        if self.temperature is not None:
            checks.check_positive(self.temperature, f"temperature of {owner}")
        check_tolerance(self.tol, owner)
        if isinstance(self.init, str):
            checks.check_name(self.init, ("k-means", *SEEDINGS), f"init of {owner}")
