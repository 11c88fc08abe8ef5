"""The page about a comparison: the leaderboard, maps of the data, and properties of the best divergence."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from askew import io, metrics
from askew.cli.comparison import SCORES, Leaderboard
from askew.divergences import Euclidean
from askew.estimators import DivergenceLearner
from askew.plot.frame import CYCLE

# Points on a map: enough to see classes, few enough for a phone; and its pixels, which scale with the page.
MAP_POINTS, MAP_SIZE = 400, 460
# After all colours the same again with another shape.
SHAPES = (
    '<circle r="4" stroke="none"/>',
    '<rect x="-3.5" y="-3.5" width="7" height="7" stroke="none"/>',
)
# Classes with a colour; the others share one.
MOST_CLASSES = 12
# Points that the diagnosis takes.
DIAGNOSED = 1000


def write_comparison(
    path: str | os.PathLike[str],
    board: Leaderboard,
    learner: DivergenceLearner,
    points: ArrayLike,
    labels: ArrayLike,
    *,
    title: str = "Divergences compared",
    feature_names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
) -> Path:
    """Write one HTML page about a comparison, which loads nothing, and return its path.

    The learner is the best divergence of the board, learned from all points, ``(n, dim)``, and labels, ``(n,)``;
    ``notes`` are remarks about the data, and ``settings`` those of the comparison. The file is replaced as a whole.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from askew.cli.comparison import compare
    >>> X, y = load_iris(return_X_y=True)
    >>> board = compare(X, y, ["euclidean"], folds=2, jobs=1)
    >>> learner = DivergenceLearner("euclidean", encoder=None).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_comparison(Path(folder) / "report.html", board, learner, X, y)
    ...     "<svg" in file.read_text()
    True
    """
    array, classes = np.asarray(points, dtype=np.float64), np.asarray(labels).astype(str)
    versions = f"askew {io.version()}, torch {torch.__version__}, Python {platform.python_version()}"
    origin = [*(f"{name}: {value}" for name, value in (settings or {}).items()), versions]
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="verdict">{html.escape(board.verdict())}</p>',
        _section("Leaderboard", _table(board), *map(_paragraph, board.notes)),
        _section("Maps of the data", *_maps(learner, array, classes)),
        _section("The learned divergence", *_learned(learner, array)),
        _section("The data", _list(notes), _features(feature_names or ())),
        _section("Settings and versions", _list(origin)),
    ]
    io.write_text(path, document(title, "\n".join(body), _resource("page.js")))
    return Path(path)


# ---------------------------------------------------------------------- the leaderboard


def _table(board: Leaderboard) -> str:
    title = "Held-out rows, ranked and clustered"
    note = (
        f"Means and standard deviations over {board.folds} folds of {board.rows} rows. MAP decides: 1 means that all "
        "rows of the same class come before all others. The best of each column is green. A gain over Euclidean is "
        "clear if it is larger than its standard deviation over folds."
    )
    header = ("divergence", *(name for name, _ in SCORES.values()), "MAP over Euclidean")
    head = "".join(f'<th scope="col">{name}</th>' for name in header)
    lines = []
    for (name, _), *cells in board.cells(clear=" (clear)"):
        fields = "".join(f'<td class="{mark or ""}">{html.escape(text)}</td>' for text, mark in cells)
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{fields}</tr>')
    caption = f"<caption><strong>{title}</strong><br>{note}</caption>"
    body = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    # The frame scrolls on narrow screens, and by keyboard as well.
    return f'<div class="frame" tabindex="0" role="region" aria-label="{title}">{body}</div>'


# ---------------------------------------------------------------------- maps


def flat_map(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return places in the plane whose distances approximate a matrix, and how much of its spread they show.

    Classical scaling of the symmetric part: distances are square roots of (D + D^T) / 2. The second number is the
    share of the positive eigenvalues that the plane has: 1 if the map is exact.

    Examples
    --------
    >>> line = np.array([[0.0], [1.0], [3.0]])
    >>> places, share = flat_map((line - line.T) ** 2)
    >>> round(share, 6), (abs(places[:, 0] - places[0, 0])).round(6).tolist()
    (1.0, [0.0, 1.0, 3.0])
    """
    squares = (matrix + matrix.T) / 2
    centred = squares - squares.mean(0) - squares.mean(1, keepdims=True) + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    top = np.argsort(values)[::-1][:2]
    kept = values[top].clip(min=0)
    total = values[values > 0].sum()
    return vectors[:, top] * np.sqrt(kept), float(kept.sum() / total) if total > 0 else 1.0


def _maps(learner: DivergenceLearner, points: NDArray[np.float64], labels: NDArray[np.str_]) -> list[str]:
    # Rows to show, in the proportions of the classes.
    order = np.argsort(labels, kind="stable")
    rows = np.sort(order[np.linspace(0, len(order) - 1, min(MAP_POINTS, len(order))).round().astype(np.int64)])
    names, counts = np.unique(labels, return_counts=True)
    frequent = names[np.argsort(-counts, kind="stable")][:MOST_CLASSES]
    groups = [(str(name), labels[rows] == name) for name in frequent]
    if len(names) > MOST_CLASSES:
        groups.append(("others", ~np.isin(labels[rows], frequent)))
    scaled = torch.from_numpy((points - points.mean(0)) / np.where(points.std(0) > 0, points.std(0), 1))[rows]
    plain = Euclidean(points.shape[1]).double().pairwise(scaled, scaled).numpy()
    learned = learner.pairwise(points[rows]).astype(np.float64)
    tooltips = [f"row {row}, {labels[row]}" for row in rows]
    maps = []
    for title, matrix in ((f"Learned: {learner.divergence}", learned), ("Euclidean, features scaled", plain)):
        places, share = flat_map(matrix)
        text = f"{title}. The plane shows {100 * share:.0f} % of the spread."
        chart = _scatter(places, [inside for _, inside in groups], tooltips, f"Map of {len(rows)} rows. {text}")
        maps.append(f"<figure>{chart}<figcaption>{html.escape(text)}</figcaption></figure>")
    buttons = "".join(
        f'<button aria-pressed="true" data-class="{number}"><svg viewBox="0 0 16 16" aria-hidden="true">'
        f'<circle cx="8" cy="8" r="7" fill="{CYCLE[number % len(CYCLE)]}"/></svg>{html.escape(name)}</button>'
        for number, (name, _) in enumerate(groups)
    )
    words = (
        f"{len(rows)} rows: distances on the map are about the root of the mean of D(x, y) and D(y, x). "
        "Point at a dot for its row; press a class to hide it."
    )
    return [
        _paragraph(words),
        f'<div class="legend" role="group" aria-label="Classes">{buttons}</div>',
        f'<div class="maps">{"".join(maps)}</div>',
    ]


def _scatter(
    places: NDArray[np.float64], groups: Sequence[NDArray[np.bool_]], tooltips: Sequence[str], label: str
) -> str:
    """Return a map of points as SVG, with a colour and a shape for each group; both axes have the same scale."""
    low, high = places.min(0), places.max(0)
    half = float((high - low).max()) / 2 or 0.5
    pixels = MAP_SIZE / 2 + (places - (low + high) / 2) / half * (MAP_SIZE / 2 - 15) * [1, -1]
    parts = []
    for number, inside in enumerate(groups):
        colour, shape = CYCLE[number % len(CYCLE)], SHAPES[number // len(CYCLE) % len(SHAPES)]
        marks = [
            f'<g transform="translate({x:.1f},{y:.1f})">{shape}<title>{html.escape(tooltips[i])}</title></g>'
            for i, (x, y) in enumerate(pixels)
            if inside[i]
        ]
        parts.append(f'<g class="class" data-class="{number}" fill="{colour}" stroke="{colour}">{"".join(marks)}</g>')
    head = f'<svg viewBox="0 0 {MAP_SIZE} {MAP_SIZE}" role="img" aria-label="{html.escape(label)}"'
    return f'{head} xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


# ---------------------------------------------------------------------- the model and the rest


def _learned(learner: DivergenceLearner, points: NDArray[np.float64]) -> list[str]:
    parts = [_paragraph(f"{learner.divergence}: {learner.choice_}")]
    if len(points) >= 3:
        model, step = learner.model_, max(1, len(points) // DIAGNOSED)
        like = next(model.parameters(), torch.zeros(0))
        diagnosis = metrics.diagnose(model, torch.from_numpy(points[::step].copy()).to(like.dtype))
        parts += [_list(str(diagnosis).split("\n")[1:]), _paragraph(_meaning(diagnosis.asymmetry))]
    return parts


def _meaning(asymmetry: float) -> str:
    if asymmetry == 0:
        return "The order of the two points does not matter: D(x, y) = D(y, x)."
    if asymmetry < 0.1:
        return "It is nearly symmetric on these data: which point comes first hardly matters."
    return (
        "It is not symmetric: who is near to x, by D(x, y), may be far from y, by D(y, x). "
        "For search, choose the direction: askew index --direction query-first or query-second."
    )


def _features(names: Sequence[str]) -> str:
    text = f"<details><summary>{len(names)} features</summary>{_paragraph(', '.join(names))}</details>"
    return text if names else ""


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _resource(name: str) -> str:
    return (resources.files("askew.cli.report") / name).read_text("utf-8")


def document(title: str, body: str, script: str) -> str:
    """Return a whole page, whose content policy lets nothing be loaded and no script run but the one given.

    Text from data must be escaped in the body; the title is escaped here.

    Examples
    --------
    >>> document("A < B", "<p>text</p>", "").count("A &lt; B")
    1
    """
    style = _resource("page.css").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>\n"
        f"<body>{body}<script>{script}</script></body></html>\n"
    )
