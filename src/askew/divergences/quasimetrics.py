"""Quasimetrics of embedded points: asymmetric, zero on the diagonal, with the triangle inequality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from askew import checks
from askew.divergences.base import Divergence, in_blocks
from askew.divergences.norms import MaxMean
from askew.divergences.numerics import recompute_small


class IQE(Divergence):
    """Interval quasimetric embedding: the lengths of unions of intervals.

    A learned linear map gives u = A x and v = A y, both cut into components of ``size`` numbers. A component of D(x, y)
    is the length of the union over its j of the intervals [u_j, max(u_j, v_j)]; D(x, y) = MaxMean(components). It
    satisfies the triangle inequality and, after an encoder, approximates any quasimetric with few parameters: use it
    for directed distances such as travel times. It is costly on all pairs.

    Parameters
    ----------
    dim
        Number of features.
    components
        Number of unions.
    size
        Number of intervals in each union.

    References
    ----------
    Wang, Isola: Improved representation of asymmetrical distances with interval quasimetric embeddings. NeurReps
    workshop, NeurIPS 2022.

    Examples
    --------
    >>> quasimetric = IQE(3, components=2, size=4)
    >>> quasimetric.triangle, quasimetric.symmetric
    (True, False)
    >>> quasimetric(torch.ones(3), torch.ones(3)).item()
    0.0
    """

    triangle = True

    def __init__(self, dim: int, components: int = 16, size: int = 8) -> None:
        super().__init__(dim)
        self.components = checks.check_size(components, "components of IQE")
        self.size = checks.check_size(size, "size of IQE")
        self._pair_width = self.components * self.size
        self.weight = nn.Parameter(torch.empty(self._pair_width, dim).uniform_(-(dim**-0.5), dim**-0.5))
        self.reduction = MaxMean()

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        shape = (self.components, self.size)
        # With left ends sorted, an interval can only overlap those before it. Lengths come from y - x, not from
        # v - u, which would lose accuracy where the points are near.
        left, order = functional.linear(x, self.weight).unflatten(-1, shape).sort(-1)
        lengths = functional.linear(y - x, self.weight).unflatten(-1, shape).relu()
        lengths = lengths.gather(-1, order.expand_as(lengths))
        left = left.expand_as(lengths)
        reach = (left + lengths).cummax(-1).values
        # How much of this interval those before have covered; at most all of it.
        covered = (reach[..., :-1] - left[..., 1:]).relu()
        free = torch.cat([lengths[..., :1], (lengths[..., 1:] - covered).relu()], -1)
        result: Tensor = self.reduction(free.sum(-1))
        return result

    def extra_repr(self) -> str:
        return f"components={self.components}, size={self.size}, {super().extra_repr()}"


class _Encoder(nn.Module):
    """A small ReLU network that also gives exact differences of embeddings; ``widths`` has all layer sizes."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        last = len(widths) - 2
        # A bias of the output would cancel in every difference.
        self.inner = nn.ModuleList([nn.Linear(widths[k], widths[k + 1]) for k in range(last)])
        self.outer = nn.Linear(widths[-2], widths[-1], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings of points."""
        for layer in self.inner:
            x = layer(x).relu()
        embeddings: Tensor = self.outer(x)
        return embeddings

    def difference(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the embedding of ``x`` minus that of ``y`` without cancellation, by carrying h = x - y along."""
        h = x - y
        for layer in self.inner:
            h = functional.linear(h, cast(nn.Linear, layer).weight)
            x, y = layer(x).relu(), layer(y).relu()
            # relu(a) - relu(b) for a - b = h: exactly h if both are positive, exactly 0 if h is.
            h = torch.minimum(torch.maximum(h, -y), x)
        difference: Tensor = self.outer(h)
        return difference


class MRN(Divergence):
    """Metric residual network: a symmetric distance plus an asymmetric remainder.

    D(x, y) = ||S(x) - S(y)|| + max_i relu(A_i(x) - A_i(y)) with two small networks S and A. It satisfies the triangle
    inequality for any S and A, and is good at goals and reachability. `pairwise` encodes only n + m points. With
    ``hidden=()`` both are linear and D is a norm of x - y.

    Parameters
    ----------
    dim
        Number of features.
    width
        Outputs of each network.
    hidden
        Units of the hidden layers of each network; empty for linear maps.

    References
    ----------
    Liu, Feng, Liu, Stone: Metric residual networks for sample efficient goal-conditioned reinforcement learning. AAAI
    2023.

    Examples
    --------
    >>> quasimetric = MRN(3, width=8, hidden=(16,))
    >>> quasimetric.pairwise(torch.randn(4, 3), torch.randn(5, 3)).shape
    torch.Size([4, 5])
    """

    triangle = True

    def __init__(self, dim: int, width: int = 64, hidden: Sequence[int] = (128,)) -> None:
        super().__init__(dim)
        self.width = checks.check_size(width, "width of MRN")
        self.hidden = checks.check_widths(hidden, "hidden of MRN") if len(hidden) > 0 else ()
        self._pair_width = max(self.width, *self.hidden, dim)
        self.symmetric_part = _Encoder((dim, *self.hidden, self.width))
        self.asymmetric_part = _Encoder((dim, *self.hidden, self.width))

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return _mrn(self.symmetric_part.difference(x, y), self.asymmetric_part.difference(x, y))

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        x_embedded = torch.stack([self.symmetric_part(x), self.asymmetric_part(x)])
        y_embedded = torch.stack([self.symmetric_part(y), self.asymmetric_part(y)])
        matrix = in_blocks(_mrn_pairs, x_embedded, y_embedded, self.width, dim=1)

        def exact(i: Tensor, j: Tensor) -> Tensor:
            return self.compute(x[i], y[j])

        with torch.no_grad():
            x_scale, y_scale = x_embedded.abs().sum(2).amax(0), y_embedded.abs().sum(2).amax(0)
        return recompute_small(matrix, x_scale, y_scale, exact)

    def extra_repr(self) -> str:
        return f"width={self.width}, hidden={self.hidden}, {super().extra_repr()}"


def _mrn(symmetric: Tensor, asymmetric: Tensor) -> Tensor:
    """Return the divergence from the differences of the two embeddings."""
    length: Tensor = torch.linalg.vector_norm(symmetric, dim=-1)
    return length + asymmetric.amax(-1).relu()


def _mrn_pairs(x_embedded: Tensor, y_embedded: Tensor) -> Tensor:
    """Return all pairs from embeddings ``(2, n, width)`` and ``(2, m, width)``."""
    differences = x_embedded[:, :, None] - y_embedded[:, None]
    return _mrn(differences[0], differences[1])
