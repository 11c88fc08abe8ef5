"""What children do with the paper's experiments: rows, reports, downloads, decoded images."""

from __future__ import annotations

import datetime
import hashlib
import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from askew_paper import runner
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.cli import main
from askew_paper.data import download, files, images
from askew_paper.data.files import Source
from askew_paper.experiment import MAE, Cell, Experiment, Outcome, grid
from askew_paper.rows import read
from askew_paper.runner import provenance
from fault_injection import injection
from fault_injection.scenes import INGREDIENTS, SUBJECTS, command, succeed

__all__ = ["decode_at", "fetch", "jump", "let_a_worker_die", "paper_command", "prepare"]


def _cells(scale: str, seeds: int) -> Iterator[Cell]:
    return grid("sums", scale, seeds, ["small"], ["exact", "slow"], {"size": 3})


def _run(cell: Cell) -> Outcome:
    if cell.method == "slow" and cell.seed == 1 and "ASKEW_TEST_DIES" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    value = float(torch.rand(3).sum())
    return Outcome({"mae": value}, chosen={"options": "long " * 1000})


def make_rows(folder: Path, version: int) -> None:
    succeed("run", "sums", "--scale", "toy", "--seeds", 2 * version, "-o", folder / "results", run=main)


def look_at_rows(folder: Path) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # half a line is told of, and what a next run does about it
        rows = read(folder / "results")
    return [[row.cell.method, row.cell.seed, row.scores["mae"]] for row in rows]


def make_report(folder: Path, version: int) -> None:
    succeed("report", f"{INGREDIENTS.name}/{version}/results", "-o", folder / "page.html", run=main)


def look_at_report(folder: Path) -> str:
    return hashlib.sha256((folder / "page.html").read_bytes()).hexdigest()


def paper_command(*words: object) -> dict[str, Any]:
    """Run a command of askew-paper in this process and return what a shell sees of it."""
    return command(*words, run=main)


def let_a_worker_die() -> None:
    """Let the process that computes one of the cells be killed in it."""
    os.environ["ASKEW_TEST_DIES"] = "1"


def jump(seconds: float) -> None:
    """Let the clock jump, as seen by training and by what writes rows."""
    injection.jump(seconds)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(time.time(), tz)

    runner.datetime = Clock  # type: ignore[misc]


def decode_at(folder: str, moments: list[int]) -> list[list[int]]:
    """Decode a file that changes, with the times of files set to some moments; return what was seen, and how often."""
    os.environ["ASKEW_CACHE"] = f"{folder}/cache"
    file = Path(folder) / "a.bin"
    decoded = 0

    def decode() -> tuple[Any, Any]:
        nonlocal decoded
        decoded += 1
        return np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 1), np.arange(4)

    seen = []
    for number, moment in enumerate(moments):
        file.write_bytes(bytes([number] * 4))
        os.utime(file, (moment, moment))
        # The second time from the cache, which may itself be of any time.
        for _ in range(2):
            pixels, _ = images._cached("test", [file], decode)
            os.utime(Path(folder) / "cache" / "decoded" / "test.npz", (moments[0] - moment,) * 2)
        seen.append([int(pixels[-1, 0]), decoded])
    return seen


def fetch(server: str, folder: str, sha256: str) -> str:
    """Download a file from an address that has the number of this process in it."""
    files.SETS["a file"] = (Source("a.bin", f"{server}/{os.getpid()}/a.bin", f"sha256:{sha256}"),)
    return str(download("a file", folder, progress=False)[0])


def prepare() -> None:
    """Enter the subjects of this module, and make what they read."""
    notes = ("This makes the page of the report several blocks of a disk long. " * 200,)
    EXPERIMENTS["sums"] = Experiment(
        "sums", "Sums", ("table 1",), (MAE,), {"toy": 2}, {"toy": 1.0}, _cells, _run, notes=notes
    )
    for name in [name for name in EXPERIMENTS if name != "sums"]:
        del EXPERIMENTS[name]  # reports would have empty tables of them
    provenance()
    SUBJECTS.update({"rows": (make_rows, look_at_rows), "report": (make_report, look_at_report)})
    for version in (1, 2):
        (Path(INGREDIENTS.name) / str(version)).mkdir(exist_ok=True)
        make_rows(Path(INGREDIENTS.name) / str(version), version)
