"""One HTML page on which a divergence is explored by dragging a point."""

from askew.explorer.description import can_show
from askew.explorer.page import write_explorer

__all__ = ["can_show", "write_explorer"]
