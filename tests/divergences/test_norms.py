"""Norms and near pairs: values, guarantees, exact zeros, accuracy of all pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from askew.divergences.base import Divergence
from askew.divergences.norms import ConcaveActivation, DeepNorm, Euclidean, Mahalanobis, MaxReLU, WideNorm
from askew.divergences.numerics import recompute_small, safe_sqrt

DIM = 6


def make_all(dim: int = DIM) -> dict[str, Divergence]:
    torch.manual_seed(0)
    return {
        "euclidean": Euclidean(dim),
        "euclidean-root": Euclidean(dim, squared=False),
        "mahalanobis": Mahalanobis(dim),
        "mahalanobis-root": Mahalanobis(dim, rank=3, squared=False),
        "deepnorm": DeepNorm(dim, widths=(16, 12, 7), concave=3),
        "deepnorm-one": DeepNorm(dim, widths=(9,), concave=1),
        "widenorm": WideNorm(dim, components=5, width=4),
        "widenorm-symmetric": WideNorm(dim, components=5, width=4, symmetric=True),
        "widenorm-legacy": WideNorm(dim, components=5, width=4, legacy_bias=True),
    }


NAMES = list(make_all())
EXACT = [name for name in NAMES if name != "widenorm-legacy"]


def train(divergence: Divergence, steps: int = 25) -> None:
    parameters = list(divergence.parameters())
    if not parameters:
        return
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    for _ in range(steps):
        x, y = torch.randn(2, 64, DIM, dtype=divergence.dtype)
        loss = (divergence(x, y) - (x - y).exp().sum(-1).log1p()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def triangle_excess(divergence: Divergence) -> Tensor:
    """D(x, z) - D(x, y) - D(y, z) for points near and far; above zero is a violation."""
    torch.manual_seed(2)
    x, z = torch.randn(2, 4000, DIM, dtype=torch.float64)
    weight = torch.rand(4000, 1, dtype=torch.float64)
    y = weight * x + (1 - weight) * z + 0.1 * torch.randn(4000, 1, dtype=torch.float64) * torch.randn_like(x)
    return divergence(x, z) - divergence(x, y) - divergence(y, z)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_guarantees(name: str, trained: bool) -> None:
    divergence = make_all()[name].double()
    if trained:
        train(divergence)
    torch.manual_seed(3)
    x, y = torch.randn(2, 200, DIM, dtype=torch.float64)
    forth, back = divergence(x, y), divergence(y, x)
    assert (forth >= 0).all()
    if divergence.symmetric:
        torch.testing.assert_close(forth, back, rtol=1e-13, atol=0)
    else:
        assert ((forth - back).abs() > 1e-3 * forth).any()
    if divergence.triangle:
        assert triangle_excess(divergence).max() <= 1e-12
    elif name != "widenorm-legacy":
        assert triangle_excess(divergence).max() > 0.1
    assert bool((divergence(x, x) == 0).all()) == divergence.reflexive


def test_guarantees_as_documented() -> None:
    guarantees = {name: (d.symmetric, d.triangle, d.reflexive) for name, d in make_all().items()}
    assert guarantees == {
        "euclidean": (True, False, True),
        "euclidean-root": (True, True, True),
        "mahalanobis": (True, False, True),
        "mahalanobis-root": (True, True, True),
        "deepnorm": (False, True, True),
        "deepnorm-one": (False, True, True),
        "widenorm": (False, True, True),
        "widenorm-symmetric": (True, True, True),
        "widenorm-legacy": (False, False, False),
    }


def test_legacy_bias_breaks_what_it_does_not_guarantee() -> None:
    torch.manual_seed(0)
    for symmetric in (False, True):
        divergence = WideNorm(2, components=3, width=4, symmetric=symmetric, legacy_bias=True).double()
        h = torch.tensor([1.0, 0.5], dtype=torch.float64)
        zero = torch.zeros_like(h)
        with torch.no_grad():
            parts = torch.cat([h.relu(), (-h).relu()]) if not symmetric else h
            weight = divergence.raw_weight.abs() if not symmetric else divergence.raw_weight
            divergence.bias.copy_(-(weight @ parts))
        assert divergence(zero, zero) > 0.1
        assert divergence(h, zero) < 1e-12
        # From 2h to 0 is a way, from 2h to h to 0 is none.
        assert divergence(2 * h, zero) > divergence(2 * h, h) + divergence(h, zero) + 0.1
        assert (divergence(h, zero) - divergence(zero, h)).abs() > 0.1


@torch.no_grad()
def plain_deepnorm(model: DeepNorm, h: list[float]) -> float:
    """The formula with Python numbers, one unit at a time."""
    softplus, sigmoid = torch.nn.functional.softplus, torch.sigmoid
    vector = torch.tensor(h, dtype=torch.float64)
    maps, start = [], 0
    for width in model.widths:
        maps.append(model.inputs[start : start + width])
        start += width
    z = [float(row @ vector) for row in maps[0]]
    for layer, weight in enumerate(model.raw_weights):
        scale = softplus(model.activations[layer].raw_scale).tolist()
        pairs = range(0, len(z), 2)
        top = [max(z[k], z[k + 1]) for k in pairs]
        mean = [(max(z[k] * scale[k], 0) + max(z[k + 1] * scale[k + 1], 0)) / 2 for k in pairs]
        active = torch.tensor(top + mean, dtype=torch.float64)
        z = [float(w.abs() @ active + u @ vector) for w, u in zip(weight, maps[layer + 1], strict=True)]
    slopes = (2 * sigmoid(model.concave.raw_slopes)).tolist()
    offsets = [[0.0] * len(z), *softplus(model.concave.raw_offsets).tolist()]
    lines = list(zip(slopes, offsets, strict=True))
    outs = [min(m[k] * max(z[k], 0) + b[k] for m, b in lines) for k in range(len(z))]
    alpha = float(sigmoid(model.reduction.raw_alpha))
    return alpha * max(outs) + (1 - alpha) * sum(outs) / len(outs)


def test_deepnorm_is_the_formula() -> None:
    model = make_all()["deepnorm"].double()
    train(model)
    torch.manual_seed(4)
    x, y = 3 * torch.randn(2, 10, DIM, dtype=torch.float64)
    expected = [plain_deepnorm(model, (a - b).tolist()) for a, b in zip(x, y, strict=True)]
    torch.testing.assert_close(model(x, y).detach(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", ["widenorm", "widenorm-symmetric", "widenorm-legacy"])
def test_widenorm_is_the_formula(name: str) -> None:
    model = make_all()[name].double()
    train(model)
    torch.manual_seed(5)
    x, y = 3 * torch.randn(2, 8, DIM, dtype=torch.float64)
    slopes = 2 * torch.sigmoid(model.concave.raw_slopes)
    offsets = torch.cat([torch.zeros(1, 5, dtype=torch.float64), model.concave.raw_offsets.exp().log1p()])
    for a, b in zip(x, y, strict=True):
        h = a - b
        outs = []
        for k in range(5):
            rows = slice(4 * k, 4 * k + 4)
            if name == "widenorm-symmetric":
                image = model.raw_weight[rows] @ h
            else:
                image = model.raw_weight[rows].abs() @ torch.cat([h.clamp(min=0), (-h).clamp(min=0)])
            image = image if model.bias is None else image + model.bias[rows]
            outs.append((slopes[:, k] * (image**2).sum().sqrt() + offsets[:, k]).min())
        alpha = torch.sigmoid(model.reduction.raw_alpha)
        expected = alpha * max(outs) + (1 - alpha) * sum(outs) / 5
        torch.testing.assert_close(model(a, b), expected)


def test_euclidean_and_mahalanobis_are_the_formula() -> None:
    models = make_all()
    torch.manual_seed(6)
    x, y = torch.randn(2, 20, DIM)
    squares = ((x.double() - y.double()) ** 2).sum(1).float()
    torch.testing.assert_close(models["euclidean"](x, y), squares)
    torch.testing.assert_close(models["euclidean-root"](x, y), squares.sqrt())
    for name in ("mahalanobis", "mahalanobis-root"):
        images = (x - y) @ models[name].weight.T
        expected = (images**2).sum(1)
        torch.testing.assert_close(models[name](x, y), expected if name == "mahalanobis" else expected.sqrt())
    assert models["mahalanobis-root"].weight.shape == (3, DIM)


@pytest.mark.parametrize("name", NAMES)
def test_pairwise_is_forward(name: str) -> None:
    divergence = make_all()[name]
    train(divergence)
    torch.manual_seed(7)
    x, y = torch.randn(30, DIM) + 5, torch.randn(17, DIM) + 5
    y[:4] = x[:4]
    y[4] = x[4] + 1e-4
    matrix = divergence.pairwise(x, y)
    torch.testing.assert_close(matrix, divergence(x[:, None], y), rtol=1e-4, atol=0)
    assert matrix.shape == (30, 17)
    if divergence.reflexive:
        assert (matrix.diagonal()[:4] == 0).all()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-4])
def test_near_pairs_keep_their_accuracy_in_float32(name: str, gap: float) -> None:
    divergence = make_all()[name]
    torch.manual_seed(8)
    x = torch.randn(40, DIM)
    y = x + gap * torch.randn(40, DIM)
    forward, pairwise = divergence(x, y), divergence.pairwise(x, y)
    exact = divergence.double()(x.double(), y.double())
    torch.testing.assert_close(forward.double(), exact, rtol=2e-6, atol=0)
    torch.testing.assert_close(pairwise.diagonal().double(), exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", EXACT)
def test_gradients_are_finite_on_the_diagonal(name: str) -> None:
    divergence = make_all()[name]
    torch.manual_seed(9)
    x = torch.randn(5, DIM, requires_grad=True)
    divergence(x, x.detach()).sum().backward()
    assert torch.isfinite(x.grad).all()
    divergence.pairwise(x, x.detach()).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in divergence.parameters())


@pytest.mark.parametrize("name", ["euclidean", "euclidean-root", "mahalanobis", "mahalanobis-root"])
def test_gradients_of_all_pairs(name: str) -> None:
    divergence = make_all()[name].double()
    torch.manual_seed(10)
    x = torch.randn(7, DIM, dtype=torch.float64, requires_grad=True)
    y = torch.randn(5, DIM, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        y[0] = x[0]
        y[1] = x[1] + 1e-9
    weights = torch.randn(7, 5, dtype=torch.float64)
    inputs = [x, y, *divergence.parameters()]
    fast = torch.autograd.grad((weights * divergence.pairwise(x, y)).sum(), inputs)
    plain = torch.autograd.grad((weights * divergence(x[:, None], y)).sum(), inputs)
    for a, b in zip(fast, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_concave_activation_keeps_its_laws_for_any_parameters() -> None:
    torch.manual_seed(11)
    activation = ConcaveActivation(4, 5).double()
    with torch.no_grad():
        for parameter in activation.parameters():
            parameter.normal_(std=3)
    t = torch.linspace(0, 20, 400, dtype=torch.float64)[:, None].expand(-1, 4)
    values = activation(t)
    assert (values[0] == 0).all()
    steps = values.diff(dim=0)
    assert (steps >= 0).all()
    assert (steps.diff(dim=0) <= 1e-12).all()
    assert (steps.diff(dim=0) < -1e-3).any()


def test_max_relu_by_hand() -> None:
    activation = MaxReLU(4)
    with torch.no_grad():
        activation.raw_scale.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]).expm1().log())
    result = activation(torch.tensor([1.0, -5.0, 2.0, 3.0]))
    torch.testing.assert_close(result, torch.tensor([1.0, 3.0, 0.5, (2 * 3 + 3 * 4) / 2]))


def test_initial_scale_is_sane() -> None:
    torch.manual_seed(12)
    for divergence in (DeepNorm(20), WideNorm(20), WideNorm(20, symmetric=True)):
        x, y = torch.randn(2, 500, 20)
        ratio = divergence(x, y).mean() / (x - y).norm(dim=1).mean()
        assert 0.1 < ratio < 3


def test_empty_sets_and_broadcasting() -> None:
    for divergence in make_all().values():
        assert divergence.pairwise(torch.zeros(0, DIM), torch.ones(3, DIM)).shape == (0, 3)
        assert divergence.pairwise(torch.ones(3, DIM), torch.zeros(0, DIM)).shape == (3, 0)
        assert divergence(torch.zeros(DIM), torch.ones(4, 1, 2, DIM)).shape == (4, 1, 2)


def test_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"each of widths of DeepNorm but the last must be an even number\. Got 7"):
        DeepNorm(3, widths=(7, 8))
    with pytest.raises(ValueError, match="rank of Mahalanobis must be a positive integer"):
        Mahalanobis(3, rank=0)


# ------------------------------------------------------------------ near pairs


def test_recompute_small_recomputes_near_pairs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("askew.divergences.numerics.BLOCK_ELEMENTS", 64)
    monkeypatch.setattr("askew.divergences.numerics.CHUNK_PAIRS", 5)
    torch.manual_seed(13)
    n, m = 41, 13
    exact = torch.rand(n, m) + 1
    near = torch.rand(n, m) < 0.1
    near[3:20] = False
    near[25] = True
    exact[near] *= 1e-9
    exact[25, 0] = 0
    raw = torch.where(near, 1e-7 * torch.randn(n, m), exact)
    asked = torch.zeros(n, m)

    def recompute(i: Tensor, j: Tensor) -> Tensor:
        assert 0 < len(i) <= 5
        asked[i, j] += 1
        return exact[i, j]

    result = recompute_small(raw, torch.ones(n), torch.ones(m), recompute)
    assert result is raw
    assert torch.equal(result, exact)
    assert torch.equal(asked, near.float())


def test_recompute_small_respects_the_scale_of_rows_and_columns() -> None:
    asked = []

    def recompute(i: Tensor, j: Tensor) -> Tensor:
        asked.extend(zip(i.tolist(), j.tolist(), strict=True))
        return torch.full((len(i),), -1.0)

    result = recompute_small(torch.ones(3, 2), torch.tensor([1.0, 2e3, 1.0]), torch.tensor([1.0, 2e3]), recompute)
    assert sorted(asked) == [(0, 1), (1, 0), (1, 1), (2, 1)]
    assert result.tolist() == [[1, 0], [0, 0], [1, 0]]


def test_recompute_small_lets_gradients_through() -> None:
    x = torch.tensor([[1e-9, 2.0]], requires_grad=True)
    result = recompute_small(x * 3, torch.ones(1), torch.ones(2), lambda i, j: torch.full((len(i),), 0.5))
    assert result.tolist() == [[0.5, 6.0]]
    result.sum().backward()
    assert x.grad.tolist() == [[3.0, 3.0]]


def test_all_pairs_of_a_cloud_far_from_zero() -> None:
    torch.manual_seed(14)
    x = torch.randn(300, 3) * 0.01 + 100
    exact = torch.cdist(x.double(), x.double()).square()
    matrix = Euclidean(3).pairwise(x, x).double()
    torch.testing.assert_close(matrix, exact, rtol=1e-3, atol=1e-12)
    assert (matrix.diagonal() == 0).all()


def test_safe_sqrt() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    root = safe_sqrt(x)
    root.sum().backward()
    assert root.tolist() == [0.0, 2.0]
    assert x.grad.tolist() == [0.0, 0.25]
