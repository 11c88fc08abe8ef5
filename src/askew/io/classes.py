"""Names of classes in files: a fixed table, independent of the module that a class lives in."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Name in a file -> module and class. An entry is never removed: files of older versions have these names. A class that
# moves to another module changes its entry here, and nothing on disk.
MODULES: dict[str, tuple[str, str]] = {
    "divergences.Bregman": ("askew.divergences", "Bregman"),
    "divergences.DeepDiv": ("askew.divergences", "DeepDiv"),
    "divergences.DeepNorm": ("askew.divergences", "DeepNorm"),
    "divergences.Divergence": ("askew.divergences", "Divergence"),
    "divergences.Dual": ("askew.divergences", "Dual"),
    "divergences.Embedded": ("askew.divergences", "Embedded"),
    "divergences.Euclidean": ("askew.divergences", "Euclidean"),
    "divergences.GeneralizedSymmetrized": ("askew.divergences", "GeneralizedSymmetrized"),
    "divergences.IQE": ("askew.divergences", "IQE"),
    "divergences.Jensen": ("askew.divergences", "Jensen"),
    "divergences.MRN": ("askew.divergences", "MRN"),
    "divergences.Mahalanobis": ("askew.divergences", "Mahalanobis"),
    "divergences.MaxAffine": ("askew.divergences", "MaxAffine"),
    "divergences.MaxOfPieces": ("askew.divergences.max_affine", "MaxOfPieces"),
    "divergences.NeuralBregman": ("askew.divergences", "NeuralBregman"),
    "divergences.Reversed": ("askew.divergences", "Reversed"),
    "divergences.Scaled": ("askew.divergences", "Scaled"),
    "divergences.Sqrt": ("askew.divergences", "Sqrt"),
    "divergences.Symmetrized": ("askew.divergences", "Symmetrized"),
    "divergences.WideNorm": ("askew.divergences", "WideNorm"),
    "encoders.Identity": ("askew.encoders", "Identity"),
    "encoders.Linear": ("askew.encoders", "Linear"),
    "encoders.MLP": ("askew.encoders", "MLP"),
    "encoders.SmallCNN": ("askew.encoders", "SmallCNN"),
    "encoders.Standardize": ("askew.encoders", "Standardize"),
    "encoders.ResNet18": ("askew_paper.encoders", "ResNet18"),
    "encoders.ResNet20": ("askew_paper.encoders", "ResNet20"),
    "potentials.AffinePrecomposed": ("askew.potentials", "AffinePrecomposed"),
    "potentials.Burg": ("askew.potentials", "Burg"),
    "potentials.ClosedForm": ("askew.potentials.closed_form", "ClosedForm"),
    "potentials.Conjugate": ("askew.potentials", "Conjugate"),
    "potentials.Exponential": ("askew.potentials", "Exponential"),
    "potentials.FermiDirac": ("askew.potentials", "FermiDirac"),
    "potentials.FromFunction": ("askew.potentials", "FromFunction"),
    "potentials.ICNN": ("askew.potentials", "ICNN"),
    "potentials.LogSumExp": ("askew.potentials", "LogSumExp"),
    "potentials.NegativeEntropy": ("askew.potentials", "NegativeEntropy"),
    "potentials.Potential": ("askew.potentials", "Potential"),
    "potentials.PowerNorm": ("askew.potentials", "PowerNorm"),
    "potentials.Quadratic": ("askew.potentials", "Quadratic"),
    "potentials.Scaled": ("askew.potentials", "Scaled"),
    "potentials.Separable": ("askew.potentials.closed_form", "Separable"),
    "potentials.Sum": ("askew.potentials", "Sum"),
}
# Files name estimators by their class alone.
ESTIMATORS: dict[str, tuple[str, str]] = {
    "BregmanKMeans": ("askew.clustering", "BregmanKMeans"),
    "BregmanMixture": ("askew.clustering", "BregmanMixture"),
    "DivergenceLearner": ("askew.estimators", "DivergenceLearner"),
    "DivergenceNeighborsClassifier": ("askew.estimators", "DivergenceNeighborsClassifier"),
    "PairRegressor": ("askew.estimators", "PairRegressor"),
    "TripletLearner": ("askew.estimators", "TripletLearner"),
}
HISTORY: dict[str, tuple[str, str]] = {"History": ("askew.training", "History")}


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
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if module.startswith("askew."):
            raise
        raise ModuleNotFoundError(f"{name} is a class of the package {module.split('.')[0]}: {error}") from None


def name_of(cls: type) -> str:
    """Return the name of a class in a file: ``divergences.Scaled``, or the full path of a class outside the table."""
    for name, (module, attribute) in MODULES.items():
        if attribute == cls.__qualname__ and cls.__module__.split(".")[:2] == module.split(".")[:2]:
            return name
    return f"{cls.__module__}.{cls.__qualname__}"
