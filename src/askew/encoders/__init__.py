"""Encoders: networks that map what a user has (rows, images) to the points that a divergence compares.

Any ``nn.Module`` can be an encoder. Those here go from one linear layer to a small convolutional network.
"""

from askew.encoders.encoding import as_floats, as_points, encode
from askew.encoders.scaling import Standardize
from askew.encoders.simple import MLP, Identity, Linear, SmallCNN

__all__ = ["MLP", "Identity", "Linear", "SmallCNN", "Standardize", "as_floats", "as_points", "encode"]
