"""Walking times in hilly country: who can reach me in ten minutes is not where I can get in ten minutes.

    python examples/travel_times.py                       # 400 crossings with nothing but their coordinates
    python examples/travel_times.py --picture times.png   # both isochrones around one crossing

Uphill takes longer than downhill. Every method learns from the times between some crossings, and is asked about
crossings that it has never seen. "error" is the mean absolute error relative to the mean time. "direction" is how often
it knows which of there and back is faster, .500 for a coin. "detours" is how often it claims that a way through a third
crossing is shorter than the shortest way: a guaranteed triangle inequality rules that out. The hills are made up, and
steep; `askew-paper run roads` has real road networks.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

import askew

METHODS = ("mahalanobis-norm", "nbd", "iqe", "drift-root")


def hills(side: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the coordinates of all crossings and the times between them."""
    place = np.stack(np.meshgrid(*[np.linspace(0, 1, side)] * 2, indexing="ij"), -1)
    tops, sizes = np.array([[0.25, 0.3], [0.8, 0.55], [0.35, 0.9]]), np.array([9.0, 12.0, 6.0])
    height = (sizes * np.exp(-((place[:, :, None] - tops) ** 2).sum(-1) / 0.05)).sum(-1)
    number = np.arange(side**2).reshape(side, side)
    first = np.concatenate([number[:-1].ravel(), number[:, :-1].ravel()])
    second = np.concatenate([number[1:].ravel(), number[:, 1:].ravel()])
    tails, heads = np.concatenate([first, second]), np.concatenate([second, first])
    rise = height.ravel()[heads] - height.ravel()[tails]
    time = 1 + 3 * np.maximum(rise, 0)
    return place.reshape(-1, 2), dijkstra(coo_array((time, (tails, heads)), shape=(side**2,) * 2).tocsr())


def joined(features: NDArray[np.float64], i: NDArray[np.int64], j: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return pairs of crossings, ``(n, 2, features)``."""
    return np.stack([features[i], features[j]], 1)


def draw(path: str, learner: Any, features: NDArray[np.float64], times: NDArray[np.float64], side: int) -> None:
    """Draw where one can get from a crossing, and from where one can get to it, in the same time."""
    import matplotlib.pyplot as plt

    here = side * (side // 2) + side // 3
    limits = np.quantile(times[here], [0.15, 0.3, 0.5])
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.3), layout="constrained", sharex=True, sharey=True)
    own = features[[here]]
    parts = (("from here", learner.pairwise(own, features)[0], times[here]),)
    parts += (("to here", learner.pairwise(features, own)[:, 0], times[:, here]),)
    grid = features.reshape(side, side, 2)
    for axis, (title, learned, true) in zip(axes, parts, strict=True):
        axis.contourf(*np.moveaxis(grid, 2, 0), learned.reshape(side, side), [0, *limits], cmap="Blues_r", alpha=0.8)
        axis.contour(*np.moveaxis(grid, 2, 0), true.reshape(side, side), limits, colors="black", linewidths=0.8)
        axis.plot(*own[0], "o", color="#d55e00")
        axis.set(title=f"{title}: learned (blue) and true (lines)", aspect="equal", xticks=[], yticks=[])
    figure.savefig(path, dpi=120)


def main() -> None:
    """Learn from half of the crossings and judge by the other half."""
    parser = argparse.ArgumentParser(description="Learn travel times that differ there and back.")
    parser.add_argument("--side", type=int, default=20, help="of the grid of roads, which has side^2 crossings")
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--picture", help="a file for the isochrones of drift-root")
    options = parser.parse_args()
    features, times = hills(options.side)
    generator = np.random.default_rng(1)
    order = generator.permutation(len(times))
    known, new = np.array_split(order, 2)
    i, j = generator.choice(known, (2, options.pairs))
    a, b, c = generator.choice(new, (3, 2000))
    truth = times[a, b]
    print(
        f"{len(times)} crossings, {options.pairs} known times; there and back differ by "
        f"{np.abs(truth - times[b, a]).mean() / truth.mean():.0%} of the mean time\n"
    )
    print(f"{'':18}   error  direction  detours")
    for name in METHODS:
        learner = askew.PairRegressor(name, encoder="mlp", steps=options.steps, random_state=0)
        learner.fit(joined(features, i, j), times[i, j])
        there, back = (learner.predict(joined(features, *pair)) for pair in ((a, b), (b, a)))
        error = np.abs(there - truth).mean() / truth.mean()
        differ = truth != times[b, a]
        right = np.sign(there - back) == np.sign(truth - times[b, a])
        direction = np.where(there == back, 0.5, right)[differ].mean()
        onwards, direct = (learner.predict(joined(features, *pair)) for pair in ((b, c), (a, c)))
        detours = (direct > 1.0001 * (there + onwards)).mean()
        print(f"{name:18}{error:8.3f}{direction:11.3f}{detours:9.3f}")
    if options.picture:
        draw(options.picture, learner, features, times, options.side)
        print(f"\nwrote {options.picture}")


if __name__ == "__main__":
    main()
