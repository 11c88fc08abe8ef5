"""Keys and queries for any engine: from points, through the encoder, to vectors, as one module to save and export."""

from __future__ import annotations

import copy
import math

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from askew import checks
from askew.divergences import Divergence, split_sides
from askew.encoders import as_floats, as_points, encode
from askew.io import Rebuildable
from askew.search.inner_product import DIRECTIONS, FORMS, InnerProductForm, form_for, ranking_of, with_digits

OWNER = "keys_and_queries"


class KeysAndQueries(Rebuildable):
    """The two maps from points to the vectors of an engine; made by :func:`keys_and_queries`.

    :meth:`keys` and :meth:`queries` take points as they come, behind the encoders of the model. The module can be saved
    (:func:`askew.save`) and each map exported (:func:`askew.export`), for services without askew and torch.

    Parameters
    ----------
    model
        A divergence that ranks as an inner product does, with its encoders.
    direction, form
        As in :func:`keys_and_queries`.
    centre, radius, offset, stretch
        The numbers of the :class:`InnerProductForm`.

    Examples
    --------
    >>> import askew, torch
    >>> items = torch.rand(10, 2) + 0.1
    >>> maps = keys_and_queries(askew.make("kl", 2), "query-first", "inner-product", items)
    >>> nearest = (maps.queries(items[:1]) @ maps.keys(items).T).argmax(1)
    >>> nearest.tolist()
    [0]
    """

    centre: Tensor

    def __init__(
        self,
        model: Divergence,
        direction: str,
        form: str,
        centre: Tensor,
        radius: float = math.inf,
        offset: float = 1.0,
        stretch: float = 1.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.direction = checks.check_name(direction, DIRECTIONS, f"direction of {OWNER}")
        self.form = checks.check_name(form, FORMS, f"form of {OWNER}")
        self.register_buffer("centre", centre)
        self.radius, self.offset, self.stretch = radius, offset, stretch

    @property
    def inner(self) -> InnerProductForm:
        """The same maps for embeddings."""
        ranking = ranking_of(split_sides(self.model, 0, OWNER).divergence, OWNER)
        query_first = (self.direction == "query-first") != ranking.swapped
        return InnerProductForm(ranking, query_first, self.form, self.centre, self.radius, self.offset, self.stretch)

    @property
    def size(self) -> int:
        """Number of features of keys and queries."""
        return int(self.centre.shape[1]) + (1 if self.form == "inner-product" else 2)

    @property
    def metric(self) -> str:
        """What an engine must measure: ``"ip"``, the largest inner product, or ``"l2"``, the smallest distance."""
        return "ip" if self.form == "inner-product" else "l2"

    def keys(self, items: ArrayLike | Tensor) -> Tensor:
        """Return the vectors to store: ``(n, ...) -> (n, size)``."""
        return self.inner.keys(_embedded(self.model, self.direction, items, "items"))

    def queries(self, queries: ArrayLike | Tensor) -> Tensor:
        """Return the vectors to search with: ``(n, ...) -> (n, size)``."""
        return self.inner.queries(_embedded(self.model, self.direction, queries, "queries"))

    def graph(self, what: str) -> nn.Module:
        """Return ``"key"`` or ``"query"`` as a module without checks, for :func:`askew.export`.

        A key that the Euclidean form cannot hold gets NaN in its last feature.
        """
        return _Map(self, checks.check_name(what, ("key", "query"), "what of KeysAndQueries"))


class _Map(nn.Module):
    """One of the two maps in operations that exporters know."""

    def __init__(self, maps: KeysAndQueries, what: str) -> None:
        super().__init__()
        self.maps, self.is_key = maps, what == "key"

    @property
    def input(self) -> nn.Module:
        """The module that the points come to."""
        encoder, divergence = _side(self.maps.model, self.maps.direction, "items" if self.is_key else "queries")
        return divergence if encoder is None else encoder

    def forward(self, x: Tensor) -> Tensor:
        maps, inner = self.maps, self.maps.inner
        encoder, _ = _side(maps.model, maps.direction, "items" if self.is_key else "queries")
        points = (x if encoder is None else encoder(x)).to(maps.centre.dtype)
        affine = inner.ranking.divergence.affine(maps.centre)
        if affine is None:
            raise TypeError(checks.message("divergence of a Ranking", "one with an affine form", "none"))
        side = affine.right if self.is_key == inner.query_first else affine.left
        features, constants = side(inner.ranking.views(points))
        if self.is_key:
            vectors = torch.cat([features, -constants[:, None] / maps.offset], 1)
            last = (maps.radius**2 - vectors.square().sum(1, keepdim=True)).sqrt()
        else:
            vectors = maps.stretch * torch.cat([features, torch.full_like(features[:, :1], maps.offset)], 1)
            last = torch.zeros_like(vectors[:, :1])
        return vectors if maps.form == "inner-product" else torch.cat([vectors, last], 1)


def _side(model: Divergence, direction: str, name: str) -> tuple[nn.Module | None, Divergence]:
    """Return the encoder of ``"items"`` or ``"queries"``, and the divergence behind it."""
    sides = split_sides(model, 0, OWNER)
    is_first = (name == "queries") == (direction == "query-first")
    return sides.first if is_first else sides.second, sides.divergence


def _embedded(model: Divergence, direction: str, points: ArrayLike | Tensor, name: str) -> Tensor:
    """Return the embeddings of points, after all checks."""
    encoder, divergence = _side(model, direction, name)
    found = as_points(points)
    if encoder is not None:
        if found.ndim < 2:
            raise ValueError(checks.message(f"{name} of {OWNER}", "a batch of points", f"shape {tuple(found.shape)}"))
        if found.is_floating_point():
            checks.check_finite(found, name, OWNER)
        found = encode(encoder, found)
    elif found.ndim != 2:
        raise ValueError(checks.message(f"{name} of {OWNER}", "of shape (n, dim)", tuple(found.shape)))
    found = checks.check_points(as_floats(found, divergence.dtype), divergence.dim, name, OWNER)
    checks.check_finite(found, name, OWNER)
    is_first = (name == "queries") == (direction == "query-first")
    divergence.domain.check(found, name, OWNER, boundary=divergence.takes_boundary("first" if is_first else "second"))
    return found


def keys_and_queries(
    divergence: object,
    direction: str = "query-first",
    form: str = "inner-product",
    items: ArrayLike | Tensor | None = None,
) -> KeysAndQueries:
    """Return the maps that turn items and queries into vectors for any engine of inner products or distances.

    Store ``keys(items)``, search with ``queries(queries)``: the item with the largest inner product (or, in the
    Euclidean form, the smallest distance) is the nearest one by the divergence. Its value is that of the divergence
    itself; compute it for the few hits. Both maps take points as they come, and are a copy: training the model further
    does not change them.

    Parameters
    ----------
    divergence
        A fitted learner, or a divergence, also behind one or two encoders: Bregman divergences, drifts, Euclidean and
        Mahalanobis distances, and roots or multiples of these.
    direction
        ``"query-first"`` for D(query, item), ``"query-second"`` for D(item, query).
    form
        ``"inner-product"`` takes any item. ``"euclidean"`` is for engines without inner products, and for graph indexes
        such as HNSW, which may find next to nothing by raw inner product; it refuses an item whose key is more than
        1.1 times as long as the longest of ``items``.
    items
        The items or a sample of them; sets the centre and, for the Euclidean form, the longest key. Without it the
        centre is the middle of the domain: right, with more rounding where items are far from it.

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
    checks.check_name(direction, DIRECTIONS, f"direction of {OWNER}")
    points = None if items is None else as_points(items)
    if isinstance(divergence, str):
        if points is None:
            must, hint = "given where the divergence is a name", "Or make the divergence with askew.make(name, dim)."
            raise ValueError(checks.message(f"items of {OWNER}", must, None, hint))
        divergence = split_sides(divergence, points.shape[-1] if points.ndim else 0, OWNER).divergence
    split_sides(divergence, 0, OWNER)  # raises if it is none
    model: Divergence = copy.deepcopy(divergence.as_divergence()).eval()  # type: ignore[attr-defined]
    model.requires_grad_(False)
    inner = with_digits(split_sides(model, 0, OWNER).divergence)
    ranking_of(inner, OWNER)
    embeddings = None if points is None else _embedded(model, direction, points, "items")
    maps = form_for(inner, direction, form, embeddings, OWNER)
    return KeysAndQueries(model, direction, form, maps.centre, maps.radius, maps.offset, maps.stretch)
