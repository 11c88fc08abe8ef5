"""The encoding of columns as features, fitted on one table and applied to all later ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from askew import checks, io

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Floats = NDArray[np.float64]

# Most categories of a column that get a feature each; rarer ones share one.
MOST_LEVELS = 20
# Share of the values that must be numbers, or dates, for a column of text to be one of these.
ENOUGH = 0.95
# Share of different values above which a column of text is taken for names or free text.
TOO_DIFFERENT = 0.5
# Names of columns that number the rows.
IDENTIFIER = re.compile(r"(?i)(.*[\s_.-])?(id|index|key|uuid|guid|row|rowid|unnamed: ?\d+)|[a-z]+Id|[a-z]*ID")
KINDS = ("number", "category", "date")


@dataclass(frozen=True)
class Column:
    """A column that is used, and how.

    Attributes
    ----------
    name : str
        Name in the table.
    kind : str
        ``"number"`` (as it is), ``"date"`` (days since 1970) or ``"category"`` (a feature for each level, 1 or 0).
    fill : float
        Replacement of a missing number or date: the median.
    levels : tuple of str
        Levels of a category, the most frequent first.
    others : bool
        Whether rarer and unseen levels share a feature; if not they are 0 in all.
    """

    name: str
    kind: str
    fill: float = 0.0
    levels: tuple[str, ...] = ()
    others: bool = False

    @property
    def features(self) -> list[str]:
        """The names of its features."""
        if self.kind != "category":
            return [self.name]
        names = [f"{self.name}={level}" for level in self.levels]
        return [*names, f"{self.name}=other"] if self.others else names

    def encode(self, values: Series) -> Floats:
        """Return the features of rows, ``(n, features)``."""
        if self.kind != "category":
            numbers = _days(values) if self.kind == "date" else _numbers(values)
            return np.where(np.isfinite(numbers), numbers, self.fill)[:, None]
        # As text of numpy, each value would take the memory of the longest; no level is empty, as missing values are.
        texts = np.array([str(v) if known else "" for v, known in zip(values, values.notna(), strict=True)], object)
        known = np.stack([texts == level for level in self.levels], 1).astype(np.float64)
        if not self.others:
            return known
        other = values.notna().to_numpy() & (known.sum(1) == 0)
        return np.concatenate([known, other[:, None]], 1)


@dataclass(frozen=True)
class Columns:
    """The encoding of a table: which columns are used, and how.

    Numbers stay, with the median for missing and infinite ones. Text with few different values is a category, with a
    feature for each of its 20 most frequent levels. Dates become days. Left out are columns that are empty or always
    the same, and those that look like names or numbers of rows.

    Attributes
    ----------
    used : tuple of Column
        In the order of the table.
    notes : tuple of str
        What was encoded, filled and left out, for people.

    Examples
    --------
    >>> import pandas
    >>> table = pandas.DataFrame({"id": [1, 2, 3, 4], "size": [1.0, None, 3.0, 5.0], "colour": list("rrbb")})
    >>> columns = Columns.of(table)
    >>> columns.features
    ['size', 'colour=b', 'colour=r']
    >>> columns.encode(table).tolist()
    [[1.0, 0.0, 1.0], [3.0, 0.0, 1.0], [3.0, 1.0, 0.0], [5.0, 1.0, 0.0]]
    """

    used: tuple[Column, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: DataFrame, drop: Iterable[str] = (), keep: Iterable[str] = ()) -> Columns:
        """Return the encoding that suits a table.

        Parameters
        ----------
        table
            From :func:`read_frame` or any other frame.
        drop
            Columns to leave out, such as the label.
        keep
            Columns to use though they look like numbers of rows or names.
        """
        drop, keep = list(drop), list(keep)
        for name in [*drop, *keep]:
            check_column(table, name)
        decided = [_decided(table[name], name in keep) for name in table.columns if name not in drop]
        used = tuple(column for column, _ in decided if column is not None)
        notes = tuple(note for _, note in decided if note)
        if not used:
            got = "; ".join(notes) or "no column but the dropped ones"
            raise ValueError(checks.message("TABLE", "a table with a column that can be learned from", got))
        return cls(used, notes)

    @property
    def features(self) -> list[str]:
        """The names of all features."""
        return [feature for column in self.used for feature in column.features]

    def encode(self, table: DataFrame) -> Floats:
        """Return the rows of a table as points, ``(n, features)``; columns that are not used may be anything."""
        missing = [column.name for column in self.used if column.name not in table.columns]
        if missing:
            must = f"a table with the columns the model was learned from: {', '.join(c.name for c in self.used)}"
            raise ValueError(checks.message("TABLE", must, f"one without {', '.join(map(repr, missing))}"))
        for column in self.used:
            if column.kind == "number":
                _check_numbers(table[column.name])
        return np.concatenate([column.encode(table[column.name]) for column in self.used], 1)

    def unseen(self, table: DataFrame) -> list[str]:
        """Describe values of a new table that the encoding cannot represent, other than missing ones.

        Unseen categories are 0 in all features of their column. Infinite numbers, and text in a column of numbers or
        dates, are filled like missing values.
        """
        notes = []
        for column in self.used:
            if column.name not in table.columns:
                continue
            values = table[column.name]
            if column.kind == "category":
                known = {*column.levels}
                strange = set() if column.others else {str(value) for value in values[values.notna()].unique()} - known
                notes += [f"{column.name}: not seen when it was learned: {_some(strange)}"] if strange else []
                continue
            strange = _strange(values, column.kind)
            notes += [f"{column.name}: no {column.kind}, filled by the median: {_some(strange)}"] if strange else []
        return notes

    def to_json(self) -> dict[str, Any]:
        """Return it as values that JSON can hold, to be saved with a model or an index."""
        return {"used": [asdict(column) for column in self.used], "notes": list(self.notes)}

    @classmethod
    def from_json(cls, content: Any, shown: str) -> Columns:
        """Return the encoding that :meth:`to_json` gave, from the file that ``shown`` names in errors."""
        try:
            used = tuple(_column(entry) for entry in content["used"])
            notes = tuple(str(note) for note in content["notes"])
        except (KeyError, TypeError, ValueError, OverflowError):
            used = ()
        if not used:
            raise ValueError(io.damaged(shown, "it does not describe columns")) from None
        return cls(used, notes)


def _column(entry: Any) -> Column:
    """Return a column from a file, checked."""
    levels = tuple(map(str, entry["levels"]))
    column = Column(str(entry["name"]), str(entry["kind"]), float(entry["fill"]), levels, bool(entry["others"]))
    if column.kind not in KINDS or not np.isfinite(column.fill) or (column.kind == "category") != bool(levels):
        raise ValueError(column)
    return column


def check_column(table: DataFrame, name: str, what: str = "a column") -> str:
    """Return the name of a column if the table has it."""
    return checks.check_name(name, list(table.columns), what)


# ---------------------------------------------------------------------- deciding


def _decided(values: Series, keep: bool) -> tuple[Column | None, str]:
    """Return how a column is used, or None, and a note for people."""
    name, rows = str(values.name), len(values)
    present = int(values.notna().sum())
    try:
        different = values.nunique()
    except TypeError:  # Parquet has columns of lists
        return None, f"{name}: left out, its values have parts"
    if present == 0:
        return None, f"{name}: left out, it is empty"
    if different == 1 and present == rows:
        return None, f"{name}: left out, it is the same in all rows"
    missing = f", {_count(rows - present, 'missing value')}" if present < rows else ""
    if values.dtype.kind == "M":
        return _date(values, missing)
    if values.dtype.kind in "biuf":
        return _number(values, keep)
    texts = values[values.notna()].astype(str)
    numbers = _numbers(texts)
    if np.isfinite(numbers).mean() >= ENOUGH:
        strange = {text for text, number in zip(texts, numbers, strict=True) if not np.isfinite(number)}
        note = f"{name}: numbers among text; filled by the median: {_some(strange) or 'missing values'}"
        return _with_fill(name, "number", _numbers(values)), note
    if texts.str.match(r"\d{4}-\d\d-\d\d").mean() >= ENOUGH and np.isfinite(_days(texts)).mean() >= ENOUGH:
        return _date(values, missing)
    if not keep and different > MOST_LEVELS and different > TOO_DIFFERENT * present:
        what = f"{different} different values in {present} rows"
        return None, f"{name}: left out, it looks like names or free text ({what})"
    counts = texts.value_counts()
    # Equal counts in alphabetical order, so that the order of the rows does not matter.
    order = sorted(counts.index, key=lambda level: (-int(counts[level]), level))
    others = len(order) > MOST_LEVELS
    note = f"{name}: a category of {len(order)} levels" + (f", the {MOST_LEVELS} most frequent apart" if others else "")
    note += f"{missing} 0 in all" if missing else ""
    return Column(name, "category", levels=tuple(order[:MOST_LEVELS]), others=others), note


def _number(values: Series, keep: bool) -> tuple[Column | None, str]:
    name, rows, numbers = str(values.name), len(values), _numbers(values)
    finite = numbers[np.isfinite(numbers)]
    whole = values.dtype.kind in "iu" and len(finite) == rows and rows > 1
    if not keep and whole and values.is_unique and (IDENTIFIER.fullmatch(name) or (np.diff(finite) == 1).all()):
        return None, f"{name}: left out, it numbers the rows"
    if len(finite) == 0 or (len(finite) == rows and finite.min() == finite.max()):
        return None, f"{name}: left out, it has no two different numbers"
    column = _with_fill(name, "number", numbers)
    lost = _count(rows - len(finite), "missing or infinite value")
    return column, f"{name}: {lost} filled by the median, {column.fill:.4g}" if len(finite) < rows else ""


def _date(values: Series, missing: str) -> tuple[Column, str]:
    name, strange = str(values.name), _strange(values, "date")
    note = f"{name}: a date, as days{missing and missing + ' filled'}"
    note += f"; no date, filled by the median: {_some(strange)}" if strange else ""
    return _with_fill(name, "date", _days(values)), note


def _with_fill(name: str, kind: str, numbers: Floats) -> Column:
    return Column(name, kind, fill=float(np.median(numbers[np.isfinite(numbers)])))


def _some(strange: set[str]) -> str:
    """Return the first of some values as text."""
    return ", ".join(map(repr, sorted(strange)[:3])) + (", ..." if len(strange) > 3 else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


# ---------------------------------------------------------------------- values


def _numbers(values: Series) -> Floats:
    """Return values as finite numbers, NaN where they are none."""
    import pandas

    if values.dtype.kind not in "biuf":
        values = pandas.to_numeric(pandas.Series(values.tolist(), dtype=object), errors="coerce")
    numbers: Floats = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _days(values: Series) -> Floats:
    """Return dates as days since 1970, NaN where they are none."""
    import pandas

    if values.dtype.kind == "M":
        times = pandas.to_datetime(values, utc=True)
    else:
        times = pandas.to_datetime(values.astype(str), errors="coerce", format="ISO8601", utc=True)
    # In their own unit: nanoseconds in 64 bits would wrap around before 1678 and after 2262.
    since = times.dt.tz_localize(None).to_numpy() - np.datetime64(0, "D")
    days: Floats = since / np.timedelta64(1, "D")
    return days


def _strange(values: Series, kind: str) -> set[str]:
    """Return values as text that are not missing, but no finite number or no date."""
    numbers = _days(values) if kind == "date" else _numbers(values)
    return {str(value) for value in values[values.notna().to_numpy() & np.isnan(numbers)]}


def _check_numbers(values: Series) -> None:
    """Refuse a column of text where numbers were learned from."""
    if values.dtype.kind in "biuf":
        return
    present = values[values.notna()]
    if len(present) and not np.isfinite(_numbers(present)).any():
        must = "numbers, as in the table the model was learned from"
        raise ValueError(checks.message(f"column {values.name!r}", must, repr(str(present.iloc[0]))[:60]))
