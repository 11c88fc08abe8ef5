"""Convex functions phi, the generators of Bregman divergences."""

from askew.potentials.base import Potential, Scaled, Sum
from askew.potentials.closed_form import Burg, Exponential, FermiDirac, LogSumExp, NegativeEntropy, PowerNorm, Quadratic
from askew.potentials.compositions import AffinePrecomposed
from askew.potentials.conjugate import Conjugate
from askew.potentials.function import ConvexityReport, FromFunction, check_convexity
from askew.potentials.hyperbolic import Hyperbolic
from askew.potentials.icnn import ICNN
from askew.potentials.inverse import InverseGradient

__all__ = [
    "ICNN",
    "AffinePrecomposed",
    "Burg",
    "Conjugate",
    "ConvexityReport",
    "Exponential",
    "FermiDirac",
    "FromFunction",
    "Hyperbolic",
    "InverseGradient",
    "LogSumExp",
    "NegativeEntropy",
    "Potential",
    "PowerNorm",
    "Quadratic",
    "Scaled",
    "Sum",
    "check_convexity",
]
