"""Maxima of pieces: values, ties, both ways of computing Deep-div, guarantees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from askew.divergences.max_affine import DeepDiv, MaxAffine, MaxOfPieces

DIM = 4


def make_all() -> dict[str, MaxOfPieces]:
    torch.manual_seed(0)
    return {"max-affine": MaxAffine(DIM, pieces=11), "deep-div": DeepDiv(DIM, pieces=9, hidden=6)}


NAMES = list(make_all())


def train(divergence: MaxOfPieces, steps: int = 25) -> None:
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(divergence.parameters(), lr=0.03)
    for _ in range(steps):
        x, y = torch.randn(2, 64, DIM, dtype=divergence.dtype)
        loss = (divergence(x, y) - (x - y).square().sum(-1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def networks(model: DeepDiv) -> list[nn.Sequential]:
    """The pieces as K separate modules."""
    result = []
    for k in range(model.pieces):
        inner, outer = nn.Linear(DIM, model.hidden), nn.Linear(model.hidden, 1)
        inner.weight.data, inner.bias.data = model.inner_weight[k].detach(), model.inner_bias[k].detach()
        outer.weight.data, outer.bias.data = model.outer_weight[None, k].detach(), model.outer_bias[None, k].detach()
        result.append(nn.Sequential(inner, nn.ReLU(), outer))
    return result


def plain_pieces(model: MaxOfPieces, points: Tensor) -> Tensor:
    if isinstance(model, MaxAffine):
        return torch.stack([points @ a + b for a, b in zip(model.slopes, model.intercepts, strict=True)], -1)
    return torch.cat([network(points) for network in networks(model)], -1)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_guarantees(name: str, trained: bool) -> None:
    divergence = make_all()[name].double()
    if trained:
        train(divergence)
    torch.manual_seed(2)
    x, y = 2 * torch.randn(2, 500, DIM, dtype=torch.float64)
    at_x, at_y = plain_pieces(divergence, x), plain_pieces(divergence, y)
    expected = torch.stack([row.max() - row[other.argmax()] for row, other in zip(at_x, at_y, strict=True)])
    forth = divergence(x, y)
    torch.testing.assert_close(forth, expected)
    with torch.no_grad():
        torch.testing.assert_close(divergence(x, y), expected)
    assert (forth >= 0).all()
    assert (divergence(x, x) == 0).all()
    assert (divergence.pairwise(x, x).diagonal() == 0).all()
    # Neither guarantee is made, and neither holds.
    assert not divergence.symmetric
    assert not divergence.triangle
    assert (forth - divergence(y, x)).abs().max() > 0.05
    middle = (x + y) / 2
    assert (forth - divergence(x, middle) - divergence(middle, y)).max() > 0.02


@pytest.mark.parametrize("name", NAMES)
def test_pairwise_is_forward(name: str) -> None:
    divergence = make_all()[name]
    torch.manual_seed(3)
    x, y = torch.randn(30, DIM), torch.randn(17, DIM)
    matrix = divergence.pairwise(x, y)
    assert matrix.shape == (30, 17)
    rows = divergence(x.repeat_interleave(17, 0), y.repeat(30, 1)).view(30, 17)
    torch.testing.assert_close(matrix, rows)
    torch.testing.assert_close(matrix, divergence(x[:, None], y))
    weights = torch.randn(30, 17)
    parameters = list(divergence.parameters())
    results = [torch.autograd.grad((weights * m).sum(), parameters) for m in (matrix, rows)]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_deep_div_has_the_gradient_of_a_loop_over_modules() -> None:
    model = make_all()["deep-div"].double()
    torch.manual_seed(4)
    x = torch.randn(200, DIM, dtype=torch.float64, requires_grad=True)
    y = torch.randn(200, DIM, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(200, dtype=torch.float64)
    loop = networks(model)
    at_x, at_y = (torch.cat([network(points) for network in loop], 1) for points in (x, y))
    plain = at_x.amax(1) - at_x.gather(1, at_y.argmax(1, keepdim=True))[:, 0]
    (plain - targets).square().mean().backward()
    x_gradient, x.grad = x.grad, None
    (model(x, y) - targets).square().mean().backward()
    torch.testing.assert_close(x.grad, x_gradient)
    assert y.grad is None
    for k, network in enumerate(loop):
        torch.testing.assert_close(model.inner_weight.grad[k], network[0].weight.grad)
        torch.testing.assert_close(model.inner_bias.grad[k], network[0].bias.grad)
        torch.testing.assert_close(model.outer_weight.grad[k], network[2].weight.grad[0])
        torch.testing.assert_close(model.outer_bias.grad[k], network[2].bias.grad[0])


def test_deep_div_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_all()["deep-div"]
    torch.manual_seed(5)
    x, y = torch.randn(2, 3, 37, DIM)
    whole = model(x, y)
    monkeypatch.setattr("askew.divergences.max_affine.BLOCK_ELEMENTS", 54 * 10)
    with torch.no_grad():
        blocks = model(x, y)
    torch.testing.assert_close(blocks, whole.detach())
    assert blocks.shape == (3, 37)


def test_ties_choose_the_first_piece() -> None:
    slopes = torch.tensor([[0.0], [1.0], [1.0], [-1.0]])
    model = MaxAffine.from_pieces(slopes, torch.zeros(4))
    zero, one = torch.zeros(1), torch.ones(1)
    # All pieces are maximal at 0: the first one counts, whose value at 1 is 0.
    assert model(one, zero).item() == 1
    model(one, zero).backward()
    assert model.slopes.grad.flatten().tolist() == [-1.0, 1.0, 0.0, 0.0]
    for _ in range(3):
        assert torch.equal(model.pairwise(one[None], zero[None]), torch.ones(1, 1))


def test_from_pieces_copies_and_keeps_the_dtype() -> None:
    slopes, intercepts = torch.tensor([[1.0], [-1.0]], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    model = MaxAffine.from_pieces(slopes, intercepts)
    slopes.zero_()
    assert model.dtype == torch.float64
    assert (model.dim, model.pieces) == (1, 2)
    assert model(slopes[:1] + 3, slopes[:1] - 2).item() == 6


def test_bad_pieces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"slopes of MaxAffine.from_pieces must be of shape \(pieces, dim\)"):
        MaxAffine.from_pieces(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"intercepts of MaxAffine.from_pieces must be of shape \(3,\), one for each"):
        MaxAffine.from_pieces(torch.zeros(3, 2), torch.zeros(2))
    with pytest.raises(TypeError, match=r"intercepts of MaxAffine.from_pieces must be torch.float32 like"):
        MaxAffine.from_pieces(torch.zeros(3, 2), torch.zeros(3).double())
    with pytest.raises(ValueError, match="pieces of DeepDiv must be a positive integer"):
        DeepDiv(3, pieces=0)


def test_empty_sets() -> None:
    for divergence in make_all().values():
        with torch.no_grad():
            assert divergence.pairwise(torch.zeros(0, DIM), torch.ones(3, DIM)).shape == (0, 3)
        assert divergence.pairwise(torch.ones(3, DIM), torch.zeros(0, DIM)).shape == (3, 0)
        assert divergence(torch.zeros(0, DIM), torch.zeros(0, DIM)).shape == (0,)
