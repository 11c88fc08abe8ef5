"""Results as tables, curves and pages, beside what the paper has."""

from askew.report.comparison import write_comparison
from askew.report.page import write_report

__all__ = ["write_comparison", "write_report"]
