"""The experiments of the paper: what it published, and ours beside it."""

from askew.experiments.ablation import ABLATION
from askew.experiments.clustering import CLUSTERING
from askew.experiments.description import register
from askew.experiments.published import Published, published
from askew.experiments.ranking import RANKING
from askew.experiments.regression import REGRESSION
from askew.experiments.roads import ROADS
from askew.experiments.shortest_path import SHORTEST_PATH
from askew.experiments.timing import TIMING

__all__ = ["Published", "published"]

# In the order in which they are run and reported.
for experiment in (CLUSTERING, RANKING, REGRESSION, TIMING, ABLATION, SHORTEST_PATH, ROADS):
    register(experiment)
