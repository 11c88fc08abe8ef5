"""Training by several processes: one batch for all of them, and one gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, distributed, nn

from askew import checks
from askew.divergences import Divergence, Embedded
from askew.losses import LabelLoss, Loss, PairLoss, TripletLoss
from askew.losses.base import AnchorwiseLoss
from askew.training.messages import add_over_processes, answered, gathered, let_group_end, message_device, summed

__all__ = ["Batch", "Team", "tensors_of"]

Batch = tuple[Tensor, ...]
Own = TypeVar("Own")
# Stands for a number that is not known, in a message of numbers.
UNKNOWN = 1 << 62


class Team:
    """The processes that train together, as :mod:`torch.distributed` has started them; one alone where it has not.

    Of arrays, all of them see the same batches, and each takes its share of the rows; of loaders, each has its own, and
    its batches are its share. It encodes its share and computes its values, and the loss is that of the whole batch,
    the same in all processes: values are gathered or, where each term of a loss belongs to one anchor, sums are added.
    So triplets are formed over the whole batch, and loss and gradient are those of one process with the same batch, up
    to rounding.

    A share may be empty: of a batch that has fewer rows than there are processes, or of a loader that has run out
    before the others. Such a process computes with rows that another one lends, so that it has the same graph and takes
    part in all messages, and nothing of it counts.

    Parameters
    ----------
    device
        Where batches are.

    Attributes
    ----------
    rank, size : int
        The number of this process, and how many there are.
    """

    def __init__(self, device: torch.device) -> None:
        together = distributed.is_available() and distributed.is_initialized()
        self.device = device
        self.rank = distributed.get_rank() if together else 0
        self.size = distributed.get_world_size() if together else 1
        if together:
            let_group_end()

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress for all."""
        return self.rank == 0

    # ------------------------------------------------------------------ agreeing

    def same(self, number: int) -> int:
        """Return the number that the first process has."""
        return int(self._of_first(number, torch.int64))

    def same_score(self, score: float) -> float:
        """Return the score that the first process has, so that all stop together."""
        return float(self._of_first(score, torch.float64))

    def _of_first(self, number: float, dtype: torch.dtype) -> float:
        if self.size == 1:
            return number
        box = torch.tensor([number], dtype=dtype, device=message_device())
        with answered():
            distributed.broadcast(box, 0)
        return box.item()

    def of_all(self, own: Own) -> list[Own]:
        """Return what each process has, in their order."""
        if self.size == 1:
            return [own]
        found = [own] * self.size
        with answered():
            distributed.all_gather_object(found, own)
        return found

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return bool(self._largest(int(flag)))

    def most(self, number: int | None) -> int | None:
        """Return the largest of the numbers that the processes have; None if it is not known in one of them."""
        largest = self._largest(UNKNOWN if number is None else number)
        return None if largest == UNKNOWN else largest

    def _largest(self, number: int) -> int:
        if self.size == 1:
            return number
        box = torch.tensor([number], dtype=torch.int64, device=message_device())
        with answered():
            distributed.all_reduce(box, distributed.ReduceOp.MAX)
        return int(box)

    def check_same(self, settings: Mapping[str, object], hint: str = "") -> None:
        """Raise the same error in all processes if they were given other settings or data.

        They would come apart later, and wait for each other.
        """
        found = self.of_all(dict(settings))
        data = [name for name in ("data", "validation") if name in settings]
        names = dict.fromkeys(name for one in found for name in one)  # some may have what others have not
        for name in [*data, *names]:  # of other data other settings may follow
            first = found[0].get(name)
            for rank, other in enumerate(found):
                if other.get(name) == first:
                    continue
                what, must = f"{name} of fit", "the same in all processes"
                if name in data:  # only recognised by what stands here
                    hint = "Give each the whole arrays, of which it takes its rows, or a loader of its own."
                    raise ValueError(checks.message(what, must, f"other data in process {rank}", hint))
                got = f"{first!r} and, in process {rank}, {other.get(name)!r}"
                raise ValueError(checks.message(what, must, got, hint))

    @torch.no_grad()
    def same_weights(self, modules: Iterable[nn.Module]) -> None:
        """Give all processes the parameters and buffers of the first."""
        if self.size == 1:
            return
        for module in modules:
            for tensor in [*module.parameters(), *module.buffers()]:
                # As plain bytes: backends do not send all kinds of numbers, nor look at how they lie in memory.
                box = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                with answered():
                    distributed.broadcast(box, 0)
                tensor.copy_(box.view(tensor.dtype).view(tensor.shape))

    def wait(self) -> None:
        """Go on when all are here, as after a file was written."""
        if self.size > 1:
            with answered():
                distributed.barrier()

    # ------------------------------------------------------------------ one batch

    def in_step(self, batches: Iterator[Batch]) -> Iterator[Batch | None]:
        """Yield the batches of a loader of this process, and None after them until all processes have run out."""
        if self.size == 1:
            yield from batches
            return
        while True:
            batch = next(batches, None)
            if not self.any(batch is not None):
                return
            yield batch

    def sizes(self, rows: int) -> list[int]:
        """Return how many rows each process has."""
        if self.size == 1:
            return [rows]
        boxes = [torch.zeros(1, dtype=torch.int64, device=message_device()) for _ in range(self.size)]
        with answered():
            distributed.all_gather(boxes, torch.tensor([rows], dtype=torch.int64, device=message_device()))
        return [int(box) for box in boxes]

    def share(self, own: Batch | None) -> tuple[Batch, list[int]]:
        """Return rows to compute with, and how many of its own each process has.

        They are the own ones or, where there are none, those of the first process that has some: of no rows, encoders
        may fail, divergences have no graph and means are NaN.
        """
        sizes = self.sizes(own[0].shape[0] if own else 0)
        if own and all(sizes):
            return own, sizes
        if not any(sizes):
            raise ValueError(checks.message("a batch given to fit", "of at least one row", "none"))
        lender = next(rank for rank, size in enumerate(sizes) if size)
        box: list[Any] = [tuple(part.cpu() for part in own) if own and self.rank == lender else None]
        with answered():
            distributed.broadcast_object_list(box, lender)
        if own and sizes[self.rank]:
            return own, sizes
        return tuple(part.to(self.device) for part in box[0]), sizes

    def loss(self, loss: Loss, model: Divergence, rows: Batch, sizes: list[int]) -> Tensor:
        """Return the loss of the batch that the shares of all processes make; see :meth:`share`."""
        lengths = [part.shape[0] if part.ndim else 0 for part in rows]
        if len(set(lengths)) > 1:  # what is sent would be filled up
            got = ", ".join(f"{name} {length}" for name, length in zip(loss.parts, lengths, strict=True))
            raise ValueError(checks.message("the parts of a batch given to fit", "equally long", got))
        if isinstance(loss, LabelLoss) and type(loss).of is LabelLoss.of:
            return self._of_labels(loss, model, rows, sizes)
        if isinstance(loss, PairLoss) and type(loss).of is PairLoss.of:
            values, targets = (self._gathered(part, sizes) for part in (model(rows[0], rows[1]), rows[2]))
            return _number(loss(values, targets))
        if isinstance(loss, TripletLoss) and type(loss).of is TripletLoss.of:
            return self._of_triplets(loss, model, rows, sizes)
        what = f"the method of() of {type(loss).__name__}"
        must = "that of LabelLoss, PairLoss or TripletLoss where several processes train together"
        hint = "Override forward, which gets the values of all, or give fit a function that is a mean over rows."
        raise TypeError(checks.message(what, must, "another one", hint))

    def _of_labels(self, loss: LabelLoss, model: Divergence, rows: Batch, sizes: list[int]) -> Tensor:
        points, divergence = rows[0], model
        # A subclass that makes its matrix in another way is asked for it as a whole.
        if isinstance(model, Embedded) and type(model).pairwise is Embedded.pairwise:
            points, divergence = model.encode(points), model.divergence
        # Each process compares its own images with all: what comes back to an image comes from all processes.
        everyone, labels = self._gathered(points, sizes, shared=True), self._gathered(rows[1], sizes)
        if _is_divided(loss):
            # Own points come first, the others behind them.
            before = sum(sizes[: self.rank])
            matrix = divergence.pairwise(points, everyone.roll(-before, 0))
            return loss.of_rows(_first(matrix, sizes[self.rank]), labels.roll(-before, 0), summed)
        return _number(loss(self._gathered(divergence.pairwise(points, everyone), sizes), labels))

    def _of_triplets(self, loss: TripletLoss, model: Divergence, rows: Batch, sizes: list[int]) -> Tensor:
        anchors, positives, negatives = rows
        divergence = model
        if isinstance(model, Embedded):
            anchors, positives, negatives = model.encode(torch.cat(rows)).chunk(3)
            divergence = model.divergence
        pair = torch.stack([divergence(anchors, positives), divergence(anchors, negatives)], 1)
        near, far = self._gathered(pair, sizes).unbind(1)
        return _number(loss(near, far))

    def _gathered(self, values: Tensor, sizes: list[int], shared: bool = False) -> Tensor:
        """Return what all processes have computed of their own rows."""
        return gathered(_first(values, sizes[self.rank]), sizes, self.rank, shared)

    def mean(self, result: Tensor, sizes: list[int]) -> Tensor:
        """Return the mean of what the processes have, each counting as many times as it has rows."""
        return summed(result * (sizes[self.rank] / sum(sizes)))

    @torch.no_grad()
    def add_gradients(self, model: nn.Module, loss: object) -> None:
        """Make the gradients those of the whole batch, in all processes."""
        if self.size == 1:
            return
        gradients = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        own = loss.parameters() if isinstance(loss, nn.Module) else ()
        of_loss = [parameter.grad for parameter in own if parameter.grad is not None]
        add_over_processes(gradients + of_loss)
        if isinstance(loss, Loss) and not _is_divided(loss):
            # It was computed by all alike: their gradients differ by rounding, and the mean is one of them.
            for gradient in of_loss:
                gradient /= self.size


def tensors_of(module: object, name: str) -> dict[str, str]:
    """Return what processes must have alike of a module to train it together, by names for errors."""
    if not isinstance(module, nn.Module):
        return {}
    found = {}
    for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
        kind = "learned" if tensor.requires_grad else "fixed"
        found[f"{key} of the {name}"] = f"{kind} {tensor.dtype} {tuple(tensor.shape)}"
    return found


def _is_divided(loss: object) -> TypeGuard[AnchorwiseLoss]:
    """Whether each process computes the terms of its own anchors only."""
    return isinstance(loss, AnchorwiseLoss) and loss.divisible


def _first(values: Tensor, rows: int) -> Tensor:
    """Return the first rows; a slice of all of them would be copied in the backward pass."""
    return values if values.shape[0] == rows else values[:rows]


def _number(result: Tensor) -> Tensor:
    """Return what a loss returned; torch does not say what modules return."""
    return result
