"""Classification by the nearest neighbours under a learned divergence."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from askew import checks
from askew.divergences import Divergence, Embedded
from askew.encoders import as_points, for_numpy
from askew.estimators.fitted import table_for_numpy
from askew.estimators.labels import DivergenceLearner


class DivergenceNeighborsClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify by the labels of the k nearest training points, by a divergence learned from them.

    Parameters
    ----------
    learner
        A :class:`DivergenceLearner`, which is copied, in place of the parameters below.
    n_neighbors
        How many neighbours vote; at most as many as there are training points do.
    divergence, encoder, scale, steps, batch_size, learning_rate, random_state, device, progress
        As in :class:`DivergenceLearner`. A ``random_state`` may be given with a learner: it replaces its seed.

    Attributes
    ----------
    learner_ : DivergenceLearner
        What was learned.
    classes_ : array
        The labels there are.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, labels = load_iris(return_X_y=True)
    >>> classifier = DivergenceNeighborsClassifier(encoder=None, steps=100, random_state=0).fit(X[::2], labels[::2])
    >>> classifier.score(X[1::2], labels[1::2]) > 0.9
    True
    """

    saved_attributes: ClassVar[tuple[str, ...]] = ("learner_", "classes_", "n_features_in_", "feature_names_in_")

    def __init__(
        self,
        learner: DivergenceLearner | None = None,
        n_neighbors: int = 5,
        *,
        divergence: str | Divergence = "nbd",
        encoder: str | nn.Module | None = "auto",
        scale: bool = True,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        random_state: Any = None,
        device: str | None = None,
        progress: bool | None = None,
    ) -> None:
        self.learner = learner
        self.n_neighbors = n_neighbors
        self.divergence = divergence
        self.encoder = encoder
        self.scale = scale
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def fit(self, X: ArrayLike, y: ArrayLike) -> DivergenceNeighborsClassifier:
        """Learn the divergence from points and their labels, ``(n, dim), (n,)``, and keep both."""
        owner = type(self).__name__
        checks.check_size(self.n_neighbors, f"n_neighbors of {owner}")
        if self.learner is not None and not isinstance(self.learner, DivergenceLearner):
            got = type(self.learner).__name__
            raise TypeError(checks.message(f"learner of {owner}", "a DivergenceLearner or None", got))
        X, y = table_for_numpy(X, owner), for_numpy(y, f"y of {owner}")
        validate_data(self, X, y, dtype=np.float64)
        defaults = DivergenceLearner().get_params(deep=False)
        settings = {name: getattr(self, name) for name in defaults}
        changed = [name for name, value in settings.items() if value is not defaults[name] and value != defaults[name]]
        if self.learner is not None and changed not in ([], ["random_state"]):
            must = "None where its parameters are given, or all of them in the learner"
            raise ValueError(checks.message(f"learner of {owner}", must, f"a learner and {', '.join(changed)}"))
        learner = DivergenceLearner(**settings) if self.learner is None else clone(self.learner)
        learner.set_params(**{name: settings[name] for name in changed})
        self.learner_: DivergenceLearner = learner.fit(X, y)
        self.classes_ = self.learner_.classes_
        return self

    def as_divergence(self) -> Embedded:
        """Return the learned divergence between points: search, clustering and plots ask for it."""
        check_is_fitted(self, "learner_")
        return self.learner_.model_

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the share of the neighbours that are of each class, ``(n, dim) -> (n, n_classes)``."""
        check_is_fitted(self, "learner_")
        whole = for_numpy(X, f"X of {type(self).__name__}")
        points = as_points(validate_data(self, whole, dtype=np.float64, order="C", reset=False))
        count = min(self.n_neighbors, len(self.learner_.items_))
        _, neighbours = self.learner_._nearest(points, count)
        numbers = np.searchsorted(self.classes_, self.learner_.labels_)[neighbours]
        return np.stack([(numbers == i).mean(1) for i in range(len(self.classes_))], axis=1)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class that most of the neighbours have; of equals, the first in order."""
        shares = self.predict_proba(X)
        classes: NDArray[Any] = self.classes_[shares.argmax(1)]
        return classes
