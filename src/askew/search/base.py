"""What all indexes share: one interface, checks, and the exact values of what was found."""

from __future__ import annotations

import contextlib
import copy
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import checks, io
from askew._parallel import over_blocks
from askew._progress import progress_bar
from askew.checks import REAL
from askew.divergences import Divergence, split_encoder
from askew.encoders import as_floats, as_points, encode
from askew.io import Rows
from askew.search.forms import DIRECTIONS, has_boundary
from askew.search.gate import Gate

__all__ = ["Index", "fingerprint"]

# Pairs whose divergence is computed at a time, and numbers in the items of these.
BLOCK_PAIRS = 1 << 11
BLOCK_NUMBERS = 1 << 17
# Candidates of all queries that are ranked at a time.
RERANKED_PAIRS = 1 << 18

Found = tuple[NDArray[Any], NDArray[np.int64]]


class Index(ABC):
    """Items to be searched by a divergence, in one direction.

    Several threads may use one index: searches run side by side, and go on while a change is prepared.

    Parameters
    ----------
    divergence
        A divergence, also behind an encoder; a fitted learner; or the name of one that needs no learning. It is copied:
        an index must not change when a model is trained further.
    direction
        ``"query-first"`` finds items with the smallest D(query, item), ``"query-second"`` those with the smallest
        D(item, query).
    progress
        Whether to show a progress bar while items are encoded; None means on a terminal.
    """

    def __init__(self, divergence: object, direction: str = "query-first", progress: bool | None = None) -> None:
        owner = type(self).__name__
        self.direction = checks.check_name(direction, DIRECTIONS, f"direction of {owner}")
        self.progress = progress
        self._gate = Gate()
        self._given: object = divergence
        self._encoder: nn.Module | None = None
        self._divergence: Divergence | None = None
        if not isinstance(divergence, str):
            self._set_divergence(0)
        else:  # the number of features comes with the first items
            split_encoder(divergence, 1, owner)

    def _set_divergence(self, dim: int) -> None:
        encoder, divergence = split_encoder(self._given, dim, type(self).__name__)
        self._encoder = None if encoder is None else copy.deepcopy(encoder).eval().requires_grad_(False)
        self._divergence = copy.deepcopy(divergence).eval().requires_grad_(False)
        if divergence.dtype == torch.bfloat16:  # numpy has no such numbers, and a search wants more digits
            self._divergence.float()
        if not isinstance(self._given, str):
            self._given = None

    # ------------------------------------------------------------------ the interface

    @property
    def divergence(self) -> Divergence:
        """The divergence between images of points."""
        if self._divergence is None:
            must = "known by the first items before it is used"
            raise ValueError(checks.message(f"dim of {type(self).__name__}", must, "none", "Call add first."))
        return self._divergence

    @property
    def encoder(self) -> nn.Module | None:
        """What maps points to images; None where there is none."""
        return self._encoder

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @abstractmethod
    def add(self, items: ArrayLike | Tensor, ids: ArrayLike | None = None) -> None:
        """Add items, ``(n, dim)``.

        Parameters
        ----------
        items
            An array or a tensor. Behind an encoder, anything it takes, with the batch first.
        ids
            Integers from 0, all different and not in the index; by default the next free numbers.
        """

    def add_blocks(self, blocks: Rows | Iterable[ArrayLike | Tensor]) -> None:
        """Add items that come in blocks, without holding all of them in memory; ids are the next free numbers.

        If a block is refused, those before it are in the index already.

        Parameters
        ----------
        blocks
            Rows of files, or any blocks ``(n, dim)``.
        """
        with shown_blocks(blocks, self.progress) as some:
            for block in some:
                self.add(block)

    @abstractmethod
    def remove(self, ids: ArrayLike) -> None:
        """Remove items by their ids; one that is not there is an error, and then nothing is removed."""

    def search(self, queries: ArrayLike | Tensor, k: int = 10) -> Found:
        """Return the k nearest items of each query.

        Parameters
        ----------
        queries
            ``(n, dim)``, or anything the encoder takes.
        k
            How many; at most as many as there are items.

        Returns
        -------
        tuple of arrays, ``(n, k)`` each
            True divergences in ascending order, and the ids of the items.
        """
        k = checks.check_size(k, f"k of {type(self).__name__}.search")
        self._check_filled(k)
        images = self._images(queries, "queries", is_first=self.direction == "query-first")
        with self._reading():
            self._check_filled(k)  # another thread may have removed some
            values, found = self._search(images, k)
        return values.numpy(), found

    def _check_filled(self, k: int) -> None:
        owner, count = type(self).__name__, len(self)
        if count == 0:
            raise ValueError(checks.message(owner, "filled before it is searched", "no items", "Call add first."))
        if k > count:
            must = f"at most {count}, the number of items"
            raise ValueError(checks.message(f"k of {owner}.search", must, k))

    def recall(self, queries: ArrayLike | Tensor, k: int = 10) -> float:
        """Return the share of the true k nearest items that :meth:`search` finds, measured against an exact search.

        An item counts if it is as near as the k-th of the exact search, so that equals do not lower the figure.
        """
        k = checks.check_size(k, f"k of {type(self).__name__}.recall")
        self._check_filled(k)
        images = self._images(queries, "queries", is_first=self.direction == "query-first")
        with self._reading():
            self._check_filled(k)
            values, truth = self._search(images, k)[0].numpy(), self._exact(images, k)[0]
        limit = truth[:, -1:].numpy()
        eps = np.finfo(values.dtype).eps
        return float((values <= limit * (1 + 8 * eps)).mean()) if values.size else math.nan

    @abstractmethod
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index to a folder, all or nothing."""

    # ------------------------------------------------------------------ what an index writes

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Keep writers out, once what an interrupted change has left is put right."""
        while True:
            with self._gate.reading():
                if not self._gate.torn:  # no writer is at work here, so that it would be one that was interrupted
                    yield
                    return
            with self._gate.changing():
                self._mend()

    def _mend(self) -> None:
        """Put right what an interrupted change has left, inside a change."""
        if self._gate.torn:
            self._make_anew()

    @abstractmethod
    def _make_anew(self) -> None:
        """Build everything from the items, or raise and change nothing."""

    @abstractmethod
    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, NDArray[np.int64]]:
        """Return divergences and ids of the k nearest items of checked images."""

    @abstractmethod
    def _exact(self, queries: Tensor, k: int) -> tuple[Tensor, NDArray[np.int64]]:
        """Return the same by an exact search."""

    # ------------------------------------------------------------------ what comes in

    def _images(self, points: ArrayLike | Tensor, name: str, is_first: bool) -> Tensor:
        """Return the images of points in main memory, after all checks."""
        owner = type(self).__name__
        tensor = as_points(points)
        if self._divergence is None:
            if tensor.ndim != 2:
                raise ValueError(checks.message(f"{name} of {owner}", "of shape (n, dim)", tuple(tensor.shape)))
            self._set_divergence(tensor.shape[1])
        divergence = self.divergence
        if self._encoder is not None:
            if tensor.ndim < 2:
                must = "a batch of points, with the batch first"
                raise ValueError(checks.message(f"{name} of {owner}", must, f"shape {tuple(tensor.shape)}"))
            if tensor.is_floating_point():
                checks.check_finite(tensor, name, owner)
            tensor = encode(self._encoder, tensor, self.progress)
        tensor = as_floats(tensor, divergence.dtype)
        dtype = divergence.dtype or self._own_dtype() or tensor.dtype
        tensor = tensor.detach().cpu().to(torch.float32 if dtype.itemsize < 4 else dtype)
        if tensor.ndim != 2:
            hint = "A single point is one row: points[None]." if tensor.ndim == 1 else ""
            raise ValueError(checks.message(f"{name} of {owner}", "of shape (n, dim)", tuple(tensor.shape), hint))
        return self._checked_images(tensor, name, is_first)

    def _checked_images(self, images: Tensor, name: str, is_first: bool) -> Tensor:
        """Return images, if the divergence is defined there."""
        divergence, owner = self.divergence, type(self).__name__
        images = checks.check_points(images, divergence.dim, name, owner)
        checks.check_finite(images, name, owner)
        if divergence.domain != REAL:
            divergence.domain.check(images, name, owner, boundary=has_boundary(divergence, is_first))
        return images

    def _own_dtype(self) -> torch.dtype | None:
        """Return the dtype of the items that are there."""
        return None

    # ------------------------------------------------------------------ exact values

    def _values(self, queries: Tensor, items: NDArray[Any], numbers: NDArray[Any], rows: NDArray[Any]) -> Tensor:
        """Return the divergences of pairs of a query and an item, each by its number, in the direction of the index."""
        like = next((t for t in (*self.divergence.parameters(), *self.divergence.buffers())), queries)
        result = torch.empty(len(rows), dtype=queries.dtype)

        def work(part: slice) -> None:
            # Pairs are put together here, where they are still in the cache when they are used.
            first = queries[torch.from_numpy(numbers[part])].to(like.device)
            second = torch.from_numpy(items[rows[part]]).to(like.device)
            if self.direction == "query-second":
                first, second = second, first
            result[part] = self.divergence(first, second).cpu()

        over_blocks(len(rows), max(1, min(BLOCK_PAIRS, BLOCK_NUMBERS // max(1, queries.shape[1]))), work)
        return result

    def _reranked(
        self, queries: Tensor, items: NDArray[Any], rows: NDArray[np.int64], k: int
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Return the k nearest of candidates by their exact divergences; a row of -1 is no candidate.

        ``items`` is indexed by ``rows``, ``(n, candidates)``. Of equals the smaller row comes first.
        """
        n, width = rows.shape
        k = min(k, width)
        result, chosen = queries.new_empty(n, k), np.empty((n, k), np.int64)
        height = max(1, RERANKED_PAIRS // max(1, width))
        for start in range(0, n, height):
            block = rows[start : start + height]
            there = block >= 0
            values = np.full(block.shape, np.inf, result.numpy().dtype)
            values[there] = self._values(queries, items, np.nonzero(there)[0] + start, block[there]).numpy()
            order = np.lexsort((block, values, ~there), axis=1)[:, :k]
            result[start : start + height] = torch.from_numpy(np.take_along_axis(values, order, 1))
            chosen[start : start + height] = np.take_along_axis(block, order, 1)
        return result, chosen


@contextlib.contextmanager
def shown_blocks(
    blocks: Rows | Iterable[ArrayLike | Tensor], progress: bool | None
) -> Iterator[Iterable[ArrayLike | Tensor]]:
    """Give the blocks; of files, whose length is known, with a progress bar."""
    if not isinstance(blocks, Rows):
        yield blocks
        return
    with progress_bar(progress, len(blocks), "items") as move:

        def moving() -> Iterator[NDArray[Any]]:
            done = 0
            for block in blocks.blocks():
                yield block
                done += len(block)
                move(done)

        yield moving()


def fingerprint(encoder: nn.Module | None, divergence: Divergence) -> str:
    """Return a digest of a divergence and its encoder: of what they are made of and of all their numbers."""
    recipe = [None if module is None else io.describe(module) for module in (encoder, divergence)]
    tensors = {f"divergence.{name}": tensor for name, tensor in divergence.state_dict().items()}
    if encoder is not None:
        tensors |= {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    return io.checksum(recipe, tensors)
