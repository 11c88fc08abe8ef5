"""Learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable

from askew import checks

# From the number of a step, counted from 0, and of all steps to the factor of the peak learning rate.
Schedule = Callable[[int, int], float]


def _linear(step: int, steps: int, rise: int) -> float:
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise))


def _cosine(step: int, steps: int, rise: int) -> float:
    if step < rise:
        return (step + 1) / rise
    return (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise))) / 2


def _constant(step: int, steps: int, rise: int) -> float:
    return min(1.0, (step + 1) / rise)


SCHEDULES = {"linear": _linear, "cosine": _cosine, "constant": _constant}


def make_schedule(schedule: str | Schedule, warmup: float) -> Schedule:
    """Return a named schedule that rises linearly over the first ``warmup`` share of the steps; or a function, checked.

    Examples
    --------
    >>> schedule = make_schedule("cosine", 0.1)
    >>> [round(schedule(step, 100), 3) for step in (0, 9, 55, 99)]
    [0.1, 1.0, 0.5, 0.0]
    """
    if isinstance(schedule, str):
        shape = SCHEDULES[checks.check_name(schedule, SCHEDULES, "schedule of fit")]
        return lambda step, steps: shape(step, steps, max(1, round(warmup * steps)))
    if not callable(schedule):
        must = f"one of {', '.join(map(repr, SCHEDULES))} or a function of step and steps"
        raise TypeError(checks.message("schedule of fit", must, type(schedule).__name__))

    def checked(step: int, steps: int) -> float:
        factor = schedule(step, steps)
        if not 0 <= factor < math.inf:
            must = "a factor of the learning rate, not negative and finite"
            raise ValueError(checks.message(f"the schedule of fit at step {step}", must, factor))
        return float(factor)

    return checked
