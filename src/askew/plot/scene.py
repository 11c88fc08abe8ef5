"""A divergence on a plane: its values at coordinates, and where on the plane it has any."""

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

__all__ = ["SIDES", "Scene"]

SIDES = ("first", "second")

# Pairs that go through a divergence row by row at a time.
BLOCK_ROWS = 1 << 15


@dataclass(frozen=True, eq=False)
class Scene:
    """A divergence and the plane on which it is looked at.

    Attributes
    ----------
    encoder : torch.nn.Module or None
        What points go through before they are compared.
    divergence : Divergence
        What compares their images.
    plane : Plane
        What is seen of the space of the points.
    owner : str
        Who draws, for errors.
    """

    encoder: nn.Module | None
    divergence: Divergence
    plane: Plane
    owner: str

    @classmethod
    def of(cls, model: object, dim: int | None, plane: Plane | None, owner: str) -> Scene:
        """Return the scene of whatever stands for a divergence.

        Parameters
        ----------
        model
            As for :func:`askew.divergences.split_encoder`.
        dim
            Number of features of the points, where some are given.
        plane
            None means all of a plane: two features, or the simplex of three.
        owner
            Who draws.
        """
        if plane is not None and not isinstance(plane, Plane):
            hint = "Make one with askew.plot.Plane.pca(points)."
            raise TypeError(checks.message(f"plane of {owner}", "an askew.plot.Plane", type(plane).__name__, hint))
        dim = plane.dim if dim is None and plane is not None else dim
        encoder, divergence = split_encoder(model, dim or 2, owner)
        if dim is None and isinstance(model, str) and divergence.domain == SIMPLEX:
            encoder, divergence = split_encoder(model, 3, owner)  # of two outcomes there is only a line
        own = divergence.dim if encoder is None else getattr(model, "n_features_in_", None)
        dim = dim or own or 2
        if own is not None and own != dim:
            must = f"of {own} features like the divergence"
            raise ValueError(checks.message(f"the points of {owner}", must, f"{dim} features"))
        if plane is None:
            if encoder is None and divergence.domain == SIMPLEX and dim == 3:
                plane = Plane.simplex()
            elif dim == 2:
                plane = Plane(np.zeros(2), np.eye(2)[0], np.eye(2)[1], ("feature 1", "feature 2"))
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

    # ------------------------------------------------------------------ values

    def images(self, points: Floats) -> Tensor:
        """Return points as the divergence compares them, ``(n, dim) -> (n, out)``."""
        images = encode(self.encoder, torch.from_numpy(np.ascontiguousarray(points)))
        # What was made in inference mode cannot take part in the gradients that some potentials compute inside.
        return self._own(images).clone()

    def _own(self, images: Tensor) -> Tensor:
        """Return images on the device and in the dtype of the divergence."""
        tensors = chain(self.divergence.parameters(), self.divergence.buffers())
        device = next((tensor.device for tensor in tensors), images.device)
        return images.to(device, self.divergence.dtype or torch.float64)

    def given(self, points: ArrayLike | Tensor, what: str, *, first: bool = False) -> Tensor:
        """Return the images of points that a user gave, after all checks, ``(n, dim) -> (n, out)``.

        Those that come first in D only may lie on the edge of the domain, where phi is finite there.
        """
        images = self.images(as_rows(points, f"{what} of {self.owner}", self.plane.dim))
        name = what if self.encoder is None else f"images of {what}"
        potential = getattr(self.divergence, "potential", None)
        boundary = first and bool(getattr(potential, "boundary", False))
        self.divergence.domain.check(images, name, self.owner, boundary=boundary)
        return images

    def compared(self, images: Floats, what: str) -> Tensor:
        """Return images that a user gave as the divergence takes them, after all checks."""
        tensor = self._own(torch.from_numpy(as_rows(images, f"{what} of {self.owner}", self.divergence.dim)))
        self.divergence.domain.check(tensor, what, self.owner)
        return tensor

    def matrix(self, coordinates: Floats, centres: Tensor, side: str) -> Floats:
        """Return D(x, c) or, for the second side, D(c, x): ``(n, 2), (m, out) -> (n, m)``; NaN outside the domain.

        It is one matrix product, which near zero is less exact than :meth:`rowwise`.
        """
        images = self.images(self.plane.points(coordinates))
        allowed = self._allowed(images)
        result = np.full((len(coordinates), len(centres)), np.nan)
        result[allowed.cpu().numpy()] = self.pairs(images[allowed], centres, side)
        return result

    def pairs(self, images: Tensor, centres: Tensor, side: str) -> Floats:
        """Return D between all images and centres, or centres and images, ``(n, out), (m, out) -> (n, m)``."""
        if len(images) == 0:
            return np.empty((0, len(centres)))
        pairwise = self.divergence.pairwise
        with torch.no_grad():
            values = pairwise(images, centres) if side == "first" else pairwise(centres, images).T
        array: Floats = values.double().cpu().numpy()
        return array

    def column(self, coordinates: Floats, centre: Tensor, side: str) -> Floats:
        """Return one column of :meth:`matrix`, ``(n, 2), (out,) -> (n,)``, to the last digits."""
        images = self.images(self.plane.points(coordinates))
        return self.rowwise(images, centre) if side == "first" else self.rowwise(centre, images)

    def rowwise(self, first: Tensor, second: Tensor) -> Floats:
        """Return D between images row by row, ``(n, out)`` and ``(n, out)`` or ``(out,)``; NaN outside the domain."""
        allowed = self._allowed(first) & self._allowed(second)
        blocks = allowed.nonzero()[:, 0].split(BLOCK_ROWS)
        result = np.full(len(allowed), np.nan)
        with torch.no_grad():
            for rows in blocks:
                x, y = (points[rows] if points.ndim == 2 else points for points in (first, second))
                result[rows.cpu().numpy()] = self.divergence(x, y).double().cpu().numpy()
        return result

    def values(self, coordinates: Floats, function: Callable[[Tensor], Tensor]) -> Floats:
        """Return a function of images, ``(n, out) -> (n,)``, such as a potential; NaN outside the domain."""
        images = self.images(self.plane.points(coordinates))
        allowed = self._allowed(images)
        result = np.full(len(coordinates), np.nan)
        with torch.no_grad():
            result[allowed.cpu().numpy()] = function(images[allowed]).double().cpu().numpy()
        return result

    def coordinates(self, points: ArrayLike | Tensor | None, what: str) -> Floats | None:
        """Return where points that a user gave fall on the plane, ``(n, dim) -> (n, 2)``, if there are any."""
        if points is None:
            return None
        return self.plane.coordinates(as_rows(points, f"{what} of {self.owner}", self.plane.dim))

    def _allowed(self, images: Tensor) -> Tensor:
        """Return which images the divergence takes, as one of the second argument: ``(..., out) -> (...)``."""
        domain = self.divergence.domain
        allowed = ((images > domain.lower) & (images < domain.upper)).all(-1)
        if domain.sums_to_one:
            allowed &= (images.sum(-1) - 1).abs() < checks.SUM_TOLERANCE
        return allowed

    def slacks(self, coordinates: Floats, reach: float = 0.0) -> Floats:
        """Return how far points are from each bound of the domain, ``(n, 2) -> (n, bounds)``; negative is outside.

        With a reach, outside begins that far from the edge, in units of the axes.
        """
        points, domain = self.plane.points(coordinates), self.domain
        steepest = reach * np.hypot(self.plane.first, self.plane.second)
        bounded = []
        if np.isfinite(domain.lower):
            bounded.append(points - domain.lower - steepest)
        if np.isfinite(domain.upper):
            bounded.append(domain.upper - points - steepest)
        return np.concatenate(bounded, -1) if bounded else np.ones((len(points), 1))
