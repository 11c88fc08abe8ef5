"""Training of the experiments: plans, measurements, divergence and Ctrl-C."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.experiments.training import Plan, learn, train
from torch import Tensor

from askew.divergences import Divergence, make
from askew.losses import Regression

PLAN = Plan(epochs=3, batch=10, rates=(1e-2,), schedule="constant")


def data() -> tuple[Tensor, Tensor, Tensor]:
    x, y = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))
    return x, y, (x - y).square().sum(-1)


def model() -> Divergence:
    torch.manual_seed(0)
    return make("mahalanobis", 3)


def test_the_best_rate_is_found_by_trials() -> None:
    seen: list[Plan] = []

    def error(trial: Plan) -> float:
        seen.append(trial)
        return abs(trial.rates[0] - 2.0)

    plan = replace(PLAN, rates=(1.0, 2.0, 4.0), trial_epochs=5)
    best, errors = plan.with_best_rate(error)
    assert best == replace(plan, rates=(2.0,))
    assert errors == {1.0: 1.0, 2.0: 0.0, 4.0: 2.0}
    assert seen == [replace(plan, rates=(rate,), epochs=5) for rate in plan.rates]
    assert best.with_best_rate(error) == (best, {})
    assert len(seen) == 3


def test_plans_of_cells() -> None:
    cells = {cell.method: cell for cell in EXPERIMENTS["regression"].checked_cells("paper", 1)}
    assert Plan.of(cells["nbd"]) == Plan(100, 1000, (3e-2,), "linear")
    assert "schedule" not in replace(PLAN, schedule=None).settings()  # that of askew.fit


def test_a_measurement_that_is_not_finite_is_a_divergence() -> None:
    trained, errors = model(), iter([3.0, 2.0, math.nan])
    learned = learn(trained, data(), Regression(), lambda: {"mae": next(errors)}, seed=0, **PLAN.settings())
    assert (learned.stopped, learned.errors) == ("diverged", {"mae": (3.0, 2.0)})
    assert len(learned.losses) == 2
    # With the weights of the last good epoch; the schedule is constant, so two epochs give the same ones.
    two = model()
    train(two, data(), Regression(), seed=0, **replace(PLAN, epochs=2).settings())
    torch.testing.assert_close(trained.state_dict(), two.state_dict(), rtol=0, atol=0)


def test_divergence_before_the_first_measurement_leaves_the_weights_of_the_start() -> None:
    for rate, measure in ((1e-2, math.nan), (1e30, 1.0)):
        trained = model()
        plan = replace(PLAN, rates=(rate,)).settings()
        learned = learn(trained, data(), Regression(), lambda value=measure: {"mae": value}, seed=0, **plan)  # type: ignore[misc]
        assert (learned.stopped, learned.loss, learned.errors) == ("diverged", None, {})
        torch.testing.assert_close(trained.state_dict(), model().state_dict())


@pytest.mark.skipif(sys.platform == "win32", reason="signals are other ones there")
@pytest.mark.parametrize("function", [train, learn])
def test_an_interrupted_training_is_no_result(function: Callable[..., object]) -> None:
    def loss(trained: Divergence, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        signal.raise_signal(signal.SIGINT)
        return (trained(x, y) - targets).square().mean()

    with pytest.raises(KeyboardInterrupt):
        function(model(), data(), loss, seed=0, **PLAN.settings())


def test_importing_one_experiment_does_not_import_the_others() -> None:
    script = "import sys, askew_paper.experiments.regression; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "askew_paper.experiments.regression" in names
    assert not {"askew_paper.catalogue", "askew_paper.experiments.entailment"} & set(names)


def test_medium_plans_are_fair() -> None:
    known = [experiment for experiment in EXPERIMENTS.values() if "medium" in experiment.seeds]
    assert {"overlap", "bregmnist", "bregcifar", "deep-metric", "semantic", "shortest-path", "roads"} <= {
        experiment.name for experiment in known
    }
    for experiment in known:
        chosen: dict[str, set[object]] = {}
        for cell in experiment.checked_cells("medium"):
            options = dict(cell.options)
            if "trial_epochs" in options:
                assert 4 * cell["trial_epochs"] >= cell["epochs"], cell
                assert options.get("held_out", 1) > 0, cell
                chosen.setdefault(cell.setting, set()).add((cell["rates"], cell["epochs"], options.get("bfloat16")))
        # One plan for all methods of a table, and never two precisions in one.
        assert all(len(plans) == 1 for plans in chosen.values()), experiment.name
