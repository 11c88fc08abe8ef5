"""Time of training, of inference and of all pairs, relative to the Mahalanobis distance: the paper's table of times."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import joblib
import torch
from torch import Tensor, nn

from askew.checks import REAL
from askew.divergences import Divergence, make
from askew.divergences.max_affine import MaxOfPieces
from askew.losses import Regression
from askew_paper.experiment import RATIO, Cell, Claim, Experiment, Outcome, Score
from askew_paper.experiments.regression import plain
from askew_paper.published import Published, published

__all__ = ["SETTINGS", "TIMING", "bench", "interleaved", "training_step"]

DIM = 20
REFERENCE = "mahalanobis"
SETTINGS = ("training", "inference", "pairwise")
METHODS = (
    "mahalanobis",
    "deep-div",
    "deep-div-looped",
    "deepnorm",
    "widenorm",
    "iqe",
    "mrn",
    "nbd-paper",
    "nbd-plain",
    "nbd",
)
THREADS = ("one", "all")
# Seconds after which a slow method has been timed often enough, if it was at least so often.
PATIENCE, FEWEST = 8.0, 5
# Seconds of calls that are not timed before one that is.
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
    """Return what is timed under a name."""
    if method == "deep-div-looped":
        return _LoopedDeepDiv(DIM)
    return plain(DIM) if method == "nbd-plain" else make(method, DIM)


def training_step(model: Divergence, x: Tensor, y: Tensor, targets: Tensor) -> Action:
    """Return a function that takes one step of Adam on the squared error of a batch.

    Parameters
    ----------
    model
        Trained in place.
    x, y, targets
        The batch, the same in each step.

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


def _action(model: Divergence, setting: str, batch: int, dim: int = DIM) -> Action:
    """Return what is timed: a step of training, D of a batch of pairs, or D of all pairs of two batches."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, batch, dim, generator=generator)
    if model.domain != REAL:  # what is defined for positive numbers only
        x, y = x.abs() + 0.1, y.abs() + 0.1
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

    What else the machine does then slows all of them, so that ratios hold where times do not. In its turn an action is
    called for 20 milliseconds, at least once, before the call that is timed: after another action that took
    gigabytes, the first calls of a quick one pay for that.

    Parameters
    ----------
    actions
        What is timed.
    rounds
        How often, at most.
    patience
        Seconds after which no further round is begun, once there are five.
    clock
        Gives the time.

    Examples
    --------
    >>> times = interleaved([lambda: None, lambda: None], rounds=3)
    >>> [len(some) for some in times]
    [3, 3]
    """
    times: list[list[float]] = [[] for _ in actions]
    collecting = gc.isenabled()
    gc.disable()  # a collection would be counted for whoever is at work then
    try:
        begin = clock()
        for number in range(rounds):
            if number >= FEWEST and clock() - begin > patience:
                break
            for action, some in zip(actions, times, strict=True):
                warm = clock() + WARMING
                action()
                while clock() < warm:
                    action()
                start = clock()
                action()
                some.append(clock() - start)
    finally:
        if collecting:
            gc.enable()
    return times


def bench(methods: Sequence[str], dim: int = DIM, batch: int = 1000, rounds: int = 30) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of divergences on this machine, all of them timed in turn.

    Parameters
    ----------
    methods
        Names of :func:`askew.names`.
    dim
        Number of features.
    batch
        Points on each side: pairs of a training step and of an evaluation, and rows and columns of all pairs.
    rounds
        How often, at most.

    Returns
    -------
    dict
        For each of :data:`SETTINGS`, the time of each method. Training is missing where there is nothing to learn.

    Examples
    --------
    >>> times = bench(["euclidean", "mahalanobis"], dim=3, batch=10, rounds=2)
    >>> list(times), list(times["training"])
    (['training', 'inference', 'pairwise'], ['mahalanobis'])
    """
    models = {method: make(method, dim) for method in methods}
    found = {}
    for setting in SETTINGS:
        timed = {
            name: model
            for name, model in models.items()
            if setting != "training" or any(p.requires_grad for p in model.parameters())
        }
        actions = [_action(model, setting, batch, dim) for model in timed.values()]
        times = interleaved(actions, rounds)
        found[setting] = {name: 1e3 * statistics.median(some) for name, some in zip(timed, times, strict=True)}
    return found


@contextlib.contextmanager
def _threads(which: str) -> Iterator[int]:
    """Compute on one thread, or on as many as there are cores; put the number back afterwards."""
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
    for seed in range(seeds):
        for setting in SETTINGS:
            for method in METHODS:
                for threads in THREADS if scale != "toy" else THREADS[:1]:
                    work = (("batch", batch), ("dim", DIM), ("rounds", rounds))
                    options = (*work, ("threads", threads), ("warm", WARMING))
                    yield Cell("timing", setting, method, seed, scale, options)


def run(cell: Cell) -> Outcome:
    """Time one method and the Mahalanobis distance in turn."""
    with _threads(cell["threads"]) as threads:
        actions = [_action(_model(method), cell.setting, cell["batch"]) for method in (cell.method, REFERENCE)]
        # Of one thread the processor's time is the same, but for what others on the machine take away.
        clock = time.process_time if cell["threads"] == "one" else time.perf_counter
        own, reference = interleaved(actions, cell["rounds"], clock=clock)
    # Rounds are pairs, of which the median ratio is less moved by a disturbance than the ratio of medians.
    ratio = statistics.median(one / other for one, other in zip(own, reference, strict=True))
    found = {"ratio": ratio, "milliseconds": 1e3 * statistics.median(own)}
    return Outcome(found, chosen={"rounds": len(own), "threads": threads})


def _ratios() -> tuple[Published, ...]:
    """Return the paper's times relative to its Mahalanobis distance: it gives no unit."""
    times = published("timing")
    units = {entry.setting: entry.mean for entry in times if entry.method == REFERENCE}
    return tuple(
        dataclasses.replace(entry, score=RATIO.name, mean=entry.mean / units[entry.setting], spread=None)
        for entry in times
    )


TIMING = Experiment(
    "timing",
    "Time of training, inference and all pairs, relative to Mahalanobis",
    ("table tab:runtime",),
    (RATIO, MILLISECONDS),
    seeds={"toy": 1, "quick": 1, "paper": 5},
    minutes={"toy": 0.1, "quick": 3.0, "paper": 15.0},
    cells=cells,
    run=run,
    published=_ratios(),
    against={"nbd-paper": "nbd", "nbd-plain": "nbd", "deep-div-looped": "deep-div"},
    claims=(
        Claim(
            "Deep-div as the paper describes it is slower to train than NBD",
            RATIO.name,
            ("nbd",),
            ("deep-div-looped",),
            settings=("training",),
            by="threads",
        ),
        Claim(
            "Deep-div in one product is slower to train than NBD",
            RATIO.name,
            ("nbd",),
            ("deep-div",),
            settings=("training",),
            by="threads",
        ),
        Claim(
            "All pairs of NBD take less than half of the time of Deepnorm and Widenorm",
            RATIO.name,
            ("nbd",),
            ("deepnorm", "widenorm"),
            factor=0.5,
            settings=("pairwise",),
            by="threads",
        ),
    ),
    incomparable=SETTINGS,
    alone=True,
    notes=(
        "20 features. training: one step of Adam on a batch of 1000 pairs; inference: D of 1000 pairs; pairwise: D "
        "of 1000 x 1000 pairs. Each cell times its method and Mahalanobis in turn, 30 times or for 8 seconds, each "
        "time after 20 milliseconds of calls that are not timed; the ratio is the median over these rounds. One thread "
        "is measured by processor time, all threads by the clock, with nothing else on the machine. Of methods that "
        "take seconds for all pairs there are five rounds only, and ratios in the hundreds are rough.",
        "The paper gives neither unit nor machine, and its training is an epoch with what belongs to it besides "
        "steps; only its ratios are shown. Ours are of the steps alone on a CPU, where a step of Mahalanobis costs "
        "almost nothing: hence the larger ratios. Compare the methods within a column with each other, not with the "
        "paper's.",
        "deep-div-looped computes its 50 networks one after the other, as the paper describes it; deep-div all "
        "of them in one product.",
    ),
)
