"""Fuzzing of what computes with divergences: scores, losses, k-means and search, against plain loops."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import torch

import askew
from askew import losses, metrics
from askew.search import ExactIndex, FaissIndex
from fuzzing.numbers import awkward, edge_rows, inside, moderate_rows, seeded
from fuzzing.targets import Target, check

__all__ = ["TARGETS"]

Case = tuple[int, str]
SPECIAL = np.array([0.0, -0.0, 1.0, 1.0, 2.0, np.inf, 1e-300, 1e300, 5e-324, 0.1, 0.3])


def case_of(*kinds: str) -> Any:
    def make(random: Random) -> Case:
        return random.getrandbits(60), random.choice(kinds)

    return make


# ---------------------------------------------------------------------- scores


def average_precision(relevant: Any) -> float:
    """Return the average precision of items in a given order, by its definition."""
    hits = np.cumsum(relevant)
    return float((hits / np.arange(1, len(relevant) + 1))[relevant].mean())


def run_scores(case: Case) -> int:
    seed, kind = case
    random = Random(seed)
    numbers = seeded(random)
    n, m, classes = random.randrange(1, 6), random.randrange(1, 12), random.randrange(1, 4)
    if kind == "any":
        arguments = [awkward(random) for _ in range(3)]
        random.choice((metrics.ranking, metrics.mean_average_precision, metrics.auc, metrics.knn_accuracy))(*arguments)
        return 1
    if kind == "labels":
        first, second = numbers.integers(classes, size=m), numbers.integers(classes, size=m)
        for score in (metrics.purity, metrics.rand):
            value = score(first, second)
            check(-1e-12 <= value <= 1 + 1e-12, f"{score.__name__} {value}")
            check(abs(score(first[::-1], second[::-1]) - value) < 1e-9, f"{score.__name__} of the other order")
        check(metrics.rand(first, first) == 1 == metrics.purity(first, first), "not 1 for the same labels")
        return m
    if kind == "numbers":
        values = edge_rows(numbers, 2, m).numpy()
        result = [metrics.mae(*values), metrics.r2(*values), metrics.spearman(*values)]
        check(not np.isnan(result[0]) and result[0] >= 0, f"mae {result[0]}")
        truth = np.abs(values[0].astype(np.float64) - values[1]).mean()
        check(abs(result[0] - truth) <= 1e-9 * truth, "mae")
        return m
    matrix = numbers.random((n, m))
    queries, items = numbers.integers(classes, size=n), numbers.integers(classes, size=m)
    if kind == "ties":
        matrix = SPECIAL[numbers.integers(len(SPECIAL), size=(n, m))]
    if random.random() < 0.3:
        matrix = matrix.T.copy()[:, ::-1].T[::-1]
    found = metrics.ranking_per_query(matrix, queries, items, k=random.randrange(1, 15))
    for name, values in found.items():
        known = values[~np.isnan(values)]
        check(((known >= -1e-12) & (known <= 1 + 1e-12)).all(), f"{name} {known}")
    if kind == "ranking":
        for i in range(n):
            relevant = items[np.argsort(matrix[i])] == queries[i]
            if relevant.any():
                check(abs(average_precision(relevant) - found["map"][i]) < 1e-9, "map")
                check(found["precision@1"][i] == relevant[0], "precision@1")
    else:  # the mean over orders of ties is between the best and the worst of them
        for i in range(n):
            own = items == queries[i]
            if own.any():
                best, worst = (average_precision(own[np.lexsort((order, matrix[i]))]) for order in (~own, own))
                check(worst - 1e-9 <= found["map"][i] <= best + 1e-9, "map of ties")
    return n


# ---------------------------------------------------------------------- losses

LOSSES = (
    losses.AllTriplets(0.2),
    losses.HardTriplets(0.2),
    losses.SemiHardTriplets(0.2),
    losses.Contrastive(),
    losses.Listwise(),
)


def all_triplets(matrix: Any, labels: Any, margin: float) -> float:
    """Return the mean of the triplets above zero, by its definition."""
    n = len(labels)
    terms = [
        margin + matrix[a, p] - matrix[a, q]
        for a in range(n)
        for p in range(n)
        for q in range(n)
        if p != a and labels[p] == labels[a] and labels[q] != labels[a]
    ]
    above = [term for term in terms if term > 0]
    return sum(above) / len(above) if above else 0.0


def run_losses(case: Case) -> int:
    seed, kind = case
    random = Random(seed)
    numbers = seeded(random)
    loss = random.choice(LOSSES)
    n = random.randrange(0, 9)
    if kind == "any":
        loss(awkward(random), awkward(random))
        return 1
    labels = torch.from_numpy(numbers.integers(3, size=n))
    matrix = torch.from_numpy(numbers.random((n, n)) * random.choice((1.0, 10.0, 1e-3)))
    if kind == "ties":
        matrix = torch.from_numpy(np.array([0.0, 0.1, 0.2, 0.3, 1.0])[numbers.integers(5, size=(n, n))])
    if kind == "edges":
        matrix = edge_rows(numbers, n, n).abs().clamp_max(1e15)
    if random.random() < 0.3:
        matrix = matrix.t().contiguous().t()
    matrix = matrix.detach().requires_grad_()
    value = loss(matrix, labels)
    value.backward()
    check(value.shape == () and torch.isfinite(value) and value >= 0, f"{type(loss).__name__}: {value.item()}")
    check(matrix.grad is not None and torch.isfinite(matrix.grad).all(), f"{type(loss).__name__}: its gradient")
    if kind == "usual" and isinstance(loss, losses.AllTriplets):
        truth = all_triplets(matrix.detach().numpy(), labels.numpy(), 0.2)
        check(abs(value.item() - truth) < 1e-6 * (1 + truth), f"AllTriplets: {value.item()}, {truth}")
    return max(1, n)


# ---------------------------------------------------------------------- k-means on degenerate data

MEMBERS = ("euclidean", "kl", "itakura-saito", "logistic", "exponential", "power")


def run_kmeans(case: Case) -> int:
    seed, kind = case
    random = Random(seed)
    numbers = seeded(random)
    n, dim = random.choice((0, 1, 2, 3, 10, 30)), random.choice((1, 2, 3))
    clusters = random.choice((1, 1, 2, 3, max(1, n), n + 1))
    name = random.choice(MEMBERS)
    domain = askew.make(name, dim).domain
    z = moderate_rows(numbers, n, dim)
    if kind == "same":
        z = z[:1].expand(n, dim) if n else z
    elif kind == "few":
        z = z[torch.from_numpy(numbers.integers(max(1, n), size=n) % 2)] if n else z
    elif kind == "edges":
        z = edge_rows(numbers, n, dim)
    points: Any = inside(domain, z, kind == "edges").numpy()
    if kind == "any":
        points = awkward(random)
    elif random.random() < 0.3:
        points = points[::-1, ::-1]
    weights = None if random.random() < 0.7 else numbers.choice((0.0, 1.0, 5.0), size=n)
    model = askew.BregmanKMeans(
        clusters, divergence=name, n_init=1, max_iter=10, random_state=0, dual=random.random() < 0.2
    )
    model.fit(points, sample_weight=None if kind == "any" else weights)
    labels = model.predict(points)
    check(len(labels) == len(points) and labels.min() >= 0 and labels.max() < clusters, "a label out of range")
    check(np.isfinite(model.cluster_centers_).all(), f"centres {model.cluster_centers_.tolist()}")
    check(model.inertia_ >= 0, f"inertia {model.inertia_}")
    if kind in ("usual", "few") and not model.dual:
        centres = torch.from_numpy(model.cluster_centers_).double()
        matrix = askew.make(name, dim).pairwise(torch.from_numpy(points.copy()).double(), centres).numpy()
        chosen = matrix[np.arange(len(labels)), labels]
        check((chosen <= matrix.min(1) * (1 + 1e-3) + 1e-6).all(), "a point that has a nearer centre")
    return max(1, n)


# ---------------------------------------------------------------------- search against a plain loop


def run_search(case: Case) -> int:
    seed, kind = case
    random = Random(seed)
    numbers = seeded(random)
    name = random.choice(("euclidean", "kl", "itakura-saito", "exponential", "iqe", "mahalanobis", "nbd"))
    n, q, dim = random.choice((1, 2, 10, 60)), random.choice((0, 1, 4)), random.choice((1, 2, 4))
    torch.manual_seed(0)
    divergence = askew.make(name, dim)
    direction = random.choice(("query-first", "query-second"))
    faiss = random.random() < 0.4 and name not in ("iqe", "mahalanobis")
    index: Any = (FaissIndex if faiss else ExactIndex)(divergence, direction)
    if kind == "any":
        index.add(awkward(random))
        index.search(awkward(random), 1)
        return 1
    draw = edge_rows if kind == "edges" else moderate_rows
    items, queries = (inside(divergence.domain, draw(numbers, count, dim), kind == "edges").numpy() for count in (n, q))
    if kind == "same":
        items[n // 2 :] = items[0]
        queries[: q // 2] = items[0]
    if random.random() < 0.3:
        items, queries = items[:, ::-1], queries[::-1]
    index.add(items)
    gone = [int(i) for i in range(n) if random.random() < 0.2][: n - 1]
    if gone:
        index.remove(gone)
    k = random.randrange(1, n - len(gone) + 1)
    values, ids = index.search(queries, k)
    check(values.shape == ids.shape == (q, k), "another shape")
    check(not set(ids.reshape(-1).tolist()) & set(gone), "an item that was removed")
    check(all(len(set(row)) == k for row in ids.tolist()), "an item twice")
    check(not (values < 0).any(), "a negative value")
    if kind == "edges":  # values may overflow
        return max(1, q)
    check((np.diff(values, axis=1) >= 0).all(), "values that do not rise")
    left, right = torch.from_numpy(queries.copy()).double(), torch.from_numpy(items.copy()).double()
    wide = divergence.double()
    matrix = wide(left[:, None], right[None]) if direction == "query-first" else wide(right[None], left[:, None])
    truth = matrix.detach().numpy().copy() if q else np.zeros((0, n))
    truth[:, gone] = np.inf
    best = np.sort(truth, 1)[:, :k]
    fits = best < 1e30
    close = (np.abs(values - best)[fits] <= 1e-3 * best[fits] + 1e-6).all()
    check(close, f"{name} {direction}: {values.tolist()} {best.tolist()}")
    return max(1, q)


TARGETS = (
    Target("scores", case_of("ranking", "ranking", "ties", "labels", "numbers", "any"), run_scores),
    Target("losses", case_of("usual", "usual", "ties", "edges", "any"), run_losses),
    Target("kmeans", case_of("usual", "same", "few", "edges", "any"), run_kmeans),
    Target("search", case_of("usual", "usual", "same", "edges", "any"), run_search),
)
