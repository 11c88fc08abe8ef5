"""The command ``askew``: a thin shell around the library."""

# Each of these enters its commands, in the order in which the help shows them.
from askew.cli import learning, using, experiments  # noqa: I001
from askew.cli.shell import app, main

__all__ = ["app", "experiments", "learning", "main", "using"]
