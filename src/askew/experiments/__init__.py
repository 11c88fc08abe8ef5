"""The experiments of the paper: what it published, and ours beside it."""

from askew.experiments import ablation as ablation
from askew.experiments import clustering as clustering
from askew.experiments import ranking as ranking
from askew.experiments import regression as regression
from askew.experiments import timing as timing
from askew.experiments.published import Published, published

__all__ = ["Published", "published"]
