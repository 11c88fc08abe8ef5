"""The experiments of the paper: what it published, and ours beside it."""

from askew.experiments.ablation import ABLATION
from askew.experiments.bregman_images import BREGCIFAR, BREGMNIST
from askew.experiments.clustering import CLUSTERING
from askew.experiments.deep_metric import DEEP_METRIC
from askew.experiments.description import register
from askew.experiments.entailment import ENTAILMENT
from askew.experiments.overlap import OVERLAP
from askew.experiments.published import Published, published
from askew.experiments.ranking import RANKING
from askew.experiments.regression import REGRESSION
from askew.experiments.roads import ROADS
from askew.experiments.semantic import SEMANTIC
from askew.experiments.shortest_path import SHORTEST_PATH
from askew.experiments.timing import TIMING

__all__ = ["Published", "published"]

# In the order in which they are run and reported: the paper's on tables, its deep ones, and those beyond it.
for experiment in (
    *(CLUSTERING, RANKING, REGRESSION, TIMING, ABLATION),
    *(BREGMNIST, BREGCIFAR, DEEP_METRIC, SEMANTIC, OVERLAP, SHORTEST_PATH),
    *(ROADS, ENTAILMENT),
):
    register(experiment)
