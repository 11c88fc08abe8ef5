"""The contract of a divergence: two calls, three promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from askew import checks
from askew.checks import REAL, Domain
from askew.io import Rebuildable

__all__ = ["Divergence"]

# Elements of the largest temporary that the blockwise `pairwise` makes (16 MiB of float32).
BLOCK_ELEMENTS = 1 << 22
# Pairs that are computed again in float64 at a time.
BLOCK_PAIRS = 1 << 14


class Divergence(Rebuildable, ABC):
    """A non-negative function D(x, y) of two points, zero at x = y, not necessarily symmetric.

    A member of the family writes one hook, ``compute``, and sets its promises; a second hook,
    ``compute_pairwise``, is there for those who can do better than one row at a time.

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
        Whether D(x, x) = 0 exactly. True of all members but those that reproduce a known flaw.
    domain : Domain
        Where the points must lie.
    """

    symmetric: bool = False
    triangle: bool = False
    root_triangle: bool = False
    reflexive: bool = True
    domain: Domain = REAL
    # Looking for NaN in the result costs a few microseconds; the cheapest members go without.
    _checks_values: bool = True
    # Width of the widest temporary per pair, which decides how many pairs a block of `pairwise` has.
    _pair_width: int = 1

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = None if dim is None else checks.check_size(dim, f"dim of {type(self).__name__}")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return D(x, y) row by row: ``(..., dim), (..., dim) -> (...)``, with broadcasting."""
        x, y = self._to_own_dtype(x, y)
        x, y = checks.check_pair(x, y, self.dim, type(self).__name__, self.dtype)
        return self._evaluate("compute", x, y)

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        """Return D between all rows of two sets: ``(n, dim), (m, dim) -> (n, m)``."""
        x, y = self._to_own_dtype(x, y)
        checks.check_matrices(x, y, self.dim, type(self).__name__, self.dtype)
        return self._evaluate("compute_pairwise", x, y)

    @abstractmethod
    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        """Return D(x, y) for checked points of one floating dtype that broadcast."""

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        """Return all pairs, in blocks of rows so that temporaries do not grow with n.

        While a gradient is recorded, blocks are recomputed in the backward pass instead of kept.
        """
        if checks.transformed():  # a compiler must not be made to guard on the sizes
            return self.compute(x[:, None], y[None])
        rows = max(1, BLOCK_ELEMENTS // max(1, y.shape[0] * max(self._pair_width, y.shape[-1])))
        if x.shape[0] <= rows:
            return self.compute(x[:, None], y[None])
        recompute = torch.is_grad_enabled()
        blocks = []
        for block in x.split(rows):
            if recompute:
                blocks.append(checkpoint(self.compute, block[:, None], y[None], use_reentrant=False))
            else:
                blocks.append(self.compute(block[:, None], y[None]))
        return torch.cat(blocks)

    @property
    def _pair_by_pair(self) -> bool:
        """Whether pairs are computed one by one: two good points may then overflow, and looking at all costs little."""
        return type(self).compute_pairwise is Divergence.compute_pairwise

    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None) -> None:
        """Fit the fixed scales of the model to data before training.

        Members that have such buffers standardise their input by the pooled points ``x`` and ``y``
        and scale their output so that the mean of D(x, y) is that of ``targets`` or, without
        targets, its median is 1. Others have nothing to do.

        Parameters
        ----------
        x, y
            Pairs of points, ``(n, dim)`` each.
        targets
            Values that D(x, y) is to learn, ``(n,)``.
        """

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the parameters and buffers, or None where there are none."""
        return _dtype(self)

    def _to_own_dtype(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Under autocast, bring points to the dtype of the parameters; else return them as they are.

        Encoders run in the lower precision of autocast. A divergence is too cheap to gain from it and
        too exact to lose by it.
        """
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and checks.autocasting(x)):
            return x, y
        dtype = self.dtype or torch.float32
        # Integers and complex numbers stay what they are, for the check to refuse.
        return x.to(dtype) if x.is_floating_point() else x, y.to(dtype) if y.is_floating_point() else y

    def _evaluate(self, hook: str, x: Tensor, y: Tensor) -> Tensor:
        """Call a hook in a precision that is fit for it, then look for NaN where that is cheap."""
        if checks.autocasting(x):
            with torch.autocast(x.device.type, enabled=False):
                return self._evaluate(hook, x, y)
        if x.dtype == torch.bfloat16:
            # Sums of squares do not survive 8 bits: widen the parameters and round the result.
            tensors = chain(self.named_parameters(), self.named_buffers())
            wide = {f"module.{name}": t.float() for name, t in tensors if t.dtype == torch.bfloat16}
            result: Tensor = functional_call(_Method(self, hook), wide, (x.float(), y.float()))
            return result.to(torch.bfloat16)
        result = getattr(self, hook)(x, y)
        if self._checks_values and checks.inspectable(x, y, result):
            matrix = hook == "compute_pairwise" and result.numel() > 0
            # A bad point shows in its whole row or column of a matrix: one of each tells of all points.
            sampled = matrix and not self._pair_by_pair
            values = torch.cat([result[0], result[:, 0]]) if sampled else result
            total = values.detach().sum().item()
            if total - total != 0.0:  # NaN or infinite; an overflow of finite points is not an error
                checks.check_finite(x, "x", type(self).__name__)
                checks.check_finite(y, "y", type(self).__name__)
                return self._without_nan(x, y, result, matrix)
        return result

    def _without_nan(self, x: Tensor, y: Tensor, result: Tensor, matrix: bool) -> Tensor:
        """Return values of finite points in which float64 has done what overflows in float32 on the way."""
        bad = result.isnan()
        # While a gradient is recorded, NaN tells the training loop that weights have run away.
        if result.dtype != torch.float32 or result.requires_grad or not bool(bad.any()):
            return result
        tensors = chain(self.named_parameters(), self.named_buffers())
        wide = {f"module.{name}": t.double() for name, t in tensors if t.dtype == torch.float32}
        if matrix:
            i, j = bad.nonzero(as_tuple=True)
        else:
            x, y = (points.expand(*result.shape, points.shape[-1])[bad] for points in (x, y))
            i = j = torch.arange(len(x))
        values = [
            functional_call(_Method(self, "compute"), wide, (x[rows].double(), y[columns].double()))
            for rows, columns in zip(i.split(BLOCK_PAIRS), j.split(BLOCK_PAIRS), strict=True)
        ]
        return result.masked_scatter(bad, torch.cat(values).to(result.dtype))

    def extra_repr(self) -> str:
        """Show the promises."""
        dim = "" if self.dim is None else f"dim={self.dim}, "
        return f"{dim}symmetric={self.symmetric}, triangle={self.triangle}, domain={self.domain}"


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


class _Method(nn.Module):
    """Call one method of a module as ``forward``, the only one that ``functional_call`` knows."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module = module
        self.method = method

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = getattr(self.module, self.method)(x, y)
        return result
