"""Published data, read from the publishers' own files."""

from askew.data.tables import Table, load_table, table_names

__all__ = ["Table", "load_table", "table_names"]
