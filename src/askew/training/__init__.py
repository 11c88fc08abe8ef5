"""Training: one plain loop with schedule, validation, callback, checkpoints and progress."""

from askew.training.history import History, TrainingDivergedError
from askew.training.loop import fit

__all__ = ["History", "TrainingDivergedError", "fit"]
