"""Time the divergences beside the textbook forms and the matrix products alone.

    python benchmarks/core.py [--rounds 30] [--batch 1000] [--no-compile] [--only TEXT]

All cases of a table run in turn within one process, one round after another, and each figure is the median over
the rounds: on a machine that others use too, only ratios within such a run mean something. Memory is the largest
sum of tensors alive at a time, beyond what was there before the step.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import askew
from askew.divergences import CATALOGUE, Divergence, Mahalanobis, NeuralBregman
from askew.potentials.icnn.terms import NONNEGATIVE, Network

DIM = 20
Action = Callable[[], Any]


# ---------------------------------------------------------------------- what others do


def textbook_value(network: Network, x: Tensor) -> Tensor:
    """Return phi(x) the plain way, for autograd to differentiate."""
    positive = NONNEGATIVE[network.nonnegative][0]
    softplus = network.activation.name == "softplus"
    lifts = list(network.lifts)
    a = torch.addmm(lifts[0][-1], x, lifts[0][:-1])
    z = functional.softplus(a) if softplus else (a + torch.sqrt(a * a + 4)) / 2
    for mix, lift in zip(network.mixes, lifts[1:], strict=True):
        a = torch.addmm(lift[-1], x, lift[:-1]) + z @ positive(mix)
        z = functional.softplus(a) if softplus else (a + torch.sqrt(a * a + 4)) / 2
    return z @ positive(network.out)


def textbook(network: Network, x: Tensor, y: Tensor, *, training: bool) -> Tensor:
    """Return phi(x) - phi(y) - <grad phi(y), x - y>, the gradient by autograd: double backpropagation."""
    if training:
        at_y = textbook_value(network, y)
        (slope,) = torch.autograd.grad(at_y.sum(), y, create_graph=True)
        return textbook_value(network, x) - at_y - ((x - y) * slope).sum(-1)
    point = y.detach().requires_grad_()
    with torch.enable_grad():
        at_y = textbook_value(network, point)
        (slope,) = torch.autograd.grad(at_y.sum(), point)
    with torch.no_grad():
        return textbook_value(network, x) - at_y - ((x - y) * slope).sum(-1)


class LoopedDeepDiv(nn.Module):
    """Deep-div as it is described: K networks, one after another."""

    def __init__(self, pieces: int = 50, hidden: int = 32) -> None:
        super().__init__()
        networks = (nn.Sequential(nn.Linear(DIM, hidden), nn.ReLU(), nn.Linear(hidden, 1)) for _ in range(pieces))
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        at_x = torch.cat([network(x) for network in self.networks], 1)
        with torch.no_grad():
            best = torch.cat([network(y) for network in self.networks], 1).argmax(1, keepdim=True)
        return at_x.amax(1) - at_x.gather(1, best)[:, 0]


def products(n: int) -> tuple[Action, Action]:
    """Return the matrix products of a 2 x 128 network alone: of a training step, and of inference."""
    rows, states = torch.randn(2 * n, DIM + 1), torch.randn(3 * n, 128)
    lift, mix = torch.randn(DIM + 1, 128), torch.randn(128, 128)
    wide, narrow = torch.empty(3 * n, 128), torch.empty(2 * n, 128)
    to_lift, to_mix, to_points = torch.empty(DIM + 1, 128), torch.empty(128, 128), torch.empty(DIM, 2 * n)

    def inference() -> None:
        for _ in range(2):
            torch.mm(rows, lift, out=narrow)
        torch.mm(states, mix, out=wide)

    def training() -> None:
        inference()
        for _ in range(2):
            torch.mm(rows.t(), narrow, out=to_lift)
            torch.mm(lift[:DIM], narrow.t(), out=to_points)
        torch.mm(states.t(), wide, out=to_mix)
        torch.mm(wide, mix, out=states)

    return training, inference


# ---------------------------------------------------------------------- measuring


def step(function: Callable[[], Tensor], tensors: list[Tensor]) -> Action:
    """Return a training step: value, and gradients to all parameters and both inputs."""

    def run() -> None:
        for tensor in tensors:
            tensor.grad = None
        function().sum().backward()

    return run


def quiet(function: Callable[[], Tensor]) -> Action:
    def run() -> Tensor:
        with torch.no_grad():
            return function()

    return run


def measure(cases: dict[Any, Action], rounds: int) -> dict[Any, float]:
    """Return the median seconds of each case over interleaved rounds; of one thread, those of the processor."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for action in cases.values():
        for _ in range(3):
            action()
    times: dict[Any, list[float]] = {key: [] for key in cases}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for key, action in cases.items():
            start = clock()
            action()
            times[key].append(clock() - start)
    gc.enable()
    return {key: statistics.median(values) for key, values in times.items()}


def peak_memory(action: Action) -> float:
    """Return the largest sum of tensors that were alive at a time during a call, in MB."""
    action()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as result:
        action()
    events = [e for e in result.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak / 1e6


def table(title: str, header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)) + " |"

    print(f"\n### {title}\n")
    print(line(header))
    print("|" + "|".join("-" * (w + 2) for w in widths) + "|")
    for row in rows:
        print(line(row))


# ---------------------------------------------------------------------- the tables


def train_for_a_while(divergence: Divergence) -> Divergence:
    """Fit x log x for 300 steps, so that weights and pre-activations have the sizes of use."""
    optimizer = torch.optim.Adam(divergence.parameters(), lr=3e-2)
    for i in range(300):
        x, y = (torch.randn(256, DIM).abs().clamp_min(1e-3) for _ in range(2))
        target = (x * (x / y).log() - x + y)[:, : DIM // 2].sum(-1)
        if i == 0:
            divergence.calibrate(x, y, target)
        optimizer.zero_grad()
        (divergence(x, y) - target).square().mean().backward()
        optimizer.step()
    return divergence


def rows_table(options: argparse.Namespace, threads: int) -> None:
    torch.manual_seed(0)
    n = options.batch
    x, y = (torch.randn(n, DIM, requires_grad=True) for _ in range(2))
    x_only, y_only = x.detach(), y.detach()
    train: dict[str, Action] = {}
    infer: dict[str, Action] = {}

    def add(name: str, module: nn.Module, call: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        function = module if call is None else call
        train[name] = step(lambda: function(x, y), [*module.parameters(), x, y])
        infer[name] = quiet(lambda: function(x_only, y_only))

    def add_textbook(name: str, divergence: NeuralBregman) -> None:
        network = divergence.potential.terms[0]
        assert isinstance(network, Network)
        train[name] = step(lambda: textbook(network, x, y, training=True), [*network.parameters(), x, y])
        infer[name] = lambda: textbook(network, x_only, y_only, training=False)

    members = {name: askew.make(name, DIM) for name, entry in CATALOGUE.items() if entry.learned}
    square = NeuralBregman(DIM, quadratic=0, separable=0, calibrated=False)
    add_textbook("textbook softplus (nbd-paper)", members["nbd-paper"])
    add_textbook("textbook squareplus", square)
    for name, divergence in members.items():
        add(name, divergence)
    add("squareplus network", square)
    add("nbd, trained", train_for_a_while(NeuralBregman(DIM)))
    add("nbd-paper, trained", train_for_a_while(NeuralBregman.paper(DIM)))
    looped = LoopedDeepDiv()
    add("deep-div, looped", looped)
    train["matrix products alone"], infer["matrix products alone"] = products(n)
    if options.compile:
        torch._dynamo.reset()
        for name, divergence in (
            ("nbd", members["nbd"]),
            ("nbd-paper", members["nbd-paper"]),
            ("squareplus network", square),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compiled = torch.compile(divergence, fullgraph=True)
                add(f"{name}, torch.compile", divergence, compiled)
                train[f"{name}, torch.compile"]()
    keep = [
        name
        for name in train
        if options.only is None or options.only in name or name.startswith(("textbook", "matrix", "mahalanobis"))
    ]
    memory = {name: peak_memory(train[name]) for name in keep}
    times = measure(
        {
            (kind, name): action
            for kind, group in (("train", train), ("infer", infer))
            for name, action in group.items()
            if name in keep
        },
        options.rounds,
    )
    rows = []
    for name in keep:
        own = "textbook squareplus" if "squareplus" in name else "textbook softplus (nbd-paper)"
        cells = [name]
        for kind in ("train", "infer"):
            seconds = times[kind, name]
            cells += [
                f"{times[kind, own] / seconds:.2f}",
                f"{seconds / times[kind, 'mahalanobis']:.1f}",
                f"{seconds / times[kind, 'matrix products alone']:.2f}",
                f"{1e3 * seconds:.2f}",
            ]
        rows.append([*cells, f"{memory[name]:.1f}"])
    header = [
        "row pairs",
        "train: speed-up",
        "x Mahalanobis",
        "x products",
        "ms",
        "infer: speed-up",
        "x Mahalanobis",
        "x products",
        "ms",
        "peak MB",
    ]
    table(
        f"Row pairs, dim {DIM}, batch {n}, 2 x 128, {threads} thread(s); speed-up over the textbook form", header, rows
    )
    if "deep-div" in keep and "deep-div, looped" in keep:
        for kind in ("train", "infer"):
            print(
                f"deep-div batched over looped, {kind}: {times[kind, 'deep-div, looped'] / times[kind, 'deep-div']:.2f}"
            )


def pairwise_table(options: argparse.Namespace, threads: int) -> None:
    torch.manual_seed(0)
    n, m = 10_000, 1_000
    x, y = torch.randn(n, DIM), torch.randn(m, DIM)
    y[:500] = x[:500] + 1e-3 * torch.randn(500, DIM)  # near pairs to recompute
    mahalanobis = Mahalanobis(DIM, rank=128)
    left, right = torch.randn(n, DIM + 2), torch.randn(DIM + 2, m)
    projected_x, projected_y = torch.randn(n, 130), torch.randn(130, m)
    cases: dict[str, Action] = {
        "one product, dim + 2": lambda: torch.mm(left, right),
        "one product of rank 128 + 2": lambda: torch.mm(projected_x, projected_y),
        "mahalanobis, rank 128, refined": quiet(lambda: mahalanobis.pairwise(x, y)),
    }
    for name in ("nbd", "nbd-paper"):
        divergence = askew.make(name, DIM)
        potential = divergence.potential
        cases[f"phi of {name} at all points"] = quiet(lambda p=potential: (p(x), p(y), p.gradient(y)))
        cases[f"{name}, refined"] = quiet(lambda d=divergence: d.pairwise(x, y))
    times = measure(cases, max(5, options.rounds // 3))
    rows = []
    for name, seconds in times.items():
        cells = [
            name,
            f"{seconds / times['mahalanobis, rank 128, refined']:.2f}",
            "",
            f"{1e3 * seconds:.1f}",
            f"{peak_memory(cases[name]):.0f}",
        ]
        if name.startswith("nbd"):
            parts = times["one product, dim + 2"] + times[f"phi of {name.split(',')[0]} at all points"]
            cells[2] = f"{seconds / parts:.2f}"
        rows.append(cells)
    header = ["all pairs", "x Mahalanobis (rank 128)", "x (product + phi)", "ms", "peak MB"]
    table(
        f"pairwise {n} x {m}, dim {DIM}, 500 near pairs, {threads} thread(s); the result has {4 * n * m / 1e6:.0f} MB",
        header,
        rows,
    )


def all_pairs_step(divergence: Divergence, x: Tensor, weight: Tensor) -> Action:
    return step(lambda: divergence.pairwise(x, x) * weight, [*divergence.parameters(), x])


def all_pairs_step_table(options: argparse.Namespace, threads: int) -> None:
    torch.manual_seed(0)
    rows = []
    for batch in (128, 256, 512, 1024):
        x = torch.randn(batch, DIM, requires_grad=True)
        weight = torch.rand(batch, batch)
        cases: dict[str, Action] = {}
        members = {
            "mahalanobis": Mahalanobis(DIM, rank=128),
            "nbd": askew.make("nbd", DIM),
            "nbd-paper": askew.make("nbd-paper", DIM),
        }
        for name, divergence in members.items():
            cases[name] = all_pairs_step(divergence, x, weight)
        times = measure(cases, options.rounds)
        rows.append(
            [
                str(batch),
                *(f"{times[name] / times['mahalanobis']:.2f}" for name in ("nbd", "nbd-paper")),
                *(f"{1e3 * times[name]:.1f}" for name in members),
            ]
        )
    header = ["batch", "nbd / mahalanobis", "nbd-paper / mahalanobis", "mahalanobis ms", "nbd ms", "nbd-paper ms"]
    table(f"All-pairs training step (value and gradients of a batch against itself), {threads} thread(s)", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="interleaved rounds, the median of which counts")
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave out torch.compile")
    parser.add_argument("--only", help="only rows whose name contains this text")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    options = parser.parse_args()
    # Freed once, a large block makes the C library keep memory instead of returning it to the system at each
    # step; otherwise the textbook form pays page faults in some runs and not in others.
    del_me = torch.empty(31 << 20, dtype=torch.uint8)
    del del_me
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, medians of {options.rounds} interleaved rounds")
    for threads in dict.fromkeys(options.threads):
        torch.set_num_threads(threads)
        rows_table(options, threads)
        if options.only is None:
            pairwise_table(options, threads)
            all_pairs_step_table(options, threads)


if __name__ == "__main__":
    main()
