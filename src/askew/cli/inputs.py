"""Tables and models as commands take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from askew import checks, io
from askew.cli.shell import complain, say
from askew.cli.tables import LABEL, Columns, check_column, load_bundled, read_frame
from askew.divergences import CATALOGUE, Divergence
from askew.estimators.base import BaseLearner

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "COLUMNS",
    "Dataset",
    "Drop",
    "Json",
    "Keep",
    "NoHeader",
    "Seed",
    "TableFile",
    "columns_in",
    "divergence_names",
    "labelled",
    "load_model",
    "names_of",
    "points_for",
    "read_table",
    "tell",
]

# What the notes of a model or an index call the description of its columns.
COLUMNS = "columns"

TableFile = Annotated[
    Path | None, typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet, .npz or .npy.", show_default=False)
]
Dataset = Annotated[str | None, typer.Option(help="A table that comes along, such as wine, in place of TABLE.")]
Drop = Annotated[list[str] | None, typer.Option(help="Leave this column out; may be repeated.")]
Keep = Annotated[list[str] | None, typer.Option(help="Use this column though it looks like names; may be repeated.")]
NoHeader = Annotated[bool, typer.Option("--no-header", help="The first line of TABLE has values, not names.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]


def read_table(path: Path | None, dataset: str | None = None, no_header: bool = False) -> DataFrame:
    """Return the table of a file, or one that comes along."""
    if (path is None) == (dataset is None):
        got = "both" if path is not None else "neither"
        raise ValueError(checks.message("input", "either a TABLE or --dataset NAME", got))
    return load_bundled(dataset) if dataset is not None else read_frame(path or "", header=not no_header)


def labelled(table: DataFrame, label: str | None, dataset: str | None) -> tuple[DataFrame, str, list[str]]:
    """Return the rows that have a label, the name of its column, and what there is to say of it."""
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


def divergence_names(asked: str, usual: Sequence[str]) -> list[str]:
    """Return names of divergences from one text: ``all``, ``usual``, or names with commas."""
    if asked == "usual":
        return list(usual)
    if asked == "all":
        # Those in closed form are for positive numbers or distributions, and have nothing to learn.
        return [
            "euclidean",
            *(name for name, entry in CATALOGUE.items() if entry.learned and name != "widenorm-legacy"),
        ]
    return [checks.check_name(name.strip(), CATALOGUE, "--divergence") for name in asked.split(",")]


# ---------------------------------------------------------------------- with a model


def load_model(folder: Path) -> tuple[Any, Columns | None]:
    """Return a model and how it takes tables, if that was saved with it."""
    model, notes = io.load_with_notes(folder)
    if not isinstance(model, (Divergence, BaseLearner)):
        must = "a folder of a divergence or a learner"
        raise ValueError(checks.message("MODEL", must, f"{str(folder)!r} with a {type(model).__name__}"))
    return model, columns_in(notes, folder)


def columns_in(notes: Mapping[str, Any], folder: Path) -> Columns | None:
    """Return how a model or an index takes tables, from the notes that were saved with it; None without."""
    return Columns.from_json(notes[COLUMNS], repr(str(folder))) if COLUMNS in notes else None


def points_for(columns: Columns | None, table: DataFrame, dim: int | None) -> NDArray[np.float64]:
    """Return the rows of a table as points for a model.

    A model that was saved by hand does not know columns: then all columns of numbers are taken, in their order.
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
        raise ValueError(checks.message("TABLE", "a table of finite numbers", "gaps or infinity", "Fill them first."))
    return points


def names_of(table: DataFrame, column: str | None) -> list[str]:
    """Return what the rows are called: their values in a column, or else their numbers from 0."""
    if column is None:
        return [str(number) for number in range(len(table))]
    names = [str(value) for value in table[check_column(table, column, "--id")]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(checks.message("--id", "a column in which no value comes twice", f"{twice!r} twice"))
    return names


def tell(notes: Sequence[str], quiet: bool) -> None:
    """Print what was made of the columns."""
    for note in notes:
        say(f"  {note}", quiet)
