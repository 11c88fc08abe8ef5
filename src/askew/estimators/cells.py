"""Cells of a table as text, numbers and dates."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from askew import checks

if TYPE_CHECKING:
    from pandas import Series

Floats = NDArray[np.float64]

# Share of the cells of a text column that must be numbers, or dates, for it to be a column of these.
ENOUGH = 0.95
# Forms of dates; of two that fit equally well, the first is taken.
DAYS = (
    *("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d"),
    *("%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d %B %Y", "%d. %B %Y"),
    *("%b %d, %Y", "%B %d, %Y"),
)
TIMES = ("", " %H:%M", " %H:%M:%S")
# What may be a date at all, so that most text is not tried in all forms.
LIKE_A_DATE = r"(?=.*\d.*\d)(?=.*[ ./-])[\w ./:,-]{6,30}"
# Different cells that forms of dates are first tried on.
TRIED = 50
# Numbers with marks between thousands, by their decimal mark.
THOUSANDS = {".": r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", ",": r"[-+]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?"}


def is_text(values: Series) -> bool:
    """Whether cells are neither numbers nor dates by their dtype."""
    return values.dtype.kind not in "biufM"


def as_text(values: Series) -> Series:
    """Return cells as text in Unicode's normal form (NFC) without spaces around it; None where they are missing.

    Whole numbers are written the same whatever their dtype: 1 for 1.0.

    Examples
    --------
    >>> import pandas
    >>> as_text(pandas.Series([" vip", "", 1.0, None])).tolist()
    ['vip', None, '1', None]
    """
    import pandas

    texts = [_text(cell) if known else None for cell, known in zip(values, values.notna(), strict=True)]
    return pandas.Series([text or None for text in texts], index=values.index, name=values.name, dtype=object)


def _text(cell: object) -> str:
    if isinstance(cell, float) and cell % 1 == 0:
        return str(int(cell))
    text = str(cell)
    return (text if text.isascii() else unicodedata.normalize("NFC", text)).strip()


def changed(values: Series, texts: Series) -> int:
    """Return how many cells of text :func:`as_text` changed."""
    return sum(isinstance(cell, str) and cell != text for cell, text in zip(values, texts, strict=True))


def alike(names: Iterable[str]) -> list[str]:
    """Return groups of names that differ only by case, each as text.

    Examples
    --------
    >>> alike(["yes", "no", "Yes"])
    ["'Yes' and 'yes'"]
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(map(str, names)):
        groups.setdefault(name.casefold(), []).append(name)
    return [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]


def as_missing(values: Series, missing: Iterable[str]) -> Series:
    """Return cells with those missing that are equal to one of ``missing``, as text or as a number."""
    import pandas

    marks = [str(mark).strip() for mark in missing]
    if not marks or values.dtype.kind in "bM":
        return values
    numbers = pandas.to_numeric(pandas.Series(marks, dtype=object), errors="coerce").dropna()
    found = as_text(values).isin(marks) if is_text(values) else values.isin(numbers)
    return values.mask(found) if found.any() else values


# ---------------------------------------------------------------------- numbers


def as_numbers(values: Series, decimal: str = ".") -> Floats:
    """Return cells as finite numbers, NaN where they are none. Text may have marks between thousands.

    Examples
    --------
    >>> import pandas
    >>> as_numbers(pandas.Series(["1.234,5", "2,25", "many"]), decimal=",").tolist()
    [1234.5, 2.25, nan]
    """
    import pandas

    if values.dtype.kind not in "biuf":
        cells = [_plain(cell, decimal) if isinstance(cell, str) else cell for cell in values.tolist()]
        values = pandas.to_numeric(pandas.Series(cells, dtype=object), errors="coerce")
    numbers: Floats = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _plain(cell: str, decimal: str) -> str:
    between = "," if decimal == "." else "."
    if between in cell and re.fullmatch(THOUSANDS[decimal], cell.strip()):
        cell = cell.replace(between, "")
    return cell.replace(",", ".") if decimal == "," else cell


def decimal_mark(texts: Series) -> str | None:
    """Return the decimal mark of text that is numbers; None if too few cells are.

    Examples
    --------
    >>> import pandas
    >>> [decimal_mark(pandas.Series(cells)) for cells in (["1.234,5", "2"], ["1,234.5", "2"], ["one", "2"])]
    [',', '.', None]
    """
    if texts.str.match(r"[-+.,]?(\d|inf|nan)", case=False).mean() < ENOUGH:  # most text is refused here, at once
        return None
    point, comma = (float(np.isfinite(as_numbers(texts, mark)).mean()) for mark in ".,")
    if max(point, comma) < ENOUGH:
        return None
    # Plain numbers would be no text. So the reader of the file took commas for decimal marks, and these are thousands.
    dotted = texts[texts.str.contains(".", regex=False)]
    thousands = point == comma == 1 and len(dotted) > 0 and dotted.str.fullmatch(THOUSANDS[","]).all()
    return "," if comma > point or thousands else "."


def suspects(numbers: Floats) -> list[float]:
    """Return numbers that may stand for missing values, such as -999: far from all others.

    Examples
    --------
    >>> suspects(np.array([40.0, 35.0, -999.0, 51.0, -999.0]))
    [-999.0]
    """
    numbers = numbers[np.isfinite(numbers)]
    found = []
    for size in (99.0, 999.0, 9999.0, 99999.0):
        for mark in (-size, size):
            others = numbers[numbers != mark]
            if len(others) == len(numbers) or len(others) < 2:
                continue
            far = np.abs(others - mark).min() > np.ptp(others)
            if (mark < 0 <= others.min()) or (far and len(numbers) - len(others) > 1):
                found.append(mark)
    return found


# ---------------------------------------------------------------------- dates


def as_days(values: Series, form: str = "") -> Floats:
    """Return dates in a form (by default that of ISO 8601) as days since 1970, NaN where they are none."""
    import pandas

    if values.dtype.kind == "M":
        times = pandas.to_datetime(values, utc=True)
    else:
        try:
            times = pandas.to_datetime(as_text(values), errors="coerce", format=form or "ISO8601", utc=True)
        except ValueError:
            raise ValueError(
                checks.message("a form of dates", "as of strftime, such as %d.%m.%Y", repr(form))
            ) from None
    # In their own unit: nanoseconds in 64 bits would wrap around before 1678 and after 2262.
    since = times.dt.tz_localize(None).to_numpy() - np.datetime64(0, "D")
    days: Floats = since / np.timedelta64(1, "D")
    return days


def date_form(texts: Series) -> tuple[str, str] | None:
    """Return the form of text that is dates and another one that fits as well, or an empty text; None for no dates.

    Whether the day or the month comes first is seen from days above 12.

    Examples
    --------
    >>> import pandas
    >>> date_form(pandas.Series(["03/08/2021", "24/12/2021"])), date_form(pandas.Series(["03/08/2021"]))
    (('%d/%m/%Y', ''), ('%m/%d/%Y', '%d/%m/%Y'))
    """
    import pandas

    counts = texts.value_counts()
    texts, weights = pandas.Series(counts.index, dtype=object), counts.to_numpy()

    def share(form: str, cells: slice = slice(None)) -> float:
        return float(np.average(np.isfinite(as_days(texts[cells], form)), weights=weights[cells]))

    if np.average(texts.str.match(r"\d{4}-\d\d-\d\d"), weights=weights) >= ENOUGH and share("") >= ENOUGH:
        return "", ""
    if np.average(texts.str.fullmatch(LIKE_A_DATE), weights=weights) < ENOUGH:
        return None
    forms = [day + time for day in DAYS for time in TIMES]
    shares = {form: share(form) for form in forms if share(form, slice(TRIED)) >= ENOUGH}
    best = max(shares.values(), default=0.0)
    if best < ENOUGH:
        return None
    form, *others = (form for form, part in shares.items() if part == best)
    days = as_days(texts, form)
    return form, next(
        (other for other in others if not np.array_equal(as_days(texts, other), days, equal_nan=True)), ""
    )
