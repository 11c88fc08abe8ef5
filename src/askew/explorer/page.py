"""The page: model, data and program in one file that needs nothing else."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor, nn

from askew import checks, io
from askew.checks import REAL
from askew.divergences import Bregman, Divergence, Embedded, NeuralBregman
from askew.encoders import Standardize
from askew.explorer.describing import SHOWN, describe
from askew.explorer.scene import Floats, Scene, make_scene
from askew.potentials import ICNN, Burg, FermiDirac, NegativeEntropy

__all__ = ["write_explorer"]

# In the order in which they build on each other.
SCRIPTS = (
    *("numbers", "potentials", "divergence", "planes", "contours", "field", "drawing", "words"),
    *("scene", "showing", "saying", "moving", "page"),
)
CLOSED_NAMES: dict[type[nn.Module], str] = {
    Burg: "Itakura-Saito",
    NegativeEntropy: "Kullback-Leibler",
    FermiDirac: "Logistic",
}


def write_explorer(
    model: object,
    path: str | os.PathLike[str],
    points: ArrayLike | Tensor | None = None,
    labels: ArrayLike | None = None,
    *,
    feature_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Path:
    """Write a page on which a divergence is explored by dragging a point.

    Around the point c it shows both balls, {x : D(x, c) <= r} and {x : D(c, x) <= r}, its neighbours in either
    direction, and the same for Euclidean and Mahalanobis distance. The file holds the model and evaluates it in the
    browser; it needs no network. Use it to understand what was learned; for a figure, take :mod:`askew.plot`.

    Parameters
    ----------
    model
        A fitted learner, or a divergence: Bregman with a potential of askew, Mahalanobis, Euclidean, also reversed,
        scaled, rooted or symmetrised, and behind an encoder for tables. What cannot be shown is an error.
    path
        Of the HTML file, in a folder that exists. It is replaced as a whole or not at all.
    points
        Data to show, ``(n, dim)``; by default those that the learner has kept. Of more than 500, 500 are shown, as
        many of each class as can be.
    labels
        Their classes, ``(n,)``; by default those of the learner, if the points are.
    feature_names
        One for each feature; by default those of the data frame that the learner saw, or numbers.
    title
        Heading of the page.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import tempfile
    >>> from askew.divergences import make
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_explorer(make("itakura-saito", 2), Path(folder) / "explorer.html")
    ...     page.name, "https:" in page.read_text("utf-8")
    ('explorer.html', False)
    """
    divergence, learner = _divergence(model)
    if points is None and learner is not None:
        points = getattr(learner, "points_", None)
        labels = getattr(learner, "labels_", None) if labels is None else labels
    if feature_names is None:
        known = getattr(model, "feature_names_in_", getattr(learner, "feature_names_in_", None))
        feature_names = None if known is None else [str(name) for name in known]
    description = describe(divergence)
    # Behind an encoder points may lie anywhere; whether their images may is seen when they are evaluated.
    domain = REAL if description.encoder else description.domain
    scene = make_scene(points, labels, feature_names, description.dim, domain, _home(divergence))
    heading = title or "What does this divergence call near?"
    content = {
        "name": _name(divergence),
        "model": description.to_json(),
        "symmetric": divergence.symmetric,
        "askew": io.version(),
        **scene.content,
    }
    io.write_text(path, _page(heading, _summary(divergence, scene), content))
    return Path(path)


def _divergence(model: object) -> tuple[Divergence, Any]:
    """Return the divergence of what was given, and the learner that it came from, if any."""
    if isinstance(model, Divergence):
        return model, None
    learner: Any = getattr(model, "learner_", model)
    if hasattr(type(learner), "model_"):
        if not hasattr(learner, "divergence_"):
            got, hint = f"a {type(model).__name__} that is not fitted", "Call its fit first."
            raise ValueError(checks.message("model of write_explorer", "fitted", got, hint))
        return learner.model_, learner
    raise TypeError(checks.message("model of write_explorer", f"a fitted learner, {SHOWN}", type(model).__name__))


def _home(divergence: Divergence) -> tuple[Floats, Floats] | None:
    """Return the middle and spread of the features that the model was scaled to, if it was."""
    for part in divergence.modules():
        if isinstance(part, Standardize):
            mean, std = part.mean.cpu().double().numpy(), part.std.cpu().double().numpy()
            return None if not mean.any() and (std == 1).all() else (mean, 1.5 * std)
        if isinstance(part, ICNN) and part.calibrated:
            shift, inverse = part.shift.cpu().double().numpy(), part.inverse_spread.cpu().double().numpy()
            untouched = not shift.any() and (inverse == 1).all()
            behind = any(isinstance(other, Embedded) for other in divergence.modules())
            return None if untouched or behind else (shift, 1.5 / inverse)
    return None


def _name(divergence: Divergence) -> str:
    """Return what the switch calls the model."""
    if any(True for _ in divergence.parameters()):
        return "Learned"
    inner = divergence
    while hasattr(inner, "divergence") and isinstance(inner.divergence, Divergence):
        inner = inner.divergence
    if isinstance(inner, Bregman):
        return CLOSED_NAMES.get(type(inner.potential), type(inner.potential).__name__)
    return "This model"


def _summary(divergence: Divergence, scene: Scene) -> str:
    """Return in words what is shown."""
    chain = _chain(divergence)
    known = CLOSED_NAMES.get(type(chain[-1]))
    if isinstance(chain[-1], NeuralBregman):
        kind = "A neural Bregman divergence"
    else:
        kind = f"The divergence {type(chain[-1]).__name__}" if known is None else f"The {known} divergence"
    before = [type(part).__name__ for part in chain[:-1]]
    words = f"{kind} of {scene.content['dim']} features" + (f", behind {', '.join(before)}." if before else ".")
    if scene.total > scene.shown:
        words += f" Of {scene.total:,} data points {scene.shown} are shown, as many of each class as can be."
    elif scene.total:
        words += f" All {scene.total} data points are shown."
    return words


def _chain(module: nn.Module) -> list[nn.Module]:
    """Return the parts of a model from the points on: encoder, wrappers, divergence."""
    if isinstance(module, nn.Sequential):
        return [part for layer in module for part in _chain(layer)]
    if isinstance(module, Embedded):
        return [*_chain(module.encoder), *_chain(module.divergence)]
    inner = getattr(module, "divergence", None)
    if isinstance(inner, Divergence):
        return [module, *_chain(inner)]
    if isinstance(module, Bregman) and not isinstance(module, NeuralBregman):
        return [module.potential]
    return [module]


def _page(title: str, summary: str, content: dict[str, Any]) -> str:
    """Return the whole file. The template's marks are replaced in one pass, so that no text is taken for a mark."""
    folder = resources.files("askew.explorer") / "parts"
    scripts = [(folder / f"{name}.js").read_text("utf-8") for name in SCRIPTS]
    # Neither a tag nor the end of the script may come out of a string.
    data = json.dumps(content, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    filled = {
        "title": html.escape(title),
        "summary": html.escape(summary),
        "style": (folder / "style.css").read_text("utf-8"),
        "data": data,
        "script": "\n".join(scripts),
    }
    pieces = (folder / "page.html").read_text("utf-8").split("%%")
    return "".join(filled[piece] if i % 2 else piece for i, piece in enumerate(pieces))
