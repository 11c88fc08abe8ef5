"""The scorecard: where our divergences are ahead of all others, where they tie, and where they are behind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from askew_paper.experiment import SCALES, Experiment, Score
from askew_paper.rows import Row
from askew_paper.summary import OURS, TRIVIAL, Comparison, compare, judge, number

# Methods that are no competitors: trivial ones, bounds, and networks that no index can search.
REFERENCES = (*TRIVIAL, "best-symmetric", "bayes", "oracle", "unconstrained")
GLYPHS = {"ahead": "▲", "tie": "●", "behind": "▼"}
# Lines of an experiment in the table of tasks, and experiments that compare no accuracies of methods.
MOST_LINES = 10
LEFT_OUT = ("timing", "ablation")
COLUMNS = ("Verdict", "NBD", "Best of ours", "Best other")
LEGEND = (
    "▲ ahead, ● tie, ▼ behind: a difference counts if the 95 % intervals over the seeds do not overlap. A question "
    "mark: one seed, or methods not run yet. The best of ours is chosen on held-out training data, by the test score "
    "only where no row of ours has such a score; the best other one by the test score. Trivial predictions, bounds, "
    "unconstrained networks and methods with less than half of the seeds do not compete. Any difference confirms a "
    "claim; clearly, if it counts as above."
)
# Scores that others have published numbers of, and where these are not among the experiment's own.
ANCHORS = {
    ("closure", "f1"): "",
    ("entailment", "hyperlex"): "",
    ("entailment", "wbless-accuracy"): "none seen",
    ("roads", "mre"): "0.023 (Jinan, undirected)",
}


@dataclass(frozen=True)
class Line:
    """One task: NBD, the best of ours and the best other one, each a line of a comparison."""

    experiment: Experiment
    scale: str
    setting: str
    score: Score
    nbd: Any
    ours: Any
    other: Any
    whole: bool  # whether all competitors have rows
    decided: bool  # whether all methods that the claims name have rows

    def verdict(self, own: Any) -> str:
        """Return ``"ahead"``, ``"tie"`` or ``"behind"``, with a question mark where that may change."""
        halves = own.half + self.other.half
        doubt = "?" if math.isnan(halves) or not self.whole else ""
        if abs(own.mean - self.other.mean) <= (0.0 if math.isnan(halves) else halves):
            return "tie" + doubt
        return ("ahead" if (own.mean < self.other.mean) == self.score.lower_is_better else "behind") + doubt

    @property
    def margin(self) -> str:
        """How far ours are ahead: the share of the error that they save, or the difference of scores."""
        difference = self.ours.mean - self.other.mean
        if self.score.lower_is_better:
            return f"{100 * difference / self.other.mean:+.0f}%" if self.other.mean else ""
        return number(difference, self.score.digits, sign=True)


def lines(comparison: Comparison, scores: Sequence[str] = ()) -> list[Line]:
    """Return a line for each setting and each score, by default those that the claims of an experiment are about."""
    experiment, table = comparison.experiment, comparison.table
    named = {method for claim in experiment.claims for method in (*claim.ahead, *claim.behind)}
    deciding = set(scores) or {claim.score for claim in experiment.claims} or {experiment.scores[0].name}
    found = []
    for score in (score for score in experiment.scores if score.name in deciding):
        for setting, group in table[(table["score"] == score.name) & table["group"].notna()].groupby(
            "setting", sort=False
        ):
            whole = bool((group["seeds"] > 0).all())
            decided = bool((group["seeds"] > 0)[group["method"].isin(named)].all())
            group = group[(group["seeds"] > 0) & ~group["dead"] & ~group["method"].str.startswith(REFERENCES)]
            # A method with few seeds has no fair chance to lose.
            group = group[group["seeds"] >= group["seeds"].max() / 2]
            ranked = sorted(group.itertuples(), key=lambda line: line.mean, reverse=not score.lower_is_better)
            ours = _by_validation([line for line in ranked if line.method.startswith(OURS)], comparison)
            others = [line for line in ranked if not line.method.startswith(OURS)]
            nbd = [line for line in ours if line.method == "nbd"]
            if ours and others:
                lead = (nbd or [None])[0], ours[0], others[0]
                found.append(Line(experiment, comparison.scale, setting, score, *lead, whole, decided))
    return found


def _by_validation(ranked: list[Any], comparison: Comparison) -> list[Any]:
    """Return lines with the best on held-out training data first, then those without such a score as they are."""
    lower = comparison.experiment.scores[0].lower_is_better
    found: dict[str, list[float]] = {line.group: [] for line in ranked}
    for row in comparison.rows:
        if row.cell.group in found:
            found[row.cell.group].append(validation_score(row))
    means = {group: sum(values) / len(values) for group, values in found.items()}
    known = [line for line in ranked if not math.isnan(means[line.group])]
    known.sort(key=lambda line: means[line.group], reverse=not lower)
    return known + [line for line in ranked if math.isnan(means[line.group])]


def validation_score(row: Row) -> float:
    """Return the score of a row on held-out training data, at its rate, or the mean of several; NaN if there is none.

    Examples
    --------
    >>> from askew_paper.experiment import Cell
    >>> chosen = {"learning_rate": 0.003, "validation": {"0.001": 2.0, "0.003": 1.5}}
    >>> validation_score(Row(Cell("sums", "small", "nbd", 0, "quick"), {"mse": 1.0}, 1.0, "", chosen=chosen))
    1.5
    """
    found = row.chosen.get("validation")
    if isinstance(found, Mapping) and "learning_rate" in row.chosen:
        found = found.get(str(row.chosen["learning_rate"]))
    elif isinstance(found, Mapping) and found:
        found = sum(found.values()) / len(found)
    return found if isinstance(found, float) else math.nan


def at_largest_scale(experiment: Experiment, rows: Sequence[Row], scores: Sequence[str] = ()) -> list[Line]:
    """Return a line for each setting and score, at the largest scale at which all methods of the claims have rows.

    If there is none, at the largest at which ours and others have rows.
    """
    found: dict[tuple[str, str], Line] = {}
    for scale in (scale for scale in reversed(SCALES) if scale in experiment.seeds):
        for line in lines(compare(experiment, rows, scale), scores):
            place = line.setting, line.score.name
            if place not in found or (line.decided and not found[place].decided):
                found[place] = line
    return list(found.values())


def scorecard(rows: Sequence[Row], experiments: Iterable[Experiment]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the verdicts of each experiment, counted, and those of each setting that :func:`anchors` does not have.

    Each setting counts at one scale; see :func:`at_largest_scale`.
    """
    short, long = [], []
    for experiment in experiments:
        some = [] if experiment.name in LEFT_OUT else at_largest_scale(experiment, rows)
        if not some:
            continue
        scales = [scale for scale in SCALES if scale in {line.scale for line in some}]
        judged = [
            (claim, setting, verdict)
            for scale in scales
            for claim, setting, verdict, _ in judge(compare(experiment, rows, scale)).itertuples(index=False)
            # The option of a claim stands behind its setting, and one setting may begin as another does.
            if scale == max((line for line in some if setting.startswith(line.setting)), key=_length).scale
        ]
        ours = {claim.text for claim in experiment.claims if claim.ours}
        own = [claim in ours or setting in experiment.added for claim, setting, _ in judged]
        verdicts = [verdict for _, _, verdict in judged]
        short.append(
            {
                "Task": experiment.name,
                "The paper's claims": _confirmed(v for v, mine in zip(verdicts, own, strict=True) if not mine),
                "Our claims": _confirmed(v for v, mine in zip(verdicts, own, strict=True) if mine),
                "NBD": _counted(line.verdict(line.nbd) for line in some if line.nbd is not None),
                "Best of ours": _counted(line.verdict(line.ours) for line in some),
                "Scale": ", ".join(scales),
            }
        )
        # Of many lines, those of the first score; the page of the experiment has all.
        brief = some if len(some) <= MOST_LINES else [line for line in some if line.score == some[0].score]
        long += [_described(line) for line in brief if (experiment.name, line.score.name) not in ANCHORS]
    return pd.DataFrame(short), pd.DataFrame(long)


def anchors(rows: Sequence[Row], experiments: Iterable[Experiment]) -> pd.DataFrame:
    """Return our figures next to the best published ones, for scores that others measured on the same data."""
    found = []
    known = {experiment.name: experiment for experiment in experiments}
    for (name, score), elsewhere in ANCHORS.items():
        for line in at_largest_scale(known[name], rows, (score,)) if name in known else ():
            papers = [p for p in line.experiment.published if (p.setting, p.score) == (line.setting, score)]
            best = max(papers, key=lambda paper: paper.mean, default=None)
            own = _described(line)
            task = {"Task": f"{name}, {line.setting}: {line.score.label}"}
            published = elsewhere if best is None else f"{number(best.mean, line.score.digits)} {best.label}"
            found.append(task | {"Published": published} | {column: own[column] for column in COLUMNS})
    return pd.DataFrame(found)


def _length(line: Line) -> int:
    return len(line.setting)


def _described(line: Line) -> dict[str, str]:
    def figure(own: Any) -> str:
        return f"{own.method} {number(own.mean, line.score.digits, own.half)}".replace(" ± ", "±")

    verdict = line.verdict(line.ours)
    several = len({claim.score for claim in line.experiment.claims}) > 1
    return {
        "Task": f"{line.experiment.name}, {line.setting}" + (f": {line.score.label}" if several else ""),
        "Verdict": f"{GLYPHS[verdict.rstrip('?')]} {verdict}",
        "NBD": "" if line.nbd is None else figure(line.nbd).removeprefix("nbd "),
        "Best of ours": figure(line.ours),
        "Best other": figure(line.other),
        "By": line.margin,
    }


def _confirmed(verdicts: Iterable[str]) -> str:
    """Return how many claims are confirmed: ``3 of 8, 2 clearly``."""
    found = list(verdicts)
    confirmed = [verdict for verdict in found if verdict.startswith("confirmed")]
    clearly = sum(verdict.startswith("confirmed, clearly") for verdict in confirmed)
    return f"{len(confirmed)} of {len(found)}" + f", {clearly} clearly" * bool(confirmed) if found else ""


def _counted(verdicts: Iterable[str]) -> str:
    """Return verdicts as text: ``▲ 3 ahead, ● 1 tie``."""
    counts = Counter(verdicts)
    kinds = ((verdict + doubt, glyph) for verdict, glyph in GLYPHS.items() for doubt in ("", "?"))
    return ", ".join(f"{glyph} {counts[verdict]} {verdict}" for verdict, glyph in kinds if counts[verdict])
