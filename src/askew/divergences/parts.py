"""What a user hands in as a divergence, taken apart: the encoder, and the divergence of its images."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from askew import checks
from askew.divergences.base import Divergence
from askew.divergences.catalogue import CATALOGUE, make
from askew.divergences.wrappers import Embedded

__all__ = ["Parts", "take_apart"]


class Parts(NamedTuple):
    """An encoder and the divergence between its images.

    Attributes
    ----------
    encoder : torch.nn.Module or None
        What maps points to images; None where points are compared as they are.
    divergence : Divergence
        What compares the images.
    """

    encoder: nn.Module | None
    divergence: Divergence


def take_apart(model: object, dim: int, owner: str) -> Parts:
    """Return the encoder and the divergence of anything that stands for a divergence.

    Parameters
    ----------
    model
        A divergence, also behind an encoder (:class:`Embedded`); a fitted learner; or a name of the catalogue that
        has nothing to learn, such as ``"kl"``.
    dim
        Number of features of the points, for a name.
    owner
        Who asks, for errors.

    Examples
    --------
    >>> take_apart("kl", 3, "search").divergence.dim
    3
    """
    what = f"divergence of {owner}"
    if isinstance(model, str):
        checks.check_name(model, CATALOGUE, what)
        if CATALOGUE[model].learned:
            hint = (
                f'Learn it first: learner = askew.DivergenceLearner("{model}").fit(X, labels), then give the learner.'
            )
            raise ValueError(checks.message(what, "one that needs no learning, where it is a name", repr(model), hint))
        return Parts(None, make(model, dim))
    if isinstance(model, Embedded):
        encoder, divergence = model.encoder, model.divergence
        # An encoder may stand behind an encoder.
        while isinstance(divergence, Embedded):
            encoder, divergence = nn.Sequential(encoder, divergence.encoder), divergence.divergence
        return Parts(encoder, divergence)
    if isinstance(model, Divergence):
        return Parts(None, model)
    learned = getattr(model, "model_", None) if hasattr(model, "divergence_") else None
    if isinstance(learned, Embedded):
        return take_apart(learned, dim, owner)
    inner = getattr(model, "learner_", None)
    if inner is not None:
        return take_apart(inner, dim, owner)
    must = "a divergence, a fitted learner, or a name such as 'kl'"
    fitted = hasattr(model, "fit") and hasattr(model, "divergence")
    got = f"a {type(model).__name__} that is not fitted" if fitted else type(model).__name__
    hint = "Call its fit first." if fitted else 'Make a divergence with askew.make("nbd", dim).'
    raise (ValueError if fitted else TypeError)(checks.message(what, must, got, hint))
