"""What comes into a clustering: tables, images, weights and parameters, checked the same way for all of them."""

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
from askew.clustering.frame import check_inside
from askew.divergences import CATALOGUE, Bregman, Divergence, make, split_encoder
from askew.encoders import as_floats, as_points, encode, for_numpy

__all__ = [
    "as_images",
    "as_table",
    "check_tolerance",
    "checked_part",
    "checked_weights",
    "has_encoder",
    "positive_only",
]

# What weights must be.
WEIGHTS = "numbers of at least zero, and not all zero"


def has_encoder(divergence: object, owner: str) -> bool:
    """Return whether a divergence stands behind an encoder, which may take batches of anything."""
    # The number of features matters for a name only.
    return not isinstance(divergence, str) and split_encoder(divergence, 1, owner).encoder is not None


def positive_only(divergence: object) -> bool:
    """Return whether points must not be negative, as scikit-learn asks before it tests an estimator."""
    # A learned one is not made: its weights would take random numbers from the user's generator.
    if isinstance(divergence, str) and divergence in CATALOGUE and not CATALOGUE[divergence].learned:
        divergence = make(divergence, 1)
    return isinstance(divergence, Divergence) and divergence.domain.lower >= 0


def as_table(X: ArrayLike, encoded: bool, owner: str, name: str = "X", finite: bool = True) -> NDArray[Any]:
    """Return a table of floats after scikit-learn's checks.

    For an encoder it may have any number of dimensions, and integers stay what they are: they may be tokens.

    Parameters
    ----------
    X
        What a user gives.
    encoded
        Whether it is for an encoder.
    owner, name
        Who asks, and for what, for errors.
    finite
        Whether to look for NaN and infinity.
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
        must, got = "a table of numbers", "rows of different lengths"
        raise ValueError(checks.message(f"{name} of {owner}", must, got)) from None
    return array


def as_images(
    array: NDArray[Any],
    encoder: nn.Module | None,
    divergence: Bregman,
    owner: str,
    name: str = "X",
    dual: bool = False,
    progress: bool | None = None,
) -> Tensor:
    """Return what the divergence compares, inside of its domain: ``(n, dim)``, in float32 or float64."""
    images = as_floats(encode(encoder, as_points(array), progress), None)
    if images.dtype not in (torch.float32, torch.float64):
        images = images.float()
    name = name if encoder is None else f"the images of {name}"
    if images.ndim != 2 or images.shape[1] != divergence.dim:
        must = f"of shape (n, {divergence.dim}), as the divergence takes them"
        raise ValueError(checks.message(f"{name} of {owner}", must, tuple(images.shape)))
    check_inside(images, divergence, dual, name, owner)
    return images


def checked_weights(sample_weight: ArrayLike | None, array: NDArray[Any], owner: str) -> NDArray[np.float64] | None:
    """Return the weights of points, ``(n,)``, not negative and not all zero; None where all are one."""
    if sample_weight is None:
        return None
    whole = for_numpy(sample_weight, f"sample_weight of {owner}")
    weights: NDArray[np.float64] = _check_sample_weight(whole, array, dtype=np.float64)
    _check_not_negative(weights, owner)
    if not weights.any():
        raise ValueError(checks.message(f"sample_weight of {owner}", WEIGHTS, "zeros only"))
    return weights


def checked_part(sample_weight: ArrayLike, rows: int, owner: str) -> NDArray[np.float64]:
    """Return the weights of one block of some rows, ``(rows,)``, not negative; here all may be zero."""
    what = f"sample_weight of {owner}"
    whole = for_numpy(sample_weight, what)
    weights: NDArray[np.float64] = check_array(
        whole, dtype=np.float64, order="C", ensure_2d=False, ensure_min_samples=0, input_name="sample_weight"
    )
    if weights.shape != (rows,):
        must = f"in the blocks of X, one of which has {rows} rows"
        hint = "Call compute_chunk_sizes() of dask arrays first."
        raise ValueError(checks.message(what, must, f"a block of shape {weights.shape}", hint))
    _check_not_negative(weights, owner)
    return weights


def _check_not_negative(weights: NDArray[np.float64], owner: str) -> None:
    least = weights.min(initial=0)
    if least < 0:
        raise ValueError(checks.message(f"sample_weight of {owner}", WEIGHTS, f"a least one of {least:g}"))


def check_tolerance(tol: float, owner: str) -> None:
    """Raise unless tol is a finite number of at least zero."""
    if isinstance(tol, bool) or not isinstance(tol, Real) or not 0 <= tol < np.inf:
        raise ValueError(checks.message(f"tol of {owner}", "a finite number of at least 0", repr(tol)))
