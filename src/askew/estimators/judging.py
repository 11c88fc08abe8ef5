"""What a column is: numbers, categories, dates, or nothing to learn from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew.estimators.cells import (
    Floats,
    alike,
    as_days,
    as_numbers,
    as_text,
    changed,
    date_form,
    decimal_mark,
    is_text,
    suspects,
)

if TYPE_CHECKING:
    from pandas import Series

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

    Examples
    --------
    >>> import askew, pandas
    >>> askew.Columns().fit(pandas.DataFrame({"age": [20.0, 30.0, None]})).columns_[0].fill
    25.0
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
            known = np.isfinite(numbers)
            if not known.any() and (strange := self.unread(values)):
                must = f"a column of {self.kind}s, as in the table the model was learned from"
                got = f"no {self.kind} but {first_of(strange)}"
                raise ValueError(checks.message(f"column {self.name!r}", must, got))
            return np.where(known, numbers, self.fill)[:, None]
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


def judged(values: Series, asked: str, form: str, keep: bool) -> tuple[Column | None, str]:
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
    if is_text(values):
        marked = present[present.str.contains("," if decimal == "." else "[.,]")][:1]
        parts += [f"{text!r} is read as {column.read(marked)[0]:.10g}" for text in marked]
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
    named = f", such as {first_of(strange)}" if strange else ""
    median = f"{column.fill:.4g}" if column.kind == "number" else np.datetime64(int(column.fill), "D")
    return [f"{_count(lost, what)} filled by the median, {median}{named}"]


def first_of(strange: set[str]) -> str:
    """Return the first of some values as text."""
    return ", ".join(map(repr, sorted(strange)[:3])) + (", ..." if len(strange) > 3 else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"
