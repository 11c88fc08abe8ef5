"""Charts as SVG that takes its colours from the page, so that it fits light, dark and print."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from askew.plot.frame import CYCLE

# After all colours the same again with other shapes.
SHAPES = (
    '<circle r="4" stroke="none"/>',
    '<rect x="-3.5" y="-3.5" width="7" height="7" stroke="none"/>',
    '<path d="M0 -5 L4.5 3.5 L-4.5 3.5 Z" stroke="none"/>',
    '<path d="M-4 -4 L4 4 M-4 4 L4 -4" stroke-width="2" fill="none"/>',
)
# Pixels of the picture, which scales with the page, and of the room at its right.
WIDTH, RIGHT = 720, 24


class Dots(NamedTuple):
    """Points of one class, and the tooltip of each."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    titles: Sequence[str]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers between two others.

    Examples
    --------
    >>> ticks(0.13, 0.97)
    [0.2, 0.4, 0.6, 0.8]
    """
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    step = 10 ** math.floor(math.log10(span / count))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= count)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def ranges_chart(rows: Sequence[tuple[str, float, float, Sequence[float]]], label: str) -> str:
    """Return a chart with a row for each name, mean, standard deviation and single values, on an axis with a label.

    Examples
    --------
    >>> chart = ranges_chart([("nbd", 0.9, 0.02, [0.88, 0.92])], "MAP")
    >>> chart.startswith("<svg"), chart.count("<circle")
    (True, 3)
    """
    left, step = 150, 34
    height = step * len(rows) + 60
    bars = [(mean, mean) if math.isnan(spread) else (mean - spread, mean + spread) for _, mean, spread, _ in rows]
    numbers = [value for (*_, values), bar in zip(rows, bars, strict=True) for value in (*values, *bar)]
    low, high = _padded(min(numbers), max(numbers))
    at = _scale(low, high, left, WIDTH - RIGHT)
    parts = []
    for tick in ticks(low, high):
        parts.append(f'<line class="grid" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="8" y2="{height - 44}"/>')
        parts.append(_text(at(tick), height - 26, f"{tick:g}"))
    for number, ((name, mean, spread, values), (first, last)) in enumerate(zip(rows, bars, strict=True)):
        y = 8 + step * (number + 0.5)
        colour = CYCLE[0] if number == 0 else "var(--dim)"
        parts.append(_text(left - 12, y + 5, _short(name, 18), "end"))
        style = f'stroke="{colour}" stroke-width="3" stroke-linecap="round" opacity="0.5"'
        parts.append(f'<line x1="{at(first):.1f}" x2="{at(last):.1f}" y1="{y:.1f}" y2="{y:.1f}" {style}/>')
        parts += [f'<circle cx="{at(v):.1f}" cy="{y:.1f}" r="3" fill="{colour}" opacity="0.55"/>' for v in values]
        text = f"{html.escape(name)}: {mean:.3f}" + ("" if math.isnan(spread) else f" ± {spread:.3f}")
        parts.append(f'<circle cx="{at(mean):.1f}" cy="{y:.1f}" r="6" fill="{colour}"><title>{text}</title></circle>')
    parts.append(_text((left + WIDTH - RIGHT) / 2, height - 6, html.escape(label)))
    return _svg(parts, f"{label}: {', '.join(f'{name} {mean:.3f}' for name, mean, _, _ in rows)}", height)


def scatter_chart(classes: Sequence[Dots], label: str) -> str:
    """Return a map of points with a colour and a shape for each class; both axes have the same scale.

    Examples
    --------
    >>> scatter_chart([Dots("a", [0, 1], [0, 1], ["row 0", "row 1"])], "map").count("<title>")
    2
    """
    xs = [value for dots in classes for value in dots.x]
    ys = [value for dots in classes for value in dots.y]
    size = 460
    half = max(max(xs) - min(xs), max(ys) - min(ys)) / 2 or 0.5
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    x_at = _scale(middle_x - half, middle_x + half, 15, size - 15)
    y_at = _scale(middle_y - half, middle_y + half, size - 15, 15)
    parts = []
    for number, dots in enumerate(classes):
        colour, shape = CYCLE[number % len(CYCLE)], SHAPES[number // len(CYCLE) % len(SHAPES)]
        marks = [
            f'<g transform="translate({x_at(x):.1f},{y_at(y):.1f})">{shape}<title>{html.escape(title)}</title></g>'
            for x, y, title in zip(dots.x, dots.y, dots.titles, strict=True)
        ]
        parts.append(f'<g class="class" data-class="{number}" fill="{colour}" stroke="{colour}">{"".join(marks)}</g>')
    return _svg(parts, label, size, size)


# ---------------------------------------------------------------------- parts


def _padded(low: float, high: float) -> tuple[float, float]:
    room = (high - low or abs(high) or 1.0) * 0.06
    return low - room, high + room


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return the affine map from values to pixels."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _short(text: str, length: int) -> str:
    return html.escape(text if len(text) <= length else text[: length - 1] + "…")


def _svg(parts: Sequence[str], label: str, height: int, width: int = WIDTH) -> str:
    spoken = html.escape(label)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{spoken}" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg>"
    )
