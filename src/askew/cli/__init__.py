"""The command ``askew``: a thin shell around the library."""

# Each of these enters its commands, in the order in which the help shows them.
from askew.cli import learning, using
from askew.cli.shell import app, main

__all__ = ["app", "learning", "main", "using"]
