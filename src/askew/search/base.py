"""The interface of all indexes, their input checks, and the ranking of candidates by exact divergences."""

from __future__ import annotations

import contextlib
import copy
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import checks, io
from askew._parallel import over_blocks
from askew._progress import progress_bar
from askew.checks import REAL
from askew.divergences import Divergence, Embedded, split_sides
from askew.encoders import as_floats, as_points, encode
from askew.io import Rows
from askew.search.folder import INDEX
from askew.search.inner_product import DIRECTIONS, ranking_of, with_digits
from askew.search.lock import ReadWriteLock

# Pairs whose divergence is computed at a time, and numbers in the items of these.
BLOCK_PAIRS = 1 << 11
BLOCK_NUMBERS = 1 << 17

RowNumbers = NDArray[np.int64]
Found = tuple[NDArray[Any], RowNumbers]
Content = dict[str, Any]


class Index(ABC):
    """Items to be searched by a divergence, in one direction.

    Several threads may use one index: searches run at the same time, and go on while a change is prepared.

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

    Examples
    --------
    >>> import numpy, askew
    >>> index = askew.search.ExactIndex("euclidean")
    >>> index.add(numpy.eye(3))
    >>> index.search(numpy.eye(3)[:1], k=1)[1].tolist()
    [[0]]
    """

    _needs_inner_products = False

    def __init__(self, divergence: object, direction: str = "query-first", progress: bool | None = None) -> None:
        owner = type(self).__name__
        self.direction = checks.check_name(direction, DIRECTIONS, f"direction of {owner}")
        self.progress = progress
        self._lock = ReadWriteLock()
        self._given: object = divergence
        # Those of first and of second points; the same object where they share one.
        self._encoder: nn.Module | None = None
        self._second: nn.Module | None = None
        self._divergence: Divergence | None = None
        if not isinstance(divergence, str):
            self._set_divergence(0)
        else:  # the number of features comes with the first items
            split_sides(divergence, 1, owner)

    def _set_divergence(self, dim: int) -> None:
        owner = type(self).__name__
        encoder, second, divergence = copy.deepcopy(split_sides(self._given, dim, owner))
        for module in (encoder, second, divergence):
            if module is not None:
                module.eval().requires_grad_(False)
        with_digits(divergence)
        if self._needs_inner_products:
            ranking_of(divergence, owner)
        self._encoder, self._second, self._divergence = encoder, second, divergence
        if not isinstance(self._given, str):
            self._given = None

    # ------------------------------------------------------------------ the interface

    @property
    def divergence(self) -> Divergence:
        """The divergence between embeddings."""
        if self._divergence is None:
            must = "known by the first items before it is used"
            raise ValueError(checks.message(f"dim of {type(self).__name__}", must, "none", "Call add first."))
        return self._divergence

    @property
    def encoder(self) -> nn.Module | None:
        """The network that maps points, or the first points of pairs, to embeddings, if there is one."""
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
        """Add items that come in blocks ``(n, dim)`` or in files, without holding all of them in memory.

        Ids are the next free numbers. If a block is refused, those before it are in the index already.
        """
        with contextlib.closing(each_block(blocks, self.progress)) as parts:
            for block in parts:
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
            Divergences in ascending order, and the ids of the items.
        """
        order, ids = self.search_order(queries, k)
        return self.divergence.from_order(torch.from_numpy(order)).numpy(), ids

    def search_order(self, queries: ArrayLike | Tensor, k: int = 10) -> Found:
        """Return what :meth:`search` does, with ``divergence.order`` in place of the divergences.

        Answers of several indexes are merged by it: items with D = 0 keep their order.
        """
        with self._searching(queries, k, "search") as embeddings:
            order, ids = self._search(embeddings, k)
        return order.numpy(), ids

    def recall(self, queries: ArrayLike | Tensor, k: int = 10) -> float:
        """Return the fraction of the true k nearest items that :meth:`search` finds, measured against exact search.

        An item counts if it is as near as the k-th of the exact search, so ties do not lower the figure.
        """
        with self._searching(queries, k, "recall") as embeddings:
            (found, rows), (best, right) = self._search(embeddings, k), self._exact(embeddings, k)
        values, limit = found.numpy(), best[:, -1:].numpy()
        slack = 8 * np.finfo(values.dtype).eps * np.abs(limit)
        # The two may round the value of one item differently.
        hits = (np.asarray(rows)[:, :, None] == np.asarray(right)[:, None, :]).any(2) | (values <= limit + slack)
        return float(hits.mean()) if values.size else math.nan

    @abstractmethod
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index to a folder, all or nothing."""

    def _write_folder(self, folder: str | os.PathLike[str], write: Callable[[Path, dict[str, str]], Content]) -> None:
        """Write the divergence, what ``write`` writes, and ``index.json`` with what it returns."""

        def written(place: Path, parts: dict[str, str]) -> Content:
            divergence = self._given
            if self._divergence is not None:
                divergence = self._fingerprint()
                parts["model"] = f"model-{divergence[:16]}"
                second = None if self._second is self._encoder else self._second
                model = self._divergence if self._encoder is None else Embedded(self._encoder, self._divergence, second)
                io.save(model.eval(), place / parts["model"])
            common = {"class": type(self).__name__, "direction": self.direction, "divergence": divergence}
            return {**common, "parts": parts, **write(place, parts)}

        io.write_folder(INDEX, folder, written)

    def _fingerprint(self) -> str:
        """Return a digest of divergence and encoder: of their descriptions and of all their numbers."""
        modules = {"encoder": self._encoder, "divergence": self.divergence}
        if self._second is not self._encoder:
            modules["second"] = self._second
        recipe = [None if module is None else io.describe(module) for module in modules.values()]
        states = {name: {} if module is None else module.state_dict() for name, module in modules.items()}
        tensors = {f"{name}.{key}": tensor for name, state in states.items() for key, tensor in state.items()}
        return io.checksum(recipe, tensors)

    @contextlib.contextmanager
    def _searching(self, queries: ArrayLike | Tensor, k: int, what: str) -> Iterator[Tensor]:
        """Give the embeddings of queries, with all arguments checked, while no change is committed."""
        owner, points = type(self).__name__, as_points(queries)
        checks.check_size(k, f"k of {owner}.{what}")
        with self._reading():
            count = len(self)
            if count == 0:
                raise ValueError(checks.message(owner, "filled before it is searched", "no items", "Call add first."))
            if k > count:
                raise ValueError(checks.message(f"k of {owner}.{what}", f"at most {count}, the number of items", k))
            yield self._embed(points, "queries")

    # ------------------------------------------------------------------ subclasses implement these

    @abstractmethod
    def _rebuild(self) -> None:
        """Build everything from the items, or raise and change nothing; with ``_lock.prepare`` held."""

    @abstractmethod
    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        """Return the order values and the ids of the k nearest items of checked embeddings."""

    @abstractmethod
    def _exact(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        """Return the same by an exact search."""

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Keep commits out, once an interrupted one is recovered."""
        while True:
            with self._lock.read():
                if not self._lock.dirty:
                    yield
                    return
            with self._lock.prepare:
                self._recover()

    def _recover(self) -> None:
        """Rebuild after an interrupted commit; with ``_lock.prepare`` held."""
        if self._lock.dirty:
            self._rebuild()

    # ------------------------------------------------------------------ points to embeddings

    def _embed(self, points: Tensor, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return the embeddings of ``"items"`` or ``"queries"`` in main memory, after all checks.

        A dtype is for items that follow others which are not in the index yet.
        """
        owner = type(self).__name__
        if self._divergence is None:
            self._set_divergence(points.shape[-1] if points.ndim else 0)
        divergence = self.divergence
        is_first = (name == "queries") == (self.direction == "query-first")
        encoder = self._encoder if is_first else self._second
        if encoder is not None:
            if points.ndim < 2:
                must = "a batch of points, with the batch first"
                raise ValueError(checks.message(f"{name} of {owner}", must, f"shape {tuple(points.shape)}"))
            if points.is_floating_point():
                checks.check_finite(points, name, owner)
            points = encode(encoder, points, self.progress)
        points = as_floats(points, divergence.dtype)
        dtype = divergence.dtype or dtype or self._item_dtype() or points.dtype
        points = points.detach().cpu().to(torch.float32 if dtype.itemsize < 4 else dtype)
        if points.ndim != 2:
            hint = "A single point is one row: points[None]." if points.ndim == 1 else ""
            raise ValueError(checks.message(f"{name} of {owner}", "of shape (n, dim)", tuple(points.shape), hint))
        points = checks.check_points(points, divergence.dim, name, owner)
        checks.check_finite(points, name, owner)
        if divergence.domain != REAL:
            boundary = divergence.takes_boundary("first" if is_first else "second")
            divergence.domain.check(points, name, owner, boundary=boundary)
        return points

    @abstractmethod
    def _item_dtype(self) -> torch.dtype | None:
        """Return the dtype of the items, if there are any."""

    # ------------------------------------------------------------------ exact values

    def _values(self, queries: Tensor, items: NDArray[Any], numbers: NDArray[Any], rows: NDArray[Any]) -> Tensor:
        """Return the :meth:`~askew.Divergence.order` of pairs of a query and an item, each by its number."""
        like = next((t for t in (*self.divergence.parameters(), *self.divergence.buffers())), queries)
        result = torch.empty(len(rows), dtype=queries.dtype)

        def work(part: slice) -> None:
            # Pairs are gathered here, and are still in the cache when they are used.
            first = queries[torch.from_numpy(numbers[part])].to(like.device)
            second = torch.from_numpy(items[rows[part]]).to(like.device)
            if self.direction == "query-second":
                first, second = second, first
            result[part] = self.divergence.order(first, second).cpu()

        over_blocks(len(rows), max(1, min(BLOCK_PAIRS, BLOCK_NUMBERS // max(1, queries.shape[1]))), work)
        return result

    def _ranked(self, queries: Tensor, items: NDArray[Any], rows: RowNumbers, k: int) -> tuple[Tensor, RowNumbers]:
        """Return the k nearest of candidates by the exact order of the divergence; a row of -1 is no candidate.

        ``items`` is indexed by ``rows``, ``(n, candidates)``. Of equals the smaller row comes first.
        """
        present = rows >= 0
        values = np.full(rows.shape, np.inf, queries.numpy().dtype)
        values[present] = self._values(queries, items, np.nonzero(present)[0], rows[present]).numpy()
        order = np.lexsort((rows, values, ~present), axis=1)[:, :k]
        return torch.from_numpy(np.take_along_axis(values, order, 1)), np.take_along_axis(rows, order, 1)


def each_block(
    blocks: Rows | Iterable[ArrayLike | Tensor], progress: bool | None
) -> Generator[ArrayLike | Tensor, None, None]:
    """Yield blocks; those of files, whose length is known, with a progress bar."""
    if not isinstance(blocks, Rows):
        yield from blocks
        return
    with progress_bar(progress, len(blocks), "items") as move:
        done = 0
        for block in blocks.blocks():
            yield block
            done += len(block)
            move(done)
