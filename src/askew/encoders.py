"""Encoders: networks that map what a user has (rows, images) to the points a divergence compares.

Any ``nn.Module`` can be an encoder. Those here are the ones of the experiments, from one linear layer to
the residual networks of He et al., and :func:`load_weights` reads their weights from a local file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from askew import checks

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "MLP",
    "Identity",
    "Linear",
    "LoadedWeights",
    "ResNet18",
    "ResNet20",
    "SmallCNN",
    "load_weights",
]

# Per channel, of pixels in [0, 1]; the published weights of both residual networks expect (x - mean) / std.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# What published classifiers call their last layer.
HEADS = ("linear.weight", "linear.bias", "fc.weight", "fc.bias")


class Identity(nn.Module):
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


class Linear(nn.Linear):
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


class MLP(nn.Module):
    r"""A multilayer perceptron with ReLU, f(x) = A_L relu(... relu(A_1 x + b_1) ...) + b_L.

    Use it on rows of a table or on fixed embeddings. On images, :class:`SmallCNN` needs fewer examples.

    Parameters
    ----------
    dim
        Number of features of a point.
    out
        Number of features of its image.
    widths
        Widths of the hidden layers, at least one.

    Examples
    --------
    >>> import torch
    >>> from askew.encoders import MLP
    >>> MLP(10, 4, widths=(32, 32))(torch.zeros(5, 10)).shape
    torch.Size([5, 4])
    """

    def __init__(self, dim: int, out: int, widths: Sequence[int] = (128,)) -> None:
        super().__init__()
        self.dim = checks.check_size(dim, "dim of MLP")
        self.out = checks.check_size(out, "out of MLP")
        sizes = (dim, *checks.check_widths(widths, "widths of MLP"))
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.last = nn.Linear(sizes[-1], out)

    def forward(self, x: Tensor) -> Tensor:
        """Return the image of each point: ``(..., dim) -> (..., out)``."""
        _check_rows(x, self.dim, self.last.weight, "MLP")
        for layer in self.hidden:
            x = functional.relu(layer(x))
        result: Tensor = self.last(x)
        return result


class SmallCNN(nn.Module):
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
            raise ValueError(checks.problem("image_size of SmallCNN", must, image_size, "Give fewer filters."))
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(sizes))
        self.hidden = nn.Linear(sizes[-1] * side * side, hidden)
        self.last = nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        """Return one point per image: ``(n, channels, image_size, image_size) -> (n, out)``."""
        _check_images(x, self.channels, self.image_size, self.last.weight, "SmallCNN")
        for convolution in self.convolutions:
            # ReLU is monotone, so that it may follow the max-pool, where there is a quarter of the work.
            x = functional.relu(functional.max_pool2d(convolution(x), 2))
        result: Tensor = self.last(functional.relu(self.hidden(x.flatten(1))))
        return result


class ResNet20(nn.Module):
    r"""The residual network of 20 layers for CIFAR images, 16-32-64 channels, 64 features.

    Each block is x -> relu(s(x) + F(x)) with two 3 x 3 convolutions F; where the size changes, the shortcut s
    takes every second pixel and pads the channels with zeros ("option A", no parameters). Use it for
    32 x 32 photographs, on one or two cores too; for larger ones take :class:`ResNet18`.

    Published weights expect pixels in [0, 1], normalised by :data:`IMAGENET_MEAN` and :data:`IMAGENET_STD`.

    Parameters
    ----------
    out
        Number of features of a linear layer on top; None gives the 64 features of the global average pool.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.

    Examples
    --------
    >>> import torch
    >>> from askew.encoders import ResNet20
    >>> ResNet20().eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    >>> sum(p.numel() for p in ResNet20(out=10).parameters())  # the original classifier
    269722
    """

    # The names of the layers are those of published weight files, here and in ResNet18.
    def __init__(self, out: int | None = None) -> None:
        super().__init__()
        self.out = 64 if out is None else checks.check_size(out, "out of ResNet20")
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, 3, 1, None)
        self.layer2 = _stage(16, 32, 3, 2, _PaddedShortcut(8))
        self.layer3 = _stage(32, 64, 3, 2, _PaddedShortcut(16))
        self.linear = None if out is None else nn.Linear(64, out)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one point per image: ``(n, 3, height, width) -> (n, out)``."""
        _check_images(x, 3, None, self.conv1.weight, "ResNet20")
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x))).mean((-2, -1))
        return x if self.linear is None else self.linear(x)


class ResNet18(nn.Module):
    r"""The residual network of 18 layers for ImageNet photographs, 64-128-256-512 channels, 512 features.

    Each block is x -> relu(s(x) + F(x)) with two 3 x 3 convolutions F; where the size changes, the shortcut s
    is a strided 1 x 1 convolution. Use it with trained weights (:func:`load_weights`) at about 224 x 224;
    it shrinks an image 32 times, so that 32 x 32 images are better served by :class:`ResNet20`.

    Published weights expect pixels in [0, 1], normalised by :data:`IMAGENET_MEAN` and :data:`IMAGENET_STD`.
    The names of the layers are the usual ones (``layer1.0.conv1`` ...).

    Parameters
    ----------
    out
        Number of features of a linear layer on top; None gives the 512 features of the global average pool.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, table 1.

    Examples
    --------
    >>> import torch
    >>> from askew.encoders import ResNet18
    >>> ResNet18(out=32).eval()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 32])
    """

    def __init__(self, out: int | None = None) -> None:
        super().__init__()
        self.out = 512 if out is None else checks.check_size(out, "out of ResNet18")
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, 2, 1, None)
        self.layer2 = _stage(64, 128, 2, 2, _projection(64, 128))
        self.layer3 = _stage(128, 256, 2, 2, _projection(128, 256))
        self.layer4 = _stage(256, 512, 2, 2, _projection(256, 512))
        self.fc = None if out is None else nn.Linear(512, out)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one point per image: ``(n, 3, height, width) -> (n, out)``."""
        _check_images(x, 3, None, self.conv1.weight, "ResNet18")
        x = functional.relu(self.bn1(self.conv1(x)))
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((-2, -1))
        return x if self.fc is None else self.fc(x)


class _Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        residual = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(shortcut + residual)


class _PaddedShortcut(nn.Module):
    """Every second pixel, with as many zero channels before as after the given ones."""

    def __init__(self, margin: int) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.margin, self.margin))


def _projection(inputs: int, outputs: int) -> nn.Sequential:
    """Return a shortcut that halves the size by a strided 1 x 1 convolution."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))


def _stage(inputs: int, outputs: int, blocks: int, stride: int, shortcut: nn.Module | None) -> nn.Sequential:
    """Return blocks of one size, the first of which may change it."""
    first = _Block(inputs, outputs, stride, shortcut)
    return nn.Sequential(first, *(_Block(outputs, outputs, 1, None) for _ in range(blocks - 1)))


def _initialise(network: nn.Module) -> None:
    """Draw the weights of all convolutions so that the size of gradients is kept through the layers."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _dtype(weight: Tensor, x: object) -> torch.dtype | None:
    """Return the dtype that ``x`` must have: that of the weights, or any where autocast converts it."""
    if not isinstance(x, Tensor) or x.dtype == weight.dtype:
        return weight.dtype
    device = x.device.type
    return None if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) else weight.dtype


def _check_rows(x: Tensor, dim: int, weight: Tensor, owner: str) -> None:
    checks.check_points(x, dim, "x", owner, _dtype(weight, x))


def _check_images(x: Tensor, channels: int, size: int | None, weight: Tensor, owner: str) -> None:
    checks.check_points(x, None, "x", owner, _dtype(weight, x))
    if x.ndim != 4 or x.shape[1] != channels or (size is not None and tuple(x.shape[2:]) != (size, size)):
        sides = "height, width" if size is None else f"{size}, {size}"
        mend = "Images with channels last are turned by x.permute(0, 3, 1, 2)."
        raise ValueError(checks.problem(f"x of {owner}", f"of shape (n, {channels}, {sides})", tuple(x.shape), mend))


class LoadedWeights(NamedTuple):
    """What :func:`load_weights` did not load.

    Attributes
    ----------
    missing
        Names of the encoder's tensors that the file has no values for; they keep those they had.
    dropped
        Names in the file that the encoder has no place for.
    """

    missing: tuple[str, ...]
    dropped: tuple[str, ...]


def load_weights(encoder: nn.Module, path: str | os.PathLike[str], *, strict: bool = True) -> LoadedWeights:
    r"""Read trained weights from a local file into an encoder.

    The file is a ``.safetensors`` file or one that ``torch.save`` wrote; the latter is read with
    ``weights_only=True``, so that no code in it can run. It holds a state dict, bare or under
    ``"state_dict"``; a prefix ``module.`` is removed. The last layer of a classifier (``linear`` or ``fc``) is
    left out where the encoder has none of that shape, so that its weights serve any ``out``. The encoder
    is changed only if all is well.

    Parameters
    ----------
    encoder
        The module to fill.
    path
        A file on this machine; nothing is downloaded.
    strict
        Whether a name that only one side has is an error. A shape that differs always is.

    Returns
    -------
    LoadedWeights
        What was not loaded: at most the last layer, where ``strict``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not a weight file or not one of this encoder.

    Examples
    --------
    >>> import tempfile, torch
    >>> from askew.encoders import ResNet20, load_weights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(ResNet20(out=10).state_dict(), f"{folder}/classifier.pt")
    ...     load_weights(ResNet20(), f"{folder}/classifier.pt")
    LoadedWeights(missing=(), dropped=('linear.weight', 'linear.bias'))
    """
    given = _read_weights(Path(path))
    own = encoder.state_dict()
    if all(name.startswith("module.") for name in given) and not any(name.startswith("module.") for name in own):
        given = {name.removeprefix("module."): tensor for name, tensor in given.items()}
    source = f"the weights in {os.fspath(path)!r}"

    other_head = {name.split(".")[0] for name in HEADS if name in given and _shape(own, name) != given[name].shape}
    head = {name for name in HEADS if name.split(".")[0] in other_head}
    kept = {name: tensor for name, tensor in given.items() if name in own and name not in head}
    if not kept:
        must = f"named as those of {type(encoder).__name__}, such as {next(iter(own), None)!r}"
        raise ValueError(checks.problem(source, must, f"names such as {next(iter(given))!r}"))
    for name, tensor in kept.items():
        if tensor.shape != own[name].shape:
            must = f"of the shapes of {type(encoder).__name__}, which has {name} of shape {tuple(own[name].shape)}"
            mend = "Build the encoder with the sizes of the file."
            raise ValueError(checks.problem(source, must, tuple(tensor.shape), mend))

    # Files older than this counter of batch normalisation lack it, and nothing here depends on it.
    missing = tuple(name for name in own if name not in kept and not name.endswith("num_batches_tracked"))
    dropped = tuple(name for name in given if name not in kept)
    if strict:
        _refuse(source, "complete", "no values for", [name for name in missing if name not in head])
        _refuse(source, f"those of {type(encoder).__name__}", "unknown names", [n for n in dropped if n not in head])
    encoder.load_state_dict(kept, strict=False)
    return LoadedWeights(missing, dropped)


def _shape(tensors: dict[str, Tensor], name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None


def _refuse(source: str, must: str, label: str, names: list[str]) -> None:
    """Raise if there are ``names``, showing the first three."""
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        mend = "Load what fits with strict=False."
        raise ValueError(checks.problem(source, must, f"{label} {', '.join(names[:3])}{more}", mend))


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return the named tensors of a file."""
    if not path.is_file():
        raise FileNotFoundError(checks.problem("path of load_weights", "a file", repr(str(path))))
    safetensors = None
    if path.suffix == ".safetensors":
        safetensors = checks.optional_import("safetensors.torch", "safetensors", "Reading a .safetensors file")
    try:
        if safetensors is not None:
            content = safetensors.load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # Readers raise many kinds for a file that is not theirs; all mean the same here.
        raise ValueError(_not_weights(path, f"a file that cannot be read as such ({type(error).__name__})")) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise ValueError(_not_weights(path, f"a {type(content).__name__}" if content != {} else "an empty dict"))
    for name, tensor in content.items():
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise ValueError(_not_weights(path, f"a dict with {name!r}: {type(tensor).__name__}"))
    return content


def _not_weights(path: Path, got: str) -> str:
    must = "a weight file: a state dict of tensors, bare or under 'state_dict'"
    return checks.problem(f"{str(path)!r}", must, got, "Save one with torch.save(encoder.state_dict(), path).")
