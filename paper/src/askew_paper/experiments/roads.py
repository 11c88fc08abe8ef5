"""Travel times in real road networks, which differ in the two directions, learned from landmarks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from askew_paper.data.graphs import make_graph
from askew_paper.data.roads import ROADS as NAMES
from askew_paper.data.roads import Network, load_road, road_graph
from askew_paper.experiment import MSE, Cell, Claim, Experiment, Outcome, Score, Value, grid
from askew_paper.experiments import landmarks
from askew_paper.experiments.landmarks import LEARNED, MRE, NORMS, PLAIN, R2, ROOTS, SIZES, SPEARMAN, score
from askew_paper.notes import read_notes

REFERENCES = ("mean", "best-symmetric")
METHODS = (*REFERENCES, "euclidean", *LEARNED)
QUASIMETRICS, BREGMAN = (*NORMS, "iqe", "mrn"), (*PLAIN, *ROOTS)
# A network that is made here, for the toy scale.
MADE = "made"
DIRECTION = Score("direction", "Faster direction predicted", lower_is_better=False)
# Differences of the two directions below this share of their sum are rounding.
ROUNDING = 1e-5
OURS: dict[str, Value] = {"epochs": 100, "batch": 256, "rates": (1e-3, 3e-3, 1e-2), "schedule": "linear"}
TRAINING = landmarks.TRAINING | {"paper": OURS | {"trial_epochs": 10, "widths": (256,), "out": 128}}


def options(scale: str, setting: str, method: str) -> dict[str, Value]:
    """Return what the result of a method depends on, apart from the network."""
    return SIZES[scale] if method in REFERENCES else SIZES[scale] | TRAINING[scale]


def cells(scale: str, seeds: int, networks: Iterable[str] | None = None) -> Iterator[Cell]:
    """Return the cells of road networks and all methods.

    Examples
    --------
    >>> [cell.method for cell in cells("quick", 1, ["Winnipeg"])][:2]
    ['mean', 'best-symmetric']
    """
    if networks is None:
        networks = (MADE,) if scale == "toy" else NAMES
    return grid("roads", scale, seeds, networks, METHODS, functools.partial(options, scale))


def small_network(side: int = 8, seed: int = 0) -> Network:
    """Return a small network like one of a TNTP file: a grid of streets, some of them one-way, and a few zones.

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
    """Return how often the faster of two directions is predicted, among pairs for which there is one.

    A prediction of equal times counts half: a symmetric one gets exactly 0.5.

    Examples
    --------
    >>> there, back = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.0])
    >>> direction(there, back, there, back), direction(there, back, there, there)
    (1.0, 0.5)
    """
    agreement = _sign(targets, reverse) * _sign(predicted, back)
    differing = agreement[_sign(targets, reverse) != 0]
    return float((1 + differing).mean() / 2) if differing.size else 0.5


def _sign(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    difference = first.astype(np.float64) - second
    return np.where(np.abs(difference) > ROUNDING * (np.abs(first) + np.abs(second)), np.sign(difference), 0.0)


def _graph(setting: str, seed: int) -> csr_array:
    return road_graph(small_network(seed=seed)) if setting == MADE else load_road(setting)


def run(cell: Cell) -> Outcome:
    """Learn the travel times of one network, of any name, by one method."""
    task = landmarks.task_of(cell, _graph, cell.setting, cell.seed, directed=True, reverse=True)
    if cell.method == "best-symmetric":
        there = back = np.stack([task.test_targets, task.test_reverse]).mean(0, dtype=np.float32)
        chosen: dict[str, Any] = {}
    else:
        (there, back), chosen = landmarks.predictions(cell, task, task.test, task.test.flip(1))
    faster = direction(task.test_targets, task.test_reverse, there, back)
    return Outcome({**score(task.test_targets, there), "direction": faster}, chosen=chosen)


NOTES = read_notes("roads")
ROADS = Experiment(
    name="roads",
    title="Travel times in real directed road networks, from the times to and from landmarks",
    makes=("table of road networks, not in the paper",),
    scores=(Score(MSE.name, "MSE of times with mean 1", lower_is_better=True, digits=4), MRE, R2, SPEARMAN, DIRECTION),
    seeds={"toy": 1, "quick": 1, "medium": 1, "paper": 5},
    minutes={"toy": 0.2, "quick": 5.0, "medium": 110.0, "paper": 500.0},
    cells=cells,
    run=run,
    needs=NOTES.needs,
    notes=NOTES.notes,
    claims=(
        Claim(
            NOTES.claim("asymmetric"), MSE.name, ("deep-div", *QUASIMETRICS, *BREGMAN), ("best-symmetric",), ours=True
        ),
        Claim(NOTES.claim("bregman"), MSE.name, BREGMAN, QUASIMETRICS, ours=True),
        Claim(NOTES.claim("drift"), MSE.name, ("drift-chosen",), QUASIMETRICS, ours=True),
    ),
)
