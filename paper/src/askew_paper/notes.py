"""The text of the report: notes, claims and requirements of each experiment, read from Markdown files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from askew import checks

# In a checkout the files are in paper/notes; a wheel has them in the package.
FOLDERS = (Path(__file__).parents[2] / "notes", Path(__file__).with_name("texts"))
HEADINGS = ("Needs", "Notes", "Claims")


@dataclass(frozen=True)
class Notes:
    """The text of one experiment.

    Attributes
    ----------
    experiment : str
        Its name.
    needs : tuple of str
        Data and packages that it needs.
    notes : tuple of str
        What a reader has to know to understand the tables.
    claims : dict
        Sentences by their keys.
    """

    experiment: str
    needs: tuple[str, ...]
    notes: tuple[str, ...]
    claims: dict[str, str]

    def claim(self, key: str) -> str:
        """Return the sentence of a claim."""
        return self.claims[checks.check_name(key, self.claims, f"key of a claim in the notes of {self.experiment!r}")]


def read_notes(experiment: str, folder: Path | None = None) -> Notes:
    """Return the text of an experiment.

    The file ``<experiment>.md`` has a title and up to three sections, ``## Needs``, ``## Notes`` and ``## Claims``,
    each with a list in plain text. An item of the last one is ``- key: sentence``.

    Examples
    --------
    >>> notes = read_notes("timing")
    >>> list(notes.claims), notes.claim("batched")
    (['looped', 'batched', 'pairwise'], 'Deep-div in one product is slower to train than NBD')
    """
    folder = folder or next((place for place in FOLDERS if place.is_dir()), FOLDERS[0])
    path = folder / f"{experiment}.md"
    items: dict[str, list[str]] = {heading: [] for heading in HEADINGS}
    for where, heading, item in _items(path):
        items[checks.check_name(heading, HEADINGS, f"heading of {where}")].append(item)
    claims: dict[str, str] = {}
    for item in items["Claims"]:
        key, _, sentence = item.partition(": ")
        if not re.fullmatch(r"[a-z0-9-]+", key) or not sentence or key in claims:
            must = "'key: sentence', each key once"
            raise ValueError(checks.message(f"each claim in {str(path)!r}", must, repr(item)))
        claims[key] = sentence
    return Notes(experiment, tuple(items["Needs"]), tuple(items["Notes"]), claims)


def _items(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the heading and the text of each list item, with its lines joined."""
    heading, where, item = "", "", ""
    for number, line in enumerate([*path.read_text("utf-8").splitlines(), "#"], start=1):
        if line.startswith("  ") and item:
            item = f"{item} {line.strip()}"
            continue
        if item:
            yield where, heading, item
        where = f"line {number} of {str(path)!r}"
        item = line[2:].strip() if line.startswith("- ") else ""
        if line.startswith("## "):
            heading = line[3:].strip()
        elif not item and line.strip() and not line.startswith("#"):
            raise ValueError(checks.message(where, "a heading, a list item or an indented line of one", repr(line)))
