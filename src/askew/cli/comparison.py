"""Cross-validated comparison of divergences on labelled points."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import StratifiedKFold, train_test_split

from askew import checks, metrics
from askew._progress import progress_bar
from askew.cli.options import USUAL
from askew.clustering.any_divergence import cluster_from_euclidean
from askew.divergences import CATALOGUE
from askew.encoders import Standardize
from askew.estimators import DivergenceLearner
from askew.training import TrainingDivergedError

__all__ = ["SCORES", "Leaderboard", "Standing", "compare"]

# Heading and digits of each score; all but the seconds are better if higher. The first one decides.
SCORES: dict[str, tuple[str, int]] = {
    "map": ("MAP", 3),
    "auc": ("AUC", 3),
    "knn": ("kNN accuracy", 3),
    "purity": ("purity", 3),
    "rand": ("Rand", 3),
    "seconds": ("fit seconds", 1),
}
DECIDES = "map"
# Most rows that are compared on: rankings take all pairs of a fold with the rest.
MOST_ROWS = 6000
NEIGHBOURS = 5
# Starts of k-means whose scores are averaged.
STARTS = 5


@dataclass(frozen=True)
class Standing:
    """The scores of one divergence.

    Attributes
    ----------
    name : str
        The divergence.
    scores : dict
        Values of each score of :data:`SCORES`, one for each fold; empty if it failed.
    problem : str
        Why it could not be learned; empty if it could.
    """

    name: str
    scores: Mapping[str, tuple[float, ...]]
    problem: str = ""

    def mean(self, score: str) -> float:
        """Return the mean over folds; NaN if it failed."""
        return float(np.mean(self.scores[score])) if self.scores.get(score) else math.nan

    def spread(self, score: str) -> float:
        """Return the standard deviation over folds; NaN for less than two."""
        values = self.scores.get(score, ())
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Leaderboard:
    """The result of :func:`compare`, best divergence first.

    Attributes
    ----------
    standings : tuple of Standing
        By mean MAP, highest first; divergences that failed come last.
    folds : int
        How often each was learned.
    rows, features, classes : int
        Size of the data.
    notes : tuple of str
        Remarks about the comparison.

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

    @property
    def best(self) -> Standing:
        """The first one, which did not fail."""
        return self.standings[0]

    def gain(self, standing: Standing) -> tuple[float, float]:
        """Return the mean gain in MAP over Euclidean, and its standard deviation over folds.

        Folds are the same for all, so gains are differences within a fold. NaN without a baseline.
        """
        plain = next((one for one in self.standings if one.name == "euclidean" and not one.problem), None)
        if plain is None or standing.problem:
            return math.nan, math.nan
        gains = np.subtract(standing.scores[DECIDES], plain.scores[DECIDES])
        return float(gains.mean()), float(gains.std(ddof=1)) if len(gains) > 1 else math.nan

    def verdict(self) -> str:
        """Return in a sentence or two which divergence is best, and whether its gain exceeds the spread over folds."""
        best = self.best
        first = f"Best: {best.name}, MAP {best.mean(DECIDES):.3f}."
        gain, spread = self.gain(best)
        if best.name == "euclidean":
            return f"{first} Nothing learned was better than the plain Euclidean distance."
        if math.isnan(gain):
            return first
        if math.isnan(spread):
            return f"{first} That is {gain:.3f} above euclidean, on one fold only."
        more = "and more" if gain > spread else "but no more"
        spreads = f"{more} than the spread of this gain over folds ({spread:.3f})"
        return f"{first} That is {gain:.3f} above euclidean, {spreads}."

    def cells(self, clear: str) -> list[list[tuple[str, str | None]]]:
        """Return a table for people: a line for each divergence, a text and a mark for each cell.

        The mark is ``"better"`` for the best of a column and for a clear gain over Euclidean, ``"missing"`` where a
        divergence failed, and None otherwise. The columns are the name, :data:`SCORES`, and the gain.

        Parameters
        ----------
        clear
            Text to put behind gains that are larger than their spread over folds.
        """
        best = {score: max(one.mean(score) for one in self.standings if not one.problem) for score in SCORES}
        lines: list[list[tuple[str, str | None]]] = []
        for standing in self.standings:
            cells: list[tuple[str, str | None]] = [(standing.name, None)]
            if standing.problem:
                lines.append([*cells, (f"failed: {standing.problem}", "missing")])
                continue
            for score, (_, digits) in SCORES.items():
                mean, spread = standing.mean(score), standing.spread(score)
                text = f"{mean:.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")
                cells.append((text, "better" if score != "seconds" and mean == best[score] else None))
            gain, spread = self.gain(standing)
            if math.isnan(gain) or standing.name == "euclidean":
                cells.append(("", None))
            else:
                is_clear = gain > spread
                cells.append((f"{gain:+.3f}{clear if is_clear else ''}", "better" if is_clear else None))
            lines.append(cells)
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return it as values that JSON can hold; NaN is None."""
        entries = [
            {
                "divergence": one.name,
                "scores": {
                    score: {
                        "mean": _number(one.mean(score)),
                        "spread": _number(one.spread(score)),
                        "folds": [_number(value) for value in one.scores.get(score, ())],
                    }
                    for score in SCORES
                },
                "gain_over_euclidean": dict(zip(("mean", "spread"), map(_number, self.gain(one)), strict=True)),
                "problem": one.problem,
            }
            for one in self.standings
        ]
        sizes = {"folds": self.folds, "rows": self.rows, "features": self.features, "classes": self.classes}
        result = {"notes": list(self.notes), "leaderboard": entries}
        return {"best": self.best.name, "verdict": self.verdict(), **sizes, **result}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


# ---------------------------------------------------------------------- cross-validation


def compare(
    X: ArrayLike,
    y: ArrayLike,
    divergences: Sequence[str] = USUAL,
    *,
    folds: int = 5,
    steps: int | None = None,
    random_state: int = 0,
    jobs: int | None = None,
    progress: bool | None = None,
) -> Leaderboard:
    """Learn divergences from labels, and score each on held-out rows.

    Each fold is held out once: a divergence is learned from the other rows, ranks these for each row of the fold (MAP,
    AUC, accuracy of the vote of the 5 nearest), and clusters the fold (purity, Rand). All divergences get the same
    folds. Each decides within its training rows whether to learn an encoder; ``"euclidean"`` has nothing to learn.

    Parameters
    ----------
    X
        Points, ``(n, dim)``, finite numbers.
    y
        Their labels, ``(n,)``.
    divergences
        Names of :func:`askew.names`.
    folds
        Number of folds, stratified by class.
    steps
        Steps of each training; by default they depend on the data.
    random_state
        Seed of folds and training.
    jobs
        Trainings at the same time; None for one on each core.
    progress
        Whether to show a bar; by default on a terminal only.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> board = compare(*load_iris(return_X_y=True), ["mahalanobis", "euclidean"], folds=2, steps=50, jobs=1)
    >>> board.best.name, board.best.mean("map") > 0.9
    ('mahalanobis', True)
    """
    checks.check_plain(X, "X of compare")
    checks.check_plain(y, "y of compare")
    points, labels, notes = _prepared(np.asarray(X, dtype=np.float64), np.asarray(y), random_state)
    names = list(dict.fromkeys(divergences))
    if not names:
        raise ValueError(checks.message("divergences of compare", "at least one name", "none"))
    for name in names:
        checks.check_name(name, CATALOGUE, "name of a divergence")
    classes, counts = np.unique(labels, return_counts=True)
    if not 2 <= checks.check_size(folds, "folds of compare") <= counts.max():
        must = f"from 2 to {counts.max()}, the rows of the largest class"
        raise ValueError(checks.message("folds of compare", must, folds))
    small = [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < folds]
    if small:
        listed = ", ".join(small[:5]) + (", ..." if len(small) > 5 else "")
        notes.append(f"Classes with fewer rows than folds are judged in some folds only: {listed}.")
    with warnings.catch_warnings():  # the note above says it
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        parts = list(StratifiedKFold(folds, shuffle=True, random_state=random_state).split(points, labels))
    tasks = [(name, points, labels, *part, steps, random_state + i) for i, part in enumerate(parts) for name in names]
    workers = min(joblib.cpu_count() if jobs is None else checks.check_size(jobs, "jobs of compare"), len(tasks))
    outcomes: dict[str, list[Standing]] = {name: [] for name in names}
    with progress_bar(progress, len(tasks), "comparing") as move:
        work = joblib.Parallel(n_jobs=workers, return_as="generator")(joblib.delayed(_judge)(*task) for task in tasks)
        for number, outcome in enumerate(work):
            outcomes[outcome.name].append(outcome)
            move(number + 1)
    standings = [_merged(each) for each in outcomes.values()]
    standings.sort(key=lambda one: (bool(one.problem), -one.mean(DECIDES) if not one.problem else 0.0))
    if standings[0].problem:
        raise ValueError(f"No divergence could be learned. {standings[0].name}: {standings[0].problem}")
    return Leaderboard(tuple(standings), folds, len(points), points.shape[1], len(classes), tuple(notes))


def _prepared(
    points: NDArray[np.float64], labels: NDArray[Any], seed: int
) -> tuple[NDArray[np.float64], NDArray[Any], list[str]]:
    """Return the rows to compare on, checked, and notes about them."""
    if points.ndim != 2 or labels.shape != points.shape[:1]:
        got = f"{points.shape} and {labels.shape}"
        raise ValueError(checks.message("X and y of compare", "of shapes (n, dim) and (n,)", got))
    if not np.isfinite(points).all():
        hint = "Fill or drop missing values."
        raise ValueError(checks.message("X of compare", "finite numbers", "NaN or infinity", hint))
    counts = np.unique(labels, return_counts=True)[1]
    if len(counts) < 2 or counts.max() < 2:
        got = f"{len(counts)} classes, the largest with {counts.max(initial=0)} rows"
        hint = "Numbers to predict are for PairRegressor."
        raise ValueError(checks.message("y of compare", "at least two classes, one with two rows", got, hint))
    if len(points) <= MOST_ROWS:
        return points, labels, []
    even = labels if counts.min() > 1 and len(counts) <= MOST_ROWS // 2 else None
    rows, _ = train_test_split(np.arange(len(points)), train_size=MOST_ROWS, stratify=even, random_state=seed)
    rows.sort()
    return points[rows], labels[rows], [f"Compared on {MOST_ROWS} of {len(points)} rows, drawn at random."]


def _merged(outcomes: Sequence[Standing]) -> Standing:
    """Return the standing over all folds of a divergence from those of single folds."""
    failed = next((outcome for outcome in outcomes if outcome.problem), None)
    if failed is not None:
        return failed
    scores = {score: tuple(value for outcome in outcomes for value in outcome.scores[score]) for score in SCORES}
    return Standing(outcomes[0].name, scores)


def _judge(name: str, *fold: Any) -> Standing:
    """Return the standing of one divergence on one fold, or why it failed."""
    with joblib.parallel_config(n_jobs=1):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the trainings share the cores
        try:
            return _judged(name, *fold)
        except (ValueError, ArithmeticError, TrainingDivergedError) as error:
            return Standing(name, {}, problem=" ".join(str(error).split()))
        finally:
            torch.set_num_threads(threads)


def _judged(
    name: str,
    points: NDArray[np.float64],
    labels: NDArray[Any],
    rows: NDArray[np.int64],
    queries: NDArray[np.int64],
    steps: int | None,
    seed: int,
) -> Standing:
    """Learn from the rows of a fold and score on its queries."""
    encoder = None if name == "euclidean" else "auto"
    learner = DivergenceLearner(name, encoder=encoder, steps=steps, random_state=seed, device="cpu", progress=False)
    start = time.perf_counter()
    learner.fit(points[rows], labels[rows])
    seconds = time.perf_counter() - start
    matrix = learner.pairwise(points[queries], points[rows])
    asked, known = labels[queries], labels[rows]
    ranking = metrics.ranking(matrix, asked, known, k=1)
    scaling = Standardize(points.shape[1]).fit(torch.from_numpy(points[rows]))
    clusters = cluster_from_euclidean(
        scaling(torch.from_numpy(points[queries])),
        torch.from_numpy(learner.transform(points[queries])),
        learner.divergence_,
        min(len(np.unique(asked)), len(queries)),
        [seed * STARTS + number for number in range(STARTS)],
    )
    scores = {
        "map": ranking["map"],
        "auc": ranking["auc"],
        "knn": metrics.knn_accuracy(matrix, asked, known, k=min(NEIGHBOURS, len(rows))),
        "purity": float(np.mean([metrics.purity(asked, each) for each in clusters])),
        "rand": float(np.mean([metrics.rand(asked, each) for each in clusters])),
        "seconds": seconds,
    }
    return Standing(name, {score: (value,) for score, value in scores.items()})
