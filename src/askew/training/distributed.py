"""Training by several processes: one batch and one gradient for all. Imported only where there are several."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, distributed, nn

from askew import checks
from askew.divergences import Divergence, Embedded
from askew.losses import AllTriplets, LabelLoss, Loss, PairLoss, TripletLoss
from askew.losses.base import embed
from askew.training.runtime import Batch, Objective, OneProcess, one_number

# Numbers in one message: what is sent is copied.
MESSAGE_NUMBERS = 1 << 23
# Seconds that threads of the process group get when Python ends.
SECONDS_TO_END = 0.1

Own = TypeVar("Own")
# What torch hands from the forward to the backward pass; it takes any attribute.
Context = Any


class ProcessGroup(OneProcess):
    """The processes that train together, as :mod:`torch.distributed` has started them.

    With arrays every process has the same batch and takes a slice of it; with a loader each has its own batches. A
    process encodes its rows and computes their values. The loss is that of the whole batch and the same in all
    processes: values are gathered or, where each term of the loss belongs to one anchor, sums are added. So triplets
    are formed over the whole batch, and loss and gradient are those of one process with that batch, up to rounding.

    A process may have no rows: if a batch has fewer rows than there are processes, or if its loader has run out before
    the others. It then computes with rows borrowed from another process, which gives it the same graph and the same
    messages, and its results count nothing.

    Parameters
    ----------
    device
        Where batches are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()
        # Where messages have to be.
        nccl = distributed.get_backend() == "nccl"
        self.message_device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
        let_group_end()

    # ------------------------------------------------------------------ agreement

    def broadcast(self, number: float) -> float:
        message = torch.tensor([number], dtype=torch.float64, device=self.message_device)
        with reported():
            distributed.broadcast(message, 0)
        return float(message)

    def all_gather(self, own: Own) -> list[Own]:
        values = [own] * self.size
        with reported():
            distributed.all_gather_object(values, own)
        return values

    def any(self, flag: bool) -> bool:
        message = torch.tensor([int(flag)], device=self.message_device)
        with reported():
            distributed.all_reduce(message, distributed.ReduceOp.MAX)
        return bool(message)

    def check_same(
        self, settings: Mapping[str, object], hint: str = "", modules: Mapping[str, object] | None = None
    ) -> None:
        """Raise the same error in all processes if their settings differ: they would wait for each other."""
        shapes: dict[str, object] = {}
        for name, module in (modules or {}).items():
            if isinstance(module, nn.Module):
                for key, t in [*module.named_parameters(), *module.named_buffers()]:
                    kind = "learned" if t.requires_grad else "fixed"
                    shapes[f"{key} of the {name}"] = f"{kind} {t.dtype} {tuple(t.shape)}"
        given = self.all_gather({**settings, **shapes})
        data = [name for name in ("data", "validation") if name in settings]
        names = dict.fromkeys(name for one in given for name in one)  # one may have names that others have not
        for name in [*data, *names]:  # data first: other settings may differ because of it
            first = given[0].get(name)
            for rank, other in enumerate(given):
                if other.get(name) == first:
                    continue
                what, must = f"{name} of fit", "the same in all processes"
                if name in data:  # known by a digest only
                    hint = "Give each the whole arrays, of which it takes its rows, or a loader of its own."
                    raise ValueError(checks.message(what, must, f"other data in process {rank}", hint))
                got = f"{first!r} and, in process {rank}, {other.get(name)!r}"
                raise ValueError(checks.message(what, must, got, hint))

    @torch.no_grad()
    def broadcast_weights(self, modules: Iterable[nn.Module]) -> None:
        for module in modules:
            for tensor in [*module.parameters(), *module.buffers()]:
                # As bytes: backends neither send all dtypes nor respect strides.
                message = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                with reported():
                    distributed.broadcast(message, 0)
                tensor.copy_(message.view(tensor.dtype).view(tensor.shape))

    # ------------------------------------------------------------------ one batch

    def in_step(self, batches: Iterator[Batch]) -> Iterator[Batch | None]:
        while True:
            batch = next(batches, None)
            if not self.any(batch is not None):
                return
            yield batch

    def _sizes(self, rows: int) -> list[int]:
        """Return how many rows each process has."""
        message = torch.tensor([rows], device=self.message_device)
        sizes = [torch.zeros_like(message) for _ in range(self.size)]
        with reported():
            distributed.all_gather(sizes, message)
        return [int(size) for size in sizes]

    def loss(self, loss: Objective, model: Divergence, batch: Batch | None, same_batch: bool) -> Tensor:
        if batch is not None and same_batch:
            batch = tuple(part.tensor_split(self.size)[self.rank] for part in batch)
        rows, sizes = self._rows_to_compute(batch)
        if not isinstance(loss, Loss):  # nothing is known about a function: it is taken for a mean over rows
            return add_over_processes(one_number(loss(model, *rows)) * (sizes[self.rank] / sum(sizes)))
        lengths = [part.shape[0] if part.ndim else 0 for part in rows]
        if len(set(lengths)) > 1:  # messages would be filled up
            got = ", ".join(f"{name} {length}" for name, length in zip(loss.parts, lengths, strict=True))
            raise ValueError(checks.message("the parts of a batch given to fit", "equally long", got))
        if isinstance(loss, LabelLoss) and type(loss).of is LabelLoss.of:
            return one_number(self._of_labels(loss, model, rows, sizes))
        if isinstance(loss, PairLoss) and type(loss).of is PairLoss.of:
            values, targets = (self._gather(part, sizes) for part in (model(rows[0], rows[1]), rows[2]))
            return one_number(loss(values, targets))
        if isinstance(loss, TripletLoss) and type(loss).of is TripletLoss.of:
            pair = torch.stack(loss.values(model, *rows), 1)
            return one_number(loss(*self._gather(pair, sizes).unbind(1)))
        what = f"the method of() of {type(loss).__name__}"
        must = "that of LabelLoss, PairLoss or TripletLoss where several processes train together"
        hint = "Override forward, which gets the values of all, or give fit a function that is a mean over rows."
        raise TypeError(checks.message(what, must, "another one", hint))

    def _rows_to_compute(self, own: Batch | None) -> tuple[Batch, list[int]]:
        """Return rows to compute with, and how many each process has.

        A process without rows gets those of the first process that has some: without rows, encoders may fail,
        divergences have no graph and means are NaN.
        """
        sizes = self._sizes(own[0].shape[0] if own else 0)
        if own and all(sizes):
            return own, sizes
        if not any(sizes):
            raise ValueError(checks.message("a batch given to fit", "of at least one row", "none"))
        donor = next(rank for rank, size in enumerate(sizes) if size)
        message: list[Any] = [tuple(part.cpu() for part in own) if own and self.rank == donor else None]
        with reported():
            distributed.broadcast_object_list(message, donor)
        if own and sizes[self.rank]:
            return own, sizes
        return tuple(part.to(self.device) for part in message[0]), sizes

    def _of_labels(self, loss: LabelLoss, model: Divergence, rows: Batch, sizes: list[int]) -> Tensor:
        # A subclass with its own pairwise is asked for the whole matrix.
        points, divergence = embed(model, rows[0]) if type(model).pairwise is Embedded.pairwise else (rows[0], model)
        # Each process compares its points with all: gradients of a point come from all processes.
        everyone, labels = self._gather(points, sizes, shared=True), self._gather(rows[1], sizes)
        if _is_divided(loss):
            # Own points come first, the others behind them.
            before = sum(sizes[: self.rank])
            matrix = divergence.pairwise(points, everyone.roll(-before, 0))
            return loss.of_rows(_first(matrix, sizes[self.rank]), labels.roll(-before, 0), add_over_processes)
        result: Tensor = loss(self._gather(divergence.pairwise(points, everyone), sizes), labels)
        return result

    def _gather(self, values: Tensor, sizes: list[int], shared: bool = False) -> Tensor:
        """Return the values of all processes, each computed from its own rows; see :class:`_AllGather`."""
        values = _first(values, sizes[self.rank])
        # Backends send few integer dtypes.
        message = values if values.is_floating_point() or values.is_complex() else values.long()
        result: Tensor = _AllGather.apply(message, sizes, self.rank, shared)  # type: ignore[no-untyped-call]
        return result.to(values.dtype)

    @torch.no_grad()
    def add_gradients(self, model: nn.Module, loss: Objective) -> None:
        gradients = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        of_loss = [p.grad for p in (loss.parameters() if isinstance(loss, nn.Module) else ()) if p.grad is not None]
        _add_in_place(gradients + of_loss)
        if isinstance(loss, Loss) and not _is_divided(loss):
            # All processes have computed the same gradient up to rounding; the mean is one of them.
            for gradient in of_loss:
                gradient /= self.size


def _is_divided(loss: object) -> TypeGuard[AllTriplets]:
    """Whether each process computes the terms of its own anchors only."""
    return isinstance(loss, AllTriplets) and loss.divisible


def _first(values: Tensor, rows: int) -> Tensor:
    """Return the first rows; a slice of all of them would be copied in the backward pass."""
    return values if values.shape[0] == rows else values[:rows]


# ---------------------------------------------------------------------- messages


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Raise communication failures of all backends as one RuntimeError that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if "scalar type" in str(error):  # gloo cannot send this dtype; no process is lost
            raise
        hint = (
            "Look at the last output of that process. With checkpoint= the same call goes on from the last checkpoint, "
            "with any number of processes."
        )
        reason = str(error).strip().split("\n")[0]
        what, got = "the processes that train together", f"no answer from one of them ({reason})"
        raise RuntimeError(checks.message(what, "at work until the end", got, hint)) from error


@functools.cache
def let_group_end() -> None:
    """Prevent threads of the process group from aborting the interpreter at shutdown, after all work is done.

    They need Python's lock to release what they have sent, and a thread that waits for the lock at shutdown is killed;
    so they get a moment before. ``destroy_process_group`` ends the threads as well, unless a module of torch that
    optimisers import in their first step holds a reference to the group: its functions have the group at the time of
    import as a default argument. Imported while there is no group, it holds none.
    """
    atexit.register(time.sleep, SECONDS_TO_END)
    group = distributed.group.WORLD
    distributed.group.WORLD = None
    try:
        importlib.import_module("torch.distributed.nn.functional")
    finally:
        distributed.group.WORLD = group


class _AllGather(torch.autograd.Function):
    """The rows of all processes, one after the other; gradients go back to the process that the rows came from.

    With ``shared`` each process continues with another computation, and the gradients of all of them add up.
    Without, all continue with the same one, and each has the whole gradient of its rows already.
    """

    @staticmethod
    def forward(ctx: Context, rows: Tensor, sizes: list[int], rank: int, shared: bool) -> Tensor:
        ctx.place = (sum(sizes[:rank]), sizes[rank], shared)
        # Messages must be equally long: all have the length of the longest.
        message = rows.new_zeros(max(sizes), *rows.shape[1:])
        message[: rows.shape[0]] = rows
        received = [torch.empty_like(message) for _ in sizes]
        with reported():
            distributed.all_gather(received, message)
        return torch.cat([part[:size] for part, size in zip(received, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        start, count, shared = ctx.place
        if shared:
            gradient = gradient.contiguous().clone()
            with reported():
                distributed.all_reduce(gradient)
        return gradient[start : start + count], None, None, None


class _Sum(torch.autograd.Function):
    """The sum over processes. Each takes the gradient of its own term; they are added later, as all gradients are."""

    @staticmethod
    def forward(ctx: Context, term: Tensor) -> Tensor:
        total = term.detach().clone()
        with reported():
            distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> Tensor:
        return gradient


def add_over_processes(term: Tensor) -> Tensor:
    """Return the sum of a tensor over processes; the gradient goes to the term of each of them."""
    result: Tensor = _Sum.apply(term)  # type: ignore[no-untyped-call]
    return result


def _add_in_place(tensors: list[Tensor]) -> None:
    """Replace each tensor by its sum over processes, many in one message: it costs milliseconds, however short."""
    alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for waiting in alike.values():
        while waiting:
            parts = [waiting.pop()]
            size = parts[0].numel()
            while waiting and size + waiting[-1].numel() <= MESSAGE_NUMBERS:
                parts.append(waiting.pop())
                size += parts[-1].numel()
            message = torch.cat([tensor.reshape(-1) for tensor in parts])
            with reported():
                distributed.all_reduce(message)
            for tensor, total in zip(parts, message.split([tensor.numel() for tensor in parts]), strict=True):
                tensor.copy_(total.view_as(tensor))
