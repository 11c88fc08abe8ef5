"""Columns of a table as features: decided on one table, and applied to all later ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from askew import checks, io
from askew.estimators.cells import Floats, as_days, as_missing
from askew.estimators.judging import KINDS, Column, first_of, judged

if TYPE_CHECKING:
    from pandas import DataFrame


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
            column, note = judged(as_missing(X[name], self.na), *asked.get(name, ("", "")), name in self.keep)
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
        return np.concatenate([one.encode(as_missing(X[one.name], self.na)) for one in self.columns_], 1)

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
            notes += [f"{column.name}: {what}: {first_of(strange)}"] if strange else []
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
    import pandas

    levels = tuple(map(str, entry["levels"]))
    form, decimal = str(entry.get("form", "")), str(entry.get("decimal", "."))  # not in files of 0.1.0
    column = Column(
        str(entry["name"]), str(entry["kind"]), float(entry["fill"]), levels, bool(entry["others"]), form, decimal
    )
    sound = column.kind in KINDS and np.isfinite(column.fill) and (column.kind == "category") == bool(levels)
    if not sound or decimal not in (".", ","):
        raise ValueError(column)
    if form:
        as_days(pandas.Series(["31.12.2021"]), form)  # refuses what is no form
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
