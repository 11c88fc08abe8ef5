"""The scorecard: where our divergences are ahead of all others, where they tie, and where they are behind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from askew_paper.experiment import SCALES, Experiment, Score
from askew_paper.rows import Row
from askew_paper.summary import Comparison, compare, judge, number

# How the names of our methods begin, and methods that are no competitors: trivial ones, bounds, and networks that
# no index can search.
OURS = ("nbd", "drift", "two-sided")
REFERENCES = ("mean", "constant", "untrained", "best-symmetric", "bayes", "oracle", "unconstrained")
GLYPHS = {"ahead": "▲", "tie": "●", "behind": "▼"}
# Experiments that compare no accuracies of methods.
LEFT_OUT = ("timing", "ablation")
LEGEND = (
    "▲ ahead, ● tie, ▼ behind: a difference counts if the 95 % intervals over the seeds do not overlap. A question "
    "mark means one seed, so no interval, or methods that were not run yet. Both sides show their best method by the "
    "same test score. Trivial predictions, bounds, unconstrained networks and methods with less than half of the seeds "
    "do not compete; the page of each task has them."
)


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
            return f"{100 * difference / self.other.mean:+.0f} %" if self.other.mean else ""
        return number(difference, self.score.digits, sign=True)


def lines(comparison: Comparison) -> list[Line]:
    """Return a line for each setting and each score that the claims of an experiment are about."""
    experiment, table = comparison.experiment, comparison.table
    deciding = {claim.score for claim in experiment.claims} or {experiment.scores[0].name}
    found = []
    for score in (score for score in experiment.scores if score.name in deciding):
        for setting, group in table[(table["score"] == score.name) & table["group"].notna()].groupby(
            "setting", sort=False
        ):
            whole = bool((group["seeds"] > 0).all())
            group = group[group["seeds"] > 0]
            # A method with few seeds has no fair chance to lose.
            group = group[group["seeds"] >= group["seeds"].max() / 2]
            ranked = sorted(group.itertuples(), key=lambda line: line.mean, reverse=not score.lower_is_better)
            ours = [line for line in ranked if line.method.startswith(OURS)]
            others = [line for line in ranked if not line.method.startswith((*OURS, *REFERENCES))]
            nbd = [line for line in ours if line.method == "nbd"]
            if ours and others:
                lead = (nbd or [None])[0], ours[0], others[0]
                found.append(Line(experiment, comparison.scale, setting, score, *lead, whole))
    return found


def scorecard(rows: Sequence[Row], experiments: Iterable[Experiment]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the verdicts of each experiment at its largest scale, counted, and those of each setting."""
    short, long = [], []
    for experiment in experiments:
        scales = {row.cell.scale for row in rows if row.cell.experiment == experiment.name}
        scale = next((scale for scale in reversed(SCALES) if scale in scales and scale in experiment.seeds), None)
        if experiment.name in LEFT_OUT or scale is None:
            continue
        comparison = compare(experiment, rows, scale)
        some, judged = lines(comparison), judge(comparison)
        if not some:
            continue
        confirmed = judged["At this scale"].str.startswith("confirmed").sum()
        short.append(
            {
                "Task": experiment.name,
                "Claims confirmed": f"{confirmed} of {len(judged)}" if len(judged) else "",
                "NBD": _counted(line.verdict(line.nbd) for line in some if line.nbd is not None),
                "Best of ours": _counted(line.verdict(line.ours) for line in some),
                "Scale": scale,
            }
        )
        long += [_described(line) for line in some]
    return pd.DataFrame(short), pd.DataFrame(long)


def _described(line: Line) -> dict[str, str]:
    def figure(own: Any) -> str:
        return f"{own.method} {number(own.mean, line.score.digits, own.half)}"

    verdict = line.verdict(line.ours)
    return {
        "Task": f"{line.experiment.name}, {line.setting}",
        "Score": line.score.label,
        "Verdict": f"{GLYPHS[verdict.rstrip('?')]} {verdict}",
        "NBD": "" if line.nbd is None else number(line.nbd.mean, line.score.digits, line.nbd.half),
        "Best of ours": figure(line.ours),
        "Best other": figure(line.other),
        "By": line.margin,
    }


def _counted(verdicts: Iterable[str]) -> str:
    """Return verdicts as text: ``▲ 3 ahead, ● 1 tie``."""
    counts = Counter(verdicts)
    words = ((word + doubt, glyph) for word, glyph in GLYPHS.items() for doubt in ("", "?"))
    return ", ".join(f"{glyph} {counts[word]} {word}" for word, glyph in words if counts[word])
