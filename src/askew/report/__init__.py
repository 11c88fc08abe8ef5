"""Results as tables, pictures and one page. Nothing is trained here: results are files, and these are read."""

from askew.report.markup import Table, to_html, to_markdown
from askew.report.page import write_report
from askew.report.tables import compare, details, overview

__all__ = ["Table", "compare", "details", "overview", "to_html", "to_markdown", "write_report"]
