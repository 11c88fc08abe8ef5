"""Learning from triplets: an anchor, a point that is to be nearer to it and one that is to be farther."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import checks, pbdl
from askew.divergences import Divergence
from askew.estimators.base import BaseLearner, as_tensor, distinct_rows
from askew.estimators.plans import triplet_plan
from askew.training import History

__all__ = ["TripletLearner"]

# Triplets from which on a part can be held out to compare models on, and the share of it.
TRIPLETS_TO_HOLD_OUT, HELD_OUT_SHARE = 200, 0.2
# Points that the linear program of PBDL can take in reasonable time.
PIECES = 200


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

    def fit(self, X: ArrayLike, y: object = None) -> TripletLearner:
        """Learn from triplets, ``(n, 3, dim)``: anchor, nearer point, farther point. ``y`` is not used."""
        self._check_choices()
        triplets = as_tensor(self._tuples(X, 3, reset=True))
        seed = self._seed()
        encoder, reason = self._choose(triplets, seed)
        scaling = self._scaling(triplets.flatten(0, 1), encoder)
        model, history = self._learn(scaling(triplets), encoder, seed)
        self._keep(scaling, model, history, reason, distinct_rows(triplets.flatten(0, 1)))
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Return D(anchor, farther) - D(anchor, nearer) of each triplet: above 0 if it is in order."""
        array = as_tensor(self._tuples(X, 3))
        with torch.inference_mode():
            anchors, nearer, farther = (self._images(array[:, i]) for i in range(3))
            margins: Tensor = self.divergence_(anchors, farther) - self.divergence_(anchors, nearer)
            return margins.numpy()

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return 1 for triplets in the right order and -1 for the others."""
        return np.where(self.decision_function(X) > 0, 1, -1)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return the share of triplets in the right order; a tie counts half."""
        return in_order(torch.from_numpy(self.decision_function(X)))

    # ------------------------------------------------------------------ inside

    def _choose(self, triplets: Tensor, seed: int) -> tuple[str | nn.Module | None, str]:
        """Return the encoder to use, and why."""
        decided = self._without_comparison(triplets.shape[-1], len(triplets), TRIPLETS_TO_HOLD_OUT, "triplets")
        if decided is not None:
            return decided
        order = torch.randperm(len(triplets), generator=torch.Generator().manual_seed(seed))
        rest, rows = order.tensor_split([int(HELD_OUT_SHARE * len(triplets))])
        scaling = self._scaling(triplets[rows].flatten(0, 1), None)
        known = scaling(triplets[rows])
        anchors, nearer, farther = scaling(triplets[rest]).unbind(1)

        def score(model: Divergence) -> float:
            return in_order(model(anchors, farther) - model(anchors, nearer))

        what = f"share of {len(rest)} held-out triplets in order"
        return self._compare(lambda encoder: self._learn(known, encoder, seed, trial=True), score, what)

    def _learn(
        self, triplets: Tensor, encoder: str | nn.Module | None, seed: int, trial: bool = False
    ) -> tuple[Divergence, History]:
        """Return a trained model of scaled triplets."""
        if self.divergence == "pbdl" and encoder is None:
            return self._solve(triplets, seed), History()
        model = self._seeded(triplets.shape[-1], encoder, len(triplets), seed)
        plan = triplet_plan(encoder is not None, len(triplets))
        anchors, nearer, farther = (part.contiguous() for part in triplets.unbind(1))
        return model, self._train(model, (anchors, nearer, farther), plan, seed, trial)

    def _solve(self, triplets: Tensor, seed: int) -> Divergence:
        """Return PBDL by its linear program, which has a piece for each different point."""
        points, numbers = np.unique(triplets.double().flatten(0, 1).numpy(), axis=0, return_inverse=True)
        if len(points) > PIECES:
            hint = 'Take divergence="deep-div-affine", the same functions learned by gradient.'
            must = f"of at most {PIECES} different points for 'pbdl', whose linear program has a piece for each"
            raise ValueError(checks.message("triplets of TripletLearner", must, len(points), hint))
        return self._plain(pbdl.fit_triplets(points, numbers.reshape(-1, 3), seed=seed).divergence)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags


def in_order(margins: Tensor) -> float:
    """Return the share of margins above 0; a tie counts half."""
    return float((margins > 0).double().mean() + (margins == 0).double().mean() / 2)
