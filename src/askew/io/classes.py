"""Names of classes in files: a fixed table, independent of the module that a class lives in."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The names that files have, and where the classes are now: (first part of the name, module) -> last parts. A name is
# never removed: files of older versions have it. A class that moves to another module changes its line here, and
# nothing on disk.
NAMES = {
    ("divergences", "askew.divergences"): (
        *("Bregman", "DeepDiv", "DeepNorm", "Divergence", "Drift", "Dual", "Embedded", "Euclidean"),
        *("GeneralizedSymmetrized", "IQE", "Jensen", "MRN", "Mahalanobis", "MaxAffine", "NeuralBregman", "Reversed"),
        *("Scaled", "Sqrt", "Symmetrized", "WideNorm"),
    ),
    ("divergences", "askew.divergences.max_affine"): ("MaxOfPieces",),
    ("encoders", "askew.encoders"): ("Identity", "Linear", "MLP", "SmallCNN", "Standardize"),
    ("encoders", "askew_paper.encoders"): ("ResNet18", "ResNet20"),
    ("potentials", "askew.potentials"): (
        *("AffinePrecomposed", "Burg", "Conjugate", "Exponential", "FermiDirac", "FromFunction", "Hyperbolic", "ICNN"),
        *("LogSumExp", "NegativeEntropy", "Potential", "PowerNorm", "Quadratic", "Scaled", "Sum"),
    ),
    ("potentials", "askew.potentials.closed_form"): ("ClosedForm", "Separable"),
    ("search", "askew.search"): ("KeysAndQueries",),
}
MODULES = {f"{start}.{name}": (module, name) for (start, module), names in NAMES.items() for name in names}
# Files name estimators by their class alone.
ESTIMATORS = {
    "BregmanKMeans": ("askew.clustering", "BregmanKMeans"),
    "BregmanMixture": ("askew.clustering", "BregmanMixture"),
    "Columns": ("askew.estimators", "Columns"),
    "DivergenceLearner": ("askew.estimators", "DivergenceLearner"),
    "DivergenceNeighborsClassifier": ("askew.estimators", "DivergenceNeighborsClassifier"),
    "PairClassifier": ("askew.estimators", "PairClassifier"),
    "PairRegressor": ("askew.estimators", "PairRegressor"),
    "Pipeline": ("sklearn.pipeline", "Pipeline"),
    "RelevanceLearner": ("askew.estimators", "RelevanceLearner"),
    "TripletLearner": ("askew.estimators", "TripletLearner"),
}
HISTORY = {"History": ("askew.training", "History")}
VECTORS = {"keys_and_queries": ("askew.search", "keys_and_queries")}


def resolve(name: str, table: dict[str, tuple[str, str]] = MODULES) -> Any:
    """Return the class that a file calls ``name``, importing its module, or None if the table has no such name.

    Examples
    --------
    >>> resolve("potentials.Quadratic")
    <class 'askew.potentials.closed_form.Quadratic'>
    """
    if name not in table:
        return None
    module, attribute = table[name]
    return getattr(import_module(module), attribute)


def name_of(cls: type) -> str:
    """Return the name of a class in a file: ``divergences.Scaled``, or the full path of a class outside the table."""
    for name, (module, attribute) in MODULES.items():
        if attribute == cls.__qualname__ and cls.__module__.split(".")[:2] == module.split(".")[:2]:
            return name
    return f"{cls.__module__}.{cls.__qualname__}"
