"""The page of a comparison of divergences on a table: who is best, what was learned, and how the data look under it."""

from __future__ import annotations

import html
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from askew import io, metrics
from askew.cli.comparison import SCORES, Leaderboard
from askew.cli.report.charts import COLOURS, Dots, Line, lines_chart, ranges_chart, scatter_chart
from askew.cli.report.markup import Field, Table, to_html
from askew.cli.report.style import document
from askew.divergences import Euclidean
from askew.estimators import DivergenceLearner

__all__ = ["flat_map", "write_comparison"]

# Points on a map: enough to see classes, few enough for a phone.
MAP_POINTS = 400
# Classes with a colour of their own; the rest is shown as others.
MOST_CLASSES = 12
# Methods whose precision is drawn.
MOST_LINES = 5
# Points that the diagnosis looks at.
DIAGNOSED = 1000

# Sorts a table by a column and switches classes of the maps on and off. Both work by keyboard: they are buttons.
SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent; head.textContent = ""; head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      table.querySelectorAll("thead th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = table.tBodies[0];
      const value = row => { const text = row.cells[column].textContent; const number = parseFloat(text);
        return Number.isNaN(number) ? text : number; };
      const rows = [...body.rows].sort((a, b) => { const x = value(a), y = value(b);
        const order = typeof x === typeof y ? (x > y) - (x < y) : typeof x === "number" ? 1 : -1;
        return up ? order : -order; });
      body.append(...rows);
    });
  });
}
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", shown);
    for (const group of document.querySelectorAll(`g.class[data-class="${button.dataset.class}"]`))
      group.style.display = shown ? "" : "none";
  });
}
""".strip()


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
    """Write one HTML page about a comparison; it loads nothing, and is written aside and renamed.

    Parameters
    ----------
    path
        The file.
    board
        From :func:`askew.cli.comparison.compare`.
    learner
        The best divergence, learned from all points.
    points, labels
        What was compared on, ``(n, dim)`` and ``(n,)``.
    title
        Of the page.
    feature_names
        Of the points.
    notes
        What to say of the data.
    settings
        What the comparison was run with.

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
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="verdict">{html.escape(board.verdict())}</p>',
        _section("Leaderboard", to_html(_table(board)), _ranges(board), *map(_paragraph, board.notes)),
        _section("What the nearest rows are", _precisions(board)),
        _section("The data, as near as they are", *_maps(learner, array, classes)),
        _section("What was learned", *_learned(learner, array)),
        _section("The data", _list(notes), _names(feature_names)),
        _section("Settings and versions", _list(_origin(settings or {}))),
    ]
    place = Path(path)
    io.write_text(place, document(title, "\n".join(parts), SCRIPT))
    return place


# ---------------------------------------------------------------------- the leaderboard


def _table(board: Leaderboard) -> Table:
    lines: list[tuple[Field, ...]] = []
    for standing in board.standings:
        if standing.problem:
            lines.append((Field(standing.name), Field(f"failed: {standing.problem}", "missing")))
            continue
        fields = [Field(standing.name)]
        for name, (_, digits) in SCORES.items():
            best = max(one.mean(name) for one in board.standings if not one.problem)
            mean, spread = standing.mean(name), standing.spread(name)
            between = "" if math.isnan(spread) else f" ± {spread:.{digits}f}"
            mark = "better" if name != "seconds" and mean == best else None
            fields.append(Field(f"{mean:.{digits}f}{between}", mark))
        gain, spread = board.gain(standing)
        known = not math.isnan(gain) and standing.name != "euclidean"
        clear = "" if not known else " (clear)" if gain > spread else " (within the spread)"
        fields.append(Field(f"{gain:+.3f}{clear}" if known else "", "better" if clear == " (clear)" else None))
        lines.append(tuple(fields))
    notes = (
        f"Means and standard deviations over {board.folds} folds of {board.rows} rows. MAP decides: 1 means that all "
        "rows of the same class come before all others. The best of each column is green. A gain over Euclidean is "
        "clear if it is larger than its standard deviation over folds.",
    )
    header = ("divergence", *(name for name, _ in SCORES.values()), "MAP over Euclidean")
    return Table("Held-out rows, ranked and clustered", notes, header, tuple(lines))


def _ranges(board: Leaderboard) -> str:
    rows = [
        (one.name, one.mean("map"), one.spread("map"), one.scores["map"]) for one in board.standings if not one.problem
    ]
    caption = "Mean average precision: mean (large), each fold (small), one standard deviation (bar)."
    return _figure(ranges_chart(rows, "MAP"), caption)


def _precisions(board: Leaderboard) -> str:
    some = [one for one in board.standings if one.precisions]
    # Euclidean stays in, whatever its place: it is what the others are compared with.
    plain = [one for one in some[MOST_LINES:] if one.name == "euclidean"]
    shown = [*some[: MOST_LINES - len(plain)], *plain]
    lines = [Line(one.name, range(1, len(one.precisions) + 1), one.precisions) for one in shown]
    caption = "Share of rows of the right class among the nearest ones of a held-out row."
    return _figure(lines_chart(lines, "nearest rows looked at", "precision"), caption)


# ---------------------------------------------------------------------- maps


def flat_map(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return places in the plane whose distances are about those of a matrix, and how much of them it shows.

    Classical scaling of the symmetric part: distances are square roots of (D + D^T) / 2. The second number is the
    share of the positive eigenvalues that the plane has: 1 if the map is exact, little if it is a mere shadow.

    Parameters
    ----------
    matrix
        D of all pairs, ``(n, n)``.

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
    rows = _some_rows(labels)
    names, counts = np.unique(labels, return_counts=True)
    named = [str(name) for name in names[np.argsort(-counts, kind="stable")][:MOST_CLASSES]]
    scaled = (points - points.mean(0)) / np.where(points.std(0) > 0, points.std(0), 1)
    some = torch.from_numpy(scaled[rows])
    plain = Euclidean(points.shape[1]).double().pairwise(some, some).numpy()
    learned = learner.pairwise(points[rows]).astype(np.float64)
    parts = []
    for title, matrix in ((f"Learned: {learner.divergence}", learned), ("Euclidean, features scaled", plain)):
        places, share = flat_map(matrix)
        classes = []
        for name in [*named, None]:
            inside = np.array([label == name if name is not None else label not in named for label in labels[rows]])
            if inside.any():
                titles = [f"row {row}, {labels[row]}" for row in rows[inside]]
                classes.append(Dots(name or "others", places[inside, 0], places[inside, 1], titles))
        text = f"{title}. The plane shows {100 * share:.0f} % of the spread."
        parts.append(_figure(scatter_chart(classes, f"Map of {len(rows)} rows. {text}"), text))
    shown = [*named, *(["others"] if len(names) > MOST_CLASSES else [])]
    buttons = "".join(
        f'<button aria-pressed="true" data-class="{number}"><svg viewBox="0 0 16 16" aria-hidden="true">'
        f'<circle cx="8" cy="8" r="7" fill="{COLOURS[number % len(COLOURS)]}"/></svg>{html.escape(name)}</button>'
        for number, name in enumerate(shown)
    )
    words = (
        f"{len(rows)} rows, placed so that near ones are near: distances on the map are about the root of the mean of "
        "D(x, y) and D(y, x). Point at a dot for its row; press a class to hide it."
    )
    return [
        _paragraph(words),
        f'<div class="legend" role="group" aria-label="Classes">{buttons}</div>',
        f'<div class="maps">{"".join(parts)}</div>',
    ]


def _some_rows(labels: NDArray[np.str_]) -> NDArray[np.int64]:
    """Return rows to show, every class in its share and at least once where there is room."""
    if len(labels) <= MAP_POINTS:
        return np.arange(len(labels))
    order = np.argsort(labels, kind="stable")
    return np.sort(order[np.linspace(0, len(order) - 1, MAP_POINTS).round().astype(np.int64)])


# ---------------------------------------------------------------------- the model and the rest


def _learned(learner: DivergenceLearner, points: NDArray[np.float64]) -> list[str]:
    parts = [_paragraph(f"{learner.divergence}: {learner.choice_}")]
    step = max(1, len(points) // DIAGNOSED)
    if len(points) >= 3:
        model = learner.model_
        like = next(model.parameters(), torch.zeros(0))
        found = metrics.diagnose(model, torch.from_numpy(points[::step].copy()).to(like.dtype))
        parts.append(_list(str(found).split("\n")[1:]))
        parts.append(_paragraph(_in_words(found.asymmetry)))
    rows = learner.history_.rows
    if len(rows) > 1:
        line = Line("loss", [row["step"] for row in rows], [row["loss"] for row in rows])
        parts.append(_figure(lines_chart([line], "step", "training loss"), "Training loss of the model on all rows."))
    return parts


def _in_words(asymmetry: float) -> str:
    if asymmetry == 0:
        return "The order of the two points does not matter: D(x, y) = D(y, x)."
    if asymmetry < 0.1:
        return "It is nearly symmetric on these data: which point comes first hardly matters."
    return (
        "It is not symmetric: who is near to x, by D(x, y), may be far from y, by D(y, x). "
        "For search, choose the direction: askew index --direction query-first or query-second."
    )


def _origin(settings: Mapping[str, object]) -> list[str]:
    versions = f"askew {io.version()}, torch {torch.__version__}, Python {platform.python_version()}"
    return [*(f"{name}: {value}" for name, value in settings.items()), versions]


def _names(names: Sequence[str] | None) -> str:
    if not names:
        return ""
    text = html.escape(", ".join(names))
    return f"<details><summary>{len(names)} features</summary><p>{text}</p></details>"


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{html.escape(caption)}</figcaption></figure>"
