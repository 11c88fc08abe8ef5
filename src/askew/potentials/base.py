"""The base class of convex functions phi, and their sums and multiples."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from askew import checks
from askew.checks import NEGATIVE, POSITIVE, REAL, Domain
from askew.io import Rebuildable
from askew.potentials.inverse import InverseGradient, newton


class Potential(Rebuildable, ABC):
    """A convex function phi on a convex domain, the generator of a Bregman divergence.

    Subclasses implement ``compute_value``, ``compute_gradient`` and ``compute_divergence``. The last one gets x, y and
    the difference h = x - y, which a composition may know more exactly than by subtracting two points. The other
    ``compute_...`` hooks have defaults that a subclass can replace by something faster or more exact. Hooks get points
    that have been checked.

    Parameters
    ----------
    dim
        Number of features of a point.

    Attributes
    ----------
    domain : Domain
        Where phi is differentiable.
    dual_domain : Domain
        Where its gradients lie.
    symmetric : bool
        Whether its divergence is symmetric, which holds for quadratic functions only.
    boundary : bool
        Whether phi is finite on the boundary of its domain; x of D(x, y) may then lie there.

    Examples
    --------
    >>> import torch
    >>> from askew.potentials import Quadratic
    >>> (Quadratic(2) + 2.0 * Quadratic(2))(torch.ones(1, 2)).tolist()
    [6.0]
    """

    domain: Domain = REAL
    dual_domain: Domain = REAL
    symmetric: bool = False
    boundary: bool = False

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = checks.check_size(dim, f"dim of {type(self).__name__}")

    # ------------------------------------------------------------------ what callers use

    def forward(self, x: Tensor) -> Tensor:
        """Return phi(x): ``(..., dim) -> (...)``."""
        return self.compute_value(self.checked(x, boundary=True))

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of phi: ``(..., dim) -> (..., dim)``."""
        return self.compute_gradient(self.checked(x))

    def hessian(self, x: Tensor) -> Tensor:
        """Return the second derivatives of phi: ``(..., dim) -> (..., dim, dim)``."""
        return self.compute_hessian(self.checked(x))

    def divergence(self, x: Tensor, y: Tensor) -> Tensor:
        """Return phi(x) - phi(y) - <grad phi(y), x - y> in a form that does not cancel."""
        x, y = self._checked_pair(x, y)
        return self.compute_divergence(x, y, x - y)

    def gradient_difference(self, x: Tensor, y: Tensor) -> Tensor:
        """Return grad phi(x) - grad phi(y), exact for near points where the potential allows it."""
        x, y = self._checked_pair(x, y)
        return self.compute_gradient_difference(x, y, x - y)

    def inverse_gradient(self, g: Tensor, start: Tensor | None = None) -> InverseGradient:
        """Return the point x whose gradient is g, which is the gradient of the conjugate at g.

        ``g`` are gradients, ``(..., dim)``; ``start`` are points to start Newton's method at, such as the solution for
        similar gradients. Closed forms ignore it.
        """
        g = checks.check_points(g, self.dim, "g", type(self).__name__)
        if checks.inspectable(g):
            self.dual_domain.check(g, "g", f"{type(self).__name__}.inverse_gradient")
        return self.compute_inverse_gradient(g, start)

    def __add__(self, other: Potential) -> Potential:
        """Return the sum of two potentials."""
        return Sum([self, other])

    def __rmul__(self, factor: float) -> Potential:
        """Return the potential scaled by a positive number."""
        return Scaled(self, factor)

    # ------------------------------------------------------------------ hooks of subclasses

    @abstractmethod
    def compute_value(self, x: Tensor) -> Tensor:
        """Return phi(x)."""

    @abstractmethod
    def compute_gradient(self, x: Tensor) -> Tensor:
        """Return grad phi(x)."""

    @abstractmethod
    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        """Return D(x, y) where h = x - y; must be non-negative and exactly 0 at h = 0."""

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        """Return grad phi(x) - grad phi(y) where h = x - y; override it with a form that does not cancel."""
        return self.compute_gradient(x) - self.compute_gradient(y)

    def seen_from(self, centre: Tensor) -> SeenFrom:
        """Return phi without its affine part at a centre, ``(1, dim)``; a network computes its part of that once."""
        return SeenFrom(self, centre)

    def compute_hessian(self, x: Tensor) -> Tensor:
        """Return the second derivatives, by default from automatic differentiation of the gradient."""
        rows = x.reshape(-1, self.dim)
        hessian: Tensor = torch.func.vmap(torch.func.jacrev(self.compute_gradient))(rows)
        return hessian.reshape(*x.shape, self.dim)

    def compute_curvatures(self, x: Tensor) -> Tensor | None:
        """Return the diagonal of the Hessian if phi is a sum over coordinates, ``(n, dim) -> (n, dim)``, else None."""
        return None

    def compute_inverse_gradient(self, g: Tensor, start: Tensor | None) -> InverseGradient:
        """Return the points whose gradient is g, by default by Newton's method."""
        return newton(self, g, start)

    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None, median: float = 1.0) -> None:
        """Fit fixed scales to pairs of points before training; does nothing where there are none."""

    def slope_ranges(self, x: Tensor) -> list[Tensor]:
        """Return how much the derivative of each hidden unit changes over points, one tensor for each network."""
        return []

    def contains(self, x: Tensor) -> Tensor:
        """Return which points lie inside the domain: ``(..., dim) -> (...)``."""
        return self.domain.contains(x)

    def check_inside(self, x: Tensor, name: str, *, boundary: bool = False) -> None:
        """Raise if points, called ``name`` in the error, lie outside the domain.

        With ``boundary`` they may lie on its boundary if phi is finite there. Values that may not be looked at, as
        in a compiled graph, are not checked.
        """
        if self.domain is not REAL and checks.inspectable(x):
            self.domain.check(x, name, type(self).__name__, boundary=boundary and self.boundary)

    def _search_start(self, g: Tensor) -> Tensor:
        """Return where Newton's method starts by default."""
        return torch.zeros_like(g)

    # ------------------------------------------------------------------ checks

    def checked(self, x: Tensor, *, boundary: bool = False) -> Tensor:
        """Return points if they have the right shape and lie inside the domain (see :meth:`check_inside`)."""
        x = checks.check_points(x, self.dim, "x", type(self).__name__)
        self.check_inside(x, "x", boundary=boundary)
        return x

    def _checked_pair(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = checks.check_pair(x, y, self.dim, type(self).__name__)
        self.check_domain(x, y)
        return x, y

    def check_domain(self, x: Tensor, y: Tensor) -> None:
        """Raise if x or y of D(x, y) lies outside the domain; x may lie on the boundary where phi is finite."""
        self.check_inside(x, "x", boundary=True)
        self.check_inside(y, "y")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, domain={self.domain}"


class SeenFrom:
    """A potential without its affine part at a centre, which changes no divergence but keeps numbers small.

    Examples
    --------
    >>> import torch
    >>> from askew.potentials import Quadratic
    >>> seen = Quadratic(1).seen_from(torch.tensor([[1.0]]))
    >>> [part.tolist() for part in seen.change(torch.tensor([[3.0]]))]
    [[4.0], [[4.0]]]
    """

    def __init__(self, potential: Potential, centre: Tensor) -> None:
        self.potential, self.centre = potential, centre

    def value(self, points: Tensor) -> Tensor:
        """Return D(point, centre): ``(n, dim) -> (n,)``."""
        return self.potential.compute_divergence(points, self.centre, points - self.centre)

    def change(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return D(point, centre) and grad phi(point) - grad phi(centre): ``(n, dim) -> (n,), (n, dim)``."""
        difference = self.potential.compute_gradient_difference(points, self.centre, points - self.centre)
        return self.value(points), difference


class Sum(Potential):
    """The sum of potentials, which is convex again.

    phi(x) = sum_k phi_k(x), and divergences, gradients and Hessians add up. `a + b` makes one. Adding a
    :class:`~askew.potentials.Quadratic` makes a potential strongly convex.

    Parameters
    ----------
    potentials
        Potentials of the same dimension, each on all of space or on one common domain.

    Examples
    --------
    >>> from askew.potentials.closed_form import Exponential, Quadratic
    >>> phi = Sum([Exponential(1), Quadratic(1)])
    >>> phi.divergence(torch.tensor([1.0]), torch.tensor([0.0]))
    tensor(1.7183)
    """

    def __init__(self, potentials: Sequence[Potential]) -> None:
        parts = list(potentials)
        if not parts or not all(isinstance(part, Potential) for part in parts):
            got = [type(part).__name__ for part in parts]
            raise TypeError(checks.message("potentials of Sum", "a non-empty sequence of potentials", got))
        super().__init__(parts[0].dim)
        dims = [part.dim for part in parts]
        if len(set(dims)) > 1:
            raise ValueError(checks.message("potentials of Sum", "of one dimension", dims))
        limited = [part for part in parts if part.domain != REAL]
        if len({part.domain for part in limited}) > 1:
            got = [f"{type(part).__name__}: {part.domain}" for part in limited]
            raise ValueError(checks.message("potentials of Sum", "on one domain (or on all of space)", got))
        if limited:
            self.domain = limited[0].domain
        self.boundary = all(part.boundary or part.domain == REAL for part in parts)
        self.symmetric = all(part.symmetric for part in parts)
        self.potentials = nn.ModuleList(parts)

    @property
    def parts(self) -> list[Potential]:
        """The potentials."""
        return [cast(Potential, part) for part in self.potentials]

    def compute_value(self, x: Tensor) -> Tensor:
        return total([part.compute_value(x) for part in self.parts])

    def compute_gradient(self, x: Tensor) -> Tensor:
        return total([part.compute_gradient(x) for part in self.parts])

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return total([part.compute_divergence(x, y, h) for part in self.parts])

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return total([part.compute_gradient_difference(x, y, h) for part in self.parts])

    def compute_hessian(self, x: Tensor) -> Tensor:
        return total([part.compute_hessian(x) for part in self.parts])

    def _search_start(self, g: Tensor) -> Tensor:
        # The mean over the parts, each for its share of the gradient; one without a point for it returns NaN.
        starts = torch.stack([part._search_start(g / len(self.potentials)) for part in self.parts])
        usable = torch.isfinite(starts).all(-1, keepdim=True)
        return torch.where(usable, starts, 0).sum(0) / usable.sum(0).clamp(min=1)

    def check_inside(self, x: Tensor, name: str, *, boundary: bool = False) -> None:
        for part in self.parts:
            part.check_inside(x, name, boundary=boundary)

    def contains(self, x: Tensor) -> Tensor:
        return torch.stack([part.contains(x) for part in self.parts]).all(0)

    def slope_ranges(self, x: Tensor) -> list[Tensor]:
        return [change for part in self.parts for change in part.slope_ranges(x)]


class Scaled(Potential):
    """A potential times a positive number.

    phi(x) = factor * inner(x), and its divergence is multiplied as well. `2.0 * a` makes one. Use it to weight the
    terms of a :class:`Sum`; alone, a divergence ranks and clusters the same at every scale.

    Parameters
    ----------
    potential
        The potential to scale.
    factor
        A positive number, kept as a buffer of the default dtype.

    Examples
    --------
    >>> from askew.potentials.closed_form import Quadratic
    >>> phi = Scaled(Quadratic(1), 0.5)
    >>> phi.divergence(torch.tensor([2.0]), torch.tensor([0.0]))
    tensor(2.)
    """

    factor: Tensor

    def __init__(self, potential: Potential, factor: float) -> None:
        super().__init__(check_potential(potential, "Scaled").dim)
        self.potential = potential
        value = torch.tensor(checks.check_positive(factor, "factor of Scaled"), dtype=torch.get_default_dtype())
        self.register_buffer("factor", value)
        self.domain = potential.domain
        # Scaling does not change cones; other sets of gradients are checked by the inner potential.
        self.dual_domain = potential.dual_domain if potential.dual_domain in (POSITIVE, NEGATIVE) else REAL
        self.boundary = potential.boundary
        self.symmetric = potential.symmetric

    def compute_value(self, x: Tensor) -> Tensor:
        return self.factor * self.potential.compute_value(x)

    def compute_gradient(self, x: Tensor) -> Tensor:
        return self.factor * self.potential.compute_gradient(x)

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return self.factor * self.potential.compute_divergence(x, y, h)

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return self.factor * self.potential.compute_gradient_difference(x, y, h)

    def compute_hessian(self, x: Tensor) -> Tensor:
        return self.factor * self.potential.compute_hessian(x)

    def compute_inverse_gradient(self, g: Tensor, start: Tensor | None) -> InverseGradient:
        point, residual, iterations = self.potential.inverse_gradient(g / self.factor, start)
        return InverseGradient(point, residual * self.factor, iterations)

    def _search_start(self, g: Tensor) -> Tensor:
        return self.potential._search_start(g / self.factor)

    def check_inside(self, x: Tensor, name: str, *, boundary: bool = False) -> None:
        self.potential.check_inside(x, name, boundary=boundary)

    def contains(self, x: Tensor) -> Tensor:
        return self.potential.contains(x)

    def slope_ranges(self, x: Tensor) -> list[Tensor]:
        return self.potential.slope_ranges(x)


def total(terms: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors, from the first to the last."""
    return functools.reduce(torch.add, terms)


def check_potential(potential: Potential, owner: str) -> Potential:
    """Return ``potential`` if it is one."""
    if not isinstance(potential, Potential):
        raise TypeError(checks.message(f"potential of {owner}", "a Potential", type(potential).__name__))
    return potential
