"""The inverse gradient of any potential by Newton's method, for all rows at once."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from askew import checks
from askew.checks import Domain

ModuleType = TypeVar("ModuleType", bound=nn.Module)
# An askew.potentials.Potential; their module imports this one.
Potential = Any

# Bytes of all (rows, dim, dim) temporaries of one block together, and how many of them there are.
BLOCK_BYTES = 1 << 26
TEMPORARIES = 4
# The longest step relative to the size of the point: a flat Hessian must not throw a row away.
LONGEST_STEP = 100.0
HALVINGS = 50
MOST_STEPS = 100


class InverseGradient(NamedTuple):
    """Points with given gradients, and how exact they are.

    Attributes
    ----------
    point : Tensor
        The points x with grad phi(x) = g, ``(..., dim)``.
    residual : Tensor
        max |grad phi(x) - g| of each row, ``(...)``; zeros where there is a closed form.
    iterations : int
        Newton steps taken; 0 where there is a closed form.

    Examples
    --------
    >>> import torch
    >>> from askew.potentials import Quadratic
    >>> Quadratic(2).inverse_gradient(torch.tensor([2.0, 4.0])).point.tolist()
    [1.0, 2.0]
    """

    point: Tensor
    residual: Tensor
    iterations: int


def newton(potential: Potential, g: Tensor, start: Tensor | None = None) -> InverseGradient:
    """Return the points whose gradient is g, by a damped Newton method.

    Each row minimises phi(x) - <g, x>; a step is halved until the objective falls enough and the point lies in the
    domain. The fall is computed as D(new, old) + <grad phi(old) - g, new - old>, in which nothing cancels near the
    solution. A nearly singular Hessian gets a multiple of the identity. All in float64 whatever the dtype of g, except
    on ``mps``, which has none. It records no gradients; :class:`~askew.potentials.Conjugate` does.

    ``start``, broadcast to the shape of g, are points to start at; a row outside the domain starts in the middle of it.
    A row is finished when max |grad phi(x) - g| is at most 1e-12 (on ``mps`` 1e-5) times max |g|, or when rounding
    allows no progress. A row that does not converge raises no error: see its residual, which is infinite
    outside the domain. On the simplex, where gradients matter up to a constant only, the residual leaves that constant
    out.

    Examples
    --------
    >>> from askew.potentials.closed_form import NegativeEntropy, Quadratic
    >>> phi = NegativeEntropy(2) + Quadratic(2)
    >>> newton(phi, phi.gradient(torch.tensor([1.0, 2.0]))).point
    tensor([1., 2.])
    """
    g = checks.check_points(g, potential.dim, "g", "newton")
    if start is not None:
        start = checks.check_points(start, potential.dim, "start", "newton").expand(g.shape)
    if checks.transformed() or g.is_meta:
        raise RuntimeError(
            "newton chooses its steps by the values it sees, so it cannot run inside torch.compile, torch.export, "
            "torch.func or forward-mode differentiation, nor on the meta device. Call inverse_gradient outside of them."
        )
    wide = working_dtype(g)
    with torch.no_grad():
        model = widened(potential, wide)
        targets = g.to(wide).reshape(-1, potential.dim)
        starts = model._search_start(targets) if start is None else start.to(wide).reshape(targets.shape)
        rows = max(1, BLOCK_BYTES // (TEMPORARIES * targets.element_size() * potential.dim**2))
        points, residuals, iterations = [], [], 0
        for target, first in zip(targets.split(rows), starts.split(rows), strict=True):
            point, steps = _minimise(model, target, _moved_inside(model, first))
            point = point.to(g.dtype)
            points.append(point)
            residuals.append(_residual(model, point.to(wide), target))
            iterations = max(iterations, steps)
    point, residual = torch.cat(points), torch.cat(residuals)
    return InverseGradient(point.reshape(g.shape), residual.to(g.dtype).reshape(g.shape[:-1]), iterations)


def inverse_hessian(potential: Potential, x: Tensor) -> Tensor:
    """Return the pseudo-inverse of the Hessian within the domain, without recording gradients."""
    with torch.no_grad():
        x = x.detach()
        wide = working_dtype(x)
        hessian = potential.compute_hessian(x).to(wide)
        rtol = x.shape[-1] * torch.finfo(x.dtype).eps
        basis = _tangent_basis(potential.domain, x.to(wide))
        if basis is not None:
            hessian = basis.mT @ hessian @ basis
        inverse: Tensor = torch.linalg.pinv(hessian, rtol=rtol, hermitian=True)
        if basis is not None:
            inverse = basis @ inverse @ basis.mT
        return inverse.to(x.dtype)


def working_dtype(x: Tensor) -> torch.dtype:
    """Return float64, or float32 on a device that has no float64."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def widened(module: ModuleType, dtype: torch.dtype) -> ModuleType:
    """Return the module if all its numbers have this dtype, else a converted copy."""
    tensors = chain(module.parameters(), module.buffers())
    if all(t.dtype == dtype for t in tensors if t.is_floating_point()):
        return module
    return copy.deepcopy(module).to(dtype)


# ---------------------------------------------------------------------- one block of rows


def _minimise(model: Potential, g: Tensor, start: Tensor) -> tuple[Tensor, int]:
    """Return the points and the number of steps; finished rows drop out."""
    basis = _tangent_basis(model.domain, g)
    point = start.clone()
    limit = (1e-12 if g.dtype == torch.float64 else 1e-5) * g.abs().amax(-1)
    damping = torch.zeros_like(limit)
    strikes = torch.zeros_like(limit)
    last = torch.full_like(limit, torch.inf)
    active = model.contains(point).nonzero().squeeze(-1)
    for iteration in range(MOST_STEPS):
        x = point[active]
        excess = _tangential(model.compute_gradient(x) - g[active], model.domain)
        size = excess.abs().amax(-1)
        # Short full steps that no longer shrink the residual: only rounding is left.
        strikes[active] = torch.where(size > last[active] / 2, strikes[active], 0)
        last[active] = size
        # A NaN residual compares false, and its row drops out as well.
        going = (size > limit[active]) & torch.isfinite(size) & (strikes[active] < 3)
        active, x, excess = active[going], x[going], excess[going]
        if active.numel() == 0:
            return point, iteration
        direction = _direction(model.compute_hessian(x), excess, damping[active], basis)
        longest = LONGEST_STEP * (1 + x.abs().amax(-1, keepdim=True))
        direction = direction * (longest / direction.abs().amax(-1, keepdim=True)).clamp(max=1)
        length = _line_search(model, x, direction, excess)
        step = length.unsqueeze(-1) * direction
        point[active] = torch.where(length.unsqueeze(-1) > 0, x + step, x)
        failed, full = length == 0, length == 1
        short = step.abs().amax(-1) <= 1e-6 * x.abs().amax(-1)
        strikes[active] = torch.where(full & short, strikes[active] + 1, 0)
        increased = (100 * damping[active]).clamp(min=1e-8)
        damping[active] = torch.where(failed, increased, torch.where(full, damping[active] / 100, damping[active]))
        still = (step.abs() <= torch.finfo(x.dtype).eps * x.abs()).all(-1) & ~failed
        active = active[~still & (damping[active] < 1e6)]
    return point, MOST_STEPS


def _direction(hessian: Tensor, excess: Tensor, damping: Tensor, basis: Tensor | None) -> Tensor:
    """Solve (H + damping) d = -excess, with enough damping for a Cholesky factor to exist."""
    # An infinite curvature, as of |x|^1.5 at 0, does not tell how far to go; the line search will.
    hessian = torch.nan_to_num(hessian, nan=0.0, posinf=1.0, neginf=0.0)
    if basis is not None:
        hessian, excess = basis.mT @ hessian @ basis, excess @ basis
    size = hessian.shape[-1]
    diagonal = hessian.diagonal(dim1=-2, dim2=-1).abs().amax(-1)
    scale = torch.where(diagonal > 0, diagonal, 1)
    identity = torch.eye(size, dtype=hessian.dtype, device=hessian.device)
    extra = damping + 4 * size * torch.finfo(hessian.dtype).eps
    for _ in range(12):
        factor, info = torch.linalg.cholesky_ex(hessian + (scale * extra)[:, None, None] * identity)
        if not bool((info > 0).any()):
            break
        extra = torch.where(info > 0, 100 * extra, extra)
    direction = torch.cholesky_solve(-excess.unsqueeze(-1), factor).squeeze(-1)
    # A row that still has no factor takes the steepest descent.
    direction = torch.where((info > 0).unsqueeze(-1), -excess / scale.unsqueeze(-1), direction)
    return direction if basis is None else direction @ basis.mT


def _line_search(model: Potential, x: Tensor, direction: Tensor, excess: Tensor) -> Tensor:
    """Return step lengths 1, 1/2, 1/4, ... that satisfy Armijo's rule inside the domain, or 0."""
    descent = -(excess * direction).sum(-1)
    result = torch.zeros_like(descent)
    waiting = (torch.isfinite(direction).all(-1) & (descent > 0)).nonzero().squeeze(-1)
    length = 1.0
    for _ in range(HALVINGS):
        if waiting.numel() == 0:
            break
        old, step = x[waiting], length * direction[waiting]
        new = old + step
        # The objective must fall by at least a quarter of what its slope predicts, written without cancellation. A
        # quadratic falls by half: good Newton steps pass, those that jump to the other side do not.
        falls = model.compute_divergence(new, old, step) <= 0.75 * length * descent[waiting]
        accepted = falls & model.contains(new)
        result[waiting[accepted]] = length
        waiting = waiting[~accepted]
        length /= 2
    return result


def _residual(model: Potential, x: Tensor, g: Tensor) -> Tensor:
    excess = _tangential(model.compute_gradient(x) - g, model.domain).abs().amax(-1)
    valid = model.contains(x) & torch.isfinite(excess)
    return torch.where(valid, excess, torch.inf)


def _tangential(excess: Tensor, domain: Domain) -> Tensor:
    """On the simplex, remove the part of a gradient that points out of it."""
    return excess - excess.mean(-1, keepdim=True) if domain.sums_to_one else excess


def _tangent_basis(domain: Domain, like: Tensor) -> Tensor | None:
    """Return an orthonormal basis of the directions inside the simplex, ``(dim, dim - 1)``; else None."""
    dim = like.shape[-1]
    if not domain.sums_to_one or dim == 1:
        return None
    # The first column of the orthogonal factor is the normal vector, the others are tangent.
    orthogonal: Tensor = torch.linalg.qr(like.new_ones(dim, 1), mode="complete").Q
    return orthogonal[:, 1:]


def _moved_inside(model: Potential, start: Tensor) -> Tensor:
    """Replace the rows of a start that lie outside the domain by a point in its middle."""
    if model.domain.sums_to_one:
        start = start / start.sum(-1, keepdim=True)
    return torch.where(model.contains(start).unsqueeze(-1), start, model.domain.middle(model.dim))
