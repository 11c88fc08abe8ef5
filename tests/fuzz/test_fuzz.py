"""Whatever comes in, a right answer goes out, or words: readers and the numeric core under property-based tests."""

from __future__ import annotations

import io
import json
import pickle
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from askew_paper.data import read_tntp
from askew_paper.data.images import read_pickled
from askew_paper.experiment import Cell
from askew_paper.rows import Row
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import askew
from askew import io as askew_io
from askew.cli.tables import read_frame

ROOT = Path(__file__).parents[2]
# Behind everything else: the other files there have names of their own.
sys.path.append(str(ROOT / "tools"))

from fuzzing.registry import FILES, NUMBERS, PLANTED, TARGETS  # noqa: E402
from fuzzing.running import fuzz, run_cases  # noqa: E402
from fuzzing.targets import Target, Wrong, describe  # noqa: E402

# Cases of each target: what takes about half a second.
CASES = {
    **dict.fromkeys(("csv", "csv-sniffing", "parquet", "kmeans", "search"), 25),
    **dict.fromkeys(("model", "index", "checkpoint", "report", "members", "pairwise"), 40),
    **dict.fromkeys(("comparison-page", "explorer-page", "report-page", "wide"), 3),
}
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def answer(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or None if it refuses with a message; any other error is a failure."""
    try:
        return call()
    except ValueError as error:
        if describe(error):
            raise
        return None


# ---------------------------------------------------------------------- the targets of the benchmark


@pytest.mark.filterwarnings("ignore")  # numpy and pandas warn of odd numbers; what comes out is checked
@pytest.mark.parametrize("name", TARGETS)
def test_no_failure(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # How long a case takes is for the benchmark to judge: on a busy machine anything may be slow.
    monkeypatch.setattr("fuzzing.running.SLOW", float("inf"))
    cases = CASES.get(name, 150)
    counts = run_cases(TARGETS[name], seed=7, first=0, cases=cases, folder=tmp_path)
    assert counts.kinds == {}
    assert counts.calls == cases
    assert counts.accepted + counts.refused == cases
    assert counts.rows >= cases


def test_groups_are_all_targets() -> None:
    assert {*FILES, *NUMBERS} == set(TARGETS)
    assert not {*FILES} & {*NUMBERS}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("dim must be positive. Got -1 instead."), ""),
        (ValueError("TABLE must be a table, but it has no rows."), ""),
        (FileNotFoundError("path must be a file. Got 'x' instead."), ""),
        (ValueError("bad"), "not a refusal"),
        (KeyError("tree"), "not a refusal"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "dim must be x. Got y instead."), "UnicodeDecodeError"),
        (RuntimeError("x must be y. Got z instead."), "RuntimeError"),
        (Wrong("D is negative"), "Wrong"),
        (MemoryError(), "memory"),
    ],
)
def test_what_counts_as_words(error: Exception, words: str) -> None:
    assert describe(error).startswith(words)
    assert bool(describe(error)) == bool(words)


def test_memory_behind_words_is_a_failure() -> None:
    error = ValueError("x must be small. Got large instead.")
    error.__cause__ = MemoryError()
    assert describe(error).startswith("memory")


def test_failures_are_counted_and_kept(tmp_path: Path) -> None:
    def run(case: bytes) -> int:
        if case[0] < 128:
            raise IndexError("list index out of range")
        return 1

    planted = Target("planted", lambda random: random.randbytes(4), run)
    counts = run_cases(planted, seed=1, first=0, cases=50, folder=tmp_path)
    assert 0 < counts.failures < 50
    assert counts.failures + counts.accepted == counts.calls == 50
    lines = (tmp_path / "failures.txt").read_text().splitlines()
    assert len(lines) == 3  # of one kind
    number = int(lines[0].split("--first ")[1].split()[0])
    kept = (tmp_path / f"planted-1-{number}").read_bytes()
    again = run_cases(planted, seed=1, first=number, cases=1, folder=tmp_path)
    assert again.failures == 1
    assert kept[0] < 128


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_crash_and_memory_are_seen(tmp_path: Path) -> None:
    """In a process of its own: the second case aborts, the last two take far more memory than they may."""
    counts = fuzz(PLANTED, seed=0, first=0, cases=6, seconds=600, folder=tmp_path)
    assert (counts.calls, counts.failures, counts.accepted) == (6, 3, 3)
    assert sorted(kind.split(":")[0] for kind in counts.kinds) == ["crash", "memory"]
    assert (tmp_path / "planted-0-1").exists()


# ---------------------------------------------------------------------- readers: what was written comes back

names = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=8)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
trees = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))


@quick
@given(trees)
def test_trees_come_back(tree: Any) -> None:
    tensors, rest = askew_io.flatten(tree)
    again = askew_io.unflatten(tensors, askew_io.read_json(json.dumps(rest), "'x'"))
    assert again == tree


@quick
@given(st.binary(max_size=60) | trees.map(lambda tree: json.dumps(tree).encode()))
def test_descriptions_are_read_or_refused(content: bytes) -> None:
    check = askew_io.files.check_description
    answer(lambda: askew_io.unflatten({}, check(askew_io.read_json(content, "'x'"), "'x'", "model")))


# Python writes no bytes as a call of bytes, which this reader does not know.
some_bytes = st.binary(min_size=1, max_size=6)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | some_bytes | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(some_bytes, inner, max_size=3),
)


@quick
@given(plain)
def test_pickles_of_plain_data_come_back(value: Any) -> None:
    assert read_pickled(pickle.dumps(value, protocol=2)) == value


@quick
@given(
    arrays.arrays(
        st.sampled_from(["f8", "f4", "i4", "u1", "?", "<U3", "S2"]), arrays.array_shapes(max_dims=3, min_side=0)
    )
)
def test_arrays_come_back(array: Any) -> None:
    path = target_folder() / "a.npy"
    np.save(path, array)
    if array.dtype.itemsize and (array.size or max(array.shape) < 100):
        np.testing.assert_array_equal(askew_io.read_array(path), array)
    np.savez(target_folder() / "a.npz", a=array, b=array)
    np.testing.assert_array_equal(askew_io.read_arrays(target_folder() / "a.npz")["b"], array)


def target_folder() -> Path:
    from fuzzing.targets import place

    return place()


cells = st.builds(
    Cell,
    st.just("sums"),
    names,
    names,
    st.integers(0, 2**70),
    st.sampled_from(["toy", "quick", "paper"]),
    st.dictionaries(names, st.integers() | st.booleans() | st.none() | names, max_size=2).map(
        lambda d: tuple(sorted(d.items()))
    ),
)
finite = st.floats(allow_nan=False, allow_infinity=False)


@quick
@given(cells, st.dictionaries(names, finite, max_size=2), finite)
def test_rows_come_back(cell: Cell, scores: dict[str, float], seconds: float) -> None:
    row = Row(cell, scores, seconds, "2023-01-01T00:00:00Z")
    assert Row.from_line(row.to_line()) == row


@quick
@given(st.text(max_size=60))
def test_tables_are_read_or_refused(text: str) -> None:
    path = target_folder() / "a.csv"
    path.write_bytes(b"a,b\n" + text.encode("utf-8", "surrogatepass"))
    frame = answer(lambda: read_frame(path))
    assert frame is None or len(frame) > 0


number = st.integers(-2, 12).map(str) | st.sampled_from(["x", "nan", "1e400", "9" * 30, "²", "1_0", ""])


@quick
@given(number, number, st.lists(st.tuples(number, number, number), max_size=4))
def test_road_networks_are_read_or_refused(nodes: str, links: str, rows: list[tuple[str, str, str]]) -> None:
    lines = [f"<NUMBER OF NODES> {nodes}", f"<NUMBER OF LINKS> {links}", "<END OF METADATA>"]
    lines += [f"{tail} {head} 900 1.5 {time} ;" for tail, head, time in rows]
    path = target_folder() / "x_net.tntp"
    path.write_text("\n".join(lines), "utf-8")
    network = answer(lambda: read_tntp(path))
    if network is not None:
        assert len(network.times) == len(rows) == int(links)
        assert network.heads.max() <= int(nodes)


# ---------------------------------------------------------------------- the numeric core

points = arrays.arrays(np.float32, (2, 3), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@pytest.mark.parametrize(
    "name", ["euclidean", "euclidean-norm", "power", "nbd", "widenorm", "iqe", "mrn", "log-sum-exp"]
)
@settings(quick, max_examples=15)
@given(data=points)
def test_divergences_of_any_finite_points(name: str, data: Any) -> None:
    torch.manual_seed(0)
    divergence = askew.make(name, 3).requires_grad_(False)
    x, y = torch.from_numpy(data.copy())
    assert divergence(x, y) >= 0  # infinite where it overflows, but not NaN
    assert divergence(x, x.clone()) == 0


@pytest.mark.parametrize("name", ["kl", "itakura-saito", "exponential"])
@settings(quick, max_examples=25)
@given(data=arrays.arrays(np.float64, (2, 3), elements=st.floats(1e-3, 1e3)))
def test_closed_forms_against_their_formulas(name: str, data: Any) -> None:
    x, y = torch.from_numpy(data.copy())
    formulas = {
        "kl": (x * (x / y).log() - x + y).sum(),
        "itakura-saito": (x / y - (x / y).log() - 1).sum(),
        "exponential": (x.clamp_max(50).exp() - y.clamp_max(50).exp() * (1 + x.clamp_max(50) - y.clamp_max(50))).sum(),
    }
    if name == "exponential":
        x, y = x.clamp_max(50), y.clamp_max(50)
    value, truth = float(askew.make(name, 3)(x, y)), float(formulas[name])
    size = (
        float(x.exp().sum() + y.exp().sum() * (1 + x.max() + y.max()))
        if name == "exponential"
        else float((x + y).sum())
    )
    assert value == pytest.approx(truth, rel=1e-9, abs=1e-11 * (1 + size))


def test_archive_members_stay_inside(tmp_path: Path) -> None:
    """A member that names a place outside of the folder is not written there, nor anywhere."""
    from askew_paper.data.files import Source, _unpack

    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in ("../escaped", "/tmp/askew-escaped-too", "one"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    (tmp_path / "a.tar.gz").write_bytes(file.getvalue())
    source = Source("in/one", "https://example.org/a.tar.gz", member="one")
    _unpack(tmp_path / "a.tar.gz", [source], tmp_path / "root")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        "a.tar.gz",
        "root/in/one",
    ]
    assert not Path("/tmp/askew-escaped-too").exists()
