"""Numbers as text: arrays as base64 of their bytes, for the page to read without rounding."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

__all__ = ["Packed", "pack"]

# What JSON can hold; the shape is Any because that is all that is known of JSON.
Packed = dict[str, Any]


def pack(numbers: Tensor | ArrayLike, *, wide: bool = False) -> Packed:
    """Return an array as a JSON value: its shape, its type and its bytes, lowest first, in base64.

    Parameters
    ----------
    numbers
        Of any shape.
    wide
        Whether to keep 64 bits of each; else 32, as most weights have.

    Examples
    --------
    >>> pack([1.0, 2.0])
    {'shape': [2], 'type': 'f4', 'data': 'AACAPwAAAEA='}
    """
    array = numbers.detach().cpu().double().numpy() if isinstance(numbers, Tensor) else np.asarray(numbers)
    kind = "f8" if wide else "f4"
    data = np.ascontiguousarray(array, dtype=f"<{kind}").tobytes()
    return {"shape": list(array.shape), "type": kind, "data": base64.b64encode(data).decode("ascii")}
