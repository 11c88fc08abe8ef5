"""The numbers of the paper, against its LaTeX."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest
from askew_paper.data import graph_names, table_names
from askew_paper.data.graphs import GRIDS, STEPS, is_directed
from askew_paper.published import METHODS, OTHERS, PUBLISHED, SHADOW_CONES, TABLES, Published, published

import askew

SEED = Path(os.environ.get("ASKEW_SEED", Path(askew.__file__).parents[3] / "shared/seed"))
CELLS = [cell for cells in PUBLISHED.values() for cell in cells]
# The tables in the order of the paper; two have no label, so they are known by their place.
ORDER = [
    "comparison",
    "tab:distr",
    "tab:ranking",
    "tbl:sim_errors_correlation",
    "tab:deep-metric",
    "tab:semantic",
    "tbl:short_path_results",
    "tab:runtime",
    "tab:shortest_path_datasets",
    "tab:ranking-full",
]
COUNTS = {
    "tab:distr": 30,
    "tab:ranking": 80,
    "tbl:sim_errors_correlation": 60,
    "tab:deep-metric": 15,
    "tab:semantic": 10,
    "tbl:short_path_results": 70,
    "tab:runtime": 15,
    "tab:ranking-full": 120,
    SHADOW_CONES: 70,
}
# Those of the paper; one is from another.
OF_PAPER = [name for name in TABLES if name != SHADOW_CONES]
WITH_SPREAD = {"tab:distr", "tab:ranking-full", "tab:runtime"}
# How the paper writes what has another name here; the rest differs in upper case only.
WORDS = {
    "balance scale": "balance",
    "balance-scale": "balance",
    "rand index": "rand",
    "$x\\log x$": "xlogx",
    "train": "train-loss",
    "test": "test-loss",
    "pairwise distance": "pairwise",
}
# Where all columns share one score, the caption says which.
ONLY_SCORE = {
    "tbl:sim_errors_correlation": "mae",
    "tab:deep-metric": "map@10",
    "tab:semantic": "mse",
    "tab:runtime": "time",
}

Key = tuple[str, str, str]  # setting, the method's name in the paper, score
Printed = tuple[str, str | None]  # mean, spread


def paper() -> str:
    """Return the LaTeX without comments."""
    files = sorted(SEED.glob("*.txt")) if SEED.is_dir() else []
    texts = [text for text in (path.read_text("utf-8") for path in files) if r"\label{tab:distr}" in text]
    if not texts:
        pytest.skip(f"the LaTeX of the paper is not in {SEED}; ASKEW_SEED names the folder")
    return re.sub(r"(?<!\\)%.*", "", texts[0])


def tabulars(text: str) -> dict[str, str]:
    """Return the body of each table, and check that the labels are those of ``ORDER``."""
    found = re.findall(r"\\begin\{(table|wraptable)\}(.*?)\\end\{\1\}", text, flags=re.DOTALL)
    assert len(found) == len(ORDER)
    bodies = {}
    for name, (_, inside) in zip(ORDER, found, strict=True):
        label = re.search(r"\\label\{(.*?)\}", inside)
        assert label is None or label[1] == name
        # Greedy, since a cell may hold a tabular of its own.
        outer = re.search(r"\\begin\{tabular\}\{((?:@\{\}|\w)+)\}(.*)\\end\{tabular\}", inside, flags=re.DOTALL)
        assert outer is not None
        bodies[name] = outer[2]
    return bodies


def grid(body: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows above the middle rule and those below it, as plain text, spanning cells repeated."""
    # Lines within one cell become spaces.
    body = re.sub(r"\\begin\{tabular\}\[c\]\{@\{\}\w@\{\}\}(.*?)\\end\{tabular\}", plain_lines, body, flags=re.DOTALL)
    body = re.sub(r"\\(cmidrule(\(\w+\))?|cline)\{[\d-]+\}|\\toprule|\\bottomrule", "", body)
    head, middle, rest = body.partition(r"\midrule")
    assert middle
    above = [row for row in map(cells_of, head.split(r"\\")) if any(row)]
    below = [row for row in map(cells_of, rest.replace(r"\midrule", "").split(r"\\")) if any(row)]
    return above, below


def plain_lines(match: re.Match[str]) -> str:
    return re.sub(r"\s*\\\\\s*", " ", match[1])


def cells_of(row: str) -> list[str]:
    cells: list[str] = []
    for cell in row.replace(r"\bregman", "NBD").split("&"):
        span = re.fullmatch(r"\\multicolumn\{(\d+)\}\{\w\}\{(.*)\}", cell.strip())
        cells += [span[2]] * int(span[1]) if span else [cell.strip()]
    return cells


def word(text: str) -> str:
    text = text.lower()
    return WORDS.get(text, text)


def number(cell: str) -> Printed:
    r"""Return the mean and the spread of ``$\mathbf{0.83}_{\ 0.03}$``, ``0.73 (0.08)`` or ``\textit{0.17}``."""
    cell = re.sub(r"\\(?:mathbf|textbf|textit)\{([^{}]*)\}", r"\1", cell.strip("$"))
    match = re.fullmatch(r"(\d+\.\d+)(?:_\{\\ (\d+\.\d+)\}| \((\d+\.\d+)\))?", cell)
    assert match is not None, cell
    return match[1], match[2] or match[3]


def read(name: str, body: str) -> dict[Key, Printed]:
    """Return the numbers of a table by what they are of."""
    above, below = grid(body)
    found: dict[Key, Printed] = {}
    setting = ""
    for row in below:
        by_setting = name.startswith("tab:ranking")
        if by_setting:
            first = re.fullmatch(r"\\multirow\{5\}\{\*\}\{(.*)\}", row[0])
            setting = word(first[1]) if first else setting
        method = row[1] if by_setting else row[0]
        for index in range(2 if by_setting else 1, len(row)):
            titles = [word(head[index]) for head in above if head[index]]
            if by_setting:
                key = (setting, method, *titles)
            elif name in ONLY_SCORE:
                key = ("/".join(titles), method, ONLY_SCORE[name])
            else:
                key = (titles[0], method, *titles[1:])
            assert len(key) == 3
            assert key not in found
            found[key] = number(row[index])
    return found


def printed(cell: Published) -> Printed:
    return f"{cell.mean:.{TABLES[cell.table].digits}f}", None if cell.spread is None else f"{cell.spread:.2f}"


@pytest.mark.parametrize("name", OF_PAPER)
def test_every_number_is_that_of_the_paper(name: str) -> None:
    expected = read(name, tabulars(paper())[name])
    ours = {(cell.setting, cell.label, cell.score): printed(cell) for cell in CELLS if cell.table == name}
    assert ours == expected
    assert len(expected) == COUNTS[name]


@pytest.mark.parametrize("name", OF_PAPER)
def test_no_number_of_the_paper_is_left_out(name: str) -> None:
    # By counting decimals in the raw text, so that a cell which the reading above missed would show.
    decimals = Counter(re.findall(r"\d+\.\d+", tabulars(paper())[name]))
    ours = Counter(text for cell in CELLS if cell.table == name for text in printed(cell) if text is not None)
    assert ours == decimals


def test_the_other_tables_of_the_paper_are_known() -> None:
    bodies = tabulars(paper())
    assert set(bodies) - set(OF_PAPER) == {"comparison", "tab:shortest_path_datasets"}
    assert not re.search(r"\d\.?\d", bodies["comparison"])  # only the exponent of n^3


def test_graphs_are_those_of_the_paper() -> None:
    _, rows = grid(tabulars(paper())["tab:shortest_path_datasets"])
    assert {row[0] for row in rows} == set(graph_names())
    for name, asymmetric, dimension, weights, details in rows:
        made = GRIDS[name]
        dimensions = len(made.steps[0])
        assert is_directed(name) == {"Yes": True, "No": False}[asymmetric]
        assert (made.side,) * dimensions == tuple(map(int, dimension.split()[0].split("x")))
        assert re.findall(r"\d+\.\d+", weights) == [f"{step / STEPS:.2f}" for step in (1, 2, STEPS)]
        assert made.sampled == ("Normal" in weights)
        assert made.one_way == ("only one edge" in details)
        assert made.wraps or "no wrap" in details
        assert (len(made.steps) > dimensions) == ("diagonals connected" in dimension)


def test_counts() -> None:
    assert Counter(cell.table for cell in CELLS) == COUNTS
    assert {cell.table for cell in CELLS if cell.spread is not None} == WITH_SPREAD
    assert all(cell.spread is not None for cell in CELLS if cell.table in WITH_SPREAD)
    assert all(TABLES[cell.table].experiment == name for name, cells in PUBLISHED.items() for cell in cells)


def test_no_cell_is_there_twice() -> None:
    keys = Counter((cell.table, cell.setting, cell.method, cell.score) for cell in CELLS)
    assert max(keys.values()) == 1


def test_names_are_known() -> None:
    ours = [cell for cell in CELLS if cell.table in OF_PAPER]
    assert {cell.method for cell in ours} == set(METHODS.values()) <= set(askew.names())
    assert {cell.method for cell in CELLS} - set(METHODS.values()) == set(OTHERS.values())
    assert all((METHODS | OTHERS)[cell.label] == cell.method for cell in CELLS)
    assert {cell.setting for cell in published("ranking")} == set(table_names())
    assert {cell.setting for cell in published("shortest-path")} == set(graph_names())


def test_values_are_possible() -> None:
    for cell in CELLS:
        top = {"fraction": 1, "percent": 100}.get(TABLES[cell.table].unit, float("inf"))
        assert 0 <= cell.mean <= top, cell
        assert cell.spread is None or 0 <= cell.spread <= top, cell
    fractions = {cell.score for cell in CELLS if TABLES[cell.table].unit == "fraction"}
    assert fractions == {"purity", "rand", "map", "auc"}


def test_the_two_tables_of_the_ranking_agree() -> None:
    full = {(c.setting, c.method, c.score): c.mean for c in published("ranking", table="tab:ranking-full")}
    short = {(c.setting, c.method, c.score): c.mean for c in published("ranking", table="tab:ranking")}
    assert len(short) == 80
    assert short.items() <= full.items()


def test_selection() -> None:
    assert len(published("regression", method="nbd")) == 12
    assert [cell.mean for cell in published("regression", "kl/none", "mahalanobis")] == [0.23]
    assert {cell.label for cell in published("shortest-path", "taxi", score="test-loss")} >= {"Bregman-GS", "NBD"}
    assert published("regression", method="iqe") == published("overlap") == ()
    with pytest.raises(ValueError, match=r"experiment of published must be one of .*Did you mean 'ranking'"):
        published("rankings")
