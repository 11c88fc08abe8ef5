"""Tables of results: the paper's figures, ours beside them, the difference, and which is better."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from askew.cli.report.markup import Field, Table
from askew_paper.experiment import Cell, Claim, Experiment, Score
from askew_paper.published import TABLES, Published
from askew_paper.rows import Row
from askew_paper.summary import Summary, summary

__all__ = ["LEGEND", "Comparison", "Entry", "claims", "compare", "details", "option_notes", "overview"]

MISSING = "missing"
SYMBOLS = {"better": "▲", "within": "●", "worse": "▼"}
LEGEND = (
    "▲ better than the paper, ● within the spread, ▼ worse. Within the spread: the difference is no larger than the "
    "paper's spread (a standard deviation over runs), half of our interval or what rounding hides, whichever is "
    "largest. Without a mark, the paper had other data or measured something else, or there is one run of ours and no "
    "spread of the paper's. A figure without ± has one seed."
)


# ---------------------------------------------------------------------- what is compared


@dataclass(frozen=True)
class Entry:
    """One figure of a table: what was published and what came out here.

    Parameters
    ----------
    setting, method
        Column and row; a method that is there with several options has them in its name.
    score
        What was measured.
    published
        The paper's figure, if it has one.
    ours
        Our mean over the seeds, if there is one.
    seconds
        The median time of our runs.
    comparable
        Whether the paper measured the same, so that one can be better than the other.

    Examples
    --------
    >>> from askew_paper.experiment import MAE
    >>> cell = Cell("regression", "kl/none", "nbd", 0, "quick")
    >>> paper = Published("table", "kl/none", "nbd", "mae", 0.19, None, "NBD")
    >>> entry = Entry("kl/none", "nbd", MAE, paper, Summary(cell, "mae", 0.12, 0.01, 3))
    >>> entry.mark, round(entry.difference, 3)
    ('better', -0.07)
    """

    setting: str
    method: str
    score: Score
    published: Published | None
    ours: Summary | None
    seconds: float | None = None
    comparable: bool = True

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None where that means nothing."""
        if self.published is None or self.ours is None or not self.comparable:
            return None
        return self.ours.mean - self.published.mean

    @property
    def mark(self) -> str | None:
        """Whether ours is ``"better"``, ``"within"`` the spread or ``"worse"``; None without a comparison."""
        difference = self.difference
        if difference is None or self.published is None or self.ours is None:
            return None
        if self.published.spread is None and self.ours.half is None:
            return None  # nothing tells how far apart two runs may be
        # What is printed is rounded; up to half of the last digit is no difference.
        rounding = 0.5 * 10.0 ** -_printed(self.published, self.score)
        spread = max(self.published.spread or 0.0, self.ours.half or 0.0, rounding)
        if abs(difference) <= spread:
            return "within"
        return "better" if (difference < 0) == self.score.lower_is_better else "worse"


def _printed(published: Published, score: Score) -> int:
    """Return how many decimals a published mean has."""
    return TABLES[published.table].digits if published.table in TABLES else score.digits


@dataclass(frozen=True)
class Comparison:
    """All figures of an experiment at one scale.

    Parameters
    ----------
    experiment, scale
        Whose figures they are.
    entries
        One for each setting, method and score.
    rows
        Where ours come from.
    options
        Of each method, by setting and method.
    stale
        Number of rows that were left out, as the experiment has other options now.
    cells
        Those that there should be, each with its first seed.
    """

    experiment: Experiment
    scale: str
    entries: tuple[Entry, ...]
    rows: tuple[Row, ...]
    options: Mapping[tuple[str, str], Mapping[str, object]]
    stale: int
    cells: tuple[Cell, ...] = ()

    @property
    def settings(self) -> list[str]:
        """The settings, in order."""
        return list(dict.fromkeys(entry.setting for entry in self.entries))


def compare(experiment: Experiment, rows: Iterable[Row], scale: str) -> Comparison:
    """Put the paper's figures and the rows of one scale side by side.

    Parameters
    ----------
    experiment
        Says which figures there should be; those without rows are missing.
    rows
        Of any experiment and scale; others are left out.
    scale
        Whose rows are taken.
    """
    cells = {cell.group: cell for cell in experiment.checked_cells(scale, 1)}
    of_scale = [row for row in rows if (row.cell.experiment, row.cell.scale) == (experiment.name, scale)]
    current = [row for row in of_scale if row.cell.group in cells]
    ours = {(found.cell.group, found.score): found for found in summary(current)}
    seconds: dict[str, list[float]] = {}
    for row in current:
        seconds.setdefault(row.cell.group, []).append(row.seconds)
    names = _names(list(cells.values()))
    papers = _papers(experiment)
    entries, options = [], {}
    for group, cell in cells.items():
        method = names[group]
        options[cell.setting, method] = dict(cell.options)
        for score in experiment.scores:
            paper = papers.get((cell.setting, experiment.against.get(cell.method, cell.method), score.name))
            took = statistics.median(seconds[group]) if group in seconds else None
            comparable = cell.setting not in experiment.incomparable and scale != "toy"
            entries.append(Entry(cell.setting, method, score, paper, ours.get((group, score.name)), took, comparable))
    # What the paper has and we do not even try is missing too.
    tried = {(cell.setting, cell.method) for cell in cells.values()}
    scores = {score.name: score for score in experiment.scores}
    for (setting, method, name), paper in papers.items():
        if (setting, method) not in tried:
            entries.append(Entry(setting, method, scores[name], paper, None))
    stale = len(of_scale) - len(current)
    return Comparison(experiment, scale, tuple(entries), tuple(current), options, stale, tuple(cells.values()))


def _papers(experiment: Experiment) -> dict[tuple[str, str, str], Published]:
    """Return the paper's figures by setting, method and score; of two, the one with a spread."""
    found: dict[tuple[str, str, str], Published] = {}
    for entry in experiment.published:
        place = (entry.setting, entry.method, entry.score)
        if place not in found or found[place].spread is None:
            found[place] = entry
    return found


def _names(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the method of each group, with the options that tell it from others of the same method."""
    together: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        together.setdefault((cell.setting, cell.method), []).append(cell)
    names = {}
    for (_, method), some in together.items():
        common = set(some[0].options).intersection(*(cell.options for cell in some[1:]))
        for cell in some:
            own = [f"{name} {_shown(value)}" for name, value in cell.options if (name, value) not in common]
            names[cell.group] = f"{method} ({', '.join(own)})" if own else method
    return names


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(map(_shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------- claims


def claims(comparison: Comparison) -> Table | None:
    """Return the claims of an experiment with what the results say of them; None without claims or results.

    Of a method that is there with several options, the best counts.
    """
    lines = [
        line
        for claim in comparison.experiment.claims
        for setting in claim.settings or comparison.settings
        for value in _values(comparison, claim)
        if setting in comparison.settings and (line := _judged(comparison, claim, setting, value)) is not None
    ]
    if not lines:
        return None
    notes = (
        f"Scale: {comparison.scale}. Clearly: the difference is larger than the halves of both intervals together.",
    )
    return Table("Claims", notes, ("Claim", "Setting", "At this scale", "Figures"), tuple(lines))


def _values(comparison: Comparison, claim: Claim) -> list[object]:
    """Return the values of the option by which a claim is judged; one of no meaning where there is none."""
    return list(dict.fromkeys(cell[claim.by] if claim.by else None for cell in comparison.cells))


def _judged(comparison: Comparison, claim: Claim, setting: str, value: object) -> tuple[Field, ...] | None:
    """Return the line of a claim in one setting and with one value of its option; None where figures are missing."""
    score = next(score for score in comparison.experiment.scores if score.name == claim.score)
    found: dict[str, Summary] = {}
    for entry in comparison.entries:
        if entry.setting == setting and entry.score == score and entry.ours is not None:
            if claim.by and entry.ours.cell[claim.by] != value:
                continue
            method = entry.ours.cell.method
            if method not in found or (entry.ours.mean < found[method].mean) == score.lower_is_better:
                found[method] = entry.ours
    sides = [[found[method] for method in side if method in found] for side in (claim.ahead, claim.behind)]
    if not all(sides):
        return None
    tried = {cell.method for cell in comparison.cells if cell.setting == setting}
    unseen = [method for method in (*claim.ahead, *claim.behind) if method in tried and method not in found]
    ahead, behind = (sorted(side, key=lambda one: one.mean, reverse=not score.lower_is_better) for side in sides)
    first, other = (ahead[-1] if claim.each else ahead[0]), behind[0]
    holds = claim.holds(first.mean, other.mean, score.lower_is_better)
    text = "confirmed" if holds else "not confirmed"
    if first.half is None or other.half is None:
        text += " (one seed)"
    else:
        # The factor is on the side of the error that may be larger, or of the score that may be lower.
        shares = (1.0, claim.factor) if score.lower_is_better else (claim.factor, 1.0)
        gap = abs(shares[0] * first.mean - shares[1] * other.mean)
        clear = gap > shares[0] * first.half + shares[1] * other.half
        text += ", clearly" if clear else ", within the spread"
    if unseen:
        text += f"; not run yet: {'; '.join(unseen)}"
    figures = "; ".join(f"{one.cell.method} {_with_spread(one.mean, one.half, score.digits)}" for one in (first, other))
    where = f"{setting}, {claim.by} {_shown(value)}" if claim.by else setting
    return Field(claim.text), Field(where), Field(text, "better" if holds else "worse"), Field(figures)


# ---------------------------------------------------------------------- tables


def overview(comparison: Comparison, score: Score) -> Table:
    """Return one score of all methods (lines) in all settings (columns), with the paper's value in parentheses."""
    entries = [entry for entry in comparison.entries if entry.score == score]
    places = {(entry.setting, entry.method): entry for entry in entries}
    settings = list(dict.fromkeys(entry.setting for entry in entries))
    lines = []
    for method in dict.fromkeys(entry.method for entry in entries):
        found = (places.get((setting, method)) for setting in settings)
        lines.append((Field(method), *(Field("") if entry is None else _short(entry) for entry in found)))
    better = "lower" if score.lower_is_better else "higher"
    title = f"{score.label} ({better} is better)"
    return Table(title, _notes(comparison, entries), ("Method", *settings), tuple(lines))


def _short(entry: Entry) -> Field:
    digits = entry.score.digits
    there = entry.published
    paper = "" if there is None else f" ({_number(there.mean, _printed(there, entry.score))})"
    if entry.ours is None:
        return Field(MISSING + paper, MISSING)
    mark = "" if entry.mark is None else f" {SYMBOLS[entry.mark]}"
    return Field(_with_spread(entry.ours.mean, entry.ours.half, digits) + mark + paper, entry.mark)


def details(comparison: Comparison, setting: str) -> Table:
    """Return all scores of all methods in one setting: published, ours, difference, mark, seeds and time."""
    entries = [entry for entry in comparison.entries if entry.setting == setting]
    papers = any(entry.published is not None for entry in entries)
    names = ("Published", "Ours (95 % interval)", "Difference", "Mark") if papers else ("Ours (95 % interval)",)
    lines = []
    for entry in entries:
        digits, paper, ours = entry.score.digits, entry.published, entry.ours
        fields = [Field(entry.method), Field(entry.score.label)]
        if papers:
            there = "" if paper is None else _with_spread(paper.mean, paper.spread, _printed(paper, entry.score))
            fields.append(Field(there))
        if ours is None:
            fields.append(Field(MISSING, MISSING))
        else:
            fields.append(Field(_with_spread(ours.mean, ours.half, digits)))
        if papers:
            fields.append(Field("" if entry.difference is None else _number(entry.difference, digits, sign=True)))
            text = {None: "", "within": "● within the spread"}.get(
                entry.mark, f"{SYMBOLS.get(entry.mark or '')} {entry.mark}"
            )
            fields.append(Field(text, entry.mark))
        fields.append(Field("0" if ours is None else str(ours.seeds)))
        fields.append(Field("" if entry.seconds is None else f"{entry.seconds:.3g}"))
        lines.append(tuple(fields))
    header = ("Method", "Score", *names, "Seeds", "Seconds a run")
    return Table(setting, _notes(comparison, entries), header, tuple(lines))


def _notes(comparison: Comparison, entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return what every table says: scale and number of seeds."""
    seeds = sorted({entry.ours.seeds for entry in entries if entry.ours is not None})
    number = "none yet" if not seeds else str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    missing = sum(entry.ours is None for entry in entries)
    planned = comparison.experiment.seeds[comparison.scale]
    if seeds and seeds[0] < planned:
        number += f" of {planned}"
    note = f"Scale: {comparison.scale}. Seeds: {number}."
    return (f"{note} Missing: {missing} of {len(entries)}." if missing else note,)


def option_notes(comparison: Comparison) -> list[str]:
    """Return the options that all methods have in common, and then those that some have, once for all of these."""
    known = comparison.options
    if not any(known.values()):
        return []
    common = set.intersection(*(set(options.items()) for options in known.values()))
    notes = [f"Settings of all: {_listed(common)}."] if common else []
    settings = {setting for setting, _ in known}
    methods: dict[str, dict[str, set[str]]] = {}
    for (setting, method), options in known.items():
        methods.setdefault(method, {}).setdefault(_listed(set(options.items()) - common), set()).add(setting)
    together: dict[str, list[str]] = {}
    for method, variants in methods.items():
        for text, where in variants.items():
            # A method with different options in different settings says where.
            place = "" if where == settings or len(variants) == 1 else f" ({', '.join(sorted(where))})"
            together.setdefault(text, []).append(method + place)
    return [*notes, *(f"Settings of {'; '.join(names)}: {text}." for text, names in together.items() if text)]


def _listed(options: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in sorted(options, key=lambda option: option[0]))


def _number(value: float, digits: int, sign: bool = False) -> str:
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    # No minus before what is printed as zero.
    return text.lstrip("+-") if float(text) == 0 else text


def _with_spread(value: float, spread: float | None, digits: int) -> str:
    return _number(value, digits) + ("" if spread is None else f" ± {_number(spread, digits)}")
