"""Training by several processes: one batch and one gradient for all. Imported only where there are several."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor, distributed, nn

from askew import checks
from askew.divergences import Divergence, Embedded
from askew.losses import AllTriplets, LabelLoss, Loss, PairLoss, TripletLoss
from askew.losses.base import embed
from askew.training.runtime import Batch, Objective, OneProcess, best_device, one_number

Own = TypeVar("Own")


class ProcessGroup(OneProcess):
    """The processes that train together, as :mod:`torch.distributed` has started them.

    With arrays every process has the same batch and takes a slice of it; with a loader each has its own batches. A
    process encodes its rows and computes their values. The loss is that of the whole batch and the same in all
    processes: values are gathered or, where each term of the loss belongs to one anchor, sums are added. So triplets
    are formed over the whole batch, and loss and gradient are those of one process with that batch, up to rounding.

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
        self.message_device = torch.device("cpu")
        if distributed.get_backend() == "nccl":
            # Without this, what is not given a device goes to the first one in every process.
            torch.cuda.set_device(device if device.index is not None else best_device())
            self.message_device = torch.device("cuda", torch.cuda.current_device())
        let_group_end()

    # ------------------------------------------------------------------ agreement

    def _numbers(self, number: float) -> list[float]:
        """Return the numbers of all processes."""
        message = torch.tensor([number], dtype=torch.float64, device=self.message_device)
        received = [torch.empty_like(message) for _ in range(self.size)]
        with reported():
            distributed.all_gather(received, message)
        return [float(other) for other in received]

    def broadcast(self, number: float) -> float:
        return self._numbers(number)[0]

    def any(self, flag: bool) -> bool:
        return any(self._numbers(flag))

    def all_gather(self, own: Own) -> list[Own]:
        values = [own] * self.size
        with reported():
            distributed.all_gather_object(values, own)
        return values

    def check_same(self, settings: Mapping[str, object], modules: Mapping[str, object] | None = None) -> None:
        """Raise the same error in all processes if their settings differ: they would wait for each other."""
        shapes = {
            f"{key} of the {name}": f"{'learned' if t.requires_grad else 'fixed'} {t.dtype} {tuple(t.shape)}"
            for name, module in (modules or {}).items()
            if isinstance(module, nn.Module)
            for key, t in (*module.named_parameters(), *module.named_buffers())
        }
        given = self.all_gather({**settings, **shapes})
        data = [name for name in ("data", "validation") if name in settings]
        names = dict.fromkeys(name for one in given for name in one)  # one may have names that others have not
        for name in [*data, *names]:  # data first: other settings may differ because of it
            values = [one.get(name) for one in given]
            rank = next((rank for rank, value in enumerate(values) if value != values[0]), 0)
            if rank == 0:
                continue
            got, hint = f"{values[0]!r} and, in process {rank}, {values[rank]!r}", ""
            if name in data:  # known by a digest only
                got = f"other data in process {rank}"
                hint = "Give each the whole arrays, of which it takes its rows, or a loader with as many batches."
            raise ValueError(checks.message(f"{name} of fit", "the same in all processes", got, hint))

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

    def in_step(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            batch = next(batches, None)
            ended = [not there for there in self._numbers(batch is not None)]
            if any(ended) and not all(ended):
                got = f"none left in process {ended.index(True)} and one more in process {ended.index(False)}"
                hint = "A DistributedSampler gives all of them as many."
                raise ValueError(
                    checks.message(
                        "the batches of the loaders given to fit", "the same number in every process", got, hint
                    )
                )
            if batch is None:
                return
            yield batch

    def loss(self, loss: Objective, model: Divergence, batch: Batch, same_batch: bool) -> Tensor:
        rows = tuple(part.tensor_split(self.size)[self.rank] for part in batch) if same_batch else batch
        sizes = [int(size) for size in self._numbers(rows[0].shape[0])]
        if not all(sizes):
            must, got = f"of rows for each of {self.size} processes", f"{' and '.join(map(str, sizes))} rows"
            raise ValueError(checks.message("a batch given to fit", must, got, "Use larger batches."))
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

    def _of_labels(self, loss: LabelLoss, model: Divergence, rows: Batch, sizes: list[int]) -> Tensor:
        # A subclass with its own pairwise is asked for the whole matrix.
        points, divergence = embed(model, rows[0]) if type(model).pairwise is Embedded.pairwise else (rows[0], model)
        # Each process compares its points with all: gradients of a point come from all processes.
        everyone, labels = self._gather(points, sizes, shared=True), self._gather(rows[1], sizes)
        if _is_divided(loss):
            # Own points come first, the others behind them.
            before = sum(sizes[: self.rank])
            matrix = divergence.pairwise(points, everyone.roll(-before, 0))
            return loss.of_rows(matrix, labels.roll(-before, 0), add_over_processes)
        result: Tensor = loss(self._gather(divergence.pairwise(points, everyone), sizes), labels)
        return result

    def _gather(self, values: Tensor, sizes: list[int], shared: bool = False) -> Tensor:
        """Return the values of all processes, each computed from its own rows, to which gradients go back.

        With ``shared`` each process continues with another computation, and the gradients of all of them add up.
        Without, all continue with the same one, and each has the whole gradient of its rows already.
        """
        # Backends send few integer dtypes, and messages must be equally long: all have the length of the longest.
        dtype = values.dtype if values.is_floating_point() or values.is_complex() else torch.long
        message = torch.zeros(max(sizes), *values.shape[1:], dtype=dtype, device=values.device)
        message[: values.shape[0]] = values.detach()
        received = [torch.empty_like(message) for _ in sizes]
        with reported():
            distributed.all_gather(received, message)
        parts = [part[:size].to(values.dtype) for part, size in zip(received, sizes, strict=True)]
        parts[self.rank] = values
        result = torch.cat(parts)
        if shared and result.requires_grad:
            result.register_hook(_sum_over_processes)
        return result

    @torch.no_grad()
    def add_gradients(self, model: nn.Module, loss: Objective) -> None:
        gradients = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        of_loss = [p.grad for p in (loss.parameters() if isinstance(loss, nn.Module) else ()) if p.grad is not None]
        alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for gradient in gradients + of_loss:
            alike.setdefault((gradient.dtype, gradient.device), []).append(gradient)
        for parts in alike.values():  # all in one message: it costs milliseconds, however short
            total = _sum_over_processes(nn.utils.parameters_to_vector(parts))
            nn.utils.vector_to_parameters(total, parts)
        if isinstance(loss, Loss) and not _is_divided(loss):
            # All processes have computed the same gradient up to rounding; the mean is one of them.
            for gradient in of_loss:
                gradient /= self.size


def _is_divided(loss: object) -> TypeGuard[AllTriplets]:
    """Whether each process computes the terms of its own anchors only."""
    return isinstance(loss, AllTriplets) and loss.divisible


# ---------------------------------------------------------------------- messages


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Raise communication failures of all backends as one RuntimeError that says what to do."""
    try:
        yield
    except RuntimeError as error:
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
    atexit.register(time.sleep, 0.1)  # seconds
    group = distributed.group.WORLD
    distributed.group.WORLD = None
    try:
        importlib.import_module("torch.distributed.nn.functional")
    finally:
        distributed.group.WORLD = group


def _sum_over_processes(term: Tensor) -> Tensor:
    total = term.detach().clone(memory_format=torch.contiguous_format)
    with reported():
        distributed.all_reduce(total)
    return total


def add_over_processes(term: Tensor) -> Tensor:
    """Return the sum of a tensor over processes; the gradient goes to the term of each, to be added up later."""
    return _sum_over_processes(term) + (term - term.detach())
