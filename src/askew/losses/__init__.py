"""What training minimises: losses of labelled batches, of pairs with values, of triplets, and of graded lists."""

from askew.losses.base import LabelLoss, Loss, PairLoss, TripletLoss
from askew.losses.contrastive import Contrastive, ContrastivePairs
from askew.losses.listwise import Listwise
from askew.losses.metric_learning import MetricLearningDistance
from askew.losses.regression import Regression
from askew.losses.relevance import GradedSoftmax
from askew.losses.triplets import AllTriplets, HardTriplets, SemiHardTriplets, TripletMargin

__all__ = [
    "AllTriplets",
    "Contrastive",
    "ContrastivePairs",
    "GradedSoftmax",
    "HardTriplets",
    "LabelLoss",
    "Listwise",
    "Loss",
    "MetricLearningDistance",
    "PairLoss",
    "Regression",
    "SemiHardTriplets",
    "TripletLoss",
    "TripletMargin",
]
