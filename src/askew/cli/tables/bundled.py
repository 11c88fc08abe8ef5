"""Example tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from askew import checks
from askew.cli.options import DATASETS

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["LABEL", "bundled_names", "load_bundled"]

# What the column of labels is called in all of them.
LABEL = "class"


def bundled_names() -> list[str]:
    """Return the names of the tables that need no file.

    Examples
    --------
    >>> bundled_names()
    ['iris', 'wine', 'breast-cancer', 'digits']
    """
    return list(DATASETS)


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

    checks.check_name(name, DATASETS, "--dataset")
    bunch = getattr(datasets, DATASETS[name])(as_frame=True)
    table: DataFrame = bunch.data.copy()
    table[LABEL] = [str(bunch.target_names[number]) for number in bunch.target]
    return table
