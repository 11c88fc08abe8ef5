"""Nearest items in FAISS by a divergence that is not symmetric, in both directions.

    python examples/retrieval.py            # 20,000 documents as shares of 16 topics

By Kullback-Leibler, the two directions answer two questions. D(query, item) is small if the item has every topic of
the query: it covers it, and may well be broader. D(item, query) is small if the query has every topic of the item: the
item is a part of it, and may well be narrower. The entropy of the hits shows that: e^entropy is roughly how many topics
they have. Recall is the share of the true neighbours that the approximate index found.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from askew.search import ExactIndex, FaissIndex

TOPICS = 16


def documents(count: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return shares of topics, from narrow to broad."""
    breadth = generator.uniform(0.05, 1.0, size=(count, 1))
    shares = generator.gamma(np.repeat(breadth, TOPICS, axis=1)) + 1e-6
    return shares / shares.sum(1, keepdims=True)


def topics_of(shares: NDArray[np.float64]) -> float:
    """Return the mean number of topics, e^entropy."""
    return float(np.exp(-(shares * np.log(shares)).sum(-1)).mean())


def main() -> None:
    """Search twice and compare with exact search."""
    parser = argparse.ArgumentParser(description="Search in both directions.")
    parser.add_argument("--items", type=int, default=20_000)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    items, queries = documents(options.items, generator), documents(200, generator)
    print(f"{options.items} items, {len(queries)} queries of {topics_of(queries):.1f} topics, k = 10\n")
    found = {}
    for direction, meaning in (("query-first", "D(query, item)"), ("query-second", "D(item, query)")):
        index = FaissIndex("kl-simplex", direction=direction, kind="ivf")
        index.add(items)
        values, found[direction] = index.search(queries, k=10)
        exact = ExactIndex("kl-simplex", direction=direction)
        exact.add(items)
        _, true = exact.search(queries, k=10)
        recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found[direction], true, strict=True)])
        topics = topics_of(items[found[direction]])
        print(f"{meaning}: hits have {topics:.1f} topics, recall {recall:.3f}, smallest value {values.min():.4f}")
    same = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*found.values(), strict=True)])
    print(f"\n{same:.0%} of the hits are the same both ways")


if __name__ == "__main__":
    main()
