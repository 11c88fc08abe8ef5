"""The command ``askew`` itself: its version, its help, and where its text goes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import askew
from askew.cli import main


def called(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("--version") == 0
    assert capsys.readouterr().out == f"askew {askew.__version__}\n"


def test_all_text_goes_out_at_one_place() -> None:
    """Where what a terminal would obey is written out."""
    for file in Path(askew.__file__).with_name("cli").glob("*.py"):
        if file.name != "shell.py":
            assert not re.search(r"\bprint\(|\bConsole\b|\becho\(|sys\.std(out|err)", file.read_text("utf-8")), file


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("--help") == 0
    shown = set(capsys.readouterr().out.split())
    assert {"compare", "learn", "score", "predict", "transform", "index", "search", "cluster", "explore"} <= shown
    assert not {"reproduce", "report", "bench", "datasets"} & shown


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyboardInterrupt(), 130, "askew: stopped.\n"),
        (
            askew.TrainingDivergedError("The loss is NaN.\nLower the rate.", askew.History()),
            1,
            "askew: The loss is NaN. Lower the rate.\n",
        ),
        (ValueError(), 2, "askew: ValueError\n"),
        (PermissionError(13, "Permission denied", "a.csv"), 2, "askew: 'a.csv': Permission denied\n"),
        (FileExistsError(17, "It is a file"), 2, "askew: It is a file\n"),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr("askew.cli.inputs.load_bundled", fail)
    assert called("compare", "--dataset", "wine") == code
    assert capsys.readouterr() == ("", text)


def test_other_errors_are_faults_and_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("a fault of askew")

    monkeypatch.setattr("askew.cli.inputs.load_bundled", fail)
    with pytest.raises(RuntimeError, match="a fault of askew"):
        main(["compare", "--dataset", "wine"])
