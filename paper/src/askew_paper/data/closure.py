"""Link prediction in a hierarchy: the published splits of WordNet's mammals, or those of small random trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew_paper.data.files import Folder, Source, find

# Per cent of the non-basic pairs that training has, besides all basic ones.
SHARES = (0, 10, 25, 50, 90)
PARTS = ("valid", "valid_neg", "test", "test_neg")
NEGATIVES = 5  # on each side of a pair

Nodes = NDArray[np.int64]


def source(part: str) -> Source:
    """Return the file of a part, such as ``vocab``, ``test_neg`` or ``train_10percent``."""
    url = "https://github.com/dalab/hyperbolic_cones"
    return Source(f"closure/mammal_closure.tsv.{part}", url, terms="Apache-2.0; WordNet licence")


@dataclass(frozen=True)
class Closure:
    """Pairs of nodes ``(m, 2)``, the specific one first; those of ``valid_neg`` and ``test_neg`` do not hold."""

    nodes: int
    train: Nodes
    valid: Nodes
    valid_neg: Nodes
    test: Nodes
    test_neg: Nodes

    def __post_init__(self) -> None:
        for name in ("train", *PARTS):
            pairs = getattr(self, name)
            wrong = pairs.ndim != 2 or pairs.shape[1:] != (2,) or not pairs.size
            if wrong or pairs.min() < 0 or pairs.max() >= self.nodes:
                got = f"shape {pairs.shape}" if wrong else f"numbers from {pairs.min()} to {pairs.max()}"
                must = f"pairs of two numbers of the {self.nodes} nodes, from 0 to {self.nodes - 1}"
                raise ValueError(checks.message(f"{name} of a closure", must, got))


def load_closure(share: int, folder: Folder = None) -> Closure:
    """Return the published split of WordNet's mammals with one of :data:`SHARES` of the non-basic pairs.

    Its files have the general node first.

    Examples
    --------
    >>> load_closure(10, "nowhere")
    Traceback (most recent call last):
    FileNotFoundError: closure/mammal_closure.tsv.vocab must be in the folder 'nowhere'. Got no such file instead. ...
    """
    if share not in SHARES:
        raise ValueError(checks.message("share of load_closure", f"one of {SHARES}", repr(share)))
    nodes = len(find(source("vocab"), folder).read_text("utf-8").splitlines())
    files = {"train": f"train_{share}percent"} | {part: part for part in PARTS}
    pairs: dict[str, Any] = {}
    for part, file in files.items():
        path = find(source(file), folder)
        try:
            pairs[part] = np.loadtxt(path, dtype=np.int64, ndmin=2)[:, ::-1]
        except ValueError as error:
            must = "lines of two whole numbers with a tab between them"
            raise ValueError(checks.message(f"{str(path)!r}", must, str(error))) from error
    return Closure(nodes, **pairs)


def random_closure(share: int, nodes: int = 60, seed: int = 0) -> Closure:
    """Return three small random trees, split as the published pairs are: 5 % of the non-basic ones for each test.

    Examples
    --------
    >>> small = random_closure(10)
    >>> len(small.valid) == len(small.test), len(small.test_neg) == 10 * len(small.test)
    (True, True)
    """
    random = np.random.default_rng(seed)
    above: list[list[int]] = [[], [], []]  # several roots: no node may be above all others
    for node in range(3, nodes):
        parent = int(random.integers(max(0, node // 3 - 2), node // 3 + 1))
        above.append([parent, *above[parent]])
    basic = [(node, upper[0]) for node, upper in enumerate(above) if upper]
    others = random.permutation([(node, upper) for node in range(nodes) for upper in above[node][1:]])
    held = max(2, len(others) // 20)
    holds = np.eye(nodes, dtype=np.bool_)
    for node, upper in enumerate(above):
        holds[node, upper] = True

    def negatives(pairs: Nodes) -> Nodes:
        wrong = []
        for low, high in pairs.tolist():
            wrong += [(low, other) for other in random.choice(np.flatnonzero(~holds[low]), NEGATIVES)]
            wrong += [(other, high) for other in random.choice(np.flatnonzero(~holds[:, high]), NEGATIVES)]
        return np.array(wrong)

    test, valid, rest = np.split(others, [held, 2 * held])
    train = np.concatenate([basic, rest[: round(share / 100 * len(others))]])
    return Closure(nodes, train, valid, negatives(valid), test, negatives(test))
