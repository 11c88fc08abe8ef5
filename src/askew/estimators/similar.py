"""Learning from pairs of points that are similar or dissimilar."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.utils.validation import check_array, check_consistent_length
from torch import Tensor

from askew import checks
from askew.divergences import Divergence
from askew.encoders import for_numpy
from askew.estimators.base import BaseLearner, Data
from askew.estimators.choice import Candidate
from askew.estimators.plans import Plan, similarity_plan


class PairClassifier(BaseLearner):
    """Learn a divergence from pairs labelled similar (+1) or dissimilar (-1), so that similar ones are near.

    The interface is that of metric-learn's pairs learners (ITML, SDML, MMC). Use it where pairs are all you have, as in
    verification; with a label for each point, :class:`DivergenceLearner` learns from all pairs of a batch.

    Parameters
    ----------
    divergence, encoder, scale, steps, batch_size, learning_rate, random_state, device, progress
        As in :class:`DivergenceLearner`; with ``encoder="auto"`` the ROC AUC of held-out pairs decides.

    Attributes
    ----------
    threshold_ : float
        Pairs with a smaller D are predicted as similar: the value with the highest balanced accuracy on training pairs.

    See Also
    --------
    BaseLearner : the other attributes.

    Examples
    --------
    >>> pairs = np.random.default_rng(0).normal(size=(500, 2, 4))
    >>> similar = np.abs(pairs[:, 0, 0] - pairs[:, 1, 0]) < 0.7  # only the first feature counts
    >>> learner = PairClassifier(encoder=None, steps=200, random_state=0).fit(pairs, np.where(similar, 1, -1))
    >>> learner.score(pairs, np.where(similar, 1, -1)) > 0.9  # ROC AUC
    True
    >>> bool(np.isin(learner.predict(pairs), [1, -1]).all())
    True
    """

    saved_attributes: ClassVar[tuple[str, ...]] = (*BaseLearner.saved_attributes, "threshold_")
    threshold_: float
    _rows = "pairs"
    _takes_tuples = True
    _score_name = "ROC AUC on {} held-out pairs"

    def fit(self, X: ArrayLike, y: ArrayLike) -> PairClassifier:
        """Learn from pairs and their labels, ``(n, 2, dim), (n,)``; labels are 1 or -1, and both occur."""
        self._check_choices()
        pairs, labels = self._tuples(X, 2, reset=True), self._labels(y)
        check_consistent_length(pairs, labels)
        self._fit((pairs, torch.from_numpy(labels > 0).to(torch.get_default_dtype())))
        self.threshold_ = _threshold(self.pair_distance(X), labels > 0)
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Return ``threshold_`` - D of each pair, ``(n, 2, dim) -> (n,)``: above 0 if it is similar."""
        margins: NDArray[Any] = self.threshold_ - self.pair_distance(X)
        return margins

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return 1 for similar pairs and -1 for the others, ``(n, 2, dim) -> (n,)``."""
        return np.where(self.decision_function(X) > 0, 1, -1)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return the ROC AUC: how often a similar pair is nearer than a dissimilar one; a tie counts half."""
        labels = self._labels(y)
        return float(roc_auc_score(labels > 0, -self.pair_distance(X)))

    def _labels(self, y: ArrayLike) -> NDArray[np.float64]:
        what = f"labels of {type(self).__name__}"
        labels: NDArray[np.float64] = check_array(
            for_numpy(y, what), ensure_2d=False, dtype=np.float64, estimator=self, input_name="labels"
        )
        if labels.ndim != 1:
            raise ValueError(checks.message(what, "of shape (n,), one for each pair", labels.shape))
        found = np.unique(labels)
        if not np.array_equal(found, [-1, 1]):
            listed = ", ".join(f"{value:g}" for value in found[:5])
            hint = "Values of pairs are for PairRegressor."
            raise ValueError(checks.message(what, "1 (similar) and -1 (dissimilar), both of them", listed, hint))
        return labels

    # ------------------------------------------------------------------ hooks of BaseLearner

    def _hold_out(self, data: Data, seed: int, share: float) -> tuple[Any, Any]:
        labels = data[1].numpy()
        both = min((labels > 0).sum(), (labels <= 0).sum()) > 1
        rows, rest = train_test_split(
            np.arange(len(labels)), test_size=share, stratify=labels if both else None, random_state=seed
        )
        return rows, rest

    def _scores(self, model: Divergence, known: Data, asked: Data) -> Tensor:
        # The share of pairs of the other kind that are on the right side of each: its mean is the AUC.
        (first, second), similar = asked[0].unbind(1), asked[1] > 0
        values = model(first, second).double()
        behind = values[~similar] - values[similar][:, None]
        right = (behind > 0).double() + (behind == 0).double() / 2
        return torch.cat([right.mean(1), right.mean(0)]) if right.numel() else torch.full((1,), 0.5)

    def _trivial_score(self, asked: Data) -> float:
        return 0.5

    def _plan(self, candidate: Candidate, data: Data) -> Plan:
        return similarity_plan(candidate.encoder is not None, len(data[0]))

    def _solve(self, data: Data, seed: int) -> Divergence:
        hint = "Take 'deep-div-affine', the same functions learned by gradient."
        raise ValueError(
            checks.message("divergence of PairClassifier", "one that is learned by gradient", "'pbdl'", hint)
        )


def _threshold(values: NDArray[Any], similar: NDArray[np.bool_]) -> float:
    """Return the value that splits similar from dissimilar pairs best, halfway to the next one."""
    order = np.argsort(values, kind="stable")
    values, similar = values[order].astype(np.float64), similar[order]
    gains = np.cumsum(np.where(similar, 1 / similar.sum(), -1 / (~similar).sum()))
    distinct = np.append(np.diff(values) > 0, True)  # equal values are on the same side
    best = int(np.argmax(np.where(distinct, gains, -np.inf)))
    return float(values[best] + values[min(best + 1, len(values) - 1)]) / 2
