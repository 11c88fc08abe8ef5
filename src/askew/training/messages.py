"""What processes that train together send each other, with gradients where there are any."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, distributed

from askew import checks

__all__ = ["add_over_processes", "answered", "gathered", "let_group_end", "message_device", "summed"]

# Numbers in one message between processes, so that the copy of what is sent stays small.
MESSAGE = 1 << 23
# Seconds that threads of the process group get at the end of Python.
LETTING_GO = 0.1
# What torch hands from the forward to the backward pass; it takes any attribute.
Context = Any


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Say in words, and once for all backends, that another process does not answer any more."""
    try:
        yield
    except RuntimeError as error:
        if "scalar type" in str(error):  # gloo cannot send numbers of this kind, and nobody is lost
            raise
        hint = (
            "Look for what that one has said last. With checkpoint= the same call goes on from the last checkpoint, "
            "with any number of processes."
        )
        reason = str(error).strip().split("\n")[0]
        what, got = "the processes that train together", f"no answer from one of them ({reason})"
        raise RuntimeError(checks.message(what, "at work until the end", got, hint)) from error


@functools.cache
def let_group_end() -> None:
    """See to it that threads of the process group do not abort the process when Python ends, after all work is done.

    They need Python's lock to let go of what they have sent, and whoever waits for it then is ended. So at the end they
    get a moment for that. ``destroy_process_group`` ends the threads as well, unless a module of torch that optimisers
    import in their first step keeps the group: its functions have the group of the moment of its import as a default.
    Imported without a group, as by those who import everything first, it keeps none.
    """
    atexit.register(time.sleep, LETTING_GO)
    group = distributed.group.WORLD
    distributed.group.WORLD = None
    try:
        importlib.import_module("torch.distributed.nn.functional")
    finally:
        distributed.group.WORLD = group


def message_device() -> torch.device:
    """Return where messages between processes have to be."""
    if distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


class _Gathered(torch.autograd.Function):
    """The rows of all processes, one after the other; gradients go back to where the rows came from.

    With ``shared`` each process goes on in its own way, so that the gradients of all of them add up. Without, all go
    on alike, and each has the whole gradient of its rows already.
    """

    @staticmethod
    def forward(ctx: Context, rows: Tensor, sizes: list[int], rank: int, shared: bool) -> Tensor:
        ctx.place = (sum(sizes[:rank]), sizes[rank], shared)
        # All are sent at the length of the longest: messages must be equally long.
        longest = max(sizes)
        sent = rows.new_zeros(longest, *rows.shape[1:])
        sent[: rows.shape[0]] = rows
        received = [torch.empty_like(sent) for _ in sizes]
        with answered():
            distributed.all_gather(received, sent)
        return torch.cat([part[:size] for part, size in zip(received, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        start, count, shared = ctx.place
        if shared:
            gradient = gradient.contiguous().clone()
            with answered():
                distributed.all_reduce(gradient)
        return gradient[start : start + count], None, None, None


class _Summed(torch.autograd.Function):
    """The sum over processes. Each then takes the gradient of its own term; these are added later, as all others."""

    @staticmethod
    def forward(ctx: Context, term: Tensor) -> Tensor:
        total = term.detach().clone()
        with answered():
            distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> Tensor:
        return gradient


def summed(term: Tensor) -> Tensor:
    """Return the sum of a tensor over processes; the gradient goes to the term of each of them."""
    result: Tensor = _Summed.apply(term)  # type: ignore[no-untyped-call]
    return result


def gathered(rows: Tensor, sizes: list[int], rank: int, shared: bool = False) -> Tensor:
    """Return the rows of all processes.

    Parameters
    ----------
    rows
        Those of this process.
    sizes
        How many each process has.
    rank
        The number of this process.
    shared
        Whether each process goes on with them in its own way, and not all alike.
    """
    # Backends send few kinds of whole numbers.
    sent = rows if rows.is_floating_point() or rows.is_complex() else rows.long()
    result: Tensor = _Gathered.apply(sent, sizes, rank, shared)  # type: ignore[no-untyped-call]
    return result.to(rows.dtype)


def add_over_processes(tensors: list[Tensor]) -> None:
    """Make each tensor the sum of those of all processes.

    Many travel in one message: one costs milliseconds, however short it is.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        while alike:
            message = [alike.pop()]
            size = message[0].numel()
            while alike and size + alike[-1].numel() <= MESSAGE:
                message.append(alike.pop())
                size += message[-1].numel()
            whole = torch.cat([tensor.reshape(-1) for tensor in message])
            with answered():
                distributed.all_reduce(whole)
            for tensor, part in zip(message, whole.split([tensor.numel() for tensor in message]), strict=True):
                tensor.copy_(part.view_as(tensor))
