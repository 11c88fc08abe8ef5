"""The report of a folder of results: a scorecard, a page for each experiment, and all of it as one HTML page."""

from __future__ import annotations

import base64
import html
import itertools
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from markdown_it import MarkdownIt

from askew import io
from askew_paper.curves import LARGEST, curves, draw
from askew_paper.experiment import SCALES, Experiment, Score
from askew_paper.rows import Row, read
from askew_paper.scorecard import LEGEND as SCORECARD_LEGEND
from askew_paper.scorecard import REFERENCES, anchors, scorecard
from askew_paper.summary import Comparison, compare, judge, listed, number

TITLE = "Results"
# Grey in HTML: a figure that is missing, and one of so few seeds that it does not compete.
MISSING, FEW_SEEDS = "missing", "seeds:"
# Where the links to the sections go in HTML: behind the scorecard.
NAVIGATION = "<!-- sections -->"
SYMBOLS = {"better": "▲", "within": "●", "worse": "▼"}
LEGEND = (
    "▲ better than the paper, ● within the spread, ▼ worse. Within the spread: the difference is no larger than the "
    "paper's spread (a standard deviation over runs), half of our interval or what rounding hides, whichever is "
    "largest. Without a mark, the paper had other data or measured something else, or there is one run of ours and no "
    "spread of the paper's. A figure without ± has one seed."
)
SHORT_LEGEND = "(The paper's value): ▲ ours is better, ● within the spread, ▼ worse."
MEANINGS = {
    "toy": "Toy scale: only shows that it runs. Its numbers mean nothing.",
    "quick": "Quick scale: reduced epochs, rows or repetitions. Not the paper's setting; see the paper scale for that.",
    "medium": "Medium scale: hours on two cores, long enough to converge; fewer repetitions than the paper's.",
    "paper": "Paper scale: the paper's sizes and epochs, except where settings, notes or tables (seeds) say otherwise.",
}
# The first word, or a symbol, of a field and how it looks in HTML.
LOOKS = {symbol: mark for mark, symbol in SYMBOLS.items()}
LOOKS |= {MISSING: MISSING, FEW_SEEDS: MISSING, "confirmed": "better", "not": "worse"}
STYLE = Path(__file__).with_name("report.css").read_text("utf-8").strip()


@dataclass(frozen=True, eq=False)
class Table:
    """A table of text with a title and a note; everything is escaped when it is written."""

    title: str
    note: str
    frame: pd.DataFrame


@dataclass(frozen=True)
class Picture:
    """A picture of curves; without ``data`` it could not be drawn, and ``title`` says why."""

    file: str
    title: str
    data: bytes | None


@dataclass(frozen=True, eq=False)
class Section:
    """One experiment at one scale."""

    experiment: str
    name: str
    heading: str
    notes: Sequence[str]
    settings: Sequence[str]
    overviews: Sequence[Table]  # what a reader sees at once
    more: Sequence[Table]
    details: Sequence[Table]
    pictures: Sequence[Picture]

    @property
    def csv(self) -> str:
        """The file that has every figure."""
        return f"{self.name}.csv"


# ---------------------------------------------------------------------- tables


def overview(comparison: Comparison, score: Score) -> Table:
    """Return one score of all methods (rows) in all settings (columns), with the paper's value in parentheses."""
    lines = comparison.table[comparison.table["score"] == score.name]
    # References may have more seeds than what is trained.
    trained = lines[~lines["method"].str.startswith(REFERENCES)]
    fields, most = {}, trained.groupby("setting")["seeds"].max()
    for line in lines.itertuples():
        ours = number(line.mean, score.digits, line.half).replace(" ± ", "±") if line.seeds else MISSING
        few = 0 < line.seeds < most.get(line.setting, 0) / 2
        ours += " dead" if line.dead else f" {FEW_SEEDS} {line.seeds}" if few else ""
        symbol = f" {SYMBOLS[line.mark]}" if line.mark else ""
        paper = "" if math.isnan(line.published) else f" ({number(line.published, line.decimals)})"
        fields[line.method, line.setting] = ours + symbol + paper
    # A method that has neither rows nor values of the paper would be a line of holes, a setting without rows a column
    # of them; the note counts these.
    filled = lines.assign(filled=(lines["seeds"] > 0) | lines["published"].notna()).groupby("method")["filled"]
    shown = lines[filled.transform("any")] if lines["seeds"].any() else lines
    known = shown if not lines["seeds"].any() else shown[shown.groupby("setting")["seeds"].transform("max") > 0]
    methods, settings = list(dict.fromkeys(shown["method"])), list(dict.fromkeys(known["setting"]))
    columns = {setting: [fields.get((method, setting), "") for method in methods] for setting in settings}
    title = f"{score.label} ({'lower' if score.lower_is_better else 'higher'} is better)"
    return Table(title, _note(comparison, lines), pd.DataFrame({"Method": methods, **columns}))


def claims_of(judged: pd.DataFrame, scale: str) -> Table:
    """Return a line for each claim with the settings in which it was confirmed and those in which it was not."""
    fields: dict[str, dict[str, str]] = {}
    for claim, setting, verdict, _ in judged.itertuples(index=False):
        doubt = "¹" if "(one seed)" in verdict else "≈" if "within the spread" in verdict else ""
        both = fields.setdefault(claim, {"Claim": claim, "Confirmed": "", "Not confirmed": ""})
        column = "Confirmed" if verdict.startswith("confirmed") else "Not confirmed"
        both[column] += (", " if both[column] else "") + setting + doubt
    note = f"Scale: {scale}. Clearly, or ≈ within the spread, or ¹ with one seed."
    return Table("Claims", note, pd.DataFrame(fields.values()))


def details(comparison: Comparison, setting: str) -> Table:
    """Return all scores of all methods in one setting: published, ours, difference, mark, seeds and time."""
    lines = comparison.table[comparison.table["setting"] == setting]
    scores = {score.name: score for score in comparison.experiment.scores}
    fields = []
    for line in lines.itertuples():
        digits = scores[line.score].digits
        field = {"Method": line.method, "Score": scores[line.score].label}
        is_published, word = not math.isnan(line.published), "within the spread" if line.mark == "within" else line.mark
        field["Published"] = number(line.published, line.decimals, line.spread) if is_published else ""
        field["Ours (95 % interval)"] = number(line.mean, digits, line.half) if line.seeds else MISSING
        field["Difference"] = "" if math.isnan(line.difference) else number(line.difference, digits, sign=True)
        field["Mark"] = f"{SYMBOLS[line.mark]} {word}" if line.mark else ""
        field["Seeds"] = str(line.seeds)
        field["Seconds a run"] = "" if math.isnan(line.seconds) else f"{line.seconds:.3g}"
        fields.append(field)
    frame = pd.DataFrame(fields)
    if lines["published"].isna().all():
        frame = frame.drop(columns=["Published", "Difference", "Mark"])
    return Table(setting, _note(comparison, lines), frame)


def _note(comparison: Comparison, lines: pd.DataFrame) -> str:
    """Return the note of a table: scale, number of seeds, missing values."""
    seeds = sorted(set(lines["seeds"]) - {0})
    shown = "none yet" if not seeds else " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    planned, missing = comparison.experiment.seeds[comparison.scale], int((lines["seeds"] == 0).sum())
    note = f"Scale: {comparison.scale}. Seeds: {shown}" + (f" of {planned}." if seeds and seeds[0] < planned else ".")
    return f"{note} Missing: {missing} of {len(lines)}." if missing else note


def option_notes(comparison: Comparison) -> list[str]:
    """Return the options that all methods have in common, then those that some have, once for all of these."""
    known = {place: set(cell.options) for place, cell in comparison.cells.items()}
    if not any(known.values()):
        return []
    common = set.intersection(*known.values())
    notes = [f"Settings of all: {listed(common)}."] if common else []
    settings = {setting for setting, _ in known}
    variants: dict[str, dict[str, set[str]]] = {}
    for (setting, method), options in known.items():
        variants.setdefault(method, {}).setdefault(listed(options - common), set()).add(setting)
    methods: dict[str, dict[str, list[str]]] = {}
    for method, places in variants.items():
        for options_text, where in places.items():
            # A method with different options in different settings says where.
            place = "" if where == settings or len(places) == 1 else f" ({', '.join(sorted(where))})"
            methods.setdefault(options_text, {}).setdefault(place, []).append(method)

    def shown(names: list[str]) -> str:
        rest = [method for method in variants if method not in names]
        return f"all but {', '.join(rest)}" if 0 < len(rest) < len(names) else ", ".join(names)

    for text, groups in methods.items():
        if text:
            notes.append(f"Settings of {'; '.join(shown(names) + place for place, names in groups.items())}: {text}.")
    return notes


# ---------------------------------------------------------------------- sections


def sections(rows: Sequence[Row], experiments: Iterable[Experiment], everything: bool = True) -> list[Section]:
    """Return every experiment at each scale that has rows; one without any at its largest scale, or not at all."""
    found = []
    for experiment in experiments:
        with_rows = {row.cell.scale for row in rows if row.cell.experiment == experiment.name}
        known = [scale for scale in SCALES if scale in experiment.seeds]
        scales = [scale for scale in reversed(known) if scale in with_rows] or (known[-1:] if everything else [])
        found += [_section(compare(experiment, rows, scale)) for scale in scales]
    return found


def _section(comparison: Comparison) -> Section:
    experiment, scale = comparison.experiment, comparison.scale
    notes = [MEANINGS[scale], f"Makes: {', '.join(experiment.makes)}.", *experiment.notes, *_origin(comparison)]
    judged = judge(comparison)
    clearly = "Clearly: the difference is larger than the halves of both intervals together."
    claims = [] if judged.empty else [Table("Claims in each setting", f"Scale: {scale}. {clearly}", judged)]
    first = next((claim.score for claim in experiment.claims), experiment.scores[0].name)
    tables = {score.name: overview(comparison, score) for score in experiment.scores}
    return Section(
        experiment.name,
        f"{experiment.name}-{scale}",
        f"{experiment.title}, {scale} scale",
        notes,
        option_notes(comparison),
        [*([] if judged.empty else [claims_of(judged, scale)]), tables.pop(first)],
        [*claims, *tables.values()],
        [details(comparison, setting) for setting in dict.fromkeys(comparison.table["setting"])],
        _pictures(comparison),
    )


def _origin(comparison: Comparison) -> list[str]:
    """Return where the rows come from, or how to make them."""
    rows = comparison.rows
    if rows:
        versions = sorted({f"{name} {version}" for row in rows for name, version in row.versions.items()})
        commits = sorted({(row.commit or "unknown")[:10] + "+" * (row.commit or "").endswith("+") for row in rows})
        machines = sorted({str(row.machine.get("accelerator", f"{row.machine.get('cores')} cores")) for row in rows})
        hours = sum(row.seconds for row in rows) / 3600
        notes = [
            f"{len(rows)} rows, {hours:.2g} hours together, on {', '.join(machines)}. Commit: {', '.join(commits)}. "
            f"Versions: {', '.join(versions)}."
        ]
    else:
        command = f"askew-paper run {comparison.experiment.name} --scale {comparison.scale}"
        notes = [f"No results yet. Make them with: {command}"]
    if comparison.stale:
        notes.append(f"Left out: {comparison.stale} rows with other settings than the experiment has now.")
    return notes


def _pictures(comparison: Comparison) -> list[Picture]:
    found = curves(comparison.rows)
    pictures = []
    for place, name in enumerate(dict.fromkeys(curve.name for curve in found)):
        same = [curve for curve in found if curve.name == name]
        seeds = sorted({curve.seeds for curve in same})
        span = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        many = "" if seeds[-1] == 1 else "s, 95 % band"
        what = comparison.experiment.title.removesuffix(f": {name}")
        title = f"{what}: {name}, {comparison.scale} scale, {span} seed{many}"
        file = f"{comparison.experiment.name}-{comparison.scale}-{place}.png"
        drawable = [curve for curve in same if curve.drawable]
        if drawable:
            try:
                pictures.append(Picture(file, title, draw(drawable, title)))
            except ImportError as error:
                pictures.append(Picture(file, f"{title} was not drawn: {error}", None))
        if len(drawable) < len(same):
            lost = dict.fromkeys(f"{curve.method} in {curve.setting}" for curve in same if not curve.drawable)
            why = f"with values or intervals beyond {LARGEST:g}, which no picture can show"
            pictures.append(Picture(file, f"{title}: not drawn are {', '.join(lost)}, {why}.", None))
    return pictures


# ---------------------------------------------------------------------- as Markdown


def text(some: Sequence[Section], beginning: Sequence[str] = (f"# {TITLE}",), as_files: bool = False) -> str:
    """Return sections as Markdown behind a beginning; pictures and, if ``as_files``, figures are files next to it.

    What is not at once of interest is folded: other scores, notes, and smaller scales of the same experiment.
    """
    parts, seen = [*beginning, SHORT_LEGEND], set[str]()
    for section in some:
        inside = [to_markdown(table, level=3) for table in section.overviews]
        for picture in section.pictures:
            title = escape_markdown(picture.title)
            inside.append(f"![{title}]({picture.file})" if picture.data is not None else title)
        inside.append(_folded("Notes and settings", _bullets([LEGEND, *section.notes, *section.settings])))
        if section.more:
            inside.append(_folded("Other tables", "\n\n".join(to_markdown(table, level=4) for table in section.more)))
        if as_files:
            inside.append(f"Every figure, with intervals and seconds: [{section.csv}]({section.csv})")
        else:
            details = (to_markdown(table, level=4) for table in section.details)
            inside.append(_folded("Every figure", "\n\n".join(details)))
        heading = f"## {escape_markdown(section.heading)}"
        if section.experiment in seen:
            inside = [heading, _folded(f"At {section.name.rpartition('-')[2]} scale", "\n\n".join(inside))]
        else:
            inside.insert(0, heading)
        parts, seen = [*parts, *inside], {*seen, section.experiment}
    return "\n\n".join(parts) + "\n"


def front(rows: Sequence[Row], experiments: Iterable[Experiment], remarks: Sequence[str] = ()) -> list[str]:
    """Return the beginning of the report: the scorecard, and each setting behind it."""
    short, long = scorecard(rows, experiments)
    parts = [f"# {TITLE}", *map(escape_markdown, remarks)]
    if len(short):
        parts += [to_markdown(Table("Scorecard", SCORECARD_LEGEND, short), level=2)]
        parts += [to_markdown(Table("Each task", "", long), level=2)]
    published = anchors(rows, experiments)
    if len(published):
        note = (
            "The best published figure of vectors on the same data and split, if there is one (on HyperLex a prompted "
            "language model has 0.828 and 0.789), for roads of another network; verdicts are about the rest."
        )
        parts += [to_markdown(Table("Beyond the paper: published figures", note, published), level=2)]
    return parts


def to_markdown(table: Table, level: int) -> str:
    r"""Return a table with its title and note as Markdown; ``level`` is that of the heading.

    Examples
    --------
    >>> print(to_markdown(Table("A | B", "Scale: quick.", pd.DataFrame({"Method": ["nbd"], "x": ["<1"]})), level=4))
    #### A \| B
    <BLANKLINE>
    Scale: quick.
    <BLANKLINE>
    | Method | x |
    | --- | --- |
    | nbd | &lt;1 |
    """
    lines = [list(map(escape_markdown, line)) for line in (table.frame.columns, *table.frame.values.tolist())]
    lines.insert(1, ["---"] * len(table.frame.columns))
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = (f"{'#' * level} {escape_markdown(table.title)}", escape_markdown(table.note), rows)
    return "\n\n".join(filter(None, parts))


def escape_markdown(plain: str) -> str:
    """Return text that Markdown prints as it is."""
    plain = html.escape(" ".join(plain.split()), quote=False)
    plain = re.sub(r"([\\`*\[\]|~$])", r"\\\1", plain)
    # An underscore between letters is harmless; at the edge of a word it would be emphasis.
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", plain)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape_markdown(line)}" for line in lines)


def _folded(title: str, content: str) -> str:
    """Return content that unfolds; the attribute is for mkdocs, other readers ignore it."""
    return f'<details markdown="1">\n<summary>{escape_markdown(title)}</summary>\n\n{content}\n\n</details>'


def _csv(section: Section) -> str:
    """Return every figure of a section as one table."""
    tables = [table.frame.assign(Setting=table.title) for table in section.details]
    return str(pd.concat(tables).to_csv(index=False)) if tables else ""


# ---------------------------------------------------------------------- as one page


def page(some: Sequence[Section], beginning: Sequence[str] = (f"# {TITLE}",)) -> str:
    """Return the report as one HTML page that loads and runs nothing: pictures and style are inside."""
    # All text is escaped in the Markdown; the only HTML in it is what folds tables.
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(text(some, [*beginning, NAVIGATION]))
    body = re.sub(r"<td>(?=(missing|confirmed|not)\b|[^<]*(seeds:)|[^<▲●▼]*([▲●▼])[^<▲●▼]*<)", _look, body)
    before, *after = body.rsplit("<h2>", len(some))  # each section has one such heading
    body = before + "".join(f'<h2 id="{section.name}">{rest}' for section, rest in zip(some, after, strict=True))
    for section in some:
        for picture in section.pictures:
            if picture.data is not None:
                data = base64.b64encode(picture.data).decode()
                body = body.replace(f'src="{picture.file}"', f'src="data:image/png;base64,{data}"', 1)
    links = "".join(f'<li><a href="#{section.name}">{html.escape(section.heading)}</a></li>' for section in some)
    body = body.replace(NAVIGATION, f"<nav><ul>{links}</ul></nav>", 1)
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def _look(field: re.Match[str]) -> str:
    return f'<td class="{LOOKS[field[1] or field[2] or field[3]]}">'


# ---------------------------------------------------------------------- files


def write_report(
    results: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    experiments: Iterable[Experiment],
    everything: bool = False,
) -> list[Path]:
    """Write the scorecard ``results.md``, pages in ``results/``, and ``results.html``, which has all.

    The same results give the same files, byte by byte.

    Parameters
    ----------
    results
        A folder that :func:`~askew_paper.runner.reproduce` wrote.
    folder
        Where the files go; created if needed. A name that ends in ``.html`` is that of the one page to write instead.
    experiments
        What to report on.
    everything
        Whether experiments without rows have a page as well.

    Returns
    -------
    list of Path
        The files, the scorecard first.

    Examples
    --------
    >>> import tempfile
    >>> from askew_paper.experiment import MAE, Outcome, grid
    >>> from askew_paper.runner import reproduce
    >>> def cells(scale, seeds):
    ...     return grid("sums", scale, seeds, settings=["small"], methods=["exact"], options={})
    >>> sums = Experiment("sums", "Sums", ("table 1",), (MAE,), {"quick": 2}, {"quick": 1.0}, cells,
    ...                   run=lambda cell: Outcome({"mae": cell.seed / 2}))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = reproduce([sums], folder)
    ...     [file.name for file in write_report(folder, folder, [sums])]
    ['results.md', 'results.html', 'sums.md', 'sums-quick.csv']
    """
    experiments, folder, rows = list(experiments), Path(folder), read(results)
    unknown = sorted({row.cell.experiment for row in rows} - {experiment.name for experiment in experiments})
    remarks = [f"Left out: rows of {name!r}, as there is no experiment of this name." for name in unknown]
    some, beginning = sections(rows, experiments, everything), front(rows, experiments, remarks)
    if folder.suffix == ".html":
        folder.parent.mkdir(parents=True, exist_ok=True)
        io.write_text(folder, page(some, beginning))
        return [folder]
    (folder / "results").mkdir(parents=True, exist_ok=True)
    pages = {name: list(group) for name, group in itertools.groupby(some, key=lambda section: section.experiment)}
    titles = {experiment.name: escape_markdown(experiment.title) for experiment in experiments}
    start = "\n\n".join(beginning)
    # The names in the scorecard are links; pages that are not in it follow.
    for name in pages:
        start = start.replace(f"\n| {name} |", f"\n| [{name}](results/{name}.md) |", 1)
    links = "\n".join(f"- [{titles[name]}](results/{name}.md)" for name in pages if f"[{name}](" not in start)
    texts = {"results.md": f"{start}\n\n{links}".rstrip() + "\n", "results.html": page(some, beginning)}
    texts |= {f"results/{name}.md": text(group, [f"# {titles[name]}"], as_files=True) for name, group in pages.items()}
    texts |= {f"results/{section.csv}": _csv(section) for section in some}
    contents = {name: io.printable(content).encode() for name, content in texts.items()}
    pictures = (picture for section in some for picture in section.pictures)
    contents |= {f"results/{picture.file}": picture.data for picture in pictures if picture.data is not None}
    for name, data in contents.items():
        with io.atomic_write(folder / name) as temporary:
            temporary.write_bytes(data)
    return [folder / name for name in contents]
