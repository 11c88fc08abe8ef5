"""Where training data comes from: arrays that are cut into batches, or a loader that already gives them."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks

__all__ = ["ArrayBatches", "Batches", "LoaderBatches"]


class Batches:
    """Batches of tensors, epoch by epoch, in an order that can be taken up again in the middle of an epoch."""

    # None where the data does not say how many batches it has.
    per_epoch: int | None

    def epoch(self, seed: int, number: int, skip: int, skipped: Callable[[], None]) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of one epoch, without the first ``skip`` of them; call ``skipped`` after those."""
        raise NotImplementedError

    def sample(self, rows: int) -> tuple[Tensor, ...]:
        """Return some rows to set scales by, without a trace in any random generator."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Return a short text by which other data is told from this."""
        raise NotImplementedError


class Part(NamedTuple):
    """One array of the data: its values, on the device where training is or mapped from a file, and their dtype there.

    What is mapped from a file stays there: rows are read, converted and moved when they are used.
    """

    values: Tensor
    dtype: torch.dtype

    def rows(self, numbers: Tensor, device: torch.device) -> Tensor:
        """Return some rows as they are trained on."""
        return self.values[numbers.to(self.values.device)].to(device, self.dtype)


class ArrayBatches(Batches):
    """Tensors with one row for each example, shuffled anew each epoch and cut into batches of equal size.

    The order depends on the seed and the number of the epoch only. An epoch of n rows has ceil(n / size) batches, which
    differ by one row at most: a last small batch would weigh as much as the others.
    """

    def __init__(self, parts: Sequence[Part], batch_size: int, device: torch.device) -> None:
        self.parts = parts
        self.device = device
        self.rows = parts[0].values.shape[0]
        self.per_epoch = math.ceil(self.rows / batch_size)

    def epoch(self, seed: int, number: int, skip: int, skipped: Callable[[], None]) -> Iterator[tuple[Tensor, ...]]:
        skipped()
        generator = torch.Generator().manual_seed((seed + 0x9E3779B97F4A7C15 * (number + 1)) % 2**63)
        order = torch.randperm(self.rows, generator=generator).to(self.parts[0].values.device)
        for rows in order.tensor_split(self.per_epoch or 1)[skip:]:
            yield tuple(part.rows(rows, self.device) for part in self.parts)

    def sample(self, rows: int) -> tuple[Tensor, ...]:
        if self.rows <= rows:
            order = torch.arange(self.rows)
        else:
            order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(0))[:rows]
        return tuple(part.rows(order, self.device) for part in self.parts)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for tensor in (part.values for part in self.parts):
            # Of large data every so many-th row will do: this is against mistakes.
            rows = tensor[:: max(1, tensor.numel() // 1_000_000)].cpu().contiguous()
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(rows.view(torch.uint8).numpy().tobytes() if rows.numel() else b"")
        return digest.hexdigest()


class LoaderBatches(Batches):
    """A ``DataLoader`` or another iterable of batches that can be gone through again and again."""

    def __init__(self, loader: Iterable[object], device: torch.device) -> None:
        if isinstance(loader, Iterator):
            hint = "Give the list or the DataLoader itself."
            must = "something that can be gone through again each epoch"
            raise TypeError(checks.message("data of fit", must, f"an iterator ({type(loader).__name__})", hint))
        self.loader = loader
        self.device = device
        self.per_epoch = _length(loader)

    def epoch(self, seed: int, number: int, skip: int, skipped: Callable[[], None]) -> Iterator[tuple[Tensor, ...]]:
        for holder in self._holders:
            # Samplers that shuffle by the number of the epoch, as those of several processes do, want to be told it.
            set_epoch = getattr(holder, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(number)
        iterator = iter(self.loader)
        for _ in range(skip):
            next(iterator, None)
        skipped()
        for batch in iterator:
            yield self._moved(batch)

    @property
    def _holders(self) -> list[object]:
        """The loader and its samplers, where it has some: what may decide on the order."""
        sampler, of_batches = (getattr(self.loader, name, None) for name in ("sampler", "batch_sampler"))
        return [self.loader, sampler, of_batches, getattr(of_batches, "sampler", None)]

    @property
    def generator(self) -> torch.Generator | None:
        """The random generator of the loader or its sampler, whose state belongs to that of the run."""
        found = (getattr(holder, "generator", None) for holder in self._holders)
        return next((one for one in found if isinstance(one, torch.Generator)), None)

    def sample(self, rows: int) -> tuple[Tensor, ...]:
        own = self.generator
        state = None if own is None else own.get_state()
        with torch.random.fork_rng(devices=[]):
            batch = next(iter(self.loader), None)
        if own is not None and state is not None:
            own.set_state(state)
        if batch is None:
            raise ValueError(checks.message("data of fit", "a loader with at least one batch", "an empty one"))
        return tuple(tensor[:rows] for tensor in self._moved(batch))

    def fingerprint(self) -> str:
        return f"loader of {self.per_epoch} batches"

    def _moved(self, batch: object) -> tuple[Tensor, ...]:
        if not (isinstance(batch, (tuple, list)) and all(isinstance(part, Tensor) for part in batch)):
            hint = "Give the loader a collate_fn that returns a tuple."
            got = type(batch).__name__
            raise TypeError(checks.message("a batch of the loader given to fit", "a tuple of tensors", got, hint))
        return tuple(part.detach().to(self.device, non_blocking=True) for part in batch)


def _length(loader: object) -> int | None:
    """Return the number of batches, or None where it is not known (a loader of a stream)."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # DataLoader has a length only if its data set has one
        return None


def to_parts(data: Sequence[object], names: Sequence[str] | None, device: torch.device) -> list[Part]:
    """Return arrays or tensors of equal length, checked; arrays of floats become the default dtype."""
    if names is not None and len(data) != len(names):
        must = f"a tuple of {len(names)}: {', '.join(names)}"
        raise ValueError(checks.message("data of fit", must, f"a tuple of {len(data)}"))
    names = list(names or (f"part {i}" for i in range(len(data))))
    parts = [_as_part(given, name, device) for name, given in zip(names, data, strict=True)]
    rows = [part.values.shape[0] for part in parts]
    if len(set(rows)) > 1:
        got = ", ".join(f"{name} {count}" for name, count in zip(names, rows, strict=True))
        raise ValueError(checks.message("the parts of data given to fit", "equally long", got))
    return parts


def _as_part(given: object, name: str, device: torch.device) -> Part:
    mapped = isinstance(given, np.memmap)
    checks.check_plain(given, f"{name} given to fit")
    tensor = given if isinstance(given, Tensor) else _as_tensor(np.asarray(given), name, mapped)
    if tensor.ndim == 0 or tensor.shape[0] == 0:
        must = "an array with at least one row"
        raise ValueError(checks.message(f"the {name} given to fit", must, tuple(tensor.shape)))
    if tensor.is_floating_point():
        checks.check_finite(tensor, name, "fit")
    is_array_of_floats = not isinstance(given, Tensor) and tensor.is_floating_point()
    dtype = torch.get_default_dtype() if is_array_of_floats else tensor.dtype
    return Part(tensor if mapped else tensor.detach().to(device, dtype), dtype)


def _as_tensor(array: NDArray[Any], name: str, mapped: bool) -> Tensor:
    if array.dtype.kind not in "fiub":
        hint = "Labels that are names become numbers by numpy.unique(labels, return_inverse=True)[1]."
        must = "an array of numbers"
        raise TypeError(checks.message(f"the {name} given to fit", must, f"dtype {array.dtype}", hint))
    forwards = min(array.strides, default=0) >= 0
    if mapped and forwards and array.dtype.isnative:
        with warnings.catch_warnings():
            # torch cannot know that nothing here writes to it.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
            return torch.from_numpy(array)
    # A copy where torch could not share the memory: read-only, backwards, or of another byte order.
    shared = array.flags.writeable and forwards
    take = np.asarray if shared else np.array
    array = take(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array)


def batches(data: object, names: Sequence[str] | None, batch_size: int, device: torch.device) -> Batches:
    """Return the batches of a tuple of arrays or of a loader."""
    if isinstance(data, (tuple, list)) and not (data and isinstance(data[0], (tuple, list))):
        return ArrayBatches(to_parts(data, names, device), batch_size, device)
    if isinstance(data, Iterable) and not isinstance(data, (Tensor, np.ndarray, str, dict)):
        return LoaderBatches(data, device)
    expected = f"a tuple ({', '.join(names)})" if names else "a tuple of arrays"
    raise TypeError(checks.message("data of fit", f"{expected} or a DataLoader", type(data).__name__))
