"""What all learners share: the model they make, and what it can do once it is learned."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor, nn

from askew import checks
from askew.checks import REAL
from askew.divergences import CATALOGUE, Divergence, Embedded, make
from askew.encoders import MLP, Standardize, encode, for_numpy
from askew.estimators.plans import Plan, mlp_activation
from askew.search import ExactIndex
from askew.training import History, TrainingDivergedError, fit

__all__ = ["BaseLearner", "as_tensor", "distinct_rows"]

logger = logging.getLogger("askew")

# Entries of the largest block of divergences that is made at a time.
BLOCK_ENTRIES = 1 << 24
ENCODERS = ("auto", "mlp")
# Features of the images under the encoder "mlp".
IMAGE_FEATURES = 16

Floats = NDArray[np.float64]


class BaseLearner(BaseEstimator):  # type: ignore[misc]
    """A divergence that is learned from a table, with scaling and, where it helps, an encoder in front of it.

    Attributes
    ----------
    divergence_ : Divergence
        The learned divergence between images of points, as :meth:`transform` returns them.
    encoder_ : torch.nn.Module
        What maps points to their images: the scaling, and the encoder if there is one.
    choice_ : str
        In words, what was learned: with or without an encoder, and why.
    validation_ : dict
        The score on held-out data, without and with the encoder, where that decided.
    history_ : History
        The course of the training.
    points_ : array of shape (n, dim)
        The points that were learned from, among which :meth:`kneighbors` searches. From pairs and triplets, those that
        differ, in the order of their first appearance.
    items_ : array
        Their images.
    """

    # What askew.save keeps of a fitted learner.
    _saved: ClassVar[tuple[str, ...]] = (
        "divergence_",
        "encoder_",
        "choice_",
        "validation_",
        "history_",
        "points_",
        "items_",
        "n_features_in_",
        "feature_names_in_",
    )

    def __init__(
        self,
        divergence: str | Divergence = "nbd",
        encoder: str | nn.Module | None = "auto",
        *,
        scale: bool = True,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        random_state: Any = None,
        device: str | None = None,
        progress: bool | None = None,
    ) -> None:
        self.divergence = divergence
        self.encoder = encoder
        self.scale = scale
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.device = device
        self.progress = progress

    # ------------------------------------------------------------------ after fit

    @property
    def model_(self) -> Embedded:
        """The learned divergence between points as they come, ``D(encoder_(x), encoder_(y))``.

        It shares its weights with the learner: train a copy of it further, not itself.
        """
        check_is_fitted(self, "divergence_")
        return Embedded(self.encoder_, self.divergence_).eval()

    def as_divergence(self) -> Embedded:
        """Return :attr:`model_`: search, clustering and plots take a fitted learner for its divergence."""
        return self.model_

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Return the images of points, ``(n, dim) -> (n, out)``: what ``divergence_`` compares.

        ``divergence_.pairwise`` of two sets of images is :meth:`pairwise` of the points.
        """
        return self._images(self._points(X)).numpy()

    def pairwise(self, A: ArrayLike, B: ArrayLike | None = None) -> NDArray[Any]:
        """Return the divergence D(a, b) of each row of A to each row of B, ``(n, dim), (m, dim) -> (n, m)``.

        Without B it is A against itself. The matrix is not symmetric in general: rows are first.
        """
        first = self._images(self._points(A))
        second = first if B is None else self._images(self._points(B))
        rows = max(1, BLOCK_ENTRIES // max(1, second.shape[0]))
        with torch.inference_mode():
            if first.shape[0] <= rows:
                return self.divergence_.pairwise(first, second).numpy()
            return torch.cat([self.divergence_.pairwise(block, second) for block in first.split(rows)]).numpy()

    def pair_distance(self, pairs: ArrayLike) -> NDArray[Any]:
        """Return the divergence of the first point of each pair to the second, ``(n, 2, dim) -> (n,)``."""
        array = self._tuples(pairs, 2)
        with torch.inference_mode():
            images = [self._images(as_tensor(array[:, i])) for i in range(2)]
            values: Tensor = self.divergence_(*images)
            return values.numpy()

    def kneighbors(
        self, X: ArrayLike | None = None, n_neighbors: int = 5, return_distance: bool = True
    ) -> tuple[NDArray[Any], NDArray[np.int64]] | NDArray[np.int64]:
        """Return the training points nearest to each query, by D(query, point), and their divergences.

        Parameters
        ----------
        X
            Queries, ``(n, dim)``. None means the training points, each of which is then not its own neighbour.
        n_neighbors
            How many.
        return_distance
            Whether to return the divergences too.

        Returns
        -------
        tuple of arrays, ``(n, n_neighbors)`` each
            Divergences in ascending order, and the numbers of rows of ``points_``.
        """
        check_is_fitted(self, "divergence_")
        items = torch.from_numpy(self.items_)
        queries = items if X is None else self._images(self._points(X))
        checks.check_size(n_neighbors, f"n_neighbors of {type(self).__name__}.kneighbors")
        there = items.shape[0] - (X is None)
        if n_neighbors > there:
            must = f"at most {there}, the number of training points to choose from"
            raise ValueError(checks.message(f"n_neighbors of {type(self).__name__}.kneighbors", must, n_neighbors))
        index = ExactIndex(self.divergence_)
        index.add(items)
        values, indices = index.search(queries, n_neighbors + (X is None))
        if X is None:
            values, indices = _without_itself(values, indices)
        return (values, indices) if return_distance else indices

    # ------------------------------------------------------------------ what comes in

    def _points(self, X: ArrayLike, reset: bool = False) -> Tensor:
        """Return a table as float64 points after scikit-learn's checks."""
        if not reset:
            check_is_fitted(self, "divergence_")
        array = validate_data(
            self, for_numpy(X, f"X of {type(self).__name__}"), reset=reset, dtype=np.float64, order="C"
        )
        return as_tensor(array)

    def _tuples(self, tuples: ArrayLike, size: int, reset: bool = False) -> Floats:
        """Return pairs or triplets of points, ``(n, size, dim)``, as float64."""
        owner = type(self).__name__
        name = {2: "pairs", 3: "triplets"}[size]
        if not reset:
            check_is_fitted(self, "divergence_")
        whole = for_numpy(tuples, f"{name} of {owner}")
        array: Floats = check_array(
            whole, allow_nd=True, ensure_2d=False, dtype=np.float64, estimator=self, input_name=name
        )
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
        return array

    def _images(self, points: Tensor) -> Tensor:
        check_is_fitted(self, "divergence_")
        return encode(self.encoder_, points)

    # ------------------------------------------------------------------ learning

    def _seed(self) -> int:
        """Return the seed of this fit, as ``random_state`` says."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _check_choices(self) -> None:
        """Raise if ``divergence`` or ``encoder`` is not one of those there are."""
        owner = type(self).__name__
        if not isinstance(self.divergence, Divergence):
            checks.check_name(self.divergence, CATALOGUE, f"divergence of {owner}")
        if self.encoder is not None and not isinstance(self.encoder, nn.Module):
            checks.check_name(self.encoder, ENCODERS, f"encoder of {owner}")

    def _scaling(self, points: Tensor, encoder: str | nn.Module | None) -> nn.Module:
        """Return what brings features to one scale; where that would leave a domain, points stay as they are."""
        dim = points.shape[-1]
        domain = self._probe(dim).domain if encoder is None else REAL
        return Standardize(dim).fit(points) if self.scale and domain == REAL else Standardize(dim)

    def _named_divergence(self, dim: int) -> Divergence:
        return self.divergence if isinstance(self.divergence, Divergence) else make(self.divergence, dim)

    def _probe(self, dim: int) -> Divergence:
        """Return the divergence as it is before training, to ask for its promises; random numbers are put back."""
        with torch.random.fork_rng(devices=[]):
            return self._named_divergence(dim)

    def _untrained(self, dim: int, encoder: str | nn.Module | None, n: int) -> Divergence:
        """Return a model of scaled points that is not trained yet, for n rows of data."""
        owner = type(self).__name__
        if encoder is None:
            model = copy.deepcopy(self._named_divergence(dim))
            if model.dim not in (None, dim):
                raise ValueError(checks.message(f"divergence of {owner}", f"of dim {dim}, as the data", model.dim))
            return model.to(torch.get_default_dtype())
        if isinstance(encoder, nn.Module):
            encoder = copy.deepcopy(encoder).to("cpu", torch.get_default_dtype()).eval()
            with torch.no_grad():
                out = encoder(torch.zeros(2, dim)).shape[-1]
        else:
            out = self.divergence.dim if isinstance(self.divergence, Divergence) else IMAGE_FEATURES
            encoder = MLP(dim, out or IMAGE_FEATURES, widths=(128, 128), activation=mlp_activation(n))
        divergence = copy.deepcopy(self._named_divergence(out or IMAGE_FEATURES))
        if divergence.dim not in (None, out or IMAGE_FEATURES):
            must = f"of dim {out}, as what the encoder gives"
            raise ValueError(checks.message(f"divergence of {owner}", must, divergence.dim))
        if divergence.domain != REAL:
            hint = "Give encoder=None."
            got = f"one whose domain is {divergence.domain!r}"
            raise ValueError(checks.message(f"divergence of {owner} behind an encoder", "one on all points", got, hint))
        return Embedded(encoder, divergence).to(torch.get_default_dtype())

    def _seeded(self, dim: int, encoder: str | nn.Module | None, n: int, seed: int) -> Divergence:
        """Return an untrained model whose weights depend on the seed only."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._untrained(dim, encoder, n)

    @property
    def _divergence_name(self) -> str:
        return self.divergence if isinstance(self.divergence, str) else ""

    def _plain(self, divergence: Divergence) -> Divergence:
        """Return a solved divergence in the dtype of images."""
        return divergence.to(torch.get_default_dtype())

    def _without_comparison(
        self, dim: int, n: int, needed: int, what: str
    ) -> tuple[str | nn.Module | None, str] | None:
        """Return the encoder and why, or None if with and without one are to be compared."""
        self.validation_: dict[str, float] = {}
        if self.encoder != "auto":
            name = "no encoder" if self.encoder is None else f"encoder {_short(self.encoder)}"
            return self.encoder, f"{name}, as asked for"
        divergence = self._probe(dim)
        if isinstance(divergence, Embedded):
            return None, "no further encoder: the divergence has one"
        if divergence.dim != dim:
            return "mlp", f"encoder 'mlp': the divergence is of dim {divergence.dim}, the data of {dim}"
        if self.divergence == "pbdl" or divergence.domain != REAL or not any(True for _ in divergence.parameters()):
            return None, f"no encoder: {_short(self.divergence)} works on the features"
        if n < needed:
            return None, f"no encoder: {n} {what} are too few to hold out some ({needed} are needed)"
        return None

    def _compare(
        self,
        learn: Callable[[str | None], tuple[Divergence, History]],
        score: Callable[[Divergence], float],
        what: str,
        larger_is_better: bool = True,
    ) -> tuple[str | None, str]:
        """Return whether an encoder is better by a score of models that did not see what is scored, and why."""
        for name, encoder in (("without encoder", None), ("with encoder", "mlp")):
            try:
                model, _ = learn(encoder)
            except TrainingDivergedError:
                self.validation_[name] = -math.inf if larger_is_better else math.inf
                continue
            with torch.inference_mode():
                self.validation_[name] = score(model.eval())
        without, with_ = self.validation_.values()
        better = with_ > without if larger_is_better else with_ < without
        figures = f"{what} {without:.4g} without, {with_:.4g} with"
        return ("mlp", f"encoder 'mlp': {figures}") if better else (None, f"no encoder: {figures}")

    def _train(self, model: Divergence, data: tuple[Tensor, ...], plan: Plan, seed: int, trial: bool) -> History:
        """Train a model by a plan, where the user's own settings go first; for a trial, half as long."""
        if not any(p.requires_grad for p in model.parameters()):
            return History()
        steps = self.steps if self.steps is not None else plan.steps
        rate = self.learning_rate if self.learning_rate is not None else plan.learning_rate
        history = fit(
            model,
            data,
            plan.loss,
            steps=(steps + 1) // 2 if trial else steps,
            batch_size=self.batch_size if self.batch_size is not None else plan.batch_size,
            learning_rate=rate,
            clip=plan.clip,
            seed=seed,
            device=self.device,
            progress=self.progress,
        )
        if history.stopped == "interrupted":  # a search over settings must not take half a model for a whole one
            raise KeyboardInterrupt
        model.cpu()
        return history

    def _keep(self, scaling: nn.Module, model: Divergence, history: History, choice: str, points: Tensor) -> None:
        """Set the attributes of a fitted learner, all of them or, on an error, none."""
        encoder: nn.Module = scaling
        if isinstance(model, Embedded):
            encoder, model = nn.Sequential(scaling, model.encoder), model.divergence
        images = encode(encoder.eval(), points)
        if model.eval().domain != REAL:  # nothing has looked at the points yet where nothing was trained
            with torch.inference_mode():
                model(images, images)
        self.encoder_, self.divergence_ = encoder, model
        self.points_, self.items_ = points.numpy(), images.numpy()
        self.history_ = history
        self.choice_ = choice
        logger.info("%s: %s", type(self).__name__, choice)


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor; torch takes no array that must not be written to, so those are copied."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _short(value: object) -> str:
    return repr(value) if isinstance(value, str) else type(value).__name__


def distinct_rows(points: Tensor) -> Tensor:
    """Return the distinct rows of a matrix in the order of their first appearance."""
    _, first = np.unique(points.numpy(), axis=0, return_index=True)
    return points[torch.from_numpy(np.sort(first))]


def _without_itself(values: NDArray[Any], indices: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the neighbours of each item without the item; where equals have crowded it out, without the last."""
    itself = indices == np.arange(len(indices))[:, None]
    itself[~itself.any(1), -1] = True
    shape = (len(indices), indices.shape[1] - 1)
    return values[~itself].reshape(shape), indices[~itself].reshape(shape)
