"""Training of the experiments: plans, learning-rate schedules and one way to :func:`askew.fit`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from askew import checks, pbdl
from askew.divergences import Divergence, Embedded, make
from askew.encoders import Standardize
from askew.losses import LabelLoss
from askew.training import History, TrainingDivergedError, fit
from askew.training.runtime import best_device
from askew_paper.experiment import Cell

# Share of the steps over which the learning rate of "linear" and "cosine" rises.
WARMUP = 0.025

Schedule = Callable[[int, int], float]


# ---------------------------------------------------------------------- schedules


def _progress(step: int, steps: int, warmup: float) -> float:
    """Return a number that rises linearly to 1 during the warm-up and then to 2."""
    rise = max(1, round(warmup * steps))
    return (step + 1) / rise if step < rise else 1 + (step - rise) / max(1, steps - rise)


def _linear(step: int, steps: int) -> float:
    place = _progress(step, steps, WARMUP)
    return min(place, 2 - place)


def _cosine(step: int, steps: int) -> float:
    place = _progress(step, steps, WARMUP)
    return place if place <= 1 else (1 + math.cos(math.pi * (place - 1))) / 2


def _one_cycle(step: int, steps: int) -> float:
    """Rise over 30 % of the steps and fall to almost nothing, both as a cosine."""
    place = _progress(step, steps, 0.3)
    low = 0.04 if place < 1 else 0.0
    return low + (1 - low) * (1 - math.cos(math.pi * place)) / 2


# From a step, counted from 0, and the number of steps to the share of the peak learning rate. The paper's is constant.
SCHEDULES: dict[str, Schedule] = {
    "constant": lambda step, steps: 1.0,
    "linear": _linear,
    "cosine": _cosine,
    "one-cycle": _one_cycle,
}


# ---------------------------------------------------------------------- one training


@dataclass(frozen=True)
class Plan:
    """How a model is trained.

    Parameters
    ----------
    epochs, batch
        Passes over the data, and rows of a batch.
    rates
        Learning rates to choose from, at the peak of the schedule.
    schedule
        One of :data:`SCHEDULES`, or a name that an experiment defines; None for the default of :func:`askew.fit`, a
        rise over 5 % of the steps and then a linear fall to 0.
    trial_epochs
        Epochs after which several rates are compared.

    Examples
    --------
    >>> options = (("batch", 50), ("epochs", 3), ("learning_rate", 0.1), ("schedule", "constant"))
    >>> Plan.of(Cell("sums", "small", "exact", 0, "toy", options))
    Plan(epochs=3, batch=50, rates=(0.1,), schedule='constant', trial_epochs=0)
    """

    epochs: int
    batch: int
    rates: tuple[float, ...]
    schedule: str | None = None
    trial_epochs: int = 0

    @classmethod
    def of(cls, cell: Cell) -> Plan:
        """Return the plan in the options of a cell, which has ``rates`` or a ``learning_rate``."""
        options: dict[str, Any] = dict(cell.options)
        options.setdefault("rates", (options.get("learning_rate"),))
        return cls(**{field.name: options[field.name] for field in fields(cls) if field.name in options})

    def with_best_rate(self, trial_error: Callable[[Plan], float]) -> tuple[Plan, dict[float, float]]:
        """Return the plan with the rate that has the smallest error after a trial, and the error of each rate.

        A single rate needs no trial.
        """
        if len(self.rates) == 1:
            return self, {}
        trials = {rate: replace(self, rates=(rate,), epochs=self.trial_epochs) for rate in self.rates}
        errors = {rate: trial_error(plan) for rate, plan in trials.items()}
        return replace(self, rates=(min(errors, key=errors.__getitem__),)), errors

    def settings(self) -> dict[str, Any]:
        """Return the arguments of :func:`askew.fit` for its first rate."""
        settings: dict[str, Any] = {"epochs": self.epochs, "batch_size": self.batch, "learning_rate": self.rates[0]}
        if self.schedule is not None:
            settings["schedule"] = SCHEDULES[checks.check_name(self.schedule, SCHEDULES, "schedule of a plan")]
        return settings


def train(model: Divergence, data: object, loss: Callable[..., Tensor], **settings: Any) -> History:
    """Train a model by :func:`askew.fit`, whose arguments ``settings`` are; Ctrl-C is an error here.

    It would end the training alone, and an unfinished training must not become a row of results.
    """
    model.to(settings.get("device") or best_device())  # where the points are that it is measured by
    history = fit(model, data, loss, progress=False, **settings)
    if history.stopped == "interrupted":
        raise KeyboardInterrupt
    return history


@dataclass(frozen=True)
class Learned:
    """The course of a training.

    Attributes
    ----------
    stopped : str
        ``"finished"`` or ``"diverged"``.
    losses : tuple of float
        Mean training loss of each epoch.
    errors : dict
        Measurements after each epoch, by name.
    """

    stopped: str
    losses: tuple[float, ...]
    errors: Mapping[str, tuple[float, ...]]

    @property
    def loss(self) -> float | None:
        """The loss of the last epoch; None if the first one diverged."""
        return self.losses[-1] if self.losses else None


def learn(
    model: Divergence,
    data: object,
    loss: Callable[..., Tensor],
    measure: Callable[[], Mapping[str, float]] | None = None,
    **settings: Any,
) -> Learned:
    """Train a model, measure it after each epoch, and come back with good weights if the training diverges.

    These are the weights of the last measured epoch or, before the first one, the last good weights of
    :func:`askew.fit`. A measurement that is not finite is a divergence as well.

    ``measure`` returns errors by name, which choose nothing; ``settings`` are other arguments of :func:`askew.fit`.

    Examples
    --------
    >>> from askew.losses import Regression
    >>> model, (x, y) = make("mahalanobis", 3), torch.randn(2, 100, 3, generator=torch.Generator().manual_seed(0))
    >>> targets = (x - y).square().sum(-1)
    >>> learned = learn(model, (x, y, targets), Regression(), lambda: {"mae": float((model(x, y) - targets).mean())},
    ...                 seed=0, **Plan(epochs=5, batch=20, rates=(0.01,)).settings())
    >>> learned.stopped, len(learned.errors["mae"])
    ('finished', 5)
    """
    measured: list[Mapping[str, float]] = []
    good, bad = copy.deepcopy(model.state_dict()), False

    def after_epoch(_: Divergence, history: History) -> bool:
        nonlocal good, bad
        errors = measure() if measure else {}
        bad = not all(map(math.isfinite, errors.values()))
        if not bad:
            measured.append(errors)
            good = copy.deepcopy(model.state_dict())
        return bad

    try:
        history = train(model, data, loss, callback=after_epoch if measure else None, **settings)
        stopped = "diverged" if bad else history.stopped
    except TrainingDivergedError as error:
        history, stopped = error.history, "diverged"
    if bad or (stopped == "diverged" and measured):
        model.load_state_dict(good)
    losses = tuple(row["loss"] for row in history.rows[: len(history) - bad])
    curves = {name: tuple(errors[name] for errors in measured) for name in (measured[0] if measured else ())}
    return Learned(stopped, losses, curves)


def dead(values: Any) -> dict[str, bool]:
    """Return the mark of a training that ended with D = 0 everywhere, where no gradient is left; nothing otherwise.

    Examples
    --------
    >>> dead(torch.zeros(3)), dead(torch.ones(3))
    ({'dead': True}, {})
    """
    return {} if values.any() else {"dead": True}


# ---------------------------------------------------------------------- from labels


def learn_from_labels(method: str, points: Tensor, labels: Tensor, loss: LabelLoss, plan: Plan, seed: int) -> Embedded:
    """Return a divergence of the catalogue between raw points, trained on standardised ones.

    The seed is that of the weights and of the order of the points.

    Examples
    --------
    >>> from askew.losses import AllTriplets
    >>> points, labels = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    >>> learned = learn_from_labels("nbd", points, labels, AllTriplets(0.2), Plan(2, 20, (1e-3,), "constant"), seed=0)
    >>> learned.pairwise(points, points).shape
    torch.Size([60, 60])
    """
    scaling = Standardize(points.shape[1]).fit(points)
    torch.manual_seed(seed)
    model = make(method, points.shape[1])
    train(model, (scaling(points), labels), loss, seed=seed, device="cpu", **plan.settings())
    return Embedded(scaling, model.eval())


def learn_pbdl(points: Tensor, labels: Tensor, *, seed: int, **settings: Any) -> tuple[Embedded, dict[str, float]]:
    """Return what PBDL learns from pairs of standardised points, and the penalty that it chose.

    The other arguments are those of :func:`askew.pbdl.fit_pairs`.
    """
    scaling = Standardize(points.shape[1]).fit(points)
    fitted = pbdl.fit_pairs(scaling(points).double(), labels, seed=seed, **settings)
    return Embedded(scaling, fitted.divergence.float()), {"penalty": fitted.penalty}
