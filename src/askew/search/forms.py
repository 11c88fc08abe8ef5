"""Search by a Bregman divergence as search by inner product or by Euclidean distance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from askew import checks
from askew._parallel import over_blocks
from askew.checks import Domain
from askew.divergences import (
    Bregman,
    Divergence,
    Euclidean,
    GeneralizedSymmetrized,
    Mahalanobis,
    Reversed,
    Scaled,
    Sqrt,
    split_encoder,
)
from askew.encoders import as_floats, as_points
from askew.potentials import Quadratic

__all__ = ["DIRECTIONS", "FORMS", "Ranking", "Reduction", "has_boundary", "keys_and_queries", "ranking"]

DIRECTIONS = ("query-first", "query-second")
FORMS = ("inner-product", "euclidean")
# Rows that go through the potential at a time.
BLOCK_ROWS = 8192
# Rows of these that a thread has at a time.
THREAD_ROWS = 4096
# How much longer keys may get before the Euclidean form has to be made anew.
HEADROOM = 1.1
# How much longer than keys queries of the Euclidean form are.
STRETCH = 3.0
# How far a point on the boundary of a domain is moved into it, where only points inside will do.
INWARDS = 0.01


@dataclass(frozen=True)
class Ranking:
    """A Bregman divergence that puts items in the same order as another divergence.

    Attributes
    ----------
    bregman : Bregman
        Between views of points.
    view : GeneralizedSymmetrized or None
        Where the views are not the points themselves, the divergence that says what they are.
    swapped : bool
        Whether the arguments change places.
    """

    bregman: Bregman
    view: GeneralizedSymmetrized | None = None
    swapped: bool = False

    def views(self, points: Tensor) -> Tensor:
        """Return what ``bregman`` compares: ``(n, dim) -> (n, dim)``."""
        return points if self.view is None else points + self.view.divergence.potential.compute_gradient(points)


def ranking(divergence: Divergence) -> Ranking | None:
    """Return a Bregman divergence that orders items as a divergence does, or None if there is none known.

    Examples
    --------
    >>> from askew.divergences import make
    >>> ranking(make("bregman-sqrt", 2)) is not None, ranking(make("iqe", 2)) is not None
    (True, False)
    """
    if isinstance(divergence, Bregman):
        return Ranking(divergence)
    if isinstance(divergence, Euclidean) and divergence.dim is not None:
        return Ranking(Bregman(Quadratic(divergence.dim)))
    if isinstance(divergence, Mahalanobis) and divergence.dim is not None:
        potential = Quadratic(divergence.dim, divergence.weight.detach()).to(divergence.weight.device)
        return Ranking(Bregman(potential))
    if isinstance(divergence, GeneralizedSymmetrized) and divergence.dim is not None:
        return Ranking(Bregman(Quadratic(divergence.dim)), view=divergence)
    if isinstance(divergence, (Sqrt, Scaled, Reversed)):
        inner = ranking(divergence.divergence)
        if inner is None or not isinstance(divergence, Reversed):
            return inner
        return replace(inner, swapped=not inner.swapped)
    return None


def has_boundary(divergence: Divergence, is_first: bool) -> bool:
    """Return whether the first, or else the second, point of a divergence may lie on the boundary of its domain."""
    if isinstance(divergence, (Sqrt, Scaled, Reversed)):
        return has_boundary(divergence.divergence, is_first != isinstance(divergence, Reversed))
    return is_first and isinstance(divergence, Bregman) and divergence.potential.boundary


@dataclass(frozen=True)
class Reduction:
    r"""Vectors whose inner product, or Euclidean distance, ranks items as a divergence does.

    With a fixed centre c,

    .. math::
        D(q, y) &= D(q, c) - \langle [q - c, 1], [\nabla\phi(y) - \nabla\phi(c), -D(c, y)] \rangle \\
        D(x, q) &= D(c, q) - \langle [\nabla\phi(q) - \nabla\phi(c), 1], [x - c, -D(x, c)] \rangle

    so the nearest item has the largest inner product of key and query in dim + 1 features. One more feature,
    sqrt(radius^2 - |key|^2) for keys and 0 for queries, makes it the smallest Euclidean distance. Rounding apart, both
    are exact, and so they stay if the last feature of keys is divided by a number that queries have in their place of
    1, and if queries are stretched. The Euclidean form does both, because engines store keys with few bits: without it
    an error in the length of a key counts for more than one in its product with a query.

    Attributes
    ----------
    ranked : Ranking
        The Bregman divergence.
    first : bool
        Whether queries are its first argument.
    form : str
        ``"inner-product"`` or ``"euclidean"``.
    centre : Tensor
        c, ``(1, dim)``.
    radius : float
        The longest key that the Euclidean form can hold.
    offset, stretch : float
        What the last feature of a key is divided by, and how much longer queries are made.
    """

    ranked: Ranking
    first: bool
    form: str
    centre: Tensor
    radius: float = math.inf
    offset: float = 1.0
    stretch: float = 1.0

    @property
    def size(self) -> int:
        """Number of features of keys and queries."""
        return int(self.centre.shape[1]) + (1 if self.form == "inner-product" else 2)

    def keys(self, items: ArrayLike | Tensor) -> Tensor:
        """Return the vectors to store: ``(n, dim) -> (n, size)``."""
        keys = self.plain_keys(items)
        if self.form == "inner-product":
            return keys
        squares = keys.square().sum(1)
        longest = math.sqrt(float(squares.amax())) if len(keys) else 0.0
        if longest > self.radius:
            must = f"at most {self.radius:g} long, the radius of this Euclidean form"
            hint = "Make a new one from all items with keys_and_queries, and all keys with it."
            raise ValueError(checks.message("keys", must, f"{longest:g}", hint))
        return torch.cat([keys, (self.radius**2 - squares).clamp_min(0).sqrt()[:, None]], 1)

    def queries(self, queries: ArrayLike | Tensor) -> Tensor:
        """Return the vectors to search with: ``(n, dim) -> (n, size)``."""
        vectors = self.plain_queries(queries)
        if self.form == "inner-product":
            return vectors
        return torch.cat([self.stretch * vectors, vectors.new_zeros(len(vectors), 1)], 1)

    def plain_keys(self, items: ArrayLike | Tensor) -> Tensor:
        """Return keys for inner products with :meth:`plain_queries` in any form: ``(n, dim) -> (n, dim + 1)``."""
        keys = torch.empty(len(points := as_points(items)), self.centre.shape[1] + 1, dtype=self.centre.dtype)
        self.fill_plain_keys(points, keys)
        return keys

    def fill_plain_keys(self, items: ArrayLike | Tensor, out: Tensor) -> None:
        """Write :meth:`plain_keys` of some items to a matrix that is there, of any floating dtype."""
        self._blockwise(items, self._keys, out)
        out[:, -1] /= self.offset

    def plain_queries(self, queries: ArrayLike | Tensor) -> Tensor:
        """Return queries for inner products with :meth:`plain_keys` in any form: ``(n, dim) -> (n, dim + 1)``."""
        vectors = torch.empty(len(points := as_points(queries)), self.centre.shape[1] + 1, dtype=self.centre.dtype)
        self._blockwise(points, self._queries, vectors)
        return vectors

    def longest(self, items: ArrayLike | Tensor) -> float:
        """Return the length of the longest plain key of some items."""
        keys = self.plain_keys(items)
        return float(keys.norm(dim=1).amax()) if len(keys) else 0.0

    def like_queries(self, items: Tensor) -> Tensor:
        """Return items as queries: those on the boundary of the domain, where no query is, a little inside."""
        if self.first or not self.ranked.bregman.potential.boundary:
            return items
        domain, centre = self.ranked.bregman.domain, self.centre.to(items)
        inside = ((items > domain.lower) & (items < domain.upper)).all(1, keepdim=True)
        return torch.where(inside, items, items + INWARDS * (centre - items))

    def _keys(self, items: Tensor) -> Tensor:
        # Queries first: items are second, where the gradient is taken.
        return self._slopes(items) if self.first else self._points(items)

    def _queries(self, queries: Tensor) -> Tensor:
        vectors = self._points(queries) if self.first else self._slopes(queries)
        vectors[:, -1] = self.offset
        return vectors

    def _slopes(self, y: Tensor) -> Tensor:
        """Return [grad phi(y) - grad phi(c), -D(c, y)]."""
        value, slopes = self.ranked.bregman.potential.centred(y, self.centre)
        return torch.cat([slopes, (value - (slopes * (y - self.centre)).sum(1))[:, None]], 1)

    def _points(self, x: Tensor) -> Tensor:
        """Return [x - c, -D(x, c)]."""
        value = self.ranked.bregman.potential.centred_value(x, self.centre)
        return torch.cat([x - self.centre, -value[:, None]], 1)

    def _blockwise(self, points: ArrayLike | Tensor, function: Callable[[Tensor], Tensor], out: Tensor) -> None:
        points, dim = as_points(points), self.centre.shape[1]
        if points.ndim != 2 or points.shape[1] != dim:
            raise ValueError(checks.message("points of a Reduction", f"of shape (n, {dim})", tuple(points.shape)))

        def work(part: slice) -> None:
            out[part] = function(self.ranked.views(points[part].to(self.centre)))

        over_blocks(len(points), THREAD_ROWS, work)


def reduce(
    divergence: Divergence, direction: str, form: str, items: Tensor | None, owner: str, headroom: float = HEADROOM
) -> Reduction:
    """Return the reduction of a divergence without an encoder, with centre and radius set by items."""
    checks.check_name(direction, DIRECTIONS, f"direction of {owner}")
    checks.check_name(form, FORMS, f"form of {owner}")
    ranked = ranking(divergence)
    if ranked is None or divergence.dim is None:
        must = "a Bregman divergence, a Euclidean or Mahalanobis distance, or a root or a multiple of these"
        hint = "askew.search.ExactIndex searches with any divergence."
        raise TypeError(checks.message(f"divergence of {owner}", must, type(divergence).__name__, hint))
    potential = ranked.bregman.potential
    tensor = next((t for t in (*divergence.parameters(), *divergence.buffers()) if t.is_floating_point()), None)
    like = tensor if tensor is not None else items if items is not None else torch.empty(0)
    if items is None or len(items) == 0:
        if form == "euclidean":
            hint = "Give the items, or a sample of them that contains the longest."
            raise ValueError(checks.message(f"items of {owner}", "given for the Euclidean form", "None", hint))
        centre = torch.full((1, divergence.dim), potential.domain.middle(divergence.dim))
    else:
        rows = max(1, len(items) // BLOCK_ROWS)
        # The mean of some thousand points is as good a centre as that of all.
        sample = items[::rows]
        with torch.inference_mode():
            centre = ranked.views(sample.to(like.device, like.dtype)).double().mean(0, keepdim=True)
            centre = _moved_inside(centre, potential.domain)
    reduction = Reduction(
        ranked, (direction == "query-first") != ranked.swapped, "inner-product", centre.to(like.device, like.dtype)
    )
    if form == "inner-product" or items is None:
        return reduction
    reduction = balanced(reduction, sample)
    return replace(reduction, radius=headroom * max(reduction.longest(items), 1e-30))


def _moved_inside(centre: Tensor, domain: Domain) -> Tensor:
    """Return a point inside a domain, from one that may lie on its boundary, as where all items have a zero."""
    inside = (centre > domain.lower) & (centre < domain.upper)
    if bool(inside.all()):
        return centre
    bounded = math.isfinite(domain.upper - domain.lower)
    size = domain.upper - domain.lower if bounded else float(centre.abs().mean()) or 1.0
    moved = centre.clamp(domain.lower + INWARDS * size, domain.upper - INWARDS * size)
    return torch.where(inside, centre, moved)


def balanced(reduction: Reduction, sample: Tensor) -> Reduction:
    """Return the Euclidean form of a reduction, whose radius is still to be set, balanced by a sample of items.

    The last feature is divided by what makes the product of the lengths of keys and queries smallest, and queries are
    made three times as long as keys; recall after rounding to 8 bits was highest there.
    """
    keys, queries = reduction.plain_keys(sample), reduction.plain_queries(reduction.like_queries(sample))
    longest = float(keys[:, :-1].norm(dim=1).amax())
    offsets = float(keys[:, -1].abs().amax())
    size = float(queries[:, :-1].square().sum(1).mean().sqrt())
    offset = math.sqrt(size * offsets / longest) if longest > 0 and offsets > 0 and size > 0 else 1.0
    result = replace(reduction, form="euclidean", offset=offset)
    keys_size = float(result.plain_keys(sample).norm(dim=1).amax())
    queries_size = math.hypot(size, offset)
    return replace(result, stretch=STRETCH * keys_size / queries_size if keys_size > 0 else 1.0)


def keys_and_queries(
    divergence: object,
    direction: str = "query-first",
    form: str = "inner-product",
    items: ArrayLike | Tensor | None = None,
) -> Reduction:
    """Return the maps that turn items and queries into vectors for any engine of inner products or distances.

    Store ``keys(items)``, search with ``queries(queries)``: the item with the largest inner product (or, in the
    Euclidean form, the smallest distance) is the nearest one by the divergence. Its value is that of the divergence
    itself; compute it for the few hits.

    Parameters
    ----------
    divergence
        A Bregman divergence, a Euclidean or Mahalanobis distance, or a root or multiple of these, without an encoder:
        items and queries are its images.
    direction
        ``"query-first"`` for D(query, item), ``"query-second"`` for D(item, query).
    form
        ``"inner-product"`` or ``"euclidean"``. Graph indexes such as HNSW find next to nothing by raw inner product:
        give them the Euclidean form.
    items
        The items or a sample of them, ``(n, dim)``; sets the centre and, for the Euclidean form, the longest key.
        Without it the centre is the middle of the domain.

    References
    ----------
    Cayton (2008), Fast nearest neighbor retrieval for Bregman divergences; Shrivastava, Li (2014) and Bachrach et al.
    (2014) for the Euclidean form.

    Examples
    --------
    >>> from askew.divergences import make
    >>> kl, items = make("kl", 3), torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    >>> form = keys_and_queries(kl, "query-first", "inner-product", items)
    >>> query = torch.tensor([[1.0, 2.0, 2.0]])
    >>> scores = form.queries(query) @ form.keys(items).T
    >>> int(scores.argmax()), int(kl.pairwise(query, items).argmin())
    (0, 0)
    """
    owner = "keys_and_queries"
    points = None if items is None else as_points(items)
    if points is not None and points.ndim != 2:
        raise ValueError(checks.message(f"items of {owner}", "of shape (n, dim)", tuple(points.shape)))
    if points is None and isinstance(divergence, str):
        must, hint = "given where the divergence is a name", "Or make the divergence with askew.make(name, dim)."
        raise ValueError(checks.message(f"items of {owner}", must, None, hint))
    parts = split_encoder(divergence, 0 if points is None else points.shape[-1], owner)
    if parts.encoder is not None:
        got = f"one behind {type(parts.encoder).__name__}"
        hint = "Encode the points first and give the divergence of the images."
        raise ValueError(checks.message(f"divergence of {owner}", "one without an encoder", got, hint))
    if points is not None:
        points = as_floats(points, parts.divergence.dtype)
        points = checks.check_points(points, parts.divergence.dim, "items", owner)
        checks.check_finite(points, "items", owner)
        boundary = has_boundary(parts.divergence, is_first=direction == "query-second")
        parts.divergence.domain.check(points, "items", owner, boundary=boundary)
    return reduce(parts.divergence, direction, form, points, owner)
