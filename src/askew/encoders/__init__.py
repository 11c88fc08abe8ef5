"""Encoders: networks that map what a user has (rows, images) to the points a divergence compares.

Any ``nn.Module`` can be an encoder. Those here are the ones of the experiments, from one linear layer to
the residual networks of He et al., and :func:`load_weights` reads their weights from a local file.
"""

from askew.encoders.encoding import as_floats, as_points, encode
from askew.encoders.resnets import IMAGENET_MEAN, IMAGENET_STD, ResNet18, ResNet20
from askew.encoders.scaling import Standardize
from askew.encoders.simple import MLP, Identity, Linear, SmallCNN
from askew.encoders.weights import LoadedWeights, load_weights

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "MLP",
    "Identity",
    "Linear",
    "LoadedWeights",
    "ResNet18",
    "ResNet20",
    "SmallCNN",
    "Standardize",
    "as_floats",
    "as_points",
    "encode",
    "load_weights",
]
