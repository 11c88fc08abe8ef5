"""Which divergence suits a table: all of them, learned and judged on the same rows."""

from askew.cli.comparison.folds import compare
from askew.cli.comparison.leaderboard import SCORES, Leaderboard, Standing

__all__ = ["SCORES", "Leaderboard", "Standing", "compare"]
