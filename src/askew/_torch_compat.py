"""The private parts of torch that askew uses, for which torch has no public name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

__all__ = ["constant_when_compiled", "in_transform"]

Function = TypeVar("Function", bound=Callable[..., Any])


def in_transform() -> bool:
    """Return whether a function transform, such as ``vmap``, or forward-mode differentiation is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def constant_when_compiled(function: Function) -> Function:
    """Let the compiler call a function once and take its result as a constant.

    So does ``torch.compiler.assume_constant_result``, but it imports the whole compiler, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
