"""A divergence on a plane: its values at coordinates, and the part of the plane in its domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from askew import checks
from askew.checks import REAL, SIMPLEX, Domain
from askew.divergences import Divergence, split_encoder
from askew.encoders import encode
from askew.plot.plane import Floats, Plane, as_rows

SIDES = ("first", "second")

# Places at the edge of the domain are evaluated inside of it, by this share of the way to the middle of the picture.
INSET = 2e-3
# Rows that are evaluated at a time.
BLOCK_ROWS = 1 << 15


@dataclass(frozen=True, eq=False)
class Scene:
    """A divergence between embeddings of points, behind an encoder or not, and the plane on which it is drawn.

    ``owner`` is the function that draws, for errors.
    """

    encoder: nn.Module | None
    divergence: Divergence
    plane: Plane
    owner: str

    @classmethod
    def of(cls, model: object, dim: int | None, plane: Plane | None, owner: str) -> Scene:
        """Return the scene of anything that stands for a divergence, for points of ``dim`` features if that is known.

        Without a plane it is that of two features, or the simplex of three.
        """
        if plane is not None and not isinstance(plane, Plane):
            hint = "Make one with askew.plot.Plane.pca(points)."
            raise TypeError(checks.message(f"plane of {owner}", "an askew.plot.Plane", type(plane).__name__, hint))
        dim = plane.dim if dim is None and plane is not None else dim
        encoder, divergence = split_encoder(model, dim or 2, owner)
        if dim is None and isinstance(model, str) and divergence.domain == SIMPLEX:
            encoder, divergence = split_encoder(model, 3, owner)  # two outcomes have only a line
        own = divergence.dim if encoder is None else getattr(model, "n_features_in_", None)
        dim = dim or own or 2
        if own is not None and own != dim:
            must = f"of {own} features like the divergence"
            raise ValueError(checks.message(f"the points of {owner}", must, f"{dim} features"))
        if plane is None:
            if encoder is None and divergence.domain == SIMPLEX and dim == 3:
                plane = Plane.simplex()
            elif dim == 2:
                plane = Plane.features(0, 1, np.zeros(2))
            else:
                hint = "Take askew.plot.Plane.pca(points), .through(a, b, c) or .features(0, 1, at=point)."
                must = "given where points do not have 2 features"
                raise ValueError(checks.message(f"plane of {owner}", must, f"None with {dim} features", hint))
        if plane.dim != dim:
            must = f"one of points of {dim} features"
            raise ValueError(checks.message(f"plane of {owner}", must, f"{plane.dim} features"))
        scene = cls(encoder, divergence, plane, owner)
        plane.check_in(scene.domain, owner)
        return scene

    @property
    def domain(self) -> Domain:
        """Where points must lie; an encoder takes all of them."""
        return self.divergence.domain if self.encoder is None else REAL

    def slacks(self, coordinates: Floats, beyond: float = 0.0) -> Floats:
        """Return the distances of points from each bound of the domain, ``(n, 2) -> (n, bounds)``; negative outside.

        Outside begins ``beyond`` the edge, in units of the axes.
        """
        points, domain = self.plane.points(coordinates), self.domain
        bounds = [points - domain.lower, domain.upper - points]
        slacks: Floats = np.concatenate(bounds, -1) + beyond * np.tile(np.hypot(self.plane.first, self.plane.second), 2)
        return slacks

    def coordinates(self, points: ArrayLike | Tensor | None, what: str) -> Floats | None:
        """Return the places of points on the plane, ``(n, dim) -> (n, 2)``; None for None."""
        if points is None:
            return None
        return self.plane.coordinates(as_rows(points, f"{what} of {self.owner}", self.plane.dim))

    def given(self, points: ArrayLike | Tensor, what: str, *, first: bool = False) -> Tensor:
        """Return the embeddings of points that a user gave, checked, ``(n, dim) -> (n, out)``.

        ``first`` says that they are first arguments only, which may lie on the edge of some domains.
        """
        embeddings = self._embed(torch.from_numpy(as_rows(points, f"{what} of {self.owner}", self.plane.dim)))
        name = what if self.encoder is None else f"embeddings of {what}"
        boundary = first and self.divergence.takes_boundary("first")
        self.divergence.domain.check(embeddings, name, self.owner, boundary=boundary)
        return embeddings

    def at(self, coordinates: Floats) -> Tensor:
        """Return the embeddings of places on the plane, ``(n, 2) -> (n, out)``; those outside the domain move inside.

        Values then go on from those at the edge of the domain, and lines run up to it.
        """
        points = torch.from_numpy(self.plane.points(coordinates))
        if self.domain != REAL:
            middle = points[self.domain.contains(points)].mean(0, keepdim=True)
            away = self.domain.contains(torch.lerp(points, middle, -INSET))
            points = self.domain.inside(points, towards=middle, margin=INSET, valid=away)
        return self._embed(points / points.sum(-1, keepdim=True) if self.domain.sums_to_one else points)

    def _embed(self, points: Tensor) -> Tensor:
        # Tensors of inference mode cannot take part in the gradients that some potentials compute inside.
        return self.converted(encode(self.encoder, points)).clone()

    def converted(self, embeddings: Tensor) -> Tensor:
        """Return embeddings with the dtype and on the device of the divergence."""
        tensors = chain(self.divergence.parameters(), self.divergence.buffers())
        device = next((tensor.device for tensor in tensors), embeddings.device)
        return embeddings.to(device, self.divergence.dtype or torch.float64)

    def rows(self, function: Callable[..., Tensor], *embeddings: Tensor) -> Floats:
        """Return a function of embeddings row by row, ``(n, out), ... -> (n, ...)``; NaN outside the domain."""
        domain = self.divergence.domain
        allowed = torch.ones(len(embeddings[0]), dtype=torch.bool, device=embeddings[0].device)
        for each in embeddings:
            allowed &= domain.contains(each)
            if domain.sums_to_one:
                allowed &= (each.sum(-1) - 1).abs() < checks.SUM_TOLERANCE
        with torch.no_grad():
            blocks = allowed.nonzero()[:, 0].split(BLOCK_ROWS)
            values = torch.cat([function(*(each[block] for each in embeddings)) for block in blocks])
        result = np.full((len(allowed), *values.shape[1:]), np.nan)
        result[allowed.cpu().numpy()] = values.double().cpu().numpy()
        return result

    def matrix(self, coordinates: Floats, centres: Tensor, side: str) -> Floats:
        """Return D(x, c) or, for the second side, D(c, x), of all centres: ``(n, 2), (m, out) -> (n, m)``."""
        return self.rows(lambda x: self.pairs(x, centres, side), self.at(coordinates))

    def pairs(self, x: Tensor, centres: Tensor, side: str) -> Tensor:
        """Return D between all embeddings and centres, ``(n, out), (m, out) -> (n, m)``."""
        return self.divergence.pairwise(x, centres) if side == "first" else self.divergence.pairwise(centres, x).T
