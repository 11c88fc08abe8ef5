"""Potentials made of other potentials: sum, multiple, linear map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from askew import checks
from askew.checks import NEGATIVE, POSITIVE, REAL
from askew.potentials.base import InverseGradient, Potential

__all__ = ["AffinePrecomposed", "Scaled", "Sum", "check_potential"]


class Sum(Potential):
    """The sum of potentials, which is convex again.

    phi(x) = sum_k phi_k(x), and divergences, gradients and Hessians add up. `a + b` makes one. Add a
    :class:`~askew.potentials.closed_form.Quadratic` to make a potential strongly convex.

    Parameters
    ----------
    potentials
        Potentials of one dimension. Those whose domain is not all of space must agree on it.

    Examples
    --------
    >>> from askew.potentials.closed_form import Exponential, Quadratic
    >>> phi = Sum([Exponential(1), Quadratic(1)])
    >>> phi.divergence(torch.tensor([1.0]), torch.tensor([0.0]))
    tensor(1.7183)
    """

    def __init__(self, potentials: Sequence[Potential]) -> None:
        members = list(potentials)
        if not members or not all(isinstance(member, Potential) for member in members):
            got = [type(member).__name__ for member in members]
            raise TypeError(checks.message("potentials of Sum", "a non-empty sequence of potentials", got))
        super().__init__(members[0].dim)
        dims = [member.dim for member in members]
        if len(set(dims)) > 1:
            raise ValueError(checks.message("potentials of Sum", "of one dimension", dims))
        limited = [member for member in members if member.domain != REAL]
        for member in limited[1:]:
            if member.domain != limited[0].domain:
                must = "on one domain (or on all of space)"
                got = [f"{type(each).__name__}: {each.domain}" for each in limited]
                raise ValueError(checks.message("potentials of Sum", must, got))
        if limited:
            self.domain = limited[0].domain
        self.boundary = all(member.boundary or member.domain == REAL for member in members)
        self.symmetric = all(member.symmetric for member in members)
        self.potentials = nn.ModuleList(members)

    @property
    def parts(self) -> list[Potential]:
        return [cast(Potential, member) for member in self.potentials]

    def compute_value(self, x: Tensor) -> Tensor:
        return _total([member.compute_value(x) for member in self.parts])

    def compute_gradient(self, x: Tensor) -> Tensor:
        return _total([member.compute_gradient(x) for member in self.parts])

    def compute_value_and_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pairs = [member.compute_value_and_gradient(x) for member in self.parts]
        return _total([value for value, _ in pairs]), _total([gradient for _, gradient in pairs])

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return _total([member.compute_divergence(x, y, h) for member in self.parts])

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return _total([member.compute_gradient_difference(x, y, h) for member in self.parts])

    def compute_hessian(self, x: Tensor) -> Tensor:
        return _total([member.compute_hessian(x) for member in self.parts])

    def _search_start(self, g: Tensor) -> Tensor:
        # Each member's own answer, or guess, for its share of the gradient; those that have none say NaN.
        starts = torch.stack([member._search_start(g / len(self.potentials)) for member in self.parts])
        usable = torch.isfinite(starts).all(-1, keepdim=True)
        return torch.where(usable, starts, 0).sum(0) / usable.sum(0).clamp(min=1)

    def check_inside(self, x: Tensor, name: str, *, boundary: bool = False) -> None:
        for member in self.parts:
            member.check_inside(x, name, boundary=boundary)

    def contains(self, x: Tensor) -> Tensor:
        return torch.stack([member.contains(x) for member in self.parts]).all(0)

    def slope_ranges(self, x: Tensor) -> list[Tensor]:
        return [change for member in self.parts for change in member.slope_ranges(x)]


class Scaled(Potential):
    """A potential times a positive number.

    phi(x) = factor * inner(x), and so for its divergence. `2.0 * a` makes one. The weight of a term in a
    :class:`Sum`; a divergence on its own ranks and clusters the same at every scale.

    Parameters
    ----------
    potential
        What is scaled.
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
        # Cones stay what they are; other sets of gradients are checked by the inner potential.
        self.dual_domain = potential.dual_domain if potential.dual_domain in (POSITIVE, NEGATIVE) else REAL
        self.boundary = potential.boundary
        self.symmetric = potential.symmetric

    def compute_value(self, x: Tensor) -> Tensor:
        return self.factor * self.potential.compute_value(x)

    def compute_gradient(self, x: Tensor) -> Tensor:
        return self.factor * self.potential.compute_gradient(x)

    def compute_value_and_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.potential.compute_value_and_gradient(x)
        return self.factor * value, self.factor * gradient

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


class AffinePrecomposed(Potential):
    """A potential of an affine image, phi(x) = inner(A x + b).

    D(x, y) is the inner divergence of the images. Only A (x - y) goes in as their difference, so near
    points keep their accuracy whatever the offset. Use it to learn or fix a linear view of the data.

    Parameters
    ----------
    potential
        The inner potential on ``rank`` features.
    matrix
        A, ``(rank, dim)``: a parameter if it is one, else kept as a buffer.
    offset
        b, ``(rank,)``, likewise; none if not given.

    Examples
    --------
    >>> from askew.potentials.closed_form import Exponential
    >>> phi = AffinePrecomposed(Exponential(1), torch.tensor([[1.0, -1.0]]))
    >>> phi.divergence(torch.tensor([2.0, 1.0]), torch.tensor([0.0, 0.0]))
    tensor(0.7183)
    """

    matrix: Tensor
    offset: Tensor | None

    def __init__(self, potential: Potential, matrix: Tensor, offset: Tensor | None = None) -> None:
        rank = check_potential(potential, "AffinePrecomposed").dim
        matrix = checks.check_points(matrix, None, "matrix", "AffinePrecomposed")
        if matrix.ndim != 2 or matrix.shape[0] != rank:
            must = f"of shape ({rank}, dim) because the inner potential has {rank} features"
            raise ValueError(checks.message("matrix of AffinePrecomposed", must, tuple(matrix.shape)))
        super().__init__(matrix.shape[1])
        if offset is not None:
            offset = checks.check_points(offset, None, "offset", "AffinePrecomposed", matrix.dtype)
            if offset.shape != (rank,):
                raise ValueError(
                    checks.message("offset of AffinePrecomposed", f"of shape ({rank},)", tuple(offset.shape))
                )
        self.potential = potential
        _hold(self, "matrix", matrix)
        _hold(self, "offset", offset)
        self.boundary = potential.boundary
        self.symmetric = potential.symmetric

    def _linear(self, h: Tensor) -> Tensor:
        return h @ self.matrix.mT

    def _image(self, x: Tensor) -> Tensor:
        image = self._linear(x)
        return image if self.offset is None else image + self.offset

    def compute_value(self, x: Tensor) -> Tensor:
        return self.potential.compute_value(self._image(x))

    def compute_gradient(self, x: Tensor) -> Tensor:
        return self.potential.compute_gradient(self._image(x)) @ self.matrix

    def compute_value_and_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.potential.compute_value_and_gradient(self._image(x))
        return value, gradient @ self.matrix

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return self.potential.compute_divergence(self._image(x), self._image(y), self._linear(h))

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        images = self._image(x), self._image(y)
        return self.potential.compute_gradient_difference(*images, self._linear(h)) @ self.matrix

    def compute_hessian(self, x: Tensor) -> Tensor:
        return self.matrix.mT @ self.potential.compute_hessian(self._image(x)) @ self.matrix

    def _search_start(self, g: Tensor) -> Tensor:
        """Return the point whose image is nearest to where the inner potential would begin.

        Where that image leaves the inner domain, it is the point whose image is nearest to its middle.
        """
        inverse: Tensor = torch.linalg.pinv(self.matrix)
        offset = 0 if self.offset is None else self.offset
        image = self.potential._search_start(g @ inverse)
        centre = torch.full_like(image, self.potential.domain.middle(self.potential.dim))
        first, second = (image - offset) @ inverse.mT, (centre - offset) @ inverse.mT
        return torch.where(self.contains(first).unsqueeze(-1), first, second)

    def check_inside(self, x: Tensor, name: str, *, boundary: bool = False) -> None:
        if _limited(self.potential) and checks.inspectable(x):
            try:
                self.potential.check_inside(self._image(x), name, boundary=boundary)
            except ValueError as error:
                text = f"The image A x + b of AffinePrecomposed lies outside the inner domain: {error}"
                raise ValueError(text) from None

    def contains(self, x: Tensor) -> Tensor:
        return torch.isfinite(x).all(-1) & self.potential.contains(self._image(x))

    def slope_ranges(self, x: Tensor) -> list[Tensor]:
        return self.potential.slope_ranges(self._image(x))


def _total(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def check_potential(potential: Potential, owner: str) -> Potential:
    """Return ``potential`` if it is one."""
    if not isinstance(potential, Potential):
        raise TypeError(checks.message(f"potential of {owner}", "a Potential", type(potential).__name__))
    return potential


def _limited(potential: Potential) -> bool:
    """Whether a potential, or one that it is made of, is not defined everywhere."""
    return any(part.domain != REAL for part in potential.modules() if isinstance(part, Potential))


def _hold(module: nn.Module, name: str, tensor: Tensor | None) -> None:
    """Keep a parameter as a parameter and any other tensor as a buffer of its own."""
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, None if tensor is None else tensor.detach().clone())
