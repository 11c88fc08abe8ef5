"""Soft clustering: a mixture of one distribution for each cluster, whose shape a Bregman divergence gives."""

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
from askew.clustering.expectation import (
    SoftClustering,
    in_dtype,
    log_densities,
    most_probable,
    responsibilities,
    soft_clusters,
)
from askew.clustering.frame import Frame, as_bregman
from askew.clustering.inputs import as_images, as_table, check_tolerance, checked_weights, has_encoder, positive_only
from askew.clustering.lloyd import lloyd
from askew.clustering.starts import STARTS, choose_start
from askew.clustering.volume import curved_directions, log_volumes
from askew.divergences import Bregman, split_encoder
from askew.encoders import as_points, for_numpy

__all__ = ["BregmanMixture"]

# A cluster starts with at least this part of an equal share.
LEAST_SHARE = 1e-3
# Steps of the hard clustering at the start.
HARD_STEPS = 300


class BregmanMixture(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    r"""Cluster points softly: each belongs to every cluster with some probability.

    .. math:: p(x) = \sum_j \pi_j \, (2 \pi T)^{-d/2} \, |\nabla^2 \phi(x)|^{1/2} \, e^{-D(x, \mu_j) / T}

    Every Bregman divergence is the shape of an exponential family: squared Euclidean of Gaussians (T is twice the
    variance), Itakura-Saito of gamma distributions (T is one over the shape, 1 for exponential distributions), KL of
    Poisson counts (T = 1). Fitted by expectation-maximisation; names and behaviour are those of scikit-learn's
    ``GaussianMixture``. Use it where clusters overlap, where probabilities are wanted, or to choose the number of
    clusters by :meth:`bic`. For well separated clusters :class:`BregmanKMeans`, its limit for T to 0, is faster.

    **How exact the likelihood is.** The true factor before the exponential has no closed form for most phi, and none
    that is known for a learned one. The one above is its saddle-point approximation, which is exact for
    quadratic phi and right for all others as T goes to 0. It depends on x and T only, so it changes no probability
    of :meth:`predict_proba` and no centre, and its second part, the volume :math:`|\nabla^2 \phi(x)|^{1/2}`, is the
    same for all numbers of clusters and all temperatures. For gamma distributions the log-likelihood of
    a point is too high by about T / 12 for each feature, whatever the point, and an estimated T too large by
    about T / 6 of itself (0.081 a feature and 15 % for exponential distributions).

    Parameters
    ----------
    n_components
        Number of clusters.
    divergence
        A name of :func:`askew.names` that needs no learning, a Bregman divergence (also behind an encoder, as
        :class:`askew.Embedded`), or a fitted learner. Its weights are shared, not copied. Pipelines and searches clone
        what they are given: hand in ``learner.model_`` there, as a clone of a learner is not fitted.
    temperature
        T, the size of the clusters in units of the divergence; None estimates it, one for all clusters.
    init
        Centres to start at: ``"k-means"``, hard clustering from ``"k-means++"``; ``"k-means++"``, ``"k-means||"``,
        ``"random-points"`` or ``"random-partition"``, from which the search takes longer and is trapped more often;
        or an array of centres, ``(n_components, dim)``: points as X has them, which go through the encoder too.
    weights_init
        Weights of the clusters to start at, ``(n_components,)``; None takes the sizes of the hard clusters.
    n_init
        Number of starts, of which the one with the highest bound is kept; one if ``init`` is an array.
    max_iter
        Largest number of steps from each start.
    tol
        The search ends when a step raises the bound by no more than this.
    random_state
        Seed of the starts.
    progress
        Whether to show a progress bar; None means on a terminal.

    Attributes
    ----------
    weights_ : array of shape (n_components,)
        Share of each cluster.
    cluster_centers_ : array of shape (n_components, dim)
        Mean of each cluster, where there is an encoder the mean of images.
    temperature_ : float
        T, as given or as estimated.
    labels_ : array of shape (n,)
        The most probable cluster of each training point.
    lower_bound_, lower_bounds_ : float, array
        The mean log-likelihood of a training point, without its volume, and what it was before the first step and
        after each. But for rounding it never falls.
    converged_ : bool
        Whether the search ended by ``tol``.
    n_iter_ : int
        Number of steps from the best start.
    divergence_ : Bregman
        The divergence between images of points.
    encoder_ : torch.nn.Module or None
        What maps points to their images.
    directions_ : array of shape (dim, d) or None
        The directions in which the divergence sees points differ, where these are not all.

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

    # What askew.save keeps of a fitted mixture.
    _saved: ClassVar[tuple[str, ...]] = (
        "weights_",
        "cluster_centers_",
        "temperature_",
        "labels_",
        "lower_bound_",
        "lower_bounds_",
        "converged_",
        "n_iter_",
        "divergence_",
        "encoder_",
        "directions_",
        "n_features_in_",
        "feature_names_in_",
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
        self.n_components = n_components
        self.divergence = divergence
        self.temperature = temperature
        self.init = init
        self.weights_init = weights_init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.progress = progress

    # ------------------------------------------------------------------ fitting

    def fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> BregmanMixture:
        """Find the clusters of points, ``(n, dim)``.

        Parameters
        ----------
        X
            Points.
        y
            Not used.
        sample_weight
            How often each point counts, ``(n,)``; once if not given.
        """
        owner = type(self).__name__
        self._check_parameters()
        X = for_numpy(X, f"X of {owner}")
        array = as_table(X, has_encoder(self.divergence, owner), owner)
        encoder, given = split_encoder(self.divergence, array.shape[1], owner)
        bregman = as_bregman(given, owner)
        images = as_images(array, encoder, bregman, owner, progress=self.progress)
        divergence = in_dtype(bregman, images.dtype)
        counts = checked_weights(sample_weight, array, owner)
        weights = None if counts is None else as_points(counts)
        counted = images.shape[0] if weights is None else int((weights > 0).sum())
        if self.n_components > counted:
            unit = "sample" if counted == 1 else "samples"
            must = f"at most {counted}, as X has {counted} {unit} of a weight above zero"
            raise ValueError(checks.message(f"n_components of {owner}", must, self.n_components))
        directions = curved_directions(images, divergence.potential)
        best = self._best(images, encoder, divergence, weights, directions.shape[1])
        # All at once: a fit that fails leaves what was there before.
        validate_data(self, X, reset=True, skip_check_array=True)
        self.divergence_, self.encoder_ = divergence, encoder
        self.directions_ = None if directions.shape[1] == images.shape[1] else directions.numpy()
        self.weights_ = best.shares.numpy()
        self.cluster_centers_ = best.centres.numpy()
        self.temperature_ = best.temperature
        self.labels_ = best.labels.numpy()
        self.lower_bound_ = best.bound
        self.lower_bounds_ = np.array(best.bounds)
        self.converged_ = best.converged
        self.n_iter_ = best.n_iter
        if not best.converged:
            text = f"{owner} did not converge in {best.n_iter} steps: raise max_iter or tol, or look for another start."
            warnings.warn(text, ConvergenceWarning, stacklevel=2)
        return self

    def fit_predict(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> NDArray[np.int64]:
        """Find the clusters of points and return the most probable one of each, ``(n, dim) -> (n,)``."""
        return self.fit(X, y, sample_weight).labels_

    def _best(
        self, images: Tensor, encoder: nn.Module | None, divergence: Bregman, weights: Tensor | None, dimension: int
    ) -> SoftClustering:
        """Return the best mixture of all starts."""
        starts = self.n_init if isinstance(self.init, str) else 1
        random = check_random_state(self.random_state)
        frame = Frame(images, divergence, None if weights is None else weights.numpy())
        with progress_bar(self.progress, starts * self.max_iter, "soft clustering", value="bound") as move:

            def run(start: int) -> SoftClustering:
                centres, shares = self._start(frame, encoder, weights, random)
                return soft_clusters(
                    images,
                    centres,
                    divergence,
                    weights,
                    shares=shares,
                    temperature=self.temperature,
                    dimension=dimension,
                    max_iter=self.max_iter,
                    tol=self.tol,
                    report=lambda step, bound: move(start * self.max_iter + step, bound),
                )

            return max(map(run, range(starts)), key=lambda found: found.bound)

    def _start(
        self, frame: Frame, encoder: nn.Module | None, weights: Tensor | None, random: np.random.RandomState
    ) -> tuple[Tensor, Tensor | None]:
        """Return centres and shares to start at."""
        owner = type(self).__name__
        shares: Tensor | None = None
        if isinstance(self.init, str):
            array = None if weights is None else weights.numpy()
            method = "k-means++" if self.init == "k-means" else self.init
            centres = choose_start(frame, self.n_components, method, random, array)
            if self.init == "k-means":
                hard = lloyd(frame, centres, array, HARD_STEPS, tol=0.0)
                counts = torch.bincount(hard.labels.long(), weights, minlength=self.n_components).double()
                # With a share of zero a cluster would never get a point again.
                shares = (counts / counts.sum()).clamp_min(LEAST_SHARE / self.n_components)
                centres, shares = hard.centres, shares / shares.sum()
        else:
            given = as_table(self.init, encoder is not None, owner, "init")
            centres = as_images(given, encoder, frame.divergence, owner, "init").to(frame.dtype)
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
        return most_probable(*self._model(X)).numpy()

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return the probability of each cluster at each point, ``(n, dim) -> (n, n_components)``."""
        return responsibilities(*self._model(X)).numpy()

    def score_samples(self, X: ArrayLike, volume: bool = True) -> NDArray[np.float64]:
        """Return the log-likelihood of each point, ``(n, dim) -> (n,)``; where there is an encoder, of its image.

        Parameters
        ----------
        X
            Points.
        volume
            Whether to count the volume, half the log-determinant of the second derivatives of phi at the point. It
            makes values comparable between divergences, and costs ``dim`` squared numbers a point where phi is a
            network. Between mixtures of the same divergence it is the same number, so leave it out where it costs too
            much or where points lie on the boundary of the domain, on which it is infinite (zero counts).
        """
        images, centres, divergence, shares, temperature = self._model(X)
        dim = images.shape[1]
        directions = torch.eye(dim) if self.directions_ is None else torch.from_numpy(self.directions_)
        levels = log_densities(images, centres, divergence, shares, temperature, directions.shape[1])
        if volume:
            levels = levels + log_volumes(images, divergence.potential, directions)
        return levels.numpy()

    def score(self, X: ArrayLike, y: object = None, volume: bool = True) -> float:
        """Return the mean log-likelihood of points; ``volume`` as in :meth:`score_samples`."""
        return float(self.score_samples(X, volume).mean())

    def bic(self, X: ArrayLike, volume: bool = True) -> float:
        r"""Return the Bayesian information criterion, the lower the better.

        .. math:: -2 \sum_i \log p(x_i) + m \log n

        with m free parameters: the centres, all weights but one, and the temperature if it was estimated.

        Parameters
        ----------
        X
            Points.
        volume
            As in :meth:`score_samples`; without it, compare mixtures of the same divergence only.
        """
        levels = self.score_samples(X, volume)
        return float(-2 * levels.sum() + self._n_parameters() * math.log(len(levels)))

    def aic(self, X: ArrayLike, volume: bool = True) -> float:
        r"""Return the Akaike information criterion, -2 \sum_i \log p(x_i) + 2 m; otherwise as :meth:`bic`."""
        return float(-2 * self.score_samples(X, volume).sum() + 2 * self._n_parameters())

    def _n_parameters(self) -> int:
        k, dim = self.cluster_centers_.shape
        d = dim if self.directions_ is None else self.directions_.shape[1]
        return int(k * d + k - 1 + (self.temperature is None))

    def _model(self, X: ArrayLike) -> tuple[Tensor, Tensor, Bregman, Tensor, float]:
        """Return the images of points, and the mixture."""
        check_is_fitted(self, "cluster_centers_")
        centres, shares = as_points(self.cluster_centers_), as_points(self.weights_)
        owner = type(self).__name__
        X = for_numpy(X, f"X of {owner}")
        array = as_table(X, self.encoder_ is not None, owner)
        validate_data(self, X, reset=False, skip_check_array=True)
        images = as_images(array, self.encoder_, self.divergence_, owner, progress=self.progress).to(centres.dtype)
        return images, centres, self.divergence_, shares, self.temperature_

    # ------------------------------------------------------------------ what comes in

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn whether points must be positive."""
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
            checks.check_name(self.init, ("k-means", *STARTS), f"init of {owner}")
