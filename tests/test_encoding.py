"""Points as they come from a user, through an encoder in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch import Tensor, nn

from askew import encoders
from askew.encoders import as_points, encode, for_numpy

ROWS = np.arange(12.0).reshape(4, 3)


# ---------------------------------------------------------------------- as_points


@pytest.mark.parametrize(
    ("points", "dtype"),
    [
        (ROWS, torch.float64),
        (ROWS.astype(np.float32), torch.float32),
        (ROWS.astype(np.float16), torch.float16),
        (ROWS.astype(np.longdouble), torch.float64),
        (ROWS.astype(object), torch.float64),
        (ROWS.astype(">f4"), torch.float32),
        (ROWS.astype(np.int64), torch.int64),
        (ROWS.astype(">i4"), torch.int32),
        (ROWS.astype(np.uint8), torch.uint8),
        (ROWS.astype(np.uint16), torch.int64),
        (ROWS.astype(np.uint64), torch.int64),
        (ROWS.tolist(), torch.float64),
        (ROWS.astype(int).tolist(), torch.int64),
        (pd.DataFrame(ROWS), torch.float64),
        (pd.DataFrame(ROWS).astype({0: int}), torch.float64),
        (pd.DataFrame(ROWS).astype("Float64"), torch.float64),
        (np.asfortranarray(ROWS), torch.float64),
        (np.repeat(ROWS, 2, axis=0)[::2], torch.float64),
        (ROWS[::-1][::-1], torch.float64),
        (torch.from_numpy(ROWS), torch.float64),
        (torch.from_numpy(ROWS).requires_grad_(), torch.float64),
        (torch.from_numpy(ROWS).long(), torch.int64),
        (torch.from_numpy(ROWS).bfloat16(), torch.bfloat16),
    ],
)
def test_kinds_of_points(points: Any, dtype: torch.dtype) -> None:
    result = as_points(points)
    assert result.dtype == dtype
    assert not result.requires_grad
    torch.testing.assert_close(result.double(), torch.from_numpy(ROWS))


def test_negative_strides_and_read_only() -> None:
    torch.testing.assert_close(as_points(ROWS[::-1]), torch.from_numpy(ROWS[::-1].copy()))
    fixed = ROWS.copy()
    fixed.flags.writeable = False
    result = as_points(fixed)
    result[0, 0] = 99  # its own memory
    assert fixed[0, 0] == 0


def test_no_copy_where_none_is_needed() -> None:
    rows = ROWS.copy()
    assert as_points(rows).data_ptr() == rows.ctypes.data
    tensor = torch.from_numpy(rows)
    assert as_points(tensor).data_ptr() == tensor.data_ptr()


def test_shapes_stay() -> None:
    for shape in ((), (3,), (0, 3), (2, 1, 4, 4)):
        assert as_points(np.ones(shape)).shape == shape
    assert as_points(3).shape == ()
    assert as_points(np.ones((2, 2), bool)).tolist() == [[1, 1], [1, 1]]


def test_integers_above_those_of_torch() -> None:
    assert as_points(np.array([2**64 - 1, 0], np.uint64)).tolist() == [2.0**64, 0.0]


@pytest.mark.parametrize(
    ("points", "match"),
    [
        (ROWS + 1j, "points must be real numbers. Got an array of complex128 instead"),
        (torch.ones(2, dtype=torch.complex64), "points must be real numbers. Got torch.complex64 instead"),
        ([["a"]], "points must be real numbers. Got an array of <U1 instead"),
        ([[object()]], "points must be real numbers. Got other objects"),
        (np.array([["a", 1]], dtype=object), "points must be real numbers. Got other objects .could not convert"),
        (pd.DataFrame({"x": [1.0], "day": ["Monday"]}), "points must be real numbers. Got other objects"),
        (np.array(["2020-01-01"], "datetime64[D]"), r"points must be real numbers. Got an array of datetime64\[D\]"),
        (np.zeros(2, [("x", float)]), "points must be real numbers"),
    ],
)
def test_no_numbers(points: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        as_points(points)


@pytest.mark.filterwarnings("ignore:.*[Bb]eta state", "ignore:.*prototype")
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda: np.ma.masked_equal(ROWS, 4.0),
            ValueError,
            "points must be without masked entries. Got 1 of 12 masked instead. Fill them with .filled",
        ),
        (
            lambda: torch.from_numpy(ROWS).to_sparse(),
            TypeError,
            "a dense tensor. Got a sparse tensor, torch.sparse_coo",
        ),
        (lambda: torch.from_numpy(ROWS).to_sparse_csr(), TypeError, r"torch.sparse_csr instead. .*to_dense\(\)"),
        (lambda: torch.empty(2, 3, device="meta"), TypeError, "Got one on the device meta instead"),
        (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), TypeError, "Got a nested tensor"),
        (lambda: scipy.sparse.csr_matrix(ROWS), TypeError, r"a dense array. Got a sparse csr_matrix .*toarray\(\)"),
    ],
)
def test_numbers_that_are_not_all_there(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        as_points(make())
    with pytest.raises(error, match=words):
        for_numpy(make())


def test_masked_array_of_which_nothing_is_masked() -> None:
    assert as_points(np.ma.masked_array(ROWS)).tolist() == ROWS.tolist()


def test_masks_of_what_dask_holds() -> None:
    da = pytest.importorskip("dask.array", reason='dask is not installed: pip install ".[dask]"')
    lazily = da.from_array(ROWS, chunks=(2, 2))
    assert as_points(lazily).tolist() == for_numpy(lazily).tolist() == ROWS.tolist()
    for take in (as_points, for_numpy):
        with pytest.raises(ValueError, match=r"points must be without masked entries\. Got 1 of 12 masked"):
            take(da.ma.masked_equal(lazily, 4.0))


# ---------------------------------------------------------------------- encode


class Watched(nn.Module):
    """Keeps the sizes of batches, and what it was given."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.sizes: list[int] = []
        self.modes: set[bool] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        self.modes.add(self.module.training)
        assert not torch.is_grad_enabled()
        result: Tensor = self.module(x)
        return result


def test_no_encoder() -> None:
    points = torch.randn(4, 3)
    assert encode(None, points) is points


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 100])
def test_batches(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "BATCH_ELEMENTS", 30)
    encoder, points = Watched(nn.Linear(3, 2)), torch.randn(count, 3)
    images = encode(encoder, points)
    assert encoder.sizes == ([10] * (count // 10) + [count % 10] * (count % 10 > 0) or [0])
    with torch.no_grad():
        torch.testing.assert_close(images, encoder.module(points))


def test_one_point_may_be_larger_than_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "BATCH_ELEMENTS", 30)
    encoder = Watched(nn.Flatten())
    assert encode(encoder, torch.ones(3, 1, 8, 8)).shape == (3, 64)
    assert encoder.sizes == [1, 1, 1]


def test_images_are_plain_tensors() -> None:
    encoder = nn.Linear(3, 2)
    images = encode(encoder, torch.randn(4, 3, requires_grad=True))
    assert not images.requires_grad
    assert not images.is_inference()
    images[0] = 0
    weight = torch.ones(2, requires_grad=True)
    (images * weight).sum().backward()
    assert encoder.weight.requires_grad
    encoder(torch.randn(4, 3)).sum().backward()


def test_modes_are_left_as_they_were() -> None:
    encoder = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.9))
    encoder[1].eval()
    points = torch.randn(50, 3)
    running = encoder[1].running_mean.clone()
    torch.testing.assert_close(encode(encoder, points), encode(encoder, points))
    assert [part.training for part in encoder] == [True, False, True]
    torch.testing.assert_close(encoder[1].running_mean, running)
    watched = Watched(nn.Dropout())
    encode(watched, points)
    assert watched.modes == {False}
    assert watched.training


def test_modes_after_an_error() -> None:
    encoder = nn.Sequential(nn.Dropout(), nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        encode(encoder, torch.randn(4, 5))
    assert all(part.training for part in encoder.modules())


@pytest.mark.parametrize("own", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_is_that_of_the_encoder(own: torch.dtype, given: torch.dtype) -> None:
    assert encode(nn.Linear(3, 2).to(own), torch.randn(4, 3).to(given)).dtype == own
    assert encode(nn.Flatten(), torch.randn(4, 3).to(given)).dtype == given


def test_dtype_is_that_of_the_first_layer() -> None:
    class Widening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(self.first(x).double())
            return result

    assert encode(Widening(), torch.randn(4, 3).double()).dtype == torch.float64


def test_tokens_stay_integers() -> None:
    encoder = nn.Sequential(nn.Embedding(10, 2), nn.Flatten())
    assert encode(encoder, torch.randint(10, (5, 3))).shape == (5, 6)


class Own(nn.Module):
    """A layer that torch does not know, of numbers or, as a table, of tokens."""

    def __init__(self, tokens: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(300, 2))
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        return self.weight[x].flatten(1) if self.tokens else x @ self.weight[: x.shape[1]]


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_integers_stay_where_the_encoder_takes_them(kind: torch.dtype) -> None:
    tokens = torch.randint(100, (5, 3))
    table = Own(tokens=True)
    torch.testing.assert_close(encode(table, tokens.to(kind)), table.weight[tokens].flatten(1).detach())
    bag = nn.EmbeddingBag(100, 2)
    torch.testing.assert_close(encode(bag, tokens.to(kind)), bag(tokens).detach())
    for encoder in (nn.Linear(3, 2), Own(tokens=False), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3))):
        torch.testing.assert_close(encode(encoder, tokens.to(kind)), encode(encoder, tokens.float()))


def test_bytes_do_not_wrap_around() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    assert encode(Doubled(), torch.tensor([[200]], dtype=torch.uint8)).tolist() == [[400]]


def test_error_of_integers_is_that_of_what_the_encoder_takes() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        encode(nn.Linear(3, 2), torch.ones(4, 5, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        encode(nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(5, 2)), torch.ones(4, 5, dtype=torch.int64))
    with pytest.raises(IndexError, match="out of range"):
        encode(nn.Embedding(10, 2), torch.full((4, 5), 10))


@pytest.mark.parametrize(("show", "count", "shown"), [(True, 100, True), (True, 5, False), (False, 100, False)])
def test_progress(
    show: bool, count: int, shown: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "BATCH_ELEMENTS", 30)
    encode(nn.Linear(3, 2), torch.randn(count, 3), progress=show)
    assert ("encoding" in capsys.readouterr().err) == shown


def test_inside_inference_mode() -> None:
    encode_: Callable[..., Tensor] = torch.inference_mode()(encode)
    assert encode_(nn.Linear(3, 2), torch.randn(4, 3)).shape == (4, 2)
