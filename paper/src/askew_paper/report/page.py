"""The report: all tables and curves of a folder of results as Markdown and as one page that needs nothing else."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from askew import io
from askew.cli.report.markup import Table, markdown_text, to_html, to_markdown
from askew.cli.report.style import document
from askew_paper.experiment import SCALES, Experiment
from askew_paper.experiments import EXPERIMENTS
from askew_paper.report.curves import LARGEST, curves, draw
from askew_paper.report.tables import LEGEND, Comparison, claims, compare, details, option_notes, overview
from askew_paper.rows import Row
from askew_paper.summary import read

__all__ = ["Picture", "Section", "page", "sections", "text", "write_report"]

TITLE = "Results"
MEANINGS = {
    "toy": "Toy scale: only shows that it runs. No figure here means anything.",
    "quick": "Quick scale: reduced epochs, rows or repetitions. Not the paper's setting; see the paper scale for that.",
    "paper": "Paper scale: the paper's sizes and epochs, but for what settings, notes and tables (seeds) say.",
}


@dataclass(frozen=True)
class Picture:
    """A picture of curves; without ``data`` it could not be drawn, and ``title`` says why."""

    file: str
    title: str
    data: bytes | None


@dataclass(frozen=True)
class Section:
    """What the report has of one experiment at one scale."""

    experiment: Experiment
    scale: str
    notes: tuple[str, ...]
    settings: tuple[str, ...]
    overviews: tuple[Table, ...]
    details: tuple[Table, ...]
    pictures: tuple[Picture, ...]


def sections(rows: Sequence[Row], experiments: Iterable[Experiment]) -> list[Section]:
    """Return what the report has: every experiment at each scale that has rows, or else the largest it has."""
    found = []
    for experiment in experiments:
        there = {row.cell.scale for row in rows if row.cell.experiment == experiment.name}
        known = [scale for scale in SCALES if scale in experiment.seeds]
        scales = [scale for scale in reversed(known) if scale in there] or known[-1:]
        found += [_section(compare(experiment, rows, scale)) for scale in scales]
    return found


def _section(comparison: Comparison) -> Section:
    experiment, scale = comparison.experiment, comparison.scale
    makes = f"Makes: {', '.join(experiment.makes)}."
    notes = [MEANINGS[scale], makes, *experiment.notes, *_origin(comparison)]
    judged = claims(comparison)
    return Section(
        experiment,
        scale,
        tuple(notes),
        tuple(option_notes(comparison)),
        (*(() if judged is None else (judged,)), *(overview(comparison, score) for score in experiment.scores)),
        tuple(details(comparison, setting) for setting in comparison.settings),
        tuple(_pictures(comparison)),
    )


def _origin(comparison: Comparison) -> list[str]:
    """Return where the rows come from, or how to make them."""
    notes = []
    rows = comparison.rows
    if not rows:
        command = f"askew-paper run {comparison.experiment.name} --scale {comparison.scale}"
        notes.append(f"No results yet. Make them with: {command}")
    else:
        versions = sorted({f"{name} {version}" for row in rows for name, version in row.versions.items()})
        commits = sorted({(row.commit or "unknown")[:10] + "+" * (row.commit or "").endswith("+") for row in rows})
        machines = sorted({str(row.machine.get("accelerator", f"{row.machine.get('cores')} cores")) for row in rows})
        hours = sum(row.seconds for row in rows) / 3600
        notes.append(
            f"{len(rows)} rows, {hours:.2g} hours together, on {', '.join(machines)}. Commit: {', '.join(commits)}. "
            f"Versions: {', '.join(versions)}."
        )
    if comparison.stale:
        notes.append(f"Left out: {comparison.stale} rows with other settings than the experiment has now.")
    return notes


def _pictures(comparison: Comparison) -> list[Picture]:
    found = curves(comparison.rows)
    pictures = []
    for number, name in enumerate(dict.fromkeys(curve.name for curve in found)):
        some = [curve for curve in found if curve.name == name]
        seeds = sorted({curve.seeds for curve in some})
        span = "to".join(f" {n} " for n in dict.fromkeys((seeds[0], seeds[-1]))).strip()
        many = "" if seeds[-1] == 1 else "s, 95 % band"
        what = comparison.experiment.title.removesuffix(f": {name}")
        title = f"{what}: {name}, {comparison.scale} scale, {span} seed{many}"
        file = f"results-{comparison.experiment.name}-{comparison.scale}-{number}.png"
        shown = [curve for curve in some if curve.drawable]
        if shown:
            try:
                pictures.append(Picture(file, title, draw(shown, title)))
            except ImportError as error:
                pictures.append(Picture(file, f"{title} was not drawn: {error}", None))
        if len(shown) < len(some):
            lost = dict.fromkeys(f"{curve.method} in {curve.setting}" for curve in some if not curve.drawable)
            why = f"with values or intervals beyond {LARGEST:g}, which no picture can show"
            pictures.append(Picture(file, f"{title}: not drawn are {', '.join(lost)}, {why}.", None))
    return pictures


def _unknown(rows: Iterable[Row], experiments: Iterable[Experiment]) -> list[str]:
    names = {row.cell.experiment for row in rows} - {experiment.name for experiment in experiments}
    return [f"Left out: rows of {name!r}, as there is no experiment of this name." for name in sorted(names)]


# ---------------------------------------------------------------------- as Markdown


def text(some: Sequence[Section], remarks: Sequence[str] = ()) -> str:
    """Return the report as Markdown; pictures are files beside it."""
    parts = [f"# {TITLE}", markdown_text(LEGEND), *map(markdown_text, remarks)]
    for section in some:
        parts.append(f"## {markdown_text(section.experiment.title)}, {section.scale} scale")
        parts.append(_bullets(section.notes))
        if section.settings:
            parts.append(_folded("Settings", _bullets(section.settings)))
        parts += [to_markdown(table, level=3) for table in section.overviews]
        for picture in section.pictures:
            title = markdown_text(picture.title)
            parts.append(f"![{title}]({picture.file})" if picture.data is not None else title)
        parts += [_folded(f"{table.title}: every figure", to_markdown(table)) for table in section.details]
    return "\n\n".join(parts) + "\n"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(line)}" for line in lines)


def _folded(title: str, content: str) -> str:
    """Return what is unfolded when asked for; the attribute is for mkdocs, others do without."""
    shown = markdown_text(title)
    return f'<details markdown="1">\n<summary>{shown}</summary>\n\n{content}\n\n</details>'


# ---------------------------------------------------------------------- as one page


def page(some: Sequence[Section], remarks: Sequence[str] = ()) -> str:
    """Return the report as one HTML page that loads nothing: pictures and style are inside."""
    escape = html.escape
    links, parts = [], []
    for section in some:
        name = f"{section.experiment.name}-{section.scale}"
        heading = escape(f"{section.experiment.title}, {section.scale} scale")
        links.append(f'<li><a href="#{name}">{heading}</a></li>')
        notes = "".join(f"<li>{escape(note)}</li>" for note in section.notes)
        parts.append(f'<section id="{name}"><h2>{heading}</h2><ul>{notes}</ul>')
        if section.settings:
            settings = "".join(f"<li>{escape(line)}</li>" for line in section.settings)
            parts.append(f"<details><summary>Settings</summary><ul>{settings}</ul></details>")
        parts += [to_html(table) for table in section.overviews]
        parts += [_figure(picture) for picture in section.pictures]
        parts += [
            f"<details><summary>{escape(table.title)}: every figure</summary>{to_html(table)}</details>"
            for table in section.details
        ]
        parts.append("</section>")
    intro = "".join(f"<p>{escape(remark)}</p>" for remark in (LEGEND, *remarks))
    head = f"<h1>{TITLE}</h1>{intro}<nav><ul>{''.join(links)}</ul></nav>"
    return document(TITLE, f"{head}\n" + "\n".join(parts) + "\n")


def _figure(picture: Picture) -> str:
    title = html.escape(picture.title)
    if picture.data is None:
        return f"<p>{title}</p>"
    data = base64.b64encode(picture.data).decode()
    return f'<figure><img src="data:image/png;base64,{data}" alt="{title}"></figure>'


# ---------------------------------------------------------------------- files


def write_report(
    results: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    experiments: Iterable[Experiment] | None = None,
) -> list[Path]:
    """Write ``results.md``, ``results.html`` and the pictures of curves; nothing is computed anew.

    The same results give the same files, byte by byte.

    Parameters
    ----------
    results
        A folder that :func:`~askew_paper.runner.reproduce` wrote.
    folder
        Where the files go; made if need be. A name that ends in ``.html`` is that of the one page to write instead.
    experiments
        What to report on; None for all there are.

    Returns
    -------
    list of Path
        The files, Markdown first.

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
    ['results.md', 'results.html']
    """
    known = list(EXPERIMENTS.values() if experiments is None else experiments)
    rows = read(results)
    some, remarks = sections(rows, known), _unknown(rows, known)
    folder = Path(folder)
    if folder.suffix == ".html":
        folder.parent.mkdir(parents=True, exist_ok=True)
        io.write_text(folder, page(some, remarks))
        return [folder]
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"results.md": text(some, remarks), "results.html": page(some, remarks)}
    contents = {name: io.printable(content).encode() for name, content in texts.items()}
    pictures = (picture for section in some for picture in section.pictures)
    contents |= {picture.file: picture.data for picture in pictures if picture.data is not None}
    for name, data in contents.items():
        with io.atomic_write(folder / name) as temporary:
            temporary.write_bytes(data)
    return [folder / name for name in contents]
