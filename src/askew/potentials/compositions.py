"""A potential after an affine map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from askew import checks
from askew.checks import REAL
from askew.potentials.base import Potential, check_potential


class AffinePrecomposed(Potential):
    """A potential after an affine map, phi(x) = inner(A x + b).

    D(x, y) is the inner divergence of A x + b and A y + b, whose difference is computed as A (x - y): near points keep
    their accuracy whatever the offset. Use it to learn or fix a linear view of the data.

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

    def _mapped(self, x: Tensor) -> Tensor:
        mapped = self._linear(x)
        return mapped if self.offset is None else mapped + self.offset

    def compute_value(self, x: Tensor) -> Tensor:
        return self.potential.compute_value(self._mapped(x))

    def compute_gradient(self, x: Tensor) -> Tensor:
        return self.potential.compute_gradient(self._mapped(x)) @ self.matrix

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return self.potential.compute_divergence(self._mapped(x), self._mapped(y), self._linear(h))

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        mapped = self._mapped(x), self._mapped(y)
        return self.potential.compute_gradient_difference(*mapped, self._linear(h)) @ self.matrix

    def compute_hessian(self, x: Tensor) -> Tensor:
        return self.matrix.mT @ self.potential.compute_hessian(self._mapped(x)) @ self.matrix

    def _search_start(self, g: Tensor) -> Tensor:
        """Return the point that is mapped nearest to where the inner potential would start.

        If that lies outside the inner domain, return the point that is mapped nearest to the middle of it.
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
                self.potential.check_inside(self._mapped(x), name, boundary=boundary)
            except ValueError as error:
                text = f"The point A x + b of AffinePrecomposed lies outside the inner domain: {error}"
                raise ValueError(text) from None

    def contains(self, x: Tensor) -> Tensor:
        return torch.isfinite(x).all(-1) & self.potential.contains(self._mapped(x))

    def slope_ranges(self, x: Tensor) -> list[Tensor]:
        return self.potential.slope_ranges(self._mapped(x))


def _limited(potential: Potential) -> bool:
    """Whether a potential, or one that it is made of, is not defined everywhere."""
    return any(part.domain != REAL for part in potential.modules() if isinstance(part, Potential))


def _hold(module: nn.Module, name: str, tensor: Tensor | None) -> None:
    """Register a parameter as it is, and a copy of any other tensor as a buffer."""
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, None if tensor is None else tensor.detach().clone())
