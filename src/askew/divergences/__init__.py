"""Divergences D(x, y): Bregman divergences, norms, quasimetrics, wrappers, and a catalogue of them by name."""

from askew.divergences.affine import AffineForm, Planes
from askew.divergences.base import Bregman, Divergence, Ranking, pairwise_tolerance
from askew.divergences.catalogue import CATALOGUE, Entry, make, names
from askew.divergences.drift import Drift
from askew.divergences.max_affine import DeepDiv, MaxAffine
from askew.divergences.neural import NeuralBregman
from askew.divergences.norms import DeepNorm, Euclidean, Mahalanobis, WideNorm
from askew.divergences.quasimetrics import IQE, MRN
from askew.divergences.split import EncoderAndDivergence, Sides, split_encoder, split_sides
from askew.divergences.wrappers import (
    Dual,
    Embedded,
    GeneralizedSymmetrized,
    Jensen,
    Reversed,
    Scaled,
    Sqrt,
    Symmetrized,
)

__all__ = [
    "CATALOGUE",
    "IQE",
    "MRN",
    "AffineForm",
    "Bregman",
    "DeepDiv",
    "DeepNorm",
    "Divergence",
    "Drift",
    "Dual",
    "Embedded",
    "EncoderAndDivergence",
    "Entry",
    "Euclidean",
    "GeneralizedSymmetrized",
    "Jensen",
    "Mahalanobis",
    "MaxAffine",
    "NeuralBregman",
    "Planes",
    "Ranking",
    "Reversed",
    "Scaled",
    "Sides",
    "Sqrt",
    "Symmetrized",
    "WideNorm",
    "make",
    "names",
    "pairwise_tolerance",
    "split_encoder",
    "split_sides",
]
