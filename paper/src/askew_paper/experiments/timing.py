"""Running time of training, inference and all pairs, relative to the Mahalanobis distance."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import joblib
import torch
from torch import Tensor, nn

from askew.divergences import Divergence, make
from askew.divergences.max_affine import MaxOfPieces
from askew.losses import Regression
from askew_paper.experiment import RATIO, SCALES, Cell, Claim, Experiment, Outcome, Score
from askew_paper.experiments.regression import plain
from askew_paper.notes import read_notes
from askew_paper.published import Published, published

DIM = 20
REFERENCE = "mahalanobis"
SETTINGS = ("training", "inference", "pairwise")
QUASIMETRICS, BREGMAN = ("deepnorm", "widenorm", "iqe", "mrn"), ("nbd-paper", "nbd-plain", "nbd")
METHODS = ("mahalanobis", "deep-div", "deep-div-looped", *QUASIMETRICS, *BREGMAN)
THREADS = ("one", "all")
# Seconds after which no further round is started, and the least number of rounds.
PATIENCE, FEWEST = 8.0, 5
# Seconds of calls before each one that is timed.
WARMING = 0.02
MILLISECONDS = Score("milliseconds", "Milliseconds", lower_is_better=True, digits=3)

Action = Callable[[], object]


class _LoopedDeepDiv(MaxOfPieces):
    """Deep-div as the paper describes it: one small network after the other."""

    def __init__(self, dim: int, pieces: int = 50, hidden: int = 32) -> None:
        super().__init__(dim, pieces)
        networks = (nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1)) for _ in range(pieces))
        self.networks = nn.ModuleList(networks)

    def _pieces(self, x: Tensor) -> Tensor:
        return torch.cat([network(x) for network in self.networks], -1)


def _model(method: str) -> Divergence:
    if method == "deep-div-looped":
        return _LoopedDeepDiv(DIM)
    return plain(DIM) if method == "nbd-plain" else make(method, DIM)


def training_step(model: Divergence, x: Tensor, y: Tensor, targets: Tensor) -> Action:
    """Return a function that takes one step of Adam on the squared error of a batch, the same in each step.

    Examples
    --------
    >>> model, points = make("mahalanobis", 3), torch.randn(2, 10, 3)
    >>> before = model.weight.clone()
    >>> training_step(model, points[0], points[1], torch.ones(10))()
    >>> bool((model.weight != before).any())
    True
    """
    loss = Regression()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model(x, y), targets).backward()
        optimizer.step()

    return step


def _action(model: Divergence, setting: str, batch: int) -> Action:
    """Return the function to time: a step of training, D of a batch of pairs, or D of all pairs of two batches."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, batch, DIM, generator=generator)
    if setting == "training":
        return training_step(model, x, y, (x - y).square().sum(-1))
    function = model if setting == "inference" else model.pairwise

    def evaluate() -> Tensor:
        with torch.no_grad():
            result: Tensor = function(x, y)
        return result

    return evaluate


def interleaved(
    actions: Sequence[Action], rounds: int, patience: float = PATIENCE, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Return the seconds that each action took in each round, the actions in turn within a round.

    Other work on the machine slows all of them down, so ratios are reliable where times are not. Each action is called
    for 20 milliseconds, at least once, before the call that is timed: after an action that took gigabytes, the first
    calls of a quick one would pay for that.

    Parameters
    ----------
    actions
        Functions to time.
    rounds
        Number of rounds, at most.
    patience
        Seconds after which no further round is started, once there are five.
    clock
        Returns the time in seconds.

    Examples
    --------
    >>> times = interleaved([lambda: None, lambda: None], rounds=3)
    >>> [len(seconds) for seconds in times]
    [3, 3]
    """
    times: list[list[float]] = [[] for _ in actions]
    collecting = gc.isenabled()
    gc.disable()  # a collection would be counted for the action that happens to run
    try:
        begin = clock()
        for number in range(rounds):
            if number >= FEWEST and clock() - begin > patience:
                break
            for action, seconds in zip(actions, times, strict=True):
                warm = clock() + WARMING
                action()
                while clock() < warm:
                    action()
                start = clock()
                action()
                seconds.append(clock() - start)
    finally:
        if collecting:
            gc.enable()
    return times


@contextlib.contextmanager
def _threads(which: str) -> Iterator[int]:
    """Compute on one thread or on all cores; restore the number of threads afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if which == "one" else joblib.cpu_count())
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------------- the experiment


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Yield a cell for every repetition, number of threads, kind of work and method."""
    batch, rounds = (50, 3) if scale == "toy" else (1000, 30)
    threads = THREADS if scale != "toy" else THREADS[:1]
    for seed, setting, method, number in itertools.product(range(seeds), SETTINGS, METHODS, threads):
        options = {"batch": batch, "dim": DIM, "rounds": rounds, "threads": number, "warm": WARMING}
        yield Cell("timing", setting, method, seed, scale, tuple(options.items()))


def run(cell: Cell) -> Outcome:
    """Time one method and the Mahalanobis distance in turn."""
    with _threads(cell["threads"]) as threads:
        actions = [_action(_model(method), cell.setting, cell["batch"]) for method in (cell.method, REFERENCE)]
        # With one thread, processor time is not affected by other processes.
        clock = time.process_time if cell["threads"] == "one" else time.perf_counter
        seconds, reference = interleaved(actions, cell["rounds"], clock=clock)
    # A disturbance moves the median of the ratios of rounds less than the ratio of medians.
    ratio = statistics.median(one / other for one, other in zip(seconds, reference, strict=True))
    scores = {"ratio": ratio, "milliseconds": 1e3 * statistics.median(seconds)}
    return Outcome(scores, chosen={"rounds": len(seconds), "threads": threads})


def _ratios() -> tuple[Published, ...]:
    """Return the paper's times relative to its Mahalanobis distance: it gives no unit."""
    times = published("timing")
    units = {entry.setting: entry.mean for entry in times if entry.method == REFERENCE}
    return tuple(
        dataclasses.replace(entry, score=RATIO.name, mean=entry.mean / units[entry.setting], spread=None)
        for entry in times
    )


NOTES = read_notes("timing")
TIMING = Experiment(
    "timing",
    "Time of training, inference and all pairs, relative to Mahalanobis",
    ("table tab:runtime",),
    (RATIO, MILLISECONDS),
    seeds={"toy": 1, "quick": 1, "paper": 5},
    minutes={"toy": 0.1, "quick": 3.0, "paper": 15.0},
    cells=cells,
    run=run,
    notes=NOTES.notes,
    published=_ratios(),
    against={"nbd-paper": "nbd", "nbd-plain": "nbd", "deep-div-looped": "deep-div"},
    claims=tuple(
        Claim(NOTES.claim(key), RATIO.name, (nbd,), behind, factor=factor, settings=(setting,), by="threads", ours=ours)
        for key, nbd, behind, factor, setting, ours in (
            ("looped", "nbd-paper", ("deep-div-looped",), 0.5, "training", False),
            ("batched", "nbd", ("deep-div",), 1.0, "training", True),
            ("pairwise", "nbd", ("deepnorm", "widenorm"), 0.5, "pairwise", False),
        )
    ),
    incomparable=dict.fromkeys(SETTINGS, SCALES),
    alone=True,
)
