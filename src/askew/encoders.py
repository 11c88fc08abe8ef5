"""Encoders map what you have (rows, pictures) to the points that a divergence compares; any ``nn.Module`` will do.

The module has a few small ones, standardisation, and :func:`encode`, which runs any encoder in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from askew import checks
from askew._progress import progress_bar
from askew.io import Rebuildable

__all__ = ["MLP", "Identity", "Linear", "SmallCNN", "Standardize", "as_floats", "as_points", "encode", "for_numpy"]

# Numbers in a batch that goes through an encoder at a time.
BATCH_ELEMENTS = 1 << 22

LARGEST = np.iinfo(np.int64).max
# Devices that have no numbers in double precision.
WITHOUT_FLOAT64 = ("mps",)
ACTIVATIONS = {"relu": functional.relu, "silu": functional.silu}


class Identity(Rebuildable):
    r"""The points themselves, f(x) = x.

    Use it where a function asks for an encoder and the features are already the right ones. It has no
    parameters, so there is nothing to train.

    Parameters
    ----------
    dim
        Number of features, checked where given; ``out`` is the same. None takes points of any size.

    Examples
    --------
    >>> Identity(3)(torch.zeros(5, 3)).shape
    torch.Size([5, 3])
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.out = None if dim is None else checks.check_size(dim, "dim of Identity")

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``: ``(..., dim) -> (..., dim)``."""
        return checks.check_points(x, self.out, "x", "Identity")


class Linear(nn.Linear, Rebuildable):
    r"""One affine layer, f(x) = A x + b.

    Use it to reduce or mix features before a divergence that is expensive in ``dim``. Before a squared
    Euclidean distance it is a Mahalanobis distance; use that one directly then. The offset b matters to
    divergences that depend on where a point lies and not only on x - y, as Bregman divergences do.

    Parameters
    ----------
    dim
        Number of features of a point.
    out
        Number of features of the embedding.

    Examples
    --------
    >>> Linear(10, 4)(torch.zeros(5, 10)).shape
    torch.Size([5, 4])
    """

    def __init__(self, dim: int, out: int) -> None:
        super().__init__(checks.check_size(dim, "dim of Linear"), checks.check_size(out, "out of Linear"))
        self.out = out

    def forward(self, x: Tensor) -> Tensor:
        """Return the embedding of each point: ``(..., dim) -> (..., out)``."""
        _check_rows(x, self.in_features, self.weight, "Linear")
        return super().forward(x)


class MLP(Rebuildable):
    r"""A multilayer perceptron, f(x) = A_L g(... g(A_1 x + b_1) ...) + b_L.

    Use it on rows of a table or on fixed embeddings. On images, :class:`SmallCNN` needs fewer examples.

    Parameters
    ----------
    dim
        Number of features of a point.
    out
        Number of features of the embedding.
    widths
        Widths of the hidden layers, at least one.
    activation
        The function g: ``"relu"``, or the smooth ``"silu"``, which generalises better from few rows.

    Examples
    --------
    >>> MLP(10, 4, widths=(32, 32))(torch.zeros(5, 10)).shape
    torch.Size([5, 4])
    """

    def __init__(self, dim: int, out: int, widths: Sequence[int] = (128,), activation: str = "relu") -> None:
        super().__init__()
        self.activation = checks.check_name(activation, ACTIVATIONS, "activation of MLP")
        self.dim = checks.check_size(dim, "dim of MLP")
        self.out = checks.check_size(out, "out of MLP")
        sizes = (dim, *checks.check_widths(widths, "widths of MLP"))
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.last = nn.Linear(sizes[-1], out)

    def forward(self, x: Tensor) -> Tensor:
        """Return the embedding of each point: ``(..., dim) -> (..., out)``."""
        _check_rows(x, self.dim, self.last.weight, "MLP")
        activate = ACTIVATIONS[self.activation]
        for layer in self.hidden:
            x = activate(layer(x))
        result: Tensor = self.last(x)
        return result


class SmallCNN(Rebuildable):
    r"""Convolutions of 3 x 3, each followed by ReLU and a 2 x 2 max-pool, then two linear layers.

    Use it for small images that are learned from scratch. For photographs of natural size, start from
    trained weights with :class:`ResNet18`. The networks of the paper are

    - BregMNIST: ``SmallCNN(1, 28, filters=(32, 64))``,
    - BregCIFAR: ``SmallCNN(3, 32, filters=(32, 64, 128, 256))``,
    - overlap: ``SmallCNN(3, 64, filters=(32, 64, 128, 256))``.

    Parameters
    ----------
    channels
        Number of channels of an image.
    image_size
        Height and width of an image; at least ``2 ** len(filters)``.
    out
        Number of features of the embedding.
    filters
        Number of filters of each convolution.
    hidden
        Width of the first of the two linear layers.

    References
    ----------
    Lu, Raff and Ferraro, "Neural Bregman Divergences for Distance Learning", ICLR 2023.

    Examples
    --------
    >>> SmallCNN(1, 28, out=16)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 16])
    """

    def __init__(
        self, channels: int, image_size: int, out: int = 128, filters: Sequence[int] = (32, 64), hidden: int = 256
    ) -> None:
        super().__init__()
        self.channels = checks.check_size(channels, "channels of SmallCNN")
        self.image_size = checks.check_size(image_size, "image_size of SmallCNN")
        self.out = checks.check_size(out, "out of SmallCNN")
        checks.check_size(hidden, "hidden of SmallCNN")
        sizes = (channels, *checks.check_widths(filters, "filters of SmallCNN"))
        side = image_size >> len(filters)
        if side == 0:
            must = f"at least {1 << len(filters)} with {len(filters)} filters, each of which halves it"
            raise ValueError(checks.message("image_size of SmallCNN", must, image_size, "Give fewer filters."))
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(sizes))
        self.hidden = nn.Linear(sizes[-1] * side * side, hidden)
        self.last = nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        """Return one point per image: ``(n, channels, image_size, image_size) -> (n, out)``."""
        check_images(x, self.channels, self.image_size, self.last.weight, "SmallCNN")
        for convolution in self.convolutions:
            # ReLU is monotone, so that it may follow the max-pool, where there is a quarter of the work.
            x = functional.relu(functional.max_pool2d(convolution(x), 2))
        result: Tensor = self.last(functional.relu(self.hidden(x.flatten(1))))
        return result


def _dtype(weight: Tensor, x: object) -> torch.dtype | None:
    """Return the dtype that ``x`` must have: that of the weights, or any where autocast converts it."""
    if not isinstance(x, Tensor) or x.dtype == weight.dtype:
        return weight.dtype
    device = x.device.type
    return None if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) else weight.dtype


def _check_rows(x: Tensor, dim: int, weight: Tensor, owner: str) -> None:
    checks.check_points(x, dim, "x", owner, _dtype(weight, x))


def check_images(x: Tensor, channels: int, size: int | None, weight: Tensor, owner: str) -> None:
    """Raise unless ``x`` is a batch of images, ``(n, channels, size, size)``."""
    checks.check_points(x, None, "x", owner, _dtype(weight, x))
    if x.ndim != 4 or x.shape[1] != channels or (size is not None and tuple(x.shape[2:]) != (size, size)):
        sides = "height, width" if size is None else f"{size}, {size}"
        hint = "Images with channels last are turned by x.permute(0, 3, 1, 2)."
        raise ValueError(checks.message(f"x of {owner}", f"of shape (n, {channels}, {sides})", tuple(x.shape), hint))


class Standardize(Rebuildable):
    r"""Each feature shifted by its mean and divided by its standard deviation, v = (x - mean) / std.

    The two are fixed numbers found by :meth:`fit`, not learned. They are kept in float64 and so is the difference, so
    that features far from 0 lose no digits; the result has the default dtype.

    Parameters
    ----------
    dim
        Number of features.

    Examples
    --------
    >>> scale = Standardize(1).fit(torch.tensor([[1e6], [1e6 + 2]], dtype=torch.float64))
    >>> scale(torch.tensor([[1e6 + 2]], dtype=torch.float64))
    tensor([[1.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = self.out = checks.check_size(dim, "dim of Standardize")
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("std", torch.ones(dim, dtype=torch.float64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Standardize:
        # The hook behind `.to(device)`. Some devices have no float64, and torch would refuse to move the buffers.
        if fn(torch.empty(0)).device.type in WITHOUT_FLOAT64:
            self.mean, self.std = self.mean.float(), self.std.float()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def fit(self, x: Tensor) -> Standardize:
        """Set mean and standard deviation by points, ``(n, dim)``; a constant feature keeps its unit."""
        x = checks.check_points(x, self.dim, "x", "Standardize").reshape(-1, self.dim).double()
        checks.check_finite(x, "x", "Standardize")
        std, mean = torch.std_mean(x, 0, correction=0)
        # Rounding may leave a trace of spread in a feature that has none.
        constant = std <= 1e-12 * x.abs().amax(0)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(constant, torch.ones_like(std), std))
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised points: ``(..., dim) -> (..., dim)``."""
        x = checks.check_points(x, self.dim, "x", "Standardize")
        return ((x.to(self.mean.dtype) - self.mean) / self.std).to(torch.get_default_dtype())


# ---------------------------------------------------------------------- input conversion and batched inference


def as_points(points: ArrayLike | Tensor) -> Tensor:
    """Return an array or a tensor as a tensor, without a copy where possible.

    Integers stay integers, for encoders of tokens; :func:`encode` converts them to floats for all other encoders.
    Complex numbers, strings, other objects, masked entries and sparse tensors are an error. Dask collections are
    computed.

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
    """Convert integer points to floats of a dtype; None means float64, as float32 would merge large integers.

    Examples
    --------
    >>> as_floats(torch.tensor([3]), None).dtype, as_floats(torch.tensor([3]), torch.float32).dtype
    (torch.float64, torch.float32)
    """
    return points if points.is_floating_point() else points.to(dtype or torch.float64)


def for_numpy(values: Any, what: str = "points") -> Any:
    """Return values that numpy can convert without loss: bfloat16 becomes float32, dask collections are computed.

    Masked entries, whose mask numpy would drop, and sparse tensors are an error. Anything else is returned as it is.

    Parameters
    ----------
    values
        Any input.
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
    # numpy would compute dask collections as well, but drop their mask.
    return values.compute() if checks.is_lazy(values) else values


def encode(encoder: nn.Module | None, points: Tensor, progress: bool | None = False) -> Tensor:
    """Return the embeddings of points, computed in batches and without recording gradients.

    Batch normalisation and dropout are in evaluation mode; the encoder is left in the mode it was in. Points are moved
    to the dtype and the device of the encoder, and embeddings back to the device of the points. Integers are passed as
    they are; an encoder that rejects them, such as a linear layer, gets floats.

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
    first = _first_layer(encoder, points)
    embeddings = []
    show = progress if points.shape[0] > rows else False
    with evaluating(encoder), torch.inference_mode(), progress_bar(show, points.shape[0], "encoding") as move:
        for start in range(0, max(1, points.shape[0]), rows):
            batch = points[start : start + rows].to(first.device)
            embeddings.append(_embed(encoder, batch, first).to(points.device))
            move(min(start + rows, points.shape[0]))
    return torch.cat(embeddings)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation mode, then each of its parts back to the mode that it was in."""
    trained = [part for part in module.modules() if part.training]
    if trained:
        module.eval()
    try:
        yield
    finally:
        for part in trained:
            part.training = True


def _embed(encoder: nn.Module, batch: Tensor, first: _First) -> Tensor:
    embeddings: Tensor
    if batch.is_floating_point():
        embeddings = encoder(batch.to(first.dtype))
        return embeddings
    # No layer takes narrower indices, and sums of narrow integers would overflow.
    whole = batch if batch.dtype in (torch.bool, torch.int32, torch.int64) else batch.long()
    try:
        embeddings = encoder(whole)
    except (RuntimeError, TypeError):
        if isinstance(first.layer, (nn.Embedding, nn.EmbeddingBag)):
            raise
        # Custom layers may or may not accept integers; only a trial tells. If floats fail as well, both errors show.
        embeddings = encoder(batch.to(first.dtype))
    return embeddings


class _First(NamedTuple):
    """The first layer of an encoder with floating-point numbers, and their device and dtype."""

    layer: nn.Module | None
    device: torch.device
    dtype: torch.dtype


def _first_layer(encoder: nn.Module, points: Tensor) -> _First:
    for part in encoder.modules():
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            if tensor.is_floating_point():
                return _First(part, tensor.device, tensor.dtype)
    dtype = points.dtype if points.is_floating_point() else torch.get_default_dtype()
    return _First(None, points.device, dtype)
