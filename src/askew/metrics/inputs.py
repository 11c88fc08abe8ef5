"""Convert numpy arrays, torch tensors and sequences into checked numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks

Array = NDArray[Any]
Values = ArrayLike | Tensor


def to_array(values: Values) -> Array:
    """Return values as a numpy array, without a copy where that is possible."""
    checks.check_plain(values, "values to be scored")
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return np.asarray(values.float() if values.dtype == torch.bfloat16 else values)
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(checks.message("values to be scored", "an array", f"no such thing ({error})")) from None


def to_row(values: Values, name: str, owner: str) -> Array:
    """Return values of shape ``(n,)``, n >= 1."""
    array = to_array(values)
    if array.ndim != 1 or array.size == 0:
        must = "of shape (n,) with at least one entry"
        raise ValueError(checks.message(f"{name} of {owner}", must, array.shape))
    return array


def to_labels(values: Values, name: str, owner: str) -> Array:
    """Return labels, ``(n,)`` with n >= 1, none of them missing."""
    array = to_row(values, name, owner)
    missing = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
    if array.dtype.kind == "O":
        missing = np.array([label is None or (isinstance(label, float) and label != label) for label in array])
    if missing.any():
        place = int(missing.argmax())
        got = f"{name}[{place}] = {array[place]}"
        raise ValueError(checks.message(f"{name} of {owner}", "without missing values", got, "Drop such points first."))
    return array


def label_codes(first: Array, second: Array, owner: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return two arrays of labels as integers that are equal where the labels are."""
    kinds = ["numbers" if labels.dtype.kind in "biuf" else "text" for labels in (first, second)]
    mixed = kinds[0] != kinds[1] and "O" not in (first.dtype.kind, second.dtype.kind)
    try:
        # Joining numbers and text would silently turn 1 into "1".
        codes = None if mixed else np.unique(np.concatenate([first, second]), return_inverse=True)[1]
    except TypeError:
        codes = None
    if codes is None:
        got = f"dtypes {first.dtype} and {second.dtype}"
        raise TypeError(checks.message(f"both sets of labels of {owner}", "of one kind, all numbers or all text", got))
    return codes[: len(first)], codes[len(first) :]
