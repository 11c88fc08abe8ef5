"""Training data: arrays that are cut into batches, or a loader that already gives batches."""

from __future__ import annotations

import contextlib
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


class Part(NamedTuple):
    """One array of the data: its values, on the training device or mapped from a file, and their dtype in training.

    Values that are mapped from a file stay there: rows are read, converted and moved when they are used.
    """

    values: Tensor
    dtype: torch.dtype

    def rows(self, numbers: Tensor, device: torch.device) -> Tensor:
        """Return rows as they are trained on."""
        return self.values[numbers.to(self.values.device)].to(device, self.dtype)


class ArrayBatches:
    """Tensors with one row for each example, shuffled in each epoch and cut into batches of equal size.

    The order depends on the seed and the number of the epoch only. An epoch of n rows has ceil(n / size) batches, which
    differ by one row at most: a last small batch would weigh as much as the others.
    """

    def __init__(self, parts: Sequence[Part], batch_size: int, device: torch.device) -> None:
        self.parts = parts
        self.device = device
        self.rows = parts[0].values.shape[0]
        self.per_epoch = math.ceil(self.rows / batch_size)

    def epoch(self, seed: int, number: int, skip: int, skipped: Callable[[], None]) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of one epoch without the first ``skip``; call ``skipped`` once those are behind."""
        skipped()
        generator = torch.Generator().manual_seed((seed + 0x9E3779B97F4A7C15 * (number + 1)) % 2**63)
        order = torch.randperm(self.rows, generator=generator).to(self.parts[0].values.device)
        for rows in order.tensor_split(self.per_epoch)[skip:]:
            yield tuple(part.rows(rows, self.device) for part in self.parts)

    def sample(self, rows: int) -> tuple[Tensor, ...]:
        """Return at most ``rows`` rows to calibrate with; no random generator changes."""
        order = torch.arange(self.rows)
        if self.rows > rows:
            order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(0))[:rows]
        return tuple(part.rows(order, self.device) for part in self.parts)

    def fingerprint(self) -> str:
        """Return a short text that differs for other data."""
        digest = hashlib.sha256()
        for tensor in (part.values for part in self.parts):
            # Every k-th row of large data is enough: this is against mistakes.
            rows = tensor[:: max(1, tensor.numel() // 1_000_000)].cpu().contiguous()
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(rows.view(torch.uint8).numpy().tobytes() if rows.numel() else b"")
        return digest.hexdigest()


class LoaderBatches:
    """A ``DataLoader`` or another iterable of batches that can be iterated again and again."""

    def __init__(self, loader: Iterable[object], device: torch.device) -> None:
        if isinstance(loader, Iterator):
            hint = "Give the list or the DataLoader itself."
            must = "something that can be gone through again each epoch"
            raise TypeError(checks.message("data of fit", must, f"an iterator ({type(loader).__name__})", hint))
        self.loader = loader
        self.device = device
        # None where the data does not say how many batches it has.
        self.per_epoch: int | None = None
        with contextlib.suppress(TypeError):  # a DataLoader has a length only if its data set has one
            self.per_epoch = len(loader) if isinstance(loader, Sized) else None
        sampler, of_batches = (getattr(loader, name, None) for name in ("sampler", "batch_sampler"))
        # The objects that may decide on the order.
        self.deciding = [loader, sampler, of_batches, getattr(of_batches, "sampler", None)]

    def epoch(self, seed: int, number: int, skip: int, skipped: Callable[[], None]) -> Iterator[tuple[Tensor, ...]]:
        """Do as :meth:`ArrayBatches.epoch` does; the order is that of the loader."""
        for deciding in self.deciding:
            # Samplers that shuffle by the number of the epoch, as those of several processes do, have to be told it.
            set_epoch = getattr(deciding, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(number)
        iterator = iter(self.loader)
        for _ in range(skip):
            next(iterator, None)
        skipped()
        for batch in iterator:
            yield self._moved(batch)

    @property
    def generator(self) -> torch.Generator | None:
        """The random generator of the loader or its sampler, whose state belongs to that of the run."""
        generators = (getattr(deciding, "generator", None) for deciding in self.deciding)
        return next((one for one in generators if isinstance(one, torch.Generator)), None)

    def sample(self, rows: int) -> tuple[Tensor, ...]:
        """Return at most ``rows`` rows of the first batch; no random generator changes."""
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
        """Return a short text that differs for other data."""
        digest = getattr(self.loader, "fingerprint", None)  # few loaders can tell
        return digest() if callable(digest) else f"loader of {self.per_epoch} batches"

    def _moved(self, batch: object) -> tuple[Tensor, ...]:
        if not (isinstance(batch, (tuple, list)) and all(isinstance(part, Tensor) for part in batch)):
            hint = "Give the loader a collate_fn that returns a tuple."
            got = type(batch).__name__
            raise TypeError(checks.message("a batch of the loader given to fit", "a tuple of tensors", got, hint))
        return tuple(part.detach().to(self.device, non_blocking=True) for part in batch)


Batches = ArrayBatches | LoaderBatches


def make_batches(data: object, names: Sequence[str] | None, batch_size: int, device: torch.device) -> Batches:
    """Return the batches of a tuple of arrays, whose parts have these names, or of a loader."""
    if isinstance(data, (tuple, list)) and not (data and isinstance(data[0], (tuple, list))):
        if names is not None and len(data) != len(names):
            must = f"a tuple of {len(names)}: {', '.join(names)}"
            raise ValueError(checks.message("data of fit", must, f"a tuple of {len(data)}"))
        names = names or [f"part {i}" for i in range(len(data))]
        parts = [_to_part(given, name, device) for name, given in zip(names, data, strict=True)]
        lengths = {name: part.values.shape[0] for name, part in zip(names, parts, strict=True)}
        if len(set(lengths.values())) > 1:
            got = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(checks.message("the parts of data given to fit", "equally long", got))
        return ArrayBatches(parts, batch_size, device)
    if isinstance(data, Iterable) and not isinstance(data, (Tensor, np.ndarray, str, dict)):
        return LoaderBatches(data, device)
    expected = f"a tuple ({', '.join(names)})" if names else "a tuple of arrays"
    raise TypeError(checks.message("data of fit", f"{expected} or a DataLoader", type(data).__name__))


def _to_part(given: object, name: str, device: torch.device) -> Part:
    """Return an array or a tensor, checked; arrays of floats become the default dtype."""
    what = f"the {name} given to fit"
    checks.check_plain(given, what)
    mapped = isinstance(given, np.memmap)
    if isinstance(given, Tensor):
        tensor = given
    else:
        array: NDArray[Any] = np.asarray(given)
        if array.dtype.kind not in "fiub":
            hint = "Labels that are names become numbers by numpy.unique(labels, return_inverse=True)[1]."
            raise TypeError(checks.message(what, "an array of numbers", f"dtype {array.dtype}", hint))
        forwards = min(array.strides, default=0) >= 0
        if not (forwards and array.dtype.isnative and (mapped or array.flags.writeable)):
            # A copy where torch cannot share the memory: read-only, backwards, or of another byte order.
            array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        with warnings.catch_warnings():  # torch cannot know that nothing here writes to a mapped array
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
            tensor = torch.from_numpy(array)
    if tensor.ndim == 0 or tensor.shape[0] == 0:
        raise ValueError(checks.message(what, "an array with at least one row", tuple(tensor.shape)))
    dtype = tensor.dtype
    if tensor.is_floating_point():
        checks.check_finite(tensor, name, "fit")
        dtype = dtype if isinstance(given, Tensor) else torch.get_default_dtype()
    return Part(tensor if mapped else tensor.detach().to(device, dtype), dtype)
