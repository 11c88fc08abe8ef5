"""Training and use on a device that is not the processor's: torch's ``meta``, which computes shapes and no numbers.

It stands in for a GPU. An operation on tensors of two devices fails there as it does on a GPU, so that a tensor left
behind in main memory is found. Where a number is read from it, a mode of torch answers with a constant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import askew
from askew import checks, encoders, losses
from askew.divergences import CATALOGUE, Embedded, make
from askew.encoders import MLP, Standardize
from askew.search import ExactIndex

DEVICE = torch.device("meta")


class Numbers(TorchFunctionMode):
    """Answers with ones where a tensor without numbers is read or copied to main memory."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args and isinstance(args[0], Tensor) and args[0].is_meta else None
        name = getattr(function, "__name__", "")
        if first is not None:
            target = kwargs.get("device", next((a for a in args[1:] if isinstance(a, (str, torch.device))), None))
            if name == "cpu" or (name == "to" and target is not None and torch.device(target).type == "cpu"):
                return torch.ones(first.shape, dtype=first.dtype)
            if name in ("item", "__float__", "__int__"):
                return 1.0
            if name in ("any", "all") and len(args) == 1 and not kwargs:
                return torch.tensor(name == "all")  # nothing is wrong with the points
            if name == "__bool__":
                return True
        return function(*args, **kwargs)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: contextlib.nullcontext())  # meta has none
    with Numbers():
        yield DEVICE


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_divergences_leave_no_tensor_behind(name: str) -> None:
    model, x, y = make(name, 4).to(DEVICE), torch.rand(6, 4, device=DEVICE), torch.rand(5, 4, device=DEVICE)
    matrix, rows = model.pairwise(x, y), model(x[:5], y)
    assert (matrix.device, matrix.shape, rows.device) == (DEVICE, (6, 5), DEVICE)
    if any(p.requires_grad for p in model.parameters()):
        (matrix.sum() + rows.sum()).backward()
        assert {p.grad.device for p in model.parameters() if p.grad is not None} == {DEVICE}


@pytest.mark.parametrize("name", ["mahalanobis", "nbd", "nbd-paper", "drift", "drift-root", "deep-div", "iqe"])
@pytest.mark.parametrize("encoder", [False, True])
def test_fit_takes_all_steps_there_and_puts_the_model_back(name: str, encoder: bool, device: torch.device) -> None:
    model = make(name, 4, nn.Sequential(Standardize(6), MLP(6, 4))) if encoder else make(name, 6)
    x, y = torch.rand(2, 40, 6)
    history = askew.fit(model, (x, y, x.sum(1)), losses.Regression(), steps=3, batch_size=20, device=device)
    assert len(history) == 2
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@pytest.mark.parametrize(
    "loss", [losses.TripletMargin(), losses.AllTriplets(), losses.Listwise(), losses.Contrastive()], ids=repr
)
def test_losses_work_there(loss: Any, device: torch.device) -> None:
    x, labels = torch.rand(40, 6), torch.arange(40) % 4
    data = (x, x.flip(0), x.roll(1, 0)) if loss.parts[0] == "anchors" else (x, labels)
    model = make("nbd", 4, MLP(6, 4))
    assert len(askew.fit(model, data, loss, steps=2, batch_size=20, device=device)) == 1


def test_a_training_that_fails_puts_the_model_back(device: torch.device) -> None:
    def fails(model: nn.Module, x: Tensor) -> Tensor:
        raise ZeroDivisionError

    model = make("nbd", 6)
    with pytest.raises(ZeroDivisionError):
        askew.fit(model, (torch.rand(40, 6),), fails, steps=2, device=device)
    assert next(model.parameters()).device.type == "cpu"


@pytest.mark.parametrize("pairwise", [False, True])
def test_points_on_another_device_are_refused_with_the_line_that_helps(pairwise: bool) -> None:
    x, there = torch.rand(5, 4), torch.rand(5, 4, device=DEVICE)
    for model in (make("nbd", 4), Embedded(MLP(4, 2), make("drift", 2)), make("euclidean", 4)):
        call = model.pairwise if pairwise else model
        with pytest.raises(ValueError, match=r"must be on cpu .*Got meta instead\. Move the points with \.to\('cpu'\)"):
            call(x, there)
    moved = make("nbd", 4).to(DEVICE)
    with pytest.raises(ValueError, match=r"must be on meta like its parameters\. Got cpu instead"):
        (moved.pairwise if pairwise else moved)(x, x)


def test_standardisation_moves_to_devices_without_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Standardize(3).fit(torch.rand(9, 3))
    assert scale.to("cpu").mean.dtype == torch.float64
    monkeypatch.setattr(encoders, "WITHOUT_FLOAT64", ("meta",))
    moved = scale.to("meta")
    assert (moved.mean.dtype, moved.mean.device) == (torch.float32, DEVICE)
    assert moved(torch.rand(2, 3, device=DEVICE)).shape == (2, 3)


def test_learners_train_there_and_keep_their_model_in_main_memory(device: torch.device) -> None:
    pairs, labels = torch.rand(60, 2, 4).numpy(), np.arange(60) % 3
    settings = {"steps": 3, "random_state": 0, "device": "meta"}
    regressor = askew.PairRegressor("nbd", "mlp", **settings).fit(pairs, np.ones(60))
    learner = askew.DivergenceLearner("drift", None, **settings).fit(pairs[:, 0], labels)
    assert regressor.predict(pairs).shape == (60,)
    assert learner.kneighbors(pairs[:5, 0])[1].shape == (5, 5)


@pytest.mark.parametrize("name", ["nbd", "drift", "deepnorm"])
def test_indexes_and_k_means_refuse_weights_without_numbers(name: str) -> None:
    points, model = torch.rand(20, 4), Embedded(MLP(4, 3), make(name, 3)).to(DEVICE)
    for use in (ExactIndex, lambda model: askew.BregmanKMeans(2, divergence=model).fit(points)):
        with pytest.raises(ValueError, match=r"weights hold numbers\. Got weights on the device meta"):
            use(model)


def test_k_means_refuses_a_divergence_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "device_of", lambda module: torch.device("cuda:0"))
    with pytest.raises(ValueError, match=r"must be in main memory.* Got one on cuda:0 instead\. Move it with \.to"):
        askew.BregmanKMeans(2, divergence=make("nbd", 4)).fit(torch.rand(20, 4))
