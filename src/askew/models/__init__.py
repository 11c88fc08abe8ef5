"""Models on disk: saved and loaded without running code, and exported to other runtimes."""

from askew.models.exporting import export
from askew.models.saving import load, load_with_notes, savable, save

__all__ = ["export", "load", "load_with_notes", "savable", "save"]
