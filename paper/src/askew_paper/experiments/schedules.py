"""Learning rates over the steps of a training: the paper's constant one, and those that it is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Adam, Optimizer

__all__ = ["SCHEDULES", "scheduled_adam", "share"]

# Share of the steps over which the learning rate rises; the paper's constant one does not.
WARMUP = 0.025


def share(schedule: str, step: int, steps: int) -> float:
    """Return the share of the peak learning rate that a step is taken with.

    Parameters
    ----------
    schedule
        One of :data:`SCHEDULES`.
    step
        Number of the step, from 0.
    steps
        Number of all steps.

    Examples
    --------
    >>> [round(share("cosine", step, 1000), 3) for step in (0, 24, 500, 999)]
    [0.04, 1.0, 0.52, 0.0]
    """
    return SCHEDULES[schedule](step, steps)


def _constant(step: int, steps: int) -> float:
    return 1.0


def _risen(step: int, rise: int, steps: int) -> float:
    """Return a number that rises linearly to 1 over the first steps; above 1 it tells how much of the rest is over."""
    return (step + 1) / rise if step < rise else 1 + (step - rise) / max(1, steps - rise)


def _linear(step: int, steps: int) -> float:
    place = _risen(step, max(1, round(WARMUP * steps)), steps)
    return min(place, 2 - place)


def _cosine(step: int, steps: int) -> float:
    place = _risen(step, max(1, round(WARMUP * steps)), steps)
    return place if place <= 1 else (1 + math.cos(math.pi * (place - 1))) / 2


def _one_cycle(step: int, steps: int) -> float:
    """Rise over 30 % of the steps and fall to almost nothing, both as a cosine."""
    place = _risen(step, max(1, round(0.3 * steps)), steps)
    low = 0.04 if place < 1 else 0.0
    return low + (1 - low) * (1 - math.cos(math.pi * place)) / 2


SCHEDULES = {"constant": _constant, "linear": _linear, "cosine": _cosine, "one-cycle": _one_cycle}


class _Scheduled(Adam):
    """Adam with a schedule of its own, in place of the one of the training loop."""

    def __init__(self, parameters: Sequence[nn.Parameter], rate: float, schedule: str, steps: int) -> None:
        super().__init__(parameters, lr=rate, fused=True)
        self.rate, self.schedule, self.steps, self.taken = rate, schedule, steps, 0

    def step(self, closure: Any = None) -> Any:
        """Take one step with the learning rate of the schedule."""
        for group in self.param_groups:
            group["lr"] = self.rate * share(self.schedule, self.taken, self.steps)
        self.taken += 1
        return super().step(closure)


def scheduled_adam(rate: float, schedule: str, steps: int) -> Callable[[Sequence[nn.Parameter]], Optimizer]:
    """Return what makes an optimiser for :func:`askew.fit` that follows a schedule, and not that of the loop.

    Parameters
    ----------
    rate
        The peak learning rate.
    schedule
        One of :data:`SCHEDULES`.
    steps
        Number of all steps.

    Examples
    --------
    >>> import torch
    >>> optimizer = scheduled_adam(0.5, "constant", steps=10)([nn.Parameter(torch.zeros(1))])
    >>> optimizer.step()
    >>> optimizer.param_groups[0]["lr"]
    0.5
    """
    return lambda parameters: _Scheduled(parameters, rate, schedule, steps)
