"""Split what a user passes as a divergence into an encoder and the divergence between its embeddings."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from askew import checks
from askew.divergences.base import Divergence
from askew.divergences.catalogue import CATALOGUE, make
from askew.divergences.wrappers import Embedded


class EncoderAndDivergence(NamedTuple):
    """An encoder and the divergence between its embeddings; without an encoder, points are compared as they are.

    Examples
    --------
    >>> import askew
    >>> split_encoder(askew.make("kl", 3), 3, "index").encoder is None
    True
    """

    encoder: nn.Module | None
    divergence: Divergence


class Sides(NamedTuple):
    """The encoders of first and second points, which are one in most models, and the divergence behind them.

    Examples
    --------
    >>> import askew, torch
    >>> model = askew.make("nbd", 2, encoder=torch.nn.Linear(3, 2), second=torch.nn.Linear(4, 2))
    >>> sides = split_sides(model, 2, "index")
    >>> sides.first.in_features, sides.second.in_features
    (3, 4)
    """

    first: nn.Module | None
    second: nn.Module | None
    divergence: Divergence


def split_encoder(model: object, dim: int, owner: str) -> EncoderAndDivergence:
    """Return the encoder and the divergence of anything that stands for a divergence; two encoders are an error.

    Parameters
    ----------
    model
        A divergence, with an encoder (:class:`Embedded`) or without; an object with a method ``as_divergence()``, as
        fitted learners have; or a name of the catalogue that has nothing to learn, such as ``"kl"``.
    dim
        Number of features of the points, for a name.
    owner
        The caller's name, for errors.

    Examples
    --------
    >>> split_encoder("kl", 3, "search").divergence.dim
    3
    """
    sides = split_sides(model, dim, owner)
    if sides.second is not sides.first:
        hint = "askew.search.ExactIndex and FaissIndex take it, with queries and items of their own kinds."
        must = "one whose two points have one encoder"
        raise ValueError(checks.message(f"divergence of {owner}", must, "one with a second encoder", hint))
    return EncoderAndDivergence(sides.first, sides.divergence)


def split_sides(model: object, dim: int, owner: str) -> Sides:
    """Return both encoders, the same object if they are one, and the divergence; the rest as :func:`split_encoder`."""
    what = f"divergence of {owner}"
    must = "a divergence, a fitted learner, or a name such as 'kl'"
    if isinstance(model, str):
        checks.check_name(model, CATALOGUE, what)
        if CATALOGUE[model].learned:
            hint = (
                f'Learn it first: learner = askew.DivergenceLearner("{model}").fit(X, labels), then pass the learner.'
            )
            raise ValueError(checks.message(what, "one that needs no learning, where it is a name", repr(model), hint))
        return Sides(None, None, make(model, dim))
    divergence = to_divergence(model, what, must)
    if (home := checks.device_of(divergence)) is not None and home.type == "meta":
        hint = "Load the weights first, as askew.load does."
        raise ValueError(checks.message(what, "one whose weights hold numbers", "weights on the device meta", hint))
    first: list[nn.Module] = []
    second: list[nn.Module] = []
    shared = True
    while isinstance(divergence, Embedded):  # there may be an encoder after an encoder
        shared = shared and divergence.second is None
        first.append(divergence.encoder)
        second.append(divergence.second or divergence.encoder)
        divergence = divergence.divergence
    encoder = _chain(first)
    return Sides(encoder, encoder if shared else _chain(second), divergence)


def to_divergence(model: object, what: str, must: str) -> Divergence:
    """Return the divergence that an object stands for; ``what`` it is and what it ``must`` be are for errors."""
    convert = getattr(model, "as_divergence", None)
    if isinstance(model, type) or not callable(convert):
        hint = 'Make a divergence with askew.make("nbd", dim).'
        raise TypeError(checks.message(what, must, type(model).__name__, hint))
    try:
        divergence: Divergence = convert()
    except ValueError as error:  # scikit-learn's NotFittedError
        got = f"a {type(model).__name__} that is not fitted"
        raise ValueError(checks.message(what, must, got, "Call its fit first.")) from error
    return divergence


def _chain(encoders: list[nn.Module]) -> nn.Module | None:
    return None if not encoders else encoders[0] if len(encoders) == 1 else nn.Sequential(*encoders)
