"""The data on the page, and the planes and places that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks
from askew.checks import POSITIVE, SIMPLEX, UNIT_BOX, Domain
from askew.explorer.description import pack
from askew.plot.plane import Floats, as_rows

# Points that are shown; more would hide each other, and each drag ranks all of them.
MOST_POINTS = 500
# Numbers of a table or a matrix up to which they are kept in 64 bits each.
WIDE_ENTRIES = 100_000
# Classes with a colour on the page; the rarest beyond share one.
MOST_CLASSES = 11
# Variance of a direction of the data, relative to the largest, below which Mahalanobis leaves it out.
SMALLEST_VARIANCE = 1e-9


class Scene(NamedTuple):
    """The data and the space around it, as JSON for the page, and how many points are given and shown."""

    content: dict[str, Any]
    total: int
    shown: int


def make_scene(
    points: ArrayLike | Tensor | None,
    labels: ArrayLike | None,
    feature_names: Sequence[str] | None,
    dim: int | None,
    domain: Domain,
    home: tuple[Floats, Floats] | None,
    ids: ArrayLike | None = None,
    training: ArrayLike | None = None,
) -> Scene:
    """Return what the page shows next to the divergence, which takes points of ``dim`` features in a domain.

    ``home`` is the middle and spread of the features, ``(dim,)`` each, to show without data, where the model has one.
    """
    data = None if points is None else as_rows(points, "points of write_explorer", dim)
    if data is not None:
        dim = data.shape[1]
    elif home is not None:
        dim = len(home[0])
    if dim is None:
        hint = "Give points, an array of shape (n, dim)."
        raise ValueError(checks.message("points of write_explorer", "given for a model of any dim", None, hint))
    if dim < 2:
        hint = "One feature has no plane to show."
        raise ValueError(checks.message("the points of write_explorer", "of at least 2 features", dim, hint))
    if data is None and domain == SIMPLEX and dim > 3:
        hint = "Give points: the plane of their principal directions is shown."
        raise ValueError(checks.message("points of write_explorer", "given for distributions", None, hint))
    bounds = {"lower": domain.lower, "upper": domain.upper}
    content: dict[str, Any] = {
        "dim": dim,
        "features": _names(feature_names, dim),
        "domain": {
            "name": domain.name,
            "sums_to_one": domain.sums_to_one,
            **{name: value if np.isfinite(value) else None for name, value in bounds.items()},
        },
    }
    n = None if data is None else len(data)
    given, named = _check_labels(labels, n), _check_labels(ids, n, "ids")
    trained = _check_labels(None if training is None else np.asarray(training, dtype=bool), n, "training")
    if data is None:
        mean, std = _home(dim, domain) if home is None else home
        content |= {"points": None, "mean": pack(mean, wide=True), "std": pack(std, wide=True), "mahalanobis": None}
        content |= {"principal": _corners(dim, domain), "labels": None, "classes": [], "rows": []}
        content |= {"names": None, "training": None}
        return Scene(content, 0, 0)
    std = data.std(0)
    std = np.where(std <= 1e-12 * np.abs(data).max(0), 1.0, std)
    rows = chosen_rows(given, len(data))
    kept, classes = data[rows], None if given is None else [given[i] for i in rows]
    content |= {
        "points": pack(kept, wide=kept.size <= WIDE_ENTRIES),
        "mean": pack(data.mean(0), wide=True),
        "std": pack(std, wide=True),
        "mahalanobis": pack(_whitening(data), wide=dim * dim <= WIDE_ENTRIES),
        "principal": _principal(data, std, domain),
        "labels": classes,
        "classes": [] if classes is None else _frequent(classes),
        "rows": rows.tolist(),
        "names": None if named is None else [named[i] for i in rows],
        "training": None if trained is None else [trained[i] == "True" for i in rows],
    }
    return Scene(content, len(data), len(rows))


def chosen_rows(labels: Sequence[str] | None, n: int, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """Return the rows that are shown, in order: all, or as many of each class as there is room for.

    Classes that have fewer rows than their share are shown whole, and leave the rest to the others.

    Examples
    --------
    >>> chosen_rows(["a"] * 90 + ["b"] * 10, 100, most=40).tolist()[-10:]
    [90, 91, 92, 93, 94, 95, 96, 97, 98, 99]
    """
    if n <= most:
        return np.arange(n)
    generator = np.random.default_rng(0)
    names = np.zeros(n, dtype=np.int64) if labels is None else np.unique(np.asarray(labels), return_inverse=True)[1]
    groups = sorted((np.flatnonzero(names == k) for k in np.unique(names)), key=len)
    chosen: list[NDArray[np.int64]] = []
    room = most
    for i, group in enumerate(groups):
        size = min(len(group), max(1, round(room / (len(groups) - i))), room)
        chosen.append(generator.permutation(group)[:size])
        room -= size
    return np.sort(np.concatenate(chosen))


def _check_labels(labels: ArrayLike | None, n: int | None, what: str = "labels") -> list[str] | None:
    """Return labels as text, one for each point."""
    if labels is None:
        return None
    if n is None:
        raise ValueError(checks.message("points of write_explorer", f"given where {what} are", None))
    array = np.asarray(labels)
    if array.shape != (n,):
        raise ValueError(checks.message(f"{what} of write_explorer", f"of shape ({n},), one per point", array.shape))
    return [str(label) for label in array.tolist()]


def _names(names: Sequence[str] | None, dim: int) -> list[str]:
    if names is None:
        return [f"feature {i + 1}" for i in range(dim)]
    if isinstance(names, str) or len(names) != dim:
        got = repr(names) if isinstance(names, str) else f"{len(names)} names"
        raise ValueError(checks.message("feature_names of write_explorer", f"a sequence of {dim} names", got))
    return [str(name) for name in names]


def _home(dim: int, domain: Domain) -> tuple[Floats, Floats]:
    """Return the middle and the spread of what is shown where there is neither data nor a scale."""
    places = {POSITIVE: (1.5, 0.75), UNIT_BOX: (0.5, 0.25), SIMPLEX: (1 / dim, 0.5 / dim)}
    middle, spread = places.get(domain, (0.0, 1.5))
    return np.full(dim, middle), np.full(dim, spread)


def _principal(data: Floats, std: Floats, domain: Domain) -> dict[str, Any] | None:
    """Return the two directions in which the data spread most.

    A point x lies at <measure, x - mean>, and a step of one leads along ``steps``. Features count in units of their
    standard deviation, but not those of distributions: the plane would leave the simplex.
    """
    unit = np.ones_like(std) if domain.sums_to_one else std
    _, sizes, directions = np.linalg.svd((data - data.mean(0)) / unit, full_matrices=False)
    if len(data) < 3 or len(sizes) < 2 or sizes[1] <= 1e-9 * max(sizes[0], 1e-300):
        return _corners(data.shape[1], domain)
    first = directions[:2] * np.sign(directions[:2][[0, 1], np.abs(directions[:2]).argmax(1)])[:, None]
    shares = (sizes[:2] ** 2 / (sizes**2).sum()).tolist()
    return {"steps": pack(first * unit, wide=True), "measure": pack(first / unit, wide=True), "shares": shares}


def _corners(dim: int, domain: Domain) -> dict[str, Any] | None:
    """Return the plane of all distributions over three outcomes; other domains have none without data."""
    if not (domain.sums_to_one and dim == 3):
        return None
    steps = np.array([[-1.0, 1.0, 0.0], [-1.0, -1.0, 2.0]]) / np.sqrt([[2.0], [6.0]])
    return {"steps": pack(steps, wide=True), "measure": pack(steps, wide=True), "shares": None}


def _whitening(data: Floats) -> Floats:
    """Return L with |L (x - y)|^2 = (x - y)' C^-1 (x - y), C the covariance of the data, columns first."""
    covariance = np.atleast_2d(np.cov(data, rowvar=False, bias=True))
    # Through correlations, so that the scale of a feature does not matter.
    size = np.sqrt(np.diag(covariance))
    size = np.where(size > 0, size, 1.0)
    variances, directions = np.linalg.eigh(covariance / size / size[:, None])
    # Directions in which the data do not vary are left out, such as that of features that sum to one.
    kept = variances > SMALLEST_VARIANCE * max(float(variances[-1]), 1e-300)
    result: Floats = directions[:, kept] / np.sqrt(variances[kept]) / size[:, None]
    return result


def _frequent(labels: Sequence[str]) -> list[str]:
    """Return the classes that get a colour, in order; numbers are ordered as such."""

    def order(name: str) -> tuple[bool, float, str]:
        try:
            return False, float(name), name
        except ValueError:
            return True, 0.0, name

    names, counts = np.unique(np.asarray(labels), return_counts=True)
    return sorted(names[np.argsort(-counts, kind="stable")][:MOST_CLASSES].tolist(), key=order)
