"""Tables and models as the commands take them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from askew import checks, io
from askew.cli.options import table_ending
from askew.cli.shell import complain, say
from askew.cli.tables import LABEL, TYPED, load_bundled, read_frame
from askew.estimators.cells import alike, as_missing, as_numbers, as_text, changed, decimal_mark, is_text
from askew.estimators.columns import Columns, check_column
from askew.estimators.judging import IDENTIFIER

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# Keys in the notes of a model or an index: the columns, the column with the classes, that with the numbers to learn
# from, and these numbers, one for each of the points that the model keeps.
COLUMNS, LABELS, TARGET, VALUES = "columns", "label", "target", "values"
# The column that names the rows, and the names of the points that the model keeps.
ID, NAMES = "id", "names"
# Mean length of text that may name rows; longer text is a remark.
SHORT = 24
# A model in a folder that `askew compare` wrote.
INNER, MODEL_FILE = "model", "model.json"
# In the same folder, a model that has not seen some rows, and the key of these rows in its notes.
HELD_OUT = "held-out"
# Classes whose counts are printed, and the number of numeric ones from which they are doubted.
SHOWN_CLASSES, MANY_CLASSES = 12, 30
# How the note on a column ends of which there is nothing to say.
PLAIN = ": number [--category, --drop]"
# Notes on columns above which plain numbers share a line.
MANY_NOTES = 30
# The key of the columns of queries, where they have other ones than items.
QUERY_COLUMNS = "query columns"


def read_table(path: Path | None, dataset: str | None = None, no_header: bool = False) -> DataFrame:
    """Return the table of a file, or an example table."""
    return load_bundled(dataset) if dataset is not None else read_frame(path or "", header=not no_header)


def fit_columns(
    table: DataFrame,
    aside: Mapping[str, str],
    *,
    drop: Sequence[str] | None,
    keep: Sequence[str] | None,
    category: Sequence[str] | None,
    number: Sequence[str] | None,
    date: Sequence[str] | None,
    na: Sequence[str] | None,
) -> Columns:
    """Return the columns of a table, decided on all its rows; those in ``aside`` are no features, and why."""
    forms = {}
    for text in date or []:
        name = text if text in table.columns else text.partition("=")[0]
        forms[name] = text[len(name) + 1 :] or None
    asked = {"--category": category, "--number": number, "--date": forms, "--keep": keep, "--drop": drop}
    for option, names in asked.items():
        for name in names or ():
            check_column(table, name, option)
    dropped = dict.fromkeys([*aside, *(drop or [])])
    columns = Columns(
        category=category or [], number=number or [], date=forms, na=na or [], keep=keep or [], drop=list(dropped)
    ).fit(table)
    said = {f"{name}: left out, as asked for": f"{name}: {why}" for name, why in aside.items()}
    columns.notes_ = tuple(said.get(note, note) for note in columns.notes_)
    return columns


def label_column(table: DataFrame, label: str | None, dataset: str | None = None) -> str:
    """Return the name of the column with the classes."""
    if label is None and dataset is None:
        columns = ", ".join(map(str, table.columns[:20])) + (", ..." if table.shape[1] > 20 else "")
        raise ValueError(checks.message("--label", f"the column with the classes, one of {columns}", "none"))
    return check_column(table, LABEL if label is None else label, "--label")


def classes_of(
    values: Series, na: Sequence[str] = (), least: int = 2
) -> tuple[NDArray[np.bool_], NDArray[np.str_], list[str]]:
    """Return which rows have a label, their labels as text, and notes for the user.

    Fewer than ``least`` classes are an error. Labels are the same for 1 and 1.0, whatever their types; spaces around
    them are removed and Unicode is normalised.
    """
    values = as_missing(values, na)
    texts = as_text(values)
    known = texts.notna().to_numpy()
    label, lost, cleaned = values.name, int((~known).sum()), changed(values[known], texts[known])
    if not known.any():
        raise ValueError(checks.message("--label", "a column with labels", f"the empty column {label!r}"))
    notes = [f"{_rows(lost)} left out, without a label"] if lost else []
    if cleaned:
        notes += [f"{cleaned} label{'s' * (cleaned > 1)} stripped of spaces or normalised"]
    labels = np.array(texts[known].tolist())
    names, counts = np.unique(labels, return_counts=True)
    numeric = values.dtype.kind in "iuf"
    if len(names) < least:
        must, got = "a column with at least two classes", f"{label!r} with one, {str(names[0])!r}"
        raise ValueError(checks.message("--label", must, got, "Was the table filtered by class?"))
    if len(names) > 50 and len(names) > len(labels) / 3:
        must = "a column of classes, each with several rows"
        got = f"{label!r} with {len(names)} different values in {len(labels)} rows"
        hint = f"Learn from numbers by: askew learn TABLE --target {label}"
        raise ValueError(checks.message("--label", must, got, hint if numeric else ""))
    order = sorted(zip(-counts, names, strict=True))
    listed = ", ".join(f"{name} {-count}" for count, name in order[:SHOWN_CLASSES])
    notes += [f"{label}: {len(names)} classes: {listed}{', ...' if len(names) > SHOWN_CLASSES else ''}"]
    if same := ", ".join(alike(names)[:3]):
        hint = "Are they the same? Then write them alike in the table."
        notes += [f"Classes that differ only by case: {same}. {hint}"]
    if numeric and len(names) > MANY_CLASSES:
        notes += [
            f"{len(names)} classes that are numbers: to learn from their values, use askew learn --target {label}"
        ]
    return known, labels, notes


def _rows(number: int) -> str:
    return f"{number} row{'s' * (number > 1)}"


def targets_of(values: Series, na: Sequence[str] = ()) -> tuple[NDArray[np.bool_], NDArray[np.float64], list[str]]:
    """Return which rows have a number to learn from, these numbers, and notes for the user."""
    values = as_missing(values, na)
    present = as_text(values).dropna() if is_text(values) else values.dropna()
    mark = decimal_mark(present) if is_text(values) and len(present) else "."
    numbers = as_numbers(values, mark or ".")
    known = np.isfinite(numbers)
    if mark is None or len(np.unique(numbers[known])) < 3:
        got = f"{values.name!r} with {len(np.unique(numbers[known]))} different numbers in {len(values)} rows"
        raise ValueError(checks.message("--target", "a column of numbers", got, "Classes are for --label."))
    lost = int((~known).sum())
    notes = [f"{_rows(lost)} left out, without a number in {values.name}"] if lost else []
    numbers = numbers[known]
    low, middle, high = np.quantile(numbers, [0, 0.5, 1])
    return known, numbers, [*notes, f"{values.name}: from {low:.4g} to {high:.4g}, median {middle:.4g}"]


def with_names(
    table: DataFrame, path: Path | None, columns: Collection[str | None], no_header: bool = False
) -> DataFrame:
    """Return a table of a file in which columns that name rows are text, as in the file: as a number, 007 is 7.

    It is for names only: features are those of the table as it is.
    """
    places = [place for place, name in enumerate(table.columns) if name in columns and not is_text(table[name])]
    if not places or path is None or table_ending(path) in TYPED:
        return table
    return table.assign(**read_frame(path, header=not no_header, text=places))


def names_of(table: DataFrame, column: str | None, of: str = "TABLE") -> list[str]:
    """Return the names of the rows: their values in a column, or else their numbers from 0."""
    if column is None:
        return [str(number) for number in range(len(table))]
    names = as_text(table[check_column(table, column, "--id")])
    missing, twice = names.index[names.isna()], names[names.notna() & names.duplicated()]
    if len(twice):
        raise ValueError(checks.message("--id", "a column in which no value comes twice", f"{twice.iloc[0]!r} twice"))
    if len(missing):
        but = f"row {missing[0]}, counted from 0, has no name"
        raise ValueError(checks.message(f"the column {column!r} of {of}", "one that names each row", but=but))
    return list(names)


def names_all(values: Series) -> bool:
    """Whether no value of a column is missing or comes twice."""
    texts = as_text(values)
    return bool(texts.notna().all() and texts.is_unique)


def id_column(table: DataFrame, columns: Columns) -> str | None:
    """Return the column that names the rows: it is no feature, and no value is missing or comes twice.

    Text comes before numbers, and among text a column that is called so. Columns that were asked to be left out are
    not looked at.
    """
    aside = {column.name for column in columns.columns_} | set(columns.drop)
    found: list[tuple[bool, bool, int, str]] = []
    for name in (name for name in table.columns if name not in aside):
        values, called = table[name], bool(IDENTIFIER.fullmatch(name))
        if not names_all(values):
            continue
        if called or (is_text(values) and as_text(values).str.len().mean() <= SHORT):
            found.append((not is_text(values), not called, len(found), name))
    return min(found)[3] if found else None


def naming_columns(table: DataFrame, used: Iterable[object]) -> list[str]:
    """Return the columns in which no value comes twice and which have all of the names that another table uses."""
    wanted = {str(value) for value in used}
    # Numbers may be those of rows: that a column has them all means something only if it is called an id.
    numbers = all(name.isdecimal() for name in wanted)
    return [
        column
        for column in table.columns
        if (not numbers or IDENTIFIER.fullmatch(column))
        and table[column].dropna().is_unique
        and wanted <= set(as_text(table[column]))
    ]


def by_point(points: NDArray[np.float64], names: Sequence[str]) -> dict[bytes, str]:
    """Return the name of each point, by its bytes; equal points share their names."""
    named: dict[bytes, list[str]] = {}
    for point, name in zip(bytes_of(points), names, strict=True):
        named.setdefault(point, []).append(name)
    return {point: ", ".join(some[:3]) + ", ..." * (len(some) > 3) for point, some in named.items()}


def names_in(named: Mapping[bytes, str], points: NDArray[np.float64], key: str = NAMES) -> dict[str, list[str]]:
    """Return a note with the names of points, if all have one."""
    names = [named[point] for point in bytes_of(points) if point in named]
    return {key: names} if named and len(names) == len(points) else {}


def bytes_of(points: NDArray[Any]) -> list[bytes]:
    """Return the bytes of each point, -0 as 0."""
    return [point.tobytes() for point in points.astype(np.float64) + 0.0]


def numbers_of(frame: DataFrame, names: list[str], size: int, option: str) -> NDArray[np.int64]:
    """Return the row numbers, ``(n, size)``, of a table whose cells are names of rows of another table."""
    if frame.shape[1] != size:
        must = f"a table with {size} columns that name rows of TABLE"
        raise ValueError(checks.message(option, must, ", ".join(map(str, frame.columns))))
    places = {name: number for number, name in enumerate(names)}
    texts = frame.apply(as_text)
    missing = texts.index[texts.isna().any(axis=1)]
    if len(missing):
        must, but = "a table without empty cells", f"row {missing[0]}, counted from 0, has one"
        raise ValueError(checks.message(option, must, but=but))
    unknown = next((text for text in texts.to_numpy().ravel() if text not in places), None)
    if unknown is not None:
        hint = "They are values of --id or of a column of TABLE that has them all, else row numbers from 0."
        raise ValueError(checks.message(f"values in {option}", "names of rows of TABLE", repr(unknown), hint))
    return np.array([[places[text] for text in row] for row in texts.to_numpy()], dtype=np.int64)


# ---------------------------------------------------------------------- with a model


def load_all(folder: Path, side: str | None = None) -> tuple[Any, Columns | None, dict[str, Any]]:
    """Return a model, its columns and all of its notes; the folder may be one that ``askew compare`` wrote.

    The columns are those of a side, queries or items; without one, both sides must have the same.
    """
    if not (folder / MODEL_FILE).exists() and (folder / INNER / MODEL_FILE).exists():
        folder = folder / INNER
    model, notes = io.load_with_notes(folder)
    if not callable(getattr(model, "as_divergence", None)):
        must = "a folder of a divergence or a learner"
        raise ValueError(checks.message("MODEL", must, f"{str(folder)!r} with a {type(model).__name__}"))
    if side is None and of_two_tables(model, notes):
        must, got = (
            "one whose points are rows of one table",
            f"{str(folder)!r}, whose queries have other columns than items,",
        )
        hint = "askew index and search take it, and askew transform with --side queries or --side items."
        raise ValueError(checks.message("MODEL", must, got, hint))
    return model, columns_in(notes, folder, side), notes


def of_two_tables(model: Any, notes: Mapping[str, Any]) -> bool:
    """Whether the queries of a model have other columns than its items."""
    return QUERY_COLUMNS in notes or dim_of(model, "queries") != dim_of(model)


class Shown(NamedTuple):
    """A model and rows to show it with; without rows, those that it was learned from are shown."""

    model: Any
    columns: Columns | None
    points: Any = None
    labels: Any = None
    training: Any = None
    ids: Any = None


def load_shown(folder: Path) -> Shown:
    """Return a model to show and, where ``askew compare`` wrote them, rows that it has not seen."""
    if not (folder / HELD_OUT / MODEL_FILE).exists():
        model, columns, notes = load_all(folder)
        return Shown(model, columns, ids=notes.get(NAMES))
    model, columns, notes = load_all(folder / HELD_OUT)
    rows = notes.get(HELD_OUT)
    if not isinstance(rows, dict) or set(rows) - {"ids"} != {"points", "labels", "training"}:
        raise ValueError(io.damaged(repr(str(folder / HELD_OUT)), "it has no held-out rows"))
    return Shown(model, columns, **rows)


class Opened(NamedTuple):
    """A model, and the rows of a table as its points."""

    model: Any
    columns: Columns | None
    notes: dict[str, Any]
    frame: DataFrame
    points: NDArray[np.float64]
    names: list[str]


def load_and_read(folder: Path, file: Path, name: str | None, no_header: bool, side: str | None = None) -> Opened:
    """Return a model, a table that it is applied to (of a side of it), and the points and the names of the rows."""
    model, columns, notes = load_all(folder, side)
    frame = read_table(file, None, no_header)
    points = points_for(columns, frame, dim_of(model, side))
    return Opened(model, columns, notes, frame, points, names_of(with_names(frame, file, [name], no_header), name))


def dim_of(model: Any, side: str | None = None) -> int | None:
    """Return the number of features that a model takes, where it is known: of items, unless asked for queries."""
    dim = getattr(model, "n_features_in_", getattr(model, "dim", None))
    if side != "queries":
        dim = getattr(model, "n_item_features_in_", dim)
    return None if dim is None else int(dim)


def columns_in(notes: Mapping[str, Any], folder: Path, side: str | None = None) -> Columns | None:
    """Return the column encoding from the notes of a model or an index, of a side of it; None without one."""
    key = QUERY_COLUMNS if side == "queries" and QUERY_COLUMNS in notes else COLUMNS
    return Columns.from_json(notes[key], repr(str(folder))) if key in notes else None


def points_for(columns: Columns | None, table: DataFrame, dim: int | None) -> NDArray[np.float64]:
    """Return the rows of a table as points for a model.

    A model that was saved from Python knows no columns: then all columns of numbers are taken, in their order.
    """
    if columns is not None:
        encoded = columns.transform(table)
        for note in columns.unseen(table):
            complain(note)
        return encoded
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


def features_of(columns: Columns) -> dict[str, list[int]]:
    """Return the numbers of the features of each column."""
    owners = [column.name for column in columns.columns_ for _ in column.features]
    return {name: [i for i, owner in enumerate(owners) if owner == name] for name in dict.fromkeys(owners)}


def condensed(notes: Sequence[str]) -> list[str]:
    """Return notes about columns, with those that say nothing but "number" in one line if there are many."""
    plain = [note.removesuffix(PLAIN) for note in notes if note.endswith(PLAIN)]
    if len(notes) <= MANY_NOTES or len(plain) < 3:
        return list(notes)
    line = f"{', '.join(plain[:3])} and {len(plain) - 3} other columns: numbers [--category, --drop]"
    return [*(note for note in notes if not note.endswith(PLAIN)), line]


def tell(notes: Sequence[str], quiet: bool) -> None:
    """Print notes about the rows and columns."""
    for note in notes:
        say(f"  {note}", quiet)


def tell_replaced(places: Sequence[Path], quiet: bool) -> None:
    """Print which of the files and folders that will be written are there already."""
    there = [str(place.parent if place.suffix == ".json" else place) for place in places if place.is_file()]
    say(f"Replaces {' and '.join(there)}, there from an earlier run.", quiet or not there)
