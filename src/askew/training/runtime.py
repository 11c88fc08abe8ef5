"""Device, process, Ctrl-C and random state of a training run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import TypeVar

import torch
from torch import Tensor, nn

from askew import checks
from askew.divergences import Divergence
from askew.losses import Loss

# Work of a step, in multiplications or so, below which it has one thread. Torch's threads wait for each other after
# each operation, and spin while they do: on two idle cores the second one makes steps of this size 1.0 to 1.6
# times faster (docs/results/timing.md), on busy ones 5 to 20 times slower (`benchmarks/threads.py`).
SMALL_STEP = 5e7
# The least that a row takes, however few parameters there are, and what a pair of rows takes in a loss of all pairs.
ROW_WORK, PAIR_WORK = 10_000, 30

Batch = tuple[Tensor, ...]
Objective = Loss | Callable[..., Tensor]
Own = TypeVar("Own")


def best_device() -> torch.device:
    """Return the accelerator of this machine, or its processor."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is not None and "LOCAL_RANK" in os.environ:  # torchrun: one process for each accelerator
        return torch.device(device.type, int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu") if device is None else device


class OneProcess:
    """A process that trains alone. :class:`askew.training.distributed.ProcessGroup` does the same for several.

    Attributes
    ----------
    rank, size : int
        The number of this process, and how many there are.
    """

    rank, size = 0, 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress for all."""
        return self.rank == 0

    def broadcast(self, number: float) -> float:
        """Return the number of the main process."""
        return number

    def all_gather(self, own: Own) -> list[Own]:
        """Return the values of all processes, in the order of their ranks."""
        return [own]

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return flag

    def check_same(self, settings: Mapping[str, object], modules: Mapping[str, object] | None = None) -> None:
        """Raise the same error in all processes if their settings, data or modules differ."""

    def broadcast_weights(self, modules: Iterable[nn.Module]) -> None:
        """Give all processes the parameters and buffers of the main one."""

    def in_step(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of this process as long as all processes have one; all must have the same number."""
        return batches

    def loss(self, loss: Objective, model: Divergence, batch: Batch, same_batch: bool) -> Tensor:
        """Return the loss of the batch of all processes.

        ``same_batch`` means that all have the same rows, of which each takes its share; otherwise each has its own.
        """
        of = loss.of if isinstance(loss, Loss) else loss
        return one_number(of(model, *batch))

    def add_gradients(self, model: nn.Module, loss: Objective) -> None:
        """Make the gradients those of the batch of all processes."""


def one_number(result: object) -> Tensor:
    """Return the result of a loss if it is a tensor with one number."""
    if not (isinstance(result, Tensor) and result.numel() == 1):
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise TypeError(checks.message("the result of the loss of fit", "a tensor with one number", got))
    return result.reshape(())


@contextlib.contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether Ctrl-C was pressed, which lets a step be completed first.

    A second Ctrl-C interrupts at once. Signals are delivered to the main thread only.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or before is None or before == signal.SIG_IGN:  # the last two are somebody else's decision
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def step_work(rows: int, parameters: int, all_pairs: bool) -> float:
    """Return about how many multiplications a step takes: it depends on sizes only, so that a run can be repeated.

    Examples
    --------
    >>> f"{step_work(1000, 22_768, all_pairs=False):.1e}"
    '2.3e+07'
    """
    return rows * (max(parameters, ROW_WORK) + (PAIR_WORK * rows if all_pairs else 0.0))


@contextlib.contextmanager
def threads_for(work: float) -> Iterator[None]:
    """Compute small work on one thread; the number of threads is restored afterwards and never raised.

    Examples
    --------
    >>> with threads_for(1e6):
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    if threads == 1 or work >= SMALL_STEP:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed torch's generators and restore their states afterwards; None leaves them alone."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


def random_state(device: torch.device, loader: torch.Generator | None) -> dict[str, Tensor]:
    """Return the state of torch's generators and of that of a loader."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if loader is not None:
        state["loader"] = loader.get_state()
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device, loader: torch.Generator | None) -> None:
    """Set what :func:`random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if loader is not None and "loader" in state:
        loader.set_state(state["loader"])
