"""Files that are whole or absent, and never executed.

Numbers are kept in one safetensors file, everything else as JSON in its header. :func:`flatten` splits
nested Python values, such as the state of an optimizer, into those two parts and :func:`unflatten` puts
them together again exactly.
"""

from askew.storage.arrays import DEFLATE, read_array, read_arrays
from askew.storage.files import (
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
from askew.storage.folders import only_writer, writable_folder
from askew.storage.parquet import check_values, group_rows
from askew.storage.trees import flatten, unflatten

__all__ = [
    "DEFLATE",
    "FORMAT",
    "atomic_write",
    "check_description",
    "check_values",
    "checksum",
    "damaged",
    "flatten",
    "group_rows",
    "load_tensors",
    "only_writer",
    "printable",
    "read_array",
    "read_arrays",
    "read_json",
    "save_tensors",
    "unflatten",
    "version",
    "writable_folder",
    "write_json",
    "write_text",
]
