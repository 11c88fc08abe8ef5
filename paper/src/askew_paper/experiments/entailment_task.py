"""Data of the entailment experiment: words, training pairs, and what is held out."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew_paper.data.files import Folder
from askew_paper.data.taxonomy import Taxonomy, load_taxonomy, random_taxonomy
from askew_paper.data.words import WordPairs, WordVectors, load_lexical_split, load_pairs, load_vectors

__all__ = ["Lexicon", "Task", "load_lexicon", "make_task", "pair_rows", "random_lexicon"]

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Largest number of steps between the two words of a training pair.
STEPS = 4
# Share of the first words whose pairs are for validation.
VALIDATION = 0.05


# ---------------------------------------------------------------------- sources


@dataclass(frozen=True)
class Lexicon:
    """Word vectors, a taxonomy to learn from and the test sets of pairs.

    Attributes
    ----------
    vectors : WordVectors
        All words.
    taxonomy : Taxonomy
        Which words are above which.
    bless, wbless : WordPairs
        With labels.
    hyperlex : WordPairs
        With scores from 0 to 6 and columns ``pos``, ``label`` and ``fold``.
    mammals : Taxonomy
        The part of it for the retrieval of hypernyms, in which each meaning lists all meanings above it.
    """

    vectors: WordVectors
    taxonomy: Taxonomy
    bless: WordPairs
    wbless: WordPairs
    hyperlex: WordPairs
    mammals: Taxonomy

    def queries(self) -> list[str]:
        """Return the queries of the retrieval: every second word below another in ``mammals``."""
        return sorted({first for first, _ in self.mammals.pairs(self.vectors)})[::2]

    def held_out(self) -> set[str]:
        """Return the words that must not come first in a training pair: those of all tests."""
        test = self.hyperlex.where("fold", "test")
        return {*self.bless.first, *self.wbless.first, *test.first, *self.queries()}


def load_lexicon(folder: Folder = None, *, lexical: bool = False) -> Lexicon:
    """Return GloVe vectors, the nouns of WordNet, BLESS, WBLESS and HyperLex from the data folder or another one.

    With ``lexical``, HyperLex is split by words and is the only test. No word of its test part is in the taxonomy.

    Examples
    --------
    >>> load_lexicon("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: lexent/vectors_glove100_subset.npz must be in the folder 'nowhere'. ...
    """
    vectors, nouns = load_vectors(folder), load_taxonomy("nouns", folder)
    if lexical:
        hyperlex, none = load_lexical_split(folder).within(vectors), WordPairs((), ())
        test = hyperlex.where("fold", "test")
        return Lexicon(vectors, nouns.without({*test.first, *test.second}), none, none, hyperlex, Taxonomy({}, {}))
    bless, wbless, hyperlex = (load_pairs(name, folder).within(vectors) for name in ("bless", "wbless", "hyperlex"))
    return Lexicon(vectors, nouns, bless, wbless, hyperlex, load_taxonomy("mammals", folder))


def random_lexicon(seed: int = 0) -> Lexicon:
    """Return a small random taxonomy with test sets of the same form, for the toy scale and tests.

    Examples
    --------
    >>> lexicon = random_lexicon()
    >>> len(lexicon.vectors), sorted(set(lexicon.hyperlex.columns["fold"]))
    (341, ['test', 'train', 'val'])
    """
    taxonomy, vectors = random_taxonomy(seed=seed)
    random = np.random.default_rng(seed)
    steps = taxonomy.pairs(vectors)
    leaves = [word for word in vectors.words if word.count("-") == 3]
    order = [leaves[row] for row in random.permutation(len(leaves))]

    def judged(words: Collection[str], fold: str) -> Iterator[tuple[str, str, str, float, str]]:
        """Yield pairs that hold, each with a random or the reversed one: words, kind, degree, fold."""
        for number, ((low, high), taken) in enumerate(
            (pair, taken) for pair, taken in steps.items() if pair[0] in words
        ):
            yield low, high, "hyp-1", 6.0 / taken, fold
            if number % 2:
                yield high, low, "r-hyp-1", 1.0, fold
            else:
                yield low, str(random.choice(order)), "no-rel", 0.0, fold

    def pairs(*rows: tuple[str, str, str, float, str]) -> WordPairs:
        first, second, kinds, degrees, folds = zip(*rows, strict=True)
        columns = {"pos": ("N",) * len(rows), "label": kinds, "fold": folds}
        return WordPairs(first, second, np.array([kind == "hyp-1" for kind in kinds]), np.array(degrees), columns)

    bless, wbless = (pairs(*judged(order[start : start + 30], "test")) for start in (0, 30))
    hyperlex = pairs(*judged(order[60:90], "test"), *judged(order[90:120], "train"), *judged(order[120:130], "val"))
    return Lexicon(vectors, taxonomy, bless, wbless, hyperlex, taxonomy.under("w0"))


# ---------------------------------------------------------------------- training pairs


@dataclass(frozen=True)
class Task:
    """Training and validation pairs; words are rows of the vectors.

    Attributes
    ----------
    vectors : WordVectors
        All words.
    train : array of shape (n, 2)
        A word and one that is above it by a few steps.
    validation : array of shape (m, 2)
        The same for words that are not the first word of any pair of ``train``.
    siblings : tuple of two arrays
        Words directly below the same one: those of word i are ``second[first[i] : first[i + 1]]``.
    known : array of shape (k,)
        All pairs (i, j) that hold at any number of steps, or have a meaning in common, as sorted ``i * words + j``.
    graded : array of shape (g, 2)
        Pairs with a degree to which they hold.
    degrees : array of shape (g,)
        From 0 to 1.
    graded_validation : WordPairs
        Graded pairs for validation.
    """

    vectors: WordVectors
    train: Rows
    validation: Rows
    siblings: tuple[Rows, Rows]
    known: Rows
    graded: Rows
    degrees: NDArray[np.float32]
    graded_validation: WordPairs

    def holds(self, first: Rows, second: Rows) -> Flags:
        """Return which pairs are known to hold, or are of a word with itself."""
        same: Flags = first == second
        return _among(self.known, first * len(self.vectors) + second) | same

    def sibling(self, words: Rows, draws: NDArray[np.float64]) -> Rows:
        """Return a sibling of each word by numbers from [0, 1); the word itself where it has none."""
        starts, siblings = self.siblings
        counts = starts[words + 1] - starts[words]
        places = starts[words] + (draws * counts).astype(np.int64)
        return np.where(counts > 0, siblings[places.clip(max=len(siblings) - 1)], words)


def make_task(
    vectors: WordVectors,
    taxonomy: Taxonomy,
    held_out: Collection[str],
    graded: WordPairs | None = None,
    *,
    steps: int = STEPS,
    validation: float = VALIDATION,
) -> Task:
    """Return training pairs of a taxonomy in which no held-out word comes first, and validation pairs.

    Graded pairs of the fold ``train`` whose more specific word is held out are for validation, as are all of the fold
    ``val``; other folds, such as ``test``, are not used.

    Words without vectors are left out everywhere. ``held_out`` are words that must not be the more specific one of a
    training pair: the first words of all test sets. ``graded`` pairs have scores from 0 to 6 and columns ``label`` and
    ``fold``. Two words of a pair are at most ``steps`` apart, and ``validation`` is the share of the other first words
    that is for validation; the same words in all runs.

    Examples
    --------
    >>> tree, vectors = random_taxonomy(depth=3, branches=3)
    >>> task = make_task(vectors, tree, held_out={"w0-1"}, validation=0.2)
    >>> "w0-1" in {vectors.words[row] for row in task.train[:, 0]}, task.train.shape
    (False, (80, 2))
    """
    pairs = [pair for pair in taxonomy.pairs(vectors, steps) if pair[0] not in held_out]
    firsts = sorted({first for first, _ in pairs})
    order = np.random.default_rng(0).permutation(len(firsts))
    kept_back = {firsts[row] for row in order[: int(validation * len(firsts))]}
    train = pair_rows(vectors, (pair for pair in pairs if pair[0] not in kept_back))
    if len(train) == 0:
        raise ValueError(checks.message("taxonomy", "one with pairs of words that are not held out", "none"))
    alike = ((a, b) for words in taxonomy.words.values() for a in words for b in words if a in vectors and b in vectors)
    rows = pair_rows(vectors, itertools.chain(taxonomy.pairs(vectors), alike))
    known = np.unique(rows[:, 0] * len(vectors) + rows[:, 1])
    learned, judged = _split_graded(vectors, graded, frozenset(held_out))
    return Task(
        vectors=vectors,
        train=train,
        validation=pair_rows(vectors, (pair for pair in pairs if pair[0] in kept_back)),
        siblings=_siblings(vectors, taxonomy, known),
        known=known,
        graded=pair_rows(vectors, zip(learned.first, learned.second, strict=True)),
        degrees=np.zeros(0, np.float32) if learned.scores is None else (learned.scores / 6).astype(np.float32),
        graded_validation=judged,
    )


def pair_rows(vectors: WordVectors, pairs: Iterable[tuple[str, str]]) -> Rows:
    """Return the rows of the words of pairs, ``(n, 2)``."""
    return vectors.rows(word for pair in pairs for word in pair).reshape(-1, 2)


def _among(known: Rows, codes: Rows) -> Flags:
    """Return which codes are among known ones, which are sorted."""
    flags: Flags = known[np.searchsorted(known, codes).clip(max=len(known) - 1)] == codes
    return flags


def _split_graded(
    vectors: WordVectors, graded: WordPairs | None, held_out: Collection[str]
) -> tuple[WordPairs, WordPairs]:
    """Return graded pairs for training and for validation."""
    if graded is None:
        return WordPairs((), ()), WordPairs((), ())
    pairs = graded.within(vectors)
    rows = list(zip(pairs.first, pairs.second, pairs.columns["label"], pairs.columns["fold"], strict=True))
    # In a pair that is marked as reversed, r-hyp, the second word is the more specific one.
    held = [a in held_out or (label.startswith("r-") and b in held_out) for a, b, label, _ in rows]
    folds = pairs.columns["fold"]
    learned = [fold == "train" and not flag for fold, flag in zip(folds, held, strict=True)]
    judged = [fold == "val" or (fold == "train" and flag) for fold, flag in zip(folds, held, strict=True)]
    return pairs.take(learned), pairs.take(judged)


def _siblings(vectors: WordVectors, taxonomy: Taxonomy, known: Rows) -> tuple[Rows, Rows]:
    """Return the words directly below the same meaning as each word, without those above or below it."""
    below: dict[str, set[str]] = {}
    for name, uppers in taxonomy.above.items():
        for upper in uppers:
            below.setdefault(upper, set()).update(word for word in taxonomy.words[name] if word in vectors)
    siblings: dict[str, set[str]] = {}
    for words in below.values():
        for word in words:
            siblings.setdefault(word, set()).update(words)
    lists = []
    for row, word in enumerate(vectors.words):
        others = vectors.rows(sorted(siblings.get(word, ())))
        lists.append(others[~_among(known, row * len(vectors) + others) & (others != row)])
    starts = np.cumsum([0, *(len(those) for those in lists)])
    return starts.astype(np.int64), np.concatenate([*lists, np.zeros(1, np.int64)])
