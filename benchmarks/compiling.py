"""When `fit(compile=True)` pays: seconds of the first step, of a later one, and the steps from which on it is faster.

    python benchmarks/compiling.py

Seconds are those of the processor, with those of the compiler's processes in the first step; one thread.
"""

from __future__ import annotations

import resource

import torch

import askew

DIM, BATCH, STEPS = 20, 1000, 200


def seconds() -> float:
    """Return the seconds of the processor of this process and of those that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def train(name: str, steps: int, compiled: bool) -> float:
    """Return the seconds of a training."""
    torch.manual_seed(0)
    x, y = torch.randn(2, 4 * BATCH, DIM)
    data = (x, y, (x - y).square().sum(1))
    settings = {"steps": steps, "batch_size": BATCH, "seed": 0, "progress": False}
    start = seconds()
    askew.fit(askew.make(name, DIM), data, askew.losses.Regression(), compile=compiled, **settings)
    return seconds() - start


def main() -> None:
    torch.set_num_threads(1)
    print("| divergence | first step, s | eager step, ms | compiled step, ms | pays from |\n|---|---|---|---|---|")
    for name in ("nbd", "nbd-paper", "mahalanobis"):
        first = train(name, 1, True)
        compiled, eager = (min(train(name, STEPS, each) for _ in range(3)) / STEPS for each in (True, False))
        steps = f"{first / (eager - compiled):,.0f} steps" if eager > compiled else "never"
        print(f"| {name} | {first:.1f} | {1e3 * eager:.1f} | {1e3 * compiled:.1f} | {steps} |", flush=True)


if __name__ == "__main__":
    main()
