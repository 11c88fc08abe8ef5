"""The command ``askew``: tables in files, compared, learned from, searched and clustered."""

# Importing these modules registers their commands, in the order in which the help lists them.
from askew.cli import demo, learning, predicting, using
from askew.cli.shell import app, main

__all__ = ["app", "demo", "learning", "main", "predicting", "using"]
