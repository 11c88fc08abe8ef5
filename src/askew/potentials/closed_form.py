"""Potentials in closed form, each of ``dim`` features: gradient, inverse gradient and divergence are formulas."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from askew import checks
from askew.checks import NEGATIVE, POSITIVE, SIMPLEX, UNIT_BOX
from askew.potentials import kernels
from askew.potentials.base import Potential
from askew.potentials.inverse import InverseGradient


class ClosedForm(Potential):
    """A potential whose gradient can be inverted by a formula."""

    @abstractmethod
    def _inverse(self, g: Tensor) -> Tensor:
        """Return the point whose gradient is g."""

    def _inverse_difference(self, u: Tensor, v: Tensor, h: Tensor) -> Tensor:
        """Return the point of gradient u minus the point of gradient v, where h = u - v."""
        return self._inverse(u) - self._inverse(v)

    def compute_inverse_gradient(self, g: Tensor, start: Tensor | None) -> InverseGradient:
        return InverseGradient(self._inverse(g), g.new_zeros(g.shape[:-1]), 0)

    def _search_start(self, g: Tensor) -> Tensor:
        return self._inverse(g)


class Separable(ClosedForm):
    """A sum over coordinates; subclasses implement the functions of one coordinate."""

    @abstractmethod
    def _values(self, x: Tensor) -> Tensor:
        """Return the function of each coordinate."""

    @abstractmethod
    def compute_curvatures(self, x: Tensor) -> Tensor:
        """Return the second derivative of each coordinate."""

    @abstractmethod
    def _divergences(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        """Return the divergence of each coordinate."""

    def compute_value(self, x: Tensor) -> Tensor:
        return self._values(x).sum(-1)

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return self._divergences(x, y, h).sum(-1)

    def compute_hessian(self, x: Tensor) -> Tensor:
        return torch.diag_embed(self.compute_curvatures(x))


class Quadratic(ClosedForm):
    r"""The squared norm of A x, the potential of the squared Mahalanobis distance.

    phi(x) = \|A x\|^2 and D(x, y) = \|A (x - y)\|^2. The only potential with a symmetric divergence; add it to another
    one to make that strongly convex.

    Parameters
    ----------
    dim
        Number of features.
    matrix
        A, ``(rank, dim)``, kept as a buffer; the identity if not given.

    Examples
    --------
    >>> phi = Quadratic(2, torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    >>> phi.divergence(torch.tensor([3.0, 1.0]), torch.tensor([0.0, 0.0]))
    tensor(13.)
    """

    symmetric = True
    matrix: Tensor | None

    def __init__(self, dim: int, matrix: Tensor | None = None) -> None:
        super().__init__(dim)
        if matrix is not None:
            matrix = checks.check_points(matrix, self.dim, "matrix", "Quadratic")
            if matrix.ndim != 2:
                must = f"of shape (rank, {self.dim})"
                raise ValueError(checks.message("matrix of Quadratic", must, tuple(matrix.shape)))
            matrix = matrix.detach().clone()
        self.register_buffer("matrix", matrix)

    def _mapped(self, x: Tensor) -> Tensor:
        return x if self.matrix is None else x @ self.matrix.mT

    def compute_value(self, x: Tensor) -> Tensor:
        return self._mapped(x).square().sum(-1)

    def compute_gradient(self, x: Tensor) -> Tensor:
        return 2 * x if self.matrix is None else 2 * self._mapped(x) @ self.matrix

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return self.compute_value(h)

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return self.compute_gradient(h)

    def compute_hessian(self, x: Tensor) -> Tensor:
        if self.matrix is None:
            gram = torch.eye(self.dim, dtype=x.dtype, device=x.device)
        else:
            gram = self.matrix.mT @ self.matrix
        return (2 * gram).expand(*x.shape, self.dim)

    def _inverse(self, g: Tensor) -> Tensor:
        if self.matrix is None:
            return g / 2
        # The pseudo-inverse of A, not of its Gram matrix, whose condition number is the square.
        inverse: Tensor = torch.linalg.pinv(self.matrix)
        return (g / 2 @ inverse) @ inverse.mT

    def _inverse_difference(self, u: Tensor, v: Tensor, h: Tensor) -> Tensor:
        return self._inverse(h)

    def compute_inverse_gradient(self, g: Tensor, start: Tensor | None) -> InverseGradient:
        point = self._inverse(g)
        if self.matrix is None:
            return InverseGradient(point, g.new_zeros(g.shape[:-1]), 0)
        # Measured, because g need not lie in the range of a matrix of less than full rank.
        return InverseGradient(point, (self.compute_gradient(point) - g).abs().amax(-1), 0)


class NegativeEntropy(Separable):
    """The negative entropy, the potential of the Kullback-Leibler divergence.

    phi(x) = sum_i x_i log x_i - x_i and D(x, y) = sum_i x_i log(x_i / y_i) - x_i + y_i. For counts, intensities and
    probabilities; x may have zeros, y may not.

    Parameters
    ----------
    dim
        Number of features.
    simplex
        Whether the points are probability vectors. Gradients then matter up to a constant only, and the inverse
        gradient is the softmax instead of the exponential.

    References
    ----------
    Banerjee, Merugu, Dhillon and Ghosh, Clustering with Bregman divergences, JMLR 6, 2005, table 1.

    Examples
    --------
    >>> phi = NegativeEntropy(2, simplex=True)
    >>> phi.divergence(torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75]))
    tensor(0.1438)
    """

    domain = POSITIVE
    boundary = True

    def __init__(self, dim: int, simplex: bool = False) -> None:
        super().__init__(dim)
        self.simplex = simplex
        if simplex:
            self.domain = SIMPLEX

    def _values(self, x: Tensor) -> Tensor:
        return kernels.entropy(x) - x

    def compute_gradient(self, x: Tensor) -> Tensor:
        return x.log()

    def compute_curvatures(self, x: Tensor) -> Tensor:
        return x.reciprocal()

    def _divergences(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return kernels.relative_entropy(x, y, h)

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return kernels.log_ratio(x, y, h)

    def _inverse(self, g: Tensor) -> Tensor:
        return g.softmax(-1) if self.simplex else g.exp()

    def _inverse_difference(self, u: Tensor, v: Tensor, h: Tensor) -> Tensor:
        return kernels.softmax_difference(u, v, h) if self.simplex else kernels.exponential_difference(u, v, h)


class Burg(Separable):
    """Burg's entropy, the potential of the Itakura-Saito divergence.

    phi(x) = -sum_i log x_i and D(x, y) = sum_i x_i / y_i - log(x_i / y_i) - 1. It depends on ratios only, so the scale
    of a feature does not matter: for spectra, variances and durations.

    References
    ----------
    Banerjee et al., Clustering with Bregman divergences, JMLR 6, 2005, table 1.

    Examples
    --------
    >>> phi = Burg(1)
    >>> phi.divergence(torch.tensor([[2.0], [200.0]]), torch.tensor([[1.0], [100.0]]))
    tensor([0.3069, 0.3069])
    """

    domain = POSITIVE
    dual_domain = NEGATIVE

    def _values(self, x: Tensor) -> Tensor:
        return -x.log()

    def compute_gradient(self, x: Tensor) -> Tensor:
        return -x.reciprocal()

    def compute_curvatures(self, x: Tensor) -> Tensor:
        return x.reciprocal().square()

    def _divergences(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return kernels.itakura_saito(x, y, h)

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return h / x / y

    def _inverse(self, g: Tensor) -> Tensor:
        return -g.reciprocal()

    def _inverse_difference(self, u: Tensor, v: Tensor, h: Tensor) -> Tensor:
        return h / u / v


class FermiDirac(Separable):
    """The negative entropy of independent coins, the potential of the logistic loss.

    phi(x) = sum_i x_i log x_i + (1 - x_i) log(1 - x_i); D is the sum of the Kullback-Leibler divergences between
    Bernoulli variables with probabilities x_i and y_i. x may be 0 or 1, y may not.

    References
    ----------
    Banerjee et al., Clustering with Bregman divergences, JMLR 6, 2005, table 1 (logistic loss).

    Examples
    --------
    >>> phi = FermiDirac(1)
    >>> phi.divergence(torch.tensor([1.0]), torch.tensor([0.5]))
    tensor(0.6931)
    """

    domain = UNIT_BOX
    boundary = True

    def _values(self, x: Tensor) -> Tensor:
        return kernels.entropy(x) + kernels.entropy(1 - x)

    def compute_gradient(self, x: Tensor) -> Tensor:
        return kernels.log_ratio(x, 1 - x, 2 * x - 1)

    def compute_curvatures(self, x: Tensor) -> Tensor:
        return (x * (1 - x)).reciprocal()

    def _divergences(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return kernels.relative_entropy(x, y, h) + kernels.relative_entropy(1 - x, 1 - y, -h)

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return kernels.log_ratio(x, y, h) - kernels.log_ratio(1 - x, 1 - y, -h)

    def _inverse(self, g: Tensor) -> Tensor:
        return g.sigmoid()

    def _inverse_difference(self, u: Tensor, v: Tensor, h: Tensor) -> Tensor:
        grows = h > 0
        larger, smaller = torch.where(grows, u, v), torch.where(grows, v, u)
        size = larger.sigmoid() * (-smaller).sigmoid() * torch.expm1(torch.where(grows, -h, h))
        return torch.where(grows, -size, size)


class Exponential(Separable):
    """The sum of exponentials, the conjugate of the negative entropy.

    phi(x) = sum_i exp(x_i) and D(x, y) = sum_i exp(x_i) - exp(y_i) (1 + x_i - y_i). For logarithms of intensities; it
    grows fast, so features should be of order one.

    Examples
    --------
    >>> phi = Exponential(1)
    >>> phi.divergence(torch.tensor([1.0]), torch.tensor([0.0]))
    tensor(0.7183)
    """

    dual_domain = POSITIVE

    def _values(self, x: Tensor) -> Tensor:
        return x.exp()

    compute_gradient = compute_curvatures = _values  # it is its own derivative

    def _divergences(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return kernels.exponential(x, y, h)

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return kernels.exponential_difference(x, y, h)

    def _inverse(self, g: Tensor) -> Tensor:
        return g.log()

    def _inverse_difference(self, u: Tensor, v: Tensor, h: Tensor) -> Tensor:
        return kernels.log_ratio(u, v, h)


class PowerNorm(Separable):
    r"""The p-th power of the p-norm.

    phi(x) = sum_i \|x_i\|^p for p > 1; p = 2 is :class:`Quadratic`. Near zero, the divergence is sensitive to small
    changes for p < 2 and hardly reacts to them for p > 2.

    Parameters
    ----------
    dim
        Number of features.
    p
        The power, above 1. For p < 2 the curvature at zero is infinite; derivatives of D that would be infinite there
        are set to 0.

    Examples
    --------
    >>> phi = PowerNorm(1, p=1.5)
    >>> phi.divergence(torch.tensor([4.0]), torch.tensor([0.0]))
    tensor(8.)
    """

    def __init__(self, dim: int, p: float = 1.5) -> None:
        super().__init__(dim)
        if isinstance(p, bool) or not isinstance(p, (int, float)) or not (math.isfinite(p) and p > 1):
            raise ValueError(checks.message("p of PowerNorm", "a finite number above 1", repr(p)))
        self.p = float(p)
        self.symmetric = self.p == 2

    def _values(self, x: Tensor) -> Tensor:
        return x * kernels.signed_power(x, self.p - 1)

    def compute_gradient(self, x: Tensor) -> Tensor:
        return self.p * kernels.signed_power(x, self.p - 1)

    def compute_curvatures(self, x: Tensor) -> Tensor:
        return self.p * (self.p - 1) * x.abs() ** (self.p - 2)

    def _divergences(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return kernels.power_divergence(x, y, h, self.p)

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return self.p * kernels.signed_power_difference(x, y, h, self.p - 1)

    def _inverse(self, g: Tensor) -> Tensor:
        return kernels.signed_power(g / self.p, 1 / (self.p - 1))

    def _inverse_difference(self, u: Tensor, v: Tensor, h: Tensor) -> Tensor:
        return kernels.signed_power_difference(u / self.p, v / self.p, h / self.p, 1 / (self.p - 1))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p:g}"


class LogSumExp(ClosedForm):
    """The smooth maximum, the potential of the Kullback-Leibler divergence between softmax outputs.

    phi(x) = log sum_i exp(x_i) and D(x, y) = KL(softmax(y), softmax(x)). For logits. Adding a constant to all
    coordinates changes nothing, so it is convex but not strictly, and the inverse gradient is the point log g among
    many.

    Examples
    --------
    >>> phi = LogSumExp(2)
    >>> phi.divergence(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]))
    tensor(0.1201)
    """

    dual_domain = SIMPLEX

    def compute_value(self, x: Tensor) -> Tensor:
        return x.logsumexp(-1)

    def compute_gradient(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return kernels.softmax_divergence(y, h)[0]

    def compute_gradient_difference(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return kernels.softmax_difference(x, y, h)

    def compute_hessian(self, x: Tensor) -> Tensor:
        p = x.softmax(-1)
        return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)

    def _inverse(self, g: Tensor) -> Tensor:
        return g.log()

    def _inverse_difference(self, u: Tensor, v: Tensor, h: Tensor) -> Tensor:
        return kernels.log_ratio(u, v, h)
