"""A Bregman divergence with a learned drift: directed at first order, and still one inner product."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from askew import checks
from askew.divergences.affine import AffineForm, Planes
from askew.divergences.base import Bregman, Ranking, Side
from askew.divergences.wrappers import BregmanWrapper
from askew.potentials.inverse import widened

# The e of the root, in units of the root of a typical S.
FLOOR = 0.03
# Size of the drift's weights at the start: D begins close to the Bregman divergence, and both ways already differ.
START = 0.1


class Drift(BregmanWrapper):
    r"""A Bregman divergence plus a learned wind: the way there need not be as long as the way back.

    .. math:: D(x, y) = T(\max(S(x, y), 0)), \qquad S(x, y) = D_\phi(x, y) + \langle v(y),\, x - y \rangle

    A smooth Bregman divergence is the same in both directions to first order, D(x, y) / D(y, x) -> 1 as x -> y, and
    D(x, y) = 0 means D(y, x) = 0. Travel times, "is a kind of" and relevance are not like that. The drift v, a small
    network of y, adds a term of first order that changes its sign with the direction. T is the identity or, with
    ``root``, the square root.

    D(x, y) >= 0 and D(x, x) = 0 hold exactly. S is affine in x up to a constant of x, so all pairs are one matrix
    product and search is an inner product in dim + 1 features, as for a Bregman divergence. D is 0 wherever the wind
    outweighs D_phi; search orders such items by S.

    Use it where direction matters. Use ``root=True`` for targets that grow like a distance, such as times. Where the
    target is a Bregman divergence, :class:`NeuralBregman` is more accurate. The mean of a cluster is not its best
    centroid, and there is no conjugate: these need a Bregman divergence.

    Parameters
    ----------
    divergence
        A divergence that is a Bregman divergence: :class:`NeuralBregman`, squared :class:`Mahalanobis`, a closed form.
    root
        Whether to take the square root.
    drift
        The map v of standardised points, ``(n, dim) -> (n, dim)``; by default a network with one hidden layer.
    hidden
        Units of that layer.

    References
    ----------
    In Finsler geometry v is the wind of a Randers metric: Randers, On an asymmetrical metric in the four-space of
    general relativity. Physical Review 1941.

    Examples
    --------
    >>> from askew.divergences import NeuralBregman
    >>> D = Drift(NeuralBregman(3))
    >>> x, y = torch.randn(5, 3), torch.randn(5, 3)
    >>> D(x, y).shape, D(x, x).sum().item(), D.symmetric
    (torch.Size([5]), 0.0, False)
    """

    dim: int
    shift: Tensor
    inverse_spread: Tensor
    size: Tensor

    def __init__(
        self, divergence: Bregman, root: bool = False, drift: nn.Module | None = None, hidden: int = 16
    ) -> None:
        super().__init__(divergence)
        if drift is not None and not isinstance(drift, nn.Module):
            raise TypeError(checks.message("drift of Drift", "a torch.nn.Module", type(drift).__name__))
        self.symmetric = self.triangle = self.root_triangle = False
        self.signed = True
        self.root = root
        self.drift = _network(self.dim, checks.check_size(hidden, "hidden of Drift")) if drift is None else drift
        self.register_buffer("shift", torch.zeros(self.dim))
        self.register_buffer("inverse_spread", torch.ones(self.dim))
        self.register_buffer("size", torch.ones(()))  # a typical value of S

    @property
    def floor(self) -> Tensor:
        """The e of the root sqrt(s + e^2) - e, whose slope at 0 is finite."""
        return FLOOR * self.size.sqrt()

    def wind(self, y: Tensor) -> Tensor:
        """Return v(y), in the units of the points and of D: ``(..., dim) -> (..., dim)``."""
        v: Tensor = self.drift((y - self.shift) * self.inverse_spread)
        if checks.inspectable(v) and not v.requires_grad and not bool(torch.isfinite(v.sum())):
            _refuse_infinite(v, y)
        return v * (self.inverse_spread * (self.size / self.dim))

    def compute_order(self, x: Tensor, y: Tensor) -> Tensor:
        # Both terms are exact; only their sum can cancel.
        return self.divergence.compute(x, y) + (self.wind(y) * (x - y)).sum(-1)

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return self.from_order(self.compute_order(x, y))

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return self.from_order(self.compute_pairwise_order(x, y))

    def compute_pairwise_order(self, x: Tensor, y: Tensor) -> Tensor:
        self.divergence.potential.check_domain(x, y)
        if x.shape[0] == 0 or y.shape[0] == 0:
            return x.new_zeros(x.shape[0], y.shape[0])
        form = self.affine(y.detach().mean(0, keepdim=True))
        return form.pairwise(x, y, self.divergence.current_rtol())

    def from_order(self, order: Tensor) -> Tensor:
        values = order.relu()
        if not self.root:
            return values
        floor = self.floor
        # sqrt(s + e^2) - e without cancellation; of infinity it is infinity
        return values / ((values + floor.square()).sqrt() + floor).clamp(max=torch.finfo(values.dtype).max)

    def affine(self, centre: Tensor) -> DriftForm:
        return DriftForm(self, centre)

    def ranks_like(self) -> Ranking:
        return Ranking(self)

    def ranks_by_order(self) -> bool:
        return self.divergence.ranks_by_order()

    def takes_boundary(self, side: Side) -> bool:
        return self.divergence.takes_boundary(side)

    @torch.no_grad()
    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None, median: float = 1.0) -> None:
        if self.root:
            targets, median = None if targets is None else targets.square(), median**2
        self.divergence.calibrate(x, y, targets, median)
        points = torch.cat([x, y]).reshape(-1, self.dim)
        self.shift.copy_(points.mean(0))
        spread = points.std(0, correction=0)
        constant = spread <= 1e-6 * points.abs().amax(0)  # no scale, although rounding may leave a trace of one
        self.inverse_spread.copy_(torch.where(constant, torch.ones_like(spread), spread).reciprocal())
        size = median if targets is None else float(targets.mean())
        self.size.fill_(size if size > 0 else 1.0)


class DriftForm(AffineForm):
    """S(x, y) as seen from a centre: the drift changes slopes and offsets and leaves the base."""

    signed = True

    def __init__(self, divergence: Drift, centre: Tensor) -> None:
        super().__init__(divergence.divergence.potential, centre)
        self.divergence = divergence

    def to(self, dtype: torch.dtype) -> DriftForm:
        return DriftForm(widened(self.divergence, dtype), self.centre.to(dtype))

    def slopes(self, y: Tensor) -> Tensor:
        return super().slopes(y) - self.divergence.wind(y)

    def planes(self, y: Tensor) -> Planes:
        slopes, _, base = super().planes(y)
        slopes = slopes - self.divergence.wind(y)
        return Planes(slopes, (slopes * (y - self.centre)).sum(-1) - base, base)

    def exact(self, x: Tensor, y: Tensor) -> Tensor:
        return super().exact(x, y) + (self.divergence.wind(y) * (x - y)).sum(-1)


def _network(dim: int, hidden: int) -> nn.Sequential:
    last = nn.Linear(hidden, dim)
    with torch.no_grad():
        last.weight.mul_(START)
        last.bias.zero_()
    return nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), last)


def _refuse_infinite(v: Tensor, y: Tensor) -> None:
    bad = (~torch.isfinite(v) & torch.isfinite(y).all(-1, keepdim=True)).nonzero()  # a bad y has an error of its own
    if len(bad):
        got = f"{v[tuple(bad[0])].item()} for point {tuple(bad[0, :-1].tolist())}"
        hint = "Train with a smaller learning_rate, or look at the module that was given as drift."
        raise ValueError(checks.message("the drift v(y) of Drift", "finite", got, hint))
