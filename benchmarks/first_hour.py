"""Seconds of `askew compare` on a messy table of 600 rows with its defaults, in another checkout and in this one.

    git worktree add ../older REVISION
    python benchmarks/first_hour.py ../older --rounds 3

The two take turns. CPU seconds are those of the command and of its processes, which other programs disturb less than
the wall clock; the import of torch is among them.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas

HERE = Path(__file__).resolve().parents[1]


def messy_table(rows: int = 600) -> pandas.DataFrame:
    """Return customers of three segments that overlap, with an id, dates, categories, missing values and free text."""
    random = np.random.default_rng(0)
    kind = random.choice(3, rows, p=[0.45, 0.3, 0.25])
    income = (30_000 + 9_000 * kind + 9_000 * random.normal(size=rows)).round(2)
    spend = (200 + 80 * kind * (random.random(rows) > 0.4) + 100 * random.normal(size=rows)).round(2)
    days = pandas.Timestamp("2020-01-01") + pandas.to_timedelta(random.integers(0, 900, rows), "D")
    return pandas.DataFrame(
        {
            "customer": [f"C{number:06d}" for number in range(rows)],
            "age": np.where(
                random.random(rows) < 0.05, np.nan, (40 + 5 * kind + 10 * random.normal(size=rows)).round()
            ),
            "income": income,
            "spend": spend,
            "zip": random.choice([10115, 20095, 50667, 80331, 60311], rows),
            "city": random.choice(["Berlin", "Köln", "München", "Zürich"], rows),
            "last_visit": days.strftime("%Y-%m-%d"),
            "comment": [f"text {number} of {random.integers(1000)}" for number in range(rows)],
            "segment": np.array(["basic", "standard", "premium"])[kind],
            "value": (income / 10 + 2 * spend + 100 * random.normal(size=rows)).round(2),
        }
    )


def run(root: Path, table: Path, options: list[str]) -> tuple[float, float]:
    """Return CPU and wall seconds of one comparison in a checkout, in a new folder."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "askew.cli", "compare", str(table), "--label", "segment", "-o", folder]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--options", default="", help="options of compare, such as '--jobs 1'")
    arguments = parser.parse_args()
    seconds: list[list[tuple[float, float]]] = [[], []]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "customers.csv"
        messy_table().to_csv(table, index=False)
        for _ in range(arguments.rounds):
            for root, found in zip((arguments.checkout.resolve(), HERE), seconds, strict=True):
                found.append(run(root, table, arguments.options.split()))
                print(f"{root.name}: {found[-1][0]:.0f} s CPU, {found[-1][1]:.0f} s", file=sys.stderr, flush=True)
    print("| seconds | there | here | ratio |\n|---|---|---|---|")
    for place, name in enumerate(("CPU", "wall")):
        there, here = ([one[place] for one in found] for found in seconds)
        ratio = statistics.median(old / new for old, new in zip(there, here, strict=True))
        print(f"| {name} | {statistics.median(there):.1f} | {statistics.median(here):.1f} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
