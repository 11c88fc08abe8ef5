"""Pictures of a divergence in the plane: its balls, its potential, its asymmetry, the cells of its clusters.

Needs matplotlib, the extra ``plot``. Every function draws into the axes it is given, or into a new figure that pyplot
does not know, and returns the axes: ``balls("kl", [[1, 2]], 0.1).figure.savefig("balls.png")``.
"""

from askew.plot.ball import balls
from askew.plot.cell import cells
from askew.plot.fields import asymmetry, levels
from askew.plot.plane import Plane

__all__ = ["Plane", "asymmetry", "balls", "cells", "levels"]
