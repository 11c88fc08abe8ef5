"""Divergences of the difference x - y alone: Euclidean, Mahalanobis and learned asymmetric norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from askew import checks
from askew.divergences.base import Bregman, Divergence, Ranking
from askew.divergences.numerics import recompute_small, safe_sqrt
from askew.potentials import Quadratic


def _squared_distances(x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
    """Return ||L(x_i - y_j)||^2 for all pairs, from one matrix product; ``weight`` is L, None the identity."""
    if x.shape[0] == 0 or y.shape[0] == 0:  # an empty set has no mean, and NaN would reach the gradients
        return x.new_zeros(x.shape[0], y.shape[0])
    # A centre changes no difference, but the smaller the numbers the less the product cancels.
    with torch.no_grad():
        centre = (x.mean(0) + y.mean(0)) / 2
    u, v = x - centre, y - centre
    if weight is not None:
        u, v = functional.linear(u, weight), functional.linear(v, weight)
    u_norms, v_norms = u.square().sum(1, keepdim=True), v.square().sum(1, keepdim=True)
    # |u|^2 + |v|^2 - 2 u.v as one product of longer rows: no pass over (n, m) but the product itself.
    left = torch.cat([-2 * u, u_norms, torch.ones_like(u_norms)], 1)
    right = torch.cat([v, torch.ones_like(v_norms), v_norms], 1)

    def exact(i: Tensor, j: Tensor) -> Tensor:
        difference = x[i] - y[j]
        return (difference if weight is None else functional.linear(difference, weight)).square().sum(1)

    return recompute_small(left @ right.T, u_norms[:, 0], v_norms[:, 0], exact)


class _Norm(Divergence):
    """|L (x - y)|, by default squared; ``weight`` is L, None the identity."""

    dim: int
    weight: Tensor | None
    symmetric = True
    root_triangle = True
    _checks_values = False

    def __init__(self, dim: int, squared: bool) -> None:
        super().__init__(dim)
        self.squared = squared
        self.triangle = not squared
        self.register_parameter("weight", None)

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        h = x - y if self.weight is None else functional.linear(x - y, self.weight)
        return h.square().sum(-1) if self.squared else torch.linalg.vector_norm(h, dim=-1)

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        squares = _squared_distances(x, y, self.weight)
        return squares if self.squared else safe_sqrt(squares)

    def as_bregman(self) -> Bregman | None:
        return Bregman(Quadratic(self.dim, self.weight)) if self.squared else None

    def ranks_like(self) -> Ranking:
        return Ranking(Bregman(Quadratic(self.dim, self.weight)))

    def extra_repr(self) -> str:
        return f"squared={self.squared}, {super().extra_repr()}"


class Euclidean(_Norm):
    """The Euclidean distance, by default squared.

    D(x, y) = ||x - y||^2, or ||x - y|| with ``squared=False``. The baseline of every learned divergence. Squared, it is
    a Bregman divergence but does not satisfy the triangle inequality.

    Parameters
    ----------
    dim
        Number of features.
    squared
        Whether the distance is squared.

    Examples
    --------
    >>> distance = Euclidean(2, squared=False)
    >>> distance(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]))
    tensor(5.)
    """

    def __init__(self, dim: int, squared: bool = True) -> None:
        super().__init__(dim, squared)


class Mahalanobis(_Norm):
    """A learned Mahalanobis distance, by default squared.

    D(x, y) = ||L(x - y)||^2, or ||L(x - y)|| with ``squared=False``. The fastest learned divergence; symmetric, and the
    same everywhere in space. Not squared, it satisfies the triangle inequality.

    Parameters
    ----------
    dim
        Number of features.
    rank
        Rows of L; ``dim`` if not given.
    squared
        Whether the distance is squared.

    References
    ----------
    Xing, Ng, Jordan, Russell: Distance metric learning with application to clustering with side-information. NeurIPS
    2002.

    Examples
    --------
    >>> distance = Mahalanobis(3, rank=2)
    >>> distance.pairwise(torch.randn(4, 3), torch.randn(5, 3)).shape
    torch.Size([4, 5])
    """

    weight: nn.Parameter

    def __init__(self, dim: int, rank: int | None = None, squared: bool = True) -> None:
        super().__init__(dim, squared)
        self.rank = self._pair_width = dim if rank is None else checks.check_size(rank, "rank of Mahalanobis")
        self.weight = nn.Parameter(_uniform((self.rank, dim), dim**-0.5))

    def extra_repr(self) -> str:
        return f"rank={self.rank}, {super().extra_repr()}"


class MaxReLU(nn.Module):
    """An activation of adjacent pairs of units: their maximum, and the mean of their scaled positive parts.

    (a, b) -> max(a, b) in the first half of the output, (s relu(a) + t relu(b)) / 2 in the second, with learned s, t >
    0. Convex, non-decreasing and positively homogeneous. ``width``, the number of units, is even.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.raw_scale = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., width)`` to ``(..., width)``."""
        scaled = x.relu() * functional.softplus(self.raw_scale)
        highest = torch.maximum(x[..., 0::2], x[..., 1::2])
        return torch.cat([highest, (scaled[..., 0::2] + scaled[..., 1::2]) / 2], -1)


class ConcaveActivation(nn.Module):
    """A learned concave, non-decreasing function of each unit, 0 at 0: a minimum of rising lines.

    t -> min_i (m_i t + b_i), m_i = 2 sigmoid(.) > 0, b_0 = 0 and b_i = softplus(.) > 0, for t >= 0, with ``pieces``
    lines for each of ``width`` units. Being concave and 0 at 0 it is subadditive, which keeps the triangle inequality.
    """

    def __init__(self, width: int, pieces: int) -> None:
        super().__init__()
        # Nearly the identity at first, the pieces set apart by a little noise.
        self.raw_slopes = nn.Parameter(1e-3 * torch.randn(pieces, width))
        offsets = 1e-3 * torch.randn(pieces - 1, width) - 1
        self.raw_offsets = nn.Parameter(offsets) if pieces > 1 else None

    def forward(self, t: Tensor) -> Tensor:
        """Map ``(..., width)`` of non-negative numbers to the same shape."""
        slopes = 2 * self.raw_slopes.sigmoid()
        lowest = t * slopes[0]
        if self.raw_offsets is None:
            return lowest
        offsets = functional.softplus(self.raw_offsets)
        for slope, offset in zip(slopes[1:], offsets, strict=True):
            lowest = torch.minimum(lowest, torch.addcmul(offset, t, slope))
        return lowest


class MaxMean(nn.Module):
    """Reduce the last dimension to alpha max + (1 - alpha) mean, with a learned alpha in (0, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.raw_alpha = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., width)`` to ``(...)``."""
        return torch.lerp(x.mean(-1), x.amax(-1), self.raw_alpha.sigmoid())


class DeepNorm(Divergence):
    """A deep asymmetric norm of the difference, followed by a concave function: a quasimetric.

    h = x - y, z_1 = U_1 h, z_{l+1} = W_l act(z_l) + U_{l+1} h with W_l >= 0 and no biases, where act is
    :class:`MaxReLU`; then D(x, y) = MaxMean(concave(relu(z_L))). It satisfies the triangle inequality: use it for
    travel times and other directed distances, with an encoder in front, since it depends on x - y alone. `pairwise`
    runs the network on every pair: use something else where there are many.

    Parameters
    ----------
    dim
        Number of features.
    widths
        Units of each layer; all but the last are even.
    concave
        Lines of the concave activation.

    References
    ----------
    Pitis, Chan, Jamali, Ba: An inductive bias for distances: neural nets that respect the triangle inequality. ICLR
    2020. This is its "neural metric" form.

    Examples
    --------
    >>> quasimetric = DeepNorm(3, widths=(16, 16))
    >>> quasimetric.triangle, quasimetric.symmetric
    (True, False)
    >>> quasimetric(torch.ones(3), torch.ones(3)).item()
    0.0
    """

    triangle = True

    def __init__(self, dim: int, widths: Sequence[int] = (128, 128, 128), concave: int = 5) -> None:
        super().__init__(dim)
        self.widths = checks.check_widths(widths, "widths of DeepNorm")
        for width in self.widths[:-1]:
            if width % 2:
                hint = "The activation acts on pairs of units."
                raise ValueError(
                    checks.message("each of widths of DeepNorm but the last", "an even number", width, hint)
                )
        self.concave_size = checks.check_size(concave, "concave of DeepNorm")
        self._pair_width = sum(self.widths)
        # All maps from the input are one matrix product.
        self.inputs = nn.Parameter(_uniform((sum(self.widths), dim), dim**-0.5))
        # |.| of these has rows that sum to 1 on average, so that layers neither grow nor fade.
        shapes = zip(self.widths[1:], self.widths[:-1], strict=True)
        self.raw_weights = nn.ParameterList([_uniform(shape, 2 / shape[1]) for shape in shapes])
        self.activations = nn.ModuleList([MaxReLU(width) for width in self.widths[:-1]])
        self.concave = ConcaveActivation(self.widths[-1], self.concave_size)
        self.reduction = MaxMean()

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        first, *others = functional.linear(x - y, self.inputs).split(self.widths, -1)
        z = first
        for raw_weight, activation, from_input in zip(self.raw_weights, self.activations, others, strict=True):
            z = functional.linear(activation(z), raw_weight.abs()) + from_input
        result: Tensor = self.reduction(self.concave(z.relu()))
        return result

    def extra_repr(self) -> str:
        return f"widths={self.widths}, concave={self.concave_size}, {super().extra_repr()}"


class WideNorm(Divergence):
    """Many Mahalanobis norms of the signed parts of the difference, reduced: a quasimetric.

    h = x - y; each component is ||W_k [relu(h), relu(-h)]|| with W_k >= 0, or ||W_k h|| with a free W_k if
    ``symmetric``; D(x, y) = MaxMean(concave(components)). It satisfies the triangle inequality and is cheaper than
    :class:`DeepNorm`. It depends on x - y alone: put an encoder in front.

    Parameters
    ----------
    dim
        Number of features.
    components
        Number of norms.
    width
        Rows of each W_k.
    concave
        Lines of the concave activation.
    symmetric
        Whether D(x, y) = D(y, x).
    legacy_bias
        Add a free bias before each norm, as the authors' public code does. Then D(x, x) > 0, and neither symmetry nor
        the triangle inequality is guaranteed; only for comparison with published numbers.

    References
    ----------
    Pitis, Chan, Jamali, Ba: An inductive bias for distances: neural nets that respect the triangle inequality. ICLR
    2020.

    Examples
    --------
    >>> quasimetric = WideNorm(3, components=4, width=8)
    >>> quasimetric(torch.ones(3), torch.ones(3)).item()
    0.0
    >>> WideNorm(3, legacy_bias=True).reflexive
    False
    """

    def __init__(
        self,
        dim: int,
        components: int = 32,
        width: int = 32,
        concave: int = 5,
        symmetric: bool = False,
        legacy_bias: bool = False,
    ) -> None:
        super().__init__(dim)
        self.components = checks.check_size(components, "components of WideNorm")
        self.width = checks.check_size(width, "width of WideNorm")
        self.concave_size = checks.check_size(concave, "concave of WideNorm")
        self.signed_parts = not symmetric
        self.symmetric = symmetric and not legacy_bias
        self.triangle = self.root_triangle = self.reflexive = not legacy_bias
        self._pair_width = self.components * self.width
        columns = dim if symmetric else 2 * dim
        # With this bound a component is about as large as the length of h.
        self.raw_weight = nn.Parameter(_uniform((self.components * self.width, columns), 2 / math.sqrt(dim * width)))
        bias = _uniform((self.components * self.width,), 1 / math.sqrt(columns)) if legacy_bias else None
        self.bias = None if bias is None else nn.Parameter(bias)
        self.concave = ConcaveActivation(self.components, self.concave_size)
        self.reduction = MaxMean()

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        h = x - y
        if self.signed_parts:
            mapped = functional.linear(torch.cat([h.relu(), (-h).relu()], -1), self.raw_weight.abs(), self.bias)
        else:
            mapped = functional.linear(h, self.raw_weight, self.bias)
        lengths = torch.linalg.vector_norm(mapped.unflatten(-1, (self.components, self.width)), dim=-1)
        result: Tensor = self.reduction(self.concave(lengths))
        return result

    def extra_repr(self) -> str:
        sizes = f"components={self.components}, width={self.width}, concave={self.concave_size}"
        return f"{sizes}, {super().extra_repr()}"


def _uniform(shape: tuple[int, ...], bound: float) -> Tensor:
    """Return numbers drawn uniformly from (-bound, bound)."""
    return torch.empty(shape).uniform_(-bound, bound)
