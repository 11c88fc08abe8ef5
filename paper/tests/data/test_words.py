"""Word vectors, word pairs and taxonomies: the published files, and files that are not what they should be."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from askew_paper.data.taxonomy import Taxonomy, load_taxonomy, random_taxonomy
from askew_paper.data.words import (
    PAIRS,
    WordPairs,
    WordVectors,
    load_lexical_split,
    load_pairs,
    load_vectors,
    read_pairs,
)

published = pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="ASKEW_DATA does not name a folder of data")

HEADER = "word1\tword2\tlabel\tscore\n"


def write(folder: Path, content: str | bytes, name: str = "file.tsv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# ---------------------------------------------------------------------- vectors


def test_words_without_vectors_are_named() -> None:
    vectors = WordVectors(("dog",), np.ones((1, 2), dtype=np.float32))
    with pytest.raises(KeyError, match=r"Got 'cat', 'cow', 'pig' and 1 more instead\. Leave such pairs out"):
        vectors.rows(["dog", "cat", "cow", "pig", "hen"])


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ({"words": np.array(["dog"])}, KeyError),
        ({"words": np.array(["dog"]), "vectors": np.ones((2, 3))}, ValueError),
        ({"words": np.array(["dog"]), "vectors": np.ones(1)}, ValueError),
        ({"words": np.array(["dog"]), "vectors": np.full((1, 2), np.inf)}, ValueError),
        ({"words": np.array(["dog"], dtype=object), "vectors": np.ones((1, 2))}, ValueError),  # would be unpickled
    ],
)
def test_bad_vectors(arrays: dict[str, np.ndarray], error: type[Exception], tmp_path: Path) -> None:
    np.savez(tmp_path / "vectors_glove100_subset.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(error):
        load_vectors(tmp_path)


# ---------------------------------------------------------------------- pairs


def test_pairs_have_labels_scores_and_columns(tmp_path: Path) -> None:
    text = HEADER.replace("\n", "\tfold\r\n") + 'dog\tanimal\tTrue\t5.5\ttest\r\nnull\t"dog\tFalse\t0\tval\r\n'
    for path in (write(tmp_path, "\ufeff" + text), write(tmp_path, gzip.compress(text.encode()), "file.tsv.gz")):
        pairs = read_pairs(path)
        assert (pairs.first, pairs.second) == (("dog", "null"), ("animal", '"dog'))
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


def test_labels_may_be_relations(tmp_path: Path) -> None:
    pairs = read_pairs(write(tmp_path, "word1\tword2\tlabel\ndog\tanimal\thyp-1\nfoot\tdog\tmero\n"))
    assert pairs.second == ("animal", "dog")
    assert pairs.labels is None
    assert pairs.scores is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("word1\tlabel\ndog\tTrue\n", r"must be a table with the columns word1, word2\. Got columns 'word1', 'label'"),
        ("word1,word2\ndog,animal\n", r"Got columns 'word1,word2' instead"),
        ("", "No columns to parse"),
        (HEADER + "dog\tanimal\tTrue\n", r"line 2 of '.*' must be 4 cells .*\. Got fewer"),
        (HEADER + "dog\tanimal\tTrue\t1\n" + "dog\tanimal\tTrue\t1\t2\n", "Expected 4 fields in line 3, saw 5"),
        (HEADER + "dog\tanimal\tTrue\tmuch\n", "could not convert string to float: 'much'"),
        (b"word1\tword2\ncaf\xe9\tplace\n", "can't decode byte 0xe9"),
    ],
)
def test_bad_pairs(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_pairs(write(tmp_path, content))


def test_lexical_split(tmp_path: Path) -> None:
    header = "WORD1 WORD2 POS TYPE AVG_SCORE AVG_SCORE_0_10 STD SCORES..\n"
    for part in ("training", "dev", "test"):
        content = header + f"{part} null N hyp-1 5.5 9.17 0.1 5 6\n"
        write(tmp_path, content, f"hyperlex_{part}_all_lexical.txt")
    pairs = load_lexical_split(tmp_path)
    assert (pairs.first, pairs.second[0], pairs.labels) == (("training", "dev", "test"), "null", None)
    assert pairs.scores is not None
    assert pairs.scores.tolist() == [5.5] * 3
    assert pairs.where("fold", "val").first == ("dev",)
    assert pairs.columns["pos"] == ("N",) * 3
    write(tmp_path, "word1\tword2\n", "hyperlex_dev_all_lexical.txt")
    with pytest.raises(ValueError, match=r"hyperlex_dev_all_lexical.txt must be a table that starts with WORD1 WORD2"):
        load_lexical_split(tmp_path)


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
    fewer = tree.without({"w1"}).pairs(vectors)
    assert fewer == {pair: steps for pair, steps in tree.pairs(vectors).items() if "w1" not in pair}


def test_random_taxonomy_depends_on_the_seed_only() -> None:
    first, again, other = (random_taxonomy(seed=seed)[1].vectors for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_steps_of_unknown_meanings_are_refused(tmp_path: Path) -> None:
    write(tmp_path, gzip.compress(b"offset\tname\tlemmas\n1\tdog.n.01\tdog,hound\n"), "noun_synsets.tsv.gz")
    write(
        tmp_path, gzip.compress(b"hyponym\thypernym\ttype\ndog.n.01\tcat.n.01\tclass\n"), "noun_hypernym_edges.tsv.gz"
    )
    with pytest.raises(ValueError, match=r"each step of wordnet/.* must be between meanings .* Got .*'cat.n.01'"):
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
    assert name in PAIRS
    pairs = load_pairs(name)
    assert len(pairs) == rows
    assert (None if pairs.labels is None else int(pairs.labels.sum())) == positive
    assert (pairs.scores is not None) == (name == "hyperlex")
    assert len(pairs.within(load_vectors())) > 0.97 * rows


@published
def test_published_lexical_split() -> None:
    pairs, other = load_lexical_split(), load_pairs("hyperlex")
    folds = {fold: pairs.where("fold", fold) for fold in ("train", "val", "test")}
    assert {fold: len(part) for fold, part in folds.items()} == {"train": 1133, "val": 85, "test": 269}
    words = {fold: {*part.first, *part.second} for fold, part in folds.items()}
    assert not words["test"] & (words["train"] | words["val"])
    # Both splits are of the same pairs, with the same scores from 0 to 6.
    assert pairs.scores is not None
    assert other.scores is not None
    known = dict(zip(zip(other.first, other.second, strict=True), other.scores, strict=True))
    assert all(known[a, b] == score for a, b, score in zip(pairs.first, pairs.second, pairs.scores, strict=True))


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
