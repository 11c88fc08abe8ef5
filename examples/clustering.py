"""K-means with the divergence that fits the noise.

    python examples/clustering.py           # three kinds of data, three divergences, mean of 3 draws

The squared Euclidean distance fits clusters of one round shape, Kullback-Leibler fits counts, Itakura-Saito fits
quantities that vary in proportion to their size, such as durations and spectra. Each row is one kind of data, each
column the purity that k-means reaches with one divergence: 1 is perfect. The best of a row is marked. The data are made
up so that the noise matters; where clusters lie far apart, all three find them.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

import askew

CLUSTERS, FEATURES = 5, 10
DIVERGENCES = ("euclidean", "kl", "itakura-saito")


def draw(noise: str, count: int, generator: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return points and the cluster of each."""
    labels = generator.integers(CLUSTERS, size=count)
    if noise == "normal":
        means = generator.uniform(5, 9, size=(CLUSTERS, FEATURES))
        return np.maximum(generator.normal(means[labels], 1.5), 0.01), labels
    if noise == "counts":
        # Two features are frequent everywhere and say nothing; the rare ones tell the clusters apart.
        means = generator.uniform(0.2, 3, size=(CLUSTERS, FEATURES))
        means[:, :2] = 100.0
        return generator.poisson(means[labels]) + 0.1, labels
    means = generator.uniform(0.1, 10, size=(CLUSTERS, FEATURES))
    return generator.exponential(means[labels]), labels


def main() -> None:
    """Cluster each kind of data with each divergence."""
    parser = argparse.ArgumentParser(description="K-means with the divergence that fits.")
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':14}" + "".join(f"{name:>16}" for name in DIVERGENCES))
    for noise in ("normal", "counts", "durations"):
        purities = np.zeros((options.draws, len(DIVERGENCES)))
        for seed in range(options.draws):
            points, labels = draw(noise, options.points, np.random.default_rng(seed))
            for column, name in enumerate(DIVERGENCES):
                clusters = askew.BregmanKMeans(CLUSTERS, divergence=name, n_init=5, random_state=0).fit(points)
                purities[seed, column] = askew.metrics.purity(labels, clusters.labels_)
        means = purities.mean(0)
        cells = (f"{value:.3f}{' *' if value == means.max() else '  '}" for value in means)
        print(f"{noise:14}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
