"""Training by several processes: one batch for all of them, and one gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn

from askew.divergences import Divergence, Embedded
from askew.losses import LabelLoss, Loss, PairLoss

__all__ = ["Team"]

# Numbers in one message between processes, so that the copy of what is sent stays small.
MESSAGE = 1 << 23
# What torch hands from the forward to the backward pass; it takes any attribute.
Context = Any


class Team:
    """The processes that train together, as :mod:`torch.distributed` has started them; one alone where it has not.

    Of arrays, all of them see the same batches, and each takes its share of the rows; of loaders, each has its own, and
    its batches are its share. It encodes its share and computes its values, these are gathered, and the loss is that of
    the whole batch, the same in all processes. So triplets are formed over the whole batch, and loss and gradient are
    those of one process with the same batch, up to rounding.

    Attributes
    ----------
    rank, size : int
        The number of this process, and how many there are.
    """

    def __init__(self) -> None:
        together = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if together else 0
        self.size = distributed.get_world_size() if together else 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress for all."""
        return self.rank == 0

    # ------------------------------------------------------------------ agreeing

    def same(self, number: int) -> int:
        """Return the number that the first process has."""
        if self.size == 1:
            return number
        box = torch.tensor([number], dtype=torch.int64, device=_device())
        distributed.broadcast(box, 0)
        return int(box)

    def same_score(self, score: float) -> float:
        """Return the score that the first process has, so that all stop together."""
        if self.size == 1:
            return score
        box = torch.tensor([score], dtype=torch.float64, device=_device())
        distributed.broadcast(box, 0)
        return float(box)

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        if self.size == 1:
            return flag
        box = torch.tensor([float(flag)], device=_device())
        distributed.all_reduce(box, distributed.ReduceOp.MAX)
        return bool(box)

    @torch.no_grad()
    def same_weights(self, modules: Iterable[nn.Module]) -> None:
        """Give all processes the parameters and buffers of the first."""
        if self.size == 1:
            return
        for module in modules:
            for tensor in [*module.parameters(), *module.buffers()]:
                distributed.broadcast(tensor.detach(), 0)

    def wait(self) -> None:
        """Go on when all are here, as after a file was written."""
        if self.size > 1:
            distributed.barrier()

    # ------------------------------------------------------------------ one batch

    def loss(self, loss: Loss, model: Divergence, own: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of the batch that the shares of all processes make."""
        sizes = self._sizes(own[0].shape[0])
        if isinstance(loss, LabelLoss):
            images, divergence = (
                (model.encode(own[0]), model.divergence) if isinstance(model, Embedded) else (own[0], model)
            )
            # Each process compares its own images with all: what comes back to an image comes from all processes.
            rows = divergence.pairwise(images, _gathered(images, sizes, self.rank, shared=True))
            return _number(loss(_gathered(rows, sizes, self.rank), _gathered(own[1], sizes, self.rank)))
        if isinstance(loss, PairLoss):
            values, targets = model(own[0], own[1]), own[2]
            values, targets = (_gathered(part, sizes, self.rank) for part in (values, targets))
            return _number(loss(values, targets))
        anchors, positives, negatives = own
        divergence = model
        if isinstance(model, Embedded):
            anchors, positives, negatives = model.encode(torch.cat(own)).chunk(3)
            divergence = model.divergence
        pair = torch.stack([divergence(anchors, positives), divergence(anchors, negatives)], 1)
        near, far = _gathered(pair, sizes, self.rank).unbind(1)
        return _number(loss(near, far))

    def mean(self, result: Tensor, rows: int) -> Tensor:
        """Return the mean of what the processes have, each counting as many times as it has rows."""
        total = sum(self._sizes(rows))
        whole: Tensor = _Summed.apply(result * (rows / total))  # type: ignore[no-untyped-call]
        return whole

    def _sizes(self, rows: int) -> list[int]:
        """Return how many rows each process has."""
        boxes = [torch.zeros(1, dtype=torch.int64, device=_device()) for _ in range(self.size)]
        distributed.all_gather(boxes, torch.tensor([rows], dtype=torch.int64, device=_device()))
        return [int(box) for box in boxes]

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
        # The loss itself is computed by all alike: their gradients differ by rounding, and the mean is one of them.
        own = loss.parameters() if isinstance(loss, nn.Module) else ()
        alike = [parameter.grad for parameter in own if parameter.grad is not None]
        _add_over_processes(gradients + alike)
        for gradient in alike:
            gradient /= self.size


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
        distributed.all_gather(received, sent)
        return torch.cat([part[:size] for part, size in zip(received, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        start, count, shared = ctx.place
        if shared:
            gradient = gradient.contiguous().clone()
            distributed.all_reduce(gradient)
        return gradient[start : start + count], None, None, None


class _Summed(torch.autograd.Function):
    """The sum over processes. Each then takes the gradient of its own term; these are added later, as all others."""

    @staticmethod
    def forward(ctx: Context, term: Tensor) -> Tensor:
        total = term.detach().clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> Tensor:
        return gradient


def _gathered(rows: Tensor, sizes: list[int], rank: int, shared: bool = False) -> Tensor:
    result: Tensor = _Gathered.apply(rows, sizes, rank, shared)  # type: ignore[no-untyped-call]
    return result


def _add_over_processes(tensors: list[Tensor]) -> None:
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
            distributed.all_reduce(whole)
            for tensor, part in zip(message, whole.split([tensor.numel() for tensor in message]), strict=True):
                tensor.copy_(part.view_as(tensor))


def _number(result: Tensor) -> Tensor:
    """Return what a loss returned; torch does not say what modules return."""
    return result


def _device() -> torch.device:
    """Return where messages between processes have to be."""
    if distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
