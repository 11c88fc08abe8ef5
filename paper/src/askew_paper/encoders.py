"""Residual networks of the image experiments, and their published weights from local files."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from askew import checks
from askew.encoders import check_images
from askew.io import Rebuildable

# Per channel, of pixels in [0, 1]; the published weights of both residual networks expect (x - mean) / std.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# The names of the last layer in published classifiers.
HEADS = ("linear.weight", "linear.bias", "fc.weight", "fc.bias")


class ResNet20(Rebuildable):
    r"""The residual network of 20 layers for CIFAR images, 16-32-64 channels, 64 features.

    Each block is x -> relu(s(x) + F(x)) with two 3 x 3 convolutions F; where the size changes, the shortcut s
    takes every second pixel and pads the channels with zeros ("option A", no parameters). Use it for 32 x 32
    photographs; for larger ones take :class:`ResNet18`.

    Parameters
    ----------
    out
        Number of features of a linear layer on top; None gives the 64 features of the global average pool.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.

    Examples
    --------
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
        check_images(x, 3, None, self.conv1.weight, "ResNet20")
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x))).mean((-2, -1))
        return x if self.linear is None else self.linear(x)


class ResNet18(Rebuildable):
    r"""The residual network of 18 layers for ImageNet photographs, 64-128-256-512 channels, 512 features.

    Each block is x -> relu(s(x) + F(x)) with two 3 x 3 convolutions F; where the size changes, the shortcut s
    is a strided 1 x 1 convolution. Use it with trained weights (:func:`load_weights`) at about 224 x 224; it shrinks
    an image 32 times, so :class:`ResNet20` is better for 32 x 32 images.

    Parameters
    ----------
    out
        Number of features of a linear layer on top; None gives the 512 features of the global average pool.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, table 1.

    Examples
    --------
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
        check_images(x, 3, None, self.conv1.weight, "ResNet18")
        x = functional.relu(self.bn1(self.conv1(x)))
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((-2, -1))
        return x if self.fc is None else self.fc(x)


class _Block(nn.Module):
    """Two convolutions and a shortcut."""

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
    """Draw the weights of all convolutions such that gradients keep their size through the layers."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


# ---------------------------------------------------------------------- weights


def load_weights(encoder: nn.Module, path: str | os.PathLike[str]) -> None:
    r"""Read trained weights from a local file into an encoder; nothing is executed or downloaded.

    The file is one that ``torch.save`` wrote, read with ``weights_only=True``. It holds a state dict, bare or under
    ``"state_dict"``; a prefix ``module.`` is removed. The last layer of a classifier (``linear`` or ``fc``) is left out
    where the encoder has none of that shape, so its weights serve any ``out``. The encoder is changed only if all fits.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(ResNet20(out=10).state_dict(), f"{folder}/classifier.pt")
    ...     load_weights(ResNet20(), f"{folder}/classifier.pt")
    """
    given = {name.removeprefix("module."): tensor for name, tensor in _read_weights(Path(path)).items()}
    shapes = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
    other_head = {name.split(".")[0] for name in HEADS if name in given and shapes.get(name) != given[name].shape}
    # Files older than this counter of batch normalisation lack it, and nothing here depends on it.
    shapes = {
        name: shape
        for name, shape in shapes.items()
        if name.split(".")[0] not in other_head and (name in given or not name.endswith("num_batches_tracked"))
    }
    given = {name: tensor for name, tensor in given.items() if name.split(".")[0] not in other_head}
    found = {name: tensor.shape for name, tensor in given.items()}
    wrong = [name for name in shapes | found if shapes.get(name) != found.get(name)]
    if wrong:
        name = wrong[0]
        must = f"those of {type(encoder).__name__}, which has {name} of shape {tuple(shapes.get(name, ()))}"
        hint = "Build the encoder with the sizes of the file."
        raise ValueError(checks.message(f"the weights in {os.fspath(path)!r}", must, tuple(found.get(name, ())), hint))
    encoder.load_state_dict(given, strict=False)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return the named tensors of a file."""
    if not path.is_file():
        raise FileNotFoundError(checks.message("path of load_weights", "a file", repr(str(path))))
    try:
        content: object = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError:
        raise
    except Exception as error:  # torch raises many kinds for a file that is not its own; all mean the same here
        content = f"a file that cannot be read as such ({type(error).__name__})"
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if isinstance(content, dict) and content and all(isinstance(value, Tensor) for value in content.values()):
        return content
    must = "a weight file: a state dict of tensors, bare or under 'state_dict'"
    got = content if isinstance(content, str) else f"a {type(content).__name__} of something else"
    hint = "Save one with torch.save(encoder.state_dict(), path)."
    raise ValueError(checks.message(f"{str(path)!r}", must, got, hint))
