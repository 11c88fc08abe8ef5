"""Encoder and divergence learned together from pairs of images with known values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from askew import checks
from askew.divergences import Divergence, Embedded
from askew.training.runtime import best_device
from askew_paper.experiment import Cell, Outcome, Value
from askew_paper.experiments.images import IMAGES
from askew_paper.experiments.training import Plan, dead, learn
from askew_paper.heads import make_head

# A table of all images, or a function that returns the images of some codes.
ImageSource = Tensor | Callable[[Tensor], Tensor]
# Pairs of one forward pass of the divergence in evaluation.
EVALUATION_PAIRS = 4096
# Pairs that set the scales of the divergence before training.
CALIBRATION_PAIRS = 1024
# Outputs of the encoder of a cell.
EMBEDDING = 128
# Rates, and what deep-div has in addition: after larger steps, or where its points are spread out too far, it is 0
# everywhere, without a gradient.
RATES = (1e-4, 1e-3, 3e-3)
STANDARDISED: dict[str, dict[str, Value]] = {
    "toy": {"rates": RATES, "standardised": True},
    "quick": {"rates": RATES, "standardised": True},
    "medium": {"standardised": True},
}


@dataclass(frozen=True, eq=False)
class PairSet:
    """Pairs of images with their target divergences.

    Examples
    --------
    >>> pairs = PairSet(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([2.0, 0.0]))
    >>> len(pairs), pairs.part(torch.tensor([1])).first
    (2, tensor([1]))
    """

    first: Tensor  # rows of images in a table, int64 (n,), or codes of images that a function makes, int64 (n, k)
    second: Tensor
    targets: Tensor  # values of D(first, second), float32 (n,)

    def __len__(self) -> int:
        return self.targets.shape[0]

    def part(self, rows: Tensor | slice) -> PairSet:
        """Return the pairs in some rows."""
        return PairSet(self.first[rows], self.second[rows], self.targets[rows])

    def to(self, device: torch.device) -> PairSet:
        """Return the pairs on a device."""
        return PairSet(self.first.to(device), self.second.to(device), self.targets.to(device))

    def distinct(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distinct codes, and the positions of ``first`` and ``second`` among them."""
        codes, places = torch.unique(torch.cat([self.first, self.second]), dim=0, return_inverse=True)
        return codes, places[: len(self)], places[len(self) :]


# Pairs that are shuffled in each epoch, or a function from the number of an epoch to its pairs, in their order.
TrainPairs = PairSet | Callable[[int], PairSet]


class PairBatches:
    """The pairs of each epoch in batches, as data for :func:`askew.fit`.

    A batch is the codes of its distinct images, the positions of the first and of the second image of each pair among
    them, and the targets. ``draw`` returns the pairs of an epoch and is called once for each.

    Examples
    --------
    >>> batches = PairBatches(lambda epoch: PairSet(torch.arange(3), torch.zeros(3).long(), torch.ones(3)), batch=2)
    >>> [codes.tolist() for codes, _, _, _ in batches]
    [[0, 1], [0, 2]]
    """

    def __init__(self, draw: Callable[[int], PairSet], batch: int) -> None:
        self.draw, self.batch, self.epoch, self.pairs = draw, batch, 0, draw(0)

    def set_epoch(self, number: int) -> None:
        """Draw the pairs of another epoch."""
        if number != self.epoch:
            self.epoch, self.pairs = number, self.draw(number)

    def __len__(self) -> int:
        return math.ceil(len(self.pairs) / self.batch)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for start in range(0, len(self.pairs), self.batch):
            pairs = self.pairs.part(slice(start, start + self.batch))
            yield *pairs.distinct(), pairs.targets


def pair_loss(images: ImageSource) -> Callable[..., Tensor]:
    """Return the squared error of D(f(x), f(y)) as a loss for :func:`askew.fit` and :class:`PairBatches`."""

    def loss(model: Embedded, codes: Tensor, first: Tensor, second: Tensor, targets: Tensor) -> Tensor:
        points: Tensor = model.encoder(_images(images, codes))
        # Divergences refuse points that are not finite; here they are the end of a training that diverged.
        if points.device.type == "cpu" and not math.isfinite(points.detach().sum()):
            return points.new_tensor(math.nan)
        return functional.mse_loss(model.divergence(points[first], points[second]), targets)

    return loss


def learn_pairs(
    encoder: nn.Module,
    divergence: Divergence,
    images: ImageSource,
    train: TrainPairs,
    test: PairSet,
    plan: Plan,
    seed: int,
    *,
    calibrate: bool = True,
    autocast: bool = False,
    curve: int | None = None,
) -> Outcome:
    """Train encoder f and divergence D together, by Adam on the squared error of D(f(x), f(y)).

    Each distinct image of a batch is encoded once, however many pairs it is in. For an encoder that treats images
    one by one, that is the same loss and the same gradient as encoding both images of every pair. Batch
    normalisation takes its mean and variance over the distinct images of a batch in training, each counting once. In
    evaluation they are fixed, and nothing depends on the pairing.

    The last weights count; the test pairs choose nothing. A training that diverges ends with the weights of the last
    good epoch.

    Encoder and divergence are trained in place, where the encoder's parameters are. ``images`` are all images, ``(n,
    channels, height, width)``, uint8 (divided by 255 when used) or float; or a function from codes to floating images.
    ``train`` are pairs, shuffled in each epoch, or a function from the number of the epoch to its pairs. The error of
    the ``test`` pairs is measured at the end, and that of the first ``curve`` ones, by default all, after each epoch.
    With ``calibrate``, divergences get their scales from the first pairs; with ``autocast`` the encoder is trained in
    bfloat16.

    Examples
    --------
    >>> from askew import make
    >>> images = torch.rand(20, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    >>> first, second = torch.arange(400) // 20, torch.arange(400) % 20
    >>> targets = (images[first] - images[second]).flatten(1).square().sum(1)
    >>> pairs, encoder = PairSet(first, second, targets), nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
    >>> plan = Plan(epochs=40, batch=50, rates=(0.03,), schedule="constant")
    >>> outcome = learn_pairs(encoder, make("euclidean", 4), images, pairs, pairs, plan, seed=0)
    >>> outcome.scores["mse"] < 0.01, len(outcome.curves["test MSE"])
    (True, 40)
    """
    # Convolutions are about twice as fast on processors in this layout.
    encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = Embedded(encoder, divergence)
    place = next(model.parameters()).device
    divergence.to(place)
    images = images.to(place) if isinstance(images, Tensor) else images
    test = test.to(place)
    order = torch.Generator().manual_seed(seed)

    def draw(epoch: int) -> PairSet:
        if isinstance(train, PairSet):
            return train.part(torch.randperm(len(train), generator=order)).to(place)
        return train(epoch).to(place)

    batches = PairBatches(draw, checks.check_size(plan.batch, "batch of a plan"))
    if len(batches.pairs) == 0:
        raise ValueError(checks.message("train of learn_pairs", "at least one pair", "none"))
    if calibrate:
        pairs = batches.pairs.part(slice(CALIBRATION_PAIRS))
        divergence.calibrate(*encoded(encoder, images, pairs), pairs.targets)

    watched = test.part(slice(curve))

    def measure() -> dict[str, float]:
        return {"test MSE": squared_error(pair_values(encoder, divergence, images, watched), watched)}

    settings = plan.settings() | {"calibrate": False, "device": place, "seed": seed, "autocast": autocast}
    learned = learn(model, batches, pair_loss(images), measure if len(watched) else None, **settings)
    values = pair_values(encoder, divergence, images, test)
    chosen = {"stopped": learned.stopped, "loss": learned.loss} | dead(values)
    return Outcome({"mse": squared_error(values, test)}, learned.errors, chosen)


def _images(source: ImageSource, codes: Tensor) -> Tensor:
    """Return the images of some codes, as floats in the layout of the encoder."""
    images = source[codes] if isinstance(source, Tensor) else source(codes)
    # The layout first: it is cheaper for bytes than for floats.
    images = images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images
    return images.float().div_(255) if images.dtype == torch.uint8 else images


@torch.no_grad()
def encoded(encoder: nn.Module, images: ImageSource, pairs: PairSet) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the first and of the second image of each pair; each distinct image is encoded once."""
    encoder.eval()
    codes, first, second = pairs.distinct()
    points = torch.cat([encoder(_images(images, block)) for block in codes.split(IMAGES)])
    return points[first], points[second]


@torch.no_grad()
def pair_values(encoder: nn.Module, divergence: Divergence, images: ImageSource, pairs: PairSet) -> Tensor:
    """Return D(f(x), f(y)) of pairs of images, ``(n,)``; each distinct image is encoded once.

    The encoder is put into evaluation mode. Embeddings that are not finite give NaN. The other arguments are as in
    :func:`learn_pairs`, on the device of the encoder.

    Examples
    --------
    >>> from askew import make
    >>> pairs = PairSet(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.zeros(2))
    >>> pair_values(nn.Flatten(), make("euclidean", 1), torch.tensor([1.0, 3.0]).reshape(2, 1, 1, 1), pairs)
    tensor([4., 0.])
    """
    x, y = encoded(encoder, images, pairs)
    if not math.isfinite(x.sum() + y.sum()):
        return x.new_full((len(pairs),), math.nan)
    divergence.eval()
    blocks = zip(x.split(EVALUATION_PAIRS), y.split(EVALUATION_PAIRS), strict=True)
    return torch.cat([divergence(*block) for block in blocks])


def squared_error(values: Tensor, pairs: PairSet) -> float:
    """Return the mean squared error of predictions for pairs, one or one for each."""
    return float((values - pairs.targets).double().square().mean())


# ---------------------------------------------------------------------- models


def start_evenly(encoder: nn.Module, divergence: Divergence, images: ImageSource, pairs: PairSet) -> None:
    """Initialise an encoder so that signals keep their size and D starts at the size of the targets.

    The default initialisation of torch shrinks signals from layer to layer, so all images start with almost the same
    embedding, and a short training does not recover. The last layer is then scaled by the power of 2 for which the mean
    of D over the pairs is nearest to that of their targets. (It is 1 for divergences that set their scales, see
    :meth:`askew.Divergence.calibrate`.)

    The encoder consists of linear layers and convolutions, each but the last followed by ReLU.
    """
    layers = [part for part in encoder.modules() if isinstance(part, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear" if layer is layers[-1] else "relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    pairs = pairs.part(slice(CALIBRATION_PAIRS)).to(layers[-1].weight.device)
    x, y = encoded(encoder, images, pairs)
    wanted, divergence = float(pairs.targets.mean()), divergence.to(x.device)
    # A divergence that sets its scales is at the right size after this, and the power is 0.
    divergence.calibrate(x, y, pairs.targets)

    def off(power: int) -> float:
        size = float(divergence(x * 2.0**power, y * 2.0**power).mean())
        return abs(math.log(size / wanted)) if 0 < size < math.inf else math.inf

    with torch.no_grad():
        layers[-1].weight.mul_(2.0 ** min(range(-10, 6), key=off))


# ---------------------------------------------------------------------- cells


def choose_rate(
    build: Callable[[], tuple[nn.Module, Divergence]],
    images: ImageSource,
    train: TrainPairs,
    held_out: PairSet,
    plan: Plan,
    seed: int,
    autocast: bool = False,
) -> tuple[Plan, dict[str, float]]:
    """Return a plan with the learning rate whose short training is best on held-out pairs, and the error of each rate.

    ``build`` makes a new encoder and a new divergence, the same ones each time.
    """

    def trial_error(trial: Plan) -> float:
        outcome = learn_pairs(*build(), images, train, held_out, trial, seed, autocast=autocast, curve=0)
        error = outcome.scores["mse"]
        return error if outcome.chosen["stopped"] == "finished" and math.isfinite(error) else math.inf

    best, errors = plan.with_best_rate(trial_error)
    # A rate at which the training diverged has no error.
    return best, {str(rate): error for rate, error in errors.items() if math.isfinite(error)}


def learn_cell(
    cell: Cell,
    make_encoder: Callable[[], nn.Module],
    images: ImageSource,
    known: int,
    train_pairs: Callable[[Tensor, int], PairSet],
    test_pairs: Callable[[Tensor, int], PairSet],
    test: PairSet,
    more: Mapping[str, PairSet] | None = None,
) -> Outcome:
    """Return the outcome of a cell; its learning rate is chosen on held-out images.

    The cell has the options of a plan, ``held_out``, the number of images that the rate is chosen on, and
    ``even_start``, whether to call :func:`start_evenly`. It may have ``standardised``, whether the divergence sees
    standardised embeddings, ``bfloat16``, for the training of the encoder, and ``curve``. The encoder has ``EMBEDDING``
    outputs, and ``known`` images are for training. ``train_pairs`` and ``test_pairs`` return pairs of an epoch, and
    pairs for measuring, from rows of images and a seed. The error of the pairs in ``more`` is a score of that name.
    """
    device, rows, held, options = best_device(), torch.arange(known), cell["held_out"], dict[str, Any](cell.options)
    autocast = options.get("bfloat16", False)

    def epoch_pairs(rows: Tensor, epoch: int) -> PairSet:
        return train_pairs(rows, first_seed(cell) + 10 + epoch)

    def build() -> tuple[nn.Module, Divergence]:
        torch.manual_seed(cell.seed)
        encoder, divergence = make_encoder(), make_head(cell.method, EMBEDDING, options.get("standardised", False))
        if cell["even_start"]:
            start_evenly(encoder.to(device), divergence, images, epoch_pairs(rows[held:], 0))
        return encoder.to(device), divergence

    plan, errors = Plan.of(cell), dict[str, float]()
    if held:
        held_out = test_pairs(rows[:held], first_seed(cell) + 1)
        trial = functools.partial(epoch_pairs, rows[held:])
        plan, errors = choose_rate(build, images, trial, held_out, plan, cell.seed, autocast)
    pairs_of = functools.partial(epoch_pairs, rows)
    # A rate that was good in a short trial may end with D = 0 everywhere; then the next best one has its turn.
    for rate in sorted(map(float, errors), key=lambda rate: errors[str(rate)]) or plan.rates:
        model, plan = build(), replace(plan, rates=(rate,))
        settings = {"autocast": autocast, "curve": options.get("curve")}
        outcome = learn_pairs(*model, images, pairs_of, test, plan, cell.seed, **settings)
        if "dead" not in outcome.chosen:
            break
    chosen = {**outcome.chosen, "learning_rate": rate, "validation": errors}
    others = {name: squared_error(pair_values(*model, images, pairs), pairs) for name, pairs in (more or {}).items()}
    return Outcome({**outcome.scores, **others}, outcome.curves, chosen)


def first_seed(cell: Cell) -> int:
    """Return the seed of the test pairs of a cell; that of held-out pairs and one for each epoch follow."""
    return 100_000 * cell.seed
