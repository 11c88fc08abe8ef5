"""Time a joint training step of an encoder and a divergence on images: images a second, and where the time goes.

    python benchmarks/images.py [--rounds 15] [--threads 1] [--only TEXT] [--methods nbd mahalanobis ...] [--bfloat16]

The images are random bytes. A step takes the images of a batch from a table, finds those that are in several pairs, and
makes floats of them (data); encodes each of them once and takes the gradient back through the encoder (encoder);
computes the divergences, the loss and their gradients (divergence); and changes the weights (optimiser). All methods of
a table run in turn within one process, one round after another, and each figure is the median over the rounds. With
one thread seconds are those of the processor, so other programs change them little. The share of the divergence is also
given as percent of the encoder's time, which is what it adds to training the encoder alone. With --bfloat16 each method
has a second line, with its encoder in bfloat16.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from askew_paper.encoders import ResNet20
from askew_paper.experiments.image_pairs import PairSet
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from askew.divergences import Divergence, make
from askew.encoders import MLP, SmallCNN
from askew.losses import AllTriplets

METHODS = ("euclidean", "mahalanobis", "deep-div", "deepnorm", "widenorm", "nbd-paper", "nbd")
PARTS = ("data", "encoder", "divergence", "optimiser")
IMAGES = 2048


@dataclass(frozen=True)
class Task:
    """An encoder, the size of its images, and what is learned from a batch: values of pairs or triplets of labels.

    The tasks are the steps of the experiments: BregMNIST, BregCIFAR, overlap, semantic distances of stored features and
    of images, deep metric learning.
    """

    encoder: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    dim: int
    images: int
    pairs: int | None


TASKS = {
    "SmallCNN, 28 x 28, 128 pairs of any images": Task(lambda: SmallCNN(1, 28), (1, 28, 28), 128, IMAGES, 128),
    "SmallCNN, 32 x 32, 128 pairs of any images": Task(
        lambda: SmallCNN(3, 32, filters=(32, 64, 128, 256)), (3, 32, 32), 128, IMAGES, 128
    ),
    "SmallCNN, 64 x 64, 128 pairs of 32 crops": Task(
        lambda: SmallCNN(3, 64, filters=(32, 64, 128, 256)), (3, 64, 64), 128, 32, 128
    ),
    "MLP, 64 stored features, 256 pairs of 24 images": Task(
        lambda: nn.Sequential(nn.Flatten(), MLP(64, 128, (256,))), (1, 8, 8), 128, 24, 256
    ),
    "ResNet20, 32 x 32, 256 pairs of 32 images": Task(lambda: ResNet20(out=128), (3, 32, 32), 128, 32, 256),
    "ResNet20, 32 x 32, all triplets of 64 images": Task(lambda: ResNet20(out=32), (3, 32, 32), 32, 64, None),
}


class Step:
    """Training steps of one divergence behind its own encoder, timed part by part."""

    def __init__(self, task: Task, method: str, bfloat16: bool) -> None:
        torch.manual_seed(0)
        self.task, self.bfloat16 = task, bfloat16
        self.clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        self.encoder = task.encoder().train()
        self.encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.divergence: Divergence = make(method, task.dim)
        self.table = torch.randint(256, (IMAGES, *task.shape), dtype=torch.uint8)
        self.labels = torch.randint(10, (IMAGES,))
        parameters = [*self.encoder.parameters(), *self.divergence.parameters()]
        self.optimizer = Adam(parameters, lr=1e-4, fused=True)
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self) -> tuple[dict[str, float], int]:
        """Take one step; return the seconds of each part, and the number of images that were encoded."""
        task, spent, clock = self.task, dict.fromkeys(PARTS, 0.0), self.clock()

        def note(part: str) -> None:
            nonlocal clock
            now = self.clock()
            spent[part] += now - clock
            clock = now

        group = torch.randperm(IMAGES, generator=self.generator)[: task.images]
        if task.pairs is None:
            rows = group
        else:
            first, second = group[torch.randint(len(group), (2, task.pairs), generator=self.generator)]
            pairs = PairSet(first, second, torch.rand(task.pairs, generator=self.generator))
            rows, first, second = pairs.distinct()
        images = self.table[rows].contiguous(memory_format=torch.channels_last).float().div_(255)
        note("data")
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            points: Tensor = self.encoder(images)
        note("encoder")
        leaf = points.detach().float().requires_grad_()
        if task.pairs is None:
            loss = AllTriplets(0.2)(self.divergence.pairwise(leaf, leaf), self.labels[rows])
        else:
            loss = functional.mse_loss(self.divergence(leaf[first], leaf[second]), pairs.targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        note("divergence")
        assert leaf.grad is not None
        points.backward(leaf.grad.to(points.dtype))
        note("encoder")
        self.optimizer.step()
        note("optimiser")
        return spent, len(rows)


def measure(task: Task, methods: list[str], rounds: int, bfloat16: bool) -> list[list[str]]:
    """Return a line for each method: images a second, shares of the parts, divergence relative to encoder."""
    steps = {method: Step(task, method, False) for method in methods}
    if bfloat16:
        steps |= {f"{method}, bfloat16": Step(task, method, True) for method in methods}
    times: dict[str, dict[str, list[float]]] = {method: {part: [] for part in PARTS} for method in steps}
    encoded: dict[str, list[int]] = {method: [] for method in steps}
    for step in steps.values():
        for _ in range(2):
            step()
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for method, step in steps.items():
            spent, images = step()
            encoded[method].append(images)
            for part, seconds in spent.items():
                times[method][part].append(seconds)
    gc.enable()
    lines = []
    for method in steps:
        medians = {part: statistics.median(times[method][part]) for part in PARTS}
        whole = sum(medians.values())
        shares = [f"{100 * medians[part] / whole:.1f}" for part in PARTS]
        relative = f"{100 * medians['divergence'] / medians['encoder']:.1f}"
        lines.append([method, f"{statistics.mean(encoded[method]) / whole:.0f}", *shares, relative])
    return lines


def table(title: str, header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)) + " |"

    print(f"\n### {title}\n")
    print(line(header))
    print("|" + "|".join("-" * (w + 2) for w in widths) + "|")
    for row in rows:
        print(line(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds, the median of which counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="only tables whose name contains this text")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--bfloat16", action="store_true", help="also with encoders in bfloat16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, {options.threads} thread(s), medians of interleaved rounds"
    )
    header = ["divergence", "images/s", *(f"{part} %" for part in PARTS), "divergence, % of the encoder"]
    for title, task in TASKS.items():
        if options.only in title:
            table(title, header, measure(task, options.methods, options.rounds, options.bfloat16))


if __name__ == "__main__":
    main()
