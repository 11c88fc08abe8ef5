"""Fuzzing of what askew writes itself: models, indexes, checkpoints, weights."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import shutil
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from askew_paper.encoders import load_weights
from safetensors.torch import load as load_safetensors

import askew
from askew import io as askew_io
from askew.search import ExactIndex, FaissIndex, load_index
from fuzzing.changes import changed_bytes, changed_json
from fuzzing.targets import Target, check, place, put

__all__ = ["TARGETS", "lay_out"]

Files = dict[str, bytes]


def content_of(folder: Path) -> Files:
    """Return the files below a folder by their relative names."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def lay_out(case: Files, name: str) -> Path:
    """Write files to an empty folder."""
    folder = place() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, content in case.items():
        path = folder / file
        if path.parent != folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def signed(description: Any) -> bytes:
    """Return a description as a file, with the checksum that belongs to it: hostile, not damaged."""
    if isinstance(description, dict):
        description = {key: value for key, value in description.items() if key != "checksum"}
        with contextlib.suppress(ValueError):
            description["checksum"] = askew_io.checksum(description)
    return json.dumps(description).encode()


# ---------------------------------------------------------------------- safetensors


def opened(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def closed(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def changed_tensors(content: bytes, random: Random) -> bytes:
    """Return a safetensors file with other bytes, another header, or another description with its own checksum."""
    kind = random.random()
    if kind < 0.3:
        return changed_bytes(content, random)
    header, body = opened(content)
    if kind < 0.55:
        return closed(changed_json(header, random), body)
    if kind < 0.65:
        return struct.pack("<Q", random.choice((0, 1, 1 << 20, 1 << 40, (1 << 64) - 1))) + content[8:]
    name = random.choice([key for key in header if key != "__metadata__"] or ["x"])
    if kind < 0.75 and name in header:
        shape = random.choice(([1 << 40], [0, 1 << 50], [1 << 32, 1 << 32], [-1], [], [2, 3], [1.5], ["a"]))
        header[name] = {
            **header[name],
            "shape": shape,
            "dtype": random.choice(("F32", "F64", "BF16", "I64", "F8", "U1")),
        }
        return closed(header, body)
    description = changed_json(json.loads(header["__metadata__"]["askew"]), random)
    header["__metadata__"]["askew"] = _resigned(description, content)
    return closed(header, body)


def _resigned(description: Any, content: bytes) -> str:
    if isinstance(description, dict):
        description = {key: value for key, value in description.items() if key != "checksum"}
        with contextlib.suppress(ValueError):
            description["checksum"] = askew_io.checksum(description, load_safetensors(content))
    return json.dumps(description)


# ---------------------------------------------------------------------- models


@functools.cache
def models() -> tuple[Files, ...]:
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(20, 2))
    labels = np.arange(20) % 2
    learner = askew.DivergenceLearner("mahalanobis", encoder=None, random_state=0).fit(X, labels)
    kinds: list[Any] = [
        askew.NeuralBregman(2, widths=(3,), separable=2),
        askew.Embedded(askew.encoders.MLP(2, widths=(3,), out=2), askew.make("euclidean", 2)),
        askew.make("kl", 2),
        learner,
        askew.BregmanKMeans(2, random_state=0).fit(X),
        {"a": torch.zeros(2), "b": [1, (2.5, "x")], "c": np.array(["u", "v"]), "d": np.float32(3)},
    ]
    found = []
    for kind in kinds:
        folder = place() / "made"
        shutil.rmtree(folder, ignore_errors=True)
        askew.save(kind, folder)
        found.append(content_of(folder))
    return tuple(found)


def changed_model(case: Files, random: Random, json_name: str) -> Files:
    """Return the files of a folder with one of them changed."""
    case = dict(case)
    weights = next((name for name in case if name.endswith(".safetensors")), None)
    kind = random.random()
    if kind < 0.65:
        description = changed_json(json.loads(case[json_name]), random)
        case[json_name] = signed(description)
    elif kind < 0.75 or weights is None:
        case[json_name] = changed_bytes(case[json_name], random)
    elif kind < 0.8:
        del case[random.choice(list(case))]
    else:
        case[weights] = changed_tensors(case[weights], random)
    return case


def make_model(random: Random) -> Files:
    return changed_model(random.choice(models()), random, "model.json")


def run_model(case: Files) -> int:
    model = askew.load(lay_out(case, "model"))
    if isinstance(model, askew.Divergence) and model.dim == 2:
        points = torch.full((3, 2), 0.5, dtype=model.dtype or torch.float32)
        values = model(points, points + 0.1)
        check(values.shape == (3,), "a model of another shape")
    return 1


# ---------------------------------------------------------------------- indexes


@functools.cache
def indexes() -> tuple[Files, ...]:
    items = np.random.default_rng(0).random((12, 2)) + 0.1
    found = []
    for kind in (
        ExactIndex("kl"),
        FaissIndex("kl"),
        FaissIndex("euclidean", kind="hnsw"),
        FaissIndex("kl", kind="ivf"),
        ExactIndex("kl"),
    ):
        if len(found) < 4:
            kind.add(items.astype(np.float32))
        folder = place() / "made"
        shutil.rmtree(folder, ignore_errors=True)
        kind.save(folder)
        found.append(content_of(folder))
    return tuple(found)


def make_index(random: Random) -> Files:
    case = dict(random.choice(indexes()))
    kind = random.random()
    engine = next((name for name in case if name.startswith("faiss-")), None)
    if kind < 0.25 and engine is not None:
        # With its digest: FAISS gets to read it.
        case[engine] = changed_bytes(case[engine], random)
        description = json.loads(case["index.json"])
        description["own"]["engine"]["sha256"] = hashlib.sha256(case[engine]).hexdigest()
        case["index.json"] = signed(description)
        return case
    if kind < 0.35:
        items = next((name for name in case if name.startswith("items-")), None)
        if items is not None:
            case[items] = changed_tensors(case[items], random)
            return case
    return changed_model(case, random, "index.json")


def run_index(case: Files) -> int:
    index = load_index(lay_out(case, "index"))
    if len(index):
        queries = np.full((2, 2), 0.5, np.float32)
        values, ids = index.search(queries, min(3, len(index)))
        check((np.diff(values, axis=1) >= 0).all() and (values >= 0).all(), "values that do not rise")
        check(all(len(set(row)) == len(row) for row in ids.tolist()), "an item twice")
    return 1


# ---------------------------------------------------------------------- checkpoints and weights


def training() -> tuple[askew.Divergence, Any]:
    torch.manual_seed(0)
    x, y = torch.rand(2, 8, 2)
    return askew.make("mahalanobis", 2), (x, y, (x - y).square().sum(-1))


def resume(path: Path) -> askew.training.History:
    model, data = training()
    return askew.fit(
        model, data, askew.losses.Regression(), steps=4, batch_size=4, seed=0, checkpoint=path, checkpoint_every=1
    )


@functools.cache
def checkpoints() -> tuple[bytes, ...]:
    path = place() / "made.safetensors"
    path.unlink(missing_ok=True)
    resume(path)
    return (path.read_bytes(),)


def run_checkpoint(content: bytes) -> int:
    history = resume(put("checkpoint.safetensors", content))
    check(isinstance(history.rows, list), "no history")
    return 1


@functools.cache
def weights() -> bytes:
    file = io.BytesIO()
    torch.save(askew.encoders.MLP(2, widths=(3,), out=2).state_dict(), file)
    return file.getvalue()


def make_weights(random: Random) -> Files:
    return {"w.pt": changed_bytes(weights(), random)}


def run_weights(case: Files) -> int:
    (name, content), *_ = case.items()
    load_weights(askew.encoders.MLP(2, widths=(3,), out=2), put(name, content))
    return 1


@functools.cache
def tree() -> tuple[dict[str, torch.Tensor], Any]:
    objects = np.array([None, 1], object)
    return askew_io.flatten(
        {"a": torch.zeros(2), "b": [1, (2.5, "x")], "c": np.array(["u"]), 3: np.float32(1), "o": objects}
    )


def make_tree(random: Random) -> bytes:
    return json.dumps(changed_json(tree()[1], random)).encode()


def run_tree(content: bytes) -> int:
    tensors, _ = tree()
    found = askew_io.unflatten(tensors, askew_io.read_json(content, "'x'"))
    try:
        again = askew_io.unflatten(*askew_io.flatten(found))
    except TypeError:
        return 1  # what only JSON can hold
    check(repr(again) == repr(found), "not the same again")
    return 1


TARGETS = (
    Target("model", make_model, run_model),
    Target("index", make_index, run_index),
    Target("checkpoint", lambda random: changed_tensors(random.choice(checkpoints()), random), run_checkpoint),
    Target("weights", make_weights, run_weights),
    Target("tree", make_tree, run_tree, guided=True),
)
