"""Learn a max-affine divergence by convex optimisation (PBDL), from classes, triplets or values.

Siahkamari, Xia, Saligrama, Castanon, Kulis: Learning to approximate a Bregman divergence. NeurIPS 2020.
"""

from askew.pbdl.pairs import fit_pairs
from askew.pbdl.pieces import PiecewiseFit
from askew.pbdl.regression import fit_regression
from askew.pbdl.triplets import fit_triplets

__all__ = ["PiecewiseFit", "fit_pairs", "fit_regression", "fit_triplets"]
