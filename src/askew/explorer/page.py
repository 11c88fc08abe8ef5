"""The page: a model, data and the program that shows them, in one file."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from askew import io
from askew.checks import REAL
from askew.divergences import Divergence
from askew.divergences.split import to_divergence
from askew.encoders import Standardize
from askew.explorer.description import SHOWN, describe
from askew.explorer.scene import Scene, make_scene
from askew.plot.plane import Floats
from askew.potentials import ICNN, Burg, FermiDirac, NegativeEntropy

# In the order in which they build on each other.
SCRIPTS = (
    *("numbers", "potentials", "divergence", "planes", "contours", "field", "drawing", "words"),
    *("scene", "showing", "saying", "moving", "page"),
)
# Potentials whose divergence has a name.
NAMES: dict[type, str] = {Burg: "Itakura-Saito", NegativeEntropy: "Kullback-Leibler", FermiDirac: "Logistic"}


def write_explorer(
    model: object,
    path: str | os.PathLike[str],
    points: ArrayLike | Tensor | None = None,
    labels: ArrayLike | None = None,
    *,
    feature_names: Sequence[str] | None = None,
    title: str | None = None,
    ids: ArrayLike | None = None,
    training: ArrayLike | None = None,
) -> Path:
    """Write a page on which a divergence is explored by dragging a point, and return its path.

    Around the point c it shows both balls, {x : D(x, c) <= r} and {x : D(c, x) <= r}, the neighbours in either
    direction, and the same for Euclidean and Mahalanobis distance. The file holds the model and evaluates it in the
    browser, without a network. Use it to understand what was learned; for a figure, take :mod:`askew.plot`.

    Parameters
    ----------
    model
        A fitted learner, or a divergence: Bregman with a potential of askew, Drift, Mahalanobis, Euclidean, also
        reversed, scaled, rooted or symmetrised, and behind one or two encoders for tables. Others are a TypeError.
    path
        The HTML file, in a folder that exists. It is replaced as a whole or not at all.
    points
        Points to show, ``(n, dim)``; by default the training points of the learner. At most 500 are shown, spread
        evenly over the classes.
    labels
        Their classes, ``(n,)``; by default the labels of the learner, if its points are shown.
    feature_names
        Names of the features; by default the column names of the data frame the learner was fitted on, or numbers.
    title
        Heading of the page.
    ids
        Names of the points, ``(n,)``; by default their row numbers from 0.
    training
        Which points the model was trained on, ``(n,)`` booleans: these are drawn hollow. The points of a learner are
        all training points, and the page says so.

    Examples
    --------
    >>> import tempfile
    >>> from askew.divergences import make
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_explorer(make("itakura-saito", 2), Path(folder) / "explorer.html")
    ...     page.name, "https:" in page.read_text("utf-8")
    ('explorer.html', False)
    """
    divergence = to_divergence(model, "model of write_explorer", f"a fitted learner, {SHOWN}")
    # A classifier holds the learner whose points and labels are shown.
    learner = getattr(model, "learner_", model)
    own = points is None
    if own:
        points = getattr(learner, "points_", None)
        labels = getattr(learner, "labels_", None) if labels is None else labels
    if feature_names is None:
        known = getattr(model, "feature_names_in_", getattr(learner, "feature_names_in_", None))
        feature_names = None if known is None else [str(name) for name in known]
    description = describe(divergence)
    # Behind an encoder points may lie anywhere; whether their embeddings may is seen when they are evaluated.
    domain = REAL if description.encoder else description.domain
    scene = make_scene(points, labels, feature_names, description.dim, domain, _home(divergence), ids, training)
    content = {
        "name": _name(divergence),
        "model": description.to_json(),
        "symmetric": divergence.symmetric,
        "askew": io.version(),
        **scene.content,
    }
    heading = title or "What does this divergence call near?"
    io.write_text(path, _page(heading, _summary(scene, own), content))
    return Path(path)


def _home(divergence: Divergence) -> tuple[Floats, Floats] | None:
    """Return the middle and spread of the features to which the model was scaled, if it was."""
    embedded = any(hasattr(part, "encoder") for part in divergence.modules())
    for part in divergence.modules():
        if type(part) is Standardize:
            middle, spread = part.mean, part.std
        elif type(part) is ICNN and part.calibrated and not embedded:
            middle, spread = part.shift, 1 / part.inverse_spread
        else:
            continue
        scaled = bool(middle.any() or (spread != 1).any())
        return (middle.cpu().double().numpy(), 1.5 * spread.cpu().double().numpy()) if scaled else None
    return None


def _name(divergence: Divergence) -> str:
    """Return the name of the model on the switch between distances."""
    if any(True for _ in divergence.parameters()):
        return "Learned"
    return next((NAMES[type(part)] for part in divergence.modules() if type(part) in NAMES), "This model")


def _summary(scene: Scene, own: bool) -> str:
    """Return a sentence or two about what is shown."""
    words = f"A divergence of {scene.content['dim']} features."
    if scene.total > scene.shown:
        even = ", spread evenly over the classes" * bool(scene.content["classes"])
        words += f" Shows {scene.shown} of {scene.total:,} data points{even}."
    elif scene.total:
        words += f" Shows all {scene.total} data points."
    if own and scene.total:
        words += " The model was trained on them: new points will look less well separated."
    return words


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
