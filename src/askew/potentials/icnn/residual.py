r"""The Bregman residual of an input-convex network, with a hand-written backward pass.

For one row pair the state of layer l is b = a_l(y), t = a_l(x) - a_l(y) and q = r_{l-1} W_z. The step t is
carried forward from h = x - y, never subtracted. With s = g'(b) and d, c of `activations`:

    r = d(b, t)     e = r + s t     R = r + s q
    [b'; t'; q'] = [g(b); e; R] W_z + [y, 1; h, 0; 0] W_xb          one matrix product with 3 n rows
    D = R_last . w

All terms of R are non-negative, so D >= 0 and D(x, x) = 0 hold in floating point. No derivative is taken
in the forward pass, and the backward pass has no transcendental function: with v = g''(b), k = c + v (q - t),

    dR/db = k   dR/dt = c   dR/dq = s   |   de/db = c   de/dt = s + c   |   dg/db = s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from askew import checks
from askew.potentials.icnn.activations import Workspace
from askew.potentials.icnn.layers import Layers


def residual(network: Layers, y: Tensor, h: Tensor) -> Tensor:
    """Return D(y + h, y) row by row for `y` and `h` of shape (n, dim).

    Eager code goes through the hand-written backward pass. Compilers and function transforms get differentiable
    operations.
    """
    if checks.transformed():
        return network.at(y).divergence(h)
    weights = network.tensors()
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (y, h, *weights)):
        result: Tensor = _Residual.apply(network.activation, y, h, *weights)  # type: ignore[no-untyped-call]
        return result
    return _propagate(network, y, h, None)


def _propagate(network: Layers, y: Tensor, h: Tensor, kept: list[Tensor] | None) -> Tensor:
    """Return D(y + h, y); append what the backward pass needs to `kept`, unless that is None."""
    n, dim = y.shape
    activation, gain = network.activation, network.activation.gain
    points = y.new_zeros(2, n, dim + 1)
    torch.stack((y, h), out=points[..., :dim])
    points[0, :, dim].fill_(1)
    rows = points.view(2 * n, dim + 1)  # [y, 1; h, 0]
    saved: list[Tensor] = []
    states: Tensor | None = None  # [g(b); e; R] of the layer before
    scratch: tuple[Tensor, ...] = ()
    width = 0
    for i, (wz, wxb) in enumerate(network.layers):
        last = i + 1 == len(network.layers)
        q: Tensor | None = None
        # The gain is folded into the products by `alpha`.
        if states is None or wz is None:
            pre = y.new_empty(2, n, wxb.shape[1])
            pre.view(2 * n, wxb.shape[1]).addmm_(rows, wxb, beta=0, alpha=gain)
            b, t = pre.unbind()
        else:
            pre = y.new_empty(3, n, wxb.shape[1])
            flat, before = pre.view(3 * n, wxb.shape[1]), states.view(3 * n, width)
            upper = flat[: 2 * n]
            upper.addmm_(rows, wxb, beta=0, alpha=gain).addmm_(before[: 2 * n], wz, alpha=gain)
            flat[2 * n :].addmm_(before[2 * n :], wz, beta=0, alpha=gain)
            b, t, q = pre.unbind()
        # One block of scratch serves all layers: memory that was just used is still in the cache.
        if width != wxb.shape[1]:
            width = wxb.shape[1]
            scratch = y.new_empty(activation.buffers + 1, n, width).unbind()
        value = increment = slope_difference = by_base = None
        if last:
            states, total = None, y.new_empty(n, width)
        else:
            states = y.new_empty(3, n, width)
            value, increment, total = states.unbind()
        slope = scratch[-1]
        if kept is not None:
            partials = y.new_empty(3, n, width)  # [s; c; k], of the last layer [k; c; s]
            slope, slope_difference, by_base = partials.unbind()
            if last:
                slope, by_base = by_base, slope
            saved += [partials] if states is None else [partials, states]
        # The curvature v is written where k will be.
        activation.kernel(b, t, Workspace(value, slope, total, slope_difference, by_base, scratch[:-1]))
        if increment is not None:
            torch.addcmul(total, slope, t, out=increment)
        if by_base is not None and slope_difference is not None:  # k = c + v (q - t)
            less = t if q is None else torch.sub(t, q, out=scratch[0])
            torch.addcmul(slope_difference, by_base, less, value=-1, out=by_base)
        if q is not None:
            total.addcmul_(slope, q)
    if kept is not None:
        kept += [total, rows, *saved]
    return torch.mv(total, network.out)


def differentiable_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients of a function as a differentiable graph, for ``create_graph=True``.

    The inputs of a backward pass may depend on each other, as h = x - y does on y. Each is renamed by a view, and so
    the gradient of one does not pass through the history of another.
    """
    renamed = [tensor.view_as(tensor) for tensor in inputs]
    wanted = [tensor for tensor, want in zip(renamed, needed, strict=True) if want]
    gradients = iter(torch.autograd.grad(function(*renamed), wanted, grad, create_graph=True))
    return [next(gradients) if want else None for want in needed]


class _Residual(torch.autograd.Function):
    """D(y + h, y) with a backward pass derived by hand."""

    @staticmethod
    def forward(ctx: Any, activation: Any, y: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
        kept: list[Tensor] = []
        result = _propagate(Layers.from_tensors(activation, weights), y, h, kept)
        ctx.activation, ctx.count = activation, len(weights)
        ctx.save_for_backward(y, h, *weights, *kept)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        y, h, *saved = ctx.saved_tensors
        weights, (total, rows, *stack) = tuple(saved[: ctx.count]), saved[ctx.count :]
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():

            def divergence(y: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
                return Layers.from_tensors(ctx.activation, weights).at(y).divergence(h)

            return None, *differentiable_gradients(divergence, (y, h, *weights), needed, grad)
        network, gain = Layers.from_tensors(ctx.activation, weights), ctx.activation.gain
        n, dim = y.shape
        to_points: Tensor | None = None
        grads = [torch.mv(total.t(), grad)]  # of the weights, the last first
        upstream = (stack.pop() * grad[:, None]).flatten(0, 1)
        # The factor w of the last layer and the gain are folded into the weights instead of into 3 n rows.
        scale: Tensor | float = network.out * gain
        for i, (wz, wxb) in reversed(list(enumerate(network.layers))):
            upper = upstream[: 2 * n]
            grads.append(torch.mm(rows.t(), upper).mul_(scale))
            if needed[0] or needed[1]:
                wx = wxb[:dim] * scale
                if to_points is None:
                    to_points = torch.mm(wx, upper.t())
                else:
                    to_points.addmm_(wx, upper.t())
            if wz is None:
                break
            states, partials = stack.pop(), stack.pop()
            grads.append(torch.mm(states.flatten(0, 1).t(), upstream).mul_(scale))
            back = (wz * scale).t().contiguous()
            upstream = _through_layer(torch.mm(upstream, back).view(3, n, back.shape[1]), partials, first=i == 1)
            scale = gain
        grad_y = grad_h = None
        if to_points is not None:
            grad_y, grad_h = to_points[:, :n].t(), to_points[:, n:].t()
        return None, grad_y, grad_h, *reversed(grads)


def _through_layer(below: Tensor, partials: Tensor, *, first: bool) -> Tensor:
    """Turn gradients with respect to g(b), e and R into those of b, t and q, in place, as rows.

    The first layer has no q.
    """
    to_value, to_increment, to_total = below.unbind()
    s, c, k = partials.unbind()
    to_value.mul_(s).addcmul_(to_increment, c).addcmul_(to_total, k)
    both = to_increment + to_total
    to_increment.mul_(s).addcmul_(both, c)
    if first:
        return below[:2].flatten(0, 1)
    to_total.mul_(s)
    return below.flatten(0, 1)
