r"""The Bregman residual of an input-convex network, with a hand-written backward pass.

For one row pair the state of layer l is b = a_l(y), t = a_l(x) - a_l(y) and q = W r_{l-1}. The step t is
carried forward from h = x - y, never subtracted. With s = g'(b) and d, c of `activations`:

    r = d(b, t)     e = r + s t     R = r + s q
    [b'; t'; q'] = [g(b); e; R] W + [y, 1; h, 0; 0] U          one matrix product with 3 n rows
    D = R_last . w

All terms of R are non-negative, so D >= 0 and D(x, x) = 0 hold in floating point. No derivative is taken
in the forward pass, and the backward pass has no transcendental function: with v = g''(b), k = c + v (q - t),

    dR/db = k   dR/dt = c   dR/dq = s   |   de/db = c   de/dt = s + c   |   dg/db = s.

Matrices multiply from the right: W is (inputs, outputs), U is (dim + 1, outputs) with the bias as its last
row, so that the bias needs no code of its own. The weights of a network are the tuple
(U_0, W_1, U_1, W_2, U_2, ..., w).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from askew import checks
from askew.potentials.activations import Activation, Stage

__all__ = ["Weights", "base_point", "change", "differentiable_gradients", "gradient", "residual"]

Weights = tuple[Tensor, ...]


def base_point(activation: Activation, y: Tensor, weights: Weights) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return phi(y), the pre-activations b_l of every layer and the adjoints d phi / d z_{l+1}."""
    bases: list[Tensor] = []
    z = y
    for i, u in enumerate(weights[:-1:2]):
        b = y @ u[:-1] + u[-1]
        if i:
            b = b + z @ weights[2 * i - 1]
        b = b * activation.gain
        bases.append(b)
        z = activation.value(b)
    adjoint = weights[-1].expand_as(z)
    value = z @ weights[-1]
    adjoints = [adjoint]
    for i in range(len(bases) - 1, 0, -1):
        adjoint = (activation.slope(bases[i]) * adjoint) @ weights[2 * i - 1].t() * activation.gain
        adjoints.append(adjoint)
    return value, bases, adjoints[::-1]


def gradient(activation: Activation, bases: list[Tensor], adjoints: list[Tensor], weights: Weights) -> Tensor:
    """Return grad phi from what :func:`base_point` found."""
    total = torch.zeros((), dtype=bases[0].dtype, device=bases[0].device)
    for u, b, adjoint in zip(weights[:-1:2], bases, adjoints, strict=True):
        total = total + (activation.slope(b) * adjoint) @ u[:-1].t()
    return total * activation.gain


def change(
    activation: Activation, bases: list[Tensor], adjoints: list[Tensor], h: Tensor, weights: Weights
) -> tuple[Tensor, Tensor]:
    """Return D(y + h, y) and grad phi(y + h) - grad phi(y), as differentiable operations."""
    divergence, difference = h.new_zeros(()), h.new_zeros(())
    slopes = [activation.slope(b) for b in bases]
    bends: list[Tensor] = []
    rise = h
    for i, (b, adjoint, slope) in enumerate(zip(bases, adjoints, slopes, strict=True)):
        t = _step(activation, h, rise, weights, i)
        r, bend = activation.residual_and_bend(b, t)
        bends.append(bend)
        divergence = divergence + _dot(r, adjoint)
        if i + 1 < len(bases):
            rise = torch.addcmul(r, slope, t)
    moved: Tensor | None = None  # the adjoint of a_l at y + h minus that at y
    for i in range(len(bases) - 1, -1, -1):
        through = bends[i] * adjoints[i]
        if moved is not None:
            through = torch.addcmul(through, bends[i] + slopes[i], moved)
        difference = difference + through @ weights[2 * i][:-1].t()
        if i:
            moved = through @ weights[2 * i - 1].t() * activation.gain
    return divergence, difference * activation.gain


def _step(activation: Activation, h: Tensor, rise: Tensor, weights: Weights, i: int) -> Tensor:
    """Return t of layer i from h and the rise of the layer before; the gain comes with the products."""
    t = (h * activation.gain) @ weights[2 * i][:-1]
    return t if i == 0 else torch.addmm(t, rise, weights[2 * i - 1], alpha=activation.gain)


def _dot(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the inner product of each row with its weight, or with the one there is."""
    if weight.shape[0] == 1 and rows.shape[0] != 1:
        return rows @ weight[0]
    return (rows * weight).sum(-1)


def residual(activation: Activation, y: Tensor, h: Tensor, weights: Weights) -> Tensor:
    """Return D(y + h, y) row by row for `h` of shape (n, dim) and `y` of the same, or of a single row.

    Eager code goes through the hand-written backward pass; compilers and function transforms get the
    differentiable operations, and so does a single base point, which needs little computed at all.
    """
    if checks.transformed() or y.shape != h.shape:
        return _differentiable(activation, y, h, weights)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (y, h, *weights)):
        result: Tensor = _Residual.apply(activation, y, h, *weights)  # type: ignore[no-untyped-call]
        return result
    return _propagate(activation, y, h, weights, None)


def _differentiable(activation: Activation, y: Tensor, h: Tensor, weights: Weights) -> Tensor:
    """Return D as the sum over layers of adjoint . d(b, t), the adjoints taken at y.

    Every term is non-negative, and what depends on y alone is computed once for all h.
    """
    _, bases, adjoints = base_point(activation, y, weights)
    divergence = h.new_zeros(())
    rise = h
    for i, (b, adjoint) in enumerate(zip(bases, adjoints, strict=True)):
        t = _step(activation, h, rise, weights, i)
        r = activation.residual(b, t)
        divergence = divergence + _dot(r, adjoint)
        if i + 1 < len(bases):
            rise = torch.addcmul(r, activation.slope(b), t)
    return divergence


def _propagate(activation: Activation, y: Tensor, h: Tensor, weights: Weights, kept: list[Tensor] | None) -> Tensor:
    """Return D(y + h, y); what the backward pass needs is appended to `kept`, unless that is None."""
    n, dim = y.shape
    count = len(weights) // 2
    gain = activation.gain
    points = y.new_zeros(2, n, dim + 1)
    torch.stack((y, h), out=points[..., :dim])
    points[0, :, dim].fill_(1)
    rows = points.view(2 * n, dim + 1)
    stages: list[Tensor] = []
    states: Tensor | None = None  # [g(b); e; R] of the layer before
    scratch: tuple[Tensor, ...] = ()
    width = 0
    for i in range(count):
        last = i + 1 == count
        u = weights[2 * i]
        q: Tensor | None = None
        # The gain comes with the products.
        if states is None:
            pre = y.new_empty(2, n, u.shape[1])
            pre.view(2 * n, u.shape[1]).addmm_(rows, u, beta=0, alpha=gain)
            b, t = pre.unbind()
        else:
            pre = y.new_empty(3, n, u.shape[1])
            flat, before = pre.view(3 * n, u.shape[1]), states.view(3 * n, width)
            upper = flat[: 2 * n]
            upper.addmm_(rows, u, beta=0, alpha=gain).addmm_(before[: 2 * n], weights[2 * i - 1], alpha=gain)
            flat[2 * n :].addmm_(before[2 * n :], weights[2 * i - 1], beta=0, alpha=gain)
            b, t, q = pre.unbind()
        # One block of scratch serves all layers: memory that was just used is still in the cache.
        if width != u.shape[1]:
            width = u.shape[1]
            scratch = y.new_empty(activation.buffers + 1, n, width).unbind()
        value = rise = bend = drift = None
        if last:
            states, total = None, y.new_empty(n, width)
        else:
            states = y.new_empty(3, n, width)
            value, rise, total = states.unbind()
        slope = scratch[-1]
        if kept is not None:
            partials = y.new_empty(3, n, width)  # [s; c; k], of the last layer [k; c; s]
            slope, bend, drift = partials.unbind()
            if last:
                slope, drift = drift, slope
            stages += [partials] if states is None else [partials, states]
        activation.kernel(b, t, Stage(value, slope, total, bend, drift, scratch[:-1]))
        if rise is not None:
            torch.addcmul(total, slope, t, out=rise)
        if drift is not None and bend is not None:  # k = c + v (q - t)
            torch.addcmul(bend, drift, t if q is None else torch.sub(t, q, out=scratch[0]), value=-1, out=drift)
        if q is not None:
            total.addcmul_(slope, q)
    if kept is not None:
        kept += [total, rows, *stages]
    return torch.mv(total, weights[-1])


def _flat(activation: Activation, y: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    return _differentiable(activation, y, h, weights)


def differentiable_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients of a function as a graph of their own, for ``create_graph=True``.

    The inputs of a backward pass may depend on each other, as h = x - y does on y. They are renamed by a view
    each, so that the gradient of one does not pass through the history of another.
    """
    renamed = [tensor.view_as(tensor) for tensor in inputs]
    wanted = [tensor for tensor, want in zip(renamed, needed, strict=True) if want]
    found = iter(torch.autograd.grad(function(*renamed), wanted, grad, create_graph=True))
    return [next(found) if want else None for want in needed]


class _Residual(torch.autograd.Function):
    """D(y + h, y) with a backward pass derived by hand."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, y: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
        kept: list[Tensor] = []
        result = _propagate(activation, y, h, weights, kept)
        ctx.activation = activation
        ctx.count = len(weights) // 2
        ctx.save_for_backward(y, h, *weights, *kept)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        saved = ctx.saved_tensors
        count, gain = ctx.count, ctx.activation.gain
        y, h, weights = saved[0], saved[1], saved[2 : 2 + 2 * count]
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            network = functools.partial(_flat, ctx.activation)
            return None, *differentiable_gradients(network, (y, h, *weights), needed, grad)
        total, rows, *stack = saved[2 + 2 * count :]
        n, dim = y.shape
        to_points: Tensor | None = None
        grads: list[Tensor] = [torch.mv(total.t(), grad)]
        upstream = (stack.pop() * grad[:, None]).flatten(0, 1)
        # The factor w of the last layer and the gain are folded into the weights instead of into 3 n rows.
        scale: Tensor | float = weights[-1] * gain
        for i in range(count - 1, -1, -1):
            upper = upstream[: 2 * n]
            grads.append(torch.mm(rows.t(), upper).mul_(scale))
            if needed[0] or needed[1]:
                u = weights[2 * i][:dim] * scale
                if to_points is None:
                    to_points = torch.mm(u, upper.t())
                else:
                    to_points.addmm_(u, upper.t())
            if i == 0:
                break
            states, partials = stack.pop(), stack.pop()
            grads.append(torch.mm(states.flatten(0, 1).t(), upstream).mul_(scale))
            w = (weights[2 * i - 1] * scale).t().contiguous()
            upstream = _through_stage(torch.mm(upstream, w).view(3, n, w.shape[1]), partials, first=i == 1)
            scale = gain
        grad_y = grad_h = None
        if to_points is not None:
            grad_y, grad_h = to_points[:, :n].t(), to_points[:, n:].t()
        return None, grad_y, grad_h, *reversed(grads)


def _through_stage(below: Tensor, partials: Tensor, *, first: bool) -> Tensor:
    """Turn gradients with respect to g(b), e and R into those of b, t and q, in place, as rows.

    The first layer has no q.
    """
    to_value, to_rise, to_total = below.unbind()
    s, c, k = partials.unbind()
    to_value.mul_(s).addcmul_(to_rise, c).addcmul_(to_total, k)
    both = to_rise + to_total
    to_rise.mul_(s).addcmul_(both, c)
    if first:
        return below[:2].flatten(0, 1)
    to_total.mul_(s)
    return below.flatten(0, 1)
