"""Learners and the encoding of tables, with the interface of scikit-learn."""

from askew.estimators.base import FitWarning
from askew.estimators.columns import Columns
from askew.estimators.judging import Column
from askew.estimators.labels import DivergenceLearner
from askew.estimators.neighbors import DivergenceNeighborsClassifier
from askew.estimators.pairs import PairRegressor
from askew.estimators.relevance import RelevanceLearner
from askew.estimators.similar import PairClassifier
from askew.estimators.triplets import TripletLearner

__all__ = [
    "Column",
    "Columns",
    "DivergenceLearner",
    "DivergenceNeighborsClassifier",
    "FitWarning",
    "PairClassifier",
    "PairRegressor",
    "RelevanceLearner",
    "TripletLearner",
]
