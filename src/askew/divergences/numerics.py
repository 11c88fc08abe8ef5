"""Near pairs: exact values after a matrix product, and a square root with a finite gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from askew import checks

# Elements of a block of rows that stay in the (last) cache between two passes over it; measured.
BLOCK_ELEMENTS = 1 << 19
# Pairs that are recomputed at a time.
CHUNK_PAIRS = 4096
# The rounding error of a matrix product is taken to be below this many units of eps * scale.
ERROR_UNITS = 8.0


def recompute_small(
    matrix: Tensor,
    scale_rows: Tensor,
    scale_columns: Tensor,
    exact: Callable[[Tensor, Tensor], Tensor],
    rtol: float = 1e-3,
    signed: bool = False,
) -> Tensor:
    """Recompute the entries that lost their precision to cancellation in a matrix product; return none below zero.

    A divergence from a matrix product is a small difference of large numbers where two points are near. Entry (i, j) is
    recomputed if it is not above ``8 eps (scale_rows[i] + scale_columns[j]) / rtol``, where the scales are the sizes of
    the terms that cancel: all others have a relative error below ``rtol``. ``exact`` maps two index tensors ``(k,)`` to
    the exact values of these pairs. This changes ``matrix``, which no operation may have saved for its backward pass,
    in place and unseen by autograd; gradients go through the product. Compiled, transformed or on an accelerator, where
    values cannot be inspected, it only clamps a copy at zero. A ``signed`` matrix keeps its negative entries, and only
    those near zero are recomputed. An ``rtol`` of 1 or more permits 0 there: nothing is
    recomputed.

    Examples
    --------
    >>> raw = torch.tensor([[-1e-7, 2.0]])
    >>> recompute_small(raw, torch.ones(1), torch.ones(2), lambda i, j: torch.zeros(len(i)))
    tensor([[0., 2.]])
    """
    if rtol >= 1 or not checks.inspectable(matrix):
        return matrix if signed else matrix.clamp_min(0)
    if matrix.numel() == 0:
        return matrix
    with torch.no_grad():
        factor = ERROR_UNITS * torch.finfo(matrix.dtype).eps / rtol
        limit_rows, limit_columns = factor * scale_rows, factor * scale_columns
        # One threshold for a whole row is a cheap first filter: most rows have no near pair at all.
        row_limits = limit_rows + limit_columns.amax()
        # One point so large that products overflow spoils entries of others: recompute whatever is not certain.
        certain = math.isfinite(row_limits.amax().item())
        n, m = matrix.shape
        rows = max(1, min(n, BLOCK_ELEMENTS // m))
        buffer = matrix.new_empty(2, -(-rows * m // 8) * 8)
        suspicious = []
        for start in range(0, n, rows):
            block = matrix[start : start + rows].abs() if signed else matrix[start : start + rows]
            if not certain:
                unsure = ~(block > limit_rows[start : start + rows, None] + limit_columns)  # true of NaN
                i_part, j_part = unsure.nonzero(as_tuple=True)
                suspicious.append((i_part + start, j_part))
                continue
            suspects = (block.amin(1) <= row_limits[start : start + rows]).nonzero()[:, 0]
            if suspects.numel() == 0:
                continue
            values = block if suspects.numel() == block.shape[0] else block.index_select(0, suspects)
            suspects = suspects + start
            flat = _where_below(values, limit_rows[suspects, None], limit_columns, buffer)
            suspicious.append((suspects[flat // m], flat % m))
        if suspicious:
            i, j = (torch.cat(parts) for parts in zip(*suspicious, strict=True))
            for i_part, j_part in zip(i.split(CHUNK_PAIRS), j.split(CHUNK_PAIRS), strict=True):
                values = exact(i_part, j_part)
                matrix[i_part, j_part] = values if signed else values.clamp_min(0)
    return matrix


def _where_below(values: Tensor, limit_rows: Tensor, limit_columns: Tensor, buffer: Tensor) -> Tensor:
    """Return the flat indices where ``values <= limit_rows + limit_columns``; fast where they are few.

    A comparison into floats is vectorised, one into booleans is not, and eight booleans viewed as one integer are
    faster than ``nonzero`` of the plain comparison.
    """
    count = values.numel()
    words = -(-count // 8)
    limits, flags = buffer[0, :count].view_as(values), buffer[1, : 8 * words]
    flags[count:] = 0
    torch.add(limit_rows, limit_columns, out=limits)
    torch.le(values, limits, out=flags[:count].view_as(values))
    marks = flags.to(torch.bool)
    hits = marks.view(torch.int64).nonzero()
    indices = (8 * hits + torch.arange(8, device=values.device)).flatten()
    return indices[marks[indices]]


def safe_sqrt(x: Tensor) -> Tensor:
    """Return the square root of non-negative numbers with gradient 0, not infinity, at 0."""
    zero = x <= 0  # false of NaN, which stays
    return torch.where(zero, 0.0, torch.where(zero, 1.0, x).sqrt())
