"""Columns of an index, which are its ids and fields: their checks, their form on disk, and filters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks, io

Mask = NDArray[np.bool_]
Column = NDArray[Any]
Fields = Mapping[str, ArrayLike]
Filter = ArrayLike | Tensor | Collection[Any] | Callable[[Mapping[str, Column]], Any]


def as_column(values: object, what: str) -> Column:
    """Return values as an array in native byte order; strings, also of an array of objects, as an array of strings."""
    checks.check_plain(values, what)
    array = np.asarray(list(values) if isinstance(values, set | frozenset) else values)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind in "iu":  # also of the C types long and long long, of which files know one
        array = array.view(f"{array.dtype.kind}{array.dtype.itemsize}")
    mixed = array.dtype.kind == "O" or (array.dtype.kind == "U" and not isinstance(values, np.ndarray))
    if array.ndim != 1:
        return array
    zeros = False
    if mixed:
        texts = list(values) if isinstance(values, set | frozenset) else list(np.asarray(values, dtype=object))
        if not any(isinstance(text, str) for text in texts):
            return array
        if not all(isinstance(text, str) for text in texts):
            other = next(text for text in texts if not isinstance(text, str))
            raise TypeError(checks.message(what, "all of one kind", f"strings and {other!r}"))
        zeros = "\0" in "".join(texts)  # numpy drops those at the end of a string
        array = np.array(texts, dtype=np.str_)
    if array.dtype.kind == "U" and array.size:
        codes = np.ascontiguousarray(array).view(np.uint32).reshape(len(array), -1)
        zeros = zeros or bool(((codes[:, :-1] == 0) & (codes[:, 1:] != 0)).any())
        if zeros or bool(((codes >= 0xD800) & (codes < 0xE000)).any()):
            raise ValueError(checks.message(what, "text without zero characters and lone surrogates", "one with these"))
    return array


def check_fields(fields: Fields | None, count: int, owner: str) -> dict[str, Column]:
    """Return fields as columns: numbers, booleans or strings, one for each of ``count`` items."""
    what = f"fields of {owner}"
    if fields is None:
        return {}
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        raise TypeError(checks.message(what, "a dict from names to columns", type(fields).__name__))
    columns = {}
    for name, values in fields.items():
        column = as_column(values, f"field {name!r} of {owner}")
        if column.ndim != 1 or column.dtype.kind not in "biufU" or column.dtype.type is np.longdouble:
            got = f"an array of {column.dtype} with shape {column.shape}"
            must = "numbers of at most 64 bits, booleans or strings in one dimension"
            raise TypeError(checks.message(f"field {name!r} of {owner}", must, got))
        if len(column) != count:
            must = f"as long as there are items, {count}"
            raise ValueError(checks.message(f"field {name!r} of {owner}", must, len(column)))
        columns[name] = column
    return columns


def joined(column: Column, rows: int, new: Column, what: str) -> Column:
    """Return a column whose first rows can be followed by new ones: itself, or a copy of a wider dtype."""
    if rows == 0:
        return column if column.dtype == new.dtype else new[:0]
    if (column.dtype.kind == "U") != (new.dtype.kind == "U"):
        kinds = {True: "strings", False: "numbers"}
        must, got = f"{kinds[column.dtype.kind == 'U']}, as those in the index", kinds[new.dtype.kind == "U"]
        raise TypeError(checks.message(what, must, got))
    return column.astype(np.promote_types(column.dtype, new.dtype), copy=False)


# ---------------------------------------------------------------------- on disk


def packed(name: str, column: Column) -> dict[str, Tensor]:
    """Return the tensors that hold a column in a file; strings are UTF-8 and the ends of each."""
    if column.dtype.kind != "U":
        return {name: torch.from_numpy(np.ascontiguousarray(column))}
    texts = [text.encode() for text in column.tolist()]
    characters = np.frombuffer(b"".join(texts), np.uint8).copy()
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    # Words in front, as the name with an ending may be that of another field.
    return {f"text of {name}": torch.from_numpy(characters), f"ends of {name}": torch.from_numpy(ends)}


def unpacked(name: str, tensors: dict[str, Tensor], shown_file: str) -> Column:
    """Take the tensors of a column out of those of a file, and return it."""
    if name in tensors:
        return tensors.pop(name).numpy()
    first_versions = f"text of {name}" not in tensors
    parts = (f"{name}.text", f"{name}.ends") if first_versions else (f"text of {name}", f"ends of {name}")
    try:
        characters, ends = tensors.pop(parts[0]), tensors.pop(parts[1]).tolist()
        everything, starts = characters.numpy().tobytes(), [0, *ends[:-1]]
        texts = [everything[start:end].decode() for start, end in zip(starts, ends, strict=True)]
        if sorted(ends) != ends or len(everything) != (ends[-1] if ends else 0):
            raise ValueError("ends")
    except (KeyError, TypeError, ValueError):
        raise ValueError(io.damaged(shown_file, f"its column {name!r} is not as it was written")) from None
    return np.array(texts, dtype=np.str_)


# ---------------------------------------------------------------------- filters


class _Columns(dict[str, Column]):
    """The fields that a predicate sees; one that is not there is an error that names those that are."""

    owner = ""

    def __missing__(self, name: str) -> Column:
        if not self:
            hint = "Give fields to add."
            raise KeyError(checks.message(f"field of the filter of {self.owner}", "in the index", repr(name), hint))
        checks.check_name(name, tuple(self), f"field of the filter of {self.owner}")
        raise AssertionError  # check_name has raised


def mask_of(
    filter: Filter,
    fields: dict[str, Column],
    count: int,
    find: Callable[[object], NDArray[np.int64]],
    owner: str,
) -> Mask:
    """Return which of ``count`` items pass a filter.

    ``fields`` are columns of these items, and ``find`` gives the places of ids among them.
    """
    what = f"filter of {owner}"
    if isinstance(filter, str | Mapping) or filter is None:
        must = "a mask of the items, a set or an array of ids, or a function of the fields that returns a mask"
        hint = 'For example filter=lambda fields: fields["colour"] == "red".'
        raise TypeError(checks.message(what, must, repr(filter), hint))
    if callable(filter):
        columns = _Columns(fields)
        columns.owner = owner
        mask = np.asarray(filter(columns))
        if mask.dtype != bool:
            raise TypeError(checks.message(what, "a function that returns a mask", f"one that returns {mask.dtype}"))
    else:
        mask = as_column(filter.cpu().numpy() if isinstance(filter, Tensor) else filter, what)
    if mask.dtype == bool:
        if mask.shape != (count,):
            must = f"of shape ({count},), one for each item in the order of index.ids"
            raise ValueError(checks.message(what, must, mask.shape))
        return mask
    chosen = np.zeros(count, bool)
    if mask.size:
        chosen[find(np.unique(mask))] = True
    return chosen
