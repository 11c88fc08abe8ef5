"""Tables as people have them: files with columns of numbers, categories and gaps, made into points."""

from askew.cli.tables.bundled import LABEL, bundled_names, load_bundled
from askew.cli.tables.columns import Column, Columns, check_column
from askew.cli.tables.reading import read_frame

__all__ = ["LABEL", "Column", "Columns", "bundled_names", "check_column", "load_bundled", "read_frame"]
