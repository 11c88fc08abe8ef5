"""The experiments of the paper: what it published, and ours beside it."""

from askew.experiments.published import Published, published

__all__ = ["Published", "published"]
