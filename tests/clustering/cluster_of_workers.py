"""K-means on a cluster of two worker processes that are killed in the middle; prints how it differs.

One is killed after the third iteration, and all after the sixth: then nothing is left of what any worker held.

python cluster_of_workers.py
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
from collections.abc import Callable, Iterator

import dask
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
    # A machine under load may need longer than the 15 s after which a cluster gives a killed worker up.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "5 minutes"})
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        killed: set[int] = set()

        def kill(count: int | None) -> None:
            for victim in list(client.run(os.getpid, on_error="ignore").values())[:count]:
                os.kill(victim, signal.SIGKILL)
                killed.add(victim)

        @contextlib.contextmanager
        def killing(*_: object, **__: object) -> Iterator[Callable[[int], None]]:
            """Stand in for the progress bar, and kill workers after some iterations."""
            yield lambda iteration: kill({3: 1, 6: None}.get(iteration, 0))

        # The package also has a function of this name.
        importlib.import_module("askew.clustering.kmeans").progress_bar = killing  # type: ignore[attr-defined]
        lazily = askew.BregmanKMeans(16, **options).fit(da.from_array(X, chunks=(1000, 8)))
        labels = lazily.labels_.compute()
        gone = len(killed - set(client.run(os.getpid, on_error="ignore").values()))
    found = {
        "difference": float(np.abs(lazily.cluster_centers_ - local.cluster_centers_).max()),
        "labels": int((labels != local.labels_).sum()),
        "gone": gone,
        "iterations": lazily.n_iter_,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
