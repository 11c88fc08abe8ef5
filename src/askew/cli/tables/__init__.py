"""Tables in files, and the columns that a command takes from them."""

from askew.cli.tables.reading import LABEL, TYPED, load_bundled, read_frame

__all__ = ["LABEL", "TYPED", "load_bundled", "read_frame"]
