"""Vectors of words, and pairs of words that people have judged."""

from __future__ import annotations

import csv
import functools
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from askew import checks
from askew_paper.data.files import Folder, Source, find

Text = tuple[str, ...]

_SUITE = "https://github.com/facebookresearch/hypernymysuite"
_HYPERLEX = "https://arxiv.org/abs/1608.02117"
VECTORS = Source(
    "lexent/vectors_glove100_subset.npz", "https://nlp.stanford.edu/projects/glove", terms="PDDL; part of glove.6B.100d"
)
PAIRS = {
    name: Source(f"lexent/{file}.tsv", _SUITE, terms="CC BY-NC 4.0")
    for name, file in (("hyperlex", "hyperlex_rnd"), ("bless", "bless"), ("wbless", "wbless"), ("eval", "eval"))
}
# The split of HyperLex in which no word of the test part is in the training part.
LEXICAL = {
    fold: Source(f"lexent/hyperlex_{part}_all_lexical.txt", _HYPERLEX, terms="CC BY-NC 4.0")
    for fold, part in (("train", "training"), ("val", "dev"), ("test", "test"))
}


@dataclass(frozen=True)
class WordVectors:
    """Words and a vector for each.

    Examples
    --------
    >>> known = WordVectors(("dog", "animal"), np.eye(2, dtype=np.float32))
    >>> "dog" in known, "Dog" in known, known.rows(["animal", "dog"]).tolist()
    (True, False, [1, 0])
    """

    words: Text  # each once
    vectors: NDArray[np.float32]  # (number of words, dim)

    def __post_init__(self) -> None:
        shape = self.vectors.shape
        if len(shape) != 2 or shape[0] != len(self.words) or 0 in shape:
            must = f"of shape ({len(self.words)}, dim), one row for each word"
            raise ValueError(checks.message("vectors of WordVectors", must, shape))
        bad = ~np.isfinite(self.vectors).all(1)
        if bad.any():
            got = f"NaN or infinity in that of {self.words[int(bad.argmax())]!r}"
            raise ValueError(checks.message("vectors of WordVectors", "finite", got, "Leave such words out."))

    @functools.cached_property
    def places(self) -> Mapping[str, int]:
        """The row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def __contains__(self, word: object) -> bool:
        return word in self.places

    def __len__(self) -> int:
        return len(self.words)

    def rows(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Return the rows of words, ``(n,)``; all of them must be there."""
        words = list(words)
        missing = [word for word in words if word not in self.places]
        if missing:
            shown = ", ".join(map(repr, missing[:3])) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            hint = "Leave such pairs out with pairs.within(vectors)."
            raise KeyError(checks.message("each word", f"one of the {len(self)} that have a vector", shown, hint))
        return np.array([self.places[word] for word in words], dtype=np.int64)


def load_vectors(folder: Folder = None) -> WordVectors:
    """Return the GloVe vectors of the words that WordNet and the pair files have in common with GloVe: 21,505 x 100.

    Examples
    --------
    >>> load_vectors("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: lexent/vectors_glove100_subset.npz must be in the folder 'nowhere'. Got no such file instead. ...
    """
    with np.load(find(VECTORS, folder), allow_pickle=False) as arrays:
        return WordVectors(tuple(arrays["words"].tolist()), arrays["vectors"].astype(np.float32))


@dataclass(frozen=True)
class WordPairs:
    """Pairs of words that people have judged.

    Examples
    --------
    >>> pairs = WordPairs(("dog", "dog"), ("animal", "cat"), columns={"fold": ("train", "test")})
    >>> pairs.where("fold", "test").second, len(pairs)
    (('cat',), 2)
    """

    first: Text  # the more specific one in a true pair of a hyponym and its hypernym
    second: Text
    labels: NDArray[np.bool_] | None = None  # whether the second includes the first; None if the file does not say
    scores: NDArray[np.float64] | None = None  # to which degree; None if the file does not say
    columns: Mapping[str, Text] = field(default_factory=dict)  # all columns of the file as text, by name

    def __len__(self) -> int:
        return len(self.first)

    def take(self, kept: Iterable[bool]) -> WordPairs:
        """Return the pairs for which the flag is true."""
        rows = [row for row, flag in enumerate(kept) if flag]

        def some(values: Text) -> Text:
            return tuple(values[row] for row in rows)

        return WordPairs(
            some(self.first),
            some(self.second),
            None if self.labels is None else self.labels[rows],
            None if self.scores is None else self.scores[rows],
            {name: some(values) for name, values in self.columns.items()},
        )

    def where(self, column: str, *values: str) -> WordPairs:
        """Return the pairs that have one of some values in a column."""
        checks.check_name(column, self.columns, "column of word pairs")
        return self.take(value in values for value in self.columns[column])

    def within(self, words: Collection[str] | WordVectors) -> WordPairs:
        """Return the pairs of which both words are among those given."""
        return self.take(a in words and b in words for a, b in zip(self.first, self.second, strict=True))


def load_pairs(name: str, folder: Folder = None) -> WordPairs:
    """Return a published set of word pairs by its name.

    HyperLex has graded scores and a column ``fold`` with train, val and test; BLESS, WBLESS and EVAL have labels.

    Examples
    --------
    >>> load_pairs("bless", "nowhere")
    Traceback (most recent call last):
    FileNotFoundError: lexent/bless.tsv must be in the folder 'nowhere'. Got no such file instead. ...
    """
    return read_pairs(find(PAIRS[checks.check_name(name, PAIRS, "name of word pairs")], folder))


def load_lexical_split(folder: Folder = None) -> WordPairs:
    """Return HyperLex split by words, with the columns and the scores from 0 to 6 of ``load_pairs("hyperlex")``.

    Examples
    --------
    >>> load_lexical_split("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: lexent/hyperlex_training_all_lexical.txt must be in the folder 'nowhere'. ...
    """
    rows: list[tuple[str, ...]] = []
    for fold, source in LEXICAL.items():
        header, *lines = find(source, folder).read_text("utf-8").splitlines()
        if header.split()[:5] != ["WORD1", "WORD2", "POS", "TYPE", "AVG_SCORE"]:
            must = "a table that starts with WORD1 WORD2 POS TYPE AVG_SCORE"
            raise ValueError(checks.message(source.file, must, repr(header[:60])))
        rows += [(*line.split()[:5], fold) for line in lines]
    columns = dict(zip(("word1", "word2", "pos", "label", "score", "fold"), zip(*rows, strict=True), strict=True))
    return WordPairs(
        columns["word1"], columns["word2"], scores=np.array(columns["score"], dtype=np.float64), columns=columns
    )


def read_pairs(path: str | os.PathLike[str]) -> WordPairs:
    r"""Return word pairs from a table with the columns ``word1`` and ``word2``.

    A column ``label`` that holds nothing but ``True`` and ``False`` gives labels, a column ``score`` gives scores.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pairs.tsv")
    ...     _ = path.write_text("word1\tword2\tlabel\ndog\tanimal\tTrue\nanimal\tdog\tFalse\n")
    ...     read_pairs(path).labels.tolist()
    [True, False]
    """
    columns = read_table(path, ("word1", "word2"))
    labels, scores = columns.get("label", ()), columns.get("score")
    return WordPairs(
        columns["word1"],
        columns["word2"],
        np.array([label == "True" for label in labels]) if labels and set(labels) <= {"True", "False"} else None,
        None if scores is None else np.array(scores, dtype=np.float64),
        columns,
    )


def read_table(path: str | os.PathLike[str], needed: Text) -> dict[str, Text]:
    r"""Return the columns of a table of UTF-8 text with tabs between cells, by the names in its first line.

    The file is compressed by gzip if it ends in ``.gz``. The columns ``needed`` must be there.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "table.tsv")
    ...     _ = path.write_text("name\tnumber\none\t1\ntwo\t2\n")
    ...     read_table(path, ("name",))
    {'name': ('one', 'two'), 'number': ('1', '2')}
    """
    # Words such as "null" and quotation marks are words here.
    table = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False, quoting=csv.QUOTE_NONE)
    empty = (table == "").any(axis=1)
    if empty.any():
        where = f"line {int(empty.argmax()) + 2} of {os.fspath(path)!r}"
        raise ValueError(checks.message(where, f"{len(table.columns)} cells that are not empty", "fewer"))
    missing = [name for name in needed if name not in table.columns]
    if missing:
        must, got = f"a table with the columns {', '.join(needed)}", f"columns {', '.join(map(repr, table.columns))}"
        raise ValueError(checks.message(f"{os.fspath(path)!r}", must, got))
    return {str(name): tuple(table[name]) for name in table.columns}
