"""Bregman divergences, learned or in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from askew import checks
from askew.divergences.base import Divergence
from askew.divergences.near import refine_near
from askew.potentials import ICNN, Potential

__all__ = ["Bregman", "NeuralBregman"]


class Bregman(Divergence):
    r"""The Bregman divergence of a convex potential.

    .. math:: D(x, y) = \phi(x) - \phi(y) - \langle \nabla\phi(y), x - y \rangle

    ``forward`` is computed in a form that does not cancel: it is non-negative, exactly zero at x = y, and
    right to the last digits for near points. ``pairwise`` is one matrix product,

    .. math:: D(x_i, y_j) = D(x_i, c) + D(c, y_j) - \langle \nabla\phi(y_j) - \nabla\phi(c), x_i - c \rangle

    with c the mean of the y. That cancels for near pairs, so those whose value is below what rounding
    leaves of it are computed again by ``forward``: the relative error of every entry is at most
    ``pairwise_rtol``, and far smaller for most. Gradients come through the matrix product for all pairs.
    Compiled, exported or under ``vmap`` the second step is left out and near pairs keep the rounding error.

    Parameters
    ----------
    potential
        The convex function phi.
    pairwise_rtol
        Largest relative error of an entry of ``pairwise`` (float32; float64 is better in proportion).

    References
    ----------
    Bregman (1967); Lu, Raff, Ferraro (2023), equation 1.

    Examples
    --------
    >>> from askew.potentials import NegativeEntropy
    >>> kl = Bregman(NegativeEntropy(2))
    >>> kl(torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])).item()  # log 2 - log 3 / 2
    0.14384...
    """

    def __init__(self, potential: Potential, pairwise_rtol: float = 1e-3) -> None:
        if not isinstance(potential, Potential):
            hint = "Wrap a convex function as askew.potentials.FromFunction(function, dim)."
            must = "an askew.potentials.Potential"
            raise TypeError(checks.message("potential of Bregman", must, type(potential).__name__, hint))
        super().__init__(potential.dim)
        self.potential = potential
        self.domain = potential.domain
        self.symmetric = potential.symmetric
        self.root_triangle = potential.symmetric
        self.pairwise_rtol = checks.check_positive(pairwise_rtol, "pairwise_rtol of Bregman")

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        self.potential.check_domain(x, y)
        return self.potential.compute_divergence(x, y, x - y)

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        n, m = x.shape[0], y.shape[0]
        self.potential.check_domain(x, y)
        if n == 0 or m == 0:
            return x.new_zeros(n, m)
        # The result does not depend on the centre, so no gradient needs to pass through it.
        centre = y.detach().mean(0, keepdim=True)
        from_centre, slopes = self.potential.centred(y, centre)
        values = from_centre if x is y else self.potential.centred_value(x, centre)
        left = x - centre
        to_centre = (slopes * (y - centre)).sum(-1) - from_centre  # D(c, y)
        one_left, one_right = left.new_ones(n, 1), left.new_ones(m, 1)
        matrix = (
            torch.cat([left, values[:, None], one_left], 1) @ torch.cat([-slopes, one_right, to_centre[:, None]], 1).t()
        )

        def exact(i: Tensor, j: Tensor) -> Tensor:
            first, second = x[i], y[j]
            h = first - second
            # A point and itself need no evaluation; in the matrix of a training batch these are the near pairs.
            apart = h.any(1).nonzero()[:, 0]
            result = h.new_zeros(h.shape[0])
            if apart.numel():
                values = self.potential.compute_divergence(first[apart], second[apart], h[apart])
                if values.isnan().any():  # points so large that float32 overflows on the way
                    values = self._without_nan(first[apart], second[apart], values, matrix=False)
                result[apart] = values
            return result

        with torch.no_grad():
            # Rounding of the product is bounded by the sizes of what is multiplied and added.
            scale_x = values + left.norm(dim=1) * slopes.norm(dim=1).amax()
            scale_y = to_centre.abs() + from_centre
        return refine_near(matrix, scale_x, scale_y, exact, self.pairwise_rtol)

    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None) -> None:
        """Fit the scales of the potential to data before training; closed forms have none."""
        if isinstance(self.potential, ICNN):
            self.potential.calibrate(x, y, targets)


class NeuralBregman(Bregman):
    r"""A Bregman divergence whose potential is an input-convex network: the NBD.

    The default is the network of the paper with a cheaper exact activation, a quadratic and a separable
    term; :meth:`paper` gives the paper's own. Use it when the divergence is to be learned and nothing is
    known of its form. It is not symmetric and does not obey the triangle inequality.

    Parameters
    ----------
    dim
        Number of features.
    widths, activation, quadratic, separable, nonnegative, init, calibrated
        As in :class:`askew.potentials.ICNN`.

    References
    ----------
    Lu, Raff, Ferraro (2023), Neural Bregman Divergences for Distance Learning.

    Examples
    --------
    >>> D = NeuralBregman(20)
    >>> x, y = torch.randn(5, 20), torch.randn(5, 20)
    >>> D(x, y).shape, D.pairwise(x, y).shape, D(x, x).sum().item()
    (torch.Size([5]), torch.Size([5, 5]), 0.0)
    """

    potential: ICNN

    def __init__(
        self,
        dim: int,
        widths: Sequence[int] = (128, 128),
        activation: str = "squareplus",
        quadratic: int | None = None,
        separable: int = 8,
        nonnegative: str = "softplus",
        init: str = "averaging",
        calibrated: bool = True,
    ) -> None:
        dim = checks.check_size(dim, "dim of NeuralBregman")
        super().__init__(ICNN(dim, widths, activation, quadratic, separable, nonnegative, init, calibrated))

    @classmethod
    def paper(cls, dim: int, widths: Sequence[int] = (128, 128)) -> NeuralBregman:
        """Return the network of the paper: softplus, no further terms, no calibration.

        The paper does not say how it keeps weights non-negative; absolute values of weights initialised
        as in ``torch.nn.Linear`` come nearest to its figures.
        """
        return cls(
            dim,
            widths,
            activation="softplus",
            quadratic=0,
            separable=0,
            nonnegative="abs",
            init="linear",
            calibrated=False,
        )
