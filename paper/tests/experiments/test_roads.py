"""The experiment on road networks: any network by its name, both directions, and that a row can be had again."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.data.roads import ROADS as NAMES
from askew_paper.data.roads import road_graph
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments.roads import METHODS, ROADS, cells, direction, run, small_network
from askew_paper.runner import Failed, compute, reproduce

SYMMETRIC = ("mean", "best-symmetric", "euclidean", "mahalanobis", "mahalanobis-norm", "bregman-gs")
published = pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="ASKEW_DATA does not name a folder of data")


def cell_of(method: str, setting: str = "made", **options: object) -> Cell:
    [cell] = [c for c in cells("toy", 1, [setting]) if c.method == method]
    return dataclasses.replace(cell, options=tuple(sorted({**dict(cell.options), **options}.items())))


def scores_of(cell: Cell) -> dict[str, float]:
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    return dict(found.scores)


def write_network(folder: Path, name: str) -> None:
    network = small_network(side=6, seed=5)
    tags = (
        f"<FIRST THRU NODE> {network.first_thru_node}\n<NUMBER OF LINKS> {network.times.size}\n"
        f"<NUMBER OF NODES> {network.nodes}\n<END OF METADATA>\n"
    )
    links = zip(network.tails, network.heads, network.times, strict=True)
    text = tags + "".join(f"{tail} {head} 1 1 {time:.17g} 0.15 4 0 0 1 ;\n" for tail, head, time in links)
    (folder / f"{name}_net.tntp").write_text(text, "utf-8")


def test_toy_run_gives_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    rows = reproduce([ROADS], tmp_path, "toy")
    assert [row.cell.method for row in rows] == list(METHODS)
    found = {row.cell.method: row.scores for row in rows}
    assert all(set(scores) == {"mse", "mre", "r2", "spearman", "direction"} for scores in found.values())
    for method in METHODS:
        assert (found[method]["direction"] == 0.5) or method not in SYMMETRIC, method
    assert found["best-symmetric"]["mse"] < found["mean"]["mse"]
    assert max(found[method]["direction"] for method in METHODS) > 0.6


def test_settings_and_options() -> None:
    assert EXPERIMENTS["roads"] is ROADS
    for scale in ("quick", "paper"):
        found = ROADS.checked_cells(scale, 1)
        assert {c.setting for c in found} == set(NAMES)
        assert {c.method for c in found} == set(METHODS)
    [cell] = [c for c in ROADS.cells("paper", 1) if (c.setting, c.method) == ("Anaheim", "iqe")]
    assert (cell["train"], cell["test"], cell["landmarks"], cell["noise"]) == (50_000, 10_000, 32, 0.2)


def test_any_network_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "graphs").mkdir()
    write_network(tmp_path / "graphs", "Nowhere")
    monkeypatch.setenv("ASKEW_DATA", str(tmp_path))
    mean = scores_of(cell_of("mean", "Nowhere"))
    assert scores_of(cell_of("iqe", "Nowhere", epochs=20))["mse"] < mean["mse"]
    # More pairs than there are: 36 crossings.
    assert road_graph(small_network(side=6, seed=5)).shape[0] <= 36
    scores_of(cell_of("mahalanobis", "Nowhere", train=50_000, test=10_000, landmarks=64, epochs=1))
    missing = compute(run, cell_of("mean", "Atlantis"))
    assert isinstance(missing, Failed)
    assert "graphs/Atlantis_net.tntp must be in" in missing.error


def test_no_symmetric_prediction_beats_the_best_one() -> None:
    sizes = {"train": 1500, "test": 300, "distractors": 0, "noise": 0.0, "landmarks": 16}
    best = scores_of(cell_of("best-symmetric", **sizes))
    training = {"epochs": 20, "widths": (64,), "out": 16}
    symmetric = scores_of(cell_of("mahalanobis-norm", **sizes, **training))
    other = scores_of(cell_of("iqe", **sizes, **training))
    assert best["mse"] < symmetric["mse"]
    assert other["mse"] < 0.8 * symmetric["mse"]
    assert other["direction"] > 0.8


@pytest.mark.parametrize("method", ["nbd", "best-symmetric"])
def test_same_seed_gives_the_same_row(method: str) -> None:
    cell = cell_of(method)
    assert scores_of(cell) == scores_of(cell)
    assert scores_of(dataclasses.replace(cell, seed=1)) != scores_of(cell)


def test_direction() -> None:
    there, back = np.array([1.0, 2.0, 5.0, 4.0]), np.array([2.0, 1.0, 5.0, 3.0])
    assert direction(there, back, there, back) == 1
    assert direction(there, back, back, there) == 0
    assert direction(there, back, there, there) == 0.5
    # Rounding is no difference; a pair without a faster direction does not count.
    assert direction(there, back, there, there * (1 + 1e-6)) == 0.5
    assert direction(there, back, np.array([1.0, 1, 9, 2]), np.array([2.0, 2, 1, 2])) == pytest.approx(0.5)
    assert direction(there, there, there, back) == 0.5


def test_small_network_has_the_form_of_a_file() -> None:
    network = small_network(seed=3)
    assert network.tails.max() == network.nodes
    zones = np.minimum(network.tails, network.heads) < network.first_thru_node
    assert 0 < zones.sum() < zones.size
    assert (network.times[~zones] == 0).any()
    graph = road_graph(network)
    assert graph.shape == (64, 64)
    assert (graph != graph.T).nnz > 50


@published
def test_real_network_is_asymmetric() -> None:
    best = scores_of(cell_of("best-symmetric", "Anaheim", train=2000, test=500))
    mean = scores_of(cell_of("mean", "Anaheim", train=2000, test=500))
    assert 0.05 * mean["mse"] < best["mse"] < 0.3 * mean["mse"]
