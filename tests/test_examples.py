"""The examples and the code on the pages run, and print what they say they print."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import askew
from askew.divergences import CATALOGUE, Divergence

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "examples" / "quickstart.py"
PAGES = (
    "README.md",
    "docs/choosing.md",
    "docs/clustering.md",
    "docs/coming-from.md",
    "docs/encoders.md",
    "docs/engines.md",
    "docs/explorer.md",
    "docs/export.md",
    "docs/extending.md",
    "docs/faq.md",
    "docs/gpu.md",
    "docs/index.md",
    "docs/learning.md",
    "docs/loops.md",
    "docs/mathematics.md",
    "docs/plots.md",
    "docs/relevance.md",
    "docs/reproduce.md",
    "docs/search.md",
    "docs/tables.md",
    "docs/transforms.md",
)
# How a PNG begins; width and height stand at bytes 16 and 20.
PNG = b"\x89PNG\r\n\x1a\n"


# ---------------------------------------------------------------------- quick start


def run_script(
    script: Path, *arguments: str, path: str = "", folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    folders = [path, str(Path(askew.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    command = [sys.executable, "-W", "error", str(script), *arguments]
    return subprocess.run(
        command, env=environment | variables, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def run_quickstart(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return run_script(QUICKSTART, *arguments, path=path)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("quickstart") / "new" / "folder"
    return run_quickstart("--quick", "--output", str(folder)), folder


def printed_errors(output: str) -> dict[str, float]:
    found = re.findall(r"^  (\S.*?) {2,}(\d+\.\d{4})$", output, flags=re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_quickstart_learns_what_the_baselines_cannot(quick: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    result, _ = quick
    assert result.returncode == 0, result.stderr
    errors = printed_errors(result.stdout)
    assert list(errors) == ["constant (training median)", "Mahalanobis, squared", "NBD"]
    constant, mahalanobis, nbd = errors.values()
    # The first two do not depend on training: the data has these optima.
    assert constant == pytest.approx(2.17, abs=0.05)
    assert mahalanobis == pytest.approx(1.49, abs=0.05)
    assert nbd < 0.3
    assert "smallest D(x, y) = 0." in result.stdout
    assert "largest D(x, x) = 0," in result.stdout


def test_quick_run_says_that_it_is_one_and_draws_no_bar(
    quick: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    result, _ = quick
    assert result.stdout.startswith("x log x regression (quick run, 10000 training pairs, 15 epochs, seed 0)")
    assert result.stderr == ""
    assert "\r" not in result.stdout


def test_quickstart_writes_its_picture_and_nothing_else(
    quick: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    result, folder = quick
    assert [path.name for path in folder.iterdir()] == ["balls.png"]
    assert result.stdout.rstrip().endswith(str(folder / "balls.png"))
    content = (folder / "balls.png").read_bytes()
    assert content.startswith(PNG)
    width, height = (int.from_bytes(content[i : i + 4], "big") for i in (16, 20))
    assert (width, height) == (1290, 1440)
    assert len(content) > 50_000, "an empty picture compresses to less"


@pytest.mark.parametrize("epochs", ["0", "-3", "2.5", "many"])
def test_wrong_number_of_epochs_is_refused(
    epochs: str, quickstart: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        quickstart.parse([f"--epochs={epochs}"])
    assert f"must be a positive integer. Got '{epochs}' instead." in capsys.readouterr().err


def test_missing_matplotlib_is_told_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')", "utf-8")
    result = run_quickstart("--output", str(tmp_path / "out"), path=str(tmp_path))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.strip().endswith('Run in the clone of askew: pip install ".[plot]"')
    assert not (tmp_path / "out").exists()


def test_output_that_is_a_file_is_told_before_the_training(
    tmp_path: Path, quickstart: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(SystemExit, match="File exists"):
        quickstart.main(["--quick", "--output", str(tmp_path / "file")])
    assert capsys.readouterr().out == ""


@pytest.fixture
def quickstart() -> ModuleType:
    specification = importlib.util.spec_from_file_location("quickstart", QUICKSTART)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_on_a_terminal_and_wiped(quickstart: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    quickstart.show_progress("NBD", 1, 2)
    assert terminal.getvalue() == "\rNBD                   [###############               ]  50 %"
    quickstart.show_progress("NBD", 2, 2)
    assert re.fullmatch(r"\rNBD[^\r]*\r {50,}\r", terminal.getvalue())


def test_learning_rate_rises_falls_and_ends_near_zero(quickstart: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    class Recorded(torch.optim.Adam):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            rates.append(self.param_groups[0]["lr"])
            super().step(closure)

    monkeypatch.setattr(torch.optim, "Adam", Recorded)
    generator = torch.Generator().manual_seed(0)
    pairs = quickstart.draw_pairs(3000, generator)
    quickstart.train(askew.make("mahalanobis", 20), pairs, 100, generator, "")
    assert len(rates) == 300
    assert rates[0] == pytest.approx(3e-2 / 101)
    assert max(rates) == rates[100] == pytest.approx(3e-2)
    assert rates[-1] == pytest.approx(3e-2 / 200)


@pytest.mark.parametrize(("count", "epochs"), [(10, 1), (1001, 1)])
def test_quickstart_trains_for_few_steps_too(quickstart: ModuleType, count: int, epochs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    model = askew.make("mahalanobis", 20)
    before = model.state_dict()["weight"].clone()
    quickstart.train(model, quickstart.draw_pairs(count, generator), epochs, generator, "")
    assert not torch.equal(before, model.state_dict()["weight"])


# ---------------------------------------------------------------------- other examples


def run_example(name: str, *arguments: str, folder: Path) -> str:
    """Run an example in a folder, without published data, and return what it prints; it leaves no files."""
    result = run_script(ROOT / "examples" / name, *arguments, folder=folder, ASKEW_DATA=str(folder))
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert not list(folder.iterdir())
    return result.stdout


def figures(output: str, row: str) -> list[float]:
    """Return the numbers of the line that begins with a name."""
    (line,) = re.findall(rf"^{re.escape(row)}:?\s(.*)$", output, flags=re.MULTILINE)
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def test_every_example_is_run_here() -> None:
    here = Path(__file__).read_text("utf-8")
    missing = [path.name for path in (ROOT / "examples").iterdir() if path.is_file() and f'"{path.name}"' not in here]
    # The pictures are those of the repository and take minutes; tests/plot draws the same.
    assert missing in ([], ["pictures.py"])


def test_entailment_tells_the_direction_that_symmetric_distances_cannot(tmp_path: Path) -> None:
    output = run_example("entailment.py", "--steps", "80", folder=tmp_path)
    assert output.startswith("A random tree instead of real words.")
    for name in ("cosine", "mahalanobis"):
        assert figures(output, name)[1] == 0.5
    for name in ("iqe", "nbd", "drift"):
        precision, direction = figures(output, name)
        assert direction > 0.8
        assert precision > figures(output, "mahalanobis")[0] + 0.1


def test_own_loop_works_with_the_line_swapped(tmp_path: Path) -> None:
    output = run_example("own_loop.py", "--steps", "60", folder=tmp_path)
    # Far above .1, which ten classes have by chance; with so few steps not yet what the script reaches.
    assert all(figures(output, name)[0] > 0.6 for name in ("plain Euclidean", "mahalanobis", "nbd"))


def test_retrieval_finds_broader_and_narrower_items(tmp_path: Path) -> None:
    output = run_example("retrieval.py", "--items", "3000", folder=tmp_path)
    broad, narrow = (figures(output, name) for name in ("D(query, item)", "D(item, query)"))
    assert broad[0] > narrow[0] + 1
    assert min(broad[1], narrow[1]) > 0.95


def test_other_engines_find_what_exact_search_finds(tmp_path: Path) -> None:
    output = run_example("engines.py", "faiss", "--items", "500", folder=tmp_path)
    assert output == "faiss, query-first: recall@10 1.000\nfaiss, query-second: recall@10 1.000\n"


def test_the_fitting_divergence_clusters_best(tmp_path: Path) -> None:
    output = run_example("clustering.py", "--points", "500", "--draws", "2", folder=tmp_path)
    normal, counts, durations = (figures(output, noise) for noise in ("normal", "counts", "durations"))
    assert normal[0] > normal[2]
    assert max(counts) == counts[1] > counts[0] + 0.1
    assert max(durations) == durations[2] > durations[0] + 0.1


def test_travel_times_need_both_directions_and_the_triangle(tmp_path: Path) -> None:
    output = run_example("travel_times.py", "--side", "12", "--pairs", "2000", "--steps", "150", folder=tmp_path)
    names = ("mahalanobis-norm", "nbd", "iqe", "drift-root")
    symmetric, bregman, quasimetric, drift = (figures(output, name) for name in names)
    assert symmetric[1] == 0.5
    assert symmetric[2] == quasimetric[2] == 0 < bregman[2]
    assert min(quasimetric[1], drift[1]) > 0.7
    assert max(quasimetric[0], drift[0]) < symmetric[0]


def test_cells_of_the_notebook_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "tour.ipynb").read_text("utf-8"))["cells"]
    names: dict[str, object] = {"__name__": "notebook"}
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for number, cell in enumerate(code):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec", dont_inherit=True), names)
    assert "Not symmetric" in output.getvalue()
    assert names["learned_score"] > names["plain_score"]  # type: ignore[operator]
    purities = names["purities"]
    assert purities["itakura-saito"] > purities["euclidean"]  # type: ignore[index]
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- pages


def code_blocks(text: str) -> list[str]:
    """Return the Python blocks of a page, each preceded by as many empty lines as make its line numbers right."""
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return ["\n" * text.count("\n", 0, block.start(1)) + block[1] for block in blocks]


def announced(block: str) -> list[str]:
    """Return what the lines of a block that print say that they print: the comment at their end."""
    return re.findall(r"^ *print\(.*\) +# (.*)$", block, flags=re.MULTILINE)


def run_blocks(text: str, name: str) -> None:
    """Run the blocks of a page one after the other, as one program, and compare what each prints with its comments."""
    names: dict[str, object] = {"__name__": "page"}
    for block in code_blocks(text):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block, name, "exec", dont_inherit=True), names)
        said, printed = announced(block), output.getvalue().splitlines()
        assert len(said) == block.count("print("), f"{name}: a print without a comment that says what it prints"
        # After a colon the comment may explain.
        matches = [line in (comment, comment.partition(": ")[0]) for line, comment in zip(printed, said, strict=True)]
        assert all(matches), f"{name} says {said} but prints {printed}"


@pytest.mark.parametrize("page", PAGES)
def test_code_on_pages_runs_and_prints_what_it_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text("utf-8")
    assert len(code_blocks(text)) >= 2
    torch.manual_seed(0)
    run_blocks(text, page)
    assert not list(tmp_path.iterdir()), "code on a page leaves files behind"


def test_wrong_comments_and_errors_on_a_page_are_found() -> None:
    page = "text\n```python\nx = 1\n```\nmore\n```python\nprint(x + 1)  # {}\n```\n"
    run_blocks(page.format("2"), "page")
    run_blocks(page.format("2: the sum"), "page")
    with pytest.raises(AssertionError, match=r"page says \['3'\] but prints \['2'\]"):
        run_blocks(page.format("3"), "page")
    with pytest.raises(AssertionError, match="a print without a comment"):
        run_blocks(page.replace("  # {}", ""), "page")
    with pytest.raises(NameError) as caught:
        run_blocks(page.replace("x = 1", "z = 1"), "page")
    assert caught.traceback[-1].lineno == 6  # counted from 0: the line of the page


def test_readme_is_short_and_shows_code_early() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 120
    assert lines.index("```python") < 30


def table_rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table after a heading, without its head."""
    _, _, after = text.partition(f"\n## {heading}\n")
    lines = after.split("\n## ")[0].splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_table_of_promises_is_true_of_the_catalogue() -> None:
    rows = table_rows((ROOT / "docs/choosing.md").read_text("utf-8"), "The catalogue")
    expected = {}
    for name, entry in CATALOGUE.items():
        divergence = askew.make(name, 4)
        properties = {"learned": entry.learned, "symmetric": divergence.symmetric, "triangle": divergence.triangle}
        domain = str(divergence.domain)
        held = [word for word, holds in properties.items() if holds] + ([domain] if domain != "real" else [])
        expected[name] = ", ".join(held) or "none"
        assert entry.learned == any(True for _ in divergence.parameters())
    assert {row[0].strip("`"): row[1] for row in rows} == expected
    assert len(rows) == len(expected)
    assert all(len(row) == 3 and all(row) for row in rows)


def test_readme_lists_the_whole_catalogue() -> None:
    rows = table_rows((ROOT / "README.md").read_text("utf-8"), "Catalogue")
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]
    assert sorted(listed) == sorted(askew.names())


def wrapped(cell: str, inner: Divergence) -> Divergence:
    name = cell.partition("(")[0]
    wrapper = getattr(askew.divergences, name)
    second = {"second": torch.nn.Identity()} if "second=" in cell else {}
    divergence: Divergence = wrapper(torch.nn.Identity(), inner, **second) if name == "Embedded" else wrapper(inner)
    return divergence


def test_table_of_wrappers_is_true() -> None:
    rows = table_rows((ROOT / "docs/choosing.md").read_text("utf-8"), "Wrappers")
    assert len(rows) == 10
    for cell, _, symmetric, triangle in rows:
        name = cell.strip("`").partition("(")[0]
        of_bregman = name in {"Drift", "Jensen", "GeneralizedSymmetrized", "Dual"}
        bases = ("nbd",) if of_bregman else ("nbd", "iqe", "mahalanobis-norm")
        for base in bases:
            inner = askew.make(base, 4)
            outer = wrapped(cell.strip("`"), inner)
            assert outer.symmetric == {"yes": True, "no": False, "as D": inner.symmetric}[symmetric], (name, base)
            assert (
                outer.triangle == {"yes": True, "no": False, "kept": inner.triangle, "as D": inner.triangle}[triangle]
            )
