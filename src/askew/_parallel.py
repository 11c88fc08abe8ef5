"""Work in blocks, each block on one thread.

Torch's own threads share each single operation and wait for each other after it. Where operations are small, or the
machine is busy, that takes most of the time. Here each thread works on whole blocks and waits once.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["over_blocks", "release_memory", "slices", "workers"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def slices(n: int, rows: int) -> Iterator[slice]:
    """Yield slices that divide ``n`` rows into blocks."""
    for start in range(0, n, rows):
        yield slice(start, min(n, start + rows))


@contextlib.contextmanager
def workers(most: int) -> Iterator[tuple[int, Callable[[Callable[[Item], Result], Sequence[Item]], list[Result]]]]:
    """Give a number of threads and a ``map`` over them, which records no gradients and uses one thread per operation.

    Parameters
    ----------
    most
        How many threads there is work for; at most as many as torch has are used.

    Examples
    --------
    >>> with workers(4) as (count, map_over):
    ...     map_over(abs, [-1, 2])
    [1, 2]
    """
    threads = torch.get_num_threads()
    count = max(1, min(most, threads))
    inference = torch.is_inference_mode_enabled()

    def quietly(work: Callable[[Item], Result]) -> Callable[[Item], Result]:
        def run(item: Item) -> Result:
            # Both modes are per thread, and a tensor made in inference mode can be written to in that mode only.
            with torch.inference_mode(inference), torch.no_grad():
                return work(item)

        return run

    if threads == 1:
        yield 1, lambda work, items: [quietly(work)(item) for item in items]
        return
    try:
        if count == 1:
            torch.set_num_threads(1)
            yield 1, lambda work, items: [quietly(work)(item) for item in items]
            return
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield count, lambda work, items: list(pool.map(quietly(work), items))
    finally:
        torch.set_num_threads(threads)  # per thread, but new threads inherit the last one that was set


def over_blocks(n: int, rows: int, work: Callable[[slice], Result]) -> list[Result]:
    """Return the results of blocks of ``rows`` of ``n`` points, in their order and without recording gradients.

    Examples
    --------
    >>> over_blocks(5, 2, lambda part: part.stop)
    [2, 4, 5]
    """
    parts = list(slices(n, rows))
    with workers(len(parts)) as (_, map_over):
        return map_over(work, parts)


def release_memory() -> None:
    """Return freed memory to the system, where the C library is glibc.

    It keeps the memory that a thread freed for that thread, which may be as much as an index of a million items takes.
    This costs milliseconds: call it at the end of large work only.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
