"""From which size on a second thread pays: milliseconds of a step with one thread and with two, small to large.

    python benchmarks/threads.py [--busy 2]

Each cell is the smallest of some runs that alternate, by the clock and by the processor. `--busy N` starts N processes
that compute all the time. The work is the number by which `askew.fit` decides.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time

import torch

import askew
from askew.training import runtime

DIM, REPEATS, SECONDS = 20, 3, 0.2


def spin() -> None:
    while True:
        pass


def model(kind: str, width: int) -> askew.Divergence:
    if kind == "nbd":
        return askew.NeuralBregman(DIM, widths=(width, width))
    return askew.Embedded(askew.encoders.MLP(DIM, width, widths=(width, width)), askew.make("mahalanobis", width))


def train(kind: str, width: int, batch: int, steps: int, threads: int) -> tuple[float, float]:
    """Return the milliseconds of a step, by the clock and by the processor."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = torch.randn(2, 2 * batch, DIM)
    data = (x, y, (x - y).square().sum(1)) if kind == "nbd" else (x, torch.arange(2 * batch) % 5)
    loss = askew.losses.Regression() if kind == "nbd" else askew.losses.AllTriplets()
    settings = {"steps": steps, "batch_size": batch, "seed": 0, "progress": False, "learning_rate": 1e-4}
    start, used = time.perf_counter(), time.process_time()
    askew.fit(model(kind, width), data, loss, **settings)
    return 1e3 * (time.perf_counter() - start) / steps, 1e3 * (time.process_time() - used) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=0)
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(parser.parse_args().busy)]
    for process in busy:
        process.start()
    runtime.SMALL_STEP = 0.0  # or small steps would have one thread in both columns
    print("| model | width | batch | work | clock, 1 and 2 threads | processor, 1 and 2 threads |")
    print("|---|---|---|---|---|---|")
    for kind, batches in (("nbd", (100, 1000, 10000)), ("mlp", (128, 1000))):
        for width in (16, 64, 256, 1024):
            for batch in batches:
                size = sum(parameter.numel() for parameter in model(kind, width).parameters())
                work = runtime.step_work(batch, size, kind == "mlp")
                if work > 3e9:
                    continue
                once = train(kind, width, batch, 3, 1)[0]
                steps = max(3, min(100, int(1e3 * SECONDS / once)))
                runs = [[train(kind, width, batch, steps, threads) for threads in (1, 2)] for _ in range(REPEATS)]
                cells = [" and ".join(f"{min(run[t][c] for run in runs):.2f}" for t in (0, 1)) for c in (0, 1)]
                print(f"| {kind} | {width} | {batch} | {work:.1e} | {cells[0]} | {cells[1]} |", flush=True)
    for process in busy:
        process.terminate()


if __name__ == "__main__":
    main()
