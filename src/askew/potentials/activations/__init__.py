r"""Convex, non-decreasing activations and their Bregman residuals, free of cancellation.

An activation g enters an input-convex network through two functions of a base point b and a step t:

    residual  d(b, t) = g(b + t) - g(b) - g'(b) t  >= 0
    bend      c(b, t) = g'(b + t) - g'(b)

Subtracting g(b) from g(b + t) would lose all digits for small t, so each activation has formulas of its
own in which every term is computed directly. They exist twice: `residual` and `bend` are ordinary
differentiable torch code, for compilers, function transforms and second derivatives; `kernel` does the
same arithmetic in place, for the hand-written backward pass of eager training.

Each g is expressed in its natural unit: the network multiplies the pre-activations by `gain` first, so
that squareplus (a + sqrt(a^2 + 4)) / 2 becomes b + sqrt(b^2 + 1) with b = a / 2 and has no constants.
"""

from askew.potentials.activations.base import Activation, Stage
from askew.potentials.activations.relu import ReLU
from askew.potentials.activations.softplus import Softplus
from askew.potentials.activations.squareplus import Squareplus

ACTIVATIONS: dict[str, Activation] = {a.name: a for a in (Squareplus(), Softplus(), ReLU())}

__all__ = ["ACTIVATIONS", "Activation", "ReLU", "Softplus", "Squareplus", "Stage"]
