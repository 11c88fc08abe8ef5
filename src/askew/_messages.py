"""Error messages in one form, for code that must not wait for torch to be imported."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["check_name", "message"]

# Names that an error lists: all of the catalogue, but not all columns of a wide table.
SHOWN = 30


def message(what: str, must: str, got: object = None, hint: str = "", *, but: str = "") -> str:
    """Return an error message: what is wrong, what it must be, what was received, and how to fix it.

    ``but`` is a clause that stands in place of what was received.

    Examples
    --------
    >>> message("dim of NeuralBregman", "a positive integer", -3)
    'dim of NeuralBregman must be a positive integer. Got -3 instead.'
    >>> message("TABLE 'a.csv'", "a table", but="it has no rows")
    "TABLE 'a.csv' must be a table, but it has no rows."
    """
    text = f"{what} must be {must}, but {but}." if but else f"{what} must be {must}. Got {got} instead."
    return f"{text} {hint}" if hint else text


def check_name(name: object, known: Iterable[str], what: str) -> str:
    """Return ``name`` if it is one of ``known``; the error suggests similar names."""
    choices = list(map(str, known))
    if isinstance(name, str) and name in choices:
        return name
    lower = str(name).lower()
    near = [each for each in choices if each.lower() == lower]
    near = near or difflib.get_close_matches(lower, choices, n=3, cutoff=0.6)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
    listed = ", ".join(map(repr, choices[:SHOWN])) + (", ..." if len(choices) > SHOWN else "")
    raise ValueError(message(what, f"one of {listed}", repr(name), hint))
