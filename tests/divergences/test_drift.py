"""A Bregman divergence with a drift: directed at first order, exact at the diagonal, one inner product."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import askew
from askew.divergences import Drift, Embedded, Mahalanobis, NeuralBregman, Reversed, Scaled, Sqrt, make

DIM = 5
NAMES = ("drift", "drift-root", "drift-mahalanobis")


def windy(name: str, strength: float = 30.0) -> Drift:
    """Return a drift strong enough for D = 0 < D in the other direction."""
    torch.manual_seed(0)
    divergence = make(name, DIM)
    assert isinstance(divergence, Drift)
    with torch.no_grad():
        # D of the networks is larger.
        factor = strength if name == "drift-mahalanobis" else 10 * strength
        divergence.drift[2].weight.mul_(factor)  # type: ignore[index, union-attr]
    return divergence


def points(n: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_value_is_that_of_the_definition(name: str) -> None:
    divergence = windy(name).double()
    x, y = points(40, 1, torch.float64), points(40, 2, torch.float64)
    phi = divergence.divergence.potential
    signed = phi(x) - phi(y) - (phi.gradient(y) * (x - y)).sum(-1) + (divergence.wind(y) * (x - y)).sum(-1)
    torch.testing.assert_close(divergence.order(x, y), signed)
    wanted = signed.relu()
    if divergence.root:
        wanted = (wanted + divergence.floor**2).sqrt() - divergence.floor
    torch.testing.assert_close(divergence(x, y), wanted)
    assert (signed < 0).any()
    assert (signed > 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_zero_in_one_direction_only(name: str) -> None:
    divergence = windy(name)
    x, y = points(200, 1), points(200, 2)
    there, back = divergence(x, y), divergence(y, x)
    assert ((there == 0) & (back > 0)).any()


@pytest.mark.parametrize("name", NAMES)
def test_direction_is_of_first_order(name: str) -> None:
    """A smooth Bregman divergence has the same value both ways in the limit; a drift keeps one of them 0."""
    divergence, bregman = windy(name).double(), make("nbd", DIM).double()
    y, h = points(100, 1, torch.float64), 1e-4 * points(100, 2, torch.float64)
    there, back = bregman(y + h, y), bregman(y, y + h)
    assert ((there / back - 1).abs() < 1e-2).all()
    there, back = divergence(y + h, y), divergence(y, y + h)
    assert ((there == 0) != (back == 0)).double().mean() > 0.9


@pytest.mark.parametrize("name", NAMES)
def test_all_pairs_are_those_of_forward(name: str) -> None:
    divergence = windy(name)
    x = torch.cat([points(60, 1), points(1, 1) + 1e-4 * points(20, 3)])  # some near each other
    y = torch.cat([points(50, 2), x[:10]])
    with torch.no_grad():
        matrix, rows = divergence.pairwise(x, y), divergence(x[:, None], y[None])
        exact = divergence.double()(x.double()[:, None], y.double()[None])
    # Where the two terms of S cancel, both are right to the rounding of the terms.
    size = float(divergence.size)
    torch.testing.assert_close(matrix.double(), exact, rtol=2e-3, atol=2e-5 * size)
    torch.testing.assert_close(rows.double(), exact, rtol=1e-4, atol=2e-5 * size)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_at_the_corners(name: str) -> None:
    divergence = windy(name)
    x = points(30, 1).requires_grad_()
    y = torch.cat([x.detach()[:10], points(20, 2)]).requires_grad_()
    assert (divergence(x, y)[:10] == 0).all()
    divergence(x, y).sum().backward()
    tensors = [x, y, *divergence.parameters()]
    assert all(tensor.grad is not None and torch.isfinite(tensor.grad).all() for tensor in tensors)


def test_calibration_gives_d_the_size_of_the_targets() -> None:
    x, y = 100 + 5 * points(500, 1), 100 + 5 * points(500, 2)
    for name in NAMES:
        divergence = make(name, DIM)
        divergence.calibrate(x, y, torch.full((500,), 7.0))
        assert 4 < divergence(x, y).mean() < 9
        divergence.calibrate(x, y, median=0.1)
        assert 0.05 < divergence(x, y).median() < 0.2


def test_constant_features_and_single_points_calibrate() -> None:
    x = points(20)
    x[:, 2] = 3.0
    divergence = make("drift", DIM)
    divergence.calibrate(x, x.flip(0))
    assert torch.isfinite(divergence(x, x.flip(0))).all()
    assert divergence.inverse_spread[2] == 1
    divergence.calibrate(x[:1], x[1:2])
    assert torch.isfinite(divergence(x, x.flip(0))).all()


@pytest.mark.parametrize("name", NAMES)
def test_targets_of_zero_leave_finite_values(name: str) -> None:
    x, y = points(20, 1), points(20, 2)
    divergence = make(name, DIM)
    divergence.calibrate(x, y, torch.zeros(20))
    assert torch.isfinite(divergence(x, y)).all()
    assert (divergence(x, x) == 0).all()


def test_order_of_wrappers_is_that_of_the_drift() -> None:
    divergence = windy("drift")
    x, y = points(20, 1), points(20, 2)
    order = divergence.order(x, y)
    for wrapped in (Sqrt(divergence), Scaled(divergence, 3.0), Embedded(nn.Identity(), divergence)):
        torch.testing.assert_close(wrapped.order(x, y), order)
        torch.testing.assert_close(wrapped.from_order(order), wrapped(x, y))
    torch.testing.assert_close(Reversed(divergence).order(y, x), order)


def test_it_has_no_conjugate_no_mean_and_no_jensen_form() -> None:
    from askew.divergences import Dual, GeneralizedSymmetrized, Jensen

    divergence = windy("drift")
    assert divergence.as_bregman() is None
    for wrapper in (Dual, Jensen, GeneralizedSymmetrized):
        with pytest.raises(
            TypeError, match=rf"divergence of {wrapper.__name__} must be a Bregman divergence\. Got Drift"
        ):
            wrapper(divergence)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"cluster_from_euclidean|Bregman divergence"):
        askew.BregmanKMeans(3, divergence=divergence).fit(points(50))


def test_bad_drifts_are_refused() -> None:
    with pytest.raises(TypeError, match=r"divergence of Drift must be a Bregman divergence\. Got Mahalanobis"):
        Drift(Mahalanobis(DIM))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"drift of Drift must be a torch\.nn\.Module\. Got function"):
        Drift(NeuralBregman(DIM), drift=lambda y: y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hidden of Drift must be a positive integer"):
        Drift(NeuralBregman(DIM), hidden=0)
    own = nn.Linear(DIM, DIM)
    nn.init.constant_(own.bias, float("nan"))
    divergence = Drift(NeuralBregman(DIM), drift=own)
    text = r"the drift v\(y\) of Drift must be finite\. Got nan for point \(0,\)"
    with torch.no_grad(), pytest.raises(ValueError, match=text):
        divergence(points(3), points(3, 2))


def test_a_drift_of_the_user_learns() -> None:
    torch.manual_seed(0)
    x, y = points(400, 1), points(400, 2)
    targets = (x - y).square().sum(-1) + (x - y)[:, 0]
    divergence = Drift(NeuralBregman(DIM, widths=(), separable=0), drift=nn.Linear(DIM, DIM))
    history = askew.fit(divergence, (x, y, targets.relu()), askew.losses.Regression(), epochs=60, seed=0)
    assert history["loss"][-1] < 0.05 * float(targets.var())


def test_it_learns_what_no_bregman_divergence_can() -> None:
    """An order: D(x, y) = 0 if x is above y in every coordinate."""
    x, y = points(2000, 1), points(2000, 2)
    targets = (y - x).relu().sum(-1)

    def error(name: str) -> float:
        torch.manual_seed(0)
        model = make(name, DIM)
        askew.fit(model, (x[:1500], y[:1500], targets[:1500]), askew.losses.Regression(), epochs=40, seed=0)
        with torch.no_grad():
            return float((model(x[1500:], y[1500:]) - targets[1500:]).square().mean())

    assert error("drift") < 0.5 * error("nbd")


def test_values_grow_with_the_order_up_to_infinity() -> None:
    order = torch.tensor([-torch.inf, -1.0, 0.0, 1e-30, 1.0, 1e38, torch.inf])
    for name in ("drift", "drift-root"):
        values = make(name, 3).from_order(order)
        assert values[0] == values[1] == values[2] == 0
        assert (values[2:].diff() > 0).all()
        assert values[-1] == torch.inf
