"""The state of a training run, one step of it, and its checkpoints."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from askew import checks
from askew.divergences import Divergence, pairwise_tolerance
from askew.losses import LabelLoss, Loss
from askew.training.batches import Batches, LoaderBatches
from askew.training.checkpoint import HINT, load_optimizer, read_checkpoint, write_checkpoint
from askew.training.history import History, TrainingDivergedError
from askew.training.runtime import Batch, Objective, OneProcess, random_state, set_random_state, step_work, threads_for
from askew.training.schedules import Schedule

# Rows that calibrate the scales of a model before training.
CALIBRATION_ROWS = 5000
# Steps between two copies of the weights to fall back on.
SNAPSHOT_STEPS = 50
# A loss this many times that of the first steps, in so many steps in a row, has diverged.
DIVERGED_FACTOR, DIVERGED_STEPS = 1e3, 10

Callback = Callable[[Divergence, History], object]
MakeOptimizer = Callable[[Sequence[nn.Parameter]], Optimizer]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Settings:
    """What the course of a run depends on; a checkpoint of other settings is refused."""

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
    """The numbers of a run."""

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


class _Adam(torch.optim.Adam):
    """Adam without the decorators that import torch's compiler: a second, as long as a small training itself."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


@dataclass(eq=False)
class Run:
    """One training run of a model, from its first step or from a checkpoint."""

    model: Divergence
    loss: Objective
    source: Batches
    settings: Settings
    validation: Batches | Callable[[Divergence], float] | None
    make_optimizer: MakeOptimizer | None
    schedule: Schedule
    callback: Callback | None
    processes: OneProcess
    device: torch.device
    compile: bool = False

    def __post_init__(self) -> None:
        model, loss, settings, processes = self.model, self.loss, self.settings, self.processes
        self.generator = self.source.generator if isinstance(self.source, LoaderBatches) else None
        self.objective = loss
        if self.compile:
            self.objective = torch.compile(loss.of if isinstance(loss, Loss) else loss)
        # A loss may have parameters as well, such as a temperature.
        modules = [model, loss] if isinstance(loss, nn.Module) else [model]
        self.parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
        if not self.parameters:
            hint = "Euclidean and closed-form divergences are ready as they are."
            raise ValueError(checks.message("model of fit", "one with parameters to learn", repr(model), hint))
        self.size = sum(parameter.numel() for parameter in model.parameters())
        self.optimizer = (self.make_optimizer or self._adam)(self.parameters)
        self.peaks = [float(group["lr"]) for group in self.optimizer.param_groups]
        seed = settings.seed if settings.seed is not None else int(torch.randint(2**62, ()))
        self.counters = Counters(order_seed=processes.all_gather(seed)[0])
        processes.broadcast_weights(modules)
        self.best: Weights | None = None
        self.good = _copy(model)
        # The random state at the start of the epoch, and that of a checkpoint until it is restored.
        self.epoch_random = random_state(self.device, self.generator)
        self.resumed: dict[str, Tensor] | None = None
        self.started = time.monotonic()

    def _adam(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        # One kernel for all parameters: these models have many small ones.
        fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
        return _Adam(parameters, lr=self.settings.learning_rate, fused=fused or None)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return bool(self.counters.stopped)

    @property
    def history(self) -> History:
        """The course of the run so far."""
        return History(self.counters.rows, self.counters.stopped or "running", self.counters.best_step)

    # ------------------------------------------------------------------ the course of it

    @torch.no_grad()
    def calibrate(self) -> None:
        """Set the scales of the model by a sample of the data."""
        calibrate = getattr(self.model, "calibrate", None)
        if calibrate is None or not isinstance(self.loss, Loss):
            return
        batch = self.source.sample(CALIBRATION_ROWS)
        self._check_parts(batch)
        self.model.eval()
        first, second, targets = self.loss.calibration(*batch)
        calibrate(first, second, targets, self.loss.median)
        self.processes.broadcast_weights([self.model])  # with loaders, each process has seen other rows
        self.good = _copy(self.model)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches that are left, epoch after epoch, until the run is finished."""
        self.model.train()
        while not self.finished:
            counters = self.counters
            skip, epoch, before = counters.step_in_epoch, counters.epoch, counters.step
            if skip == 0:
                self._restore_random()
                self.epoch_random = random_state(self.device, self.generator)
            else:  # resumed in the middle of an epoch, whose order was drawn at its start
                set_random_state(self.epoch_random, self.device, self.generator)
            batches = self.source.epoch(counters.order_seed, epoch, skip, self._restore_random)
            for batch in self._in_step(self.source, batches):
                yield batch
                if self.finished or counters.epoch != epoch:
                    break
            if counters.step == before and skip == 0:
                raise ValueError(checks.message("data of fit", "a loader that gives batches in each epoch", "none"))
            if counters.epoch == epoch and not self.finished:  # a loader of unknown length
                self._end_epoch()

    def _in_step(self, source: Batches, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches of an epoch; loaders of several processes are read in step, arrays are the same in all."""
        return self.processes.in_step(batches) if isinstance(source, LoaderBatches) else batches

    def _restore_random(self) -> None:
        """Restore the random state of the checkpoint, once."""
        if self.resumed is not None:
            set_random_state(self.resumed, self.device, self.generator)
            self.resumed = None

    def take_step(self, batch: Batch) -> float:
        """Take one step of the optimiser, end the epoch if it is over, and return the loss before the step."""
        counters, settings = self.counters, self.settings
        factor = self.schedule(counters.step, settings.steps)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        self.optimizer.zero_grad(set_to_none=True)
        # A loss of order hardly sees the third digit of the smallest entries of a row, and their gradient does not
        # depend on it; computing near pairs to one digit takes half the time.
        rtol = self.loss.near_rtol if isinstance(self.loss, Loss) and self.loss.ranks else None
        with self._threads(batch):
            with pairwise_tolerance(rtol) if rtol else contextlib.nullcontext():
                result = self._loss(batch, self.source)
            value = self.processes.broadcast(float(result.detach()))  # all processes must decide the same
            self._check_loss(value)
            result.backward()
            self.processes.add_gradients(self.model, self.loss)
            if settings.clip is not None:
                nn.utils.clip_grad_norm_(self.parameters, settings.clip)
            self.optimizer.step()
        counters.step += 1
        counters.step_in_epoch += 1
        counters.loss_sum += value
        if counters.step_in_epoch == self.source.per_epoch or counters.step == settings.steps:
            self._end_epoch()
        return value

    def _threads(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        """Return a context with one thread for a small step, unless it is compiled for a number of threads."""
        if self.compile or self.device.type != "cpu":
            return contextlib.nullcontext()
        # An image counts as often as it has rows: weights of convolutions are used again and again.
        rows = max(part.numel() // part.shape[-1] if part.ndim > 1 and part.numel() else len(part) for part in batch)
        return threads_for(step_work(rows, self.size, isinstance(self.loss, LabelLoss)))

    def _loss(self, batch: Batch, source: Batches) -> Tensor:
        self._check_parts(batch)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.settings.autocast):
            return self.processes.loss(self.objective, self.model, batch, not isinstance(source, LoaderBatches))

    def _check_parts(self, batch: Batch) -> None:
        if isinstance(self.loss, Loss) and len(batch) != len(self.loss.parts):
            must = f"of {len(self.loss.parts)} parts: {', '.join(self.loss.parts)}"
            raise ValueError(checks.message("a batch given to fit", must, f"{len(batch)} parts"))

    def _check_loss(self, value: float) -> None:
        """Raise if the loss shows that the weights have diverged; otherwise copy them now and then."""
        counters = self.counters
        if counters.step < DIVERGED_STEPS:
            counters.first_loss = max(counters.first_loss, abs(value))
        high = counters.first_loss > 0 and abs(value) > DIVERGED_FACTOR * counters.first_loss
        counters.high_losses = counters.high_losses + 1 if high else 0
        if not math.isfinite(value):
            self._give_up(value)
        if counters.high_losses >= DIVERGED_STEPS:
            self._give_up(f"{value:g} after {counters.first_loss:g} at the start")
        if counters.step % SNAPSHOT_STEPS == 0 and not high:
            self._check_weights()
            self.good = _copy(self.model)

    def _check_weights(self) -> None:
        """Raise if weights are NaN or infinite, before they are kept: a finite loss may have a gradient that is not.

        It would cost too much in each step, and the loss of the next step shows it anyway.
        """
        if self.processes.any(not self._finite()):
            self._give_up("NaN or infinite weights")

    def _finite(self) -> bool:
        return all(bool(torch.isfinite(p).all()) for p in self.parameters)

    def _give_up(self, got: object) -> NoReturn:
        """Restore good weights and raise."""
        self.model.load_state_dict(self.best or self.good)
        self.model.eval()
        what = f"the loss of step {self.counters.step + 1} of fit"
        must = "finite and of the size it began with"
        hint = "The model has its last good weights. Give a smaller learning_rate or clip=1.0, or look for outliers."
        self.counters.stopped = "diverged"
        raise TrainingDivergedError(checks.message(what, must, got, hint), self.history)

    # ------------------------------------------------------------------ the end of an epoch

    def _end_epoch(self) -> None:
        """Compute the validation score, add a row to the history and call the callback."""
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
            with self._evaluating():
                row["validation"] = self.processes.broadcast(self._score())
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

    def _score(self) -> float:
        if not isinstance(self.validation, Batches):
            return float(self.validation(self.model)) if self.validation else math.nan
        total = count = 0.0
        for batch in self._in_step(self.validation, self.validation.epoch(0, 0, 0, lambda: None)):
            rows = batch[0].shape[0]
            if isinstance(self.validation, LoaderBatches):
                rows = sum(self.processes.all_gather(rows))
            total += float(self._loss(batch, self.validation)) * rows
            count += rows
        return -total / count

    def _call_back(self, callback: Callback, row: dict[str, float]) -> None:
        with self._evaluating():
            stop = callback(self.model, self.history)
        for name, value in row.items():
            if type(value) not in (int, float):  # a checkpoint holds plain numbers
                try:
                    row[name] = float(value)
                except (TypeError, ValueError):
                    what = f"{name} in the row of the history that callback of fit has changed"
                    raise TypeError(checks.message(what, "a number", type(value).__name__)) from None
        if self.processes.any(bool(stop)) and not self.finished:
            self.counters.stopped = "callback"

    def close(self) -> None:
        """Leave the model with the best weights, ready for use; a run that has not finished was interrupted."""
        self._check_weights()  # no loss has followed the last step
        self.model.eval()
        self.counters.stopped = self.counters.stopped or "interrupted"
        if self.best is not None:
            self.model.load_state_dict(self.best)

    # ------------------------------------------------------------------ checkpoints

    def save(self, path: Path) -> None:
        """Write the state of the run to a file; the main process does it for all.

        If the weights are not finite, the existing file is kept.
        """
        self._check_weights()
        own = {"epoch_random": self.epoch_random, "random": random_state(self.device, self.generator)}
        _, *others = self.processes.all_gather(own)
        if self.processes.is_main:
            now = time.monotonic()
            self.counters.seconds += now - self.started
            self.started = now
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
            write_checkpoint(path, tree)
        self.processes.all_gather(None)  # nobody goes on before the file is there

    def load(self, path: Path) -> None:
        """Resume the run that a file holds."""
        before = _copy(self.model)
        tree = read_checkpoint(path, asdict(self.settings), asdict(self.counters))
        try:
            counters = Counters(**tree["counters"])
            if not 0 <= counters.step_in_epoch <= counters.step <= self.settings.steps:
                raise ValueError("its steps are not those of this run")
            load_optimizer(self.optimizer, tree["optimizer"])
            if isinstance(self.loss, nn.Module):
                self.loss.load_state_dict(tree["loss"])
            states = [tree, *tree.get("others", [])]  # files of older versions have none
            # Each process has its own, unless another number of processes wrote the file; then all take the first.
            own = states[self.processes.rank if len(states) == self.processes.size else 0]
            for name, state in itertools.product(("cpu", "loader"), (own["epoch_random"], own["random"])):
                if name == "cpu" or name in state:
                    torch.Generator().set_state(state[name])
            for weights in (tree["best"], tree["model"]):  # the last ones stay
                if weights is not None:
                    self.model.load_state_dict(weights)
                    if not self._finite():
                        raise ValueError("its weights are NaN or infinite")
        except Exception as error:  # torch raises many kinds; all mean that the state does not fit
            self.model.load_state_dict(before)
            what, must = f"the checkpoint {str(path)!r}", "of the same model and optimiser"
            raise ValueError(checks.message(what, must, "another one", f"({error}) {HINT}")) from error
        self.counters, self.best, self.good = counters, tree["best"], _copy(self.model)
        self.epoch_random, self.resumed = own["epoch_random"], own["random"]


def _copy(model: nn.Module) -> Weights:
    return {name: copy.deepcopy(tensor.detach()) for name, tensor in model.state_dict().items()}
