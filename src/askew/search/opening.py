"""An index from a folder, whatever its kind."""

from __future__ import annotations

import os
from pathlib import Path

from askew import checks, io
from askew.search.exact import ExactIndex
from askew.search.faiss import FaissIndex
from askew.search.folder import DESCRIPTION, settled

__all__ = ["load_index"]

CLASSES: dict[str, type[ExactIndex] | type[FaissIndex]] = {"ExactIndex": ExactIndex, "FaissIndex": FaissIndex}


def load_index(folder: str | os.PathLike[str]) -> ExactIndex | FaissIndex:
    """Return the index that :meth:`ExactIndex.save` or :meth:`FaissIndex.save` wrote to a folder.

    Parameters
    ----------
    folder
        Where it is.

    Examples
    --------
    >>> import tempfile
    >>> index = ExactIndex("kl")
    >>> index.add([[0.5, 0.5], [0.9, 0.1]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index.save(folder)
    ...     type(load_index(folder)).__name__
    'ExactIndex'
    """
    path = Path(folder) / DESCRIPTION
    shown = repr(str(path))
    if not path.is_file():
        must = f"one that askew index or an index wrote, with an {DESCRIPTION}"
        raise FileNotFoundError(checks.message("folder", must, repr(str(folder))))

    def read() -> ExactIndex | FaissIndex:
        description = io.check_description(io.read_json(path.read_bytes(), shown), shown, "index")
        name = checks.check_name(description.get("class"), CLASSES, f"class in {shown}")
        return CLASSES[name].load(folder)

    return settled(folder, read)
