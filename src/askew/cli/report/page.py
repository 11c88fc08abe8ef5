"""The page about a comparison: the leaderboard, maps of held-out rows, and what the best divergence is like."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askew import io, metrics
from askew.cli.comparison import Fold, Leaderboard, shown_rows
from askew.cli.tasks import Task
from askew.divergences import Euclidean

# Pixels of a map, which scale with the page.
MAP_SIZE = 460
# Colours in the style sheet; after all of them the same again with another shape.
COLOURS = 8
SHAPES = ('<circle r="4"/>', '<rect x="-3.5" y="-3.5" width="7" height="7"/>')
# Classes with a colour; the others share one.
MOST_CLASSES = 12
# Columns whose importance is shown.
MOST_BARS = 20
# Points that the diagnosis takes.
DIAGNOSED = 1000


def write_comparison(
    path: str | os.PathLike[str],
    board: Leaderboard,
    learner: Any,
    task: Task,
    fold: Fold | None,
    *,
    importance: Mapping[str, tuple[float, float]] | None = None,
    title: str = "Divergences compared",
    feature_names: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
    sections: Mapping[str, str] | None = None,
) -> Path:
    """Write one HTML page about a comparison, which loads nothing, and return its path.

    The learner is the best divergence of the board, learned from all rows of the task; the fold has the same, learned
    without some rows, which the maps show (None for no maps). ``importance`` is what
    :func:`~askew.cli.comparison.importance` returns, ``names`` are those of the rows of the task, ``notes`` remarks
    about the data, ``settings`` those of the comparison, and ``sections`` the HTML of more sections by their titles.
    The file is replaced as a whole.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from askew.cli.comparison import compare_task, held_out
    >>> from askew.cli.tasks import Classes
    >>> task = Classes(*load_iris(return_X_y=True))
    >>> board = compare_task(task, ["euclidean"], folds=2, steps=5, jobs=1)
    >>> fold = held_out(task, "euclidean", folds=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_comparison(Path(folder) / "report.html", board, fold.learner, task, fold)
    ...     "<svg" in file.read_text()
    True
    """
    versions = f"askew {io.version()}, torch {torch.__version__}, Python {platform.python_version()}"
    origin = [*(f"{name}: {value}" for name, value in (settings or {}).items()), versions]
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="verdict">{html.escape(board.verdict())}</p>',
        *(_section(heading, part) for heading, part in (sections or {}).items()),
        _section("The data", _list(notes), _features(feature_names or ())),
        _section("Leaderboard", _table(board, task), *map(_paragraph, board.notes)),
        _section("Map of held-out rows", *_maps(board, task, fold, names)),
        _section("Which columns matter", *_bars(importance or {}, board)),
        _section("The learned divergence", *_learned(learner, task)),
        _section("Settings and versions", _list(origin)),
    ]
    io.write_text(path, document(title, "\n".join(body), _resource("page.js")))
    return Path(path)


# ---------------------------------------------------------------------- the leaderboard


def _table(board: Leaderboard, task: Task) -> str:
    title = f"Scores on held-out {task.rows}"
    heading = board.headings[board.by][0]
    ranked = "A MAP of 1 means that all rows of the same class come before all others. " * ("map" in board.headings)
    note = (
        f"Means and standard deviations over {board.folds} folds of {board.rows} {task.rows}. {heading} decides; the "
        "best divergence (a star) has the fewest parameters of those that are behind the highest mean by "
        f"no more than the standard deviation of the difference over folds. {ranked}The highest mean of each column is "
        "green. A gain over Euclidean is clear if it is larger than its standard deviation over folds."
    )
    header = ("divergence", "encoder", *(name for name, _ in board.headings.values()), "over Euclidean")
    head = "".join(f'<th scope="col">{name}</th>' for name in header)
    lines = []
    for (name, _), *cells in board.cells(clear=" (clear)"):
        fields = "".join(f'<td class="{mark or ""}">{html.escape(text)}</td>' for text, mark in cells)
        chosen = ' class="best"' if name == board.best.name else ""
        lines.append(f'<tr{chosen}><th scope="row">{html.escape(name)}</th>{fields}</tr>')
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


def _maps(board: Leaderboard, task: Task, fold: Fold | None, ids: Sequence[str] | None) -> list[str]:
    labels = task.groups()
    if labels is None or fold is None:
        return []
    rows, hollow = shown_rows(labels, fold)
    known, asked = rows[hollow], rows[~hollow]
    names, counts = np.unique(labels, return_counts=True)
    frequent = names[np.argsort(-counts, kind="stable")][:MOST_CLASSES]
    groups = [(str(name), labels[rows] == name) for name in sorted(frequent)]
    if len(names) > MOST_CLASSES:
        groups.append(("others", ~np.isin(labels[rows], frequent)))
    points, seen = task.points[rows], task.points[fold.rows]
    scaled = torch.from_numpy((points - seen.mean(0)) / np.where(seen.std(0) > 0, seen.std(0), 1))
    plain = Euclidean(points.shape[1]).double().pairwise(scaled, scaled).numpy()
    learned = fold.learner.pairwise(points).astype(np.float64)
    called = [f"row {row}" if ids is None else ids[row] for row in rows]
    tooltips = [
        f"{name}, {labels[row]}{', training row' * bool(h)}" for name, row, h in zip(called, rows, hollow, strict=True)
    ]
    maps = []
    for title, matrix in ((f"Learned: {board.best.name}", learned), ("Euclidean, features scaled", plain)):
        places, share = flat_map(matrix)
        near = _same(matrix[~hollow][:, ~hollow], labels[asked])
        text = (
            f"{title}. For {100 * near:.0f} % of the held-out rows, the nearest other one is of the same group. The "
            f"plane shows {100 * share:.0f} % of the spread."
        )
        chart = _scatter(places, [inside for _, inside in groups], hollow, tooltips, f"Map of {len(rows)} rows. {text}")
        maps.append(f"<figure>{chart}<figcaption>{html.escape(text)}</figcaption></figure>")
    buttons = "".join(
        f'<button aria-pressed="true" data-class="{number}"><svg viewBox="0 0 16 16" aria-hidden="true">'
        f'<g class="c{number % COLOURS}" transform="translate(8,8) scale(1.7)">{_shape(number)}</g></svg>'
        f"{html.escape(name)}</button>"
        for number, (name, _) in enumerate(groups)
    )
    words = (
        f"Filled: {len(asked)} held-out rows, which the model of this map was learned without. Hollow: {len(known)} of "
        "its training rows, which look better than new rows will. The closer two points, the smaller the divergence "
        "between them, averaged over both directions. Point at a mark for its row; press a group to hide it."
    )
    return [
        _paragraph(words),
        f'<div class="legend" role="group" aria-label="Groups">{buttons}</div>',
        f'<div class="maps">{"".join(maps)}</div>',
    ]


def _same(matrix: NDArray[np.float64], labels: NDArray[np.str_]) -> float:
    """Return the share of rows whose nearest other row has their label; chance if all are equally near."""
    if len(labels) < 2:
        return 0.0
    others = matrix + np.diag(np.full(len(matrix), np.inf))
    return float(metrics.knn_accuracy(others, labels, labels, k=1))


def _shape(group: int) -> str:
    return SHAPES[group // COLOURS % len(SHAPES)]


def _scatter(
    places: NDArray[np.float64],
    groups: Sequence[NDArray[np.bool_]],
    hollow: NDArray[np.bool_],
    tooltips: Sequence[str],
    label: str,
) -> str:
    """Return a map of points as SVG, with a colour and a shape for each group; both axes have the same scale."""
    low, high = places.min(0), places.max(0)
    half = float((high - low).max()) / 2 or 0.5
    pixels = MAP_SIZE / 2 + (places - (low + high) / 2) / half * (MAP_SIZE / 2 - 15) * [1, -1]
    parts = []
    for number, inside in enumerate(groups):
        marks = [
            f'<g{" class=hollow" * bool(hollow[i])} transform="translate({x:.1f},{y:.1f})">{_shape(number)}'
            f"<title>{html.escape(tooltips[i])}</title></g>"
            for i, (x, y) in enumerate(pixels)
            if inside[i]
        ]
        parts.append(f'<g class="class c{number % COLOURS}" data-class="{number}">{"".join(marks)}</g>')
    head = f'<svg viewBox="0 0 {MAP_SIZE} {MAP_SIZE}" role="img" aria-label="{html.escape(label)}"'
    return f'{head} xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


# ---------------------------------------------------------------------- the importance of columns


def _bars(importance: Mapping[str, tuple[float, float]], board: Leaderboard) -> list[str]:
    if not importance:
        return []
    heading = next(iter(board.headings.values()))[0]
    words = (
        f"How much {heading} drops on held-out rows if the values of a column are permuted among them. A column that "
        "others can stand in for has a small drop even if it says much."
    )
    longest = max(*(drop for drop, _ in importance.values()), 1e-12)
    lines = [
        f'<tr><th scope="row">{html.escape(name)}</th>'
        f'<td><div class="bar" style="width:{100 * max(drop, 0) / longest:.1f}%"></div></td>'
        f"<td>{drop:.3f} ± {spread:.3f}</td></tr>"
        for name, (drop, spread) in list(importance.items())[:MOST_BARS]
    ]
    rest = len(importance) - len(lines)
    more = [_paragraph(f"{rest} other columns have smaller drops.")] if rest else []
    return [_paragraph(words), f'<table class="bars"><tbody>{"".join(lines)}</tbody></table>', *more]


# ---------------------------------------------------------------------- the model and the rest


def _learned(learner: Any, task: Task) -> list[str]:
    points = task.points.reshape(-1, task.points.shape[-1])
    parts = [_paragraph(f"{learner.divergence}: {learner.choice_}")]
    model, step = learner.model_, max(1, len(points) // DIAGNOSED)
    if len(points) >= 3 and getattr(model, "second", None) is None:  # else a point cannot stand on both sides
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
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>" if any(parts) else ""


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
