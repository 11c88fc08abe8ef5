"""The outcome of a comparison: who is best, by how much, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["SCORES", "Leaderboard", "Standing"]

# Name, what people call it, and digits; all but the seconds are better if higher. The first one decides.
SCORES: dict[str, tuple[str, int]] = {
    "map": ("MAP", 3),
    "auc": ("AUC", 3),
    "knn": ("kNN accuracy", 3),
    "purity": ("purity", 3),
    "rand": ("Rand", 3),
    "seconds": ("fit seconds", 1),
}
DECIDES = "map"


@dataclass(frozen=True)
class Standing:
    """How one divergence did.

    Attributes
    ----------
    name : str
        The divergence.
    scores : dict
        The values of each score of :data:`SCORES`, one for each fold; NaN where it failed.
    choices : tuple of str
        What was learned in each fold, in words, such as with or without an encoder.
    problem : str
        Why it could not be learned; empty if it could.
    precisions : tuple of float
        Share of items of the right class among the 1, 2, ... nearest of a held-out row, mean over all of them.
    """

    name: str
    scores: Mapping[str, tuple[float, ...]]
    choices: tuple[str, ...] = ()
    problem: str = ""
    precisions: tuple[float, ...] = ()

    def mean(self, score: str) -> float:
        """Return the mean over folds; NaN if it failed."""
        return float(np.mean(self.scores[score])) if self.scores.get(score) else float("nan")

    def spread(self, score: str) -> float:
        """Return the standard deviation over folds."""
        values = self.scores.get(score, ())
        return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


@dataclass(frozen=True)
class Leaderboard:
    """What :func:`compare` found, the best first.

    Attributes
    ----------
    standings : tuple of Standing
        By mean MAP, highest first; what failed comes last.
    folds : int
        How often each was learned.
    rows, features, classes : int
        Of what was compared on.
    notes : tuple of str
        What to know about the comparison.

    Examples
    --------
    >>> best = Standing("nbd", {"map": (0.9, 0.8), "seconds": (2.0, 2.0)})
    >>> plain = Standing("euclidean", {"map": (0.7, 0.7), "seconds": (0.0, 0.0)})
    >>> board = Leaderboard((best, plain), folds=2, rows=100, features=4, classes=2)
    >>> board.best.name, round(board.gain(best)[0], 2)
    ('nbd', 0.15)
    >>> print(board.verdict())
    Best: nbd, MAP 0.850. That is 0.150 above euclidean, and more than the spread of this gain over folds (0.071).
    """

    standings: tuple[Standing, ...]
    folds: int
    rows: int
    features: int
    classes: int
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Standing:
        """The first that did not fail."""
        return self.standings[0]

    def gain(self, standing: Standing) -> tuple[float, float]:
        """Return by how much the MAP is above that of Euclidean, and the standard deviation of that over folds.

        Folds are the same for all, so that differences within a fold are compared. NaN where there is nothing to
        compare with.
        """
        plain = next((one for one in self.standings if one.name == "euclidean" and not one.problem), None)
        if plain is None or standing.problem:
            return float("nan"), float("nan")
        gains = np.subtract(standing.scores[DECIDES], plain.scores[DECIDES])
        return float(gains.mean()), float(gains.std(ddof=1)) if len(gains) > 1 else float("nan")

    def verdict(self) -> str:
        """Return in a sentence or two which is best and whether that is more than chance."""
        best = self.best
        first = f"Best: {best.name}, MAP {best.mean(DECIDES):.3f}."
        gain, spread = self.gain(best)
        if best.name == "euclidean":
            return f"{first} Nothing learned was better than the plain Euclidean distance."
        if np.isnan(gain):
            return first
        if np.isnan(spread):
            return f"{first} That is {gain:.3f} above euclidean, on one fold only."
        more = "and more" if gain > spread else "but no more"
        spreads = f"{more} than the spread of this gain over folds ({spread:.3f})"
        return f"{first} That is {gain:.3f} above euclidean, {spreads}."

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold; NaN is None."""
        entries = []
        for standing in self.standings:
            gain, spread = self.gain(standing)
            scores = {
                name: {
                    "mean": _number(standing.mean(name)),
                    "spread": _number(standing.spread(name)),
                    "folds": [_number(value) for value in standing.scores.get(name, ())],
                }
                for name in SCORES
            }
            entries.append(
                {
                    "divergence": standing.name,
                    "scores": scores,
                    "gain_over_euclidean": {"mean": _number(gain), "spread": _number(spread)},
                    "precisions": list(standing.precisions),
                    "choices": list(standing.choices),
                    "problem": standing.problem,
                }
            )
        return {
            "best": self.best.name,
            "verdict": self.verdict(),
            "folds": self.folds,
            "rows": self.rows,
            "features": self.features,
            "classes": self.classes,
            "notes": list(self.notes),
            "leaderboard": entries,
        }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
