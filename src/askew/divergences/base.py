"""The base class of divergences, and the Bregman divergences that many of them are or rank like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from askew import checks
from askew.checks import REAL, Domain
from askew.divergences.affine import AffineForm
from askew.divergences.precision import autocasting, call_in, without_nan
from askew.io import Rebuildable
from askew.potentials import Potential

# The two arguments of a divergence.
Side = Literal["first", "second"]

# Elements of the largest temporary that the blockwise `pairwise` makes (16 MiB of float32).
BLOCK_ELEMENTS = 1 << 22


# The least relative error that `pairwise` is asked for in this context.
_TOLERANCE: ContextVar[float] = ContextVar("pairwise_tolerance", default=0.0)


@contextmanager
def pairwise_tolerance(rtol: float) -> Iterator[None]:
    """Let near pairs in ``pairwise`` of Bregman divergences have a relative error up to ``rtol``, in this thread.

    It only ever raises ``pairwise_rtol``. Training uses it: the gradient of an entry does not depend on it, and a loss
    that sees the order of entries hardly sees the third digit of the smallest.

    Examples
    --------
    >>> from askew.divergences import NeuralBregman
    >>> D = NeuralBregman(3)
    >>> with pairwise_tolerance(0.1):
    ...     matrix = D.pairwise(torch.randn(5, 3), torch.randn(4, 3))
    """
    token = _TOLERANCE.set(checks.check_positive(rtol, "rtol of pairwise_tolerance"))
    try:
        yield
    finally:
        _TOLERANCE.reset(token)


@dataclass(frozen=True)
class Ranking:
    """A divergence with an affine form that orders items as another divergence does.

    Attributes
    ----------
    divergence : Divergence
        Its :meth:`~Divergence.affine` is not None.
    view : callable or None
        What it compares instead of the points: a map ``(n, dim) -> (n, dim)``. None for the points themselves.
    swapped : bool
        Whether the two arguments change places.

    Examples
    --------
    >>> import askew
    >>> askew.make("bregman-sqrt", 2).ranks_like().swapped
    False
    """

    divergence: Divergence
    view: Callable[[Tensor], Tensor] | None = None
    swapped: bool = False

    def views(self, points: Tensor) -> Tensor:
        """Return what ``divergence`` compares: ``(n, dim) -> (n, dim)``."""
        return points if self.view is None else self.view(points)


class Divergence(Rebuildable, ABC):
    """A non-negative function D(x, y) of two points, zero at x = y, not necessarily symmetric.

    Subclasses implement ``compute``, for checked points, and set the properties below. They may implement
    ``compute_pairwise`` if all pairs cost less than one after another, and answer the questions of search and
    clustering (``as_bregman``, ``ranks_like`` and others), whose defaults say "not known".

    Parameters
    ----------
    dim
        Number of features of a point, or None where the points are not vectors (:class:`Embedded`).

    Attributes
    ----------
    symmetric : bool
        Whether D(x, y) = D(y, x) for all points.
    triangle : bool
        Whether D(x, z) <= D(x, y) + D(y, z) for all points.
    root_triangle : bool
        Whether the square root of D obeys the triangle inequality, as it does for squared norms.
    reflexive : bool
        Whether D(x, x) = 0 exactly; False with two encoders, and where a known flaw is reproduced.
    domain : Domain
        Where the points must lie.

    Examples
    --------
    >>> class Steps(Divergence):
    ...     triangle = True
    ...
    ...     def compute(self, x, y):
    ...         return (x - y).relu().sum(-1)
    >>> Steps(2).pairwise(torch.eye(2), torch.zeros(1, 2)).tolist()
    [[1.0], [1.0]]
    """

    symmetric: bool = False
    triangle: bool = False
    root_triangle: bool = False
    reflexive: bool = True
    domain: Domain = REAL
    # Whether `order` can be negative.
    signed: bool = False
    # The peak that `fit` takes if it is not given one: the smallest of all parts of a model.
    default_learning_rate: float = 3e-2
    # Looking for NaN in the result costs a few microseconds; the cheapest divergences do without.
    _checks_values: bool = True
    # Width of the widest temporary per pair, which decides how many pairs a block of `pairwise` has.
    _pair_width: int = 1

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = None if dim is None else checks.check_size(dim, f"dim of {type(self).__name__}")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return D(x, y) row by row: ``(..., dim), (..., dim) -> (...)``, with broadcasting."""
        try:
            return self._row_by_row(_compute, x, y)
        except RuntimeError:
            checks.check_devices(self, x, y)  # the most frequent reason has a clearer message
            raise

    def _row_by_row(self, hook: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
        if self.dim is None:  # points are what an encoder takes; the divergence behind it checks their embeddings
            return hook(self, x, y)
        x, y = self._to_own_dtype(x, y)
        x, y = checks.check_pair(x, y, self.dim, type(self).__name__, self.dtype)
        return self._evaluate(hook, x, y, matrix=False)

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        """Return D between all rows of two sets: ``(n, dim), (m, dim) -> (n, m)``."""
        return self._of_all_pairs(_compute_pairwise, x, y)

    def _of_all_pairs(self, hook: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
        try:
            if self.dim is None:
                return hook(self, x, y)
            x, y = self._to_own_dtype(x, y)
            checks.check_matrices(x, y, self.dim, type(self).__name__, self.dtype)
            return self._evaluate(hook, x, y, matrix=True)
        except RuntimeError:
            checks.check_devices(self, x, y)
            raise

    @abstractmethod
    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        """Return D(x, y) for checked points of one floating dtype that broadcast."""

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        """Return all pairs of two sets, by default from :meth:`compute` in blocks of rows."""
        return in_blocks(self._all_pairs, x, y, max(self._pair_width, y.shape[-1]))

    def _all_pairs(self, x: Tensor, y: Tensor) -> Tensor:
        if self.dim is not None:
            return self.compute(x[:, None], y[None])
        # An encoder takes one dimension of rows.
        n, m = x.shape[0], y.shape[0]
        return self.compute(x.repeat_interleave(m, 0), torch.cat([y] * n)).view(n, m)

    @property
    def _pair_by_pair(self) -> bool:
        """Whether pairs are computed one by one: any pair may overflow then, and looking at all values is cheap."""
        return type(self).compute_pairwise is Divergence.compute_pairwise

    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None, median: float = 1.0) -> None:
        """Fit the fixed scales of the model to pairs of points ``(n, dim)`` before training.

        Models with such buffers standardise their input by the pooled points and scale their output: the mean of
        D(x, y) becomes that of ``targets``, ``(n,)``, or, without targets, its median becomes ``median``. Others do
        nothing.
        """

    # ------------------------------------------------------------------ questions of search, clustering and metrics

    def as_divergence(self) -> Divergence:
        """Return itself. Objects that stand for a divergence, such as fitted learners, also have this method."""
        return self

    @property
    def inner(self) -> Divergence | None:
        """The divergence that this one wraps, by convention its attribute ``divergence``; None if it wraps none."""
        inner = self._modules.get("divergence")
        return inner if isinstance(inner, Divergence) else None

    def as_bregman(self) -> Bregman | None:
        """Return the Bregman divergence that equals this one, or None if there is none or it is not known.

        Clustering asks, because the mean of a cluster is its best centroid for Bregman divergences only.
        """
        return None

    def affine(self, centre: Tensor) -> AffineForm | None:
        """Return this divergence as seen from a centre ``(1, dim)``, or None if it has no affine form."""
        bregman = self.as_bregman()
        return None if bregman is None else bregman.affine(centre)

    def ranks_like(self) -> Ranking | None:
        """Return a divergence with an affine form that orders items as this one does, or None if none is known.

        Search asks, because with an affine form the nearest item has the largest inner product. An increasing
        function of another divergence returns ``self.divergence.ranks_like()``.
        """
        bregman = self.as_bregman()
        return None if bregman is None else Ranking(bregman)

    def ranks_by_order(self) -> bool:
        """Return whether the affine form of :meth:`ranks_like` gives :meth:`order` itself, as precisely as it can be.

        Search then takes values from inner products, and computes only those that would lose digits. False is always
        right, and costs one evaluation of the divergence for each hit.
        """
        return False

    def order(self, x: Tensor, y: Tensor) -> Tensor:
        """Return numbers that order pairs as D does, and that may differ where D is 0: ``(..., dim) x 2 -> (...)``.

        Search ranks candidates by it, and :meth:`from_order` turns it into D(x, y).
        """
        return self._row_by_row(_compute_order, x, y)

    def compute_order(self, x: Tensor, y: Tensor) -> Tensor:
        """Return :meth:`order` for checked points; by default D itself."""
        return self.compute(x, y)

    def pairwise_order(self, x: Tensor, y: Tensor) -> Tensor:
        """Return :meth:`order` between all rows of two sets: ``(n, dim), (m, dim) -> (n, m)``.

        Learning from relevance ranks by it: where D is 0, order still has a gradient.
        """
        return self._of_all_pairs(_compute_pairwise_order, x, y)

    def compute_pairwise_order(self, x: Tensor, y: Tensor) -> Tensor:
        """Return :meth:`pairwise_order` for checked points; where order is D, that is ``compute_pairwise``."""
        if type(self).compute_order is Divergence.compute_order:
            return self.compute_pairwise(x, y)
        return in_blocks(lambda a, b: self.compute_order(a[:, None], b), x, y, max(self._pair_width, y.shape[-1]))

    def from_order(self, order: Tensor) -> Tensor:
        """Return D(x, y) from what :meth:`order` returned."""
        return order

    def takes_boundary(self, side: Side) -> bool:
        """Return whether the ``"first"`` or ``"second"`` argument may lie on the boundary of the domain."""
        return False

    # ------------------------------------------------------------------ precision

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the parameters and buffers, or None where there are none."""
        return _dtype(self)

    def _to_own_dtype(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Under autocast, convert points to the dtype of the parameters; else return them as they are.

        Encoders run in the lower precision of autocast. A divergence is too cheap to gain from it and would lose
        its exactness.
        """
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and autocasting(x)):
            return x, y
        dtype = self.dtype or torch.float32
        # The check will refuse integers and complex numbers.
        return x.to(dtype) if x.is_floating_point() else x, y.to(dtype) if y.is_floating_point() else y

    def _evaluate(self, hook: Callable[..., Tensor], x: Tensor, y: Tensor, *, matrix: bool) -> Tensor:
        """Call a hook in a suitable precision, then look for NaN where that is cheap."""
        if autocasting(x):
            with torch.autocast(x.device.type, enabled=False):
                return self._evaluate(hook, x, y, matrix=matrix)
        if x.dtype == torch.bfloat16:
            # Sums of squares do not survive 8 bits: widen the parameters and round the result.
            return call_in(torch.float32, self, hook, x, y).to(torch.bfloat16)
        result = hook(self, x, y)
        if self._checks_values and checks.inspectable(x, y, result):
            # A bad point shows in its whole row or column of a matrix: one of each covers all points.
            sampled = matrix and result.numel() > 0 and not self._pair_by_pair
            values = torch.cat([result[0], result[:, 0]]) if sampled else result
            total = values.detach().sum().item()
            if total - total != 0.0:  # NaN or infinite; an overflow of finite points is not an error
                checks.check_finite(x, "x", type(self).__name__)
                checks.check_finite(y, "y", type(self).__name__)
                pairs = (x[:, None], y) if matrix else (x, y)
                row_by_row = {_compute_pairwise: _compute, _compute_pairwise_order: _compute_order}.get(hook, hook)
                return without_nan(result, self, row_by_row, *pairs)
        return result

    def extra_repr(self) -> str:
        dim = "" if self.dim is None else f"dim={self.dim}, "
        return f"{dim}symmetric={self.symmetric}, triangle={self.triangle}, domain={self.domain}"


class Bregman(Divergence):
    r"""The Bregman divergence of a convex potential.

    .. math:: D(x, y) = \phi(x) - \phi(y) - \langle \nabla\phi(y), x - y \rangle

    ``forward`` is computed in a form that does not cancel: it is non-negative, exactly zero at x = y, and accurate to
    the last digits for near points. ``pairwise`` is one matrix product, the affine form seen from the mean of the y
    (:class:`AffineForm`). That cancels for near pairs, so entries that rounding may have spoilt are recomputed as in
    ``forward``: the relative error of every entry is at most ``pairwise_rtol``, and far smaller for most. Gradients
    come through the matrix product for all pairs. Compiled, exported or under ``vmap`` the second step is left out, and
    near pairs keep the rounding error.

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
        # A compiler does not see the context, and recomputes no near pairs anyway.
        return self.pairwise_rtol if checks.transformed() else max(self.pairwise_rtol, _TOLERANCE.get())

    def as_bregman(self) -> Bregman:
        return self

    def affine(self, centre: Tensor) -> AffineForm:
        return AffineForm(self.potential, centre)

    def takes_boundary(self, side: Side) -> bool:
        return side == "first" and self.potential.boundary

    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None, median: float = 1.0) -> None:
        self.potential.calibrate(x, y, targets, median)


def in_blocks(function: Callable[..., Tensor], x: Tensor, y: Tensor, width: int, dim: int = 0) -> Tensor:
    """Return ``function(x, y)``, a matrix of all pairs, from blocks of rows of x; temporaries do not grow with n.

    ``width`` is the size of the temporaries of a pair, and ``dim`` the dimension of the rows in x and y. While a
    gradient is recorded, blocks are recomputed in the backward pass instead of kept.
    """
    if checks.transformed():  # a compiler must not be made to guard on the sizes
        return function(x, y)
    rows = max(1, BLOCK_ELEMENTS // max(1, y.shape[dim] * width))
    if x.shape[dim] <= rows:
        return function(x, y)
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(function, block, y, use_reentrant=False) for block in x.split(rows, dim)])
    return torch.cat([function(block, y) for block in x.split(rows, dim)])


def _dtype(module: nn.Module) -> torch.dtype | None:
    """Return the dtype of the first floating tensor; faster than ``next(module.parameters())``."""
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None and tensor.is_floating_point():
            return tensor.dtype
    for child in module._modules.values():
        found = None if child is None else _dtype(child)
        if found is not None:
            return found
    return None


def _compute(divergence: Divergence, x: Tensor, y: Tensor) -> Tensor:
    return divergence.compute(x, y)


def _compute_order(divergence: Divergence, x: Tensor, y: Tensor) -> Tensor:
    return divergence.compute_order(x, y)


def _compute_pairwise(divergence: Divergence, x: Tensor, y: Tensor) -> Tensor:
    return divergence.compute_pairwise(x, y)


def _compute_pairwise_order(divergence: Divergence, x: Tensor, y: Tensor) -> Tensor:
    return divergence.compute_pairwise_order(x, y)
