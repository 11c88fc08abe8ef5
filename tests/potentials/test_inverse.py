"""Newton's method for the inverse gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from askew.checks import POSITIVE, REAL, SIMPLEX, UNIT_BOX, Domain
from askew.potentials import inverse
from askew.potentials.base import Potential
from askew.potentials.closed_form import Burg, FermiDirac, LogSumExp, NegativeEntropy, PowerNorm, Quadratic
from askew.potentials.compositions import AffinePrecomposed
from askew.potentials.function import FromFunction
from askew.potentials.inverse import newton

DIM = 3


def normals(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class SoftplusBowl(nn.Module):
    """sum softplus(U x + b) + curvature |x|^2."""

    def __init__(self, curvature: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(normals(6, DIM, seed=1).float())
        self.bias = nn.Parameter(normals(6, seed=2).float())
        self.curvature = curvature

    def forward(self, x: Tensor) -> Tensor:
        bumps = nn.functional.softplus(x @ self.weight.mT + self.bias).sum(-1)
        return bumps + self.curvature * x.square().sum(-1)


def bowl(curvature: float = 1.0) -> Potential:
    return FromFunction(SoftplusBowl(curvature), DIM)


MIXED = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.5, 0.0, 1.0]])
TALL = torch.cat([MIXED, torch.ones(1, DIM)])
CASES = {
    "bowl": (bowl, REAL),
    "bowl without quadratic": (lambda: bowl(0.0), REAL),
    "entropy + quadratic": (lambda: NegativeEntropy(DIM) + Quadratic(DIM), POSITIVE),
    "burg + bowl": (lambda: Burg(DIM) + FromFunction(SoftplusBowl(0.1), DIM), POSITIVE),
    "coins + quadratic": (lambda: FermiDirac(DIM) + 0.5 * Quadratic(DIM), UNIT_BOX),
    "simplex entropy + quadratic": (lambda: NegativeEntropy(DIM, simplex=True) + Quadratic(DIM, MIXED), SIMPLEX),
    "power + quadratic": (lambda: PowerNorm(DIM, p=1.5) + 0.1 * Quadratic(DIM), REAL),
    "quartic": (lambda: FromFunction(lambda x: x.pow(4).sum(-1), DIM), REAL),
    "tall entropy": (lambda: AffinePrecomposed(NegativeEntropy(4), TALL), POSITIVE),
}


def points(domain: Domain, rows: int, seed: int) -> Tensor:
    z = 1.5 * normals(rows, DIM, seed=seed)
    if domain == SIMPLEX:
        return z.softmax(-1)
    if domain == UNIT_BOX:
        return z.sigmoid()
    return z.exp() if domain == POSITIVE else z


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_finds_the_point_of_a_gradient(name, dtype):
    make, domain = CASES[name]
    phi = make().to(dtype)
    x = points(domain, 40, seed=3).to(dtype)
    g = phi.gradient(x).detach()
    point, residual, iterations = newton(phi, g)
    assert point.dtype == residual.dtype == dtype
    assert point.shape == g.shape
    assert residual.shape == (40,)
    assert 0 < iterations < 50
    eps = torch.finfo(dtype).eps
    scale = 1 + g.abs().amax(-1) + torch.einsum("nij,nj->ni", phi.hessian(x).detach().abs(), x.abs()).amax(-1)
    assert (residual <= 64 * eps * scale + 1e-12 * g.abs().amax(-1)).all()
    tolerance = 1e-3 if dtype == torch.float32 else 1e-8
    torch.testing.assert_close(point, x, rtol=tolerance, atol=tolerance)


def test_residual_is_that_of_the_returned_point():
    phi = bowl()
    g = phi.gradient(normals(5, DIM, seed=4).float()).detach()
    result = newton(phi, g)
    wide = bowl().double()
    want = (wide.gradient(result.point.double()) - g.double()).abs().amax(-1)
    torch.testing.assert_close(result.residual.double(), want.detach(), rtol=1e-5, atol=0)
    assert (result.residual > 0).any()  # the rounding of float32 points shows


def test_does_not_change_the_potential_or_record_gradients():
    phi = bowl()
    before = {name: t.clone() for name, t in phi.state_dict().items()}
    point = newton(phi, torch.zeros(2, DIM, requires_grad=True)).point
    assert not point.requires_grad
    assert all(torch.equal(before[name], t) and t.dtype == torch.float32 for name, t in phi.state_dict().items())


def test_a_warm_start_saves_steps():
    phi = bowl().double()
    x = normals(10, DIM, seed=5)
    g = phi.gradient(x).detach()
    cold = newton(phi, g).iterations
    assert newton(phi, g, start=x).iterations == 0
    assert newton(phi, g, start=x + 1e-4).iterations < cold
    assert phi.inverse_gradient(g, start=x).iterations == 0


def test_a_start_outside_the_domain_is_moved_inside():
    phi = (NegativeEntropy(DIM) + Quadratic(DIM)).double()
    x = points(POSITIVE, 4, seed=6)
    result = newton(phi, phi.gradient(x), start=torch.full((DIM,), -5.0, dtype=torch.float64))
    torch.testing.assert_close(result.point, x)


def test_an_unreachable_gradient_does_not_raise_and_spoils_no_other_row():
    phi = bowl(0.0).double()
    x = normals(1, DIM, seed=7)
    g = torch.cat([phi.gradient(x).detach(), torch.full((1, DIM), 1e3, dtype=torch.float64)])
    result = newton(phi, g)
    torch.testing.assert_close(result.point[:1], x, rtol=1e-7, atol=1e-7)
    assert result.residual[0] < 1e-10
    assert result.residual[1] > 10


def test_an_infeasible_image_has_an_infinite_residual():
    # No x has both x and -x - 1 positive.
    phi = AffinePrecomposed(Burg(2), torch.tensor([[1.0], [-1.0]]), torch.tensor([0.0, -1.0]))
    assert newton(phi, torch.ones(1, 1)).residual.item() == torch.inf


def test_a_singular_hessian_is_damped():
    phi = AffinePrecomposed(LogSumExp(2), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])).double()
    g = phi.gradient(torch.tensor([[3.0, -3.0, 7.0], [0.1, 0.2, 0.0]], dtype=torch.float64))
    result = newton(phi, g, start=torch.zeros(DIM, dtype=torch.float64))
    assert (result.residual < 1e-10).all()
    assert result.iterations > 0


def test_blocks_of_rows_give_the_same_answer(monkeypatch):
    phi = bowl().double()
    g = normals(9, DIM, seed=8)
    whole = newton(phi, g)
    monkeypatch.setattr(inverse, "BLOCK_BYTES", 4 * 8 * DIM * DIM * 2)
    sizes = []
    hessian = FromFunction.compute_hessian

    def spy(self, x):
        sizes.append(x.shape[0])
        return hessian(self, x)

    monkeypatch.setattr(FromFunction, "compute_hessian", spy)
    blocks = newton(phi, g)
    torch.testing.assert_close(blocks.point, whole.point, rtol=1e-12, atol=1e-12)
    assert blocks.iterations == whole.iterations
    assert max(sizes) == 2


def test_shapes_with_and_without_rows():
    phi = bowl()
    g = torch.zeros(2, 0, DIM)
    assert newton(phi, g).point.shape == (2, 0, DIM)
    assert newton(phi, torch.zeros(DIM)).residual.shape == ()
    assert newton(phi, torch.zeros(2, 3, DIM)).residual.shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: newton(bowl(), torch.zeros(2)), ValueError, r"g of newton must be of shape \(\.\.\., 3\)"),
        (lambda: newton(bowl(), torch.zeros(3), start=torch.zeros(2)), ValueError, r"start of newton must be of shape"),
        (
            lambda: torch.func.vmap(lambda g: newton(Quadratic(3), g).point)(torch.zeros(2, 3)),
            RuntimeError,
            r"cannot run inside torch\.compile.*Call inverse_gradient outside",
        ),
    ],
)
def test_errors_say_what_must_be(call, error, text):
    with pytest.raises(error, match=text):
        call()
