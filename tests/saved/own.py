"""Classes of a user that saved models are made of, and the numbers that a saved object gives."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor, nn

import askew
from askew.checks import REAL, Domain
from askew.divergences import Mahalanobis
from askew.potentials import NegativeEntropy, Potential

Arrays = dict[str, np.ndarray[Any, Any]]

# ---------------------------------------------------------------------- a user's own classes


class Tilted(Mahalanobis):
    """A Mahalanobis divergence with a setting and a weight of the user's own."""

    def __init__(self, dim: int, name: str = "plain", weights: tuple[float, ...] = (1.0,)) -> None:
        super().__init__(dim, rank=2)
        self.name = name
        self.factor = nn.Parameter(torch.tensor(weights).sum())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.factor * super().forward(x, y)


class Entropy(NegativeEntropy):
    """An entropy that is told its domain."""

    def __init__(self, dim: int, domain: Domain = REAL) -> None:
        super().__init__(dim)
        self.domain = domain


class Squash(nn.Module):
    """An encoder that askew knows nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("offset", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) + self.offset).tanh()


class Weighted(nn.Module):
    """A loss with a parameter that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, model: askew.Divergence, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        return (self.scale * model(x, y) - targets).square().mean() + (self.scale - 1).square()


# What `askew.load` needs besides the folder.
OPTIONS: dict[str, dict[str, Any]] = {
    "models/own-divergence": {"classes": [Tilted]},
    "models/own-potential": {"classes": [Entropy]},
    "models/own-encoder": {"encoder": Squash()},
    "estimators/learner-own-divergence": {"classes": [Tilted]},
    "estimators/learner-own-encoder": {"encoder": Squash()},
}

# ---------------------------------------------------------------------- what an object computes

METHODS = (
    "transform",
    "predict",
    "predict_proba",
    "decision_function",
    "score_samples",
    "pairwise",
    "pair_distance",
    "kneighbors",
)
# Arguments of methods that do not take points, by the class they belong to.
TAKES = {
    ("PairClassifier", "predict"): "pairs",
    ("PairClassifier", "decision_function"): "pairs",
    ("PairRegressor", "predict"): "pairs",
    ("TripletLearner", "predict"): "triplets",
    ("TripletLearner", "decision_function"): "triplets",
}


def computed(saved: Any, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    """Return the numbers that an object gives for some inputs."""
    with torch.no_grad():
        if isinstance(saved, nn.Module):
            points = [torch.from_numpy(inputs[name]) for name in ("x", "y") if name in inputs]
            half = any(parameter.dtype is torch.bfloat16 for parameter in saved.parameters())  # numpy has no such type
            found = _of_module(saved, *(x.bfloat16() if half else x for x in points))
            return {name: (value.float() if half else value).numpy() for name, value in found.items()}
    if isinstance(saved, (dict, askew.History)):
        return {}
    if isinstance(saved, askew.search.Index):
        return _of_index(saved, inputs)
    return _of_estimator(saved, inputs)


def _of_module(saved: Any, x: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
    if isinstance(saved, askew.Divergence):
        return {"values": saved(x, y), "pairwise": saved.pairwise(x, y)}
    if isinstance(saved, Potential):
        return {"value": saved(x), "gradient": saved.gradient(x), "divergence": saved.divergence(x, y)}
    return {"points": saved(x)}


def _of_estimator(saved: Any, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    points: Any = inputs["points"]
    names = getattr(saved, "feature_names_in_", None)
    if names is not None:  # else scikit-learn warns
        points = pandas.DataFrame(points, columns=names)
    found: Arrays = {}
    for name in METHODS:
        if not hasattr(saved, name):
            continue
        kind = "pairs" if name == "pair_distance" else TAKES.get((type(saved).__name__, name), "points")
        given = points if kind == "points" else inputs[kind]
        result = getattr(saved, name)(given, 3) if name == "kneighbors" else getattr(saved, name)(given)
        parts = result if isinstance(result, tuple) else (result,)
        found |= {f"{name}.{number}": np.asarray(part) for number, part in enumerate(parts)}
    return found


def _of_index(saved: Any, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    """Search, then add and remove items, and search again."""
    found: Arrays = {}
    if len(saved):
        found["D"], found["I"] = saved.search(inputs["queries"], 5)
    saved.add(inputs["more"])
    saved.remove(inputs["removed"])
    found["D.changed"], found["I.changed"] = saved.search(inputs["queries"], 5)
    return found


# ---------------------------------------------------------------------- what an object holds


def stored(saved: Any) -> tuple[dict[str, Any], Arrays]:
    """Return what a file keeps as it is: text and settings as JSON, and arrays."""
    if isinstance(saved, nn.Module):
        return _of_parts(saved), {}
    if isinstance(saved, askew.History):
        return {"class": "History", "text": repr(saved)}, {}
    if isinstance(saved, dict):
        return {"class": "dict", "values": {name: _shown(value) for name, value in saved.items()}}, {}
    if isinstance(saved, askew.search.Index):
        notes = dict(getattr(saved, "notes", {}) or {})
        kind = {"kind": saved.kind, "effort": saved.effort} if hasattr(saved, "kind") else {}
        shown = {"class": type(saved).__name__, "direction": saved.direction, "len": len(saved), "notes": notes}
        return shown | kind, {}
    text: dict[str, Any] = {"class": type(saved).__name__, "settings": {}, "fitted": {}}
    arrays: Arrays = {}
    for name in inspect.signature(type(saved)).parameters:
        value = getattr(saved, name)
        text["settings"][name] = _shown(value)
    for name, value in sorted(vars(saved).items()):
        if not name.endswith("_") or name.startswith("_"):
            continue
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            arrays[name] = value
        else:
            text["fitted"][name] = _shown(value)
    return text, arrays


def _of_parts(saved: nn.Module) -> dict[str, Any]:
    """Return class, modes, and how many numbers of which type are frozen or learned."""
    counts: dict[str, int] = {}
    for parameter in saved.parameters():
        key = f"{parameter.dtype} {'learned' if parameter.requires_grad else 'frozen'}"
        counts[key] = counts.get(key, 0) + parameter.numel()
    # How a network groups its own weights is its own business; these behave in two ways.
    switched = [part for part in saved.modules() if isinstance(part, (nn.Dropout, nn.BatchNorm1d, nn.BatchNorm2d))]
    if isinstance(saved, askew.Embedded):
        switched += [saved.encoder, saved.divergence]
    modes = [[type(part).__name__, part.training] for part in (saved, *switched)]
    return {"class": type(saved).__name__, "training": modes, "parameters": counts}


def _shown(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (np.generic, float, int)):
        return repr(value)
    if isinstance(value, nn.Module):
        return _of_parts(value)
    if value is None or isinstance(value, str):
        return value
    if hasattr(value, "get_params"):
        return stored(value)[0]
    return repr(value)


# ---------------------------------------------------------------------- training that was stopped

TRAINED = ("x", "y", "z", "targets", "labels")


def training(name: str, data: Mapping[str, np.ndarray[Any, Any]]) -> tuple[askew.Divergence, dict[str, Any]]:
    """Return the model and the arguments of `askew.fit` of a checkpoint, without its path.

    All is in float64: steps of an optimiser make more of the last digit, which differs between processors.
    """
    x, y, z, targets, labels = (torch.from_numpy(data[key]) for key in TRAINED)
    torch.manual_seed(7)
    model: askew.Divergence = askew.NeuralBregman(3, widths=(4, 4), separable=2)
    pairs, triplets, points = (x, y, targets), (x, y, z), (x, labels)
    losses = askew.losses
    cases: dict[str, dict[str, Any]] = {
        "regression": {"data": pairs, "loss": losses.Regression(), "validation": (y, x, targets), "patience": 3},
        "contrastive-pairs": {"data": (x, y, labels % 2), "loss": losses.ContrastivePairs(negative_margin=2.0)},
        "contrastive": {"data": points, "loss": losses.Contrastive(), "clip": 1.0},
        "all-triplets": {"data": points, "loss": losses.AllTriplets()},
        "hard-triplets": {"data": points, "loss": losses.HardTriplets()},
        "semi-hard-triplets": {"data": points, "loss": losses.SemiHardTriplets()},
        "listwise": {"data": points, "loss": losses.Listwise(temperature=0.1)},
        "triplet-margin": {"data": triplets, "loss": losses.TripletMargin(), "optimizer": momentum},
        "own-loss": {"data": pairs, "loss": Weighted(), "warmup": 0.3},
        "embedded": {"data": pairs, "loss": losses.Regression(), "learning_rate": 0.01},
        "loader": {"data": _loader(pairs), "loss": losses.Regression()},
    }
    if name == "embedded":
        model = askew.Embedded(askew.encoders.MLP(3, 2, (4,)), askew.make("mahalanobis", 2))
    return model.double(), {"steps": 12, "batch_size": 6, "seed": 3, "device": "cpu", "progress": False} | cases[name]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """Return another optimiser than Adam."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _loader(parts: tuple[Tensor, ...]) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*parts), batch_size=6, shuffle=True)
