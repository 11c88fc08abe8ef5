"""Elementwise divergences and differences that are accurate for near and for far arguments.

Each function comes from a formula such as x log(x/y) - x + y, whose terms cancel when x and y are near.
Near arguments take a series in z = h / (x + y) in which nothing cancels; far arguments take the formula
itself, written with x / y, because 1 + h / y has no digits left when x is tiny. Divergences are non-negative, and zero
for h = 0. A branch that is not taken gets harmless arguments, or it would send NaN into a gradient. All functions are
twice differentiable.
"""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(x: Tensor) -> Tensor:
    """Return x log x, 0 at x = 0 and NaN below.

    The slope at 0, which is minus infinity, is set to the logarithm of the smallest normal number.
    """
    logarithm = x.clamp_min(torch.finfo(x.dtype).tiny).log()
    return torch.where(x < 0, torch.nan, x * logarithm)


def log_ratio(x: Tensor, y: Tensor, h: Tensor) -> Tensor:
    """Return log(x / y) for positive x and y, where h = x - y."""
    near, z = _reduced(x, y, h)
    square = z * z
    return torch.where(near, 2 * z * (1 + square * _arctanh_tail(square)), _far_log(near, x, y))


def relative_entropy(x: Tensor, y: Tensor, h: Tensor) -> Tensor:
    """Return x log(x / y) - x + y for x >= 0, y > 0, where h = x - y.

    The series is h z (1 + z (1 + z) S) with log(x / y) = 2 (z + z^3 S).
    """
    near, z = _reduced(x, y, h)
    series = h * z * (1 + z * (1 + z) * _arctanh_tail(z * z))
    return torch.where(near, series, x * _far_log(near, x, y) - h)


def itakura_saito(x: Tensor, y: Tensor, h: Tensor) -> Tensor:
    """Return x / y - 1 - log(x / y) for positive x and y, where h = x - y.

    The series is z^2 ((x + y) / y - 2 z S) with log(x / y) = 2 (z + z^3 S).
    """
    near, z = _reduced(x, y, h)
    square = z * z
    relative = torch.where(near, h, 0) / torch.where(near, y, 1)
    series = square * (2 + relative - 2 * z * _arctanh_tail(square))
    return torch.where(near, series, torch.where(near, 0, h) / y - _far_log(near, x, y))


def exponential(x: Tensor, y: Tensor, h: Tensor) -> Tensor:
    """Return exp(x) - exp(y) (1 + h), where h = x - y.

    Overflows only where the result itself is too large.
    """
    bracket, from_x = _chi_bracket(h)
    size = torch.where(from_x, x, y).exp()
    # Zero times infinity is zero here: the same point twice, however large.
    return torch.where(size.isinf() & (bracket == 0), 1, size) * bracket


def power_divergence(x: Tensor, y: Tensor, h: Tensor, p: float) -> Tensor:
    r"""Return \|x\|^p - \|y\|^p - p sign(y) \|y\|^(p-1) h for p > 1, where h = x - y.

    With q = p - 1, psi(u) = (1 + u) log(1 + u) - u and chi(d) = exp(d) - 1 - d, for x and y of one sign it is
    \|y\|^q (q \|y\| psi(h / y) + \|x\| chi(q log(x / y))), in which both terms are non-negative for every p > 1; else
    it is a sum of three non-negative powers.
    """
    q = p - 1
    same, size_x, size_y, step = _sizes(x, y, h)
    bracket, from_x = _chi_bracket(q * log_ratio(size_x, size_y, step))
    first = q * size_y**q * relative_entropy(size_x, size_y, step)
    second = size_x * torch.where(from_x, size_x, size_y) ** q * bracket
    slope = signed_power(y, q)
    across = x * signed_power(x, q) + q * y * slope - p * slope * x
    return torch.where(same, first + second, across)


def signed_power(x: Tensor, q: float) -> Tensor:
    r"""Return sign(x) \|x\|^q for q > 0; an infinite slope at 0 is set to 0."""
    zero = x == 0
    factor = torch.where(zero, 1, x).abs() ** (q - 1)
    return x * torch.where(zero, 0.0 if q != 1 else 1.0, factor)


def signed_power_difference(x: Tensor, y: Tensor, h: Tensor, q: float) -> Tensor:
    r"""Return sign(x) \|x\|^q - sign(y) \|y\|^q, where h = x - y, without cancellation."""
    same, size_x, size_y, step = _sizes(x, y, h)
    # The larger of the two powers is the factor: expm1 gets no positive argument and cannot overflow.
    grows = step > 0
    logarithm = log_ratio(size_x, size_y, step)
    growth = torch.expm1(q * torch.where(grows, -logarithm, logarithm))
    difference = torch.where(grows, -growth, growth) * torch.where(grows, size_x, size_y) ** q
    return torch.where(same, y.sign() * difference, signed_power(x, q) - signed_power(y, q))


def exponential_difference(x: Tensor, y: Tensor, h: Tensor) -> Tensor:
    """Return exp(x) - exp(y), where h = x - y."""
    grows = h > 0
    # The larger exponential is the factor: nothing overflows before the result does.
    larger, factor = torch.where(grows, x, y).exp(), torch.expm1(torch.where(grows, -h, h))
    # Zero times infinity is zero here: the same point twice, however large.
    size = torch.where(larger.isinf() & (factor == 0), 1, larger) * factor
    return torch.where(grows, -size, size)


def softmax_divergence(y: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return log E[exp(d)] and d = h - E[h], where E is the mean under softmax(y)."""
    log_p, h = torch.broadcast_tensors(y.log_softmax(-1), h)
    # A constant in h changes nothing. Subtracting the entry of the largest weight is exact where all entries are near
    # each other, and keeps the digits of the mean.
    h = h - h.detach().gather(-1, log_p.detach().argmax(-1, keepdim=True))
    d = h - (log_p.exp() * h).sum(-1, keepdim=True)
    far = (log_p + d).amax(-1) > 10
    safe = torch.where(far.unsqueeze(-1), 0, d)
    near_value = exponential(log_p + safe, log_p, safe).sum(-1).log1p()
    return torch.where(far, (log_p + d).logsumexp(-1), near_value), d


def softmax_difference(x: Tensor, y: Tensor, h: Tensor) -> Tensor:
    """Return softmax(x) - softmax(y), where h = x - y."""
    divergence, d = softmax_divergence(y, h)
    log_growth = d - divergence.unsqueeze(-1)
    grows = log_growth > 0
    first, second = x.softmax(-1), y.softmax(-1)
    size = torch.where(grows, first, second) * torch.expm1(torch.where(grows, -log_growth, log_growth))
    # Between far points the growth is itself a difference of large numbers, and the plain difference is better.
    far = d.abs() + divergence.unsqueeze(-1) > 1
    return torch.where(far, first - second, torch.where(grows, -size, size))


# ---------------------------------------------------------------------- the branches


def _sizes(x: Tensor, y: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return where x and y have one sign, and there their sizes and the difference of the sizes."""
    same = x * y.sign() > 0
    size_x, size_y = (torch.where(same, part.abs(), 1) for part in (x, y))
    return same, size_x, size_y, torch.where(same, h * y.sign(), 0)


def _reduced(x: Tensor, y: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return where y / 2 <= x <= 2 y, and there z = h / (x + y), which lies in [-1/3, 1/3]."""
    total = x + y
    near = 3 * h.abs() <= total
    return near, torch.where(near, h, 0) / torch.where(near, total, 1)


def _arctanh_tail(square: Tensor) -> Tensor:
    """Return S = 1/3 + z^2/5 + z^4/7 + ..., where arctanh(z) = z + z^3 S, for z^2 <= 1/9."""
    terms = 16 if square.dtype == torch.float64 else 7
    total = torch.full_like(square, 1 / (2 * terms + 1))
    for k in range(terms - 2, -1, -1):
        total = total * square + 1 / (2 * k + 3)
    return total


def _far_log(near: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return log(x / y) where not near; finite at x = 0, so that x log(x / y) is 0 there."""
    limits = torch.finfo(x.dtype)
    numerator = torch.where(near, 1, x)
    denominator = torch.where(near, 1, y)
    # A quotient may be too large for the dtype; its logarithm is not.
    overflow = numerator * (4 / limits.max) > denominator
    quotient = numerator / torch.where(overflow, 1, denominator)
    return quotient.clamp_min(limits.tiny).log() - torch.where(overflow, denominator, 1).log()


def _chi_bracket(d: Tensor) -> tuple[Tensor, Tensor]:
    """Return b and where d > 1, such that exp(d) - 1 - d = b exp(d) there and b elsewhere; b never overflows."""
    near = d.abs() <= 1
    small = torch.where(near, d, 0)
    terms = 18 if d.dtype == torch.float64 else 11
    series = torch.full_like(d, 1.0)
    for k in range(terms, 2, -1):
        series = 1 + small / k * series
    far = torch.where(near, 0, d)
    decay = torch.exp(-far.abs())
    from_x = d > 1
    bracket = torch.where(from_x, 1 - (1 + far) * decay, decay - (1 + far))
    return torch.where(near, small * small / 2 * series, bracket), from_x
