"""The splits of link prediction: the published files, files that are wrong, and random trees."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from askew_paper.data.closure import PARTS, SHARES, load_closure, random_closure

published = pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="ASKEW_DATA does not name a folder of data")


def write(folder: Path, **contents: str) -> None:
    texts = dict.fromkeys(("train_0percent", *PARTS), "0\t1\n") | {"vocab": "0\troot\n1\tleaf\n"} | contents
    for name, text in texts.items():
        (folder / f"mammal_closure.tsv.{name}").write_text(text, "utf-8")


def test_files_have_the_general_node_first(tmp_path: Path) -> None:
    write(tmp_path)
    task = load_closure(0, tmp_path)
    assert (task.nodes, task.train.tolist()) == (2, [[1, 0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\t2\n", r"test of a closure must be .* from 0 to 1\. Got numbers from 0 to 2 instead"),
        ("0\t1\t1\n", r"test of a closure must be pairs of two numbers .* Got shape \(1, 3\)"),
        ("dog\tcat\n", r"tsv\.test' must be lines of two whole numbers"),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, test=text)
    with pytest.raises(ValueError, match=message):
        load_closure(0, tmp_path)


def test_missing_files_and_shares(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"closure/mammal_closure\.tsv\.train_90percent must be in the folder"):
        load_closure(90, tmp_path)
    with pytest.raises(ValueError, match=r"share of load_closure must be one of \(0, 10, 25, 50, 90\)\. Got 5 instead"):
        load_closure(5, tmp_path)


def follow(pairs: np.ndarray, nodes: int) -> np.ndarray:
    """Return which pairs follow from some, ``(nodes, nodes)``."""
    holds = np.zeros((nodes, nodes), dtype=bool)
    holds[tuple(pairs.T)] = True
    for middle in range(nodes):
        holds |= holds[:, [middle]] & holds[[middle]]
    return holds


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("load", [random_closure, pytest.param(load_closure, marks=published)])
def test_tested_pairs_follow_from_basic_ones_and_are_not_learned(load: object, share: int) -> None:
    task = load(share)  # type: ignore[operator]
    holds = follow(load(0).train, task.nodes)  # type: ignore[operator]
    assert all(holds[tuple(pairs.T)].all() for pairs in (task.train, task.valid, task.test))
    assert not any(holds[tuple(pairs.T)].any() for pairs in (task.valid_neg, task.test_neg))
    train, valid, test = (set(map(tuple, pairs.tolist())) for pairs in (task.train, task.valid, task.test))
    assert not train & (valid | test)
    assert not valid & test
    if load is load_closure:
        sizes = {0: 1176, 10: 1594, 25: 2222, 50: 3268, 90: 4942}
        assert (task.nodes, len(train), len(test), len(task.test_neg)) == (1179, sizes[share], 209, 2090)
