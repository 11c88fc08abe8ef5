"""The leaderboard of a comparison: scores of each divergence, and which one to take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Heading and digits of each score; all but the seconds are better if higher. The first one decides by default.
SCORES: dict[str, tuple[str, int]] = {
    "map": ("MAP", 3),
    "auc": ("AUC", 3),
    "knn": ("kNN accuracy", 3),
    "purity": ("purity", 3),
    "rand": ("Rand", 3),
    "seconds": ("fit seconds", 1),
}
# The baselines: as it is, and behind the encoder that the others may learn.
PLAIN, ENCODED = "euclidean", "euclidean+mlp"


@dataclass(frozen=True)
class Standing:
    """The scores of one divergence.

    Attributes
    ----------
    name : str
        The divergence, or a baseline.
    scores : dict
        Values of each score, one for each fold; empty if it failed.
    problem : str
        Why it could not be learned; empty if it could.
    encoders : tuple of str
        The encoder of each fold, ``"none"`` or ``"mlp"``.
    parameters : tuple of int
        The number of learned parameters in each fold, encoder included.
    """

    name: str
    scores: Mapping[str, tuple[float, ...]]
    problem: str = ""
    encoders: tuple[str, ...] = ()
    parameters: tuple[int, ...] = ()

    def mean(self, score: str) -> float:
        """Return the mean over folds; NaN if it failed."""
        return float(np.mean(self.scores[score])) if self.scores.get(score) else math.nan

    def spread(self, score: str) -> float:
        """Return the standard deviation over folds; NaN for less than two."""
        values = self.scores.get(score, ())
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan

    @property
    def encoder(self) -> str:
        """The encoder, or in how many folds there was one."""
        kinds = sorted(set(self.encoders) - {"none"})
        if len(set(self.encoders)) <= 1:
            return self.encoders[0] if self.encoders else ""
        return ", ".join(f"{kind} in {self.encoders.count(kind)} of {len(self.encoders)}" for kind in kinds)


@dataclass(frozen=True)
class Leaderboard:
    """The result of :func:`compare`.

    Attributes
    ----------
    standings : tuple of Standing
        By the mean of the score that decides, highest first; divergences that failed come last.
    folds : int
        How often each was learned.
    rows, features, classes : int
        Size of the data; no classes if something else was learned from.
    notes : tuple of str
        Remarks about the comparison.
    by : str
        The score that decides.
    headings : dict
        Heading and digits of each score.
    trivial : tuple of str
        Names of the baselines that are no model, such as one that does not look at the points.

    Examples
    --------
    >>> best = Standing("nbd", {"map": (0.9, 0.8), "seconds": (2.0, 2.0)})
    >>> plain = Standing("euclidean", {"map": (0.7, 0.7), "seconds": (0.0, 0.0)})
    >>> board = Leaderboard((best, plain), folds=2, rows=100, features=4, classes=2)
    >>> board.best.name, round(board.gain(best)[0], 2)
    ('nbd', 0.15)
    >>> board.verdict()
    'Best: nbd, MAP 0.850. That is 0.150 above euclidean, and more than the spread of this gain over folds (0.071).'
    """

    standings: tuple[Standing, ...]
    folds: int
    rows: int
    features: int
    classes: int
    notes: tuple[str, ...] = ()
    by: str = "map"
    headings: Mapping[str, tuple[str, int]] = field(default_factory=lambda: SCORES)
    trivial: tuple[str, ...] = ()

    @property
    def _learned(self) -> list[Standing]:
        return [one for one in self.standings if not one.problem and one.name not in self.trivial]

    @property
    def best(self) -> Standing:
        """The one with the fewest parameters among those within the spread of the highest score.

        A divergence is within the spread if it is behind by no more than the standard deviation, over folds, of the
        difference. If parameters tie, the higher score wins.
        """
        top, *others = self._learned
        near = [one for one in others if not _is_clear(*self._difference(top, one))]
        return min((top, *near), key=lambda one: float(np.mean(one.parameters or (0,))))

    def _difference(self, one: Standing, other: Standing) -> tuple[float, float]:
        """Return mean and standard deviation of a difference within folds, which are the same for all."""
        values = np.subtract(one.scores[self.by], other.scores[self.by])
        return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan

    def named(self, name: str) -> Standing | None:
        """Return the standing of that name, unless it failed."""
        return next((one for one in self.standings if one.name == name and not one.problem), None)

    def gain(self, standing: Standing) -> tuple[float, float]:
        """Return the mean gain over Euclidean, and its standard deviation over folds; NaN without a baseline."""
        plain = self.named(PLAIN)
        return (math.nan, math.nan) if plain is None or standing.problem else self._difference(standing, plain)

    def verdict(self) -> str:
        """Return in a few sentences which divergence is best and why, and whether its gain exceeds the spread."""
        best, top, heading = self.best, self._learned[0], self.headings[self.by][0]
        text = f"Best: {best.name}, {heading} {best.mean(self.by):.3f}"
        if best is not top:
            text += f", the simplest within the spread of {top.name}, which has {top.mean(self.by):.3f}"
        text += "."
        gain, spread = self.gain(best)
        if best.name == PLAIN:
            text += " Nothing learned was clearly better than the plain Euclidean distance." * (len(self._learned) > 1)
        elif math.isnan(spread) and not math.isnan(gain):
            text += f" That is {gain:.3f} above euclidean, on one fold only."
        elif not math.isnan(gain):
            more = "and more" if gain > spread else "but no more"
            text += (
                f" That is {gain:.3f} above euclidean, {more} than the spread of this gain over folds ({spread:.3f})."
            )
        encoded = self.named(ENCODED)
        if encoded is not None and best.name not in (PLAIN, ENCODED):
            text += f" Euclidean behind an encoder has {encoded.mean(self.by):.3f}."
        for guess in filter(None, map(self.named, self.trivial)):
            if not _is_clear(*self._difference(best, guess)):
                text += f" It is not clearly better than {guess.name}, which has {guess.mean(self.by):.3f}."
        return text

    def cells(self, clear: str) -> list[list[tuple[str, str | None]]]:
        """Return a table for people: a line for each divergence, a text and a mark for each cell.

        The mark is ``"better"`` for the best of a column and for a clear gain over Euclidean, ``"missing"`` where a
        divergence failed, and None otherwise. The columns are the name, the encoder, the scores, and the gain.

        Parameters
        ----------
        clear
            Text to put behind gains that are larger than their spread over folds.
        """
        highest = {score: max(one.mean(score) for one in self._learned) for score in self.headings}
        lines: list[list[tuple[str, str | None]]] = []
        for standing in self.standings:
            cells: list[tuple[str, str | None]] = [(standing.name, None), (standing.encoder, None)]
            if standing.problem:
                lines.append([*cells, (f"failed: {standing.problem}", "missing")])
                continue
            for score in self.headings:
                is_best = score != "seconds" and standing.mean(score) == highest[score]
                cells.append((self.text(standing, score), "better" if is_best else None))
            gain, spread = self.gain(standing)
            is_clear = _is_clear(gain, spread)
            shown = "" if math.isnan(gain) or standing.name == PLAIN else f"{gain:+.3f}{clear if is_clear else ''}"
            lines.append([*cells, (shown, "better" if shown and is_clear else None)])
        return lines

    def text(self, standing: Standing, score: str) -> str:
        """Return mean and spread of a score."""
        digits, spread = self.headings[score][1], standing.spread(score)
        return f"{standing.mean(score):.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")

    def to_dict(self) -> dict[str, Any]:
        """Return it as values that JSON can hold; NaN is None."""
        entries = [
            {
                "divergence": one.name,
                "encoder": one.encoder,
                "parameters": list(one.parameters),
                "scores": {
                    score: {
                        "mean": _number(one.mean(score)),
                        "spread": _number(one.spread(score)),
                        "folds": [_number(value) for value in one.scores.get(score, ())],
                    }
                    for score in self.headings
                },
                "gain_over_euclidean": dict(zip(("mean", "spread"), map(_number, self.gain(one)), strict=True)),
                "problem": one.problem,
            }
            for one in self.standings
        ]
        sizes = {"folds": self.folds, "rows": self.rows, "features": self.features, "classes": self.classes}
        result = {"by": self.by, "notes": list(self.notes), "leaderboard": entries}
        return {"best": self.best.name, "verdict": self.verdict(), **sizes, **result}


def _is_clear(gain: float, spread: float) -> bool:
    """Return whether a difference is larger than its spread over folds; with one fold, whether there is any."""
    return gain > (0.0 if math.isnan(spread) else spread)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
