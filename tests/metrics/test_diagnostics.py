"""Diagnostics of divergences: known values, guarantees kept, encoders left as they were."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from members import DIM, Case, build, cases, random_points
from torch import Tensor, nn

from askew import metrics
from askew.divergences import (
    Bregman,
    DeepDiv,
    Divergence,
    Embedded,
    Euclidean,
    Mahalanobis,
    MaxAffine,
    NeuralBregman,
    Scaled,
    Sqrt,
    Symmetrized,
    WideNorm,
)
from askew.metrics import inspection
from askew.potentials import (
    ICNN,
    AffinePrecomposed,
    Conjugate,
    FromFunction,
    LogSumExp,
    NegativeEntropy,
    Quadratic,
)
from askew.potentials.icnn.terms import Network


def points(n: int = 40, dim: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def seeded(dim: int = 3) -> NeuralBregman:
    torch.manual_seed(0)
    return NeuralBregman(dim, widths=(16, 8))


@pytest.mark.parametrize("case", [case for case in cases() if not case.trained], ids=str)
def test_every_member_is_diagnosed_as_it_guarantees(case: Case) -> None:
    divergence, x = build(case), random_points(case, 12)
    found = metrics.diagnose(divergence, x)
    assert 0 <= found.asymmetry <= 1
    assert (found.asymmetry == 0) == divergence.symmetric
    if divergence.triangle:
        assert found.triangle.share == 0
    assert 0 <= found.triangle.mean_excess <= found.triangle.max_excess <= 1
    core = inspection.unwrapped(divergence, x)[0]
    assert (found.conditioning is None) == (not isinstance(core, Bregman))
    if found.conditioning is not None:
        assert 1 <= found.conditioning.median <= found.conditioning.maximum
    assert found == metrics.diagnose(divergence, x)
    assert str(found).startswith(found.name)


def test_asymmetry_is_the_mean_over_all_pairs() -> None:
    divergence, x = seeded().double(), points().double()
    matrix = divergence.pairwise(x, x).detach().numpy()
    first, second = np.triu_indices(40, 1)
    forth, back = matrix[first, second], matrix[second, first]
    expected = np.mean(np.abs(forth - back) / (forth + back))
    assert metrics.asymmetry(divergence, x) == pytest.approx(expected, rel=1e-6)
    assert 0.01 < expected < 1
    # 780 pairs: a sample of 500 is another number, near to it, and depends on the seed alone.
    sample = metrics.asymmetry(divergence, x, n_pairs=500, seed=3)
    assert sample == pytest.approx(expected, rel=0.2)
    assert sample != expected
    assert sample == metrics.asymmetry(divergence, x, n_pairs=500, seed=3)
    assert sample != metrics.asymmetry(divergence, x, n_pairs=500, seed=4)


def test_one_sided_and_symmetric_are_the_ends() -> None:
    assert metrics.asymmetry(Euclidean(3), points()) == 0
    one_way = Bregman(FromFunction(lambda z: z.clamp_min(0).square().sum(-1), 1))  # D(x, y) = 0 for x, y < 0
    assert metrics.asymmetry(one_way, torch.tensor([[-1.0], [-2.0], [-3.0]])) == 0
    ramp = MaxAffine.from_pieces(torch.tensor([[1.0], [0.0]]), torch.zeros(2))
    assert metrics.asymmetry(ramp, torch.tensor([[-4.0], [0.0]])) == 1  # D(-4, 0) = 4, D(0, -4) = 0


def test_triangle_violations_are_those_of_all_triples() -> None:
    divergence, x = seeded().double(), points(8).double()
    matrix = divergence.pairwise(x, x).detach().numpy()
    excess = np.array(
        [1 - (matrix[a, b] + matrix[b, c]) / matrix[a, c] for a, b, c in itertools.permutations(range(8), 3)]
    )
    found = metrics.triangle_violations(divergence, x, n_triples=40_000)
    assert found.share == pytest.approx((excess > 0).mean(), abs=0.01)
    assert found.mean_excess == pytest.approx(excess[excess > 0].mean(), abs=0.01)
    assert found.max_excess == pytest.approx(excess.max(), rel=1e-6)
    assert found == metrics.triangle_violations(divergence, x, n_triples=40_000)
    assert found != metrics.triangle_violations(divergence, x, n_triples=40_000, seed=1)


def test_norms_obey_the_triangle_inequality_up_to_rounding() -> None:
    x = points(30).repeat(3, 1)  # with points that coincide
    x = torch.cat([x, x * 2, x * 3])  # and points on a line
    torch.manual_seed(0)
    for divergence in (Euclidean(3, squared=False), WideNorm(3)):
        assert metrics.triangle_violations(divergence, x, n_triples=20_000).share == 0
    assert metrics.triangle_violations(Euclidean(3), x).share > 0.2


def test_tuples_are_of_different_points_and_cover_all() -> None:
    for size in (2, 3):
        chosen = inspection.distinct(4, size, 3000, 0)
        found, counts = np.unique(np.stack(chosen, 1), axis=0, return_counts=True)
        assert found.tolist() == [list(each) for each in itertools.permutations(range(4), size)]
        assert counts.min() > 0.6 * counts.mean()


def test_condition_numbers_are_those_of_the_hessian() -> None:
    found = metrics.conditioning(Bregman(NegativeEntropy(2)), torch.tensor([[1.0, 2.0], [1.0, 8.0], [1.0, 3.0]]))
    assert (found.median, found.maximum, found.points) == (pytest.approx(3), pytest.approx(8), 3)
    divergence, x = seeded(), points(300)
    numbers = np.linalg.cond(divergence.potential.hessian(x).detach().double().numpy())
    found = metrics.conditioning(divergence, x, n_points=300)
    assert found.median == pytest.approx(np.median(numbers), rel=1e-4)
    assert found.maximum == pytest.approx(numbers.max(), rel=1e-4)
    part = metrics.conditioning(divergence, x, n_points=20)
    assert part.points == 20
    assert part.median == pytest.approx(found.median, rel=0.5)
    assert part != metrics.conditioning(divergence, x, n_points=20, seed=1)


def test_flat_directions_have_no_condition_number() -> None:
    x = points(5)
    found = metrics.conditioning(Bregman(LogSumExp(3)), x)  # flat along (1, 1, 1)
    assert (found.median, found.maximum) == (math.inf, math.inf)
    assert "does not bend" in str(found)
    zero = Bregman(FromFunction(lambda z: 0 * z.sum(-1), 3))
    assert metrics.conditioning(zero, x).median == math.inf
    mixed = metrics.Conditioning(3.0, math.inf, 5)
    assert str(mixed).endswith("(median; at most without bound).")


def test_wrappers_show_the_potential_inside() -> None:
    divergence, x = seeded(), points()
    expected = metrics.conditioning(divergence, x)
    assert metrics.conditioning(Scaled(Sqrt(divergence), 3.0), x) == expected
    encoder = nn.Linear(5, 3)
    wide = points(40, 5)
    embedded = Embedded(encoder, divergence)
    assert metrics.conditioning(embedded, wide) == metrics.conditioning(divergence, encoder(wide).detach())
    assert metrics.conditioning(Scaled(embedded, 2.0), wide) == metrics.conditioning(embedded, wide)
    assert metrics.dead_units(Scaled(embedded, 2.0), wide) == metrics.dead_units(embedded, wide)


@pytest.mark.parametrize("activation", ["squareplus", "softplus", "relu"])
def test_units_that_never_bend_are_counted(activation: str) -> None:
    torch.manual_seed(0)
    divergence = NeuralBregman(3, widths=(10, 6), activation=activation)
    x = points(200)
    network = divergence.potential.terms[0]
    assert isinstance(network, Network)
    before = metrics.dead_units(divergence, x)
    assert before == 0
    with torch.no_grad():
        network.lifts[0][:, 0] = torch.tensor([1.0, 1.0, 1.0, -1e3])  # flat
        network.lifts[0][:, 1] = torch.tensor([1.0, 1.0, 1.0, 1e3])  # linear
        network.lifts[0][:, 2] = torch.tensor([0.0, 0.0, 0.0, 0.5])  # constant
        network.mixes[0][1] = -60  # weights of nearly 0 on it, else all units after it were linear too
        network.lifts[1][-1, 3] = -1e6
    assert metrics.dead_units(divergence, x) == 4 / 16
    assert metrics.diagnose(divergence, x).dead_units == 4 / 16
    # One of the last layer adds nothing to the divergence: without it the values stay what they are.
    expected = divergence(x[:100], x[100:])
    with torch.no_grad():
        network.out[3] = -60
    torch.testing.assert_close(divergence(x[:100], x[100:]), expected)


@pytest.mark.parametrize(("activation", "change"), [("squareplus", 5**-0.5), ("softplus", math.tanh(0.5))])
def test_the_tolerance_is_a_change_of_the_derivative(activation: str, change: float) -> None:
    divergence = NeuralBregman(1, widths=(1,), activation=activation)
    network = divergence.potential.terms[0]
    assert isinstance(network, Network)
    with torch.no_grad():
        network.lifts[0].copy_(torch.tensor([[1.0], [0.0]]))  # g'(x), here from g'(-1) to g'(1)
    x = torch.tensor([[-1.0], [0.0], [1.0]])
    assert metrics.dead_units(divergence, x, tolerance=0.99 * change) == 0
    assert metrics.dead_units(divergence, x, tolerance=1.01 * change) == 1


def test_networks_are_found_in_compositions() -> None:
    torch.manual_seed(0)
    phi = ICNN(3, widths=(6,), calibrated=False)
    network = phi.terms[0]
    assert isinstance(network, Network)
    with torch.no_grad():
        network.lifts[0][-1, :2] = -1e4
    x, mapping = points(50), 3 * torch.eye(3)
    for potential in (phi, phi + Quadratic(3), 2.0 * phi, AffinePrecomposed(phi, mapping)):
        assert metrics.dead_units(Bregman(potential), x) == pytest.approx(2 / 6)
    # A map to a single point leaves nothing to bend.
    assert metrics.dead_units(Bregman(AffinePrecomposed(phi, 0 * mapping)), x) == 1
    gradients = phi.double().gradient(x.double()).detach()
    assert metrics.dead_units(Bregman(Conjugate(phi)), gradients) == pytest.approx(2 / 6)


def test_pieces_that_are_never_the_best_are_counted() -> None:
    slopes, x = torch.tensor([[1.0], [-1.0], [0.0], [0.5]]), torch.linspace(-1, 1, 9)[:, None]
    divergence = MaxAffine.from_pieces(slopes, torch.tensor([0.0, 0.0, -1.0, -1.0]))
    assert metrics.dead_units(divergence, x) == 0.5
    found = metrics.diagnose(divergence, x)
    assert (found.unit, found.dead_units) == ("pieces", 0.5)
    assert "50 % of the pieces are never the best at these points." in str(found)
    torch.manual_seed(0)
    deep = DeepDiv(3, pieces=30, hidden=4)
    y = points(20)
    assert metrics.dead_units(deep, y) == pytest.approx(1 - len(deep._pieces(y).argmax(1).unique()) / 30)


class Noisy(nn.Module):
    """An encoder that is another one while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.norm(x.flatten(1)))
        return out


def test_encoders_are_evaluated_and_left_as_they_were() -> None:
    encoder = Noisy().train()
    encoder.drop.eval()
    images = points(40).reshape(40, 1, 3, 1)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    for divergence in (Embedded(encoder, seeded()), Scaled(Embedded(encoder, seeded()), 2.0)):
        found = metrics.diagnose(divergence, images)
        assert found == metrics.diagnose(divergence, images)
        inner = metrics.diagnose(seeded(), images.flatten(1) / (1 + encoder.norm.eps) ** 0.5)
        assert found.asymmetry == pytest.approx(inner.asymmetry, rel=1e-4)
        assert found.conditioning is not None
        assert inner.conditioning is not None
        assert found.conditioning.median == pytest.approx(inner.conditioning.median, rel=1e-4)
        assert encoder.training
        assert encoder.norm.training
        assert not encoder.drop.training
        assert divergence.training
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name])
    assert metrics.diagnose(Embedded(encoder, Sqrt(seeded())), images).name == "Embedded(Sqrt(NeuralBregman))"


def test_nothing_is_recorded_for_a_gradient() -> None:
    divergence, x = seeded(), points().requires_grad_()
    metrics.diagnose(divergence, x)
    assert x.grad is None
    assert all(parameter.grad is None for parameter in divergence.parameters())


def test_plain_words() -> None:
    text = str(metrics.diagnose(seeded(), points()))
    lines = text.splitlines()
    assert lines[0] == "NeuralBregman at 40 points"
    assert lines[1].startswith("Not symmetric: D(x, y) and D(y, x) differ by ")
    assert lines[2].startswith("The triangle inequality fails in ")
    assert lines[3].startswith("The potential bends ")
    assert lines[4].endswith(" % of the hidden units never bend at these points.")
    short = str(metrics.diagnose(Symmetrized(Mahalanobis(3)), points()))
    assert len(short.splitlines()) == 3


@pytest.mark.parametrize(
    "function", [metrics.asymmetry, metrics.triangle_violations, metrics.dead_units, metrics.diagnose]
)
def test_bad_points_are_named(function) -> None:
    divergence, name = seeded(), function.__name__
    with pytest.raises(TypeError, match=f"divergence of {name} must be an askew divergence. Got Linear"):
        function(nn.Linear(3, 3), points())
    with pytest.raises(TypeError, match=f"x of {name} must be a torch.Tensor. Got ndarray"):
        function(divergence, points().numpy())
    with pytest.raises(ValueError, match=rf"x of {name} must be of shape \(n, dim\) with n >= \d. Got \(1, 3\)"):
        function(divergence, points(1))
    with pytest.raises(ValueError, match=rf"x of {name} must be of shape \(..., 3\). Got \(40, 2\)"):
        function(divergence, points(40, 2))
    bad = points()
    bad[4, 1] = math.nan
    with pytest.raises(ValueError, match=rf"x of {name} must be finite. Got x\[4, 1\] = nan"):
        function(divergence, bad)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(TypeError, match=r"divergence of conditioning must be a Bregman divergence.*Got Euclidean"):
        metrics.conditioning(Sqrt(Euclidean(3)), points())
    with pytest.raises(TypeError, match=r"divergence of dead_units must be a divergence with a network .*Got Bregman"):
        metrics.dead_units(Bregman(Quadratic(3)), points())
    with pytest.raises(ValueError, match=r"n_pairs of asymmetry must be a positive integer. Got 0"):
        metrics.asymmetry(seeded(), points(), n_pairs=0)
    with pytest.raises(ValueError, match="tolerance of dead_units must be a finite number above zero"):
        metrics.dead_units(seeded(), points(), tolerance=0.0)


class Overflowing(Divergence):
    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(1e4 * (x - y).square().sum(-1)) - 1


def test_values_that_overflow_are_named() -> None:
    with pytest.raises(ValueError, match=r"D of Overflowing must be finite at the points. Got inf for points 0 and 1"):
        metrics.asymmetry(Overflowing(DIM), points(5, DIM))
