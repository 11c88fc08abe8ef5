"""Encoder and divergence learned together from pairs of images with known values."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from askew import checks
from askew.divergences import Divergence, NeuralBregman, make
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments.schedules import SCHEDULES, share

__all__ = [
    "ImageSource",
    "LearnedPairs",
    "PairSet",
    "Standardised",
    "TrainPairs",
    "choose_rate",
    "learn_cell",
    "learn_pairs",
    "make_head",
    "pair_values",
    "shrunk",
    "start_evenly",
    "step_shares",
]

# A table of all images, or a function that makes the images of some codes.
ImageSource = Tensor | Callable[[Tensor], Tensor]
# Pairs a forward pass of the divergence takes when nothing is learned, and images one of the encoder.
EVALUATION_PAIRS, EVALUATION_IMAGES = 4096, 512
# Pairs that set the scales of the divergence before training.
CALIBRATION_PAIRS = 1024


@dataclass(frozen=True, eq=False)
class PairSet:
    """Pairs of images with the values that a divergence is to have.

    Parameters
    ----------
    first, second
        Numbers of images in a table, int64 ``(n,)``; or codes of images that a function makes, int64 ``(n, k)``.
    targets
        Values of D(first, second), float32 ``(n,)``.

    Examples
    --------
    >>> pairs = PairSet(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([2.0, 0.0]))
    >>> len(pairs), pairs.part(torch.tensor([1])).first
    (2, tensor([1]))
    """

    first: Tensor
    second: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            codes = getattr(self, name)
            if codes.dtype != torch.int64 or codes.ndim not in (1, 2):
                must = "int64 of shape (n,) or (n, k)"
                got = f"{codes.dtype} of shape {tuple(codes.shape)}"
                raise ValueError(checks.message(f"{name} of PairSet", must, got, "Convert it with .long()."))
        if self.first.shape != self.second.shape:
            must = f"of the shape of first, {tuple(self.first.shape)}"
            raise ValueError(checks.message("second of PairSet", must, tuple(self.second.shape)))
        if self.targets.dtype != torch.float32 or self.targets.shape != self.first.shape[:1]:
            must = f"float32 of shape ({self.first.shape[0]},), one for each pair"
            got = f"{self.targets.dtype} of shape {tuple(self.targets.shape)}"
            raise ValueError(checks.message("targets of PairSet", must, got, "Convert them with .float()."))

    def __len__(self) -> int:
        return self.targets.shape[0]

    def part(self, rows: Tensor | slice) -> PairSet:
        """Return some of the pairs."""
        return PairSet(self.first[rows], self.second[rows], self.targets[rows])

    def to(self, device: torch.device) -> PairSet:
        """Return the pairs on a device."""
        return PairSet(self.first.to(device), self.second.to(device), self.targets.to(device))

    def distinct(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distinct codes, and where those of ``first`` and ``second`` stand among them."""
        codes, places = torch.unique(torch.cat([self.first, self.second]), dim=0, return_inverse=True)
        return codes, places[: len(self)], places[len(self) :]


# Pairs that are shuffled in each epoch, or a function that gives the pairs of an epoch, in their order.
TrainPairs = PairSet | Callable[[int], PairSet]


@dataclass(frozen=True)
class LearnedPairs:
    """What a training came to.

    Attributes
    ----------
    errors : dict
        Mean squared error on each set of test pairs, in the end.
    curves : dict
        The same after each epoch.
    stopped : str
        "finished" or "diverged".
    loss : float or None
        Mean training loss of the last epoch; None if there was none before it diverged.
    """

    errors: Mapping[str, float]
    curves: Mapping[str, tuple[float, ...]]
    stopped: str
    loss: float | None

    def outcome(self, chosen: Mapping[str, Any] | None = None) -> Outcome:
        """Return it as the outcome of a cell, whose scores have the names of the test sets."""
        labels = {name: f"test MSE, {name}" if len(self.curves) > 1 else "test MSE" for name in self.curves}
        curves = {labels[name]: curve for name, curve in self.curves.items() if curve}
        return Outcome(self.errors, curves, {"stopped": self.stopped, "loss": self.loss, **(chosen or {})})


def learn_pairs(
    encoder: nn.Module,
    divergence: Divergence,
    images: ImageSource,
    train: TrainPairs,
    tests: Mapping[str, PairSet],
    *,
    epochs: int,
    batch: int,
    learning_rate: float,
    seed: int,
    schedule: str = "constant",
    calibrate: bool = True,
) -> LearnedPairs:
    r"""Train encoder f and divergence D together, by Adam on the squared error of D(f(x), f(y)).

    Each distinct image of a batch is encoded once, however many pairs it is in. For an encoder that treats images
    one by one, that is the same loss and the same gradient as encoding both images of every pair. Batch
    normalisation sees the other images of a batch: in training it then takes its mean and variance over the distinct
    images, all in one pass, each counting once. In evaluation it has fixed ones, and nothing depends on the pairing.

    The last weights count: test pairs are watched only. A training that diverges ends with the weights of the last
    epoch that was good.

    Parameters
    ----------
    encoder, divergence
        Trained in place, on the device where the encoder's parameters are.
    images
        All images, ``(n, channels, height, width)``, uint8 (divided by 255 when used) or float; brought to the device
        once. Or a function from codes of images ``(m,)`` or ``(m, k)`` to floating images, such as crops made on
        demand.
    train
        Pairs, shuffled in each epoch; or a function from the number of the epoch to its pairs, which are
        taken in their order.
    tests
        Pairs whose error is measured after each epoch, by name.
    epochs, batch
        Passes over the pairs, and pairs of a step.
    learning_rate
        Its peak.
    seed
        Of the order of the pairs.
    schedule
        One of `askew_paper.experiments.schedules.SCHEDULES`.
    calibrate
        Whether divergences that have fixed scales get them from the first pairs.

    Examples
    --------
    >>> from askew.divergences import make
    >>> images = torch.rand(20, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    >>> first, second = torch.arange(400) // 20, torch.arange(400) % 20
    >>> targets = (images[first] - images[second]).flatten(1).square().sum(1)
    >>> pairs, encoder = PairSet(first, second, targets), nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
    >>> found = learn_pairs(encoder, make("euclidean", 4), images, pairs, {"mse": pairs},
    ...                     epochs=40, batch=50, learning_rate=0.03, seed=0)
    >>> found.errors["mse"] < 0.01, len(found.curves["mse"])
    (True, 40)
    """
    checks.check_size(epochs, "epochs of learn_pairs")
    checks.check_size(batch, "batch of learn_pairs")
    checks.check_positive(learning_rate, "learning_rate of learn_pairs")
    checks.check_name(schedule, SCHEDULES, "schedule of learn_pairs")
    model = nn.ModuleList([_channels_last(encoder), divergence])
    place = next((p.device for p in model.parameters()), torch.device("cpu"))
    divergence.to(place)
    images = images.to(place) if isinstance(images, Tensor) else images
    tests = {name: pairs.to(place) for name, pairs in tests.items()}
    order = torch.Generator().manual_seed(seed)

    def epoch_pairs(epoch: int) -> PairSet:
        if isinstance(train, PairSet):
            return train.part(torch.randperm(len(train), generator=order)).to(place)
        return train(epoch).to(place)

    pairs = epoch_pairs(0)
    if len(pairs) == 0:
        raise ValueError(checks.message("train of learn_pairs", "at least one pair", "none"))
    if calibrate:
        _calibrate(encoder, divergence, images, pairs.part(slice(CALIBRATION_PAIRS)))
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = Adam(parameters, lr=learning_rate, fused=True) if parameters else None
    steps = epochs * math.ceil(len(pairs) / batch)
    taken, stopped, loss = 0, "finished", None
    curves: dict[str, list[float]] = {name: [] for name in tests}
    good = copy.deepcopy(model.state_dict())
    for epoch in range(epochs):
        pairs = pairs if epoch == 0 else epoch_pairs(epoch)
        model.train()
        losses = []
        for some in _batches(pairs, batch):
            if optimizer is not None:
                optimizer.param_groups[0]["lr"] = learning_rate * share(schedule, min(taken, steps - 1), steps)
            losses.append(_step(encoder, divergence, images, some, optimizer))
            taken += 1
            # A look at each value is free where it is in main memory; elsewhere one look at the epoch must do.
            if place.type == "cpu" and not math.isfinite(losses[-1]):
                break
        mean = float(torch.stack(losses).double().mean())
        errors = _errors(encoder, divergence, images, tests) if math.isfinite(mean) else None
        if errors is None:
            stopped = "diverged"
            model.load_state_dict(good)
            break
        loss = mean
        for name, error in errors.items():
            curves[name].append(error)
        good = copy.deepcopy(model.state_dict())
    if any(curves.values()):
        last = {name: curve[-1] for name, curve in curves.items()}
    else:  # diverged at once: what it was at the start
        last = _errors(encoder, divergence, images, tests) or {}
    model.eval()
    return LearnedPairs(last, {name: tuple(curve) for name, curve in curves.items()}, stopped, loss)


def _channels_last(encoder: nn.Module) -> nn.Module:
    """Return the encoder with weights in the layout in which convolutions are about twice as fast on processors."""
    encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return encoder


def _batches(pairs: PairSet, batch: int) -> Iterator[PairSet]:
    """Yield the pairs in their order, some at a time."""
    for start in range(0, len(pairs), batch):
        yield pairs.part(slice(start, start + batch))


def _made(images: ImageSource, codes: Tensor) -> Tensor:
    """Return the images of some codes, as floats in the layout of the encoder."""
    some = images[codes] if isinstance(images, Tensor) else images(codes)
    # The layout first: the fewer the bytes, the cheaper.
    some = some.contiguous(memory_format=torch.channels_last) if some.ndim == 4 else some
    return some.float().div_(255) if some.dtype == torch.uint8 else some


def _step(
    encoder: nn.Module, divergence: Divergence, images: ImageSource, pairs: PairSet, optimizer: Adam | None
) -> Tensor:
    """Take one step on some pairs, and return their loss; one that is not finite changes nothing."""
    codes, first, second = pairs.distinct()
    points: Tensor = encoder(_made(images, codes))
    # Divergences refuse points that are not finite; here they are the end of a training that diverged.
    if points.device.type == "cpu" and not math.isfinite(points.detach().sum()):
        return torch.tensor(math.nan)
    loss = functional.mse_loss(divergence(points[first], points[second]), pairs.targets)
    if optimizer is not None and (loss.device.type != "cpu" or math.isfinite(loss.detach())):
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return loss.detach()


def _calibrate(encoder: nn.Module, divergence: Divergence, images: ImageSource, pairs: PairSet) -> None:
    points, first, second = _encoded(encoder, images, pairs)
    divergence.calibrate(points[first], points[second], pairs.targets)


@torch.no_grad()
def _encoded(encoder: nn.Module, images: ImageSource, pairs: PairSet) -> tuple[Tensor, Tensor, Tensor]:
    """Return the points of all distinct images of some pairs, and the places of the pairs among them."""
    encoder.eval()
    codes, first, second = pairs.distinct()
    return torch.cat([encoder(_made(images, some)) for some in codes.split(EVALUATION_IMAGES)]), first, second


@torch.no_grad()
def pair_values(encoder: nn.Module, divergence: Divergence, images: ImageSource, pairs: PairSet) -> Tensor:
    """Return D(f(x), f(y)) of pairs of images, ``(n,)``; each distinct image is encoded once.

    Parameters
    ----------
    encoder, divergence
        As they are; the encoder is put into evaluation mode. Points that are not finite give NaN.
    images, pairs
        As in :func:`learn_pairs`, on the device of the encoder.

    Examples
    --------
    >>> from askew.divergences import make
    >>> pairs = PairSet(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.zeros(2))
    >>> pair_values(nn.Flatten(), make("euclidean", 1), torch.tensor([1.0, 3.0]).reshape(2, 1, 1, 1), pairs)
    tensor([4., 0.])
    """
    points, first, second = _encoded(encoder, images, pairs)
    if not math.isfinite(points.sum()):
        return points.new_full((len(pairs),), math.nan)
    divergence.eval()
    blocks = zip(first.split(EVALUATION_PAIRS), second.split(EVALUATION_PAIRS), strict=True)
    return torch.cat([divergence(points[i], points[j]) for i, j in blocks])


def _errors(
    encoder: nn.Module, divergence: Divergence, images: ImageSource, tests: Mapping[str, PairSet]
) -> dict[str, float] | None:
    """Return the mean squared error on each set of pairs, or None if one is not finite."""
    found = {}
    for name, pairs in tests.items():
        values = pair_values(encoder, divergence, images, pairs)
        found[name] = float((values - pairs.targets).double().square().mean())
        if not math.isfinite(found[name]):
            return None
    return found


# ---------------------------------------------------------------------- what goes with a training


class Standardised:
    """Images of a table with mean 0 and standard deviation 1 in each channel, made when they are asked for.

    Parameters
    ----------
    pixels
        A table of images, uint8 ``(n, channels, height, width)``; it is on the device once, as bytes.
    known
        The first so many images, those that are learned from, give the mean and the standard deviation.
    device
        Where the images are made.

    Examples
    --------
    >>> pixels = torch.tensor([[10, 30], [50, 50]], dtype=torch.uint8).reshape(2, 1, 1, 2)
    >>> Standardised(pixels, known=1, device=torch.device("cpu"))(torch.tensor([0, 1])).flatten(1)
    tensor([[-1.,  1.],
            [ 3.,  3.]])
    """

    def __init__(self, pixels: Tensor, known: int, device: torch.device) -> None:
        # In two sums over bytes, as a table of floats would be large.
        some = pixels[:known].transpose(0, 1).flatten(1)
        mean = torch.stack([channel.sum(dtype=torch.float64) for channel in some]) / some.shape[1]
        squares = torch.stack([channel.to(torch.int32).square().sum(dtype=torch.float64) for channel in some])
        spread = (squares / some.shape[1] - mean.square()).clamp_min(1e-12).sqrt()
        self.mean, self.spread = (t.float().to(device)[:, None, None] for t in (mean, spread))
        self.pixels = pixels.to(device)

    def __call__(self, codes: Tensor) -> Tensor:
        """Return some of the images, as floats."""
        some = self.pixels[codes].contiguous(memory_format=torch.channels_last)
        return some.float().sub_(self.mean).div_(self.spread)


def shrunk(pixels: Tensor, side: int) -> Tensor:
    """Return images of bytes made smaller, to ``(n, channels, side, side)``, by the mean over squares of pixels.

    Examples
    --------
    >>> shrunk(torch.tensor([[[[0, 2], [4, 6]]]], dtype=torch.uint8), 1).flatten()
    tensor([3], dtype=torch.uint8)
    """
    if pixels.shape[-1] == side:
        return pixels
    if pixels.shape[-1] % side:
        raise ValueError(checks.message("side of shrunk", f"a divisor of {pixels.shape[-1]}", side))
    blocks = pixels.split(EVALUATION_IMAGES)  # the floats of all images at a time would take much memory
    factor = pixels.shape[-1] // side
    return torch.cat([functional.avg_pool2d(some.float(), factor).round().to(torch.uint8) for some in blocks])


def make_head(method: str, dim: int) -> Divergence:
    """Return the divergence of a method: one of the catalogue, or ``"nbd-separable"``.

    That is our network without its quadratic term. Behind an encoder, which can make any positive semi-definite form
    of it, the term is not needed, and while little is known of the images it makes predictions vary.

    Examples
    --------
    >>> len(make_head("nbd", 4).potential.terms), len(make_head("nbd-separable", 4).potential.terms)
    (3, 2)
    """
    return NeuralBregman(dim, quadratic=0) if method == "nbd-separable" else make(method, dim)


def start_evenly(encoder: nn.Module, divergence: Divergence, images: ImageSource, pairs: PairSet) -> None:
    """Draw the weights of an encoder anew, so that signals keep their size and values start at that of the targets.

    The weights that torch draws shrink signals from layer to layer, so that images start with almost the same
    point; a short training does not get over that. The last layer is then scaled by a power of 2 for which
    the mean of D over the pairs is nearest to that of their targets: no divergence has to find its size first. (For
    those that set their own scales, see :meth:`askew.Divergence.calibrate`, that is 1.)

    Parameters
    ----------
    encoder
        Linear layers and convolutions, each but the last followed by ReLU; changed in place.
    divergence, images, pairs
        As in :func:`learn_pairs`.

    Examples
    --------
    >>> from askew.divergences import make
    >>> _ = torch.manual_seed(0)
    >>> images, encoder = torch.randn(200, 1, 8, 8), nn.Sequential(nn.Flatten(), nn.Linear(64, 50))
    >>> pairs = PairSet(torch.arange(100), torch.arange(100, 200), torch.full((100,), 7.0))
    >>> start_evenly(encoder, make("euclidean", 50), images, pairs)
    >>> bool(3.5 < pair_values(encoder, make("euclidean", 50), images, pairs).mean() < 14)
    True
    """
    layers = [part for part in encoder.modules() if isinstance(part, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear" if layer is layers[-1] else "relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    pairs = pairs.part(slice(CALIBRATION_PAIRS)).to(layers[-1].weight.device)
    points, first, second = _encoded(encoder, images, pairs)
    wanted, divergence = float(pairs.targets.mean()), divergence.to(points.device)
    # One that can set its own scales is right as it is, and its points keep their size.
    divergence.calibrate(points[first], points[second], pairs.targets)

    def off(power: int) -> float:
        size = float(divergence(points[first] * 2.0**power, points[second] * 2.0**power).mean())
        return abs(math.log(size / wanted)) if 0 < size < math.inf else math.inf

    with torch.no_grad():
        layers[-1].weight.mul_(2.0 ** min(range(-10, 6), key=off))


def choose_rate(
    build: Callable[[], tuple[nn.Module, Divergence]],
    images: ImageSource,
    train: TrainPairs,
    held_out: PairSet,
    *,
    rates: Sequence[float],
    epochs: int,
    batch: int,
    seed: int,
    schedule: str = "constant",
) -> tuple[float, dict[str, float]]:
    """Return the learning rate whose short training is best on held-out pairs, and the error of each rate.

    Parameters
    ----------
    build
        Makes a new encoder and a new divergence, the same ones each time.
    images, train, epochs, batch, seed, schedule
        As in :func:`learn_pairs`.
    held_out
        Pairs of images that are neither in ``train`` nor in any test.
    rates
        Candidates. A single one is returned without any training.

    Examples
    --------
    >>> from askew.divergences import make
    >>> pairs = PairSet(torch.tensor([0]), torch.tensor([1]), torch.tensor([2.0]))
    >>> def build():
    ...     _ = torch.manual_seed(0)
    ...     return nn.Flatten(), make("mahalanobis", 1)
    >>> images = torch.tensor([1.0, 2.0]).reshape(2, 1, 1, 1)
    >>> choose_rate(build, images, pairs, pairs, rates=[1e-6, 0.1], epochs=3, batch=1, seed=0)[0]
    0.1
    """
    if len(rates) == 1:
        return rates[0], {}
    found = {}
    for rate in rates:
        encoder, divergence = build()
        held = learn_pairs(
            encoder,
            divergence,
            images,
            train,
            {"held": held_out},
            epochs=epochs,
            batch=batch,
            learning_rate=rate,
            seed=seed,
            schedule=schedule,
        )
        found[rate] = held.errors["held"] if held.stopped == "finished" else math.inf
    best = min(found, key=found.__getitem__)
    # A rate at which the training diverged has no error.
    return best, {str(rate): error for rate, error in found.items() if math.isfinite(error)}


def learn_cell(
    cell: Cell,
    build: Callable[[], tuple[nn.Module, Divergence]],
    images: ImageSource,
    trial: TrainPairs,
    held_out: PairSet | None,
    train: TrainPairs,
    test: PairSet,
) -> Outcome:
    """Return the outcome of a cell: its learning rate is chosen on held-out pairs, and the test pairs are only watched.

    Parameters
    ----------
    cell
        Whose options are those of :func:`choose_rate` and :func:`learn_pairs`.
    build, images
        As in :func:`choose_rate`.
    trial, held_out
        Pairs to compare learning rates by: those to learn from, and those to judge by. None where there is one rate.
    train, test
        Pairs of the training itself.
    """
    common = {"batch": cell["batch"], "seed": cell.seed, "schedule": cell["schedule"]}
    judged = test.part(slice(0)) if held_out is None else held_out
    rate, seen = choose_rate(build, images, trial, judged, rates=cell["rates"], epochs=cell["trial_epochs"], **common)
    found = learn_pairs(*build(), images, train, {"mse": test}, epochs=cell["epochs"], learning_rate=rate, **common)
    return found.outcome({"learning_rate": rate, "validation": seen})


def step_shares(
    encoder: nn.Module, divergence: Divergence, images: ImageSource, pairs: PairSet, *, batch: int
) -> dict[str, float]:
    """Return images encoded in a second, and which share of a training step goes to what.

    Parameters
    ----------
    encoder, divergence, images, pairs
        As in :func:`learn_pairs`; on a processor, whose work is over when a call returns. Nothing is learned.
    batch
        Pairs of a step.

    Returns
    -------
    dict
        ``"images per second"``; shares of ``"data"`` (finding the distinct images and making them), ``"encoder"`` and
        ``"divergence"`` (both ways).

    Examples
    --------
    >>> from askew.divergences import make
    >>> pairs = PairSet(torch.arange(8), torch.arange(8).flip(0), torch.ones(8))
    >>> found = step_shares(nn.Flatten(), make("mahalanobis", 4), torch.rand(8, 1, 2, 2), pairs, batch=4)
    >>> sorted(found), round(found["data"] + found["encoder"] + found["divergence"], 6)
    (['data', 'divergence', 'encoder', 'images per second'], 1.0)
    """
    spent = {"data": 0.0, "encoder": 0.0, "divergence": 0.0}
    clock, count = time.perf_counter(), 0

    def note(part: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        spent[part] += now - clock
        clock = now

    _channels_last(encoder).train()
    for some in _batches(pairs, batch):
        clock = time.perf_counter()
        codes, first, second = some.distinct()
        made = _made(images, codes)
        count += codes.shape[0]
        note("data")
        points = encoder(made)
        note("encoder")
        leaf = points.detach().requires_grad_()
        functional.mse_loss(divergence(leaf[first], leaf[second]), some.targets).backward()
        note("divergence")
        if points.requires_grad:
            points.backward(leaf.grad)
        note("encoder")
    total = sum(spent.values())
    return {name: seconds / total for name, seconds in spent.items()} | {"images per second": count / total}
