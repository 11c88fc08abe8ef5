"""Train, index and cluster a table that is larger than the memory a process may have, and tell its peak.

    python benchmarks/memory.py [--limit 768] [--times 3] [--dim 256] [--folder /tmp] [--parts train ...]

A table of ``times`` the limit is written as .npy and as Parquet. Each part then runs in a process of its own, whose
memory is limited to ``limit`` megabytes by a control group, where one can be made (as root), or else by RLIMIT_DATA,
which limits what a process writes to. In a control group, pages of files count, too, but are given back when others are
wanted: private is the largest memory that was not of that kind.

- train: 200 steps of NBD on batches of 1,024 rows of a mapped array
- index: FaissIndex of kind ivf-pq over all rows, half a byte a feature, from the .npy file, with scratch; then 100
  searches, saving, loading
- cluster: BregmanKMeans.partial_fit of 64 clusters over all blocks of the Parquet file
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

STEPS, BATCH, CLUSTERS = 200, 1024, 64
PARTS = ("train", "index", "cluster")


def write_table(folder: Path, size: int, dim: int) -> int:
    """Write a table of some bytes, in blocks, twice; return its rows."""
    import pyarrow
    from pyarrow import parquet

    rows = size // (4 * dim)
    points = np.lib.format.open_memmap(folder / "points.npy", "w+", np.float32, (rows, dim))
    labels = np.lib.format.open_memmap(folder / "labels.npy", "w+", np.int64, (rows,))
    centres = np.random.RandomState(0).gamma(2, 1, (CLUSTERS, dim)).astype(np.float32)
    names = [*(f"x{i}" for i in range(dim)), "label"]
    writer = None
    for start in range(0, rows, 16384):
        random = np.random.RandomState(start)
        count = min(16384, rows - start)
        own = random.randint(CLUSTERS, size=count)
        block = centres[own] * random.gamma(10, 0.1, (count, dim)).astype(np.float32) + np.float32(0.01)
        # Two clusters have one label: a loss that is 0 from the start would train nothing.
        points[start : start + count], labels[start : start + count] = block, own // 2
        table = pyarrow.table([*block.T, own], names=names)
        writer = writer or parquet.ParquetWriter(folder / "table.parquet", table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    points.flush()
    return rows


# ---------------------------------------------------------------------- what runs under the limit


def run(part: str, folder: Path) -> str:
    import torch

    import askew
    from askew.io import Rows

    torch.manual_seed(0)
    dim = np.load(folder / "points.npy", mmap_mode="r").shape[1]
    names = [f"x{i}" for i in range(dim)]
    table = folder / "table.parquet"
    loss = askew.losses.AllTriplets(1.0)
    if part == "train":
        model = askew.NeuralBregman(dim)
        some = tuple(torch.from_numpy(Rows(folder / f"{name}.npy").read(0, BATCH)) for name in ("points", "labels"))
        data = tuple(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("points", "labels"))
        points, labels = some

        def measured() -> float:
            with torch.no_grad():
                return float(loss(model.pairwise(points, points), labels))

        before = measured()
        askew.fit(model, data, loss, steps=STEPS, batch_size=BATCH, seed=0, device="cpu", progress=False)
        return f"{STEPS} steps, loss of the first {BATCH} rows {before:.3f} before, {measured():.3f} after"
    if part == "cluster":
        kmeans = askew.BregmanKMeans(CLUSTERS, divergence="itakura-saito", random_state=0)
        for block in Rows(table, names).blocks(8192):
            kmeans.partial_fit(block)
        return f"{kmeans.n_iter_} blocks"
    # Any recall will do: for more of it, an item would take a byte a feature instead of half a byte.
    index = askew.search.FaissIndex("itakura-saito", kind="ivf-pq", recall_target=0.1, scratch=folder, progress=False)
    index.add_blocks(Rows(folder / "points.npy").blocks(16384))
    queries = Rows(folder / "points.npy").read(0, 100)
    before = index.search(queries, 10)[1]
    index.save(folder / "index")
    del index
    again = askew.search.FaissIndex.load(folder / "index")
    same = bool((again.search(queries, 10)[1] == before).all())
    first = float((before[:, 0] == np.arange(100)).mean())
    return f"{len(again)} items, the item itself first for {first:.0%} of 100, same after loading: {same}"


def private_memory(pid: int | str) -> int:
    with open(f"/proc/{pid}/status") as file:
        found = dict(line.split(":", 1) for line in file)
    return int(found["RssAnon"].split()[0]) * 1024


def watched(part: str, folder: Path) -> None:
    """Run one part, and print what it came to and the largest private memory."""
    peak, stop = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.02):
            peak = max(peak, private_memory("self"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.monotonic()
    try:
        text = run(part, folder)
    finally:
        stop.set()
        watcher.join()
    print(f"{peak / 2**20:.0f}|{time.monotonic() - begun:.0f}|{text}", flush=True)


# ---------------------------------------------------------------------- the limit


def control_group(limit: int) -> Path | None:
    """Return a new control group with this limit, or None where none can be made."""
    for root, file in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"askew-{os.getpid()}"
        try:
            group.mkdir()
            (group / file).write_text(str(limit))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        return group
    return None


def limited(part: str, folder: Path, limit: int) -> tuple[str, str]:
    """Run one part in a process under the limit; return how it was limited and what the process printed."""
    group = control_group(limit)

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    command = [sys.executable, __file__, "--run", part, "--folder", str(folder)]
    # As user and machine have it, but for BLAS, whose threads each want memory.
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    done = subprocess.run(command, preexec_fn=enter, capture_output=True, text=True, env=environment, check=False)
    if group is not None:
        group.rmdir()
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    text = lines[-1] if lines else ""
    if done.returncode != 0:
        text = f"-|-|failed ({done.returncode}): {text}"
    return ("control group" if group is not None else "RLIMIT_DATA"), text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=768, help="megabytes a process may have")
    parser.add_argument("--times", type=float, default=3.0, help="size of the table, in limits")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--run", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        watched(arguments.run, arguments.folder)
        return
    limit = arguments.limit << 20
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        rows = write_table(folder, int(arguments.times * limit), arguments.dim)
        size = (folder / "points.npy").stat().st_size
        print(f"{rows} rows of {arguments.dim} features, {size / 2**20:.0f} MB; limit {arguments.limit} MB\n")
        print("| part | limited by | private MB | seconds | |\n|---|---|---|---|---|", flush=True)
        for part in arguments.parts:
            how, text = limited(part, folder, limit)
            print(f"| {part} | {how} | {' | '.join(text.split('|'))} |", flush=True)


if __name__ == "__main__":
    main()
