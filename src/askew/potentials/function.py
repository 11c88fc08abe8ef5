"""Potentials from a user's function, and a check for convexity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from askew import checks
from askew.checks import REAL, Domain
from askew.potentials.base import Potential
from askew.potentials.inverse import widened, working_dtype

# The textbook formula has lost 10 of its 16 digits where the divergence is this small a part of its terms.
CANCELLED = 1e-6
# Gauss-Legendre rule with 8 points on [-1, 1].
NODES, WEIGHTS = (part.tolist() for part in np.polynomial.legendre.leggauss(8))


class FromFunction(Potential):
    """A potential from any convex function written in torch operations.

    phi(x) = function(x); gradients come from automatic differentiation. Divergences are computed in float64: by
    phi(x) - phi(y) - <grad phi(y), h> or, where that cancels, by an 8-point quadrature of
    <grad phi(y + s h) - grad phi(y), h> over s in [0, 1]. Good for trying an idea; slower than a potential with
    formulas, and less exact for points nearer than 1e-9 of their size.

    Parameters
    ----------
    function
        Maps points ``(n, dim)`` to values ``(n,)``, each row independently, also in float64. An ``nn.Module`` becomes
        a submodule, and its numbers are converted as needed. Convexity is up to you: see :func:`check_convexity`.
    dim
        Number of features.
    domain
        Where the function is differentiable.
    boundary
        Whether it is finite on the boundary of the domain.

    Examples
    --------
    >>> phi = FromFunction(lambda x: x.pow(4).sum(-1), dim=2)
    >>> phi.divergence(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor(1.)
    """

    function: Callable[[Tensor], Tensor]

    def __init__(
        self, function: Callable[[Tensor], Tensor], dim: int, domain: Domain = REAL, boundary: bool = False
    ) -> None:
        super().__init__(dim)
        if not callable(function):
            must = "callable, from points (n, dim) to values (n,)"
            raise TypeError(checks.message("function of FromFunction", must, type(function).__name__))
        self.function = function
        self.domain = domain
        self.boundary = boundary

    def compute_value(self, x: Tensor) -> Tensor:
        return self._rows(x.reshape(-1, self.dim)).reshape(x.shape[:-1])

    def compute_gradient(self, x: Tensor) -> Tensor:
        return self._value_and_gradient(x)[1]

    def _value_and_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # Rows are independent, so the gradient of the sum has the gradients of the rows.
        gradient, values = torch.func.grad(self._summed, has_aux=True)(x.reshape(-1, self.dim))
        return values.reshape(x.shape[:-1]), gradient.reshape(x.shape)

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        shape, dtype, wide = h.shape[:-1], h.dtype, working_dtype(h)
        x, y, h = (t.to(wide).reshape(-1, self.dim) for t in torch.broadcast_tensors(x, y, h))
        value = self.compute_value(x)
        base, slope = self._value_and_gradient(y)
        linear = (slope * h).sum(-1)
        result = value - base - linear
        cancelled = result <= CANCELLED * (value.abs() + base.abs() + linear.abs())
        if checks.inspectable(x, y, h, cancelled):
            rows = cancelled.nonzero().squeeze(-1)
            result = result.index_put((rows,), self._quadrature(y[rows], h[rows], slope[rows]))
        else:
            result = torch.where(cancelled, self._quadrature(y, h, slope), result)
        return result.clamp_min(0).to(dtype).reshape(shape)

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        wide = working_dtype(x)
        return (self.compute_gradient(x.to(wide)) - self.compute_gradient(y.to(wide))).to(x.dtype)

    def _quadrature(self, y: Tensor, h: Tensor, slope: Tensor) -> Tensor:
        total = torch.zeros_like(y[:, 0])
        for node, weight in zip(NODES, WEIGHTS, strict=True):
            change = self.compute_gradient(y + (1 + node) / 2 * h) - slope
            total = total + weight / 2 * (change * h).sum(-1)
        return total

    def _summed(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        values = self._rows(rows)
        return values.sum(), values

    def _rows(self, rows: Tensor) -> Tensor:
        """Call the function in the dtype of the rows, and check the result."""
        function = self.function
        try:
            values = _in_dtype(function, rows) if isinstance(function, nn.Module) else function(rows)
        except RuntimeError as error:
            if "dtype" not in str(error):
                raise
            hint = "Cast its constants with .to(x.dtype), or write it as an nn.Module that holds them."
            must = f"able to take points of {rows.dtype}, in which divergences are computed"
            raise TypeError(checks.message("function of FromFunction", must, f"'{error}'", hint)) from error
        if not isinstance(values, Tensor) or values.shape != rows.shape[:1]:
            got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            must = f"a map of points of shape {tuple(rows.shape)} to values of shape {tuple(rows.shape[:1])}"
            raise ValueError(checks.message("function of FromFunction", must, got, "Sum over the last axis only."))
        return values


def _in_dtype(module: nn.Module, rows: Tensor) -> Tensor:
    """Call a module with its floating numbers in the dtype of the rows; gradients reach the originals."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    changed = {name: t.to(rows.dtype) for name, t in tensors.items() if t.is_floating_point() and t.dtype != rows.dtype}
    result: Tensor = functional_call(module, changed, (rows,)) if changed else module(rows)
    return result


# ---------------------------------------------------------------------- is it convex?


@dataclass(frozen=True)
class ConvexityReport:
    """The result of :func:`check_convexity`; ``str(report)`` explains it.

    Attributes
    ----------
    convex : bool
        Whether no counter-example was found. That is evidence, not a proof.
    violation : float
        How far the function lies above its chord at the worst counter-example or, if ``t`` is None, how far
        <grad phi(x) - grad phi(y), x - y> lies below zero. 0 without one.
    x, y : Tensor or None
        The ends of that segment, ``(dim,)``.
    t : float or None
        The place on the segment, (1 - t) x + t y. None if only the gradients violate convexity.
    samples : int
        Number of segments tested.

    Examples
    --------
    >>> import torch
    >>> check_convexity(FromFunction(lambda x: -x.square().sum(-1), dim=2), torch.randn(50, 2)).convex
    False
    """

    convex: bool
    violation: float
    x: Tensor | None
    y: Tensor | None
    t: float | None
    samples: int

    def __str__(self) -> str:
        if self.convex or self.x is None or self.y is None:
            return f"No counter-example to convexity on {self.samples} segments; this is evidence, not a proof."
        ends = f"between x = {_shown(self.x)} and y = {_shown(self.y)}"
        if self.t is None:
            return f"Not convex: {ends} the gradient falls, <grad(x) - grad(y), x - y> = {-self.violation:.6g} < 0."
        place = f"at (1 - t) x + t y with t = {self.t:.6g}"
        return f"Not convex: {ends}, {place}, it lies {self.violation:.6g} above the chord."


def check_convexity(potential: Potential, points: Tensor, samples: int = 1000, seed: int = 0) -> ConvexityReport:
    """Look for a counter-example to the convexity of a potential, in float64.

    Half of the segments join two points, half are short ones at a point. On each, it tests
    phi((1 - t) x + t y) <= (1 - t) phi(x) + t phi(y) and <grad phi(x) - grad phi(y), x - y> >= 0 up to rounding. It can
    only find violations near the points: pass typical data.

    Parameters
    ----------
    potential
        Any potential; :class:`FromFunction` is the one that needs it.
    points
        Points inside the domain, ``(n, dim)``.
    samples, seed
        Number of segments, and the seed of their random choice.

    Examples
    --------
    >>> wave = FromFunction(lambda x: x.sin().sum(-1), dim=1)
    >>> check_convexity(wave, torch.linspace(0, 3, 50)[:, None]).convex
    False
    """
    checks.check_size(samples, "samples of check_convexity")
    points = potential.checked(points).detach()
    if points.ndim != 2 or points.shape[0] == 0:
        must = f"of shape (n, {potential.dim}) with n > 0"
        raise ValueError(checks.message("points of check_convexity", must, tuple(points.shape)))
    wide = working_dtype(points)
    with torch.no_grad():
        model = widened(potential, wide)
        x, y, t = _segments(model, points.to(wide), samples, seed)
        value_x, value_y = model.compute_value(x), model.compute_value(y)
        slope_x, slope_y = model.compute_gradient(x), model.compute_gradient(y)
        between = model.compute_value(torch.lerp(x, y, t.unsqueeze(-1)))
        rounding = 1e4 * torch.finfo(wide).eps
        # Both gaps relative to the terms they are made of, to choose the worst of each fairly.
        above = between - torch.lerp(value_x, value_y, t)
        scale = value_x.abs() + value_y.abs() + between.abs()
        falls = -((slope_x - slope_y) * (x - y)).sum(-1)
        slope_scale = ((slope_x.abs() + slope_y.abs()) * (x - y).abs()).sum(-1)
        for gap, size, at_t in ((above, scale, True), (falls, slope_scale, False)):
            relative = torch.nan_to_num(gap / size, nan=0.0)
            worst = int(relative.argmax())
            if relative[worst] > rounding:
                ends = x[worst].clone(), y[worst].clone()
                return ConvexityReport(False, gap[worst].item(), *ends, t[worst].item() if at_t else None, samples)
    return ConvexityReport(True, 0.0, None, None, None, samples)


def _segments(model: Potential, points: Tensor, samples: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ends of segments inside the domain, and a place on each."""
    generator = torch.Generator().manual_seed(seed)
    count, dim = points.shape
    first, second = torch.randint(count, (2, samples), generator=generator).to(points.device)
    uniform = torch.rand(2, samples, generator=generator, dtype=torch.float64).to(points)
    normal = torch.randn(samples, dim, generator=generator, dtype=torch.float64).to(points)
    x, y = points[first], points[second]
    # Short segments are 1e-3 to 1 of the spread of the data long (or of its size, for a single point).
    spread = (points - points.mean(0)).square().mean().sqrt()
    spread = torch.where(spread > 0, spread, points.abs().mean().clamp_min(1e-3))
    step = 10 ** (-3 * uniform[0]).unsqueeze(-1) * spread * normal
    if model.domain.sums_to_one:
        step = step - step.mean(-1, keepdim=True)
    local = (torch.arange(samples, device=points.device) % 2 == 1) & model.contains(x + step)
    y = torch.where(local.unsqueeze(-1), x + step, y)
    return x, y, uniform[1]


def _shown(point: Tensor) -> str:
    numbers = [f"{number:.4g}" for number in point[:5].tolist()]
    return f"[{', '.join(numbers)}{', ...' if point.numel() > 5 else ''}]"
