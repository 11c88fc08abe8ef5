"""Combine the results of the blocks of a Dask collection, with errors that do not depend on the order of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from askew import checks

__all__ = ["Failure", "attempt", "reduced"]

# Results that one task combines.
BRANCHES = 16


class Failure(NamedTuple):
    """Bad input in a block. It is a result, not an exception: Dask raises whichever exception comes first in time."""

    block: int
    error: Exception


def attempt(work: Callable[..., Any], block: int, *arguments: Any) -> Any:
    """Return ``work(*arguments)`` for the block of this number, or its failure."""
    try:
        return work(*arguments)
    except (TypeError, ValueError) as error:
        return Failure(block, error)


def reduced(tasks: Sequence[Any], add: Callable[[list[Any]], Any], blocks: Sequence[Any]) -> Any:
    """Return the results of all tasks, one for each block, combined in a tree; those that are None do not count.

    If blocks have failed, the error of the first in the order of rows is raised, with the row where it begins.
    """
    dask = checks.optional_import("dask", "dask", "Work on dask's data")
    join = dask.delayed(_joined, pure=False)
    while len(tasks) > 1:
        tasks = [join(add, list(tasks[i : i + BRANCHES])) for i in range(0, len(tasks), BRANCHES)]
    result = dask.compute(tasks[0])[0]
    if not isinstance(result, Failure):
        return result
    number, error = result
    if number == 0:
        raise error
    length = dask.delayed(_length, pure=False)
    start = sum(dask.compute(*(length(block) for block in blocks[:number])))
    text = f"{error} Rows are counted from row {start}, where block {number} begins."
    raise (TypeError if isinstance(error, TypeError) else ValueError)(text) from error


def _joined(add: Callable[[list[Any]], Any], parts: list[Any]) -> Any:
    known = [part for part in parts if part is not None]
    failure = next((part for part in known if isinstance(part, Failure)), None)
    if failure is not None:
        return failure
    return add(known) if len(known) > 1 else next(iter(known), None)


def _length(block: Any) -> int:
    return 0 if block is None else len(block)
