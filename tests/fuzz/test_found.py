"""What fuzzing found: each of these was once another error than words, a wrong answer, or memory taken for nothing."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import math
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from askew_paper.data import read_tntp
from askew_paper.data.images import read_pickled
from askew_paper.experiment import Cell
from askew_paper.rows import Row

import askew
from askew import io as askew_io
from askew.cli.tables import read_frame
from askew.clustering.lloyd import total
from askew.estimators import Columns
from askew.io import Rows


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# ---------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    "shape",
    ["(0, 1000000000000)", "(1099511627776,)", "(True,)", "(-1, 2)", "(9223372036854775807, 2)", "(200000000,)"],
)
def test_array_that_declares_other_bytes_than_it_has(tmp_path: Path, shape: str) -> None:
    content = npy(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}", bytes(16))
    with pytest.raises(ValueError, match=r"TABLE .* must be a table as \.npy files have it"):
        read_frame(write(tmp_path / "a.npy", content))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(ValueError, match=r"TABLE .* must be a table as \.npz files have it"):
        read_frame(tmp_path / "a.npz")


def test_archive_under_the_name_of_an_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(ValueError, match="it is no array of numpy"):
        read_frame(tmp_path / "a.npy")


def test_archive_of_something_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("notes.txt", "text")
    with pytest.raises(ValueError, match="it is no whole archive of arrays"):
        read_frame(tmp_path / "a.npz")


def test_strings_without_room(tmp_path: Path) -> None:
    """An array of strings of no length takes no bytes, however many there are."""
    content = npy("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,), }")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(ValueError, match="TABLE"):
        read_frame(tmp_path / "a.npz")


def test_archive_that_says_it_unpacks_to_the_machine(tmp_path: Path) -> None:
    """One stretch of compressed zeros, named by many members: small to store, endless to unpack."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "a.npy", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4000000,), }", bytes(4000000))
        )
        entry = archive.infolist()[0]
        for number in range(300):
            copy = zipfile.ZipInfo(f"a{number}.npy")
            for name in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
                setattr(copy, name, getattr(entry, name))
            archive.filelist.append(copy)
            archive.NameToInfo[copy.filename] = copy
        archive._didModify = True
    with pytest.raises(ValueError, match="say they unpack to"):
        read_frame(write(tmp_path / "a.npz", file.getvalue()))


def test_archive_compressed_in_another_way(tmp_path: Path) -> None:
    """What it declares is all that is unpacked, and no more than deflate would have saved."""
    for size, refused in ((2, False), (1 << 24, True)):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_BZIP2) as archive:
            content = npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}", bytes(size))
            archive.writestr("a.npy", content)
        with pytest.raises(ValueError, match="say they unpack to") if refused else contextlib.nullcontext():
            assert len(read_frame(tmp_path / "a.npz")) == size


# ---------------------------------------------------------------------- Parquet


def test_parquet_of_one_value_over_and_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    pandas.DataFrame({"a": np.zeros(2_000_000), "b": np.zeros(2_000_000)}).to_parquet(tmp_path / "a.parquet")
    monkeypatch.setattr("askew.io.arrays.MOST_VALUES", 1000)
    monkeypatch.setattr("askew.io.arrays.DEFLATE", 1)
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    with pytest.raises(ValueError, match="bytes that say they are 4000000 values"):
        read_frame(tmp_path / "a.parquet")


def test_parquet_of_one_long_text_over_and_over(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    numbers = pyarrow.array(np.zeros(100_000, np.int32))
    column = pyarrow.DictionaryArray.from_arrays(numbers, pyarrow.array(["x" * 20_000]))
    table = pyarrow.table({"a": column})
    parquet.write_table(table, tmp_path / "a.parquet", store_schema=False, dictionary_pagesize_limit=1 << 30)
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    with pytest.raises(ValueError, match="say they are 2000000000 bytes of text"):
        read_frame(tmp_path / "a.parquet")


@pytest.mark.parametrize("kind", ["large_string", "large_binary", "string_view", "fixed", "dictionary"])
def test_parquet_of_one_long_text_of_any_kind(tmp_path: Path, kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    text = "x" * (1 << 20)
    if kind == "dictionary":
        rows = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(30, np.int32)), pyarrow.array([text]))
    else:
        make = pyarrow.binary(1 << 20) if kind == "fixed" else getattr(pyarrow, kind)()
        rows = pyarrow.array([text if "string" in kind else text.encode()] * 30, make)
    table, file = pyarrow.table({"a": rows}), tmp_path / "a.parquet"
    try:
        writer = parquet.ParquetWriter(file, table.schema, compression="zstd", dictionary_pagesize_limit=1 << 30)
    except pyarrow.ArrowNotImplementedError:
        pytest.skip(f"this version of pyarrow writes no {kind}")
    with writer:
        for _ in range(10):
            writer.write_table(table)
    assert file.stat().st_size < 20_000
    with pytest.raises(ValueError, match="say they are 314572800 bytes of text"):
        read_frame(file)


def test_parquet_that_declares_fewer_rows_than_its_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    pandas.DataFrame({"a": np.zeros(2_000_000)}).to_parquet(file)
    content = file.read_bytes()
    # Numbers are written in sevens of bits; the first that says how many rows there are is that of the whole file.
    said = [number * 2 for number in (2_000_000, 1)]
    true, false = (bytes((n & 127 | 128, n >> 7 & 127 | 128, n >> 14 & 127 | 128, n >> 21)) for n in said)
    footer = len(content) - 8 - struct.unpack("<I", content[-8:-4])[0]
    file.write_bytes(content[:footer] + content[footer:].replace(true, false, 1))
    assert parquet.ParquetFile(file).metadata.num_rows == 1
    monkeypatch.setattr("askew.io.arrays.MOST_VALUES", 1000)
    monkeypatch.setattr("askew.io.arrays.DEFLATE", 1)
    with pytest.raises(ValueError, match="bytes that say they are 2000000 values"):
        read_frame(file)


def test_rows_of_a_group_of_one_value_over_and_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    file = tmp_path / "a.parquet"
    pandas.DataFrame({"a": np.zeros(200_000), "b": np.zeros(200_000)}).to_parquet(file, row_group_size=100_000)
    monkeypatch.setattr("askew.io.arrays.MOST_VALUES", 100_000)
    monkeypatch.setattr("askew.io.arrays.DEFLATE", 1)
    with pytest.raises(ValueError, match=r"whole Parquet file.*bytes that say they are 200000 values"):
        Rows(file)
    assert Rows(file, "a").read(150_000, 150_001).tolist() == [0]


def test_columns_of_lists_are_left_out() -> None:
    table = pandas.DataFrame({"a": [1.0, 2.0, 4.0], "list": [np.array([1]), np.array([2, 3]), None]})
    columns = Columns().fit(table)
    assert columns.get_feature_names_out().tolist() == ["a"]
    assert "list: left out: its values have parts" in columns.notes_


# ---------------------------------------------------------------------- published files


@pytest.mark.parametrize(
    "content",
    [b"\x80\x02.", b"\x80\x02h\x05.", b"\x80\x02e.", b"\x80\x02X\x01\x00\x00\x00\xff.", b"", b"\x80\x02K\x01"],
)
def test_pickles_that_end_too_early(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"a pickle.* must be .* Got .* instead"):
        read_pickled(content)


def test_one_long_cell_does_not_make_all_long(tmp_path: Path) -> None:
    """As an array of text, 2000 links of which one has a long number would take 2000 x 3 x 4 MB."""
    rows = [f"{i + 1} {i + 2} 1 1 1 ;" for i in range(2000)]
    rows[7] = f"8 9 1 1 {'0' * 1_000_000}2 ;"
    tags = "<NUMBER OF NODES> 2001\n<NUMBER OF LINKS> 2000\n<END OF METADATA>\n"
    network = read_tntp(write(tmp_path / "x_net.tntp", (tags + "\n".join(rows)).encode()))
    assert network.times[7] == 2
    assert network.times.sum() == 2001


# ---------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    ("text", "words"), [("[1e999]", "not JSON compliant"), ("[" * 300 + "]" * 300, "levels"), ("[" * 90000, "JSON")]
)
def test_json_that_nothing_else_can_hold(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        askew_io.read_json(text, "'x'")


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 10**400},
        {"scores": {"mae": 10**400}},
        {"seconds": True},
        {"chosen": "deep"},
    ],
)
def test_rows_with_numbers_that_are_none(change: dict[str, Any]) -> None:
    row = Row(Cell("sums", "small", "exact", 0, "quick"), {"mae": 0.5}, 1.25, "2023-01-01T00:00:00Z")
    with pytest.raises(ValueError, match=r"is no finite number|wrong kind"):
        Row.from_line(json.dumps(json.loads(row.to_line()) | change).encode())


# ---------------------------------------------------------------------- checkpoints


def resume(path: Path) -> askew.training.History:
    torch.manual_seed(0)
    x, y = torch.rand(2, 8, 2)
    loss = askew.losses.Regression()
    model = askew.make("mahalanobis", 2)
    return askew.fit(model, (x, y, (x - y).square().sum(-1)), loss, steps=4, batch_size=4, seed=0, checkpoint=path)


def change(path: Path, forgery: Any) -> None:
    tensors, description = askew_io.load_tensors(path, "checkpoint")
    tree = askew_io.unflatten(tensors, description["tree"])
    forgery(tree)
    tensors, rest = askew_io.flatten(tree)
    askew_io.save_tensors(path, tensors, {"kind": "checkpoint", "tree": rest})


def spoiled(tree: Any) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(tensor, torch.inf) for name, tensor in tree["model"].items()}


@pytest.mark.parametrize(
    ("forgery", "words"),
    [
        (lambda tree: tree.pop("counters"), "parts of it are missing"),
        (lambda tree: tree["counters"].pop("step"), "its counters are those of another program"),
        (lambda tree: tree["counters"].update(step="x"), "its counters are those of another program"),
        (lambda tree: tree["counters"].update(step=-1), "its steps are not those of this run"),
        (lambda tree: tree["counters"].update(step=5), "its steps are not those of this run"),
        (lambda tree: tree.update(best={}), "of the same model and optimiser"),
        (lambda tree: tree["random"].pop("cpu"), "of the same model and optimiser"),
        (lambda tree: tree["epoch_random"].update(cpu=torch.zeros(3)), "of the same model and optimiser"),
        (lambda tree: tree.update(others=3), "of the same model and optimiser"),
        (lambda tree: tree["optimizer"].pop("state"), "of the same model and optimiser"),
        (lambda tree: tree["optimizer"]["state"][0].update(exp_avg=torch.zeros(9)), "exp_avg has another shape"),
        (lambda tree: tree["optimizer"]["param_groups"][0].update(betas="x"), "its betas is of another kind"),
        (lambda tree: tree["model"].clear(), "of the same model and optimiser"),
        (lambda tree: tree["model"].update(spoiled(tree)), "its weights are NaN or infinite"),
        (lambda tree: tree.update(best=spoiled(tree)), "its weights are NaN or infinite"),
    ],
)
def test_forged_checkpoints_are_refused(tmp_path: Path, forgery: Any, words: str) -> None:
    path = tmp_path / "run.safetensors"
    resume(path)
    change(path, forgery)
    with pytest.raises(ValueError, match=words):
        resume(path)


def test_checkpoint_of_an_older_askew(tmp_path: Path) -> None:
    """It has the random state of the first process only."""
    path = tmp_path / "run.safetensors"
    whole = resume(path)
    change(path, lambda tree: tree.pop("others"))
    assert resume(path) == whole


# ---------------------------------------------------------------------- pages


@pytest.mark.parametrize("name", ["a\ud800b", "a\x00b"])
def test_pages_of_signs_that_no_text_holds(tmp_path: Path, name: str) -> None:
    page = askew.explorer.write_explorer(askew.make("kl", 2), tmp_path / "a.html", title=name)
    assert "<title>a\ufffdb</title>" in page.read_text("utf-8")
    askew_io.write_text(tmp_path / "b.html", name)
    assert (tmp_path / "b.html").read_text("utf-8") == "a\ufffdb"


# ---------------------------------------------------------------------- numbers


@pytest.mark.parametrize("name", ["nbd", "power", "bregman-gs", "widenorm"])
def test_float32_that_overflows_on_the_way(name: str) -> None:
    """A square of a square is beyond float32 from 4e9 on, though the value itself is not."""
    torch.manual_seed(0)
    divergence = askew.make(name, 2).requires_grad_(False)
    sizes = torch.tensor([1e9, 1e10, 1e18, 1e25, 3e38])[:, None]
    x, y = sizes * torch.tensor([1.0, 1.0]), sizes * torch.tensor([1.0, 0.5])
    values = divergence(x, y)
    assert (values > 0).all()  # also no NaN
    assert (divergence(x, x.clone()) == 0).all()
    truth = copy.deepcopy(divergence).double()(x.double(), y.double())
    fits = truth < 1e38
    assert fits[:2].all()
    torch.testing.assert_close(values[fits].double(), truth[fits], rtol=1e-3, atol=0.0)
    torch.testing.assert_close(divergence(x[1], y[1]), values[1])


def test_exponentials_of_the_same_point_twice() -> None:
    divergence = askew.make("exponential", 2)
    x = torch.tensor([[1000.0, 1.0], [3e38, 2.0]])
    assert divergence(x, x.clone()).tolist() == [0.0, 0.0]
    assert divergence.pairwise(x, x).diagonal().tolist() == [0.0, 0.0]
    assert divergence(x, x + torch.tensor([0.0, 1.0])).tolist() == pytest.approx([math.e, math.e**2])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (struct.pack("<Q", 8), struct.pack("<Q", 1 << 36), "damaged or cut short"),  # numbers of the centre
        (struct.pack("<2q", 7, 8), struct.pack("<2q", 7, 7), "its lists do not have every row once"),
        (b"IwSq", b"null", "it holds no index"),
    ],
)
def test_faiss_part_that_declares_more_than_there_is(tmp_path: Path, old: bytes, new: bytes, words: str) -> None:
    pytest.importorskip("faiss")
    index = askew.search.FaissIndex("euclidean", kind="ivf")
    index.add(np.random.default_rng(0).random((9, 2)).astype(np.float32))
    index.save(tmp_path)
    (file,) = tmp_path.glob("faiss-*.index")
    content = bytearray(file.read_bytes())
    place = content.index(old)
    content[place : place + len(new)] = new
    file.write_bytes(bytes(content))
    description = json.loads((tmp_path / "index.json").read_bytes())
    description.pop("checksum")
    description["own"]["engine"]["sha256"] = hashlib.sha256(content).hexdigest()
    description["checksum"] = askew_io.checksum(description)
    (tmp_path / "index.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match=words):
        askew.search.FaissIndex.load(tmp_path)


@pytest.mark.parametrize("name", ["nbd", "exponential", "euclidean", "mahalanobis", "mrn", "bregman-gs"])
def test_one_huge_point_does_not_spoil_others(name: str) -> None:
    torch.manual_seed(0)
    divergence = askew.make(name, 2).requires_grad_(False)
    points = torch.rand(20, 2)
    points[3] = 3e38
    matrix = divergence.pairwise(points, points)
    truth = divergence(points[:, None], points[None])
    others = torch.arange(20) != 3
    torch.testing.assert_close(matrix[others][:, others], truth[others][:, others], rtol=5e-3, atol=1e-6)
    assert matrix[3, 3] == 0


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (3, 3)])
def test_arrays_that_run_backwards(shape: tuple[int, int]) -> None:
    """An array of one row or column counts as contiguous, whatever its strides are."""
    points = (np.arange(np.prod(shape)).reshape(shape) + 1.0)[::-1, ::-1]
    index = askew.search.ExactIndex("euclidean")
    index.add(points)
    assert index.search(points, 1)[0].max() == 0
    assert askew.BregmanKMeans(1, random_state=0).fit(points).inertia_ >= 0
    targets = np.ones(shape[0])[::-1]
    history = askew.fit(
        askew.make("mahalanobis", shape[1]), (points, points, targets), askew.losses.Regression(), steps=1
    )
    assert history.stopped == "finished"


def test_bfloat16_in_estimators() -> None:
    points = torch.tensor([[1.0], [2.0], [9.0]], dtype=torch.bfloat16)
    model = askew.BregmanKMeans(2, random_state=0).fit(points)
    assert sorted(model.cluster_centers_.ravel()) == [1.5, 9.0]
    assert (model.predict(points) == model.labels_).all()
    learner = askew.DivergenceLearner("euclidean", encoder=None).fit(points.repeat(2, 1), [0, 0, 1, 0, 0, 1])
    assert learner.score(points, [0, 0, 1]) == 1


@pytest.mark.filterwarnings("ignore:Sparse .*beta state")
@pytest.mark.parametrize(
    ("hide", "words"),
    [
        (lambda X: np.ma.masked_greater(X, 900), "without masked entries. Got 1 of 12 masked instead. Fill them"),
        (lambda X: torch.from_numpy(X).to_sparse(), "dense tensor. Got a sparse tensor, torch.sparse_coo instead"),
        (lambda X: torch.from_numpy(X).to_sparse_csr(), "dense tensor. Got a sparse tensor, torch.sparse_csr instead"),
        (lambda X: torch.from_numpy(X).to("meta"), "a tensor that holds numbers. Got one on the device meta instead"),
    ],
)
def test_numbers_that_are_not_all_there(hide: Any, words: str) -> None:
    """A mask was dropped, so that what is under it counted; other tensors ended in an error of torch's."""
    good = np.random.default_rng(0).normal(size=(6, 2))
    bad = good.copy()
    bad[3, 1] = 999.0
    X, y = hide(bad), [0, 0, 0, 1, 1, 1]
    index = askew.search.ExactIndex("euclidean")
    index.add(good)
    clustering, mixture = askew.BregmanKMeans(1).fit(good), askew.BregmanMixture(1).fit(good)
    learner = askew.DivergenceLearner("euclidean", encoder=None).fit(good, y)
    classifier = askew.DivergenceNeighborsClassifier(learner).fit(good, y)
    pairs = askew.PairRegressor("euclidean", encoder=None)
    calls = [
        lambda: index.add(X),
        lambda: index.search(X, 1),
        lambda: clustering.fit(X),
        lambda: clustering.predict(X),
        lambda: mixture.fit(X),
        lambda: mixture.predict(X),
        lambda: learner.fit(X, y),
        lambda: learner.transform(X),
        lambda: learner.score(X, y),
        lambda: classifier.fit(X, y),
        lambda: classifier.predict(X),
        lambda: pairs.fit(hide(bad.reshape(3, 2, 2)), [1.0, 1.0, 1.0]),
        lambda: askew.search.keys_and_queries("euclidean", "query-first", "inner-product", X),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    assert len(index) == 6


def test_masks_of_labels_targets_and_weights() -> None:
    X, masked = np.random.default_rng(0).normal(size=(6, 2)), np.ma.masked_array([0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0])
    learner = askew.DivergenceLearner("euclidean", encoder=None)
    with pytest.raises(ValueError, match=r"y of DivergenceLearner must be without masked entries\. Got 1 of 6 masked"):
        learner.fit(X, masked)
    with pytest.raises(ValueError, match="y of DivergenceLearner must be without masked entries"):
        learner.fit(X, masked.data).score(X, masked)
    with pytest.raises(ValueError, match="y of DivergenceNeighborsClassifier must be without masked entries"):
        askew.DivergenceNeighborsClassifier(learner).fit(X, masked)
    with pytest.raises(ValueError, match="targets of PairRegressor must be without masked entries"):
        askew.PairRegressor().fit(X[:, None].repeat(2, 1), masked)
    with pytest.raises(ValueError, match="sample_weight of BregmanKMeans must be without masked entries"):
        askew.BregmanKMeans(1).fit(X, sample_weight=masked + 1.0)


def test_masked_arrays_of_which_nothing_is_masked() -> None:
    X = np.ma.masked_array([[1.0], [2.0], [9.0]])
    assert sorted(askew.BregmanKMeans(2, random_state=0).fit(X).cluster_centers_.ravel()) == [1.5, 9.0]


@pytest.mark.filterwarnings("ignore:Sparse .*beta state")
@pytest.mark.parametrize("name", ["nbd", "euclidean", "kl"])
def test_divergences_of_sparse_tensors(name: str) -> None:
    x = torch.rand(3, 2)
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        with pytest.raises(TypeError, match=r"x of .* must be a dense tensor\. Got a sparse tensor"):
            askew.make(name, 2)(sparse, sparse)


@pytest.mark.parametrize(("labels", "shown"), [(["same"] * 4, "'same'"), ([3] * 4, "3"), (np.full(4, True), "True")])
def test_one_class_is_named_plainly(labels: Any, shown: str) -> None:
    with pytest.raises(ValueError, match=f"Got one class, {shown} instead"):
        askew.DivergenceLearner().fit(np.eye(4), labels)


def test_rows_of_different_lengths() -> None:
    ragged: Any = [[1.0], [1.0, 2.0]]
    with pytest.raises(ValueError, match="rows of different lengths"):
        askew.search.ExactIndex("euclidean").add(ragged)
    with pytest.raises(ValueError, match="Got rows of different lengths instead"):
        askew.BregmanKMeans(1).fit(ragged)
    with pytest.raises(TypeError, match="X of BregmanKMeans must be a table of numbers"):
        askew.BregmanKMeans(1).fit({})
    with pytest.raises(ValueError, match="must be an array"):
        askew.metrics.ranking(ragged, [0, 1], [0, 1])


def test_columns_that_describe_nothing() -> None:
    content = Columns().fit(pandas.DataFrame({"a": [1.0, 2.0]})).to_json()
    assert list(Columns.from_json(content, "file").get_feature_names_out()) == ["a"]
    with pytest.raises(ValueError, match="it does not describe columns"):
        Columns.from_json(content | {"used": []}, "file")


def test_generalized_exponential_of_a_huge_point_twice() -> None:
    divergence = askew.divergences.GeneralizedSymmetrized(askew.make("exponential", 2))
    x = torch.tensor([[1e-17, 18522.0]])
    assert divergence(x, x.clone()).item() == 0


def test_member_that_says_it_is_longer_than_the_archive(tmp_path: Path) -> None:
    """So much memory would be taken to read it."""
    file = io.BytesIO()
    np.savez(file, x=np.arange(3))
    content = bytearray(file.getvalue())
    place = content.rindex(b"PK\x01\x02")  # its line in the list of members
    content[place + 20 : place + 24] = struct.pack("<I", 2**31)
    path = write(tmp_path / "a.npz", bytes(content))
    with pytest.raises(ValueError, match="members that say they are longer"):
        askew_io.read_arrays(path)


def test_text_of_numpy_with_numbers_that_are_no_characters(tmp_path: Path) -> None:
    for code, words in ((0x110000, "no characters"), (0xD800, "surrogates not allowed")):
        np.save(tmp_path / "a.npy", np.array([65, code], np.uint32).view("U1"))
        with pytest.raises(ValueError, match=words):
            read_frame(tmp_path / "a.npy")


def test_a_point_without_weight_that_is_infinitely_far() -> None:
    assert total(torch.tensor([math.inf, 2.0]), np.array([0.0, 3.0])) == 6


@pytest.mark.parametrize(("size", "other"), [(1e38, 3.0), (3e307, 1.0)])
def test_pairs_that_overflow_though_no_point_does_with_all_others(size: float, other: float) -> None:
    divergence = askew.divergences.Jensen(askew.make("log-sum-exp", 2))
    points = size * torch.tensor([[0.0, 1 / size], [3.2, -other], [-3.1, other]], dtype=torch.float64)
    points = points.float() if size == 1e38 else points
    matrix = divergence.pairwise(points, points)
    assert torch.equal(matrix, divergence(points[:, None], points[None]))
    assert torch.isfinite(matrix).all()
    root = askew.divergences.Sqrt(divergence)
    assert torch.equal(root.pairwise(points, points), matrix.sqrt())


def test_objective_of_a_point_whose_powers_overflow_float32() -> None:
    points = np.array([[3.4e38, 6e-8, 1.0]], np.float32)
    assert askew.BregmanKMeans(1, divergence="power", random_state=0).fit(points).inertia_ == 0


@pytest.mark.parametrize("dtype", ["<b4", "<f1", "|b8"])
def test_a_description_with_a_dtype_that_numpy_does_not_know(dtype: str) -> None:
    with pytest.raises(ValueError, match="description"):
        askew_io.unflatten({"a": torch.zeros(2)}, {"array": "a", "dtype": dtype})
