"""Input-convex networks: layers, activations, the exact residual form, and the potential made of them."""

from askew.potentials.icnn.potential import ICNN

__all__ = ["ICNN"]
