"""Load an index whatever its class is."""

from __future__ import annotations

import os
from pathlib import Path

from askew import checks, io
from askew.search.folder import INDEX
from askew.search.local import LocalIndex


def load_index(folder: str | os.PathLike[str]) -> LocalIndex:
    """Return the index that :meth:`ExactIndex.save` or :meth:`FaissIndex.save` wrote to a folder.

    Examples
    --------
    >>> import tempfile
    >>> from askew.search import ExactIndex
    >>> index = ExactIndex("kl")
    >>> index.add([[0.5, 0.5], [0.9, 0.1]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index.save(folder)
    ...     type(load_index(folder)).__name__
    'ExactIndex'
    """
    classes = {cls.__name__: cls for cls in LocalIndex.__subclasses__()}

    def read() -> LocalIndex:
        description = io.read_description(INDEX, folder, "askew index or an index")
        what = f"class in {str(Path(folder) / INDEX.description)!r}"
        return classes[checks.check_name(description.get("class"), classes, what)].load(folder)

    return io.settled(INDEX, folder, read)
