"""The timing experiment: what is timed, in which order, and how the ratios come about."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path

import pytest
import torch
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.experiments import timing
from askew_paper.experiments.timing import FEWEST, TIMING, _LoopedDeepDiv, interleaved
from askew_paper.runner import reproduce

from askew.divergences import DeepDiv


class Clock:
    """A clock that only actions move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[str] = []

    def __call__(self) -> float:
        return self.now

    def action(self, name: str, seconds: float) -> timing.Action:
        def act() -> None:
            self.done.append(name)
            self.now += seconds

        return act


def test_actions_take_turns_and_the_first_call_of_a_turn_is_not_counted() -> None:
    clock = Clock()
    times = interleaved([clock.action("a", 1.0), clock.action("b", 3.0)], rounds=3, patience=100, clock=clock)
    assert clock.done == ["a", "a", "b", "b"] * 3
    assert times == [[1.0] * 3, [3.0] * 3]
    assert gc.isenabled()


def test_slow_actions_are_timed_less_often() -> None:
    clock = Clock()
    [times] = interleaved([clock.action("a", 10.0)], rounds=30, patience=5, clock=clock)
    assert len(times) == FEWEST
    [times] = interleaved([clock.action("a", 1.0)], rounds=30, patience=15.0, clock=clock)
    assert len(times) == 8


def test_collector_is_back_after_an_error() -> None:
    def fail() -> None:
        if not gc.isenabled():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interleaved([fail], rounds=1)
    assert gc.isenabled()


def test_toy_run_gives_every_row(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    rows = reproduce([TIMING], tmp_path, "toy")
    assert torch.get_num_threads() == threads
    assert len(rows) == len(TIMING.checked_cells("toy")) == 3 * len(timing.METHODS)
    assert all(row.scores["ratio"] > 0 and row.scores["milliseconds"] > 0 for row in rows)
    assert all(row.chosen == {"rounds": 3, "threads": 1} for row in rows)


def test_all_threads_are_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.joblib, "cpu_count", lambda: 2)
    before = torch.get_num_threads()
    cell = next(iter(TIMING.cells("toy", 1)))
    options = dict(cell.options) | {"threads": "all", "rounds": 1}
    outcome = timing.run(dataclasses.replace(cell, options=tuple(sorted(options.items()))))
    assert outcome.chosen["threads"] == 2
    assert torch.get_num_threads() == before


def test_ratio_is_the_median_over_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "interleaved", lambda actions, rounds, clock: [[2.0, 3.0, 90.0], [1.0, 1.0, 30.0]])
    outcome = timing.run(next(iter(TIMING.cells("toy", 1))))
    assert outcome.scores == {"ratio": 3.0, "milliseconds": 3000.0}


def test_published_ratios() -> None:
    assert EXPERIMENTS["timing"] is TIMING
    ratios = {(entry.setting, entry.method): entry.mean for entry in TIMING.published}
    assert len(ratios) == 15
    assert all(ratios[setting, "mahalanobis"] == 1 for setting in timing.SETTINGS)
    assert ratios["training", "nbd"] == pytest.approx(0.73 / 0.46)
    assert ratios["pairwise", "deepnorm"] == pytest.approx(4.53 / 0.40)
    cells = {(cell.setting, cell.method) for cell in TIMING.checked_cells("paper")}
    assert set(ratios) <= cells


def test_looped_deep_div_is_deep_div() -> None:
    torch.manual_seed(0)
    batched, looped = DeepDiv(4, pieces=6, hidden=5), _LoopedDeepDiv(4, pieces=6, hidden=5)
    with torch.no_grad():
        for number, network in enumerate(looped.networks):
            inner, _, outer = network  # type: ignore[misc]
            inner.weight.copy_(batched.inner_weight[number])
            inner.bias.copy_(batched.inner_bias[number])
            outer.weight.copy_(batched.outer_weight[number : number + 1])
            outer.bias.copy_(batched.outer_bias[number : number + 1])
    x, y = 3 * torch.randn(2, 50, 4)
    torch.testing.assert_close(looped(x, y), batched(x, y))
    torch.testing.assert_close(looped.pairwise(x, y), batched.pairwise(x, y))
    assert (looped(x, y) > 0).any()


def test_every_method_learns_in_a_training_step() -> None:
    for method in timing.METHODS:
        torch.manual_seed(0)
        model = timing._model(method)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        timing._action(model, "training", batch=20)()
        assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)), method
        assert timing._action(model, "inference", batch=20)().shape == (20,)  # type: ignore[attr-defined]
        assert timing._action(model, "pairwise", batch=20)().shape == (20, 20)  # type: ignore[attr-defined]
