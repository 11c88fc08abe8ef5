"""Tables and models as the commands take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from askew import checks, io
from askew.cli.shell import complain, say
from askew.cli.tables import LABEL, Columns, check_column, load_bundled, read_frame

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# The key of the column encoding in the notes of a model or an index.
COLUMNS = "columns"
# The key of the encoding of queries, where they have other columns than items.
QUERY_COLUMNS = "query columns"


def read_table(path: Path | None, dataset: str | None = None, no_header: bool = False) -> DataFrame:
    """Return the table of a file, or an example table."""
    return load_bundled(dataset) if dataset is not None else read_frame(path or "", header=not no_header)


def labelled(table: DataFrame, label: str | None, dataset: str | None) -> tuple[DataFrame, str, list[str]]:
    """Return the rows that have a label, the name of its column, and notes for the user."""
    if label is None and dataset is not None:
        label = LABEL
    if label is None:
        columns = ", ".join(map(str, table.columns[:20])) + (", ..." if table.shape[1] > 20 else "")
        raise ValueError(checks.message("--label", f"the column with the classes, one of {columns}", "none"))
    check_column(table, label, "--label")
    known = table[label].notna()
    lost = int((~known).sum())
    notes = [f"{lost} row{'s' * (lost > 1)} left out, without a label"] if lost else []
    table = table[known].reset_index(drop=True)
    classes = table[label].nunique()
    if classes > 50 and classes > len(table) / 3:
        must = "a column of classes, each with several rows"
        got = f"{label!r} with {classes} different values in {len(table)} rows"
        hint = "Numbers to predict are learned from pairs: see askew learn --pairs."
        raise ValueError(checks.message("--label", must, got, hint))
    return table, label, notes


def as_classes(values: Series) -> NDArray[np.str_]:
    """Return labels as text, the same for 1 and 1.0, whatever their types."""
    whole = values.dtype.kind == "f" and (values % 1 == 0).all()
    return np.array([str(int(value)) if whole else str(value) for value in values])


def names_of(table: DataFrame, column: str | None) -> list[str]:
    """Return the names of the rows: their values in a column, or else their numbers from 0."""
    if column is None:
        return [str(number) for number in range(len(table))]
    names = [str(value) for value in table[check_column(table, column, "--id")]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(checks.message("--id", "a column in which no value comes twice", f"{twice!r} twice"))
    return names


def numbers_of(frame: DataFrame, names: list[str], size: int, option: str) -> NDArray[np.int64]:
    """Return the row numbers, ``(n, size)``, of a table whose cells are names of rows of another table."""
    if frame.shape[1] != size:
        must = f"a table with {size} columns that name rows of TABLE"
        raise ValueError(checks.message(option, must, ", ".join(map(str, frame.columns))))
    places = {name: number for number, name in enumerate(names)}
    texts = [[str(value) for value in frame[column]] for column in frame.columns]
    unknown = next((text for column in texts for text in column if text not in places), None)
    if unknown is not None:
        hint = "Rows are called by their numbers from 0; name a column of TABLE by --id to call them by its values."
        raise ValueError(checks.message(f"values in {option}", "names of rows of TABLE", repr(unknown), hint))
    return np.array([[places[text] for text in column] for column in texts], dtype=np.int64).T


# ---------------------------------------------------------------------- with a model


def load_model(folder: Path) -> tuple[Any, Columns | None]:
    """Return a model, and how it encodes tables if that was saved with it."""
    model, notes = io.load_with_notes(folder)
    if not callable(getattr(model, "as_divergence", None)):
        must = "a folder of a divergence or a learner"
        raise ValueError(checks.message("MODEL", must, f"{str(folder)!r} with a {type(model).__name__}"))
    return model, columns_in(notes, folder)


def dim_of(model: Any) -> int | None:
    """Return the number of features that a model takes, where it is known."""
    dim = getattr(model, "n_features_in_", getattr(model, "dim", None))
    return None if dim is None else int(dim)


def columns_in(notes: Mapping[str, Any], folder: Path, key: str = COLUMNS) -> Columns | None:
    """Return the column encoding from the notes of a model or an index; None without one."""
    return Columns.from_json(notes[key], repr(str(folder))) if key in notes else None


def points_for(columns: Columns | None, table: DataFrame, dim: int | None) -> NDArray[np.float64]:
    """Return the rows of a table as points for a model.

    A model that was saved from Python knows no columns: then all columns of numbers are taken, in their order.
    """
    if columns is not None:
        for note in columns.unseen(table):
            complain(note)
        return columns.encode(table)
    numbers = table.select_dtypes("number")
    if dim is not None and numbers.shape[1] != dim:
        must = f"a table with {dim} columns of numbers, as many as the model has features"
        raise ValueError(checks.message("TABLE", must, numbers.shape[1], "Drop the other columns."))
    points: NDArray[np.float64] = numbers.to_numpy(dtype=np.float64)
    if not np.isfinite(points).all():
        raise ValueError(
            checks.message("TABLE", "a table of finite numbers", "missing or infinite values", "Fill them first.")
        )
    return points


def tell(notes: Sequence[str], quiet: bool) -> None:
    """Print notes about the columns."""
    for note in notes:
        say(f"  {note}", quiet)
