"""The ablation: what its variants are, and that the two forms of the divergence are one function."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments.ablation import ABLATION, PLAIN, VARIANTS, Variant, _DoubleBackpropagation, run
from askew_paper.runner import compute, reproduce

from askew.divergences import NeuralBregman


def cell_of(method: str, **options: object) -> Cell:
    [cell] = [c for c in ABLATION.cells("toy", 1) if c.method == method]
    return dataclasses.replace(cell, options=tuple(sorted({**dict(cell.options), **options}.items())))


def computed(cell: Cell) -> Outcome:
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    return found


def test_toy_run_gives_every_row(tmp_path: Path) -> None:
    assert EXPERIMENTS["ablation"] is ABLATION
    rows = reproduce([ABLATION], tmp_path, "toy")
    assert [row.cell.method for row in rows] == list(VARIANTS)
    assert all(set(row.scores) == {"mae", "step"} for row in rows)
    assert all(len(row.curves["test MAE"]) == row.cell["epochs"] for row in rows)


def test_variants_are_different_and_say_how() -> None:
    options = [tuple(sorted(variant.options().items())) for variant in VARIANTS.values()]
    assert len(set(options)) == len(VARIANTS)
    assert VARIANTS["nbd"] == Variant()
    for cell in ABLATION.checked_cells("quick", 1):
        assert dict(VARIANTS[cell.method].options()).items() <= dict(cell.options).items()


@pytest.mark.parametrize("method", ["nbd", "plain, ReLU", "constant 0.001"])
def test_same_seed_gives_the_same_error(method: str) -> None:
    first, again = computed(cell_of(method)), computed(cell_of(method))
    assert first.scores["mae"] == again.scores["mae"]
    assert first.curves == again.curves
    assert first.chosen == again.chosen
    assert computed(dataclasses.replace(cell_of(method), seed=1)).scores["mae"] != first.scores["mae"]


# ---------------------------------------------------------------------- the two forms


@pytest.mark.parametrize("activation", ["squareplus", "softplus", "relu"])
@pytest.mark.parametrize("calibrated", [True, False])
def test_both_forms_are_one_function(activation: str, calibrated: bool) -> None:
    torch.manual_seed(0)
    network = NeuralBregman(5, (16, 8, 8), activation, calibrated=calibrated, **PLAIN).double()
    textbook = _DoubleBackpropagation(network)
    x, y = torch.randn(2, 40, 5, dtype=torch.float64)
    textbook.calibrate(x, y, 3 * torch.ones(40, dtype=torch.float64))
    torch.testing.assert_close(textbook(x, y), network(x, y), rtol=1e-9, atol=1e-9)
    assert textbook(x, y).max() > 0.01
    gradients = []
    for model in (textbook, network):
        network.zero_grad()
        model(x, y).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in network.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-7, atol=1e-9)


def test_both_forms_learn_the_same() -> None:
    ours, textbook = (computed(cell_of(method)) for method in ("plain", "plain, double backpropagation"))
    assert textbook.scores["mae"] == pytest.approx(ours.scores["mae"], rel=1e-4)
    assert 0 < textbook.chosen["difference"] < 1e-4
    assert "difference" not in ours.chosen


def test_textbook_form_keeps_no_graph_where_none_is_wanted() -> None:
    model = _DoubleBackpropagation(NeuralBregman(3, (4,), **PLAIN))
    x, y = torch.randn(2, 6, 3)
    with torch.no_grad():
        assert not model(x, y).requires_grad
    assert model(x, y).requires_grad
    assert not y.requires_grad


def test_textbook_form_is_of_plain_networks_only() -> None:
    with pytest.raises(
        ValueError, match="network of DoubleBackpropagation must be one without quadratic and separable"
    ):
        _DoubleBackpropagation(NeuralBregman(3))
