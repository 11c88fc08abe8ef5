"""The experiments of the paper: what it published, and ours beside it."""

from askew_paper.experiments.ablation import ABLATION
from askew_paper.experiments.bregman_images import BREGCIFAR, BREGMNIST
from askew_paper.experiments.clustering import CLUSTERING
from askew_paper.experiments.deep_metric import DEEP_METRIC
from askew_paper.experiments.description import register
from askew_paper.experiments.entailment import ENTAILMENT
from askew_paper.experiments.overlap import OVERLAP
from askew_paper.experiments.published import Published, published
from askew_paper.experiments.ranking import RANKING
from askew_paper.experiments.regression import REGRESSION
from askew_paper.experiments.roads import ROADS
from askew_paper.experiments.semantic import SEMANTIC
from askew_paper.experiments.shortest_path import SHORTEST_PATH
from askew_paper.experiments.timing import TIMING

__all__ = ["Published", "published"]

# In the order in which they are run and reported: the paper's on tables, its deep ones, and those beyond it.
for experiment in (
    *(CLUSTERING, RANKING, REGRESSION, TIMING, ABLATION),
    *(BREGMNIST, BREGCIFAR, DEEP_METRIC, SEMANTIC, OVERLAP, SHORTEST_PATH),
    *(ROADS, ENTAILMENT),
):
    register(experiment)
