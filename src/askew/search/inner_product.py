"""Search by a divergence as search by inner product or by Euclidean distance: keys of items, vectors of queries."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from askew import checks
from askew._parallel import over_blocks
from askew.divergences import Divergence, Ranking
from askew.divergences.affine import AffineForm
from askew.encoders import as_points

DIRECTIONS = ("query-first", "query-second")
FORMS = ("inner-product", "euclidean")
# Rows of the sample that sets the centre, and of a block of keys.
BLOCK_ROWS = 8192
# Rows of a block that one thread works on, at most and at least.
THREAD_ROWS = 4096
LEAST_ROWS = 256
# How much longer than the longest key the radius of the Euclidean form is: later items may be a little longer.
HEADROOM = 1.1
# How much longer than keys queries of the Euclidean form are.
STRETCH = 3.0
# How far a point on the boundary of the domain is moved to the inside, where it needs a gradient.
MARGIN = 0.01


@dataclass(frozen=True)
class InnerProductForm:
    r"""Vectors whose inner product, or Euclidean distance, ranks items as a divergence does.

    Seen from a fixed centre c, a Bregman divergence is

    .. math::
        D(q, y) &= D(q, c) - \langle [q - c, 1], [\nabla\phi(y) - \nabla\phi(c), -D(c, y)] \rangle \\
        D(x, q) &= D(c, q) - \langle [\nabla\phi(q) - \nabla\phi(c), 1], [x - c, -D(x, c)] \rangle

    so the nearest item has the largest inner product of key and query in dim + 1 features. One more feature,
    sqrt(radius^2 - |key|^2) for keys and 0 for queries, makes it the smallest Euclidean distance. Both are exact up to
    rounding. They remain so if the last feature of keys is divided by a number that queries have instead of 1, and if
    queries are stretched. The Euclidean form does both, because engines store keys with few bits: otherwise an error
    in the length of a key counts for more than one in its product with a query.

    Attributes
    ----------
    ranking : Ranking
        The divergence with an affine form that orders items in the same way.
    query_first : bool
        Whether queries are the first argument of that divergence.
    form : str
        ``"inner-product"`` or ``"euclidean"``.
    centre : Tensor
        c, ``(1, dim)``.
    radius : float
        The longest key that the Euclidean form can hold.
    offset, stretch : float
        What the last feature of a key is divided by, and how much longer queries are made.

    Examples
    --------
    >>> import askew, torch
    >>> maps = askew.search.keys_and_queries(askew.make("kl", 2), "query-first", "euclidean", torch.rand(9, 2) + 0.1)
    >>> maps.form, maps.size  # two features, and two more
    ('euclidean', 4)
    """

    ranking: Ranking
    query_first: bool
    form: str
    centre: Tensor
    radius: float = math.inf
    offset: float = 1.0
    stretch: float = 1.0

    @functools.cached_property
    def _affine(self) -> AffineForm:
        """Kept, because a network computes what depends on the centre once: half of the work for a single query."""
        with torch.no_grad():
            affine = self.ranking.divergence.affine(self.centre)
        if affine is None:  # of a wrapper that a user wrote
            got = type(self.ranking.divergence).__name__
            raise TypeError(checks.message("divergence of a Ranking", "one with an affine form", got))
        return affine

    @property
    def size(self) -> int:
        """Number of features of keys and queries."""
        return int(self.centre.shape[1]) + (1 if self.form == "inner-product" else 2)

    def keys(self, items: ArrayLike | Tensor) -> Tensor:
        """Return the vectors to store: ``(n, dim) -> (n, size)``."""
        keys = self.plain_keys(as_points(items))
        if self.form == "inner-product":
            return keys
        squares = keys.square().sum(1)
        if len(keys) and float(squares.amax()) > self.radius**2:
            row = int(squares.argmax())
            must = f"at most {self.radius:g} long, the radius of this Euclidean form"
            got = f"{float(squares[row]) ** 0.5:g} in row {row}"
            hint = (
                "Use form='inner-product', which has no limit, or leave such items out. Or make a new form from all "
                "items, keys_and_queries(model, direction, 'euclidean', items), and store all keys again."
            )
            raise ValueError(checks.message("keys", must, got, hint))
        return torch.cat([keys, (self.radius**2 - squares).clamp_min(0).sqrt()[:, None]], 1)

    def queries(self, queries: ArrayLike | Tensor) -> Tensor:
        """Return the vectors to search with: ``(n, dim) -> (n, size)``."""
        vectors = self.plain_queries(as_points(queries))
        return vectors if self.form == "inner-product" else self.stretched(vectors)

    def stretched(self, vectors: Tensor) -> Tensor:
        """Return the queries of the Euclidean form that belong to plain ones."""
        return torch.cat([self.stretch * vectors, vectors.new_zeros(len(vectors), 1)], 1)

    def plain_keys(self, items: Tensor) -> Tensor:
        """Return keys for inner products with :meth:`plain_queries` in any form: ``(n, dim) -> (n, dim + 1)``."""
        keys = torch.empty(len(items), self.centre.shape[1] + 1, dtype=self.centre.dtype)
        self.fill_plain_keys(items, keys)
        return keys

    def fill_plain_keys(self, items: Tensor, out: Tensor) -> None:
        """Write :meth:`plain_keys` of items to a matrix of any floating dtype."""
        # Where queries are first, items are second.
        self._fill(items, out, second=self.query_first)
        out[:, -1] /= self.offset

    def plain_queries(self, queries: Tensor) -> Tensor:
        """Return queries for inner products with :meth:`plain_keys` in any form: ``(n, dim) -> (n, dim + 1)``."""
        return self.queries_and_base(queries)[0]

    def queries_and_base(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return plain queries, and what a product is subtracted from to give the divergence: ``(n,)``."""
        vectors = torch.empty(len(queries), self.centre.shape[1] + 1, dtype=self.centre.dtype)
        self._fill(queries, vectors, second=not self.query_first)
        base = -vectors[:, -1]
        vectors[:, -1] = self.offset
        return vectors, base

    def _fill(self, points: Tensor, out: Tensor, second: bool) -> None:
        """Write what points bring to the product as the first or the second argument: features and -constant."""
        dim = self.centre.shape[1]
        if points.ndim != 2 or points.shape[1] != dim:
            must = f"of shape (n, {dim})"
            raise ValueError(checks.message("points of an InnerProductForm", must, tuple(points.shape)))
        side = self._affine.right if second else self._affine.left

        def work(part: slice) -> None:
            features, constants = side(self.ranking.views(points[part].to(self.centre)))
            out[part] = torch.cat([features, -constants[:, None]], 1)

        over_blocks(len(points), max(LEAST_ROWS, min(THREAD_ROWS, -(-len(points) // torch.get_num_threads()))), work)

    def longest(self, items: ArrayLike | Tensor) -> float:
        """Return the length of the longest plain key of items."""
        keys = self.plain_keys(as_points(items))
        return float(keys.norm(dim=1).amax()) if len(keys) else 0.0

    def as_queries(self, items: Tensor) -> Tensor:
        """Return items as queries: those on the boundary of the domain, where a query has no gradient, moved inside."""
        divergence = self.ranking.divergence
        if self.query_first or not divergence.takes_boundary("first"):
            return items
        return divergence.domain.inside(items, self.centre.to(items), MARGIN)

    def balanced(self, sample: Tensor) -> InnerProductForm:
        """Return the Euclidean form, balanced by a sample of items, with its radius still to be set.

        The last feature is divided by the number that makes the product of the lengths of keys and queries smallest,
        and queries are made three times as long as keys; recall after rounding to 8 bits was highest there.
        """
        keys, queries = self.plain_keys(sample), self.plain_queries(self.as_queries(sample))
        longest = float(keys[:, :-1].norm(dim=1).amax())
        last = float(keys[:, -1].abs().amax())
        size = float(queries[:, :-1].square().sum(1).mean().sqrt())
        offset = math.sqrt(size * last / longest) if longest > 0 and last > 0 and size > 0 else 1.0
        result = replace(self, form="euclidean", offset=offset)
        keys_size = result.longest(sample)
        queries_size = math.hypot(size, offset)
        return replace(result, stretch=STRETCH * keys_size / queries_size if keys_size > 0 else 1.0)

    def with_radius(self, longest: float) -> InnerProductForm:
        """Return the Euclidean form for keys of up to this length, and a little longer ones."""
        return replace(self, radius=HEADROOM * max(longest, 1e-30))

    def enlarged(self, items: Tensor, sample: Tensor) -> InnerProductForm:
        """Return a Euclidean form for the items of this one and for longer ones, balanced by a sample of all."""
        plain = replace(self, form="inner-product", radius=math.inf, offset=1.0, stretch=1.0)
        form = plain.balanced(sample)
        # With a larger offset no key gets longer, and the old radius holds the old ones.
        form = replace(form, offset=max(form.offset, self.offset))
        return replace(form, radius=max(self.radius, HEADROOM * form.longest(items)))

    def settings(self) -> dict[str, float | None]:
        """Return the numbers that :meth:`restored` takes, apart from the centre, for JSON."""
        radius = self.radius if math.isfinite(self.radius) else None
        return {"radius": radius, "offset": self.offset, "stretch": self.stretch}

    def restored(self, form: str, centre: Tensor, settings: Mapping[str, Any]) -> InnerProductForm:
        """Return this form with another centre and the numbers of :meth:`settings`."""
        radius = float("inf" if settings["radius"] is None else settings["radius"])
        offset, stretch = float(settings["offset"]), float(settings["stretch"])
        centre = centre.to(self.centre.device)
        return replace(self, form=form, centre=centre, radius=radius, offset=offset, stretch=stretch)


def with_digits(divergence: Divergence) -> Divergence:
    """Return a divergence, from 16 to 32 bits in place: a search wants more digits."""
    return divergence.float() if divergence.dtype in (torch.bfloat16, torch.float16) else divergence


def ranking_of(divergence: Divergence, owner: str) -> Ranking:
    """Return a divergence with an affine form that ranks like this one, or raise and name those that have one."""
    ranking = divergence.ranks_like()
    if ranking is None or divergence.dim is None:
        must = "a Bregman divergence, a drift, a Euclidean or Mahalanobis distance, or a root or a multiple of these"
        hint = "askew.search.ExactIndex searches with any divergence."
        raise TypeError(checks.message(f"divergence of {owner}", must, type(divergence).__name__, hint))
    return ranking


def form_for(divergence: Divergence, direction: str, form: str, items: Tensor | None, owner: str) -> InnerProductForm:
    """Return the form of a divergence without an encoder, with centre and radius set by items."""
    checks.check_name(direction, DIRECTIONS, f"direction of {owner}")
    checks.check_name(form, FORMS, f"form of {owner}")
    ranking = ranking_of(divergence, owner)
    domain, dim = ranking.divergence.domain, divergence.dim or 0
    tensor = next((t for t in (*divergence.parameters(), *divergence.buffers()) if t.is_floating_point()), None)
    like = tensor if tensor is not None else items if items is not None else torch.empty(0)
    if items is None or len(items) == 0:
        if form == "euclidean":
            hint = "Give the items, or a sample of them that contains the longest."
            raise ValueError(checks.message(f"items of {owner}", "given for the Euclidean form", "None", hint))
        centre = torch.full((1, dim), domain.middle(dim))
    else:
        # The mean of some thousand points is as good a centre as that of all.
        sample = sample_of(items)
        with torch.inference_mode():
            centre = ranking.views(sample.to(like.device, like.dtype)).double().mean(0, keepdim=True)
            centre = domain.inside(centre, margin=MARGIN)  # the mean is on the boundary where all items have a zero
    query_first = (direction == "query-first") != ranking.swapped
    result = InnerProductForm(ranking, query_first, "inner-product", centre.to(like.device, like.dtype))
    if form == "inner-product" or items is None:
        return result
    result = result.balanced(sample)
    return result.with_radius(result.longest(items))


def sample_of(points: Tensor) -> Tensor:
    """Return some thousand of the points."""
    return points[:: max(1, len(points) // BLOCK_ROWS)]
