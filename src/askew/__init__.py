"""Distances that need not be symmetric: learn them, and put them to work."""

from askew import checks, divergences, encoders, potentials
from askew.divergences import Bregman, Divergence, Embedded, NeuralBregman, make, names

__version__ = "0.1.0"

__all__ = [
    "Bregman",
    "Divergence",
    "Embedded",
    "NeuralBregman",
    "checks",
    "divergences",
    "encoders",
    "make",
    "names",
    "potentials",
]
