"""Word vectors, word pairs and taxonomies: the published files, and files that are not what they should be."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from askew_paper.data.taxonomy import Taxonomy, load_taxonomy, random_taxonomy
from askew_paper.data.words import (
    WordPairs,
    WordVectors,
    load_pairs,
    load_vectors,
    pair_names,
    read_pairs,
    read_vectors,
)

published = pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="ASKEW_DATA does not name a folder of data")

HEADER = "word1\tword2\tlabel\tscore\n"


def write(folder: Path, content: str | bytes, name: str = "file.tsv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# ---------------------------------------------------------------------- vectors


def test_text_of_glove_and_of_word2vec_give_the_same(tmp_path: Path) -> None:
    lines = "dog 1 2 3\nanimal 0.5 -1e-3 7\nnew york 1 1 1\n"
    glove = read_vectors(write(tmp_path, lines, "glove.txt"))
    word2vec = read_vectors(write(tmp_path, "3 3\n" + lines, "word2vec.txt"))
    packed = read_vectors(write(tmp_path, gzip.compress(lines.encode()), "glove.txt.gz"))
    assert glove.words == word2vec.words == packed.words == ("dog", "animal", "new york")
    assert glove.vectors.dtype == np.float32
    np.testing.assert_array_equal(glove.vectors, word2vec.vectors)
    np.testing.assert_array_equal(glove.vectors, packed.vectors)
    np.testing.assert_array_equal(glove.vectors[1], np.array([0.5, -1e-3, 7], dtype=np.float32))


def test_archive_gives_what_was_put_in_and_the_first_of_two(tmp_path: Path) -> None:
    words, vectors = np.array(["dog", "animal", "dog"]), np.arange(6).reshape(3, 2).astype(np.float16)
    np.savez(tmp_path / "vectors.npz", words=words, vectors=vectors)
    found = read_vectors(tmp_path / "vectors.npz")
    assert found.words == ("dog", "animal")
    assert found.vectors.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert read_vectors(tmp_path / "vectors.npz", only={"animal"}).vectors.tolist() == [[2.0, 3.0]]
    assert found.rows(["animal", "dog", "animal"]).tolist() == [1, 0, 1]


def test_words_without_vectors_are_named() -> None:
    vectors = WordVectors(("dog",), np.ones((1, 2), dtype=np.float32))
    with pytest.raises(KeyError, match=r"Got 'cat', 'cow', 'pig' and 1 more instead\. Leave such pairs out"):
        vectors.rows(["dog", "cat", "cow", "pig", "hen"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dog 1 2\ncat 1\n", r"line 2 of '.*' must be a word and 2 numbers\. Got 'cat 1' instead"),
        ("dog 1 2\ncat 1 x\n", r"line 2 of '.*' must be a word and 2 numbers"),
        ("dog\n", r"line 1 of '.*' must be a word and its numbers"),
        ("dog 1 nan\n", r"must be finite\. Got NaN or infinity in that of 'dog'"),
        ("", r"must be a file with vectors of words\. Got none"),
        ("2 3\n", r"must be a file with vectors of words\. Got none"),
        (b"caf\xe9 1 2\n", r"must be text in UTF-8\. Got the byte 0xe9 in line 1 instead\. Convert it"),
    ],
)
def test_bad_text_of_vectors(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_vectors(write(tmp_path, content, "vectors.txt"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"words": np.array(["dog"])}, "must be an .npz file with the arrays 'words'"),
        ({"words": np.array(["dog"]), "vectors": np.ones((2, 3))}, "must be as many words as vectors"),
        ({"words": np.array([1]), "vectors": np.ones((1, 3))}, "must be an .npz file with the arrays 'words'"),
        ({"words": np.array(["dog"]), "vectors": np.ones(1)}, "must be an .npz file with the arrays 'words'"),
        ({"words": np.array(["dog"]), "vectors": np.full((1, 2), np.inf)}, "Got NaN or infinity in that of 'dog'"),
        ({"words": np.array(["dog"], dtype=object), "vectors": np.ones((1, 2))}, "array of Python objects"),
    ],
)
def test_bad_archives(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "vectors.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        read_vectors(tmp_path / "vectors.npz")


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 broken"])
def test_archives_that_are_none(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be an .npz file with the arrays 'words'"):
        read_vectors(write(tmp_path, content, "vectors.npz"))


# ---------------------------------------------------------------------- pairs


def test_pairs_have_labels_scores_and_columns(tmp_path: Path) -> None:
    text = (
        "\ufeff"
        + HEADER.replace("\n", "\tfold\r\n")
        + "dog\tanimal\tTrue\t5.5\ttest\r\nanimal\tdog\tno\t0\tval\r\n\r\n"
    )
    pairs = read_pairs(write(tmp_path, text))
    assert (pairs.first, pairs.second) == (("dog", "animal"), ("animal", "dog"))
    assert pairs.labels is not None
    assert pairs.labels.tolist() == [True, False]
    assert pairs.scores is not None
    assert pairs.scores.tolist() == [5.5, 0.0]
    test = pairs.where("fold", "test")
    assert (test.first, len(test)) == (("dog",), 1)
    assert test.labels is not None
    assert test.labels.tolist() == [True]
    assert len(pairs.within({"dog"})) == 0
    with pytest.raises(ValueError, match="column of word pairs must be one of"):
        pairs.where("part", "test")


def test_columns_may_have_other_names_and_labels_may_be_relations(tmp_path: Path) -> None:
    path = write(tmp_path, "hypo\thyper\tlabel\tdegree\ndog\tanimal\thyp-1\t3\nfoot\tdog\tmero\t1\n")
    pairs = read_pairs(path, first="hypo", second="hyper", score="degree")
    assert pairs.second == ("animal", "dog")
    assert pairs.labels is None
    assert pairs.scores is not None
    assert pairs.scores.tolist() == [3.0, 1.0]
    reversed_ones = read_pairs(write(tmp_path, "word1\tword2\tlabel\na\tb\t1\nb\ta\t-1\n"))
    assert reversed_ones.labels is not None
    assert reversed_ones.labels.tolist() == [True, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "word1\tlabel\ndog\tTrue\n",
            r"must be a table .* columns word1, word2, each once\. Got columns 'word1', 'label'",
        ),
        ("word1\tword2\tword2\na\tb\tc\n", "each once"),
        ("word1,word2\ndog,animal\n", r"Got columns 'word1,word2' instead"),
        ("", r"Got columns '' instead"),
        (HEADER, r"must be a table with rows\. Got none"),
        (HEADER + "dog\tanimal\tTrue\n", r"line 2 of '.*' must be 4 cells .*\. Got 3 cells"),
        (HEADER + "\ndog\tanimal\tTrue\t1\n", r"line 2 of '.*' must be 4 cells"),
        (HEADER + "dog\t\tTrue\t1\n", r"'word2' in line 2 of '.*' must be a word\. Got nothing"),
        (
            HEADER + "a\tb\tTrue\t1\ndog\tanimal\tTrue\tnan\n",
            r"'score' in line 3 of '.*' must be a finite number\. Got 'nan'",
        ),
        (HEADER + "dog\tanimal\tTrue\t\n", r"'score' in line 2 of '.*' must be a finite number\. Got ''"),
        (HEADER + "dog\tanimal\tTrue\tinf\n", r"Got 'inf' instead"),
        (
            HEADER + "a\tb\tTrue\t1\na\tb\tperhaps\t1\n",
            r"'label' in line 3 of '.*' must be one of true, .* Got 'perhaps'",
        ),
        (b"word1\tword2\ncaf\xe9\tplace\n", r"must be text in UTF-8\. Got the byte 0xe9 in line 2"),
        ("word1\tword2\na\tb\n".encode("utf-16"), r"must be text in UTF-8\. Got the byte 0xff in line 1"),
    ],
)
def test_bad_pairs(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_pairs(write(tmp_path, content))


def test_broken_gzip(tmp_path: Path) -> None:
    text = HEADER + "".join(f"{i}\t{i * i}\tTrue\t{i}\n" for i in range(1000))
    whole = gzip.compress(text.encode())
    assert len(read_pairs(write(tmp_path, whole, "whole.tsv.gz"))) == 1000
    damaged = whole[:200] + bytes(20) + whole[220:]
    for name, content in (("cut", whole[: len(whole) // 2]), ("none", text.encode()), ("damaged", damaged)):
        with pytest.raises(ValueError, match=r"must be a whole gzip file\. Got .* Download it again"):
            read_pairs(write(tmp_path, content, f"{name}.tsv.gz"))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"lexent/vectors_glove100_subset.npz must be in"):
        load_vectors(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"wordnet/noun_synsets.tsv.gz must be in"):
        load_taxonomy("nouns", tmp_path)
    with pytest.raises(ValueError, match=r"name of word pairs must be one of .* Did you mean 'bless' or 'wbless'"):
        load_pairs("bles")


# ---------------------------------------------------------------------- taxonomies


def diamond() -> Taxonomy:
    """Two ways from dog to animal, of two and three steps, and a loop back to animal."""
    words = {
        "dog": ("dog", "hound"),
        "pet": ("pet",),
        "canine": ("canine",),
        "mammal": ("beast",),
        "animal": ("animal",),
    }
    above = {"dog": ("pet", "canine"), "pet": ("animal",), "canine": ("mammal",), "mammal": ("animal",)}
    return Taxonomy(words, above | {"animal": ("mammal",)})


def test_ancestors_are_found_by_the_shortest_way() -> None:
    assert diamond().ancestors("dog") == {"canine": 1, "pet": 1, "animal": 2, "mammal": 2}
    assert diamond().ancestors("dog", steps=1) == {"canine": 1, "pet": 1}
    assert diamond().ancestors("animal") == {"mammal": 1}


def test_pairs_are_of_words_in_the_vocabulary() -> None:
    found = diamond().pairs({"dog", "hound", "animal", "beast"})
    expected = {(low, high): 2 for low in ("dog", "hound") for high in ("animal", "beast")}
    assert found == expected | {("beast", "animal"): 1, ("animal", "beast"): 1}
    assert diamond().pairs({"dog", "animal"}, steps=1) == {}


def test_a_word_of_two_meanings_is_not_above_itself() -> None:
    tree = Taxonomy({"a": ("fish", "food"), "b": ("food",)}, {"a": ("b",)})
    assert tree.pairs({"fish", "food"}) == {("fish", "food"): 1}


def test_part_of_a_taxonomy() -> None:
    tree, vectors = random_taxonomy(depth=3, branches=2)
    part = tree.under("w1")
    assert len(vectors) == 15
    assert set(part.words) == {name for name in tree.words if name.startswith("w1")}
    assert part.ancestors("w1-0-1") == {"w1-0": 1, "w1": 2}


def test_random_taxonomy_depends_on_the_seed_only() -> None:
    first, again, other = (random_taxonomy(seed=seed)[1].vectors for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_steps_of_unknown_meanings_are_refused(tmp_path: Path) -> None:
    write(tmp_path, gzip.compress(b"offset\tname\tlemmas\n1\tdog.n.01\tdog,hound\n"), "noun_synsets.tsv.gz")
    write(
        tmp_path, gzip.compress(b"hyponym\thypernym\ttype\ndog.n.01\tcat.n.01\tclass\n"), "noun_hypernym_edges.tsv.gz"
    )
    with pytest.raises(ValueError, match=r"each name in line 2 of '.*' must be one of the meanings .* Got 'cat.n.01'"):
        load_taxonomy("nouns", tmp_path)


# ---------------------------------------------------------------------- published files


@published
def test_published_vectors() -> None:
    vectors = load_vectors()
    assert vectors.vectors.shape == (21_505, 100)
    unit = vectors.vectors / np.linalg.norm(vectors.vectors, axis=1, keepdims=True)
    dog, cat, treaty = unit[vectors.rows(["dog", "cat", "treaty"])]
    assert dog @ cat > 0.8 > 0.2 > dog @ treaty


@published
@pytest.mark.parametrize(
    ("name", "rows", "positive"),
    [("hyperlex", 2616, None), ("bless", 14_542, 1337), ("wbless", 1668, 834), ("eval", 13_450, 3415)],
)
def test_published_pairs(name: str, rows: int, positive: int | None) -> None:
    assert name in pair_names()
    pairs = load_pairs(name)
    assert len(pairs) == rows
    assert (None if pairs.labels is None else int(pairs.labels.sum())) == positive
    assert (pairs.scores is not None) == (name == "hyperlex")
    assert len(pairs.within(load_vectors())) > 0.97 * rows


@published
def test_published_taxonomy() -> None:
    nouns, mammals = load_taxonomy("nouns"), load_taxonomy("mammals")
    assert len(nouns.words) == 82_115
    assert sum(map(len, nouns.above.values())) == 84_427
    assert nouns.ancestors("dog.n.01", steps=1) == {"canine.n.02": 1, "domestic_animal.n.01": 1}
    # The closure of the steps, as published, is what is found by taking them.
    assert set(mammals.above["dog.n.01"]) == nouns.ancestors("dog.n.01").keys() & mammals.words.keys()
    assert "dog" in mammals.words["dog.n.01"]
    assert isinstance(load_pairs("bless"), WordPairs)
