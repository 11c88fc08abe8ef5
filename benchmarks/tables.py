"""Ranking on eight tables with default settings: MAP and AUC compared with the paper, and seconds of a fit.

Each split holds out 20 % of the rows as queries; the other 80 % are what is learned from and what is ranked, by
D(query, item), ties averaged. Nothing of the held-out rows enters any choice. Needs the six files of the UCI
repository in the folder that ASKEW_DATA names; digits and breast cancer come with scikit-learn.

    python benchmarks/tables.py                   # all methods, 10 splits, two processes
    python benchmarks/tables.py --time            # seconds of DivergenceLearner() with its defaults, all cores
    python benchmarks/tables.py --against CHECKOUT --splits 3   # DivergenceLearner() of another commit, by turns
    python benchmarks/tables.py --splits 3 --tables iris wine --methods nbd mahalanobis
    python benchmarks/tables.py --reserved        # to choose settings: queries that no split of the experiment has
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1" if "--time" not in sys.argv else str(os.cpu_count()))

import numpy as np
import torch
from askew_paper.data import load_table, table_names
from askew_paper.experiments.ranking import reserved
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

import askew
from askew import metrics

# What a method is called here, and the arguments of the learner.
METHODS: dict[str, dict[str, str | None]] = {
    "euclidean": {"divergence": "euclidean", "encoder": None},
    "mahalanobis": {"divergence": "mahalanobis", "encoder": None},
    "pbdl": {"divergence": "pbdl", "encoder": None},
    "deep-div": {"divergence": "deep-div", "encoder": None},
    "nbd-paper": {"divergence": "nbd-paper", "encoder": None},
    "nbd": {"divergence": "nbd", "encoder": None},
    "mahalanobis + mlp": {"divergence": "mahalanobis", "encoder": "mlp"},
    "deep-div + mlp": {"divergence": "deep-div", "encoder": "mlp"},
    "nbd + mlp": {"divergence": "nbd", "encoder": "mlp"},
    "nbd, encoder chosen": {"divergence": "nbd", "encoder": "auto"},
    "auto": {"divergence": "auto", "encoder": "auto"},
}
# Lu, Raff, Ferraro (2023), table 2: MAP and AUC of NBD. The classes of their abalone are not known.
PAPER = {
    "iris": (0.957, 0.977),
    "wine": (0.969, 0.980),
    "balance": (0.887, 0.915),
    "transfusion": (0.695, 0.603),
    "car": (0.820, 0.803),
}
# Tables of scikit-learn.
BUNDLED = {"digits": load_digits, "breast-cancer": load_breast_cancer}
TABLES = [*table_names(), *BUNDLED]
DEFAULT = "nbd, encoder chosen"
Result = tuple[float, float, float, str]


def load(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the points and labels of a table."""
    if name in BUNDLED:
        points, labels = BUNDLED[name](return_X_y=True)
        return points, labels
    table = load_table(name)
    return table.points, table.labels


def evaluate(method: str, name: str, split: int) -> Result:
    """Return MAP, AUC, seconds of the fit and what was chosen, for one split of one table."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    points, classes = load(name)
    rows, queries = train_test_split(np.arange(len(classes)), test_size=0.2, random_state=split)
    if "--reserved" in sys.argv:
        queries = reserved(len(classes))
        rows = np.setdiff1d(np.arange(len(classes)), queries)
    learner = askew.DivergenceLearner(**METHODS[method], random_state=split, progress=False)
    started = time.perf_counter()
    learner.fit(points[rows], classes[rows])
    seconds = time.perf_counter() - started
    matrix = learner.pairwise(points[queries], points[rows])
    labels = classes[queries], classes[rows]
    return metrics.mean_average_precision(matrix, *labels), metrics.auc(matrix, *labels), seconds, learner.choice_


def cell(results: list[Result], column: int) -> str:
    values = np.array([result[column] for result in results])
    spread = f" ±{values.std(ddof=1):.3f}" if len(values) > 1 else ""
    return f"{values.mean():.3f}{spread}"


def show(found: dict[tuple[str, str], list[Result]], methods: list[str], tables: list[str], splits: int) -> None:
    """Print the tables, MAP and AUC with the standard deviation over splits, as Markdown."""
    for title, column, paper in (("MAP", 0, 0), ("AUC", 1, 1)):
        print(f"\n{title}, mean and standard deviation over {splits} splits\n")
        print("| method |", " | ".join(tables), "|")
        print("|---" * (len(tables) + 1) + "|")
        print("| NBD of the paper |", " | ".join(f"{PAPER[t][paper]:.3f}" if t in PAPER else "-" for t in tables), "|")
        for method in methods:
            print(f"| {method} |", " | ".join(cell(found[method, table], column) for table in tables), "|")
    print(f"\nSeconds of a fit, median (processes side by side, one thread each)\n\n| method | {' | '.join(tables)} |")
    print("|---" * (len(tables) + 1) + "|")
    for method in methods:
        medians = (np.median([result[2] for result in found[method, table]]) for table in tables)
        print(f"| {method} |", " | ".join(f"{value:.1f}" for value in medians), "|")
    chosen = {table: [r[3] for r in found.get((DEFAULT, table), [])] for table in tables}
    for table, choices in chosen.items():
        if choices:
            print(
                f"{table}: an encoder was chosen in {sum(c.startswith('encoder') for c in choices)} of {len(choices)}"
            )


# What a worker of a checkout does: only with names that all commits have.
WORKER = """
import sys, time
import numpy, torch, askew
torch.set_num_threads(1)
for line in sys.stdin:
    file, seed = line.split()
    data = numpy.load(file)
    learner = askew.DivergenceLearner(random_state=int(seed), progress=False)
    started = time.process_time()
    learner.fit(data["points"], data["labels"])
    seconds = time.process_time() - started
    numpy.save(file + ".npy", learner.pairwise(data["queries"], data["points"]))
    print(seconds, flush=True)
"""


def ask(worker: Any, name: str, split: int, folder: str) -> tuple[float, float]:
    """Return MAP and seconds of the processor of the defaults of a worker, for one split of one table."""
    points, classes = load(name)
    rows, queries = train_test_split(np.arange(len(classes)), test_size=0.2, random_state=split)
    file = os.path.join(folder, "split.npz")
    np.savez(file, points=points[rows], labels=classes[rows], queries=points[queries])
    worker.stdin.write(f"{file} {split}\n")
    worker.stdin.flush()
    seconds = float(worker.stdout.readline())
    return metrics.mean_average_precision(np.load(file + ".npy"), classes[queries], classes[rows]), seconds


def show_against(checkout: Path, tables: list[str], splits: int) -> None:
    """Print seconds and MAP of the defaults in another checkout and in this one, which take turns."""
    workers = []
    for root in (checkout.resolve(), Path(__file__).resolve().parents[1]):
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = {**os.environ, "PYTHONPATH": str(root / "src")}
        workers.append(subprocess.Popen([sys.executable, "-c", WORKER], env=environment, **pipes))
    print("| table | seconds there | here | ratio | MAP there | here | difference |\n" + "|---" * 7 + "|")
    for name in tables:
        with tempfile.TemporaryDirectory() as folder:
            results = [[ask(worker, name, split, folder) for worker in workers] for split in range(splits)]
        there, here = np.array(results).swapaxes(0, 1)
        (old, new), differences = (np.median(each[:, 1]) for each in (there, here)), here[:, 0] - there[:, 0]
        spread = f" ±{differences.std(ddof=1) / splits**0.5:.3f}" if splits > 1 else ""
        print(
            f"| {name} | {old:.2f} | {new:.2f} | {np.median(there[:, 1] / here[:, 1]):.1f} | {there[:, 0].mean():.4f}"
            f" | {here[:, 0].mean():.4f} | {differences.mean():+.4f}{spread} |",
            flush=True,
        )
    for worker in workers:
        worker.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--rows", type=Path, help="append each result to this file as a line of JSON; those in it are kept"
    )
    parser.add_argument("--time", action="store_true", help="only time DivergenceLearner() on each table, all cores")
    parser.add_argument("--against", type=Path, help="compare with another checkout: ratio of seconds and MAP")
    parser.add_argument("--reserved", action="store_true", help="queries that no split of the experiment has")
    arguments = parser.parse_args()
    if arguments.against:
        show_against(arguments.against, arguments.tables, arguments.splits)
        return
    if arguments.time:
        for name in arguments.tables:
            precision, area, seconds, choice = evaluate(DEFAULT, name, 0)
            print(f"{name:12s} {seconds:6.1f} s   MAP {precision:.3f}   AUC {area:.3f}   {choice}", flush=True)
        return
    done: dict[tuple[str, str, int], Result] = {}
    if arguments.rows and arguments.rows.exists():
        for line in arguments.rows.read_text().splitlines():
            row = json.loads(line)
            done[row["method"], row["table"], row["split"]] = tuple(row["result"])
    wanted = [(m, t, s) for m in arguments.methods for t in arguments.tables for s in range(arguments.splits)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        futures = {key: pool.submit(evaluate, *key) for key in wanted if key not in done}
        for number, (key, future) in enumerate(futures.items(), 1):
            done[key] = future.result()
            if arguments.rows:
                row = {"method": key[0], "table": key[1], "split": key[2], "result": done[key]}
                with arguments.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if sys.stderr.isatty():
                print(f"\r{number} of {len(futures)}", end="", file=sys.stderr, flush=True)
    found = {
        (m, t): [done[m, t, s] for s in range(arguments.splits)] for m in arguments.methods for t in arguments.tables
    }
    show(found, arguments.methods, arguments.tables, arguments.splits)


if __name__ == "__main__":
    main()
