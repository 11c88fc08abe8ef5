"""What `divergence="auto"` costs and gives compared with `nbd`, on values of known divergences and on travel times.

    python benchmarks/choice.py --seeds 3
    python benchmarks/tables.py --methods "nbd, encoder chosen" auto    # the same for six tables with labels

Both learners have their defaults; errors are mean absolute errors on held-out pairs relative to the mean target. The
seconds are of the processor; the ratio is that of auto to one training of nbd, with the encoder that auto chose.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from askew_paper.data import target_pairs
from numpy.typing import NDArray

import askew

Pairs = NDArray[np.float64]


def targets(name: str, count: int, seed: int) -> tuple[Pairs, Pairs]:
    """Return pairs of points and the values wanted for them."""
    if name == "walking times":
        rng = np.random.default_rng(seed)
        pairs = rng.uniform(size=(count, 2, 4))
        climb = np.sin(4 * pairs[:, 1, 0]) - np.sin(4 * pairs[:, 0, 0])
        length = np.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=1)
        return pairs, length + np.maximum(climb, 0)
    train, _ = target_pairs(name, "none", count, 1, seed=seed)
    return np.stack([train.first, train.second], 1), np.asarray(train.targets, np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=5000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| target | seed | nbd | auto | chosen | seconds of auto / of one training |\n|---|---|---|---|---|---|")
    for name in ("euclidean", "xlogx", "walking times"):
        for seed in range(options.seeds):
            pairs, values = targets(name, options.pairs + 2000, seed)
            train, held_out = slice(options.pairs), slice(options.pairs, None)
            figures, seconds = {}, {}
            for divergence in ("nbd", "auto"):
                started = time.process_time()
                learner = askew.PairRegressor(divergence, random_state=seed).fit(pairs[train], values[train])
                seconds[divergence] = time.process_time() - started
                error = np.abs(learner.predict(pairs[held_out]) - values[held_out]).mean()
                figures[divergence] = error / values[held_out].mean()
            chosen = learner.choice_.split(":")[0]
            started = time.process_time()
            encoder = None if chosen.endswith("no encoder") else "mlp"
            askew.PairRegressor("nbd", encoder, random_state=seed).fit(pairs[train], values[train])
            ratio = seconds["auto"] / (time.process_time() - started)
            row = f"{figures['nbd']:.4f} | {figures['auto']:.4f} | {chosen} | {ratio:.2f}"
            print(f"| {name} | {seed} | {row} |", flush=True)


if __name__ == "__main__":
    main()
