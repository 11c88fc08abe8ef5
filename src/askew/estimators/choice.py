"""Choose a divergence and an encoder on held-out data: short trainings of all candidates, longer ones of the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from askew.divergences import Divergence

Encoder = str | nn.Module | None

# Share of the steps of each round, and how many candidates go on to the next one. With the final training this is at
# most 2.5 times one training for eight candidates. Two candidates have one round.
ROUNDS = ((1 / 12, 3), (1 / 4, 1))


@dataclass(frozen=True)
class Candidate:
    """A divergence, by name or as given, and its encoder."""

    divergence: str | Divergence
    encoder: Encoder

    @property
    def encoder_name(self) -> str:
        """The encoder in a sentence."""
        return "no encoder" if self.encoder is None else f"encoder {short(self.encoder)}"

    def __str__(self) -> str:
        return f"{short(self.divergence)}, {self.encoder_name}"


@dataclass(frozen=True)
class Choice:
    """What was chosen and why, the held-out score of each candidate, if any, and the share of the steps it needs."""

    candidate: Candidate
    reason: str
    scores: dict[str, float]
    share: float = 1.0


@dataclass(frozen=True)
class Trial:
    """A candidate after a short training: its score on each held-out row, and the share of the steps it had."""

    candidate: Candidate
    scores: Tensor | None  # None if the training diverged
    share: float

    def mean(self, worst: float) -> float:
        """Return the mean score, or ``worst`` if the training diverged."""
        return worst if self.scores is None else float(self.scores.mean())


class Comparison:
    """Candidates and their trials, the winner by successive halving.

    The winner of many is the simplest one whose mean score is within one standard error of the best one's; the error is
    that of the mean difference over the held-out rows. The winner of two is the better one.

    Parameters
    ----------
    candidates
        From the simplest to the most complex.
    scores
        Trains a candidate for a share of the steps and returns its score on each held-out row, ``(n,)``; None if the
        training diverged.
    smaller_is_better
        Whether the scores are errors.
    share_of_two
        Share of the steps of the only round of two candidates.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        scores: Callable[[Candidate, float], Tensor | None],
        smaller_is_better: bool,
        share_of_two: float = 1 / 2,
    ) -> None:
        self.worst = math.inf if smaller_is_better else -math.inf
        self.sign = 1.0 if smaller_is_better else -1.0
        trials: dict[Candidate, Trial] = {}
        left, several = list(candidates), len(candidates) > 2
        for share, keep in ROUNDS if several else ((share_of_two, 1),):
            for candidate in left:
                trials[candidate] = Trial(candidate, scores(candidate, share), share)
            best = sorted(left, key=lambda candidate: self.sign * trials[candidate].mean(self.worst))[:keep]
            if keep > 1:
                left = [candidate for candidate in left if candidate in best]
        self.trials = [trials[candidate] for candidate in candidates]
        last = [trials[candidate] for candidate in left]
        self.winner = trials[best[0]]
        if several:
            self.winner = next(trial for trial in last if self._within_spread(trial, self.winner))

    def _within_spread(self, trial: Trial, best: Trial) -> bool:
        if trial is best or best.scores is None or trial.scores is None:
            return trial is best
        behind = self.sign * (trial.scores - best.scores)
        return float(behind.mean()) <= float(behind.std() / len(behind) ** 0.5)

    def mean(self, trial: Trial) -> float:
        """Return the mean score of a trial."""
        return trial.mean(self.worst)

    def table(self) -> str:
        """Return the trials as lines of text, the last rounds first, the winner marked."""
        width = max(len(str(trial.candidate)) for trial in self.trials)
        ordered = sorted(self.trials, key=lambda trial: (-trial.share, self.sign * self.mean(trial)))
        return "\n".join(
            f"{'*' if trial is self.winner else ' '} {trial.candidate!s:{width}}  {self.mean(trial):9.4g}"
            f"  after {trial.share:.0%} of the steps"
            for trial in ordered
        )


def short(value: object) -> str:
    """Return a name in quotes, or the class of a module."""
    return repr(value) if isinstance(value, str) else type(value).__name__
