"""Residual networks: shapes, sizes known from the papers, gradients, and weight files."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from askew_paper.encoders import IMAGENET_MEAN, IMAGENET_STD, ResNet18, ResNet20, load_weights
from torch import Tensor, nn

from askew.encoders import MLP, Linear

# Name -> an encoder, the shape of one input, the output dimension.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "resnet20": (lambda: ResNet20(), (3, 32, 32), 64),
    "resnet20-head": (lambda: ResNet20(out=6), (3, 16, 16), 6),
    "resnet18": (lambda: ResNet18(), (3, 32, 32), 512),
    "resnet18-head": (lambda: ResNet18(out=6), (3, 40, 33), 6),
}
TRAINED = list(CASES)


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


@pytest.mark.parametrize("name", ["resnet20-head"])
def test_export_with_a_free_batch_size(name: str) -> None:
    encoder, x, _ = build(name)
    program = torch.export.export(encoder, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    other = torch.randn(5, *x.shape[1:])
    torch.testing.assert_close(program.module()(other), encoder(other))


def test_published_numbers_of_parameters() -> None:
    assert parameters(ResNet20(out=10)) == 269_722
    assert parameters(ResNet18(out=1000)) == 11_689_512


def test_resnet18_has_the_usual_names() -> None:
    names = ResNet18(out=1000).state_dict().keys()
    assert len(names) == 122
    assert {"conv1.weight", "bn1.running_var", "layer1.1.conv2.weight", "layer4.0.bn1.bias", "fc.bias"} <= names
    assert {"layer2.0.downsample.0.weight", "layer3.0.downsample.1.running_mean"} <= names
    assert not any(name.startswith("layer1.0.downsample") for name in names)


def test_padded_shortcut_has_no_parameters() -> None:
    network = ResNet20()
    assert not list(network.layer2[0].downsample.parameters())
    x = torch.randn(1, 16, 8, 8)
    shortcut = network.layer2[0].downsample(x)
    assert shortcut.shape == (1, 32, 4, 4)
    torch.testing.assert_close(shortcut[:, 8:24], x[:, :, ::2, ::2])
    assert not shortcut[:, :8].any()
    assert not shortcut[:, 24:].any()


class Trap:
    """An object that only code could rebuild."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, ("sprung",)


def same(a: nn.Module, b: nn.Module) -> bool:
    other = b.state_dict()
    return all(torch.equal(tensor, other[name]) for name, tensor in a.state_dict().items())


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_load_weights_of_common_forms(tmp_path: Path, wrapped: bool, prefix: str) -> None:
    source, target = MLP(4, 2), MLP(4, 2)
    assert not same(source, target)
    state = {prefix + name: tensor for name, tensor in source.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3} if wrapped else state, tmp_path / "w.pt")
    load_weights(target, tmp_path / "w.pt")
    assert same(source, target)


def test_load_weights_leaves_out_a_head_of_another_size(tmp_path: Path) -> None:
    torch.save(ResNet20(out=10).state_dict(), tmp_path / "w.pt")
    target, whole = ResNet20(out=5), ResNet20(out=10)
    before = target.linear.weight.clone()
    for network in (target, ResNet20(), whole):
        load_weights(network, tmp_path / "w.pt")
    assert torch.equal(target.linear.weight, before)
    assert torch.equal(target.conv1.weight, whole.conv1.weight)


def test_load_weights_without_batch_counters(tmp_path: Path) -> None:
    state = {k: v for k, v in ResNet20().state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "w.pt")
    load_weights(target := ResNet20(), tmp_path / "w.pt")
    assert torch.equal(target.conv1.weight, state["conv1.weight"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "Got a dict of something else instead."),
        (torch.zeros(2), "Got a Tensor of something else instead."),
        ({"last.weight": 3}, "Got a dict of something else instead."),
        (MLP(4, 2, widths=(5,)).state_dict(), "has hidden.0.weight of shape (128, 4). Got (5, 4) instead."),
        (
            Linear(4, 2).state_dict(),
            "must be those of MLP, which has hidden.0.weight of shape (128, 4). Got () instead.",
        ),
        (MLP(4, 2).state_dict() | {"extra": torch.zeros(1)}, "which has extra of shape (). Got (1,) instead."),
        (Trap(), "Got a file that cannot be read as such (UnpicklingError) instead."),
    ],
)
def test_wrong_files_are_refused_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, "w.pt")
    target = MLP(4, 2)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_weights(target, "w.pt")
    assert "'w.pt'" in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())
    assert not Path("sprung").exists()


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", bytes(range(256))])
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"w.pt' must be a weight file"):
        load_weights(MLP(4, 2), tmp_path / "w.pt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.pt", tmp_path):
        with pytest.raises(FileNotFoundError, match=re.escape(f"must be a file. Got {str(path)!r} instead.")):
            load_weights(MLP(4, 2), path)


def published(name: str) -> Path:
    """Return a file of the experiments' data, or skip the test."""
    folder = os.environ.get("ASKEW_DATA")
    if not folder:
        pytest.skip(f"ASKEW_DATA is not set, so there is no {name} to read")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"ASKEW_DATA has no {name}")
    return path


def test_published_resnet20_weights() -> None:
    path = published("resnet20/resnet20-12fca82f.th")
    classifier, encoder = ResNet20(out=10).eval(), ResNet20().eval()
    for network in (classifier, encoder):
        load_weights(network, path)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(classifier(x), classifier.linear(encoder(x)))


def test_published_resnet20_weights_know_cifar() -> None:
    classifier = ResNet20(out=10).eval()
    load_weights(classifier, published("resnet20/resnet20-12fca82f.th"))
    with published("cifar-10-batches-py/test_batch").open("rb") as file:
        batch = pickle.load(file, encoding="bytes")
    pixels = torch.from_numpy(batch[b"data"][:200]).reshape(-1, 3, 32, 32).float() / 255
    images = (pixels - torch.tensor(IMAGENET_MEAN)[:, None, None]) / torch.tensor(IMAGENET_STD)[:, None, None]
    with torch.no_grad():
        right = classifier(images).argmax(1) == torch.tensor(batch[b"labels"][:200])
    # 91.7 % on all 10,000 images; a wrong shortcut or normalisation costs far more than the margin.
    assert right.float().mean() > 0.87


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResNet20(out=0), "out of ResNet20 must be a positive integer. Got 0 instead."),
        (lambda: ResNet18(out=2.0), "out of ResNet18 must be a positive integer. Got 2.0 instead."),  # type: ignore[arg-type]
    ],
)
def test_sizes_are_checked(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("encoder", "x", "error", "message"),
    [
        (
            ResNet20(),
            torch.zeros(2, 32, 32, 3),
            ValueError,
            "x of ResNet20 must be of shape (n, 3, height, width). Got (2, 32, 32, 3) instead. Images with",
        ),
        (ResNet20(), torch.zeros(2, 3, 4, 4, dtype=torch.uint8), TypeError, "x of ResNet20 must be float32"),
    ],
)
def test_inputs_are_checked(encoder: nn.Module, x: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        encoder(x)
