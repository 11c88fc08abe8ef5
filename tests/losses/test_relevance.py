"""The listwise loss of graded relevance."""

from __future__ import annotations

import pytest
import torch

import askew
from askew.losses import GradedSoftmax


def test_is_the_cross_entropy_of_grades() -> None:
    torch.manual_seed(0)
    matrix, grades = torch.rand(5, 7, requires_grad=True), torch.randint(0, 3, (5, 7)).float()
    grades[0], grades[1] = 0, 1
    loss = GradedSoftmax(scale=2.0)
    value = loss(matrix, grades)
    expected = torch.stack(
        [
            torch.nn.functional.cross_entropy(-2 * matrix[row], grades[row] / grades[row].sum())
            for row in range(5)
            if grades[row].sum() > 0
        ]
    ).mean()
    torch.testing.assert_close(value, expected)
    value.backward()
    assert matrix.grad is not None
    assert (matrix.grad[0] == 0).all()  # a query without a relevant item has no part in it
    assert loss.log_scale.grad is not None


def test_without_a_relevant_item_or_with_infinite_ones() -> None:
    matrix = torch.tensor([[1.0, torch.inf]], requires_grad=True)
    assert GradedSoftmax()(matrix, torch.zeros(1, 2)) == 0
    value = GradedSoftmax()(matrix, torch.tensor([[1.0, 0.0]]))
    assert value == 0
    assert GradedSoftmax()(matrix.double(), torch.tensor([[1, 0]])).dtype == torch.float64


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"grades of GradedSoftmax must be zero or above. Got -1"):
        GradedSoftmax()(torch.ones(1, 2), torch.tensor([[1.0, -1.0]]))
    with pytest.raises(ValueError, match="like its matrix"):
        GradedSoftmax()(torch.ones(1, 2), torch.ones(2, 2))
    with pytest.raises(ValueError, match="scale of GradedSoftmax"):
        GradedSoftmax(scale=0)


@pytest.mark.parametrize("name", ["nbd", "drift", "drift-root"])
def test_trains_in_a_plain_loop(name: str) -> None:
    torch.manual_seed(0)
    queries, items = torch.randn(40, 3), torch.randn(90, 3)
    gaps = (queries[:, None] - items).square()[..., 0]
    grades = (gaps <= gaps.kthvalue(5, 1, keepdim=True).values).float()
    model, loss = askew.make(name, 3), GradedSoftmax()
    start = float(loss.of(model, queries, items, grades).detach())
    history = askew.fit(model, [(queries, items, grades)], loss, steps=80, learning_rate=1e-2, seed=0, progress=False)
    assert history["loss"][-1] < 0.8 * start
