"""Time askew.fit in one and in two processes: steps a second on the same global batch, and what gathering costs.

    python benchmarks/scaling.py [--rounds 5] [--steps 30] [--batch 512]

One process with one thread, one with two threads, and two processes (gloo) with one thread each take turns, one round
after another; figures are medians, and the ratios within a round are what means something on a busy machine. The model
is an encoder of two hidden layers with NBD behind it, learned from labels by all triplets of the batch: every process
encodes its half, and the loss sees all of it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

WIDTH, OUT, FEATURES, CLASSES = 1024, 64, 256, 20


def train(rank: int, size: int, meeting: str, steps: int, batch: int) -> float:
    """Return the steps a second of one process."""
    import torch
    from torch import distributed

    import askew
    from askew.encoders import MLP

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if size > 1:
        distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    torch.manual_seed(0)
    model = askew.Embedded(MLP(FEATURES, OUT, (WIDTH, WIDTH)), askew.NeuralBregman(OUT))
    data = (torch.randn(4 * batch, FEATURES), torch.randint(CLASSES, (4 * batch,)))
    loss = askew.losses.AllTriplets(1.0)
    askew.fit(model, data, loss, steps=3, batch_size=batch, seed=0, device="cpu", progress=False)
    begun = time.perf_counter()
    askew.fit(model, data, loss, steps=steps, batch_size=batch, seed=0, device="cpu", progress=False, calibrate=False)
    took = time.perf_counter() - begun
    if size > 1:
        distributed.destroy_process_group()
    return steps / took


def start(processes: int, threads: int, steps: int, batch: int, meeting: Path) -> float:
    """Run processes together and return the steps a second of the slowest."""
    meeting.unlink(missing_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--steps", str(steps), "--batch", str(batch), "--meeting", str(meeting)]
    running = [
        subprocess.Popen(
            [*command, "--rank", str(rank), "--size", str(processes)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(processes)
    ]
    return min(float(process.communicate()[0]) for process in running)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--meeting", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        print(train(arguments.rank, arguments.size, arguments.meeting, arguments.steps, arguments.batch))
        return
    import tempfile

    ways = {"1 process, 1 thread": (1, 1), "1 process, 2 threads": (1, 2), "2 processes, 1 thread each": (2, 1)}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for name, (processes, threads) in ways.items():
                meeting = Path(folder) / "meeting"
                speeds[name].append(start(processes, threads, arguments.steps, arguments.batch, meeting))
    base = next(iter(speeds.values()))
    print("| | steps a second | ratio to one process |\n|---|---|---|")
    for name, found in speeds.items():
        ratio = statistics.median(one / other for one, other in zip(found, base, strict=True))
        print(f"| {name} | {statistics.median(found):.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
