"""PBDL on six tables: mean average precision, AUC, seconds of a fit; and by regression.

    ASKEW_DATA=/path/to/data python benchmarks/pbdl.py [--splits 3] [--tables iris wine]
    python benchmarks/pbdl.py --regression        # 50,000 pairs of 20 features

Each split holds out 20 % of the rows as queries; the other 80 % are what is learned from and what is ranked, by
D(query, item), ties averaged. Features are standardised by the training part. The penalty is chosen by
cross-validation inside of it. Seconds are of CPU time and include the choice of the penalty.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from askew_paper.data import load_table, table_names
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from askew import metrics, pbdl

# Lu, Raff, Ferraro (2023), table 2: MAP and AUC of PBDL. The classes of their abalone are not known.
PAPER = {
    "iris": (0.943, 0.967),
    "wine": (0.978, 0.982),
    "balance": (0.836, 0.855),
    "transfusion": (0.637, 0.504),
    "car": (0.798, 0.775),
    "abalone": (0.307, 0.659),
}
Floats = NDArray[np.float64]


@torch.no_grad()
def rank(found: pbdl.PiecewiseFit | None, queries: Floats, items: Floats, labels: tuple) -> tuple[float, float]:
    """Return MAP and AUC; without a divergence, of the Euclidean one."""
    x, y = torch.from_numpy(queries), torch.from_numpy(items)
    matrix = torch.cdist(x, y) if found is None else found.divergence.pairwise(x, y)
    return metrics.mean_average_precision(matrix, *labels), metrics.auc(matrix, *labels)


def evaluate(name: str, split: int) -> dict[str, tuple[float, ...]]:
    """Return MAP, AUC, seconds and penalty for one split of one table."""
    table = load_table(name)
    rows, queries = train_test_split(np.arange(len(table.labels)), test_size=0.2, random_state=split)
    mean, deviation = table.points[rows].mean(0), table.points[rows].std(0)
    points = (table.points - mean) / np.where(deviation > 0, deviation, 1.0)
    labels = table.labels[queries], table.labels[rows]
    started = time.process_time()
    learned = pbdl.fit_pairs(points[rows], table.labels[rows], seed=split)
    seconds = time.process_time() - started
    return {
        "euclidean": rank(None, points[queries], points[rows], labels),
        "PBDL": (*rank(learned, points[queries], points[rows], labels), seconds, learned.penalty),
    }


def tables(options: argparse.Namespace) -> None:
    first, last = options.first, options.first + options.splits - 1
    print(f"splits {first} to {last}; mean MAP / AUC, median CPU seconds of a fit, penalties chosen")
    print("| table | method | MAP | AUC | s | penalties |\n|---|---|---|---|---|---|")
    for name in options.tables:
        results = [evaluate(name, split) for split in range(options.first, options.first + options.splits)]
        print(f"| {name} | PBDL of the paper | {PAPER[name][0]:.3f} | {PAPER[name][1]:.3f} | | |")
        for method in results[0]:
            values = [result[method] for result in results]
            precision, area = np.mean([value[:2] for value in values], 0)
            line = f"| {name} | {method} | {precision:.3f} | {area:.3f} |"
            if len(values[0]) > 2:
                penalties = " ".join(f"{value[3]:.3g}" for value in values)
                line += f" {np.median([value[2] for value in values]):.1f} | {penalties} |"
            else:
                line += " | |"
            print(line, flush=True)


def draw(target: str, n: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Return x, y and the target on 10 of 20 features: squared Euclidean, or x log x of half-normal ones."""
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(2, n, 20))
    if target == "euclidean":
        return x, y, np.square(x - y)[:, :10].sum(1)
    for points in (x, y):
        points[:, :10] = np.abs(points[:, :10])
    a, b = x[:, :10], y[:, :10]
    return x, y, (a * np.log(a / b) - a + b).sum(1)


def regression() -> None:
    print("50,000 pairs of 20 features, 10 of them informative; mean absolute error on 10,000 other pairs")
    print("| target | constant | PBDL | s |\n|---|---|---|---|")
    for target in ("euclidean", "x log x"):
        x, y, values = draw(target, 50_000, 0)
        started = time.process_time()
        found = pbdl.fit_regression(x, y, values)
        seconds = time.process_time() - started
        x, y, wanted = draw(target, 10_000, 1)
        with torch.no_grad():
            predicted = found.divergence(torch.from_numpy(x), torch.from_numpy(y)).numpy()
        constant = np.abs(wanted - np.median(values)).mean()
        print(f"| {target} | {constant:.3f} | {np.abs(wanted - predicted).mean():.3f} | {seconds:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--tables", nargs="+", default=table_names(), choices=table_names())
    parser.add_argument("--regression", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    regression() if options.regression else tables(options)


if __name__ == "__main__":
    main()
