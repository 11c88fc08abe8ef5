"""Fuzzing of rows of results and of the report that is made of them."""

from __future__ import annotations

import contextlib
import json
from random import Random
from typing import Any

from askew_paper.experiment import MAE, Cell, Experiment, Outcome, grid
from askew_paper.report import write_report
from askew_paper.rows import Row, read

from fuzzing.changes import changed_bytes, changed_json, changed_text, hostile_json, hostile_string
from fuzzing.folders import lay_out
from fuzzing.targets import Target, check

__all__ = ["TARGETS"]


def sums(scale: str, seeds: int) -> Any:
    return grid("sums", scale, seeds, settings=["small", "<b>"], methods=["exact", "fast"], options={"size": 3})


experiment = Experiment(
    "sums", "Sums", ("table 1",), (MAE,), {"quick": 2}, {"quick": 1.0}, sums, run=lambda cell: Outcome({"mae": 0.0})
)


def row(random: Random) -> dict[str, Any]:
    cell = Cell(
        "sums",
        random.choice(("small", "<b>")),
        random.choice(("exact", "fast")),
        random.randrange(2),
        "quick",
        (("size", 3),),
    )
    machine = {"cores": 2}
    content: dict[str, Any] = json.loads(
        Row(
            cell, {"mae": 0.5}, 1.25, "2023-01-01T00:00:00Z", {}, {"lr": 0.1}, {"askew": "0.1"}, "abc", machine
        ).to_line()
    )
    return content


def changed_row(random: Random) -> bytes:
    content = row(random)
    if random.random() < 0.5:  # with its own key, so that it is taken for a row of another cell
        names = ("setting", "method", "seed", "options", "scale")
        name = random.choice(names)
        content[name] = hostile_json(random) if random.random() < 0.5 else changed_json(content[name], random)
        with contextlib.suppress(Exception):
            options = tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in content["options"].items()))
            content["key"] = Cell(
                "sums", content["setting"], content["method"], content["seed"], content["scale"], options
            ).key
    if random.random() < 0.5:
        content = changed_json(content, random)
    if random.random() < 0.2 and isinstance(content, dict) and isinstance(content.get("versions"), dict):
        content["versions"][hostile_string(random)] = hostile_string(random)
    line = json.dumps(content).encode()
    return changed_bytes(line, random).replace(b"\n", b" ") if random.random() < 0.3 else line


def run_row(content: bytes) -> int:
    """A line alone; the reader of files puts its number and file before what is wrong."""
    try:
        found = Row.from_line(content)
    except ValueError as error:
        check(type(error) is ValueError, f"{type(error).__name__}")
        raise ValueError(f"line 1 of 'x' is damaged: {error}") from None
    check(Row.from_line(found.to_line()) == found, "not the same again")
    return 1


def make_report(random: Random) -> bytes:
    lines = [
        json.dumps(row(random)).encode() if random.random() < 0.4 else changed_row(random)
        for _ in range(random.randrange(1, 4))
    ]
    content = b"\n".join(lines) + (b"\n" if random.random() < 0.8 else b"")
    return changed_text(content, random, b",") if random.random() < 0.1 else content


def run_report(content: bytes) -> int:
    folder = lay_out({"sums.jsonl": content}, "results")
    rows = read(folder)
    page, *_ = write_report(folder, folder / "report.html", [experiment])
    check(len(rows) <= content.count(b"\n") + 1, "more rows than lines")
    check("<b>" not in page.read_text("utf-8"), "markup from data")
    return 1


TARGETS = (
    Target("row", changed_row, run_row, guided=True),
    Target("report", make_report, run_report),
)
