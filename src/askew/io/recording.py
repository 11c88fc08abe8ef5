"""Modules that remember what they were made with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

__all__ = ["Rebuildable", "argument_of"]


@dataclass(frozen=True)
class _Record:
    """What a module was constructed with.

    Values of the arguments, and names of those that are to be read from the attribute of the same name:
    modules and tensors, of which no second reference is kept, and numbers that a user may have changed.
    """

    names: tuple[str, ...]
    values: dict[str, object]


class Rebuildable(nn.Module):
    """A module that remembers the arguments of its constructor.

    Subclasses have nothing to do. The memory is a plain attribute: it is no part of the state dict, and it
    is copied with the module.

    Examples
    --------
    >>> from askew.encoders import Linear
    >>> from askew.io import describe
    >>> describe(Linear(3, out=2))["special"]["dict"]["arguments"]
    {'dict': {'dim': 3, 'out': 2}}
    """

    _record: _Record

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]


def _recording(initialise: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that also records its arguments, if it is the outermost one."""
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def __init__(self: Rebuildable, *arguments: Any, **named: Any) -> None:  # noqa: N807
        initialise(self, *arguments, **named)
        if type(self).__init__ is not __init__:
            return  # called by the constructor of a subclass, whose arguments are the ones that count
        bound = signature.bind(self, *arguments, **named)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        values = {name: _snapshot(value) for name, value in given.items() if not _follows(self, name, value)}
        self._record = _Record(tuple(given), values)

    return __init__


def _held(module: nn.Module, name: str) -> object:
    """Return an attribute of the instance, or None; properties are not asked."""
    for place in (module.__dict__, module._parameters, module._buffers, module._modules):
        if name in place:
            return place[name]
    return None


def _follows(module: nn.Module, name: str, value: object) -> bool:
    """Whether the attribute of this name is the argument, so that it can be read again later."""
    held = _held(module, name)
    if isinstance(value, (bool, int, float, str)):
        return type(held) is type(value) and held == value
    if isinstance(value, (list, tuple)) and any(isinstance(item, nn.Module) for item in value):
        return isinstance(held, nn.ModuleList) and len(held) == len(value)
    return isinstance(value, (nn.Module, Tensor)) and isinstance(held, (nn.Module, Tensor))


def _snapshot(value: object) -> object:
    """Return a copy that later changes of a list do not reach."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return tuple(_snapshot(item) for item in value)
    return value


def argument_of(module: Rebuildable, name: str) -> object:
    """Return what an argument of the constructor would have to be now."""
    record = module._record
    if name in record.values:
        return record.values[name]
    held = _held(module, name)
    return tuple(held) if isinstance(held, nn.ModuleList) else held
