"""The potential whose Bregman divergence ranks like the hyperbolic distance."""

from __future__ import annotations

import torch
from torch import Tensor

from askew.potentials.base import Potential


class Hyperbolic(Potential):
    r"""The height of the hyperboloid, whose divergence ranks like the distance of hyperbolic space.

    .. math:: \phi(x) = \sqrt{1 + |x|^2}, \qquad D(x, y) = \frac{\cosh d_H(x, y) - 1}{\sqrt{1 + |y|^2}}

    x and y are the space coordinates of points on the hyperboloid; a point p of the Poincaré ball has
    2 p / (1 - |p|^2). The nearest item x by D(x, query) is the nearest by hyperbolic distance, so any engine of inner
    products serves hyperbolic embeddings (direction ``"query-second"``), and its k-means has them as they are.

    Examples
    --------
    >>> phi = Hyperbolic(2)
    >>> x, y = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0])
    >>> torch.allclose(phi.divergence(x, y), torch.tensor(6.0).sqrt() - 1)  # cosh d - 1
    True
    """

    def compute_value(self, x: Tensor) -> Tensor:
        return _height(x)

    def compute_gradient(self, x: Tensor) -> Tensor:
        return x / _height(x)[..., None]

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        a, b = _height(x), _height(y)
        product = (x * y).sum(-1)
        # (ab)^2 - (1 + <x, y>)^2 = |h|^2 + |y|^2 |h - its part along y|^2, in which nothing cancels.
        length = y.square().sum(-1)
        along = (h * y).sum(-1) / length.clamp_min(torch.finfo(y.dtype).tiny)
        across = (h - along[..., None] * y).square().sum(-1)
        near = (h.square().sum(-1) + length * across) / (a * b + 1 + product)
        # Where the points are opposite, that sum cancels and the definition does not.
        opposite = product < -0.5 * a * b
        return torch.where(opposite, a * b - 1 - product, near) / b

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        a, b = _height(x), _height(y)
        change = (h * (x + y)).sum(-1) / ((a + b) * a * b)
        return h / a[..., None] - change[..., None] * y

    def compute_hessian(self, x: Tensor) -> Tensor:
        a = _height(x)[..., None, None]
        identity = torch.eye(self.dim, dtype=x.dtype, device=x.device)
        return (identity - (x[..., :, None] / a) * (x[..., None, :] / a)) / a


def _height(x: Tensor) -> Tensor:
    return (1 + x.square().sum(-1)).sqrt()
