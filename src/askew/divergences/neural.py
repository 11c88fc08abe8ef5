"""Bregman divergences with a learned potential."""

from __future__ import annotations

from collections.abc import Sequence

from askew import checks
from askew.divergences.base import Bregman
from askew.potentials import ICNN


class NeuralBregman(Bregman):
    r"""A Bregman divergence whose potential is an input-convex network: the NBD.

    The default is the network of the paper with a cheaper exact activation, a quadratic and a separable term;
    :meth:`paper` gives the one of the paper. Use it to learn a divergence of unknown form. It is not symmetric and does
    not satisfy the triangle inequality.

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
    >>> import torch
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

    def ranks_by_order(self) -> bool:
        return type(self).compute is Bregman.compute

    @classmethod
    def paper(cls, dim: int, widths: Sequence[int] = (128, 128)) -> NeuralBregman:
        """Return the network of the paper: softplus, no further terms, no calibration.

        The paper does not say how it keeps weights non-negative; absolute values of weights initialised as in
        ``torch.nn.Linear`` come closest to its figures.
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
