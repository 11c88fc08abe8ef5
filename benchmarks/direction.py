"""What direction costs: all pairs of a trained drift, an NBD and an IQE in turn, and recall of engines on a drift.

python benchmarks/direction.py                  # all pairs, 1000 x 2000 at 64 features
python benchmarks/direction.py --items 200000   # recall@10 and queries a second of ivf and hnsw, both directions
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import askew
from askew.search import FaissIndex

DIM = 64
NAMES = ("nbd", "drift", "drift-root", "drift-mahalanobis", "iqe")


def trained(name: str) -> askew.Divergence:
    """Return a divergence after a short training on a directed target."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 4000, DIM, generator=generator)
    targets = (y - x).relu().sum(-1)
    torch.manual_seed(0)
    model = askew.make(name, DIM)
    askew.fit(model, (x, y, targets), askew.losses.Regression(), steps=20 if name == "iqe" else 400, seed=0)
    return model.requires_grad_(False)


def all_pairs(rounds: int) -> None:
    models = {name: trained(name) for name in NAMES}
    x, y = torch.randn(1000, DIM), torch.randn(2000, DIM)
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(rounds + 1):  # the first round warms up
        for name, model in models.items():
            if name == "iqe" and len(times[name]) > 1:
                continue
            started = time.perf_counter()
            matrix = model.pairwise(x, y)
            times[name].append(time.perf_counter() - started)
    middle = {name: statistics.median(values[1:]) for name, values in times.items()}
    print("| divergence | ms | relative to nbd | share of zeros |\n|---|---|---|---|")
    for name, seconds in middle.items():
        matrix = models[name].pairwise(x[:200], y[:200])
        zeros = float((matrix == 0).float().mean())
        print(f"| {name} | {1e3 * seconds:.1f} | {seconds / middle['nbd']:.2f} | {zeros:.3f} |")


def recall(count: int) -> None:
    model = trained("drift")
    generator = torch.Generator().manual_seed(1)
    items, queries = torch.randn(count, DIM, generator=generator), torch.randn(500, DIM, generator=generator)
    print("| kind | direction | recall@10 | queries a second |\n|---|---|---|---|")
    for kind in ("ivf", "hnsw"):
        for direction in ("query-first", "query-second"):
            index = FaissIndex(model, direction, kind=kind)
            index.add(items)
            index.tune(queries[:250], k=10, recall=0.995)
            found = index.recall(queries[250:], 10)
            started = time.perf_counter()
            index.search(queries[250:], 10)
            speed = 250 / (time.perf_counter() - started)
            print(f"| {kind} | {direction} | {found:.4f} | {speed:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=0, help="measure recall on so many items")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.items:
        recall(options.items)
    else:
        all_pairs(options.rounds)


if __name__ == "__main__":
    main()
