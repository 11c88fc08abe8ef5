"""Distances that need not be symmetric: learn them, and put them to work."""

from askew import checks, data, divergences, encoders, losses, potentials, scores
from askew.divergences import Bregman, Divergence, Embedded, NeuralBregman, make, names
from askew.estimators import DivergenceLearner, DivergenceNeighborsClassifier, PairRegressor, TripletLearner
from askew.models import export, load, save
from askew.training import History, TrainingDivergedError, fit

__version__ = "0.1.0"

__all__ = [
    "Bregman",
    "Divergence",
    "DivergenceLearner",
    "DivergenceNeighborsClassifier",
    "Embedded",
    "History",
    "NeuralBregman",
    "PairRegressor",
    "TrainingDivergedError",
    "TripletLearner",
    "checks",
    "data",
    "divergences",
    "encoders",
    "export",
    "fit",
    "load",
    "losses",
    "make",
    "names",
    "potentials",
    "save",
    "scores",
]
