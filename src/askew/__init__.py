"""Learn distances that need not be symmetric, and search, cluster and rank with them."""

from typing import TYPE_CHECKING

from askew._version import __version__

# The public packages, and the names that are public here. Each is imported when it is first used: `import askew` and
# the command line start without torch. Type checkers read the imports below; a test compares them with this table.
_PACKAGES: dict[str, tuple[str, ...]] = {
    "checks": (),
    "clustering": ("BregmanKMeans", "BregmanMixture"),
    "divergences": ("Bregman", "Divergence", "Embedded", "NeuralBregman", "make", "names"),
    "encoders": (),
    "estimators": (
        "Columns",
        "DivergenceLearner",
        "DivergenceNeighborsClassifier",
        "PairClassifier",
        "PairRegressor",
        "RelevanceLearner",
        "TripletLearner",
    ),
    "explorer": (),
    "io": ("export", "load", "save"),
    "losses": (),
    "metrics": (),
    "pbdl": (),
    "plot": (),
    "potentials": (),
    "search": (),
    "training": ("History", "TrainingDivergedError", "fit"),
}

__all__ = [
    "Bregman",
    "BregmanKMeans",
    "BregmanMixture",
    "Columns",
    "Divergence",
    "DivergenceLearner",
    "DivergenceNeighborsClassifier",
    "Embedded",
    "History",
    "NeuralBregman",
    "PairClassifier",
    "PairRegressor",
    "RelevanceLearner",
    "TrainingDivergedError",
    "TripletLearner",
    "__version__",
    "checks",
    "clustering",
    "divergences",
    "encoders",
    "estimators",
    "explorer",
    "export",
    "fit",
    "io",
    "load",
    "losses",
    "make",
    "metrics",
    "names",
    "pbdl",
    "plot",
    "potentials",
    "save",
    "search",
    "training",
]

if TYPE_CHECKING:
    from askew import (
        checks,
        clustering,
        divergences,
        encoders,
        estimators,
        explorer,
        io,
        losses,
        metrics,
        pbdl,
        plot,
        potentials,
        search,
        training,
    )
    from askew.clustering import BregmanKMeans, BregmanMixture
    from askew.divergences import Bregman, Divergence, Embedded, NeuralBregman, make, names
    from askew.estimators import (
        Columns,
        DivergenceLearner,
        DivergenceNeighborsClassifier,
        PairClassifier,
        PairRegressor,
        RelevanceLearner,
        TripletLearner,
    )
    from askew.io import export, load, save
    from askew.training import History, TrainingDivergedError, fit
else:

    def __getattr__(name):
        from importlib import import_module

        package = next((package for package, names in _PACKAGES.items() if name == package or name in names), None)
        if package is None:
            raise AttributeError(f"module 'askew' has no attribute {name!r}")
        module = import_module(f"askew.{package}")
        value = globals()[name] = module if name == package else getattr(module, name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
