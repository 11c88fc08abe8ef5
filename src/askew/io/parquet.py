"""What a Parquet file says of its size, compared with its bytes before anything of it is unpacked."""

from __future__ import annotations

from typing import Any

from askew.io.arrays import DEFLATE

__all__ = ["check_values", "group_rows"]

# Values that a Parquet file may unpack to however small it is: equal ones take no room in it.
MOST_VALUES = 1 << 26


def group_rows(file: Any) -> list[int]:
    """Return how many rows each group of an open Parquet file says it has.

    The number of all rows that a file declares beside them is not looked at: readers go by the groups.

    Parameters
    ----------
    file
        A ``pyarrow.parquet.ParquetFile``.

    Raises
    ------
    ValueError
        If a number is below zero. The message says only what is wrong, not in which file.
    """
    counts = [int(file.metadata.row_group(number).num_rows) for number in range(file.metadata.num_row_groups)]
    if min(counts, default=0) < 0:
        raise ValueError(f"it says that it has a group of {min(counts)} rows")
    return counts


def check_values(values: int, length: int) -> None:
    """Raise ValueError if a file of ``length`` bytes declares far more values that are read at a time.

    Examples
    --------
    >>> check_values(10**9, 1200)
    Traceback (most recent call last):
    ValueError: it has 1200 bytes that say they are 1000000000 values
    """
    if values > max(MOST_VALUES, DEFLATE * length):
        raise ValueError(f"it has {length} bytes that say they are {values} values")
