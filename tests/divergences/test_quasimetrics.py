"""IQE and MRN: values, guarantees, exact zeros, accuracy."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from askew.divergences.base import Divergence
from askew.divergences.quasimetrics import IQE, MRN

DIM = 5


def make_all() -> dict[str, Divergence]:
    torch.manual_seed(0)
    return {
        "iqe": IQE(DIM, components=4, size=8),
        "iqe-single": IQE(DIM, components=3, size=1),
        "mrn": MRN(DIM, width=7, hidden=(16,)),
        "mrn-deep": MRN(DIM, width=7, hidden=(16, 12)),
        "mrn-linear": MRN(DIM, width=7, hidden=()),
    }


NAMES = list(make_all())


def train(divergence: Divergence, steps: int = 25) -> None:
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(divergence.parameters(), lr=0.03)
    for _ in range(steps):
        x, y = torch.randn(2, 64, DIM, dtype=divergence.dtype)
        loss = (divergence(x, y) - (x - y).exp().sum(-1).log1p()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_guarantees(name: str, trained: bool) -> None:
    divergence = make_all()[name].double()
    if trained:
        train(divergence)
    assert (divergence.symmetric, divergence.triangle, divergence.reflexive) == (False, True, True)
    torch.manual_seed(2)
    x, z = torch.randn(2, 3000, DIM, dtype=torch.float64)
    weight = torch.rand(3000, 1, dtype=torch.float64)
    y = weight * x + (1 - weight) * z + 0.05 * torch.randn_like(x)
    forth = divergence(x, z)
    assert (forth >= 0).all()
    assert (forth - divergence(x, y) - divergence(y, z)).max() <= 1e-12
    assert ((forth - divergence(z, x)).abs() > 1e-2 * forth).any()
    assert (divergence(x, x) == 0).all()
    assert (divergence(x[0], x[:1]) == 0).all()


def union_length(intervals: list[tuple[float, float]]) -> float:
    """Length of a union of intervals, by looking at every gap between two ends."""
    ends = sorted(end for interval in intervals for end in interval)
    total = 0.0
    for low, high in itertools.pairwise(ends):
        middle = (low + high) / 2
        if any(left <= middle <= right for left, right in intervals):
            total += high - low
    return total


@pytest.mark.parametrize("name", ["iqe", "iqe-single"])
def test_iqe_is_a_union_of_intervals(name: str) -> None:
    model = make_all()[name].double()
    train(model)
    torch.manual_seed(3)
    x, y = 2 * torch.randn(2, 30, DIM, dtype=torch.float64)
    u = (x @ model.weight.T).view(30, model.components, model.size).tolist()
    v = (y @ model.weight.T).view(30, model.components, model.size).tolist()
    alpha = torch.sigmoid(model.reduction.raw_alpha).item()
    expected = []
    for row in range(30):
        parts = [
            union_length([(a, max(a, b)) for a, b in zip(left, right, strict=True)])
            for left, right in zip(u[row], v[row], strict=True)
        ]
        expected.append(alpha * max(parts) + (1 - alpha) * sum(parts) / len(parts))
    torch.testing.assert_close(model(x, y), torch.tensor(expected, dtype=torch.float64))


def test_iqe_by_hand() -> None:
    model = IQE(3, components=1, size=3)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
    # [0, 2], [1, 3] and the empty one at 5 cover 3; back, only [4, 5] is left.
    assert model(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([2.0, 3.0, 4.0])).item() == 3
    assert model(torch.tensor([2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0, 5.0])).item() == 1


@pytest.mark.parametrize("name", ["mrn", "mrn-deep", "mrn-linear"])
def test_mrn_is_the_formula(name: str) -> None:
    model = make_all()[name].double()
    train(model)
    torch.manual_seed(4)
    x, y = torch.randn(2, 50, DIM, dtype=torch.float64)

    def network(part: torch.nn.Module, points: Tensor) -> Tensor:
        for layer in part.inner:
            points = (points @ layer.weight.T + layer.bias).clamp(min=0)
        return points @ part.outer.weight.T

    symmetric = network(model.symmetric_part, x) - network(model.symmetric_part, y)
    asymmetric = network(model.asymmetric_part, x) - network(model.asymmetric_part, y)
    expected = (symmetric**2).sum(1).sqrt() + asymmetric.clamp(min=0).max(1).values
    torch.testing.assert_close(model(x, y), expected)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_pairwise_is_forward(name: str, blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if blocks:
        monkeypatch.setattr("askew.divergences.base.BLOCK_ELEMENTS", 1000)
    divergence = make_all()[name]
    train(divergence)
    torch.manual_seed(5)
    x, y = torch.randn(30, DIM), torch.randn(17, DIM)
    y[:4] = x[:4]
    y[4] = x[4] + 1e-5
    matrix, plain = divergence.pairwise(x, y), divergence(x[:, None], y)
    torch.testing.assert_close(matrix, plain, rtol=1e-3, atol=1e-6)
    assert (matrix.diagonal()[:4] == 0).all()
    torch.testing.assert_close(matrix[4, 4], plain[4, 4], rtol=1e-5, atol=0)
    parameters = list(divergence.parameters())
    weights = torch.randn(30, 17)
    fast = torch.autograd.grad((matrix * weights).sum(), parameters)
    slow = torch.autograd.grad((plain * weights).sum(), parameters)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(divergence.pairwise(x, y), matrix.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-4])
def test_near_pairs_keep_their_accuracy_in_float32(name: str, gap: float) -> None:
    divergence = make_all()[name]
    torch.manual_seed(6)
    x = torch.randn(100, DIM)
    y = x + gap * torch.randn(100, DIM)
    values, matrix = divergence(x, y).double(), divergence.pairwise(x, y).diagonal().double()
    exact = divergence.double()(x.double(), y.double())
    # Where intervals overlap (IQE) or a unit switches (MRN), positions matter and not only differences.
    relative = (values - exact).abs() / exact.clamp_min(1e-30)
    assert relative.median() < 5e-7
    assert relative.max() < 1e-6 / min(gap, 1)
    torch.testing.assert_close(matrix, exact, rtol=1e-2 if gap < 1e-3 else 1e-3, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    divergence = make_all()[name].double()
    torch.manual_seed(7)
    x, y = torch.randn(2, 4, DIM, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(divergence, (x, y))
    gradients = torch.autograd.grad(divergence(x, x.detach().clone()).sum(), [x, *divergence.parameters()])
    assert all(torch.isfinite(g).all() for g in gradients)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="size of IQE must be a positive integer"):
        IQE(3, size=0)
    with pytest.raises(ValueError, match="each of hidden of MRN must be a positive integer"):
        MRN(3, hidden=(4, -1))
    for divergence in make_all().values():
        assert divergence.pairwise(torch.zeros(0, DIM), torch.ones(3, DIM)).shape == (0, 3)
