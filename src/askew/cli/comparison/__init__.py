"""Which divergence suits a table: all of them, learned and judged on the same rows."""

from askew.cli.comparison.folds import DEFAULT, compare
from askew.cli.comparison.leaderboard import SCORES, Leaderboard, Standing

__all__ = ["DEFAULT", "SCORES", "Leaderboard", "Standing", "compare"]
