"""What divergences do with input they cannot use: say what it must be, what it was, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import askew
from askew.checks import REAL
from askew.divergences import (
    IQE,
    MRN,
    Bregman,
    DeepDiv,
    DeepNorm,
    Divergence,
    Dual,
    Embedded,
    Euclidean,
    GeneralizedSymmetrized,
    Jensen,
    Mahalanobis,
    MaxAffine,
    NeuralBregman,
    Reversed,
    Scaled,
    Sqrt,
    Symmetrized,
    WideNorm,
)
from askew.potentials import ICNN, NegativeEntropy

DIM = 4
CALLS = ("forward", "pairwise")
by_name = pytest.mark.parametrize("name", askew.names())
by_call = pytest.mark.parametrize("call", CALLS)
by_side = pytest.mark.parametrize("side", ["x", "y"])


def make(name: str) -> Divergence:
    torch.manual_seed(0)
    return askew.make(name, DIM)


def valid(n: int = 3) -> Tensor:
    """Return points that lie in every domain, the simplex too."""
    z = torch.randn(n, DIM, generator=torch.Generator().manual_seed(n))
    return z.softmax(-1)


def called(divergence: Divergence, call: str, side: str, bad: object, good: object = None) -> Tensor:
    """Call with the bad argument on one side and a good one on the other."""
    good = valid() if good is None else good
    x, y = (bad, good) if side == "x" else (good, bad)
    result: Tensor = getattr(divergence, call)(x, y)
    return result


# ---------------------------------------------------------------------- shapes


@by_side
@by_call
@by_name
def test_wrong_number_of_features(name: str, call: str, side: str) -> None:
    divergence = make(name)
    owner = type(divergence).__name__
    for shape in ((3, DIM - 1), (3, DIM + 1), (3, 1), (3, 0)):
        text = rf"^{side} of {owner} must be of shape \(\.\.\., {DIM}\)\. Got {re.escape(str(shape))} instead\."
        with pytest.raises(ValueError, match=text):
            called(divergence, call, side, torch.full(shape, 0.25))


@by_side
@by_call
@by_name
def test_a_single_number_is_no_point(name: str, call: str, side: str) -> None:
    text = rf"^{side} of {type(make(name)).__name__} must be of shape \(\.\.\., {DIM}\)\. Got \(\) instead\."
    with pytest.raises(ValueError, match=text):
        called(make(name), call, side, torch.tensor(0.25))


@by_side
@by_name
def test_all_pairs_are_of_two_sets(name: str, side: str) -> None:
    divergence = make(name)
    for points in (valid()[0], valid(6).view(2, 3, DIM)):
        text = (
            rf"^{side} of {type(divergence).__name__}\.pairwise must be of shape \(n, {DIM}\)\. "
            rf"Got {re.escape(str(tuple(points.shape)))} instead\. Rows against rows are forward\(x, y\)\."
        )
        with pytest.raises(ValueError, match=text):
            called(divergence, "pairwise", side, points)


@by_name
def test_shapes_that_do_not_broadcast(name: str) -> None:
    text = (
        rf"^y of {type(make(name)).__name__} must be of a shape that broadcasts with x, \(3, {DIM}\)\. "
        rf"Got \(2, {DIM}\) instead\. All pairs of two sets are pairwise\(x, y\)\."
    )
    with pytest.raises(ValueError, match=text):
        make(name)(valid(3), valid(2))


@pytest.mark.parametrize("recorded", [False, True], ids=["inference", "training"])
@by_name
def test_empty_batches_have_empty_results(name: str, recorded: bool) -> None:
    divergence = make(name)
    nothing, some = valid(0).requires_grad_(recorded), valid().requires_grad_(recorded)
    with torch.set_grad_enabled(recorded):
        results = {
            (0,): divergence(nothing, nothing),
            (2, 0): divergence(nothing.expand(2, 0, DIM), nothing),
            (0, 3): divergence.pairwise(nothing, some),
            (3, 0): divergence.pairwise(some, nothing),
            (0, 0): divergence.pairwise(nothing, nothing),
        }
    for shape, result in results.items():
        assert result.shape == shape
        assert result.dtype == torch.float32
        if recorded and result.requires_grad:
            result.sum().backward()
    if recorded and some.grad is not None:
        assert (some.grad == 0).all()


@by_name
def test_memory_layout_does_not_matter(name: str) -> None:
    divergence = make(name).double()
    x, y = valid(6).double(), valid(7)[:6].double()
    scattered = [torch.stack([p, p + 1], -1)[..., 0] for p in (x, y)]
    transposed = [p.T.contiguous().T for p in (x, y)]
    backwards = [p.flip(0).flip(0).as_strided((6, DIM), (DIM, 1)) for p in (x, y)]
    with torch.no_grad():
        for call in CALLS:
            wanted = getattr(divergence, call)(x, y)
            for first, second in (scattered, transposed, backwards):
                torch.testing.assert_close(getattr(divergence, call)(first, second), wanted, rtol=1e-9, atol=1e-12)
        expanded = x[:1].expand(6, DIM)
        torch.testing.assert_close(divergence(expanded, y), divergence(x[:1].repeat(6, 1), y), rtol=1e-9, atol=1e-12)


def test_non_contiguous_points_were_tested() -> None:
    points = valid(6)
    assert not torch.stack([points, points], -1)[..., 0].is_contiguous()
    assert not points.T.contiguous().T.is_contiguous()


# ---------------------------------------------------------------------- types


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float16, torch.complex64], ids=str)
@by_side
@by_call
@by_name
def test_types_of_numbers_that_are_not_taken(name: str, call: str, side: str, dtype: torch.dtype) -> None:
    text = (
        rf"^{side} of {type(make(name)).__name__} must be float32, float64 or bfloat16\. "
        rf"Got {dtype} instead\. Convert it with \.float\(\)\."
    )
    with pytest.raises(TypeError, match=text):
        called(make(name), call, side, torch.ones(3, DIM, dtype=dtype))


@by_side
@by_call
@by_name
def test_only_tensors_are_points(name: str, call: str, side: str) -> None:
    numpy = pytest.importorskip("numpy")
    owner = type(make(name)).__name__
    for points, kind in (
        (valid().tolist(), "list"),
        (numpy.ones((3, DIM), dtype=numpy.float32), "ndarray"),
        (0.25, "float"),
        ("points", "str"),
    ):
        text = (
            rf"^{side} of {owner} must be a torch\.Tensor\. Got {kind} instead\. "
            rf"Convert it with torch\.as_tensor\({side}, dtype=torch\.float32\)\."
        )
        with pytest.raises(TypeError, match=text):
            called(make(name), call, side, points)


@by_call
@by_name
def test_two_types_of_numbers(name: str, call: str) -> None:
    divergence = make(name)
    owner = type(divergence).__name__
    if divergence.dtype is None:
        text = rf"^y of {owner} must be torch\.float32 like x\. Got torch\.float64 instead\. Convert one of them"
    else:
        text = (
            rf"^y of {owner} must be torch\.float32 like its parameters\. Got torch\.float64 instead\. "
            r"Convert the points with \.to\(torch\.float32\) or the module with \.to\(torch\.float64\)\."
        )
    with pytest.raises(TypeError, match=text):
        getattr(divergence, call)(valid(), valid().double())


@by_call
@by_name
def test_other_numbers_than_the_parameters(name: str, call: str) -> None:
    divergence = make(name)
    points = valid().double()
    if divergence.dtype is None:  # nothing to agree with
        assert getattr(divergence, call)(points, points).dtype == torch.float64
        return
    with pytest.raises(
        TypeError, match=rf"^x of {type(divergence).__name__} must be torch\.float32 like its parameters"
    ):
        getattr(divergence, call)(points, points)
    assert getattr(divergence.double(), call)(points, points).dtype == torch.float64


# ---------------------------------------------------------------------- values

UNCHECKED = ("euclidean", "euclidean-norm", "mahalanobis", "mahalanobis-norm")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@by_side
@by_call
@by_name
def test_values_that_are_not_finite(name: str, call: str, side: str, value: float) -> None:
    divergence = make(name)
    bad = valid()
    bad[1, 2] = value
    with torch.no_grad():
        if name in UNCHECKED:
            result = called(divergence, call, side, bad)
            spoilt = result[:, 1] if call == "pairwise" and side == "y" else result[1]
            assert not torch.isfinite(spoilt).any()
            assert torch.isfinite(called(divergence, "forward", side, bad)[[0, 2]]).all()
            return
        text = (
            rf"{side} of \w+ must be finite\. Got {side}\[1, 2\] = {value} instead\. Drop or impute such rows first\."
        )
        with pytest.raises(ValueError, match=text):
            called(divergence, call, side, bad)


@pytest.mark.parametrize("wrapper", [Sqrt, Symmetrized, Reversed, Scaled, Jensen, GeneralizedSymmetrized])
@by_call
def test_wrappers_show_values_that_are_not_finite(wrapper: Callable[[Divergence], Divergence], call: str) -> None:
    for name in ("nbd", "log-sum-exp", "deep-div"):
        if name == "deep-div" and wrapper in (Jensen, GeneralizedSymmetrized):
            continue
        divergence = wrapper(make(name))
        bad = valid()
        bad[1, 2] = torch.nan
        for side in ("x", "y"):
            with pytest.raises(ValueError, match=r"must be finite\. Got [xy]\[1, 2\] = nan"):
                called(divergence, call, side, bad)


def test_an_overflow_of_finite_points_is_no_error() -> None:
    points = torch.full((2, DIM), 80.0)
    assert torch.isinf(make("exponential")(points, -points + torch.tensor([[0.0], [1.0]]) * 1e30)).any()


OUTSIDE = {
    "kl": (-0.25, r"inside the positive domain, each coordinate in [\[(]0, inf[\])]", r"clamp_min\(1e-6\)"),
    "kl-simplex": (-0.25, r"inside the simplex domain, each coordinate in [\[(]0, inf[\])]", r"x\.softmax\(-1\)"),
    "itakura-saito": (-0.25, r"inside the positive domain, each coordinate in \(0, inf\)", r"clamp_min\(1e-6\)"),
    "logistic": (1.25, r"inside the unit box domain, each coordinate in [\[(]0, 1[\])]", r"x\.sigmoid\(\)"),
}


def test_all_domains_are_tested() -> None:
    assert {name for name in askew.names() if make(name).domain != REAL} == OUTSIDE.keys()


@by_side
@by_call
@pytest.mark.parametrize("name", OUTSIDE)
def test_points_outside_the_domain(name: str, call: str, side: str) -> None:
    value, must, hint = OUTSIDE[name]
    bad = valid()
    bad[1, 2] = bad[2, 0] = value
    text = rf"^{side} of \w+ must be {must}\. Got {side}\[1, 2\] = {value} instead\. .*{hint}"
    with pytest.raises(ValueError, match=text):
        called(make(name), call, side, bad)


@by_call
@pytest.mark.parametrize("name", OUTSIDE)
def test_the_boundary_of_the_domain(name: str, call: str) -> None:
    edge = valid()
    edge[1] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    if name == "itakura-saito":  # infinite on the boundary
        with pytest.raises(ValueError, match=r"x of Burg must be .* Got x\[1, 0\] = 0 instead"):
            called(make(name), call, "x", edge)
    else:
        assert torch.isfinite(called(make(name), call, "x", edge)).all()
    with pytest.raises(
        ValueError, match=r"^y of \w+ must be inside the .* domain, .* \(0, .*\)\. Got y\[1, 0\] = 0 instead"
    ):
        called(make(name), call, "y", edge)


@by_side
@by_call
def test_rows_that_do_not_sum_to_one(call: str, side: str) -> None:
    bad = valid()
    bad[2] *= 1.5
    text = rf"each row summing to 1 within 0\.01\. Got {side}\.sum\(-1\)\[2\] = 1\.5 instead\. .* divide each row"
    with pytest.raises(ValueError, match=text):
        called(make("kl-simplex"), call, side, bad)


# ---------------------------------------------------------------------- constructors


@pytest.mark.parametrize("dim", [0, -3, 2.0, "4", None, True])
@by_name
def test_dimensions_that_are_none(name: str, dim: object) -> None:
    with pytest.raises(ValueError, match=rf"^dim of '{name}' must be a positive integer\. Got {dim!r} instead\."):
        askew.make(name, dim)  # type: ignore[arg-type]


def network() -> NeuralBregman:
    return NeuralBregman(DIM, widths=(4,))


@pytest.mark.parametrize(
    ("construct", "error", "text"),
    [
        (lambda: NeuralBregman(0), ValueError, "dim of NeuralBregman must be a positive integer. Got 0 instead."),
        (
            lambda: NeuralBregman(DIM, (), quadratic=0, separable=0),
            ValueError,
            "terms of ICNN must be at least one of widths, quadratic and separable. Got none",
        ),
        (lambda: NeuralBregman(DIM, "12"), ValueError, "Got '12' instead. Example: widths=(128, 128)."),
        (lambda: NeuralBregman(DIM, 128), ValueError, "Got 128 instead. Example: widths=(128, 128)."),
        (lambda: NeuralBregman(DIM, (8, -1)), ValueError, "each of widths of ICNN must be a positive integer. Got -1"),
        (lambda: NeuralBregman(DIM, (8.0,)), ValueError, "each of widths of ICNN must be a positive integer. Got 8.0"),
        (lambda: NeuralBregman.paper(DIM, ()), ValueError, "terms of ICNN must be at least one of"),
        (lambda: ICNN(-1), ValueError, "dim of ICNN must be a positive integer. Got -1 instead."),
        (lambda: Euclidean(0), ValueError, "dim of Euclidean must be a positive integer. Got 0 instead."),
        (lambda: Mahalanobis(DIM, rank=0), ValueError, "rank of Mahalanobis must be a positive integer. Got 0"),
        (lambda: DeepNorm(DIM, widths=()), ValueError, "widths of DeepNorm must be a non-empty sequence"),
        (lambda: DeepNorm(DIM, widths=(3, 0)), ValueError, "each of widths of DeepNorm must be a positive integer."),
        (lambda: WideNorm(DIM, components=0), ValueError, "components of WideNorm must be a positive integer. Got 0"),
        (lambda: IQE(DIM, components=-2), ValueError, "components of IQE must be a positive integer. Got -2"),
        (lambda: MRN(DIM, width=0), ValueError, "width of MRN must be a positive integer. Got 0"),
        (lambda: DeepDiv(DIM, pieces=0), ValueError, "pieces of DeepDiv must be a positive integer. Got 0"),
        (lambda: MaxAffine(DIM, pieces=2.5), ValueError, "pieces of MaxAffine must be a positive integer. Got 2.5"),
        (
            lambda: Bregman(nn.Linear(2, 2)),
            TypeError,
            "potential of Bregman must be an askew.potentials.Potential.",
        ),
        (
            lambda: Bregman(torch.exp),
            TypeError,
            "Wrap a convex function as askew.potentials.FromFunction(func",
        ),
        (lambda: Bregman(network()), TypeError, "Got NeuralBregman instead."),
        (
            lambda: Bregman(NegativeEntropy(2), pairwise_rtol=0),
            ValueError,
            "pairwise_rtol of Bregman must be a finite number above zero. Got 0 instead.",
        ),
        (
            lambda: Embedded(torch.tanh, network()),
            TypeError,
            "encoder of Embedded must be a torch.nn.Module. Got ",
        ),
        (
            lambda: Embedded(nn.Identity(), nn.Identity()),
            TypeError,
            "divergence of Embedded must be an askew",
        ),
        (lambda: Embedded(nn.Identity(), ICNN(2)), TypeError, "Got ICNN instead."),
        (
            lambda: Sqrt(NegativeEntropy(2)),
            TypeError,
            'Got NegativeEntropy instead. Make one with askew.make("nbd"',
        ),
        (lambda: Symmetrized("nbd"), TypeError, "divergence of Symmetrized must be an askew divergence. Got str"),
        (lambda: Reversed(None), TypeError, "divergence of Reversed must be an askew divergence. Got NoneType"),
        (lambda: Jensen(Euclidean(2)), TypeError, "divergence of Jensen must be a Bregman divergence. Got Euclidean"),
        (lambda: Dual(Euclidean(2)), TypeError, "divergence of Dual must be a Bregman divergence. Got Euclidean"),
        (
            lambda: GeneralizedSymmetrized(Sqrt(network())),
            TypeError,
            "divergence of GeneralizedSymmetrized must be a Bregman divergence. Got Sqrt",
        ),
        (lambda: Scaled(network(), 0.0), ValueError, "factor of Scaled must be a finite number above zero. Got 0.0"),
        (
            lambda: Scaled(network(), torch.inf),
            ValueError,
            "factor of Scaled must be a finite number above zero.",
        ),
    ],
)
def test_constructors(construct: Callable[[], Divergence], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        construct()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("nbdd", r"'nbd'"),
        ("NBD", r"'nbd'"),
        ("euclid", r"'euclidean' or 'euclidean-norm'"),
        ("mahalonobis", r"'mahalanobis'"),
        ("deep_div", r"'deep-div'"),
        ("itakurasaito", r"'itakura-saito'"),
    ],
)
def test_unknown_names_list_the_near_ones(name: str, near: str) -> None:
    text = rf"^name of a divergence must be one of 'nbd', .*'power'\. Got '{name}' instead\. Did you mean {near}"
    with pytest.raises(ValueError, match=text):
        askew.make(name, DIM)


@pytest.mark.parametrize("name", ["zzz", None, 3, ""])
def test_unknown_names_without_near_ones(name: object) -> None:
    text = rf"^name of a divergence must be one of 'nbd', .*'power'\. Got {name!r} instead\.$"
    with pytest.raises(ValueError, match=text):
        askew.make(name, DIM)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- autocast


@pytest.mark.parametrize("recorded", [False, True], ids=["inference", "training"])
@by_call
@by_name
def test_autocast_changes_nothing(name: str, call: str, recorded: bool) -> None:
    divergence = make(name)
    x, y = valid(5).requires_grad_(recorded), valid(6)[:5].requires_grad_(recorded)
    with torch.set_grad_enabled(recorded):
        wanted = getattr(divergence, call)(x, y)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = getattr(divergence, call)(x, y)
    assert found.dtype == torch.float32
    assert torch.equal(found, wanted)


@by_call
@by_name
def test_autocast_takes_points_of_an_encoder_in_low_precision(name: str, call: str) -> None:
    """An encoder under autocast returns bfloat16, to which the parameters of a divergence are not cast down."""
    divergence = make(name)
    x, y = valid(5).bfloat16(), valid(6)[:5].bfloat16()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = getattr(divergence, call)(x, y)
    assert found.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(found, getattr(divergence, call)(x.float(), y.float()))


@by_call
@by_name
def test_autocast_of_an_embedded_divergence(name: str, call: str) -> None:
    divergence = make(name)
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(7, DIM), nn.Softmax(-1))  # into every domain
    model = Embedded(encoder, divergence)
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = getattr(model, call)(x, y)
        encoded = encoder(x).float(), encoder(y).float()
    assert found.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(found, getattr(divergence, call)(*encoded))
        if name == "nbd":  # the encoder did run in low precision
            assert not torch.equal(found, getattr(model, call)(x, y))


@by_call
def test_autocast_trains_encoder_and_divergence(call: str) -> None:
    torch.manual_seed(0)
    model = Embedded(nn.Linear(7, DIM), network())
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = getattr(model, call)(x, y).mean()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert torch.isfinite(parameter.grad).all()


def test_a_divergence_behind_an_encoder_names_what_is_wrong() -> None:
    model = Embedded(nn.Linear(7, DIM + 1), make("nbd"))
    with pytest.raises(
        ValueError, match=rf"x of NeuralBregman must be of shape \(\.\.\., {DIM}\)\. Got \(3, {DIM + 1}\)"
    ):
        model(torch.randn(3, 7), torch.randn(3, 7))
    bad = torch.randn(3, 7)
    bad[1] = torch.nan
    model = Embedded(nn.Linear(7, DIM), make("nbd"))
    with pytest.raises(ValueError, match=r"x of NeuralBregman must be finite\. Got x\[1, 0\] = nan"):
        model.pairwise(bad, torch.randn(3, 7))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([1.0, float("nan")]), r"targets of ICNN\.calibrate must be finite\. Got targets\[1\] = nan"),
        (
            torch.tensor([1.0, -2.0]),
            r"must be non-negative, as the values of a divergence are\. Got a smallest one of -2",
        ),
        (torch.ones(3), r"must be of shape \(2,\), one for each pair\. Got \(3,\)"),
    ],
)
def test_targets_that_no_divergence_has(targets: torch.Tensor, message: str) -> None:
    divergence = askew.NeuralBregman(2, widths=(4,))
    with pytest.raises(ValueError, match=message):
        divergence.calibrate(torch.randn(2, 2), torch.randn(2, 2), targets)


def test_half_parameters_are_named_and_not_suggested() -> None:
    divergence = askew.NeuralBregman(2, widths=(4,)).half()
    with pytest.raises(
        TypeError, match=r"parameters of NeuralBregman must be float32.*Convert the module with \.float"
    ):
        divergence(torch.randn(3, 2), torch.randn(3, 2))


def test_integers_of_numpy_are_integers() -> None:
    assert askew.NeuralBregman(np.int64(3)).dim == 3


def test_autocast_does_not_let_integers_in() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(TypeError, match=r"Got torch\.int64 instead"):
        askew.NeuralBregman(2, widths=(4,))(torch.ones(3, 2, dtype=torch.int64), torch.ones(3, 2))
