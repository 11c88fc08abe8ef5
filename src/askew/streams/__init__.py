"""Rows of files that are larger than memory, read a few at a time."""

from askew.streams.batches import RowBatches
from askew.streams.rows import Rows

__all__ = ["RowBatches", "Rows"]
