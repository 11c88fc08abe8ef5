"""The listwise loss against its formula, written out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from askew.losses import Listwise


def written_out(
    matrix: Tensor, labels: Tensor, temperature: float = 0.02, contrast: float = 0.3, contrast_temperature: float = 1.0
) -> Tensor:
    n = len(labels)
    precisions, logarithms = [], []
    for a in range(n):
        positives = [p for p in range(n) if labels[p] == labels[a] and p != a]
        others = [j for j in range(n) if j != a]
        if not positives or len(positives) == len(others):
            continue
        terms = []
        for p in positives:
            near = {j: torch.sigmoid((matrix[a, p] - matrix[a, j]) / temperature) for j in others if j != p}
            terms.append((1 + sum(near[j] for j in positives if j != p)) / (1 + sum(near.values())))  # type: ignore[arg-type]
        precisions += terms
        softmax = (-matrix[a, others] / contrast_temperature).log_softmax(0)
        logarithms.append(torch.stack([softmax[others.index(p)] for p in positives]).mean())
    if not precisions:
        return 0 * matrix.sum()
    return 1 - torch.stack(precisions).mean() - contrast * torch.stack(logarithms).mean()


def value_and_gradient(function: object, matrix: Tensor, *more: object) -> tuple[Tensor, Tensor]:
    leaf = matrix.detach().clone().requires_grad_()
    value = function(leaf, *more)  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def batch(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return 0.2 * torch.rand(n, n, generator=torch.Generator().manual_seed(n), dtype=dtype)


LAYOUTS = {
    "two classes": torch.arange(12) % 2,
    "threes": torch.arange(12) // 3,
    "unequal": torch.tensor([0, 3, 1, 1, 0, 0, 2, 1, 0, 7, 2, 0]),
    "one class": torch.zeros(12),
    "singletons": torch.arange(12),
    "all but one": torch.arange(12).clamp_max(1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("settings", [{}, {"contrast": 0.0}, {"temperature": 0.3, "contrast_temperature": 0.1}])
@pytest.mark.parametrize("block", [1, 200, 1 << 18])
def test_equals_the_formula(
    layout: str, settings: dict[str, float], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("askew.losses.listwise.BLOCK_ELEMENTS", block)
    matrix, labels = batch(12), LAYOUTS[layout]
    found = value_and_gradient(Listwise(**settings), matrix, labels)
    wanted = value_and_gradient(
        written_out, matrix, labels, *({"temperature": 0.02, "contrast": 0.3} | settings).values()
    )
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_function_transforms_take_the_plain_road(layout: str) -> None:
    matrix, labels = batch(12), LAYOUTS[layout]
    wanted = value_and_gradient(Listwise(), matrix, labels)
    found = torch.func.grad_and_value(Listwise())(matrix, labels)
    torch.testing.assert_close(found[::-1], wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("max_pairs", [None, 20, 5])
@pytest.mark.filterwarnings("ignore:Input #0 requires gradient:UserWarning")
def test_first_derivatives(max_pairs: int | None) -> None:
    matrix, labels = batch(6).requires_grad_(), torch.tensor([0, 1, 0, 1, 0, 2])

    def loss(m: Tensor) -> Tensor:
        torch.manual_seed(0)  # the same pairs each time
        return Listwise(temperature=0.1, max_pairs=max_pairs)(m, labels)

    assert torch.autograd.gradcheck(loss, matrix)


def test_second_derivatives_are_those_of_function_transforms() -> None:
    matrix, labels = batch(6).requires_grad_(), torch.tensor([0, 1, 0, 1, 0, 2])
    loss = Listwise(temperature=0.1)
    step = torch.rand(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.func.grad(lambda m: (torch.func.grad(loss)(m, labels) * step).sum())(matrix.detach())
    ends = [value_and_gradient(loss, matrix + size * step, labels)[1] for size in (1e-6, -1e-6)]
    torch.testing.assert_close(found, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-6)
    with pytest.raises(RuntimeError, match=r"^Listwise has no graph of its gradient\. Call torch\.func\.grad"):
        torch.autograd.grad(loss(matrix, labels), matrix, create_graph=True)


def test_single_precision() -> None:
    matrix, labels = batch(128), torch.arange(128) % 2
    wanted = value_and_gradient(Listwise(), matrix, labels)
    value, gradient = value_and_gradient(Listwise(), matrix.float(), labels)
    torch.testing.assert_close(value.double(), wanted[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient.double(), wanted[1], rtol=1e-3, atol=1e-6 * wanted[1].abs().max().item())
    rough = Listwise()(matrix.bfloat16(), labels)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.double(), wanted[0], rtol=0.05, atol=0)


def test_perfect_rankings_cost_nothing_and_the_anchor_is_the_row() -> None:
    labels = torch.arange(20) % 4
    matrix = (labels[:, None] != labels).double() + 0.01 * torch.rand(
        20, 20, generator=torch.Generator().manual_seed(0)
    )
    assert Listwise(contrast=0)(matrix, labels) < 1e-6
    # Each row ranks perfectly but on its own level, so that columns do not.
    matrix += 3 * torch.arange(20)[:, None]
    assert Listwise(contrast=0)(matrix, labels) < 1e-6
    assert Listwise(contrast=0)(matrix.T, labels) > 0.3


@pytest.mark.parametrize("max_pairs", [7, 24, 50, 100])
def test_a_sample_of_pairs_has_the_loss_as_its_mean(max_pairs: int) -> None:
    matrix, labels = batch(24), torch.arange(24) % 3  # 24 anchors, 168 pairs
    torch.manual_seed(0)
    sampled = Listwise(contrast=0, max_pairs=max_pairs)
    pairs = [sampled(matrix, labels) for _ in range(400)]
    spread = torch.stack(pairs).std()
    assert spread > 0
    mean = torch.stack(pairs).mean()
    assert (mean - Listwise(contrast=0)(matrix, labels)).abs() < 4 * spread / 20
    torch.manual_seed(0)
    assert sampled(matrix, labels) == pairs[0]  # by the global generator


@pytest.mark.parametrize("layout", ["two classes", "unequal", "all but one"])
def test_a_sample_of_positives_has_the_loss_as_its_mean(layout: str) -> None:
    matrix, labels = batch(12), LAYOUTS[layout]
    torch.manual_seed(0)
    few = torch.stack([Listwise(positives=3)(matrix, labels) for _ in range(400)])
    value, gradient = value_and_gradient(written_out, matrix, labels)
    assert (few.mean() - value).abs() < 4 * few.std() / 20
    torch.manual_seed(0)
    assert Listwise(positives=3)(matrix, labels) == few[0]  # by the global generator
    found = value_and_gradient(Listwise(positives=50_000), matrix, labels)
    torch.testing.assert_close(found, (value, gradient), rtol=0.05, atol=0.05 * float(gradient.abs().max()))


def test_a_sample_of_positives_has_the_gradient_of_its_value() -> None:
    for labels in LAYOUTS.values():

        def loss(matrix: Tensor, labels: Tensor = labels) -> Tensor:
            torch.manual_seed(1)
            result: Tensor = Listwise(0.3, positives=3)(matrix, labels)
            return result

        assert torch.autograd.gradcheck(loss, batch(12).requires_grad_())
    assert loss(batch(12), LAYOUTS["one class"]) == loss(batch(12), LAYOUTS["singletons"]) == 0
    assert repr(Listwise(positives=3)).endswith("positives=3)")
    with pytest.raises(ValueError, match="positives of Listwise must be a positive integer"):
        Listwise(positives=0)


def test_a_bound_above_the_number_of_pairs_changes_nothing() -> None:
    matrix, labels = batch(24), torch.arange(24) % 3
    state = torch.get_rng_state()
    assert Listwise(max_pairs=168)(matrix, labels) == Listwise()(matrix, labels)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("place", [(0, 1), (0, 3), (5, 5)])
def test_nan_comes_out(place: tuple[int, int]) -> None:
    matrix = batch(12)
    matrix[place] = math.nan
    for labels in LAYOUTS.values():
        value, gradient = value_and_gradient(Listwise(), matrix, labels)
        assert value.isnan()
        assert gradient.isnan().any()
        assert value_and_gradient(Listwise(positives=2), matrix, labels)[0].isnan()


def test_far_points_do_not_overflow() -> None:
    matrix, labels = 1e6 * batch(12, torch.float32), LAYOUTS["two classes"]
    value, gradient = value_and_gradient(Listwise(), matrix, labels)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_sizes_without_triplets() -> None:
    for n in (0, 1, 2):
        matrix = batch(n).requires_grad_()
        value = Listwise()(matrix, torch.arange(n))
        value.backward()
        assert value == 0
        assert matrix.grad is not None
        assert not matrix.grad.any()


@pytest.fixture
def _compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_compiler")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_in_one_graph() -> None:
    matrix, labels = batch(12), LAYOUTS["unequal"]
    compiled = torch.compile(Listwise(), fullgraph=True, backend="aot_eager")
    found, wanted = (value_and_gradient(one, matrix, labels) for one in (compiled, Listwise()))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
