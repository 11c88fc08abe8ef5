"""Divergences of a maximum of K functions: PBDL and Deep-div."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from askew import checks
from askew.divergences.base import Divergence

# Elements of the hidden layer of one block of rows, where no gradient is recorded: 1024 rows of the default; measured.
BLOCK_ELEMENTS = 1600 << 10


class MaxOfPieces(Divergence):
    """The divergence of phi = max_i phi_i: how far the piece that is largest at y falls short at x.

    D(x, y) = max_i phi_i(x) - phi_j(x), j = argmax_j phi_j(y), the first one if several are maximal. It is
    non-negative, and 0 wherever x and y have the same largest piece. Subclasses implement ``_pieces``.
    """

    def __init__(self, dim: int, pieces: int) -> None:
        super().__init__(dim)
        self.pieces = checks.check_size(pieces, f"pieces of {type(self).__name__}")
        self._pair_width = self.pieces

    @abstractmethod
    def _pieces(self, x: Tensor) -> Tensor:
        """Return the values of all pieces, ``(..., dim) -> (..., K)``."""

    def best_piece(self, y: Tensor) -> Tensor:
        """Return the number of the largest piece, ``(..., dim) -> (...)``; a choice has no gradient."""
        with torch.no_grad():
            return self._pieces(y).argmax(-1)

    def _check_second(self, y: Tensor) -> None:
        """Raise if y is not finite, which the result would not show: some piece is the largest even there."""
        if checks.inspectable(y):
            total = y.detach().sum().item()
            if total - total != 0.0:
                checks.check_finite(y, "y", type(self).__name__)

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        self._check_second(y)
        values, best = self._pieces(x), self.best_piece(y)
        shape = torch.broadcast_shapes(values.shape[:-1], best.shape)
        at_x = values.gather(-1, values.detach().argmax(-1, keepdim=True)).squeeze(-1)
        at_y = values.expand(*shape, -1).gather(-1, best.expand(shape).unsqueeze(-1)).squeeze(-1)
        return at_x - at_y

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        self._check_second(y)
        values = self._pieces(x)
        highest = values.gather(-1, values.detach().argmax(-1, keepdim=True))
        return highest - values.index_select(1, self.best_piece(y))

    def extra_repr(self) -> str:
        return f"pieces={self.pieces}, {super().extra_repr()}"


class MaxAffine(MaxOfPieces):
    """The divergence of a maximum of affine functions.

    phi(x) = max_i <a_i, x> + b_i; D(x, y) = max_i (<a_i, x> + b_i) - (<a_j, x> + b_j), j the largest piece at y.
    Max-affine functions approximate any convex phi, and learning them from pairs or triplets is a convex problem
    (PBDL); as Deep-div with affine pieces it is learned by gradient. D is 0 within a cell and gives many ties: use
    another divergence where ranks or small values matter.

    Parameters
    ----------
    dim
        Number of features.
    pieces
        Number of affine functions K.

    References
    ----------
    Siahkamari, Xia, Saligrama, Castanon, Kulis: Learning to approximate a Bregman divergence. NeurIPS 2020.
    Cilingir, Manzelli, Kulis: Deep divergence learning. ICML 2020.

    Examples
    --------
    >>> divergence = MaxAffine.from_pieces(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))  # phi(x) = |x|
    >>> divergence(torch.tensor([3.0]), torch.tensor([-2.0]))
    tensor(6., grad_fn=<SubBackward0>)
    """

    def __init__(self, dim: int, pieces: int = 50) -> None:
        super().__init__(dim, pieces)
        self.slopes = nn.Parameter(torch.empty(pieces, dim).uniform_(-(dim**-0.5), dim**-0.5))
        self.intercepts = nn.Parameter(torch.empty(pieces).uniform_(-(dim**-0.5), dim**-0.5))

    @classmethod
    def from_pieces(cls, slopes: Tensor, intercepts: Tensor) -> MaxAffine:
        """Return the divergence of given slopes a_i, ``(K, dim)``, and intercepts b_i, ``(K,)``, which are copied."""
        slopes = checks.check_points(slopes, None, "slopes", "MaxAffine.from_pieces")
        intercepts = checks.check_points(intercepts, None, "intercepts", "MaxAffine.from_pieces", slopes.dtype)
        if slopes.ndim != 2:
            must, got = "of shape (pieces, dim)", tuple(slopes.shape)
            raise ValueError(checks.message("slopes of MaxAffine.from_pieces", must, got))
        if intercepts.shape != slopes.shape[:1]:
            must, got = f"of shape ({slopes.shape[0]},), one for each slope", tuple(intercepts.shape)
            raise ValueError(checks.message("intercepts of MaxAffine.from_pieces", must, got))
        divergence = cls(slopes.shape[1], slopes.shape[0])
        divergence.slopes = nn.Parameter(slopes.detach().clone())
        divergence.intercepts = nn.Parameter(intercepts.detach().clone())
        return divergence

    def _pieces(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.slopes, self.intercepts)


class DeepDiv(MaxOfPieces):
    """Deep divergence learning: the divergence of a maximum of K small networks.

    phi_i(x) = <w_i, relu(V_i x + c_i)> + b_i; D(x, y) = max_i phi_i(x) - phi_j(x), j the largest piece at y.
    Non-negative for any pieces, convex or not. A baseline: D is 0 wherever two points have the same largest piece,
    which makes it slow to learn values and gives many ties in a ranking.

    Parameters
    ----------
    dim
        Number of features.
    pieces
        Number of networks K.
    hidden
        Hidden units of each network.

    References
    ----------
    Cilingir, Manzelli, Kulis: Deep divergence learning. ICML 2020.

    Examples
    --------
    >>> divergence = DeepDiv(3, pieces=8, hidden=4)
    >>> divergence.pairwise(torch.randn(4, 3), torch.randn(5, 3)).shape
    torch.Size([4, 5])
    """

    def __init__(self, dim: int, pieces: int = 50, hidden: int = 32) -> None:
        super().__init__(dim, pieces)
        self.hidden = checks.check_size(hidden, "hidden of DeepDiv")
        self._pair_width = self.pieces * self.hidden
        self.inner_weight = nn.Parameter(torch.empty(pieces, hidden, dim).uniform_(-(dim**-0.5), dim**-0.5))
        self.inner_bias = nn.Parameter(torch.empty(pieces, hidden).uniform_(-(dim**-0.5), dim**-0.5))
        self.outer_weight = nn.Parameter(torch.empty(pieces, hidden).uniform_(-(hidden**-0.5), hidden**-0.5))
        self.outer_bias = nn.Parameter(torch.empty(pieces).uniform_(-(hidden**-0.5), hidden**-0.5))

    def _pieces(self, x: Tensor) -> Tensor:
        return self._columns(x).T.reshape(*x.shape[:-1], self.pieces)

    def best_piece(self, y: Tensor) -> Tensor:
        with torch.no_grad():
            # Ties between networks do not matter; `max` is faster along the first dimension than `argmax`.
            return self._columns(y).max(0).indices.reshape(y.shape[:-1])

    def _columns(self, x: Tensor) -> Tensor:
        """Return the values of all pieces with points as columns, ``(..., dim) -> (K, n)``."""
        rows = x.reshape(-1, x.shape[-1])
        if torch.is_grad_enabled() or checks.transformed():
            return self._values(rows)
        blocks = rows.split(max(1, BLOCK_ELEMENTS // (self.pieces * self.hidden)))
        return torch.cat([self._values(block) for block in blocks], 1)

    def _values(self, rows: Tensor) -> Tensor:
        """Return the values of all pieces at ``(n, dim)``, as ``(K, n)``."""
        # Points are columns: the hidden layer is one product, and the sum over it K contiguous ones. The bias is a
        # column of the weights: adding it afterwards would be one more pass over all units.
        weight = torch.cat([self.inner_weight.flatten(0, 1), self.inner_bias.reshape(-1, 1)], 1)
        points = functional.pad(rows, (0, 1), value=1.0)
        units = torch.mm(weight, points.T).relu_().view(self.pieces, self.hidden, -1)
        return torch.bmm(self.outer_weight[:, None], units)[:, 0] + self.outer_bias[:, None]

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        if x.shape != y.shape:
            return super().compute(x, y)
        self._check_second(y)
        rows = x.reshape(-1, x.shape[-1])
        if not torch.is_grad_enabled():
            at_x = self._columns(rows)
            return (at_x.amax(0) - at_x.gather(0, self.best_piece(y).reshape(1, -1))[0]).reshape(x.shape[:-1])
        # Only the two chosen pieces of each row have a gradient: find them without recording all K, then recompute
        # these two. A backward pass through every piece would be mostly zeros.
        best = self.best_piece(torch.cat([rows, y.reshape(-1, x.shape[-1])]))
        at_x, at_y = self._chosen(rows, best).view(2, -1)
        same = best[: rows.shape[0]] == best[rows.shape[0] :]
        # Rounding in the second computation may reverse a near tie.
        result: Tensor = (at_x - at_y).relu().masked_fill(same, 0)
        return result.reshape(x.shape[:-1])

    def _chosen(self, rows: Tensor, best: Tensor) -> Tensor:
        """Return the values of piece ``best[i]`` at row ``i % n``, ``(n, dim), (2 n,) -> (2 n,)``."""
        if checks.inspectable(best):
            # Rows of one piece together are one small product; a product for each row takes longer.
            order = best.argsort()
            best = best[order]
            parts = rows.index_select(0, order % rows.shape[0]).split(best.bincount(minlength=self.pieces).tolist())
            products = [p @ w.T for p, w in zip(parts, self.inner_weight.unbind(), strict=True) if p.shape[0]]
            units = torch.cat(products) if products else rows.new_zeros(0, self.hidden)
        else:
            order = None
            weight = self.inner_weight.transpose(1, 2).flatten(1).index_select(0, best)
            weight = weight.view(-1, self.inner_weight.shape[-1], self.hidden)
            units = torch.bmm(rows.repeat(2, 1)[:, None], weight)[:, 0]
        units = (units + self.inner_bias.index_select(0, best)).relu()
        values = (units * self.outer_weight.index_select(0, best)).sum(-1) + self.outer_bias.index_select(0, best)
        if order is None:
            return values
        return values.new_zeros(values.shape).index_copy(0, order, values)

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, {super().extra_repr()}"
