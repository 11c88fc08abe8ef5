"""Every number in the tables of "Neural Bregman Divergences for Distance Learning" (ICLR 2023), as data.

Link prediction, which that paper does not have, is compared with table 2 of "Shadow Cones: A Generalized Framework for
Partial Order Embeddings" (ICLR 2024).

- Values are as printed. Methods have their names in the catalogue: NBD is ``nbd``, and ``nbd-paper`` is compared
  with it as well. The paper does not say where its Mahalanobis distance is squared: it is ``mahalanobis`` everywhere.
- The tables of UCI data have the names of :func:`askew_paper.data.table_names`.
- BregMNIST, BregCIFAR and the overlap task have only figures, and the paper's first table has no numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from askew import checks


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


FOLDER = Path(__file__).with_name("tables")
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

# The table of the main text has the means of four of the six data sets.
MAIN_TEXT = ("abalone", "balance", "car", "iris")


def _cells(table: PaperTable) -> Iterator[Published]:
    """Yield the cells of a table: a line of its file has the scores of one method in one setting, as printed."""
    # Of ranking, the short table repeats the full one.
    short = table.name == "tab:ranking"
    with FOLDER.joinpath(f"{table.experiment}.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            setting, label = line.pop("setting"), line.pop("method")
            for score, text in line.items() if not short or setting in MAIN_TEXT else ():
                mean, _, spread = text.partition(" ± ")
                deviation = float(spread) if spread and not short else None
                yield Published(table.name, setting, (METHODS | OTHERS)[label], score, float(mean), deviation, label)


# By experiment; three have no numbers in the paper.
PUBLISHED: dict[str, tuple[Published, ...]] = dict.fromkeys(("bregmnist", "bregcifar", "overlap"), ())
for _table in TABLES.values():
    PUBLISHED[_table.experiment] = (*PUBLISHED.get(_table.experiment, ()), *_cells(_table))


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
