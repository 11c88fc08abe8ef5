"""One plain training loop, with what a long run needs: schedule, early stop, checkpoints, progress."""

from askew.training.history import History
from askew.training.loop import fit
from askew.training.run import TrainingDivergedError

__all__ = ["History", "TrainingDivergedError", "fit"]
