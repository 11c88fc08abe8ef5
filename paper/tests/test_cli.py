"""The command askew-paper: rows, tables, and errors of one line."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import askew_paper
import joblib
import pytest
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.cli import main
from askew_paper.experiment import MAE, Cell, Experiment, Outcome, grid
from askew_paper.rows import read

import askew


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    return grid("sums", scale, seeds, ["small"], ["exact", "bad"], {"size": 3})


def run(cell: Cell) -> Outcome:
    return Outcome({"mae": cell.seed + 0.5})


def run_badly(cell: Cell) -> Outcome:
    if cell.method == "bad":
        raise ZeroDivisionError("no luck")
    return Outcome({"mae": 0.5})


@pytest.fixture(autouse=True)
def experiments() -> Iterator[None]:
    """Two experiments of our own instead of the real ones."""
    before = dict(EXPERIMENTS)
    EXPERIMENTS.clear()
    usual, minutes = {"quick": 2, "paper": 10}, {"quick": 2.0, "paper": 300.0}
    sums = Experiment("sums", "Sums of numbers", ("table 1", "figure 2"), (MAE,), usual, minutes, cells, run)
    products = Experiment(
        "products",
        "Products of numbers",
        ("table 2",),
        (MAE,),
        {"quick": 1},
        {"quick": 0.5},
        lambda scale, seeds: grid("products", scale, seeds, ["small"], ["exact", "bad"], {}),
        run_badly,
        needs=("the UCI tables",),
    )
    EXPERIMENTS.update(sums=sums, products=products)
    yield
    EXPERIMENTS.clear()
    EXPERIMENTS.update(before)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def test_rows_and_then_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("run", "sums", "--seeds", "3", "-o", "mine") == 0
    assert capsys.readouterr().out == "6 rows in 'mine'. Tables of them: askew-paper report mine -o report\n"
    assert [row.scores["mae"] for row in read("mine")] == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5]
    assert called("report", "mine", "-o", "pages") == 0
    assert capsys.readouterr().out == "Wrote pages/results.md and 3 more\n"
    assert "Sums of numbers, quick scale" in Path("pages/results/sums.md").read_text("utf-8")
    assert "exact,MAE,1.500 ± 2.484,3," in Path("pages/results/sums-quick.csv").read_text("utf-8")


def test_scale_is_that_asked_for() -> None:
    assert called("run", "sums", "--scale", "paper", "--seeds", "1") == 0
    assert {row.cell.scale for row in read("results")} == {"paper"}


def test_without_names_all_that_have_the_scale_run() -> None:
    assert called("run", "--scale", "paper", "--seeds", "1") == 0
    assert {row.cell.experiment for row in read("results")} == {"sums"}


def test_list_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "sums: Sums of numbers",
        "  makes  table 1, figure 2",
        "  needs  nothing else",
        "  quick  about 2 minutes on two cores, 2 seeds; 0 of 4 rows done",
        "  paper  about 5 hours on two cores, 10 seeds; 0 of 20 rows done",
        "products: Products of numbers",
        "  makes  table 2",
        "  needs  the UCI tables",
        "  quick  about 30 seconds on two cores, 1 seed; 0 of 2 rows done",
    ]
    assert not Path("results").exists()


def test_list_knows_what_was_measured_here(capsys: pytest.CaptureFixture[str]) -> None:
    called("run", "sums", "--seeds", "1")
    capsys.readouterr()
    assert called("list", "sums") == 0
    assert (
        f"  quick  about 1 seconds on {joblib.cpu_count()} cores, by the rows measured here, 2 seeds; 2 of 4 rows done"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("run", "sum"),
            "name of an experiment must be one of 'sums', 'products'. Got 'sum' instead. Did you mean",
        ),
        (("run", "--scale", "papr"), "scale must be one of 'toy', 'quick', 'medium', 'paper'. Got 'papr' instead."),
        (("run", "sums", "--seeds", "0"), "seeds must be a positive integer. Got 0 instead."),
        (("run", "sums", "--jobs", "0"), "jobs must be a positive integer. Got 0 instead."),
        (("run", "products", "--scale", "paper"), "scale of 'products' must be one of 'quick'. Got 'paper'"),
        (("run", "sums", "-o", "file/results"), "Not a directory"),
        (("data", "--download", "nothing"), "--download must be one of"),
        (
            ("report", "nowhere"),
            "RESULTS must be a folder that exists. Got 'nowhere' instead. Make it with: askew-paper ru",
        ),
        (("report", "empty"), "folder of results must be a folder with .jsonl files. Got 'empty' instead."),
        (("report", "damaged"), "line 1 of 'damaged/sums.jsonl' is damaged: it is no JSON."),
    ],
)
def test_mistakes_are_told_in_one_line(words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    Path("empty").mkdir()
    Path("damaged").mkdir()
    Path("damaged/sums.jsonl").write_text("{\n")
    assert called(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("askew: ")
    assert text in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("words", [("--debug", "run", "sum"), ("run", "sum", "--debug")])
def test_debug_shows_where_a_mistake_came_from(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert called(*words) == 2
    captured = capsys.readouterr().err
    assert captured.startswith("Traceback (most recent call last):")
    assert "ValueError: name of an experiment must be one of" in captured


def test_unknown_option_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("run", "--sedes", "3") == 2
    assert "No such option" in capsys.readouterr().err


def test_failed_cells_are_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("run", "products") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "askew: 1 cell(s) failed; all others have their rows in 'results'." in captured.err
    assert "products: small, bad, seed 0, quick scale: ZeroDivisionError: no luck" in captured.err
    assert "Traceback" not in captured.err
    assert len(read("results")) == 1
    assert called("run", "products", "--debug") == 1
    assert "in run_badly" in capsys.readouterr().err


def test_half_a_line_is_told_and_mended() -> None:
    called("run", "sums")
    file = Path("results/sums.jsonl")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match="line 4 of 'results/sums.jsonl' is half written"):
        assert called("run", "sums") == 0
    assert len(read("results")) == 4


def test_report_with_names_that_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("run", "sums") == 0
    title = "Sums \u202eof\x1b[2J numbers, ½"
    EXPERIMENTS["sums"] = dataclasses.replace(EXPERIMENTS["sums"], title=title)
    assert called("report", "-o", "pages") == 0
    text = Path("pages/results/sums.md").read_text("utf-8")
    assert "\x1b[2J" not in text
    assert "numbers, ½" in text
    capsys.readouterr()
    assert called("list") == 0
    assert "Sums \\u202eof\\x1b[2J numbers, ½" in capsys.readouterr().out


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("--help") == 0
    shown = capsys.readouterr().out
    assert {"run", "list", "report", "data"} <= set(shown.split())


@pytest.mark.parametrize("command", ["run", "list", "report", "data"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(command, "--help") == 0
    assert f"Example: askew-paper {command}" in capsys.readouterr().out


def test_data_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("data") == 0
    assert {"iris", "mnist", "holidays"} <= set(capsys.readouterr().out.split())
    assert called("data", "--json") == 0
    assert "mnist" in [entry["name"] for entry in json.loads(capsys.readouterr().out)["datasets"]]


MODULE = """
import time
from pathlib import Path
from askew_paper.experiment import MAE, Experiment, Outcome, grid

def cells(scale, seeds):
    return grid("waiting", scale, seeds, ["small"], ["exact", "slow"], {})

def run(cell):
    Path(f"{cell.method}-{cell.seed}").touch()
    if cell.method == "slow":
        time.sleep(600)
    return Outcome({"mae": 1.0})

WAITING = Experiment("waiting", "Waiting", ("table 3",), (MAE,), {"quick": 2}, {"quick": 1.0}, cells, run)
"""
SCRIPT = """
from waiting_of_test_cli import WAITING
from askew_paper.cli import main
from askew_paper.catalogue import EXPERIMENTS
if __name__ == "__main__":
    EXPERIMENTS["waiting"] = WAITING
    main(["run", "waiting", "--jobs", "2"])
"""


@pytest.mark.skipif(os.name != "posix", reason="sends what a terminal sends on Ctrl-C")
def test_ctrl_c_stops_cleanly(folder: Path) -> None:
    (folder / "waiting_of_test_cli.py").write_text(MODULE)
    (folder / "script.py").write_text(SCRIPT)
    paths = (str(Path(askew.__file__).parents[1]), str(Path(askew_paper.__file__).parents[1]), str(folder))
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "script.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 300
        while not (folder / "slow-1").exists():
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors == "askew: stopped. What was finished is in 'results'; the same command goes on from there.\n"
    assert {row.cell.method for row in read("results")} == {"exact"}


def test_report_as_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("run", "sums", "-o", "mine") == 0
    capsys.readouterr()
    assert called("report", "mine", "-o", "new/report.html") == 0
    assert capsys.readouterr().out == "Wrote new/report.html\n"
    assert [file.name for file in Path("new").iterdir()] == ["report.html"]
    assert "Sums of numbers" in Path("new/report.html").read_text("utf-8")
