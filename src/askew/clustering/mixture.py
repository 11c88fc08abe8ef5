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
from askew.clustering import inputs
from askew.clustering.expectation import Mixture, SoftClustering, soft_clusters
from askew.clustering.lloyd import lloyd
from askew.clustering.seeding import SEEDINGS
from askew.clustering.view import AffineView, Weights
from askew.clustering.volume import curved_directions, log_volumes
from askew.divergences import Bregman
from askew.encoders import as_points, for_numpy
from askew.potentials.inverse import widened

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
        First centres: ``"k-means"``, hard clustering from ``"k-means++"``; ``"k-means++"``, ``"random-points"`` or
        ``"random-partition"``, which take longer and end in local optima more often; or an array of centres,
        ``(n_components, dim)``: points like those of X, which go through the encoder.
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
        table, encoder, bregman, points = inputs.convert(X, self.divergence, owner, progress=self.progress)
        potential = widened(bregman.potential, points.dtype)
        divergence = bregman if potential is bregman.potential else Bregman(potential, bregman.pairwise_rtol)
        weights = inputs.checked_weights(sample_weight, table, owner)
        counted = len(points) if weights is None else np.count_nonzero(weights)
        if self.n_components > counted:
            must = f"at most the number of points of a weight above zero, n_samples={counted}"
            raise ValueError(checks.message(f"n_components of {owner}", must, self.n_components))
        directions = curved_directions(points, potential)
        mixture, bounds, converged = self._best_of_starts(points, encoder, divergence, weights, directions.shape[1])
        # All at once: a fit that fails leaves the attributes as they were.
        validate_data(self, X, reset=True, skip_check_array=True)
        self.divergence_, self.encoder_ = divergence, encoder
        self.directions_ = None if directions.shape[1] == points.shape[1] else directions.numpy()
        self.weights_, self.cluster_centers_ = mixture.shares.numpy(), mixture.centres.numpy()
        self.temperature_, self.labels_ = mixture.temperature, mixture.most_probable(points).numpy()
        self.lower_bound_, self.lower_bounds_ = bounds[-1], np.array(bounds)
        self.converged_, self.n_iter_ = converged, len(bounds) - 1
        if not converged:
            text = f"{owner} did not converge in {self.n_iter_} steps: raise max_iter or tol, or take another start."
            warnings.warn(text, ConvergenceWarning, stacklevel=2)
        return self

    def _best_of_starts(
        self, points: Tensor, encoder: nn.Module | None, divergence: Bregman, weights: Weights | None, dimension: int
    ) -> SoftClustering:
        starts = self.n_init if isinstance(self.init, str) else 1
        random = check_random_state(self.random_state)
        view = AffineView(points, divergence, weights)
        with progress_bar(self.progress, starts * self.max_iter, "soft clustering", value="bound") as move:

            def run(number: int) -> SoftClustering:
                return soft_clusters(
                    points,
                    self._start(view, encoder, weights, random),
                    dimension,
                    None if weights is None else as_points(weights),
                    estimate=self.temperature is None,
                    max_iter=self.max_iter,
                    tol=self.tol,
                    report=lambda step, bound: move(number * self.max_iter + step, bound),
                )

            return max(map(run, range(starts)), key=lambda clustering: clustering.bounds[-1])

    def _start(
        self, view: AffineView, encoder: nn.Module | None, weights: Weights | None, random: np.random.RandomState
    ) -> Mixture:
        k, owner = self.n_components, type(self).__name__
        hard = isinstance(self.init, str) and self.init == "k-means"
        init = "k-means++" if hard else self.init
        centres = inputs.first_centroids(init, view, k, encoder, random, weights, owner)
        shares = np.full(k, 1 / k)
        if hard:
            clustering = lloyd(view, centres, weights, HARD_ITERATIONS, tol=0.0)
            counts = np.bincount(clustering.labels.numpy(), weights, k)
            # With a share of zero a cluster would never get a point again.
            centres, shares = clustering.centres, np.maximum(counts / counts.sum(), LEAST_SHARE / k)
        if self.weights_init is not None:
            shares = np.array(for_numpy(self.weights_init, f"weights_init of {owner}"), np.float64)
            if shares.shape != (k,) or not (shares >= 0).all() or abs(shares.sum() - 1) > checks.SUM_TOLERANCE:
                must = f"{k} numbers of at least zero that sum to one"
                raise ValueError(checks.message(f"weights_init of {owner}", must, shares.tolist()))
        return Mixture(view.divergence, centres, torch.from_numpy(shares), self.temperature or 1.0)

    # ------------------------------------------------------------------ after fit

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the most probable cluster of each point, ``(n, dim) -> (n,)``."""
        mixture, points = self._mixture(X)
        return mixture.most_probable(points).numpy()

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return the probability of each cluster at each point, ``(n, dim) -> (n, n_components)``."""
        mixture, points = self._mixture(X)
        return mixture.responsibilities(points).numpy()

    def score_samples(self, X: ArrayLike, volume: bool = True) -> NDArray[np.float64]:
        """Return the log-likelihood of each point, ``(n, dim) -> (n,)``; behind an encoder, of its embedding.

        The ``volume``, half the log-determinant of the Hessian of phi at the point, makes values comparable between
        divergences, and takes ``dim`` squared numbers per point if phi is a network. It is the same for all mixtures of
        one divergence: leave it out if it costs too much, or if points lie on the boundary of the domain, where it is
        infinite (zero counts).
        """
        mixture, points = self._mixture(X)
        directions = torch.eye(points.shape[1]) if self.directions_ is None else torch.from_numpy(self.directions_)
        levels = mixture.log_densities(points, directions.shape[1])
        if volume:
            levels = levels + log_volumes(points, mixture.divergence.potential, directions)
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

    def _mixture(self, X: ArrayLike) -> tuple[Mixture, Tensor]:
        """Return the mixture and the embeddings of new points."""
        check_is_fitted(self, "cluster_centers_")
        centres, shares = as_points(self.cluster_centers_), as_points(self.weights_)
        owner = type(self).__name__
        X = for_numpy(X, f"X of {owner}")
        table = inputs.as_table(X, self.encoder_ is not None, owner)
        validate_data(self, X, reset=False, skip_check_array=True)
        points = inputs.embed(table, self.encoder_, self.divergence_, owner, progress=self.progress)
        return Mixture(self.divergence_, centres, shares, self.temperature_), points.to(centres.dtype)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = inputs.positive_only(self.divergence)
        return tags

    def _check_parameters(self) -> None:
        owner = type(self).__name__
        for name in ("n_components", "n_init", "max_iter"):
            checks.check_size(getattr(self, name), f"{name} of {owner}")
        if self.temperature is not None:
            checks.check_positive(self.temperature, f"temperature of {owner}")
        inputs.check_tolerance(self.tol, owner)
        if isinstance(self.init, str):
            checks.check_name(self.init, ("k-means", *SEEDINGS), f"init of {owner}")
