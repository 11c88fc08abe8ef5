"""Bregman divergences, learned or in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from askew import checks
from askew.divergences.affine import AffineForm
from askew.divergences.base import Divergence, Side
from askew.potentials import ICNN, Potential

__all__ = ["Bregman", "NeuralBregman", "pairwise_tolerance"]

# The least relative error that `pairwise` is asked for in this context.
_TOLERANCE: ContextVar[float] = ContextVar("pairwise_tolerance", default=0.0)


@contextmanager
def pairwise_tolerance(rtol: float) -> Iterator[None]:
    """Let near pairs in ``pairwise`` of Bregman divergences have this relative error, in this thread.

    It only ever raises ``pairwise_rtol``. Training uses it: the gradient of an entry does not depend on it, and a loss
    that sees the order of entries hardly sees the third digit of the smallest.

    Parameters
    ----------
    rtol
        Largest relative error of an entry.

    Examples
    --------
    >>> D = NeuralBregman(3)
    >>> with pairwise_tolerance(0.1):
    ...     matrix = D.pairwise(torch.randn(5, 3), torch.randn(4, 3))
    """
    token = _TOLERANCE.set(checks.check_positive(rtol, "rtol of pairwise_tolerance"))
    try:
        yield
    finally:
        _TOLERANCE.reset(token)


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
        self.potential.check_domain(x, y)
        if x.shape[0] == 0 or y.shape[0] == 0:
            return x.new_zeros(x.shape[0], y.shape[0])
        # The result does not depend on the centre, so no gradient needs to pass through it.
        return self.affine(y.detach().mean(0, keepdim=True)).pairwise(x, y, self.current_rtol())

    def current_rtol(self) -> float:
        """Return the relative error that ``pairwise`` may have now, which :func:`pairwise_tolerance` can raise."""
        # A compiler does not see the context, and leaves near pairs as they are anyway.
        return self.pairwise_rtol if checks.transformed() else max(self.pairwise_rtol, _TOLERANCE.get())

    def as_bregman(self) -> Bregman:
        return self

    def affine(self, centre: Tensor) -> AffineForm:
        return AffineForm(self.potential, centre)

    def takes_boundary(self, side: Side) -> bool:
        return side == "first" and self.potential.boundary

    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None) -> None:
        """Fit the scales of the potential to data before training; closed forms have none."""
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
