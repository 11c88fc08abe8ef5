"""One of several processes that train together; the tests start it and compare what it writes.

python together.py FOLDER RANK SIZE CASE...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import askew
from askew import losses
from askew.encoders import MLP

STOP_AFTER = 3
# Ways to train whose data comes from loaders, each process having its own.
LOADERS = (
    *("loader", "several", "stream", "empty", "uneven", "uneven-stream", "column", "short"),
    *("validated", "shuffled", "shuffled-resumed"),
)


class StoppedError(Exception):
    """The process is to end here, as if it were killed."""


def plain_mean(model: nn.Module, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
    return (model(x, y) - targets).abs().mean()


class LearnedMean(nn.Module):
    """The same with a factor that is learned, and perhaps with a tensor more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("more", None)
        self.factor = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        return (self.factor * model(x, y) - targets).abs().mean()


class Twice(losses.AllTriplets):
    def forward(self, matrix: Tensor, labels: Tensor) -> Tensor:
        return 2 * super().forward(matrix, labels)


class OwnWay(losses.AllTriplets):
    def of(self, model: askew.Divergence, *batch: Tensor) -> Tensor:
        return 2 * super().of(model, *batch)


class OwnMatrix(askew.Embedded):
    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * super().pairwise(x, y)


class Some(nn.Module):
    """An encoder that refuses to work for nothing, as those of batch normalisation and others do."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 0:
            raise ValueError("there are no rows")
        return x


class Odd(nn.Module):
    """An encoder with numbers of kinds that backends do not send."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("short", torch.randint(100, (3,), dtype=torch.int16))
        self.register_buffer("complex", torch.randn((), dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Stream:
    """Batches that nobody has counted."""

    def __init__(self, batches: Sequence[tuple[Tensor, ...]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter(self.batches)


def shuffled(data: tuple[Tensor, ...], rank: int, size: int) -> DataLoader[tuple[Tensor, ...]]:
    """Return a loader of a process that has rows and an order of its own."""
    (own,) = shares(data, "loader", rank, size)
    return DataLoader(TensorDataset(*own), 8, shuffle=True, generator=torch.Generator().manual_seed(100 + rank))


def descent(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def adam(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def stopping(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Return Adam that ends the process in the step after the checkpoint, where several train together."""
    optimizer = adam(parameters)
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


def shares(data: tuple[Tensor, ...], how: str, rank: int, size: int) -> list[tuple[Tensor, ...]]:
    """Return the batches of a process; together they are those of the one that is alone."""
    if how in ("several", "stream", "uneven", "uneven-stream"):
        count = 5 if how.startswith("uneven") else 6  # of five the first of two has three, the second two
        pieces = list(zip(*(part.tensor_split(count) for part in data), strict=True))
        if size == 1:
            pieces = [tuple(map(torch.cat, zip(*pieces[i : i + 2], strict=True))) for i in range(0, count, 2)]
        return pieces[rank::size]
    if how == "empty":  # the first of two has all rows
        return [tuple(part if rank == 0 else part[:0] for part in data)]
    own = tuple(part.tensor_split(size)[rank] for part in data)
    if how == "column":
        own = (own[0], own[1][:, None])
    if how == "short":
        own = (own[0], own[1][:-1])
    return [own]


LOSSES: dict[str, Callable[[], Any]] = {
    "labels": lambda: losses.AllTriplets(0.2),
    "labels-twice": lambda: Twice(0.2),
    "labels-own": lambda: OwnWay(0.2),
    "labels-list": losses.Listwise,
    "pairs": losses.Regression,
    "triplets": lambda: losses.TripletMargin(0.2),
    "function": lambda: plain_mean,
    "learned": LearnedMean,
}


def train(folder: Path, rank: int, size: int, case: str) -> None:
    kind, _, how = case.partition("/")
    torch.manual_seed(rank)  # processes begin with other weights, and must agree on those of the first
    wrapper = OwnMatrix if how == "own-matrix" else askew.Embedded
    encoded = wrapper(nn.Sequential(Some(), MLP(6, 4, (8,))), askew.NeuralBregman(4, widths=(8, 8)))
    model = (askew.NeuralBregman(6, widths=(8, 8)) if how == "no-encoder" else encoded).double()
    given = data_of(kind)
    if how == "odd-kinds":
        encoded.encoder.append(Odd())
        given = (given[0], given[1].short())
    if how == "other-model" and rank == 1:
        encoded.encoder[1] = MLP(6, 4, (9,)).double()
    data: object = given
    if how in LOADERS:
        data = shares(given, how, rank, size)
        data = Stream(data) if how.endswith("stream") else data
    if how.startswith("shuffled"):
        encoded.encoder.append(nn.Dropout(0.5))
        data = shuffled(given, rank, size)
    if how == "other-data":
        data = tuple(part[: 67 - rank] for part in given)
    validation: object = None
    if how == "validated":  # arrays where training has loaders
        validation = given
    if how == "validated-by-loader":
        validation = shares(given, "several", rank, size)

    def callback(model: nn.Module, history: askew.training.History) -> bool:
        history.rows[-1]["size"] = float(sum(p.square().sum() for p in model.parameters()))
        return rank == size - 1  # one of them stops all

    loss = LOSSES[kind]()
    if how == "other-loss" and rank == 1:
        loss.more = torch.zeros(2)
    name = case.replace("/", "-")
    try:
        history = askew.fit(
            model,
            data,
            loss,
            epochs=2,
            steps=None if how in ("several", "uneven", "other-data") else 6,
            batch_size=1 if how == "tiny" else 33 + rank if how == "other-size" else 33,
            optimizer=stopping if "resumed" in how else adam if how == "shuffled" else descent,
            checkpoint=folder / f"{name}.checkpoint" if "resumed" in how else None,
            checkpoint_every=STOP_AFTER + (rank if how == "other-every" else 0),
            clip=5.0,
            warmup=0.0,
            calibrate=how not in LOADERS and not (how == "other-calibrate" and rank == 1),
            validation=validation,
            callback=callback if how == "called" or (how == "other-callback" and rank == 1) else None,
            schedule="constant" if how == "called" else "linear",
            seed=3 + (rank if how.startswith("shuffled") else 0),
            device="cpu",
        )
    except StoppedError:
        return
    except (TypeError, ValueError) as error:
        (folder / f"{name}-{size}-{rank}.txt").write_text(f"{type(error).__name__}: {error}", "utf-8")
        return
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if isinstance(loss, LearnedMean):
        weights["factor"] = loss.factor.detach().numpy()
    if validation is not None:
        weights["validation"] = np.array(history["validation"])
    if how == "called":
        assert history.stopped == "callback"
        weights["size"] = np.array(history["size"])
    np.savez(folder / f"{name}-{size}-{rank}.npz", loss=history["loss"], **weights)


def threads() -> list[str]:
    """Return the names of the threads of this process, where the system tells them."""
    return sorted(path.read_text("utf-8").strip() for path in Path("/proc/self/task").glob("*/comm"))


def main(folder: Path, rank: int, size: int, cases: Sequence[str]) -> None:
    torch.set_num_threads(1)
    if size > 1:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    for case in cases:
        train(folder, rank, size, case)
    if size > 1:
        distributed.destroy_process_group()
        (folder / f"threads-{rank}.txt").write_text("\n".join(threads()), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
