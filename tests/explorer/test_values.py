"""The page computes what PyTorch computes: every potential, term, wrapper and encoder, at random points."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import into_domain
from torch import Tensor, nn

import askew
from askew import potentials
from askew.divergences import (
    Bregman,
    Divergence,
    Drift,
    Embedded,
    Euclidean,
    GeneralizedSymmetrized,
    Mahalanobis,
    MaxAffine,
    Reversed,
    Scaled,
    Sqrt,
    Symmetrized,
)
from askew.encoders import MLP, Identity, Linear, Standardize
from askew.explorer import write_explorer
from askew.explorer.description import describe

DIM = 3
TOLERANCE = 1e-4


def icnn(**settings: Any) -> Bregman:
    """Return a network whose scales are not 0 and 1."""
    divergence = Bregman(potentials.ICNN(DIM, (16, 12), **settings))
    x, y = (3 + 2 * torch.randn(2, 50, DIM)).unbind()
    divergence.calibrate(x, y)
    return divergence


def drift(root: bool) -> Drift:
    """Return a divergence whose drift is strong enough for zeros in one direction."""
    divergence = Drift(askew.NeuralBregman(DIM, widths=(16, 12)), root)
    x, y = (3 + 2 * torch.randn(2, 50, DIM)).unbind()
    divergence.calibrate(x, y)
    nn.init.normal_(divergence.drift[2].weight)
    return divergence


def embedded(*layers: nn.Module, out: int = DIM) -> Embedded:
    return Embedded(nn.Sequential(*layers), askew.NeuralBregman(out, widths=(16, 12)))


def normed() -> nn.Module:
    layer = nn.BatchNorm1d(DIM)
    layer(5 + 3 * torch.randn(40, DIM))
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


def standardize() -> Standardize:
    return Standardize(DIM).fit(1 + 4 * torch.randn(40, DIM, dtype=torch.float64))


MATRIX = torch.tensor([[1.0, 0.5, 0.0], [0.0, 2.0, 0.3], [0.4, 0.0, 0.7]])
MODELS: dict[str, Callable[[], Divergence]] = {
    # Networks: each activation, each way to keep weights non-negative, each term.
    "nbd": lambda: askew.NeuralBregman(DIM),
    "drift": lambda: drift(root=False),
    "drift-root": lambda: drift(root=True),
    "drift-embedded": lambda: Embedded(nn.Linear(DIM, DIM), drift(root=True)),
    "two-sided": lambda: Embedded(nn.Linear(DIM, DIM), askew.NeuralBregman(DIM), nn.Linear(DIM, DIM)),
    "two-sided-drift": lambda: Embedded(
        nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()), drift(root=True), nn.Linear(DIM, DIM)
    ),
    "nbd-calibrated": icnn,
    "nbd-paper": lambda: askew.NeuralBregman.paper(DIM),
    "three layers": lambda: askew.NeuralBregman(DIM, widths=(8, 7, 5)),
    "one layer": lambda: askew.NeuralBregman(DIM, widths=(9,)),
    "relu": lambda: icnn(activation="relu"),
    "softplus": lambda: icnn(activation="softplus"),
    "clamp": lambda: icnn(nonnegative="clamp", init="linear"),
    "square": lambda: icnn(nonnegative="square"),
    "exp": lambda: icnn(nonnegative="exp"),
    "no atoms": lambda: icnn(separable=0),
    "low rank": lambda: icnn(quadratic=1),
    "no terms": lambda: icnn(quadratic=0, separable=0, calibrated=False),
    # Closed forms.
    "quadratic": lambda: Bregman(potentials.Quadratic(DIM)),
    "quadratic-matrix": lambda: Bregman(potentials.Quadratic(DIM, MATRIX)),
    "kl": lambda: askew.make("kl", DIM),
    "kl-simplex": lambda: askew.make("kl-simplex", DIM),
    "itakura-saito": lambda: askew.make("itakura-saito", DIM),
    "logistic": lambda: askew.make("logistic", DIM),
    "hyperbolic": lambda: askew.make("hyperbolic", DIM),
    "log-sum-exp": lambda: askew.make("log-sum-exp", DIM),
    "exponential": lambda: askew.make("exponential", DIM),
    "power": lambda: askew.make("power", DIM),
    "power-3": lambda: Bregman(potentials.PowerNorm(DIM, 3.0)),
    # Compositions.
    "sum": lambda: Bregman(potentials.NegativeEntropy(DIM) + 0.5 * potentials.Burg(DIM) + potentials.Quadratic(DIM)),
    "affine": lambda: Bregman(
        potentials.AffinePrecomposed(potentials.Exponential(3), MATRIX, torch.tensor([0.1, 0, 1]))
    ),
    "affine-wide": lambda: Bregman(potentials.AffinePrecomposed(potentials.LogSumExp(2), MATRIX[:2])),
    # Norms and wrappers.
    "euclidean": lambda: Euclidean(DIM),
    "euclidean-norm": lambda: Euclidean(DIM, squared=False),
    "pieces": lambda: MaxAffine(DIM, pieces=7),
    "mahalanobis": lambda: Mahalanobis(DIM, rank=2),
    "mahalanobis-norm": lambda: Mahalanobis(DIM, squared=False),
    "reversed": lambda: Reversed(askew.NeuralBregman(DIM)),
    "scaled": lambda: Scaled(askew.NeuralBregman(DIM), 3.0, learnable=True),
    "sqrt": lambda: Sqrt(askew.NeuralBregman(DIM)),
    "symmetrized": lambda: Symmetrized(askew.make("kl", DIM)),
    "generalized": lambda: GeneralizedSymmetrized(icnn()),
    "generalized-squared": lambda: GeneralizedSymmetrized(askew.make("kl", DIM), root=False),
    "all at once": lambda: Scaled(Reversed(Sqrt(Symmetrized(embedded(MLP(DIM, 4, (8,)), out=4)))), 0.3),
    "reversed-scaled": lambda: Reversed(Scaled(Reversed(Reversed(icnn())), 2.0)),
    # Encoders.
    "standardize": lambda: embedded(standardize()),
    "mlp-relu": lambda: embedded(standardize(), MLP(DIM, 5, (16, 9)), out=5),
    "mlp-silu": lambda: embedded(standardize(), MLP(DIM, 5, (16, 9), activation="silu"), out=5),
    "linear": lambda: embedded(Linear(DIM, 4), out=4),
    "identity": lambda: embedded(Identity(DIM), nn.Identity(), nn.Dropout(0.5)).eval(),
    "layers": lambda: embedded(
        nn.Linear(DIM, 6, bias=False),
        nn.Tanh(),
        nn.Linear(6, 6),
        nn.Sigmoid(),
        nn.Linear(6, 6),
        nn.SiLU(),
        nn.ReLU(),
        out=6,
    ),
    "batch-norm": lambda: embedded(normed()).eval(),
    "encoder behind encoder": lambda: Embedded(standardize(), embedded(MLP(DIM, 2), out=2)),
}


@pytest.fixture(scope="module")
def page(explorer: Any, file: Path) -> Any:
    explorer.show(file)
    return explorer


def points_of(model: Divergence) -> tuple[Tensor, Tensor]:
    z = torch.randn(40, DIM, dtype=torch.float64)
    if not isinstance(model, Embedded):
        z = into_domain(model.domain, z)
    return z[:20], z[20:]


def evaluate(page: Any, x: Tensor, y: Tensor, model: object) -> dict[str, Any]:
    script = "return askewExplorer.evaluate(...arguments)"
    return {key: np.array(value) for key, value in page.run(script, x.tolist(), y.tolist(), model).items()}


def embedded_by(model: Divergence, x: Tensor) -> tuple[Tensor, Divergence]:
    """Return the embeddings of points, and the divergence between embeddings without what is done to its values."""
    while not isinstance(model, (Bregman, Euclidean, Mahalanobis, MaxAffine, GeneralizedSymmetrized)):
        if isinstance(model, Embedded):
            x = model.encode(x)
        model = model.divergence
    return x, model


@pytest.mark.parametrize("name", MODELS)
def test_page_computes_what_pytorch_does(name: str, page: Any) -> None:
    torch.manual_seed(sum(map(ord, name)))
    model = MODELS[name]().double().requires_grad_(False).eval()
    torch.set_default_dtype(torch.float64)  # so that scaling does not round to 32 bits
    try:
        x, y = points_of(model)
        found = evaluate(page, x, y, describe(model).to_json())
        forth, back = model(x, y), model(y, x)
        embeddings, inner = embedded_by(model, x)
        three = model.pairwise(x[:3], x[:3])
        if model.reflexive:
            three.fill_diagonal_(0)
    finally:
        torch.set_default_dtype(torch.float32)
    rounding = 0.0
    if name == "pieces":  # 0 wherever two points have the same best piece
        assert 0 < (forth > 0).double().mean() < 1
        rounding = 1e-12
    elif "drift" in name:  # 0 where the drift outweighs the rest; the page has weights of 32 bits
        assert 0 < (forth > 0).double().mean() < 1
        rounding = 1e-5 * forth.max().item()
    else:
        assert forth.min() > 0
    np.testing.assert_allclose(found["forth"], forth, rtol=TOLERANCE, atol=rounding)
    np.testing.assert_allclose(found["back"], back, rtol=TOLERANCE, atol=rounding)
    plane = page.run("return askewExplorer.onPlane(...arguments)", x[:3].tolist(), describe(model).to_json())
    np.testing.assert_allclose(plane, three, rtol=TOLERANCE, atol=max(rounding, 1e-7 * three.max().item()))
    if isinstance(inner, Bregman) and not name.startswith(("drift", "two")):  # gradients: of the other side, with drift
        value, gradient = inner.potential(embeddings), inner.potential.gradient(embeddings)
        np.testing.assert_allclose(
            found["embeddings"], embeddings, rtol=TOLERANCE, atol=TOLERANCE * embeddings.abs().max().item()
        )
        np.testing.assert_allclose(found["values"], value, rtol=TOLERANCE, atol=TOLERANCE * value.abs().max().item())
        size = TOLERANCE * gradient.abs().max().item()
        np.testing.assert_allclose(found["gradients"], gradient, rtol=TOLERANCE, atol=size)


def test_near_points_far_from_zero_keep_their_digits(page: Any) -> None:
    torch.manual_seed(0)
    model = Embedded(Standardize(2).fit(1e6 + torch.randn(40, 2, dtype=torch.float64)), askew.NeuralBregman(2)).double()
    x = 1e6 + torch.randn(20, 2, dtype=torch.float64)
    y = x + 1e-3 * torch.randn(20, 2, dtype=torch.float64)
    found = evaluate(page, x, y, describe(model).to_json())
    standardized = ((z - model.encoder.mean) / model.encoder.std for z in (x, y))
    expected = model.divergence(*standardized).detach()
    np.testing.assert_allclose(found["forth"], expected, rtol=TOLERANCE)


def test_a_point_and_itself(page: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(20, DIM, dtype=torch.float64)
    found = evaluate(page, x, x, describe(askew.NeuralBregman(DIM)).to_json())
    assert found["forth"].min() >= 0
    assert found["forth"].max() < 1e-12


@pytest.mark.parametrize("name", ["kl", "itakura-saito", "logistic"])
def test_no_divergence_outside_of_the_domain(name: str, page: Any) -> None:
    x, y = torch.tensor([[-0.5, 0.5, 0.5]]), torch.full((1, 3), 0.5)
    found = evaluate(page, x, y, describe(askew.make(name, DIM)).to_json())
    assert found["forth"].tolist() == found["back"].tolist() == [None]


def test_page_has_its_own_model_and_the_two_distances(page: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = askew.NeuralBregman(4)
    data = torch.randn(60, 4, dtype=torch.float64) @ torch.randn(4, 4, dtype=torch.float64)
    page.show(write_explorer(model, tmp_path / "page.html", data))
    x, y = data[:20], data[20:40]
    with torch.no_grad():
        expected = model.double()(x, y)
    np.testing.assert_allclose(evaluate(page, x, y, "model")["forth"], expected, rtol=TOLERANCE)
    h = (x - y).numpy()
    np.testing.assert_allclose(evaluate(page, x, y, "euclidean")["forth"], (h**2).sum(1), rtol=TOLERANCE)
    inverse = np.linalg.inv(np.cov(data.numpy(), rowvar=False, bias=True))
    expected = np.einsum("ni,ij,nj->n", h, inverse, h)
    np.testing.assert_allclose(evaluate(page, x, y, "mahalanobis")["forth"], expected, rtol=TOLERANCE)
