"""Small encoders: identity, linear map, multilayer perceptron, plain convolutional network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from askew import checks
from askew.io import Rebuildable

__all__ = ["MLP", "Identity", "Linear", "SmallCNN", "check_images"]


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
    >>> import torch
    >>> from askew.encoders import Identity
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
        Number of features of its image.

    Examples
    --------
    >>> import torch
    >>> from askew.encoders import Linear
    >>> Linear(10, 4)(torch.zeros(5, 10)).shape
    torch.Size([5, 4])
    """

    def __init__(self, dim: int, out: int) -> None:
        super().__init__(checks.check_size(dim, "dim of Linear"), checks.check_size(out, "out of Linear"))
        self.out = out

    def forward(self, x: Tensor) -> Tensor:
        """Return the image of each point: ``(..., dim) -> (..., out)``."""
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
        Number of features of its image.
    widths
        Widths of the hidden layers, at least one.
    activation
        The function g: ``"relu"``, or the smooth ``"silu"``, which generalises better from few rows.

    Examples
    --------
    >>> import torch
    >>> from askew.encoders import MLP
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
        """Return the image of each point: ``(..., dim) -> (..., out)``."""
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
        Number of features of its image under the network.
    filters
        Number of filters of each convolution.
    hidden
        Width of the first of the two linear layers.

    References
    ----------
    Lu, Raff and Ferraro, "Neural Bregman Divergences for Distance Learning", ICLR 2023.

    Examples
    --------
    >>> import torch
    >>> from askew.encoders import SmallCNN
    >>> SmallCNN(1, 28, out=16)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 16])
    """

    def __init__(
        self,
        channels: int,
        image_size: int,
        out: int = 128,
        filters: Sequence[int] = (32, 64),
        hidden: int = 256,
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
