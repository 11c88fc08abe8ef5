"""Scores and top-k on a cluster of two worker processes, one of which is killed in each; prints how they differ.

The worker that is to bring block 5 is killed by that block, once: other blocks are done by then, and others are not.

python dask_workers.py
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import torch
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

import askew
from askew.search import ExactIndex, search_blocks

DEADLY = 5


def brought(block: np.ndarray, block_info: dict[int, dict[str, tuple[int, ...]]], grave: str) -> np.ndarray:
    """Stand for a read of a block from a disk, which kills its process the first time."""
    if block_info and block_info[0]["chunk-location"][0] == DEADLY and not Path(grave).exists():
        Path(grave).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return block


def main() -> None:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 4000, 8))
    model = askew.Embedded(torch.nn.Linear(8, 4), askew.NeuralBregman(4, widths=(16, 16))).double().eval()
    index = ExactIndex(model)
    index.add(x)
    values, places = index.search(y[:20], 10)
    # A machine under load may need longer than the 15 s after which a cluster gives a killed worker up.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "5 minutes"})
    # Workers are forked from a process that has imported everything: each of the four would need seconds for it.
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context()  # sets what dask itself wants to be imported
    multiprocessing.set_forkserver_preload(["distributed", "askew.search.dask", "__main__"])
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        lazily = da.from_array(x, chunks=(250, 8))
        grave = Path(folder) / "search"
        items = lazily.map_blocks(functools.partial(brought, grave=str(grave)), dtype=x.dtype)
        found_values, found_places = search_blocks(model, items, y[:20], 10)
        killed = {int(grave.read_text())}
        gone = len(killed - set(client.run(os.getpid, on_error="ignore").values()))
    found = {
        "values": float(np.abs(found_values - values).max()),
        "places": int((found_places != places).sum()),
        "gone": gone,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
