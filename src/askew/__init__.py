"""Distances that need not be symmetric: learn them, and put them to work."""

from askew import (
    checks,
    clustering,
    divergences,
    encoders,
    explorer,
    io,
    losses,
    metrics,
    plot,
    potentials,
    search,
)
from askew.clustering import BregmanKMeans, BregmanMixture
from askew.divergences import Bregman, Divergence, Embedded, NeuralBregman, make, names
from askew.estimators import DivergenceLearner, DivergenceNeighborsClassifier, PairRegressor, TripletLearner
from askew.io import export, load, save
from askew.training import History, TrainingDivergedError, fit

__version__ = "0.1.0"

__all__ = [
    "Bregman",
    "BregmanKMeans",
    "BregmanMixture",
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
    "clustering",
    "divergences",
    "encoders",
    "explorer",
    "export",
    "fit",
    "io",
    "load",
    "losses",
    "make",
    "metrics",
    "names",
    "plot",
    "potentials",
    "save",
    "search",
]
