"""Learning from triplets: an anchor, a point that should be nearer to it and one that should be farther."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks
from askew.divergences import Divergence
from askew.estimators.base import BaseLearner, Data
from askew.estimators.choice import Candidate
from askew.estimators.plans import Plan, triplet_plan


class TripletLearner(BaseLearner):
    """Learn a divergence from triplets, so that D(anchor, positive) < D(anchor, negative).

    Parameters
    ----------
    divergence, encoder, scale, steps, batch_size, learning_rate, random_state, device, progress
        As in :class:`DivergenceLearner`; with ``encoder="auto"`` the order of held-out triplets decides.

    See Also
    --------
    BaseLearner : the other attributes.

    Examples
    --------
    >>> points = np.random.default_rng(0).normal(size=(500, 3, 4))
    >>> near = np.abs(points[:, 0, 0] - points[:, 1, 0]) < np.abs(points[:, 0, 0] - points[:, 2, 0])
    >>> triplets = np.where(near[:, None, None], points, points[:, [0, 2, 1]])  # only the first feature counts
    >>> learner = TripletLearner(encoder=None, steps=200, random_state=0).fit(triplets)
    >>> learner.score(triplets) > 0.9
    True
    """

    _rows = "triplets"
    _takes_tuples = True
    _score_name = "share of {} held-out triplets in order"

    def fit(self, X: ArrayLike, y: object = None) -> TripletLearner:
        """Learn from triplets, ``(n, 3, dim)``: anchor, nearer point, farther point. ``y`` is not used."""
        self._check_choices()
        self._fit((self._tuples(X, 3, reset=True),))
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Return D(anchor, farther) - D(anchor, nearer) of each triplet: above 0 if it is in order."""
        triplets = self._tuples(X, 3)
        with torch.inference_mode():
            anchors, *others = triplets.unbind(1)
            margins = _margins(
                self.divergence_, self._embed(anchors), *(self._embed(points, "second") for points in others)
            )
            return margins.numpy()

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return 1 for triplets in the right order and -1 for the others."""
        return np.where(self.decision_function(X) > 0, 1, -1)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return the share of triplets in the right order; a tie counts half."""
        return float(_in_order(torch.from_numpy(self.decision_function(X))).mean())

    # ------------------------------------------------------------------ hooks of BaseLearner

    def _scores(self, model: Divergence, known: Data, asked: Data) -> Tensor:
        return _in_order(_margins(model, *asked[0].unbind(1)))

    def _trivial_score(self, asked: Data) -> float:
        return 0.5

    def _plan(self, candidate: Candidate, data: Data) -> Plan:
        return triplet_plan(candidate.encoder is not None, len(data[0]))

    def _solve(self, data: Data, seed: int) -> Divergence:
        hint = "Take 'deep-div-affine', the same functions learned by gradient."
        must = "one that is learned by gradient"
        raise ValueError(checks.message("divergence of TripletLearner", must, "'pbdl'", hint))


def _margins(divergence: Divergence, anchors: Tensor, nearer: Tensor, farther: Tensor) -> Tensor:
    margins: Tensor = divergence(anchors, farther) - divergence(anchors, nearer)
    return margins


def _in_order(margins: Tensor) -> Tensor:
    """Return 1 for margins above 0, half for a tie and 0 for the others."""
    return (margins > 0).double() + (margins == 0).double() / 2
