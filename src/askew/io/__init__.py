"""Files: models and indexes are whole or absent, checked when read, and never executed."""

from askew.io.arrays import check_values, group_rows, read_array, read_arrays
from askew.io.files import (
    FORMAT,
    atomic_write,
    checksum,
    damaged,
    load_tensors,
    printable,
    read_json,
    save_tensors,
    version,
    write_text,
)
from askew.io.folder import FolderFormat, only_writer, read_description, settled, writable_folder, write_folder
from askew.io.graph import export
from askew.io.recipes import Rebuildable, describe
from askew.io.rows import Rows
from askew.io.saving import load, load_with_notes, save
from askew.io.trees import flatten, unflatten

# The public ones; the others are for the rooms of askew and for the paper.
__all__ = ["Rebuildable", "Rows", "export", "load", "load_with_notes", "save"]
