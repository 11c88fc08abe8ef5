"""The convex conjugate of a potential, a function of its gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from askew import checks
from askew.potentials.base import Potential, Scaled, check_potential
from askew.potentials.closed_form import ClosedForm
from askew.potentials.inverse import InverseGradient, inverse_hessian, widened, working_dtype

# A row is solved if its residual is below this times max |g| (plus a little, for g = 0).
SOLVED = 1e-6
SOLVED_AT_ZERO = 1e-9


class Conjugate(Potential):
    """The convex conjugate, phi*(g) = max_x <g, x> - phi(x).

    Its gradient is the inverse of grad phi, and D_phi*(u, v) = D_phi(x(v), x(u)) with x(g) = (grad phi)^-1 (g),
    computed by the exact divergence of phi. Conjugates of closed forms are formulas and work inside ``torch.compile``
    and ``vmap``. For others each call solves a convex problem by Newton's method, which is slow and does not work
    there. Twice differentiable in g and in the parameters of phi.

    Parameters
    ----------
    potential
        phi, strictly convex or one of the closed forms.

    References
    ----------
    Rockafellar, Convex Analysis, 1970, section 26.

    Examples
    --------
    >>> from askew.potentials.closed_form import NegativeEntropy
    >>> phi = NegativeEntropy(2)
    >>> x, y = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    >>> Conjugate(phi).divergence(phi.gradient(y), phi.gradient(x)) - phi.divergence(x, y)
    tensor(0.)
    """

    def __init__(self, potential: Potential) -> None:
        super().__init__(check_potential(potential, "Conjugate").dim)
        self.potential = potential
        self.domain = potential.dual_domain
        self.dual_domain = potential.domain
        self.symmetric = potential.symmetric

    def compute_value(self, x: Tensor) -> Tensor:
        point = _invert(self.potential, x)
        return (x * point).sum(-1) - self.potential.compute_value(point)

    def compute_gradient(self, x: Tensor) -> Tensor:
        return _invert(self.potential, x)

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        of_x, of_y = _invert(self.potential, x), _invert(self.potential, y)
        difference = _invert_difference(self.potential, x, y, h, of_x, of_y)
        return self.potential.compute_divergence(of_y, of_x, -difference)

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        of_x, of_y = _invert(self.potential, x), _invert(self.potential, y)
        return _invert_difference(self.potential, x, y, h, of_x, of_y)

    def compute_hessian(self, x: Tensor) -> Tensor:
        return inverse_hessian(self.potential, _invert(self.potential, x))

    def compute_inverse_gradient(self, g: Tensor, start: Tensor | None) -> InverseGradient:
        return InverseGradient(self.potential.compute_gradient(g), g.new_zeros(g.shape[:-1]), 0)

    def slope_ranges(self, x: Tensor) -> list[Tensor]:
        # Gradients of a potential without hidden units need not be inverted.
        hidden = any(True for _ in self.potential.parameters())
        return self.potential.slope_ranges(self.gradient(x)) if hidden else []


# ---------------------------------------------------------------------- differentiable inverse gradients


def _invert(potential: Potential, g: Tensor) -> Tensor:
    """Return the point whose gradient is g, twice differentiable in g and in the parameters."""
    if isinstance(potential, Conjugate):
        return potential.potential.compute_gradient(g)
    if isinstance(potential, Scaled):
        return _invert(potential.potential, g / potential.factor)
    if isinstance(potential, ClosedForm):
        result = potential.compute_inverse_gradient(g, None)
        if checks.inspectable(g):
            _check_solved(potential, g, result.residual)
        return result.point
    with torch.no_grad():
        # In float64 the residual shows convergence, not the rounding of the points.
        wide = working_dtype(g)
        point, residual, _ = widened(potential, wide).compute_inverse_gradient(g.to(wide), None)
        _check_solved(potential, g, residual)
        point = point.to(g.dtype)
    if not torch.is_grad_enabled():
        return point
    # Each Newton step with a fixed Hessian makes one more derivative right. Its value is subtracted again: the point
    # itself is as good as it gets.
    inverse = inverse_hessian(potential, point)
    solution = point
    for _ in range(2):
        step = _apply(inverse, potential.compute_gradient(solution) - g)
        solution = solution - (step - step.detach())
    return solution


def _invert_difference(potential: Potential, u: Tensor, v: Tensor, h: Tensor, of_u: Tensor, of_v: Tensor) -> Tensor:
    """Return the point of u minus the point of v, exact for near gradients u - v = h."""
    if isinstance(potential, Conjugate):
        return potential.potential.compute_gradient_difference(u, v, h)
    if isinstance(potential, Scaled):
        factor = potential.factor
        return _invert_difference(potential.potential, u / factor, v / factor, h / factor, of_u, of_v)
    if isinstance(potential, ClosedForm):
        return potential._inverse_difference(u, v, h)
    # The rounding of two points is large compared with a small difference. But the gradient difference is known
    # exactly: a Newton step for the difference alone.
    difference = of_u - of_v
    error = potential.compute_gradient_difference(of_u, of_v, difference) - h
    refined = difference - _apply(inverse_hessian(potential, of_v), error)
    near = difference.norm(dim=-1, keepdim=True) <= 1e-2 * of_v.detach().norm(dim=-1, keepdim=True)
    return torch.where(near, refined, difference)


def _check_solved(potential: Potential, g: Tensor, residual: Tensor) -> None:
    """Raise if a row has not converged, naming the first."""
    size = g.detach().abs().amax(-1)
    relative = 64 * torch.finfo(g.dtype).eps ** 0.5 if isinstance(potential, ClosedForm) else SOLVED
    failed = ~(residual.detach() <= relative * size + SOLVED_AT_ZERO)
    if not bool(failed.any()):
        return
    index = tuple(int(i) for i in failed.nonzero()[0])
    row = f"row {index[0] if len(index) == 1 else index}" if index else "the point"
    raise ValueError(
        f"The conjugate of {type(potential).__name__} has no solution of grad phi(x) = g at {row}: the residual is "
        f"{residual[index].item():.3g} where max |g| is {size[index].item():.3g}. This gradient probably lies outside "
        f"the range of grad phi. Add a quadratic term, as in potential + 0.01 * Quadratic({potential.dim}), whose "
        "gradients reach every g, or only ask for gradients that the potential takes."
    )


def _apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    return (matrices @ vectors.unsqueeze(-1)).squeeze(-1)
