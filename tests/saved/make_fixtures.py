"""How the files in ``0.1.0`` and ``0.2.0`` came about: run once, before the version of the folder, and never again.

    python tests/saved/make_fixtures.py          # 0.1.0, with all that there was
    python tests/saved/make_fixtures.py 0.2.0    # what is new in 0.2.0

A later version adds a folder of its own and leaves the older ones alone.
"""

from __future__ import annotations

import contextlib
import csv
import json
import lzma
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor, nn

import askew
from askew import divergences, encoders, potentials
from askew.checks import NEGATIVE, POSITIVE, REAL, SIMPLEX, UNIT_BOX, Domain
from askew.search import ExactIndex, FaissIndex, MilvusIndex, load_index

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from saved.own import TRAINED, Entropy, Squash, Tilted, computed, stored, training

DIM = 3
ROWS = 6


# ---------------------------------------------------------------------- modules


def small(dim: int = DIM) -> askew.NeuralBregman:
    return askew.NeuralBregman(dim, widths=(4, 4), separable=2)


def catalogue() -> Iterator[tuple[str, nn.Module]]:
    """Every name; the large ones with fewer units."""
    reduced: dict[str, Callable[[], nn.Module]] = {
        "nbd": small,
        "nbd-paper": lambda: askew.NeuralBregman.paper(DIM, widths=(4, 4)),
        "deep-div": lambda: divergences.DeepDiv(DIM, pieces=4, hidden=3),
        "deepnorm": lambda: divergences.DeepNorm(DIM, widths=(4, 4, 4), concave=2),
        "widenorm": lambda: divergences.WideNorm(DIM, components=3, width=4, concave=2),
        "widenorm-legacy": lambda: divergences.WideNorm(DIM, components=3, width=4, legacy_bias=True),
        "bregman-sqrt": lambda: divergences.Sqrt(small()),
        "bregman-gs": lambda: divergences.GeneralizedSymmetrized(small()),
        "iqe": lambda: divergences.IQE(DIM, components=2, size=4),
        "mrn": lambda: divergences.MRN(DIM, width=4, hidden=(4,)),
    }
    for name in askew.names():
        yield f"models/{name}", reduced[name]() if name in reduced else askew.make(name, DIM)


def wrapped() -> Iterator[tuple[str, nn.Module]]:
    d, e, p = divergences, encoders, potentials
    yield "models/sqrt", d.Sqrt(d.Mahalanobis(DIM, rank=2))
    yield "models/scaled", d.Scaled(small(), 2.5)
    yield "models/scaled-learnable", d.Scaled(small(), 2.5, learnable=True)
    yield "models/reversed", d.Reversed(d.IQE(DIM, components=2, size=3))
    yield "models/symmetrized", d.Symmetrized(small())
    yield "models/jensen", d.Jensen(d.Bregman(p.NegativeEntropy(DIM)))
    yield "models/generalized", d.GeneralizedSymmetrized(d.Bregman(p.Exponential(DIM)))
    yield "models/generalized-squared", d.GeneralizedSymmetrized(small(), root=False)
    yield "models/dual", d.Dual(d.Bregman(p.NegativeEntropy(DIM)))
    yield "models/dual-network", d.Dual(small().double())
    yield "models/dual-of-dual", d.Dual(d.Dual(d.Bregman(p.Burg(DIM))))
    yield "models/bregman-icnn", d.Bregman(p.ICNN(DIM, widths=(4,)), pairwise_rtol=1e-4)
    yield "models/double", small().double()
    yield "models/widenorm-symmetric", d.WideNorm(DIM, components=2, width=3, symmetric=True)
    yield "models/nested-wrappers", d.Sqrt(d.Scaled(d.Reversed(d.Symmetrized(small())), 0.5))
    yield "models/embedded-mlp", askew.Embedded(e.MLP(DIM, 2, (4,)), small(2))
    yield "models/embedded-linear", askew.Embedded(e.Linear(DIM, 2).double(), small(2).double())
    yield "models/embedded-identity", askew.Embedded(e.Identity(DIM), d.Euclidean(DIM))
    yield "models/embedded-cnn", askew.Embedded(e.SmallCNN(1, 4, out=2, filters=(2,), hidden=4), small(2))
    yield (
        "models/embedded-sequential",
        askew.Embedded(nn.Sequential(nn.Linear(DIM, 4), nn.SiLU(), nn.Linear(4, 2, bias=False)), d.Mahalanobis(2)),
    )
    yield "models/embedded-twice", askew.Embedded(e.Linear(DIM, 4), askew.Embedded(e.MLP(4, 2, (4,)), small(2)))
    yield "models/embedded-half", askew.Embedded(e.Linear(DIM, 2).bfloat16(), d.Euclidean(2))
    frozen = askew.Embedded(
        nn.Sequential(nn.Linear(DIM, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)), small(2)
    )
    frozen(torch.randn(8, DIM), torch.randn(8, DIM))  # moves the statistics of the batch norm
    frozen.eval()
    frozen.encoder[0].requires_grad_(False)
    yield "models/frozen", frozen
    modes = askew.Embedded(nn.Sequential(nn.Linear(DIM, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2)), small(2))
    modes.train()
    modes.encoder.eval()
    modes.divergence.potential.requires_grad_(False)
    yield "models/modes", modes
    yield "models/trained-mode", small().train()
    yield "models/own-divergence", d.Sqrt(Tilted(DIM, "mine", (0.5, 2.0)))
    yield "models/own-potential", d.Bregman(Entropy(DIM, domain=POSITIVE))
    yield "models/own-encoder", askew.Embedded(Squash(), small(2))


def convex() -> Iterator[tuple[str, nn.Module]]:
    p = potentials
    yield "potentials/quadratic", p.Quadratic(DIM)
    yield "potentials/quadratic-matrix", p.Quadratic(DIM, torch.randn(2, DIM))
    yield "potentials/negative-entropy", p.NegativeEntropy(DIM)
    yield "potentials/negative-entropy-simplex", p.NegativeEntropy(DIM, simplex=True)
    yield "potentials/burg", p.Burg(DIM)
    yield "potentials/fermi-dirac", p.FermiDirac(DIM)
    yield "potentials/log-sum-exp", p.LogSumExp(DIM)
    yield "potentials/exponential", p.Exponential(DIM)
    yield "potentials/power-norm", p.PowerNorm(DIM, p=3.0)
    yield "potentials/scaled", p.Scaled(p.Burg(DIM), 0.25)
    yield "potentials/sum", p.Sum([p.Exponential(DIM), 2.0 * p.Quadratic(DIM), p.ICNN(DIM, (4,))])
    yield "potentials/affine", p.AffinePrecomposed(p.LogSumExp(2), torch.randn(2, DIM), torch.randn(2))
    yield "potentials/affine-without-offset", p.AffinePrecomposed(p.Exponential(2), torch.randn(2, DIM))
    yield "potentials/affine-learned", p.AffinePrecomposed(p.LogSumExp(2), nn.Parameter(torch.randn(2, DIM)))
    yield "potentials/conjugate", p.Conjugate(p.NegativeEntropy(DIM))
    yield "potentials/conjugate-network", p.Conjugate(p.ICNN(DIM, (4,)).double())
    for activation in ("squareplus", "softplus", "relu"):
        yield f"potentials/icnn-{activation}", p.ICNN(DIM, (4, 3), activation=activation)
    for nonnegative in ("softplus", "abs", "clamp", "square", "exp"):
        yield f"potentials/icnn-{nonnegative}", p.ICNN(DIM, (4, 3), nonnegative=nonnegative, separable=2)
    yield "potentials/icnn-linear-init", p.ICNN(DIM, (4, 4, 4), init="linear", calibrated=False)
    yield "potentials/icnn-network-alone", p.ICNN(DIM, (4,), quadratic=0, separable=0)
    yield "potentials/icnn-rank", p.ICNN(DIM, (4,), quadratic=1, separable=1)
    calibrated = p.ICNN(DIM, (4, 4))
    calibrated.calibrate(3 * torch.randn(20, DIM) + 1, torch.randn(20, DIM), torch.rand(20))
    yield "potentials/icnn-calibrated", calibrated
    yield "potentials/icnn-double", p.ICNN(DIM, (4, 4)).double()


def networks() -> Iterator[tuple[str, nn.Module]]:
    e = encoders
    yield "encoders/identity", e.Identity()
    yield "encoders/linear", e.Linear(DIM, 2)
    yield "encoders/mlp", e.MLP(DIM, 2, (4, 4))
    yield "encoders/mlp-silu", e.MLP(DIM, 2, (4,), activation="silu")
    yield "encoders/standardize", e.Standardize(DIM).fit(5 * torch.randn(20, DIM) + 2)
    yield "encoders/standardize-and-mlp", nn.Sequential(e.Standardize(DIM).fit(torch.rand(9, DIM)), e.MLP(DIM, 2, (4,)))
    yield "encoders/small-cnn", e.SmallCNN(2, 4, out=3, filters=(2, 3), hidden=4)
    yield "encoders/resnet-20", patterned(e.ResNet20(out=4))
    yield "encoders/resnet-18", patterned(e.ResNet18(out=2))
    layers = nn.Sequential(
        nn.Identity(),
        nn.Conv2d(1, 2, 3, padding=1, bias=False),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 4, (3, 1), padding="same", padding_mode="circular", groups=2),
        nn.LeakyReLU(0.2),
        nn.AvgPool2d(2, stride=1),
        nn.ELU(0.5),
        nn.AdaptiveAvgPool2d((1, 2)),
        nn.Flatten(),
        nn.LayerNorm(8),
        nn.Dropout(0.1),
        nn.GELU("tanh"),
        nn.Linear(8, 4),
        nn.SiLU(),
        nn.Sigmoid(),
        nn.Tanh(),
        nn.Softplus(2.0),
        nn.Softmax(-1),
    )
    layers(torch.randn(4, 1, 8, 8))
    yield "encoders/layers", layers.eval()
    rows = nn.Sequential(nn.Conv1d(2, 3, 2, stride=2), nn.BatchNorm1d(3, affine=False), nn.Flatten(1, 2))
    rows(torch.randn(4, 2, 6))
    yield "encoders/layers-of-rows", rows.eval()


@torch.no_grad()
def patterned(network: nn.Module) -> nn.Module:
    """Give a large network weights that take little room when they are compressed."""
    for tensor in network.parameters():
        count = tensor.numel()
        size = count // tensor.shape[0] if tensor.ndim > 1 else 1
        period = torch.tensor([3.0, -1.0, 2.0, 0.5, -2.0])
        tensor.copy_(period.repeat(count // 5 + 1)[:count].reshape(tensor.shape) / (2 * size))
        if tensor.ndim == 1:
            tensor.abs_()
    return network.eval()


def inputs_of(name: str, module: Any) -> dict[str, np.ndarray[Any, Any]]:
    shapes = {
        "models/embedded-cnn": (1, 4, 4),
        "encoders/small-cnn": (2, 4, 4),
        "encoders/resnet-20": (3, 8, 8),
        "encoders/resnet-18": (3, 32, 32),
        "encoders/layers": (1, 8, 8),
        "encoders/layers-of-rows": (2, 6),
    }
    dtype = next((t.dtype for t in module.parameters() if t.is_floating_point()), torch.float32)
    dtype = torch.float32 if name == "models/embedded-half" else dtype
    points = [torch.randn(rows, *shapes.get(name, (DIM,)), dtype=dtype) for rows in (ROWS, ROWS)]
    if isinstance(module, (divergences.Dual, potentials.Conjugate)):
        # The gradients of a potential are the points of its dual.
        inner = module.potential.potential if isinstance(module, divergences.Dual) else module.potential
        with torch.no_grad():
            points = [inner.gradient(into(inner.domain, z)) for z in points]
    elif isinstance(module, (askew.Divergence, potentials.Potential)) and not isinstance(module, askew.Embedded):
        points = [into(module.domain, z) for z in points]
    if name.startswith("encoders/"):
        points = points[:1]
    return dict(zip("xy", (z.contiguous().numpy() for z in points), strict=False))


def into(domain: Domain, z: Tensor) -> Tensor:
    maps: list[tuple[Domain, Callable[[Tensor], Tensor]]] = [
        (REAL, lambda z: z),
        (POSITIVE, torch.exp),
        (NEGATIVE, lambda z: -z.exp()),
        (UNIT_BOX, torch.sigmoid),
        (SIMPLEX, lambda z: z.softmax(-1)),
    ]
    return next(of for known, of in maps if known == domain)(z)


# ---------------------------------------------------------------------- estimators


def estimators() -> Iterator[tuple[str, Any]]:
    x, labels, names = table()
    fast: dict[str, Any] = {"steps": 5, "random_state": 0, "progress": False}
    frame = pandas.DataFrame(x, columns=["width", "height", "depth"])
    yield "estimators/learner", askew.DivergenceLearner(small(), None, **fast).fit(x, labels)
    yield "estimators/learner-names", askew.DivergenceLearner("mahalanobis", None, **fast).fit(frame, names)
    yield (
        "estimators/learner-mlp",
        askew.DivergenceLearner(small(2), nn.Sequential(nn.Linear(DIM, 4), nn.ReLU(), nn.Linear(4, 2)), **fast).fit(
            x, labels
        ),
    )
    yield "estimators/learner-unscaled", askew.DivergenceLearner("kl", None, scale=False, **fast).fit(x, labels)
    yield "estimators/learner-pbdl", askew.DivergenceLearner("pbdl", **fast).fit(x[:12], labels[:12])
    yield "estimators/learner-not-fitted", askew.DivergenceLearner("iqe", steps=3, learning_rate=0.5)
    yield "estimators/learner-own-divergence", askew.DivergenceLearner(Tilted(DIM, "a"), None, **fast).fit(x, labels)
    yield "estimators/learner-own-encoder", askew.DivergenceLearner(small(2), Squash(), **fast).fit(x, labels)
    inner = askew.DivergenceLearner(small(), None, **fast)
    yield "estimators/classifier", askew.DivergenceNeighborsClassifier(inner, 3).fit(x, names)
    pairs = np.stack([x, np.roll(x, 1, 0)], 1)
    values = np.abs(pairs[:, 0] - pairs[:, 1]).sum(-1)
    yield "estimators/pairs", askew.PairRegressor(small(), None, **fast).fit(pairs, values)
    yield "estimators/pairs-pbdl", askew.PairRegressor("pbdl", **fast).fit(pairs[:10], values[:10])
    triplets = np.stack([x, np.roll(x, 1, 0), np.roll(x, 2, 0)], 1)
    yield "estimators/triplets", askew.TripletLearner(small(), None, **fast).fit(triplets)
    yield "estimators/triplets-pbdl", askew.TripletLearner("pbdl", **fast).fit(triplets[:8])
    kmeans, mixture = askew.BregmanKMeans, askew.BregmanMixture
    yield "estimators/kmeans", kmeans(3, divergence="kl", n_init=2, random_state=0).fit(x)
    yield "estimators/kmeans-frame", kmeans(2, divergence="itakura-saito", random_state=1, dual=True).fit(frame)
    yield "estimators/kmeans-learner", kmeans(2, divergence=inner.fit(x, labels), random_state=0).fit(x)
    yield "estimators/kmeans-batches", kmeans(2, batch_size=8, random_state=0).partial_fit(x[:12]).partial_fit(x[12:])
    yield "estimators/kmeans-started", kmeans(2, init=x[:2], n_init=1).fit(x)
    yield "estimators/mixture", mixture(2, divergence="kl", random_state=0).fit(x)
    yield (
        "estimators/mixture-embedded",
        mixture(2, divergence=askew.Embedded(encoders.MLP(DIM, 2, (4,)), small(2)), random_state=0).fit(x),
    )
    yield (
        "estimators/mixture-started",
        mixture(2, temperature=0.5, init=x[:2], weights_init=np.array([0.25, 0.75]), max_iter=50).fit(x),
    )


def table() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return 24 positive rows in three classes, and the classes as numbers and as names."""
    generator = np.random.default_rng(0)
    labels = np.arange(24) % 3
    x = 1 + labels[:, None] * np.array([1.0, 0.5, 0.0]) + generator.random((24, DIM))
    return x, labels, np.array(["pine", "oak", "beech"])[labels]


def of_estimator() -> dict[str, np.ndarray[Any, Any]]:
    points = np.random.default_rng(1).random((7, DIM)) + 1
    parts = [np.roll(points, shift, 0) for shift in range(3)]
    return {"points": points, "pairs": np.stack(parts[:2], 1), "triplets": np.stack(parts, 1)}


def values() -> Iterator[tuple[str, Any]]:
    rows = [{"step": 1, "loss": 0.5, "validation": float("nan")}, {"step": 2, "loss": 0.1}]
    yield "values/history", askew.History(rows, "early", 2)
    yield "values/history-empty", askew.History()
    yield (
        "values/dict",
        {
            "step": 3,
            "best": (1.5, None, float("-inf")),
            "state": {0: torch.arange(3), 1: torch.ones(2, dtype=torch.bfloat16)},
            "array": np.array([[1.5, 2.5]]),
            "words": np.array(["a", "bcd"]),
            "flag": np.float32(0.1),
            "list": [True, "text", -1],
        },
    )
    yield "values/several", {"model": small(), "kmeans": askew.BregmanKMeans(2), "history": askew.History(rows[1:])}


# ---------------------------------------------------------------------- indexes


def indexes(folder: Path) -> Iterator[tuple[str, Any]]:
    items, ids = table()[0], np.arange(100, 124)

    def filled(index: Any, points: Any = items, **more: Any) -> Any:
        index.add(points, **more)
        return index

    learner = askew.DivergenceLearner(small(), None, steps=5, random_state=0, progress=False).fit(*table()[:2])
    removed = filled(ExactIndex("itakura-saito"), ids=ids)
    removed.remove([101, 117])
    yield "exact-first", filled(ExactIndex("kl"))
    yield "exact-second", filled(ExactIndex("kl", "query-second"), ids=ids)
    yield "exact-removed", removed
    yield "exact-pairs", filled(ExactIndex(divergences.WideNorm(DIM, components=2, width=3), "query-second"))
    yield "exact-double", filled(ExactIndex(small().double()), torch.from_numpy(items))
    yield "exact-embedded", filled(ExactIndex(askew.Embedded(encoders.MLP(DIM, 2, (4,)), small(2))))
    yield "exact-learner", filled(ExactIndex(learner, "query-second"))
    yield "exact-empty", ExactIndex("exponential", "query-second")
    emptied = filled(ExactIndex(small()))
    emptied.remove(range(24))
    yield "exact-emptied", emptied
    many = np.random.default_rng(2).random((300, DIM)) + 0.5
    yield "faiss-auto", filled(FaissIndex(small()), ids=ids)
    yield "faiss-flat", filled(FaissIndex("kl", "query-second", kind="flat"))
    yield "faiss-ivf", filled(FaissIndex(small(), kind="ivf", recall_target=0.9), many)
    yield "faiss-hnsw", filled(FaissIndex("kl", kind="hnsw", recall_target=0.9), many[:100])
    yield "faiss-ivf-pq", filled(FaissIndex("euclidean", kind="ivf-pq", recall_target=0.8), many)
    second = filled(FaissIndex(small(), "query-second", kind="ivf", recall_target=0.9), many, ids=np.arange(300) + 50)
    second.remove(np.arange(60, 65))
    yield "faiss-ivf-removed", second
    yield "faiss-learner", filled(FaissIndex(learner))
    yield "faiss-roots", filled(FaissIndex(divergences.Sqrt(divergences.Scaled(divergences.Mahalanobis(DIM), 2.0))))
    yield "faiss-generalized", filled(FaissIndex(divergences.GeneralizedSymmetrized(small())))
    yield "faiss-empty", FaissIndex("kl")
    for direction in ("query-first", "query-second"):
        place = folder / f"milvus-{direction.removeprefix('query-')}"
        place.mkdir(parents=True)
        index = filled(MilvusIndex(small(), place / "items.db", direction=direction), many[:40], ids=np.arange(40) + 7)
        index.remove([9])
        yield place.name, index


def of_index(index: Any) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(3)
    removed = index.search(np.ones((1, DIM)), 2)[1][0] if len(index) else np.empty(0, np.int64)
    return {"queries": generator.random((4, DIM)) + 1, "more": generator.random((6, DIM)) + 1, "removed": removed}


# ---------------------------------------------------------------------- commands


def command(*words: object) -> None:
    from askew.cli import main

    try:
        main([str(word) for word in words])
    except SystemExit as stopped:
        if stopped.code:
            raise


def commands(folder: Path) -> None:
    """Learn from a table and make indexes of it, as a user does in a shell."""
    x, _, names = table()
    path = folder / "tables" / "trees.csv"
    path.parent.mkdir()
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["tree", "width", "height", "depth", "colour", "species"])
        for number, (row, name) in enumerate(zip(x.round(3), names, strict=True)):
            cells = ["" if number == 5 else row[0], *row[1:], ("red", "blue", "green")[number % 5 % 3], name]
            writer.writerow([f"tree-{number}", *cells])
    model = folder / "commands" / "model"
    chosen = ["--divergence", "mahalanobis", "--encoder", "none", "--steps", 10]
    command("learn", path, "--label", "species", *chosen, "-o", model, "--json")
    command("index", model, path, "--id", "tree", "--kind", "exact", "-o", folder / "commands" / "index-exact")
    command("index", model, path, "--direction", "query-second", "-o", folder / "commands" / "index-faiss")
    for kind in ("exact", "faiss"):
        hits = folder / "tables" / f"hits-{kind}.csv"
        command("search", folder / "commands" / f"index-{kind}", path, "-k", 3, "--id", "tree", "-o", hits)


# ---------------------------------------------------------------------- checkpoints


class PowerCutError(Exception):
    """Ends a training in the middle of a step."""


def checkpoints(folder: Path, expected: dict[str, np.ndarray[Any, Any]]) -> None:
    generator = np.random.default_rng(4)
    data = dict(zip("xyz", generator.random((3, 15, DIM)) + 0.2, strict=True))
    data |= {"targets": np.abs(data["x"] - data["y"]).sum(-1), "labels": np.arange(15) % 3}
    expected |= {f"checkpoints:in:{name}": data[name] for name in TRAINED}
    cases = ("regression", "contrastive-pairs", "contrastive", "all-triplets", "hard-triplets", "semi-hard-triplets")
    folder.mkdir()
    for name in (*cases, "listwise", "triplet-margin", "own-loss", "embedded", "loader"):
        path = folder / f"{name}.safetensors"
        model, settings = training(name, data)
        calls = 0

        def stop(_: Tensor) -> None:
            nonlocal calls
            calls += 1
            if calls == 6:
                raise PowerCutError

        next(model.parameters()).register_hook(stop)
        with contextlib.suppress(PowerCutError):
            askew.fit(model, checkpoint=path, checkpoint_every=5, **settings)
        assert calls == 6, name
        assert path.exists(), name
        model, settings = training(name, data)
        history = askew.fit(model, **settings)
        expected[f"checkpoints/{name}:out:loss"] = np.array(history["loss"])
        for key, tensor in flat(model).items():
            expected[f"checkpoints/{name}:out:{key}"] = tensor


def flat(model: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    return {"weights": torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()}


# ---------------------------------------------------------------------- all of it


def names_on_disk(folder: Path) -> dict[str, list[str]]:
    """Return every class name that a file can have today, after a check that one of these files has it."""
    import inspect

    from askew.models.saving import ESTIMATORS
    from askew.recipes.describing import LAYERS
    from askew.recipes.recording import LIBRARY

    found: set[str] = set()

    def look(node: Any) -> None:
        if isinstance(node, dict):
            found.update(node[key] for key in ("class", "estimator") if isinstance(node.get(key), str))
            for item in node.values():
                look(item)
        elif isinstance(node, list):
            for item in node:
                look(item)

    for path in sorted(folder.rglob("*.json")):
        if path.name in ("model.json", "index.json"):
            look(json.loads(path.read_text()))
    library = {name for name, cls in LIBRARY.items() if not name.startswith("experiments.")}
    never = {name for name in library if inspect.isabstract(LIBRARY[name])} | {"potentials.FromFunction"}
    wanted = (library - never) | set(ESTIMATORS) | set(LAYERS) | {"ExactIndex", "FaissIndex", "MilvusIndex"}
    assert not wanted - found, wanted - found
    return {
        "library": sorted(library),
        "of them never in a file": sorted(never),
        "estimators": sorted(ESTIMATORS),
        "layers": sorted([*LAYERS, "Sequential"]),
        "indexes": ["ExactIndex", "FaissIndex", "MilvusIndex"],
    }


def new_estimators() -> Iterator[tuple[str, Any]]:
    """Estimators that 0.1.0 did not have."""
    x, labels, _ = table()
    fast: dict[str, Any] = {"steps": 5, "random_state": 0, "progress": False}
    pairs, similar = np.stack([x, np.roll(x, 1, 0)], 1), np.where(np.roll(labels, 1) == labels, 1, -1)
    similar[::2], pairs[::2, 1] = 1, x[::2] + 0.1
    yield "estimators/similar", askew.PairClassifier(small(), None, **fast).fit(pairs, similar)
    clicks = np.stack([np.arange(24), np.roll(np.arange(24), 1)], 1)
    yield "estimators/relevance", askew.RelevanceLearner("drift", "two-sided", **fast).fit(x, x[::-1], clicks)


def main() -> None:
    version = sys.argv[1] if len(sys.argv) > 1 else askew.__version__
    folder = Path(__file__).parent / version
    assert not folder.exists(), folder
    folder.mkdir()
    torch.manual_seed(0)
    expected: dict[str, np.ndarray[Any, Any]] = {}
    texts: dict[str, Any] = {}
    if version == "0.2.0":
        for name, estimator in new_estimators():
            askew.save(estimator, folder / name)
            texts[name], kept = stored(askew.load(folder / name))  # embeddings are no part of the file
            parts = {"in": of_estimator(), "kept": kept, "out": computed(estimator, of_estimator())}
            expected |= {f"{name}:{part}:{key}": value for part, some in parts.items() for key, value in some.items()}
        np.savez_compressed(folder / "expected.npz", **expected)
        (folder / "expected.json").write_text(json.dumps(texts, indent=1) + "\n")
        return

    def keep(name: str, saved: Any, inputs: dict[str, np.ndarray[Any, Any]]) -> None:
        texts[name], arrays = stored(saved)
        parts = {"in": inputs, "kept": arrays, "out": computed(saved, inputs) if inputs else {}}
        expected.update({f"{name}:{part}:{key}": value for part, some in parts.items() for key, value in some.items()})

    for name, module in (*catalogue(), *wrapped(), *convex(), *networks()):
        askew.save(module, folder / name, notes={"made": "by hand"} if name == "models/nbd" else None)
        keep(name, module, inputs_of(name, module))
        if "resnet" in name:
            pack(folder / name)
    for name, estimator in estimators():
        askew.save(estimator, folder / name)
        keep(name, estimator, {} if "not-fitted" in name else of_estimator())
    for name, value in values():
        askew.save(value, folder / name)
        keep(name, value, {})
    for short, index in indexes(folder / "indexes"):
        name = f"indexes/{short}"
        index.save(folder / name, **({} if "milvus" in name else {"notes": {"name": short}}))
        if "milvus" in name:
            index.close()
            place = shutil.copytree(folder / name, folder / "copy")  # a search must not change the fixture
            with MilvusIndex.load(place) as index:
                keep(name, index, of_index(index))
            shutil.rmtree(place)
        else:
            index = load_index(folder / name)  # with its notes
            keep(name, index, of_index(index))
    commands(folder)
    checkpoints(folder / "checkpoints", expected)
    np.savez_compressed(folder / "expected.npz", **expected)
    for name, content in (("expected.json", texts), ("names.json", names_on_disk(folder))):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    files = [path for path in folder.rglob("*") if path.is_file()]
    print(len(files), "files,", sum(map(os.path.getsize, files)), "bytes")


def pack(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.with_name(f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
        path.unlink()


if __name__ == "__main__":
    main()
