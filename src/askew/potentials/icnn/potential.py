"""The input-convex network as a potential: what a neural Bregman divergence learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from askew import checks
from askew.potentials.base import Potential, SeenFrom, total
from askew.potentials.icnn.terms import Network, QuadraticTerm, SeparableTerm, Term, TermAt

# Without a gradient to record, rows are evaluated in blocks that stay in the cache: entries of the widest layer of a
# block, and the bounds of its rows. Fewer rows make slow products, and more are not faster.
BLOCK_ENTRIES = 1 << 18
FEWEST_ROWS, MOST_ROWS = 256, 2048


class ICNN(Potential):
    r"""A convex function learned from data: an input-convex network plus simple convex terms.

    .. math:: \phi(x) = \lambda\,\bigl[\, N(v) + |A v|^2 + \sum_{ik} \tfrac{c_{ik}^2}{s_{ik}}
              g(s_{ik}(v_i - m_{ik})) \bigr], \qquad v = (x - \text{shift}) / \text{spread}

    N is the fully input-convex network of the paper (equation 4): layers with non-negative weights on the layer before,
    unconstrained weights on the input, and a convex non-decreasing activation. The quadratic term represents every
    Mahalanobis divergence exactly, the separable units every sum of one-dimensional divergences approximately.
    ``shift``, ``spread`` and ``lambda`` are buffers that :meth:`calibrate` sets from data once, before training; they
    are 0, 1 and 1 at first.

    Use it for a convex function whose form you do not know. If you know it, a closed form is exact and needs no
    training.

    Parameters
    ----------
    dim
        Number of features.
    widths
        Units of each hidden layer; ``()`` leaves the network out.
    activation
        ``"squareplus"``, ``"softplus"`` (the paper's) or ``"relu"`` (not smooth; for comparison only).
    quadratic
        Rows of A; 0 leaves the term out, None means ``dim``.
    separable
        One-dimensional units per feature; 0 leaves the term out.
    nonnegative
        How weights are kept non-negative: ``"softplus"``, ``"abs"``, ``"clamp"``, ``"square"`` or ``"exp"`` of
        a raw parameter.
    init
        ``"averaging"`` (the non-negative weights into a unit sum to one on average) or ``"linear"`` (as
        ``torch.nn.Linear``).
    calibrated
        Whether :meth:`calibrate` has an effect.

    References
    ----------
    Lu, Raff, Ferraro (2023), equation 4; Amos, Xu, Kolter (2017), Input Convex Neural Networks.

    Examples
    --------
    >>> phi = ICNN(3, widths=(16, 16))
    >>> x, y = torch.randn(5, 3), torch.randn(5, 3)
    >>> bool((phi.divergence(x, y) > 0).all()), phi.divergence(x, x).tolist()
    (True, [0.0, 0.0, 0.0, 0.0, 0.0])
    """

    shift: Tensor
    inverse_spread: Tensor
    output_scale: Tensor

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
        super().__init__(dim)
        widths = checks.check_widths(widths, "widths of ICNN", empty=True)
        terms: list[Term] = [Network(dim, widths, activation, nonnegative, init)] if widths else []
        rank = dim if quadratic is None else quadratic
        if rank != 0:
            terms.append(QuadraticTerm(dim, checks.check_size(rank, "quadratic of ICNN")))
        if separable != 0:
            terms.append(SeparableTerm(dim, checks.check_size(separable, "separable of ICNN")))
        if not terms:
            raise ValueError(checks.message("terms of ICNN", "at least one of widths, quadratic and separable", "none"))
        self.terms = nn.ModuleList(terms)
        self._block_rows = min(MOST_ROWS, max(FEWEST_ROWS, BLOCK_ENTRIES // max([*widths, rank, dim * separable])))
        self.calibrated = calibrated
        # Saved only if they can change.
        self.register_buffer("shift", torch.zeros(dim), persistent=calibrated)
        self.register_buffer("inverse_spread", torch.ones(dim), persistent=calibrated)
        self.register_buffer("output_scale", torch.ones(()), persistent=calibrated)

    @torch.no_grad()
    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None, median: float = 1.0) -> None:
        """Standardise the input and scale the output, for training to start at the right size.

        Parameters
        ----------
        x, y
            Pairs of points, ``(n, dim)`` each; their pooled mean and standard deviation become ``shift`` and ``spread``
            (a constant feature keeps spread 1).
        targets
            Values for D(x, y) to learn, ``(n,)``: the mean of D becomes theirs. Without targets, the median of D
            becomes ``median``.
        """
        if not self.calibrated:
            return
        x, y = self._checked_pair(x, y)
        checks.check_finite(x, "x", "ICNN.calibrate")
        checks.check_finite(y, "y", "ICNN.calibrate")
        if x.shape[0] == 0:
            raise ValueError(checks.message("x of ICNN.calibrate", "at least one point", tuple(x.shape)))
        if targets is not None:
            checks.check_finite(targets, "targets", "ICNN.calibrate")
            if targets.shape != x.shape[:-1]:
                must = f"of shape {tuple(x.shape[:-1])}, one for each pair"
                raise ValueError(checks.message("targets of ICNN.calibrate", must, tuple(targets.shape)))
            if bool((targets < 0).any()):
                must = "non-negative, as the values of a divergence are"
                got = f"a smallest one of {targets.min().item():g}"
                raise ValueError(checks.message("targets of ICNN.calibrate", must, got))
        # In float64 on the host, because not every device has float64.
        pooled = torch.cat([x.reshape(-1, self.dim), y.reshape(-1, self.dim)]).cpu().double()
        spread = pooled.std(0, correction=0)
        # A constant feature has no scale, although rounding may leave a trace of one.
        constant = spread <= 1e-7 * pooled.abs().amax(0)
        self.shift.copy_(pooled.mean(0))
        self.inverse_spread.copy_(torch.where(constant, torch.ones_like(spread), spread).reciprocal())
        self.output_scale.fill_(1.0)
        values = self.compute_divergence(x, y, x - y)
        if targets is None:
            size, wanted = values[values > 0].median() if bool((values > 0).any()) else values.new_zeros(()), median
        else:
            size, wanted = values.mean(), float(targets.cpu().double().mean())
        if float(size) > 0 and wanted > 0:
            self.output_scale.fill_(wanted / float(size))

    # ------------------------------------------------------------------ hooks

    def _terms(self) -> list[Term]:
        return [term for term in self.terms if isinstance(term, Term)]

    def _rows(self, x: Tensor) -> Tensor:
        """Return points as rows in the coordinates of the network."""
        rows = x.reshape(-1, self.dim)
        return (rows - self.shift) * self.inverse_spread if self.calibrated else rows

    def _steps(self, h: Tensor) -> Tensor:
        """Return differences as rows in the coordinates of the network; the shift drops out."""
        rows = h.reshape(-1, self.dim)
        return rows * self.inverse_spread if self.calibrated else rows

    def _sum(self, function: Callable[..., Tensor], *points: Tensor) -> Tensor:
        """Return the scaled sum over all terms of ``function(term, *points)``."""
        n = points[-1].shape[0]
        rows = self._block_rows
        if not (torch.is_grad_enabled() or checks.transformed()) and n > rows:
            starts = range(0, n, rows)
            return torch.cat([self._sum(function, *(p[i : i + rows] for p in points)) for i in starts])
        return total([function(term, *points) for term in self._terms()]) * self.output_scale

    def compute_value(self, x: Tensor) -> Tensor:
        return self._sum(lambda term, v: term.value(v), self._rows(x)).reshape(x.shape[:-1])

    def compute_gradient(self, x: Tensor) -> Tensor:
        return (self._sum(lambda term, v: term.gradient(v), self._rows(x)) * self.inverse_spread).reshape(x.shape)

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        points = self._rows(y.expand(h.shape)), self._steps(h)
        return self._sum(lambda term, v, h: term.divergence(v, h), *points).reshape(h.shape[:-1])

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        v, steps = self._rows(y.expand(h.shape)), self._steps(h)
        change = total([term.at(v).change(steps)[1] for term in self._terms()])
        return (change * self.output_scale * self.inverse_spread).reshape(h.shape)

    def seen_from(self, centre: Tensor) -> SeenFrom:
        return _SeenFrom(self, centre)

    def compute_hessian(self, x: Tensor) -> Tensor:
        hessian = self._sum(lambda term, v: term.hessian(v), self._rows(x))
        return (hessian * self.inverse_spread * self.inverse_spread[:, None]).reshape(*x.shape, self.dim)

    def slope_ranges(self, x: Tensor) -> list[Tensor]:
        return [term.slope_ranges(self._rows(x)) for term in self.terms if isinstance(term, Network)]

    def _search_start(self, g: Tensor) -> Tensor:
        return self.shift.expand_as(g).clone()


class _SeenFrom(SeenFrom):
    """The terms as seen from a centre: their weights and what they compute there, once for all points.

    That is kept while no gradients are recorded. Otherwise each call has a graph of its own.
    """

    potential: ICNN
    _kept: list[TermAt] | None = None

    def _terms(self) -> list[TermAt]:
        recorded = torch.is_grad_enabled() or checks.transformed()
        if self._kept is not None and not recorded:
            return self._kept
        row = self.potential._rows(self.centre)
        terms = [term.at(row) for term in self.potential._terms()]
        if not recorded:
            self._kept = terms
        return terms

    def _blocks(self, points: Tensor) -> tuple[Tensor, ...]:
        steps = self.potential._steps(points - self.centre)
        if torch.is_grad_enabled() or checks.transformed() or len(steps) <= self.potential._block_rows:
            return (steps,)
        blocks: tuple[Tensor, ...] = steps.split(self.potential._block_rows)
        return blocks

    def value(self, points: Tensor) -> Tensor:
        terms = self._terms()
        values = [total([term.divergence(h) for term in terms]) for h in self._blocks(points)]
        return _joined(values) * self.potential.output_scale

    def change(self, points: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients, terms = [], [], self._terms()
        for h in self._blocks(points):
            value, gradient = zip(*(term.change(h) for term in terms), strict=True)
            values.append(total(value))
            gradients.append(total(gradient))
        scale, inverse_spread = self.potential.output_scale, self.potential.inverse_spread
        return _joined(values) * scale, _joined(gradients) * scale * inverse_spread


def _joined(blocks: Sequence[Tensor]) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks))
