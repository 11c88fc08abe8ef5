"""The report of a comparison: one HTML page."""

from askew.cli.report.page import write_comparison

__all__ = ["write_comparison"]
