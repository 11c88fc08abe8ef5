"""Taxonomies: which meanings are above which, from WordNet or made at random."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from askew import checks
from askew_paper.data.files import Folder, Source, find
from askew_paper.data.words import Text, WordVectors, read_table

_WORDNET = "https://wordnet.princeton.edu"
SYNSETS, EDGES, MAMMALS = (
    Source(f"wordnet/{file}.tsv.gz", _WORDNET, terms="WordNet licence; WordNet 3.0 as a table")
    for file in ("noun_synsets", "noun_hypernym_edges", "mammal_closure")
)
# Columns of a lower and an upper meaning in the files of WordNet.
STEPS = {"nouns": (EDGES, "hyponym", "hypernym"), "mammals": (MAMMALS, "descendant", "ancestor")}


@dataclass(frozen=True)
class Taxonomy:
    """Meanings, the words for each, and which meaning is directly above which.

    Examples
    --------
    >>> tree = Taxonomy({"dog.1": ("dog",), "pet.1": ("pet",), "animal.1": ("animal",)},
    ...                 {"dog.1": ("pet.1",), "pet.1": ("animal.1",)})
    >>> tree.ancestors("dog.1")
    {'pet.1': 1, 'animal.1': 2}
    >>> sorted(tree.pairs(["dog", "animal"], steps=4))
    [('dog', 'animal')]
    """

    words: Mapping[str, Text]  # of each meaning, by its name
    above: Mapping[str, Text]  # the meanings directly above each; those with nothing above may be left out

    def ancestors(self, meaning: str, steps: int | None = None) -> dict[str, int]:
        """Return the meanings above one, at most ``steps`` away, and the least number of steps to each."""
        found: dict[str, int] = {}
        level, taken = {meaning}, 0
        while level and (steps is None or taken < steps):
            taken += 1
            level = {upper for one in level for upper in self.above.get(one, ())} - found.keys() - {meaning}
            found.update(dict.fromkeys(sorted(level), taken))
        return found

    def pairs(self, vocabulary: Collection[str] | WordVectors, steps: int | None = None) -> dict[tuple[str, str], int]:
        """Return the pairs of a word and one above it, both in a vocabulary, and the least number of steps.

        Words have several meanings: a pair holds if it does for one of them. No word is paired with itself.
        """
        known = {name: [word for word in words if word in vocabulary] for name, words in self.words.items()}
        found: dict[tuple[str, str], int] = {}
        for name, words in known.items():
            for upper, taken in self.ancestors(name, steps).items() if words else ():
                for pair in ((a, b) for a in words for b in known.get(upper, ()) if a != b):
                    found[pair] = min(taken, found.get(pair, taken))
        return found

    def under(self, meaning: str) -> Taxonomy:
        """Return the part of a meaning and everything below it."""
        checks.check_name(meaning, self.words, "meaning of a taxonomy")
        kept = {name for name in self.words if name == meaning or meaning in self.ancestors(name)}
        above = {name: tuple(upper for upper in self.above.get(name, ()) if upper in kept) for name in sorted(kept)}
        return Taxonomy({name: words for name, words in self.words.items() if name in kept}, above)

    def without(self, words: Collection[str]) -> Taxonomy:
        """Return the same meanings without some of their words."""
        kept = {name: tuple(word for word in those if word not in words) for name, those in self.words.items()}
        return Taxonomy(kept, self.above)


def load_taxonomy(part: str = "nouns", folder: Folder = None) -> Taxonomy:
    """Return a part of WordNet 3.0.

    It is ``"nouns"``, with 82,115 meanings and the steps between them, or ``"mammals"``, in which each meaning has all
    mammals above it at one step.

    Examples
    --------
    >>> load_taxonomy("verbs")
    Traceback (most recent call last):
    ValueError: part of WordNet must be one of 'nouns', 'mammals'. Got 'verbs' instead.
    """
    source, *names = STEPS[checks.check_name(part, STEPS, "part of WordNet")]
    synsets = read_table(find(SYNSETS, folder), ("name", "lemmas"))
    edges = read_table(find(source, folder), tuple(names))
    words = {name: tuple(text.split(",")) for name, text in zip(synsets["name"], synsets["lemmas"], strict=True)}
    above: dict[str, list[str]] = {}
    for lower, upper in zip(*(edges[name] for name in names), strict=True):
        if lower not in words or upper not in words:
            must = f"between meanings of {SYNSETS.file}"
            raise ValueError(checks.message(f"each step of {source.file}", must, repr((lower, upper))))
        if lower != upper:
            above.setdefault(lower, []).append(upper)
    if part == "mammals":
        kept = above.keys() | {upper for uppers in above.values() for upper in uppers}
        words = {name: those for name, those in words.items() if name in kept}
    return Taxonomy(words, {name: tuple(uppers) for name, uppers in above.items()})


def random_taxonomy(depth: int = 4, branches: int = 4, dim: int = 16, seed: int = 0) -> tuple[Taxonomy, WordVectors]:
    """Return a random tree with ``branches ** depth`` leaves and vectors for its words, to try things without files.

    The vector of a word is that of the word above plus a normal step, and the root is at 0: words are near those above
    them, and general ones are near the centre.

    Examples
    --------
    >>> tree, vectors = random_taxonomy(depth=2, branches=2)
    >>> len(vectors), tree.ancestors("w0-1")
    (7, {'w0': 1, 'w': 2})
    """
    for name, size in (("depth", depth), ("branches", branches), ("dim", dim)):
        checks.check_size(size, f"{name} of random_taxonomy")
    random = np.random.default_rng(seed)
    above: dict[str, Text] = {}
    points = {"w": np.zeros(dim)}
    level = ["w"]
    for number in range(depth):
        lower = [
            (f"{word}-{branch}" if number else f"{word}{branch}", word) for word in level for branch in range(branches)
        ]
        for name, word in lower:
            above[name] = (word,)
            points[name] = points[word] + random.normal(size=dim)
        level = [name for name, _ in lower]
    words = tuple(points)
    vectors = np.stack([points[word] for word in words]).astype(np.float32)
    return Taxonomy({word: (word,) for word in words}, above), WordVectors(words, vectors)
