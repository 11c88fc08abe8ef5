"""How far the lines of a picture are from where they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

# What pictures guarantee, as a share of their width.
CLOSE = 1e-3


def off_level(
    ax: Axes, function: Callable[[torch.Tensor], torch.Tensor], line: np.ndarray[Any, Any], level: float
) -> Any:
    """Return the distances of the corners of a line from where a function has a level, as shares of the picture."""
    x = torch.from_numpy(np.array(line, dtype=np.float64)).requires_grad_()
    values = function(x)
    (slopes,) = torch.autograd.grad(values.sum(), x)
    with torch.no_grad():
        return ((values - level).abs() / slopes.norm(dim=1) / np.diff(ax.get_xlim()).item()).numpy()
