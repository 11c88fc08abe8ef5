"""Convert and check what users pass to a clustering: tables, divergences, weights."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor, nn

from askew import checks
from askew.clustering.seeding import init_centroids
from askew.clustering.view import AffineView, Weights, check_inside
from askew.divergences import CATALOGUE, Bregman, Divergence, split_encoder
from askew.encoders import as_floats, as_points, encode, for_numpy

# What weights must be.
WEIGHTS = "numbers of at least zero, and not all zero"


def convert(
    X: ArrayLike, divergence: object, owner: str, dual: bool = False, progress: bool | None = None
) -> tuple[NDArray[Any], nn.Module | None, Bregman, Tensor]:
    """Return the table of X, the encoder and the Bregman divergence of what was given as divergence, and embeddings."""
    # An encoder takes batches of any shape; the number of features matters only for a name, which has no encoder.
    encoded = not isinstance(divergence, str) and split_encoder(divergence, 1, owner).encoder is not None
    table = as_table(X, encoded, owner)
    encoder, inner = split_encoder(divergence, table.shape[1], owner)
    bregman = to_bregman(inner, owner)
    return table, encoder, bregman, embed(table, encoder, bregman, owner, dual=dual, progress=progress)


def to_bregman(divergence: Divergence, owner: str) -> Bregman:
    """Return the Bregman divergence that equals the given one; raise if there is none."""
    bregman = divergence.as_bregman()
    if bregman is None:
        must = "a Bregman divergence, such as 'euclidean', 'kl' or one that learners make with 'nbd' or 'mahalanobis'"
        hint = "The mean of a cluster is its best centre for these only."
        while (inner := divergence.inner) is not None and inner.as_bregman() is None:
            divergence = inner  # name the one that is to blame
        ranking = divergence.ranks_like()
        if inner is not None and ranking is not None and ranking.swapped:
            hint = "Give the divergence inside of it with dual=True."
        raise TypeError(checks.message(f"divergence of {owner}", must, type(divergence).__name__, hint))
    if (home := checks.device_of(bregman)) is not None and home.type != "cpu":
        must, hint = "in main memory, like the points", "Move it with .to('cpu')."
        raise ValueError(checks.message(f"divergence of {owner}", must, f"one on {home}", hint))
    return bregman


def positive_only(divergence: object) -> bool:
    """Return whether points must not be negative, as scikit-learn asks before it tests an estimator."""
    domain = getattr(CATALOGUE.get(divergence) if isinstance(divergence, str) else divergence, "domain", None)
    return domain is not None and domain.lower >= 0


def as_table(X: ArrayLike, encoded: bool, owner: str, name: str = "X", finite: bool = True) -> NDArray[Any]:
    """Return a table of floats after scikit-learn's checks.

    For an encoder (``encoded``) it may have any number of dimensions, and integers stay integers: they may be tokens.
    """
    array: NDArray[Any]
    whole = for_numpy(X, f"{name} of {owner}")
    try:
        tokens = encoded and np.asarray(whole).dtype.kind in "iu"
        array = check_array(
            whole,
            dtype=None if tokens else [np.float64, np.float32],
            order="C",
            ensure_all_finite=finite,
            allow_nd=encoded,
            estimator=owner,
            input_name=name,
        )
    except TypeError as error:
        raise TypeError(checks.message(f"{name} of {owner}", "a table of numbers", f"none ({error})")) from None
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        got = "rows of different lengths"
        raise ValueError(checks.message(f"{name} of {owner}", "a table of numbers", got)) from None
    return array


def embed(
    array: NDArray[Any],
    encoder: nn.Module | None,
    divergence: Bregman,
    owner: str,
    name: str = "X",
    dual: bool = False,
    progress: bool | None = None,
) -> Tensor:
    """Return the embeddings of a table, inside the domain of the divergence: ``(n, dim)``, float32 or float64."""
    embeddings = as_floats(encode(encoder, as_points(array), progress), None)
    if embeddings.dtype not in (torch.float32, torch.float64):
        embeddings = embeddings.float()
    name = name if encoder is None else f"the embeddings of {name}"
    if embeddings.ndim != 2 or embeddings.shape[1] != divergence.dim:
        must = f"of shape (n, {divergence.dim}), as the divergence takes them"
        raise ValueError(checks.message(f"{name} of {owner}", must, tuple(embeddings.shape)))
    check_inside(embeddings, divergence, dual, name, owner)
    return embeddings


def first_centroids(
    init: Any,
    view: AffineView,
    k: int,
    encoder: nn.Module | None,
    random: np.random.RandomState,
    weights: Weights | None,
    owner: str,
) -> Tensor:
    """Return the centroids that a seeding finds, or those that are given as points, ``(k, dim)``."""
    if isinstance(init, str):
        return init_centroids(view, k, init, random, weights)
    table = as_table(init, encoder is not None, owner, "init")
    centroids = embed(table, encoder, view.divergence, owner, "init").to(view.dtype)
    if len(centroids) != k:
        raise ValueError(checks.message(f"init of {owner}", f"{k} centres", len(centroids)))
    return view.inside(centroids)


def checked_weights(sample_weight: ArrayLike | None, array: NDArray[Any], owner: str) -> Weights | None:
    """Return the weights of points, ``(n,)``, not negative and not all zero; None where all are one."""
    if sample_weight is None:
        return None
    whole = for_numpy(sample_weight, f"sample_weight of {owner}")
    weights: Weights = _check_sample_weight(whole, array, dtype=np.float64)
    check_not_negative(weights, owner)
    if not weights.any():
        raise ValueError(checks.message(f"sample_weight of {owner}", WEIGHTS, "zeros only"))
    return weights


def check_not_negative(weights: Weights, owner: str) -> None:
    """Raise if a weight is negative."""
    least = weights.min(initial=0)
    if least < 0:
        raise ValueError(checks.message(f"sample_weight of {owner}", WEIGHTS, f"a least one of {least:g}"))


def check_tolerance(tol: float, owner: str) -> None:
    """Raise unless tol is a finite number of at least zero."""
    if isinstance(tol, bool) or not isinstance(tol, Real) or not 0 <= tol < np.inf:
        raise ValueError(checks.message(f"tol of {owner}", "a finite number of at least 0", repr(tol)))
