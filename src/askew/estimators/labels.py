"""Learning from class labels."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import TransformerMixin
from sklearn.model_selection import train_test_split
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from askew import checks, metrics, pbdl
from askew.divergences import Divergence
from askew.encoders import as_points, for_numpy
from askew.estimators.base import ROWS_TO_CHECK, BaseLearner, Data
from askew.estimators.choice import Candidate
from askew.estimators.fitted import table_for_numpy
from askew.estimators.plans import EASY, EASY_SHARES, TRIAL_SHARE, Plan, label_plan

# Most rows that are held out to compare models on.
HELD_OUT_ROWS = 1000


class DivergenceLearner(TransformerMixin, BaseLearner):  # type: ignore[misc]
    """Learn a divergence from labels, so that points of a class are near to each other.

    ``fit`` scales the features, learns a divergence D(x, y) whose order puts points of the class of x first, and keeps
    the training points for :meth:`kneighbors`. Nothing needs to be tuned: steps, batch and learning rate follow from
    the table, and whether an encoder is learned in front of the divergence is decided on a part of the training data
    that is held out; ``choice_`` says what was chosen.

    Parameters
    ----------
    divergence
        A name of :func:`askew.names` or a divergence, which is copied. ``"auto"`` trains a few candidates briefly and
        takes the simplest one within the spread of the best on held-out data. ``"pbdl"`` is learned by convex
        optimisation.
    encoder
        ``"auto"`` (decided on held-out rows), None (the divergence works on the scaled features), ``"mlp"`` (a
        perceptron with two hidden layers) or a module of your own, which is copied. For pairs and triplets also
        ``"two-sided"``: a perceptron for the first point and another one for the second.
    scale
        Whether to standardise the features. Divergences with a domain, such as ``"kl"``, always take them as they are.
    steps, batch_size, learning_rate
        Settings of the training, in place of those that follow from the table.
    random_state
        A seed makes the result repeatable.
    device
        Where to train; see :func:`askew.fit`. The learned model is in main memory in any case.
    progress
        Whether to show a bar; by default on a terminal only.

    Attributes
    ----------
    classes_ : array
        The labels there are.
    labels_ : array of shape (n,)
        The labels of the training points.

    See Also
    --------
    BaseLearner : the other attributes.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, labels = load_iris(return_X_y=True)
    >>> learner = DivergenceLearner(encoder=None, steps=100, random_state=0).fit(X[::2], labels[::2])
    >>> learner.pairwise(X[1::2], X[::2]).shape
    (75, 75)
    >>> learner.score(X[1::2], labels[1::2]) > 0.9  # mean average precision
    True
    """

    saved_attributes: ClassVar[tuple[str, ...]] = (*BaseLearner.saved_attributes, "classes_", "labels_")
    training_data: ClassVar[tuple[str, ...]] = (*BaseLearner.training_data, "labels_")
    _rows = "rows"
    _rows_to_hold_out = 50
    _held_out_share = 0.25
    _score_name = "mean average precision on {} held-out rows"

    def fit(self, X: ArrayLike, y: ArrayLike) -> DivergenceLearner:
        """Learn from points and their labels, ``(n, dim), (n,)``."""
        self._check_choices()
        owner = type(self).__name__
        X, y = table_for_numpy(X, owner), for_numpy(y, f"y of {owner}")
        array, labels = validate_data(self, X, y, dtype=np.float64, order="C")
        with warnings.catch_warnings():  # many small classes are the rule in metric learning
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            check_classification_targets(labels)
        classes, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if len(classes) < 2:
            got = f"one class, {classes.tolist()[0]!r}"  # as it was given, not as numpy writes it
            raise ValueError(checks.message(f"y of {owner}", "labels of at least two classes", got))
        if counts.max() < 2:
            hint = "Numbers to predict are for PairRegressor."
            got = f"{len(classes)} classes of one point each"
            raise ValueError(checks.message(f"y of {owner}", "labels with at least two points in a class", got, hint))
        self._fit((as_points(array), torch.from_numpy(numbers)))
        self.labels_, self.classes_ = labels, classes
        return self

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return the mean average precision of labelled queries against the training points.

        Queries whose class has no training point are left out. Folds of a cross-validation should be
        ``StratifiedKFold(5, shuffle=True)``: a learner is no classifier, so they are not balanced by default.
        """
        check_is_fitted(self, "divergence_")
        owner = type(self).__name__
        points, given = for_numpy(X, f"X of {owner}"), for_numpy(y, f"y of {owner}")
        array, labels = validate_data(self, points, given, reset=False, dtype=np.float64)
        queries = self._embed(as_points(array))
        with torch.inference_mode():
            matrix = self.divergence_.pairwise(queries, torch.from_numpy(self.items_))
        return metrics.mean_average_precision(matrix, labels, self.labels_)

    # ------------------------------------------------------------------ hooks of BaseLearner

    def _hold_out(self, data: Data, seed: int, share: float) -> tuple[Any, Any]:
        points, labels = data
        share = min(share, HELD_OUT_ROWS / len(points))
        counts = torch.bincount(labels)
        # Each class in both parts, unless there are too many or too small ones for that.
        balanced = int(counts.min()) > 1 and share * len(points) >= len(counts)
        rows, rest = train_test_split(
            np.arange(len(points)), test_size=share, stratify=labels.numpy() if balanced else None, random_state=seed
        )
        return rows, rest

    def _scores(self, model: Divergence, known: Data, asked: Data) -> Tensor:
        precisions = metrics.ranking_per_query(model.pairwise(asked[0], known[0]), asked[1], known[1])["map"]
        return torch.from_numpy(precisions[~np.isnan(precisions)])  # a class may have no known point

    def _trivial_score(self, asked: Data) -> float:
        labels = asked[1]
        matrix = torch.zeros(len(labels), len(labels))
        return metrics.mean_average_precision(matrix, labels, labels)

    def _plan(self, candidate: Candidate, data: Data) -> Plan:
        name = candidate.divergence if isinstance(candidate.divergence, str) else ""
        classes = int(data[1].max()) + 1
        return label_plan(name, candidate.encoder is not None, len(data[0]), classes, self._quick)

    @property
    def _quick(self) -> bool:
        """Whether the settings are the defaults, of which was measured that short trials and trainings suffice."""
        given = (self.steps, self.batch_size, self.learning_rate)
        return isinstance(self.divergence, str) and given == (None, None, None)

    def _share_of_two(self) -> float:
        return TRIAL_SHARE if self._quick else super()._share_of_two()

    def _share_after(self, score: float, n: int) -> float:
        return EASY_SHARES[n >= ROWS_TO_CHECK] if self._quick and self.divergence == "nbd" and score >= EASY else 1.0

    def _solve(self, data: Data, seed: int) -> Divergence:
        return pbdl.fit_pairs(data[0].double(), data[1], seed=seed).divergence

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        return tags
