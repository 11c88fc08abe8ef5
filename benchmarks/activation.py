"""Decide the default activation: squareplus or softplus inside the same network, on the regression targets.

    python benchmarks/activation.py [--epochs 15] [--seeds 2]

Both get the same data, optimiser, schedule and seeds; the figure is the mean absolute error on 10,000 test pairs,
beside the seconds of CPU time that the training took (the two take turns, so the ratio means something). The
learning rate and the terms are those of `NeuralBregman`; "plain" leaves the quadratic and separable terms out.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor

from askew.divergences import NeuralBregman

DIM, INFORMATIVE = 20, 10


def pairs(target: str, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, y and the target: squared Euclidean on normal features, or x log x on half-normal ones."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, n, DIM, generator=generator, dtype=torch.float64)
    if target == "euclidean":
        value = (x - y)[:, :INFORMATIVE].square().sum(-1)
    else:
        for points in (x, y):
            points[:, :INFORMATIVE] = points[:, :INFORMATIVE].abs().clamp_min(1e-8)
        first, second = x[:, :INFORMATIVE], y[:, :INFORMATIVE]
        value = (first * (first / second).log() - first + second).sum(-1)
    return x.float(), y.float(), value.float()


class Run:
    """One training, an epoch at a time, so that several can take turns."""

    def __init__(self, activation: str, plain: bool, target: str, epochs: int, seed: int) -> None:
        torch.manual_seed(seed)
        terms = {"quadratic": 0, "separable": 0} if plain else {}
        self.model = NeuralBregman(DIM, activation=activation, **terms)
        self.x, self.y, self.target = pairs(target, 40_000, seed=1000)
        self.test = pairs(target, 10_000, seed=2000)
        self.model.calibrate(self.x[:5000], self.y[:5000], self.target[:5000])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-2)
        steps, warm = epochs * 40, 100
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda i: min((i + 1) / warm, max(0.0, (steps - i) / (steps - warm)))
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.seconds = 0.0

    def epoch(self) -> None:
        start = time.process_time()
        for rows in torch.randperm(len(self.x), generator=self.generator).split(1000):
            self.optimizer.zero_grad()
            (self.model(self.x[rows], self.y[rows]) - self.target[rows]).square().mean().backward()
            self.optimizer.step()
            self.schedule.step()
        self.seconds += time.process_time() - start

    @torch.no_grad()
    def error(self) -> float:
        x, y, target = self.test
        return (self.model(x, y) - target).abs().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.epochs} epochs of 40,000 pairs, {options.seeds} seeds; test MAE by seed, CPU seconds")
    print("| target | terms | squareplus | softplus | s / run | softplus takes |\n|---|---|---|---|---|---|")
    for target in ("euclidean", "x log x"):
        for plain in (False, True):
            found: dict[str, list[Run]] = {"squareplus": [], "softplus": []}
            for seed in range(options.seeds):
                runs = {name: Run(name, plain, target, options.epochs, seed) for name in found}
                for _ in range(options.epochs):
                    for run in runs.values():
                        run.epoch()
                for name, run in runs.items():
                    found[name].append(run)
            errors = {name: " ".join(f"{run.error():.4f}" for run in runs) for name, runs in found.items()}
            seconds = {name: statistics.mean(run.seconds for run in runs) for name, runs in found.items()}
            ratio = seconds["softplus"] / seconds["squareplus"]
            label = "plain" if plain else "all"
            print(
                f"| {target} | {label} | {errors['squareplus']} | {errors['softplus']} "
                f"| {seconds['squareplus']:.0f} | {ratio:.2f} x |",
                flush=True,
            )


if __name__ == "__main__":
    main()
