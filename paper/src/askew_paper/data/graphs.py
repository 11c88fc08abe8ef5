"""Weighted graphs: the paper's five grids, and shortest paths in any graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from askew import checks

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Streams of random numbers: no two of these purposes share any.
WEIGHTS_STREAM, LANDMARKS_STREAM, FEATURES_STREAM, PAIRS_STREAM = range(4)
# Weights, or their means, are drawn from 0.01, 0.02, ..., 1.00.
STEPS = 100
# Of a weight that is drawn around a mean: its deviation as a fraction of the mean, and its minimum.
DEVIATION, LEAST = 0.1, 0.01
# Distances held at a time (32 MiB).
BLOCK_DISTANCES = 1 << 22


def random_stream(stream: int, seed: int, owner: str) -> np.random.Generator:
    """Return random numbers of one purpose and seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(checks.message(f"seed of {owner}", "an integer of at least 0", repr(seed)))
    return np.random.default_rng([stream, seed])


@dataclass(frozen=True)
class _Grid:
    """How a grid is connected; the two directions of ``sampled`` ones differ, ``one_way`` ones have only one."""

    side: int
    steps: tuple[tuple[int, ...], ...]
    wraps: bool = False
    one_way: bool = False
    sampled: bool = False


def _unit_steps(dimensions: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i == k) for i in range(dimensions)) for k in range(dimensions))


GRIDS = {
    "3d": _Grid(50, _unit_steps(3), wraps=True),
    "3dd": _Grid(50, _unit_steps(3), wraps=True, one_way=True),
    "taxi": _Grid(25, _unit_steps(4)),
    "traffic": _Grid(100, _unit_steps(2), sampled=True),
    "octagon": _Grid(100, (*_unit_steps(2), (1, 1), (1, -1)), sampled=True),
}


def graph_names() -> list[str]:
    """Return the names of the paper's graphs.

    Examples
    --------
    >>> graph_names()
    ['3d', '3dd', 'taxi', 'traffic', 'octagon']
    """
    return list(GRIDS)


def is_directed(name: str) -> bool:
    """Return whether the two directions of a graph of :func:`make_graph` differ.

    Examples
    --------
    >>> is_directed("3d"), is_directed("3dd")
    (False, True)
    """
    grid = GRIDS[checks.check_name(name, GRIDS, "name of a graph")]
    return grid.one_way or grid.sampled


def make_graph(name: str, side: int | None = None, seed: int = 0) -> csr_array:
    """Return one of the paper's graphs; entry (i, j) is the length of the edge from node i to node j.

    - ``"3d"``: a cubic grid whose edges wrap around. ``"3dd"``: the same, each edge in its forward direction only.
    - ``"taxi"``: a grid of four dimensions, the places of two objects in the plane; does not wrap.
    - ``"traffic"``: a square grid that does not wrap; ``"octagon"``: the same with both diagonals.

    Lengths are drawn from 0.01, 0.02, ..., 1.00. In the last two, both directions of an edge are drawn around such a
    mean from a normal distribution whose deviation is a tenth of it, and are at least 0.01.

    Parameters
    ----------
    name
        One of :func:`graph_names`.
    side
        Nodes along each dimension, at least 3; the paper's by default: 50 for 3d and 3dd, 25 for taxi, else 100.
    seed
        Of the lengths.

    References
    ----------
    Lu, Raff, Ferraro (2023), table "Details of the shortest-path datasets".

    Examples
    --------
    >>> graph = make_graph("3dd", side=4)
    >>> graph.shape, graph.nnz
    ((64, 64), 192)
    """
    grid = GRIDS[checks.check_name(name, GRIDS, "name of a graph")]
    side = grid.side if side is None else checks.check_size(side, "side of make_graph")
    if side < 3:
        raise ValueError(checks.message("side of make_graph", "at least 3", side))
    dimensions = len(grid.steps[0])
    random = random_stream(WEIGHTS_STREAM, seed, "make_graph")
    tails, heads = _edges(np.arange(side**dimensions).reshape((side,) * dimensions), grid)
    lengths = random.integers(1, STEPS + 1, tails.size) / STEPS
    if grid.one_way:
        return as_graph(tails, heads, lengths, side**dimensions)
    both = np.concatenate([lengths, lengths])
    if grid.sampled:
        both = np.maximum(both * (1 + DEVIATION * random.standard_normal(both.size)), LEAST)
    return as_graph(np.concatenate([tails, heads]), np.concatenate([heads, tails]), both, side**dimensions)


def _edges(numbers: Integers, grid: _Grid) -> tuple[Integers, Integers]:
    """Return the two ends of all edges of a grid of node numbers."""
    tails, heads = [], []
    for steps in grid.steps:
        if grid.wraps:
            first, second = numbers, np.roll(numbers, [-step for step in steps], tuple(range(numbers.ndim)))
        else:
            sides = list(zip(steps, numbers.shape, strict=True))
            first = numbers[tuple(slice(max(0, -step), n - max(0, step)) for step, n in sides)]
            second = numbers[tuple(slice(max(0, step), n - max(0, -step)) for step, n in sides)]
        tails.append(first.ravel())
        heads.append(second.ravel())
    return np.concatenate(tails), np.concatenate(heads)


def as_graph(tails: Integers, heads: Integers, lengths: Floats, n: int) -> csr_array:
    """Return a matrix of edges, the shortest of those that have the same ends."""
    # A sparse matrix would add them up.
    order = np.lexsort((lengths, heads, tails))
    tails, heads, lengths = tails[order], heads[order], lengths[order]
    first = np.r_[True, (np.diff(tails) != 0) | (np.diff(heads) != 0)][: tails.size]
    return csr_array((lengths[first], (tails[first], heads[first])), shape=(n, n))


def largest_part(graph: csr_array) -> csr_array:
    """Return the largest part of a graph in which all nodes reach each other; of equal ones, that of the first node.

    Examples
    --------
    >>> graph = csr_array([[0.0, 1.0, 1.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    >>> largest_part(graph).toarray()
    array([[0., 1.],
           [2., 0.]])
    """
    _, labels = connected_components(graph, directed=True, connection="strong")
    sizes = np.bincount(labels)
    # The order in which parts are numbered is not documented; that of their first nodes is.
    first = np.flatnonzero(sizes[labels] == sizes.max())[0]
    kept = np.flatnonzero(labels == labels[first])
    return csr_array(graph[kept][:, kept])


def landmark_distances(
    graph: csr_array, count: int = 32, directed: bool = True, seed: int = 0
) -> tuple[Integers, Floats]:
    """Return landmarks that are far from each other, and the distances between them and all nodes.

    The first landmark is random, each next one is the node that is farthest, there and back, from the previous ones.

    Returns ``(count,)`` landmarks, or as many as there are nodes, and ``(n, count)`` distances to them; if distances
    from the landmarks differ (``directed``), these follow, ``(n, 2 count)``.

    Examples
    --------
    >>> landmarks, distances = landmark_distances(make_graph("octagon", side=5), count=3)
    >>> distances.shape, [float(distances[node, k]) for k, node in enumerate(landmarks)]
    ((25, 6), [0.0, 0.0, 0.0])
    """
    n = graph.shape[0]
    count = min(checks.check_size(count, "count of landmark_distances"), n)
    backward = csr_array(graph.T) if directed else graph
    landmarks = np.zeros(count, np.int64)
    to = np.empty((n, count))
    back = np.empty((n, count)) if directed else to
    landmark = int(random_stream(LANDMARKS_STREAM, seed, "landmark_distances").integers(n))
    nearest = np.full(n, np.inf)
    for k in range(count):
        landmarks[k] = landmark
        to[:, k] = dijkstra(backward, indices=landmark)
        if directed:
            back[:, k] = dijkstra(graph, indices=landmark)
        nearest = np.minimum(nearest, to[:, k] + back[:, k])
        landmark = int(nearest.argmax())
    distances = np.concatenate([to, back], 1) if directed else to
    _check_reached(distances)
    return landmarks, distances


def node_features(distances: Floats, noise: float = 0.2, distractors: int = 96, seed: int = 0) -> NDArray[np.float32]:
    """Return the features of each node: noisy distances, all scaled alike, and then random distractors.

    Noise and distractors are drawn once for each node: it has the same features in all pairs.

    Distances ``(n, k)`` of :func:`landmark_distances` are scaled to mean 0 and variance 1, all together, before noise
    of this deviation is added. Distractors are from N(0, 1). The result is float32, ``(n, k + distractors)``.

    Examples
    --------
    >>> node_features(np.array([[1.0], [3.0]]), noise=0.0, distractors=2)[:, 0]
    array([-1.,  1.], dtype=float32)
    """
    random = random_stream(FEATURES_STREAM, seed, "node_features")
    spread = float(distances.std())
    scaled = (distances - distances.mean()) / (spread if spread > 0 else 1.0)
    scaled = scaled + noise * random.standard_normal(scaled.shape)
    useless = random.standard_normal((distances.shape[0], distractors))
    return np.concatenate([scaled, useless], 1).astype(np.float32)


def random_pairs(n: int, count: int, seed: int = 0) -> Integers:
    """Return ordered pairs of two different nodes, no pair twice, in random order: ``(count, 2)``, or all n (n - 1).

    Examples
    --------
    >>> sorted(random_pairs(2, 5).tolist())
    [[0, 1], [1, 0]]
    """
    if checks.check_size(n, "n of random_pairs") < 2:
        raise ValueError(checks.message("n of random_pairs", "at least 2", n))
    checks.check_size(count, "count of random_pairs")
    codes = random_stream(PAIRS_STREAM, seed, "random_pairs").choice(
        n * (n - 1), min(count, n * (n - 1)), replace=False
    )
    first, second = np.divmod(codes, n - 1)
    # The n - 1 others of a node are numbered without it.
    return np.stack([first, second + (second >= first)], 1)


def pair_distances(graph: csr_array, pairs: Integers) -> Floats:
    """Return the length of the shortest path from the first to the second node of each pair, ``(m, 2) -> (m,)``.

    Each first node takes one run of Dijkstra's algorithm. A pair without a path is an error.

    Examples
    --------
    >>> graph = csr_array([[0.0, 1.0, 9.0], [0.0, 0.0, 2.0], [1.0, 0.0, 0.0]])
    >>> pair_distances(graph, np.array([[0, 2], [2, 1]]))
    array([3., 2.])
    """
    sources, groups = np.unique(pairs[:, 0], return_inverse=True)
    order = np.argsort(groups, kind="stable")
    rows = max(1, BLOCK_DISTANCES // graph.shape[0])
    found = np.empty(len(pairs))
    for start in range(0, sources.size, rows):
        some = order[np.searchsorted(groups[order], start) : np.searchsorted(groups[order], start + rows)]
        block = dijkstra(graph, indices=sources[start : start + rows])
        found[some] = block[groups[some] - start, pairs[some, 1]]
    _check_reached(found)
    return found


def _check_reached(distances: Floats) -> None:
    if not np.isfinite(distances).all():
        must, hint = "one in which all these nodes reach each other", "Take its largest_part."
        raise ValueError(checks.message("graph", must, "one with nodes that do not", hint))
