"""Results over seeds, compared with the paper's values and with its claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from askew import checks
from askew_paper.experiment import Cell, Claim, Experiment, Score
from askew_paper.published import TABLES, Published
from askew_paper.rows import Row

CONFIDENCE = 0.95
# How the names of our methods begin, and what has learned nothing.
OURS = ("nbd", "drift", "two-sided")
TRIVIAL = ("mean", "constant", "untrained")


def interval(values: Iterable[float]) -> tuple[float, float]:
    """Return the mean of independent values and half the width of its 95 % interval; NaN for a single value.

    Examples
    --------
    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)
    (2.0, 2.484)
    """
    numbers = np.asarray(list(values), dtype=np.float64)
    n = len(numbers)
    if n < 2:
        return float(numbers.mean()), math.nan
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)
    return float(numbers.mean()), float(quantile * numbers.std(ddof=1) / math.sqrt(n))


def summarise(rows: Iterable[Row]) -> pd.DataFrame:
    """Return mean and 95 % interval of every score over the seeds, one line per score of each setting and method.

    Rows are combined only if they differ in nothing but the seed: never across scales or options.

    Parameters
    ----------
    rows
        Each cell once.

    Returns
    -------
    DataFrame
        Columns ``group``, ``score``, ``cell`` (one of those combined), ``mean``, ``half`` (half the width of the
        interval, NaN for one seed), ``seeds`` and ``seconds`` (the median of a run).

    Examples
    --------
    >>> cells = [Cell("sums", "small", "exact", seed, "quick") for seed in range(2)]
    >>> rows = [Row(cell, {"mae": 1.0 + cell.seed}, 1.0, "2023-01-01T00:00:00Z") for cell in cells]
    >>> summarise(rows)[["score", "mean", "seeds"]].values.tolist()
    [['mae', 1.5, 2]]
    """
    columns = ["group", "key", "score", "cell", "value", "seconds"]
    lines = [
        (row.cell.group, row.cell.key, score, row.cell, value, row.seconds)
        for row in rows
        for score, value in row.scores.items()
    ]
    frame = pd.DataFrame(lines, columns=columns)
    twice = frame.duplicated(["key", "score"])
    if twice.any():
        cell = frame["cell"][twice].iloc[0]
        raise ValueError(checks.message("each row", "of a different cell", f"two of {cell}"))
    groups = frame.groupby(["group", "score"], sort=False)
    summary = groups.agg(cell=("cell", "first"), seeds=("value", "size"), seconds=("seconds", "median"))
    intervals = [interval(values) for _, values in groups["value"]]
    summary["mean"], summary["half"] = [m for m, _ in intervals], [h for _, h in intervals]
    return summary.reset_index()


# ---------------------------------------------------------------------- with the paper


@dataclass(frozen=True, eq=False)
class Comparison:
    """All values of an experiment at one scale.

    ``table`` has one line for each setting, method and score that there should be: ``mean``, ``half``, ``seeds`` and
    ``seconds`` of our rows, ``dead`` where the training of a row ended with D = 0 everywhere, ``published``, ``spread``
    and ``decimals`` of the paper, ``difference`` and ``mark``. What is missing is NaN. A method with several sets of
    options has them in its name.
    """

    experiment: Experiment
    scale: str
    table: pd.DataFrame
    rows: list[Row]
    cells: Mapping[tuple[str, str], Cell]  # those that there should be, with the first seed, by setting and method
    stale: int  # rows that are left out because the experiment has other options now


def compare(experiment: Experiment, rows: Iterable[Row], scale: str) -> Comparison:
    """Return the paper's values and those of the rows of one scale; rows of other experiments are ignored."""
    cells = {cell.group: cell for cell in experiment.checked_cells(scale, 1)}
    of_scale = [row for row in rows if (row.cell.experiment, row.cell.scale) == (experiment.name, scale)]
    current = [row for row in of_scale if row.cell.group in cells]
    papers: dict[tuple[str, str, str], Published] = {}
    for entry in experiment.published:  # of two, the one with a spread
        place = (entry.setting, entry.method, entry.score)
        if place not in papers or papers[place].spread is None:
            papers[place] = entry
    # Settings may differ in their scores: one that has rows lacks those that none of them has.
    measured = {(row.cell.setting, score) for row in current for score in row.scores}
    with_rows = {setting for setting, _ in measured}
    names = _variant_names(list(cells.values()))
    lines: list[tuple[str, str, str | None, str, Published | None]] = []
    for group, cell in cells.items():
        other = experiment.against.get(cell.method, cell.method)
        for score in experiment.scores:
            if cell.setting in with_rows and (cell.setting, score.name) not in measured:
                continue
            paper = papers.get((cell.setting, other, score.name))
            lines.append((cell.setting, names[group], group, score.name, paper))
    # Values of the paper for methods that we do not even try are missing as well.
    tried = {(cell.setting, cell.method) for cell in cells.values()}
    lines += [
        (s, method, None, score, paper) for (s, method, score), paper in papers.items() if (s, method) not in tried
    ]
    table = pd.DataFrame(lines, columns=["setting", "method", "group", "score", "paper"])
    table = table.merge(summarise(current).drop(columns="cell"), how="left", on=["group", "score"])
    table["seeds"] = table["seeds"].fillna(0).astype(int)
    table["dead"] = table["group"].isin({row.cell.group for row in current if row.chosen.get("dead")})
    table["published"] = [math.nan if paper is None else paper.mean for paper in table["paper"]]
    table["spread"] = [math.nan if paper is None or paper.spread is None else paper.spread for paper in table["paper"]]
    digits = {score.name: score.digits for score in experiment.scores}
    table["decimals"] = [_decimals(*pair, digits) for pair in zip(table["paper"], table["score"], strict=True)]
    other_data = [setting for setting, scales in experiment.incomparable.items() if scale in scales]
    comparable = ~table["setting"].isin(other_data) & (scale != "toy")
    table["difference"] = (table["mean"] - table["published"]).where(comparable)
    lower = {score.name: score.lower_is_better for score in experiment.scores}
    table["mark"] = [
        mark(line.difference, line.half, line.spread, line.decimals, lower[line.score]) for line in table.itertuples()
    ]
    by_name = {(cell.setting, names[group]): cell for group, cell in cells.items()}
    return Comparison(experiment, scale, table, current, by_name, len(of_scale) - len(current))


def _decimals(paper: Published | None, score: str, digits: Mapping[str, int]) -> int:
    """Return the number of decimals of a published value, or else of ours."""
    return TABLES[paper.table].digits if paper is not None and paper.table in TABLES else digits[score]


def mark(difference: float, half: float, spread: float, decimals: int, lower_is_better: bool) -> str:
    """Return whether ours is ``"better"``, ``"within"`` the spread or ``"worse"``; empty where nothing can be said.

    The arguments are ours minus the paper's, half of our interval, the paper's standard deviation (each may be NaN) and
    the decimals of the published value: up to half of the last one is no difference.

    Examples
    --------
    >>> mark(-0.07, 0.01, math.nan, 3, lower_is_better=True)
    'better'
    """
    if math.isnan(difference) or (math.isnan(half) and math.isnan(spread)):
        return ""
    if abs(difference) <= np.nanmax([spread, half, 0.5 * 10.0**-decimals]):
        return "within"
    return "better" if (difference < 0) == lower_is_better else "worse"


def _variant_names(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the method of each group, with the options that distinguish it from others of the same method."""
    variants: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        variants.setdefault((cell.setting, cell.method), []).append(cell)
    names = {}
    for (_, method), same in variants.items():
        common = set(same[0].options).intersection(*(cell.options for cell in same[1:]))
        for cell in same:
            different = [option for option in cell.options if option not in common]
            names[cell.group] = f"{method} ({listed(different)})" if different else method
    return names


def listed(options: Iterable[tuple[str, object]]) -> str:
    """Return options as text, sorted by name."""
    return ", ".join(f"{name} {shown(value)}" for name, value in sorted(options, key=lambda option: option[0]))


def shown(value: object) -> str:
    """Return the value of an option as text."""
    if isinstance(value, tuple):
        return "x".join(map(shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def number(value: float, digits: int, half: float = math.nan, sign: bool = False) -> str:
    """Return a number as text, with half of its interval if there is one; zero has no sign."""
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    text = text.lstrip("+-") if float(text) == 0 else text
    return text if math.isnan(half) else f"{text} ± {number(half, digits)}"


# ---------------------------------------------------------------------- claims


def judge(comparison: Comparison) -> pd.DataFrame:
    """Return the claims of an experiment with what the results say about them; empty without results.

    Of a method with several sets of options, the best counts. No claim counts against a method whose training ended
    with D = 0 everywhere: that is ours to repair. None is confirmed by a method that is behind a trivial prediction.
    """
    settings = list(dict.fromkeys(comparison.table["setting"]))
    lines = []
    for claim in comparison.experiment.claims:
        values = dict.fromkeys(cell[claim.by] if claim.by else None for cell in comparison.cells.values())
        for setting in claim.settings or settings:
            lines += [_judged(comparison, claim, setting, value) for value in values if setting in settings]
    columns = ["Claim", "Setting", "At this scale", "Figures"]
    return pd.DataFrame([line for line in lines if line is not None], columns=columns)


def _judged(comparison: Comparison, claim: Claim, setting: str, value: object) -> tuple[str, str, str, str] | None:
    """Return the line of a claim in one setting and with one value of its option; None where values are missing."""
    score = next(score for score in comparison.experiment.scores if score.name == claim.score)
    table, cells = comparison.table, comparison.cells
    found: dict[str, Any] = {}
    for line in table[
        (table["setting"] == setting) & (table["score"] == score.name) & (table["seeds"] > 0) & ~table["dead"]
    ].itertuples():
        cell = cells[setting, line.method]
        if claim.by and cell[claim.by] != value:
            continue
        if cell.method not in found or (line.mean < found[cell.method].mean) == score.lower_is_better:
            found[cell.method] = line
    sides = [{method: found[method] for method in side if method in found} for side in (claim.ahead, claim.behind)]
    if not all(sides):
        return None
    ahead, behind = (
        sorted(side.items(), key=lambda pair: pair[1].mean, reverse=not score.lower_is_better) for side in sides
    )
    (name, first), (other_name, other) = (ahead[-1] if claim.each else ahead[0]), behind[0]
    text = "confirmed" if claim.holds(first.mean, other.mean, score.lower_is_better) else "not confirmed"
    trivial = next((found[method] for method in TRIVIAL if method in found), None)
    if text == "confirmed" and trivial is not None and (first.mean < trivial.mean) != score.lower_is_better:
        return claim.text, setting, "not confirmed: nothing is learned", f"{name} {_figure(first, score)}"
    if math.isnan(first.half) or math.isnan(other.half):
        text += " (one seed)"
    else:
        # The factor is on the side of the error that may be larger, or of the score that may be lower.
        a, b = (1.0, claim.factor) if score.lower_is_better else (claim.factor, 1.0)
        is_clear = abs(a * first.mean - b * other.mean) > a * first.half + b * other.half
        text += ", clearly" if is_clear else ", within the spread"
    tried = {cell.method for (place, _), cell in cells.items() if place == setting}
    unseen = [method for method in (*claim.ahead, *claim.behind) if method in tried and method not in found]
    if unseen:
        text += f"; not run yet or dead: {'; '.join(unseen)}"
    figures = f"{name} {_figure(first, score)}; {other_name} {_figure(other, score)}"
    return claim.text, f"{setting}, {claim.by} {shown(value)}" if claim.by else setting, text, figures


def _figure(line: Any, score: Score) -> str:
    return number(line.mean, score.digits, line.half)
