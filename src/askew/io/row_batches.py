"""Batches for training from rows that stay on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew import checks
from askew.io.rows import Rows

__all__ = ["RowBatches"]


class RowBatches:
    """Shuffled batches of rows on the disk, for :func:`askew.fit` in place of arrays.

    A whole random order would read every row on its own. So an epoch takes runs of neighbouring rows in a random order,
    and mixes the rows of some runs at a time in memory: ``mixed`` runs of ``run`` rows, from which batches are cut.
    Sort no file by its labels if the mixed rows are few.

    Parameters
    ----------
    parts
        What a batch consists of, as the loss takes it: ``(points, labels)``, ``(first, second, targets)`` or
        ``(anchors, positives, negatives)``, each a :class:`Rows` or an array, all equally long.
    batch_size
        Rows of a batch; in an epoch they differ by one at most.
    run, mixed
        Neighbouring rows that are read at a time, and how many such runs are mixed.
    seed
        Of the order.
    share
        ``(rank, processes)`` of :mod:`torch.distributed` where several train together: each reads its own part of the
        runs, and a batch of all of them has ``processes * batch_size`` rows.

    Examples
    --------
    >>> points, labels = np.arange(20.0).reshape(10, 2), np.arange(10)
    >>> batches = RowBatches((points, labels), batch_size=4, run=3, mixed=2, seed=0)
    >>> len(batches), [len(part) for part, _ in batches]
    (3, [4, 3, 3])
    """

    def __init__(
        self,
        parts: Sequence[Rows | NDArray[Any]],
        batch_size: int,
        *,
        run: int = 4096,
        mixed: int = 16,
        seed: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        owner = "RowBatches"
        if not isinstance(parts, (tuple, list)) or not parts:
            raise TypeError(checks.message(f"parts of {owner}", "a tuple of Rows or arrays", type(parts).__name__))
        for part in parts:
            checks.check_plain(part, f"parts of {owner}")
        self.parts = [part if isinstance(part, Rows) else Rows(np.asarray(part)) for part in parts]
        lengths = [len(part) for part in self.parts]
        if len(set(lengths)) > 1:
            raise ValueError(checks.message(f"parts of {owner}", "equally long", " and ".join(map(str, lengths))))
        self.batch_size = checks.check_size(batch_size, f"batch_size of {owner}")
        self.run, self.mixed = checks.check_size(run, f"run of {owner}"), checks.check_size(mixed, f"mixed of {owner}")
        rank, processes = share
        if not 0 <= rank < processes:
            raise ValueError(checks.message(f"share of {owner}", "(rank, processes) with rank < processes", share))
        self.rank, self.processes = rank, processes
        # fit keeps its state in checkpoints, by which a run goes on in the same order.
        self.generator = torch.Generator().manual_seed(seed)
        self._starts = np.arange(0, lengths[0], self.run)
        # The same number for all processes: one with fewer would have nothing to do in the last batches. The last run
        # may be shorter, and any process may have it.
        short = len(self._starts) * self.run - lengths[0]
        self._rows = lengths[0] if processes == 1 else len(self._starts) // processes * self.run - short
        if self._rows < 1:
            must = f"so small that each of {processes} processes has some of {lengths[0]} rows"
            raise ValueError(checks.message(f"run of {owner}", must, run))

    def __len__(self) -> int:
        return -(-self._rows // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        order = self._starts[torch.randperm(len(self._starts), generator=self.generator).numpy()]
        # All processes draw the same numbers, so that one state stands for all.
        mixing = int(torch.randint(2**31 - 1, (), generator=self.generator))
        random = np.random.RandomState((mixing + self.rank) % 2**32)
        own = order[self.rank :: self.processes]
        sizes = [len(some) for some in np.array_split(np.empty(self._rows, np.int8), len(self))]
        # Those that are left over from the last mixture come first in the next batch.
        waiting = [part.read(0, 0) for part in self.parts]
        for first in range(0, len(own), self.mixed):
            mixture = [self._mixture(part, own[first : first + self.mixed]) for part in self.parts]
            shuffled = random.permutation(len(mixture[0]))
            waiting = [np.concatenate([old, new[shuffled]]) for old, new in zip(waiting, mixture, strict=True)]
            del mixture
            place = 0
            while sizes and place + sizes[0] <= len(waiting[0]):
                size = sizes.pop(0)
                yield tuple(torch.from_numpy(part[place : place + size].copy()) for part in waiting)
                place += size
            waiting = [part[place:] for part in waiting]

    def _mixture(self, part: Rows, starts: NDArray[np.int64]) -> NDArray[Any]:
        return np.concatenate([part.read(start, min(start + self.run, len(part))) for start in starts.tolist()])
