"""Indexes in folders: what was saved comes back, and nothing else does."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from askew import io
from askew.divergences import Bregman, Embedded, make
from askew.potentials import FromFunction
from askew.search import ExactIndex, FaissIndex, engines

pytest.importorskip("faiss")

DIM = 5
AnyIndex = ExactIndex | FaissIndex
CASES = ["exact", "exact-pairs", "flat", "ivf", "hnsw", "ivf-pq"]


def data(count: int, seed: int = 0) -> Any:
    return np.exp(np.random.default_rng(seed).normal(size=(count, DIM))).astype(np.float32)


ITEMS, QUERIES = data(400), data(20, 1)


def new(case: str, direction: str = "query-first", seed: int = 0) -> AnyIndex:
    torch.manual_seed(seed)
    name = "iqe" if case == "exact-pairs" else "mahalanobis"
    divergence = make(name, DIM)
    return ExactIndex(divergence, direction) if case.startswith("exact") else FaissIndex(divergence, direction, case)


def filled(case: str = "exact", direction: str = "query-first", seed: int = 0, count: int = 400) -> AnyIndex:
    index = new(case, direction, seed)
    index.add(ITEMS[:count], 10 * np.arange(count))
    return index


def assert_same(one: AnyIndex, other: AnyIndex, k: int = 5) -> None:
    assert len(one) == len(other)
    assert one.direction == other.direction
    for a, b in zip(one.search(QUERIES, k), other.search(QUERIES, k), strict=True):
        np.testing.assert_array_equal(a, b)


def there(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def parts(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "index.json").read_text())["parts"]
    return found


# ---------------------------------------------------------------------- there and back


@pytest.mark.parametrize("direction", ["query-first", "query-second"])
@pytest.mark.parametrize("case", CASES)
def test_round_trip(case: str, direction: str, tmp_path: Path) -> None:
    index = filled(case, direction)
    index.remove(10 * np.arange(3))
    if isinstance(index, FaissIndex):
        index.effort += 1
    index.save(tmp_path / "a" / "b")
    again = type(index).load(tmp_path / "a" / "b")
    assert_same(again, index)
    index.add(ITEMS[:1])
    again.add(ITEMS[:1])
    assert index.search(ITEMS[:1], 1)[1] == again.search(ITEMS[:1], 1)[1] == 3991
    if isinstance(index, FaissIndex) and isinstance(again, FaissIndex):
        assert (again.kind, again.effort, again.recall_target) == (index.kind, index.effort, index.recall_target)


@pytest.mark.parametrize("case", ["exact", "flat", "hnsw"])
def test_what_is_loaded_goes_on(case: str, tmp_path: Path) -> None:
    filled(case).save(tmp_path)
    index, fresh = type(filled(case)).load(tmp_path), new(case)
    index.add(data(1000, 5), np.arange(10_000, 11_000))
    index.remove(10 * np.arange(300))
    fresh.add(ITEMS[300:], 10 * np.arange(300, 400))
    fresh.add(data(1000, 5), np.arange(10_000, 11_000))
    values, ids = index.search(QUERIES, 5)
    wanted, wanted_ids = fresh.search(QUERIES, 5)
    assert (ids == wanted_ids).mean() > 0.9
    np.testing.assert_allclose(values[ids == wanted_ids], wanted[ids == wanted_ids], rtol=1e-5)


def test_encoders_and_double_precision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Embedded(nn.Sequential(nn.Linear(DIM, 3), nn.Tanh()), make("nbd", 3)).double()
    for index in (ExactIndex(model), FaissIndex(model, kind="flat"), FaissIndex(model, kind="ivf")):
        index.add(ITEMS)
        index.save(tmp_path)
        again = type(index).load(tmp_path, divergence=model)
        assert_same(again, index)
        assert again.search(QUERIES, 1)[0].dtype == np.float64


class OwnEncoder(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((DIM,), factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def test_encoder_of_an_own_class(tmp_path: Path) -> None:
    index = ExactIndex(Embedded(OwnEncoder(2.0), make("nbd", DIM)))
    index.add(ITEMS)
    index.save(tmp_path)
    assert_same(ExactIndex.load(tmp_path, encoder=OwnEncoder(0.0)), index)
    with pytest.raises(ValueError, match="OwnEncoder"):
        ExactIndex.load(tmp_path)


@pytest.mark.parametrize("kind", [ExactIndex, FaissIndex])
def test_empty_indexes(kind: type[AnyIndex], tmp_path: Path) -> None:
    kind("kl", "query-second").save(tmp_path)
    for index in (kind.load(tmp_path), kind.load(tmp_path, divergence="kl")):
        assert len(index) == 0
        assert index.direction == "query-second"
        index.add(ITEMS)
        assert index.search(ITEMS[:1], 1)[1] == 0
    with pytest.raises(ValueError, match="divergence of load must be the one the index was made with"):
        kind.load(tmp_path, divergence="itakura-saito")
    index.remove(np.arange(400))
    index.save(tmp_path)
    again = kind.load(tmp_path)
    assert len(again) == 0
    again.add(ITEMS[:2])
    assert list(again.search(ITEMS[:2], 1)[1][:, 0]) == [400, 401]


def test_kinds_that_change_still_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "IVF_FROM", 500)
    index = FaissIndex("kl", recall_target=0.9)
    index.add(ITEMS)
    index.save(tmp_path)
    again = FaissIndex.load(tmp_path)
    again.add(data(200, 3))
    assert (index.kind, again.kind, again.recall_target) == ("flat", "ivf", 0.9)


# ---------------------------------------------------------------------- items stay in their file


def test_mapped_tensors(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    io.save_tensors(file, {"x": torch.arange(100_000.0), "empty": torch.empty(0, 3)}, {"kind": "items"})
    copied, _ = io.load_tensors(file, "items")
    mapped, description = io.load_tensors(file, "items", mapped=True)
    assert description["kind"] == "items"
    torch.testing.assert_close(mapped["x"], copied["x"])
    assert mapped["empty"].shape == (0, 3)
    if sys.platform == "linux":
        assert str(file) in Path("/proc/self/maps").read_text()
    # Writing changes neither the file nor another reader; replacing or removing the file changes nothing here.
    before = file.read_bytes()
    mapped["x"][0] = -1
    assert file.read_bytes() == before
    io.save_tensors(file, {"x": torch.zeros(3)}, {"kind": "items"})
    file.unlink()
    assert mapped["x"][-1] == 99_999
    del mapped


def test_mapped_tensors_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    io.save_tensors(file, {"x": torch.arange(1000.0)}, {"kind": "items"})
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="its checksum does not fit"):
        io.load_tensors(file, "items", mapped=True)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel what is mapped")
@pytest.mark.parametrize("kind", [ExactIndex, FaissIndex])
def test_items_are_mapped(kind: type[AnyIndex], tmp_path: Path) -> None:
    index = kind("kl")
    index.add(ITEMS)
    index.save(tmp_path)
    name = parts(tmp_path)["items"]
    again = kind.load(tmp_path)
    assert name in Path("/proc/self/maps").read_text()
    assert_same(again, index)
    again.add(ITEMS[:1])  # takes memory of its own
    assert_same(again, again)
    assert index.search(ITEMS[:1], 1)[1] == 0


@pytest.mark.parametrize("case", CASES)
def test_save_over_the_folder_it_was_loaded_from(case: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "items-0123456789abcdef.safetensors").write_text("not of this index")
    index = filled(case)
    index.save(tmp_path)
    loaded = type(index).load(tmp_path)
    loaded.save(tmp_path)  # the same items under the same name, while they are mapped
    assert_same(loaded, index)
    assert_same(type(index).load(tmp_path), index)
    before = there(tmp_path)
    changed = type(index).load(tmp_path)
    changed.remove(10 * np.arange(5))
    changed.add(data(5, 9))
    changed.save(tmp_path)
    assert_same(loaded, index)
    assert_same(type(index).load(tmp_path), changed)
    after = there(tmp_path)
    assert len(after) == len(before)
    assert after == {"index.json", "notes.txt", "items-0123456789abcdef.safetensors", *parts(tmp_path).values()}


def test_another_index_in_the_same_folder(tmp_path: Path) -> None:
    filled("hnsw").save(tmp_path)
    index = filled("exact", seed=1)
    index.save(tmp_path)
    assert there(tmp_path) == {"index.json", *parts(tmp_path).values()}
    assert len(there(tmp_path)) == 3
    assert_same(ExactIndex.load(tmp_path), index)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("content", ["{}", '{"name": "a web page"}', "[1, 2]", "no JSON", ""])
def test_a_file_of_another_program(content: str, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(
        ValueError, match=r"folder must be without index.json, or with one that askew wrote.*Choose ano"
    ):
        filled().save(tmp_path)
    assert there(tmp_path) == {"index.json"}
    assert (tmp_path / "index.json").read_text() == content
    with pytest.raises(ValueError, match=r"must be (a file written by askew|a whole askew file)"):
        ExactIndex.load(tmp_path)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, truncate, empty])
@pytest.mark.parametrize("part", ["index", "items", "engine", "model.json", "weights"])
def test_damage(part: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    filled("ivf").save(tmp_path)
    model = tmp_path / parts(tmp_path)["model"]
    path = {
        "index": tmp_path / "index.json",
        "items": tmp_path / parts(tmp_path)["items"],
        "engine": tmp_path / parts(tmp_path)["engine"],
        "model.json": model / "model.json",
        "weights": next(model.glob("*.safetensors")),
    }[part]
    damage(path)
    with pytest.raises(ValueError, match=r"damaged|another program|written by askew"):
        FaissIndex.load(tmp_path)


@pytest.mark.parametrize("part", ["items", "engine", "model"])
def test_a_missing_part(part: str, tmp_path: Path) -> None:
    filled("ivf").save(tmp_path)
    name = parts(tmp_path)[part]
    path = tmp_path / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=f"damaged or cut short .{name!r} is missing"):
        FaissIndex.load(tmp_path)


def test_no_index(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=r"folder must be one that ExactIndex.save wrote, with its index"):
            ExactIndex.load(folder)


def test_another_class(tmp_path: Path) -> None:
    filled("flat").save(tmp_path)
    with pytest.raises(ValueError, match=r"an index of ExactIndex. Got one of FaissIndex.*search.FaissIndex.load"):
        ExactIndex.load(tmp_path)
    filled("exact").save(tmp_path)
    with pytest.raises(ValueError, match=r"an index of FaissIndex. Got one of ExactIndex"):
        FaissIndex.load(tmp_path)


@pytest.mark.parametrize("kind", [ExactIndex, FaissIndex])
def test_another_divergence(kind: type[AnyIndex], tmp_path: Path) -> None:
    torch.manual_seed(0)
    right, other = make("nbd", DIM), make("nbd", DIM)
    index = kind(right)
    index.add(ITEMS)
    index.save(tmp_path)
    assert_same(kind.load(tmp_path, divergence=right), index)
    for wrong in (other, make("nbd", DIM + 1), make("kl", DIM), "kl", right.double(), Embedded(nn.Identity(), right)):
        with pytest.raises(ValueError, match=r"divergence of load must be the one the index was made with.*make a new"):
            kind.load(tmp_path, divergence=wrong)


@pytest.mark.parametrize("kind", [ExactIndex, FaissIndex])
def test_a_name_is_a_divergence_too(kind: type[AnyIndex], tmp_path: Path) -> None:
    index = kind("kl")
    index.add(ITEMS)
    index.save(tmp_path)
    for right in ("kl", make("kl", DIM)):
        assert_same(kind.load(tmp_path, divergence=right), index)
    for wrong in ("itakura-saito", make("kl", DIM + 1)):
        with pytest.raises(ValueError, match="divergence of load must be the one"):
            kind.load(tmp_path, divergence=wrong)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the description and make its checksum fit, as somebody else would who means harm."""
    path = folder / "index.json"
    description = json.loads(path.read_text())
    del description["checksum"]
    change(description)
    path.write_text(json.dumps(description | {"checksum": io.checksum(description)}))


def take_parts_of(other: Path, *names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        theirs = json.loads((other / "index.json").read_text())
        for name in names:
            part = theirs["parts"][name]
            (shutil.copytree if (other / part).is_dir() else shutil.copy)(other / part, folder / part)

            def put(description: dict[str, Any], name: str = name, part: str = part) -> None:
                description["parts"][name] = part
                if name == "engine":
                    description["own"]["engine"] = theirs["own"]["engine"]

            rewrite(folder, put)

    return change


def test_parts_of_other_indexes(tmp_path: Path) -> None:
    mine, others = tmp_path / "mine", tmp_path / "others"
    filled("ivf").save(mine)

    def check(other: AnyIndex, name: str, match: str) -> None:
        folder = tmp_path / "copy"
        for place in (folder, others):
            shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(mine, folder)
        other.save(others)
        take_parts_of(others, name)(folder)
        with pytest.raises(ValueError, match=match):
            FaissIndex.load(folder)

    other_dim = FaissIndex(make("nbd", DIM + 8), kind="ivf")
    other_dim.add(np.ones((400, DIM + 8)))
    check(other_dim, "items", r"items of .* must be of dim 5, as the divergence. Got of dim 13")
    check(other_dim, "engine", "number of features of the FAISS index")
    check(other_dim, "model", "its model belongs to another index")
    check(filled("ivf", count=399), "items", "number of vectors of the FAISS index")
    check(filled("ivf", count=399), "engine", "number of vectors of the FAISS index")
    check(filled("hnsw"), "engine", "class of the FAISS index .* must be IndexIVFScalarQuantizer. Got IndexHNSWSQ")
    check(filled("ivf", seed=1), "model", "its model belongs to another index")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d["parts"].update(items="../items-0123456789abcdef.safetensors"), "parts of it are missing"),
        (lambda d: d["parts"].update(items="/etc/passwd"), "parts of it are missing"),
        (lambda d: d["own"]["engine"].update(file="../x"), "the name of its FAISS file is wrong"),
        (lambda d: d["own"]["engine"].update(sha256="0"), "its checksum does not fit"),
        (lambda d: d["own"].pop("engine"), "its settings are incomplete"),
        (lambda d: d.pop("next_id"), "its items are not as they were written"),
        (lambda d: d.pop("parts"), "parts of it are missing"),
        (lambda d: d.update(direction="query-third"), "direction of FaissIndex must be one of"),
        (lambda d: d["settings"].update(kind="best"), "its settings are incomplete"),
        (lambda d: d["settings"].update(effort=0), "its settings are incomplete"),
        (lambda d: d["settings"].update(reduction=3), "its settings are incomplete"),
        (lambda d: d["settings"]["reduction"].update(centre=[0.0]), "its settings are incomplete"),
        (lambda d: d.update(format=99), "Install a newer version of askew"),
        (lambda d: d.update(kind="model"), "must be an askew index. Got an askew model"),
    ],
)
def test_a_description_with_other_values(change: Callable[[dict[str, Any]], None], match: str, tmp_path: Path) -> None:
    filled("ivf").save(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(ValueError, match=match):
        FaissIndex.load(tmp_path)


# ---------------------------------------------------------------------- folders that cannot be written


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    index = filled("flat")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(OSError, match=r"folder must be one that can be written to. Got .*file.*untouched"):
            index.save(folder)
    assert (tmp_path / "file").read_text() == "mine"
    assert_same(index, filled("flat"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody may write to")
def test_a_folder_nobody_may_write_to() -> None:
    with pytest.raises(OSError, match="folder must be one that can be written to"):
        filled("flat").save("/proc/self/index")


@pytest.mark.parametrize("case", ["exact", "ivf"])
def test_a_full_disk(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever file does not fit any more, the old index stays, and no part of the new one."""
    old = filled(case)
    old.save(tmp_path)
    before = there(tmp_path)
    index = filled(case, seed=1)
    index.remove([0, 10])
    files = 4 if case == "exact" else 6
    original, calls = os.replace, iter(())

    def replace(*arguments: Any) -> None:
        if next(calls):
            raise OSError(errno.ENOSPC, "No space left on device")
        original(*arguments)

    monkeypatch.setattr(os, "replace", replace)
    for number in range(files):
        calls = iter([False] * number + [True])
        with pytest.raises(OSError, match=r"No space left.*What was there before is untouched"):
            index.save(tmp_path)
        assert there(tmp_path) == before
        assert_same(type(old).load(tmp_path), old)
    calls = iter([False] * files)
    index.save(tmp_path)
    assert_same(type(old).load(tmp_path), index)


def test_a_full_disk_for_faiss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled("ivf")

    def fail(*arguments: Any) -> None:
        raise RuntimeError("write error in fwrite: No space left on device\nmore")

    index.save(tmp_path)
    index.add(ITEMS[:1])
    with monkeypatch.context() as patch:
        patch.setattr("faiss.write_index", fail)
        with pytest.raises(OSError, match=r"FAISS could not write it: write error in fwrite: No space left on device"):
            index.save(tmp_path)
    assert there(tmp_path) == {"index.json", *parts(tmp_path).values()}
    assert len(FaissIndex.load(tmp_path)) == 400


def test_a_model_that_cannot_be_saved(tmp_path: Path) -> None:
    index = ExactIndex(Bregman(FromFunction(lambda x: x.square().sum(-1), DIM)))
    index.add(ITEMS[:10])
    with pytest.raises((TypeError, ValueError), match="function"):
        index.save(tmp_path / "index")
    assert not (tmp_path / "index" / "index.json").exists()
    assert len(index.search(QUERIES, 2)[1]) == len(QUERIES)


OTHER_PROCESS = """
import os, random, signal, sys, time
import numpy as np
from askew.search import FaissIndex
given, folder, tries = sys.argv[1], sys.argv[1] + "/killed", int(sys.argv[2])
values, ids = FaissIndex.load(given + "/index").search(np.load(given + "/queries.npy"), 5)
np.savez(given + "/found.npz", values=values, ids=ids)
items = np.random.default_rng(0).uniform(1, 2, size=(3000, 4)).astype(np.float32)
indexes = []
for count in (2000, 3000):
    indexes.append(FaissIndex("kl", kind="flat"))
    indexes[-1].add(items[:count])
indexes[0].save(folder)
random.seed(0)
for _ in range(tries):
    child = os.fork()
    if child == 0:
        while True:
            for index in indexes:
                index.save(folder)
    time.sleep(random.uniform(0.01, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    index = FaissIndex.load(folder)
    values, ids = index.search(items[:50], 1)
    assert (ids[:, 0] == np.arange(50)).all()
    print(len(index))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_another_process(tmp_path: Path) -> None:
    """Another process finds the same; killed at any moment of saving, it leaves the old index or the new one."""
    index = filled("ivf")
    index.save(tmp_path / "index")
    np.save(tmp_path / "queries.npy", QUERIES)
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path), "6"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    values, ids = index.search(QUERIES, 5)
    np.testing.assert_array_equal(found["ids"], ids)
    np.testing.assert_allclose(found["values"], values, rtol=1e-6)
    lengths = done.stdout.split()
    assert len(lengths) == 6
    assert set(lengths) <= {"2000", "3000"}
