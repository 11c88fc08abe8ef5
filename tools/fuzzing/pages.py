"""Fuzzing of pages: no element and no attribute may come out of a string from data."""

from __future__ import annotations

import functools
import re
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from askew_paper.experiment import MAE, Cell, Experiment, Outcome
from askew_paper.report import write_report
from askew_paper.rows import Row

import askew
from askew.cli.comparison import Fold, Leaderboard, Standing
from askew.cli.report import write_comparison
from askew.cli.tasks import Classes
from askew.explorer import write_explorer
from fuzzing.changes import hostile_string
from fuzzing.targets import Target, check, place

__all__ = ["TARGETS"]

# All elements that the pages of askew have.
TAGS = frozenset(
    re.findall(
        r"\w+",
        """
        html head meta title style link body header main footer section nav aside script noscript
        h1 h2 h3 h4 p ul ol li dl dt dd details summary figure figcaption img div span br a
        strong em b i small code kbd table caption thead tbody tr th td
        button label input select option fieldset legend output form datalist canvas
        svg g text line circle polyline path rect defs pattern clippath
        """,
    )
)


class Shape(HTMLParser):
    """Collects the elements of a page, the names of their attributes, and where they may lead."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))
        self.scripts += tag == "script"
        check(tag in TAGS, f"an element <{tag}>")
        for name, value in attrs:
            check(not name.startswith("on"), f"an attribute {name}")
            leads = name in ("href", "src") and value is not None
            check(not leads or str(value).startswith(("#", "data:image/png;base64,", "data:,")), f"{name}={value!r}")

    def handle_comment(self, data: str) -> None:
        check(False, "a comment")


def shape_of(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Return the elements of a page, checked, but not its text."""
    parser = Shape()
    text = path.read_text("utf-8")
    parser.feed(text)
    parser.close()
    check("\x00" not in text, "a NUL")
    return parser.found


def words(random: Random, count: int) -> list[str]:
    return [hostile_string(random) if random.random() < 0.7 else f"plain{i}" for i in range(count)]


# ---------------------------------------------------------------------- the page of a comparison


@functools.cache
def learner() -> Any:
    X = np.random.default_rng(0).normal(size=(12, 2))
    return askew.DivergenceLearner("euclidean", encoder=None).fit(X, np.arange(12) % 2)


def make_comparison(random: Random) -> list[str]:
    return words(random, 12)


def run_comparison(case: list[str]) -> int:
    def write(texts: list[str]) -> list[tuple[str, tuple[str, ...]]]:
        title, note, feature, other, name, problem, _, label, setting, value, remark, _ = texts
        scores = dict.fromkeys(("map", "auc", "knn", "purity", "rand", "seconds"), (0.9, 0.8))
        best = Standing(name, scores)
        worst = Standing("euclidean", {}, problem or "it failed")  # one without scores has a problem
        board = Leaderboard((best, worst), 2, 12, 2, 2, (remark,))
        points = np.random.default_rng(0).normal(size=(12, 2))
        task = Classes(points, np.array([label if i % 2 else "b" for i in range(12)], dtype=object))
        fold = Fold(learner(), np.arange(8), np.arange(8, 12))
        file = write_comparison(
            place() / "page.html", board, learner(), task, fold, title=title, feature_names=[feature, other],
            importance={feature: (0.1, 0.1)}, notes=[note], settings={setting: value},
        )  # fmt: skip
        return shape_of(file)

    plain = [f"plain{i}" if text else "" for i, text in enumerate(case)]
    check(write(case) == write(plain), "other elements than with plain names")
    return 1


# ---------------------------------------------------------------------- the explorer


def run_explorer(case: list[str]) -> int:
    def write(texts: list[str]) -> list[tuple[str, tuple[str, ...]]]:
        points = np.random.default_rng(0).random((6, 2)) + 0.1
        labels = np.array([texts[i % 3] for i in range(6)], dtype=object)
        names = [texts[3], f"{texts[4]} 2"]
        path = place() / "explorer.html"
        return shape_of(
            write_explorer(askew.make("kl", 2), path, points, labels, feature_names=names, title=texts[5] or "x")
        )

    check(write(case) == write([f"plain{i}" for i in range(len(case))]), "other elements than with plain names")
    return 1


# ---------------------------------------------------------------------- the report


def run_rows(case: list[str]) -> int:
    def write(texts: list[str]) -> list[tuple[str, tuple[str, ...]]]:
        setting, method, option, version, commit, machine, title, note, makes, *_ = (text or "x" for text in texts)
        cell = Cell("sums", setting, method, 0, "quick", (("size", option),))
        experiment = Experiment(
            "sums", title, (makes,), (MAE,), {"quick": 1}, {"quick": 1.0}, lambda scale, seeds: [cell],
            run=lambda cell: Outcome({"mae": 0.0}), notes=(note,),
        )  # fmt: skip
        row = Row(
            cell, {"mae": 0.5}, 1.0, "", versions={version: version}, commit=commit, machine={"accelerator": machine}
        )
        folder = place() / "rows"
        folder.mkdir(exist_ok=True)
        (folder / "sums.jsonl").write_bytes(row.to_line())
        return shape_of(write_report(folder, folder / "report.html", [experiment])[0])

    check(write(case) == write([f"plain{i}" for i in range(len(case))]), "other elements than with plain names")
    return 1


TARGETS = (
    Target("comparison-page", make_comparison, run_comparison),
    Target("explorer-page", make_comparison, run_explorer),
    Target("report-page", make_comparison, run_rows),
)
