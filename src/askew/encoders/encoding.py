"""Points through an encoder in batches, as they come from a user."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from askew import checks
from askew._progress import progress_bar

__all__ = ["as_floats", "as_points", "encode", "for_numpy"]

# Numbers in a batch that goes through an encoder at a time.
BATCH_ELEMENTS = 1 << 22

LARGEST = np.iinfo(np.int64).max


def as_points(points: ArrayLike | Tensor) -> Tensor:
    """Return an array or a tensor as a tensor, without a copy where that can be.

    Integers stay integers, in arrays as in tensors: an encoder of tokens wants them, and :func:`encode` makes floats of
    them for all others. Complex numbers, strings and other objects are an error, and so are masked entries and
    tensors that are sparse or without numbers. What dask holds is computed.

    Examples
    --------
    >>> as_points([[1.0, 2.0]]).dtype, as_points([[1, 2]]).dtype
    (torch.float64, torch.int64)
    """
    points = _in_memory(points)
    checks.check_plain(points, "points")
    if isinstance(points, Tensor):
        if points.is_complex():
            raise TypeError(checks.message("points", "real numbers", points.dtype))
        return points.detach()
    try:
        array = np.asarray(points)
    except ValueError as error:
        raise ValueError(checks.message("points", "an array", f"rows of different lengths ({error})")) from None
    if array.dtype.kind == "b":
        array = array.astype(np.float32)
    elif array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch can do little with these
        fits = array.dtype.itemsize < 8 or array.size == 0 or int(array.max()) <= LARGEST
        array = array.astype(np.int64 if fits else np.float64)
    elif array.dtype.kind == "O" or array.dtype == np.longdouble:  # torch knows neither
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(checks.message("points", "real numbers", f"other objects ({error})")) from None
    elif array.dtype.kind not in "fiu":
        raise TypeError(checks.message("points", "real numbers", f"an array of {array.dtype}"))
    # torch takes neither arrays that must not be written to nor negative strides nor foreign byte orders.
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    # What has one row counts as contiguous, whatever its strides are.
    fits = array.flags.writeable and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if fits else array.copy())


def as_floats(points: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return points whose integers have become floats of a dtype; of None, of float64: float32 would merge some.

    Examples
    --------
    >>> as_floats(torch.tensor([3]), None).dtype, as_floats(torch.tensor([3]), torch.float32).dtype
    (torch.float64, torch.float32)
    """
    return points if points.is_floating_point() else points.to(dtype or torch.float64)


def for_numpy(values: Any, what: str = "points") -> Any:
    """Return what numpy can take over whole: bfloat16 becomes float32, what dask holds is computed; all else stays.

    Masked entries, whose mask numpy would drop, and tensors that are sparse or without numbers are an error.

    Parameters
    ----------
    values
        Anything a user gives.
    what
        Its name in errors.

    Examples
    --------
    >>> for_numpy(torch.ones(1, dtype=torch.bfloat16)).dtype, for_numpy([1])
    (torch.float32, [1])
    """
    values = _in_memory(values)
    checks.check_plain(values, what)
    return values.detach().float() if isinstance(values, Tensor) and values.dtype == torch.bfloat16 else values


def _in_memory(values: Any) -> Any:
    """Return what dask holds as it is in memory: numpy, which would compute it too, would drop its mask."""
    return values.compute() if checks.is_lazy(values) else values


def encode(encoder: nn.Module | None, points: Tensor, progress: bool | None = False) -> Tensor:
    """Return the images of points under an encoder, in batches and without recording gradients.

    Batch normalisation and dropout are as in evaluation; the encoder is left in the mode it was in. Points are
    brought to the dtype and the device of the encoder, and the images back to the device of the points. Integers are
    given to the encoder as they are; one that takes none, such as a linear layer, gets them as floats.

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
    first = _first_layer(encoder, points)
    images = []
    try:
        encoder.eval()
        show = progress if points.shape[0] > rows else False
        with torch.inference_mode(), progress_bar(show, points.shape[0], "encoding") as move:
            for start in range(0, max(1, points.shape[0]), rows):
                batch = points[start : start + rows].to(first.device)
                images.append(_image(encoder, batch, first).to(points.device))
                move(min(start + rows, points.shape[0]))
    finally:
        for part, training in modes:
            part.training = training
    return torch.cat(images)


def _image(encoder: nn.Module, batch: Tensor, first: _First) -> Tensor:
    """Return the image of a batch: of floats in the dtype of the first layer, of integers as it takes them."""
    image: Tensor
    if batch.is_floating_point():
        image = encoder(batch.to(first.dtype))
        return image
    # No layer takes indices that are narrower, and sums of narrow numbers would wrap around.
    whole = batch if batch.dtype in (torch.bool, torch.int32, torch.int64) else batch.long()
    try:
        image = encoder(whole)
    except (RuntimeError, TypeError):
        if isinstance(first.layer, (nn.Embedding, nn.EmbeddingBag)):
            raise
        # Of a layer of the user's own, only a trial tells whether it takes integers.
        image = encoder(batch.to(first.dtype))
    return image


class _First(NamedTuple):
    """The first layer of an encoder that has numbers, and where and in which dtype these are."""

    layer: nn.Module | None
    device: torch.device
    dtype: torch.dtype


def _first_layer(encoder: nn.Module, points: Tensor) -> _First:
    """Return the first layer that has floats; without any, points stay where and what they are."""
    for part in encoder.modules():
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            if tensor.is_floating_point():
                return _First(part, tensor.device, tensor.dtype)
    dtype = points.dtype if points.is_floating_point() else torch.get_default_dtype()
    return _First(None, points.device, dtype)
