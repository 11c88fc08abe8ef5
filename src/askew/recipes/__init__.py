"""How a module was made, as JSON, so that it can be made again without running code from a file.

Divergences, potentials and the encoders of the library remember what they were constructed with.
:func:`describe` writes that down, :func:`build` constructs from it: only classes of the library, a few of
``torch.nn``, and those the caller hands in.
"""

from askew.recipes.building import build, check_rebuildable
from askew.recipes.describing import describe
from askew.recipes.recording import Rebuildable, name_of

__all__ = ["Rebuildable", "build", "check_rebuildable", "describe", "name_of"]
