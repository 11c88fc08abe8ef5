"""Columns of a table as features: decided on one table, and applied to all later ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from askew import checks, io
from askew.estimators.cells import (
    Floats,
    alike,
    as_days,
    as_missing,
    as_numbers,
    as_text,
    changed,
    date_form,
    decimal_mark,
    is_text,
    suspects,
)

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# Most categories of a column that get a feature each; rarer ones share one.
MOST_LEVELS = 20
# Share of different values above which a column of text is taken for names or free text, and one of whole numbers for
# numbers of the rows.
TOO_DIFFERENT, NEARLY_ALL = 0.5, 0.95
# Rows from which an order of whole numbers is evidence that they number the rows.
ORDERED_ROWS = 10
# Names of columns that number or name the rows.
IDENTIFIER = re.compile(
    r"(?i:(.*[\s_.-])?(id|ids|idx|index|key|uuid|guid|row|nr|no|num|number|(row|record|line)[\s_.-]?(id|nr|no|num|number)"
    r"|unnamed: ?\d+)|id[\s_.-].*)|[A-Za-z]*[a-z](Id|ID|Nr|No|Num)"
)
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
    form : str
        Form of dates that are text, as of ``strftime``; empty for that of ISO 8601.
    decimal : str
        Decimal mark of numbers that are text.
    """

    name: str
    kind: str
    fill: float = 0.0
    levels: tuple[str, ...] = ()
    others: bool = False
    form: str = ""
    decimal: str = "."

    @property
    def features(self) -> list[str]:
        """The names of its features."""
        if self.kind != "category":
            return [self.name]
        names = [f"{self.name}={level}" for level in self.levels]
        return [*names, f"{self.name}=other"] if self.others else names

    def read(self, values: Series) -> Floats:
        """Return numbers or days, ``(n,)``; NaN where a cell is neither."""
        return as_days(values, self.form) if self.kind == "date" else as_numbers(values, self.decimal)

    def places(self, values: Series) -> NDArray[np.int64]:
        """Return the number of the level of each cell, ``(n,)``: -1 for unknown and -2 for missing ones."""
        texts, known = as_text(values), {level: number for number, level in enumerate(self.levels)}
        # Files of older versions have levels with spaces around them: the cell as it is comes first.
        pairs = zip(values, texts, strict=True)
        return np.array(
            [-2 if text is None else known.get(str(cell), known.get(text, -1)) for cell, text in pairs], dtype=np.int64
        )

    def encode(self, values: Series) -> Floats:
        """Return the features of rows, ``(n, features)``."""
        if self.kind != "category":
            numbers = self.read(values)
            return np.where(np.isfinite(numbers), numbers, self.fill)[:, None]
        places = self.places(values)
        levels = np.array([*range(len(self.levels)), *([-1] if self.others else [])])
        return np.array(places[:, None] == levels, dtype=np.float64)

    def unread(self, values: Series) -> set[str]:
        """Return cells, as text, that are present but of another kind, or of unknown levels."""
        if self.kind == "category":
            strange = self.places(values) == (-3 if self.others else -1)
        else:
            strange = as_text(values).notna().to_numpy() & np.isnan(self.read(values))
        return {str(value) for value in values[strange]}


class Columns(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turn the columns of a table into features: numbers, categories and dates.

    A scikit-learn transformer for pandas frames, which stands in front of a learner:
    ``make_pipeline(Columns(), DivergenceLearner())``. ``fit`` decides from the values what each column is; ``notes_``
    says it, one line per column. Later tables are encoded by the same rules, whatever else they contain.

    Numbers stay, with the median for missing and infinite ones. Text with few different values is a category, with a
    feature for each of its 20 most frequent levels; spaces around it are removed and Unicode is normalised. Dates
    become days. Left out are columns that are empty or always the same, and those that number or name the rows, by
    which a model would learn the table by heart.

    Parameters
    ----------
    category, number, date
        Columns that are of this kind, whatever they look like. ``date`` may map names to forms, such as
        ``{"signup": "%d.%m.%Y"}``; None stands for a form that is found.
    na
        Values that stand for missing ones, such as ``["-999"]``.
    keep, drop
        Columns to use though they look like names of rows, and columns to leave out.

    Attributes
    ----------
    columns_ : tuple of Column
        The columns that are used, in the order of the table.
    notes_ : tuple of str
        What became of each column and why; in brackets, the options of the command line that overrule it.

    Examples
    --------
    >>> import pandas
    >>> table = pandas.DataFrame({"id": [1, 2, 3, 4], "size": [1.0, None, 3.0, 5.0], "colour": list("rrbb")})
    >>> columns = Columns().fit(table)
    >>> columns.get_feature_names_out().tolist()
    ['size', 'colour=b', 'colour=r']
    >>> columns.transform(table).tolist()
    [[1.0, 0.0, 1.0], [3.0, 0.0, 1.0], [3.0, 1.0, 0.0], [5.0, 1.0, 0.0]]
    >>> print(columns.notes_[0])
    id: left out: its values differ and it is named like a number of rows [--keep]
    """

    saved_attributes: ClassVar[tuple[str, ...]] = ("plan_", "notes_", "n_features_in_", "feature_names_in_")
    columns_: tuple[Column, ...]
    notes_: tuple[str, ...]

    def __init__(
        self,
        *,
        category: Sequence[str] = (),
        number: Sequence[str] = (),
        date: Sequence[str] | Mapping[str, str | None] = (),
        na: Sequence[str] = (),
        keep: Sequence[str] = (),
        drop: Sequence[str] = (),
    ) -> None:
        self.category = category
        self.number = number
        self.date = date
        self.na = na
        self.keep = keep
        self.drop = drop

    def fit(self, X: DataFrame, y: object = None) -> Columns:
        """Decide what each column is; ``y`` is not used."""
        _check_frame(X)
        asked = {name: (kind, "") for kind in KINDS for name in getattr(self, kind)}
        if len(asked) < len(self.category) + len(self.number) + len(self.date):
            raise ValueError(checks.message("category, number and date of Columns", "different columns", "one twice"))
        if isinstance(self.date, Mapping):
            asked |= {name: ("date", form or "") for name, form in self.date.items()}
        for name in (*asked, *self.keep, *self.drop):
            check_column(X, name)
        used, notes = [], []
        for name in X.columns:
            if name in self.drop:
                notes.append(f"{name}: left out, as asked for")
                continue
            column, note = _judged(as_missing(X[name], self.na), *asked.get(name, ("", "")), name in self.keep)
            notes.append(f"{name}: {note}")
            used += [] if column is None else [column]
        if not used:
            but = "; ".join(notes) or "it has no columns"
            raise ValueError(checks.message("TABLE", "a table with a column that can be learned from", but=but))
        self.columns_, self.notes_ = tuple(used), tuple(notes)
        self.n_features_in_, self.feature_names_in_ = X.shape[1], np.array([str(name) for name in X.columns], object)
        return self

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of all features; ``input_features`` is not used."""
        check_is_fitted(self, "columns_")
        return np.array([feature for column in self.columns_ for feature in column.features], dtype=object)

    def transform(self, X: DataFrame) -> Floats:
        """Return the rows of a table as points, ``(n, features)``; columns that are not used may be anything."""
        check_is_fitted(self, "columns_")
        _check_frame(X)
        missing = [column.name for column in self.columns_ if column.name not in X.columns]
        if missing:
            must = f"a table with the columns the model was learned from: {', '.join(c.name for c in self.columns_)}"
            raise ValueError(
                checks.message("TABLE", must, f"one without {', '.join(map(repr, missing))}", _renamed(missing, X))
            )
        parts = []
        for column in self.columns_:
            values = as_missing(X[column.name], self.na)
            strange = column.unread(values) if column.kind != "category" else set()
            if strange and np.isnan(column.read(values)).all():
                must = f"a column of {column.kind}s, as in the table the model was learned from"
                got = f"no {column.kind} but {_some(strange)}"
                raise ValueError(checks.message(f"column {column.name!r}", must, got))
            parts.append(column.encode(values))
        return np.concatenate(parts, 1)

    def unseen(self, X: DataFrame) -> list[str]:
        """Describe cells of a new table that cannot be encoded, other than missing ones.

        Unseen categories are 0 in all features of their column. Infinite numbers, and text in a column of numbers or
        dates, are filled like missing values.
        """
        check_is_fitted(self, "columns_")
        notes = []
        for column in self.columns_:
            strange = column.unread(as_missing(X[column.name], self.na)) if column.name in X.columns else set()
            what = (
                "not seen when it was learned"
                if column.kind == "category"
                else f"no {column.kind}, filled by the median"
            )
            notes += [f"{column.name}: {what}: {_some(strange)}"] if strange else []
        return notes

    # ------------------------------------------------------------------ files

    @property
    def plan_(self) -> list[dict[str, Any]]:
        """How each column is encoded, as values that JSON can hold."""
        return [asdict(column) for column in self.columns_]

    @plan_.setter
    def plan_(self, entries: Any) -> None:
        try:
            self.columns_ = tuple(_column(entry) for entry in entries)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            self.columns_ = ()
        if not self.columns_:
            raise ValueError("it does not describe columns")

    def to_json(self) -> dict[str, Any]:
        """Return what a model or an index keeps of it in its notes."""
        return {"used": self.plan_, "notes": list(self.notes_), "na": list(self.na)}

    @classmethod
    def from_json(cls, content: Any, shown: str) -> Columns:
        """Return the columns that :meth:`to_json` gave, from the file that ``shown`` names in errors."""
        try:
            columns = cls(na=[str(mark) for mark in content.get("na", ())])
            columns.plan_, columns.notes_ = content["used"], tuple(str(note) for note in content["notes"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError(io.damaged(shown, "it does not describe columns")) from None
        return columns

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = True
        return tags


def _column(entry: Any) -> Column:
    """Return a column from a file, checked."""
    levels = tuple(map(str, entry["levels"]))
    form, decimal = str(entry.get("form", "")), str(entry.get("decimal", "."))  # not in files of 0.1.0
    column = Column(
        str(entry["name"]), str(entry["kind"]), float(entry["fill"]), levels, bool(entry["others"]), form, decimal
    )
    sound = column.kind in KINDS and np.isfinite(column.fill) and (column.kind == "category") == bool(levels)
    if not sound or decimal not in (".", ",") or (form and "%" not in form):
        raise ValueError(column)
    return column


def check_column(table: DataFrame, name: str, what: str = "a column") -> str:
    """Return the name of a column if the table has it."""
    return checks.check_name(name, list(table.columns), what)


def _check_frame(X: object) -> None:
    if not (hasattr(X, "columns") and hasattr(X, "iloc")):
        raise TypeError(checks.message("X of Columns", "a pandas.DataFrame", type(X).__name__))


def _renamed(missing: Sequence[str], table: DataFrame) -> str:
    """Return a hint at columns of a table that may be the missing ones."""
    names = {str(name).casefold(): str(name) for name in table.columns}
    near = [(name, difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.8)) for name in missing]
    found = [f"{names[match[0]]!r} renamed to {name!r}" for name, match in near if match]
    return f"Should it be {' and '.join(found)}?" if found else ""


# ---------------------------------------------------------------------- deciding


def _judged(values: Series, asked: str, form: str, keep: bool) -> tuple[Column | None, str]:
    """Return how a column is used, or None, and a note for people with the options that overrule it."""
    try:
        values.nunique()
    except TypeError:  # Parquet has columns of lists
        return None, "left out: its values have parts"
    texts = as_text(values) if is_text(values) or asked == "category" else values
    present = texts[texts.notna()]
    if len(present) == 0:
        return None, "left out: it is empty"
    if len(present) == len(values) and present.nunique() == 1:
        return None, "left out: it is the same in all rows"
    if asked == "category":
        return _category(values, texts)
    if asked == "number" or (not asked and not is_text(values) and values.dtype.kind != "M"):
        return _number(values, present, asked == "number", keep)
    if asked == "date" or values.dtype.kind == "M":
        return _date(values, present, form)
    if decimal_mark(present) is not None:
        return _number(values, present, False, keep)
    if date_form(present) is not None:
        return _date(values, present, "")
    different = present.nunique()
    if not keep and different > MOST_LEVELS and different > TOO_DIFFERENT * len(present):
        what = f"{different} different values in {len(present)} rows"
        return None, f"left out: it looks like names or free text ({what}) [--keep, --date]"
    return _category(values, texts)


def _number(values: Series, present: Series, asked: bool, keep: bool) -> tuple[Column | None, str]:
    decimal = (decimal_mark(present) or ".") if is_text(values) else "."
    numbers = as_numbers(values, decimal)
    finite = numbers[np.isfinite(numbers)]
    if len(finite) == 0:
        if not asked:
            return None, "left out: it has no finite number"
        got = repr(str(present.iloc[0]))[:60]
        raise ValueError(checks.message(f"column {values.name!r}", "numbers, as asked for", got))
    if len(finite) == len(values) and finite.min() == finite.max():
        return None, "left out: it is the same in all rows"
    reason = "" if keep or asked else _numbering(values, finite)
    if reason:
        return None, f"left out: {reason} [--keep]"
    column = Column(str(values.name), "number", fill=float(np.median(finite)), decimal=decimal)
    parts = ["number"]
    if is_text(values) and present.str.contains(",").any():
        example = present[present.str.contains(",")][:1]
        parts += [f"{example.iloc[0]!r} is read as {column.read(example)[0]:.10g}"]
    parts += _filled(column, values, len(values) - len(finite))
    parts += [
        f"{int((finite == mark).sum())} cells are {mark:g}: missing? [--na {mark:g}]" for mark in suspects(finite)
    ]
    different = len(np.unique(finite))
    if values.dtype.kind in "iuf" and (finite % 1 == 0).all() and 2 < different <= MOST_LEVELS < len(finite) / 2:
        parts += [f"only {different} different values"]
    return column, "; ".join(parts) + " [--category, --drop]"


def _numbering(values: Series, finite: Floats) -> str:
    """Return why whole numbers number the rows rather than describe them; nothing if they do not."""
    # Missing values make floats of whole numbers.
    whole = values.dtype.kind in "iu" or (len(finite) < len(values) and bool((finite % 1 == 0).all()))
    different = len(np.unique(finite))
    if not whole or len(finite) < 2 or different < NEARLY_ALL * len(finite):
        return ""
    if IDENTIFIER.fullmatch(str(values.name)):
        return "its values differ and it is named like a number of rows"
    if len(finite) < ORDERED_ROWS and not (np.diff(finite) == 1).all():
        return ""
    steps = np.diff(finite)
    if (steps >= 0).all() or (steps <= 0).all():
        return "its values differ and are in order, as numbers of rows are"
    if np.ptp(finite) + 1 <= len(finite) / NEARLY_ALL:
        return f"its values are {finite.min():g} to {finite.max():g}, each once, as numbers of rows are"
    return ""


def _date(values: Series, present: Series, form: str) -> tuple[Column, str]:
    other = ""
    if values.dtype.kind != "M" and not form:
        form, other = date_form(as_text(present)) or ("", "")
    days = as_days(values, form)
    if not np.isfinite(days).any():
        hint = f"Give its form: --date '{values.name}=%d.%m.%Y'."
        got = repr(str(present.iloc[0]))[:60]
        raise ValueError(checks.message(f"column {values.name!r}", "dates, as asked for", got, hint))
    column = Column(str(values.name), "date", fill=float(np.nanmedian(days)), form=form)
    order = {"%d": ", day first", "%m": ", month first"}.get(form[:2], "") if "%m" in form else ""
    parts = [f"date{order}" + (f" ({form})" if form else "") + ", as days"]
    parts += [f"{other} would fit as well"] if other else []
    parts += _filled(column, values, int(np.isnan(days).sum()))
    return column, "; ".join(parts) + " [--date COLUMN=FORMAT, --drop]"


def _category(values: Series, texts: Series) -> tuple[Column, str]:
    counts = texts.value_counts()
    # Equal counts in alphabetical order, so that the order of the rows does not matter.
    order = sorted(counts.index, key=lambda level: (-int(counts[level]), level))
    others, missing = len(order) > MOST_LEVELS, int(texts.isna().sum())
    parts = [f"category, {len(order)} values" + (f", the {MOST_LEVELS} most frequent apart" if others else "")]
    parts += [f"{_count(missing, 'missing value')}, 0 in all"] if missing else []
    cleaned = changed(values[texts.notna()], texts[texts.notna()])
    parts += [f"{_count(cleaned, 'cell')} stripped of spaces or normalised"] if cleaned else []
    parts += [f"differ only by case: {', '.join(alike(order)[:3])}"] if alike(order) else []
    column = Column(str(values.name), "category", levels=tuple(order[:MOST_LEVELS]), others=others)
    return column, "; ".join(parts) + " [--number, --date, --drop]"


def _filled(column: Column, values: Series, lost: int) -> list[str]:
    """Return what is filled in a column of numbers or dates."""
    if not lost:
        return []
    strange, what = column.unread(values), "missing or infinite value" if column.kind == "number" else "missing value"
    named = f", such as {_some(strange)}" if strange else ""
    median = f"{column.fill:.4g}" if column.kind == "number" else np.datetime64(int(column.fill), "D")
    return [f"{_count(lost, what)} filled by the median, {median}{named}"]


def _some(strange: set[str]) -> str:
    """Return the first of some values as text."""
    return ", ".join(map(repr, sorted(strange)[:3])) + (", ..." if len(strange) > 3 else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"
