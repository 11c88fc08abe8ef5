"""One of several processes that train together; the tests start it and compare what it writes.

python together.py FOLDER RANK SIZE CASE...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

import askew
from askew import losses
from askew.encoders import MLP

STOP_AFTER = 3


class StoppedError(Exception):
    """The process is to end here, as if it were killed."""


def plain_mean(model: nn.Module, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
    return (model(x, y) - targets).abs().mean()


def descent(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def stopping(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Return Adam that ends the process in the step after the checkpoint, where several train together."""
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    taken = 0

    def count(*_: Any) -> None:
        nonlocal taken
        taken += 1
        if distributed.is_initialized() and taken > STOP_AFTER:
            raise StoppedError

    optimizer.register_step_post_hook(count)
    return optimizer


def data_of(kind: str) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    points = torch.randn(3, 67, 6, generator=generator, dtype=torch.float64)
    if kind.startswith("labels"):
        return points[0], torch.randint(4, (67,), generator=generator)
    if kind == "triplets":
        return tuple(points)
    return points[0], points[1], (points[0] - points[1]).square().sum(1)


LOSSES: dict[str, Callable[[], Any]] = {
    "labels": lambda: losses.AllTriplets(0.2),
    "labels-list": losses.Listwise,
    "pairs": losses.Regression,
    "triplets": lambda: losses.TripletMargin(0.2),
    "function": lambda: plain_mean,
}


def train(folder: Path, rank: int, size: int, case: str) -> None:
    kind, _, how = case.partition("/")
    torch.manual_seed(rank)  # processes begin with other weights, and must agree on those of the first
    encoded = askew.Embedded(MLP(6, 4, (8,)), askew.NeuralBregman(4, widths=(8, 8)))
    model = (askew.NeuralBregman(6, widths=(8, 8)) if how == "no-encoder" else encoded).double()
    data: object = data_of(kind)
    if how == "loader":  # each process has rows of its own; together they are those of the one that is alone
        data = [tuple(part.tensor_split(size)[rank] for part in data_of(kind))]
    try:
        history = askew.fit(
            model,
            data,
            LOSSES[kind](),
            steps=6,
            batch_size=33,
            optimizer=stopping if how == "resumed" else descent,
            checkpoint=folder / "checkpoint" if how == "resumed" else None,
            checkpoint_every=STOP_AFTER,
            clip=5.0,
            warmup=0.0,
            calibrate=how != "loader",
            seed=3,
            device="cpu",
        )
    except StoppedError:
        return
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    np.savez(folder / f"{case.replace('/', '-')}-{size}-{rank}.npz", loss=history["loss"], **weights)


def main(folder: Path, rank: int, size: int, cases: Sequence[str]) -> None:
    torch.set_num_threads(1)
    if size > 1:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    for case in cases:
        train(folder, rank, size, case)
    if size > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
