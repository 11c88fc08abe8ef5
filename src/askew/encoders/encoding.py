"""Points through an encoder in batches, as they come from a user."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from askew import checks
from askew.progress import progress_bar

__all__ = ["as_points", "encode", "for_numpy"]

# Numbers in a batch that goes through an encoder at a time.
BATCH_ELEMENTS = 1 << 22


def as_points(points: ArrayLike | Tensor) -> Tensor:
    """Return an array or a tensor as a tensor, without a copy where that can be.

    Integers in arrays become floats; in tensors they stay, as an encoder of tokens wants them. Complex numbers,
    strings and other objects are an error.

    Examples
    --------
    >>> as_points([[1, 2]]).dtype
    torch.float32
    """
    if isinstance(points, Tensor):
        if points.is_complex():
            raise TypeError(checks.problem("points", "real numbers", points.dtype))
        return points.detach()
    try:
        array = np.asarray(points)
    except ValueError as error:
        raise ValueError(checks.problem("points", "an array", f"rows of different lengths ({error})")) from None
    if array.dtype.kind in "biu":
        array = array.astype(np.float32)
    elif array.dtype.kind == "O" or array.dtype == np.longdouble:  # torch knows neither
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(checks.problem("points", "real numbers", f"other objects ({error})")) from None
    elif array.dtype.kind != "f":
        raise TypeError(checks.problem("points", "real numbers", f"an array of {array.dtype}"))
    # torch takes neither arrays that must not be written to nor negative strides nor foreign byte orders.
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    # What has one row counts as contiguous, whatever its strides are.
    fits = array.flags.writeable and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if fits else array.copy())


def for_numpy(values: Any) -> Any:
    """Return a tensor of bfloat16, which numpy does not know, as float32; all else as it is.

    Examples
    --------
    >>> for_numpy(torch.ones(1, dtype=torch.bfloat16)).dtype, for_numpy([1])
    (torch.float32, [1])
    """
    return values.detach().float() if isinstance(values, Tensor) and values.dtype == torch.bfloat16 else values


def encode(encoder: nn.Module | None, points: Tensor, progress: bool | None = False) -> Tensor:
    """Return the images of points under an encoder, in batches and without recording gradients.

    Batch normalisation and dropout are as in evaluation; the encoder is left in the mode it was in. Points are
    brought to the dtype and the device of the encoder, and the images back to the device of the points.

    Parameters
    ----------
    encoder
        Maps a batch to ``(n, dim)``; None returns the points as they are.
    points
        With the batch first.
    progress
        Whether to show a progress bar; None means on a terminal, if there is more than one batch.

    Examples
    --------
    >>> encode(nn.Linear(3, 2), torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """
    if encoder is None:
        return points
    rows = max(1, BATCH_ELEMENTS // max(1, points[:1].numel()))
    modes = [(part, part.training) for part in encoder.modules()]
    like = _first_floating(encoder, points)
    images = []
    try:
        encoder.eval()
        show = progress if points.shape[0] > rows else False
        with torch.inference_mode(), progress_bar(show, points.shape[0], "encoding") as move:
            for start in range(0, max(1, points.shape[0]), rows):
                batch = points[start : start + rows].to(like.device)
                batch = batch.to(like.dtype) if batch.is_floating_point() else batch
                images.append(encoder(batch).to(points.device))
                move(min(start + rows, points.shape[0]))
    finally:
        for part, training in modes:
            part.training = training
    return torch.cat(images)


def _first_floating(encoder: nn.Module, default: Tensor) -> Tensor:
    """Return the first floating tensor of the first layer that has one."""
    for part in encoder.modules():
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            if tensor.is_floating_point():
                return tensor
    return default
