"""What children do: things that are written, twice in two versions, and what may happen meanwhile.

A subject is something on disk, or an index that has its items there. ``make(subject, folder, version)`` writes version
1 or 2 of it, as a user would, and ``look(subject, folder)`` reads it as a user would and says what is there; it raises
if that is neither.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import askew
from askew import io as askew_io
from askew.cli import main
from askew.cli.inputs import load_all
from askew.search import ExactIndex, FaissIndex, Index, load_index

STEPS, EVERY = 12, 3
# Subjects that need the extra.
FAISS = ("graph index", "index added to", "index in scratch")
# Indexes in the memory of this process, by the folder of their scratch files.
INDEXES: dict[Path, FaissIndex] = {}
# What commands read: tables, models and rows of both versions, made once by the process that forks.
INGREDIENTS = tempfile.TemporaryDirectory()


class StoppedError(Exception):
    """Raised in the middle of a training."""


def command(*words: object, run: Callable[[list[str]], None] = main) -> dict[str, Any]:
    """Run a command of askew in this process and return what a shell sees of it."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def succeed(*words: object, run: Callable[[list[str]], None] = main) -> None:
    """Run a command that must not fail; what it says is raised otherwise."""
    found = command(*words, run=run)
    if found["code"]:
        raise CommandError(f"exit code {found['code']}: {found['err']}")


class CommandError(Exception):
    """A command that ended with an exit code."""


# ---------------------------------------------------------------------- models


def _model(version: int) -> askew.NeuralBregman:
    torch.manual_seed(version)
    return askew.NeuralBregman(3, widths=(64, 32))


def make_model(folder: Path, version: int) -> None:
    askew.save(_model(version), folder / "model")


def look_at_model(folder: Path) -> str:
    return askew_io.checksum(None, askew.load(folder / "model").state_dict())


# ---------------------------------------------------------------------- indexes


def _items(version: int) -> Any:
    return np.random.default_rng(version).gamma(2.0, size=(600, 3)).astype(np.float32) + 0.1


def _filled(kind: str, version: int) -> ExactIndex | FaissIndex:
    index = ExactIndex("kl") if kind == "exact" else FaissIndex("kl", kind=kind)
    index.add(_items(version)[: 300 + 100 * version])
    return index


def make_exact(folder: Path, version: int) -> None:
    _filled("exact", version).save(folder / "index")


def make_graph(folder: Path, version: int) -> None:
    _filled("hnsw", version).save(folder / "index")


def make_grown(folder: Path, version: int) -> None:
    """Build an index, or take up the one that is there, add to it and take from it."""
    if version == 1:
        _filled("flat", 1).save(folder / "index")
        return
    index = FaissIndex.load(folder / "index")
    if len(index) == 400:
        index.add(_items(2)[:50])
        index.remove(range(100, 120))
    index.save(folder / "index")


def look_at_index(folder: Path) -> list[Any]:
    return _found(load_index(folder / "index"))


def _found(index: Index) -> list[Any]:
    values, ids = index.search(_items(3)[:4], 3)
    return [len(index), ids.tolist(), values.round(4).tolist()]


def make_scratch(folder: Path, version: int) -> None:
    """Build an index whose items are in a file without a name, or add to it, which rebuilds it."""
    if version == 1:
        INDEXES[folder] = FaissIndex("kl", kind="flat", scratch=folder)
        INDEXES[folder].add_blocks(np.split(_items(1)[:100], 2))
    elif len(INDEXES[folder]) == 100:
        INDEXES[folder].add(_items(2))


def look_at_scratch(folder: Path) -> list[Any]:
    return _found(INDEXES[folder])


# ---------------------------------------------------------------------- training


def train(
    file: str | os.PathLike[str], stop: int | None = None, kill: int | None = None, progress: bool = False
) -> str:
    """Train with a checkpoint and return the checksum of the weights; stopped or killed in the middle if asked to."""
    random = np.random.default_rng(0)
    x, y = random.uniform(0.5, 2, size=(2, 60, 3)).astype(np.float32)
    targets = askew.make("kl", 3)(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    torch.manual_seed(0)
    model = askew.NeuralBregman(3, widths=(32, 16))
    calls = 0

    def loss(D: Any, first: torch.Tensor, second: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if calls == stop:
            raise StoppedError
        return (D(first, second) - wanted).abs().mean()

    askew.fit(
        model,
        (x, y, targets),
        loss,
        steps=STEPS,
        batch_size=20,
        seed=5,
        checkpoint=file,
        checkpoint_every=EVERY,
        progress=progress,
    )
    return askew_io.checksum(None, model.state_dict())


def make_checkpoint(folder: Path, version: int) -> None:
    """Train until a checkpoint or two are there, or to the end from what is there."""
    if version == 1:
        with contextlib.suppress(StoppedError):
            train(folder / "run" / "state", stop=2 * EVERY - 1)
    else:
        train(folder / "run" / "state")


def look_at_checkpoint(folder: Path) -> int:
    tensors, description = askew_io.load_tensors(folder / "run" / "state", "checkpoint")
    return int(askew_io.unflatten(tensors, description["tree"])["counters"]["step"])


# ---------------------------------------------------------------------- commands on tables


def _write_table(path: Path, version: int) -> None:
    """Write a table whose columns and rows have other names in each version, but as many of them."""
    points = enumerate(np.random.default_rng(version).normal(size=(30, 2)))
    lines = [f"v{version}r{n},{a:.4f},{b:.4f},{'uv'[n % 2]}" for n, (a, b) in points]
    path.write_text("\n".join([f"id,a{version},b{version},kind", *lines, ""]))


def make_learned(folder: Path, version: int) -> None:
    words = ("--label", "kind", "--divergence", "mahalanobis", "--encoder", "none", "--steps", 2)
    succeed("learn", f"{INGREDIENTS.name}/{version}/table.csv", *words, "-o", folder / "model")


def look_at_learned(folder: Path) -> list[Any]:
    """Return the columns and the numbers of the model, which must belong together."""
    learner, columns, _ = load_all(folder / "model")
    assert columns is not None
    return [columns.get_feature_names_out().tolist(), learner.model_(torch.zeros(1, 2), torch.ones(1, 2)).tolist()]


def make_indexed(folder: Path, version: int) -> None:
    place = f"{INGREDIENTS.name}/{version}"
    succeed("index", f"{place}/model", f"{place}/table.csv", "--id", "id", "--kind", "exact", "-o", folder / "index")


def look_at_indexed(folder: Path) -> list[Any]:
    """Return the columns, the names and the first hits of the index, which must belong together."""
    index = load_index(folder / "index")
    values, ids = index.search(np.zeros((1, 2), np.float32), 2)
    columns = [column["name"] for column in index.notes["columns"]["used"]]
    return [columns, [index.notes["names"][number] for number in ids[0]], values.round(4).tolist()]


# ---------------------------------------------------------------------- all of them

SUBJECTS: dict[str, tuple[Callable[[Path, int], None], Callable[[Path], Any]]] = {
    "model": (make_model, look_at_model),
    "exact index": (make_exact, look_at_index),
    "graph index": (make_graph, look_at_index),
    "index added to": (make_grown, look_at_index),
    "index in scratch": (make_scratch, look_at_scratch),
    "checkpoint": (make_checkpoint, look_at_checkpoint),
    "learn": (make_learned, look_at_learned),
    "index command": (make_indexed, look_at_indexed),
}


def make(subject: str, folder: str, version: int) -> None:
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    SUBJECTS[subject][0](place, version)


def look(subject: str, folder: str) -> Any:
    return SUBJECTS[subject][1](Path(folder))


def warm_up() -> None:
    """Do once what takes long the first time, so that no child has to."""
    for version in (1, 2):
        place = Path(INGREDIENTS.name) / str(version)
        place.mkdir(exist_ok=True)
        _write_table(place / "table.csv", version)
        make_learned(place, version)
    with tempfile.TemporaryDirectory() as folder:
        for subject in SUBJECTS:
            if subject in FAISS and importlib.util.find_spec("faiss") is None:
                continue
            make(subject, f"{folder}/{subject}", 1)
            look(subject, f"{folder}/{subject}")
