"""Tables show every figure there should be, mark it rightly, and print what is in the data as text."""

from __future__ import annotations

import dataclasses
import html.parser
import io
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.curves import Curve, curves, draw
from askew_paper.experiment import MAE, PURITY, Cell, Claim, Experiment, Outcome, Score, grid
from askew_paper.published import Published, published
from askew_paper.report import (
    Table,
    details,
    escape_markdown,
    option_notes,
    overview,
    page,
    sections,
    text,
    to_markdown,
    write_report,
)
from askew_paper.rows import Row, append_row
from askew_paper.summary import compare, judge, mark

from askew.plot.frame import CYCLE

PAPERS = (
    Published("table 1", "small", "nbd", "mae", 0.50, 0.10, "NBD"),
    Published("table 1", "large", "nbd", "mae", 0.70, None, "NBD"),
    Published("table 1", "small", "forgotten", "mae", 0.90, 0.10, "Forgotten"),
)
STARTED = "2023-05-01T00:00:00Z"
EVIL = "<script>alert('|')</script> `a` *b* _c_ [d](e) & $f$"


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    epochs = {"quick": 5, "paper": 200}[scale]
    return grid("sums", scale, seeds, ["small", "large"], ["nbd", "nbd-paper"], {"epochs": epochs, "rate": 1e-3})


def never(cell: Cell) -> Outcome:
    raise AssertionError("a report computes nothing")


SUMS = Experiment(
    "sums",
    "Sums of numbers",
    ("table 1",),
    (MAE,),
    {"quick": 2, "paper": 3},
    {"quick": 1.0, "paper": 9.0},
    cells,
    never,
    published=PAPERS,
    against={"nbd-paper": "nbd"},
    notes=("Numbers are numbers.",),
)


def make_rows(scale: str = "paper", seeds: int = 3, **changes: Any) -> list[Row]:
    found = []
    for cell in cells(scale, seeds):
        score = {"nbd": 0.2, "nbd-paper": 0.55}[cell.method] + 0.01 * cell.seed + 0.1 * (scale == "quick")
        curve = (4.0 + cell.seed, 2.0, score)
        row = Row(cell, {"mae": score}, 2.0, STARTED, {"test MAE": curve}, commit="abcdef0123456789+")
        found.append(dataclasses.replace(row, machine={"cores": 2}, versions={"torch": "2"}, **changes))
    return found


def texts(table: Table) -> list[tuple[str, ...]]:
    return list(table.frame.itertuples(index=False, name=None))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for row in make_rows():
        append_row(tmp_path / "sums.jsonl", row)
    return tmp_path


def test_a_setting_may_have_fewer_scores() -> None:
    both = dataclasses.replace(SUMS, scores=(MAE, PURITY), published=())
    rows = [
        dataclasses.replace(row, scores={**row.scores, "purity": 0.9}) if row.cell.setting == "small" else row
        for row in make_rows()
    ]
    table = compare(both, rows, "paper").table
    assert set(table["setting"][table["score"] == "purity"]) == {"small"}
    assert (table["seeds"] == 3).all()
    # A score that some rows of a setting have is missing where a method lacks it; so is all of a setting without rows.
    fewer = [row for row in rows if (row.cell.setting, row.cell.method) == ("small", "nbd")]
    table = compare(both, fewer, "paper").table
    assert len(table) == 8
    assert (table["seeds"] == 0).sum() == 6


# ---------------------------------------------------------------------- marks


@pytest.mark.parametrize(
    ("ours", "half", "paper", "spread", "lower", "expected"),
    [
        (0.40, 0.0, 0.50, None, True, "better"),
        (0.40, 0.0, 0.50, None, False, "worse"),
        (0.60, 0.0, 0.50, None, True, "worse"),
        (0.60, 0.0, 0.50, None, False, "better"),
        # Within the paper's spread, or within our interval; just beyond both.
        (0.40, 0.01, 0.50, 0.11, True, "within"),
        (0.40, 0.11, 0.50, 0.01, True, "within"),
        (0.40, 0.09, 0.50, 0.09, True, "better"),
        (0.60, 0.09, 0.50, 0.09, True, "worse"),
        # What is the same once rounded is no difference; what is not, is.
        (0.5004, 0.0, 0.50, None, True, "within"),
        (0.4996, 0.0, 0.50, None, True, "within"),
        (0.5006, None, 0.50, 0.0, True, "worse"),
        # Of one run and a figure without a spread nobody can tell.
        (0.40, None, 0.50, None, True, ""),
    ],
)
def test_marks(ours: float, half: float | None, paper: float, spread: float | None, lower: bool, expected: str) -> None:
    widths = (math.nan if width is None else width for width in (half, spread))
    assert mark(ours - paper, *widths, 3, lower) == expected


@pytest.mark.parametrize(("ours", "expected"), [(0.004, "within"), (0.006, "worse")])
def test_rounding_is_that_of_the_paper(ours: float, expected: str) -> None:
    papers = published("regression", "euclidean/none", "mahalanobis", "mae")
    assert [paper.mean for paper in papers] == [0.0]
    experiment = dataclasses.replace(
        SUMS,
        cells=lambda scale, seeds: grid("sums", scale, seeds, ["euclidean/none"], ["mahalanobis"], {}),
        published=papers,
    )
    rows = [Row(cell, {"mae": ours}, 1.0, STARTED) for cell in experiment.cells("paper", 2)]
    assert list(compare(experiment, rows, "paper").table["mark"]) == [expected]


def test_figures_of_the_toy_scale_are_not_judged() -> None:
    rows = [dataclasses.replace(row, cell=dataclasses.replace(row.cell, scale="toy")) for row in make_rows()]
    toy = dataclasses.replace(
        SUMS,
        seeds={"toy": 3},
        minutes={"toy": 1.0},
        cells=lambda _, seeds: [row.cell for row in rows if row.cell.seed < seeds],
    )
    found = compare(toy, rows, "toy").table
    assert found[["published", "mean"]].notna().all(axis=1).any()
    assert set(found["mark"]) == {""}


def test_without_one_side_there_is_no_mark() -> None:
    for experiment, rows in ((dataclasses.replace(SUMS, published=()), make_rows()), (SUMS, [])):
        found = compare(experiment, rows, "paper").table
        assert set(found["mark"]) == {""}
        assert found["difference"].isna().all()


def test_figures_of_other_data_are_shown_and_not_judged() -> None:
    experiment = dataclasses.replace(SUMS, incomparable={"small": ("paper",), "large": ("quick",)})
    assert texts(overview(compare(experiment, make_rows(), "paper"), MAE))[0] == (
        "nbd",
        "0.210±0.025 (0.500)",
        "0.210±0.025 ▲ (0.700)",
    )
    line = texts(details(compare(experiment, make_rows(), "paper"), "small"))[0]
    assert line[2:6] == ("0.500 ± 0.100", "0.210 ± 0.025", "", "")


# ---------------------------------------------------------------------- tables


def test_every_figure_is_there() -> None:
    table = details(compare(SUMS, make_rows(), "paper"), "small")
    names = ("Method", "Score", "Published", "Ours (95 % interval)", "Difference", "Mark", "Seeds", "Seconds a run")
    assert tuple(table.frame.columns) == names
    half = f"{4.302652729911275 * 0.01 / np.sqrt(3):.3f}"
    assert texts(table) == [
        ("nbd", "MAE", "0.500 ± 0.100", f"0.210 ± {half}", "-0.290", "▲ better", "3", "2"),
        ("nbd-paper", "MAE", "0.500 ± 0.100", f"0.560 ± {half}", "+0.060", "● within the spread", "3", "2"),
        ("forgotten", "MAE", "0.900 ± 0.100", "missing", "", "", "0", ""),
    ]
    assert table.note == "Scale: paper. Seeds: 3. Missing: 1 of 3."


def test_overview_has_methods_by_settings() -> None:
    table = overview(compare(SUMS, make_rows(), "paper"), MAE)
    assert table.title == "MAE (lower is better)"
    assert list(table.frame.columns) == ["Method", "small", "large"]
    assert texts(table) == [
        ("nbd", "0.210±0.025 ▲ (0.500)", "0.210±0.025 ▲ (0.700)"),
        ("nbd-paper", "0.560±0.025 ● (0.500)", "0.560±0.025 ▲ (0.700)"),
        ("forgotten", "missing (0.900)", ""),
    ]
    written = page(sections(make_rows(), [SUMS]))
    assert '<td>forgotten</td>\n<td class="missing">missing (0.900)</td>\n<td></td>' in written
    assert '<td class="better">0.210±0.025 ▲ (0.500)</td>' in written


def test_scales_are_never_mixed() -> None:
    rows = make_rows("quick", seeds=2) + make_rows("paper", seeds=3)
    found = {scale: overview(compare(SUMS, rows, scale), MAE) for scale in ("quick", "paper")}
    assert texts(found["paper"])[0][1].startswith("0.210±")
    assert texts(found["quick"])[0][1].startswith("0.305±")
    assert found["quick"].note.startswith("Scale: quick. Seeds: 2.")
    assert option_notes(compare(SUMS, rows, "quick")) == ["Settings of all: epochs 5, rate 0.001."]
    only = overview(compare(SUMS, make_rows("quick"), "paper"), MAE)
    assert {line[1] for line in texts(only)} == {"missing (0.500)", "missing (0.900)"}
    assert only.note == "Scale: paper. Seeds: none yet. Missing: 5 of 5."


def test_missing_cells_and_seeds_are_told() -> None:
    rows = [
        row for row in make_rows() if row.cell.setting == "small" and (row.cell.method == "nbd" or row.cell.seed == 0)
    ]
    table = overview(compare(SUMS, rows, "paper"), MAE)
    assert list(table.frame.columns) == ["Method", "small"]  # a setting without rows is counted, not shown
    # So few seeds do not compete, and are grey in HTML.
    assert texts(table)[1][1] == "0.550 seeds: 1 ● (0.500)"
    assert '<td class="missing">0.550 seeds: 1' in page(sections(rows, [SUMS]))
    unpublished = dataclasses.replace(SUMS, published=())
    few = overview(compare(unpublished, [row for row in rows if row.cell.method == "nbd"], "paper"), MAE)
    assert [line[0] for line in texts(few)] == ["nbd"]
    assert table.note == "Scale: paper. Seeds: 1 to 3 of 3. Missing: 3 of 5."


def test_rows_with_other_options_are_left_out() -> None:
    old = [dataclasses.replace(row, cell=dataclasses.replace(row.cell, options=())) for row in make_rows()]
    found = compare(SUMS, make_rows() + old, "paper")
    assert found.stale == 12
    assert texts(overview(found, MAE)) == texts(overview(compare(SUMS, make_rows(), "paper"), MAE))


def test_variants_of_a_method_are_told_apart() -> None:
    def variants(scale: str, seeds: int) -> Iterator[Cell]:
        for width in (8, 16):
            yield from grid("sums", scale, seeds, ["small"], ["nbd"], {"widths": (width, width), "rate": 1e-3})

    experiment = dataclasses.replace(SUMS, cells=variants, published=())
    found = compare(experiment, [], "paper")
    assert texts(details(found, "small")) == [
        ("nbd (widths 8x8)", "MAE", "missing", "0", ""),
        ("nbd (widths 16x16)", "MAE", "missing", "0", ""),
    ]
    assert option_notes(found) == [
        "Settings of all: rate 0.001.",
        "Settings of nbd (widths 8x8): widths 8x8.",
        "Settings of nbd (widths 16x16): widths 16x16.",
    ]


def test_options_that_differ_say_where() -> None:
    def own(setting: str, method: str) -> dict[str, Any]:
        return {"epochs": 5, "rate": 0.1 if (setting, method) == ("large", "nbd") else 0.2}

    experiment = dataclasses.replace(
        SUMS, cells=lambda s, n: grid("sums", s, n, ["small", "large"], ["nbd", "nbd-paper"], own)
    )
    assert option_notes(compare(experiment, [], "paper")) == [
        "Settings of all: epochs 5.",
        "Settings of nbd (small); nbd-paper: rate 0.2.",
        "Settings of nbd (large): rate 0.1.",
    ]


def test_options_of_nearly_all_methods_name_the_others() -> None:
    def own(setting: str, method: str) -> dict[str, Any]:
        return {"epochs": 5} | ({} if method == "mean" else {"side": 20 if setting == "small" else 9})

    methods = ["mean", "mahalanobis", "nbd", "nbd-paper"]
    experiment = dataclasses.replace(SUMS, cells=lambda s, n: grid("sums", s, n, ["small", "large"], methods, own))
    assert option_notes(compare(experiment, [], "paper")) == [
        "Settings of all: epochs 5.",
        "Settings of all but mean (small): side 20.",
        "Settings of all but mean (large): side 9.",
    ]


def test_of_two_published_values_the_one_with_a_spread_is_taken() -> None:
    bare = dataclasses.replace(PAPERS[0], table="table 2", spread=None)
    for papers in ((bare, PAPERS[0]), (PAPERS[0], bare)):
        experiment = dataclasses.replace(SUMS, published=papers)
        assert texts(details(compare(experiment, [], "paper"), "small"))[0][2] == "0.500 ± 0.100"


def test_figures_of_the_paper_fit() -> None:
    papers = published("clustering")
    rand = Score("rand", "Rand", lower_is_better=False)
    experiment = dataclasses.replace(
        SUMS, name="clustering", scores=(PURITY, rand), published=papers, cells=lambda s, n: ()
    )
    table = overview(compare(experiment, [], "paper"), PURITY)
    assert list(table.frame.columns) == ["Method", "exponential", "gaussian", "multinomial"]
    assert texts(table)[0] == ("nbd", "missing (0.735)", "missing (0.913)", "missing (0.921)")


def test_zero_has_no_sign() -> None:
    rows = [dataclasses.replace(row, scores={"mae": 0.4999}) for row in make_rows(seeds=1)]
    assert texts(details(compare(SUMS, rows, "paper"), "small"))[0][4] == "0.000"


# ---------------------------------------------------------------------- as text


class Seen(html.parser.HTMLParser):
    """Which elements a page has, what it would load, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.links += [value or "" for name, value in attributes if name in {"src", "href", "action", "data", "srcset"}]

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(source: str) -> Seen:
    parser = Seen()
    parser.feed(source)
    return parser


def test_markdown_shows_text_as_it_is() -> None:
    table = Table(EVIL, "", pd.DataFrame({"Method": [EVIL], "x": ["1\n2"]}))
    lines = to_markdown(table, 4).splitlines()
    # Bars that are no borders of fields are escaped.
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines[-3:]] == [3, 3, 3]
    assert "<" not in "".join(lines)
    assert lines[-1].endswith("| 1 2 |")
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    found = seen(markdown.render(to_markdown(table, 4)))
    assert not found.elements & {"script", "em", "strong", "code", "a"}
    assert EVIL in found.text


def test_underscores_inside_words_stay() -> None:
    assert escape_markdown("learning_rate _a_") == r"learning_rate \_a\_"


def test_report_is_whole_and_loads_nothing(results: Path, tmp_path: Path) -> None:
    files = write_report(results, tmp_path / "a" / "b", [SUMS])
    names = ["results.md", "results.html", "sums.md", "sums-paper.csv", "sums-paper-0.png"]
    assert [file.name for file in files] == names
    source = files[1].read_text("utf-8")
    found = seen(source)
    assert not found.elements & {"script", "link", "iframe", "object", "embed"}
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in found.links)
    assert any(link.startswith("data:") for link in found.links)
    assert not re.search(r"url\(|@import|https?:", source)
    assert "prefers-color-scheme: dark" in source
    assert 'name="viewport" content="width=device-width' in source
    assert "[Sums of numbers](results/sums.md)" in files[0].read_text("utf-8")
    markdown = files[2].read_text("utf-8")
    assert "[sums-paper.csv](sums-paper.csv)" in markdown
    assert len(pd.read_csv(files[3])) == 5
    for some in (found.text, markdown):
        for phrase in (
            "Sums of numbers, paper scale",
            "Scale: paper. Seeds: 3. Missing: 1 of 5.",
            "Settings of all: epochs 200, rate 0.001.",
            "0.210±0.025 ▲ (0.500)",
            "missing (0.900)",
            "Numbers are numbers.",
            "12 rows, 0.0067 hours together, on 2 cores. Commit: abcdef0123+. Versions: torch 2.",
            "Within the spread: the difference is no larger than",
        ):
            assert phrase in some
    assert "](sums-paper-0.png)" in markdown
    assert files[4].read_bytes().startswith(b"\x89PNG")


def test_pages_are_short() -> None:
    docs = Path(__file__).parents[2] / "docs"

    def words(page: str) -> int:
        return len([word for word in page.split() if word not in ("|", "---")])

    assert words((docs / "results.md").read_text("utf-8")) <= 1500
    for file in (docs / "results").glob("*.md"):
        visible, inner = file.read_text("utf-8"), r"<details[^>]*>(?:(?!<details).)*?</details>"
        while "<details" in visible:
            visible = re.sub(inner, "", visible, flags=re.DOTALL)
        assert words(visible) < 600, file


def test_same_results_give_the_same_files(results: Path, tmp_path: Path) -> None:
    first = [file.read_bytes() for file in write_report(results, tmp_path / "a", [SUMS])]
    assert first == [file.read_bytes() for file in write_report(results, tmp_path / "b", [SUMS])]


def test_names_in_results_cannot_break_out_of_the_page() -> None:
    experiment = dataclasses.replace(
        SUMS,
        title=EVIL,
        makes=(EVIL,),
        notes=(EVIL,),
        cells=lambda s, n: grid("sums", s, n, [EVIL], [EVIL], {EVIL: EVIL}),
    )
    cell = next(iter(experiment.cells("paper", 1)))
    row = Row(cell, {"mae": 1.0}, 1.0, STARTED, {EVIL: (1.0, 2.0)}, commit=EVIL, machine={"cores": EVIL})
    found = sections([row], [experiment])
    parsed = seen(page(found, [f"# {escape_markdown(EVIL)}"]))
    assert "script" not in parsed.elements
    assert not parsed.elements & {"em", "code"}
    assert parsed.text.count(EVIL) > 10
    assert all(link.startswith(("data:image/png", "#")) for link in parsed.links)
    # Nothing but what folds the tables of all figures is markup.
    assert "<" not in re.sub(r'</?(?:details|summary)(?: markdown="1")?>', "", text(found, [escape_markdown(EVIL)]))


def test_experiment_without_rows_is_shown_as_missing() -> None:
    [section] = sections([], [SUMS])
    assert section.name == "sums-paper"
    assert "No results yet. Make them with: askew-paper run sums --scale paper" in section.notes
    assert "missing (0.500)" in text([section])


def test_each_scale_with_rows_has_a_section() -> None:
    found = sections(make_rows("quick") + make_rows("paper"), [SUMS])
    assert [section.name for section in found] == ["sums-paper", "sums-quick"]
    assert found[1].notes[0].startswith("Quick scale: reduced")


def test_what_is_left_out_is_said(results: Path, tmp_path: Path) -> None:
    old = dataclasses.replace(make_rows()[0].cell, options=())
    append_row(results / "sums.jsonl", Row(old, {"mae": 1.0}, 1.0, STARTED))
    append_row(results / "gone.jsonl", Row(Cell("gone", "a", "b", 0, "quick"), {"mae": 1.0}, 1.0, STARTED))
    front, _, page_of_sums, *_ = write_report(results, tmp_path / "out", [SUMS])
    assert "Left out: 1 rows with other settings than the experiment has now." in page_of_sums.read_text("utf-8")
    assert "Left out: rows of 'gone', as there is no experiment of this name." in front.read_text("utf-8")


def test_experiments_without_rows_have_a_page_only_if_asked(results: Path, tmp_path: Path) -> None:
    other = dataclasses.replace(SUMS, name="others", cells=lambda s, n: grid("others", s, n, ["a"], ["b"], {}))
    names = [file.name for file in write_report(results, tmp_path / "out", [SUMS, other])]
    assert not any("others" in name for name in names)
    names = [file.name for file in write_report(results, tmp_path / "out", [SUMS, other], everything=True)]
    assert "others.md" in names


# ---------------------------------------------------------------------- claims


def judged(claim: Claim, rows: list[Row]) -> list[tuple[str, str, str]]:
    experiment = dataclasses.replace(SUMS, claims=(claim,))
    table = judge(compare(experiment, rows, "paper"))
    return [(setting, outcome, figures) for _, setting, outcome, figures in table.itertuples(index=False, name=None)]


def test_claims_are_judged_in_each_setting() -> None:
    rows = make_rows()
    found = judged(Claim("", "mae", ("nbd",), ("nbd-paper",)), rows)
    assert [(setting, outcome) for setting, outcome, _ in found] == [
        ("small", "confirmed, clearly"),
        ("large", "confirmed, clearly"),
    ]
    assert found[0][2] == "nbd 0.210 ± 0.025; nbd-paper 0.560 ± 0.025"
    (line,) = judged(Claim("", "mae", ("nbd-paper",), ("nbd",), settings=("large",)), rows)
    assert line[:2] == ("large", "not confirmed, clearly")
    # Methods and settings that are not there decide nothing.
    assert judged(Claim("", "mae", ("nbd",), ("deep-div",)), rows) == []
    assert judged(Claim("", "mae", ("nbd",), ("nbd-paper",), settings=("huge",)), rows) == []
    assert judged(Claim("", "mae", ("nbd",), ("nbd-paper",)), make_rows("quick")) == []


def test_claims_say_which_methods_were_not_run_yet() -> None:
    methods = ["nbd", "nbd-paper", "deep-div"]
    experiment = dataclasses.replace(
        SUMS,
        cells=lambda scale, seeds: grid("sums", scale, seeds, ["small"], methods, {"epochs": 200, "rate": 1e-3}),
        claims=(Claim("", "mae", ("nbd",), ("nbd-paper", "deep-div", "no such method")),),
    )
    table = judge(compare(experiment, make_rows(), "paper"))
    assert table["At this scale"][0] == "confirmed, clearly; not run yet or dead: deep-div"


def test_no_claim_counts_against_a_dead_training() -> None:
    experiment = dataclasses.replace(SUMS, claims=(Claim("", "mae", ("nbd",), ("nbd-paper",)),))
    rows = [
        dataclasses.replace(row, chosen={"dead": True}) if row.cell.method == "nbd-paper" else row
        for row in make_rows()
    ]
    found = compare(experiment, rows, "paper")
    assert judge(found).empty
    assert texts(overview(found, MAE))[1][1] == "0.560±0.025 dead ● (0.500)"


def test_no_claim_is_confirmed_by_a_method_that_has_learned_nothing() -> None:
    claim = Claim("", "mae", ("nbd",), ("nbd-paper",))
    methods = ["nbd", "nbd-paper", "mean"]
    experiment = dataclasses.replace(
        SUMS,
        cells=lambda scale, seeds: grid("sums", scale, seeds, ["small"], methods, {"epochs": 200, "rate": 1e-3}),
        claims=(claim,),
    )
    for error, outcome in ((0.9, "confirmed, clearly"), (0.01, "not confirmed: nothing is learned")):
        rows = make_rows()
        rows += [
            dataclasses.replace(row, cell=dataclasses.replace(row.cell, method="mean"), scores={"mae": error})
            for row in rows
            if row.cell.method == "nbd"
        ]
        assert judge(compare(experiment, rows, "paper"))["At this scale"].tolist() == [outcome]


def test_claims_of_the_best_of_each_and_of_closeness() -> None:
    rows = make_rows(seeds=1)  # 0.20 and 0.55
    both = ("nbd", "nbd-paper")
    for claim, holds in (
        (Claim("", "mae", both, ("nbd-paper",)), True),
        (Claim("", "mae", both, ("nbd-paper",), each=True), False),
        (Claim("", "mae", ("nbd-paper",), ("nbd",), factor=3.0), True),
        (Claim("", "mae", ("nbd-paper",), ("nbd",), factor=2.5), False),
        (Claim("", "mae", ("nbd",), ("nbd-paper",), factor=0.5), True),
        (Claim("", "mae", ("nbd",), ("nbd-paper",), factor=0.3), False),
    ):
        outcomes = {outcome for _, outcome, _ in judged(claim, rows)}
        assert outcomes == {"confirmed (one seed)" if holds else "not confirmed (one seed)"}
    assert Claim("", "mae", (), ()).holds(0.9, 0.8, lower_is_better=False)
    assert not Claim("", "mae", (), ()).holds(0.7, 0.8, lower_is_better=False)


def test_a_claim_of_closeness_says_how_clear_it_is() -> None:
    rows = make_rows()  # 0.210 ± 0.025 and 0.560±0.025
    for factor, outcome in ((3.0, "confirmed, within the spread"), (4.0, "confirmed, clearly")):
        found = judged(Claim("", "mae", ("nbd-paper",), ("nbd",), factor=factor), rows)
        assert {text for _, text, _ in found} == {outcome}


def test_a_claim_by_an_option_is_judged_for_each_of_its_values() -> None:
    # With one thread nbd is ahead, with two it is not; the best of each would be the one thread of both.
    times = {("nbd", 1): 0.1, ("nbd", 2): 0.5, ("nbd-paper", 1): 0.3, ("nbd-paper", 2): 0.4}
    cells_ = [Cell("sums", "small", method, 0, "paper", (("threads", n),)) for method, n in times]
    first = make_rows(seeds=1)[0]
    rows = [
        dataclasses.replace(first, cell=cell, scores={"mae": time})
        for cell, time in zip(cells_, times.values(), strict=True)
    ]
    claim = Claim("", "mae", ("nbd",), ("nbd-paper",), by="threads")
    experiment = dataclasses.replace(SUMS, cells=lambda scale, seeds: cells_, claims=(claim,), published=())
    table = judge(compare(experiment, rows, "paper"))
    assert list(zip(table["Setting"], table["At this scale"], strict=True)) == [
        ("small, threads 1", "confirmed (one seed)"),
        ("small, threads 2", "not confirmed (one seed)"),
    ]


def test_a_claim_about_another_score_is_refused() -> None:
    with pytest.raises(ValueError, match="score of a claim"):
        dataclasses.replace(SUMS, claims=(Claim("", "speed", ("nbd",), ("nbd-paper",)),))


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_claims_name_methods_and_settings_that_are_there(experiment: Experiment) -> None:
    cells = [cell for scale in experiment.seeds for cell in experiment.checked_cells(scale, 1)]
    methods, settings = {cell.method for cell in cells}, {cell.setting for cell in cells}
    for claim in experiment.claims:
        assert {*claim.ahead, *claim.behind} <= methods
        assert not set(claim.ahead) & set(claim.behind)
        assert set(claim.settings) <= settings


def test_claims_stand_before_the_tables() -> None:
    experiment = dataclasses.replace(SUMS, claims=(Claim("NBD is best", "mae", ("nbd",), ("nbd-paper",)),))
    written = text(sections(make_rows(), [experiment]))
    assert written.index("| NBD is best | small, large |  |") < written.index("MAE (lower is better)")
    assert "NBD is best | small | confirmed, clearly" in written


# ---------------------------------------------------------------------- curves


def test_curves_are_means_with_intervals() -> None:
    found = curves(make_rows())
    assert [(curve.setting, curve.method, curve.seeds) for curve in found][:2] == [
        ("small", "nbd", 3),
        ("small", "nbd-paper", 3),
    ]
    np.testing.assert_allclose(found[0].mean, [5.0, 2.0, 0.21])
    np.testing.assert_allclose(
        found[0].half, [4.302652729911275 / np.sqrt(3), 0.0, 0.04302652729911275 / np.sqrt(3)], atol=1e-12
    )


def test_curves_of_unequal_length_end_with_the_shortest() -> None:
    rows = make_rows(seeds=2)[::4]
    rows[1] = dataclasses.replace(rows[1], curves={"test MAE": (1.0,)})
    [curve] = curves(rows)
    np.testing.assert_allclose(curve.mean, [2.5])


def test_picture_has_room_for_the_names_of_many_methods() -> None:
    one = curves(make_rows())[0]
    heights = []
    for number in (3, 40):
        many = [dataclasses.replace(one, method=f"method {i}") for i in range(number)]
        picture = draw(many, "Many")
        heights.append(int.from_bytes(picture[20:24], "big"))  # where PNG has it
    assert heights[1] > 40 * 0.2 * 110 > heights[0]


def test_single_seed_has_no_band() -> None:
    assert all(curve.seeds == 1 and np.isnan(curve.half).all() for curve in curves(make_rows(seeds=1)))
    assert draw(curves(make_rows(seeds=1)), "$ a_b").startswith(b"\x89PNG")


SMALLEST = 5e-324


@pytest.mark.parametrize(
    "values",
    [
        (3.0,),
        (3.0, 3.0),
        (0.0, 0.0),
        (),
        (1e150, -1e150),
        (1e150,),
        (SMALLEST, 1e150),
        (SMALLEST, SMALLEST),
        (1e-320, 3e-320),
        (1.0, 1.0 + 2e-16),
    ],
)
@pytest.mark.parametrize("band", [None, 0.0, 1.0, 1e150])
def test_values_of_any_size_are_drawn(values: tuple[float, ...], band: float | None) -> None:
    mean = np.array(values)
    half = np.full(len(mean), np.nan if band is None else band)
    curve = Curve("loss", "small", "nbd", mean, half, 1 if band is None else 3)
    assert curve.drawable
    assert draw([curve], "Sizes").startswith(b"\x89PNG")


def test_a_single_value_can_be_seen() -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    def coloured(value: float) -> int:
        picture = draw([Curve("loss", "small", "nbd", np.array([value]), np.array([np.nan]), 1)], "One")
        pixels = imread(io.BytesIO(picture))[..., :3]
        return int((np.abs(pixels - to_rgb(CYCLE[0])).max(-1) < 0.05).sum())

    assert coloured(3.0) > coloured(np.nan)  # of which the list of methods is all there is to see


@pytest.mark.parametrize("curve", [(1e308, -1e308), (1e308, 1e308), (1.7e308,), (-1e151, 0.0)])
@pytest.mark.parametrize("seeds", [1, 3])
def test_values_that_no_picture_can_show_are_left_out(curve: tuple[float, ...], seeds: int, tmp_path: Path) -> None:
    rows = make_rows(seeds=seeds)
    bad = {("small", "nbd"), ("large", "nbd")}
    rows = [
        dataclasses.replace(row, curves={"test MAE": curve}) if (row.cell.setting, row.cell.method) in bad else row
        for row in rows
    ]
    for row in rows:
        append_row(tmp_path / "sums.jsonl", row)
    files = write_report(tmp_path, tmp_path / "out", [SUMS])
    assert [file.suffix for file in files] == [".md", ".html", ".md", ".csv", ".png"]
    words = (
        "not drawn are nbd in small, nbd in large, with values or intervals beyond 1e+150, which no picture can show."
    )
    assert words in files[1].read_text("utf-8")
    assert words in files[2].read_text("utf-8")
    one = [dataclasses.replace(row, curves={"test MAE": curve}) for row in rows]
    [section] = sections(one, [SUMS])
    assert [picture.data for picture in section.pictures] == [None]


def test_sections_have_their_places_whatever_their_titles(results: Path, tmp_path: Path) -> None:
    [file] = write_report(results, tmp_path / "page.html", [dataclasses.replace(SUMS, title="\u2028a")])
    text = file.read_text("utf-8")
    assert re.findall(r'<h2 id="(.+?)">', text) == re.findall(r'<li><a href="#(.+?)">', text) != []


def test_without_matplotlib_the_tables_are_still_written(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    files = write_report(results, tmp_path / "out", [SUMS])
    assert [file.suffix for file in files] == [".md", ".html", ".md", ".csv"]
    assert "was not drawn: Drawing curves needs the package" in files[2].read_text("utf-8")
