"""Tables that come along, to try things on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from askew import checks

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["LABEL", "bundled_names", "load_bundled"]

# What the column of labels is called in all of them.
LABEL = "class"
# Our names and those of scikit-learn's functions.
FUNCTIONS = {"iris": "load_iris", "wine": "load_wine", "breast-cancer": "load_breast_cancer", "digits": "load_digits"}


def bundled_names() -> list[str]:
    """Return the names of the tables that need no file.

    Examples
    --------
    >>> bundled_names()
    ['iris', 'wine', 'breast-cancer', 'digits']
    """
    return list(FUNCTIONS)


def load_bundled(name: str) -> DataFrame:
    """Return a table that comes with scikit-learn; the column ``class`` has the labels.

    Parameters
    ----------
    name
        One of :func:`bundled_names`.

    Examples
    --------
    >>> table = load_bundled("wine")
    >>> table.shape, sorted(set(table["class"]))
    ((178, 14), ['class_0', 'class_1', 'class_2'])
    """
    from sklearn import datasets

    checks.check_name(name, FUNCTIONS, "--dataset")
    bunch = getattr(datasets, FUNCTIONS[name])(as_frame=True)
    table: DataFrame = bunch.data.copy()
    table[LABEL] = [str(bunch.target_names[number]) for number in bunch.target]
    return table
