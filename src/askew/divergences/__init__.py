"""Divergences D(x, y) as modules: one contract, many members."""

from askew.divergences.base import Divergence
from askew.divergences.bregman import Bregman, NeuralBregman
from askew.divergences.catalogue import CATALOGUE, Entry, make, names
from askew.divergences.max_affine import DeepDiv, MaxAffine
from askew.divergences.norms import DeepNorm, Euclidean, Mahalanobis, WideNorm
from askew.divergences.parts import Parts, take_apart
from askew.divergences.quasimetrics import IQE, MRN
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
    "Bregman",
    "DeepDiv",
    "DeepNorm",
    "Divergence",
    "Dual",
    "Embedded",
    "Entry",
    "Euclidean",
    "GeneralizedSymmetrized",
    "Jensen",
    "Mahalanobis",
    "MaxAffine",
    "NeuralBregman",
    "Parts",
    "Reversed",
    "Scaled",
    "Sqrt",
    "Symmetrized",
    "WideNorm",
    "make",
    "names",
    "take_apart",
]
