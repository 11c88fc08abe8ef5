"""Distances that need not be symmetric: learn them, and put them to work."""

from askew import (
    checks,
    clustering,
    data,
    divergences,
    encoders,
    explorer,
    losses,
    plot,
    potentials,
    scores,
    search,
    streams,
)
from askew.clustering import BregmanKMeans, BregmanMixture
from askew.divergences import Bregman, Divergence, Embedded, NeuralBregman, make, names
from askew.estimators import DivergenceLearner, DivergenceNeighborsClassifier, PairRegressor, TripletLearner
from askew.models import export, load, save
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
    "data",
    "divergences",
    "encoders",
    "explorer",
    "export",
    "fit",
    "load",
    "losses",
    "make",
    "names",
    "plot",
    "potentials",
    "save",
    "scores",
    "search",
    "streams",
]
