"""Checks of what callers hand in, and the one form that every error has.

Every message says what is wrong, what it must be, what was got and how to hint it. Shapes and dtypes
are cheap to look at and are always checked. Values (NaN, points outside a domain) are looked at only
where :func:`inspectable` allows it, so that nothing here ends up inside a compiled graph or forces an
accelerator to wait.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from askew._messages import check_name, message
from askew._torch_compat import in_transform

__all__ = [
    "NEGATIVE",
    "POSITIVE",
    "REAL",
    "SIMPLEX",
    "UNIT_BOX",
    "Domain",
    "autocasting",
    "check_columns",
    "check_finite",
    "check_matrices",
    "check_name",
    "check_pair",
    "check_plain",
    "check_points",
    "check_positive",
    "check_size",
    "check_widths",
    "in_function_transform",
    "inspectable",
    "is_lazy",
    "message",
    "optional_import",
    "transformed",
]

# How far the coordinates of a distribution may be from summing to one: what rounding to bfloat16 leaves.
SUM_TOLERANCE = 1e-2

# Entries that are looked at at a time.
BLOCK_ENTRIES = 1 << 22

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def in_function_transform() -> bool:
    """Whether ``vmap``, ``func.grad``, another function transform or forward-mode differentiation is at work."""
    # A compiler cannot trace the question, and shows plain tensors anyway.
    return not torch.compiler.is_compiling() and in_transform()


def transformed() -> bool:
    """Whether a compiler, an exporter, a function transform or forward-mode differentiation is at work."""
    return torch.compiler.is_compiling() or in_transform()


def autocasting(x: Tensor) -> bool:
    """Whether autocast is on for the device of ``x``; some devices, such as meta, know no autocast."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def inspectable(*tensors: Tensor) -> bool:
    """Whether values may be looked at: eager, plain tensors whose numbers are in main memory."""
    return not transformed() and all(t.device.type == "cpu" for t in tensors)


def check_size(value: object, what: str) -> int:
    """Return ``value`` if it is a positive integer."""
    # Integral takes the integers of numpy too.
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(message(what, "a positive integer", repr(value)))
    return int(value)


def check_widths(widths: Sequence[int], what: str) -> tuple[int, ...]:
    """Return the widths of hidden layers as a tuple of positive integers, at least one of them."""
    if isinstance(widths, (str, bytes)) or not isinstance(widths, Sequence) or len(widths) == 0:
        hint = "Example: widths=(128, 128)."
        raise ValueError(message(what, "a non-empty sequence of positive integers", repr(widths), hint))
    return tuple(check_size(width, f"each of {what}") for width in widths)


def check_positive(value: float, what: str) -> float:
    """Return ``value`` if it is a finite number above zero."""
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not (number and math.isfinite(value) and value > 0):
        raise ValueError(message(what, "a finite number above zero", repr(value)))
    return float(value)


def check_plain(values: object, what: str) -> None:
    """Raise if not all numbers are there to be read: those of masked arrays, sparse tensors and such are not.

    Numpy drops a mask without a word, and what was hidden under it would count as data.

    Examples
    --------
    >>> check_plain(np.ma.masked_array([1.0, 999.0], mask=[False, True]), "points")
    Traceback (most recent call last):
    ValueError: points must be without masked entries. Got 1 of 2 masked instead. Fill them with .filled(value), or \
drop such rows.
    """
    if isinstance(values, np.ma.MaskedArray):
        hidden = int(np.ma.getmaskarray(values).sum())
        if hidden:
            hint = "Fill them with .filled(value), or drop such rows."
            raise ValueError(message(what, "without masked entries", f"{hidden} of {values.size} masked", hint))
    elif isinstance(values, Tensor):
        if values.is_nested:
            hint = "Bring its rows to one length with torch.nested.to_padded_tensor(tensor, 0.0)."
            raise TypeError(message(what, "rows of one length", "a nested tensor", hint))
        if values.layout != torch.strided:
            got, hint = f"a sparse tensor, {values.layout}", "Convert it with .to_dense()."
            raise TypeError(message(what, "a dense tensor", got, hint))
        if values.is_meta:
            hint = "Fill it first; such tensors are for shapes alone."
            raise TypeError(message(what, "a tensor that holds numbers", "one on the device meta", hint))
        if values.is_quantized:
            raise TypeError(message(what, "plain numbers", "a quantized tensor", "Convert it with .dequantize()."))
    elif callable(getattr(values, "toarray", None)) and hasattr(values, "nnz"):  # of scipy
        got = f"a sparse {type(values).__name__}"
        raise TypeError(message(what, "a dense array", got, "Convert it with .toarray()."))


def check_points(x: object, dim: int | None, name: str, owner: str, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``x`` if it is a floating tensor of shape ``(..., dim)`` and, where given, of this dtype."""
    if not isinstance(x, Tensor):
        hint = f"Convert it with torch.as_tensor({name}, dtype=torch.float32)."
        raise TypeError(message(f"{name} of {owner}", "a torch.Tensor", type(x).__name__, hint))
    if x.layout != torch.strided:
        check_plain(x, f"{name} of {owner}")
    if x.dtype not in DTYPES:
        hint = "Convert it with .float()."
        raise TypeError(message(f"{name} of {owner}", "float32, float64 or bfloat16", x.dtype, hint))
    if dtype is not None and dtype not in DTYPES:
        hint = "Convert the module with .float()."
        raise TypeError(message(f"the parameters of {owner}", "float32, float64 or bfloat16", dtype, hint))
    if dtype is not None and x.dtype != dtype:
        hint = f"Convert the points with .to({dtype}) or the module with .to({x.dtype})."
        raise TypeError(message(f"{name} of {owner}", f"{dtype} like its parameters", x.dtype, hint))
    if dim is not None and (x.ndim == 0 or x.shape[-1] != dim):
        raise ValueError(message(f"{name} of {owner}", f"of shape (..., {dim})", tuple(x.shape)))
    return x


def check_pair(
    x: object, y: object, dim: int | None, owner: str, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``x`` and ``y`` if both are points of one space that broadcast against each other."""
    x = check_points(x, dim, "x", owner, dtype)
    y = check_points(y, dim, "y", owner, dtype)
    if x.dtype != y.dtype:
        hint = "Convert one of them with .to(...)."
        raise TypeError(message(f"y of {owner}", f"{x.dtype} like x", y.dtype, hint))
    if x.shape != y.shape:
        try:
            torch.broadcast_shapes(x.shape, y.shape)
        except RuntimeError:
            must = f"of a shape that broadcasts with x, {tuple(x.shape)}"
            hint = "All pairs of two sets are pairwise(x, y)."
            raise ValueError(message(f"y of {owner}", must, tuple(y.shape), hint)) from None
    return x, y


def check_matrices(x: object, y: object, dim: int | None, owner: str, dtype: torch.dtype | None = None) -> None:
    """Raise unless ``x`` and ``y`` are two sets of points of one space, ``(n, dim)`` and ``(m, dim)``."""
    for name, points in (("x", x), ("y", y)):
        points = check_points(points, dim, name, owner, dtype)
        if points.ndim != 2:
            must = f"of shape (n, {'dim' if dim is None else dim})"
            hint = "Rows against rows are forward(x, y)."
            raise ValueError(message(f"{name} of {owner}.pairwise", must, tuple(points.shape), hint))
    if isinstance(x, Tensor) and isinstance(y, Tensor) and x.dtype != y.dtype:
        raise TypeError(message(f"y of {owner}", f"{x.dtype} like x", y.dtype, "Convert one of them with .to(...)."))


def check_finite(x: Tensor, name: str, owner: str) -> None:
    """Raise if ``x`` has a NaN or an infinity, naming the first one and where it stands."""
    # In blocks, so that a large table that is mapped from a file does not come into memory.
    rows = max(1, BLOCK_ENTRIES // max(1, x[:1].numel())) if x.ndim else 1
    start = 0
    for block in x.split(rows) if x.ndim and x.shape[0] > rows else (x,):
        bad = ~torch.isfinite(block)
        if bool(bad.any()):
            hint = "Drop or impute such rows first."
            raise ValueError(message(f"{name} of {owner}", "finite", _first(block, bad, name, start), hint))
        start += rows


def _first(x: Tensor, bad: Tensor, name: str, start: int = 0) -> str:
    """Return the first entry of ``x`` where ``bad`` holds, as ``x[3, 1] = nan``; ``start`` is the number of row 0."""
    index = tuple(int(i) for i in bad.nonzero()[0])
    shown = (start + index[0], *index[1:]) if index else index
    where = f"{name}[{', '.join(map(str, shown))}]" if index else name
    return f"{where} = {x[index].item():.6g}"


@dataclass(frozen=True)
class Domain:
    """A convex set of points that a potential or a divergence is defined on.

    Parameters
    ----------
    name
        What it is called in errors.
    lower, upper
        Open bounds of every coordinate.
    sums_to_one
        Whether the coordinates of a point sum to one.
    hint
        How a user brings points into it; ends the error message.
    """

    name: str
    lower: float = -math.inf
    upper: float = math.inf
    sums_to_one: bool = False
    hint: str = ""

    def __repr__(self) -> str:
        return self.name

    def check(self, x: Tensor, name: str, owner: str, *, boundary: bool = False) -> None:
        """Raise if a point lies outside; with ``boundary``, the bounds themselves are inside."""
        if self == REAL or x.numel() == 0:
            return
        check_finite(x, name, owner)
        outside = (x < self.lower) | (x > self.upper)
        if not boundary:
            outside |= (x == self.lower) | (x == self.upper)
        brackets = "[]" if boundary else "()"
        if bool(outside.any()):
            interval = f"{brackets[0]}{self.lower:g}, {self.upper:g}{brackets[1]}"
            must = f"inside the {self.name} domain, each coordinate in {interval}"
            raise ValueError(message(f"{name} of {owner}", must, _first(x, outside, name), self.hint))
        if self.sums_to_one:
            sums = x.sum(-1)
            off = (sums - 1).abs() > SUM_TOLERANCE
            if bool(off.any()):
                must = f"inside the {self.name} domain, each row summing to 1 within {SUM_TOLERANCE:g}"
                raise ValueError(message(f"{name} of {owner}", must, _first(sums, off, f"{name}.sum(-1)"), self.hint))

    def middle(self, dim: int) -> float:
        """Return a number such that the point of ``dim`` features equal to it lies well inside the domain."""
        if self.sums_to_one:
            return 1 / dim
        low, high = math.isfinite(self.lower), math.isfinite(self.upper)
        if low and high:
            return (self.lower + self.upper) / 2
        return self.lower + 1 if low else self.upper - 1 if high else 0.0

    def contains(self, x: Tensor) -> Tensor:
        """Return which points lie between the open bounds: ``(..., dim) -> (...)``."""
        return ((x > self.lower) & (x < self.upper)).all(-1)

    def inside(
        self, x: Tensor, towards: Tensor | None = None, margin: float | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """Return points with those on the boundary, or beyond it, moved inside.

        Parameters
        ----------
        x
            Points, ``(..., dim)``.
        towards
            A point inside, ``(1, dim)``, or one for each of ``x``. Points with a coordinate on or beyond a bound move
            the fraction ``margin`` of the way to it. Without it, only such coordinates move.
        margin
            Without ``towards``, how far inside the bound such coordinates end, as a fraction of the width of the domain
            or, where that is infinite, of the mean absolute coordinate. By default the least that ``x.dtype`` can tell
            from the bounds; all coordinates are then kept that far from them.
        valid
            Which points lie inside, ``(...)``, where more than the bounds decides; for ``towards``.

        Examples
        --------
        >>> POSITIVE.inside(torch.tensor([[0.0, 1.0]]), towards=torch.tensor([[1.0, 3.0]]), margin=0.5)
        tensor([[0.5000, 2.0000]])
        >>> UNIT_BOX.inside(torch.tensor([[0.0, 0.5]]), margin=0.1)
        tensor([[0.1000, 0.5000]])
        """
        eps = torch.finfo(x.dtype).eps
        if towards is not None:
            moved = torch.lerp(x.clamp(self.lower, self.upper), towards, eps if margin is None else margin)
            return torch.where((self.contains(x) if valid is None else valid).unsqueeze(-1), x, moved)
        if margin is None:
            # Next to zero there are far smaller numbers than next to one.
            bounds = self.lower, self.upper
            low, high = (eps**2 if b == 0 else eps * abs(b) if math.isfinite(b) else 0.0 for b in bounds)
            return x.clamp(self.lower + low, self.upper - high)
        width = self.upper - self.lower
        gap = margin * (width if math.isfinite(width) else float(x.abs().mean()) or 1.0)
        moved = x.clamp(self.lower + gap, self.upper - gap)
        return torch.where((x > self.lower) & (x < self.upper), x, moved)


REAL = Domain("real")
POSITIVE = Domain("positive", lower=0.0, hint="Shift the data or clamp it with x.clamp_min(1e-6).")
NEGATIVE = Domain("negative", upper=0.0, hint="These are gradients of a potential that only takes negative ones.")
UNIT_BOX = Domain(
    "unit box", lower=0.0, upper=1.0, hint="Rescale each feature into (0, 1), for example by x.sigmoid()."
)
SIMPLEX = Domain(
    "simplex",
    lower=0.0,
    upper=math.inf,
    sums_to_one=True,
    hint="Clamp with x.clamp_min(1e-6) and divide each row by its sum, or use x.softmax(-1).",
)


def optional_import(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a package that only some users need; if absent, say which line installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        line = f'pip install "askew[{extra}]"'
        raise ImportError(f"{purpose} needs the package {module!r}, which is not installed. Run: {line}") from error


def is_lazy(X: object) -> bool:
    """Whether data are a collection of dask's, which is not in memory."""
    return callable(getattr(X, "__dask_graph__", None))


def check_columns(frame: Any, what: str) -> list[np.dtype[Any]]:
    """Return the dtypes of the columns of a data frame of dask's, if all are numbers; none of them is computed."""
    kinds = [getattr(kind, "numpy_dtype", kind) for kind in frame.dtypes]
    strange = next((i for i, kind in enumerate(kinds) if kind.kind not in "biuf"), None)
    if strange is not None or not kinds:
        got = "none" if strange is None else f"column {str(frame.columns[strange])!r} of {kinds[strange]}"
        raise TypeError(message(what, "columns of numbers", got, "Choose them: frame[[name, ...]]."))
    return kinds
