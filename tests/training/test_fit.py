"""The training loop: it learns, repeats itself, stops when it should, and goes on where it was killed."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

import askew
from askew import io, metrics
from askew.divergences import Embedded, Mahalanobis, NeuralBregman, make
from askew.losses import AllTriplets, Regression, TripletMargin
from askew.training import History, TrainingDivergedError, fit
from askew.training.batches import ArrayBatches


def pairs(n: int = 200, dim: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.rand(2, n, dim, generator=generator) + 0.1
    return x, y, make("kl", dim)(x, y)


def labelled(n: int = 90, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    return torch.randn(n, 4, generator=generator) + labels[:, None], labels


def model(seed: int = 0, dim: int = 3) -> NeuralBregman:
    torch.manual_seed(seed)
    return NeuralBregman(dim, widths=(8, 8))


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# ---------------------------------------------------------------------- learning


def test_learns_values_of_pairs() -> None:
    D = model()
    history = fit(D, pairs(), Regression(), epochs=100, batch_size=50, seed=0)
    assert history["loss"][-1] < 0.05 * history["loss"][0]
    assert history.stopped == "finished"
    assert history["step"][-1] == 400
    assert not D.training


def test_learns_order_from_labels_and_from_triplets() -> None:
    points, labels = labelled()
    for loss, data in (
        (AllTriplets(), (points, labels)),
        (TripletMargin(), (points[:30], points[3:33], points[1:31])),
    ):
        D = model(dim=4)
        fit(D, data, loss, steps=1, seed=0)
        before = metrics.mean_average_precision(D.pairwise(points, points), labels)
        fit(D, data, loss, steps=60, calibrate=False, seed=0)
        assert metrics.mean_average_precision(D.pairwise(points, points), labels) > before


def test_encoder_is_learned_with_the_divergence() -> None:
    torch.manual_seed(0)
    D = Embedded(nn.Linear(4, 2), Mahalanobis(2))
    before = weights(D)
    fit(D, labelled(), AllTriplets(), steps=20, seed=0)
    assert not torch.equal(before["encoder.weight"], D.encoder.weight)


def test_numpy_arrays_and_float64_tables_are_taken() -> None:
    x, y, targets = (part.double().numpy() for part in pairs())
    history = fit(model(), (x, y, targets), Regression(), epochs=2, seed=0)
    assert len(history) == 2


def test_any_function_of_model_and_batch_is_a_loss() -> None:
    def loss(D: NeuralBregman, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        return (D(x, y) - targets).abs().mean()

    history = fit(model(), pairs(), loss, epochs=40, batch_size=50, seed=0)
    assert history["loss"][-1] < 0.5 * history["loss"][0]


def test_parameters_of_a_loss_are_learned() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, D: NeuralBregman, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
            return (self.factor * D(x, y) - targets).square().mean()

    loss = Scaled()
    fit(model(), pairs(), loss, steps=5, seed=0)
    assert loss.factor.item() != 1.0


def test_schedule_rises_and_falls_to_nothing() -> None:
    rates = fit(model(), pairs(), Regression(), steps=100, learning_rate=1.0e-2, warmup=0.1, seed=0)["learning_rate"]
    assert rates[0] == pytest.approx(1e-3)
    assert max(rates) == pytest.approx(1e-2)
    assert np.argmax(rates) in (9, 10)
    assert rates[-1] == pytest.approx(1e-2 / 90)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def test_cosine_and_constant_schedules() -> None:
    def rates(schedule: str) -> list[float]:
        return fit(model(), pairs(), Regression(), steps=100, learning_rate=1.0e-2, schedule=schedule, seed=0)[
            "learning_rate"
        ]

    warm = [1e-2 * (step + 1) / 5 for step in range(5)]
    assert rates("constant") == pytest.approx(warm + [1e-2] * 95)
    falling = [1e-2 * (1 + np.cos(np.pi * step / 95)) / 2 for step in range(95)]
    assert rates("cosine") == pytest.approx(warm + falling)


def test_schedule_is_a_function_of_the_step() -> None:
    """It is called once for each step, in order, and its factor is exactly that of the learning rate."""
    calls: list[tuple[int, int]] = []

    def halving(step: int, steps: int) -> float:
        calls.append((step, steps))
        return 0.5**step

    rates = fit(model(), pairs(), Regression(), steps=6, learning_rate=0.03, schedule=halving, seed=0)["learning_rate"]
    assert calls == [(step, 6) for step in range(6)]
    assert rates == [0.03 * 0.5**step for step in range(6)]


def test_schedule_equals_an_optimizer_that_sets_its_own_rate() -> None:
    """Bit for bit: what a subclass of Adam would do in its step, a schedule does."""
    rates = (3e-2, 1e-2, 1e-3)

    class Falling(torch.optim.Adam):
        taken = 0

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                group["lr"] = rates[self.taken * 3 // 12]
            self.taken += 1
            super().step()

    ours, theirs = model(), model()
    fit(theirs, pairs(), Regression(), steps=12, optimizer=lambda some: Falling(some, fused=True), seed=0)
    fit(ours, pairs(), Regression(), steps=12, learning_rate=1.0, schedule=lambda i, n: rates[i * 3 // n], seed=0)
    assert same(weights(ours), weights(theirs))


def test_own_optimizer_keeps_the_ratio_of_its_rates() -> None:
    seen: list[list[float]] = []

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": parameters[:2], "lr": 1e-2}, {"params": parameters[2:], "lr": 1e-3}]
        made = torch.optim.SGD(groups)
        made.register_step_post_hook(lambda o, *_: seen.append([g["lr"] for g in o.param_groups]))
        return made

    fit(model(), pairs(), Regression(), steps=10, optimizer=optimizer, seed=0)
    assert all(first == pytest.approx(10 * second) for first, second in seen)


def test_clipping_bounds_the_gradient() -> None:
    norms: list[float] = []

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=1e-6)
        made.register_step_pre_hook(
            lambda o, *_: norms.append(torch.cat([p.grad.flatten() for p in parameters]).norm().item())
        )
        return made

    x, y, targets = pairs()
    fit(model(), (x, y, 100 * targets), Regression(), steps=5, optimizer=optimizer, clip=0.5, seed=0)
    assert max(norms) <= 0.5 + 1e-5
    assert max(norms) > 0.4


def test_calibration_can_be_left_out() -> None:
    D = model()
    fit(D, pairs(), Regression(), steps=1, calibrate=False, seed=0)
    assert D.potential.output_scale.item() == 1.0
    fit(D, pairs(), Regression(), steps=1, seed=0)
    assert D.potential.output_scale.item() != 1.0


def test_autocast_computes_the_encoder_in_half_precision() -> None:
    seen = []

    class Probe(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            seen.append(result.dtype)
            return result

    history = fit(Embedded(Probe(4, 2), NeuralBregman(2)), labelled(), AllTriplets(), steps=3, autocast=True, seed=0)
    assert torch.bfloat16 in seen
    assert np.isfinite(history["loss"]).all()


# ---------------------------------------------------------------------- repeating


def test_seed_repeats_bit_for_bit_and_leaves_the_global_state() -> None:
    runs = []
    for _ in range(2):
        D = model()
        state = torch.get_rng_state()
        fit(D, pairs(), Regression(), epochs=3, batch_size=32, seed=7)
        assert torch.equal(state, torch.get_rng_state())
        torch.rand(5)
        runs.append(weights(D))
    other = model()
    fit(other, pairs(), Regression(), epochs=3, batch_size=32, seed=8)
    assert same(*runs)
    assert not same(runs[0], weights(other))


def test_loader_and_list_of_batches() -> None:
    x, y, targets = pairs()
    loader = DataLoader(TensorDataset(x, y, targets), batch_size=50, shuffle=True)
    for data in (loader, [(x, y, targets), (x[:10], y[:10], targets[:10])]):
        history = fit(model(), data, Regression(), epochs=30, seed=0)
        assert history["loss"][-1] < history["loss"][0]
        assert len(history) == 30


def test_stream_without_a_length() -> None:
    class Stream(torch.utils.data.IterableDataset[tuple[Tensor, ...]]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(zip(*pairs(100), strict=True))

    loader = DataLoader(Stream(), batch_size=40)
    with pytest.raises(ValueError, match="steps of fit must be given for a loader without a length"):
        fit(model(), loader, Regression(), epochs=2)
    history = fit(model(), loader, Regression(), steps=7, seed=0)
    assert history["step"] == [3, 6, 7]


def test_batches_of_an_epoch_are_even_and_cover_all_rows() -> None:
    sizes: list[int] = []
    rows: list[Tensor] = []

    def loss(D: NeuralBregman, x: Tensor) -> Tensor:
        sizes.append(len(x))
        rows.append(x[:, 0])
        return D(x, x.flip(0)).mean()

    points = torch.arange(100.0)[:, None].expand(-1, 3).contiguous()
    fit(model(), (points,), loss, epochs=2, batch_size=32, seed=0)
    assert sizes == [25] * 8
    first, second = torch.cat(rows[:4]), torch.cat(rows[4:])
    assert torch.equal(first.sort().values, torch.arange(100.0))
    assert not torch.equal(first, second)


# ---------------------------------------------------------------------- validation


def test_best_weights_are_kept_and_training_stops_early() -> None:
    scores = iter([0.1, 0.9, 0.5, 0.4, 0.3, 0.2])
    seen: list[dict[str, Tensor]] = []

    def validation(D: nn.Module) -> float:
        assert not D.training
        seen.append(weights(D))
        return next(scores)

    D = model()
    history = fit(D, pairs(), Regression(), epochs=6, validation=validation, patience=3, seed=0)
    assert history.stopped == "early"
    assert history["validation"] == [0.1, 0.9, 0.5, 0.4, 0.3]
    assert history.best_step == 2
    assert same(weights(D), seen[1])


def test_validation_data_is_scored_by_its_loss() -> None:
    D = model()
    history = fit(D, pairs(), Regression(), epochs=4, validate_every=2, validation=pairs(seed=1), seed=0)
    assert len(history["validation"]) == 2
    x, y, targets = pairs(seed=1)
    with torch.no_grad():
        assert max(history["validation"]) == pytest.approx(-Regression()(D(x, y), targets).item(), rel=1e-5)


def test_validation_does_not_change_the_course() -> None:
    plain, watched = model(), model()
    fit(plain, pairs(), Regression(), epochs=3, batch_size=50, seed=0)
    increasing = iter(range(10))

    def validation(D: nn.Module) -> float:
        torch.rand(3)
        return next(increasing)

    fit(watched, pairs(), Regression(), epochs=3, batch_size=50, seed=0, validation=validation)
    assert same(weights(plain), weights(watched))


# ---------------------------------------------------------------------- callback


def test_callback_sees_each_epoch_and_adds_numbers_to_its_row() -> None:
    states: list[tuple[int, str, bool, bool]] = []

    def callback(D: nn.Module, history: History) -> None:
        states.append((len(history), history.stopped, D.training, torch.is_grad_enabled()))
        history.rows[-1]["score"] = np.float32(len(states) / 2)  # becomes a plain number

    history = fit(model(), pairs(), Regression(), epochs=3, seed=0, callback=callback)
    assert states == [(1, "running", False, False), (2, "running", False, False), (3, "finished", False, False)]
    assert history["score"] == [0.5, 1.0, 1.5]
    assert {type(value) for row in history.rows for value in row.values()} == {int, float}
    assert history.stopped == "finished"


def test_callback_stops_the_run() -> None:
    D, whole = model(), model()
    history = fit(D, pairs(), Regression(), epochs=9, seed=0, callback=lambda D, history: len(history) == 4)
    assert (history.stopped, len(history)) == ("callback", 4)
    assert not D.training
    at_four: list[dict[str, Tensor]] = []
    fit(whole, pairs(), Regression(), epochs=9, seed=0, callback=lambda D, _: at_four.append(weights(D)))
    assert same(weights(D), at_four[3])  # its last weights: nothing was chosen


def test_callback_comes_after_the_validation_and_leaves_the_best_weights() -> None:
    scores, looks = iter([0.1, 0.9, 0.5]), list[dict[str, Tensor]]()

    def callback(D: nn.Module, history: History) -> bool:
        looks.append(weights(D))
        return history.rows[-1]["validation"] == 0.5

    D = model()
    history = fit(D, pairs(), Regression(), epochs=9, seed=0, validation=lambda D: next(scores), callback=callback)
    assert (history.stopped, history.best_step) == ("callback", 2)
    assert same(weights(D), looks[1])


def test_callback_does_not_change_the_course() -> None:
    plain, watched = model(), model()
    fit(plain, pairs(), Regression(), epochs=3, batch_size=50, seed=0)

    def callback(D: nn.Module, history: History) -> None:
        torch.rand(3)

    fit(watched, pairs(), Regression(), epochs=3, batch_size=50, seed=0, callback=callback)
    assert same(weights(plain), weights(watched))


def test_callback_never_sees_weights_that_are_not_finite() -> None:
    def callback(D: nn.Module, history: History) -> None:
        assert all(torch.isfinite(tensor).all() for tensor in D.state_dict().values())

    with pytest.raises(TrainingDivergedError) as e:
        fit(model(), pairs(), breaking(8), steps=12, batch_size=50, seed=0, callback=callback)
    assert len(e.value.history) == 1


def test_callback_after_a_resume(tmp_path: Path) -> None:
    """It is called for the epochs that end after the checkpoint, and sees the rows of all."""
    file, calls = tmp_path / "run.safetensors", list[int]()

    def callback(D: nn.Module, history: History) -> bool:
        calls.append(len(history))
        history.rows[-1]["size"] = float(sum(p.square().sum() for p in D.parameters()))
        assert all("size" in row for row in history.rows)
        return len(history) == 6

    def run(D: nn.Module, interrupt_at: int, checkpoint: Path | None) -> History:
        return fit(
            D,
            pairs(),
            interrupting(interrupt_at),
            epochs=10,
            batch_size=50,
            seed=0,
            schedule=lambda step, steps: 1 / (1 + step),
            callback=callback,
            checkpoint=checkpoint,
        )

    whole, again = model(), model(1)
    expected = run(whole, -1, None)
    calls.clear()
    assert run(model(), 14, file).stopped == "interrupted"  # in the middle of the fourth epoch
    assert calls == [1, 2, 3]
    found = run(again, -1, file)
    assert calls == [1, 2, 3, 4, 5, 6]
    assert (found.stopped, found["size"], found["loss"]) == ("callback", expected["size"], expected["loss"])
    assert same(weights(whole), weights(again))
    assert run(again, -1, file) == found  # a run that was stopped is over
    assert len(calls) == 6


def test_checkpoint_of_another_schedule_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    fit(model(), pairs(), Regression(), epochs=2, seed=0, checkpoint=file)
    with pytest.raises(ValueError, match=r"of a run with schedule='cosine'\. Got schedule='linear' instead"):
        fit(model(), pairs(), Regression(), epochs=2, seed=0, checkpoint=file, schedule="cosine")


# ---------------------------------------------------------------------- trouble


def test_nan_stops_with_the_last_good_weights() -> None:
    calls = 0

    def loss(D: NeuralBregman, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        value = (D(x, y) - targets).square().mean()
        return value * torch.nan if calls == 60 else value

    D = model()
    with pytest.raises(
        TrainingDivergedError, match=r"the loss of step 60 of fit must be finite.*Got nan.*learning_rate"
    ) as e:
        fit(D, pairs(), loss, epochs=100, seed=0)
    assert len(e.value.history) == 59
    x, y, _ = pairs()
    assert torch.isfinite(D(x, y)).all()


def test_a_real_overflow_is_noticed() -> None:
    D = model()
    with pytest.raises(TrainingDivergedError):
        fit(D, pairs(), Regression(), epochs=100, learning_rate=1e12, seed=0)
    assert all(torch.isfinite(tensor).all() for tensor in D.state_dict().values())


def test_a_loss_that_grows_and_grows_stops() -> None:
    calls = 0

    def loss(D: NeuralBregman, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return D(x, y).mean() * 0 + (1.0 if calls < 20 else 1e5)

    with pytest.raises(TrainingDivergedError, match="Got 100000 after 1 at the start"):
        fit(model(), pairs(), loss, epochs=100, seed=0)
    assert calls == 29


def interrupting(at: int) -> Callable[..., Tensor]:
    calls = 0

    def loss(D: NeuralBregman, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGINT)
        return (D(x, y) - targets).square().mean()

    return loss


def test_interrupt_returns_what_is_learned_and_can_go_on(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    whole, stopped = model(), model()
    fit(whole, pairs(), interrupting(-1), epochs=10, batch_size=50, seed=0)
    handler = signal.getsignal(signal.SIGINT)
    history = fit(stopped, pairs(), interrupting(13), epochs=10, batch_size=50, seed=0, checkpoint=file)
    assert signal.getsignal(signal.SIGINT) is handler
    assert history.stopped == "interrupted"
    assert len(history) == 3
    assert not same(weights(whole), weights(stopped))
    history = fit(model(5), pairs(), interrupting(-1), epochs=10, batch_size=50, seed=0, checkpoint=file)
    assert history.stopped == "finished"
    assert len(history) == 10
    again = model(6)
    fit(again, pairs(), interrupting(-1), epochs=10, batch_size=50, seed=0, checkpoint=file)
    assert same(weights(whole), weights(again))


def test_works_in_a_thread_where_signals_do_not() -> None:
    found: list[History] = []
    thread = threading.Thread(target=lambda: found.append(fit(model(), pairs(), Regression(), steps=3, seed=0)))
    thread.start()
    thread.join()
    assert found[0].stopped == "finished"


# ---------------------------------------------------------------------- checkpoints

SCRIPT = """
import os, signal, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import askew
from askew.divergences import Embedded, NeuralBregman
from askew.losses import AllTriplets


def train(kind, name, kill_at):
    torch.manual_seed(3)
    x, labels = torch.randn(60, 4), torch.arange(60) % 3
    # Dropout and batch normalisation: random numbers and buffers that have to be restored as well.
    encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    model = Embedded(encoder, NeuralBregman(8, widths=(8,)))
    data = (x, labels)
    if kind != "arrays":
        own = torch.Generator().manual_seed(1) if kind == "own" else None
        data = DataLoader(TensorDataset(x, labels), batch_size=20, shuffle=True, generator=own)
    loss, calls = AllTriplets(1.0), 0

    def killing(D, points, labels):
        nonlocal calls
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss.of(D, points, labels)

    scores = lambda D: float(-D(x, x.flip(0)).mean())
    askew.fit(model, data, killing, epochs=8, batch_size=20, seed=5, checkpoint=f"{kind}-{name}.ckpt",
              checkpoint_every=4, calibrate=False, learning_rate=1e-2, validation=scores, validate_every=3)
    torch.save(model.state_dict(), f"{kind}-{name}.pt")


for kind in sys.argv[2:]:
    if sys.argv[1] == "resume":
        train(kind, "killed", -1)
        continue
    child = os.fork()
    if child == 0:
        train(kind, "killed", 11)  # after the checkpoint of step 8, which is in the middle of an epoch
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    train(kind, "whole", -1)
"""
KINDS = ("arrays", "loader", "own")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs that were left alone and of runs that were killed, and resumed by another process."""
    if not hasattr(os, "fork"):
        pytest.skip("needs processes that fork and can be killed")
    folder = tmp_path_factory.mktemp("resumed")
    for task in ("train", "resume"):
        command = [sys.executable, "-c", SCRIPT, task, *KINDS]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=folder, check=True)
    return folder


@pytest.mark.xdist_group("resumed")
@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_ends_with_the_same_weights(kind: str, resumed: Path) -> None:
    whole, killed = (torch.load(resumed / f"{kind}-{name}.pt", weights_only=True) for name in ("whole", "killed"))
    assert same(whole, killed)
    assert not list(resumed.glob(".*"))


def test_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    fit(model(), pairs(), Regression(), epochs=2, seed=0, checkpoint=file)
    with pytest.raises(
        ValueError, match=r"of a run with learning_rate=0\.01\. Got learning_rate=0\.03 instead\. Delete"
    ):
        fit(model(), pairs(), Regression(), epochs=2, seed=0, checkpoint=file, learning_rate=0.01)
    with pytest.raises(ValueError, match="must be of the same data"):
        fit(model(), pairs(seed=1), Regression(), epochs=2, seed=0, checkpoint=file)
    torch.manual_seed(0)
    other = NeuralBregman(3, widths=(9, 9))
    with pytest.raises(ValueError, match="must be of the same model and optimiser"):
        fit(other, pairs(), Regression(), epochs=2, seed=0, checkpoint=file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"run\.safetensors"):
        fit(model(), pairs(), Regression(), epochs=2, seed=0, checkpoint=file)


def test_checkpoint_of_another_loss_or_optimizer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    fit(model(), pairs(), Regression(), epochs=2, seed=0, checkpoint=file)
    before = model()
    with pytest.raises(ValueError, match="of a run with loss="):
        fit(before, pairs(), Regression("absolute"), epochs=2, seed=0, checkpoint=file)
    with pytest.raises(ValueError, match="of a run with optimizer="):
        fit(before, pairs(), Regression(), epochs=2, seed=0, checkpoint=file, optimizer=torch.optim.Adagrad)
    assert same(weights(before), weights(model()))


def test_stream_is_taken_up_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[tuple[Tensor, ...]]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(zip(*pairs(100), strict=True))

    loader, file = DataLoader(Stream(), batch_size=40), tmp_path / "run.safetensors"
    whole, again = model(), model(1)
    fit(whole, loader, interrupting(-1), steps=9, seed=0, calibrate=False)
    fit(model(), loader, interrupting(3), steps=9, seed=0, checkpoint=file, calibrate=False)
    history = fit(again, loader, interrupting(-1), steps=9, seed=0, checkpoint=file, calibrate=False)
    assert history["step"] == [3, 6, 9]
    assert same(weights(whole), weights(again))


@pytest.mark.parametrize("of_batches", [False, True])
def test_samplers_of_several_processes_are_told_the_epoch(of_batches: bool, tmp_path: Path) -> None:
    """Otherwise each epoch has the same order, and one that is resumed has that of the first."""
    data = TensorDataset(*pairs(100))

    class Noting(DistributedSampler[tuple[Tensor, ...]]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            orders.append(list(super().__iter__()))
            return iter(orders[-1])

    def loader() -> DataLoader[tuple[Tensor, ...]]:
        sampler = Noting(data, num_replicas=2, rank=0)
        if of_batches:
            return DataLoader(data, batch_sampler=BatchSampler(sampler, 10, drop_last=False))
        return DataLoader(data, batch_size=10, sampler=sampler)

    file, orders = tmp_path / "run.safetensors", list[list[int]]()
    whole, again = model(), model(1)
    fit(whole, loader(), interrupting(-1), epochs=3, seed=0)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    fit(model(), loader(), interrupting(8), epochs=3, seed=0, checkpoint=file)
    fit(again, loader(), interrupting(-1), epochs=3, seed=0, checkpoint=file)
    assert orders[3:] == [*orders[:2], *orders[1:3]]
    assert same(weights(whole), weights(again))


def test_one_process_needs_neither_the_module_of_several_nor_a_digest_of_its_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(self: ArrayBatches) -> str:
        raise AssertionError("hashed")

    monkeypatch.setitem(sys.modules, "askew.training.distributed", None)  # an import of it is an error
    monkeypatch.setattr(ArrayBatches, "fingerprint", refuse)
    assert fit(model(), pairs(), Regression(), steps=2, seed=0, validation=pairs(seed=1)).stopped == "finished"
    with pytest.raises(AssertionError, match="hashed"):
        fit(model(), pairs(), Regression(), steps=2, seed=0, checkpoint=tmp_path / "run.safetensors")


def test_error_of_a_worker_process_can_be_handed_on() -> None:
    error = copy.copy(TrainingDivergedError("loss", History([{"step": 1}])))
    assert str(error) == "loss"
    assert error.history["step"] == [1]


def test_nan_of_the_last_step_is_noticed() -> None:
    def loss(D: NeuralBregman, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        value = D(x, y).mean()
        value.register_hook(lambda gradient: gradient * torch.nan)
        return value

    D = model()
    with pytest.raises(TrainingDivergedError, match="NaN or infinite weights"):
        fit(D, pairs(), loss, steps=1, seed=0)
    assert all(torch.isfinite(tensor).all() for tensor in D.state_dict().values())


def breaking(at: int) -> Callable[..., Tensor]:
    """Return a loss that is finite, and whose gradient is NaN in one step."""
    calls = 0

    def loss(D: NeuralBregman, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        value = (D(x, y) - targets).square().mean()
        if calls == at:
            value.register_hook(lambda gradient: gradient * torch.nan)
        return value

    return loss


@pytest.mark.parametrize("at", [6, 8])
def test_weights_that_are_not_finite_are_never_written(at: int, tmp_path: Path) -> None:
    """Neither in the middle of a run nor at its end; the file is that of good weights, from which it can go on."""
    file = tmp_path / "run.safetensors"
    whole, D, again = model(), model(), model(1)
    fit(whole, pairs(), breaking(-1), steps=8, batch_size=50, seed=0)
    with pytest.raises(TrainingDivergedError, match="NaN or infinite weights"):
        fit(D, pairs(), breaking(at), steps=8, batch_size=50, seed=0, checkpoint=file, checkpoint_every=2)
    assert all(torch.isfinite(tensor).all() for tensor in D.state_dict().values())
    tensors, description = io.load_tensors(file, "checkpoint")
    assert io.unflatten(tensors, description["tree"])["counters"]["step"] == at - 2
    history = fit(again, pairs(), breaking(-1), steps=8, batch_size=50, seed=0, checkpoint=file, checkpoint_every=2)
    assert history.stopped == "finished"
    assert same(weights(whole), weights(again))


@pytest.mark.parametrize("at", [4, 5, 8])
def test_weights_that_are_not_finite_are_never_the_best(at: int) -> None:
    """A score may be a number without looking at them, as that of a ranking is."""
    D = model()
    with pytest.raises(TrainingDivergedError):
        fit(D, pairs(), breaking(at), steps=8, batch_size=50, seed=0, validation=lambda D: float(D.training))
    assert all(torch.isfinite(tensor).all() for tensor in D.state_dict().values())


def test_targets_with_a_graph_read_only_arrays_and_numpy_seeds() -> None:
    """All of them are learned from as plain tensors and seeds are; a graph of the targets is not gone through."""
    x, y, targets = pairs()
    learned = [model() for _ in range(6)]
    fit(learned[0], (x, y, targets), Regression(), steps=3, seed=3)
    source = model(1)
    with_graph = targets + 0 * source(x, y)
    fit(learned[1], (x, y, with_graph), Regression(), steps=3, seed=np.int64(3))
    assert all(parameter.grad is None for parameter in source.parameters())
    arrays = [part.numpy() for part in pairs()]
    for array in arrays:
        array.flags.writeable = False
    fit(learned[2], tuple(arrays), Regression(), steps=3, seed=3)
    fit(learned[3], tuple(array.astype(">f4") for array in arrays), Regression(), steps=3, seed=3)
    fit(learned[4], tuple(array.astype(np.float64) for array in arrays), Regression(), steps=3, seed=3)
    fit(learned[5], tuple(array[::-1][::-1] for array in arrays), Regression(), steps=3, seed=3)
    for other in learned[1:]:
        assert same(weights(learned[0]), weights(other))


def test_finished_run_is_read_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "run.safetensors"
    first, second = model(), model(1)
    done = fit(first, pairs(), Regression(), epochs=3, seed=0, checkpoint=file, validation=pairs(seed=1))
    again = fit(second, pairs(), Regression(), epochs=3, seed=0, checkpoint=file, validation=pairs(seed=1))
    assert again == done
    assert same(weights(first), weights(second))


# ---------------------------------------------------------------------- what comes in


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"model": "nbd"}, TypeError, "model of fit must be an askew divergence. Got str"),
        ({"model": make("euclidean", 3)}, ValueError, "model of fit must be one with parameters to learn"),
        ({"loss": "squared"}, TypeError, "loss of fit must be one of askew.losses or a function"),
        ({"data": (torch.rand(3, 3), torch.rand(3, 3))}, ValueError, "must be a tuple of 3: first points"),
        ({"data": (torch.rand(3, 3), torch.rand(4, 3), torch.rand(3))}, ValueError, "equally long. Got first points 3"),
        ({"data": (torch.rand(0, 3), torch.rand(0, 3), torch.rand(0))}, ValueError, "with at least one row"),
        (
            {"data": (torch.rand(2, 3), torch.rand(2, 3), torch.tensor([1.0, torch.nan]))},
            ValueError,
            r"targets\[1\] = nan",
        ),
        ({"data": (np.array(["a"]), np.array(["b"]), np.array(["c"]))}, TypeError, "must be an array of numbers"),
        ({"data": torch.rand(3, 3)}, TypeError, r"data of fit must be a tuple \(first points"),
        ({"data": iter([])}, TypeError, "something that can be gone through again each epoch"),
        ({"data": [torch.rand(3)]}, ValueError, "must be a tuple of 3"),
        ({"data": [(torch.rand(3, 3),)]}, ValueError, "a batch given to fit must be of 3 parts"),
        ({"data": [([1.0], [2.0], [3.0])]}, TypeError, "must be a tuple of tensors"),
        ({"epochs": 0}, ValueError, "epochs of fit must be a positive integer"),
        ({"steps": 0.5}, ValueError, "steps of fit must be a positive integer"),
        ({"batch_size": -1}, ValueError, "batch_size of fit must be a positive integer"),
        ({"learning_rate": 0}, ValueError, "learning_rate of fit must be a finite number above zero"),
        ({"warmup": 2}, ValueError, "warmup of fit must be a share of the steps"),
        ({"schedule": "cosin"}, ValueError, "schedule of fit must be one of .* Did you mean 'cosine'"),
        ({"schedule": 0.5}, TypeError, "schedule of fit must be one of .* or a function of step and steps. Got float"),
        ({"schedule": lambda step, steps: -1}, ValueError, "the schedule of fit at step 0 must be a factor"),
        ({"callback": 3}, TypeError, "callback of fit must be a function of the model and the history. Got int"),
        (
            {"callback": lambda D, history: history.rows[-1].update(name="a")},
            TypeError,
            "name in the row .* must be a number. Got str",
        ),
        ({"clip": -1.0}, ValueError, "clip of fit must be a finite number above zero"),
        ({"patience": 3}, ValueError, "patience of fit must be None where there is no validation"),
        (
            {"loss": lambda D, x, y, t: D(x, y)},
            TypeError,
            "the result of the loss of fit must be a tensor with one number",
        ),
    ],
)
def test_bad_arguments(change: dict[str, object], error: type[Exception], match: str) -> None:
    arguments: dict[str, object] = {"model": model(), "data": pairs(), "loss": Regression(), "seed": 0, **change}
    with pytest.raises(error, match=match):
        fit(**arguments)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- what is seen


def test_progress_bar_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    fit(model(), pairs(), Regression(), steps=5, seed=0)
    assert capsys.readouterr().err == ""
    fit(model(), pairs(), Regression(), steps=5, seed=0, progress=True)
    assert "5/5" in capsys.readouterr().err


def test_history_is_a_table() -> None:
    history = fit(model(), pairs(), Regression(), epochs=30, seed=0)
    lines = str(history).splitlines()
    assert lines[0].split() == ["step", "epoch", "loss", "learning_rate", "seconds"]
    assert len(lines) == 22  # names, ten rows, dots, ten rows
    assert lines[-1].split()[0] == "30"
    with pytest.raises(ValueError, match="column of a History must be one of 'step'"):
        history["los"]


def test_public_names() -> None:
    assert askew.fit is fit
    assert askew.losses.Regression is Regression


def test_masked_and_sparse_arrays_are_refused() -> None:
    points, labels = np.random.RandomState(0).rand(20, 3), np.arange(20) % 2
    hidden = np.ma.masked_array(points, points > 0.9)
    with pytest.raises(ValueError, match="must be without masked entries"):
        askew.fit(askew.NeuralBregman(3), (hidden, labels), askew.losses.AllTriplets(), steps=1, progress=False)
    sparse = torch.from_numpy(points).to_sparse()
    with pytest.raises(TypeError, match="must be a dense tensor"):
        askew.fit(askew.NeuralBregman(3), (sparse, labels), askew.losses.AllTriplets(), steps=1, progress=False)


def test_compile_is_passed_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []

    def compile_(function: object) -> object:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    loss, histories = askew.losses.Regression(), []
    x, y = torch.rand(2, 30, 3)
    for asked in (False, True):
        torch.manual_seed(0)
        histories.append(askew.fit(askew.make("nbd", 3), (x, y, x.sum(1)), loss, steps=3, seed=0, compile=asked))
    assert compiled == [loss.of]
    assert histories[0]["loss"] == histories[1]["loss"]


# ---------------------------------------------------------------------- threads


def test_small_steps_have_one_thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only they: the caller's number is there for callbacks, large steps and afterwards, and is never exceeded."""
    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    seen: list[int] = []

    def loss(D: NeuralBregman, x: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        if len(seen) == 9:
            raise ZeroDivisionError
        return Regression().of(D, x, y, targets)

    def callback(D: NeuralBregman, history: History) -> None:
        seen.append(10 * torch.get_num_threads())

    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        D = model()
        fit(D, pairs(), loss, steps=2, batch_size=100, seed=0, callback=callback)
        assert torch.get_num_threads() == threads
        results.append(weights(D))
    assert seen == [1, 1, 10, 1, 1, 20]
    assert same(*results)
    monkeypatch.setattr("askew.training.runtime.SMALL_STEP", 100 * 10_000)  # the batch above is at this limit
    for batch_size in (100, 200, 50):
        with pytest.raises(ZeroDivisionError) if batch_size == 50 else contextlib.nullcontext():
            fit(model(), pairs(), loss, steps=1, batch_size=batch_size, seed=0)
        assert torch.get_num_threads() == 2
    assert seen[6:] == [2, 2, 1]
