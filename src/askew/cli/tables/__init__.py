"""Tables in files, and the encoding of their columns as features."""

from askew.cli.tables.columns import Column, Columns, check_column
from askew.cli.tables.reading import LABEL, load_bundled, read_frame

__all__ = ["LABEL", "Column", "Columns", "check_column", "load_bundled", "read_frame"]
