"""How difficult the mixtures of distributional clustering are, and how much that varies from one to the next.

The paper has ten of them, drawn at random, and so have we; the mean of ten varies with the draw. This gives, over many
mixtures, purity and Rand index of the Bayes rule, which no clustering beats on average, and of k-means with the true
divergence and with the Euclidean distance, from one random partition or seeded. The spread is a standard deviation over
mixtures; that of a mean of ten is a third of it.

    python benchmarks/mixtures.py                     # 200 mixtures of each kind, seeds that no experiment uses
    python benchmarks/mixtures.py --mixtures 1000 --kinds multinomial
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from askew_paper.data import make_mixture, mixture_names
from askew_paper.experiments.clustering import PROTOCOLS

from askew.clustering.any_divergence import cluster
from askew.divergences import make
from askew.metrics import purity, rand

POINTS = 1000


def scores_of(kind: str, seed: int) -> dict[str, tuple[float, float]]:
    """Return purity and Rand index of each way to find the clusters of one mixture."""
    mixture = make_mixture(kind, seed)
    table = mixture.sample(POINTS, seed=2 * seed + 1)
    points, k = torch.from_numpy(table.points), len(mixture.means)
    found = {"Bayes rule": mixture.log_densities(table.points).argmax(1)}
    for name, divergence in (("true", mixture.divergence()), ("Euclidean", make("euclidean", points.shape[1]))):
        for suffix, (start, runs) in PROTOCOLS.items():
            found[f"{name}{suffix}"] = cluster(divergence, points, k, start, runs, seed).numpy()
    return {name: (purity(table.labels, labels), rand(table.labels, labels)) for name, labels in found.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=mixture_names(), choices=mixture_names())
    parser.add_argument("--mixtures", type=int, default=200)
    parser.add_argument("--first", type=int, default=1000, help="seed of the first mixture")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for kind in arguments.kinds:
        rows = [scores_of(kind, arguments.first + number) for number in range(arguments.mixtures)]
        print(f"{kind}, {len(rows)} mixtures: mean and spread of purity; of the Rand index", flush=True)
        for name in rows[0]:
            values = np.array([row[name] for row in rows])
            mean, spread = values.mean(0), values.std(0, ddof=1)
            figures = "   ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread, strict=True))
            print(f"  {name:18s} {figures}", flush=True)


if __name__ == "__main__":
    main()
