"""Travel times in real road networks, which are not the same in both directions, learned from landmarks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from askew_paper.data.graphs import make_graph
from askew_paper.data.roads import Network, load_road, road_graph, road_names
from askew_paper.experiment import MSE, Cell, Claim, Experiment, Outcome, Score, Value, grid
from askew_paper.experiments.landmarks import R2, SPEARMAN, Plan, Task, learn, make_task, predict, score

__all__ = ["ROADS", "Size", "cells", "direction", "small_network"]

METHODS = (
    "mean",
    "best-symmetric",
    "euclidean",
    "mahalanobis",
    "mahalanobis-norm",
    "deep-div",
    "deepnorm",
    "widenorm",
    "nbd-paper",
    "nbd",
    "bregman-sqrt",
    "bregman-gs",
    "iqe",
    "mrn",
)
QUASIMETRICS, BREGMAN = ("deepnorm", "widenorm", "iqe", "mrn"), ("nbd-paper", "nbd", "bregman-sqrt", "bregman-gs")
ASYMMETRIC = ("deep-div", *QUASIMETRICS, *BREGMAN)
# A network that is made here, for the toy scale.
MADE = "made"
DIRECTION = Score("direction", "Faster direction told", lower_is_better=False)
# Differences of the two directions below this share of their sum are rounding.
ROUNDING = 1e-5
NOISE = 0.2


@dataclass(frozen=True)
class Size:
    """How much of everything one scale takes."""

    networks: tuple[str, ...]
    train: int
    test: int
    landmarks: int
    distractors: int
    plan: Plan


SIZES = {
    "toy": Size(
        (MADE,),
        train=300,
        test=100,
        landmarks=4,
        distractors=4,
        plan=Plan(2, 50, (3e-3, 1e-2), "linear", trial_epochs=1, widths=(16,), out=8),
    ),
    "quick": Size(
        tuple(road_names()),
        train=12_000,
        test=4_000,
        landmarks=32,
        distractors=96,
        plan=Plan(10, 256, (3e-3, 1e-2), "linear", trial_epochs=2, widths=(256,), out=64),
    ),
    "paper": Size(
        tuple(road_names()),
        train=50_000,
        test=10_000,
        landmarks=32,
        distractors=96,
        plan=Plan(100, 256, (1e-3, 3e-3, 1e-2), "linear", trial_epochs=10, widths=(256,), out=128),
    ),
}


def options(scale: str, setting: str, method: str) -> dict[str, Value]:
    """Return what the result of a method depends on, beside the network."""
    size = SIZES[scale]
    found: dict[str, Value] = {
        "train": size.train,
        "test": size.test,
        "landmarks": size.landmarks,
        "noise": NOISE,
        "distractors": size.distractors,
    }
    return found if method in ("mean", "best-symmetric") else found | size.plan.options()


def cells(scale: str, seeds: int, networks: Iterable[str] | None = None) -> Iterator[Cell]:
    """Return the cells of road networks and all methods.

    Parameters
    ----------
    scale, seeds
        As of an :class:`~askew_paper.experiment.Experiment`.
    networks
        Names for :func:`askew_paper.data.graphs.load_road`; those of the scale by default.

    Examples
    --------
    >>> [cell.method for cell in cells("quick", 1, ["Winnipeg"])][:2]
    ['mean', 'best-symmetric']
    """
    wanted = SIZES[scale].networks if networks is None else networks
    return grid("roads", scale, seeds, wanted, METHODS, functools.partial(options, scale))


def small_network(side: int = 8, seed: int = 0) -> Network:
    """Return a small network in the form of a TNTP file: a grid of streets, some of them one-way, and a few zones.

    Parameters
    ----------
    side
        Crossings along each side, at least 3.
    seed
        Of travel times and of which streets are one-way.

    Examples
    --------
    >>> network = small_network()
    >>> network.nodes, network.first_thru_node
    (68, 5)
    """
    zones = 4
    links = make_graph("traffic", side, seed).tocoo()
    times = links.data * np.where(np.random.default_rng(seed).random(links.data.size) < 0.2, 10, 1)
    times[::17] = 0
    crossings = np.arange(zones) + zones + 1
    tails = np.concatenate([links.row + zones + 1, np.arange(zones) + 1, crossings])
    heads = np.concatenate([links.col + zones + 1, crossings, np.arange(zones) + 1])
    return Network(tails, heads, np.concatenate([times, np.zeros(2 * zones)]), side**2 + zones, zones + 1)


def direction(targets: NDArray[Any], reverse: NDArray[Any], predicted: NDArray[Any], back: NDArray[Any]) -> float:
    """Return how often the faster of two directions is told, among pairs for which there is one.

    A prediction of equal times counts as half: a symmetric one gets exactly 0.5.

    Parameters
    ----------
    targets, reverse
        Travel times there and back, ``(m,)``.
    predicted, back
        Predictions of them.

    Examples
    --------
    >>> there, back = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.0])
    >>> direction(there, back, there, back), direction(there, back, there, there)
    (1.0, 0.5)
    """
    true, found = _sign(targets, reverse), _sign(predicted, back)
    some = true != 0
    return float((1 + true[some] * found[some]).mean() / 2) if some.any() else 0.5


def _sign(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    difference = first.astype(np.float64) - second
    return np.where(np.abs(difference) > ROUNDING * (np.abs(first) + np.abs(second)), np.sign(difference), 0.0)


def _graph(setting: str, seed: int) -> csr_array:
    return road_graph(small_network(seed=seed)) if setting == MADE else load_road(setting)


# The methods of one network come one after the other.
@functools.lru_cache(maxsize=1)
def _task(setting: str, seed: int, sizes: tuple[tuple[str, Any], ...]) -> Task:
    return make_task(_graph(setting, seed), directed=True, reverse=True, seed=seed, **dict(sizes))


def run(cell: Cell) -> Outcome:
    """Learn the travel times of one network, of any name, by one method."""
    names = ("train", "test", "landmarks", "noise", "distractors")
    task = _task(cell.setting, cell.seed, tuple((name, cell[name]) for name in names))
    if task.test_reverse is None:
        raise RuntimeError("a task of roads has both directions")
    chosen: dict[str, Any] = {}
    if cell.method == "mean":
        there = back = np.full_like(task.test_targets, task.train_targets.mean())
    elif cell.method == "best-symmetric":
        there = back = np.mean([task.test_targets, task.test_reverse], 0, dtype=np.float32)
    else:
        learned = learn(cell.method, task, Plan.of(cell), cell.seed)
        chosen = learned.chosen
        there, back = (predict(learned.model, task.features, pairs) for pairs in (task.test, task.test.flip(1)))
    told = direction(task.test_targets, task.test_reverse, there, back)
    return Outcome({**score(task.test_targets, there), "direction": told}, chosen=chosen)


ROADS = Experiment(
    name="roads",
    title="Travel times in real directed road networks, from the times to and from landmarks",
    makes=("table of road networks, not in the paper",),
    scores=(Score(MSE.name, "MSE of times with mean 1", lower_is_better=True, digits=4), R2, SPEARMAN, DIRECTION),
    seeds={"toy": 1, "quick": 1, "paper": 5},
    minutes={"toy": 0.2, "quick": 5.0, "paper": 500.0},
    cells=cells,
    run=run,
    needs=(
        "the files berlin-center_net.tntp, ChicagoRegional_net.tntp and Anaheim_net.tntp in a folder graphs of the "
        "folder that the environment variable ASKEW_DATA names",
    ),
    claims=(
        Claim(
            "An asymmetric method is ahead of the best symmetric prediction", MSE.name, ASYMMETRIC, ("best-symmetric",)
        ),
        Claim("NBD or a root of it is ahead of Deepnorm, Widenorm, IQE and MRN", MSE.name, BREGMAN, QUASIMETRICS),
    ),
    notes=(
        "Free flow times between crossings; zones and the links at them are left out, links without time get a "
        "thousandth of the median, and the largest part is kept in which all crossings reach each other.",
        "A crossing is known by the times to and from 32 landmarks that are far from each other, all scaled alike, "
        "with noise of deviation 0.2 and 96 random features, drawn once for each crossing. An encoder with one "
        "hidden layer, the same for both ends, and a divergence are learned together by the squared error.",
        "best-symmetric knows the truth and predicts the mean of the times there and back: no symmetric distance "
        "has a smaller squared error over both directions. mean predicts the mean of the training times; "
        "its rank correlation counts as 0.",
        "Faster direction told: among test pairs whose times there and back differ, how often the larger of the "
        "two predictions is the larger time; what is symmetric gets 0.5.",
        "quick: 12,000 training pairs, 10 epochs, an encoder with 64 outputs. paper: 50,000 pairs, 100 epochs, 128 "
        "outputs; the paper itself has no roads. The learning rate is the best of some after a few epochs on a "
        "tenth of the training pairs, which is held out; the weights of the epoch that is best there are kept. Which "
        "rates to try was found on a random graph (traffic of shortest-path, seed 77), not on roads.",
        "A network with fewer pairs is taken whole, in the same proportion. Other networks of the same "
        "collection can be run by their names.",
    ),
)
