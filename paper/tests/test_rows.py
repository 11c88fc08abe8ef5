"""Rows outlive anything that happens to the process that writes them, and are summarised honestly."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import askew_paper
import numpy as np
import pytest
from askew_paper import runner
from askew_paper.experiment import Cell
from askew_paper.rows import Row, append_row, read, read_rows
from askew_paper.runner import provenance
from askew_paper.summary import interval, summarise
from scipy import stats

import askew

# For processes that are started: the folders of the two packages.
SOURCES = [str(Path(package.__file__ or "").parents[1]) for package in (askew, askew_paper)]
STARTED = "2023-05-01T00:00:00Z"


def make_row(seed: int = 0, score: float = 0.5, scale: str = "quick", **options: Any) -> Row:
    cell = Cell("sums", "small", "exact", seed, scale, tuple(sorted(options.items())))
    return Row(cell, {"mae": score}, seconds=1.5, started=STARTED, curves={"error": (3.0, 2.0)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sums.jsonl"


@pytest.fixture
def three(path: Path) -> Path:
    """A file with three rows."""
    for seed in range(3):
        assert append_row(path, make_row(seed))
    return path


def seeds(path: Path) -> list[int]:
    return [row.cell.seed for row in read_rows(path).values()]


# ---------------------------------------------------------------------- cells and rows


def test_key_says_all_and_nothing_else() -> None:
    cell = make_row(3, epochs=20, widths=(8, 8)).cell
    assert cell.key == dataclasses.replace(cell).key
    changes = {"experiment": "b", "setting": "b", "method": "b", "seed": 4, "scale": "paper", "options": ()}
    keys = {dataclasses.replace(cell, **{name: value}).key for name, value in changes.items()}
    assert len(keys | {cell.key}) == 7
    groups = {dataclasses.replace(cell, **{name: value}).group for name, value in changes.items()}
    assert len(groups | {cell.group}) == 6
    assert dataclasses.replace(cell, seed=9).group == cell.group


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"setting": ""}, "setting of a cell must be a string that is not empty"),
        ({"seed": -1}, "seed of a cell must be an integer of at least 0. Got -1"),
        ({"seed": True}, "seed of a cell must be"),
        (
            {"scale": "papr"},
            "scale must be one of 'toy', 'quick', 'medium', 'paper'. Got 'papr' instead. Did you mean 'paper'",
        ),
        ({"options": {"a": 1}}, "options of a cell must be a tuple of pairs"),
        ({"options": (("b", 1), ("a", 1))}, "options of a cell must be sorted by name"),
        ({"options": (("a", 1), ("a", 2))}, "each name once"),
        ({"options": (("a", math.nan),)}, "each option of a cell must be"),
        ({"options": (("a", [1]),)}, "each option of a cell must be"),
    ],
)
def test_cells_are_checked(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        dataclasses.replace(make_row().cell, **change)


def test_option_of_a_cell() -> None:
    cell = make_row(epochs=20, widths=(8, 8)).cell
    assert (cell["epochs"], cell["widths"]) == (20, (8, 8))
    with pytest.raises(ValueError, match=r"option of a cell must be one of 'epochs', 'widths'. Got 'epoch'"):
        cell["epoch"]


def test_row_comes_back_as_it_was(path: Path) -> None:
    row = dataclasses.replace(
        make_row(2, 1 / 3, epochs=20, rate=1e-3, widths=(8, (4, 4)), flag=True, nothing=None, name="Käse | <b>\n"),
        chosen={"lr": 0.1, "tried": [1, 2]},
        versions={"askew": "0"},
        commit="abc+",
        machine={"cores": 2},
    )
    append_row(path, row)
    assert list(read_rows(path).values()) == [row]
    assert path.read_bytes().count(b"\n") == 1


def test_row_tells_where_it_comes_from() -> None:
    around = provenance()
    assert around["versions"]["askew"] == askew.__version__
    assert around["versions"]["numpy"] == np.__version__
    assert {"python", "torch", "scipy", "sklearn"} < set(around["versions"])
    assert around["machine"]["cores"] >= 1


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_says_whether_source_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        command = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "source"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert runner._commit(package) is None
    git("init", "--quiet")
    # In a repository, but no part of it.
    assert runner._commit(package) is None
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "results.jsonl").write_text("rows are no source")
    assert runner._commit(package) == commit
    (package / "new.py").write_text("")
    assert runner._commit(package) == f"{commit}+"


# ---------------------------------------------------------------------- files


def test_cell_has_one_row(three: Path) -> None:
    before = three.read_bytes()
    assert not append_row(three, make_row(1, score=0.9))
    assert three.read_bytes() == before


def test_rows_of_others_are_seen(path: Path) -> None:
    assert read_rows(path) == {}
    assert append_row(path, make_row(0))
    assert not append_row(path, make_row(0, score=0.9))
    assert append_row(path, make_row(1))
    assert list(read_rows(path).values()) == [make_row(0), make_row(1)]


@pytest.mark.parametrize("kept", [1, 40, -2])
def test_half_line_is_reported_ignored_and_cut_off(three: Path, kept: int) -> None:
    whole = three.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    three.write_bytes(whole[:start] + whole[start:-1][:kept])
    with pytest.warns(RuntimeWarning, match=r"line 3 of .*sums.jsonl' is half written.*it is ignored"):
        assert seeds(three) == [0, 1]
    with pytest.warns(RuntimeWarning, match=r"line 3 of .*it was cut off"):
        assert append_row(three, make_row(2))
    assert three.read_bytes() == whole


def test_zeros_after_a_power_cut_are_half_a_line(three: Path) -> None:
    whole = three.read_bytes()
    three.write_bytes(whole + bytes(100))
    with pytest.warns(RuntimeWarning, match="line 4 of"):
        assert len(read(three.parent)) == 3


def test_last_line_without_its_break_is_a_row(three: Path) -> None:
    whole = three.read_bytes()
    three.write_bytes(whole[:-1])
    assert seeds(three) == [0, 1, 2]
    assert append_row(three, make_row(3))
    assert three.read_bytes() == whole + make_row(3).to_line()
    assert seeds(three) == [0, 1, 2, 3]


def change(content: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps(content | changes).encode()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda line: line[:-20], "is damaged: it is no JSON"),
        (lambda line: b"", "is damaged: it is no JSON"),
        (lambda line: b"\xff\xfe", "is damaged: it is no JSON"),
        (lambda line: b"[" * 100_000, "is damaged: it is nested too deeply"),
        (lambda line: change(json.loads(line), commit="\ud800"), "is damaged: it has a lone surrogate"),
        (lambda line: b"3", "is damaged: it is no row of format 1 but has 'int'"),
        (lambda line: change(json.loads(line), format=2), "is damaged: it is no row of format 1 but has 2"),
        (lambda line: change(json.loads(line), seed=7), "is damaged: its key is '.*', but that of its settings is '"),
        (lambda line: change(json.loads(line), seed="1"), "is damaged: seed of a cell must be"),
        (lambda line: change(json.loads(line), scores=3), "is damaged: 'scores' is missing or of a wrong kind"),
        (lambda line: change(json.loads(line), scores={"mae": "1"}), "is damaged: a score is no finite number"),
        (lambda line: line.replace(b"0.5", b"NaN"), "is damaged: NaN is no number of JSON"),
        (lambda line: line.replace(b"0.5", b"1e999"), "is damaged: a score is no finite number"),
        (lambda line: line.replace(b"[3.0, 2.0]", b"[3.0, null]"), "is damaged: curve 'error' is no finite number"),
        (lambda line: line.replace(b"[3.0, 2.0]", b"7"), "is damaged: curve 'error' is no list of numbers"),
        (lambda line: change({k: v for k, v in json.loads(line).items() if k != "commit"}), "'commit' is missing"),
    ],
)
def test_damaged_line_in_the_middle_is_an_error(three: Path, damage: Any, text: str) -> None:
    lines = three.read_bytes().splitlines()
    lines[1] = damage(lines[1])
    three.write_bytes(b"\n".join(lines) + b"\n")
    before = three.read_bytes()
    with pytest.raises(ValueError, match=f"line 2 of '.*sums.jsonl' .*{text}"):
        read(three.parent)
    assert three.read_bytes() == before


def test_row_of_another_experiment_is_an_error(three: Path) -> None:
    shutil.copy(three, three.with_name("products.jsonl"))
    with pytest.raises(ValueError, match=r"line 1 of .*products.jsonl' must be a row of 'products', like its file"):
        read(three.parent)


def test_two_different_rows_of_a_cell_are_an_error(three: Path) -> None:
    with three.open("ab") as file:
        file.write(make_row(1, score=0.7).to_line())
    with pytest.raises(ValueError, match=r"line 4 of .* must be the only row of its cell.*Delete one of the two"):
        read(three.parent)


@pytest.mark.parametrize("wrong", ["short", "error"])
def test_full_disk_leaves_whole_lines(three: Path, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = three.read_bytes()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if wrong == "error":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        append_row(three, make_row(3))
    monkeypatch.undo()
    assert three.read_bytes() == before
    assert append_row(three, make_row(3))
    assert seeds(three) == [0, 1, 2, 3]


WRITER = """
import sys
from askew_paper.experiment import Cell
from pathlib import Path
from askew_paper.rows import Row, append_row
path = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    cell = Cell("sums", "small", "exact", seed, "quick")
    print(append_row(path, Row(cell, {"mae": 0.5}, 1.0, sys.argv[2], curves={"error": (0.1,) * 2000})))
"""


def test_two_processes_do_not_mix_their_lines(path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), "0", "40"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()
    rows = [dataclasses.replace(make_row(seed), curves={"error": (0.1,) * 2000}) for seed in range(20, 60)]
    mine = [append_row(path, row) for row in rows]
    theirs = process.communicate(timeout=60)[0].split()
    # Twenty cells are wanted by both, and each was written once.
    assert sorted(seeds(path)) == list(range(60))
    assert mine.count(True) + theirs.count("True") == 60
    assert mine.count(False) + theirs.count("False") == 20


def test_results_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must be a folder with .jsonl files.*Make them with: askew-paper run"):
        read(tmp_path)


def test_results_can_be_read_where_nothing_can_be_written(three: Path) -> None:
    three.chmod(0o444)
    three.parent.chmod(0o555)
    try:
        assert len(read(three.parent)) == 3
    finally:
        three.parent.chmod(0o755)


# ---------------------------------------------------------------------- over seeds


@pytest.mark.parametrize("n", [2, 3, 10])
def test_interval_is_that_of_scipy(n: int) -> None:
    values = np.random.default_rng(n).normal(3.0, 2.0, n)
    mean, half = interval(values)
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    np.testing.assert_allclose([mean - half, mean + half], [low, high], rtol=1e-12)


def test_single_seed_has_no_interval() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mean, half = interval([0.7])
    assert mean == 0.7
    assert math.isnan(half)


def test_only_seeds_are_taken_together() -> None:
    places = [(scale, epochs) for scale in ("quick", "paper") for epochs in (1, 2)]
    rows = [make_row(seed, 1.0 + seed, scale, epochs=epochs) for scale, epochs in places for seed in range(2)]
    found = summarise(rows).itertuples()
    assert [(s.cell.scale, s.cell["epochs"], s.score, s.mean, s.seeds) for s in found] == [
        ("quick", 1, "mae", 1.5, 2),
        ("quick", 2, "mae", 1.5, 2),
        ("paper", 1, "mae", 1.5, 2),
        ("paper", 2, "mae", 1.5, 2),
    ]


def test_score_that_some_seeds_lack_says_how_many_have_it() -> None:
    partial = dataclasses.replace(make_row(2), scores={"mae": 1.0, "mse": 4.0})
    rows = [make_row(0), make_row(1), partial]
    assert {s.score: s.seeds for s in summarise(rows).itertuples()} == {"mae": 3, "mse": 1}


def test_row_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"each row must be of a different cell. Got two of sums: small, exact"):
        summarise([make_row(), make_row()])
