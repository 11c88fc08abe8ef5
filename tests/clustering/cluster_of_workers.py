"""K-means on a cluster of two worker processes, one of which is killed in the middle; prints how it differs.

python cluster_of_workers.py
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
from collections.abc import Callable, Iterator

import dask.array as da
import numpy as np
import torch
from distributed import Client, LocalCluster

import askew

ITERATIONS = 12


def main() -> None:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    X = random.normal(size=(8000, 8)) + 3 * random.integers(0, 4, size=(8000, 1))
    model = askew.NeuralBregman(8, widths=(16, 16)).double().eval()
    options = {"divergence": model, "init": X[:16], "tol": 0.0, "max_iter": ITERATIONS}
    local = askew.BregmanKMeans(16, **options).fit(X)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        victim = next(iter(client.run(os.getpid).values()))

        @contextlib.contextmanager
        def killing(*_: object, **__: object) -> Iterator[Callable[[int], None]]:
            """Stand in for the progress bar, and kill a worker after the third iteration."""
            yield lambda iteration: os.kill(victim, signal.SIGKILL) if iteration == 3 else None

        # The package has a function of this name, too.
        importlib.import_module("askew.clustering.kmeans").progress_bar = killing  # type: ignore[attr-defined]
        lazily = askew.BregmanKMeans(16, **options).fit(da.from_array(X, chunks=(1000, 8)))
        labels = lazily.labels_.compute()
        gone = victim not in client.run(os.getpid).values()
    found = {
        "difference": float(np.abs(lazily.cluster_centers_ - local.cluster_centers_).max()),
        "labels": int((labels != local.labels_).sum()),
        "gone": gone,
        "iterations": lazily.n_iter_,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
