"""Files that are whole or absent, and trees of values that come back exactly."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from safetensors.torch import save_file
from torch import Tensor, nn

from askew import io

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def there(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ---------------------------------------------------------------------- atomic_write


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with io.atomic_write(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".")
        assert str(os.getpid()) in temporary.name
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert there(tmp_path) == {"a.txt"}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise error

    with pytest.raises(error), io.atomic_write(target) as temporary:
        fail(temporary)
    assert target.read_text() == "old"
    assert there(tmp_path) == {"a.txt"}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_at_the_end_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "a.txt"
    target.write_text("old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"), io.atomic_write(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "old"
    assert there(tmp_path) == {"a.txt"}


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), io.atomic_write(tmp_path / "a.txt"):
        pass
    assert there(tmp_path) == set()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    with io.atomic_write(tmp_path / "link.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_names_of_any_allowed_length(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 250)
    with io.atomic_write(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    for target, error in ((tmp_path / "none" / "a.txt", FileNotFoundError), (tmp_path / "folder", OSError)):
        (tmp_path / "folder").mkdir(exist_ok=True)
        with (
            pytest.raises(error, match=rf"'{re.escape(str(target))}' could not be written: "),
            io.atomic_write(target) as temporary,
        ):
            temporary.write_text("new")
    assert there(tmp_path) == {"folder"}


# ---------------------------------------------------------------------- files of tensors


def write(path: Path) -> None:
    torch.manual_seed(0)
    io.save_tensors(path, {"a": torch.randn(4, 5), "b": torch.arange(3)}, {"kind": "checkpoint", "note": "n\xfc"})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_come_back_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    matrix = (10 * torch.randn(4, 6)).to(dtype)
    tensors = {
        "matrix": matrix,
        "turned": matrix.T,
        "same": matrix,
        "part": matrix[1:3, ::2],
        "repeated": matrix[:1].expand(3, 6),
        "number": matrix[0, 0],
        "empty": torch.zeros(0, 3, dtype=dtype),
        "parameter": nn.Parameter(matrix.clone(), requires_grad=dtype.is_floating_point),
    }
    io.save_tensors(tmp_path / "a", tensors, {"kind": "test"})
    again, description = io.load_tensors(tmp_path / "a", "test")
    assert description == {"kind": "test", "format": io.FORMAT, "askew": io.version()}
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == dtype
        assert again[name].shape == tensor.shape
        assert torch.equal(again[name], tensor), name


def test_special_values_keep_their_bits(tmp_path: Path) -> None:
    values = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 5e-324], dtype=torch.float64)
    io.save_tensors(tmp_path / "a", {"x": values, "conjugate": torch.ones(2).neg()}, {"kind": "test"})
    again, _ = io.load_tensors(tmp_path / "a", "test")
    assert torch.equal(again["x"].view(torch.int64), values.view(torch.int64))


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a")
    tensors, _ = io.load_tensors(tmp_path / "a", "checkpoint")
    before = tensors["a"].clone()
    with (tmp_path / "a").open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(bytes(100))
    assert torch.equal(tensors["a"], before)


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "b").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"b' must be "):
            io.load_tensors(tmp_path / "b", "checkpoint")


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    for length in (*range(0, len(whole) - 1, 11), len(whole) - 1):
        (tmp_path / "b").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"must be a whole askew file. Got one that is damaged or cut short"):
            io.load_tensors(tmp_path / "b", "checkpoint")


def test_what_is_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path must be an askew file. Got '.*none' instead."):
        io.load_tensors(tmp_path / "none", "checkpoint")
    save_file({"x": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match=r"must be a file written by askew. Got a file of another program"):
        io.load_tensors(tmp_path / "foreign", "checkpoint")
    write(tmp_path / "a")
    with pytest.raises(ValueError, match=r"must be an askew model. Got an askew checkpoint instead"):
        io.load_tensors(tmp_path / "a", "model")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            '{"format": 99, "kind": "checkpoint", "askew": "9.1"}',
            "written by a newer askew (9.1) instead. Install a newer version",
        ),
        ('{"format": "1", "kind": "checkpoint"}', "Got a file of another program"),
        ('{"format": true, "kind": "checkpoint"}', "Got a file of another program"),
        ("[1, 2]", "Got a file of another program"),
        ("{", "its JSON cannot be read"),
        ('{"format": NaN}', "not JSON compliant"),
        ("[" * 100_000, "its JSON cannot be read"),
        ('{"format": 1, "kind": "checkpoint"}', "its checksum does not fit"),
    ],
)
def test_headers_are_checked(tmp_path: Path, header: str, message: str) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "a", metadata={"askew": header})
    with pytest.raises(ValueError, match=re.escape(message)):
        io.load_tensors(tmp_path / "a", "checkpoint")


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    for bad in (torch.ones(2, device="meta"), torch.ones(2).to_sparse()):
        with pytest.raises(TypeError, match=r"tensor 'x' of a file must be a (dense tensor|tensor that holds numbers)"):
            io.save_tensors(tmp_path / "a", {"x": bad}, {"kind": "test"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        io.save_tensors(tmp_path / "a", {}, {"kind": "test", "loss": math.nan})
    assert (tmp_path / "a").read_text() == "old"
    assert there(tmp_path) == {"a"}


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    write(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    monkeypatch.setattr(io.files, "save_file", full)
    with pytest.raises(OSError, match=r"could not be written: .*No space left.*before is untouched"):
        write(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == before
    assert there(tmp_path) == {"a"}


# ---------------------------------------------------------------------- trees


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal with all types, keys in order, and NaN equal to itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(7), b.nan_to_num(7))
    if isinstance(a, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return all(map(same, a.reshape(-1).tolist(), b.reshape(-1).tolist()))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(i, j) and same(a[i], b[j]) for i, j in zip(a, b, strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (float, np.floating)):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


def through_a_file(tree: object, path: Path) -> Any:
    tensors, rest = io.flatten(tree)
    io.save_tensors(path, tensors, {"kind": "tree", "tree": rest})
    tensors, description = io.load_tensors(path, "tree")
    return io.unflatten(tensors, description["tree"])


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.sampled_from([torch.zeros(2), torch.tensor(3), torch.ones(0, 2).bool(), torch.ones(2, 2).bfloat16()]),
    st.sampled_from([np.float64(0.1), np.int32(-3), np.bool_(True), np.str_("a\xe9")]),
    st_numpy.arrays(
        st.sampled_from(["?", "|i1", "<i8", ">i4", "<u2", "<f4", "<f8", ">f8", "<f2", "<U3"]),
        st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    ),
)
keys = st.one_of(st.text(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=75, deadline=None, derandomize=True)
@given(trees)
def test_trees_come_back_exactly(tree: object) -> None:
    tensors, rest = io.flatten(tree)
    again = io.unflatten(tensors, json.loads(json.dumps(rest, allow_nan=False)))
    assert same(again, tree)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(trees)
def test_trees_come_back_exactly_from_a_file(tmp_path_factory: pytest.TempPathFactory, tree: object) -> None:
    assert same(through_a_file(tree, tmp_path_factory.mktemp("tree") / "a"), tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "a/b": torch.ones(2), "a b": torch.zeros(3)},
        {"\ud800": torch.zeros(1), "": "\ud800"},
        {1: "int", "1": "str", 1.5: "float", None: "none"},
        {True: [1, 1.0, True, (), [], {}]},
        np.array(["x", None, 3, 2.5, True], dtype=object),
        np.array([["no", "yes, sir"]]),
        np.array(["a", "", "b\x00c"]),
        np.zeros((0, 2), "<U7"),
        10**100,
    ],
    ids=repr,
)
def test_trees_that_are_easily_confused(tmp_path: Path, tree: object) -> None:
    assert same(through_a_file(tree, tmp_path / "a"), tree)


@pytest.mark.parametrize("kind", ["Adam", "SGD", "AdamW", "RMSprop"])
def test_an_optimizer_continues_exactly(tmp_path: Path, kind: str) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        return model, getattr(torch.optim, kind)(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()

    model, optimizer = make()
    step(model, optimizer)
    state = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a")
    assert set(state["optimizer"]["state"]) <= {0, 1}
    other, other_optimizer = make()
    other.load_state_dict(OrderedDict(state["model"]))
    other_optimizer.load_state_dict(state["optimizer"])
    for _ in range(3):
        step(model, optimizer)
        step(other, other_optimizer)
    assert torch.equal(model.weight, other.weight)


@pytest.mark.parametrize(
    ("tree", "error", "message"),
    [
        ({"a": [len]}, TypeError, "the value at 'a.0' must be one that can be saved. Got builtin_function_or_method"),
        ({(1, 2): 3}, TypeError, "the key of the dict must be a string, a number or None. Got tuple instead."),
        (
            np.ones(2, complex),
            TypeError,
            "the array must be of bool, integers, floats, strings or objects. Got complex",
        ),
        (np.datetime64("2020-01-01"), TypeError, "the array must be of bool, integers"),
        (torch.Size([2]), TypeError, "the value must be one that can be saved. Got Size"),
    ],
)
def test_what_cannot_be_split(tree: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        io.flatten(tree)


def test_what_only_the_caller_knows() -> None:
    def special(value: object) -> object:
        return {"real": value.real, "parts": [value.imag]} if isinstance(value, complex) else None

    tensors, rest = io.flatten([1j, {"a": 2 + 3j}], special)
    assert io.unflatten(tensors, rest, lambda tree: complex(tree["real"], tree["parts"][0])) == [1j, {"a": 2 + 3j}]
    with pytest.raises(ValueError, match="one that askew can have written"):
        io.unflatten(tensors, rest)


TENSORS = {"x": torch.zeros(2), "s": torch.tensor([[2**31 - 1]], dtype=torch.int32), "b": torch.ones(2).bfloat16()}


@pytest.mark.parametrize(
    "rest",
    [
        {},
        {"tuple": 3},
        {"unknown": []},
        {"dict": []},
        {"pairs": [[1]]},
        {"pairs": [[[1], 2]]},
        {"pairs": [[1, 2], [1, 3]]},
        {"float": "1e5"},
        {"tensor": "nowhere"},
        {"tensor": ["x"]},
        {"scalar": 3},
        {"scalar": {"array": "x", "dtype": "<f4"}},
        {"array": "x", "dtype": "<f8"},
        {"array": "x", "dtype": "O"},
        {"array": "x", "dtype": 3},
        {"array": "b", "dtype": "<f2"},
        {"strings": "s"},
        {"strings": "x"},
        {"objects": [1], "shape": [2]},
        {"objects": [], "shape": [0, 10**400]},
        {"objects": [1], "shape": [1.0]},
        {"objects": [1], "shape": [-1]},
        {"objects": 3, "shape": []},
        {"special": {}},
    ],
    ids=repr,
)
def test_hostile_descriptions_are_refused(rest: object) -> None:
    for node in (rest, [rest], {"dict": {"a": rest}}):
        with pytest.raises(ValueError, match=r"must be one (that askew can have written|of those in the file)"):
            io.unflatten(TENSORS, node)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["dict", "pairs", "tuple", "tensor", "array", "dtype", "strings", "objects", "shape", "scalar"]
            ),
            inner,
            max_size=2,
        ),
    ),
    max_leaves=15,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(json_values)
def test_any_json_is_understood_or_refused(rest: object) -> None:
    # Anything else than this kind of error fails the test.
    with contextlib.suppress(ValueError):
        io.unflatten(TENSORS, rest)


def test_json_files(tmp_path: Path) -> None:
    io.files.write_json(tmp_path / "a.json", {"name": "\xe9", "values": [1, 2.5, None]})
    assert io.read_json((tmp_path / "a.json").read_bytes(), "a") == {"name": "\xe9", "values": [1, 2.5, None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        io.files.write_json(tmp_path / "a.json", math.inf)
    assert there(tmp_path) == {"a.json"}


def test_a_file_that_is_removed_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another process does that replaces a model: a reader has to know that it may look again."""
    path = tmp_path / "a.safetensors"
    io.save_tensors(path, {"a": torch.zeros(2)}, {"kind": "test"})

    def late(*arguments: object, **options: object) -> None:
        path.unlink()
        torch.UntypedStorage.from_file(str(path), False, 8)

    monkeypatch.setattr(io.files, "safe_open", late)
    with pytest.raises(FileNotFoundError, match="path must be an askew file"):
        io.load_tensors(path, "test")
