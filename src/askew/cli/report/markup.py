"""Tables as Markdown and HTML: whatever stands in them is printed as text."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

__all__ = ["Field", "Table", "markdown_text", "to_html", "to_markdown"]


@dataclass(frozen=True)
class Field:
    """The text of one field of a table, and its mark: better, within, worse or missing."""

    text: str
    mark: str | None = None


@dataclass(frozen=True)
class Table:
    """A table to be printed: plain text only, which is escaped when it is written as Markdown or HTML."""

    title: str
    notes: tuple[str, ...]
    header: tuple[str, ...]
    lines: tuple[tuple[Field, ...], ...]


def to_markdown(table: Table, level: int = 4) -> str:
    r"""Return a table with its title and notes as Markdown; ``level`` is that of the heading.

    Examples
    --------
    >>> print(to_markdown(Table("A | B", ("Scale: quick.",), ("Method", "x"), ((Field("nbd"), Field("<1")),))))
    #### A \| B
    <BLANKLINE>
    Scale: quick.
    <BLANKLINE>
    | Method | x |
    | --- | --- |
    | nbd | &lt;1 |
    """
    lines = [[markdown_text(field.text) for field in line] for line in table.lines]
    body = [[markdown_text(name) for name in table.header], ["---"] * len(table.header), *lines]
    notes = "\n".join(map(markdown_text, table.notes))
    rows = "\n".join(f"| {' | '.join(line)} |" for line in body)
    return f"{'#' * level} {markdown_text(table.title)}\n\n{notes}\n\n{rows}"


def markdown_text(text: str) -> str:
    """Return text that Markdown prints as it is."""
    text = html.escape(" ".join(text.split()), quote=False)
    text = re.sub(r"([\\`*\[\]|~$])", r"\\\1", text)
    # Between letters an underscore is one; at the edge of a word it would be emphasis.
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def to_html(table: Table) -> str:
    """Return a table with its title and notes as HTML, all text escaped.

    Examples
    --------
    >>> "<b>" in to_html(Table("<b>", (), ("Method",), ()))
    False
    """
    escape = html.escape
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    lines = []
    for first, *others in table.lines:
        fields = "".join(f"<td{_class(field)}>{escape(field.text)}</td>" for field in others)
        lines.append(f'<tr><th scope="row">{escape(first.text)}</th>{fields}</tr>')
    notes = "".join(f"<br>{escape(note)}" for note in table.notes)
    caption = f"<caption><strong>{escape(table.title)}</strong>{notes}</caption>"
    # The frame scrolls on narrow screens, and by keyboard too.
    body = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="frame" tabindex="0" role="region" aria-label="{escape(table.title)}">{body}</div>'


def _class(field: Field) -> str:
    return "" if field.mark is None else f' class="{field.mark}"'
