"""Does a fit ever fail in silence? Many seeds of five tasks, four divergences, with and without an encoder.

A fit fails if its held-out score is no better than that of a trivial model; it fails in silence if it gave no
FitWarning. Run `python benchmarks/robustness.py --seeds 20`; the last line counts both.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import askew
from askew.estimators import FitWarning

DIVERGENCES = ("nbd", "drift", "deep-div", "mahalanobis")
ENCODERS = (None, "mlp")
# Learner, training data, held-out data, and the score of a trivial model in terms of the learner's own score.
Task = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], float]


def landmark_times(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    """Return pairs of places on a hilly plane, seen by their walking times to 16 landmarks, and walking times."""
    places, landmarks = rng.uniform(size=(400, 2)), rng.uniform(size=(16, 2))

    def times(a: Any, b: Any) -> Any:
        climb = np.sin(5 * b[..., 0]) * np.cos(4 * b[..., 1]) - np.sin(5 * a[..., 0]) * np.cos(4 * a[..., 1])
        return np.linalg.norm(a - b, axis=-1) + np.maximum(climb, 0) + 0.3 * np.maximum(-climb, 0)

    features = np.concatenate([times(places[:, None], landmarks), times(landmarks, places[:, None])], axis=1)
    rows = rng.integers(400, size=(n, 2))
    return features[rows], times(places[rows[:, 0]], places[rows[:, 1]])


def tasks(seed: int) -> Iterator[tuple[str, Task]]:
    rng = np.random.default_rng(seed)
    n, held = 3000, 1000
    X, y = landmark_times(rng, n + held)
    yield "walking times", (askew.PairRegressor, (X[:n], y[:n]), (X[n:], y[n:]), 0.0)
    X = rng.gamma(1.0, size=(n + held, 2, 8)) + 0.05
    y = (X[:, 0] * np.log(X[:, 0] / X[:, 1]) - X[:, 0] + X[:, 1]).sum(1)
    yield "Kullback-Leibler", (askew.PairRegressor, (X[:n], y[:n]), (X[n:], y[n:]), 0.0)
    X = rng.normal(size=(n + held, 2, 8)) * rng.uniform(0.1, 10, size=8)
    y = np.square(X[:, 0] - X[:, 1])[:, :4].sum(1)
    yield "squared distance", (askew.PairRegressor, (X[:n], y[:n]), (X[n:], y[n:]), 0.0)
    X = rng.normal(size=(n + held, 3, 8))
    near = np.maximum(X[:, 1] - X[:, 0], 0).sum(1) < np.maximum(X[:, 2] - X[:, 0], 0).sum(1)
    X = np.where(near[:, None, None], X, X[:, [0, 2, 1]])
    yield "triplets of an order", (askew.TripletLearner, (X[:n],), (X[n:],), 0.5)
    X, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(X))
    X, labels = X[order], labels[order]
    yield "digits", (askew.DivergenceLearner, (X[:1200], labels[:1200]), (X[1200:], labels[1200:]), 0.12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, help="of each training, in place of the default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts = {"fits": 0, "failed": 0, "in silence": 0, "warned": 0}
    for seed in range(options.first, options.first + options.seeds):
        for name, (learner, train, held_out, trivial) in tasks(seed):
            for divergence in DIVERGENCES:
                for encoder in ENCODERS:
                    started = time.process_time()
                    with warnings.catch_warnings(record=True) as caught:
                        warnings.simplefilter("always", FitWarning)
                        fitted = learner(divergence, encoder, steps=options.steps, random_state=seed).fit(*train)
                    score = fitted.score(*held_out)
                    warned = any(issubclass(entry.category, FitWarning) for entry in caught)
                    failed = not score > trivial
                    counts["fits"] += 1
                    counts["failed"] += failed
                    counts["warned"] += warned
                    counts["in silence"] += failed and not warned
                    mark = "FAILED" if failed else ""
                    mark += " warned" if warned else ""
                    seconds = time.process_time() - started
                    row = f"{seed:3} {name:20} {divergence:12} {encoder or '-':4} {score:9.4f} {seconds:6.1f} s {mark}"
                    print(row, flush=True)
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
