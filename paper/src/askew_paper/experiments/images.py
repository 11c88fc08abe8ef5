"""Images and their encoders, shared by the image experiments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from askew import checks
from askew.encoders import SmallCNN
from askew_paper.data.files import Source, find
from askew_paper.data.images import load_images
from askew_paper.encoders import IMAGENET_MEAN, IMAGENET_STD, ResNet18, ResNet20, load_weights

# Images that are made here, for the toy scale.
DRAWN = "drawn"
CLASSES = 10
# Images of one forward pass in evaluation: with several times as many they no longer fit into the processor's caches.
IMAGES = 64
# Images that set the scales of encoder and divergence before training.
CALIBRATION_IMAGES = 256
WEIGHTS = {
    "resnet20": Source(
        "resnet20/resnet20-12fca82f.th",
        "https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models/resnet20-12fca82f.th",
        terms="BSD 2-clause",
    ),
    "resnet18": Source(
        "resnet18/resnet18-f37072fd.pth",
        "https://download.pytorch.org/models/resnet18-f37072fd.pth",
        terms="BSD 3-clause",
    ),
}


# ---------------------------------------------------------------------- images


class Labelled(NamedTuple):
    """Images as they are stored, uint8 ``(n, channels, height, width)``, and their classes, int64 ``(n,)``."""

    pixels: Tensor
    labels: Tensor


def drawn_images(number: int, side: int, seed: int) -> Labelled:
    """Return small images of ten classes: a fixed pattern for each class, and noise by the seed.

    Examples
    --------
    >>> pixels, labels = drawn_images(50, side=8, seed=0)
    >>> pixels.shape, pixels.dtype, len(labels.unique())
    (torch.Size([50, 3, 8, 8]), torch.uint8, 10)
    """
    patterns = torch.rand(CLASSES, 3, side, side, generator=torch.Generator().manual_seed(12))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randperm(number, generator=generator) % CLASSES
    noise = torch.randn(number, 3, side, side, generator=generator)
    return Labelled((patterns[labels] * 255 + 60 * noise).clamp(0, 255).to(torch.uint8), labels)


def some_images(setting: str, split: str, number: int | None, side: int, seed: int) -> Labelled:
    """Return images of a published set, drawn at random, each at most once.

    ``setting`` is one of :data:`askew_paper.data.images.SETS`, or ``"drawn"`` for :func:`drawn_images` of height and
    width ``side``. ``number`` None gives all images.

    Examples
    --------
    >>> len(some_images("drawn", "test", 30, side=8, seed=0).labels)
    30
    """
    if setting == DRAWN:
        return drawn_images(100 if number is None else number, side, 2 * seed + (split == "test"))
    images = load_images(setting, split)
    order = np.random.RandomState(seed).permutation(len(images))[:number]
    return Labelled(torch.from_numpy(images.pixels[order]), torch.from_numpy(images.labels[order]))


class Standardised:
    """Images of a table with mean 0 and standard deviation 1 in each channel, computed on demand.

    The first ``known`` images of the table, uint8 ``(n, channels, height, width)``, give mean and standard deviation.

    Examples
    --------
    >>> pixels = torch.tensor([[10, 30], [50, 50]], dtype=torch.uint8).reshape(2, 1, 1, 2)
    >>> Standardised(pixels, known=1, device=torch.device("cpu"))(torch.tensor([0, 1])).flatten(1)
    tensor([[-1.,  1.],
            [ 3.,  3.]])
    """

    def __init__(self, pixels: Tensor, known: int, device: torch.device) -> None:
        # In two sums over bytes, as a table of floats would be large.
        channels = pixels[:known].transpose(0, 1).flatten(1)
        mean = torch.stack([channel.sum(dtype=torch.float64) for channel in channels]) / channels.shape[1]
        squares = torch.stack([channel.to(torch.int32).square().sum(dtype=torch.float64) for channel in channels])
        spread = (squares / channels.shape[1] - mean.square()).clamp_min(1e-12).sqrt()
        self.mean, self.spread = (t.float().to(device)[:, None, None] for t in (mean, spread))
        self.pixels = pixels.to(device)

    def __call__(self, codes: Tensor) -> Tensor:
        """Return images as floats."""
        images = self.pixels[codes].contiguous(memory_format=torch.channels_last)
        return images.float().sub_(self.mean).div_(self.spread)


def shrunk(pixels: Tensor, side: int) -> Tensor:
    """Return images of bytes reduced to ``(n, channels, side, side)`` by the mean over squares of pixels.

    Examples
    --------
    >>> shrunk(torch.tensor([[[[0, 2], [4, 6]]]], dtype=torch.uint8), 1).flatten()
    tensor([3], dtype=torch.uint8)
    """
    if pixels.shape[-1] == side:
        return pixels
    if pixels.shape[-1] % side:
        raise ValueError(checks.message("side of shrunk", f"a divisor of {pixels.shape[-1]}", side))
    blocks = pixels.split(IMAGES)  # to save memory: floats are four times as large
    factor = pixels.shape[-1] // side
    return torch.cat([functional.avg_pool2d(block.float(), factor).round().to(torch.uint8) for block in blocks])


# ---------------------------------------------------------------------- encoders


class Pixels(nn.Module):
    """An encoder of stored images, bytes or numbers in [0, 1], of any size.

    They are resized, and normalised as the published weights expect it, (x - mean) / std for each channel. So a set
    of images stays in bytes, and is on its device once.

    Examples
    --------
    >>> Pixels(ResNet20(out=4), side=32)(torch.zeros(2, 3, 96, 96, dtype=torch.uint8)).shape
    torch.Size([2, 4])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, side: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.side = checks.check_size(side, "side of Pixels")
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return one embedding per image: ``(n, 3, height, width) -> (n, out)``."""
        # Convolutions are faster in this layout; it is cheaper to change for bytes than for floats.
        x = x.contiguous(memory_format=torch.channels_last)
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        if x.shape[-2:] != (self.side, self.side):
            x = functional.interpolate(x, (self.side, self.side), mode="bilinear", antialias=True)
        points: Tensor = self.encoder((x - self.mean) / self.std)
        return points


def encoder_of(encoder: str | nn.Module, out: int | None, side: int) -> Pixels:
    """Return an encoder of stored images, by its name or from any module.

    It is ``"resnet20"`` or ``"resnet18"``, with published weights from a local file, which an error names if it is
    missing; ``"small-cnn"``, which starts at random; or a module that takes normalised images ``(n, 3, side, side)``. A
    linear layer that starts at random gives ``out`` features; None those of the published network.

    Examples
    --------
    >>> encoder_of("small-cnn", 16, side=8)(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)).shape
    torch.Size([2, 16])
    """
    if isinstance(encoder, str):
        checks.check_name(encoder, ["small-cnn", *WEIGHTS], "name of an encoder")
        if encoder == "small-cnn":
            network: nn.Module = SmallCNN(3, side, out=out or 32, filters=(8, 16), hidden=32)
        else:
            network = (ResNet20 if encoder == "resnet20" else ResNet18)(out)
            load_weights(network, find(WEIGHTS[encoder]))
    else:
        network = encoder
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Pixels(network, side)


@torch.no_grad()
def embed(encoder: Pixels, pixels: Tensor) -> Tensor:
    """Return the embeddings of images in evaluation mode, on the device of the encoder."""
    encoder.eval()
    return torch.cat([encoder(block.to(encoder.mean.device)) for block in pixels.split(IMAGES)])
