"""``pairwise_order``: the order of all pairs, as search has it."""

from __future__ import annotations

import pytest
import torch

import askew
from askew.divergences import Drift, Embedded, Reversed, Scaled, Sqrt


def models() -> dict[str, askew.Divergence]:
    torch.manual_seed(0)
    drift = Drift(askew.NeuralBregman(3), drift=torch.nn.Linear(3, 3))
    wind = 30 * torch.eye(3)
    torch.nn.init.zeros_(drift.drift.bias)
    drift.drift.weight.data.copy_(wind)
    other = torch.nn.Linear(3, 3)
    return {
        "nbd": askew.make("nbd", 3),
        "iqe": askew.make("iqe", 3),
        "bregman-gs": askew.make("bregman-gs", 3),
        "drift": drift,
        "root of drift": Sqrt(Scaled(drift, 2.0)),
        "reversed drift": Reversed(drift),
        "two sides": Embedded(torch.nn.Linear(3, 3), drift, other),
        "user's own": _Own(3),
    }


class _Own(askew.Divergence):
    """A divergence that orders pairs otherwise than by its value."""

    def compute(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.compute_order(x, y).relu()

    def compute_order(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x - y).sum(-1)

    def from_order(self, order: torch.Tensor) -> torch.Tensor:
        return order.relu()


@pytest.mark.parametrize("name", list(models()))
def test_is_order_of_all_pairs(name: str) -> None:
    model = models()[name].requires_grad_(False)
    x, y = torch.randn(6, 3), torch.randn(5, 3)
    matrix = model.pairwise_order(x, y)
    pairs = x.repeat_interleave(5, 0), y.repeat(6, 1)
    ranks = model.order(*pairs).view(6, 5)
    torch.testing.assert_close(model.from_order(matrix), model.pairwise(x, y))
    torch.testing.assert_close(matrix, ranks, rtol=1e-3, atol=1e-4)
    if "drift" in name or name in ("two sides", "user's own"):
        assert (matrix < 0).any()  # where D is 0
    assert model.pairwise_order(x[:0], y).shape == (0, 5)
