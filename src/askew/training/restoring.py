"""What a checkpoint holds, looked at before a run is changed by it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from askew import io

__all__ = ["check_optimizer", "check_parts"]

PARTS = ("counters", "settings", "model", "loss", "optimizer", "epoch_random", "random")
# Types of the numbers of a run by their names.
COUNTERS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("order_seed", "step", "epoch", "step_in_epoch", "high_losses", "looks_since_best"), (int,)),
    **dict.fromkeys(("seconds", "loss_sum", "first_loss", "best_score"), (int, float)),
    "best_step": (int, type(None)),
    "stopped": (str,),
    "rows": (list,),
}
LARGEST = 1 << 63


def check_parts(tree: Any, weights: Mapping[str, Tensor], shown: str) -> dict[str, Any]:
    """Return the parts of a checkpoint if they are of the kinds that a run writes.

    Parameters
    ----------
    tree
        What the file holds.
    weights
        Those of the model that is to be trained on; the best ones so far must be like them.
    shown
        What to call the file in errors.

    Raises
    ------
    ValueError
        If something is missing, or of another kind.
    """
    if not isinstance(tree, dict) or not all(isinstance(tree.get(name), dict) for name in PARTS) or "best" not in tree:
        raise ValueError(io.damaged(shown, "parts of it are missing"))
    counters = tree["counters"]
    if counters.keys() != COUNTERS.keys():
        raise ValueError(io.damaged(shown, "its numbers have other names"))
    for name, kinds in COUNTERS.items():
        value = counters[name]
        whole = not isinstance(value, int) or (not isinstance(value, bool) and 0 <= value < LARGEST)
        if type(value) not in kinds or not (whole or name == "best_score"):
            raise ValueError(io.damaged(shown, f"its {name} is {str(value)[:40]!r}"))
    numbers = (int, float)
    if not all(isinstance(row, dict) and all(type(v) in numbers for v in row.values()) for row in counters["rows"]):
        raise ValueError(io.damaged(shown, "its rows are none"))
    best = tree["best"]
    if best is not None and not (isinstance(best, dict) and _shapes(best) == _shapes(weights)):
        raise ValueError(io.damaged(shown, "its best weights are of another model"))
    # The random states of the other processes; files of a single one, or of an older askew, have none.
    others = tree.setdefault("others", [])
    if not isinstance(others, list):
        raise ValueError(io.damaged(shown, "its others are none"))
    for state, name in itertools.product([tree, *others], ("epoch_random", "random")):
        try:
            for kind in {"cpu", *state[name]} & {"cpu", "loader"}:
                torch.Generator().set_state(state[name][kind])
        except (KeyError, IndexError, TypeError, RuntimeError):
            raise ValueError(io.damaged(shown, f"its {name} is no state of a generator")) from None
    return tree


def check_optimizer(state: dict[str, Any], optimizer: Optimizer) -> None:
    """Raise unless the state of an optimiser fits it: load_state_dict takes what then fails in the first step."""
    own = optimizer.state_dict()
    groups, found = own["param_groups"], state.get("param_groups")
    if not isinstance(found, list) or not isinstance(state.get("state"), dict) or len(found) != len(groups):
        raise ValueError("it has other groups of parameters")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for mine, theirs in zip(groups, found, strict=True):
        if not isinstance(theirs, dict) or theirs.get("params") != mine["params"]:
            raise ValueError("it has other parameters")
        for name, value in theirs.items():
            if name in mine and name != "params" and _kind(value) != _kind(mine[name]):
                raise ValueError(f"its {name} is of another kind")
    for number, entries in state["state"].items():
        if type(number) is not int or not 0 <= number < len(parameters) or not isinstance(entries, dict):
            raise ValueError("it has a state of other parameters")
        shapes = ((), tuple(parameters[number].shape))
        for name, value in entries.items():
            if isinstance(value, Tensor) and tuple(value.shape) not in shapes:
                raise ValueError(f"its {name} has another shape")


def _shapes(tensors: Mapping[str, Any]) -> dict[str, object]:
    return {name: tuple(t.shape) if isinstance(t, Tensor) else None for name, t in tensors.items()}


def _kind(value: Any) -> object:
    """Return the type of a setting, with those of its parts; whole numbers are numbers."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_kind, value))
    return float if type(value) in (int, float) else type(value)
