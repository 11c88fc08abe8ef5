"""Cross-validation of divergences: each is learned on some rows and judged by the others."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import StratifiedKFold, train_test_split

from askew import checks, metrics
from askew._progress import progress_bar
from askew.cli.comparison.leaderboard import DECIDES, SCORES, Leaderboard, Standing
from askew.cli.options import USUAL
from askew.clustering.alternating import cluster_from_euclidean
from askew.divergences import CATALOGUE
from askew.encoders import Standardize
from askew.estimators import DivergenceLearner
from askew.training import TrainingDivergedError

__all__ = ["compare"]

# Rows that are compared on at most: rankings take all pairs of a fold with the rest.
MOST_ROWS = 6000
NEIGHBOURS = 5
# Places of the ranking whose precision is kept.
PLACES = 20
# Starts of k-means whose scores are averaged.
STARTS = 5


@dataclass(frozen=True)
class _Outcome:
    """How one divergence did on one fold."""

    scores: dict[str, float] = field(default_factory=dict)
    precisions: tuple[float, ...] = ()
    choice: str = ""
    problem: str = ""


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
    """Learn divergences from labels and judge each by rows that it has not seen.

    Each fold is held out once: a divergence is learned from the other rows, ranks them for each row of the fold (MAP,
    AUC, accuracy of the vote of the 5 nearest), and clusters the fold (purity, Rand). All get the same rows. Whether an
    encoder is learned too is decided inside of the training rows, for each divergence alike; ``"euclidean"`` has
    nothing to learn.

    Parameters
    ----------
    X
        Points, ``(n, dim)``, finite numbers.
    y
        Their labels, ``(n,)``.
    divergences
        Names of :func:`askew.names`.
    folds
        Parts of the table; classes are spread over them evenly.
    steps
        Of each training, in place of what follows from the table; few make a quick look.
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
    counts = np.unique(labels, return_counts=True)
    if not 2 <= checks.check_size(folds, "folds of compare") <= counts[1].max():
        must = f"from 2 to {counts[1].max()}, the rows of the largest class"
        raise ValueError(checks.message("folds of compare", must, folds))
    small = [f"{name} ({count})" for name, count in zip(*counts, strict=True) if count < folds]
    if small:
        some = ", ".join(small[:5]) + (", ..." if len(small) > 5 else "")
        notes.append(f"Classes with fewer rows than folds are judged in some folds only: {some}.")
    with warnings.catch_warnings():  # said in the note above
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        parts = list(StratifiedKFold(folds, shuffle=True, random_state=random_state).split(points, labels))
    tasks = [(name, fold) for fold in range(folds) for name in names]
    # The slowest first would need to be known; by folds, all have been seen early.
    made = [
        _Fold(points, labels, rows, queries, steps, random_state + number)
        for number, (rows, queries) in enumerate(parts)
    ]
    work = (joblib.delayed(_judge)(name, made[fold]) for name, fold in tasks)
    found: dict[tuple[str, int], _Outcome] = {}
    workers = min(joblib.cpu_count() if jobs is None else checks.check_size(jobs, "jobs of compare"), len(tasks))
    with progress_bar(progress, len(tasks), "comparing") as move:
        done = joblib.Parallel(n_jobs=workers, return_as="generator")(work)
        for number, (task, outcome) in enumerate(zip(tasks, done, strict=True)):
            found[task] = outcome
            move(number + 1)
    standings = [_standing(name, [found[name, fold] for fold in range(folds)]) for name in names]
    standings.sort(key=lambda one: (bool(one.problem), -one.mean(DECIDES) if not one.problem else 0.0))
    if standings[0].problem:
        raise ValueError(f"No divergence could be learned. {standings[0].name}: {standings[0].problem}")
    return Leaderboard(tuple(standings), folds, len(points), points.shape[1], len(counts[0]), tuple(notes))


def _prepared(
    points: NDArray[np.float64], labels: NDArray[Any], seed: int
) -> tuple[NDArray[np.float64], NDArray[Any], list[str]]:
    """Return the rows to compare on, and what there is to say of them."""
    if points.ndim != 2 or labels.shape != points.shape[:1]:
        got = f"{points.shape} and {labels.shape}"
        raise ValueError(checks.message("X and y of compare", "of shapes (n, dim) and (n,)", got))
    if not np.isfinite(points).all():
        raise ValueError(checks.message("X of compare", "finite numbers", "NaN or infinity", "Fill or drop the gaps."))
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


def _standing(name: str, outcomes: Sequence[_Outcome]) -> Standing:
    problem = next((outcome.problem for outcome in outcomes if outcome.problem), "")
    if problem:
        return Standing(name, {}, problem=problem)
    values = {score: tuple(outcome.scores[score] for outcome in outcomes) for score in SCORES}
    # Small tables may have fewer rows than places.
    places = min(len(outcome.precisions) for outcome in outcomes)
    precisions = np.mean([outcome.precisions[:places] for outcome in outcomes], axis=0)
    return Standing(name, values, tuple(outcome.choice for outcome in outcomes), precisions=tuple(precisions.tolist()))


@dataclass(frozen=True, eq=False)
class _Fold:
    """Rows to learn from and rows to judge by."""

    points: NDArray[np.float64]
    labels: NDArray[Any]
    rows: NDArray[np.int64]
    queries: NDArray[np.int64]
    steps: int | None
    seed: int


def _judge(name: str, fold: _Fold) -> _Outcome:
    """Return how one divergence does on one fold, or what went wrong."""
    with joblib.parallel_config(n_jobs=1):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the trainings share the cores
        try:
            return _judged(name, fold)
        except (ValueError, ArithmeticError, TrainingDivergedError) as error:
            return _Outcome(problem=" ".join(str(error).split()))
        finally:
            torch.set_num_threads(threads)


def _judged(name: str, fold: _Fold) -> _Outcome:
    points, labels, rows, queries, seed = fold.points, fold.labels, fold.rows, fold.queries, fold.seed
    learner = DivergenceLearner(
        name,
        encoder=None if name == "euclidean" else "auto",
        steps=fold.steps,
        random_state=seed,
        device="cpu",
        progress=False,
    )
    start = time.perf_counter()
    learner.fit(points[rows], labels[rows])
    seconds = time.perf_counter() - start
    matrix = learner.pairwise(points[queries], points[rows])
    asked, known = labels[queries], labels[rows]
    found = {
        "map": metrics.mean_average_precision(matrix, asked, known),
        "auc": metrics.auc(matrix, asked, known),
        "knn": metrics.knn_accuracy(matrix, asked, known, k=min(NEIGHBOURS, len(rows))),
        "seconds": seconds,
    }
    scaling = Standardize(points.shape[1]).fit(torch.from_numpy(points[rows]))
    clusters = cluster_from_euclidean(
        scaling(torch.from_numpy(points[queries])),
        torch.from_numpy(learner.transform(points[queries])),
        learner.divergence_,
        min(len(np.unique(asked)), len(queries)),
        [seed * STARTS + number for number in range(STARTS)],
    )
    found["purity"] = float(np.mean([metrics.purity(asked, each) for each in clusters]))
    found["rand"] = float(np.mean([metrics.rand(asked, each) for each in clusters]))
    return _Outcome(found, _precisions(matrix, asked, known), learner.choice_)


def _precisions(matrix: NDArray[Any], asked: NDArray[Any], known: NDArray[Any]) -> tuple[float, ...]:
    """Return the mean share of the right class among the first 1, 2, ... items."""
    # Items at the same distance come in a random order: their own may have to do with their class.
    order = np.random.default_rng(0).permutation(matrix.shape[1])
    first = np.argsort(matrix[:, order], axis=1, kind="stable")[:, :PLACES]
    right = known[order][first] == asked[:, None]
    return tuple((right.cumsum(1) / np.arange(1, right.shape[1] + 1)).mean(0).tolist())
