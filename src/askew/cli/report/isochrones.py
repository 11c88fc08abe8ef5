"""Isochrones as SVG: the places from which a point can be reached in some minutes, and those that it can reach."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Edge = tuple[tuple[int, int], tuple[int, int]]

# Pixels of a map, and of the titles above maps that stand side by side.
SIZE, TITLE, SPACE = 360, 64, 24
STYLE = """
.isochrones { --ink: #1c1c1c; --ground: #eef1ea; --hill: #9a8f78; --from: #0072b2; --to: #d55e00; }
@media (prefers-color-scheme: dark) {
  .isochrones { --ink: #e6e6e6; --ground: #22282b; --hill: #8b826d; --from: #4fb0ee; --to: #ff8a3d; } }
.isochrones rect { fill: var(--ground); stroke: none; } .isochrones path { fill: none; }
.isochrones .hill { stroke: var(--hill); opacity: .55; }
.isochrones .true { stroke: var(--ink); stroke-width: 1.6; stroke-dasharray: 5 4; }
.isochrones .from path.near { fill: var(--from); fill-opacity: .3; stroke: var(--from); }
.isochrones .to path.near { fill: var(--to); fill-opacity: .3; stroke: var(--to); }
.isochrones circle { fill: var(--ink); stroke: var(--ground); stroke-width: 2; }
.isochrones text { fill: var(--ink); font: 17px system-ui, sans-serif; text-anchor: middle; }
.isochrones .bold { font-weight: 700; font-size: 19px; }
"""


class Map(NamedTuple):
    """One direction: ``learned`` and ``true`` minutes on square grids over the same land, first axis to the east."""

    kind: str
    title: str
    learned: Floats
    true: Floats


def loops(values: Floats, level: float) -> list[Floats]:
    """Return closed lines around the places of a grid whose value is below a level, ``(n, 2)`` grid coordinates each.

    Examples
    --------
    >>> x, y = np.meshgrid(np.arange(11.0), np.arange(11.0), indexing="ij")
    >>> (circle,) = loops(np.hypot(x - 5, y - 5), 3.0)
    >>> bool(abs(np.hypot(*(circle - 5).T) - 3).max() < 0.05)
    True
    """
    padded = np.pad(values, 1, constant_values=1e9)
    inside = padded < level
    corners = inside[:-1, :-1].astype(int) + inside[1:, :-1] + inside[:-1, 1:] + inside[1:, 1:]
    following: dict[Edge, Edge] = {}
    for i, j in zip(*np.nonzero((corners > 0) & (corners < 4)), strict=True):
        around = [(int(i), int(j)), (int(i), int(j) + 1), (int(i) + 1, int(j) + 1), (int(i) + 1, int(j))]
        edges = [(around[k], around[(k + 1) % 4]) for k in range(4)]
        crossed = [((min(p, q), max(p, q)), inside[p]) for p, q in edges if inside[p] != inside[q]]
        # Going around a cell, a line leads from where the inside is left to where it is entered again.
        for k, (edge, leaves) in enumerate(crossed):
            if leaves:
                following[edge] = crossed[(k + 1) % len(crossed)][0]
    found = []
    while following:
        edge, chain = next(iter(following)), []
        while edge in following:
            chain.append(edge)
            edge = following.pop(edge)
        first, second = np.array(chain, dtype=float).transpose(1, 0, 2)
        low, high = (padded[tuple(ends.astype(int).T)] for ends in (first, second))
        found.append(first + ((level - low) / (high - low))[:, None] * (second - first) - 1)
    return found


def _path(values: Floats, level: float, mark: str) -> str:
    scale = SIZE / (np.array(values.shape) - 1)
    # North is up.
    drawn = [line * scale * [1, -1] + [0, SIZE] for line in loops(values, level)]
    text = "".join("M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in line) + "Z" for line in drawn)
    return f'<path class="{mark}" fill-rule="evenodd" d="{text}"/>'


def _content(
    chart: Map, height: Floats, here: Sequence[float], minutes: Sequence[float], steps: float
) -> Iterator[str]:
    """Yield the parts of a map: the hills, areas within each number of minutes, and the true line of the middle one."""
    yield f'<rect width="{SIZE}" height="{SIZE}"/>'
    for level in np.arange(steps / 2, float(height.max()), steps):
        yield _path(-height, -level, "hill")
    yield from (_path(chart.learned, limit, "near") for limit in sorted(minutes, reverse=True))
    yield _path(chart.true, sorted(minutes)[len(minutes) // 2], "true")
    yield f'<circle r="6" cx="{SIZE * here[0]:.1f}" cy="{SIZE * (1 - here[1]):.1f}"/>'


def draw(
    charts: Sequence[Map], height: Floats, here: Sequence[float], minutes: Sequence[float], steps: float = 50.0
) -> tuple[list[str], str]:
    """Return each map as SVG for a page, and all of them next to each other as a file with titles.

    Parameters
    ----------
    charts
        The directions.
    height
        Of the land, on a grid like those of the maps; a line is drawn for each of the ``steps``.
    here
        The point, in shares of the width and the height of the land.
    minutes
        Limits of the areas that are filled.
    """
    single, joined = [], []
    for number, chart in enumerate(charts):
        body = f'<g class="{chart.kind}">{"".join(_content(chart, height, here, minutes, steps))}</g>'
        label = html.escape(chart.title)
        head = f'class="isochrones" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}"'
        single.append(f'<svg {head} viewBox="0 0 {SIZE} {SIZE}">{body}</svg>')
        first, _, second = label.partition(": ")
        titles = f'<text class="bold" x="{SIZE / 2}" y="-38">{first}</text><text x="{SIZE / 2}" y="-14">{second}</text>'
        joined.append(f'<g transform="translate({number * (SIZE + SPACE)},{TITLE})">{titles}{body}</g>')
    width = len(charts) * (SIZE + SPACE) - SPACE
    head = f'xmlns="http://www.w3.org/2000/svg" class="isochrones" viewBox="0 0 {width} {SIZE + TITLE}"'
    return single, f"<svg {head}><style>{STYLE}</style>{''.join(joined)}</svg>\n"


def section(charts: Sequence[Map], single: Sequence[str], minutes: Sequence[float]) -> str:
    """Return the maps as HTML for a report, with titles below them."""
    figures = "".join(
        f"<figure>{svg}<figcaption>{html.escape(chart.title)}</figcaption></figure>"
        for chart, svg in zip(charts, single, strict=True)
    )
    *most, last = (f"{limit:.0f}" for limit in sorted(minutes))
    text = f"Filled: within {', '.join(most)} and {last} minutes as learned. Dashed: the true line of "
    text += f"{sorted(minutes)[len(minutes) // 2]:.0f} minutes. Thin lines are heights."
    return f'<style>{STYLE}</style><p>{html.escape(text)}</p><div class="maps">{figures}</div>'
