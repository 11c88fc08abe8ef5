"""All experiments, in the order in which they are run and reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from askew import checks
from askew_paper.experiment import Experiment
from askew_paper.experiments.ablation import ABLATION
from askew_paper.experiments.bregman_images import BREGCIFAR, BREGMNIST
from askew_paper.experiments.closure import CLOSURE
from askew_paper.experiments.clustering import CLUSTERING
from askew_paper.experiments.deep_metric import DEEP_METRIC
from askew_paper.experiments.entailment import ENTAILMENT
from askew_paper.experiments.overlap import OVERLAP
from askew_paper.experiments.ranking import RANKING
from askew_paper.experiments.regression import REGRESSION
from askew_paper.experiments.roads import ROADS
from askew_paper.experiments.semantic import SEMANTIC
from askew_paper.experiments.shortest_path import SHORTEST_PATH
from askew_paper.experiments.timing import TIMING

# The paper's on tables, its deep ones, and those beyond it.
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *(CLUSTERING, RANKING, REGRESSION, TIMING, ABLATION),
        *(BREGMNIST, BREGCIFAR, DEEP_METRIC, SEMANTIC, OVERLAP, SHORTEST_PATH),
        *(ROADS, ENTAILMENT, CLOSURE),
    )
}


def chosen(names: Iterable[str], known: Mapping[str, Experiment] | None = None) -> list[Experiment]:
    """Return experiments by name, each once; all of them if no name is given.

    Examples
    --------
    >>> chosen(["clusterin"])
    Traceback (most recent call last):
    ValueError: name of an experiment must be one of ... Did you mean 'clustering'...
    """
    known = EXPERIMENTS if known is None else known
    names = dict.fromkeys(names) or known
    return [known[checks.check_name(name, known, "name of an experiment")] for name in names]
