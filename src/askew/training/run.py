"""A training run: its state, one step of it, and how it is written to a file and taken up again."""

from __future__ import annotations

import contextlib
import copy
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from askew import checks, io
from askew.divergences import Bregman, Divergence
from askew.losses import LabelLoss, Loss, PairLoss
from askew.training.batches import Batches, LoaderBatches
from askew.training.history import History
from askew.training.restoring import check_optimizer, check_parts
from askew.training.schedules import Schedule
from askew.training.surroundings import random_state, set_random_state
from askew.training.team import Batch, Team

__all__ = ["Callback", "Objective", "Run", "Settings", "TrainingDivergedError"]

# Pairs that the scales of a model are set by before training.
CALIBRATION_ROWS = 5000
# Relative error of near pairs of a batch; see _coarse.
TRAINING_RTOL = 0.1
# Steps between two copies of the weights to fall back on.
SNAPSHOT_STEPS = 50
# A loss this many times that of the first steps, so many times in a row, has diverged.
DIVERGED_FACTOR, DIVERGED_STEPS = 1e3, 10

Objective = Loss | Callable[..., Tensor]
Callback = Callable[[Divergence, History], object]
Weights = dict[str, Tensor]
# Settings that checkpoints of older versions do not have, and what they were there.
OLD_SETTINGS = {"schedule": "linear"}


class TrainingDivergedError(RuntimeError):
    """The loss or the weights became NaN or infinite, or the loss a thousand times what it was.

    The model has the last good weights.

    Attributes
    ----------
    history : History
        What happened until then.
    """

    def __init__(self, message: str, history: History) -> None:
        super().__init__(message)
        self.history = history

    def __reduce__(self) -> tuple[type[TrainingDivergedError], tuple[str, History]]:
        """Return what it is made of, so that worker processes can hand it on."""
        return type(self), (self.args[0], self.history)


@dataclass(frozen=True)
class Settings:
    """What a run depends on; a checkpoint of other settings is refused."""

    steps: int
    batch_size: int
    learning_rate: float
    warmup: float
    clip: float | None
    validate_every: int
    patience: int | None
    seed: int | None
    autocast: bool
    data: str
    loss: str
    optimizer: str
    validation: str
    schedule: str


@dataclass
class Counters:
    """Where a run stands: the numbers in it; its tensors are elsewhere."""

    order_seed: int
    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    first_loss: float = 0.0
    high_losses: int = 0
    best_score: float = -math.inf
    best_step: int | None = None
    looks_since_best: int = 0
    stopped: str = ""
    rows: list[dict[str, float]] = field(default_factory=list)


class Run:
    """One training run of a model, from its first step or from a checkpoint."""

    def __init__(
        self,
        model: Divergence,
        source: Batches,
        loss: Objective,
        validation: object,
        settings: Settings,
        optimizer: Callable[[Sequence[nn.Parameter]], Optimizer] | None,
        schedule: Schedule,
        callback: Callback | None,
        team: Team,
    ) -> None:
        self.team = team
        self.model = model
        self.source = source
        self.loss = loss
        self.validation = validation
        self.settings = settings
        self.schedule = schedule
        self.callback = callback
        self.device = device = team.device
        self.generator = source.generator if isinstance(source, LoaderBatches) else None
        # A loss may have something to learn too, such as a temperature.
        modules = [model, loss] if isinstance(loss, nn.Module) else [model]
        self.parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
        if not self.parameters:
            hint = "Euclidean and closed-form divergences are ready as they are."
            raise ValueError(checks.message("model of fit", "one with parameters to learn", repr(model), hint))
        self.optimizer = optimizer(self.parameters) if optimizer else _adam(self.parameters, settings.learning_rate)
        self.peaks = [float(group["lr"]) for group in self.optimizer.param_groups]
        seed = settings.seed if settings.seed is not None else int(torch.randint(2**62, ()))
        # The order of the data is the same in all processes.
        self.counters = Counters(order_seed=self.team.same(seed))
        self.team.same_weights(modules)
        self.best: Weights | None = None
        self.good: Weights = _copy(model)
        self.epoch_random = random_state(device, self.generator)
        self.started = time.monotonic()
        self.resumed: dict[str, Tensor] | None = None

    # ------------------------------------------------------------------ where it stands

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.counters.step

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return bool(self.counters.stopped)

    @property
    def epoch_is_over(self) -> bool:
        """Whether the last step was the last of its epoch, or of the run."""
        return self.counters.step_in_epoch == self.source.per_epoch or self.step == self.settings.steps

    @property
    def history(self) -> History:
        """The course of the run so far."""
        counters = self.counters
        return History(counters.rows, counters.stopped or "interrupted", counters.best_step)

    # ------------------------------------------------------------------ the course of it

    @torch.no_grad()
    def calibrate(self) -> None:
        """Set the scales of the model by some of the data."""
        calibrate = getattr(self.model, "calibrate", None)
        if calibrate is None or not isinstance(self.loss, Loss):
            return
        batch = self.source.sample(CALIBRATION_ROWS)
        self._check(batch)
        self.model.eval()
        if isinstance(self.loss, PairLoss):
            targets = batch[2].clamp_min(0)
            calibrate(batch[0], batch[1], targets)
        elif isinstance(self.loss, LabelLoss):
            points = batch[0]
            order = torch.randperm(points.shape[0], generator=torch.Generator().manual_seed(0)).to(points.device)
            calibrate(points, points[order])
        else:
            calibrate(batch[0], batch[2])
        self.team.same_weights([self.model])  # with loaders, each process has seen other rows
        self.good = _copy(self.model)

    def batches(self) -> Iterator[Batch | None]:
        """Yield the batches that are left, epoch after epoch, until the run is finished.

        None stands for no rows: the loader of another process has more batches than that of this one.
        """
        self.model.train()
        while not self.finished:
            before = self.step
            if self.counters.step_in_epoch == 0:
                self._skipped()
                self.epoch_random = random_state(self.device, self.generator)
            else:  # taken up in the middle of an epoch, whose order was drawn when it began
                set_random_state(self.epoch_random, self.device, self.generator)
            skip, epoch = self.counters.step_in_epoch, self.counters.epoch
            found = self.source.epoch(self.counters.order_seed, epoch, skip, self._skipped)
            for batch in self._in_step(self.source, found):
                yield batch
                if self.finished or self.counters.epoch != epoch:
                    break
            if self.step == before and skip == 0:
                raise ValueError(checks.message("data of fit", "a loader that gives batches in each epoch", "none"))
            if self.counters.epoch == epoch and not self.finished:  # a loader whose length was not known
                self.end_epoch()

    def _in_step(self, source: Batches, found: Iterator[Batch]) -> Iterator[Batch | None]:
        """Return the batches of an epoch; processes go through loaders together, and arrays are alike in all."""
        return self.team.in_step(found) if isinstance(source, LoaderBatches) else found

    def _skipped(self) -> None:
        """Take up the random state of the checkpoint, once."""
        if self.resumed is not None:
            set_random_state(self.resumed, self.device, self.generator)
            self.resumed = None

    def take_step(self, batch: Batch | None) -> float:
        """Take one step of the optimiser and return the loss before it."""
        share = self.schedule(self.step, self.settings.steps)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * share
        self.optimizer.zero_grad(set_to_none=True)
        with _coarse(self.model) if isinstance(self.loss, LabelLoss) else contextlib.nullcontext():
            result = self._loss(batch, self.source)
        value = self.team.same_score(float(result.detach()))  # so that all decide alike
        self._watch(value)
        result.backward()
        self.team.add_gradients(self.model, self.loss)
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self.optimizer.step()
        counters = self.counters
        counters.step += 1
        counters.step_in_epoch += 1
        counters.loss_sum += value
        return value

    def _loss(self, batch: Batch | None, source: Batches) -> Tensor:
        """Return the loss of a batch of some source; each of several processes computes its share of it."""
        if batch is not None:
            self._check(batch)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.settings.autocast):
            if batch is not None and self.team.size == 1:
                return self._alone(batch)
            return self._together(batch, source)

    def _alone(self, batch: Batch) -> Tensor:
        of = self.loss.of if isinstance(self.loss, Loss) else self.loss
        return _number(of(self.model, *batch))

    def _together(self, batch: Batch | None, source: Batches) -> Tensor:
        """Return the loss of a batch of all processes."""
        if batch is not None and not isinstance(source, LoaderBatches):  # all have the same rows; a loader has its own
            batch = tuple(part.tensor_split(self.team.size)[self.team.rank] for part in batch)
        rows, sizes = self.team.share(batch)
        if isinstance(self.loss, Loss):
            return _number(self.team.loss(self.loss, self.model, rows, sizes))
        # Of a function nothing is known. It is taken for a mean over rows.
        return self.team.mean(_number(self.loss(self.model, *rows)), sizes)

    def _check(self, batch: Batch) -> None:
        if isinstance(self.loss, Loss) and len(batch) != len(self.loss.parts):
            must = f"of {len(self.loss.parts)} parts: {', '.join(self.loss.parts)}"
            raise ValueError(checks.message("a batch given to fit", must, f"{len(batch)} parts"))

    def _watch(self, value: float) -> None:
        """Keep good weights at hand; raise if the loss tells that the present ones are not."""
        counters = self.counters
        if counters.step < DIVERGED_STEPS:
            counters.first_loss = max(counters.first_loss, abs(value))
        high = counters.first_loss > 0 and abs(value) > DIVERGED_FACTOR * counters.first_loss
        counters.high_losses = counters.high_losses + 1 if high else 0
        if math.isfinite(value) and counters.high_losses < DIVERGED_STEPS:
            if counters.step % SNAPSHOT_STEPS == 0 and not high:
                self._check_weights()
                self.good = _copy(self.model)
            return
        self._give_up(value if not math.isfinite(value) else f"{value:g} after {counters.first_loss:g} at the start")

    def _check_weights(self) -> None:
        """Raise if weights are NaN or infinite, before they are kept: a finite loss may have a gradient that is not.

        It is too much for each step, which the loss of the next one tells of anyway.
        """
        if self.team.any(not self._finite()):
            self._give_up("NaN or infinite weights")

    def _finite(self) -> bool:
        return all(bool(torch.isfinite(p).all()) for p in self.parameters)

    def _give_up(self, got: object) -> NoReturn:
        """Raise after going back to good weights."""
        counters = self.counters
        self.model.load_state_dict(self.best or self.good)
        self.model.eval()
        what = f"the loss of step {counters.step + 1} of fit"
        hint = "The model has its last good weights. Give a smaller learning_rate or clip=1.0, or look for outliers."
        counters.stopped = "diverged"
        raise TrainingDivergedError(
            checks.message(what, "finite and of the size it began with", got, hint), self.history
        )

    def end_epoch(self) -> None:
        """Close an epoch: compute the validation score, add a row to the history and call the callback."""
        counters, settings = self.counters, self.settings
        counters.epoch += 1
        row: dict[str, float] = {
            "step": counters.step,
            "epoch": counters.epoch,
            "loss": counters.loss_sum / counters.step_in_epoch,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "seconds": counters.seconds + time.monotonic() - self.started,
        }
        counters.step_in_epoch, counters.loss_sum = 0, 0.0
        last = counters.step >= settings.steps
        if last:
            counters.stopped = "finished"
        validated = self.validation is not None and (last or counters.epoch % settings.validate_every == 0)
        if validated or self.callback is not None:
            self._check_weights()  # neither sees weights that are not finite
        if validated:
            row["validation"] = self._score()
            counters.looks_since_best += 1
            if row["validation"] > counters.best_score:
                counters.best_score, counters.best_step = row["validation"], counters.step
                counters.looks_since_best = 0
                self.best = _copy(self.model)
            if not last and settings.patience is not None and counters.looks_since_best >= settings.patience:
                counters.stopped = "early"
        counters.rows.append(row)
        if self.callback is not None:
            self._call_back(self.callback, row)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Put the model in evaluation mode, without gradients; the random state is restored afterwards."""
        random = random_state(self.device, None)
        self.model.eval()
        with torch.no_grad():
            yield
        self.model.train()
        set_random_state(random, self.device, None)

    def _call_back(self, callback: Callback, row: dict[str, float]) -> None:
        counters = self.counters
        with self._evaluating():
            stop = callback(self.model, History(counters.rows, counters.stopped or "running", counters.best_step))
        for name, value in row.items():
            if type(value) not in (int, float):  # a checkpoint holds plain numbers
                try:
                    row[name] = float(value)
                except (TypeError, ValueError):
                    what = f"{name} in the row of the history that callback of fit has changed"
                    raise TypeError(checks.message(what, "a number", type(value).__name__)) from None
        if self.team.any(bool(stop)):
            counters.stopped = counters.stopped or "callback"

    def _score(self) -> float:
        """Return the validation score."""
        with self._evaluating():
            return self.team.same_score(self._own_score())

    def _own_score(self) -> float:
        if isinstance(self.validation, Batches):
            total = count = 0.0
            for batch in self._in_step(self.validation, self.validation.epoch(0, 0, 0, lambda: None)):
                rows = 0 if batch is None else batch[0].shape[0]
                if isinstance(self.validation, LoaderBatches):  # each process has rows of its own
                    rows = sum(self.team.sizes(rows))
                total += float(self._loss(batch, self.validation)) * rows
                count += rows
            return -total / count
        return float(self.validation(self.model)) if callable(self.validation) else math.nan

    def close(self) -> None:
        """Leave the model with the best weights, ready for use."""
        self._check_weights()  # the last step had no loss after it
        self.model.eval()
        if self.best is not None:
            self.model.load_state_dict(self.best)

    # ------------------------------------------------------------------ on disk

    def save(self, path: Path) -> None:
        """Write the state of the run to a file, in one piece or not at all; of several processes the first does it.

        What is there stays if the weights are none to go on from.
        """
        self._check_weights()
        own = {"epoch_random": self.epoch_random, "random": random_state(self.device, self.generator)}
        _, *others = self.team.of_all(own)
        if not self.team.leads:
            self.team.wait()
            return
        self.counters.seconds += time.monotonic() - self.started
        self.started = time.monotonic()
        tree = {
            "counters": asdict(self.counters),
            "settings": asdict(self.settings),
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict() if isinstance(self.loss, nn.Module) else {},
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
            **own,
            "others": others,
        }
        tensors, rest = io.flatten(tree)
        path.parent.mkdir(parents=True, exist_ok=True)
        with io.only_writer(path.parent, re.escape(path.name)):
            io.save_tensors(path, tensors, {"kind": "checkpoint", "tree": rest})
        self.team.wait()

    def load(self, path: Path) -> None:
        """Take up the run that a file holds."""
        tensors, description = io.load_tensors(path, "checkpoint")
        what, hint = f"the checkpoint {str(path)!r}", "Delete it to start anew, or give another file."
        mine, before = asdict(self.settings), _copy(self.model)
        tree = check_parts(io.unflatten(tensors, description.get("tree")), before, repr(str(path)))
        for name, value in mine.items():
            found = tree["settings"].get(name, OLD_SETTINGS.get(name))
            if isinstance(found, (Tensor, np.ndarray)) or found != value:
                got = "other data" if name == "data" else f"{name}={found!r}"
                must = "of the same data" if name == "data" else f"of a run with {name}={value!r}"
                raise ValueError(checks.message(what, must, got, hint))
        finite = True
        try:
            check_optimizer(tree["optimizer"], self.optimizer)
            self.optimizer.load_state_dict(tree["optimizer"])
            if isinstance(self.loss, nn.Module):
                self.loss.load_state_dict(tree["loss"])
            for weights in (tree["best"], tree["model"]):  # the last ones stay
                if weights is not None:
                    self.model.load_state_dict(weights)
                    finite = finite and self._finite()
        except Exception as error:  # torch raises many kinds for a state that is no such one; all mean the same here
            self.model.load_state_dict(before)
            must = "of the same model and optimiser"
            raise ValueError(checks.message(what, must, "another one", f"({error}) {hint}")) from error
        if not finite:
            self.model.load_state_dict(before)
            raise ValueError(checks.message(what, "one with finite weights", "NaN or infinite ones", hint))
        self.counters = Counters(**tree["counters"])
        self.best = tree["best"]
        self.good = _copy(self.model)
        states = [tree, *tree["others"]]
        # Each has its own; by another number of processes than the one that wrote it, that of the first is used.
        own = states[self.team.rank if len(states) == self.team.size else 0]
        self.epoch_random, self.resumed = own["epoch_random"], own["random"]


@contextlib.contextmanager
def _coarse(model: nn.Module) -> Iterator[None]:
    """Compute near pairs in the matrices of a batch to one digit, in half the time.

    The gradient of an entry does not depend on it, and a loss of order hardly sees the third digit of the smallest
    entries of a row.
    """
    bregman = [module for module in model.modules() if isinstance(module, Bregman)]
    before = [module.pairwise_rtol for module in bregman]
    for module in bregman:
        module.pairwise_rtol = max(module.pairwise_rtol, TRAINING_RTOL)
    try:
        yield
    finally:
        for module, rtol in zip(bregman, before, strict=True):
            module.pairwise_rtol = rtol


def _adam(parameters: list[nn.Parameter], rate: float) -> Optimizer:
    # One kernel for all parameters: these models have many small ones.
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
    return torch.optim.Adam(parameters, lr=rate, fused=fused or None)


def _copy(model: nn.Module) -> Weights:
    return {name: copy.deepcopy(tensor.detach()) for name, tensor in model.state_dict().items()}


def _number(result: object) -> Tensor:
    """Return the result of a loss, if it is one number."""
    if not (isinstance(result, Tensor) and result.numel() == 1):
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise TypeError(checks.message("the result of the loss of fit", "a tensor with one number", got))
    return result.reshape(())
