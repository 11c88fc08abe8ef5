"""Every number in the tables of "Neural Bregman Divergences for Distance Learning" (ICLR 2023), as data.

Link prediction, which that paper does not have, is compared with table 2 of "Shadow Cones: A Generalized Framework for
Partial Order Embeddings" (ICLR 2024).

- Values are as printed. Methods have their names in the catalogue: NBD is ``nbd``, and ``nbd-paper`` is compared
  with it as well. The paper does not say where its Mahalanobis distance is squared: it is ``mahalanobis`` everywhere.
- The tables of UCI data have the names of :func:`askew_paper.data.table_names`.
- BregMNIST, BregCIFAR and the overlap task have only figures, and the paper's first table has no numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from askew import checks

__all__ = ["GRAPHS", "METHODS", "PUBLISHED", "TABLES", "PaperTable", "Published", "PublishedGraph", "published"]


@dataclass(frozen=True)
class Published:
    """One cell of a table of the paper.

    Attributes
    ----------
    table : str
        The table, a key of `TABLES`.
    setting : str
        The data set or target; in the regression ``"target/correlation"``, in the timing the measured operation.
    method, label : str
        The name of the method in the catalogue and in the paper.
    score : str
        The measured quantity.
    mean : float
        The value.
    spread : float or None
        The standard deviation over the runs; None where the table has none. No table has confidence intervals.
    """

    table: str
    setting: str
    method: str
    score: str
    mean: float
    spread: float | None
    label: str


@dataclass(frozen=True)
class PaperTable:
    """What holds for all numbers of one table: its LaTeX label or a name of ours, and the experiment it belongs to.

    The unit of the means, the number of runs by the caption or else by the appendix ("Experimental procedure"), and
    the decimals of the means as printed. Spreads have two decimals.
    """

    name: str
    experiment: str
    unit: str
    runs: int
    digits: int


@dataclass(frozen=True)
class PublishedGraph:
    """One row of the table of graphs (``tab:shortest_path_datasets``).

    Attributes
    ----------
    setting : str
        The graph, as in `Published.setting`.
    asymmetric : bool
        Whether the two directions of an edge differ.
    sides : tuple of int
        Nodes along each dimension of the grid.
    weights : tuple of float
        First, second and last of the equally spaced values that weights are drawn from, or, where the graph is
        ``sampled``, the means of the normal distributions that they are drawn from.
    sampled : bool
        Whether the weights of both directions are drawn from such a normal distribution.
    details : str
        The rest of the row.
    """

    setting: str
    asymmetric: bool
    sides: tuple[int, ...]
    weights: tuple[float, float, float]
    sampled: bool
    details: str


SHADOW_CONES = "Shadow Cones, table 2"
TABLES: dict[str, PaperTable] = {
    table.name: table
    for table in (
        PaperTable("tab:distr", "clustering", "fraction", runs=10, digits=3),
        PaperTable("tab:ranking-full", "ranking", "fraction", runs=20, digits=3),
        PaperTable("tab:ranking", "ranking", "fraction", runs=20, digits=3),
        PaperTable("tbl:sim_errors_correlation", "regression", "unit of the target", runs=20, digits=2),
        # The LaTeX has no label.
        PaperTable("tab:deep-metric", "deep-metric", "percent", runs=5, digits=1),
        PaperTable("tab:semantic", "semantic", "squared unit of the target", runs=5, digits=2),
        # Neither caption nor text names the loss or the scale of the distances.
        PaperTable("tbl:short_path_results", "shortest-path", "not stated", runs=5, digits=2),
        # Training is per epoch; the caption gives no unit of time, so only ratios can be compared.
        PaperTable("tab:runtime", "timing", "not stated", runs=30, digits=2),
        # Of Shadow Cones; the number of runs is not stated.
        PaperTable(SHADOW_CONES, "closure", "percent", runs=1, digits=1),
    )
}

METHODS = {
    "NBD": "nbd",
    "Deep-div": "deep-div",
    "PBDL": "pbdl",
    "Deepnorm": "deepnorm",
    "Widenorm": "widenorm",
    "Mahalanobis": "mahalanobis",
    "Euclidean": "euclidean",
    "Bregman-sqrt": "bregman-sqrt",
    "Bregman-GS": "bregman-gs",
}
# Methods that others have published and we do not run.
OTHERS = {
    "GBC-box": "gbc-box",
    "VBC-box": "vbc-box",
    "Entailment Cone": "entailment-cone",
    "Umbral-half-space": "umbral-half-space",
    "Umbral-Poincaré-ball": "umbral-ball",
    "Penumbral-half-space": "penumbral-half-space",
    "Penumbral-Poincaré-ball": "penumbral-ball",
}

_Figure = float | tuple[float, float]  # a mean, or a mean and its spread


def _cells(
    table: str, columns: Sequence[tuple[str, str]], rows: Mapping[str, Sequence[_Figure]]
) -> tuple[Published, ...]:
    """Return the cells of a table whose columns are pairs of setting and score and whose rows are methods."""
    cells = []
    for label, figures in rows.items():
        for (setting, score), figure in zip(columns, figures, strict=True):
            mean, spread = figure if isinstance(figure, tuple) else (figure, None)
            cells.append(Published(table, setting, (METHODS | OTHERS)[label], score, mean, spread, label))
    return tuple(cells)


_DISTR = _cells(
    "tab:distr",
    [(setting, score) for setting in ("exponential", "gaussian", "multinomial") for score in ("purity", "rand")],
    {
        "NBD": ((0.735, 0.08), (0.830, 0.03), (0.913, 0.05), (0.938, 0.03), (0.921, 0.02), (0.939, 0.01)),
        "Deep-div": ((0.665, 0.12), (0.788, 0.08), (0.867, 0.12), (0.910, 0.07), (0.876, 0.08), (0.919, 0.04)),
        "Euclidean": ((0.365, 0.02), (0.615, 0.02), (0.782, 0.11), (0.869, 0.05), (0.846, 0.09), (0.900, 0.05)),
        "Mahalanobis": ((0.452, 0.05), (0.697, 0.02), (0.908, 0.06), (0.935, 0.03), (0.894, 0.06), (0.926, 0.03)),
        "PBDL": ((0.718, 0.08), (0.830, 0.04), (0.806, 0.14), (0.874, 0.09), (0.833, 0.08), (0.895, 0.04)),
    },
)


_UCI: dict[str, dict[str, Sequence[_Figure]]] = {
    "abalone": {
        "Deep-div": ((0.281, 0.01), (0.645, 0.02), (0.377, 0.02), (0.660, 0.04)),
        "Euclidean": ((0.301, 0.01), (0.666, 0.01), (0.422, 0.03), (0.750, 0.01)),
        "Mahalanobis": ((0.310, 0.01), (0.677, 0.01), (0.419, 0.02), (0.750, 0.01)),
        "NBD": ((0.316, 0.01), (0.682, 0.01), (0.432, 0.03), (0.750, 0.01)),
        "PBDL": ((0.307, 0.01), (0.659, 0.01), (0.386, 0.02), (0.735, 0.02)),
    },
    "balance": {
        "Deep-div": ((0.804, 0.03), (0.859, 0.02), (0.869, 0.02), (0.828, 0.03)),
        "Euclidean": ((0.611, 0.01), (0.666, 0.01), (0.633, 0.06), (0.568, 0.04)),
        "Mahalanobis": ((0.822, 0.01), (0.854, 0.01), (0.851, 0.06), (0.761, 0.05)),
        "NBD": ((0.887, 0.01), (0.915, 0.01), (0.898, 0.02), (0.872, 0.03)),
        "PBDL": ((0.836, 0.02), (0.855, 0.02), (0.872, 0.02), (0.814, 0.03)),
    },
    "car": {
        "Deep-div": ((0.787, 0.01), (0.757, 0.01), (0.852, 0.04), (0.750, 0.04)),
        "Euclidean": ((0.681, 0.00), (0.589, 0.00), (0.704, 0.02), (0.523, 0.03)),
        "Mahalanobis": ((0.787, 0.01), (0.752, 0.01), (0.778, 0.02), (0.654, 0.03)),
        "NBD": ((0.820, 0.01), (0.803, 0.01), (0.860, 0.01), (0.758, 0.02)),
        "PBDL": ((0.798, 0.01), (0.775, 0.01), (0.854, 0.01), (0.750, 0.02)),
    },
    "iris": {
        "Deep-div": ((0.945, 0.03), (0.967, 0.02), (0.811, 0.16), (0.820, 0.16)),
        "Euclidean": ((0.827, 0.02), (0.897, 0.01), (0.820, 0.07), (0.828, 0.05)),
        "Mahalanobis": ((0.946, 0.03), (0.973, 0.01), (0.884, 0.12), (0.879, 0.11)),
        "NBD": ((0.957, 0.02), (0.977, 0.01), (0.909, 0.10), (0.902, 0.10)),
        "PBDL": ((0.943, 0.03), (0.967, 0.02), (0.889, 0.14), (0.888, 0.13)),
    },
    "transfusion": {
        "Deep-div": ((0.648, 0.01), (0.525, 0.02), (0.756, 0.03), (0.621, 0.04)),
        "Euclidean": ((0.666, 0.01), (0.536, 0.01), (0.748, 0.03), (0.563, 0.04)),
        "Mahalanobis": ((0.680, 0.01), (0.570, 0.01), (0.750, 0.03), (0.543, 0.05)),
        "NBD": ((0.695, 0.01), (0.603, 0.01), (0.756, 0.03), (0.600, 0.04)),
        "PBDL": ((0.637, 0.01), (0.504, 0.01), (0.748, 0.03), (0.622, 0.03)),
    },
    "wine": {
        "Deep-div": ((0.983, 0.02), (0.987, 0.01), (0.953, 0.08), (0.947, 0.08)),
        "Euclidean": ((0.844, 0.02), (0.884, 0.02), (0.902, 0.07), (0.887, 0.06)),
        "Mahalanobis": ((0.949, 0.02), (0.970, 0.01), (0.944, 0.10), (0.940, 0.09)),
        "NBD": ((0.969, 0.02), (0.980, 0.01), (0.960, 0.05), (0.948, 0.06)),
        "PBDL": ((0.978, 0.02), (0.982, 0.01), (0.820, 0.14), (0.823, 0.12)),
    },
}
_RANKING_FULL = tuple(
    cell
    for setting, rows in _UCI.items()
    for cell in _cells("tab:ranking-full", [(setting, score) for score in ("map", "auc", "purity", "rand")], rows)
)
# The table of the main text has the means of four of the six data sets.
_RANKING = tuple(
    dataclasses.replace(cell, table="tab:ranking", spread=None)
    for cell in _RANKING_FULL
    if cell.setting in ("abalone", "balance", "car", "iris")
)

_REGRESSION = _cells(
    "tbl:sim_errors_correlation",
    [
        (f"{target}/{correlation}", "mae")
        for target in ("euclidean", "mahalanobis", "xlogx", "kl")
        for correlation in ("none", "med", "high")
    ],
    {
        "NBD": (0.17, 0.15, 0.16, 0.16, 0.18, 0.20, 0.52, 0.54, 0.57, 0.19, 0.19, 0.19),
        "Deep-div": (7.78, 7.81, 7.84, 17.92, 12.26, 14.15, 2.59, 2.67, 2.70, 0.44, 0.50, 0.51),
        "Deepnorm": (3.56, 3.97, 4.15, 7.70, 5.97, 7.66, 1.59, 1.74, 1.79, 0.30, 0.28, 0.28),
        "Widenorm": (3.56, 3.99, 4.12, 7.73, 6.01, 7.60, 1.49, 1.48, 1.48, 0.30, 0.28, 0.28),
        "Mahalanobis": (0.00, 0.03, 0.05, 0.02, 0.04, 0.09, 1.45, 1.67, 1.72, 0.23, 0.22, 0.22),
    },
)

_DEEP_METRIC = _cells(
    "tab:deep-metric",
    [(setting, "map@10") for setting in ("cifar10", "stl10", "svhn")],
    {
        "NBD": (95.6, 95.0, 96.9),
        "Deep-div": (93.3, 92.3, 96.0),
        "Deepnorm": (95.0, 95.0, 96.9),
        "Widenorm": (95.6, 95.1, 96.9),
        "Euclidean": (95.0, 95.0, 96.9),
    },
)

_SEMANTIC = _cells(
    "tab:semantic",
    [("same", "mse"), ("unseen", "mse")],
    {
        "NBD": (0.04, 3.52),
        "Deep-div": (0.10, 4.13),
        "Deepnorm": (1.23, 4.18),
        "Widenorm": (1.39, 4.50),
        "Mahalanobis": (2.00, 4.56),
    },
)

_SHORTEST_PATH = _cells(
    "tbl:short_path_results",
    [
        (setting, score)
        for setting in ("3d", "3dd", "octagon", "taxi", "traffic")
        for score in ("train-loss", "test-loss")
    ],
    {
        "NBD": (4.34, 33.49, 19.91, 337.59, 4.67, 25.32, 3.11, 66.27, 2.53, 12.03),
        "Deepnorm": (4.97, 22.44, 34.40, 275.99, 4.81, 15.19, 1.52, 20.31, 1.76, 5.27),
        "Mahalanobis": (4.45, 30.90, 24.99, 267.18, 6.82, 44.30, 1.31, 18.32, 1.47, 5.60),
        "Deep-div": (695.97, 930.57, 589.13, 806.14, 879.94, 1046.08, 489.80, 625.16, 399.14, 618.94),
        "Widenorm": (4.49, 27.92, 25.76, 253.65, 5.17, 23.46, 1.18, 16.20, 1.44, 5.21),
        "Bregman-sqrt": (5.94, 27.59, 27.70, 266.25, 8.62, 40.18, 1.57, 19.02, 1.63, 5.23),
        "Bregman-GS": (4.50, 30.51, 23.78, 266.91, 7.26, 43.13, 1.17, 16.71, 1.55, 5.49),
    },
)

_RUNTIME = _cells(
    "tab:runtime",
    [(setting, "time") for setting in ("training", "inference", "pairwise")],
    {
        "NBD": ((0.73, 0.08), (0.10, 0.03), (0.52, 0.06)),
        "Deep-div": ((1.63, 0.11), (0.12, 0.02), (0.59, 0.03)),
        "Deepnorm": ((0.81, 0.07), (0.09, 0.02), (4.53, 0.03)),
        "Widenorm": ((0.52, 0.04), (0.08, 0.02), (2.61, 0.03)),
        "Mahalanobis": ((0.46, 0.03), (0.08, 0.02), (0.40, 0.03)),
    },
)

_CLOSURE = _cells(
    SHADOW_CONES,
    [(f"d={dim}/{share}%", "f1") for dim in (2, 5) for share in (0, 10, 25, 50, 90)],
    {
        "GBC-box": (23.4, 25.0, 23.7, 43.1, 48.2, 35.8, 60.1, 66.8, 83.8, 97.6),
        "VBC-box": (20.1, 26.1, 31.0, 33.3, 34.7, 30.9, 43.1, 58.6, 74.9, 69.3),
        "Entailment Cone": (54.4, 61.0, 71.0, 66.5, 73.1, 56.3, 81.0, 84.1, 83.6, 82.9),
        "Umbral-half-space": (57.7, 73.7, 77.4, 80.3, 79.0, 69.4, 81.1, 83.7, 88.5, 91.8),
        "Umbral-Poincaré-ball": (44.6, 58.9, 60.5, 65.3, 63.6, 62.4, 67.4, 81.4, 81.9, 92.2),
        "Penumbral-half-space": (52.8, 74.1, 70.9, 72.3, 76.0, 67.8, 82.0, 83.5, 87.6, 89.9),
        "Penumbral-Poincaré-ball": (44.6, 60.8, 62.7, 68.4, 67.9, 60.8, 69.5, 78.2, 84.4, 92.6),
    },
)

PUBLISHED: dict[str, tuple[Published, ...]] = {
    "clustering": _DISTR,
    "ranking": _RANKING_FULL + _RANKING,
    "regression": _REGRESSION,
    "timing": _RUNTIME,
    "bregmnist": (),
    "bregcifar": (),
    "deep-metric": _DEEP_METRIC,
    "semantic": _SEMANTIC,
    "overlap": (),
    "shortest-path": _SHORTEST_PATH,
    "closure": _CLOSURE,
}

_WEIGHTS = (0.01, 0.02, 1.00)

GRAPHS = (
    PublishedGraph("3d", False, (50, 50, 50), _WEIGHTS, False, "edges wrap around"),
    PublishedGraph("taxi", False, (25, 25, 25, 25), _WEIGHTS, False, "two objects on a 2d grid, no wrap"),
    PublishedGraph("3dd", True, (50, 50, 50), _WEIGHTS, False, "only one edge in each dimension"),
    PublishedGraph("traffic", True, (100, 100), _WEIGHTS, True, "no wrap"),
    PublishedGraph("octagon", True, (100, 100), _WEIGHTS, True, "diagonals connected, no wrap"),
)


def published(
    experiment: str,
    setting: str | None = None,
    method: str | None = None,
    score: str | None = None,
    table: str | None = None,
) -> tuple[Published, ...]:
    """Return the cells of an experiment, or only those of a setting, method, score or table; there may be none.

    Four data sets of ``"ranking"`` are in two tables, of which ``"tab:ranking-full"`` has the spreads.

    Examples
    --------
    >>> [cell] = published("clustering", "exponential", "nbd", "purity")
    >>> cell.mean, cell.spread, cell.label
    (0.735, 0.08, 'NBD')
    >>> published("regression", method="pbdl")
    ()
    """
    checks.check_name(experiment, PUBLISHED, "experiment of published")
    return tuple(
        cell
        for cell in PUBLISHED[experiment]
        if setting in (None, cell.setting)
        and method in (None, cell.method)
        and score in (None, cell.score)
        and table in (None, cell.table)
    )
