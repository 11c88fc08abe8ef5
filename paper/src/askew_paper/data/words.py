"""Vectors of words, and pairs of words that people have judged."""

from __future__ import annotations

import functools
import gzip
import os
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from askew import checks, io
from askew_paper.data.files import Folder, Source, find

__all__ = [
    "WordPairs",
    "WordVectors",
    "load_pairs",
    "load_vectors",
    "pair_names",
    "read_pairs",
    "read_table",
    "read_vectors",
]

Floats = NDArray[np.float32]
Text = tuple[str, ...]

_SUITE = "https://github.com/facebookresearch/hypernymysuite"
VECTORS = Source(
    "lexent/vectors_glove100_subset.npz", "https://nlp.stanford.edu/projects/glove", terms="PDDL; part of glove.6B.100d"
)
PAIRS = {
    name: Source(f"lexent/{file}.tsv", _SUITE, terms="CC BY-NC 4.0")
    for name, file in (("hyperlex", "hyperlex_rnd"), ("bless", "bless"), ("wbless", "wbless"), ("eval", "eval"))
}
# Bytes that any compressed text may unpack to, and how many times its own size a large one: text has a third or so.
SMALL_TEXT, MOST_RATIO = 1 << 24, 100
# How a table says yes and no.
TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "-1": False}


# ---------------------------------------------------------------------- vectors


@dataclass(frozen=True)
class WordVectors:
    """Words and a vector for each.

    Parameters
    ----------
    words
        Each once.
    vectors
        ``(number of words, dim)``, float32.

    Examples
    --------
    >>> known = WordVectors(("dog", "animal"), np.eye(2, dtype=np.float32))
    >>> "dog" in known, "Dog" in known, known.rows(["animal", "dog"]).tolist()
    (True, False, [1, 0])
    """

    words: Text
    vectors: Floats

    def __post_init__(self) -> None:
        shape = self.vectors.shape
        if self.vectors.ndim != 2 or len(shape) != 2 or shape[0] != len(self.words) or 0 in shape:
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

    Parameters
    ----------
    folder
        Of all data; :func:`~askew_paper.data.files.data_folder` by default.

    Examples
    --------
    >>> load_vectors("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: lexent/vectors_glove100_subset.npz must be in the folder 'nowhere'. Got no such file instead. ...
    """
    return read_vectors(find(VECTORS, folder))


def read_vectors(path: str | os.PathLike[str], only: Collection[str] | None = None) -> WordVectors:
    r"""Return vectors from a file: ``.npz`` with ``words`` and ``vectors``, else text as GloVe or word2vec write it.

    In text each line is a word and its numbers with spaces between; a first line of two whole numbers, as word2vec
    has it, is passed over. The text may be compressed by gzip (``.gz``). Of a word that is there twice, the first
    counts.

    Parameters
    ----------
    path
        The file.
    only
        Words to keep; all others are passed over. None keeps all.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "vectors.txt")
    ...     _ = path.write_text("dog 1 2 3\nanimal 0.5 0 -1\n")
    ...     read_vectors(path).vectors.tolist()
    [[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]]
    """
    path = Path(path)
    words, vectors = _from_archive(path) if path.suffix == ".npz" else _from_text(path, only)
    rows: dict[str, int] = {}
    for row, word in enumerate(words):
        if only is None or word in only:
            rows.setdefault(word, row)
    if not rows:
        raise ValueError(checks.message(f"{str(path)!r}", "a file with vectors of words", "none that are wanted"))
    try:
        return WordVectors(tuple(rows), np.ascontiguousarray(vectors[list(rows.values())], dtype=np.float32))
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: {error}") from error


def _from_archive(path: Path) -> tuple[list[str], Floats]:
    must = "an .npz file with the arrays 'words' (strings) and 'vectors' (numbers)"
    try:
        arrays = io.read_arrays(path)
        words, vectors = arrays["words"], arrays["vectors"]
    except (KeyError, ValueError) as error:
        raise ValueError(checks.message(f"{str(path)!r}", must, f"{type(error).__name__}: {error}")) from error
    shapes = f"{words.dtype} {words.shape} and {vectors.dtype} {vectors.shape}"
    if words.dtype.kind != "U" or vectors.dtype.kind not in "fiu" or words.ndim != 1 or vectors.ndim != 2:
        raise ValueError(checks.message(f"{str(path)!r}", must, shapes))
    if len(words) != len(vectors):
        raise ValueError(checks.message(f"{str(path)!r}", "as many words as vectors", shapes))
    return words.tolist(), vectors.astype(np.float32)


def _from_text(path: Path, only: Collection[str] | None) -> tuple[list[str], Floats]:
    words: list[str] = []
    numbers: list[Floats] = []
    dim = 0
    for number, line in enumerate(_lines(path), 1):
        cells = line.rstrip(" ").split(" ")
        if number == 1:
            header = len(cells) == 2 and all(re.fullmatch("[0-9]{1,12}", cell) for cell in cells)
            dim = int(cells[1]) if header else len(cells) - 1
            if header:
                continue
        # A word may have spaces in it: what is no number of the vector is the word.
        word = " ".join(cells[:-dim]) if dim else ""
        if only is not None and word and word not in only:
            continue
        try:
            vector = np.array(cells[-dim:], dtype=np.float32)
        except ValueError:
            vector = np.zeros(0, dtype=np.float32)
        if not word or vector.shape != (dim,):
            must = f"a word and {dim} numbers" if dim else "a word and its numbers"
            raise ValueError(checks.message(f"line {number} of {str(path)!r}", must, repr(line[:60])))
        words.append(word)
        numbers.append(vector)
    return words, np.stack(numbers) if numbers else np.zeros((0, 1), dtype=np.float32)


# ---------------------------------------------------------------------- pairs


@dataclass(frozen=True)
class WordPairs:
    """Pairs of words with what people said of them.

    Parameters
    ----------
    first, second
        The words, the more specific one first in a true pair of a hyponym and its hypernym.
    labels
        Whether the second is more general and includes the first, ``(n,)``; None if the file does not say.
    scores
        To which degree, ``(n,)``; None if the file does not say.
    columns
        All columns of the file as text, by name.

    Examples
    --------
    >>> pairs = WordPairs(("dog", "dog"), ("animal", "cat"), columns={"fold": ("train", "test")})
    >>> pairs.where("fold", "test").second, len(pairs)
    (('cat',), 2)
    """

    first: Text
    second: Text
    labels: NDArray[np.bool_] | None = None
    scores: NDArray[np.float64] | None = None
    columns: Mapping[str, Text] = field(default_factory=dict)

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


def pair_names() -> list[str]:
    """Return the names of the published pair files.

    Examples
    --------
    >>> pair_names()
    ['hyperlex', 'bless', 'wbless', 'eval']
    """
    return list(PAIRS)


def load_pairs(name: str, folder: Folder = None) -> WordPairs:
    """Return a published set of word pairs by its name.

    HyperLex has graded scores and a column ``fold`` with train, val and test; BLESS, WBLESS and EVAL have labels.

    Parameters
    ----------
    name
        One of :func:`pair_names`.
    folder
        Of all data; :func:`~askew_paper.data.files.data_folder` by default.

    Examples
    --------
    >>> load_pairs("bless", "nowhere")
    Traceback (most recent call last):
    FileNotFoundError: lexent/bless.tsv must be in the folder 'nowhere'. Got no such file instead. ...
    """
    return read_pairs(find(PAIRS[checks.check_name(name, PAIRS, "name of word pairs")], folder))


def read_pairs(
    path: str | os.PathLike[str],
    *,
    first: str = "word1",
    second: str = "word2",
    label: str = "label",
    score: str = "score",
) -> WordPairs:
    r"""Return word pairs from a table of UTF-8 text with tabs between cells and a first line of column names.

    Parameters
    ----------
    path
        The file; compressed by gzip if it ends in ``.gz``.
    first, second
        Columns of the words.
    label
        Column that says whether the pair holds: true or false, yes or no, 1 or 0, or -1 for a pair that is the wrong
        way round. It may be missing, or hold something else in all rows, such as the name of a relation: there are no
        labels then.
    score
        Column of a number for each pair; it may be missing.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "pairs.tsv")
    ...     _ = path.write_text("word1\tword2\tlabel\ndog\tanimal\tTrue\nanimal\tdog\tFalse\n")
    ...     read_pairs(path).labels.tolist()
    [True, False]
    """
    path = Path(path)
    columns = read_table(path, (first, second))
    for name in (first, second):
        if "" in columns[name]:
            where = f"{name!r} in line {columns[name].index('') + 2} of {str(path)!r}"
            raise ValueError(checks.message(where, "a word", "nothing"))
    labels = scores = None
    if label in columns:
        found = [TRUTH.get(cell.lower()) for cell in columns[label]]
        if all(value is not None for value in found):
            labels = np.array(found, dtype=np.bool_)
        elif any(value is not None for value in found):
            row = found.index(None)
            where, got = f"{label!r} in line {row + 2} of {str(path)!r}", repr(columns[label][row])
            raise ValueError(checks.message(where, f"one of {', '.join(TRUTH)}, as in other lines", got))
    if score in columns:
        scores = np.array([_number(cell) for cell in columns[score]], dtype=np.float64)
        if not np.isfinite(scores).all():
            row = int((~np.isfinite(scores)).argmax())
            where, got = f"{score!r} in line {row + 2} of {str(path)!r}", repr(columns[score][row])
            raise ValueError(checks.message(where, "a finite number", got, "Leave such pairs out of the file."))
    return WordPairs(columns[first], columns[second], labels, scores, columns)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


# ---------------------------------------------------------------------- files


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text in UTF-8, compressed if its name ends in ``.gz``."""
    try:
        # Only "\n" ends a line: words of GloVe may hold other signs that Python takes for an end.
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            most = max(SMALL_TEXT, MOST_RATIO * path.stat().st_size)
            number = 0
            # A line that never ends must not fill the memory.
            while line := file.readline(most + 1):
                number, most = number + 1, most - len(line)
                if most < 0:
                    got = "one that unpacks to far more than such text does"
                    raise ValueError(checks.message(f"{str(path)!r}", "a gzip file of text", got))
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        got = f"the byte 0x{error.object[error.start]:02x} in line {number}"
        hint = "Convert it, for example with iconv -f latin1 -t utf-8."
        raise ValueError(checks.message(f"{str(path)!r}", "text in UTF-8", got, hint)) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        hint = "Download it again."
        raise ValueError(checks.message(f"{str(path)!r}", "a whole gzip file", f"{error}", hint)) from error


def read_table(path: str | os.PathLike[str], needed: Text) -> dict[str, Text]:
    r"""Return the columns of a table in UTF-8 with tabs between cells, by the names in its first line.

    Parameters
    ----------
    path
        The file; compressed by gzip if it ends in ``.gz``.
    needed
        Names that must be there.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "table.tsv")
    ...     _ = path.write_text("name\tnumber\none\t1\ntwo\t2\n")
    ...     read_table(path, ("name",))
    {'name': ('one', 'two'), 'number': ('1', '2')}
    """
    path = Path(path)
    lines = _lines(path)
    header = next(lines, "").split("\t")
    missing = [name for name in needed if name not in header]
    if missing or len(set(header)) < len(header):
        must = f"a table with tabs between cells and the columns {', '.join(needed)}, each once"
        raise ValueError(checks.message(f"{str(path)!r}", must, f"columns {', '.join(map(repr, header))}"))
    rows = []
    body = list(lines)
    while body and not body[-1].strip():
        body.pop()
    for number, line in enumerate(body, 2):
        cells = line.split("\t")
        if len(cells) != len(header):
            must = f"{len(header)} cells with tabs between them, as in its first line"
            raise ValueError(checks.message(f"line {number} of {str(path)!r}", must, f"{len(cells)} cells"))
        rows.append([cell.strip() for cell in cells])
    if not rows:
        raise ValueError(checks.message(f"{str(path)!r}", "a table with rows", "none"))
    return {name: tuple(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)}
