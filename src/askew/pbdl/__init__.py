"""Learn a max-affine divergence by convex optimisation (PBDL), from classes or values.

Siahkamari, Xia, Saligrama, Castanon, Kulis: Learning to approximate a Bregman divergence. NeurIPS 2020.
"""

from askew.pbdl.pairs import fit_pairs
from askew.pbdl.pieces import PiecewiseFit
from askew.pbdl.regression import fit_regression

__all__ = ["PiecewiseFit", "fit_pairs", "fit_regression"]
