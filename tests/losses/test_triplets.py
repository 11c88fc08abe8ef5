"""Triplet losses against lists of all triplets, and against pytorch-metric-learning."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import BatchHardMiner
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor

from askew.losses import AllTriplets, HardTriplets, SemiHardTriplets, TripletMargin
from askew.losses import triplets as module
from askew.losses.counting import count_by_packed_sort, count_by_sorting

MARGINS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 1e-20, -1e-20, -0.2, -0.5, 1e9)


class GivenMatrix(BaseDistance):
    """Hand a matrix through, so that pytorch-metric-learning sees the same numbers."""

    def __init__(self) -> None:
        super().__init__(normalize_embeddings=False)

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return query_emb


def triplet_terms(matrix: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Return all terms (n, n, n), zero where there is no triplet."""
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool)
    triplets = positive[:, :, None] & ~same[:, None, :]
    violation = (matrix[:, :, None] - matrix[:, None, :]) + margin
    return torch.where(triplets, violation.relu(), 0.0)


def dense(matrix: Tensor, labels: Tensor, margin: float) -> Tensor:
    terms = triplet_terms(matrix, labels, margin)
    return terms.sum() / (terms > 0).sum().clamp_min(1)


def value_and_gradient(function: object, matrix: Tensor, *more: object) -> tuple[Tensor, Tensor]:
    leaf = matrix.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    value = function(leaf, *more)  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def compared(matrix: Tensor, labels: Tensor, margin: float, rtol: float = 1e-12) -> None:
    found = value_and_gradient(AllTriplets(margin), matrix, labels)
    wanted = value_and_gradient(lambda m: dense(m.double(), labels, margin), matrix)
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=rtol, atol=rtol)
    torch.testing.assert_close(found[1], wanted[1], rtol=rtol, atol=rtol)


# Binary fractions make exact ties, decimal ones make ties that rounding decides.
steps = st.sampled_from([1.0, 0.25, 0.1, 1 / 3])


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    n = draw(st.integers(1, 12))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    step, levels = draw(steps), draw(st.sampled_from([2, 5, 50]))
    lowest = draw(st.sampled_from([0, 0, -2]))
    matrix = generator.integers(lowest, levels, (n, n)) * step * draw(st.sampled_from([1.0, 1.0, 1e-3, 1e4]))
    return matrix, generator.integers(0, draw(st.sampled_from([1, 2, 4, 30])), n)


# ---------------------------------------------------------------------- all triplets: counts


@settings(max_examples=100, deadline=None)
@given(batches(), st.sampled_from(MARGINS), st.sampled_from(["float32", "float64"]))
def test_counts_are_those_of_the_listed_triplets(
    batch: tuple[np.ndarray, np.ndarray], margin: float, dtype: str
) -> None:
    matrix, labels = batch[0].astype(dtype), batch[1]
    active = (triplet_terms(torch.from_numpy(matrix), torch.from_numpy(labels), margin) > 0).numpy()
    wanted = active.sum(2) - active.sum(1)
    found = count_by_sorting(torch.from_numpy(matrix), torch.from_numpy(labels), margin)
    np.testing.assert_array_equal(found.numpy(), wanted)
    if dtype == "float32":
        np.testing.assert_array_equal(count_by_packed_sort(matrix, labels, margin), wanted)


@pytest.mark.parametrize("classes", [3, 20, 400])
def test_counts_of_many_blocks_of_rows(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 150
    for rows, way in ((7, "SORTED"), (11, "BLOCK")):
        monkeypatch.setattr(f"askew.losses.counting.{way}_ELEMENTS", rows * n)
    generator = np.random.default_rng(n)
    matrix = (generator.integers(0, 9, (n, n)) / 8).astype(np.float32)
    labels = generator.integers(0, classes, n)
    active = (triplet_terms(torch.from_numpy(matrix), torch.from_numpy(labels), 0.25) > 0).numpy()
    wanted = active.sum(2) - active.sum(1)
    np.testing.assert_array_equal(count_by_packed_sort(matrix, labels, 0.25), wanted)
    found = count_by_sorting(torch.from_numpy(matrix), torch.from_numpy(labels), 0.25)
    np.testing.assert_array_equal(found.numpy(), wanted)


# ---------------------------------------------------------------------- all triplets: value and gradient


@settings(max_examples=100, deadline=None)
@given(batches(), st.sampled_from(MARGINS))
def test_all_triplets_equal_the_dense_formula(batch: tuple[np.ndarray, np.ndarray], margin: float) -> None:
    compared(torch.from_numpy(batch[0]), torch.from_numpy(batch[1]), margin)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("layout", ["one class", "singletons", "two classes", "fours", "tens", "one large"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_triplets_of_each_layout(n: int, layout: str, dtype: torch.dtype) -> None:
    index = torch.arange(n)
    labels = {
        "one class": 0 * index,
        "singletons": index,
        "two classes": index % 2,
        "fours": index // 4,
        "tens": index // 10,
        "one large": index.clamp_min(n // 2),
    }[layout]
    generator = torch.Generator().manual_seed(n)
    labels = labels[torch.randperm(n, generator=generator)]
    matrix = (torch.randint(0, 40, (n, n), generator=generator) / 32).to(dtype)
    compared(matrix, labels, 0.25, rtol=1e-6 if dtype == torch.float32 else 1e-12)
    if layout in ("one class", "singletons"):
        value, gradient = value_and_gradient(AllTriplets(0.25), matrix, labels)
        assert value == 0
        assert not gradient.any()


@pytest.mark.parametrize("step", [0.1, 0.25])
@pytest.mark.parametrize("margin", [0.0, 0.1, 0.2, 0.05, 1.0])
def test_all_triplets_equal_pytorch_metric_learning(step: float, margin: float) -> None:
    n = 60
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randint(0, 30, (n, n), generator=generator).float() * step
    labels = torch.randint(0, n // 5, (n,), generator=generator)
    theirs = TripletMarginLoss(margin=margin, distance=GivenMatrix())
    found = value_and_gradient(AllTriplets(margin), matrix, labels)
    wanted = value_and_gradient(theirs, matrix, labels)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-7)
    turned = value_and_gradient(AllTriplets(margin), matrix.T, labels)
    assert not torch.isclose(turned[0], wanted[0], rtol=1e-4)  # the anchor is the row


@pytest.mark.parametrize("way", ["_of", "_by_torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "classes"), [(30, 3), (30, 10), (4, 1)])
def test_anchors_that_processes_divide_among_them(n: int, classes: int, dtype: torch.dtype, way: str) -> None:
    generator = torch.Generator().manual_seed(n)
    matrix = torch.rand(n, n, generator=generator, dtype=dtype)
    labels = torch.randint(classes, (n,), generator=generator)
    loss = AllTriplets(0.3)
    value, gradient = value_and_gradient(loss, matrix, labels)
    sizes = [n // 3, 0, n - n // 3]
    shares = []
    for start, size in zip((0, n // 3, n // 3), sizes, strict=True):
        own = matrix[start : start + size].roll(-start, 1).requires_grad_()
        shares.append((start, own, labels.roll(-start)))
    sums: list[Tensor] = []

    def noted(term: Tensor) -> Tensor:
        sums.append(term.detach())
        return term

    for _, own, names in shares:
        getattr(loss, way)(own, names, noted)
    for start, own, names in shares:
        found = getattr(loss, way)(own, names, lambda term: term - term.detach() + sum(sums))
        torch.testing.assert_close(found, value)
        (slope,) = torch.autograd.grad(found, own)
        torch.testing.assert_close(slope.roll(start, 1), gradient[start : start + len(own)])


def test_large_values_with_a_small_margin_keep_their_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = 1e4 + torch.rand(64, 64, generator=generator)
    compared(matrix, torch.arange(64) % 4, 0.2, rtol=1e-6)


def test_a_transposed_matrix_is_read_by_rows() -> None:
    matrix = torch.rand(40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for labels in (torch.arange(40) // 5, torch.arange(40) % 2):
        compared(matrix.T, labels, 0.2)
        wide = torch.stack([matrix, matrix.T], -1)[:, :, 1]  # no order of rows or columns is dense
        for loss in (AllTriplets(), HardTriplets(), SemiHardTriplets()):
            torch.testing.assert_close(loss(wide, labels), loss(matrix.T.contiguous(), labels))


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.float32, torch.float64, torch.bfloat16, torch.bool])
def test_labels_of_any_kind(kind: torch.dtype) -> None:
    matrix = torch.rand(40, 40, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 2
    for loss in (AllTriplets(), HardTriplets(), SemiHardTriplets()):
        torch.testing.assert_close(loss(matrix, labels.to(kind)), loss(matrix, labels))


def test_labels_need_not_be_whole_numbers() -> None:
    matrix = torch.rand(40, 40, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 3
    torch.testing.assert_close(AllTriplets()(matrix, 0.3 + 0.1 * labels), AllTriplets()(matrix, labels))


@pytest.mark.parametrize("loss", [AllTriplets(), HardTriplets(), SemiHardTriplets()])
def test_half_precision(loss: AllTriplets | HardTriplets | SemiHardTriplets) -> None:
    matrix = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = torch.arange(40) % 3
    value, gradient = value_and_gradient(loss, matrix, labels)
    assert value.dtype == gradient.dtype == torch.bfloat16
    torch.testing.assert_close(value.float(), loss(matrix.float(), labels), rtol=2e-2, atol=0)


def test_all_triplets_pass_gradcheck_and_a_second_derivative_is_zero() -> None:
    matrix = torch.rand(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    labels = torch.arange(8) % 3
    assert torch.autograd.gradcheck(lambda m: AllTriplets()(m, labels), matrix)
    # Of f(m) = loss(m^2), the second derivative has only the one of the square.
    (first,) = torch.autograd.grad(AllTriplets()(matrix.square(), labels), matrix, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), matrix)
    (slope,) = torch.autograd.grad(AllTriplets()(squared := matrix.detach().square().requires_grad_(), labels), squared)
    torch.testing.assert_close(second, 2 * slope)


@pytest.mark.parametrize("loss", [AllTriplets(0.3), HardTriplets(0.3), SemiHardTriplets(0.3)])
def test_other_roads_lead_to_the_same(loss: AllTriplets | HardTriplets | SemiHardTriplets) -> None:
    matrix = torch.rand(20, 20, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 3
    wanted = value_and_gradient(loss, matrix, labels)
    torch.testing.assert_close(torch.func.grad(loss)(matrix, labels), wanted[1])
    meta = loss(matrix.to("meta"), labels.to("meta"))
    assert meta.shape == ()
    assert meta.device.type == "meta"


@pytest.fixture
def _compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_compiler")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("loss", [AllTriplets(0.3), HardTriplets(0.3), SemiHardTriplets(0.3)])
def test_compiled_in_one_graph(loss: AllTriplets | HardTriplets | SemiHardTriplets) -> None:
    matrix = torch.rand(20, 20, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 3
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, wanted = (value_and_gradient(one, matrix, labels) for one in (compiled, loss))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("loss", [AllTriplets(), HardTriplets(), SemiHardTriplets()])
@pytest.mark.parametrize("place", [(0, 1), (0, 3), (5, 5)])
def test_nan_comes_out(loss: AllTriplets | HardTriplets | SemiHardTriplets, place: tuple[int, int]) -> None:
    n = 20
    matrix = torch.rand(n, n, generator=torch.Generator().manual_seed(0))
    matrix[place] = math.nan
    for labels in (torch.arange(n) % 3, torch.arange(n) // 4, torch.arange(n)):
        value, gradient = value_and_gradient(loss, matrix, labels)
        assert value.isnan()
        assert gradient.isnan().all() or not isinstance(loss, AllTriplets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_infinitely_far_negative_takes_no_part(dtype: torch.dtype) -> None:
    n = 20
    matrix = torch.rand(n, n, generator=torch.Generator().manual_seed(0), dtype=dtype)
    labels = torch.arange(n) % 3
    matrix[0, 1] = 50.0
    near = {loss: value_and_gradient(loss, matrix, labels) for loss in (AllTriplets(), SemiHardTriplets())}
    matrix[0, 1] = math.inf
    for loss, wanted in near.items():
        torch.testing.assert_close(value_and_gradient(loss, matrix, labels), wanted)
    matrix[0, 3] = math.inf
    assert AllTriplets()(matrix, labels) == math.inf


def test_a_batch_without_points() -> None:
    for loss in (AllTriplets(), HardTriplets(), SemiHardTriplets()):
        assert loss(torch.zeros(0, 0), torch.zeros(0)) == 0


@pytest.mark.parametrize("classes", [2, 60])
def test_a_batch_of_many_blocks(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix, labels = torch.rand(600, 600, generator=generator), torch.arange(600) % classes
    total, number = 0.0, 0
    for a, row in enumerate(matrix.double()):
        same = labels == labels[a]
        negatives = row[~same]
        same[a] = False
        terms = (row[same, None] - negatives + 0.2).relu()
        total, number = total + terms.sum().item(), number + int((terms > 0).sum())
    value, gradient = value_and_gradient(AllTriplets(0.2), matrix, labels)
    assert value.item() == pytest.approx(total / number, rel=1e-6)
    assert gradient.clamp_min(0).sum().item() == pytest.approx(1, rel=1e-4)
    assert gradient.sum(1).abs().max() < 1e-6  # no row gains by adding a constant


# ---------------------------------------------------------------------- all triplets: some anchors at a time


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("inspected", [True, False])
def test_shares_of_the_anchors_add_up(dtype: torch.dtype, inspected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one has no anchors at all; each way of counting is met."""
    monkeypatch.setattr("askew.checks.inspectable", lambda *tensors: inspected)
    n = 20
    generator = torch.Generator().manual_seed(n)
    matrix = torch.rand(n, n, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(9, (n,), generator=generator)
    value, gradient = value_and_gradient(AllTriplets(0.1), matrix, labels)
    ends = [(0, 8), (8, 8), (8, n)]
    terms: list[Tensor] = []

    def note(term: Tensor) -> Tensor:
        terms.append(term.detach())
        return term

    def total(term: Tensor) -> Tensor:
        # As messages between processes do it: the sum of all, and the gradient of the own term.
        return term + (sum(terms) - term).detach()

    for add in (note, total):
        for first, last in ends:
            rows, names = matrix[first:last].roll(-first, 1), labels.roll(-first, 0)
            found, slope = value_and_gradient(AllTriplets(0.1).of_rows, rows, names, add)
            if add is total:
                torch.testing.assert_close(found, value)
                torch.testing.assert_close(slope.roll(first, 1), gradient[first:last])
        assert len(terms) == 3


def test_rows_with_wrong_labels() -> None:
    text = r"^labels of AllTriplets must be a tensor of shape \(4,\), one for each row of the matrix\. Got \(4, 1\)"
    with pytest.raises(ValueError, match=text):
        AllTriplets().of_rows(torch.ones(2, 4), torch.zeros(4, 1), lambda term: term)
    with pytest.raises(
        TypeError, match=r"^matrix of AllTriplets must be float32, float64 or bfloat16\. Got torch.int64"
    ):
        AllTriplets().of_rows(torch.ones(2, 4, dtype=torch.int64), torch.zeros(4), lambda term: term)


class Twice(AllTriplets):
    def forward(self, matrix: Tensor, labels: Tensor) -> Tensor:
        return 2 * super().forward(matrix, labels)


class Doubling:
    def forward(self, matrix: Tensor, labels: Tensor) -> Tensor:
        return 2 * super().forward(matrix, labels)  # type: ignore[misc, no-any-return]


class TwiceByMixture(Doubling, AllTriplets):
    pass


class TwiceByCall(AllTriplets):
    def __call__(self, matrix: Tensor, labels: Tensor) -> Tensor:
        return 2 * self.forward(matrix, labels)


class TwiceInBoth(Twice):
    def of_rows(self, rows: Tensor, labels: Tensor, add: module.Add) -> Tensor:
        return 2 * super().of_rows(rows, labels, add)


class Named(AllTriplets):
    """Changes nothing of what is computed."""


def test_anchors_are_divided_only_if_that_gives_what_a_call_gives() -> None:
    assert [kind().divisible for kind in (AllTriplets, Named, TwiceInBoth)] == [True] * 3
    assert [kind().divisible for kind in (Twice, TwiceByMixture, TwiceByCall)] == [False] * 3
    hooked, replaced = AllTriplets(), AllTriplets()
    hooked.register_forward_hook(lambda *_: None)
    replaced.forward = Twice().forward  # type: ignore[method-assign]
    assert not hooked.divisible
    assert not replaced.divisible


# ---------------------------------------------------------------------- hard and semi-hard


def hard(matrix: Tensor, labels: Tensor, margin: float) -> Tensor:
    terms = []
    for a in range(len(labels)):
        positives = [matrix[a, p] for p in range(len(labels)) if labels[p] == labels[a] and p != a]
        negatives = [matrix[a, n] for n in range(len(labels)) if labels[n] != labels[a]]
        if positives and negatives:
            terms.append((max(positives) - min(negatives) + margin).relu())
    return torch.stack(terms).mean() if terms else 0 * matrix.sum()


def semi_hard(matrix: Tensor, labels: Tensor, margin: float) -> Tensor:
    terms = []
    for a in range(len(labels)):
        negatives = [matrix[a, n] for n in range(len(labels)) if labels[n] != labels[a]]
        for p in range(len(labels)):
            if labels[p] == labels[a] and p != a and negatives:
                farther = [n for n in negatives if n > matrix[a, p]]
                chosen = min(farther) if farther else max(negatives)
                terms.append((matrix[a, p] - chosen + margin).relu())
    return torch.stack(terms).mean() if terms else 0 * matrix.sum()


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from([0.0, 0.2, 1.0, -0.2]))
def test_hard_and_semi_hard_equal_loops(batch: tuple[np.ndarray, np.ndarray], margin: float) -> None:
    matrix, labels = torch.from_numpy(batch[0]), torch.from_numpy(batch[1])
    torch.testing.assert_close(HardTriplets(margin)(matrix, labels), hard(matrix, labels, margin))
    torch.testing.assert_close(SemiHardTriplets(margin)(matrix, labels), semi_hard(matrix, labels, margin))


@pytest.mark.parametrize(("loss", "loop"), [(HardTriplets(0.3), hard), (SemiHardTriplets(0.3), semi_hard)])
def test_gradients_of_hard_and_semi_hard(loss: HardTriplets, loop: object) -> None:
    matrix = torch.rand(12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for labels in (torch.arange(12) % 3, torch.arange(12) // 5, torch.arange(12), torch.zeros(12)):
        torch.testing.assert_close(
            value_and_gradient(loss, matrix, labels),
            value_and_gradient(loop, matrix, labels, 0.3),
        )


def test_hard_triplets_are_those_of_the_miner() -> None:
    matrix = torch.rand(30, 30, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(30) % 4
    miner = BatchHardMiner(distance=GivenMatrix())
    theirs = TripletMarginLoss(margin=0.2, distance=GivenMatrix(), reducer=MeanReducer())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = theirs(matrix, labels, miner(matrix, labels))
    torch.testing.assert_close(HardTriplets(0.2)(matrix, labels), wanted)
    assert not torch.isclose(HardTriplets(0.2)(matrix.T, labels), wanted, rtol=1e-3)


def test_a_positive_without_a_farther_negative_takes_the_farthest() -> None:
    matrix = torch.tensor([[0.0, 5.0, 1.0, 2.0], *([0.0] * 4 for _ in range(3))])
    labels = torch.tensor([0, 0, 1, 2])
    (gradient,) = torch.autograd.grad(SemiHardTriplets(0.5)(leaf := matrix.requires_grad_(), labels), leaf)
    torch.testing.assert_close(gradient[0], torch.tensor([0.0, 0.5, 0.0, -0.5]))


# ---------------------------------------------------------------------- given triplets


def test_given_triplets() -> None:
    generator = torch.Generator().manual_seed(0)
    positives, negatives = (torch.rand(50, generator=generator, dtype=torch.float64) for _ in range(2))
    terms = (positives - negatives + 0.1).relu()
    torch.testing.assert_close(TripletMargin(0.1)(positives, negatives), terms[terms > 0].mean())
    value, gradient = value_and_gradient(TripletMargin(0.1), positives, positives + 1)
    assert value == 0
    assert not gradient.any()
    assert TripletMargin()(positives * math.nan, negatives).isnan()
