"""Exported graphs give the numbers of PyTorch, for any number of rows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from askew_paper.encoders import ResNet20
from members import CATALOGUE, DIM, into_domain, train
from torch import Tensor, nn

from askew.divergences import Bregman, Divergence, Dual, Embedded, Mahalanobis, NeuralBregman, make
from askew.encoders import MLP, Identity, Linear, SmallCNN
from askew.io import export, graph
from askew.potentials import NegativeEntropy

onnxruntime = pytest.importorskip("onnxruntime")

# One for each kind of operations; all names take minutes.
FORWARD = ("mahalanobis-norm", "iqe", "deep-div-affine")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def learned(name: str) -> Divergence:
    divergence = make(name, DIM)
    if CATALOGUE[name].learned:
        train(divergence)
    return divergence


def points(divergence: Divergence, n: int) -> Tensor:
    return into_domain(divergence.domain, torch.randn(n, DIM))


def run(path: Path, *arguments: Tensor) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(path)
    inputs = {each.name: argument.numpy() for each, argument in zip(session.get_inputs(), arguments, strict=True)}
    result: np.ndarray[Any, Any] = session.run(None, inputs)[0]
    return result


def axes(path: Path) -> list[list[object]]:
    session = onnxruntime.InferenceSession(path)
    return [[each.name, *each.shape] for each in (*session.get_inputs(), *session.get_outputs())]


# ---------------------------------------------------------------------- onnx


@pytest.mark.parametrize("name", FORWARD)
def test_onnx_forward(tmp_path: Path, name: str) -> None:
    divergence = learned(name)
    export(divergence, tmp_path / "D.onnx")
    assert axes(tmp_path / "D.onnx") == [["x", "n", DIM], ["y", "n", DIM], ["divergence", "n"]]
    for n in (1, 9):
        x, y = points(divergence, n), points(divergence, n)
        with torch.no_grad():
            np.testing.assert_allclose(run(tmp_path / "D.onnx", x, y), divergence(x, y), rtol=1e-5)


def test_onnx_pairwise_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    divergence = make("euclidean", DIM)
    with caplog.at_level("WARNING"):
        export(divergence, tmp_path / "D.onnx", what="pairwise")
    assert not caplog.records
    assert capsys.readouterr() == ("", "")
    assert axes(tmp_path / "D.onnx") == [["x", "n", DIM], ["y", "m", DIM], ["divergence", "n", "m"]]
    for n, m in ((1, 3), (9, 1)):
        x, y = points(divergence, n), points(divergence, m)
        with torch.no_grad():
            np.testing.assert_allclose(run(tmp_path / "D.onnx", x, y), divergence.pairwise(x, y), rtol=1e-5)


def test_onnx_of_a_network_behind_an_encoder(tmp_path: Path) -> None:
    model = Embedded(MLP(3, 2, widths=(4,)), NeuralBregman.paper(2, widths=(3,)))
    export(model, tmp_path / "D.onnx")
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    with torch.no_grad():
        np.testing.assert_allclose(run(tmp_path / "D.onnx", x, y), model(x, y), rtol=1e-5)


@pytest.mark.parametrize("what", ["forward", "pairwise"])
def test_onnx_of_two_sides_with_different_features(tmp_path: Path, what: str) -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    for second, shape in ((nn.Linear(4, 2), (4,)), (flat, (2, 3))):
        model = make("drift", 2, encoder=nn.Linear(3, 2), second=second)
        examples = None if second is not flat else (torch.zeros(2, 3), torch.zeros(2, *shape))
        export(model, tmp_path / "D.onnx", what=what, example=examples)
        x, y = torch.randn(5, 3), torch.randn(5 if what == "forward" else 9, *shape)
        with torch.no_grad():
            np.testing.assert_allclose(run(tmp_path / "D.onnx", x, y), getattr(model, what)(x, y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("encoder", "shape"),
    [(SmallCNN(1, 8, out=3), (1, 8, 8)), (ResNet20(out=3), (3, 8, 8))],
    ids=["SmallCNN", "ResNet20"],
)
def test_onnx_of_an_encoder(tmp_path: Path, encoder: nn.Module, shape: tuple[int, ...]) -> None:
    # Running averages that are not those of the first moment show that it is they that are used.
    encoder.train()(torch.randn(16, *shape))
    export(encoder, tmp_path / "f.onnx", example=torch.zeros(2, *shape) if isinstance(encoder, ResNet20) else None)
    assert encoder.training
    assert axes(tmp_path / "f.onnx") == [["x", "n", *shape], ["points", "n", 3]]
    x = torch.randn(3, *shape)
    with torch.no_grad():
        expected = encoder.eval()(x).numpy()
    np.testing.assert_allclose(run(tmp_path / "f.onnx", x), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_onnx_without_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"Export to ONNX needs the package 'onnxscript'.*pip install .\.\[onnx\]"):
        export(Mahalanobis(2), tmp_path / "D.onnx")


def test_onnx_lacks_an_operation(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.bessel_j0(x)

    with pytest.raises(ValueError, match=r"model of export must be one that ONNX can express. Got Odd .*bessel"):
        export(Odd(), tmp_path / "f.onnx", example=torch.ones(2, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_maximum(dim: int) -> None:
    x = torch.randint(0, 5, (4, 5, 7)).float()
    values, places = graph._running_maximum(x, dim)
    expected = x.cummax(dim)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)


# ---------------------------------------------------------------------- torch.export


@pytest.mark.parametrize("what", ["forward", "pairwise"])
@pytest.mark.parametrize("name", ["mahalanobis", "kl-simplex"])
def test_pt2(tmp_path: Path, name: str, what: str) -> None:
    divergence = learned(name).double()
    export(divergence, tmp_path / "D.pt2", what=what)
    program = torch.export.load(tmp_path / "D.pt2").module()
    for n in (1, 6):
        x = into_domain(divergence.domain, torch.randn(n, DIM).double())
        y = into_domain(divergence.domain, torch.randn(n if what == "forward" else 4, DIM).double())
        with torch.no_grad():
            torch.testing.assert_close(program(x, y), getattr(divergence, what)(x, y))


@pytest.mark.parametrize(
    ("encoder", "example"),
    [
        (Linear(3, 2), None),
        (Identity(2), None),
        (nn.Sequential(nn.Linear(3, 2), nn.Tanh()), None),
        (nn.Flatten(), torch.zeros(1, 1, 2)),
    ],
    ids=["Linear", "Identity", "Sequential", "Flatten"],
)
def test_pt2_of_encoders(tmp_path: Path, encoder: nn.Module, example: Tensor | None) -> None:
    model = Embedded(encoder, Mahalanobis(2))
    for label, module, what in (("whole", encoder, None), ("part", model, "encoder")):
        export(module, tmp_path / f"{label}.pt2", what=what, example=example)
        x = torch.randn(
            4, *(example.shape[1:] if example is not None else (2 if isinstance(encoder, Identity) else 3,))
        )
        program = torch.export.load(tmp_path / f"{label}.pt2").module()
        torch.testing.assert_close(program(x), encoder(x))


def test_examples_lie_in_the_domain() -> None:
    for divergence in (*(make(name, 3) for name in CATALOGUE), Dual(Bregman(NegativeEntropy(3))), make("kl", 1)):
        rows = graph._points(divergence, None, 5)
        divergence.domain.check(rows, "x", "this test")


def test_the_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(program: object, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / "D.pt2").write_text("old")
    monkeypatch.setattr(torch.export, "save", half)
    with pytest.raises(OSError, match="No space left"):
        export(Mahalanobis(2), tmp_path / "D.pt2")
    assert (tmp_path / "D.pt2").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["D.pt2"]


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (3, {}, TypeError, "model of export must be a divergence, a fitted learner or an encoder. Got int"),
        (Mahalanobis(2), {"path": "D.pt"}, ValueError, "path of export must be a path that ends in .pt2 or .onnx"),
        (Mahalanobis(2), {"what": "encoder"}, ValueError, "what of Mahalanobis must be one of 'forward', 'pairwise'"),
        (Linear(2, 2), {"what": "pairwise"}, ValueError, "what of Linear must be one of 'encoder'. Got 'pairwise'"),
        (ResNet20(), {}, ValueError, "example of export for ResNet20 must be given, as the shape of the points"),
        (
            Mahalanobis(2),
            {"example": torch.ones(2)},
            ValueError,
            "example of export must be a tensor of points, (n, ...)",
        ),
        (Mahalanobis(2), {"example": [1.0]}, ValueError, "example of export must be a tensor of points"),
        (Mahalanobis(2), {"example": (torch.ones(2, 2),)}, ValueError, "example of export must be a tensor of points"),
        (Mahalanobis(2), {"example": torch.ones(2, 3)}, ValueError, "x of Mahalanobis must be of shape (..., 2)"),
        (
            Dual(NeuralBregman(2, widths=(3,))),
            {"example": torch.zeros(2, 2)},
            ValueError,
            "model of export must be one that torch.export can express. Got Dual (",
        ),
    ],
)
def test_what_cannot_be_exported(
    tmp_path: Path, model: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = tmp_path / options.pop("path", "D.pt2")
    with pytest.raises(error, match=re.escape(message)):
        export(model, path, **options)
    assert not list(tmp_path.iterdir())
