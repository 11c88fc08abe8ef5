"""Argument validation and domains.

Every error says what is wrong, what it must be, what was received and how to fix it. Shapes and dtypes are always
checked. Values (NaN, points outside a domain) are checked only where :func:`inspectable` allows it: nothing here
becomes part of a compiled graph or makes an accelerator wait.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from askew._messages import check_name as check_name
from askew._messages import message as message
from askew._torch_compat import in_transform

# How far the coordinates of a distribution may be from summing to one: what rounding to bfloat16 leaves.
SUM_TOLERANCE = 1e-2
# Entries to search for NaN at a time.
BLOCK_ENTRIES = 1 << 22
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def transformed() -> bool:
    """Whether a compiler, an exporter, a function transform or forward-mode differentiation is running."""
    return torch.compiler.is_compiling() or in_transform()


def inspectable(*tensors: Tensor) -> bool:
    """Whether values may be looked at: eager, plain tensors whose numbers are in main memory."""
    return not transformed() and all(t.device.type == "cpu" for t in tensors)


def check_size(value: object, what: str) -> int:
    """Return ``value`` if it is a positive integer."""
    # Integral includes the integers of numpy.
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(message(what, "a positive integer", repr(value)))
    return int(value)


def check_widths(widths: Sequence[int], what: str, empty: bool = False) -> tuple[int, ...]:
    """Return the widths of hidden layers as a tuple of positive integers, at least one unless it may be ``empty``."""
    if isinstance(widths, (str, bytes)) or not isinstance(widths, Sequence) or (len(widths) == 0 and not empty):
        hint = "Example: widths=(128, 128)."
        must = "a sequence of positive integers" if empty else "a non-empty sequence of positive integers"
        raise ValueError(message(what, must, repr(widths), hint))
    return tuple(check_size(width, f"each of {what}") for width in widths)


def check_positive(value: float, what: str) -> float:
    """Return ``value`` if it is a finite number above zero."""
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not (number and math.isfinite(value) and value > 0):
        raise ValueError(message(what, "a finite number above zero", repr(value)))
    return float(value)


def check_plain(values: object, what: str) -> None:
    """Raise for arrays whose numbers cannot all be read: masked arrays, sparse or nested tensors and such.

    Numpy drops a mask silently, and what it hides would count as data.

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
        pad, sparse = "Pad its rows with torch.nested.to_padded_tensor(tensor, 0.0).", values.layout != torch.strided
        for bad, must, got, hint in (
            (values.is_nested, "rows of one length", "a nested tensor", pad),
            (sparse, "a dense tensor", f"a sparse tensor, {values.layout}", "Convert it with .to_dense()."),
            (values.is_meta, "a tensor that holds numbers", "one on the device meta", "Fill it first."),
            (values.is_quantized, "plain numbers", "a quantized tensor", "Convert it with .dequantize()."),
        ):
            if bad:
                raise TypeError(message(what, must, got, hint))
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
        must, hint = "float32, float64 or bfloat16", "Convert it with .float()."
        raise TypeError(message(f"{name} of {owner}", must, x.dtype, hint))
    if dtype is not None and x.dtype != dtype:
        if dtype not in DTYPES:
            must, hint = "float32, float64 or bfloat16", "Convert the module with .float()."
            raise TypeError(message(f"the parameters of {owner}", must, dtype, hint))
        hint = f"Convert the points with .to({dtype}) or the module with .to({x.dtype})."
        raise TypeError(message(f"{name} of {owner}", f"{dtype} like its parameters", x.dtype, hint))
    if dim is not None and (x.ndim == 0 or x.shape[-1] != dim):
        raise ValueError(message(f"{name} of {owner}", f"of shape (..., {dim})", tuple(x.shape)))
    return x


def check_pair(
    x: object, y: object, dim: int | None, owner: str, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``x`` and ``y`` if both are points of one space that broadcast against each other."""
    x, y = check_points(x, dim, "x", owner, dtype), check_points(y, dim, "y", owner, dtype)
    _check_same_dtype(x, y, owner)
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
    x, y = check_points(x, dim, "x", owner, dtype), check_points(y, dim, "y", owner, dtype)
    for name, points in (("x", x), ("y", y)):
        if points.ndim != 2:
            must = f"of shape (n, {'dim' if dim is None else dim})"
            hint = "Rows against rows are forward(x, y)."
            raise ValueError(message(f"{name} of {owner}.pairwise", must, tuple(points.shape), hint))
    _check_same_dtype(x, y, owner)


def _check_same_dtype(x: Tensor, y: Tensor, owner: str) -> None:
    if x.dtype != y.dtype:
        raise TypeError(message(f"y of {owner}", f"{x.dtype} like x", y.dtype, "Convert one of them with .to(...)."))


def device_of(module: nn.Module) -> torch.device | None:
    """Return the device of the parameters and buffers of a module, by the first one; None if it has none."""
    return next((tensor.device for tensor in itertools.chain(module.parameters(), module.buffers())), None)


def check_devices(owner: nn.Module, x: object, y: object) -> None:
    """Raise if the points and the module that takes them are on different devices."""
    name, home = type(owner).__name__, device_of(owner)
    for what, points in (("x", x), ("y", y)):
        if isinstance(points, Tensor) and points.device != (home := home or points.device):
            hint = f"Move the points with .to({str(home)!r}) or the module with .to({str(points.device)!r})."
            raise ValueError(message(f"{what} of {name}", f"on {home} like its parameters", points.device, hint))


def check_finite(x: Tensor, name: str, owner: str) -> None:
    """Raise if ``x`` has a NaN or an infinity, naming the first one and its place."""
    # In blocks, which keeps a table that is mapped from a file out of memory.
    rows = max(1, BLOCK_ENTRIES // max(1, x[:1].numel())) if x.ndim else 1
    start = 0
    for block in x.split(rows) if x.ndim and x.shape[0] > rows else (x,):
        # First in one pass and without a copy: a sum is finite only if all its terms are, though it may overflow.
        if not math.isfinite(block.detach().sum()) and bool((bad := ~torch.isfinite(block)).any()):
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
        Its name in errors.
    lower, upper
        Open bounds of every coordinate.
    sums_to_one
        Whether the coordinates of a point sum to one.
    hint
        How to bring points into it; the end of the error message.
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
        values, place, must = x, name, ""
        outside = (x < self.lower) | (x > self.upper) if boundary else (x <= self.lower) | (x >= self.upper)
        if bool(outside.any()):
            bounds = f"{self.lower:g}, {self.upper:g}"
            must = f"each coordinate in {f'[{bounds}]' if boundary else f'({bounds})'}"
        elif self.sums_to_one:
            values, place = x.sum(-1), f"{name}.sum(-1)"
            outside = (values - 1).abs() > SUM_TOLERANCE
            must = f"each row summing to 1 within {SUM_TOLERANCE:g}" if bool(outside.any()) else ""
        if must:
            must, got = f"inside the {self.name} domain, {must}", _first(values, outside, place)
            raise ValueError(message(f"{name} of {owner}", must, got, self.hint))

    def middle(self, dim: int) -> float:
        """Return a number; the point with all ``dim`` coordinates equal to it lies well inside the domain."""
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
            Points inside, ``(1, dim)`` or one for each of ``x``: points with a coordinate on or beyond a bound move the
            fraction ``margin`` of the way there. Without it, only such coordinates move.
        margin
            Without ``towards``, how far from the bound they end, in widths of the domain or, where that is infinite,
            mean absolute coordinates. By default the least that ``x.dtype`` can tell from a bound.
        valid
            With ``towards``, which points lie inside, ``(...)``, if more than the bounds decides.

        Examples
        --------
        >>> POSITIVE.inside(torch.tensor([[0.0, 1.0]]), towards=torch.tensor([[1.0, 3.0]]), margin=0.5)
        tensor([[0.5000, 2.0000]])
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
UNIT_BOX = Domain("unit box", 0.0, 1.0, hint="Rescale each feature into (0, 1), for example by x.sigmoid().")
_SIMPLEX_HINT = "Clamp with x.clamp_min(1e-6) and divide each row by its sum, or use x.softmax(-1)."
SIMPLEX = Domain("simplex", lower=0.0, sums_to_one=True, hint=_SIMPLEX_HINT)


def optional_import(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a package that only some users need; the error tells how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        line = f'pip install ".[{extra}]"'
        missing = f"{purpose} needs the package {module!r}, which is not installed."
        raise ImportError(f"{missing} Run in the clone of askew: {line}") from error


def is_lazy(X: object) -> bool:
    """Whether data are a dask collection, which is not in memory."""
    return callable(getattr(X, "__dask_graph__", None))


def check_columns(frame: Any, what: str) -> list[np.dtype[Any]]:
    """Return the dtypes of the columns of a dask data frame, if all are numeric, without computing any."""
    kinds = [getattr(kind, "numpy_dtype", kind) for kind in frame.dtypes]
    strange = next((i for i, kind in enumerate(kinds) if kind.kind not in "biuf"), None)
    if strange is not None or not kinds:
        got = "none" if strange is None else f"column {str(frame.columns[strange])!r} of {kinds[strange]}"
        raise TypeError(message(what, "columns of numbers", got, "Choose them: frame[[name, ...]]."))
    return kinds
