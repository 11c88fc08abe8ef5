"""Learning from the values wanted for pairs of points."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_consistent_length
from torch import Tensor, nn

from askew import checks, pbdl
from askew.divergences import Divergence
from askew.encoders import for_numpy
from askew.estimators.base import BaseLearner, as_tensor, distinct_rows
from askew.estimators.plans import pair_plan
from askew.training import History

__all__ = ["PairRegressor"]

# Pairs from which on a part can be held out to compare models on, and the share of it.
PAIRS_TO_HOLD_OUT, HELD_OUT_SHARE = 200, 0.2


class PairRegressor(RegressorMixin, BaseLearner):  # type: ignore[misc]
    """Learn a divergence from pairs of points and the value wanted for each pair.

    Parameters
    ----------
    divergence, encoder, scale, steps, batch_size, learning_rate, random_state, device, progress
        As in :class:`DivergenceLearner`; with ``encoder="auto"`` the squared error on held-out pairs decides.

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

    def fit(self, X: ArrayLike, y: ArrayLike) -> PairRegressor:
        """Learn from pairs and their targets, ``(n, 2, dim), (n,)``; targets are not negative."""
        self._check_choices()
        pairs = as_tensor(self._tuples(X, 2, reset=True))
        targets = self._targets(y, len(pairs))
        seed = self._seed()
        encoder, reason = self._choose(pairs, targets, seed)
        scaling = self._scaling(pairs.flatten(0, 1), encoder)
        model, history = self._learn(scaling(pairs), targets, encoder, seed)
        self._keep(scaling, model, history, reason, distinct_rows(pairs.flatten(0, 1)))
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the divergence of each pair, ``(n, 2, dim) -> (n,)``."""
        return self.pair_distance(X)

    # ------------------------------------------------------------------ inside

    def _targets(self, y: ArrayLike, n: int) -> Tensor:
        owner = type(self).__name__
        given = for_numpy(y, f"targets of {owner}")
        array = check_array(given, ensure_2d=False, dtype=np.float64, estimator=self, input_name="targets")
        if array.ndim != 1:
            raise ValueError(checks.message(f"targets of {owner}", "of shape (n,), one for each pair", array.shape))
        check_consistent_length(np.empty(n), array)
        if array.min() < 0:
            first = int(np.argmax(array < 0))
            hint = "A divergence cannot be negative; of a similarity s take max(s) - s."
            raise ValueError(
                checks.message(f"targets of {owner}", "at least 0", f"targets[{first}] = {array[first]:g}", hint)
            )
        return as_tensor(array).to(torch.get_default_dtype())

    def _choose(self, pairs: Tensor, targets: Tensor, seed: int) -> tuple[str | nn.Module | None, str]:
        """Return the encoder to use, and why."""
        decided = self._without_comparison(pairs.shape[-1], len(pairs), PAIRS_TO_HOLD_OUT, "pairs")
        if decided is not None:
            return decided
        order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
        rest, rows = order.tensor_split([int(HELD_OUT_SHARE * len(pairs))])
        scaling = self._scaling(pairs[rows].flatten(0, 1), None)
        known, held_out = scaling(pairs[rows]), scaling(pairs[rest])

        def error(model: Divergence) -> float:
            return float((model(held_out[:, 0], held_out[:, 1]) - targets[rest]).square().mean())

        what = f"mean squared error on {len(rest)} held-out pairs"
        return self._compare(
            lambda encoder: self._learn(known, targets[rows], encoder, seed, trial=True),
            error,
            what,
            larger_is_better=False,
        )

    def _learn(
        self, pairs: Tensor, targets: Tensor, encoder: str | nn.Module | None, seed: int, trial: bool = False
    ) -> tuple[Divergence, History]:
        """Return a trained model of scaled pairs."""
        if self.divergence == "pbdl" and encoder is None:
            first, second = pairs.double().unbind(1)
            return self._plain(pbdl.fit_regression(first, second, targets.double()).divergence), History()
        model = self._seeded(pairs.shape[-1], encoder, len(pairs), seed)
        plan = pair_plan(encoder is not None, len(pairs))
        first, second = pairs.unbind(1)
        return model, self._train(model, (first.contiguous(), second.contiguous(), targets), plan, seed, trial)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags
