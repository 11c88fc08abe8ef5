"""Learning from the values wanted for pairs of points."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_consistent_length
from torch import Tensor, nn

from askew import checks, pbdl
from askew.divergences import Divergence
from askew.encoders import as_points, for_numpy
from askew.estimators.base import BaseLearner, Data
from askew.estimators.choice import Candidate
from askew.estimators.plans import Plan, pair_plan


class PairRegressor(RegressorMixin, BaseLearner):  # type: ignore[misc]
    """Learn a divergence from pairs of points and the value wanted for each pair.

    Parameters
    ----------
    divergence, encoder, scale, steps, batch_size, learning_rate, random_state, device, progress
        As in :class:`DivergenceLearner`, but the divergence is ``"auto"`` if not given: what the values of pairs are
        like, with or without direction, is seldom known before. The squared error on held-out pairs decides.

    See Also
    --------
    BaseLearner : the other attributes.

    Examples
    --------
    >>> pairs = np.random.default_rng(0).normal(size=(500, 2, 3))
    >>> targets = ((pairs[:, 0] - pairs[:, 1]) ** 2).sum(1)
    >>> learner = PairRegressor(encoder=None, steps=300, random_state=0).fit(pairs, targets)
    >>> learner.score(pairs, targets) > 0.95  # R squared
    True
    """

    _candidates = ("mahalanobis", "nbd", "drift", "drift-root")
    _rows = "pairs"
    _takes_tuples = True
    _score_name = "mean squared error on {} held-out pairs"
    _smaller_is_better = True

    def __init__(
        self,
        divergence: str | Divergence = "auto",
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
        settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__(**settings)

    def fit(self, X: ArrayLike, y: ArrayLike) -> PairRegressor:
        """Learn from pairs and their targets, ``(n, 2, dim), (n,)``; targets are not negative."""
        self._check_choices()
        pairs = self._tuples(X, 2, reset=True)
        what = f"targets of {type(self).__name__}"
        targets = check_array(
            for_numpy(y, what), ensure_2d=False, dtype=np.float64, estimator=self, input_name="targets"
        )
        if targets.ndim != 1:
            raise ValueError(checks.message(what, "of shape (n,), one for each pair", targets.shape))
        check_consistent_length(pairs, targets)
        if targets.min() < 0:
            first = int(np.argmax(targets < 0))
            hint = "A divergence cannot be negative; of a similarity s take max(s) - s."
            raise ValueError(checks.message(what, "at least 0", f"targets[{first}] = {targets[first]:g}", hint))
        self._fit((pairs, as_points(targets).to(torch.get_default_dtype())))
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the divergence of each pair, ``(n, 2, dim) -> (n,)``."""
        return self.pair_distance(X)

    # ------------------------------------------------------------------ hooks of BaseLearner

    def _scores(self, model: Divergence, known: Data, asked: Data) -> Tensor:
        pairs, targets = asked
        errors: Tensor = (model(pairs[:, 0], pairs[:, 1]) - targets).square()
        return errors

    def _trivial_score(self, asked: Data) -> float:
        variance = float(asked[1].var(correction=0))
        return variance if variance > 0 else math.inf  # equal targets: there is nothing to tell apart

    def _plan(self, candidate: Candidate, data: Data) -> Plan:
        return pair_plan(candidate.encoder is not None, len(data[0]))

    def _solve(self, data: Data, seed: int) -> Divergence:
        first, second = data[0].double().unbind(1)
        return pbdl.fit_regression(first, second, data[1].double()).divergence
