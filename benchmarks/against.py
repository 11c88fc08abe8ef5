"""Run a benchmark by turns in another checkout and in this one, and compare the figures that it prints.

    git worktree add ../older REVISION
    python benchmarks/against.py ../older core.py --no-compile --threads 1
    python benchmarks/against.py --rounds 7 --columns . ../older search.py --items 100000 --only exact

Each checkout runs its own copy of the script on its own code, in a process of its own. The two take turns, and the one
that begins changes from round to round, so that both meet the same disturbances. "Before" and "after" are the medians
over the rounds; the ratio is the median of after / before within the rounds, with the smallest and the largest one.
"Best" is the ratio of the smallest figures of all rounds, which other programs on the machine disturb least. Rows in
which both are above the limit are listed at the end.

Figures are read from the Markdown tables that the scripts print: a table is known by its place in the output, a row by
its first cell or two, a column by its place. So titles may be reworded, but not names of rows; rows that only one of
the two prints are listed at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
# A number, perhaps with what it is a number of.
NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
UNIT = re.compile(r"[\s,/%x±]|ms|s|MB|MiB|mapped")
RULE = re.compile(r"[|\s:]*-[|\s:-]*")
# Headers of columns that are times or memory.
COSTS = r"\b(ms|s|seconds?|CPU s|MB|MiB|held|resident|peak)\b"


class Place(NamedTuple):
    """Where a figure stands: the number of its table, its row, its column, and its place in the cell."""

    table: int
    row: str
    column: int
    part: int


class Output(NamedTuple):
    """The figures of one run, and the titles of its tables and columns."""

    figures: dict[Place, float]
    titles: dict[int, str]
    headers: dict[tuple[int, int], str]


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell that has nothing else in it but units; none of other cells.

    >>> numbers("1,250 ms"), numbers("320, mapped 12"), numbers("encoder 2"), numbers("")
    ([1250.0], [320.0, 12.0], [], [])
    """
    found = NUMBER.findall(cell)
    rest = UNIT.sub("", NUMBER.sub("", cell))
    return [] if rest else [float(number.replace(",", "")) for number in found]


def parse(text: str) -> Output:
    """Return the figures of all tables of a text."""
    tables: list[list[list[str]]] = []
    output = Output({}, {}, {})
    lines = text.splitlines()
    title = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line.lstrip().startswith("|"):
            title = line.strip("# ") or title
        elif not RULE.fullmatch(line):
            if RULE.fullmatch(following):
                output.titles[len(tables)] = title
                tables.append([])
            tables[-1].append([cell.strip() for cell in line.strip().strip("|").split("|")])
    for table, (header, *rows) in enumerate(tables):
        group = ""
        for column, cell in enumerate(header):
            # "train: speed-up" names a group, to which the columns after it belong.
            group = cell.partition(": ")[0] if ": " in cell else group
            output.headers[table, column] = f"{group}: {cell.rpartition(': ')[2]}" if group else cell
        # Where the first cells do not tell the rows apart, the first two have to.
        first = 1 if len({row[0] for row in rows}) == len(rows) else 2
        for row in rows:
            for column, cell in enumerate(row[first:], start=first):
                for part, number in enumerate(numbers(cell)):
                    output.figures[Place(table, ", ".join(row[:first]), column, part)] = number
    return output


def run(root: Path, options: argparse.Namespace) -> Output:
    """Run the benchmark in a checkout."""
    path = os.pathsep.join([str(root / "src"), str(root / "paper" / "src")])
    environment = dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS=str(options.omp))
    command = [sys.executable, str(root / "benchmarks" / options.script), *options.arguments]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return parse(done.stdout)


def report(before: list[Output], after: list[Output], columns: str, limit: float) -> None:
    """Print the figures of both, table by table."""
    places = [place for place in after[0].figures if all(place in run.figures for run in (*before, *after))]
    beyond, medians = [], []
    table = None
    for place in places:
        header = after[0].headers.get((place.table, place.column), "")
        if not re.search(columns, header):
            continue
        if place.table != table:
            table = place.table
            print(f"\n### {after[0].titles[table]}\n\n| row | column | before | after | ratio | range | best |")
            print("|---|---|---:|---:|---:|---|---:|")
        old, new = ([run.figures[place] for run in runs] for runs in (before, after))
        name = f"{place.row} | {header}" + f" ({place.part + 1})" * bool(place.part)
        line = f"| {name} | {statistics.median(old):g} | {statistics.median(new):g} |"
        ratios = [b / a for a, b in zip(old, new, strict=True) if a]
        if len(ratios) < len(old):
            print(f"{line} | | |")
            continue
        ratio, best = statistics.median(ratios), min(new) / min(old)
        medians.append(ratio)
        beyond += [f"{name.replace(' | ', ', ')}: {ratio:.2f}, best {best:.2f}"] * (min(ratio, best) > limit)
        print(f"{line} {ratio:.2f} | {min(ratios):.2f} to {max(ratios):.2f} | {best:.2f} |")
    if not medians:
        sys.exit(f"No column matches {columns!r}; --columns . takes all of them.")
    print(f"\n{len(medians)} figures, median ratio {statistics.median(medians):.3f}; {len(beyond)} above {limit:g}")
    print("\n".join(f"  {name}" for name in beyond))
    old_rows, new_rows = ({(place.table, place.row) for place in runs[0].figures} for runs in (before, after))
    for word, rows in (("before", old_rows - new_rows), ("after", new_rows - old_rows)):
        for number, row in sorted(rows):
            print(f"only {word}: {row!r} of table {number + 1}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--omp", type=int, default=1, help="threads of OpenMP; a script may set its own number")
    parser.add_argument("--columns", default=COSTS, help="headers of the columns to compare, a regular expression")
    parser.add_argument("--limit", type=float, default=1.05, help="rows above it are listed at the end")
    parser.add_argument("other", type=Path, help="the other checkout, which is the one before")
    parser.add_argument("script", help="file in benchmarks/")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    options = parser.parse_args()
    roots = {"before": options.other.resolve(), "after": HERE}
    runs: dict[str, list[Output]] = {"before": [], "after": []}
    for number in range(options.rounds):
        for name in sorted(roots, reverse=number % 2 == 0):
            runs[name].append(run(roots[name], options))
            print(f"round {number + 1} of {options.rounds}, {name}", file=sys.stderr, flush=True)
    print(f"{options.script} {' '.join(options.arguments)}: {roots['before']} before, {roots['after']} after")
    report(runs["before"], runs["after"], options.columns, options.limit)


if __name__ == "__main__":
    main()
