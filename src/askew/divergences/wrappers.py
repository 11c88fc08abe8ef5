"""Divergences made of other divergences: after an encoder, square roots, symmetric forms, multiples, reversed."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor, nn

from askew import checks, potentials
from askew.divergences.base import Bregman, Divergence, Ranking, Side
from askew.divergences.numerics import recompute_small, safe_sqrt


class Wrapper(Divergence):
    """A divergence of the same points as the one it wraps, with its properties unless a subclass changes them."""

    def __init__(self, divergence: Divergence, encoder: nn.Module | None = None) -> None:
        if not isinstance(divergence, Divergence):
            must, hint = "an askew divergence", 'Make one with askew.make("nbd", dim).'
            got = type(divergence).__name__
            raise TypeError(checks.message(f"divergence of {type(self).__name__}", must, got, hint))
        super().__init__(divergence.dim if encoder is None else None)
        if encoder is not None:
            self.encoder = encoder
        self.divergence = divergence
        self.domain = divergence.domain
        self.symmetric = divergence.symmetric
        self.triangle = divergence.triangle
        self.root_triangle = divergence.root_triangle
        self.reflexive = divergence.reflexive
        self.signed = divergence.signed
        self._pair_width = divergence._pair_width

    @property
    def _pair_by_pair(self) -> bool:
        return super()._pair_by_pair or self.divergence._pair_by_pair

    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None, median: float = 1.0) -> None:
        wanted = None if targets is None else self._inner_targets(targets)
        self.divergence.calibrate(x, y, wanted, float(self._inner_targets(torch.tensor(median))))

    def _inner_targets(self, targets: Tensor) -> Tensor:
        """Return the values that the wrapped divergence should have for this one to have ``targets``."""
        return targets


class _Increasing(Wrapper):
    """An increasing function of a divergence, which ranks as that one does; subclasses implement ``_transform``."""

    @abstractmethod
    def _transform(self, values: Tensor) -> Tensor: ...

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return self._transform(self.divergence.compute(x, y))

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return self._transform(self.divergence.compute_pairwise(x, y))

    def compute_order(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute_order(x, y)

    def compute_pairwise_order(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute_pairwise_order(x, y)

    def from_order(self, order: Tensor) -> Tensor:
        return self._transform(self.divergence.from_order(order))

    def ranks_like(self) -> Ranking | None:
        return self.divergence.ranks_like()

    def ranks_by_order(self) -> bool:
        return self.divergence.ranks_by_order()

    def takes_boundary(self, side: Side) -> bool:
        return self.divergence.takes_boundary(side)


class Embedded(Wrapper):
    r"""D(f(x), f(y)): a divergence between embeddings, learned together with their encoder f.

    .. math:: D_{f}(x, y) = D(f_\theta(x), f_\theta(y)) \qquad \text{or} \qquad D_{f, g}(x, y) = D(f(x), g(y))

    Points may be anything the encoder takes, with the batch first: ``(n, channels, height, width)``, rows of a table,
    or tokens. ``pairwise(x, x)`` encodes the points once. Other wrappers may stand around it.

    With a ``second`` encoder the two arguments may be things of different kinds, such as queries and items, also with
    different numbers of features. D(x, x) is then not 0 (``reflexive`` is False), and no inequality holds. Search
    encodes queries and items each by their own side.

    Parameters
    ----------
    encoder
        Any module that maps a batch of points to ``(n, dim)``.
    divergence
        A divergence of dimension ``dim``.
    second
        The encoder of the second argument; None for the same one.

    References
    ----------
    Lu, Raff, Ferraro (2023), equation 5. Two encoders: Role-Aware Neural Convex Divergence Heads, arXiv 2607.01762.

    Examples
    --------
    >>> from askew.divergences import NeuralBregman
    >>> D = Embedded(nn.Linear(10, 4), NeuralBregman(4))
    >>> D.pairwise(torch.randn(3, 10), torch.randn(2, 10)).shape
    torch.Size([3, 2])
    >>> relevance = Embedded(nn.Linear(10, 4), NeuralBregman(4), second=nn.Linear(7, 4))
    >>> relevance.pairwise(torch.randn(3, 10), torch.randn(2, 7)).shape
    torch.Size([3, 2])
    """

    default_learning_rate = 1e-3  # encoders diverge at larger ones
    second: nn.Module | None

    def __init__(self, encoder: nn.Module, divergence: Divergence, second: nn.Module | None = None) -> None:
        for name, module in (("encoder", encoder), ("second", second)):
            if not isinstance(module, nn.Module) and (name == "encoder" or module is not None):
                raise TypeError(checks.message(f"{name} of Embedded", "a torch.nn.Module", type(module).__name__))
        super().__init__(divergence, encoder)
        self.domain = checks.REAL
        self.second = second
        if second is not None:
            self.symmetric = self.triangle = self.root_triangle = self.reflexive = False

    def encode(self, x: Tensor, side: Side = "first") -> Tensor:
        """Return the embeddings of first or second arguments in the dtype of the divergence."""
        encoder = self.second if side == "second" and self.second is not None else self.encoder
        encoded: Tensor = encoder(x)
        if encoder is self.second and self.divergence.dim not in (None, encoded.shape[-1]):
            must = f"a module that returns {self.divergence.dim} features, as the first encoder does"
            raise ValueError(checks.message("second of Embedded", must, encoded.shape[-1]))
        dtype = self.divergence.dtype
        return encoded if dtype is None else encoded.to(dtype)

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.divergence(self.encode(x), self.encode(y, "second"))
        return result

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.pairwise(*self._both(x, y))

    def _both(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = self.encode(x)
        shared = y is x and self.second is None
        return first, first if shared else self.encode(y, "second")

    def compute_pairwise_order(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.pairwise_order(*self._both(x, y))

    def compute_order(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.order(self.encode(x), self.encode(y, "second"))

    def from_order(self, order: Tensor) -> Tensor:
        return self.divergence.from_order(order)

    @torch.no_grad()
    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None, median: float = 1.0) -> None:
        self.divergence.calibrate(self.encode(x), self.encode(y, "second"), targets, median)


class Sqrt(_Increasing):
    """The square root of a divergence, with gradient 0 at x = y.

    The root is closer to a distance than the divergence itself: the root of a squared norm is the norm, and a triangle
    inequality is kept. The paper's Bregman-sqrt.

    Examples
    --------
    >>> from askew.divergences import Euclidean
    >>> Sqrt(Euclidean(2))(torch.tensor([3.0, 4.0]), torch.zeros(2)).item()
    5.0
    """

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence)
        self.triangle = divergence.triangle or divergence.root_triangle
        self.root_triangle = self.triangle

    def _transform(self, values: Tensor) -> Tensor:
        return safe_sqrt(values)

    def _inner_targets(self, targets: Tensor) -> Tensor:
        return targets.square()


class Symmetrized(Wrapper):
    """D(x, y) + D(y, x), the symmetric (Jeffreys) form of a divergence.

    Examples
    --------
    >>> from askew.divergences import NeuralBregman
    >>> D = Symmetrized(NeuralBregman(3))
    >>> x, y = torch.randn(3), torch.randn(3)
    >>> bool(D(x, y) == D(y, x))
    True
    """

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence)
        self.symmetric = True
        self.signed = False

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute(x, y) + self.divergence.compute(y, x)

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute_pairwise(x, y) + self.divergence.compute_pairwise(y, x).t()

    def _inner_targets(self, targets: Tensor) -> Tensor:
        return targets / 2


class BregmanWrapper(Wrapper):
    """A wrapper that needs the potential of a Bregman divergence."""

    divergence: Bregman

    def __init__(self, divergence: Bregman) -> None:
        if not isinstance(divergence, Bregman):
            what, got = f"divergence of {type(self).__name__}", type(divergence).__name__
            raise TypeError(checks.message(what, "a Bregman divergence", got))
        super().__init__(divergence)


class Jensen(BregmanWrapper):
    """D(x, m) / 2 + D(y, m) / 2 with m the midpoint of x and y: the Jensen-Bregman divergence.

    Unlike :class:`Symmetrized` it stays bounded where D itself does not. With KL it is the Jensen-Shannon divergence.

    Examples
    --------
    >>> from askew.potentials import NegativeEntropy
    >>> js = Jensen(Bregman(NegativeEntropy(2)))
    >>> js(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).item()  # log 2
    0.6931...
    """

    def __init__(self, divergence: Bregman) -> None:
        super().__init__(divergence)
        self.symmetric = True

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        potential = self.divergence.potential
        half = x / 2 - y / 2  # the difference itself may overflow
        middle = y + half
        if checks.inspectable(x, y):
            # Both points may lie on the boundary where phi is finite; only their midpoint must not.
            for name, points in (("x", x), ("y", y)):
                potential.domain.check(points, name, type(self).__name__, boundary=potential.boundary)
        first = potential.compute_divergence(x, middle, half)
        second = potential.compute_divergence(y, middle, -half)
        return first / 2 + second / 2


class GeneralizedSymmetrized(BregmanWrapper):
    r"""The generalised symmetrised Bregman distance, which satisfies the triangle inequality.

    .. math:: D_{gsb}(x, y) = D(x, y) + D(y, x) + \tfrac12 |x - y|^2 + \tfrac12 |\nabla\phi(x) - \nabla\phi(y)|^2

    This is exactly half the squared Euclidean distance between u(x) and u(y), u(x) = x + grad phi(x), and is computed
    as such. So its root is a distance.

    Parameters
    ----------
    divergence
        A Bregman divergence.
    root
        Return the square root (default), the paper's Bregman-GS. Without it there is no triangle inequality.

    References
    ----------
    Lu, Raff, Ferraro (2023), appendix, "generalized symmetrized Bregman"; Acharyya, Banerjee, Boley (2013).

    Examples
    --------
    >>> from askew.divergences import NeuralBregman
    >>> GeneralizedSymmetrized(NeuralBregman(3))
    GeneralizedSymmetrized(
      dim=3, symmetric=True, triangle=True, domain=real
      ...
    """

    def __init__(self, divergence: Bregman, root: bool = True) -> None:
        super().__init__(divergence)
        self.root = root
        self.symmetric = True
        self.triangle = root
        self.root_triangle = True

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        squared = self._squared(x, y)
        return safe_sqrt(squared) if self.root else squared

    def _squared(self, x: Tensor, y: Tensor) -> Tensor:
        h = x - y
        potential = self.divergence.potential
        potential.check_domain(x, y)
        return (h + potential.compute_gradient_difference(x, y, h)).square().sum(-1) / 2

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        if x.shape[0] == 0 or y.shape[0] == 0:
            return x.new_zeros(x.shape[0], y.shape[0])
        potential = self.divergence.potential
        potential.check_domain(x, y)
        form = self.divergence.affine(y.detach().mean(0, keepdim=True))
        first, second = (points - form.centre + form.planes(points).slopes for points in (x, y))
        norms_first, norms_second = first.square().sum(1), second.square().sum(1)
        matrix = (norms_first[:, None] + norms_second) / 2 - first @ second.t()
        matrix = recompute_small(
            matrix, norms_first, norms_second, lambda i, j: self._squared(x[i], y[j]), self.divergence.current_rtol()
        )
        return safe_sqrt(matrix) if self.root else matrix

    def view(self, x: Tensor) -> Tensor:
        """Return u(x) = x + grad phi(x): ``(n, dim) -> (n, dim)``."""
        return x + self.divergence.potential.compute_gradient(x)

    def ranks_like(self) -> Ranking:
        return Ranking(Bregman(potentials.Quadratic(self.divergence.potential.dim)), self.view)

    def _inner_targets(self, targets: Tensor) -> Tensor:
        return (targets.square() if self.root else targets) / 2


class Scaled(_Increasing):
    """A divergence times a positive number.

    Parameters
    ----------
    divergence
        The divergence to scale.
    factor
        The initial number.
    learnable
        Whether it is trained. It stays positive: its logarithm is the parameter.

    Examples
    --------
    >>> from askew.divergences import Euclidean
    >>> Scaled(Euclidean(1), 2.0)(torch.tensor([3.0]), torch.tensor([0.0])).item()
    18.0
    """

    log_factor: Tensor

    def __init__(self, divergence: Divergence, factor: float = 1.0, learnable: bool = False) -> None:
        super().__init__(divergence)
        log_factor = torch.tensor(math.log(checks.check_positive(factor, "factor of Scaled")))
        if learnable:
            self.log_factor = nn.Parameter(log_factor)
        else:
            self.register_buffer("log_factor", log_factor)

    def _transform(self, values: Tensor) -> Tensor:
        return values * self.log_factor.exp()

    def as_bregman(self) -> Bregman | None:
        inner = self.divergence.as_bregman()
        if inner is None:
            return None
        factor = self.log_factor.detach().exp()
        scaled = potentials.Scaled(inner.potential, factor.item())
        scaled.factor = factor  # in its own dtype, not rounded
        return Bregman(scaled, inner.pairwise_rtol)

    def _inner_targets(self, targets: Tensor) -> Tensor:
        return targets / self.log_factor.detach().exp()


class Reversed(Wrapper):
    """D(y, x): a divergence with its arguments swapped.

    Examples
    --------
    >>> from askew.divergences import NeuralBregman
    >>> D = NeuralBregman(3)
    >>> x, y = torch.randn(3), torch.randn(3)
    >>> bool(Reversed(D)(x, y) == D(y, x))
    True
    """

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute(y, x)

    def compute_pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute_pairwise(y, x).t()

    def compute_order(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute_order(y, x)

    def compute_pairwise_order(self, x: Tensor, y: Tensor) -> Tensor:
        return self.divergence.compute_pairwise_order(y, x).t()

    def from_order(self, order: Tensor) -> Tensor:
        return self.divergence.from_order(order)

    def ranks_like(self) -> Ranking | None:
        ranking = self.divergence.ranks_like()
        return None if ranking is None else replace(ranking, swapped=not ranking.swapped)

    def ranks_by_order(self) -> bool:
        return self.divergence.ranks_by_order()

    def takes_boundary(self, side: Side) -> bool:
        return self.divergence.takes_boundary("second" if side == "first" else "first")

    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None, median: float = 1.0) -> None:
        self.divergence.calibrate(y, x, targets, median)


class Dual(Bregman):
    r"""The Bregman divergence of the convex conjugate, on gradients instead of points.

    .. math:: D_{\phi^*}(u, v) = D_\phi(x(v), x(u)), \qquad \nabla\phi(x(u)) = u

    With closed forms this is exact. For a network each point takes the solution of a convex problem, so the dual is for
    analysis, not for training; a gradient outside the range of grad phi is an error.

    Parameters
    ----------
    divergence
        A Bregman divergence.

    Examples
    --------
    >>> from askew.potentials import NegativeEntropy
    >>> dual = Dual(Bregman(NegativeEntropy(2)))  # sum of exponentials
    >>> round(dual(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])).item(), 5)  # 2 (1 - e + e)
    2.0
    """

    def __init__(self, divergence: Bregman) -> None:
        if not isinstance(divergence, Bregman):
            got = type(divergence).__name__
            raise TypeError(checks.message("divergence of Dual", "a Bregman divergence", got))
        super().__init__(potentials.Conjugate(divergence.potential), divergence.pairwise_rtol)
