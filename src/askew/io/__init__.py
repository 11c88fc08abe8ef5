"""Files: models and indexes are written whole or not at all, checked when read, and never executed."""

from askew.io.arrays import DEFLATE, read_array, read_arrays
from askew.io.building import build, check_rebuildable
from askew.io.classes import name_of
from askew.io.describing import describe
from askew.io.exporting import export
from askew.io.files import (
    FORMAT,
    atomic_write,
    check_description,
    checksum,
    damaged,
    load_tensors,
    printable,
    read_json,
    save_tensors,
    version,
    write_json,
    write_text,
)
from askew.io.folders import only_writer, writable_folder
from askew.io.parquet import check_values, group_rows
from askew.io.recording import Rebuildable
from askew.io.row_batches import RowBatches
from askew.io.rows import Rows
from askew.io.saving import load, load_with_notes, save
from askew.io.trees import flatten, unflatten

__all__ = [
    "DEFLATE",
    "FORMAT",
    "Rebuildable",
    "RowBatches",
    "Rows",
    "atomic_write",
    "build",
    "check_description",
    "check_rebuildable",
    "check_values",
    "checksum",
    "damaged",
    "describe",
    "export",
    "flatten",
    "group_rows",
    "load",
    "load_tensors",
    "load_with_notes",
    "name_of",
    "only_writer",
    "printable",
    "read_array",
    "read_arrays",
    "read_json",
    "save",
    "save_tensors",
    "unflatten",
    "version",
    "writable_folder",
    "write_json",
    "write_text",
]
