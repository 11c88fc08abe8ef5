"""Cross-validated comparison of divergences, with baselines."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from askew import checks, io
from askew._progress import progress_bar
from askew.cli.board import ENCODED, PLAIN, SCORES, Leaderboard, Standing
from askew.cli.options import USUAL
from askew.cli.tasks import Classes, Rows, Task
from askew.divergences import CATALOGUE
from askew.estimators import FitWarning
from askew.training import TrainingDivergedError

__all__ = [
    "SCORES",
    "Fold",
    "Leaderboard",
    "Standing",
    "compare",
    "compare_task",
    "held_out",
    "importance",
    "shown_rows",
]

# Seconds of work below which it is done in this process: each other one imports torch first.
SMALL_WORK = 20.0
# Held-out and training rows on a map: enough to see classes, few enough for a phone.
SHOWN_ROWS, SHOWN_KNOWN = 250, 150
# Held-out rows on which the importance of columns is measured, and how often each column is permuted.
PERMUTED_ROWS, PERMUTATIONS = 500, 3


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
    by: str | None = None,
) -> Leaderboard:
    """Learn divergences from labels, and score each on held-out rows.

    Each fold is held out once: a divergence is learned from the other rows, ranks these for each row of the fold (MAP,
    AUC, accuracy of the vote of the 5 nearest), and clusters the fold (purity, Rand). All divergences get the same
    folds. Each decides within its training rows whether to learn an encoder. Three baselines are always there: the
    Euclidean distance, which has nothing to learn, the same behind an encoder, and the largest class.

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
        Trainings at the same time; None for one on each core, or a single one if the work takes seconds.
    progress
        Whether to show a bar; by default on a terminal only.
    by
        The score that decides, a key of :data:`SCORES`; by default MAP.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> board = compare(*load_iris(return_X_y=True), ["mahalanobis"], folds=2, steps=50, jobs=1)
    >>> board.best.mean("map") > 0.9
    True
    >>> [one.name for one in board.standings][-2:]
    ['euclidean', 'largest class']
    """
    task = Classes(X, y).sample(random_state)
    settings: dict[str, Any] = {"folds": folds, "steps": steps, "random_state": random_state}
    return compare_task(task, divergences, **settings, jobs=jobs, progress=progress, by=by)


def compare_task(
    task: Task,
    divergences: Sequence[str],
    *,
    folds: int = 5,
    steps: int | None = None,
    random_state: int = 0,
    jobs: int | None = None,
    progress: bool | None = None,
    by: str | None = None,
    keep: str | os.PathLike[str] | None = None,
    done: Callable[[Standing], None] | None = None,
) -> Leaderboard:
    """Learn divergences from what a task knows, and score each on held-out rows.

    Parameters
    ----------
    task
        Points, and what is known about them.
    divergences, folds, steps, random_state, jobs, progress, by
        As in :func:`compare`.
    keep
        A file for finished folds. Another call with the same data and settings goes on from there.
    done
        Called with each standing as soon as its folds are done, Euclidean first.
    """
    if not divergences:
        raise ValueError(checks.message("divergences of compare", "at least one name", "none"))
    for name in divergences:
        checks.check_name(name, CATALOGUE, "name of a divergence")
    by = checks.check_name(by or task.deciding[0], task.deciding, "by of compare")
    parts = task.folds(folds, random_state)
    names = list(dict.fromkeys((*task.baselines, *divergences)))
    outcomes: dict[str, dict[int, Standing]] = {name: {} for name in (*task.trivial, *names)}

    def finish(name: str, fold: int, outcome: Standing) -> None:
        outcomes[name][fold] = outcome
        if done is not None and len(outcomes[name]) == folds:
            done(_merged(outcomes[name]))

    file = None if keep is None else _Kept(Path(keep), _digest(task, folds, steps, random_state))
    earlier = {} if file is None else file.outcomes(names, folds, task)
    for (name, fold), outcome in earlier.items():
        finish(name, fold, outcome)
    works = [
        (task, name, fold, *part, steps, random_state + fold)
        for name in names
        for fold, part in enumerate(parts)
        if fold not in outcomes[name]
    ]

    def take(outcome: tuple[str, int, Standing]) -> None:
        if file is not None and not outcome[2].problem:
            file.add(*outcome)
        finish(*outcome)

    while works and works[0][1] == PLAIN:  # takes no time, so the bar does not count it
        take(_judge(*works.pop(0)))
    for fold, part in enumerate(parts):
        for name, guess in zip(task.trivial, task.guesses(*part), strict=True):
            scores = guess | {"seconds": 0.0}
            finish(name, fold, Standing(name, {score: (scores[score],) for score in task.headings}))
    total, slowest = len(works), 0.0
    if jobs is not None:
        checks.check_size(jobs, "jobs of compare")
    with progress_bar(progress, total, "comparing") as move:
        while works and (jobs == 1 or (jobs is None and slowest * len(works) < SMALL_WORK)):
            start = time.perf_counter()
            take(_judge(*works.pop(0)))
            slowest = max(slowest, time.perf_counter() - start)
            move(total - len(works))
        if works:
            workers = min(jobs or joblib.cpu_count(), len(works))
            parallel = joblib.Parallel(n_jobs=workers, return_as="generator_unordered")
            for number, outcome in enumerate(parallel(joblib.delayed(_judge)(*work) for work in works)):
                take(outcome)
                move(total - len(works) + number + 1)
    standings = [_merged(outcomes[name]) for name in (*names, *task.trivial)]
    standings.sort(key=lambda one: (bool(one.problem), -one.mean(by) if not one.problem else 0.0))
    failed = [one for one in standings if one.problem]
    if len(failed) == len(names):
        raise ValueError(f"No divergence could be learned. {failed[0].name}: {failed[0].problem}")
    n, classes = len(task.points), len(np.unique(task.truth)) if isinstance(task, Classes) else 0
    notes = task.notes + task.remarks(folds)
    if earlier:
        notes.append(f"{len(earlier)} of {len(names) * folds} trainings are from an earlier run, in {keep}.")
    sizes = {"folds": folds, "rows": n, "features": task.points.shape[-1], "classes": classes}
    return Leaderboard(
        tuple(standings), **sizes, notes=tuple(notes), by=by, headings=task.headings, trivial=task.trivial
    )


def _merged(outcomes: Mapping[int, Standing]) -> Standing:
    """Return the standing over all folds of a divergence from those of single folds."""
    ordered = [outcomes[fold] for fold in sorted(outcomes)]
    failed = next((outcome for outcome in ordered if outcome.problem), None)
    if failed is not None:
        return failed
    scores = {score: tuple(one.scores[score][0] for one in ordered) for score in ordered[0].scores}
    encoders, parameters = (tuple(getattr(one, of)[0] for one in ordered if getattr(one, of)) for of in _PER_FOLD)
    return Standing(ordered[0].name, scores, encoders=encoders, parameters=parameters)


_PER_FOLD = ("encoders", "parameters")


def settings_of(name: str, steps: int | None, seed: int) -> dict[str, Any]:
    """Return the settings of the learner of a divergence or a baseline."""
    encoder = {PLAIN: None, ENCODED: "mlp"}.get(name, "auto")
    divergence = PLAIN if name == ENCODED else name
    return {"divergence": divergence, "encoder": encoder, "steps": steps, "random_state": seed}


def _judge(
    task: Task, name: str, fold: int, rows: Rows, rest: Rows, steps: int | None, seed: int
) -> tuple[str, int, Standing]:
    """Return the standing of one divergence on one fold, or why it failed."""
    threads, logger = torch.get_num_threads(), logging.getLogger("askew")
    level = logger.level
    with joblib.parallel_config(n_jobs=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the board shows it
        logger.setLevel(logging.ERROR)
        torch.set_num_threads(1)  # the trainings share the cores
        try:
            start = time.perf_counter()
            learner = task.fit(rows, **settings_of(name, steps, seed), device="cpu", progress=False)
            seconds = time.perf_counter() - start
            scores = task.judge(learner, rows, rest, seed) | {"seconds": seconds}
        except (ValueError, ArithmeticError, TrainingDivergedError) as error:
            return name, fold, Standing(name, {}, problem=" ".join(str(error).split()))
        finally:
            torch.set_num_threads(threads)
            logger.setLevel(level)
    encoder = "mlp" if any(True for _ in learner.encoder_.parameters()) else "none"
    parameters = sum(parameter.numel() for parameter in learner.model_.parameters())
    values = {score: (float(scores[score]),) for score in task.headings}
    return name, fold, Standing(name, values, encoders=(encoder,), parameters=(parameters,))


# ---------------------------------------------------------------------- finished folds


def _digest(task: Task, *settings: object) -> str:
    """Return a name of the data and settings that a fold belongs to."""
    digest = hashlib.sha256(repr((io.version(), type(task).__name__, task.bins, settings)).encode())
    digest.update(repr(task.points.shape).encode() + np.ascontiguousarray(task.points).tobytes())
    digest.update(json.dumps(task.truth.tolist()).encode())
    for array in task.content():
        digest.update(repr((array.shape, array.dtype.str)).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class _Kept:
    """Finished folds in a file, a line of JSON each; lines of other data or settings, or cut short, do not count."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path, self.digest = path, digest
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        self.lines = [line for line in map(_parsed, lines) if line.get("digest") == digest]
        io.write_text(path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def outcomes(self, names: Sequence[str], folds: int, task: Task) -> dict[tuple[str, int], Standing]:
        """Return the standings of folds, by divergence and fold."""
        found: dict[tuple[str, int], Standing] = {}
        for line in self.lines:
            with contextlib.suppress(KeyError, TypeError, ValueError):  # a line that was changed is no fold
                name, fold = str(line["name"]), int(line["fold"])
                scores = {score: (float(line["scores"][score]),) for score in task.headings}
                standing = Standing(name, scores, "", (str(line["encoder"]),), (int(line["parameters"]),))
                if name in names and fold in range(folds):
                    found[name, fold] = standing
        return found

    def add(self, name: str, fold: int, outcome: Standing) -> None:
        """Append a finished fold."""
        scores = {score: values[0] for score, values in outcome.scores.items()}
        kept = {"encoder": outcome.encoders[0], "parameters": outcome.parameters[0], "scores": scores}
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"digest": self.digest, "name": name, "fold": fold} | kept) + "\n")


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = io.read_json(line, "a finished fold") if line else None
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------------- one fold, to look at


@dataclass(frozen=True)
class Fold:
    """A learner, the rows it was learned from, and the rows that it has not seen."""

    learner: Any
    rows: Rows
    rest: Rows


def held_out(task: Task, name: str, *, folds: int = 5, steps: int | None = None, random_state: int = 0) -> Fold:
    """Return the first fold of a comparison with its learner, learned once more."""
    rows, rest = task.folds(folds, random_state)[0]
    learner = task.fit(rows, **settings_of(name, steps, random_state), device="cpu", progress=False)
    return Fold(learner, rows, rest)


def shown_rows(labels: NDArray[np.str_], fold: Fold) -> tuple[Rows, NDArray[np.bool_]]:
    """Return some rows of a fold, in the proportions of their labels, and which of them it was learned from."""
    parts = []
    for rows, count in ((fold.rows, SHOWN_KNOWN), (fold.rest, SHOWN_ROWS)):
        order = rows[np.argsort(labels[rows], kind="stable")]
        parts.append(np.sort(order[np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(np.int64)]))
    return np.concatenate(parts), np.repeat([True, False], [len(part) for part in parts])


def importance(
    task: Task, fold: Fold, columns: Mapping[str, Sequence[int]], random_state: int = 0
) -> dict[str, tuple[float, float]]:
    """Return how much the first score drops if a column of held-out rows is permuted, and its standard deviation.

    Parameters
    ----------
    task, fold
        What was compared, and a learner that has not seen some of its rows.
    columns
        The features of each column, which are permuted together.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> X, y = random.normal(size=(200, 2)), np.arange(200) % 2
    >>> X[:, 0] += 3 * y
    >>> task = Classes(X, y)
    >>> fold = held_out(task, "mahalanobis", steps=50)
    >>> drops = importance(task, fold, {"informative": [0], "noise": [1]})
    >>> drops["informative"][0] > 0.2 > drops["noise"][0]
    True
    """
    random = np.random.default_rng(random_state)
    rest = fold.rest if len(fold.rest) <= PERMUTED_ROWS else random.choice(fold.rest, PERMUTED_ROWS, replace=False)
    points = task.points[rest]
    before = task.quality(fold.learner, fold.rows, rest, points)
    drops: dict[str, tuple[float, float]] = {}
    for name, features in columns.items():
        values = []
        for _ in range(PERMUTATIONS):
            flat = points.reshape(-1, points.shape[-1]).copy()
            flat[:, features] = flat[random.permutation(len(flat))][:, features]
            values.append(before - task.quality(fold.learner, fold.rows, rest, flat.reshape(points.shape)))
        drops[name] = float(np.mean(values)), float(np.std(values, ddof=1))
    return dict(sorted(drops.items(), key=lambda drop: -drop[1][0]))
