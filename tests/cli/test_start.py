"""Help, the version and usage errors come at once: nothing heavy is imported for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from askew import names
from askew.cli import app, options
from askew.divergences import CATALOGUE

COMMANDS = [str(command.name) for command in app.registered_commands]
USAGE = [
    [],
    ["--version"],
    ["--help"],
    ["--frob"],
    ["frob"],
    *([command, "--help"] for command in COMMANDS),
    *([command, "--frob"] for command in COMMANDS),
    *([command, "a", "b", "c", "d"] for command in COMMANDS),
    *([command] for command in COMMANDS if command != "demo"),  # which asks for nothing
    ["index", "model"],
    ["search", "index"],
    ["search", "index", "queries.csv", "-k", "few"],
    ["cluster", "model", "table.csv"],
    ["compare", "nowhere.csv"],
    ["compare", "table.xls"],
    ["compare", "--dataset", "wines"],
    ["compare", "table.csv", "--dataset", "wine"],
    ["compare", "--dataset", "wine", "--divergence", "nbdd"],
    ["learn", "table.csv"],
    ["learn", "table.csv", "--label", "a", "--divergence", "nbdd"],
    ["learn", "table.csv", "--label", "a", "--encoder", "cnn"],
    ["index", "model", "table.csv", "--kind", "tree"],
    ["index", "model", "table.csv", "--direction", "backwards"],
    ["index", "model", "nowhere.csv"],
    ["explore", "model", "--label", "a"],
]
# Runs command lines one after the other in one process, and prints what each returned, printed and imported.
SCRIPT = """
import contextlib, io, json, sys
from askew.cli import main
results = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code
    heavy = sorted({"torch", "numpy", "pandas", "scipy", "sklearn", "rich"} & set(sys.modules))
    results.append([code, out.getvalue(), err.getvalue(), heavy])
print(json.dumps(results))
"""


def python(*words: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, *words], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, ...], tuple[int, str, str, list[str]]]:
    found = json.loads(python("-c", SCRIPT, json.dumps(USAGE)))
    return {tuple(words): tuple(result) for words, result in zip(USAGE, found, strict=True)}


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_nothing_heavy_is_imported(
    words: list[str], results: dict[tuple[str, ...], tuple[int, str, str, list[str]]]
) -> None:
    code, out, err, heavy = results[tuple(words)]
    assert heavy == []
    assert code == (0 if {"--help", "--version"} & set(words) else 2)
    assert "Traceback" not in out + err


def test_bare_command_prints_its_help(results: dict[tuple[str, ...], tuple[int, str, str, list[str]]]) -> None:
    code, out, err, _ = results[()]
    assert (code, err) == (2, "")
    assert out == results["--help",][1]
    assert "\\n" not in out
    lines = out.splitlines()
    assert lines[0] == "Usage: askew [OPTIONS] COMMAND [ARGS]..."
    for command in COMMANDS:
        [line] = [line for line in lines if line.startswith(f"  {command} ")]
        assert line.endswith(".")
        assert not line.endswith("...")  # cut off


def test_completion_is_answered_at_once() -> None:
    words = {"_ASKEW_COMPLETE": "complete_bash", "COMP_WORDS": "askew cl", "COMP_CWORD": "1"}
    code = (
        "import atexit, sys; from askew.cli import main; atexit.register(lambda: print('torch' in sys.modules)); main()"
    )
    assert python("-c", code, **words).split() == ["cluster", "False"]


def test_names_of_divergences_are_those_of_the_catalogue() -> None:
    assert {*options.LEARNED, *options.CLOSED} == {*names()}
    assert {*options.LEARNED} == {name for name, entry in CATALOGUE.items() if entry.learned}
    assert {*options.USUAL} <= {*names()}
    assert options.divergence_names("nbd, kl") == ["nbd", "kl"]
    assert "widenorm-legacy" not in options.divergence_names("all")


def test_training_does_not_import_the_compiler() -> None:
    """It takes a second, as long as a small training itself."""
    script = (
        "import sys, torch, askew; x = torch.rand(20, 2); D = askew.make('nbd', 2);"
        "askew.fit(D, (x, x.flip(0), x[:, 0]), askew.losses.Regression(), steps=2, device='cpu');"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
