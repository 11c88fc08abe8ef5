"""The HTML report of a comparison."""

from askew.cli.report.page import write_comparison

__all__ = ["write_comparison"]
