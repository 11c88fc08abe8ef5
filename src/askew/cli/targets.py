"""Learning from a column of numbers: similar rows are those with similar numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from askew import checks, metrics
from askew.estimators import DivergenceLearner, PairRegressor

Floats = NDArray[np.float64]

# Nearest rows whose mean is the prediction.
NEIGHBOURS = 10
# Share of the rows that is held out to compare encoders and to measure, and rows from which some are.
HELD_OUT_SHARE, ROWS_TO_HOLD_OUT = 0.25, 50
# Pairs that are made, and how often each row comes first and second in them at most.
MOST_PAIRS, MOST_ROUNDS = 50_000, 8
# Steps of a training on pairs. More fit the differences of the training rows better and those of others worse.
STEPS = 500


def learn_target(
    points: Floats,
    values: Floats,
    *,
    bins: int | None,
    encoder: str | None,
    random_state: int,
    measure: bool = True,
    **settings: Any,
) -> tuple[DivergenceLearner | PairRegressor, Floats, dict[str, float], str]:
    """Learn a divergence that is small between rows with similar numbers.

    Pairs of rows are drawn, and D should be the difference of their numbers; or with ``bins``, the numbers are divided
    into so many equally large classes. R squared of the mean of the nearest rows, on held-out rows, decides whether
    there is an encoder. Rows are held out, not pairs: pairs that have a row in common are not independent. The model is
    then learned from all rows. Without ``measure`` no row is held out where there is nothing to decide.

    Returns
    -------
    tuple
        The learner, the number of each of its ``points_``, R squared of each candidate and of the baseline on held-out
        rows, and a sentence about them.
    """
    if encoder == "two-sided":
        raise ValueError(checks.message("--encoder", "auto, none or mlp with --target", encoder))
    random, n = np.random.default_rng(random_state), len(points)
    names = {None: "without encoder", "mlp": "with encoder"}
    encoders: list[str | None] = [None, "mlp"] if encoder == "auto" else [encoder]

    def learned(rows: NDArray[np.int64], encoder: str | None) -> tuple[DivergenceLearner | PairRegressor, Floats]:
        options = settings | {"encoder": encoder, "random_state": random_state}
        learner = _fit(points[rows], values[rows], bins, random, options)
        return learner, values_of(learner, points[rows], values[rows])

    everything = np.arange(n)
    if not measure and len(encoders) == 1:
        return *learned(everything, encoder), {}, f"{names[encoder]}, as asked for"
    if n < ROWS_TO_HOLD_OUT:
        reason = f"{n} rows are too few to hold out some ({ROWS_TO_HOLD_OUT} are needed)"
        return *learned(everything, encoders[0]), {}, f"{names[encoders[0]]}: {reason}"
    rest, rows = np.split(random.permutation(n), [int(HELD_OUT_SHARE * n)])
    scores = {"euclidean": euclidean_r2(points[rows], values[rows], points[rest], values[rest])}
    for each in encoders:
        scores[names[each]] = metrics.r2(values[rest], predict(*learned(rows, each), points[rest]))
    best = max(encoders, key=lambda each: scores[names[each]])
    listed = ", ".join(f"{score:.3f} {name}" for name, score in scores.items())
    text = (
        f"{names[best]}: R squared of the mean of the {NEIGHBOURS} nearest rows, on {len(rest)} held-out rows: {listed}"
    )
    better = scores[names[best]] > scores["euclidean"]
    text += "; 0 is the mean of all rows" + ("" if better else ". It is no better than the Euclidean distance.")
    return *learned(everything, best), scores, text


def _fit(
    points: Floats, values: Floats, bins: int | None, random: np.random.Generator, options: dict[str, Any]
) -> DivergenceLearner | PairRegressor:
    if bins is not None:
        edges = np.quantile(values, np.arange(1, bins) / bins)
        return DivergenceLearner(**options).fit(points, np.searchsorted(edges, values, side="right"))
    rounds = max(1, min(MOST_ROUNDS, MOST_PAIRS // len(points)))
    first, second = (np.concatenate([random.permutation(len(points)) for _ in range(rounds)]) for _ in range(2))
    differences = np.abs(values[first] - values[second]) / values.std()
    options |= {"steps": options.get("steps") or STEPS}
    return PairRegressor(**options).fit(np.stack([points[first], points[second]], axis=1), differences)


def values_of(learner: Any, points: Floats, values: Floats) -> Floats:
    """Return the number of each point that a learner keeps; the mean of those of equal rows."""
    numbers: dict[bytes, list[float]] = {}
    for point, value in zip(points, values, strict=True):
        numbers.setdefault(point.tobytes(), []).append(value)
    return np.array([np.mean(numbers[point.tobytes()]) for point in learner.points_])


def predict(learner: Any, values: Floats, queries: Floats, k: int = NEIGHBOURS) -> Floats:
    """Return the mean number of the k nearest points of each query."""
    places = learner.kneighbors(queries, min(k, len(values)), return_distance=False)
    means: Floats = values[places].mean(1)
    return means


def euclidean_r2(points: Floats, values: Floats, queries: Floats, wanted: Floats, k: int = NEIGHBOURS) -> float:
    """Return R squared of the nearest rows by the Euclidean distance of standardised features, the baseline."""
    baseline = make_pipeline(StandardScaler(), KNeighborsRegressor(min(k, len(points)))).fit(points, values)
    return metrics.r2(wanted, baseline.predict(queries))
