"""Tables, curves and pages of results next to what the paper published."""

from askew_paper.report.page import write_report

__all__ = ["write_report"]
