"""Models, indexes and checkpoints that older versions of askew wrote give the numbers that they gave then."""

from __future__ import annotations

import csv
import json
import lzma
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saved.own import OPTIONS, computed, stored, training

import askew
from askew.cli import main
from askew.search import ExactIndex, FaissIndex, MilvusIndex, load_index

FOLDER, LATER = (Path(__file__).parent / version for version in ("0.1.0", "0.2.0"))
NEW: dict[str, Any] = json.loads((LATER / "expected.json").read_text())
TEXTS: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text()) | NEW
ARRAYS: dict[str, np.ndarray[Any, Any]] = {}
for place in (FOLDER, LATER):
    ARRAYS |= np.load(place / "expected.npz", allow_pickle=False)

MODELS = [name for name in TEXTS if not name.startswith("indexes/")]
INDEXES = [name for name in TEXTS if name.startswith("indexes/")]
CHECKPOINTS = sorted(path.stem for path in (FOLDER / "checkpoints").iterdir())

# Numbers in a file come back bit for bit. What is computed from them depends on the last digit on the processor, whose
# matrix products add in another order, so this is the share of the largest entry that may differ.
TOLERANCES = {"float16": 1e-2, "float32": 2e-6, "float64": 1e-12}
# Computed with another precision than the type of the result, with many layers, or by solving equations to a tolerance.
LOOSE = {
    "models/embedded-half": 1e-2,
    "estimators/mixture-embedded": 2e-6,
    "models/dual-network": 1e-8,
    "potentials/conjugate-network": 1e-8,
    "encoders/resnet-18": 1e-4,
    "encoders/resnet-20": 1e-4,
}


def arrays(name: str, part: str) -> dict[str, np.ndarray[Any, Any]]:
    prefix = f"{name}:{part}:"
    return {key.removeprefix(prefix): value for key, value in ARRAYS.items() if key.startswith(prefix)}


def check_equal(found: dict[str, np.ndarray[Any, Any]], wanted: dict[str, np.ndarray[Any, Any]], name: str) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype, key
        if value.dtype.kind == "f":
            share = LOOSE.get(name, TOLERANCES[value.dtype.name])
            largest = float(np.abs(value).max(initial=0))
            np.testing.assert_allclose(found[key], value, rtol=share, atol=share * largest, err_msg=key)
        else:
            np.testing.assert_array_equal(found[key], value, err_msg=key)


def check_same(found: dict[str, np.ndarray[Any, Any]], wanted: dict[str, np.ndarray[Any, Any]]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype, key
        np.testing.assert_array_equal(found[key], value, err_msg=key)


def check_text(found: Any, wanted: Any) -> None:
    """Check that what is wanted is there; a later version may have more settings."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            check_text(found[key], value)
    else:
        assert found == wanted


def folder_of(name: str, tmp_path: Path) -> Path:
    """Return the folder of a fixture: a copy where it is compressed."""
    if name in NEW:
        return LATER / name
    packed = list((FOLDER / name).glob("*.xz"))
    if not packed:
        return FOLDER / name
    place = tmp_path / "unpacked"
    shutil.copytree(FOLDER / name, place, ignore=shutil.ignore_patterns("*.xz"))
    for path in packed:
        (place / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    return place


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, tmp_path: Path) -> None:
    if "resnet" in name:
        pytest.importorskip("askew_paper")  # has these networks
    options = OPTIONS.get(name, {})
    loaded = askew.load(folder_of(name, tmp_path), **options)
    text, kept = stored(loaded)
    check_text(text, TEXTS[name])
    check_same(kept, arrays(name, "kept"))
    inputs = arrays(name, "in")
    found = computed(loaded, inputs) if inputs else {}
    check_equal(found, arrays(name, "out"), name)
    if "resnet" in name:  # up to 44 MB, too much to write again
        return
    askew.save(loaded, tmp_path / "again")
    again = askew.load(tmp_path / "again", **options)
    text_again, kept_again = stored(again)
    assert text_again == text
    computed_again = computed(again, inputs) if inputs else {}
    if "items_" in kept:  # a file of this version holds the points, and their embeddings are computed from them
        check_equal({"items_": again.items_}, {"items_": kept.pop("items_")}, name)
        check_equal(computed_again, found, name)
    else:
        check_same(computed_again, found)
    check_same(kept_again, kept)


@pytest.fixture
def opened() -> Iterator[list[MilvusIndex]]:
    """Close what was opened."""
    indexes: list[MilvusIndex] = []
    yield indexes
    for index in indexes:
        index.close()


def open_index(folder: Path, name: str, opened: list[MilvusIndex]) -> Any:
    if "milvus" not in name:
        return load_index(folder)
    opened.append(MilvusIndex.load(folder))
    return opened[-1]


@pytest.mark.parametrize("name", INDEXES)
def test_indexes(name: str, tmp_path: Path, opened: list[MilvusIndex]) -> None:
    pytest.importorskip("pymilvus" if "milvus" in name else "faiss")
    # A copy, because the engine of Milvus works in the folder.
    place = shutil.copytree(FOLDER / name, tmp_path / "index")
    index = open_index(place, name, opened)
    check_text(stored(index)[0], TEXTS[name])
    inputs = arrays(name, "in")
    wanted = arrays(name, "out")
    check_equal(computed(index, inputs), wanted, name)
    if "milvus" in name:
        return
    again = tmp_path / "again"
    load_index(place).save(again, notes=index.notes)
    loaded = load_index(again)
    check_text(stored(loaded)[0], TEXTS[name])
    check_equal(computed(loaded, inputs), wanted, name)


@pytest.mark.parametrize("name", ["exact-first", "faiss-ivf", "exact-embedded"])
def test_indexes_know_their_divergence(name: str) -> None:
    place = FOLDER / "indexes" / name
    kind = ExactIndex if name.startswith("exact") else FaissIndex
    (model,) = place.glob("model-*")
    assert len(kind.load(place, divergence=askew.load(model))) == TEXTS[f"indexes/{name}"]["len"]
    with pytest.raises(ValueError, match="divergence of load must be the one the index was made with"):
        kind.load(place, divergence=askew.make("log-sum-exp", 3))


# ---------------------------------------------------------------------- commands


def run(*words: object) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    assert not stopped.value.code


def check_hits(path: Path, kind: str) -> None:
    with path.open() as found, (FOLDER / "tables" / f"hits-{kind}.csv").open() as wanted:
        for one, other in zip(csv.DictReader(found), csv.DictReader(wanted), strict=True):
            # Float32 in decimal digits.
            assert float(one.pop("divergence")) == pytest.approx(float(other.pop("divergence")), rel=2e-6, abs=1e-6)
            assert one == other


@pytest.mark.parametrize("kind", ["exact", "faiss"])
def test_indexes_of_the_command(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    table, hits = FOLDER / "tables" / "trees.csv", tmp_path / "hits.csv"
    run("search", FOLDER / "commands" / f"index-{kind}", table, "-k", 3, "--id", "tree", "-o", hits)
    check_hits(hits, kind)


def test_models_of_the_command(tmp_path: Path) -> None:
    table, hits, index = FOLDER / "tables" / "trees.csv", tmp_path / "hits.csv", tmp_path / "index"
    run("index", FOLDER / "commands" / "model", table, "--id", "tree", "--kind", "exact", "-o", index)
    run("search", index, table, "-k", 3, "--id", "tree", "-o", hits)
    check_hits(hits, "exact")


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_training_goes_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(FOLDER / "checkpoints" / f"{name}.safetensors", tmp_path))
    model, settings = training(name, arrays("checkpoints", "in"))
    with torch.no_grad():
        for parameter in model.parameters():  # what training starts with is in the file
            parameter.zero_()
    steps = []
    handle = next(model.parameters()).register_hook(lambda gradient: steps.append(1))
    history = askew.fit(model, checkpoint=path, checkpoint_every=5, **settings)
    handle.remove()
    assert len(steps) == 7
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()
    wanted = arrays(f"checkpoints/{name}", "out")
    # As in a run that nobody stopped. Other processors round otherwise, and steps make more of it.
    np.testing.assert_allclose(weights, wanted["weights"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(history["loss"], wanted["loss"], rtol=1e-7, atol=1e-12)
