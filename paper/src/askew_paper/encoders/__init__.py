"""Residual networks of the image experiments, and their published weights from a local file."""

from askew_paper.encoders.resnets import IMAGENET_MEAN, IMAGENET_STD, ResNet18, ResNet20
from askew_paper.encoders.weights import LoadedWeights, load_weights

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "LoadedWeights", "ResNet18", "ResNet20", "load_weights"]
