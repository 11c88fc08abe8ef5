"""Published data, read from the publishers' own files, and data made as the paper makes it."""

from askew.data.synthetic import (
    ExponentialMixture,
    GaussianMixture,
    Mixture,
    MultinomialMixture,
    make_mixture,
    mixture_names,
)
from askew.data.tables import Table, load_table, table_names
from askew.data.targets import Pairs, target_pairs

__all__ = [
    "ExponentialMixture",
    "GaussianMixture",
    "Mixture",
    "MultinomialMixture",
    "Pairs",
    "Table",
    "load_table",
    "make_mixture",
    "mixture_names",
    "table_names",
    "target_pairs",
]
