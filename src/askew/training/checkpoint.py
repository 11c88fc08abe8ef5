"""Checkpoint files: write the state of a run, and check what is read before a run is changed by it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from askew import checks, io

HINT = "Delete it to start again, or give another file."
PARTS = ("counters", "settings", "model", "loss", "optimizer", "epoch_random", "random")
# Settings that checkpoints of older versions do not have, and their value there.
OLD_SETTINGS = {"schedule": "linear"}


def write_checkpoint(path: Path, tree: Mapping[str, object]) -> None:
    """Write the state of a run to a file, in one piece or not at all."""
    tensors, rest = io.flatten(tree)
    path.parent.mkdir(parents=True, exist_ok=True)
    with io.only_writer(path.parent, re.escape(path.name)):
        io.save_tensors(path, tensors, {"kind": "checkpoint", "tree": rest})


def read_checkpoint(path: Path, settings: Mapping[str, Any], counters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a run if the file is whole and of a run with these settings; otherwise raise ValueError.

    ``counters`` are those of a new run, whose names and types the file must have.
    """
    tensors, description = io.load_tensors(path, "checkpoint")
    tree: dict[str, Any] = io.unflatten(tensors, description.get("tree"))
    if not isinstance(tree, dict) or not all(isinstance(tree.get(name), dict) for name in PARTS) or "best" not in tree:
        raise ValueError(io.damaged(repr(str(path)), "parts of it are missing"))
    if _types(tree["counters"]) != _types(counters):
        raise ValueError(io.damaged(repr(str(path)), "its counters are those of another program"))
    for name, value in settings.items():
        saved = tree["settings"].get(name, OLD_SETTINGS.get(name))
        if isinstance(saved, (Tensor, np.ndarray)) or saved != value:
            got = "other data" if name == "data" else f"{name}={saved!r}"
            must = "of the same data" if name == "data" else f"of a run with {name}={value!r}"
            raise ValueError(checks.message(f"the checkpoint {str(path)!r}", must, got, HINT))
    return tree


def _types(counters: Mapping[str, Any]) -> dict[str, type]:
    """Return the types of counters by their names; the best step is None before there is one."""
    return {name: type(value) for name, value in counters.items() if name != "best_step"}


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a state that fits the optimiser: ``load_state_dict`` also accepts states that fail in the first step."""
    before = [dict(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for mine, theirs in zip(before, optimizer.param_groups, strict=True):
        for name in mine.keys() - {"params"}:
            if name in theirs and _kind(theirs[name]) != _kind(mine[name]):
                raise ValueError(f"its {name} is of another kind")
    for parameter, entries in optimizer.state.items():
        if not isinstance(parameter, Tensor) or not isinstance(entries, dict):
            raise ValueError("it has a state of other parameters")
        for name, value in entries.items():
            if isinstance(value, Tensor) and value.shape not in ((), parameter.shape):
                raise ValueError(f"its {name} has another shape")


def _kind(value: Any) -> object:
    """Return the type of a setting, with those of its parts; integers count as floats."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_kind, value))
    return float if type(value) in (int, float) else type(value)
