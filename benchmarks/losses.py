"""Time the losses beside pytorch-metric-learning and beside plain autograd: value and gradient.

    python benchmarks/losses.py [--rounds 15] [--sizes 64 128 256 512] [--large 1024 2048 4096 8192] [--only TEXT]

The cases of a row run in turn within one process, one round after another, and each figure is the median over the
rounds: on a machine that others use too, only ratios within such a row mean something. Large batches run alone,
each in a process of its own, with the largest memory that the system gave to it.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.losses import ContrastiveLoss, TripletMarginLoss
from torch import Tensor

from askew.losses import AllTriplets, Contrastive, Listwise

MARGIN = 0.2
LAYOUTS: dict[str, Callable[[int], Tensor]] = {
    "4 per class": lambda n: torch.arange(n) // 4,
    "16 per class": lambda n: torch.arange(n) // 16,
    "10 classes": lambda n: torch.arange(n) % 10,
}
Loss = Callable[[Tensor, Tensor], Tensor]


class GivenMatrix(BaseDistance):
    """Hand a matrix through: what is timed is the loss and not the distance."""

    def __init__(self) -> None:
        super().__init__(normalize_embeddings=False)

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return query_emb


def plain_listwise(matrix: Tensor, labels: Tensor) -> Tensor:
    """Return the listwise loss the straightforward way, for autograd to differentiate."""
    itself = torch.eye(len(matrix), dtype=torch.bool)
    positive = (labels[:, None] == labels) & ~itself
    near = torch.sigmoid((matrix[:, :, None] - matrix[:, None, :]) / 0.02)
    near = near.masked_fill(itself[:, None, :] | itself[None, :, :], 0.0)
    precision = (1 + (near * positive[:, None, :]).sum(-1)) / (1 + near.sum(-1))
    average = (precision * positive).sum() / positive.sum()
    logarithms = (-matrix).masked_fill(itself, -torch.inf).log_softmax(1).masked_fill(~positive, 0.0)
    return 1 - average - 0.3 * (logarithms.sum(1) / positive.sum(1)).mean()


# ---------------------------------------------------------------------- measuring


def step(loss: Loss, matrix: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        matrix.grad = None
        value = loss(matrix, labels)
        value.backward()
        return value

    return run


def measure(losses: dict[str, Loss], matrix: Tensor, labels: Tensor, rounds: int) -> dict[str, float]:
    """Return the median seconds of each loss over interleaved rounds, after a check that all agree."""
    actions = {name: step(loss, matrix, labels) for name, loss in losses.items()}
    values, gradients = [], []
    for action in actions.values():
        for _ in range(3):
            values.append(action().detach())
        gradients.append(matrix.grad)
    for value in values:
        torch.testing.assert_close(value, values[0], rtol=1e-5, atol=0)
    for gradient in gradients:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-2, atol=1e-5 * gradients[0].abs().max().item())
    times: dict[str, list[float]] = {name: [] for name in actions}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    gc.enable()
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def table(title: str, header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)) + " |"

    print(f"\n### {title}\n")
    print(line(header))
    print("|" + "|".join("-" * (w + 2) for w in widths) + "|")
    for row in rows:
        print(line(row), flush=True)


def batch(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, n, generator=torch.Generator().manual_seed(seed)).requires_grad_()


# ---------------------------------------------------------------------- the tables


def against_the_package(title: str, ours: Loss, theirs: Loss, options: argparse.Namespace) -> None:
    rows = []
    for n in options.sizes:
        for layout, labels in LAYOUTS.items():
            rounds = options.rounds if n < 512 else max(3, options.rounds // 3)
            times = measure({"theirs": theirs, "ours": ours}, batch(n), labels(n), rounds)
            ratio = times["theirs"] / times["ours"]
            rows.append([str(n), layout, f"{ratio:.1f}", *(f"{1e3 * seconds:.2f}" for seconds in times.values())])
    header = ["batch", "labels", "speed-up", "pytorch-metric-learning ms", "askew ms"]
    table(f"{title}: value and gradient", header, rows)


def listwise_table(options: argparse.Namespace) -> None:
    rows = []
    for n in (64, 128, 256):
        for classes in (2, 3, 6, n // 4):
            rounds = options.rounds if n < 256 else max(3, options.rounds // 3)
            losses: dict[str, Loss] = {"plain": plain_listwise, "ours": Listwise()}
            times = measure(losses, batch(n), torch.arange(n) % classes, rounds)
            ratio = times["plain"] / times["ours"]
            rows.append([str(n), str(classes), f"{ratio:.1f}", *(f"{1e3 * seconds:.2f}" for seconds in times.values())])
    header = ["batch", "classes", "speed-up", "plain autograd ms", "askew ms"]
    table("Listwise: value and gradient", header, rows)


def large_table(options: argparse.Namespace) -> None:
    rows = []
    for n in options.large:
        for layout in (*LAYOUTS, "2 classes"):
            command = [sys.executable, __file__, "--alone", str(n), layout]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append([str(n), layout, *done.stdout.split()])
    header = ["batch", "labels", "seconds", "peak MB", "of which before the step", "of which the matrix"]
    table("AllTriplets alone, each in its own process: value and gradient", header, rows)


def alone(n: int, layout: str) -> None:
    """Print the seconds of one step and the memory of this process."""
    matrix, labels = batch(n), LAYOUTS.get(layout, lambda n: torch.arange(n) % 2)(n)
    small = batch(200)
    AllTriplets(MARGIN)(small, labels[:200]).backward()  # imports and first calls
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    start = time.perf_counter()
    AllTriplets(MARGIN)(matrix, labels).backward()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"{seconds:.2f} {peak:.0f} {before:.0f} {4 * n * n / 1e6:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds, the median of which counts")
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 128, 256, 512])
    parser.add_argument("--large", type=int, nargs="*", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="only tables whose name contains this text")
    parser.add_argument("--alone", nargs=2, metavar=("BATCH", "LABELS"), help="one large batch in this process")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.alone:
        alone(int(options.alone[0]), options.alone[1])
        return
    # Freed once, a large block makes the C library keep memory instead of returning it to the system at each step.
    del_me = torch.empty(31 << 20, dtype=torch.uint8)
    del del_me
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, {options.threads} thread(s), medians of interleaved rounds"
    )
    given: Any = GivenMatrix()
    tables: dict[str, Callable[[], None]] = {
        "triplets": lambda: against_the_package(
            "AllTriplets", AllTriplets(MARGIN), TripletMarginLoss(margin=MARGIN, distance=given), options
        ),
        "contrastive": lambda: against_the_package(
            "Contrastive", Contrastive(), ContrastiveLoss(distance=given), options
        ),
        "listwise": lambda: listwise_table(options),
        "large": lambda: large_table(options),
    }
    for name, run in tables.items():
        if options.only in name:
            run()


if __name__ == "__main__":
    main()
