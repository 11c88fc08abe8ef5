"""What surrounds the loop: Ctrl-C, TensorBoard, the state of random generators."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import torch
from torch import Tensor

from askew import checks

__all__ = ["best_device", "interruption", "random_state", "set_random_state", "tensorboard_writer"]


def best_device() -> torch.device:
    """Return the accelerator of this machine, or its processor."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is not None and "LOCAL_RANK" in os.environ:  # torchrun: one process for each accelerator
        return torch.device(device.type, int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu") if device is None else device


@contextlib.contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether Ctrl-C was pressed, so that a step is never cut in half.

    A second Ctrl-C interrupts at once. Only the main thread hears of either.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)
    if before is None or before == signal.SIG_IGN:  # somebody else's decision
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def tensorboard_writer(folder: str | os.PathLike[str] | None) -> Iterator[Callable[[dict[str, float]], None]]:
    """Give a function that writes a row of the history to TensorBoard, where a folder is given."""
    if folder is None:
        yield lambda row: None
        return
    module = checks.optional_import("torch.utils.tensorboard", "tensorboard", "Writing to TensorBoard")
    with module.SummaryWriter(os.fspath(folder)) as writer:

        def write(row: dict[str, float]) -> None:
            for name, value in row.items():
                if name != "step":
                    writer.add_scalar(name, value, int(row["step"]))

        yield write


def random_state(device: torch.device, own: torch.Generator | None) -> dict[str, Tensor]:
    """Return the state of torch's generators and of a loader's own one."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if own is not None:
        state["loader"] = own.get_state()
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device, own: torch.Generator | None) -> None:
    """Set what :func:`random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if own is not None and "loader" in state:
        own.set_state(state["loader"])
