"""Encoders: shapes, gradients, compilers, and checks of their input."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from askew.encoders import MLP, Identity, Linear, SmallCNN, Standardize

# Name -> an encoder, the shape of one input, the output dimension.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "identity": (lambda: Identity(7), (7,), 7),
    "linear": (lambda: Linear(7, 3), (7,), 3),
    "mlp": (lambda: MLP(7, 3, widths=(8, 9)), (7,), 3),
    "cnn": (lambda: SmallCNN(1, 12, out=5, filters=(4, 6), hidden=8), (1, 12, 12), 5),
}
TRAINED = [name for name in CASES if name != "identity"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def build(name: str) -> tuple[nn.Module, Tensor, int]:
    make, shape, out = CASES[name]
    return make().eval(), torch.randn(3, *shape), out


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", CASES)
def test_one_point_per_input(name: str) -> None:
    encoder, x, out = build(name)
    with torch.no_grad():
        points = encoder(x)
        alone = torch.cat([encoder(row) for row in x.split(1)])
    assert encoder.out == out
    assert points.shape == (3, out)
    torch.testing.assert_close(points, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TRAINED)
def test_every_parameter_has_a_gradient(name: str) -> None:
    encoder, x, _ = build(name)
    encoder.train()
    encoder(x).square().sum().backward()
    for parameter in encoder.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    assert any(parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


@pytest.mark.parametrize("name", TRAINED)
def test_double_precision_agrees(name: str) -> None:
    encoder, x, _ = build(name)
    with torch.no_grad():
        single = encoder(x)
        double = encoder.double()(x.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_meta_device(name: str) -> None:
    make, shape, out = CASES[name]
    with torch.device("meta"):
        points = make()(torch.empty(2, *shape))
    assert points.is_meta
    assert points.shape == (2, out)


@pytest.mark.parametrize("name", ["identity", "mlp", "cnn"])
def test_export_with_a_free_batch_size(name: str) -> None:
    encoder, x, _ = build(name)
    program = torch.export.export(encoder, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    other = torch.randn(5, *x.shape[1:])
    torch.testing.assert_close(program.module()(other), encoder(other))


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_compile_without_graph_breaks(name: str) -> None:
    encoder, x, _ = build(name)
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), encoder(x))


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_vmap(name: str) -> None:
    encoder, x, _ = build(name)
    batches = torch.stack([x, x + 1])
    torch.testing.assert_close(torch.func.vmap(encoder)(batches), torch.stack([encoder(x), encoder(x + 1)]))


@pytest.mark.parametrize("encoder", [Identity(), Linear(4, 4), MLP(4, 4)])
def test_rows_have_any_leading_shape(encoder: nn.Module) -> None:
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(encoder(x)[1, 2], encoder(x[1, 2]))
    assert encoder(x).shape == (2, 3, 4)


def test_identity_of_unknown_size() -> None:
    x = torch.randn(2, 5)
    assert Identity().out is None
    assert Identity()(x) is x


def test_mlp_is_its_formula() -> None:
    mlp, x = MLP(4, 2, widths=(5, 3)), torch.randn(6, 4)
    first, second = mlp.hidden
    hidden = (x @ first.weight.T + first.bias).clamp_min(0)
    hidden = (hidden @ second.weight.T + second.bias).clamp_min(0)
    torch.testing.assert_close(mlp(x), hidden @ mlp.last.weight.T + mlp.last.bias)
    assert mlp(x).min() < 0, "the last layer must not be rectified"


def test_small_cnn_is_the_layers_of_its_docstring() -> None:
    cnn, x = SmallCNN(2, 13, out=3, filters=(4, 5), hidden=6), torch.randn(4, 2, 13, 13)
    layers = [step for convolution in cnn.convolutions for step in (convolution, nn.ReLU(), nn.MaxPool2d(2))]
    plain = nn.Sequential(*layers, nn.Flatten(), cnn.hidden, nn.ReLU(), cnn.last)
    torch.testing.assert_close(cnn(x), plain(x))


@pytest.mark.parametrize(
    ("channels", "size", "filters", "expected"),
    [
        (1, 28, (32, 64), 320 + 18_496 + (64 * 49 + 1) * 256 + 257 * 128),
        (3, 32, (32, 64, 128, 256), 896 + 18_496 + 73_856 + 295_168 + (256 * 4 + 1) * 256 + 257 * 128),
        (3, 64, (32, 64, 128, 256), 896 + 18_496 + 73_856 + 295_168 + (256 * 16 + 1) * 256 + 257 * 128),
    ],
)
def test_networks_of_the_paper(channels: int, size: int, filters: tuple[int, ...], expected: int) -> None:
    cnn = SmallCNN(channels, size, filters=filters)
    assert cnn.out == 128
    assert parameters(cnn) == expected


def test_autocast_takes_what_earlier_layers_gave() -> None:
    mlp = MLP(4, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mlp(torch.randn(3, 4).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Identity(0), "dim of Identity must be a positive integer. Got 0 instead."),
        (lambda: Linear(3, -1), "out of Linear must be a positive integer. Got -1 instead."),
        (lambda: MLP(3, 2, widths=()), "widths of MLP must be a non-empty sequence of positive integers"),
        (lambda: SmallCNN(1, 28, hidden=0), "hidden of SmallCNN must be a positive integer"),
        (
            lambda: SmallCNN(3, 7, filters=(4, 4, 4)),
            "image_size of SmallCNN must be at least 8 with 3 filters, each of which halves it. Got 7 instead.",
        ),
    ],
)
def test_sizes_are_checked(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("encoder", "x", "error", "message"),
    [
        (Identity(3), torch.zeros(2, 4), ValueError, "x of Identity must be of shape (..., 3). Got (2, 4) instead."),
        (Linear(3, 2), torch.zeros(2, 4), ValueError, "x of Linear must be of shape (..., 3). Got (2, 4) instead."),
        (MLP(3, 2), torch.zeros(2, 3).double(), TypeError, "x of MLP must be torch.float32 like its parameters."),
        (MLP(3, 2), [[1.0, 2.0, 3.0]], TypeError, "x of MLP must be a torch.Tensor. Got list instead."),
        (
            SmallCNN(1, 8),
            torch.zeros(2, 1, 8, 9),
            ValueError,
            "x of SmallCNN must be of shape (n, 1, 8, 8). Got (2, 1, 8, 9) instead.",
        ),
    ],
)
def test_inputs_are_checked(encoder: nn.Module, x: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        encoder(x)


# ---------------------------------------------------------------------- Standardize


def test_standardize_keeps_the_digits_of_far_features() -> None:
    x = 1e9 + torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scaled = Standardize(3).fit(x)(x)
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled.double(), (x - x.mean(0)) / x.std(0, correction=0), rtol=1e-6, atol=1e-6)


def test_standardize_leaves_constant_features_finite() -> None:
    x = torch.tensor([[0.1, 5.0], [0.1, 7.0], [0.1, 9.0]], dtype=torch.float64)
    scaled = Standardize(2).fit(x)(x)
    torch.testing.assert_close(scaled[:, 0], torch.zeros(3))
    assert scaled[:, 1].std(correction=0).item() == pytest.approx(1)
    torch.testing.assert_close(Standardize(2)(x), x.float())


def test_standardize_refuses_nan_and_other_widths() -> None:
    with pytest.raises(ValueError, match="x of Standardize must be finite"):
        Standardize(1).fit(torch.tensor([[1.0], [torch.nan]]))
    with pytest.raises(ValueError, match=r"x of Standardize must be of shape \(\.\.\., 2\)"):
        Standardize(2)(torch.zeros(3, 3))


def test_mlp_has_a_choice_of_activations() -> None:
    torch.manual_seed(0)
    plain, smooth = MLP(3, 2, (4,)), MLP(3, 2, (4,), activation="silu")
    smooth.load_state_dict(plain.state_dict())
    x = torch.randn(5, 3)
    hidden = x @ plain.hidden[0].weight.T + plain.hidden[0].bias
    torch.testing.assert_close(smooth(x), plain.last(hidden * hidden.sigmoid()))
    torch.testing.assert_close(plain(x), plain.last(hidden.clamp_min(0)))
    with pytest.raises(ValueError, match="activation of MLP must be one of 'relu', 'silu'"):
        MLP(3, 2, activation="tanh")
